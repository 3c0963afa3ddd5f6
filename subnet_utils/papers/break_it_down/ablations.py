"""What else an ablation may be: of random subnetworks, and by other things than zeros. One artefact for each mask.

See `masks.controls` for what each control asks.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from subnet_utils.core.jobs import cores_a_job
from subnet_utils.core.lab import Lab
from subnet_utils.core.store import Artefact, save_json, save_table
from subnet_utils.masks import controls
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel
from subnet_utils.papers.break_it_down.base_models import data_of, load_base, untrained
from subnet_utils.papers.break_it_down.evaluation import score_from
from subnet_utils.papers.break_it_down.steps import Mask, columns, load_subnetwork, measured_spec, sets_for

KINDS = {"random": controls.random_like, "complement": controls.random_in_complement}
"""Random subnetworks to compare a discovered one with, by where they are drawn from."""
ABLATIONS = ("zeros", "replaced", "mean")
"""What stands in the place of ablated weights: zeros, an untrained network's weights, or the units' mean outputs."""
PROBES = ("target", "other")


def null_effects(lab: Lab, mask: Mask) -> Artefact:
    """The ablation effects of random subnetworks of a mask's size: table `draws`, test data, columns kind and draw.

    Where the complement has too few weights there are no rows of that kind, and the result says why under `fault`.
    """
    return lab.store.make("null", null_spec(lab, mask), partial(_build_null, lab, mask))


def null_spec(lab: Lab, mask: Mask) -> dict[str, Any]:
    """What the effects of random subnetworks depend on."""
    return measured_spec(lab, mask) | {"draws": lab.study.controls.draws}


def other_ablations(lab: Lab, mask: Mask) -> Artefact:
    """Test scores of the network with a mask's weights ablated in each of three ways, a row each."""
    return lab.store.make("ablations", measured_spec(lab, mask), partial(_build_ablations, lab, mask))


def _build_null(lab: Lab, mask: Mask, folder: Path) -> None:
    subnetwork, model = load_subnetwork(lab, mask), load_base(lab, mask.base)
    sets, rows, fault = sets_for(lab, mask, "test", PROBES), [], ""
    for kind, drawn in KINDS.items():
        try:
            draws = range(lab.study.controls.draws)
            of_its_size = controls.drawn_ahead(drawn, subnetwork, draws, threads=cores_a_job(lab.study.compute))
            for draw, random in zip(draws, of_its_size, strict=True):
                ablated = random.ablate(model)
                rows.append({"kind": kind, "draw": draw, **columns(score_from(ablated, mask.point.start, sets))})
        except controls.NoControl as error:
            fault = str(error)
    save_table(folder / "draws.parquet", pd.DataFrame(rows))
    save_json(folder / "result.json", {"fault": fault})


def _build_ablations(lab: Lab, mask: Mask, folder: Path) -> None:
    subnetwork, sets = load_subnetwork(lab, mask), sets_for(lab, mask, "test")
    rows = [
        {"ablation": name, **columns(score_from(network, mask.point.start, sets))}
        for name, network in _ablated(lab, mask, subnetwork)
    ]
    save_json(folder / "result.json", rows)


def _ablated(lab: Lab, mask: Mask, subnetwork: Subnetwork) -> Iterator[tuple[str, StagedModel]]:
    """The network without the subnetwork, in each way."""
    model = load_base(lab, mask.base)
    yield "zeros", subnetwork.ablate(model)
    donor = untrained(mask.base.untrained()).to(lab.device)
    yield "replaced", controls.replaced(model, subnetwork, donor)
    units = controls.units_of(subnetwork)
    items = data_of(lab, mask.base, "base", "validation").items
    means = controls.mean_outputs(model, units, _unpadded(items.to(lab.device)))
    yield "mean", controls.mean_ablated(model, units, means)


def _unpadded(items: Tensor) -> Iterator[Tensor]:
    """Items in batches without padding: sentences of one length together, images as they are."""
    if items.ndim > 2:
        yield from items.split(256)
        return
    lengths = (items != 0).sum(dim=1)
    for length in lengths.unique().tolist():
        yield from items[lengths == length][:, :length].split(256)
