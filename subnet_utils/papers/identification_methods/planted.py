"""Planted subnetworks: networks that are trained so that we know which weights do what.

Two subtasks get a part of a network's weights each. Only these are trained, all others stay at their random start. The
training asks that a part alone does its subtask and knows nothing of the other, that both together do both, and that
any random share of the other weights changes nothing. Interchange interventions plant circuits of whole units in this
way (Gupta et al. 2024, *InterpBench*); here single weights are planted. Where two parts share weights, it also asks
that neither subtask can do without these.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot

from subnet_utils.core.jobs import threads
from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.papers.identification_methods import planted_networks as networks
from subnet_utils.papers.identification_methods.known_truth import SLACK, Planted, shortfall
from subnet_utils.tasks.digit_arithmetic import Items
from subnet_utils.tasks.modular_tasks import BASE, OPERATIONS, modular_tasks
from subnet_utils.training import Recipe, fit

KINDS = ("groups", "scattered")
NOISE = ("start", "scaled", "clamped")
SCALE = 2.5
"""Of the start, where it is scaled."""
STEPS, INTERVAL, LEARNING_RATE = 2000, 50, 0.01
"""At most so many steps of Adam, whose rate falls to a tenth. Training ends after the first interval after which the
proof holds with room to spare and the loss is near its goal."""
ENOUGH = 0.005
"""Nats from which on the loss is near enough."""


@dataclass(frozen=True)
class Design:
    """What is planted where.

    kind: 'groups', a part is all weights between units of its own; 'scattered', weights drawn at random. density: share
    of the weights in one part, as near as whole units allow. overlap: share of a part's units, or weights, that the
    other part has, too. noise: 'start', the other weights are at torch's random start, and planted weights grow beyond
    it; 'scaled', all start 2.5 times as large; 'clamped', this, and no planted weight leaves the range of the start, so
    that size tells less. redundancy: further parts that do the first subtask, each alone. architecture, hidden: see
    `planted_networks`. Raises ValueError for what is none of this and for parts that do not fit in.
    """

    shares: ClassVar[tuple[float, ...]] = (0.25, 0.5, 0.75, 1.0)

    kind: str = "groups"
    overlap: float = 0.0
    density: float = 0.22
    noise: str = "start"
    redundancy: int = 0
    architecture: str = "mlp"
    hidden: Sequence[int] = ()

    def __post_init__(self):
        for name, valid in (("kind", KINDS), ("noise", NOISE), ("architecture", networks.ARCHITECTURES)):
            if getattr(self, name) not in valid:
                raise ValueError(f"unknown {name} '{getattr(self, name)}'; {nearest(getattr(self, name), valid)}")
        if not 0 < self.density < 1:
            raise ValueError(f"density must be above 0 and below 1, got {self.density}; it is a share of the weights")
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap must be 0 or more and below 1, got {self.overlap}; it is a share of a part")
        if self.redundancy < 0:
            raise ValueError(f"redundancy must be 0 or more, got {self.redundancy}; it counts further parts")
        object.__setattr__(self, "hidden", tuple(self.hidden or networks.USUAL[self.architecture]))
        networks.require_widths(self.architecture, self.hidden)
        self.masks(seed=0)  # whether the parts fit in does not depend on the seed

    def network(self, seed: int) -> nn.Module:
        """The network before anything was planted."""
        return self._made(seed)[0]

    def tasks(self) -> Mapping[str, Items]:
        """Addition and multiplication."""
        return modular_tasks()

    def masks(self, seed: int) -> dict[str, list[dict[str, Tensor]]]:
        """Where each subtask's parts are: booleans by weight."""
        model, layout = self._made(seed)
        shapes = {name: tuple(model.get_parameter(name).shape) for name in maskable(model)}
        if self.kind == "scattered":
            sizes = {name: (math.prod(shape), round(self.density * math.prod(shape))) for name, shape in shapes.items()}
            drawn = self._drawn(sizes, seed, "weights")
            parts = [{name: part[name].view(shape) for name, shape in shapes.items()} for part in drawn]
        else:
            drawn = self._drawn(_group_sizes(layout, shapes, self.density), seed, "units")
            parts = [{name: layout.within(name, shape, part) for name, shape in shapes.items()} for part in drawn]
        return dict(zip(OPERATIONS, (parts[:-1], parts[-1:]), strict=True))

    def _made(self, seed: int) -> tuple[nn.Module, networks.Layout]:
        scale = 1.0 if self.noise == "start" else SCALE
        return networks.network(self.architecture, self.hidden, seed=seed, scale=scale)

    def _drawn(self, sizes: Mapping[str, tuple[int, int]], seed: int, what: str) -> list[dict[str, Tensor]]:
        """For each part, the chosen ones of each layer, booleans; sizes: how many there are, and how many it gets."""
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.redundancy + len(OPERATIONS))]
        for name, (count, own) in sizes.items():
            shared = round(self.overlap * own)
            needed = len(parts) * own - shared
            if needed > count:
                raise ValueError(f"'{name}' has {count} {what}, the parts need {needed}; lower density or redundancy")
            order = torch.randperm(count, generator=generator_for("planted", what, name, seed))
            for i, part in enumerate(parts):
                first = i * own - (shared if i == len(parts) - 1 else 0)
                part[name] = torch.zeros(count, dtype=torch.bool)
                part[name][order[first : first + own]] = True
        return parts


