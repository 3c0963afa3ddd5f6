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

import random
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

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


class Split(NamedTuple):
    """Commands or other questions to learn from, and to be tested on, which are others."""

    train: tuple
    test: tuple


@cache
def commands() -> dict[Command, tuple[str, ...]]:
    """All 20,910 commands, each with its actions.

    >>> commands()["jump", "left", "after", "walk", "twice"]
    ('WALK', 'WALK', 'TURN_LEFT', 'JUMP')
    """
    times = {(): 1, ("twice",): 2, ("thrice",): 3}.items()
    sentences = {verb + often: actions * count for (verb, actions), (often, count) in product(_verbs(), times)}
    both = {}
    for (one, first), (other, second) in product(sentences.items(), repeat=2):
        both[*one, "and", *other] = first + second
        both[*one, "after", *other] = second + first
    return sentences | both


@cache
def split(name: str) -> Split:
    """A split by its name; in training commands may be repeated. Raises KeyError for what is none of `SPLITS`."""
    every = list(commands())
    if name == "simple":
        order = torch.randperm(len(every), generator=generator_for("scan", "simple")).tolist()
        shuffled = tuple(every[i] for i in order)
        return Split(shuffled[:SIMPLE], shuffled[SIMPLE:])
    if name == "length":
        tested, more = {command for command, actions in commands().items() if len(actions) > SHORT}, ()
    else:
        alone = {"jump": ("jump",), "turn left": ("turn", "left")}[name]
        tested = {command for command in every if name in " ".join(command) and command != alone}
        more = (alone,) * ((len(every) - len(tested) - 1) // (SHARE - 1) - 1)
    train, test = (tuple(one for one in every if (one in tested) is out) for out in (False, True))
    return Split(train + more, test)


def sampled(commands: Iterable[Command], count: int) -> list[Command]:
    """So many commands, always the same. Drawn, because they alternate: of every tenth, none has `after`."""
    known = list(commands)
    return known if count == len(known) else random.Random(0).sample(known, count)


def _verbs() -> Iterator[tuple[Command, tuple[str, ...]]]:
    for primitive in PRIMITIVES:
        yield (primitive,), (primitive.upper(),)
    for verb, direction in product(("turn", *PRIMITIVES), DIRECTIONS):
        turn, done = (f"TURN_{direction.upper()}",), () if verb == "turn" else (verb.upper(),)
        yield (verb, direction), turn + done
        yield (verb, "opposite", direction), turn * 2 + done
        yield (verb, "around", direction), (turn + done) * 4
