"""A network of which the largest weights stay, and learn once more."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import Step
from subnet_utils.core.store import save_tensors
from subnet_utils.masks.select import select
from subnet_utils.masks.sparse_fine_tuning import by_recipe, sparse_fine_tuning
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.problems.modules import CONTROL, Network, Problem, batches_of, networks
from subnet_utils.problems.pictures import PictureClasses, Source
from subnet_utils.problems.tasks import ImageData
from subnet_utils.problems.trainings import PictureNetwork, WeightTraining


@dataclass(frozen=True)
class Pruned(Step):
    """A network pruned by magnitude, as many weights of each layer, and trained again. `load` gives it, frozen.

    kept: share of the weights that stay; all others are 0, also after training. Biases stay as they are. rounds: of
    pruning and training. The share falls fast at first and slowly at the end: what has gone is 1 - (1 - i / rounds)^3
    of all that goes (Zhu and Gupta 2017, *To prune, or not to prune*, equation 1).
    """

    keeps: ClassVar[int] = 8

    network: Network
    kept: float
    training: WeightTraining
    rounds: int = 1

    @property
    def problem(self) -> Problem:
        """What it has learned."""
        return self.network.problem

    @property
    def seed(self) -> int:
        """Of the network."""
        return self.network.seed

    @property
    def work(self) -> float:
        """Steps."""
        return self.rounds * self.training.steps

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Prune it, and train what is left."""
        network = self.network.load(lab)
        for i in range(self.rounds):
            kept = largest(network, self.kept + (1 - self.kept) * (1 - (i + 1) / self.rounds) ** 3)
            thin = kept.apply(network)
            support = Subnetwork(kept.masks, fingerprint(thin))
            batches = batches_of(lab, self.network, [CONTROL], self.training, f"pruned{i or ''}")
            train = by_recipe(batches, self.problem.loss, self.training.recipe(self.seed))
            network = sparse_fine_tuning(thin, train, support.active, support=support).apply(thin).eval()
        save_tensors(folder / "weights.safetensors", network.state_dict())
        return self.problem.scores(network)

    read = Network.read


def dense_and_pruned(settings: PictureNetwork, data: ImageData) -> Iterator[tuple[str, Network | Pruned]]:
    """The networks of a section, seed by seed, each with the name of its model."""
    problem = PictureClasses(Source.of(data), settings.architecture, settings.widths)
    for dense in networks(settings, problem):
        yield settings.model, dense
        retraining = without(settings.retraining, "seed")
        yield f"{settings.model}_pruned", Pruned(dense, settings.kept, retraining, settings.rounds)


def largest(network: nn.Module, share: float) -> Subnetwork:
    """This share of each layer's weights, those that are largest."""
    own, sizes = fingerprint(network), {name: network.get_parameter(name).abs() for name in maskable(network)}
    chosen = [select({name: size}, round(share * size.numel()), network=own) for name, size in sizes.items()]
    return Subnetwork({name: mask for one in chosen for name, mask in one.masks.items()}, own)
