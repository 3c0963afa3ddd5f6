"""Modules in sequence tasks: SCAN against the official files' counts and a few lines of its own, and all steps."""

import pytest

from subnet_utils.papers.functional_modularity.tasks import scan

OFFICIAL = {"simple": (16728, 4182), "jump": (14670, 7706), "turn left": (21890, 1208), "length": (16990, 3920)}
"""Lines of the official files: training and test."""


def act(command: str) -> list[str]:
    """What a command says, read from the outside in: no line of the grammar is used."""
    for joint, order in ((" and ", 1), (" after ", -1)):
        if joint in command:
            return sum((act(part) for part in command.split(joint)[::order]), [])
    words = command.split()
    if words[-1] in ("twice", "thrice"):
        return act(" ".join(words[:-1])) * (2 if words[-1] == "twice" else 3)
    verb = [] if words[0] == "turn" else [words[0].upper()]
    turn = [f"TURN_{words[-1].upper()}"]
    return {1: verb, 2: turn + verb}.get(len(words)) or (
        turn * 2 + verb if words[1] == "opposite" else (turn + verb) * 4
    )


def test_the_commands_are_those_of_the_grammar():
    commands = scan.commands()
    assert len(commands) == 20910
    assert (max(map(len, commands)), max(map(len, commands.values()))) == (9, scan.LONGEST)
    assert {word for command in commands for word in command} == set(scan.WORDS)
    assert {action for actions in commands.values() for action in actions} == set(scan.ACTIONS)
    assert all(list(actions) == act(" ".join(command)) for command, actions in commands.items())


@pytest.mark.parametrize("name", scan.SPLITS)
def test_splits_have_the_official_sizes_and_part_all_commands(name):
    split = scan.split(name)
    assert (len(split.train), len(split.test)) == OFFICIAL[name]
    assert not set(split.train) & set(split.test)
    assert set(split.train) | set(split.test) == set(scan.commands())


def test_what_a_split_leaves_out():
    jump, left, length = (scan.split(name) for name in scan.SPLITS[1:])
    assert {command for command in jump.train if "jump" in command} == {("jump",)}
    assert {" ".join(command) for command in left.train if "turn left" in " ".join(command)} == {"turn left"}
    assert jump.train.count(("jump",)) == 1467 and left.train.count(("turn", "left")) == 2189  # a tenth
    answers = [len(scan.commands()[command]) for command in length.test]
    assert min(answers) > scan.SHORT >= max(len(scan.commands()[command]) for command in length.train)
