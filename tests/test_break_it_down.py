"""The whole study at the smallest size: what must hold whatever the numbers are."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import fingerprint
from subnet_utils.papers.break_it_down import base_models, paper_tables, steps
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.base_models import load_base, train_base
from subnet_utils.papers.break_it_down.tasks.odd_one_out import similarity_logits
from subnet_utils.training import TrainingDiverged
from tests import micro

RUN = """
import sys
from subnet_utils import checkpoints
from subnet_utils.compositionality import break_it_down
from subnet_utils.lab import Lab
from tests import micro
checkpoints.SECONDS = 0.0
study = micro.study(precision="float32")
lab = Lab.open(study | {"experiments": study["experiments"][:1], "vit_search": None}, sys.argv[1])
break_it_down.effects(lab)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.open(micro.study(precision="float32"), tmp_path_factory.mktemp("store"))
    break_it_down.effects(lab)
    return lab


@pytest.fixture(scope="module")
def effects(lab):
    return break_it_down.effects(lab)


def test_every_mask_is_measured_twice(effects):
    runs = effects.groupby(["model", "subroutine", "base_model", "mask_seed"])["network"].apply(sorted)
    assert len(runs) == 2 * 2 * 2 * 2  # models, subroutines, bases, mask seeds
    assert all(networks == ["ablated", "subnetwork"] for networks in runs)


def test_difference_is_the_clamped_one(effects):
    expected = effects["target_accuracy"].clip(lower=0.25) - effects["other_accuracy"].clip(lower=0.25)
    assert effects["difference"].to_numpy() == pytest.approx(expected.to_numpy())


def test_search_has_one_winner_and_it_has_the_best_score(lab):
    search = break_it_down.search_masks(lab)
    for _, group in search.groupby(break_it_down.SEARCHED):
        assert group["winner"].sum() == 1
        assert group.loc[group["winner"], "score"].item() == group["score"].max()
        assert group["winner"].to_numpy().argmax() == group["score"].to_numpy().argmax()  # the first on ties


def test_winners_are_found_again_with_every_seed(lab):
    search, masks = break_it_down.search_masks(lab), break_it_down.find_masks(lab)
    keys = [*break_it_down.SEARCHED, "learning_rate", "mask_init", "start"]
    winners = search[search["winner"]][keys]
    assert_frame_equal(masks[keys].drop_duplicates().reset_index(drop=True), winners.reset_index(drop=True))
    assert set(masks["mask_seed"]) == {0, 1}
    reused = masks[masks["mask_seed"] == 0]["key"]
    assert set(reused) == set(search[search["winner"]]["key"])  # the search's own mask is not trained again


def test_mask_and_complement_partition_the_weights_of_an_untouched_base(lab):
    for mask in break_it_down.final_masks(lab):
        base, subnetwork = load_base(lab, mask.base), steps.load_subnetwork(lab, mask)
        assert fingerprint(base) == train_base(lab, mask.base).json("result")["network"] == subnetwork.network
        assert tuple(subnetwork.masks) == tuple(sorted(base.maskable(mask.point.start)))
        original = dict(base.named_parameters())
        kept, rest = dict(subnetwork.apply(base).named_parameters()), dict(subnetwork.ablate(base).named_parameters())
        for name, weight in original.items():
            if name in subnetwork.masks:
                assert torch.equal(kept[name] + rest[name], weight)
                assert not ((kept[name] != 0) & (rest[name] != 0)).any()
            else:
                assert torch.equal(kept[name], weight) and torch.equal(rest[name], weight)


