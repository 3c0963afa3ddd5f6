"""Compiled subnetworks: networks whose truth is exact, because every weight was set by hand.

There are two subtasks, each the parity of some input bits. A pair of ReLU units computes the parity of two bits:
a xor b = 3 relu(a + b) - 4 relu(a + b - 1/2). Two layers of such pairs take the parity of four bits. All numbers are
small multiples of 1/8, so no sum is rounded. Every weight of a part has a gradient. In the spirit of Tracr (Lindner et
al. 2023), for weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint, require_positive
from subnet_utils.papers.identification_methods.known_truth import Planted
from subnet_utils.tasks.digit_arithmetic import ABSENT, Items

BITS = 8
"""Inputs, each 0 or 1. Networks see all 256 items."""
SUBTASKS = ("first", "second")
KINDS = ("plain", "noise", "shared", "redundant")
BIASES, VALUES = (0.0, -0.5), (3.0, -4.0)
"""Of the two units of a parity: their biases, and what their outputs are multiplied with."""
PAIRS = 3
"""Of units that cancel each other, in each hidden layer."""
FIRST, SECOND, READOUT = "0.weight", "2.weight", "4.weight"
"""The weights."""


@dataclass(frozen=True)
class Compiled:
    """What is set by hand.

    kind: 'plain', the parities of bits 0 to 3 and of bits 4 to 7, by units of their own, all other weights zero;
    'noise', besides units in pairs that cancel each other, alone without a function; 'shared', bits 0 to 3 and 2 to 5,
    the parity of bits 2 and 3 is computed once for both; 'redundant', a second copy of the first subtask's units, each
    copy enough. width: units of each of the two hidden layers. Raises ValueError for an unknown kind and for a width
    that is too small.
    """

    shares: ClassVar[tuple[float, ...]] = (1.0,)  # half of a pair would not be cancelled

    kind: str = "plain"
    width: int = 32

    def __post_init__(self):
        require_positive(width=self.width)
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind '{self.kind}'; {nearest(self.kind, KINDS)}")
        if self.width < 12 + 2 * PAIRS:
            raise ValueError(f"width {self.width} is too small for all units; give {12 + 2 * PAIRS} or more")

    @property
    def copies(self) -> dict[str, list[tuple[tuple[int, int], tuple[int, int]]]]:
        """For each subtask its copies, each two pairs of bits."""
        second = ((2, 3), (4, 5)) if self.kind == "shared" else ((4, 5), (6, 7))
        first = ((0, 1), (2, 3))
        return dict(zip(SUBTASKS, ([first] * (2 if self.kind == "redundant" else 1), [second]), strict=True))

    def network(self, seed: int) -> nn.Module:
        """All weights zero, and the biases that are needed: [m, 8] bits -> logits [m, 2 subtasks, 2 classes]."""
        layers = [nn.Linear(BITS, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(self.width, 2 * len(SUBTASKS)), nn.Unflatten(1, (len(SUBTASKS), 2)))
        for parameter in model.requires_grad_(False).parameters():
            parameter.zero_()
        model[4].bias[::2] = 0.25  # class 0 wins unless a parity says 1; with 1/2, gradients would cancel over items
        return model.eval()

    def tasks(self) -> Mapping[str, Items]:
        """Both parities, for all items; targets [m, 2], in the own column."""
        return _tasks(self.kind)


@cache
def _tasks(kind: str) -> Mapping[str, Items]:
    inputs = torch.cartesian_prod(*[torch.arange(2)] * BITS)
    found = {}
    for i, (name, copies) in enumerate(Compiled(kind).copies.items()):
        targets = torch.full((len(inputs), len(SUBTASKS)), ABSENT)
        targets[:, i] = inputs[:, [bit for pair in copies[0] for bit in pair]].sum(dim=1) % 2
        found[name] = Items(inputs.float(), targets)
    return MappingProxyType(found)


@dataclass
class _Writer:
    """Sets weights. order: units in the order in which they are given away, layer by layer."""

    model: nn.Module
    order: Sequence[list[int]]
    made: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def xor(self, layer: int, inputs: Sequence[tuple[int, float]]) -> tuple[int, int]:
        """Two units of a hidden layer, for the parity of two bits, each a sum of units of the layer before."""
        name, units = (FIRST, SECOND)[layer], (self.order[layer].pop(), self.order[layer].pop())
        for unit, bias in zip(units, BIASES, strict=True):
            self.model[2 * layer].bias[unit] = bias
            for column, value in inputs:
                self.model.get_parameter(name)[unit, column] = value
        return units

    def copy(self, subtask: int, pairs: Sequence[tuple[int, int]], *, share: bool) -> dict[str, Tensor]:
        """The units of one copy of a subtask, and which weights are theirs, booleans.

        share: take the parity of a pair from where it is computed already.
        """
        names, between = (FIRST, SECOND, READOUT), []
        part = {name: torch.zeros_like(self.model.get_parameter(name), dtype=torch.bool) for name in names}
        for pair in pairs:
            if not (share and pair in self.made):
                self.made[pair] = self.xor(0, [(bit, 1.0) for bit in pair])
            for unit in self.made[pair]:
                part[FIRST][unit, list(pair)] = True
            between += zip(self.made[pair], VALUES, strict=True)
        for unit, value in zip(self.xor(1, between), VALUES, strict=True):
            part[SECOND][unit, [column for column, _ in between]] = True
            part[READOUT][2 * subtask + 1, unit] = True
            self.model.get_parameter(READOUT)[2 * subtask + 1, unit] = value
        return part

    def noise(self, used: Sequence[Sequence[int]], generator: torch.Generator) -> None:
        """Pairs of units with equal inputs, which what comes next adds and takes away."""

        def number() -> float:
            return float(torch.randint(1, 9, (), generator=generator)) / 8

        for layer, (name, after) in enumerate(((FIRST, SECOND), (SECOND, READOUT))):
            inputs = range(BITS) if layer == 0 else used[0]
            outputs = used[1] if layer == 0 else range(2 * len(SUBTASKS))
            for _ in range(PAIRS):
                pair = [self.order[layer].pop(), self.order[layer].pop()]
                for column in inputs:
                    self.model.get_parameter(name)[pair, column] = number()
                for row in outputs:
                    self.model.get_parameter(after)[row, pair] = number() * torch.tensor([1.0, -1.0])


def compiled(design: Compiled, seed: int) -> Planted:
    """The network of a design. seed: of where the units stand, and of the noise."""
    model, generator = design.network(seed), generator_for("compiled", design.kind, seed)
    order = [torch.randperm(design.width, generator=generator).tolist() for _ in range(2)]
    writer, every = _Writer(model, [list(units) for units in order]), {}
    for i, (name, copies) in enumerate(design.copies.items()):
        every[name] = [writer.copy(i, pairs, share=design.kind == "shared") for pairs in copies]
    if design.kind == "noise":
        used = [sorted(set(units) - set(left)) for units, left in zip(order, writer.order, strict=True)]
        writer.noise(used, generator)
    own = fingerprint(model)
    parts = {name: tuple(Subnetwork(part, own) for part in parts) for name, parts in every.items()}
    return Planted(model, parts, design, seed)
