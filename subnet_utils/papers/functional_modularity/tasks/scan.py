"""SCAN: commands in a small language and the actions that they stand for (Lake and Baroni 2018; *Are Neural Nets
Modular?*, section 4).

    command     C -> S and S | S after S | S            'after' reverses the order
    sentence    S -> V twice | V thrice | V
    verb        V -> D | turn-or-go opposite D | turn-or-go around D | U
    direction   D -> (turn | walk | look | run | jump) (left | right)
    primitive   U -> walk | look | run | jump

The grammar makes every command once. A split says from which commands a network learns and on which it is tested:
`simple` is drawn at random; `jump` and `turn left` show a primitive by itself but never as a part of a command; and
`length` shows only commands with short answers. Sizes and repeated examples are those of the official files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from subnet_utils.core.seeds import generator_for

SPLITS = ("simple", "jump", "turn left", "length")
PRIMITIVES = ("walk", "look", "run", "jump")
DIRECTIONS = ("left", "right")
WORDS = ("and", "after", "twice", "thrice", "opposite", "around", *DIRECTIONS, "turn", *PRIMITIVES)
ACTIONS = ("TURN_LEFT", "TURN_RIGHT", *(primitive.upper() for primitive in PRIMITIVES))
"""Without the official files' `I_`."""
LONGEST = 48
"""Actions of a command; it has at most 9 words."""
SIMPLE, SHORT = 16728, 22
"""Training commands of `simple`, and actions up to which a command is one of `length`."""
SHARE = 10
"""One in so many training examples of `jump` and `turn left` is the primitive by itself."""

Command = tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Commands to learn from, among them repeated ones, and to be tested on, which are others."""

    train: tuple[Command, ...]
    test: tuple[Command, ...]


@cache
def commands() -> dict[Command, tuple[str, ...]]:
    """All 20,910 commands, each with its actions.

    >>> commands()["jump", "left", "after", "walk", "twice"]
    ('WALK', 'WALK', 'TURN_LEFT', 'JUMP')
    """
    sentences = dict(_sentences())
    both = {}
    for (one, first), (other, second) in product(sentences.items(), repeat=2):
        both[*one, "and", *other] = first + second
        both[*one, "after", *other] = second + first
    return sentences | both


@cache
def split(name: str) -> Split:
    """A split by its name. Raises KeyError for what is none of `SPLITS`."""
    every = list(commands())
    if name == "simple":
        order = torch.randperm(len(every), generator=generator_for("scan", "simple")).tolist()
        chosen = [every[i] for i in order]
        return Split(tuple(chosen[:SIMPLE]), tuple(chosen[SIMPLE:]))
    if name == "length":
        short = [len(actions) <= SHORT for actions in commands().values()]
        return _divided([not one for one in short])
    alone = {"jump": ("jump",), "turn left": ("turn", "left")}[name]
    divided = _divided([_holds(command, alone) and command != alone for command in every])
    others = len(divided.train) - 1
    return Split(divided.train + (alone,) * (others // (SHARE - 1) - 1), divided.test)


def _sentences() -> Iterator[tuple[Command, tuple[str, ...]]]:
    times = {(): 1, ("twice",): 2, ("thrice",): 3}
    for (verb, actions), (often, count) in product(_verbs(), times.items()):
        yield verb + often, actions * count


def _verbs() -> Iterator[tuple[Command, tuple[str, ...]]]:
    for primitive in PRIMITIVES:
        yield (primitive,), (primitive.upper(),)
    for verb, direction in product(("turn", *PRIMITIVES), DIRECTIONS):
        turn, done = (f"TURN_{direction.upper()}",), () if verb == "turn" else (verb.upper(),)
        yield (verb, direction), turn + done
        yield (verb, "opposite", direction), turn * 2 + done
        yield (verb, "around", direction), (turn + done) * 4


def _divided(tested: list[bool]) -> Split:
    pairs = list(zip(commands(), tested, strict=True))
    return Split(*(tuple(command for command, out in pairs if out is wanted) for wanted in (False, True)))


def _holds(command: Command, part: Command) -> bool:
    """Whether the words of a part stand in a command side by side."""
    return any(command[i : i + len(part)] == part for i in range(len(command)))
