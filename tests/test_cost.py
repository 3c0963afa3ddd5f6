"""What a study costs: races take turns and time the engine itself, counts are those of a real run."""

import stat
import sys
import time
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from subnet_utils import break_it_down, cost
from subnet_utils.cost import comparison, neurosurgeon, timing
from subnet_utils.lab import Lab
from subnet_utils.models import build
from tests import micro

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    lab = Lab.open(micro.study(), tmp_path_factory.mktemp("store"))
    break_it_down.search_vit(lab)
    break_it_down.effects(lab)
    return lab


# -- races -------------------------------------------------------------------------------------------------------------


def test_contenders_take_turns_and_the_warm_up_is_not_counted():
    log = []

    def contender(name: str, seconds: float):
        def run(pace):
            for _ in pace(iter(int, 1)):
                log.append(name)
                time.sleep(seconds)

        return run

    times = timing.race({"a": contender("a", 0.002), "b": contender("b", 0.02)}, steps=3, warm_up=2)
    assert log == ["a", "b"] * 5
    assert times.groupby("contender").size().to_dict() == {"a": 3, "b": 3}
    medians = times.groupby("contender")["seconds"].median()
    assert 0.002 <= medians["a"] < 0.02 <= medians["b"]


def test_an_exception_of_a_contender_is_raised_and_ends_the_race():
    def broken(pace):
        for i in pace(range(9)):
            if i == 1:
                raise ValueError("the second step fails")

    def fine(pace):
        for _ in pace(iter(int, 1)):
            pass

    with pytest.raises(ValueError, match="the second step fails"):
        timing.race({"fine": fine, "broken": broken}, steps=5)


def test_steps_are_the_engines_own():
    """Masks and weights train as always: losses are computed once a step, and the network of a mask stays as it was."""
    architecture = {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16}
    masked, plain = (build(architecture, seed=0, vocabulary=20).eval() for _ in range(2))
    before = {name: tensor.clone() for name, tensor in masked.state_dict().items()}
    items = torch.randint(1, 20, (30, 6), generator=torch.Generator().manual_seed(0))
    contenders = {
        "one": timing.masked_step(masked.requires_grad_(False), items, "layer_2", examples=4),
        "three": timing.masked_step(masked, items, "layer_2", examples=4, masks=3),
        "plain": timing.plain_step(plain, items, examples=4),
    }
    times = timing.race(contenders, steps=2, warm_up=1)
    assert len(times) == 6 and (times["seconds"] > 0).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in masked.state_dict().items())
    changed = [not torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items()]
    assert sum(changed) > len(changed) / 2


def test_relative_times_are_medians_of_ratios_within_a_round():
    draw = np.random.default_rng(0)
    names = ["float32|all weights, no mask", "float32|layer_1", "bfloat16|layer_1", "NeuroSurgeon, float32|layer_1"]
    seconds = draw.uniform(1, 2, (7, 4))
    rows = [{"contender": n, "step": i, "seconds": seconds[i, j]} for j, n in enumerate(names) for i in range(7)]
    table = comparison.relative(pd.DataFrame(rows))
    assert table["ms"].to_numpy() == pytest.approx(1e3 * np.median(seconds, axis=0))
    # without a plain step of its own precision, against that in float32
    assert table["times_plain"].to_numpy() == pytest.approx(np.median(seconds / seconds[:, :1], axis=0))
    assert table["times_faster"].iloc[1:].to_numpy() == pytest.approx(
        np.median(seconds[:, 3:] / seconds[:, 1:], axis=0)
    )
    assert np.isnan(table["times_faster"].iloc[0])


def test_every_model_is_compared_from_each_of_its_starts(lab):
    table = cost.compare(lab, cost.kinds(lab), cost.sample_items, steps=1)
    rows = Counter(zip(table["model"], table["trained"], strict=True))
    expected = {"bert_micro": ["layer_1", "layer_2"], "resnet_micro": ["stem", "stage_3"], "vit_micro": []}
    assert rows == {(m, trained): 2 for m, starts in expected.items() for trained in (comparison.PLAIN, *starts)}
    assert (table.loc[table["trained"] == comparison.PLAIN, "times_plain"] == 1).all()


# -- the prediction ----------------------------------------------------------------------------------------------------


