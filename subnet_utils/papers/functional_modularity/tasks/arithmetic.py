"""Arithmetic modulo 100 on two-digit numbers (*Are Neural Nets Modular?*, sections 3.1 and 3.2).

A digit is one of ten inputs that is 1; the least significant digit comes first. The answer has two digits, too, each
with ten outputs.

- `add_mul`: one operation, which two more inputs name. Both operations have the same inputs and outputs.
- `double_addition`: the same operation on two pairs of numbers. Each pair has inputs and outputs of its own.
"""

from functools import cache

import torch
from torch import Tensor

from subnet_utils.problems import operations
from subnet_utils.problems.operations import ABSENT, Items

BASE, DIGITS = 100, 2
"""Numbers are 0 to 99, and answers are modulo 100; each has two digits."""
PAIRS = ("pair 1", "pair 2")


@cache
def add_mul() -> dict[str, Items]:
    """All 10,000 pairs of numbers for addition, and for multiplication: 42 inputs, 2 digits."""
    every = {name: operations.items(BASE, 10, name) for name in operations.LEARNED}
    return {name: Items(inputs[:, :42].contiguous(), targets) for name, (inputs, targets) in every.items()}


@cache
def double_addition() -> dict[str, Items]:
    """All 10,000 sums of each pair; the other's inputs are zero, and its digits not asked for: 80 inputs, 4 digits."""
    sums = _sums()
    none = Items(torch.zeros_like(sums.inputs), torch.full_like(sums.targets, ABSENT))
    sides = (sums, none), (none, sums)
    beside = [Items(*(torch.cat(both, dim=1) for both in zip(*pairs, strict=True))) for pairs in sides]
    return dict(zip(PAIRS, beside, strict=True))


def both_pairs(count: int, generator: torch.Generator) -> Items:
    """Items drawn from the 10^8 in which both pairs are there; all of them ask for both sums."""
    numbers = torch.randint(BASE, (count, 4), generator=generator)
    pairs = numbers[:, ::2] * BASE + numbers[:, 1::2]  # of each its place among all
    return Items(*(tensor[pairs].flatten(1) for tensor in _sums()))


def asked(items: Items, function: str) -> Items:
    """Items with both pairs that ask for one of them alone."""
    own = torch.arange(2 * DIGITS) // DIGITS == PAIRS.index(function)
    return Items(items.inputs, items.targets.where(own, ABSENT))


def operation_of(answers: Tensor) -> dict[str, Tensor]:
    """Which operation gives the digits that a network found: boolean [10000] for +, * and none (Figure 13).

    answers: int64 [10000, 2], to all pairs of numbers. Where both operations give the same, both count.
    """
    done = {name: (one.targets == answers).all(dim=1) for name, one in add_mul().items()}
    return done | {"none": ~(done["+"] | done["*"])}


TASKS = {"add_mul": add_mul, "double_addition": double_addition}
"""Of each the functions that a network learns, with all items of each."""


def _sums() -> Items:
    """All pairs of numbers: 40 inputs, 2 digits."""
    inputs, targets = operations.items(BASE, 10, "+")
    return Items(inputs[:, :40], targets)
