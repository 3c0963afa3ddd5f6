"""Arithmetic modulo 100 on two-digit numbers (*Are Neural Nets Modular?*, sections 3.1 and 3.2).

A digit is one of ten inputs that is 1; the least significant digit comes first. The answer has two digits, too, each
with ten outputs.

- `add_mul`: one operation, which two more inputs name. Both operations have the same inputs and outputs.
- `double_addition`: the same operation on two pairs of numbers. Each pair has inputs and outputs of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot

BASE = 100
"""Numbers are 0 to 99, and answers are modulo 100."""
DIGITS = 2
"""Of a number."""
ABSENT = -100
"""Target of a digit that is not asked for; what torch's cross-entropy leaves out."""
FUNCTIONS = {"add_mul": ("+", "*"), "double_addition": ("pair 1", "pair 2")}
"""Of each task, the functions that a network learns."""


@dataclass(frozen=True)
class Items:
    """Items of a task.

    inputs: [m, width] zeros and ones; targets: int64 [m, digits]; rows: for each function the rows [k] that ask for it.
    numbers: int64 [m, 2 or 4], what the inputs stand for; of an absent pair -1.
    """

    inputs: Tensor
    targets: Tensor
    rows: Mapping[str, Tensor]
    numbers: Tensor

    def only(self, function: str) -> "Items":
        """The items that ask for a function; digits of another one are no longer asked for."""
        rows, targets = self.rows[function], self.targets[self.rows[function]].clone()
        if function in FUNCTIONS["double_addition"]:
            other = 1 - FUNCTIONS["double_addition"].index(function)
            targets[:, DIGITS * other : DIGITS * (other + 1)] = ABSENT
        return Items(self.inputs[rows], targets, {function: torch.arange(len(rows))}, self.numbers[rows])


def digits(numbers: Tensor) -> Tensor:
    """The digits of numbers [m], int64 [m, 2], the least significant one first.

    >>> digits(torch.tensor([42, 7])).tolist()
    [[2, 4], [7, 0]]
    """
    return torch.stack([numbers % 10, numbers // 10], dim=1)


@cache
def add_mul() -> Items:
    """All 20,000 items: first those of addition, then those of multiplication; [m, 42] inputs."""
    pairs = torch.cartesian_prod(torch.arange(BASE), torch.arange(BASE))
    numbers, operations = pairs.repeat(2, 1), torch.arange(2).repeat_interleave(len(pairs))
    answers = torch.where(operations == 0, numbers.sum(dim=1), numbers.prod(dim=1)) % BASE
    inputs = torch.cat([_encoded(numbers), one_hot(operations, 2).float()], dim=1)
    rows = {name: (operations == i).nonzero().flatten() for i, name in enumerate(FUNCTIONS["add_mul"])}
    return Items(inputs, digits(answers), rows, numbers)


@cache
def double_addition() -> Items:
    """All 20,000 items in which one pair is there and the other's inputs are zero; [m, 80] inputs, 4 digits."""
    pair, none = torch.cartesian_prod(torch.arange(BASE), torch.arange(BASE)), torch.full((BASE**2, 2), -1)
    numbers = torch.cat([torch.cat([pair, none], dim=1), torch.cat([none, pair], dim=1)])
    first, second = torch.arange(2 * len(pair)).split(len(pair))
    rows = dict(zip(FUNCTIONS["double_addition"], (first, second), strict=True))
    return Items(_encoded(numbers), _sums(numbers), rows, numbers)


def both_pairs(count: int, generator: torch.Generator) -> Items:
    """Items drawn from the 10^8 in which both pairs are there; all of them ask for both sums."""
    numbers = torch.randint(BASE, (count, 4), generator=generator)
    every = torch.arange(count)
    return Items(_encoded(numbers), _sums(numbers), dict.fromkeys(FUNCTIONS["double_addition"], every), numbers)


def operation_of(found: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    """Which operation gives the digits that a network found: boolean [m] for +, * and none (Figure 13).

    found: int64 [m, 2]; numbers: [m, 2]. Where both operations give the same, both count.
    """
    answers = {"+": numbers.sum(dim=1), "*": numbers.prod(dim=1)}
    done = {name: (digits(answer % BASE) == found).all(dim=1) for name, answer in answers.items()}
    return done | {"none": ~(done["+"] | done["*"])}


def _encoded(numbers: Tensor) -> Tensor:
    """Inputs [m, 20 n] of numbers [m, n]; -1 gives zeros."""
    there = (numbers >= 0)[:, :, None, None]
    parts = torch.stack([digits(column) for column in numbers.clamp(min=0).T], dim=1)  # [m, n, 2]
    return (one_hot(parts, 10) * there).flatten(1).float()


def _sums(numbers: Tensor) -> Tensor:
    """Targets [m, 4] of two pairs [m, 4]."""
    sums = [torch.where(pair[:, :1] < 0, ABSENT, digits(pair.sum(dim=1) % BASE)) for pair in numbers.split(2, dim=1)]
    return torch.cat(sums, dim=1)
