"""A paper is a folder and a notebook, a mask method is a class: neither needs an edit of a file that is there."""

import json
import re
import shutil
from pathlib import Path

import pytest

from subnet_utils.core.sections import ROOT
from tests import toy_paper
from tests.toy_paper import run, write_profile

NAME = "toy-from-a-test"


@pytest.fixture
def rooms(tmp_path) -> Path:
    return toy_paper.write_room(tmp_path / "rooms")


@pytest.fixture
def profile(tmp_path):
    yield write_profile(tmp_path / f"{NAME}.yaml", toy={"numbers": [1, 2, 4]})
    shutil.rmtree(ROOT / "figures" / NAME, ignore_errors=True)


def made_by_the_notebook() -> list[str]:
    manifest = json.loads((ROOT / "figures" / NAME / "20_toy.json").read_text())
    assert [item["caption"] for item in manifest["items"]] == ["Squares of 21.0 together."]
    assert len(manifest["sources"]) == 4, "three squares and their total"
    return [item["name"] for item in manifest["items"]]


def test_papermill_runs_a_new_paper(tmp_path, rooms, profile):
    notebook = rooms / "toy" / "20_toy.ipynb"
    done = run(tmp_path, "subnet_utils.execute", str(notebook), "out.ipynb", "-f", str(profile), rooms=rooms)
    assert done.returncode == 0, done.stderr[-2000:]
    assert made_by_the_notebook() == ["squares"]
    results = [path.read_text().strip() for path in (tmp_path / "artifacts").glob("toy-*/*/result.json")]
    assert sorted(results) == ["1", "16", "21.0", "4"]


def test_snakemake_runs_a_new_paper_in_shards_and_does_nothing_twice(tmp_path, rooms, profile):
    options = ["snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", "--nolock"]
    options += ["--config", f"profile={profile}", "shards=1"]
    done = run(tmp_path, *options, rooms=rooms)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert re.search(r"^shard +4$", said, re.MULTILINE) and "train_bases" not in said
    assert made_by_the_notebook() == ["squares"]
    assert len(list((tmp_path / "runs" / NAME / "shards").glob("toy-*.done"))) == 4
    again = run(tmp_path, *options, rooms=rooms)
    assert "20_toy, " not in again.stdout + again.stderr and again.returncode == 0
    shutil.rmtree(tmp_path / "artifacts")
    gone = run(tmp_path, *options, "-n", rooms=rooms)
    assert re.search(r"^shard +4$", gone.stdout, re.MULTILINE)


