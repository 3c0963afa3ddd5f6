"""What is measured with a mask: both networks on test data, and controls of its ablation (see `masks.controls`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from subnet_utils.core.jobs import cores_a_job
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.core.store import save_table
from subnet_utils.masks import controls
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel
from subnet_utils.papers.break_it_down.evaluation import score_from
from subnet_utils.papers.break_it_down.masks import AnyMask, Roles
from subnet_utils.papers.break_it_down.networks import Untrained
from subnet_utils.papers.break_it_down.scoring import columns, outputs_of, scores

KINDS = {"random": controls.random_like, "complement": controls.random_in_complement}
"""Random subnetworks to compare a discovered one with, by where they are drawn from."""


@dataclass(frozen=True)
class Measurement(Step):
    """Something measured with a mask on test data."""

    records_faults = True

    mask: AnyMask
    test: Roles

    @classmethod
    def of(cls, mask: AnyMask, **more: Any) -> "Measurement":
        """That of a mask, on its base's test sets."""
        return cls(mask, Roles.of(mask.base, mask.subroutine, "test"), **more)


@dataclass(frozen=True)
class Effect(Measurement):
    """Test scores of the subnetwork and of the ablated model, a row each: own task, both probe sets, base task."""

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure."""
        return scores(lab, self.mask, self.mask.load(lab), self.test)


@dataclass(frozen=True)
class NullEffects(Measurement):
    """The ablation effects of random subnetworks of a mask's size: table `draws`, columns kind and draw.

    Where the complement has too few weights there are no rows of that kind, and the result says why as `without`.
    """

    draws: int

    def build(self, lab: Lab, folder: Path) -> dict[str, str]:
        """Draw and measure."""
        subnetwork, model, start = self.mask.load(lab), self.mask.base.load(lab), self.mask.start(lab)
        sets, rows, without = outputs_of(lab, self.mask, self.test, ("target", "other")), [], ""
        for kind, drawn in KINDS.items():
            try:
                draws = range(self.draws)
                of_its_size = controls.drawn_ahead(drawn, subnetwork, draws, threads=cores_a_job(lab.study.compute))
                for draw, random in zip(draws, of_its_size, strict=True):
                    rows.append({"kind": kind, "draw": draw, **columns(score_from(random.ablate(model), start, sets))})
            except controls.NoControl as error:
                without = str(error)
        save_table(folder / "draws.parquet", pd.DataFrame(rows))
        return {"without": without}


@dataclass(frozen=True)
class OtherAblations(Measurement):
    """Test scores of the network with a mask's weights ablated in each of three ways, a row each: by zeros, replaced by
    an untrained network's weights (`donor`), or units at their mean outputs over the base's validation set.
    """

    donor: Untrained

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Ablate and measure."""
        start, sets = self.mask.start(lab), outputs_of(lab, self.mask, self.test, tuple(self.test.sets))
        return [{"ablation": name, **columns(score_from(network, start, sets))} for name, network in self._ablated(lab)]

    def _ablated(self, lab: Lab) -> Iterator[tuple[str, StagedModel]]:
        """The network without the subnetwork, in each way."""
        subnetwork, model = self.mask.load(lab), self.mask.base.load(lab)
        yield "zeros", subnetwork.ablate(model)
        yield "replaced", controls.replaced(model, subnetwork, self.donor.fresh().to(lab.device))
        units = controls.units_of(subnetwork)
        items = self.mask.base.validation.load(lab).items
        means = controls.mean_outputs(model, units, _unpadded(items.to(lab.device)))
        yield "mean", controls.units_at_means(model, units, means)


@dataclass(frozen=True)
class DifferenceAblation(Measurement):
    """Test scores of the network without what a mask has and the mask of the `other` subroutine has not, a row; and
    without random parts of the mask of that size, a row each (notebook 10b has the idea).

    A weight that only one of the two masks covers is not shared.
    """

    other: AnyMask
    draws: int = 2

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Take them out and measure."""
        model, start = self.mask.base.load(lab), self.mask.start(lab)
        sets, own, other = outputs_of(lab, self.mask, self.test, ("target", "other")), self.mask.load(lab), self.other
        shared = other.load(lab).masks
        only = {name: mask & ~shared[name] if name in shared else mask for name, mask in own.masks.items()}
        difference = Subnetwork(only, own.network)
        parts = [("difference", difference)]
        parts += [("random part", controls.random_within(difference, own.masks, "part", i)) for i in range(self.draws)]
        return [
            {"ablation": name, "removed": part.density, **columns(score_from(part.ablate(model), start, sets))}
            for name, part in parts
        ]


def _unpadded(items: Tensor) -> Iterator[Tensor]:
    """Items in batches without padding: sentences of one length together, images as they are."""
    if items.ndim > 2:
        yield from items.split(256)
        return
    lengths = (items != 0).sum(dim=1)
    for length in lengths.unique().tolist():
        yield from items[lengths == length][:, :length].split(256)
