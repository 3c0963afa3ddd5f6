"""What a study costs: noted seconds are summed, samples stand for what is missing, races are fair."""

import json
import stat
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial

import pandas as pd
import pytest
import torch

from subnet_utils import cost
from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import Compute
from subnet_utils.core.step import Fault, Step, make_all
from subnet_utils.core.store import Building, Store, building
from subnet_utils.core.study import Study
from subnet_utils.core.workers import core_count
from subnet_utils.cost import estimate, race, sample
from subnet_utils.cost.__main__ import row_of
from subnet_utils.cost.sample import sample_fit, standing_in
from subnet_utils.models import build
from subnet_utils.training import Recipe, fit

CPU = torch.device("cpu")
SLEEP = 0.03
"""Seconds of a batch of the toy training: long beside what else a training does."""
TRAINED: list[int] = []
"""The batches of all toy trainings."""


def train(weights, epochs, batches=4, **options) -> pd.DataFrame:
    def loss(batch, epoch):
        TRAINED.append(batch)
        time.sleep(SLEEP)
        return (weights["w"] ** 2).sum()

    return fit(weights, lambda epoch: range(batches), loss, recipe=Recipe(0.01, epochs, 0), **options)


@dataclass(frozen=True)
class Base(Step):
    """A training of so many epochs."""

    epochs: int
    seed: int
    rate: float = 0.1

    def build(self, lab, folder):
        weights = {"w": torch.ones(100, requires_grad=True)}
        return {"rows": len(train(weights, self.epochs)), "positive": int((weights["w"] > 0).sum())}


@dataclass(frozen=True)
class Part(Step):
    """Something that a score makes on its way; no list of steps names it."""

    seed: int

    def build(self, lab, folder):
        time.sleep(2 * SLEEP)


@dataclass(frozen=True)
class Score(Step):
    """Something that is made of several bases, without a training."""

    bases: tuple[Base, ...]
    label: str = field(default="", compare=False)

    def build(self, lab, folder):
        for base in self.bases:
            Part(base.seed).make(lab)
        return sum(base.result(lab)["rows"] for base in self.bases)


@dataclass(frozen=True)
class Faulty(Step):
    """What cannot be sampled: it raises an error of the given kind, or takes too long."""

    base: Base
    how: tuple[str]
    records_faults = True

    def build(self, lab, folder):
        if self.how == ("slow",):
            time.sleep(60)
        raise {"fault": Fault, "error": ZeroDivisionError}[self.how[0]]("no such luck")


@dataclass
class Toy:
    """A paper with some steps, or a reason why they cannot be named."""

    steps: list[Step]
    reason: str = ""

    def steps_of(self, lab):
        if self.reason:
            raise ValueError(self.reason)
        return self.steps


@pytest.fixture
def lab(tmp_path) -> Lab:
    study = Study.load("check").model_copy(update={"name": "toy", "compute": Compute(workers=1, device="cpu")})
    return Lab(study, Store(tmp_path))


@pytest.fixture
def steps(monkeypatch):
    """Have a study consist of some steps."""
    return lambda *chosen: monkeypatch.setattr(estimate, "papers", lambda: {"toy": Toy(list(chosen))})


def rows(table) -> dict:
    return table.set_index(table["kind"].str.rpartition("-")[2]).to_dict("index")


# What a training would take.


def test_a_training_is_cut_short_and_counts_in_full(lab):
    before, step = len(TRAINED), Base(epochs=50, seed=0)
    with standing_in(sample_fit):
        artefact = step.make(replace(lab, store=sample.SampleStore(lab.store.root / "samples", lab.store)))
    assert len(TRAINED) - before == 2 * 4
    assert artefact.json("result")["rows"] == 50, "the history is as long as that of a real training"
    assert artefact.json("provenance")["seconds"] == pytest.approx(50 * 4 * SLEEP, rel=0.8)
    assert 20 <= artefact.json("result")["positive"] <= 60, "a mask would keep some of its weights"
    assert not step.is_done(lab)


def test_batches_that_are_not_trained_on_are_counted(monkeypatch):
    monkeypatch.setattr(sample, "ENOUGH", 0.0)
    work = Building()
    monkeypatch.setattr(sample, "building", lambda: work)
    before = len(TRAINED)
    with standing_in(sample_fit):
        train({"w": torch.ones(3, requires_grad=True)}, epochs=3, batches=20)
    assert len(TRAINED) - before == 2 * sample.BATCHES
    assert work.seconds[0] == pytest.approx((3 * 20 - 2 * sample.BATCHES) * SLEEP, rel=0.8)