def test_the_plan_counts_what_a_real_run_makes(lab):
    plan = cost.plan(lab)
    made = Counter(
        path.parent.name for kind in ("base", "mask", "effect") for path in (lab.store.root / kind).iterdir()
    )
    assert plan.groupby("kind")["jobs"].sum().to_dict() == made
    bases = list((lab.store.root / "base").iterdir())
    batches = {8: 3, 16: 2}  # 24 training examples
    steps = [2 * batches[_json(path, "spec")["training"]["batch_size"]] for path in bases]
    masks = list((lab.store.root / "mask").iterdir())
    assert plan.groupby("kind")["steps"].sum().to_dict() == {
        "base": sum(steps),
        "mask": len(masks) * 3 * 2,
        "effect": 0,
    }


def test_prediction_multiplies_counts_and_times(lab):
    predicted = cost.predict(lab)
    plan = cost.plan(lab)
    assert predicted[list(plan)].equals(plan)
    expected = (
        predicted["steps"] * predicted["step_ms"] / 1e3
        + (predicted["items"] * predicted["item_us"] + predicted["frozen_items"] * predicted["frozen_item_us"]) / 1e6
    )
    assert predicted["predicted_s"].to_numpy() == pytest.approx(expected.to_numpy())
    assert (predicted["predicted_s"] > 0).all() and predicted["step_ms"].notna().all()


def test_measured_is_what_the_artefacts_noted(lab):
    found = cost.measured(lab)
    noted = [_json(path, "provenance")["seconds"] for path in lab.store.root.glob("*/*") if path.parent.name in KINDS]
    assert found["measured_s"].sum() == pytest.approx(sum(noted))
    predicted = cost.plan(lab).assign(predicted_s=2.0)
    table = cost.check(predicted, found).set_index("kind")
    assert table.loc["all", "measured_s"] == pytest.approx(sum(noted))
    assert table.loc["mask", "predicted_s"] == 2 * (predicted["kind"] == "mask").sum()
    assert table.loc["all", "ratio"] == pytest.approx(sum(noted) / predicted["predicted_s"].sum())


def test_an_unfinished_study_is_one_line(tmp_path):
    unfinished = Lab.open(micro.study(), tmp_path)
    with pytest.raises(ValueError, match=r"^profile 'micro' is not finished; run: make reproduce PROFILE=micro$"):
        cost.measured(unfinished)
    assert len(list(tmp_path.glob("base/*"))) == 0, "asking what it cost trains nothing"


KINDS = ("base", "mask", "effect")


def _json(folder, name):
    import json

    return json.loads((folder / f"{name}.json").read_text())


# -- NeuroSurgeon ------------------------------------------------------------------------------------------------------

SETTING = {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "vocabulary": 9, "start": "layer_1"}


def _executable(path, script: str):
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_other_process_makes_a_step_when_it_is_told_to(tmp_path):
    script = """
import json, sys, time
assert json.loads(sys.argv[2])["start"] == 1
print("ready", flush=True)
for line in sys.stdin:
    time.sleep(0.05)
    print(0.05, flush=True)
"""
    contender = neurosurgeon.neurosurgeon(_executable(tmp_path / "python", script), **SETTING)
    times = timing.race({"other": contender}, steps=3, warm_up=1)
    assert len(times) == 3 and (times["seconds"] >= 0.05).all()


@pytest.mark.parametrize("python", ["missing", "fails"])
def test_without_neurosurgeon_it_is_said_how_to_install_it(tmp_path, python):
    if python == "fails":
        _executable(tmp_path / python, "raise ImportError('no such library')")
    contender = neurosurgeon.neurosurgeon(tmp_path / python, **SETTING)
    with pytest.raises(cost.NeuroSurgeonMissing, match=r"install it: .*neurosurgeon==0\.1\.0 transformers==4\.46\.3"):
        timing.race({"other": contender}, steps=1)


def test_bert_small_is_raced_with_the_same_masks_in_both(monkeypatch):
    raced = {}
    monkeypatch.setattr(comparison, "race", lambda contenders, steps: raced.update(contenders) or pd.DataFrame())
    monkeypatch.setattr(comparison, "relative", lambda times: pd.DataFrame({"ms": [1.0]}))
    monkeypatch.setattr(comparison, "_bert_small", lambda device: build(
        {"family": "bert", "layers": 4, "width": 8, "heads": 2, "mlp_width": 8}, seed=0, vocabulary=9))  # fmt: skip
    cost.bert_small(python="python", device=CPU)
    starts = {"layer_1", "layer_3", "layer_4"}
    by_precision = {p: {n.split("|")[1] for n in raced if n.startswith(p)} for p in ("float32", "bfloat16", "Neuro")}
    assert by_precision == {
        "float32": {comparison.PLAIN, *starts}, "bfloat16": {comparison.PLAIN, *starts}, "Neuro": starts,
    }  # fmt: skip
