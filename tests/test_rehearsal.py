"""Rehearsals: a study's own functions with training cut short make all of its jobs, and know how long each takes."""

import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from subnet_utils import cost
from subnet_utils.core.lab import Lab
from subnet_utils.core.store import Store, save_json, save_tensors
from subnet_utils.cost.rehearsal import (
    CHOSEN,
    DETAILS,
    STEPS,
    WARM_UP,
    Rehearsal,
    Shortened,
    epochs_taken,
    outline,
    rehearsing,
)
from subnet_utils.cost.sections import MAKERS
from subnet_utils.papers.subtask_induction import image_sets
from subnet_utils.training import REHEARSAL, Recipe, TrainingDiverged, fit
from tests.test_shape_bias import CNN, RENDERED, VIT
from tests.test_subtask_induction import ARITHMETIC
from tests.test_unit_pruning import SECTION

STEP, JUDGING = 0.004, 0.01


class Trainee:
    """A training whose steps and validations take a known time, and which notes what is asked of it."""

    def __init__(self, batches: int = 40):
        self.batches, self.asked = batches, Counter()
        self.parameters = {"w": torch.full((40, 30), 0.05, requires_grad=True)}
        self.filed = []

    def one_pass(self, epoch):
        for i in range(self.batches):
            self.asked["batch", epoch] += 1
            yield i

    def loss(self, batch, epoch):
        self.asked["step"] += 1
        time.sleep(STEP)
        return self.parameters["w"].square().mean()

    def validate(self):
        self.asked["validation"] += 1
        time.sleep(JUDGING)
        return {"validation_loss": 1.0}

    def file(self, epoch):
        self.filed.append(epoch)
        return {"step": 10 * epoch}

    def train(self, epochs=50, **more):
        options = {"recipe": Recipe(0.01, epochs, 0, patience=epochs), "validate": self.validate, "file": self.file}
        return fit(self.parameters, self.one_pass, self.loss, **options | more)


def test_few_steps_tell_what_all_epochs_take():
    trainee, training = Trainee(), Shortened(seconds=0.0)
    with rehearsing(training):
        history = trainee.train()
    assert trainee.asked["step"] == WARM_UP + STEPS
    assert trainee.asked["batch", 0] == 40 and trainee.asked["batch", 1] == 0, "batches are counted, in one epoch"
    expected = 40 * STEP + JUDGING
    assert expected <= training.epoch[0] < 3 * expected, "of one epoch; a busy machine wakes sleepers late"
    assert training.epoch[1] < 0.5 * expected, "sleep takes no processor time"
    assert training.epochs == 50
    assert training.more(10)[0] == pytest.approx(10 * training.epoch[0] - training.first.spent[0])
    assert list(history["epoch"]) == list(range(50)) and trainee.filed == list(range(50))
    assert list(history["step"]) == [10 * i for i in range(50)]
    assert (history["validation_loss"] == 1.0).all()


def test_a_pause_and_a_schedule_are_rehearsed_as_they_are():
    training = Shortened()
    with rehearsing(training):
        recipe = Recipe(0.01, 50, 0, linear=True, warmup=1)
        history = Trainee(3).train(recipe=recipe, validate=None, stop_after=20)
    assert training.epochs == 20 == len(history)


def test_steps_are_timed_for_a_while_for_a_machine_is_not_equally_fast_at_all_times():
    trainee, training = Trainee(), Shortened(seconds=15 * STEP)
    with rehearsing(training):
        trainee.train()
    assert WARM_UP + STEPS < trainee.asked["step"] <= 16
    assert trainee.asked["batch", 0] == 40


def test_slow_steps_are_few(monkeypatch):
    monkeypatch.setattr("subnet_utils.cost.rehearsal.LONG", STEP)
    trainee, training = Trainee(), Shortened()
    with rehearsing(training):
        trainee.train()
    assert trainee.asked["step"] == 1
    (step,) = training.first.steps  # a single one may take long on a busy machine
    assert training.epoch[0] == pytest.approx(40 * step[0] + training.first.rest[0]) and step[0] >= STEP


def test_a_rehearsed_mask_keeps_about_half_of_its_weights():
    """Of logits that are all alike training for a few steps would keep all or none."""
    trainee = Trainee()
    with rehearsing(Shortened()):
        trainee.train()
    share = float((trainee.parameters["w"] > 0).float().mean())
    assert 0.3 < share < 0.5, "fewer than half, so that the complement has a control of the same size"


