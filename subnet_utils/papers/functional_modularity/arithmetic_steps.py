"""Modules for functions in arithmetic, step by step (*Are Neural Nets Modular?*, sections 3.1 and 3.2)."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import save_tensors
from subnet_utils.masks.controls import random_like
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.models.reader import Reader
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.papers.functional_modularity import section
from subnet_utils.problems import modules
from subnet_utils.problems.modules import CONTROL, Mask, Masked, Network, Problem, networks, seeded, strengths
from subnet_utils.tasks import digit_arithmetic as arithmetic
from subnet_utils.tasks.digit_arithmetic import ABSENT, Items


@dataclass(frozen=True)
class Arithmetic(Problem):
    """Two functions and a kind of network for them. pool: items with both pairs that an LSTM is trained on; some: items
    of each function that teach it, None for all; tested: items of each that test it."""

    task: str
    architecture: section.FeedForward | section.Lstm
    pool: int = 0
    some: int | None = None
    tested: int = 10000

    @property
    def items(self) -> dict[str, Items]:
        """All items of each function, with one pair of numbers each."""
        return arithmetic.TASKS[self.task]()

    functions = property(lambda self: tuple(self.items))

    @property
    def reads_both(self) -> bool:
        """Whether a network sees both pairs of an item. A feedforward network sees one at a time."""
        return self.task == "double_addition" and self.architecture.family == "lstm"

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        inputs, outputs = (42, 20) if self.task == "add_mul" else (80, 40)
        with seeded(seed):
            if self.architecture.family == "feedforward":
                return FeedForward([inputs, *self.architecture.widths, outputs])
            return Reader(inputs, outputs=outputs, **self.architecture.model_dump(exclude={"family"}))

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`. What teaches one function of two pairs has no inputs of the other (C.2 as released)."""
        if function == CONTROL and self.reads_both:
            return arithmetic.both_pairs(self.pool, generator_for("pairs", seed))
        if function == CONTROL:
            inputs, targets = zip(*(self.examples(name, seed) for name in self.functions), strict=True)
            return torch.cat(inputs), torch.cat(targets)
        items = self.items[function]
        if self.some is None:
            return items
        rows = torch.randperm(len(items.inputs), generator=generator_for("items", seed, function))[: self.some]
        return Items(items.inputs[rows], items.targets[rows])

    def tests(self) -> dict[str, Items]:
        """Items for each function: some of them, or new ones where there are too many to learn all."""
        if not self.reads_both:
            rows = torch.randperm(10000, generator=generator_for("tested items"))[: self.tested].sort().values
            return {name: Items(*(one[rows] for one in items)) for name, items in self.items.items()}
        items = arithmetic.both_pairs(self.tested, generator_for("tested pairs"))
        return {name: arithmetic.asked(items, name) for name in self.functions}

    @torch.no_grad()
    def scores(self, network: nn.Module) -> dict[str, float]:
        """Share of items of each function whose digits are all right; and which operation is done (Figure 13)."""
        device, found = next(network.parameters()).device, {}
        for name, items in self.tests().items():
            answers = network(items.inputs.to(device)).argmax(dim=-1).cpu()
            right = ((answers == items.targets) | (items.targets == ABSENT)).all(dim=1)
            found[f"accuracy on {name}"] = float(right.double().mean())
            if self.task == "add_mul":
                done = arithmetic.operation_of(items.inputs, answers)
                found |= {f"{operation} for {name}": float(of.double().mean()) for operation, of in done.items()}
        return found


