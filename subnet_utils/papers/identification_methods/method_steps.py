"""Methods side by side on one network, step by step: what each finds, and what that does."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import save_tensors
from subnet_utils.masks.controls import random_like, random_within
from subnet_utils.masks.identify import at_density
from subnet_utils.masks.mean_ablation import mean_ablated
from subnet_utils.masks.minimality import share_that_matters
from subnet_utils.masks.select import select
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.identification_methods.section import IdentifiedNetwork
from subnet_utils.problems.modules import CONTROL, Mask, Network, networks
from subnet_utils.problems.trainings import MaskTraining

ABLATIONS = ("zero", "mean")
"""What becomes of weights that are taken out: they are 0, or leave their mean contribution behind."""
MATTERS = 0.01
"""A weight matters if the log-probability of right answers falls by more than this, nats, without it."""


@dataclass(frozen=True)
class Identified(Mask):
    """What a method finds for a function. `load` gives the subnetwork; `scores` what it was cut from.

    density: to which a trained mask is brought by its penalty (`identify.at_density`). None: as it comes out.
    """

    keeps: ClassVar[int] = 8

    density: float | None = None

    @property
    def work(self) -> float:
        """Steps; a mask that is brought to a density takes up to four trainings."""
        return super().work * (1 if self.density is None else 4)

    @property
    def repeat(self) -> int:
        """Its number among those with other seeds."""
        return (self.seed - self.network.seed) // 1000

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find it."""
        network, masking = self.network.load(lab), self.training.masking
        if self.density is None:
            found = self.search(lab, masking, network, checkpoint=folder / CHECKPOINT)
        else:
            found = at_density(partial(self.search, lab, network=network), masking, self.density)
        found.save(folder)
        save_tensors(folder / "scores.safetensors", dict(found.scores))
        return {"active": found.subnetwork.active, "total": found.subnetwork.total, "passes": found.passes}

    def scores(self, lab: Lab) -> dict[str, Tensor]:
        """A number for each weight, by name: the score, or the trained logit."""
        return self.make(lab).tensors("scores")

    def cut(self, lab: Lab, density: float | None) -> Subnetwork:
        """So many weights with the highest scores, or the subnetwork that was found."""
        found = self.load(lab)
        if density is None:
            return found
        return select(self.scores(lab), round(density * found.total), network=found.network)


def applied(lab: Lab, step: Network, kept: Subnetwork, ablation: str = "zero") -> nn.Module:
    """A network with some of its weights. ablation: what becomes of the others; means are over all that it learned."""
    network = step.load(lab)
    if ablation == "zero":
        return kept.apply(network)
    return mean_ablated(kept, network, step.problem.examples(CONTROL, step.seed)[0])


@dataclass(frozen=True)
class Measured(Step):
    """What subnetworks do by themselves, and the network without them: a row for each, with the problem's scores.

    densities: at which the scores are cut; () for the subnetwork that was found. ablation: of `ABLATIONS`.
    """

    found: Identified
    densities: tuple[float, ...] = ()
    ablation: str = "zero"

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure them."""
        rows = []
        for density in self.densities or (None,):
            kept = self.found.cut(lab, density)
            for part, some in (("alone", kept), ("without", ~kept)):
                rows.append({"part": part, "asked": density, "density": kept.density})
                rows[-1] |= self.found.network.problem.scores(applied(lab, self.found.network, some, self.ablation))
        return rows


@dataclass(frozen=True)
class Compared(Step):
    """A subnetwork beside random ones, and how many of its weights matter.

    draws: random subnetworks with as many weights in each layer; sampled: weights of the subnetwork that are taken out
    one by one (minimality). The result: scores of each random subnetwork, and the share of weights that matter.
    """

    found: Identified
    density: float | None
    draws: int
    sampled: int = 200

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Measure them."""
        network, problem, function = self.found.network.load(lab), self.found.network.problem, self.found.function
        kept, of = self.found.cut(lab, self.density), f"log-probability on {function}"
        drawn = [problem.scores(random_like(kept, seed=i).apply(network), problem.functions) for i in range(self.draws)]
        options = {"sampled": self.sampled, "limit": MATTERS, "draw": self.found.name}
        matter = share_that_matters(kept, network, lambda part: problem.scores(part, (function,))[of], **options)
        return {"random": drawn, "matter": matter}