def test_nothing_is_rehearsed_after_an_error():
    def broken(batch, epoch):
        raise TrainingDiverged("broken")

    with pytest.raises(TrainingDiverged), rehearsing(Shortened()):
        fit({"w": torch.ones(2, requires_grad=True)}, lambda epoch: [1], broken, recipe=Recipe(0.1, 2, 0))
    assert REHEARSAL.get() is None
    trainee = Trainee(2)
    assert len(trainee.train(epochs=3)) == 3 and trainee.asked["step"] == 6


# -- the store ---------------------------------------------------------------------------------------------------------


def rehearsal(folder: Path, epochs=None) -> Rehearsal:
    return Rehearsal(folder / "rehearsed", Store(folder / "real"), epochs or {})


def builder(trainee: Trainee, epochs: int = 50, *, then: float = 0.0):
    def build(folder: Path) -> None:
        trainee.asked["built"] += 1
        history = trainee.train(epochs=epochs)
        time.sleep(then)
        save_tensors(folder / "weights.safetensors", trainee.parameters | {"drawn": torch.rand(3)})
        save_json(folder / "result.json", {"epochs": len(history)})

    return build


def seconds(artefact) -> float:
    return artefact.json("provenance")["seconds"]


def test_an_artefact_counts_with_the_seconds_that_it_would_take(tmp_path):
    store, trainee = rehearsal(tmp_path), Trainee()
    started = time.monotonic()
    made = store.make("base", {"seed": 0}, builder(trainee, then=0.2))
    assert time.monotonic() - started < 2
    expected = 50 * (40 * STEP + JUDGING) + 0.2
    assert expected < seconds(made) < 1.4 * expected
    assert made.json("provenance")["cpu_seconds"] < 0.5 * expected


def test_jobs_that_differ_in_nothing_that_takes_time_are_made_once_and_copied(tmp_path):
    store, trainee = rehearsal(tmp_path), Trainee()
    first, *others = (store.make("base", {"seed": seed, "l0": seed / 8}, builder(trainee)) for seed in range(4))
    assert trainee.asked["built"] == 1
    assert len({one.key for one in (first, *others)}) == 4
    for one in others:
        assert (one.path / "weights.safetensors").samefile(first.path / "weights.safetensors")
        assert seconds(one) == pytest.approx(seconds(first), rel=0.1)
        assert one.json("spec")["seed"] != 0 and store.find("base", one.json("spec")) is not None
        assert torch.equal(one.tensors("weights")["drawn"], first.tensors("weights")["drawn"])
    store.make("base", {"seed": 0, "l0": 0.0, "batch_size": 8}, builder(trainee))
    assert trainee.asked["built"] == 2, "another batch size takes another time"


def test_what_is_not_trained_is_made_once_more_without_its_first_reading(tmp_path):
    store, calls = rehearsal(tmp_path), []

    def build(folder: Path) -> None:
        time.sleep(0.02 if calls else 0.3)
        calls.append(folder)
        save_json(folder / "result.json", len(calls))

    made = [store.make("effect", {"seed": seed}, build) for seed in range(5)]
    assert len(calls) == 2
    assert seconds(made[0]) >= 0.3 and all(0.01 <= seconds(one) < 0.2 for one in made[1:])
    assert {one.json("result") for one in made} == {1}, "all have the content of the first"


def test_processes_agree_on_what_an_artefact_holds(tmp_path, monkeypatch):
    """Each makes its own, for the neighbors' sake, but what is made of one must fit the others."""
    stores = []
    for seed in range(2):
        monkeypatch.setattr("subnet_utils.cost.rehearsal._KNOWN", {})  # as in another process
        stores.append(rehearsal(tmp_path).make("base", {"seed": seed}, builder(trainee := Trainee(), epochs=2)))
        assert trainee.asked["built"] == 1
    assert torch.equal(*(one.tensors("weights")["drawn"] for one in stores))


def test_epochs_that_a_finished_study_took_are_known(tmp_path):
    real, trainee = Store(tmp_path / "real"), Trainee(1)
    for seed, epochs in enumerate((4, 6)):
        real.make("base", {"network": f"of {seed}", "size": 1}, builder(trainee, epochs=epochs))
    store = rehearsal(tmp_path, epochs_taken(real))
    early = store.make("base", {"network": "another", "size": 1}, builder(Trainee(), epochs=50))
    late = store.make("base", {"network": "another", "size": 2}, builder(Trainee(), epochs=50))
    assert seconds(early) == pytest.approx(seconds(late) / 10, rel=0.3)


def test_damaged_artefacts_and_those_that_are_being_made_tell_nothing(tmp_path):
    real, trainee = Store(tmp_path / "real"), Trainee(1)
    made = [real.make("base", {"network": f"of {seed}"}, builder(trainee, epochs=4)) for seed in range(2)]
    (made[0].path / "provenance.json").write_text('{"epo')
    for kind in ("quarantine", "partial"):
        shutil.copytree(made[1].path, real.root / kind / "one")
    assert list(epochs_taken(real).values()) == [4]


