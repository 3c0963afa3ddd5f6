"""The paths that only a GPU takes, on an imitation of one (`imitated_gpu`): a study runs on it from end to end, comes
to what it comes to on a CPU, and its steps leave a GPU little to wait for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from subnet_utils.cost.sections import MAKERS, sections_of

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import ROOT
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.heuristic_core import tables as unit_pruning
from subnet_utils.papers.subtask_induction import arithmetic_tables as subtask_induction
from subnet_utils.papers.subtask_induction import images_tables as shape_bias
from tests import micro
from tests.test_shape_bias import CNN, RENDERED, VIT
from tests.test_subtask_induction import ARITHMETIC
from tests.test_unit_pruning import SECTION

STUDY = micro.whole_study(precision="float32") | {
    "arithmetic": ARITHMETIC | {"layers": [1], "seeds": [0], "inductions": [{}]},
    "images": {"rendered": RENDERED, "models": [CNN | {"seeds": [0]}, VIT]},
    "inference": SECTION
    | {
        "architecture": SECTION["architecture"] | {"family": "gpt2"},
        "pruning": SECTION["pruning"] | {"grid_sparsities": [0.5], "grid_seeds": [0]},
    },
}
for one in [*STUDY["experiments"], *STUDY["pretrained"]]:
    one["base"], one["masks"] = one["base"] | {"seeds": [0]}, one["masks"] | {"seeds": [0]}

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the imitation needs a C++ compiler"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict]:
    """The store of a study made on the imitated GPU, and what the process that made it reports."""
    folder = tmp_path_factory.mktemp("gpu")
    study, store, report = (folder / name for name in ("study.json", "store", "report.json"))
    study.write_text(json.dumps(STUDY))
    command = [sys.executable, "-m", "tests.gpu_study", *map(str, (study, store, report))]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return store, json.loads(report.read_text())


@pytest.fixture(scope="module")
def labs(made, tmp_path_factory) -> tuple[Lab, Lab]:
    """The study as made on the GPU, now opened on a CPU; and the same study made on a CPU."""
    on_cpu = STUDY | {"compute": STUDY["compute"] | {"device": "cpu"}}
    ours = Lab.open(on_cpu, tmp_path_factory.mktemp("cpu"))
    for make in MAKERS.values():
        make(ours)
    return Lab.open(on_cpu, made[0]), ours


def test_the_imitation_refuses_what_a_gpu_refuses(made):
    _, report = made
    assert report["device"] == "cuda"
    assert "same device" in report["refusals"]["two devices"]
    assert "same device" in report["refusals"]["another device's rows"]
    assert "generator" in report["refusals"]["a CPU's generator"]
    assert "numpy" in report["refusals"]["read as the CPU's"]


def test_what_a_gpu_has_made_is_found_on_a_cpu(labs):
    theirs, _ = labs
    assert sections_of(theirs.study) == list(MAKERS)
    before = sorted(theirs.store.root.glob("*/*"))
    for make in MAKERS.values():
        make(theirs)
    assert sorted(theirs.store.root.glob("*/*")) == before and len(before) > 200


def test_networks_and_masks_begin_to_learn_as_on_a_cpu(labs):
    """Their first epochs; later ones of such small networks are chaos, in which rounding becomes everything."""
    first = [_first_losses(lab) for lab in labs]
    assert len(first[0]) > 30
    assert first[0].index.equals(first[1].index)
    np.testing.assert_allclose(first[0], first[1], rtol=2e-3)


@pytest.mark.parametrize("table", [subtask_induction.transfers, shape_bias.induced, unit_pruning.pruned])
def test_tables_of_the_later_notebooks_are_those_of_a_cpu(labs, table):
    theirs, ours = (table(lab).drop(columns=["seconds", "key"], errors="ignore") for lab in labs)
    pd.testing.assert_frame_equal(theirs, ours, rtol=1e-3, atol=1e-3)


def test_masks_are_of_the_sizes_that_they_have_on_a_cpu(labs):
    theirs, ours = (break_it_down.find_masks(lab)["density"].to_numpy() for lab in labs)
    assert np.abs(theirs - ours).max() < 0.02


def test_a_step_does_not_wait_for_the_gpu(made):
    """It is given data while it is at work, and asked for one number at most: how long the longest sentence is."""
    _, report = made
    for name, step in report["steps"].items():
        assert not step["copies"], f"{name} waits for what it sends: {step['copies']}"
        assert sum(step["waits"].values()) <= (1 if "bert" in name else 0), f"{name} waits: {step['waits']}"


def test_a_mask_costs_a_gpu_no_more_operations_than_it_saves(made):
    """A small network keeps a GPU busy with starting them: masks are a dozen, and biases need no gradient."""
    _, report = made
    count = {name: sum(step["operations"].values()) for name, step in report["steps"].items()}
    assert count["bert, one mask"] < count["bert, no mask"]
    assert count["resnet, one mask"] < count["resnet, no mask"]
    assert count["bert, eight masks"] < 2 * count["bert, one mask"]


def test_what_trains_in_threads_does_so_on_the_gpu(made):
    """Races and predictions, as of notebook 11."""
    raced = made[1]["raced"]
    steps, at_once = pd.DataFrame(raced["steps"]), pd.DataFrame(raced["at_once"])
    assert steps.groupby("model").size().to_dict() == {"bert_micro": 6, "resnet_micro": 6, "vit_micro": 2}
    assert set(steps["precision"]) == {"float32", "bfloat16"} and (steps[["ms", "gflop", "share"]] > 0).all(axis=None)
    assert at_once.groupby("model")["masks"].apply(list).to_dict() == {"bert_micro": [1, 2], "resnet_micro": [1, 2]}
    assert (at_once[["ms", "times_faster"]] > 0).all(axis=None)
    assert raced["predicted"] and min(raced["predicted"]) > 0 and " TFLOP of products" in raced["at_best"]


def test_layers_compute_on_a_gpu_what_they_compute_on_a_cpu(made):
    differences = made[1]["differences"]
    assert len(differences) == 5 and all(difference < 1e-5 for difference in differences.values()), differences


def test_normalization_leaves_maps_as_narrow_as_convolutions_make_them(made):
    """Memory is what bounds a ResNet on a GPU, and autocast would have twice as much of it read and written."""
    assert made[1]["maps"] == ["torch.bfloat16", "cuda"]


def _first_losses(lab: Lab) -> pd.Series:
    """The first epoch's loss of every base and mask, by what it is of."""
    losses = {}
    for kind in ("base", "mask"):
        for folder in (lab.store.root / kind).iterdir():
            history = folder / "history.parquet"
            if history.exists():
                spec = json.loads((folder / "spec.json").read_text())
                about = json.dumps(_without_digests(spec), sort_keys=True)
                losses[f"{kind} {about}"] = pd.read_parquet(history)["train_loss"].iloc[0]
    return pd.Series(losses).sort_index()


def _without_digests(spec):
    """A specification without the fingerprints of networks, which rounding changes."""
    if isinstance(spec, dict):
        return {key: _without_digests(value) for key, value in spec.items() if key != "network"}
    return spec
