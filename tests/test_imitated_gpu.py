"""The paths that only a GPU takes, on an imitation of one (`imitated_gpu`): a study runs on it from end to end, comes
to what it comes to on a CPU, and its steps leave a GPU little to wait for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT
from subnet_utils.core.step import Step, make_all, missing, with_parents
from subnet_utils.core.store import Artefact
from subnet_utils.masks.subnetwork import Subnetwork
from tests import micro
from tests.test_arithmetic_modules import NETWORKS
from tests.test_shape_bias import CNN, RENDERED, VIT
from tests.test_subtask_induction import ARITHMETIC
from tests.test_unit_pruning import SECTION

STUDY = micro.few(micro.whole_study(precision="float32")) | {
    "subtask_induction": {
        "arithmetic": ARITHMETIC | {"layers": [1], "seeds": [0], "inductions": [{}]},
        "images": {"rendered": RENDERED, "models": [CNN | {"seeds": [0]}, VIT]},
    },
    "heuristic_core": SECTION
    | {
        "architecture": SECTION["architecture"] | {"family": "gpt2"},
        "pruning": SECTION["pruning"] | {"grid_sparsities": [0.5], "grid_seeds": [0]},
    },
    # not the LSTM: the imitation has no such kernel
    "functional_modularity": {"arithmetic": [one | {"seeds": [0], "l0": None} for one in NETWORKS[:2]]},
}
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
    make_all(ours, every_step(ours), "study")
    return Lab.open(on_cpu, made[0]), ours


def every_step(lab: Lab) -> list[Step]:
    return with_parents(step for paper in papers().values() for step in paper.steps_of(lab))


def test_the_imitation_refuses_what_a_gpu_refuses(made):
    _, report = made
    assert report["device"] == "cuda"
    assert "same device" in report["refusals"]["two devices"]
    assert "same device" in report["refusals"]["another device's rows"]
    assert "generator" in report["refusals"]["a CPU's generator"]
    assert "numpy" in report["refusals"]["read as the CPU's"]


def test_what_a_gpu_has_made_is_found_on_a_cpu(labs):
    theirs, _ = labs
    assert len(every_step(theirs)) > 100 and missing(theirs, every_step(theirs)) == []


def test_networks_begin_to_learn_as_on_a_cpu(labs):
    """Their first epochs; later ones of such small networks are chaos, in which rounding becomes everything."""
    made = [with_file(lab, "history.parquet", young=True) for lab in labs]
    tables = [[(one.kind, one.table("history")) for one in each] for each in made]
    losses = [[table["train_loss"].iloc[0] for _, table in each if "train_loss" in table] for each in tables]
    drawn = [kind == "modules-mask" for kind, table in tables[0] if "train_loss" in table]  # by the GPU's generator
    assert len(drawn) - sum(drawn) > 5 and sum(drawn) > 5
    for some, tolerance in ((np.logical_not(drawn), 2e-3), (np.array(drawn), 2e-2)):
        np.testing.assert_allclose(*(np.array(each)[some] for each in losses), rtol=tolerance)


def test_masks_are_of_the_sizes_that_they_have_on_a_cpu(labs):
    name = "subnetwork.safetensors"
    sizes = [[Subnetwork.load(artefact.path / name).density for artefact in with_file(lab, name)] for lab in labs]
    assert len(sizes[0]) > 10 and np.abs(np.subtract(*sizes)).max() < 0.02


def with_file(lab: Lab, name: str, *, young: bool = False) -> list[Artefact]:
    """The artefacts of a study that have a file. young: those alone that nothing trained goes into."""
    steps = [step for step in every_step(lab) if not young or not any(parent.parents for parent in step.parents)]
    return [artefact for artefact in (step.find(lab) for step in steps) if artefact.has(name)]


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
    assert count["bert, 1 masks"] < count["bert, 0 masks"]
    assert count["resnet, 1 masks"] < count["resnet, 0 masks"]
    assert count["bert, 8 masks"] < 2 * count["bert, 1 masks"]


def test_attention_is_on_a_gpu_what_it_is_on_a_cpu(made):
    assert made[1]["difference"] < 1e-5


def test_normalization_leaves_maps_as_narrow_as_convolutions_make_them(made):
    """Memory is what bounds a ResNet on a GPU, and autocast would have twice as much of it read and written."""
    assert made[1]["maps"] == ["torch.bfloat16", "cuda"]
