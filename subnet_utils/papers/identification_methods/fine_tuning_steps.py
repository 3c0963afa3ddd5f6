"""Sparse fine-tunings of a network on functions that it has not learned, and sums of them (Ansell et al. 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact
from subnet_utils.masks.sparse_fine_tuning import SparseDifference, by_recipe, random_support, sparse_fine_tuning
from subnet_utils.models.staged import maskable
from subnet_utils.papers.identification_methods.section import FineTuning
from subnet_utils.problems.modules import Network, batches_of, networks
from subnet_utils.problems.trainings import WeightTraining


@dataclass(frozen=True)
class FineTuned(Step):
    """What fine-tuning on some functions changes. `load` gives the difference to the network before.

    support: which weights may change: 'change', those that full fine-tuning moves furthest, 'random', or 'all'.
    density: their share.
    """

    version: ClassVar[int] = 2
    keeps: ClassVar[int] = 8

    network: Network
    functions: tuple[str, ...]
    training: WeightTraining
    support: str = "all"
    density: float = 1.0

    @property
    def work(self) -> float:
        """Steps; the weights that change are found by a training of their own."""
        return self.training.steps * (2 if self.support == "change" else 1)

    def build(self, lab: Lab, folder: Path) -> dict[str, float]:
        """Find it."""
        network = self.network.load(lab)
        count = round(self.density * sum(network.get_parameter(name).numel() for name in maskable(network)))
        generator = generator_for("random support", self.network.seed, *self.functions)
        random = random_support(network, count, generator=generator)
        problem, recipe = self.network.problem, self.training.recipe(self.network.seed)
        batches = batches_of(lab, self.network, self.functions, self.training, "fine-tuning")
        train = by_recipe(batches, problem.loss, recipe)
        # of all weights a random choice is the whole
        found = sparse_fine_tuning(network, train, count, support=None if self.support == "change" else random)
        found.save(folder / "difference.safetensors")
        return problem.scores(found.apply(network), problem.tests_of_fine_tuning)

    def read(self, lab: Lab, artefact: Artefact) -> SparseDifference:
        """See the class."""
        return SparseDifference.load(artefact.path / "difference.safetensors")


@dataclass(frozen=True)
class Summed(Step):
    """What the sum of two fine-tunings can do: theta + factor (phi_A + phi_B)."""

    first: FineTuned
    second: FineTuned
    factor: float = 1.0

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Measure it."""
        network, problem = self.first.network.load(lab), self.first.network.problem
        both = (self.first.load(lab) + self.second.load(lab)).scaled(self.factor)
        return problem.scores(both.apply(network), problem.tests_of_fine_tuning)


def fine_tuned(lab: Lab) -> Iterator[tuple[dict[str, Any], Network, Step]]:
    """Every fine-tuning and sum of the study, with what it is: columns model, seed, support, density, of, factor.

    of: the function that was learned, 'sum', or 'nothing': the network before, which is the second entry.
    """
    section = lab.section("identification_methods")
    for one in (*(section.networks or ()), *(section.language or ())):
        for network in networks(one, one.learns.problem()) if one.fine_tuning else ():
            for about, step in _fine_tuned(network, one.fine_tuning):
                yield {"model": one.model, "seed": network.seed} | about, network, step


def _fine_tuned(network: Network, settings: FineTuning) -> Iterator[tuple[dict[str, Any], Step]]:
    make = partial(FineTuned, network, training=without(settings.training, "seed"))
    kinds = [("all", 1.0), *((kind, share) for share in settings.densities for kind in ("change", "random"))]
    for support, density in kinds:
        single = [make((name,), support=support, density=density) for name in network.problem.new]
        about = {"support": support, "density": density}
        yield from ((about | {"of": step.functions[0], "factor": 1.0}, step) for step in single)
        for factor in (1.0, 0.5):
            yield about | {"of": "sum", "factor": factor}, Summed(*single, factor)
    yield {"support": "none", "density": 0.0, "of": "nothing", "factor": 0.0}, Summed(*single, 0.0)
    about = {"support": "all", "density": 1.0, "of": "trained on all four", "factor": 1.0}
    yield about, make((*network.problem.functions, *network.problem.new))


def require_weights(lab: Lab) -> None:
    """Raise ValueError for published weights of a language model that cannot be had."""
    for one in lab.section("identification_methods").language or ():
        if one.learns.architecture.pretrained:
            one.learns.problem().network(0)
