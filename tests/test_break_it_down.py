"""The whole study at the smallest size: what must hold whatever the numbers are."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step, make_all, with_parents
from subnet_utils.core.study import Study
from subnet_utils.models import fingerprint
from subnet_utils.papers.break_it_down import (
    PAPER,
    dissection,
    ledger,
    mask_sizes,
    networks,
    paper_tables,
    random_controls,
    steps,
    subnetwork_overlap,
    tables,
)
from subnet_utils.tasks.odd_one_out import similarity_logits
from tests import micro

RUN = """
import sys
from subnet_utils import checkpoints
from subnet_utils.core.lab import Lab
from subnet_utils.papers.break_it_down import tables
from tests import micro
checkpoints.SECONDS = 0.0
tables.effects(Lab.open(micro.language(seeds=(0, 1), precision="float32"), sys.argv[1]))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.open(micro.study(precision="float32"), tmp_path_factory.mktemp("store"))
    tables.effects(lab)
    return lab


@pytest.fixture(scope="module")
def effects(lab):
    return tables.effects(lab)


@pytest.fixture
def nothing_is_built(monkeypatch):
    def refuse(step, *_):
        raise AssertionError(f"built: {step}")

    return lambda: monkeypatch.setattr(Step, "_build", refuse)


def test_every_mask_is_measured_twice(effects):
    runs = effects.groupby(["model", "subroutine", "base_model", "mask_seed"])["network"].apply(sorted)
    assert len(runs) == 2 * 2 * 2 * 2  # models, subroutines, bases, mask seeds
    assert all(measured == ["ablated", "subnetwork"] for measured in runs)


def test_search_has_one_winner_and_it_has_the_best_score(lab):
    search = tables.search_masks(lab)
    for _, group in search.groupby(tables.SEARCHED):
        assert group["winner"].sum() == 1
        assert group["winner"].to_numpy().argmax() == group["score"].to_numpy().argmax()  # the first on ties


def test_winners_are_found_again_with_every_seed(lab):
    search, masks = tables.search_masks(lab), tables.find_masks(lab)
    keys = [*tables.SEARCHED, "learning_rate", "mask_init", "start"]
    winners = search[search["winner"]]
    assert_frame_equal(masks[keys].drop_duplicates().reset_index(drop=True), winners[keys].reset_index(drop=True))
    assert set(masks["mask_seed"]) == {0, 1}
    assert set(masks[masks["mask_seed"] == 0]["key"]) == set(winners["key"])  # the search's own mask is not made again


def test_mask_and_complement_partition_the_weights_of_an_untouched_base(lab):
    for mask in tables.final_masks(lab):
        base, subnetwork = mask.base.load(lab), mask.load(lab)
        assert fingerprint(base) == mask.base.result(lab)["network"] == subnetwork.network
        assert tuple(subnetwork.masks) == tuple(sorted(base.maskable(mask.start(lab))))
        kept, rest = dict(subnetwork.apply(base).named_parameters()), dict(subnetwork.ablate(base).named_parameters())
        for name, weight in base.named_parameters():
            if name in subnetwork.masks:
                assert torch.equal(kept[name] + rest[name], weight)
                assert not ((kept[name] != 0) & (rest[name] != 0)).any()
            else:
                assert torch.equal(kept[name], weight) and torch.equal(rest[name], weight)


def test_effects_equal_a_plain_recomputation(lab, effects):
    """No prefix, no cache: apply the mask, embed every item of the probe set, take the least similar one."""
    for mask in tables.final_masks(lab)[::5]:
        model, data = mask.load(lab).apply(mask.base.load(lab)), mask.base.data(f"probe-{mask.subroutine}", "test")
        data = data.load(lab)
        with torch.no_grad():
            answers = similarity_logits(model(data.items)[data.examples]).argmax(dim=1)
        about = tables.identity(mask.base) | {"subroutine": mask.subroutine, "mask_seed": mask.seed}
        row = effects[(effects[list(about)] == pd.Series(about)).all(axis=1) & (effects["network"] == "subnetwork")]
        # the odd one lies in column 3; ties may fall otherwise there, so allow for one example
        expected = float((answers == 3).double().mean())
        assert row["target_accuracy"].item() == pytest.approx(expected, abs=1 / len(data) + 1e-9)


