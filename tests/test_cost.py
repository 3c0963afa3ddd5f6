"""What a study costs: races take turns and time the engine itself, counts are those of a real run."""

import gc
import hashlib
import json
import math
import shutil
import stat
import sys
import time
import weakref
from collections import Counter, OrderedDict
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import repeat

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from subnet_utils import cost
from subnet_utils.core.jobs import core_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study
from subnet_utils.cost import comparison, neurosurgeon, prediction, samples, timing
from subnet_utils.cost.plan import COUNTED, Sort
from subnet_utils.cost.sections import MAKERS, sections_of
from subnet_utils.masks import discover as discover_module
from subnet_utils.models import build
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.papers.break_it_down import dissection, evaluation, steps
from subnet_utils.papers.break_it_down import tables as break_it_down
from tests import micro

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lab(operations_made) -> Lab:
    return operations_made[0]


@pytest.fixture(scope="module")
def operations_made(tmp_path_factory) -> tuple[Lab, dict[str, int]]:
    """A finished study, made in this process, and the operations that torch counted in each of its sections."""
    study, made = micro.whole_study(), {}
    for experiment in study["experiments"]:
        experiment["base"] = experiment["base"] | {"seeds": [0]}
    lab = Lab.open(study, tmp_path_factory.mktemp("store"))
    for section in COUNTED:
        with FlopCounterMode(display=False) as counter:
            MAKERS[section](lab)
        made[section] = counter.get_total_flops()
    return lab, made


@pytest.fixture(scope="module")
def measured(lab) -> pd.DataFrame:
    return cost.measured(lab)


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


@pytest.mark.parametrize("flips", [True, False])
def test_a_plain_step_mirrors_images_where_training_does(monkeypatch, flips):
    architecture = {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 2, "head_width": 8}
    images, seen = torch.zeros(20, 3, 64, 64, dtype=torch.uint8), []
    flipped = timing.flipped
    monkeypatch.setattr(timing, "flipped", lambda some, *given: seen.append(len(some)) or flipped(some, *given))
    step = timing.plain_step(build(architecture, seed=0), images, examples=2, flips=flips)
    timing.race({"plain": step}, steps=2, warm_up=1)
    assert seen == [8] * 3 * flips


def test_a_race_keeps_freed_memory_as_workers_do(monkeypatch):
    done = []
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: done.append("kept"))
    timing.race({"one": lambda pace: [done.append("step") for _ in pace(range(9))]}, steps=1, warm_up=0)
    assert done == ["kept", "step"]


def test_relative_times_are_medians_of_ratios_within_a_round():
    draw = np.random.default_rng(0)
    names = ["float32|all weights, no mask", "float32|layer_1", "bfloat16|layer_1", "NeuroSurgeon, float32|layer_1"]
    seconds = draw.uniform(1, 2, (7, 4))
    rows = [{"contender": n, "step": i, "seconds": seconds[i, j]} for j, n in enumerate(names) for i in range(7)]
    table = comparison.relative(pd.DataFrame(rows).assign(flops=0))
    assert not {"gflop", "share"} & set(table), "there is no product to compare with"
    assert table["ms"].to_numpy() == pytest.approx(1e3 * np.median(seconds, axis=0))
    # without a plain step of its own precision, against that in float32
    assert table["times_plain"].to_numpy() == pytest.approx(np.median(seconds / seconds[:, :1], axis=0))
    assert table["times_faster"].iloc[1:].to_numpy() == pytest.approx(
        np.median(seconds[:, 3:] / seconds[:, 1:], axis=0)
    )
    assert np.isnan(table["times_faster"].iloc[0])


def test_the_share_of_what_the_device_can_is_relative_to_a_product_of_the_same_round():
    seconds = np.random.default_rng(0).uniform(1, 2, (7, 3))
    flops = {"bfloat16|layer_1": 3e9, f"bfloat16|{comparison.PRODUCT}": 8e9, "NeuroSurgeon, float32|layer_1": 0}
    rows = [
        {"contender": name, "step": i, "seconds": seconds[i, j], "flops": flops[name]}
        for j, name in enumerate(flops)
        for i in range(7)
    ]
    rows += [row | {"contender": f"float32|{comparison.PLAIN}"} for row in rows[:7]]
    table = comparison.relative(pd.DataFrame(rows)).set_index(["precision", "trained"])
    assert comparison.PRODUCT not in table.index.get_level_values("trained")
    ours = table.loc["bfloat16", "layer_1"]
    assert ours["gflop"] == 3 and ours["share"] == pytest.approx(np.median(3 / 8 * seconds[:, 1] / seconds[:, 0]))
    assert np.isnan(table.loc["NeuroSurgeon, float32", "layer_1"]["share"]), "another process does not tell"
    assert np.isnan(table.loc["float32", comparison.PLAIN]["share"]), "no product of its precision"


