"""Modules in sequence tasks, step by step: SCAN, and questions of mathematics (*Are Neural Nets Modular?*, section 4).

A network learns the random split of SCAN, or a task of mathematics, and is frozen. Then masks are found: control masks
on all that it learned, and one on the training set of each split. That has all rules, but not all combinations, or
easy questions alone. A row of a table has the tokens of a question and of its answer (`models.sequences`).
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.masks.controls import random_like
from subnet_utils.models.sequences import END, KINDS, PADDING, lengths, right, token_loss
from subnet_utils.papers.functional_modularity import section
from subnet_utils.problems.modules import CONTROL, Halves, Mask, Masked, Problem, networks, seeded
from subnet_utils.tasks import mathematics, scan

TOKENS = ("padding", "start", "end")
WORDS, ACTIONS = (*TOKENS, *scan.WORDS), (*TOKENS, *scan.ACTIONS)
"""Tokens of SCAN's questions and answers, in the order of their numbers."""
CHARACTERS = (*TOKENS, *map(chr, range(32, 127)))
"""Those of mathematics, in questions and answers alike."""
SOURCE = 9 + 1
"""Tokens of a command with its end."""
CHUNK = 512
"""Rows that are tested at a time."""
WATCHED = 10
"""One in so many commands or questions is tested after each interval of a mask's training."""
EVERY = "all levels"
"""The questions of all levels together."""
WHOLE, CONTROL_MASK, OWN_MASK, RANDOM_MASK, DIRECT = (
    "whole network", "control mask", "mask of the split", "random mask", "learned directly",
)  # fmt: skip
"""What is tested on a split."""


