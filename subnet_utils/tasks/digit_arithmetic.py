"""Arithmetic with remainders, digit by digit.

All pairs of numbers below a modulus are items. A digit is an input that is 1, and of the answer it is a class; the
least significant one comes first. The tasks of *Are Neural Nets Modular?* (sections 3.1 and 3.2) have two digits:

- `add_mul`: one operation, which two more inputs name. Both operations have the same inputs and outputs.
- `double_addition`: the same operation on two pairs of numbers. Each pair has inputs and outputs of its own.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

TAUGHT, UNTAUGHT = ("+", "*"), ("-", "swapped -")
"""What networks learn, and the operations that are there for fine-tuning."""
OPERATIONS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "-": lambda a, b: a - b,
    "swapped -": lambda a, b: b - a,
}
ABSENT = -100
"""Target of an output that is not asked for; what torch's cross-entropy leaves out."""
BASE, DIGITS = 100, 2
"""Numbers of the paper's tasks are 0 to 99, and answers are modulo 100; each has two digits."""
PAIRS = ("pair 1", "pair 2")


class Items(NamedTuple):
    """Items of a function: inputs [m, ...], int64 targets [m, ...]; outputs have classes in one more dimension."""

    inputs: Tensor
    targets: Tensor


@cache
def items(modulus: int, base: int, operation: str) -> Items:
    """Inputs [modulus^2, 2 digits base + 4] and targets [modulus^2, digits] of all pairs for an operation.

    The last four inputs name the operation.

    >>> inputs, targets = items(100, 10, "+")
    >>> inputs.shape, targets[99 * 100 + 3].tolist()  # 99 + 3 = 2 modulo 100
    (torch.Size([10000, 44]), [2, 0])
    """
    digits = round(math.log(modulus, base))
    positions = base ** torch.arange(digits)
    pairs = torch.cartesian_prod(torch.arange(modulus), torch.arange(modulus))
    answers = OPERATIONS[operation](*pairs.T) % modulus
    numbers = one_hot(pairs[:, :, None] // positions % base, base).flatten(1)
    asked = one_hot(torch.tensor(list(OPERATIONS).index(operation)), len(OPERATIONS)).expand(len(pairs), -1)
    return Items(torch.cat([numbers, asked], dim=1).float(), answers[:, None] // positions % base)


@cache
def add_mul() -> dict[str, Items]:
    """All 10,000 pairs of numbers for addition, and for multiplication: 42 inputs, 2 digits."""
    every = {name: items(BASE, 10, name) for name in TAUGHT}
    return {name: Items(inputs[:, :42].contiguous(), targets) for name, (inputs, targets) in every.items()}


@cache
def double_addition() -> dict[str, Items]:
    """All 10,000 sums of each pair; the other's inputs are zero, and its digits not asked for: 80 inputs, 4 digits."""
    sums = _sums()
    none = Items(torch.zeros_like(sums.inputs), torch.full_like(sums.targets, ABSENT))
    sides = (sums, none), (none, sums)
    padded = [Items(*(torch.cat(both, dim=1) for both in zip(*pairs, strict=True))) for pairs in sides]
    return dict(zip(PAIRS, padded, strict=True))


def both_pairs(count: int, generator: torch.Generator) -> Items:
    """Items drawn from the 10^8 in which both pairs are there; all of them ask for both sums."""
    numbers = torch.randint(BASE, (count, 4), generator=generator)
    pairs = numbers[:, ::2] * BASE + numbers[:, 1::2]  # of each its place among all
    return Items(*(tensor[pairs].flatten(1) for tensor in _sums()))


def asked(given: Items, function: str) -> Items:
    """Items with both pairs that ask for one of them alone."""
    own = torch.arange(2 * DIGITS) // DIGITS == PAIRS.index(function)
    return Items(given.inputs, given.targets.where(own, ABSENT))


def operation_of(inputs: Tensor, answers: Tensor) -> dict[str, Tensor]:
    """Which operation gives the digits that a network found: boolean [m] for +, * and none (Figure 13).

    inputs: of `add_mul`, [m, 42]; answers: int64 [m, 2]. Where both operations give the same, both count.
    """
    digits = inputs[:, :40].unflatten(1, (4, 10)).argmax(dim=2)
    pairs = digits @ torch.tensor([100, 1000, 1, 10])  # of each its place among all
    done = {name: (one.targets[pairs] == answers).all(dim=1) for name, one in add_mul().items()}
    return done | {"none": ~(done["+"] | done["*"])}


TASKS = {"add_mul": add_mul, "double_addition": double_addition}
"""Of each the functions that a network learns, with all items of each."""


def _sums() -> Items:
    """All pairs of numbers: 40 inputs, 2 digits."""
    inputs, targets = items(BASE, 10, "+")
    return Items(inputs[:, :40], targets)
