"""The benchmark with known truth, step by step: networks with their proof, and what each method finds in them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import Fault, Step
from subnet_utils.core.store import Artefact, note
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.identify import class_loss
from subnet_utils.masks.overlap import OVERALL, iou
from subnet_utils.papers.identification_methods.compiled import Compiled, compiled
from subnet_utils.papers.identification_methods.known_truth import Planted, holds, load, save
from subnet_utils.papers.identification_methods.planted import Design, plant
from subnet_utils.papers.identification_methods.scoring import score_method
from subnet_utils.papers.identification_methods.section import Benchmark
from subnet_utils.problems.modules import drawn
from subnet_utils.problems.trainings import MaskTraining
from subnet_utils.training import SAMPLE

WEIGHTS = 14_000
"""Of the network that the penalty in a section is for. It is a sum over weights, so it is set by their number."""


@dataclass(frozen=True)
class PlantedNetwork(Step):
    """A network with known truth. `load` gives it. One whose truth is not proven is a fault: it is not used.

    The result is its proof, by subtask. design_name: in tables.
    """

    records_faults: ClassVar[bool] = True
    keeps: ClassVar[int] = 4

    design: Design | Compiled
    seed: int
    design_name: str = field(default="", compare=False)

    @property
    def is_planted(self) -> bool:
        """Whether it is trained, not set by hand."""
        return isinstance(self.design, Design)

    @property
    def work(self) -> float:
        """Steps, about."""
        return 2000 if self.is_planted else 1

    def build(self, lab: Lab, folder: Path) -> dict[str, dict[str, float]]:
        """Plant it."""
        made = (plant if self.is_planted else compiled)(self.design, self.seed)
        if not holds(made.proof) and SAMPLE.get() is None:  # without training nothing could be proven
            wrong = {task: {name: round(one, 2) for name, one in row.items()} for task, row in made.proof.items()}
            who = f"{self.design_name}, seed {self.seed}"
            raise Fault(f"{who}: its truth is not proven, so it is not used; take another density. Measured: {wrong}")
        save(made, folder)
        return made.proof

    def read(self, lab: Lab, artefact: Artefact) -> Planted:
        """See the class."""
        return load(artefact.path, Design, Compiled)


@dataclass(frozen=True)
class Scored(Step):
    """How near a method comes to the truth of a network (`scoring.score_method`): a row for each subtask."""

    version: ClassVar[int] = 2
    records_faults: ClassVar[bool] = True

    planted: PlantedNetwork
    training: MaskTraining

    @property
    def work(self) -> float:
        """Steps."""
        return self.training.steps

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Find and score both subtasks' subnetworks."""
        planted = self.planted.load(lab)
        note(precision="float32")  # small networks, for which it is as fast
        found = {name: self._find(planted, name) for name in planted.tasks}
        masks = [each.subnetwork for each in found.values()]
        both = {"found_overlap": iou(masks)[OVERALL], "true_overlap": iou(list(planted.truth.values()))[OVERALL]}
        rows = [row | both for row in score_method(planted, found)]
        return [{name: None if value != value else value for name, value in row.items()} for row in rows]  # NaN

    def _find(self, planted: Planted, name: str) -> Discovery:
        inputs, targets = planted.tasks[name]

        def interval(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            return ((rows, targets[rows]) for rows in drawn(len(inputs), self.training, generator))

        masking, weights = self.training.masking, next(iter(planted.truth.values())).total
        if masking.trains:  # the section's penalty is for `WEIGHTS`
            masking = masking.model_copy(update={"l0": masking.l0 * WEIGHTS / weights})
        return masking.find(
            planted.model, inputs, interval, class_loss,
            recipe=self.training.recipe(self.planted.seed),
            label=f"{self.planted.design_name}, seed {self.planted.seed}, {name}",
        )  # fmt: skip


@dataclass(frozen=True)
class Benchmarked:
    """A network with known truth, and all that methods find in it."""

    settings: Benchmark
    network: PlantedNetwork

    @property
    def scored(self) -> dict[str, Scored]:
        """By method. Units are clustered in networks that are a chain of layers."""
        made, design = partial(Scored, self.network), self.network.design
        chain = self.network.is_planted and design.architecture == "mlp"
        methods = {one.masking.method: made(without(one, "seed")) for one in self.settings.methods}
        return {name: step for name, step in methods.items() if chain or name != "spectral_clusters"}

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        return [self.network, *self.scored.values()]


def benchmarked(lab: Lab) -> list[Benchmarked]:
    """Every network of the benchmark. Raises ValueError for parts that do not fit into a network."""
    settings = lab.section("identification_methods").benchmark
    if settings is None:
        return []
    designs = [(one.name, Design(**one.model_dump(exclude={"name"}))) for one in settings.designs]
    planted = [PlantedNetwork(design, seed, name) for name, design in designs for seed in settings.seeds]
    by_hand = [PlantedNetwork(Compiled(kind), 0, f"compiled_{kind}") for kind in settings.compiled]
    return [Benchmarked(settings, network) for network in (*planted, *by_hand)]