def test_operations_are_those_of_one_step(monkeypatch):
    monkeypatch.setattr(timing, "LARGE_PRODUCT", {"cpu": 20})

    def layer(pace):
        weight = torch.zeros(6, 5, requires_grad=True)
        for _ in pace(iter(int, 1)):
            (torch.ones(4, 5) @ weight.T).sum().backward()

    times = timing.race({"layer": layer, "product": timing.large_product(CPU)}, steps=3, warm_up=1, counting=True)
    flops = times.groupby("contender")["flops"].unique()
    # forward and the gradient of the weight; additions count as much as multiplications
    assert flops["layer"].tolist() == [2 * 2 * 4 * 5 * 6] and flops["product"].tolist() == [2 * 20**3]


def test_a_large_product_is_in_the_precision_of_the_steps(monkeypatch):
    monkeypatch.setattr(timing, "LARGE_PRODUCT", {"cpu": 20})
    seen, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: seen.append(a.dtype) or product(a, b))
    for precision in (nullcontext, partial(torch.autocast, "cpu", dtype=torch.bfloat16)):
        timing.race({"product": timing.large_product(CPU, autocast=precision)}, steps=1, warm_up=0)
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("when", ["in the first step", "before the first batch"])
def test_masks_that_do_not_fit_are_not_timed_as_if_they_did(monkeypatch, when):
    architecture = {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16}
    model = build(architecture, seed=0, vocabulary=20).eval().requires_grad_(False)

    first_logits = discover_module._Together._first_logits

    def full(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    def scarce(self, wanted, *more):
        return full() if len(wanted) == 3 else first_logits(self, wanted, *more)

    if when == "in the first step":
        monkeypatch.setattr(torch, "vmap", full)
    else:
        monkeypatch.setattr(discover_module._Together, "_first_logits", scarce)
    step = timing.masked_step(model, torch.ones(30, 6, dtype=torch.long), "layer_2", examples=4, masks=3)
    with pytest.raises(MemoryError, match="3 masks at once do not fit"):
        timing.race({"three": step}, steps=2, warm_up=0)


def test_of_masks_that_do_not_fit_as_many_are_timed_as_the_study_trains_at_once(tmp_path, monkeypatch, capsys):
    """Five are three and two in halves, and two fit."""
    together, trained = discover_module._each, []
    lab = Lab.open(micro.study(masks_at_once=5), tmp_path)
    sort = Sort.of(break_it_down.networks(lab.study)[0], "layer_2")
    times = {"steps": np.full(2, 0.1), "epochs": np.full(2, 0.1)}
    batch = torch.arange(8).view(2, 4), torch.zeros(2).long()

    def scarce(loss, weights, state, places, targets):
        trained.append(len(places))
        if len(places) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return together(loss, weights, state, places, targets)

    monkeypatch.setattr(discover_module, "_each", scarce)
    monkeypatch.setattr(samples, "_of_a_step", lambda train, **_: train() or times)
    monkeypatch.setattr(timing, "_batches", lambda items, examples: [batch])
    found = samples._times(lab, sort)
    assert list(dict.fromkeys(trained)) == [5, 3, 2] and found["steps"].tolist() == [0.05, 0.05]
    said = [f"{masks} masks at once do not fit into memory; timing half of them" for masks in (5, 3)]
    assert capsys.readouterr().err.splitlines() == said
    monkeypatch.setattr(discover_module, "_each", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError, match="out of memory with one mask"):
        samples._times(lab, sort)


@contextmanager
def as_a_job(lab, monkeypatch):
    """Races must have the threads of the study's jobs, whatever the process had before and has afterwards."""
    race, threads = comparison.race, []
    counted = lambda *given, **more: threads.append(torch.get_num_threads()) or race(*given, **more)  # noqa: E731
    monkeypatch.setattr(comparison, "race", counted)
    with comparison._threads(2):
        yield
        assert set(threads) == {lab.study.compute.threads} == {1} and torch.get_num_threads() == 2


def test_masks_at_once_are_compared_with_one_by_one(lab, monkeypatch):
    monkeypatch.setattr(comparison, "AT_ONCE", {"cpu": (1, 2)})
    with as_a_job(lab, monkeypatch):
        table = cost.compare_at_once(lab, cost.kinds(lab), cost.sample_items, steps=1)
    about = list(zip(table["model"], table["start"], table["masks"], strict=True))
    starts = {"bert_micro": "layer_1", "resnet_micro": "stem"}  # the vision transformer has no masks
    assert about == [(model, start, masks) for model, start in starts.items() for masks in (1, 2)]
    ms = table.set_index(["model", "masks"])["ms"].unstack()
    faster = table.set_index(["model", "masks"])["times_faster"].unstack()
    assert faster[1].to_list() == [1, 1]
    assert faster[2].to_list() == pytest.approx((2 * ms[1] / ms[2]).to_list())


def test_masks_that_do_not_fit_are_left_out_of_the_comparison(lab, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "AT_ONCE", {"cpu": (1, 2, 3)})
    together = discover_module._each

    def full(loss, weights, *rest):
        if len(next(iter(weights.values()))) == 3:
            raise torch.OutOfMemoryError("out of memory")
        return together(loss, weights, *rest)

    monkeypatch.setattr(discover_module, "_each", full)
    table = cost.compare_at_once(lab, cost.kinds(lab)[:1], cost.sample_items, steps=1)
    assert list(table["masks"]) == [1, 2]
    assert capsys.readouterr().err.splitlines()[-1] == "3 masks at once do not fit into memory; without them"
    monkeypatch.setattr(discover_module, "_each", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError, match="out of memory with one mask"):
        cost.compare_at_once(lab, cost.kinds(lab)[:1], cost.sample_items, steps=1)


def test_a_race_lets_go_of_what_its_contenders_held():
    held = []

    def train(pace):
        memory = torch.ones(3)
        held.append(weakref.ref(memory))
        for one, _ in zip(pace(repeat(None)), repeat(None), strict=True):
            assert one is None

    gc.collect()
    gc.disable()  # a GPU's memory does not make it run
    try:
        timing.race({"one": train, "two": train}, steps=2, warm_up=0)
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()


def test_every_model_is_compared_from_each_of_its_starts(lab, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with as_a_job(lab, monkeypatch):
        table = cost.compare(lab, cost.kinds(lab), cost.sample_items, steps=1)
    rows = Counter(zip(table["model"], table["trained"], strict=True))
    expected = {"bert_micro": ["layer_1", "layer_2"], "resnet_micro": ["stem", "stage_3"], "vit_micro": []}
    assert rows == {(m, trained): 2 for m, starts in expected.items() for trained in (comparison.PLAIN, *starts)}
    assert (table.loc[table["trained"] == comparison.PLAIN, "times_plain"] == 1).all()
    assert (table["share"] > 0).all()
    gflop = table.set_index(["model", "trained", "precision"])["gflop"].unstack()
    assert (gflop["float32"] == gflop["bfloat16"]).all()
    by_start = gflop["float32"].drop("vit_micro").unstack()
    assert (by_start[comparison.PLAIN] > by_start.min(axis=1)).all(), "from a later start there is less to do"


# -- the plan ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans(lab) -> pd.DataFrame:
    return pd.concat([cost.plan(lab, section) for section in COUNTED], ignore_index=True)


def test_the_plan_counts_the_jobs_that_a_real_run_makes(plans, measured):
    jobs = [table.groupby(["section", "kind"])["jobs"].sum().to_dict() for table in (plans, measured)]
    assert jobs[0] == jobs[1]
    assert len(jobs[0]) == 18


def test_steps_are_those_of_the_recipes(lab, plans):
    bases = [_json(path, "spec") for path in (lab.store.root / "base").iterdir()]
    batches = {8: 3, 16: 2}  # 24 training examples
    steps = [2 * batches[spec["training"]["batch_size"]] for spec in bases if "training" in spec]
    jobs = plans.groupby("kind")[["jobs", "steps"]].sum()
    assert jobs.loc["base", "steps"] == sum(steps)
    assert jobs.loc["mask", "steps"] == jobs.loc["mask", "jobs"] * 3 * 2
    assert jobs.loc["pruning", "steps"] == jobs.loc["pruning", "jobs"] * 2 * 3
    assert jobs.loc["pretraining", "steps"] == 40 // 8 + 24 // 8
    assert jobs.loc[["effect", "null_draws", "ablations", "dissection", "stimuli"], "steps"].sum() == 0


@pytest.mark.parametrize("kind", ["effect", "null", "ablations"])
def test_items_are_those_that_a_real_run_evaluates(lab, plans, passed, tmp_path, kind):
    """Made once more, with a count of what passes through networks: all, and the frozen part of it."""
    other = _without(lab, kind, tmp_path)
    if kind == "effect":  # those of the masks that count are of another section
        break_it_down.effects(other)
        passed.clear()
        steps._KEPT.clear()
    MAKERS["controls"](other)
    shown = "null_draws" if kind == "null" else kind
    planned = plans[(plans["section"] == "controls") & (plans["kind"] == shown)].set_index("model")
    for_means = 0
    if kind == "null":  # masks that keep nearly all weights have no control in their complement
        drawn = sum(len(pd.read_parquet(path)) for path in other.store.root.glob("null/*/draws.parquet"))
        planned["items"] *= drawn / planned["networks"].sum()
    if kind == "ablations":  # the means over the base's validation set are not taken by `embed_all`
        for_means = 4 * 12 * planned["jobs"]
    assert passed["items"] == (planned["items"] - for_means).sum()
    # nothing lies before the first stage of the ResNet
    assert passed["frozen_items"] == (planned["frozen_items"] - for_means)["bert_micro"]


def test_items_of_parts_are_those_that_a_real_run_evaluates(lab, plans, passed, tmp_path):
    """Where the masks of both subroutines start at one stage: else they cannot be put together."""
    other = _without(lab, "dissection", tmp_path)
    found = dissection.assembled(other)
    planned = plans[plans["kind"] == "dissection"]
    assert planned["jobs"].sum() == found["key"].nunique() == 2
    # a random subnetwork is drawn several times
    evaluated = len(found) + (dissection.DRAWS - 1) * found["part"].str.startswith("random").sum()
    assert passed["items"] == evaluated * 4 * 3 * 16
    # nothing lies before the first stage of the ResNet
    assert planned.set_index("model").loc["bert_micro", "frozen_items"] == 4 * 3 * 16
    at_most = len(dissection.PARTS) + 2 * (dissection.DRAWS - 1)
    assert planned["items"].sum() == 2 * at_most * 4 * 3 * 16 and planned["networks"].sum() == 2 * (at_most - 1)


def test_items_of_masks_are_those_that_a_real_run_evaluates(lab, plans, passed, tmp_path):
    other = _without(lab, "mask", tmp_path)
    break_it_down.find_masks(other)
    planned = plans[(plans["section"] == "experiments") & (plans["kind"] == "mask")].set_index("model")["items"]
    of_the_ledger = 2 * 4 * (3 * 12)  # two masks of the ResNet, which notebook 03 makes
    assert passed["items"] == planned.sum() - of_the_ledger


def test_the_frozen_part_is_passed_once_unless_workers_outnumber_networks(lab):
    """With as many workers as jobs nothing is shared, with no more than networks everything of a base and start is."""
    plans = {}
    for workers in (1, 2, 99):
        compute = lab.study.compute.model_copy(update={"workers": workers})
        study = lab.study.model_copy(update={"compute": compute})
        table = cost.plan(replace(lab, study=study), "experiments")
        plans[workers] = table[table["kind"] == "effect"].set_index("model")["frozen_items"]
    own, probe, base = 16, 16, 16
    jobs = 4  # of a base: two subroutines, two seeds
    assert plans[99]["bert_micro"] == jobs * 4 * (own + 2 * probe + base)
    assert plans[1]["bert_micro"] == 4 * (2 * own + 2 * probe + base)
    assert len(break_it_down.networks(lab.study)) == 2
    assert plans[2]["bert_micro"] == plans[1]["bert_micro"]


def test_images_are_drawn_once_for_all_sections(plans):
    drawn = plans[plans["kind"] == "stimuli"].set_index(["section", "model"])
    # resnet: base and two mask sets with three splits, two probe sets with two; the others are of another resolution
    per_task = 4 * (3 * (24 + 12 + 16) + 2 * (12 + 16))
    assert drawn.loc["experiments", "items"].sum() == per_task + 4 * (24 + 12 + 16)
    assert "pretrained" not in drawn.index, "the pretrained networks see the same images"


def test_halving_counts_both_halves(tmp_path):
    study = micro.study()
    bert = study["experiments"][0]
    bert["masks"] |= {"search": "halving", "seeds": [0], "epochs": 4}
    lab = Lab.open(study | {"experiments": [bert], "vit_search": None}, tmp_path)
    break_it_down.effects(lab)
    planned = cost.plan(lab, "experiments").groupby("kind")[["jobs", "steps"]].sum()
    made = {kind: len(list((tmp_path / kind).iterdir())) for kind in ("base", "half", "mask", "effect")}
    assert planned["jobs"].to_dict() == made
    assert planned.loc["half", "steps"] == made["half"] * 2 * 2 and planned.loc["mask", "steps"] == made["mask"] * 2 * 2
    table = cost.measured(lab).set_index("kind")
    assert table["jobs"].to_dict() == made


# -- the prediction ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(lab) -> pd.DataFrame:
    return cost.counted(lab)


def test_prediction_multiplies_counts_and_times(counted, plans):
    pd.testing.assert_frame_equal(counted[list(plans)], plans)
    expected = sum(
        counted[name] * counted[f"{name}_s"]
        for name in ("steps", "epochs", "items", "networks", "tasks", "read", "frozen_items")
    )
    assert counted["predicted_s"].to_numpy() == pytest.approx(expected.to_numpy())
    assert (counted["predicted_s"] > 0).all()
    trained = counted[counted["steps"] > 0]
    assert (trained["steps_s"] > 0).all()
    assert (counted.loc[counted["networks"] > 0, "networks_s"] > 0).all()


def test_operations_are_those_of_a_real_run(counted, operations_made):
    """But for the random subnetworks: masks that keep nearly all weights have none in their complement."""
    lab, made = operations_made
    drawn = sum(len(pd.read_parquet(path)) for path in lab.store.root.glob("null/*/draws.parquet"))
    counted, nulls = counted.copy(), counted["kind"] == "null_draws"
    counted.loc[nulls, "tflop"] *= drawn / counted.loc[nulls, "networks"].sum()
    found = 1e12 * counted.groupby("section")["tflop"].sum()
    assert found.to_dict() == pytest.approx(made, rel=0.02)
    assert set(counted.loc[counted["tflop"] == 0, "kind"]) == {"stimuli"}


def test_at_best_a_study_takes_what_its_products_take(counted, lab, monkeypatch):
    """On a device that multiplies its large matrices in two seconds."""
    seconds = {"contender": "", "step": range(3), "seconds": [1.0, 2.0, 9.0], "flops": 8 * 10**9}
    monkeypatch.setattr(prediction, "race", lambda contenders, **_: pd.DataFrame(seconds))
    for tflop, told in ((14.4, "28.8 TFLOP"), (2e7, "40,000,000 TFLOP")):
        line = cost.at_best(counted.iloc[:2].assign(tflop=tflop), lab)
        assert line.startswith(
            f"{told} of products and convolutions; at the rate of one large product, 0.004 TFLOP/s, "
        )
        assert line.endswith(" 2 hours" if tflop < 1e7 else " 2,780,000 hours")


def test_what_does_not_fit_into_the_cache_is_passed_in_every_epoch(lab, plans, monkeypatch):
    def ones(lab, sorts):
        names = ("steps", "epochs", "items", "frozen_items", "networks", "tasks", "read")
        return [{name: np.ones(2) for name in names} | {"gb": np.full(2, 1.0)} for _ in sorts]

    monkeypatch.setattr(prediction, "times", ones)
    monkeypatch.setattr(prediction, "operations", lambda sort: {"frozen_items": 1e12})
    tables = {}
    for limit in (1.0, 1e6):
        compute = lab.study.compute.model_copy(update={"cache_limit_gb": limit})
        other = replace(lab, study=lab.study.model_copy(update={"compute": compute}))
        tables[limit] = prediction.multiplied(other, plans)
    for column in ("predicted_s", "predicted_cpu_s", "tflop"):
        assert (tables[1.0][column] - tables[1e6][column]).to_list() == plans["passes"].to_list()
    assert plans["passes"].sum() > 0


def test_a_profile_of_later_notebooks_alone_has_nothing_to_count(lab):
    other = replace(lab, study=lab.study.model_copy(update={"experiments": (), "vit_search": None, "pretrained": ()}))
    tables = [cost.counted(other), *(race(other, cost.kinds(other), cost.sample_items) for race in
                                     (cost.compare, cost.compare_at_once))]  # fmt: skip
    assert [len(table) for table in tables] == [0, 0, 0]
    assert {"model", "start", "steps", "tflop", "note"} <= set(tables[0]) and {"ms", "share"} <= set(tables[1])
    assert cost.at_best(tables[0], other).startswith("0 TFLOP of products")


def test_published_weights_that_are_missing_are_a_line(lab, tmp_path):
    bert, _ = micro.whole_study()["pretrained"]
    del bert["pretraining"]
    bert["architecture"] = bert["architecture"] | {"pretrained": str(tmp_path / "none")}
    lacking = Lab.open(micro.whole_study() | {"pretrained": [bert], "vit_search": None}, tmp_path)
    table = cost.counted(lacking)
    (note,) = table.loc[table["section"] == "pretrained", "note"]
    assert str(tmp_path / "none") in note
    assert (table.loc[table["section"] != "pretrained", "predicted_s"] > 0).all()


def test_the_check_puts_both_side_by_side(lab, counted, measured):
    predicted = cost.predict(lab, counted)
    table = cost.check(predicted, measured).set_index(["section", "kind"])
    assert (table["jobs"] == table["made"]).all()
    assert list(dict.fromkeys(table.index.get_level_values("section"))) == [*COUNTED, "all"]
    kinds = pd.read_csv(StringIO(table.to_csv())).set_index("section")["kind"]
    assert kinds.isna().sum() == 1 and np.isnan(kinds["all"]), "pandas reads some words as missing"
    row = table.loc[("controls", "null_draws")]
    noted = measured.set_index(["section", "kind"]).loc[("controls", "null_draws")]
    assert row["measured_s"] == noted["measured_s"] and row["measured_cpu_s"] == noted["measured_cpu_s"]
    assert row["ratio"] == pytest.approx(row["measured_s"] / row["predicted_s"])
    assert row["cpu_ratio"] == pytest.approx(row["measured_cpu_s"] / row["predicted_cpu_s"])
    whole = table.loc[("all", "")]
    assert whole["predicted_s"] == pytest.approx(counted["predicted_s"].sum())
    assert whole["measured_s"] == pytest.approx(measured["measured_s"].sum())
    hours = counted["predicted_s"].sum() / 3600
    assert cost.told(predicted, lab).startswith(f"profile micro: {hours:.2f} job-hours, ")


def test_only_finished_sections_are_compared(counted, measured, lab):
    finished = measured[measured["section"] == "pruning"]
    table = cost.check(cost.predict(lab, counted), finished)
    assert set(table["section"]) == {"pruning", "all"}


# -- what was measured -------------------------------------------------------------------------------------------------


def test_measured_is_what_all_artefacts_noted(lab, measured):
    noted = [_json(path.parent, "provenance") for path in lab.store.root.glob("*/*/provenance.json")]
    assert measured["measured_s"].sum() == pytest.approx(sum(one["seconds"] for one in noted))
    assert measured["measured_cpu_s"].sum() == pytest.approx(sum(one["cpu_seconds"] for one in noted))
    assert measured["jobs"].sum() == len(noted)
    sections = measured.set_index("kind")["section"]
    assert sections["pretraining"] == "pretrained" and sections["pruning"] == "pruning"


def test_an_unfinished_study_is_one_line(tmp_path):
    unfinished = Lab.open(micro.study(), tmp_path)
    with pytest.raises(cost.Unfinished, match=r"^profile 'micro' is not finished; run: make reproduce PROFILE=micro$"):
        cost.measured(unfinished)
    assert len(list(tmp_path.glob("base/*"))) == 0, "asking what it cost trains nothing"


def test_an_unfinished_section_is_left_out(lab, measured, tmp_path):
    shutil.copytree(lab.store.root, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "null")
    found = cost.measured(Lab.open(lab.study, tmp_path / "store"))
    assert set(found["section"]) == {"experiments", "pruning", "pretrained"}
    assert not (tmp_path / "store" / "null").exists()


def test_what_lacks_its_data_is_not_finished(lab, measured, tmp_path):
    bert, _ = micro.whole_study()["pretrained"]
    del bert["pretraining"]
    bert["architecture"] = bert["architecture"] | {"pretrained": str(tmp_path / "none")}
    study = lab.study.model_dump() | {"pretrained": [bert]}
    found = cost.measured(Lab.open(study, lab.store.root))
    assert set(found["section"]) == {"experiments", "pruning", "controls"}


def test_a_study_has_the_sections_that_its_profile_has():
    assert sections_of(Study.load(micro.study())) == ["experiments", "controls"]
    assert sections_of(Study.load(micro.whole_study())) == ["experiments", "pruning", "controls", "pretrained"]
    assert sections_of(Study.load("tiny")) == list(MAKERS)
    assert sections_of(Study.load("minilm")) == ["inference"]


def test_artefacts_that_noted_less_are_read(lab, measured, tmp_path):
    """As before processor time and uses were noted: the one is missing, and what only uses would tell of."""
    shutil.copytree(lab.store.root, tmp_path / "store")
    for path in (tmp_path / "store").glob("*/*/provenance.json"):
        old = {name: value for name, value in json.loads(path.read_text()).items() if name in ("seconds", "commit")}
        path.write_text(json.dumps(old))
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["provenance.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (path.parent / "manifest.json").write_text(json.dumps(manifest))
    found = cost.measured(Lab.open(lab.study, tmp_path / "store"))
    assert found["measured_cpu_s"].isna().all()
    missing = measured[measured["kind"].isin(["pretraining", "pruning"])]["measured_s"].sum()
    assert found["measured_s"].sum() == pytest.approx(measured["measured_s"].sum() - missing)


def test_masks_trained_at_once_have_their_share(tmp_path):
    study = micro.study(masks_at_once=2)
    lab = Lab.open(study | {"experiments": study["experiments"][:1], "vit_search": None}, tmp_path)
    break_it_down.effects(lab)
    found = cost.measured(lab).set_index("kind")
    assert "masks" not in found.index and math.isnan(found.loc["mask", "measured_cpu_s"])
    masks = [steps.find_mask(lab, mask) for network in break_it_down.networks(lab.study)
             for mask in break_it_down.candidates(network)]  # fmt: skip
    assert found.loc["mask", "measured_s"] > sum(map(steps.seconds_of, masks))
    assert found.loc["effect", "measured_cpu_s"] > 0


def _json(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def passed(monkeypatch) -> Counter:
    """Counts items that are evaluated, and those that pass through a frozen prefix."""
    counts, embed_all, fill = Counter(), evaluation.embed_all, FrozenPrefix._fill

    def embed(suffix, parameters, frozen):
        counts["items"] += len(frozen.items)
        return embed_all(suffix, parameters, frozen)

    def filled(self, *how):
        counts["frozen_items"] += len(self.items)
        fill(self, *how)

    monkeypatch.setattr(evaluation, "embed_all", embed)
    monkeypatch.setattr(FrozenPrefix, "_fill", filled)
    monkeypatch.setattr(steps, "_KEPT", OrderedDict())
    return counts


def _without(lab: Lab, kind: str, folder) -> Lab:
    """The same study without its artefacts of a kind."""
    shutil.copytree(lab.store.root, folder / "store")
    shutil.rmtree(folder / "store" / kind)
    return Lab.open(lab.study, folder / "store")


# -- NeuroSurgeon ------------------------------------------------------------------------------------------------------

SETTING = {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "vocabulary": 9, "start": "layer_1"}


def _executable(path, script: str):
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(("start", "number"), [("stem", 0), ("layer_1", 1), ("stage_4", 4)])
def test_the_other_process_makes_a_step_when_it_is_told_to(tmp_path, start, number):
    script = f"""
import json, sys, time
assert json.loads(sys.argv[2])["start"] == {number}
print("ready", flush=True)
for line in sys.stdin:
    time.sleep(0.05)
    print(0.05, flush=True)
"""
    contender = neurosurgeon.neurosurgeon(_executable(tmp_path / "python", script), **SETTING | {"start": start})
    times = timing.race({"other": contender}, steps=3, warm_up=1)
    assert len(times) == 3 and (times["seconds"] >= 0.05).all()


def test_the_other_process_may_say_much(tmp_path):
    script = "import sys\nsys.stderr.write('warning ' * 40_000)\nprint('ready', flush=True)\n"
    script += "for line in sys.stdin:\n    sys.exit('no memory')"
    contender = neurosurgeon.neurosurgeon(_executable(tmp_path / "python", script), **SETTING)
    with pytest.raises(cost.NeuroSurgeonMissing, match="ended in the middle: .*no memory"):
        timing.race({"other": contender}, steps=1)


@pytest.mark.parametrize("python", ["missing", "fails"])
def test_without_neurosurgeon_it_is_said_how_to_install_it(tmp_path, python):
    if python == "fails":
        _executable(tmp_path / python, "raise ImportError('no such library')")
    contender = neurosurgeon.neurosurgeon(tmp_path / python, **SETTING)
    with pytest.raises(cost.NeuroSurgeonMissing, match=r"install it: .*neurosurgeon==0\.1\.0 transformers==4\.46\.3"):
        timing.race({"other": contender}, steps=1)


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("family", ["bert", "resnet"])
def test_both_libraries_are_raced_with_the_same_masks(monkeypatch, family, narrow):
    raced = {}
    bert = {"family": "bert", "layers": 4, "width": 8, "heads": 2, "mlp_width": 8}
    residual = {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 2, "head_width": 8}
    threads = []
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: narrow)
    note = lambda contenders, **_: raced.update(contenders) or threads.append(torch.get_num_threads())  # noqa: E731
    monkeypatch.setattr(comparison, "race", note)
    monkeypatch.setattr(comparison, "relative", lambda times: pd.DataFrame({"ms": [1.0]}))
    monkeypatch.setattr(comparison, "_bert_small", lambda device: build(bert, seed=0, vocabulary=9))
    monkeypatch.setattr(comparison, "_resnet", lambda layers, device: build(residual, seed=0, resolution=64))
    race = {"bert": cost.bert_small, "resnet": partial(cost.resnet, 18)}[family]
    with comparison._threads(core_count() + 1):
        table = race(python="python", device=CPU)
    assert [core_count()] == threads == list(table["threads"]), "all cores, whatever ran before"
    starts = {"bert": {"layer_1", "layer_3", "layer_4"}, "resnet": {"stem", "stage_4"}}[family]
    ours = {comparison.PRODUCT, comparison.PLAIN, *starts}
    by_precision = {p: {n.split("|")[1] for n in raced if n.startswith(p)} for p in ("float32", "bfloat16", "Neuro")}
    # what would only imitate bfloat16 would show its times of float32 for it
    assert by_precision == {"float32": ours, "bfloat16": ours if narrow else set(), "Neuro": starts}


def test_a_resnet_that_is_not_raced():
    with pytest.raises(ValueError, match="no ResNet of 34 layers; valid: 18, 50"):
        cost.resnet(34, device=CPU)


def test_all_workers_are_at_the_same_sort_at_once(lab, monkeypatch):
    asked = []

    def run(function, jobs, **_):
        asked.extend(sort for _, sort in jobs)
        return [{"steps": np.full(2, float(number))} for number in range(len(jobs))]

    monkeypatch.setattr(samples, "run_jobs", run)
    compute = lab.study.compute.model_copy(update={"workers": 3})
    found = samples.times(replace(lab, study=lab.study.model_copy(update={"compute": compute})), ["a", "b"])
    assert asked == ["a"] * 3 + ["b"] * 3
    assert [float(times["steps"][0]) for times in found] == [1.0, 4.0]  # the means of 0 to 2 and 3 to 5
