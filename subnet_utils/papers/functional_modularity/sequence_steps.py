"""Modules in sequence tasks, step by step (*Are Neural Nets Modular?*, section 4).

A network learns the random split of SCAN and is frozen. Then masks are found: control masks on all that it learned, and
one on the training set of each other split, which holds all rules but not all combinations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import Step
from subnet_utils.masks.controls import random_like
from subnet_utils.papers.functional_modularity import sequence_section as section
from subnet_utils.papers.functional_modularity.modules import CONTROL, Mask, Network, Problem, seeded
from subnet_utils.papers.functional_modularity.sequence_networks import (
    END,
    PADDING,
    Lstm,
    Transformer,
    lengths,
    right,
    token_loss,
)
from subnet_utils.papers.functional_modularity.tasks import scan

TOKENS = ("padding", "start", "end")
WORDS, ACTIONS = (*TOKENS, *scan.WORDS), (*TOKENS, *scan.ACTIONS)
"""Tokens of questions and of answers, in the order of their numbers."""
SOURCE = 9 + 1
"""Tokens of a question with its end."""
KINDS = {"lstm": Lstm, "transformer": Transformer}
CHUNK = 512
"""Rows that are tested at a time."""
WHOLE, CONTROL_MASK, OWN_MASK, RANDOM_MASK, DIRECT = (
    "whole network", "control mask", "mask of the split", "random mask", "learned directly",
)  # fmt: skip
"""What is tested on a split."""
WATCHED = 10
"""One in so many commands is tested after each interval of a mask's training."""


@dataclass(frozen=True)
class Scan(Problem):
    """SCAN. taught: the split whose training set a network learns; functions: those of all splits."""

    architecture: section.LstmPair | section.TransformerPair
    taught: str = "simple"

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        sizes = self.architecture.model_dump(exclude={"family"})
        with seeded(seed):
            return KINDS[self.architecture.family](SOURCE, len(WORDS), len(ACTIONS), **sizes)

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`. Rows as `sequence_networks` has them, and their answers."""
        split = scan.split(self.taught if function == CONTROL else function)
        rows = encoded(split.train)
        return rows, rows[:, SOURCE:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Problem`."""
        return token_loss(outputs, targets)

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Exact match in each split's test and training sets; a repeated example counts once."""
        return _by_split(list(scan.commands()), network)

    def watched(self, network: nn.Module) -> dict[str, float]:
        """See `Problem`: the same of one in `WATCHED` commands."""
        return _by_split(list(scan.commands())[::WATCHED], network)


def encoded(commands: Iterable[scan.Command]) -> Tensor:
    """Rows of commands and their actions, int64 [m, 10 + 49]."""
    rows = [_row(command) for command in commands]
    return torch.tensor(rows)


@torch.no_grad()
def answered(network: nn.Module, rows: Tensor) -> Tensor:
    """Which rows a network answers without a fault: boolean [m]. They are tested in the order of their lengths."""
    device, found = next(network.parameters()).device, torch.zeros(len(rows), dtype=torch.bool)
    for chunk in lengths(rows).argsort().split(CHUNK):
        some = rows[chunk].to(device)
        found[chunk] = right(network(some), some[:, SOURCE:]).cpu()
    return found


@cache
def _row(command: scan.Command) -> list[int]:
    """One row: the words, then the actions, each with its end and padding."""
    words = [*map(WORDS.index, command), END]
    actions = [*map(ACTIONS.index, scan.commands()[command]), END]
    gaps = [PADDING] * (SOURCE - len(words)), [PADDING] * (scan.LONGEST + 1 - len(actions))
    return words + gaps[0] + actions + gaps[1]


def _by_split(commands: list[scan.Command], network: nn.Module) -> dict[str, float]:
    """Shares of right answers among the commands of each set."""
    found, sets = dict(zip(commands, answered(network, encoded(commands)).tolist(), strict=True)), {}
    for name in scan.SPLITS:
        split = scan.split(name)
        for part, some in (("", split.test), (", training set", dict.fromkeys(split.train))):
            known = [found[command] for command in some if command in found]
            sets[f"accuracy on {name}{part}"] = sum(known) / len(known)
    return sets


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
        """It has learned the random split."""
        return self.taught("simple")

    def taught(self, split: str) -> Network:
        """A network that has learned the training set of a split."""
        problem = Scan(self.settings.architecture, split)
        return Network(problem, without(self.settings.training, "seed"), self.seed, self.settings.model)

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
        return found | ({DIRECT: self.taught(split)} if split in direct else {})

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        parts = [step for split in self.settings.splits for step in self.parts(split).values()]
        return list(dict.fromkeys([*parts, *self.controls]))

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        return {"model": self.settings.model, "seed": self.seed}


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
