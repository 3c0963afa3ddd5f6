"""What a network with known subtasks is tested on (notebooks 10a and 10b).

Each subtask is a function with tests of its own. Answers are digits: outputs are [m, digits, classes], targets
[m, digits].
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.models.frozen import full_precision
from subnet_utils.problems.modules import Problem

VARIES = ", the other varies"
"""End of the name of a test: of a function where the other one varies, which else is held fixed."""


class Subtasks(Problem):
    """A problem of two functions. lost: accuracy up to which a function is lost; at_once: items tested together."""

    functions: tuple[str, str]
    new: ClassVar[tuple[str, ...]] = ()
    """Functions that it has not learned, for fine-tuning; they have examples and tests, too."""
    composed: ClassVar[tuple[str, ...]] = ()
    """Names of tests that need all new functions at once."""
    lost: ClassVar[float]
    at_once: ClassVar[int] = 10_000

    @abstractmethod
    def tests(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a test: one of `every_test`."""

    @property
    def every_test(self) -> tuple[str, ...]:
        """Names of all tests: the functions, and what else there is."""
        return self.functions

    @property
    def tests_of_fine_tuning(self) -> tuple[str, ...]:
        """Names of the tests of what the network knows, learns, and composes."""
        return (*self.functions, *self.new, *self.composed)

    def outputs(self, network: nn.Module, name: str) -> Tensor:
        """What a network says to the items of a test: logits [m, digits, classes]."""
        device = next(network.parameters()).device
        with full_precision(device):
            return torch.cat([network(some.to(device)) for some in self.tests(name)[0].split(self.at_once)])

    @torch.no_grad()
    def scores(self, network: nn.Module, tests: tuple[str, ...] = ()) -> dict[str, float]:
        """Of each test the share of items with all digits right, and the mean log-probability of the answer.

        tests: names of some; () for all.
        """
        found = {}
        for name in tests or self.every_test:
            said = self.outputs(network, name).log_softmax(dim=-1)
            targets = self.tests(name)[1].to(said.device)
            found[f"accuracy on {name}"] = float((said.argmax(dim=-1) == targets).all(dim=1).double().mean())
            found[f"log-probability on {name}"] = float(said.gather(2, targets[..., None]).double().sum((1, 2)).mean())
        return found