def test_a_job_of_an_executor_leaves_it_to_the_executor_to_try_again(tmp_path, rooms, profile):
    """It has the time and the memory of its own attempt only."""
    steps = rooms / "toy/steps.py"
    steps.write_text(steps.read_text().replace("return self.number**2", "raise RuntimeError"))
    options = ["snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "1", "--nolock"]
    options += ["--config", f"profile={profile}", "shards=1"]
    shards = tmp_path / "runs" / NAME / "shards"
    listed = run(tmp_path, "subnet_utils.shards", str(profile), rooms=rooms).stdout.split()
    shards.mkdir(parents=True)
    plan = {name: {"steps": [name], "after": [], "papers": ["toy"]} for name in listed}
    shards.with_suffix(".json").write_text(json.dumps(plan))  # as the process that plans a run leaves it
    (shards.parent / "absent.json").write_text("{}")
    name = listed[0]
    target = str((shards / f"{name}.done").relative_to(tmp_path))
    job = run(tmp_path, *options[:6], "--mode", "remote", "--retries", "0", target, *options[6:], rooms=rooms)
    log = (shards / f"{name}.log").read_text()
    assert job.returncode != 0 and "RuntimeError" in log and log.count("no GPU") == 1


CALLS = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subnet_utils.shards import main

def call(*names):
    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as wrong:
        return main([sys.argv[1], *names]), said.getvalue().split(), wrong.getvalue()

first = call()
print(json.dumps([first, call(first[1][0]), call(), call("all"), call(), call("toy-cube")]))
"""


def test_shards_are_listed_made_by_name_and_left_out_where_data_are_missing(tmp_path, rooms, profile):
    (tmp_path / "calls.py").write_text(CALLS)
    done = run(tmp_path, "calls", str(profile), rooms=rooms)
    assert done.returncode == 0, done.stderr[-2000:]
    listed, one, left, every, nothing, unknown = json.loads(done.stdout)
    assert [name.rpartition("-")[0] for name in listed[1]] == ["toy-square"] * 3 + ["toy-total"]
    assert one[0] == every[0] == 0 and left[1] == listed[1][1:] and nothing[1] == []
    assert unknown[0] == 2 and unknown[2].startswith(f"no step 'toy-cube' in profile '{NAME}'")
    write_profile(profile, toy={"numbers": [13]})
    without = run(tmp_path, "subnet_utils.shards", str(profile), rooms=rooms)
    assert (without.returncode, without.stdout.split()) == (0, [])
    assert without.stderr == "20_toy: no shards, because no file '13.csv'; put it there\n"
    assert run(tmp_path, "subnet_utils.shards", str(profile), "all", rooms=rooms).returncode == 2


def test_what_one_paper_lacks_stops_no_notebook_of_another(tmp_path, rooms, profile):
    write_profile(profile, toy={"numbers": [13]}, subtask_induction={"arithmetic": {}})
    checked = run(tmp_path, "subnet_utils.check", str(profile), rooms=rooms)
    assert (checked.returncode, checked.stderr) == (0, "20_toy cannot run: no file '13.csv'; put it there\n")
    options = ["snakemake", "-s", str(ROOT / "Snakefile"), "-n", "--config", f"profile={profile}"]
    plan = run(tmp_path, *options, rooms=rooms)
    assert plan.returncode == 0 and set(re.findall(r"^(\d\w+) +1$", plan.stdout, re.M)) == {"07_subtask_induction"}
    assert "20_toy is left out: no file '13.csv'; put it there\n" in plan.stderr
    write_profile(profile, toy={"numbers": [13]})
    assert run(tmp_path, "subnet_utils.check", str(profile), rooms=rooms).returncode == 2
    plan = run(tmp_path, *options, rooms=rooms)
    assert plan.returncode != 0 and "no notebook can run" in plan.stderr and "Traceback" not in plan.stderr


METHOD = '''
"""Masks that keep what is nearest to 0, and masks that are trained without a penalty."""

from dataclasses import dataclass
from typing import Literal

from subnet_utils.masks.masking import ScoredMasking, TrainedMasking


class Smallest(ScoredMasking):
    """The weights that are nearest to 0."""

    method: Literal["smallest"] = "smallest"
    power: float = 1.0

    def scores(self, model, names, *, seed, before, task):
        """-|w|."""
        weights = dict(model.named_parameters())
        return {name: -(weights[name].detach().abs() ** self.power) for name in names}


class Plain(TrainedMasking):
    """sigma(s)."""

    method: Literal["plain"] = "plain"

    @classmethod
    def parameterization(cls):
        """Of this file."""
        from subnet_utils.masks.methods import ThresholdedAtZero

        @dataclass(frozen=True)
        class Sigmoid(ThresholdedAtZero):
            start_value: float = 0.1
            units: str = "weights"
            deterministic = True

            def soft(self, logits, epoch, generator):
                return {name: s.sigmoid() for name, s in logits.items()}

            def penalty(self, soft, logits):
                return sum(mask.sum() for mask in soft.values()) * 0

        return Sigmoid


class Nameless(TrainedMasking):
    """It gives no class."""

    method: Literal["nameless"] = "nameless"
'''
USE = """
import sys
from subnet_utils.papers.break_it_down import section  # before anything else
from dataclasses import dataclass
from subnet_utils.core.step import Step
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks.masking import Masking
from subnet_utils.models import build

@dataclass(frozen=True)
class Found(Step):
    masking: Masking

values = Study.load("tiny").model_dump(mode="json") | {"name": "mine"}
masks = values["break_it_down"]["experiments"][0]["masks"]
def chosen(masking):
    masks["masking"] = masking
    return Study.load(values).break_it_down.experiments[0].masks.masking
names = {Found(chosen(one)).name for one in ("smallest", "magnitude", {"method": "smallest", "power": 2.0})}
assert len(names) == 3
try:
    chosen("smalest")
except StudyError as error:
    print(error)

network = build({"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "width_factor": 1,
                 "head_width": 8, "embedding": 8, "small_stem": True}, seed=0, resolution=32)
class Recipe:
    seed = 0
found = chosen({"method": "smallest", "density": 0.25}).find(network, None, None, None, start="stem", recipe=Recipe)
weights = dict(network.named_parameters())
kept = [weights[name].abs()[mask] for name, mask in found.subnetwork.masks.items()]
left = [weights[name].abs()[~mask] for name, mask in found.subnetwork.masks.items()]
assert max(float(one.max()) for one in kept if len(one)) <= min(float(one.min()) for one in left if len(one))
print(round(found.subnetwork.density, 3))

import torch
from subnet_utils import Task, identify
from subnet_utils.masks.identify import MaskSteps
items, targets = torch.randn(40, 4), torch.arange(40) % 2
training = MaskSteps(steps=4, batch_size=20)
print(identify(torch.nn.Linear(4, 2), Task(items, targets), "plain", training=training).subnetwork.total)
try:
    chosen("nameless").build(3)
except TypeError as error:
    print(error)
"""


def test_a_mask_method_from_a_folder_can_be_named_in_every_section(tmp_path):
    (tmp_path / "rooms").mkdir()
    (tmp_path / "rooms" / "smallest.py").write_text(METHOD.lstrip())
    (tmp_path / "use.py").write_text(USE)
    done = run(tmp_path, "use", rooms=tmp_path / "rooms")
    assert done.returncode == 0, done.stderr[-2000:]
    message, density, total, without = done.stdout.splitlines()
    assert message.startswith("break_it_down.experiments.0.masks.masking.method: 'smalest' is not valid; did you mean")
    assert density == "0.25" and total == "8"
    assert without == "Nameless has no parameterization(); write one that returns its MaskMethod"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    done = run(tmp_path, "subnet_utils.check", "tiny", rooms=tmp_path / "nowhere")
    assert done.returncode != 0
    said = f"ValueError: SUBNET_PAPERS names '{tmp_path / 'nowhere'}', which is no folder; correct it or unset it"
    assert done.stderr.splitlines()[-1] == said