def test_images_are_taken_from_the_real_store_and_stay_there(tmp_path):
    store = rehearsal(tmp_path)
    made = store.make("images", {"set": "train"}, lambda folder: save_json(folder / "result.json", 1))
    assert made.path.is_relative_to(tmp_path / "real") and store.find("images", {"set": "train"}) == made
    assert list(store.finished()) == []


def test_an_outline_leaves_out_names_but_no_specification():
    spec = {"network": {"width": 8, "seed": 1}, "seed": 2, "parts": [{"network": "abc", "l0": 0.1, "step": 3}]}
    assert json.loads(outline("kind", spec, DETAILS)) == ["kind", {"network": {"width": 8}, "parts": [{}]}]
    assert json.loads(outline("kind", spec, CHOSEN))[1]["parts"] == [{"step": 3}]


# -- whole sections ----------------------------------------------------------------------------------------------------

STUDY = {
    "name": "rehearsed", "compute": {"workers": 1}, "arithmetic": ARITHMETIC,
    "images": {"rendered": RENDERED, "models": [CNN, VIT]}, "inference": SECTION,
}  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    return Lab.open(STUDY, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("section", ["arithmetic", "images", "inference"])
def test_a_rehearsal_makes_the_jobs_of_the_real_run(lab, section):
    predicted = cost.rehearsed(lab, section)
    kinds = {path.parent.name for path in lab.store.root.glob("*/*") if path.parent.name != "locks"}
    assert kinds <= {"images"}, "nothing else is made in the real store"
    assert (predicted["predicted_s"] > 0).all() and (predicted["note"] == "").all()
    other = replace(lab, store=Store(lab.store.root.with_name(f"{section}-really")))
    MAKERS[section](other)
    found = cost.measured(other)
    jobs = {frame: table.set_index("kind")["jobs"].to_dict() for frame, table in (("ours", predicted), ("real", found))}
    if section == "inference":  # how many heads are ablated together depends on what pruning finds
        assert jobs["ours"].pop("judged_units") == pytest.approx(jobs["real"].pop("judged_units"), abs=4)
    assert jobs["ours"] == jobs["real"]


def test_a_rehearsal_with_workers_makes_the_same(tmp_path):
    short = ARITHMETIC | {"layers": [1], "inductions": [{}]}
    jobs = []
    for workers in (1, 2):
        lab = Lab.open({"name": "short", "compute": {"workers": workers}, "arithmetic": short}, tmp_path / str(workers))
        jobs.append(cost.rehearsed(lab, "arithmetic")[["kind", "jobs"]])
    pd.testing.assert_frame_equal(*jobs)


def test_what_is_missing_is_a_line_and_no_exception(tmp_path):
    folders = {"train": str(tmp_path / "none"), "test": "x", "conflicts": "y"}
    files = {"train": str(tmp_path / "none.tsv"), "hans": "x"}
    architecture = {"family": "published", "weights": str(tmp_path / "no weights")}
    published = SECTION | {"generated": None, "files": files, "pretraining": None, "architecture": architecture}
    images = {"folders": folders, "models": [CNN]}
    lab = Lab.open({"name": "lacking", "images": images, "inference": published}, tmp_path / "store")
    table = cost.predict(lab).set_index("section")
    assert str(tmp_path / "none") in table.loc["images", "note"]
    assert str(tmp_path / "no") in table.loc["inference", "note"]
    assert table["predicted_s"].isna().all()
    told = cost.told(table.reset_index(), lab).splitlines()
    assert told[0] == "profile lacking: 0.00 job-hours, 0 minutes of waiting"
    assert told[1].startswith("without images: ") and told[2].startswith("without inference: ")


def test_photographs_must_be_prepared_first(tmp_path, monkeypatch):
    for folder in ("train", "test", "conflicts"):
        for name in ("cat", "dog"):
            (tmp_path / folder / name).mkdir(parents=True)
    images = {"folders": {name: str(tmp_path / name) for name in ("train", "test", "conflicts")}
              | {"classes": ["cat", "dog"]}, "models": [CNN]}  # fmt: skip
    lab = Lab.open({"name": "folders", "images": images}, tmp_path / "store")
    monkeypatch.setattr("subnet_utils.papers.subtask_induction.images_tables.data_spec", lambda lab: {})
    monkeypatch.setattr("subnet_utils.papers.subtask_induction.image_steps.data_spec", lambda lab: {})
    monkeypatch.setattr(image_sets, "data_spec", lambda lab: {})
    (row,) = cost.predict(lab).to_dict("records")
    assert row["note"] == "its images are not prepared yet; run notebook 07b as far as that first"