def test_effects_equal_a_plain_recomputation(lab, effects):
    """No prefix, no cache: apply the mask, embed every item of the probe set, take the least similar one."""
    from subnet_utils.papers.break_it_down import stimuli

    for mask in break_it_down.final_masks(lab)[::5]:
        model = steps.load_subnetwork(lab, mask).apply(load_base(lab, mask.base))
        data = stimuli.load(lab.store, mask.base.experiment, mask.base.task, f"probe-{mask.subroutine}", "test")
        with torch.no_grad():
            answers = similarity_logits(model(data.items)[data.examples]).argmax(dim=1)
        about = break_it_down.identity(mask.base) | {"subroutine": mask.subroutine, "mask_seed": mask.seed}
        about["network"] = "subnetwork"
        row = effects[(effects[list(about)] == pd.Series(about)).all(axis=1)]
        # the odd one lies in column 3; ties may fall otherwise there, so allow for one example
        expected = float((answers == 3).double().mean())
        assert row["target_accuracy"].item() == pytest.approx(expected, abs=1 / len(data) + 1e-9)


def test_second_call_builds_nothing(lab, effects, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("built again")

    for module, build in ((base_models, "_build_base"), (steps, "_build_mask"), (steps, "_build_effect")):
        monkeypatch.setattr(module, build, refuse)
    assert_frame_equal(break_it_down.effects(lab), effects)


def test_workers_change_nothing(lab, tmp_path):
    study = micro.study(precision="float32", workers=2)
    other = Lab.open(study | {"experiments": study["experiments"][:1]}, tmp_path)
    break_it_down.search_masks(other)
    masks = _masks_on_disk(other)
    assert len(masks) == 16 and masks.items() <= _masks_on_disk(lab).items()


def test_masks_trained_at_once_are_the_same_but_for_rounding(lab, tmp_path, monkeypatch):
    study = micro.study(precision="float32", masks_at_once=3)
    other = Lab.open(study | {"experiments": study["experiments"][:1]}, tmp_path)
    break_it_down.search_masks(other)
    masks, expected = _masks_on_disk(other), _masks_on_disk(lab)
    assert len(masks) == 16 and masks.keys() <= expected.keys()
    for key, mask in masks.items():
        differing = sum(int((m != expected[key].masks[name]).sum()) for name, m in mask.masks.items())
        assert differing <= 0.01 * mask.total
    groups = list((tmp_path / "masks").iterdir())
    assert len(groups) == 4  # per base and start four masks: three at once, and the one that is left alone
    for path in (tmp_path / "mask").iterdir():  # filed masks that get lost are filed again, not trained
        shutil.rmtree(path)
    monkeypatch.setattr(steps, "discover_many", lambda *_, **__: pytest.fail("trained again"))
    (group,) = break_it_down._groups(other, list(break_it_down.candidates(break_it_down.networks(other.study)[0])))[:1]
    again = steps.find_masks_at_once(other, group)
    assert len(again) == 3 and all(Subnetwork.load(a.path / "subnetwork.safetensors") == masks[a.key] for a in again)
    assert all(steps.seconds_of(artefact) > artefact.json("provenance")["seconds"] for artefact in again)


def test_masks_at_once_fill_half_of_a_gpu_and_no_more_than_24(lab, monkeypatch):
    """With a GPU that is only said to be there."""
    bert, resnet = break_it_down.networks(lab.study)[0], break_it_down.networks(lab.study)[-1]
    assert steps.masks_at_once(lab, bert) == 1  # a CPU
    one = steps._bytes_of_a_mask(lab, bert)
    monkeypatch.setattr(Lab, "device", property(lambda self: torch.device("cuda")))
    for memory, expected in ((2 * 5.5 * one, 5), (2 * 0.5 * one, 1), (2 * 500 * one, 24)):
        properties = type("Properties", (), {"total_memory": memory})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        assert steps.masks_at_once(lab, bert) == expected
        by_two = replace(lab, study=lab.study.model_copy(update={"compute": lab.study.compute.model_copy(
            update={"workers": 2})}))  # fmt: skip
        assert steps.masks_at_once(by_two, bert) == max(1, min(24, int(memory / 4 / one)))
    assert steps.masks_at_once(lab, resnet) == 1
    halving = bert.experiment.model_copy(
        update={"masks": bert.experiment.masks.model_copy(update={"search": "halving"})}
    )
    assert steps.masks_at_once(lab, replace(bert, experiment=halving)) == 1


def test_cached_outputs_stay_within_the_limit_of_all_together(lab, monkeypatch, capsys):
    monkeypatch.setattr(steps, "_KEPT", type(steps._KEPT)())
    network = break_it_down.networks(lab.study)[0]
    wanted = [(name, split) for name in ("base", "mask-subject", "mask-verb") for split in ("validation", "test")]
    sizes = [steps._outputs(lab, network, *which, "layer_2").gb for which in wanted]
    assert len(steps._KEPT) == 6 and min(sizes) > 0
    limit = 2.5 * max(sizes)
    scarce = Lab(lab.study.model_copy(update={"compute": lab.study.compute.model_copy(
        update={"cache_limit_gb": limit})}), lab.store)  # fmt: skip
    steps._KEPT.clear()
    make, before = steps.FrozenPrefix, []

    def made(*some, make_room, **more) -> steps.FrozenPrefix:
        def watched(gb: float) -> None:
            make_room(gb)
            before.append(gb + sum(outputs.gb for outputs in steps._KEPT.values()))

        return make(*some, make_room=watched, **more)

    monkeypatch.setattr(steps, "FrozenPrefix", made)
    for start in ("layer_2", "embeddings"):  # the empty prefix of the first stage has the items as its outputs
        for which in wanted:
            steps._outputs(scarce, network, *which, start)
            assert sum(outputs.gb for outputs in steps._KEPT.values()) <= limit
    assert len(before) == 2 * len(wanted) and max(before) <= limit  # also at the moment when memory is taken
    assert len(steps._KEPT) >= 2 and next(reversed(steps._KEPT))[2:4] == wanted[-1]
    assert capsys.readouterr().err == ""


def test_of_cached_outputs_those_not_used_for_longest_are_dropped(lab, monkeypatch):
    monkeypatch.setattr(steps, "_KEPT", type(steps._KEPT)())
    network = break_it_down.networks(lab.study)[0]
    first, second, third = (("base", split) for split in ("train", "validation", "test"))
    sizes = [steps._outputs(lab, network, *which, "layer_2").gb for which in (first, second, third)]
    compute = lab.study.compute.model_copy(update={"cache_limit_gb": sum(sizes) - min(sizes[:2]) / 2})
    scarce = Lab(lab.study.model_copy(update={"compute": compute}), lab.store)
    for which in (first, second, first, third):
        steps._outputs(scarce, network, *which, "layer_2")
    assert [key[2:4] for key in steps._KEPT] == [first, third]


@pytest.fixture
def group(tmp_path, monkeypatch) -> tuple[Lab, list[steps.Mask]]:
    """A study of which nothing is made, and masks of both subroutines in one of its bases."""
    monkeypatch.setattr(steps, "_KEPT", type(steps._KEPT)())
    few = Lab.open(micro.study(precision="float32"), tmp_path)
    masks = [mask for mask in break_it_down.candidates(break_it_down.networks(few.study)[0])
             if mask.point.start == "layer_2"]  # fmt: skip
    assert {mask.subroutine for mask in masks} == {"subject", "verb"}
    return few, masks


def test_outputs_of_a_group_stay_within_the_limit_together(group, tmp_path, monkeypatch, capsys):
    lab, masks = group
    network, wanted = masks[0].base, []
    size = max(steps._outputs(lab, network, f"mask-{one}", "train", "layer_2").gb for one in ("subject", "verb"))
    monkeypatch.setattr(steps, "discover_many", lambda model, masks, *_, **__: wanted.extend(masks) or [])
    for share, cached in ((2.5, 2), (1.5, 1)):
        steps._KEPT.clear()
        wanted.clear()
        compute = lab.study.compute.model_copy(update={"cache_limit_gb": share * size})
        scarce = Lab(lab.study.model_copy(update={"compute": compute}), lab.store)
        for split in ("validation", "test"):
            steps._outputs(scarce, network, "base", split, "layer_2")  # of an earlier mask
        steps._discover(scarce, masks, tmp_path / "checkpoint")
        alive = {id(outputs): outputs.gb for outputs in [*(one.items for one in wanted), *steps._KEPT.values()]}
        assert sum(alive.values()) <= share * size
        used = {id(one.items): one.items.gb for one in wanted}
        assert len(wanted) == len(masks) and len(used) == 2 and sum(gb > 0 for gb in used.values()) == cached
        assert ("recomputing them" in capsys.readouterr().err) == (cached < 2)
    assert steps._outputs(scarce, network, "mask-verb", "train", "layer_2").gb > 0, "alone there is room"


def test_a_mask_that_does_not_fit_is_tried_without_what_is_kept_for_others(group, tmp_path, monkeypatch, capsys):
    lab, (mask, *_) = group
    kept, held = [], []

    def scarce(model, wanted, *_, **__):
        kept.append(len(steps._KEPT))
        alive = [attempt() is not None for attempt in held]
        attempt = torch.ones(3)
        held.append(weakref.ref(attempt))
        if len(steps._KEPT) > fits:
            raise torch.OutOfMemoryError("one mask: out of memory")
        return alive

    monkeypatch.setattr(steps, "discover_many", scarce)
    others, fits = [("base", split) for split in ("validation", "test")], 1
    for which in others:
        steps._outputs(lab, mask.base, *which, "layer_2")
    assert steps._discover(lab, [mask], tmp_path / "checkpoint") == [False], "what did not fit is gone"
    assert kept == [3, 1]
    said = "one mask: out of memory; trying again without the outputs that are kept for other masks"
    assert capsys.readouterr().err.splitlines()[-1] == said
    fits = 0
    with pytest.raises(torch.OutOfMemoryError, match="^one mask: out of memory$"):
        steps._discover(lab, [mask], tmp_path / "checkpoint")
    assert kept == [3, 1, 1], "once"


def test_a_mask_goes_on_from_its_half(lab, tmp_path, monkeypatch):
    made, backward = [], torch.Tensor.backward
    other = Lab(lab.study, type(lab.store)(tmp_path))
    mask = next(break_it_down.candidates(break_it_down.networks(lab.study)[0]))
    steps.train_base(other, mask.base)
    monkeypatch.setattr(torch.Tensor, "backward", lambda value: made.append(1) or backward(value))
    steps.find_half(other, mask)
    half = len(made)
    found = steps.find_mask(other, mask)
    epochs = mask.base.experiment.masks.epochs
    assert half * epochs == len(made) * (epochs // 2) > 0
    assert Subnetwork.load(found.path / "subnetwork.safetensors") == steps.load_subnetwork(lab, mask)


def test_cached_outputs_go_on_from_those_of_an_earlier_start(lab, monkeypatch):
    monkeypatch.setattr(steps, "_KEPT", type(steps._KEPT)())
    network, given = break_it_down.networks(lab.study)[0], []
    make = steps.FrozenPrefix
    monkeypatch.setattr(steps, "FrozenPrefix", lambda *some, shorter, **more: (
        given.append(shorter) or make(*some, shorter=shorter, **more)))  # fmt: skip
    first = steps._outputs(lab, network, "base", "test", "layer_1")
    steps._outputs(lab, network, "base", "validation", "layer_2")
    later = steps._outputs(lab, network, "base", "test", "layer_2")
    assert steps._outputs(lab, network, "base", "test", "layer_1") is first
    assert given == [None, None, first]
    steps._KEPT.clear()
    for found, expected in zip(later(torch.arange(4)), steps._outputs(
        lab, network, "base", "test", "layer_2")(torch.arange(4)), strict=True):  # fmt: skip
        assert torch.equal(found, expected)


def test_halving_trains_the_better_half_to_the_same_bits(lab, tmp_path, capfd):
    study = micro.study(precision="float32")
    experiment = study["experiments"][0] | {"masks": study["experiments"][0]["masks"] | {"search": "halving"}}
    halving = Lab.open(study | {"experiments": [experiment], "vit_search": None}, tmp_path)
    search = break_it_down.search_masks(halving)
    assert (search.groupby(break_it_down.SEARCHED).size() == 2).all()  # of four settings
    assert "checkpoint not used" not in capfd.readouterr().err, "what goes on does not begin again"
    masks = _masks_on_disk(halving)
    assert len(masks) == 8 and masks.items() <= _masks_on_disk(lab).items()
    for network in break_it_down.networks(halving.study):
        for subroutine in ("subject", "verb"):
            tried = [mask for mask in break_it_down.candidates(network) if mask.subroutine == subroutine]
            halves = [steps.find_half(halving, mask).json("result") for mask in tried]
            merits = [(half["score"], half["own_task_accuracy"]) for half in halves]
            going_on = [mask in break_it_down.halved(halving, network) for mask in tried]
            assert min(m for m, on in zip(merits, going_on, strict=True) if on) >= max(
                m for m, on in zip(merits, going_on, strict=True) if not on
            )


def test_what_halving_would_have_done(lab):
    table, full = break_it_down.halving(lab), break_it_down.search_masks(lab)
    assert len(table) == full.groupby(break_it_down.SEARCHED).ngroups
    # four settings in language and two in vision: half of them are spared half of their epochs
    assert (table["epochs_saved"] == 0.25).all()
    assert (table["score_halved"] <= table["score"]).all()
    assert (table.loc[table["same"], "score_halved"] == table.loc[table["same"], "score"]).all()


def test_a_mask_that_diverges_is_told_and_not_measured(tmp_path, capsys):
    study = micro.study()
    experiment = study["experiments"][0] | {"base": micro.BASE | {"seeds": [0]}}
    experiment["masks"] = experiment["masks"] | {"learning_rates": [1e39], "starts": ["layer_2"]}
    broken = Lab.open(study | {"experiments": [experiment], "vit_search": None}, tmp_path)
    masks = break_it_down.find_masks(broken)
    reason = "not finite; lower the learning rate (1e+39)"
    assert masks["fault"].str.endswith(reason).all() and masks[list(break_it_down.FOUND)].isna().all(axis=None)
    assert break_it_down.attempted(masks).startswith("4 masks attempted, 0 used; bert_micro")
    with pytest.raises(ValueError, match="no mask is left to measure: 4 masks attempted, 0 used; bert_micro"):
        break_it_down.effects(broken)
    with pytest.raises(TrainingDiverged, match="lower the learning rate"):
        steps.load_subnetwork(broken, break_it_down.final_masks(broken)[0])
    assert "masks: 4 masks attempted, 0 used; bert_micro" in capsys.readouterr().err
    assert break_it_down.attempted(masks.assign(fault="")) == "4 masks attempted, 4 used"
    masks["fault"] = ["", "", masks["fault"].iloc[0], masks["fault"].iloc[0]]
    table = break_it_down.attempts(masks).set_index("subroutine")
    assert (table["attempted"] == 2).all() and table["used"].tolist() == [2, 0]
    assert table["faults"].iloc[0] == "" and table["faults"].iloc[1].endswith(reason)


def test_a_mask_that_diverges_among_others_is_told_and_the_others_are_found(lab, tmp_path, monkeypatch):
    study = micro.study(precision="float32", masks_at_once=4)
    experiment = study["experiments"][0] | {"base": micro.BASE | {"seeds": [0]}}
    other = Lab.open(study | {"experiments": [experiment], "vit_search": None}, tmp_path)
    (network,) = break_it_down.networks(other.study)
    (group, *_) = break_it_down._groups(other, list(break_it_down.candidates(network)))
    method = steps._method
    broken = next(mask for mask in group if mask.subroutine == group[0].subroutine and mask != group[0])
    monkeypatch.setattr(steps, "_method", lambda mask: (
        replace(method(mask), start_value=float("nan")) if mask == broken else method(mask)))  # fmt: skip
    found = steps.find_masks_at_once(other, group)
    results = {mask: artefact.json("result") for mask, artefact in zip(group, found, strict=True)}
    assert [mask for mask, result in results.items() if "fault" in result] == [broken]
    assert "not finite" in results[broken]["fault"] and all("training_seconds" in one for one in results.values())
    assert len(group) == 4


def test_killed_runs_end_with_the_same_bits(lab, tmp_path):
    """SIGKILL at random moments, five times; then let it finish. Checkpoints are written after every epoch."""
    moments, kills, finished = random.Random(0), 0, False
    while not finished:
        process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], cwd=Path(__file__).parents[1],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        if kills < 5:
            _wait_for_work(tmp_path, process)
            time.sleep(moments.uniform(0.0, 0.8))
            process.send_signal(signal.SIGKILL)
            kills += 1
        finished = process.wait() == 0
    assert kills == 5
    killed = Lab(lab.study, type(lab.store)(tmp_path))
    masks = _masks_on_disk(killed)
    assert len(masks) == 20 and masks.items() <= _masks_on_disk(lab).items()
    effects = {path.name: json.loads((path / "result.json").read_text()) for path in (tmp_path / "effect").iterdir()}
    expected = {key: json.loads((lab.store.root / "effect" / key / "result.json").read_text()) for key in effects}
    assert len(effects) == 8 and effects == expected


def test_vit_search_has_every_setting(lab):
    search = break_it_down.search_vit(lab)
    assert sorted(search["batch_size"]) == [8, 16]
    table = paper_tables.vit(search, "micro")
    assert (table["verdict"] == "not comparable at this profile").all()
    assert (table["paper_best"] == 0.86).all() and table["paper"].isna().all()  # no such setting among the paper's


def test_vit_search_is_judged_at_the_paper_profile():
    settings = {"task": "number-contact", "layers": 6, "batch_size": 32, "learning_rate": [0.01, 0.00001], "epochs": 9}
    found = pd.DataFrame(settings | {"validation_accuracy": [0.3, 0.95]})
    table = paper_tables.vit(found, "paper")
    assert list(table["paper"]) == [0.27, 0.85]
    assert list(table["verdict"]) == ["agrees", "differs"]


def test_paper_tables_judge_only_what_is_comparable(lab, effects):
    bases = break_it_down.train_bases(lab)
    assert (paper_tables.bases(bases, "micro")["verdict"] == "not comparable at this profile").all()
    table = paper_tables.effects(effects, "micro")
    assert (table["reason"] == "no base model reaches 90%").all()  # two epochs teach nothing
    assert len(paper_tables.sizes(break_it_down.find_masks(lab), "micro")) == 4


def test_masked_totals_are_the_printed_ones():
    totals = paper_tables.masked_totals().set_index(["model", "start"])
    assert totals.loc[("resnet50", "stem"), "ours"] == 27_911_360
    printed = totals.dropna()
    assert len(printed) == 13 and (printed["paper"] == printed["ours"]).all()


def test_annealing_has_a_row_per_epoch(lab):
    history, histograms = break_it_down.annealing(lab, break_it_down.final_masks(lab)[0])
    assert list(history["epoch"]) == list(histograms["epoch"]) == [0, 1, 2]
    assert histograms.filter(regex="^bin_").sum(axis=1).to_numpy() == pytest.approx([1, 1, 1])


def test_a_mask_of_one_base_is_refused_by_another(lab):
    first, second = (m for m in break_it_down.final_masks(lab) if m.seed == 0 and m.subroutine == "subject")
    with pytest.raises(ValueError, match="belongs to network"):
        steps.load_subnetwork(lab, first).apply(load_base(lab, second.base))


def _masks_on_disk(lab: Lab) -> dict[str, Subnetwork]:
    """Every subnetwork of a store, by key: `==` compares them bit for bit."""
    return {path.parent.name: Subnetwork.load(path) for path in lab.store.root.glob("mask/*/subnetwork.safetensors")}


def _wait_for_work(root: Path, process: subprocess.Popen) -> None:
    """Until this process has begun to build something, or has ended."""
    before = set(os.listdir(root / "partial")) if (root / "partial").is_dir() else set()
    while process.poll() is None:
        if (root / "partial").is_dir() and set(os.listdir(root / "partial")) - before:
            return
        time.sleep(0.02)


def test_a_setting_of_the_sweep_that_diverges_does_not_end_it(tmp_path):
    study = micro.study()
    sweep = study["vit_search"] | {"learning_rates": [0.001, 1e20], "batch_sizes": [8]}
    found = break_it_down.search_vit(Lab.open(study | {"vit_search": sweep}, tmp_path)).set_index("learning_rate")
    assert "not finite" in found.loc[1e20, "fault"] and np.isnan(found.loc[1e20, "validation_accuracy"])
    assert found.loc[0.001, "validation_accuracy"] > 0 and pd.isna(found.loc[0.001, "fault"])


def test_a_sweep_is_judged_where_the_paper_has_a_number():
    about = {"task": "number-contact", "layers": 6, "batch_size": 32, "epochs": 9}
    found = pd.DataFrame([
        about | {"learning_rate": 0.01, "validation_accuracy": np.nan},
        about | {"learning_rate": 0.0005, "validation_accuracy": 0.97},
    ])  # fmt: skip
    table = paper_tables.vit(found, "paper").set_index("learning_rate")
    assert table.loc[0.01, "verdict"] == "agrees"  # .27 there, and no end of it here
    assert np.isnan(table.loc[0.0005, "paper"]) and table.loc[0.0005, "verdict"] == "not comparable at this profile"


def test_a_seed_more_trains_its_own_masks_alone(tmp_path, monkeypatch):
    """Of a group that is asked for first with one mask more."""
    study = micro.study(precision="float32", masks_at_once=8)
    (bert, *_), trained, real = study["experiments"], [], steps.discover_many
    monkeypatch.setattr(
        steps,
        "discover_many",
        lambda model, wanted, *a, **k: trained.append(len(wanted)) or real(model, wanted, *a, **k),
    )
    for seeds in ([0, 1], [0, 1, 2]):
        bert = bert | {"masks": bert["masks"] | {"seeds": seeds, "starts": ["layer_2"], "inits": [0.05]}}
        lab = Lab.open(study | {"experiments": [bert | {"base": bert["base"] | {"seeds": [0]}}]}, tmp_path)
        break_it_down.find_masks(lab)
    # the search, both seeds, then the third one: of two subroutines each
    assert trained == [2, 2, 2]


def test_a_larger_test_set_is_measured_anew_and_no_mask_trained(lab, monkeypatch):
    study = micro.study(precision="float32")
    for experiment in study["experiments"]:
        probe = experiment["data"]["probe"]
        experiment["data"] = experiment["data"] | {"probe": probe | {"test": probe["test"] + 1}}
    more = Lab(Lab.open(study).study, lab.store)
    before = break_it_down.effects(lab)
    monkeypatch.setattr(steps, "discover_many", lambda *_, **__: pytest.fail("trained again"))
    again = break_it_down.effects(more)
    assert not set(again["key"]) & set(before["key"]) and len(again) == len(before)


def test_effects_are_named_by_the_bits_of_their_mask(lab):
    mask = break_it_down.final_masks(lab)[0]
    spec, found = steps.measured_spec(lab, mask), steps.find_mask(lab, mask)
    manifest = found.path / "manifest.json"
    text = manifest.read_text()
    try:
        manifest.write_text(text.replace(spec["bits"], "other"))
        assert steps.measured_spec(lab, mask) == spec | {"bits": "other"}
    finally:
        manifest.write_text(text)