def test_a_network_is_left_as_a_few_steps_make_it():
    weights = {"w": torch.arange(1.0, 9.0).requires_grad_()}
    with standing_in(sample_fit):
        train(weights, 10)
    assert (weights["w"] > 0).all()


def test_a_pause_and_filed_epochs_are_as_in_a_real_training():
    filed, weights = [], {"w": torch.ones(3, requires_grad=True)}
    with standing_in(sample_fit):
        history = train(weights, 10, stop_after=4, file=lambda epoch: filed.append(epoch) or {"filed": epoch})
    assert filed == [0, 1, 2, 3] and list(history["epoch"]) == [0, 1, 2, 3]
    assert building() is None


# What a study has cost, and what it will.


def test_what_is_done_counts_with_what_was_made_on_the_way(lab, steps):
    bases = [Base(2, 0), Base(2, 1)]
    score, missing = Score(tuple(bases)), Score((Base(3, 0),))
    steps(score, missing)
    make_all(lab, [score], "toy")
    found = rows(cost.spent(lab))
    assert (found["base"]["steps"], found["base"]["done"]) == (3, 2)
    assert (found["score"]["steps"], found["score"]["done"]) == (2, 1)
    assert found["base"]["spent_s"] == pytest.approx(2 * 2 * 4 * SLEEP, rel=0.8)
    assert found["score"]["spent_s"] >= 2 * 2 * SLEEP, "with both parts"
    assert found["base"]["spent_cpu_s"] < found["base"]["spent_s"], "it slept"


def test_a_whole_run_is_noted_for_check(lab, steps, tmp_path):
    """The notebooks of other papers are no part of the study, so their manifests are not asked for."""
    base = Base(2, 0)
    steps(base)
    remedy = "^toy: there are steps or notebooks to be made; first `make reproduce PROFILE=toy`$"
    manifest = {"seconds": 90.0, "device": "abacus", "git": None}
    (tmp_path / "01_train_bases.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=remedy):
        row_of(lab, tmp_path)
    base.make(lab)
    with pytest.raises(ValueError, match=remedy):
        row_of(lab, tmp_path / "elsewhere")
    row = row_of(lab, tmp_path)
    assert (row["profile"], row["device"], row["commit"]) == ("toy", "abacus", "") and 1.5 <= row["minutes"] < 1.6


def test_a_store_without_anything_has_cost_nothing(lab, steps):
    steps(Score((Base(2, 0),)))
    table = cost.spent(lab)
    assert (table["spent_s"] == 0).all() and (table["done"] == 0).all()
    assert not list(lab.store.root.glob("*/*")), "asking makes nothing"


def test_one_of_each_kind_is_sampled_and_stands_for_the_others(lab, steps, monkeypatch):
    made = []
    own = Base.build
    monkeypatch.setattr(Base, "build", lambda self, *given: made.append(self) or own(self, *given))
    bases = [Base(5, seed, rate) for seed in range(3) for rate in (0.1, 0.2)] + [Base(10, 0)]
    steps(*bases, *(Score((base,)) for base in bases), Score(tuple(bases)))
    found = rows(cost.predict(lab))
    assert [base.epochs for base in made] == [5, 10], "seeds and rates cost no time"
    assert found["base"]["to_come_s"] == pytest.approx((6 * 5 + 10) * 4 * SLEEP, rel=0.8)
    assert found["score"]["to_come_s"] >= 6 * 2 * SLEEP, "a part for each"
    assert (found["base"]["unknown"], found["base"]["note"]) == (0, "")
    assert not list(lab.store.root.glob("*/*")), "the study's own store is left alone"


def test_what_is_done_is_not_sampled_but_stands_for_what_is_alike(lab, steps, monkeypatch):
    done, missing = Base(2, 0), Base(2, 1)
    make_all(lab, [done], "toy")
    steps(done, missing, Score((missing,)))
    monkeypatch.setattr(Base, "build", lambda *_: pytest.fail("sampled"))
    found = rows(cost.predict(lab))
    assert (found["base"]["done"], found["base"]["spent_s"]) == (1, found["base"]["to_come_s"])
    assert found["score"]["to_come_s"] > 0
    monkeypatch.undo()
    make_all(lab, [missing], "toy")
    steps(done, missing)
    assert rows(cost.predict(lab))["base"]["to_come_s"] == 0


def test_what_cannot_be_sampled_is_named_and_the_others_go_on(lab, steps):
    base = Base(2, 0)
    steps(base, *(Faulty(base, (how,)) for how in ("error", "fault", "slow")), Score((Base(3, 0),)))
    table = cost.predict(lab, limit=1.0)
    found = rows(table)
    assert found["faulty"]["unknown"] == 3 and "ZeroDivisionError: no such luck" in found["faulty"]["note"]
    assert found["base"]["unknown"] == found["score"]["unknown"] == 0
    first, *others = cost.summary(table, lab).splitlines()
    assert first.startswith("profile toy: 0.00 job-hours spent, 0.00 to come: about 0 minutes with 1 jobs at a time")
    assert others == [f"without 3 of test_cost-faulty: {found['faulty']['note']}"]


def test_a_paper_whose_steps_cannot_be_named_is_noted(lab, monkeypatch):
    papers = {"there": Toy([Base(2, 0)]), "lacking": Toy([], "no vocabulary; fetch it")}
    monkeypatch.setattr(estimate, "papers", lambda: papers)
    assert cost.summary(cost.predict(lab), lab).splitlines()[1:] == ["without any of lacking: no vocabulary; fetch it"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(Base(5, 0), Base(5, 1, 0.3), True), (Base(5, 0), Base(6, 0), False), (Base(5, 0), Part(0), False),
     (Score((Base(5, 0),)), Score((Base(5, 7),), "its name"), True),
     (Score((Base(5, 0),)), Score((Base(6, 0),)), False)],
)  # fmt: skip
def test_steps_are_alike_if_they_differ_in_seeds_and_broken_numbers_alone(one, other, same):
    assert (estimate.alike(one, {}) == estimate.alike(other, {})) == same


