"""Clusters of units in the networks of the study, step by step: cuts, lesions, and what masks have to do with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.nn.functional import one_hot

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.core.store import save_table
from subnet_utils.masks.feature_vectors import FeatureVectors, feature_vectors, hierarchical
from subnet_utils.masks.partitions import Partition, shuffled, spectral
from subnet_utils.masks.specialization import local_specialization
from subnet_utils.models.staged import maskable
from subnet_utils.papers.identification_methods.method_steps import Identified, Inspected
from subnet_utils.problems.modules import CONTROL, Network
from subnet_utils.problems.operations import Operations
from subnet_utils.problems.pruning import Pruned, dense_and_pruned

KINDS = ("spectral", "feature_vectors")
"""Ways of clustering: by weights, and by correlations."""


def vectors(problem: Operations, network: nn.Module) -> FeatureVectors:
    """Correlations of units with the inputs, and with the right answers, over all items."""
    inputs, targets = problem.examples(CONTROL, 0)
    answers = one_hot(targets, problem.base).flatten(1).float()
    return feature_vectors(network, inputs, answers, maskable(network))


def partition(problem: Operations, network: nn.Module, kind: str, count: int) -> Partition:
    """The units of a network in so many clusters."""
    if kind == "spectral":
        return spectral(network, maskable(network), count, seed=0)
    return hierarchical(vectors(problem, network), count)


@dataclass(frozen=True)
class Cut(Step):
    """The normalized cut of a network's clusters, beside those of networks with shuffled weights.

    nonzero: weights that are 0 keep their places.
    """

    network: Network | Pruned
    count: int
    draws: int
    nonzero: bool = False

    def build(self, lab: Lab, folder: Path) -> dict[str, float]:
        """Measure it."""
        network, options = self.network.load(lab), {"draws": self.draws, "nonzero": self.nonzero}
        found = shuffled(network, maskable(network), self.count, seed=self.network.seed, **options)
        spread = {"shuffled": float(found.null.mean()), "sd": float(found.null.std())}
        return {"n_cut": found.observed} | spread | {"p": found.p}


@dataclass(frozen=True)
class Lesions(Step):
    """What silencing each cluster costs (`specialization.local_specialization`); a table `lesions`."""

    network: Network | Pruned
    by: str
    count: int
    draws: int

    def build(self, lab: Lab, folder: Path) -> None:
        """Measure it."""
        network, problem = self.network.load(lab), self.network.problem
        found = partition(problem, network, self.by, self.count)

        def accuracies(changed: nn.Module) -> dict[str, float]:
            scores = problem.scores(changed)
            return {name: scores[f"accuracy on {name}"] for name in problem.functions}

        save_table(
            folder / "lesions.parquet",
            local_specialization(found, network, accuracies, draws=self.draws, seed=self.network.seed),
        )


@dataclass(frozen=True)
class BestCluster(Step):
    """IoU of a mask with the weights inside the cluster that fits it best, beside random clusters.

    Random clusters have as many units in each layer. The best of them counts, too.
    """

    version: ClassVar[int] = 2

    mask: Identified
    by: str
    count: int
    draws: int

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Measure it."""
        network, mask = self.mask.network.load(lab), self.mask.load(lab)
        found = partition(self.mask.network.problem, network, self.by, self.count)
        random = [found.randomized(draw).best_overlap(mask) for draw in range(self.draws)]
        own = found.best_overlap(mask)
        p = (1 + sum(one >= own for one in random)) / (1 + self.draws)
        return {"iou": own, "random_iou": sum(random) / self.draws, "p": p}


def clustered(one: Inspected) -> Iterator[tuple[dict[str, Any], Step]]:
    """Every step on clusters of a network, each with what it is about."""
    settings, network = one.settings.clusters, one.network
    if one.settings.learns.task != "add_mul":
        return
    about = {"model": one.settings.model, "seed": network.seed}
    for count in settings.counts:
        yield about | {"clusters": count, "zeros": "moved"}, Cut(network, count, settings.shuffles)
        for kind in KINDS:
            kinds = about | {"kind": kind, "clusters": count}
            yield kinds, Lesions(network, kind, count, settings.lesions)
            for training in one.trained:
                for name in network.problem.functions:
                    mask = one.identified(training, name)
                    which = kinds | {"method": training.masking.method, "function": name}
                    yield which, BestCluster(mask, kind, count, settings.lesions)


def of_pictures(lab: Lab) -> Iterator[tuple[dict[str, Any], Step]]:
    """Every step on clusters of networks that learn pictures, dense and pruned, each with what it is about."""
    pictures = lab.section("identification_methods").pictures
    for one in pictures.networks if pictures else ():
        for (name, network), count in product(dense_and_pruned(one, pictures.data), pictures.clusters.counts):
            about = {"model": name, "seed": network.seed, "clusters": count}
            cut = Cut(network, count, pictures.clusters.shuffles)
            yield about | {"zeros": "moved"}, cut
            if isinstance(network, Pruned):
                yield about | {"zeros": "in place"}, cut.but(nonzero=True)
            yield about | {"kind": KINDS[0]}, Lesions(network, KINDS[0], count, pictures.clusters.lesions)
