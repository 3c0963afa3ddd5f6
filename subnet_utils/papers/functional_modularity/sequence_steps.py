"""Modules in sequence tasks, step by step (*Are Neural Nets Modular?*, section 4).

A network learns the random split of SCAN, or a task of mathematics, and is frozen. Then masks are found: control masks
on all that it learned, and one on the training set of each split. That has all rules, but not all combinations, or
easy questions alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import Step
from subnet_utils.masks.controls import random_like
from subnet_utils.papers.functional_modularity import sequence_section as section
from subnet_utils.papers.functional_modularity.modules import CONTROL, Mask, Network
from subnet_utils.papers.functional_modularity.sequence_problems import Mathematics, Scan, Sequences

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
class Inspected:
    """A network, what is found in it, and networks that learned a split directly."""

    settings: section.SequenceNetwork
    seed: int

    @property
    def network(self) -> Network:
        """It has learned the whole task."""
        return self.taught()

    def problem(self, **taught: str) -> Sequences:
        """What is learned; taught: the split, if it is not the whole task."""
        settings = self.settings
        if settings.task == "scan":
            return Scan(settings.architecture, **taught)
        return Mathematics(settings.architecture, settings.task, settings.questions or section.Questions(), **taught)

    def taught(self, **split: str) -> Network:
        """A network that has learned the training set of a split, or all."""
        training = without(self.settings.training, "seed")
        return Network(self.problem(**split), training, self.seed, self.settings.model)

    def mask(self, function: str, repeat: int = 0) -> Mask:
        """A mask; each repeat has a seed of its own."""
        return Mask(self.network, function, without(self.settings.masks, "seed"), 1000 * repeat + self.seed)

    @property
    def controls(self) -> list[Mask]:
        """The control masks."""
        return [self.mask(CONTROL, repeat) for repeat in range(self.settings.repeats)]

    def parts(self, split: str) -> dict[str, Step]:
        """What is tested on a split, by its name in tables: each is a step with scores."""
        mask, direct = self.mask(split), self.settings.direct or ()
        found = {WHOLE: self.network, CONTROL_MASK: self.controls[0], OWN_MASK: mask, RANDOM_MASK: RandomPart(mask)}
        return found | ({DIRECT: self.taught(taught=split)} if split in direct else {})

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        parts = [step for split in self.settings.with_masks for step in self.parts(split).values()]
        return list(dict.fromkeys([*parts, *self.controls]))

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        return {"model": self.settings.model, "task": self.settings.task, "seed": self.seed}


def inspected(lab: Lab) -> list[Inspected]:
    """Every network of the study."""
    return [
        Inspected(settings, seed)
        for settings in lab.section("functional_modularity").sequences
        for seed in settings.seeds
    ]


def every_step(lab: Lab) -> Iterator[Step]:
    """Every step of the sequences."""
    for one in inspected(lab):
        yield from one.steps