def test_annealing_has_a_row_per_epoch(lab):
    history, histograms = tables.annealing(lab, tables.final_masks(lab)[0])
    assert list(history["epoch"]) == list(histograms["epoch"]) == [0, 1, 2]
    assert histograms.filter(regex="^bin_").sum(axis=1).to_numpy() == pytest.approx([1, 1, 1])


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["check", "tiny"])
def test_every_step_stands_once_and_after_its_parents(profile, tmp_path):
    lab = Lab.open(profile, tmp_path)
    own, everything = list(steps.every_step(lab)), PAPER.steps_of(lab)
    assert len({step.name for step in own}) == len(own)
    place = {step.name: number for number, step in enumerate(everything)}
    assert len(place) == len(everything) > 2 * len(own)
    assert all(place[parent.name] < place[step.name] for step in everything for parent in step.parents)
    assert not any(tmp_path.iterdir()), "nothing is made for that"


def test_after_every_step_the_tables_need_nothing_else(tmp_path, nothing_is_built):
    lab = Lab.open(micro.few(micro.whole_study(precision="float32")), tmp_path)
    make_all(lab, list(steps.every_step(lab)), "every step")
    nothing_is_built()
    for table in (tables.train_bases, tables.histories, tables.search_vit, tables.search_masks, tables.find_masks,
                  tables.effects, tables.pruned_networks, random_controls.random_effects, random_controls.null_draws,
                  random_controls.ablations, mask_sizes.effects_by_size, dissection.assembled, ledger.ledger,
                  subnetwork_overlap.by_layer, subnetwork_overlap.pairs):  # fmt: skip
        assert len(table(lab)) > 0
    for bases in (networks.pretrained_bases(lab), networks.pruned_bases(lab)):
        assert len(tables.effects(lab, bases)) > 0


def test_what_the_paper_registers_is_there():
    assert all(callable(PAPER.resolve(one.requires)) for one in PAPER.notebooks if one.requires)


def test_second_call_builds_nothing(lab, effects, nothing_is_built):
    nothing_is_built()
    assert_frame_equal(tables.effects(lab), effects)


def test_workers_change_nothing(lab, tmp_path):
    other = Lab.open(micro.language(seeds=(0, 1), precision="float32", workers=2), tmp_path)
    tables.search_masks(other)
    masks = micro.masks_on_disk(other)
    assert len(masks) == 16 and masks.items() <= micro.masks_on_disk(lab).items()


def test_killed_runs_end_with_the_same_bits(lab, tmp_path):
    """SIGKILL at random moments, twice; then let it finish. Checkpoints are written after every epoch."""
    moments, kills, finished = random.Random(0), 0, False
    while not finished:
        process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], cwd=Path(__file__).parents[1],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        if kills < 2:
            _wait_for_work(tmp_path, process)
            time.sleep(moments.uniform(0.0, 0.8))
            process.send_signal(signal.SIGKILL)
            kills += 1
        finished = process.wait() == 0
    assert kills == 2
    masks = micro.masks_on_disk(Lab(lab.study, type(lab.store)(tmp_path)))
    assert len(masks) == 20 and masks.items() <= micro.masks_on_disk(lab).items()
    found, expected = ({path.parent.name: json.loads(path.read_text())
                        for path in root.glob("break_it_down-effect/*/result.json")}
                       for root in (tmp_path, lab.store.root))  # fmt: skip
    assert len(found) == 8 and found.items() <= expected.items()


def _wait_for_work(root: Path, process: subprocess.Popen) -> None:
    """Until this process has begun to build something, or has ended."""
    before = set(os.listdir(root / "partial")) if (root / "partial").is_dir() else set()
    while process.poll() is None:
        if (root / "partial").is_dir() and set(os.listdir(root / "partial")) - before:
            return
        time.sleep(0.02)


def test_a_larger_test_set_is_measured_anew_and_no_mask_trained(lab, effects, monkeypatch):
    study = micro.study(precision="float32")
    for experiment in study["break_it_down"]["experiments"]:
        probe = experiment["data"]["probe"]
        experiment["data"] = experiment["data"] | {"probe": probe | {"test": probe["test"] + 1}}
    monkeypatch.setattr("subnet_utils.papers.break_it_down.masks.discover", lambda *_, **__: pytest.fail("trained"))
    again = tables.effects(Lab(Study.load(study), lab.store))
    assert not set(again["key"]) & set(effects["key"]) and len(again) == len(effects)


