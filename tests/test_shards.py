"""A study in shards: what is listed, and that every process has a GPU of its own. See also test_new_paper."""

import os
import re

import pytest
import torch

from subnet_utils import shards
from subnet_utils.core.jobs import WorkerDied
from subnet_utils.core.papers import notebooks
from subnet_utils.core.sections import ROOT
from subnet_utils.core.step import Fault
from subnet_utils.core.store import StoreError
from subnet_utils.core.study import Study
from tests.toy_paper import run, write_profile


@pytest.fixture(autouse=True)
def gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBNET_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_unknown_step_or_profile_is_one_line(capsys):
    assert shards.main(["tyni"]) == 2 and shards.main(["tiny", "base-0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "did you mean 'tiny'?" in lines[0] and "no step 'base-0' in profile 'tiny'" in lines[1]


@pytest.mark.parametrize("kind", [StoreError, Fault, WorkerDied, torch.OutOfMemoryError])
def test_what_ends_a_run_is_one_line(kind, monkeypatch, capsys):
    monkeypatch.setattr(shards, "make", lambda *_: (_ for _ in ()).throw(kind("make it writable")))
    assert shards.main(["tiny", "all"]) == 2 and capsys.readouterr().err == "make it writable\n"


def test_the_papers_own_settings_come_to_hundreds_of_shards_and_no_notebook_waits_for_another_paper(tmp_path):
    """The profile `paper` names data and weights that are not here: what needs them is left out with a line."""
    options = ["--dag", "--config", "profile=paper", "shards=1", "batch=20"]
    plan = run(tmp_path, "snakemake", "-s", str(ROOT / "Snakefile"), *options)
    assert plan.returncode == 0, plan.stdout + plan.stderr
    left_out = [line.partition(":")[0] for line in plan.stderr.splitlines() if "no shards, because" in line]
    assert left_out == [
        "05_pretraining",
        "07b_shape_bias",
        "08b_our_network",
        "08c_core_of_heads",
        "09c_images",
        "10a_identification_methods",
        "10b_composition",
    ]
    rules = dict(re.findall(r'^\t(\d+)\[label = "(\w+)', plan.stdout, re.MULTILINE))
    assert list(rules.values()).count("shard") >= 200
    edges = {(rules[a], rules[b]) for a, b in re.findall(r"^\t(\d+) -> (\d+)$", plan.stdout, re.MULTILINE)}
    for name, (paper, notebook) in notebooks().items():
        if name in left_out:
            assert f"{name} is left out: " in plan.stderr and name not in rules.values()
            continue
        before = {first for first, second in edges if second == name}
        assert before == {f"shards_{paper.name}", *notebook.after}


def test_all_that_can_be_made_is_made_where_another_notebook_lacks_its_data(tmp_path, monkeypatch, capsys):
    section, made = Study.load("tiny").subtask_induction.model_dump(mode="json"), []
    section["images"] |= {"rendered": None, "folders": dict.fromkeys(("train", "test", "conflicts"), "nowhere")}
    path = write_profile(tmp_path / "half.yaml", subtask_induction=section)
    monkeypatch.setattr("subnet_utils.core.step.make_all", lambda lab, steps, label: made.extend(steps))
    assert shards.main([str(path), "all"]) == 0
    assert made and {type(step).__module__.rpartition(".")[2] for step in made} == {"arithmetic_steps", "chosen_mask"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("07b_shape_bias: no shards, because no folder nowhere")


def test_batches_have_all_steps_once_and_wait_for_what_their_steps_need():
    single = shards.missing(Study.load("check"))
    batches = shards.batched(single, 20)
    home = {step: name for name, batch in batches.items() for step in batch.steps}
    assert sorted(home) == sorted(step for shard in single.values() for step in shard.steps)
    assert len(batches) < len(single) / 4 and shards.batched(single, 1) == single
    for name, shard in single.items():
        batch = batches[home[name]]
        assert {home[before] for before in shard.after} <= set(batch.after) and shard.papers == batch.papers
    done = set()
    while ready := [name for name, batch in batches.items() if name not in done and done >= set(batch.after)]:
        done |= set(ready)
    assert done == set(batches)  # no two wait for each other


def test_every_process_gets_a_gpu_of_its_own_and_waits_for_one(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with shards.own_gpu() as first:
        assert (first, os.environ["CUDA_VISIBLE_DEVICES"]) == ("3", "3")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
        with shards.own_gpu() as second:
            assert second == "GPU-5"
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
            monkeypatch.setattr(shards.time, "sleep", lambda _: (_ for _ in ()).throw(TimeoutError("waits")))
            with pytest.raises(TimeoutError, match="waits"), shards.own_gpu():
                pass
            monkeypatch.setattr(shards.time, "sleep", lambda _, left=[1, 1]: left.pop())
            with pytest.raises(IndexError), shards.own_gpu():
                pass
            assert capsys.readouterr().err == "GPU 3, GPU-5: taken by other shards; waiting for one\n"
            study, compute = Study.load("check"), Study.load("check").compute.model_copy(update={"device": "cpu"})
            monkeypatch.setattr(shards.Study, "load", lambda _: study.model_copy(update={"compute": compute}))
            monkeypatch.setattr(shards, "make", lambda *_: None)
            assert shards.main(["check", "all"]) == 0 and capsys.readouterr().out == "check, all: no GPU\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with shards.own_gpu() as again:
        assert again == "3"


def test_the_one_gpu_that_slurm_gives_a_job_stays_and_several_are_shared_out(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with shards.own_gpu() as one, shards.own_gpu() as same:
        assert one == same == os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with shards.own_gpu() as first:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        with shards.own_gpu() as second:
            assert (first, second) == ("0", "1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        monkeypatch.setenv("SLURM_JOB_ID", "8")  # other cards, which are numbered from 0 there, too
        with shards.own_gpu() as others:
            assert others == "0"


def test_without_a_gpu_nothing_is_waited_for():
    with shards.own_gpu() as gpu:
        assert gpu is None
