"""What encoder-decoders learn: SCAN, and questions of mathematics (*Are Neural Nets Modular?*, section 4).

A row of a table has the tokens of a question and of its answer (`sequence_networks`).
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.papers.functional_modularity import sequence_section as section
from subnet_utils.papers.functional_modularity.sequence_networks import (
    END,
    PADDING,
    Lstm,
    Transformer,
    lengths,
    right,
    token_loss,
)
from subnet_utils.papers.functional_modularity.tasks import mathematics, scan
from subnet_utils.problems.modules import CONTROL, Problem, seeded

TOKENS = ("padding", "start", "end")
WORDS, ACTIONS = (*TOKENS, *scan.WORDS), (*TOKENS, *scan.ACTIONS)
"""Tokens of SCAN's questions and answers, in the order of their numbers."""
CHARACTERS = (*TOKENS, *map(chr, range(32, 127)))
"""Those of mathematics, in questions and answers alike."""
SOURCE = 9 + 1
"""Tokens of a command with its end."""
KINDS = {"lstm": Lstm, "transformer": Transformer}
CHUNK = 512
"""Rows that are tested at a time."""
WATCHED = 10
"""One in so many commands or questions is tested after each interval of a mask's training."""
EVERY = "all levels"
"""The questions of all levels together."""


class Sequences(Problem):
    """What both tasks share. Subclasses have a field `architecture`.

    known: name of the score on what a network learns.
    """

    known: ClassVar[str]

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Tokens of a question, and sizes of the vocabularies of questions and answers."""

    @abstractmethod
    def columns(self, split: str) -> tuple[str, str]:
        """Names of two scores: on the tests of a split, and on what its mask is trained for."""

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        architecture = self.architecture.model_dump(exclude={"family"})
        with seeded(seed):
            return KINDS[self.architecture.family](*self.sizes, **architecture)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Problem`."""
        return token_loss(outputs, targets)


@dataclass(frozen=True)
class Scan(Sequences):
    """SCAN. taught: the split whose training set a network learns; functions: those of all splits."""

    architecture: section.LstmPair | section.TransformerPair
    taught: str = "simple"

    known = "accuracy on simple"
    sizes = property(lambda self: (SOURCE, len(WORDS), len(ACTIONS)))

    def columns(self, split: str) -> tuple[str, str]:
        """See `Sequences`: test and training set of the split."""
        return f"accuracy on {split}", f"accuracy on {split}, training set"

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`. Rows as `sequence_networks` has them, and their answers."""
        split = scan.split(self.taught if function == CONTROL else function)
        rows = encoded(split.train)
        return rows, rows[:, SOURCE:]

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Exact match in each split's test and training sets; a repeated example counts once."""
        return _by_split(list(scan.commands()), network)

    def watched(self, network: nn.Module) -> dict[str, float]:
        """See `Problem`: the same of one in `WATCHED` commands."""
        return _by_split(list(scan.commands())[::WATCHED], network)


@dataclass(frozen=True)
class Mathematics(Sequences):
    """Questions of one task of mathematics. taught: the level that a network learns, or `EVERY`; functions: levels.

    The tests of a level's mask are the hard questions: the rules are the same (section 4, Figure 5).
    """

    architecture: section.TransformerPair
    task: str
    questions: section.Questions = section.Questions()
    taught: str = EVERY

    known = f"accuracy on {EVERY}"
    sizes = property(lambda self: (mathematics.LONGEST[0] + 1, len(CHARACTERS), len(CHARACTERS)))

    @property
    def levels(self) -> dict[str, mathematics.Level]:
        """The questions of each level."""
        return mathematics.levels(self.task, self.questions.train, self.questions.test, self.questions.entropy)

    def columns(self, split: str) -> tuple[str, str]:
        """See `Sequences`: tests of the hard level, and of the split's own."""
        return "accuracy on hard", f"accuracy on {split}"

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`. Rows of the training questions of a level, or of all, and their answers."""
        name = self.taught if function == CONTROL else function
        names = mathematics.LEVELS if name == EVERY else (name,)
        rows = spelled([question for one in names for question in self.levels[one].train])
        return rows, rows[:, self.sizes[0] :]

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Exact match on the test questions of each level, and of all."""
        return self._scores(network)

    def watched(self, network: nn.Module) -> dict[str, float]:
        """See `Problem`: the same of one in `WATCHED` questions."""
        return self._scores(network, WATCHED)

    def _scores(self, network: nn.Module, every: int = 1) -> dict[str, float]:
        tests = {name: spelled(level.test[::every]) for name, level in self.levels.items()}
        found = {name: answered(network, rows, self.sizes[0]) for name, rows in tests.items()}
        found[EVERY] = torch.cat(list(found.values()))
        return {f"accuracy on {name}": float(one.double().mean()) for name, one in found.items()}


def encoded(commands: Iterable[scan.Command]) -> Tensor:
    """Rows of commands and their actions, int64 [m, 10 + 49]."""
    rows = [_row(command) for command in commands]
    return torch.tensor(rows)


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
