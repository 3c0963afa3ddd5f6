"""A network with known subtasks: arithmetic with remainders, where two of its inputs name the operation.

The network learns addition and multiplication; the operations that it does not learn are there for fine-tuning.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.problems.modules import CONTROL, seeded
from subnet_utils.problems.subtasks import Subtasks
from subnet_utils.tasks.digit_arithmetic import TAUGHT, UNTAUGHT, items


@dataclass(frozen=True)
class Operations(Subtasks):
    """Addition and multiplication modulo a number, and a feedforward network for both.

    base: of the digits; held_out: share of the pairs of numbers that teaches nothing and is tested instead of the rest.
    """

    modulus: int
    base: int
    widths: tuple[int, ...]
    held_out: float = 0.0

    functions = TAUGHT
    new = UNTAUGHT

    @property
    def lost(self) -> float:
        """See `Subtasks`: .05 above what the commonest answer alone gets right."""
        answers = [self.tests(name)[1] for name in self.functions]
        return 0.05 + max(float(own.unique(dim=0, return_counts=True)[1].max()) / len(own) for own in answers)

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