@dataclass(frozen=True)
class Copied(Step):
    """The network with the inputs and outputs of pair 2 copied onto those of pair 1 (appendix C.1, Figure 8).

    Its hidden layers cannot tell the pairs from each other: the same weights add both.
    """

    keeps: ClassVar[int] = 8

    original: Network

    problem = property(lambda self: self.original.problem)
    seed = property(lambda self: self.original.seed)
    model = property(lambda self: f"{self.original.model}_copied")

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Copy them."""
        network = self.problem.network(self.seed)
        network.load_state_dict(self.original.load(lab).state_dict())
        first, last = network.layers[0], network.layers[-1]
        with torch.no_grad():
            for tensor, dimension in ((first.weight, 1), (last.weight, 0), (last.bias, 0)):
                one, two = tensor.chunk(2, dim=dimension)
                one.copy_(two)
        save_tensors(folder / "weights.safetensors", network.state_dict())
        return self.problem.scores(network) | {"network": fingerprint(network)}

    read = Network.read


@dataclass(frozen=True)
class Parts(Step):
    """What parts of a network can do: a row for each, with its scores and density (Tables 1 to 3, Figures 7 and 13).

    Parts: the whole; under the control mask, and under it in the early or late layers alone; under each function's mask
    and without it (inverse); and each of these under random masks of the same sizes. edges: 'fullmask', in first and
    last layer the control mask counts instead, or 'ones', these layers are whole.
    """

    version: ClassVar[int] = 2

    control: Mask
    masks: tuple[Mask, ...]

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure them."""
        network, problem = self.control.network.load(lab), self.control.network.problem
        masks = {mask.function: mask.load(lab) for mask in self.masks}
        parts = parts_of(self.control.load(lab), masks, maskable(network), seed=self.control.network.seed)
        for function in (name for name, mask in masks.items() if not mask.active):
            who = f"{self.control.network.model}, seed {self.control.network.seed}, {function}"
            print(f"{who}: the mask is empty and has no inverse; lower l0 or the learning rate", file=sys.stderr)
        return [
            {"part": part, "edges": edges, "of": of, **problem.scores(kept.apply(network)), "density": kept.density}
            for part, edges, of, kept in parts
        ]


def parts_of(
    control: Subnetwork, masks: Mapping[str, Subnetwork], names: Sequence[str], *, seed: int
) -> Iterator[tuple[str, str, str, Subnetwork]]:
    """Part, edges, function and what is kept, for each of `Parts`. An empty mask is alone."""
    whole, ends = control | ~control, (names[0], names[-1])
    yield "whole", "", "", whole
    for part, kept in modules.halves(control, names, seed=seed):
        yield part, "", "", kept
    for function, mask in masks.items():
        chance = random_like(mask, seed=seed)
        parts = {"mask": mask, "inverse": ~mask, "random": chance, "random inverse": ~chance}
        for part, kept in parts.items() if mask.active else [("mask", mask)]:
            for edges, other in {"": kept, "fullmask": control, "ones": whole}.items():
                yield part, edges, function, modules.with_layers(kept, other, ends)


@dataclass(frozen=True)
class Dissected(Masked):
    """A network with all its masks of one training. repeats: masks of each function."""

    network: Network | Copied
    repeats: int

    @property
    def masks(self) -> dict[str, list[Mask]]:
        """All masks on single functions, by function, the repeats one after the other."""
        functions, repeats = self.network.problem.functions, range(self.repeats)
        return {name: [self.mask(name, repeat) for repeat in repeats] for name in functions}

    @property
    def parts(self) -> Parts:
        """What the network's parts can do."""
        return Parts(self.mask(CONTROL), tuple(self.mask(name) for name in self.network.problem.functions))

    @property
    def steps(self) -> list[Step]:
        """All that is made of it."""
        return [self.network, *(mask for masks in self.masks.values() for mask in masks), self.parts]

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        masking, copied = self.training.masking, isinstance(self.network, Copied)
        title = self.settings.model + (", copied" if copied else "") + ("" if self.usual else f", {masking.method}")
        about = {"title": title, "model": self.settings.model, "task": self.settings.task, "copied": copied}
        return about | {"method": masking.method, "l0": getattr(masking, "l0", None), "seed": self.network.seed}


def dissected(lab: Lab, *, sweep: bool = False) -> list[Dissected]:
    """Every network of the study with the masks of each way of finding them, the usual one first.

    sweep: with masks at each alpha instead (Figure 10).
    """
    made = []
    for settings in lab.section("functional_modularity").arithmetic:
        problem = Arithmetic(settings.task, settings.architecture, some=settings.examples, tested=settings.tested)
        problem = replace(problem, pool=settings.pool) if problem.reads_both else problem
        trainings = strengths(settings) if sweep else (settings.masks, *settings.others)
        for network in networks(settings, problem):
            made += [Dissected(settings, network, one, settings.repeats) for one in trainings]
            if network.seed in settings.copied and not sweep:
                made.append(Dissected(settings, Copied(network), settings.masks, settings.repeats))
    return made
