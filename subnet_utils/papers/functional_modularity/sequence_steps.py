"""Modules in sequence tasks, step by step (*Are Neural Nets Modular?*, section 4).

A network learns the random split of SCAN, or a task of mathematics, and is frozen. Then masks are found: control masks
on all that it learned, and one on the training set of each split. That has all rules, but not all combinations, or
easy questions alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import Step
from subnet_utils.masks.controls import random_like
from subnet_utils.papers.functional_modularity import sequence_section as section
from subnet_utils.papers.functional_modularity.sequence_problems import Mathematics, Scan, Sequences
from subnet_utils.problems.modules import CONTROL, Mask, Masked, Network

WHOLE, CONTROL_MASK, OWN_MASK, RANDOM_MASK, DIRECT = (
    "whole network", "control mask", "mask of the split", "random mask", "learned directly",
)  # fmt: skip
"""What is tested on a split."""


@dataclass(frozen=True)
class RandomPart(Step):
    """What is left of a network under a random mask with as many weights in every layer as a given one."""

    mask: Mask

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Measure it."""
        network, drawn = self.mask.network, random_like(self.mask.load(lab), seed=self.mask.seed)
        return network.problem.scores(drawn.apply(network.load(lab)))


@dataclass(frozen=True)
class Inspected(Masked):
    """A network that has learned the whole task, its masks, and networks that learned a split directly."""

    @property
    def controls(self) -> list[Mask]:
        """The control masks."""
        return [self.mask(CONTROL, repeat) for repeat in range(self.settings.repeats)]

    def parts(self, split: str) -> dict[str, Step]:
        """What is tested on a split, by its name in tables: each is a step with scores."""
        mask, direct = self.mask(split), self.settings.direct or ()
        found = {WHOLE: self.network, CONTROL_MASK: self.controls[0], OWN_MASK: mask, RANDOM_MASK: RandomPart(mask)}
        taught = self.network.but(problem=replace(self.network.problem, taught=split))
        return found | ({DIRECT: taught} if split in direct else {})

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        parts = [step for split in self.settings.with_masks for step in self.parts(split).values()]
        return [*parts, *self.controls]

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        return {"model": self.settings.model, "task": self.settings.task, "seed": self.network.seed}


def inspected(lab: Lab) -> list[Inspected]:
    """Every network of the study."""
    return [
        Inspected(settings, Network(_problem(settings), without(settings.training, "seed"), seed, settings.model),
                  settings.masks)
        for settings in lab.section("functional_modularity").sequences
        for seed in settings.seeds
    ]  # fmt: skip


def _problem(settings: section.SequenceNetwork) -> Sequences:
    if settings.task == "scan":
        return Scan(settings.architecture)
    return Mathematics(settings.architecture, settings.task, settings.questions or section.Questions())