def test_a_base_with_other_bits_has_other_masks(lab, tmp_path, monkeypatch):
    """As of another machine, which rounds otherwise."""
    fit = networks._fit

    def rounded(network, lab, model, folder):
        history = fit(network, lab, model, folder)
        with torch.no_grad():
            next(model.parameters()).add_(1e-6)
        return history

    monkeypatch.setattr(networks, "_fit", rounded)
    other = Lab(lab.study, type(lab.store)(tmp_path))
    mask = tables.searches(lab)[0].candidates[0]
    assert mask.base.key(other) == mask.base.key(lab)
    assert mask.key(other) != mask.key(lab) and mask.load(other).network != mask.load(lab).network
    assert all(step.find(other) is None for step in with_parents(steps.every_step(other)) if mask in step.parents)


# -- beside the paper --------------------------------------------------------------------------------------------------


def test_vit_search_has_every_setting(lab):
    search = tables.search_vit(lab)
    assert sorted(search["batch_size"]) == [8, 16]
    table = paper_tables.vit(search, "micro")
    assert (table["verdict"] == "not comparable at this profile").all()
    assert (table["paper_best"] == 0.86).all() and table["paper"].isna().all()  # no such setting among the paper's


def test_a_setting_of_the_sweep_that_diverges_does_not_end_it(tmp_path):
    study = micro.study()
    sweep = study["break_it_down"]["vit_search"] | {"learning_rates": [0.001, 1e20], "batch_sizes": [8]}
    found = tables.search_vit(Lab.open(micro.but(study, vit_search=sweep), tmp_path)).set_index("learning_rate")
    assert "not finite" in found.loc[1e20, "fault"] and np.isnan(found.loc[1e20, "validation_accuracy"])
    assert found.loc[0.001, "validation_accuracy"] > 0 and pd.isna(found.loc[0.001, "fault"])


def test_a_sweep_stands_beside_the_papers_where_the_paper_has_a_number():
    about = {"task": "number-contact", "layers": 6, "batch_size": 32, "epochs": 9}
    accuracies = {0.01: np.nan, 0.00001: 0.95, 0.0005: 0.97}
    found = pd.DataFrame([about | {"learning_rate": k, "validation_accuracy": v} for k, v in accuracies.items()])
    table = paper_tables.vit(found, "paper").set_index("learning_rate")
    assert table.loc[[0.01, 0.00001], "paper"].tolist() == [0.27, 0.85] and np.isnan(table.loc[0.0005, "paper"])
    table = table.loc[list(accuracies)]
    assert table["alike"].tolist()[:2] == [True, False] and pd.isna(
        table["alike"].iloc[2]
    )  # .27 there, no end of it here
    assert table["verdict"].tolist() == ["cannot be told"] * 2 + ["not comparable at this profile"]


def test_paper_tables_judge_only_what_is_comparable(lab, effects):
    bases = tables.train_bases(lab)
    assert (paper_tables.bases(bases, "micro")["verdict"] == "not comparable at this profile").all()
    table = paper_tables.effects(effects, "micro")
    assert (table["reason"] == "no base model reaches 90%").all()  # two epochs teach nothing
    assert len(paper_tables.sizes(tables.find_masks(lab), "micro")) == 4 and paper_tables.table_1(effects).empty


def test_accuracies_of_base_models_list_each_of_them():
    about = {"model": "small", "paper_model": "resnet50", "task": "inside-contact", "number": ""}
    found = pd.DataFrame([about | {"base_model": str(i), "test_accuracy": x} for i, x in enumerate((0.5, 0.98765))])
    language = about | {"paper_model": "bert_small", "task": "anaphora", "number": "plural", "base_model": "plural-0"}
    table = paper_tables.bases(pd.concat([found, pd.DataFrame([language | {"test_accuracy": 1.0}])]), "small")
    assert table["paper_each"].tolist() == ["1.000, 1.000, 0.759", "1.000, 1.000, 1.000"]
    assert table["ours_each"].tolist() == ["0.500, 0.988", "1.000"]


def test_masked_totals_are_the_printed_ones():
    totals = paper_tables.masked_totals().set_index(["model", "start"])
    assert totals.loc[("resnet50", "stem"), "ours"] == 27_911_360
    printed = totals.dropna()
    assert len(printed) == 13 and (printed["paper"] == printed["ours"]).all()
