"""What the zoo may hold of a network that learned a `Problem`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact
from subnet_utils.problems.modules import Network
from subnet_utils.statistics import LEARNED
from subnet_utils.zoo.release import Release, Test

FILES = {"+": "addition", "*": "multiplication"}
"""Functions whose names are none for files."""


def released(
    network: Network,
    task: str,
    masks: Callable[[], Mapping[str, Step]],
    tests: Callable[[], Mapping[str, Test]],
    *,
    chance: float,
    known: Sequence[str],
    **more: Any,
) -> Release:
    """A network under the name that it has in tables. task: see `Release`; known: scores of it that say whether it has
    learned; more: fields of `Release`."""
    about = {"network": network, "seed": network.seed, "chance": chance, "masks": masks, "tests": tests}
    about |= {"fresh": partial(network.problem.network, network.seed), "logits": logits}
    return Release(network.model, task, **about, **more, learned=partial(_learned, network=network, known=known))


@torch.no_grad()
def logits(network: nn.Module, inputs: Tensor, at_once: int = 100) -> Tensor:
    """What a network puts out, [n, ..., classes]; zeros after the answers that are shorter than the longest."""
    given = [network(some) for some in inputs.split(at_once)]
    longest = max(one.shape[1] for one in given)
    return torch.cat([pad(one, (0, 0, 0, longest - one.shape[1])) for one in given])


def _learned(lab: Lab, *, network: Network, known: Sequence[str]) -> bool:
    result = network.result(lab)
    return min(result[name] for name in known) >= LEARNED


@dataclass(frozen=True)
class PartOf:
    """Something of what a step loads, such as the network of a step that has masks, too. It loads like a step."""

    step: Step
    pick: Callable[[Any], Any]

    name = property(lambda self: self.step.name)
    parents = property(lambda self: self.step.parents)

    def make(self, lab: Lab) -> Artefact:
        """The artefact that it is in."""
        return self.step.make(lab)

    def load(self, lab: Lab) -> Any:
        """It."""
        return self.pick(self.step.load(lab))
