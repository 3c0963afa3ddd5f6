"""The fast way of training masks finds what the plain way finds: float32, one mask at a time."""

import os
from contextlib import nullcontext

import pandas as pd
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import Compute
from subnet_utils.models.frozen import full_precision
from subnet_utils.papers.break_it_down import masks, networks, scoring, tables
from subnet_utils.papers.break_it_down.measurements import Effect
from tests import micro

MEASURES = ["own_task_accuracy", "target_accuracy", "other_accuracy"]


class Asked(Exception):
    """Raised in place of training, with the precision in which it would have been done."""


@pytest.mark.parametrize(("margin", "product"), [(0.05, torch.float32), (0.5, torch.bfloat16)])
def test_masks_of_a_base_near_collapse_are_trained_in_float32(monkeypatch, tmp_path, margin, product):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    lab = Lab.open(micro.language(precision="bfloat16"), tmp_path)
    mask = tables.searches(lab)[0].candidates[0]
    result = mask.base.result(lab) | {"validation_margin": margin}
    monkeypatch.setattr(networks.Trained, "result", lambda self, lab: result)

    def ask(*_, autocast, **__):
        with autocast():
            raise Asked((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)

    monkeypatch.setattr(masks, "discover_many", ask)
    with pytest.raises(Asked) as asked:
        masks.discover(lab, [mask], tmp_path / "checkpoint")
    assert asked.value.args == (product,)


@pytest.mark.skipif(os.environ.get("SUBNET_FULL") != "1", reason="ten minutes; set SUBNET_FULL=1 to run it")
@pytest.mark.timeout(3000)
def test_fast_masks_are_as_good_as_plain_ones(monkeypatch, tmp_path):
    """The masks of the tiny profile, from every task and start, trained in bfloat16 and in float32 over the same bases.

    On average over them accuracies must be within .02 and densities within 10%.
    """
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    lab = Lab.open("tiny")
    fast_lab = Lab(lab.study.model_copy(update={"compute": Compute(precision="bfloat16")}), lab.store)
    chosen = [mask for one in tables.searches(lab) for mask in one.candidates if mask.point.mask_init > 0][:16]
    rows = []
    for i, mask in enumerate(chosen):
        measured = {}
        for way in ("fast", "plain"):
            precision = {"fast": fast_lab.autocast, "plain": lambda: full_precision(lab.device)}[way]
            monkeypatch.setattr(masks, "mask_training", lambda *_, precision=precision: nullcontext(precision))
            (found,) = masks.discover(lab, [mask], tmp_path / f"{i}-{way}")
            scores = scoring.scores(lab, mask, found.subnetwork, Effect.of(mask).test)
            measured[way] = {row["network"]: row for row in scores}
        for network, fast in measured["fast"].items():
            plain = measured["plain"][network]
            differences = {name: fast[name] - plain[name] for name in MEASURES}
            rows.append({"network": network, **differences, "density": fast["density"] / plain["density"]})
    table = pd.DataFrame(rows)
    print(table.groupby("network")[[*MEASURES, "density"]].agg(["mean", "min", "max"]).to_string())
    for _, group in table.groupby("network"):
        assert len(group) >= 10
        assert (group[MEASURES].mean().abs() <= 0.02).all()
        assert group["density"].mean() == pytest.approx(1, abs=0.1)
