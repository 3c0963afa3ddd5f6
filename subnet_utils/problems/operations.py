"""A network with known subtasks: arithmetic with remainders, where two of its inputs name the operation.

All pairs of numbers below the modulus are items. Numbers and answers are digits, each of which is one input that is 1,
or one class. The network learns addition and multiplication; the operations that it does not learn are there for
fine-tuning.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from subnet_utils.core.seeds import generator_for
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.problems.modules import CONTROL, seeded
from subnet_utils.problems.subtasks import Subtasks

LEARNED = ("+", "*")
"""What a network learns: its subtasks."""
OPERATIONS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "-": lambda a, b: a - b,
    "swapped -": lambda a, b: b - a,
}


ABSENT = -100
"""Target of an output that is not asked for; what torch's cross-entropy leaves out."""


class Items(NamedTuple):
    """Items of a function: inputs [m, ...], int64 targets [m, ...]; outputs have classes in one more dimension."""

    inputs: Tensor
    targets: Tensor


@cache
def items(modulus: int, base: int, operation: str) -> Items:
    """Inputs [modulus^2, 2 digits base + 4] and targets [modulus^2, digits] of all pairs for an operation.

    The least significant digit comes first. The last four inputs name the operation.

    >>> inputs, targets = items(100, 10, "+")
    >>> inputs.shape, targets[99 * 100 + 3].tolist()  # 99 + 3 = 2 modulo 100
    (torch.Size([10000, 44]), [2, 0])
    """
    digits = round(math.log(modulus, base))
    places = base ** torch.arange(digits)
    pairs = torch.cartesian_prod(torch.arange(modulus), torch.arange(modulus))
    answers = OPERATIONS[operation](*pairs.T) % modulus
    numbers = one_hot(pairs[:, :, None] // places % base, base).flatten(1)
    asked = one_hot(torch.tensor(list(OPERATIONS).index(operation)), len(OPERATIONS)).expand(len(pairs), -1)
    return Items(torch.cat([numbers, asked], dim=1).float(), answers[:, None] // places % base)


@dataclass(frozen=True)
class Operations(Subtasks):
    """Addition and multiplication modulo a number, and a feedforward network for both.

    base: of the digits; held_out: share of the pairs of numbers that teaches nothing and is tested instead of the rest.
    """

    modulus: int
    base: int
    widths: tuple[int, ...]
    held_out: float = 0.0

    functions = LEARNED
    lost = 0.2

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        inputs, targets = items(self.modulus, self.base, "+")
        with seeded(seed):
            return FeedForward([inputs.shape[1], *self.widths, targets.shape[1] * self.base], classes=self.base)

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`; any operation will do."""
        if function == CONTROL:
            inputs, targets = zip(*(self.examples(name, seed) for name in self.functions), strict=True)
            return torch.cat(inputs), torch.cat(targets)
        return self._some(function, tested=False)

    def tests(self, name: str) -> tuple[Tensor, Tensor]:
        """See `Subtasks`, of any operation: the items held out, or all there are."""
        return self._some(name, tested=self.held_out > 0)

    def _some(self, function: str, *, tested: bool) -> tuple[Tensor, Tensor]:
        inputs, targets = items(self.modulus, self.base, function)
        order = torch.randperm(len(inputs), generator=generator_for("held-out pairs", self.modulus))
        rows = order.tensor_split([round(self.held_out * len(order))])[0 if tested else 1]
        return inputs[rows.sort().values], targets[rows.sort().values]