def _group_sizes(
    layout: networks.Layout, shapes: Mapping[str, Sequence[int]], density: float
) -> dict[str, tuple[int, int]]:
    """Of each layer the units, and how many a part gets: one share of every layer, the nearest to the density."""
    counts = {name: math.prod(shape) for name, shape in shapes.items()}

    def size(share: float) -> dict[str, int]:
        return {layer: max(1, round(share * count)) for layer, count in layout.units.items()}

    def off(share: float) -> float:
        of = {layer: own / layout.units[layer] for layer, own in size(share).items()} | {"": 1.0}
        part = sum(counts[name] * math.prod(of[layer] for layer in layout.weights[name]) for name in counts)
        return abs(part / sum(counts.values()) - density)

    best = min((i / 200 for i in range(1, 201)), key=off)
    return {layer: (layout.units[layer], own) for layer, own in size(best).items()}


def _cases(parts: Mapping[str, Sequence[Mapping[str, Tensor]]]) -> Iterator[tuple[dict[str, Tensor], Sequence[str]]]:
    """What is asked of a network with two subtasks while it is trained: each part, and the subtasks that it must do."""
    for name, own in parts.items():
        yield from ((part, (name,)) for part in own)
    first, second = (_union(own) for own in parts.values())
    both = _union([first, second])
    yield both, tuple(parts)
    shared = {name: first[name] & second[name] for name in both}
    if any(mask.any() for mask in shared.values()):
        for whole in (first, second, both):
            yield {name: whole[name] & ~shared[name] for name in whole}, ()


def _union(masks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([mask[name] for mask in masks]).any(dim=0) for name in masks[0]}


class _Planting:
    """The training of one network's planted weights.

    planted: which weights are trained; asked: of each case the part, and what it is to answer to all items,
    probabilities [m, classes].
    """

    def __init__(self, design: Design, seed: int):
        self.design, self.seed, tasks = design, seed, design.tasks()
        self.parts, self.model = design.masks(seed), design.network(seed)
        self.start = {name: self.model.get_parameter(name).detach().clone() for name in maskable(self.model)}
        self.trained = {name: weight.clone().requires_grad_() for name, weight in self.start.items()}
        self.planted = _union([part for parts in self.parts.values() for part in parts])
        self.asked = [(part, _probabilities(tasks, able)) for part, able in _cases(self.parts)]
        self.inputs = torch.cat([task.inputs for task in tasks.values()])

    def weights(self) -> dict[str, Tensor]:
        """All weights as they are now."""
        if self.design.noise == "clamped":
            with torch.no_grad():
                for name, weight in self.trained.items():
                    most = float(self.start[name].abs().max())
                    weight.clamp_(-most, most)
        return {name: torch.where(self.planted[name], self.trained[name], self.start[name]) for name in self.start}

    def noise(self, epoch: int) -> Iterator[dict[str, Tensor]]:
        """For each step of an interval a random share of the weights that are not planted: none, some or all."""
        generator = generator_for("planted noise", self.seed, epoch)
        for _ in range(INTERVAL):
            share = float(torch.rand((), generator=generator)) * 1.5 - 0.25
            yield {
                name: (torch.rand(mask.shape, generator=generator) < share) & ~mask
                for name, mask in self.planted.items()
            }

    def state(self) -> Planted:
        """The network as it is now."""
        with torch.no_grad():
            for name, weight in self.weights().items():
                self.model.get_parameter(name).copy_(weight)
        own = fingerprint(self.model)
        parts = {name: tuple(Subnetwork(part, own) for part in parts) for name, parts in self.parts.items()}
        return Planted(self.model, parts, self.design, self.seed)

    def loss(self, noise: Mapping[str, Tensor], epoch: int = 0) -> Tensor:
        """Mean cross-entropy over cases and items, nats above what is possible."""
        weights, losses = self.weights(), []
        for part, answers in self.asked:
            masked = {name: weight * (part[name] | noise[name]) for name, weight in weights.items()}
            losses.append(cross_entropy(functional_call(self.model, masked, self.inputs), answers))
            losses[-1] = losses[-1] + torch.special.xlogy(answers, answers).sum(dim=1).mean()
        return torch.stack(losses).mean()

    @torch.no_grad()
    def missing(self) -> dict[str, float]:
        """What is missing in the proof, with room to spare, and how far the loss is from its goal."""
        losses = torch.stack([self.loss(noise) for noise in islice(self.noise(-1), 8)])
        proven = shortfall(self.state().proof, least=1.0, slack=0.8 * SLACK)
        return {"validation_loss": proven + max(0.0, float(losses.mean()) - ENOUGH)}

    def train(self) -> Planted:
        """Train until nothing is missing, or to the end."""
        epochs = STEPS // INTERVAL
        recipe = Recipe(LEARNING_RATE, epochs, self.seed, patience=epochs, final_share=0.1)
        label = f"planting, seed {self.seed}"
        fit(self.trained, self.noise, self.loss, recipe=recipe, validate=self.missing, label=label)
        return self.state()


def _probabilities(tasks: Mapping[str, Items], able: Sequence[str]) -> Tensor:
    """Probabilities [m, classes] for all items: 1 for the right answer to what is to be known, else all equal."""
    known = {name: one_hot(task.targets, BASE).float() for name, task in tasks.items()}
    return torch.cat([rows if name in able else torch.full_like(rows, 1 / BASE) for name, rows in known.items()])


def plant(design: Design, seed: int) -> Planted:
    """The network of a design and a seed. Whether it is one, its `proof` and `holds` tell.

    A pure function of both on one kind of processor: it does not depend on torch's random state or number of threads.
    """
    with threads(1):  # torch adds up in one order, however many threads there are outside
        return _Planting(design, seed).train()