WITHIN = {"A - B": "A", "B - A": "B", "A & B": "A"}
"""Where the weights of a random part are drawn that has the size of such a subnetwork."""


@dataclass(frozen=True)
class Composed(Step):
    """What subnetworks made of two others do: a row for each, alone and without it, beside random ones.

    random: 0 for the subnetwork itself, else the number of the draw. Random ones have as many weights in each layer;
    within: of the whole network (''), or drawn from A's or B's own weights alone.
    """

    first: Identified
    second: Identified
    draws: int = 3

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure them."""
        network, problem = self.first.network.load(lab), self.first.network.problem
        masks, rows = [one.load(lab) for one in (self.first, self.second)], []
        for name, within, draw, kept in self._parts(*masks):
            for part, some in (("alone", kept), ("without", ~kept)):
                about = {"made_of": name, "within": within, "random": draw, "part": part, "density": kept.density}
                rows.append(about | problem.scores(some.apply(network), problem.functions))
        return rows

    def _parts(self, a: Subnetwork, b: Subnetwork) -> Iterator[tuple[str, str, int, Subnetwork]]:
        whole = {"A": a, "B": b}
        for name, made in {**whole, "A | B": a | b, "A & B": a & b, "A - B": a - b, "B - A": b - a}.items():
            yield name, "", 0, made
            for draw in range(1, self.draws + 1):
                yield name, "", draw, random_like(made, seed=draw)
                if name in WITHIN:
                    own = whole[WITHIN[name]].masks
                    yield name, WITHIN[name], draw, random_within(made, own, "part of a subnetwork", draw)


@dataclass(frozen=True)
class Inspected:
    """A network of the study, and all that methods find in it."""

    settings: IdentifiedNetwork
    network: Network

    def identified(self, training: MaskTraining, function: str, repeat: int = 0, density: float | None = None):
        """What a method finds; each repeat has a seed of its own."""
        seed = 1000 * repeat + self.network.seed
        return Identified(self.network, function, without(training, "seed"), seed, density=density)

    def repeats(self, training: MaskTraining, function: str) -> list[Identified]:
        """What a method finds with other seeds."""
        return [self.identified(training, function, repeat) for repeat in range(self.settings.repeats)]

    def density_of(self, training: MaskTraining) -> float | None:
        """Where a method stands beside the others: a ranking at the reference, a trained mask as it came out."""
        return None if training.masking.trains else self.settings.reference

    @property
    def ablations(self) -> tuple[str, ...]:
        """Those that there are: means need biases, which a chain of linear layers has."""
        return ABLATIONS if self.settings.learns.task == "add_mul" else ABLATIONS[:1]

    def measured(self, training: MaskTraining, function: str, ablation: str = "zero") -> list[Measured]:
        """What is measured along densities: rankings are cut, trained masks are trained to each."""
        found = self.repeats(training, function)
        if not training.masking.trains:
            return [Measured(one, self.settings.densities, ablation) for one in found]
        searched = [self.identified(training, function, density=density) for density in self.settings.searched]
        return [Measured(one, ablation=ablation) for one in (*found, *searched)]

    def compared(self, training: MaskTraining, function: str) -> Compared:
        """The first of them beside random ones."""
        found, at = self.identified(training, function), self.density_of(training)
        return Compared(found, at, self.settings.draws, self.settings.sampled)

    @property
    def trained(self) -> list[MaskTraining]:
        """Methods that train a mask."""
        return [one for one in self.settings.methods if one.masking.trains]

    @property
    def steps(self) -> Iterator[Step]:
        """All that is made of it by notebook 10a."""
        for training in self.settings.methods:
            for function in self.network.problem.functions:
                for ablation in self.ablations:
                    yield from self.measured(training, function, ablation)
                yield self.compared(training, function)

    @property
    def composition(self) -> Iterator[Composed]:
        """What is made of the subnetworks of both functions, by notebook 10b."""
        for training in self.trained:
            found = (self.repeats(training, name) for name in self.network.problem.functions)
            yield from (Composed(a, b, self.settings.parts) for a, b in zip(*found, strict=True))


def inspected(lab: Lab) -> list[Inspected]:
    """Every network of the study."""
    return [
        Inspected(one, network)
        for one in lab.section("identification_methods").networks or ()
        for network in networks(one, one.learns.problem())
    ]
