"""The fast way of training masks finds what the plain way finds: float32, one mask at a time."""

import os

import pandas as pd
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import Compute
from subnet_utils.models.frozen import full_precision
from subnet_utils.papers.break_it_down import steps
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.base_models import precision_of, train_base
from tests import micro

MEASURES = ["own_task_accuracy", "target_accuracy", "other_accuracy"]


class Asked(Exception):
    """Raised in place of training, with the precision in which it would have been done."""


@pytest.mark.parametrize(("margin", "product"), [(0.05, torch.float32), (0.5, torch.bfloat16)])
def test_masks_of_a_base_near_collapse_are_trained_in_float32(monkeypatch, tmp_path, margin, product):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    lab = Lab.open(micro.study(precision="bfloat16"), tmp_path)
    network = break_it_down.networks(lab.study)[0]
    result = train_base(lab, network).json("result") | {"validation_margin": margin}
    monkeypatch.setattr("subnet_utils.core.store.Artefact.json", lambda self, name: result)

    def ask(*_, autocast, **__):
        with autocast():
            raise Asked((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)

    monkeypatch.setattr(steps, "discover_many", ask)
    with pytest.raises(Asked) as asked:
        steps._discover(lab, [next(break_it_down.candidates(network))], tmp_path / "checkpoint")
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
    networks = break_it_down.networks(lab.study)
    masks = [mask for network in networks for mask in break_it_down.candidates(network)]
    masks = [mask for mask in masks if mask.point.mask_init > 0][:16]
    rows = []
    for i, mask in enumerate(masks):
        measured = {}
        for way in ("fast", "plain"):
            precision = {"fast": precision_of(fast_lab), "plain": lambda: full_precision(lab.device)}[way]
            monkeypatch.setattr(steps, "mask_precision", lambda *_, precision=precision: precision)
            (found,) = steps._discover(lab, [mask], tmp_path / f"{i}-{way}")
            measured[way] = {row["network"]: row for row in steps._rows(lab, mask, found.subnetwork, "test")}
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