class Sequences(Problem):
    """What both tasks share. Subclasses have fields `architecture` and `taught`: which rows a network learns.

    sizes: tokens of a question, and sizes of the vocabularies of questions and answers; known: name of the score on
    what a network learns; tested: of two scores, on the tests of a split and on what its mask is trained for.
    """

    sizes: ClassVar[tuple[int, int, int]]
    known: ClassVar[str]
    tested: ClassVar[tuple[str, str]]

    loss = staticmethod(token_loss)

    @abstractmethod
    def rows(self, name: str) -> Tensor:
        """What teaches a split or level."""

    @abstractmethod
    def scores(self, network: nn.Module, every: int = 1) -> dict[str, float]:
        """Exact match on each split or level, tested on one in `every` commands or questions."""

    def watched(self, network: nn.Module) -> dict[str, float]:
        """See `Problem`."""
        return self.scores(network, WATCHED)

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        architecture = self.architecture.model_dump(exclude={"family"})
        with seeded(seed):
            return KINDS[self.architecture.family](*self.sizes, **architecture)

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`. Rows as `models.sequences` has them, and their answers."""
        rows = self.rows(self.taught if function == CONTROL else function)
        return rows, rows[:, self.sizes[0] :]

    def columns(self, split: str) -> tuple[str, ...]:
        """The names in `tested`, for a split."""
        return tuple(name.format(split) for name in self.tested)


@dataclass(frozen=True)
class Scan(Sequences):
    """SCAN. taught: the split whose training set a network learns; functions: those of all splits;
    commands: so many test it."""

    architecture: section.LstmPair | section.TransformerPair
    taught: str = "simple"
    commands: int = section.COMMANDS

    version: ClassVar[int] = 2
    sizes = (SOURCE, len(WORDS), len(ACTIONS))
    known = "accuracy on simple"
    tested = ("accuracy on {}", "accuracy on {}, training set")

    def rows(self, name: str) -> Tensor:
        """See `Sequences`: the training set of a split."""
        return encoded(scan.split(name).train)

    def scores(self, network: nn.Module, every: int = 1) -> dict[str, float]:
        """Exact match in each split's test and training sets; a repeated example counts once."""
        commands, sets = scan.sampled(scan.commands(), min(self.commands, section.COMMANDS // every)), {}
        found = dict(zip(commands, answered(network, encoded(commands)).tolist(), strict=True))
        for name in scan.SPLITS:
            split = scan.split(name)
            for column, some in zip(self.columns(name), (split.test, dict.fromkeys(split.train)), strict=True):
                known = [found[command] for command in some if command in found]
                sets[column] = sum(known) / len(known)
        return sets


@dataclass(frozen=True)
class Mathematics(Sequences):
    """Questions of one task of mathematics. taught: the level that a network learns, or `EVERY`; functions: levels.

    The tests of a level's mask are the hard questions: the rules are the same (section 4, Figure 5).
    """

    architecture: section.TransformerPair
    task: str
    questions: section.Questions = section.Questions()
    taught: str = EVERY

    sizes = (mathematics.LONGEST[0] + 1, len(CHARACTERS), len(CHARACTERS))
    known = f"accuracy on {EVERY}"
    tested = ("accuracy on hard", "accuracy on {}")

    @property
    def levels(self) -> dict[str, scan.Split]:
        """The questions of each level."""
        return mathematics.levels(self.task, self.questions.train, self.questions.test, self.questions.entropy)

    def rows(self, name: str) -> Tensor:
        """See `Sequences`: the training questions of a level, or of all."""
        names = mathematics.LEVELS if name == EVERY else (name,)
        return spelled([question for one in names for question in self.levels[one].train])

    def scores(self, network: nn.Module, every: int = 1) -> dict[str, float]:
        """Exact match on the test questions of each level, and of all."""
        tests = {name: spelled(level.test[::every]) for name, level in self.levels.items()}
        found = {name: answered(network, rows, self.sizes[0]) for name, rows in tests.items()}
        found[EVERY] = torch.cat(list(found.values()))
        return {f"accuracy on {name}": float(one.double().mean()) for name, one in found.items()}


def encoded(commands: Iterable[scan.Command]) -> Tensor:
    """Rows of commands and their actions, int64 [m, 10 + 49]."""
    return torch.tensor([_row(command) for command in commands])


@cache
def _row(command: scan.Command) -> list[int]:
    """One row: the words, then the actions, each with its end and padding."""
    row = []
    sides = (WORDS, command, SOURCE), (ACTIONS, scan.commands()[command], scan.LONGEST + 1)
    for known, text, longest in sides:
        tokens = [*map(known.index, text), END]
        row += tokens + [PADDING] * (longest - len(tokens))
    return row


def spelled(questions: Iterable[mathematics.Question]) -> Tensor:
    """Rows of questions and their answers, a token a character, uint8 [m, 161 + 31]."""
    first = len(TOKENS) - 32  # of a character's code, to that of its token
    rows = bytearray()
    for question in questions:
        for text, longest in zip(question, mathematics.LONGEST, strict=True):
            codes = bytes(code + first for code in text.encode()) + bytes([END])
            rows += codes.ljust(longest + 1, bytes([PADDING]))
    return torch.frombuffer(rows, dtype=torch.uint8).reshape(-1, sum(mathematics.LONGEST) + 2)


@torch.no_grad()
def answered(network: nn.Module, rows: Tensor, source: int = SOURCE) -> Tensor:
    """Which rows a network answers without a fault: boolean [m]. source: tokens of a question."""
    device, found = next(network.parameters()).device, torch.zeros(len(rows), dtype=torch.bool)
    for chunk in lengths(rows).argsort().split(CHUNK):  # rows of one length together
        some = rows[chunk].to(device)
        found[chunk] = right(network(some), some[:, source:]).cpu()
    return found


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
        mask = self.mask(split)
        found = {WHOLE: self.network, CONTROL_MASK: self.controls[0], OWN_MASK: mask, RANDOM_MASK: RandomPart(mask)}
        if split in (self.settings.direct or ()):
            found[DIRECT] = self.network.but(problem=replace(self.network.problem, taught=split))
        return found

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        parts = [step for split in self.settings.with_masks for step in self.parts(split).values()]
        return [*parts, *self.controls, self.halves]

    @property
    def halves(self) -> Halves:
        """The control mask in half of the layers (Figure 7)."""
        return Halves(self.controls[0])

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        return {"model": self.settings.model, "task": self.settings.task, "seed": self.network.seed}


def require_scan(lab: Lab) -> None:
    """Raise ValueError without a network that learns SCAN, by which notebook 09b shows its method."""
    if "scan" not in [one.task for one in lab.section("functional_modularity").sequences]:
        raise ValueError("functional_modularity.sequences: none learns scan, which 09b shows; add one that does")


def inspected(lab: Lab) -> list[Inspected]:
    """Every network of the study."""
    made = []
    for one in lab.section("functional_modularity").sequences:
        if one.task == "scan":
            problem = Scan(one.architecture, commands=one.tested)
        else:
            problem = Mathematics(one.architecture, one.task, one.questions or section.Questions())
        made += [Inspected(one, network, one.masks) for network in networks(one, problem)]
    return made