# The race.


def test_contenders_are_compared_in_each_round():
    own, masked, rival = ("float32", race.PLAIN), ("float32", "x"), (race.RIVAL, "x")
    table = race.relative([{own: 1.0, masked: 2.0, rival: 6.0}, {own: 4.0, masked: 8.0, rival: 8.0}]).set_index(
        "trained"
    )
    assert table.loc["x", "times_plain"].tolist() == [2, (6 + 2) / 2] and table.loc["x", "ms"].iloc[0] == 5000
    assert table.loc["x", "times_faster"].tolist() == [(3 + 1) / 2, 1]


def test_the_second_step_of_a_training_is_timed():
    def run(pace):
        for pause in pace([0.3, SLEEP, 0.3]):
            time.sleep(pause)

    assert SLEEP <= race.second_step(run) < 0.3


@pytest.mark.parametrize("network", ["bert_small", "resnet18"])
def test_masks_are_raced_in_turns_with_the_plain_network_and_with_neurosurgeon(monkeypatch, network):
    small = {"bert": {"layers": 4, "width": 8, "heads": 2, "mlp_width": 8},
             "resnet": {"block": "basic", "depths": (1, 1, 1, 1), "width": 2, "head_width": 8}}  # fmt: skip
    make, draw = race.NETWORKS[network]
    architecture = {"family": make.args[0]["family"]} | small[make.args[0]["family"]]
    monkeypatch.setitem(race.NETWORKS, network, (partial(build, architecture, **make.keywords), draw))
    asked = []
    monkeypatch.setattr(race, "neurosurgeon", lambda python, *about: asked.append(about) or 1.0)
    table = cost.step_times(network, 2, python="python", device=CPU, steps=2)
    starts = race.STARTS[network]
    assert asked == [(network, start, 2) for start in starts] * 2
    trained = {precision: set(rows["trained"]) for precision, rows in table.groupby("precision")}
    assert trained.pop(race.RIVAL) == set(starts)
    assert trained.pop("float32") == {race.PLAIN, *starts} == trained.get("bfloat16", {race.PLAIN, *starts})
    assert (table["ms"] > 0).all() and (table["threads"] == core_count()).all()
    assert table["times_faster"].notna().equals(table["trained"] != race.PLAIN)


def executable(path, script: str):
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(("start", "number"), [("stem", 0), ("layer_1", 1), ("stage_4", 4)])
def test_another_process_says_how_long_its_second_step_took(tmp_path, start, number):
    script = f'assert sys.argv[2:] == ["resnet18", "{number}", "8", "{core_count()}"]\nprint("0.3\\n0.05")'
    assert race.neurosurgeon(executable(tmp_path / "python", script), "resnet18", start, 8) == 0.05


@pytest.mark.parametrize(
    ("script", "said"),
    [(None, "cannot be run"), ("raise ImportError('no such library')", "does not run in .*no such library"),
     ("sys.stderr.write('warning ' * 40_000)\nsys.exit('no memory')", "no memory")],
)  # fmt: skip
def test_without_neurosurgeon_it_is_said_how_to_install_it(tmp_path, script, said):
    python = tmp_path / "python" if script is None else executable(tmp_path / "python", script)
    with pytest.raises(cost.NeuroSurgeonMissing, match=rf"{said}.*; install it: .*neurosurgeon==0\.1\.0 transformers"):
        race.neurosurgeon(python, "bert_small", "layer_1", 8)
