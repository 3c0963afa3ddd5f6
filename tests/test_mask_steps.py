"""Masks as steps: by any method, in halves, several at once, diverged, killed; what is kept in memory meanwhile."""

import weakref
from dataclasses import replace

import pytest
import torch

from subnet_utils import checkpoints
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault, make_all
from subnet_utils.core.study import Study
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import (
    dissection,
    mask_sizes,
    masks,
    networks,
    prefixes,
    random_controls,
    reference,
    tables,
)
from subnet_utils.papers.break_it_down.masks import Half, Mask
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.steps import every_step
from tests import micro


def opened(lab: Lab, root=None, **options) -> Lab:
    """A lab of the language networks with other settings, by default with the store of another one."""
    study = micro.language(**{"precision": "float32"} | options)
    return Lab(Study.load(study), lab.store if root is None else type(lab.store)(root))


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    lab = Lab.open(micro.language(precision="float32"), tmp_path_factory.mktemp("store"))
    tables.effects(lab)
    return lab


@pytest.fixture
def steps_back(monkeypatch) -> list[int]:
    """Grows by one with every step of training."""
    made, backward = [], torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda value: made.append(1) or backward(value))
    return made


@pytest.fixture
def kept(monkeypatch) -> dict:
    """The outputs of frozen prefixes that are kept; none at first."""
    monkeypatch.setattr(prefixes, "_KEPT", type(prefixes._KEPT)())
    return prefixes._KEPT


# -- methods -----------------------------------------------------------------------------------------------------------


def test_any_method_runs_and_has_artefacts_of_its_own(lab):
    """Searched, measured, and looked for in untrained networks."""
    keys = set(tables.effects(lab)["key"])
    for masking in ({"method": "gumbel_sigmoid", "temperature": 0.5}, "magnitude", "weight_change", "random"):
        other = opened(lab, masks={"masking": masking, "starts": ["layer_2"]})
        effects, searched = tables.effects(other), tables.search_masks(other)
        assert len(effects) == 8 and not keys & set(effects["key"])
        keys |= set(effects["key"])
        scored = isinstance(masking, str)
        assert len(searched) == (2 if scored else 4), "of logits there are two first values to be tried"
        density = effects[effects["network"] == "subnetwork"]["density"].to_numpy()
        assert not scored or density == pytest.approx(0.2, abs=1e-3)
        assert len(random_controls.random_effects(other)) == 8
    assert len(keys) == 4 * (1 + 4)


def test_weights_of_a_pretrained_base_have_changed_since_pretraining(tmp_path):
    bert, _ = micro.whole_study()["break_it_down"]["pretrained"]
    bert = bert | {"masks": bert["masks"] | {"masking": "weight_change", "starts": ["layer_1"], "seeds": [0]}}
    lab = Lab.open(micro.but(micro.language(precision="float32"), pretrained=[bert]), tmp_path)
    (base,) = networks.pretrained_bases(lab)
    mask = tables.final_masks(lab, [base])[0].load(lab)
    pretrained, now = base.pretraining.make(lab).tensors("weights"), dict(base.load(lab).named_parameters())
    change = torch.cat([(now[name] - pretrained[name]).abs().flatten() for name in mask.masks])
    kept = torch.cat([one.flatten() for one in mask.masks.values()])
    assert change[kept].min() >= change[~kept].max() > 0


# -- halves and the authors' choice ------------------------------------------------------------------------------------


def test_a_mask_goes_on_from_its_half_to_the_same_bits(lab, tmp_path, steps_back):
    other = opened(lab, tmp_path)
    mask = tables.searches(other)[0].candidates[0]
    mask.base.make(other)
    steps_back.clear()
    mask.half.make(other)
    half, epochs = len(steps_back), mask.settings.epochs
    found = mask.load(other)
    assert half * epochs == len(steps_back) * (epochs // 2) > 0
    assert found == mask.load(lab) and isinstance(mask.half, Half) and mask.half.mask(other) == mask


def test_halving_trains_the_better_half_to_the_same_bits(lab, tmp_path, capfd):
    halving = opened(lab, tmp_path, masks={"search": "halving"})
    found = tables.search_masks(halving)
    assert (found.groupby(tables.SEARCHED).size() == 2).all()  # of four settings
    assert "checkpoint not used" not in capfd.readouterr().err, "what goes on does not begin again"
    on_disk = micro.masks_on_disk(halving)
    assert len(on_disk) == 4 and on_disk.items() <= micro.masks_on_disk(lab).items()
    for one in tables.searches(halving):
        merits = {half.mask(halving): [half.result(halving)[name] for name in ("score", "own_task_accuracy")]
                  for half in one.candidates}  # fmt: skip
        better = one.tried(halving)
        assert min(merits[mask] for mask in better) >= max(v for mask, v in merits.items() if mask not in better)
        assert one.load(halving) in [mask.point for mask in better]
    assert len(tables.effects(halving)) == 8


def test_what_halving_would_have_done(lab):
    table, full = tables.halving(lab), tables.search_masks(lab)
    assert len(table) == full.groupby(tables.SEARCHED).ngroups
    assert (table["epochs_saved"] == 0.25).all()  # half of the settings are spared half of their epochs
    assert (table["score_halved"] <= table["score"]).all()
    assert (table.loc[table["same"], "score_halved"] == table.loc[table["same"], "score"]).all()
    with pytest.raises(ValueError, match="profile 'micro' has no full search to compare with; set masks.search"):
        tables.halving(opened(lab, masks={"search": "halving"}))


def test_what_the_authors_selected_is_not_searched(tmp_path):
    study = micro.study(precision="float32")
    resnet = study["break_it_down"]["experiments"][1] | {"base": micro.BASE | {"seeds": [0]}}
    resnet["masks"] = resnet["masks"] | {"search": "selected", "seeds": [0], "epochs": 1}
    lab = Lab.open(micro.but(study, experiments=[resnet], vit_search=None), tmp_path)
    found = tables.search_masks(lab)
    chosen = reference.load("selected_masks").query("condition == 'trained' and model == 'resnet50' and base == 1")
    chosen = chosen[chosen["task"] == "number-contact"].set_index("subroutine").loc[found["subroutine"]]
    assert len(found) == 2 and found["winner"].all()
    assert found["start"].tolist() == chosen["mask_start"].tolist()
    assert found["learning_rate"].tolist() == chosen["learning_rate"].tolist()
    assert set(tables.effects(lab)["start"]) == set(chosen["mask_start"])


# -- masks that diverge ------------------------------------------------------------------------------------------------


def test_where_all_masks_diverge_the_tables_say_why(tmp_path, capsys):
    broken = Lab.open(micro.language(masks={"learning_rates": [1e39], "starts": ["layer_2"]}), tmp_path)
    found = tables.find_masks(broken)
    reason = "not finite; lower the learning rate (1e+39)"
    assert found["fault"].str.endswith(reason).all() and found[list(tables.FOUND)].isna().all(axis=None)
    with pytest.raises(ValueError, match="no mask is left to measure: 4 masks attempted, 0 used; bert_micro"):
        tables.effects(broken)
    with pytest.raises(Fault, match="lower the learning rate"):
        tables.final_masks(broken)[0].load(broken)
    assert "masks: 4 masks attempted, 0 used; bert_micro" in capsys.readouterr().err
    found["fault"] = ["", "", *found["fault"][2:]]
    table = tables.attempts(found).set_index("subroutine")
    assert (table["attempted"] == 2).all() and table["used"].tolist() == [2, 0]
    assert table["faults"].iloc[0] == "" and table["faults"].iloc[1].endswith(reason)


def test_a_mask_that_diverges_is_a_fault_and_the_tables_go_on_without_it(tmp_path, monkeypatch):
    """Mask seed 0 of one subroutine; so is all that is measured with it."""
    study = micro.but(micro.language(precision="float32", masks={"starts": ["layer_2"], "search_seed": 7}),
                      controls={"draws": 2, "l0_factors": [10.0]})  # fmt: skip
    lab, method = Lab.open(study, tmp_path), Mask.method.fget
    monkeypatch.setattr(Mask, "method", property(lambda mask: (
        replace(method(mask), start_value=float("nan"))
        if (mask.subroutine, mask.seed, mask.base.condition) == ("verb", 0, "trained") else method(mask)))
    )  # fmt: skip
    make_all(lab, list(every_step(lab)), "every step")
    effects = {(mask.subroutine, mask.seed): Effect.of(mask).fault(lab) for mask in tables.final_masks(lab)}
    assert {about for about, fault in effects.items() if fault} == {("verb", 0)} and "finite" in effects["verb", 0]
    assert set(tables.effects(lab)[["subroutine", "mask_seed"]].itertuples(index=False, name=None)) == {
        ("subject", 0), ("subject", 1), ("verb", 1)}  # fmt: skip
    assert random_controls.null_draws(lab).groupby(["subroutine", "mask_seed"]).ngroups == 3
    assert len(mask_sizes.effects_by_size(lab)) == 2 * 3
    (pair,) = dissection.mask_pairs(lab)
    assert [mask.seed for mask in pair.masks] == [0, 1] and len(dissection.assembled(lab)) > 0


# -- several at once ---------------------------------------------------------------------------------------------------


def differing(found: Subnetwork, expected: Subnetwork) -> float:
    """Share of the weights that one of two masks covers and the other does not."""
    return sum(int((mask != expected.masks[name]).sum()) for name, mask in found.masks.items()) / found.total


def test_masks_trained_at_once_are_the_same_but_for_rounding(lab, tmp_path):
    """Those of the search, and the masks that count, in their own groups."""
    study = micro.language(precision="float32", masks_at_once=2)
    at_once = Lab.open(micro.but(study, controls={"l0_factors": [10.0]}), tmp_path)
    needed = tables.final_masks(at_once)
    tables.find_masks(at_once)
    found, expected = micro.masks_on_disk(at_once), micro.masks_on_disk(lab)
    assert len(found) == 10 and found.keys() <= expected.keys()
    assert max(differing(mask, expected[key]) for key, mask in found.items()) <= 0.01
    groups = [len(list(path.glob("[0-9]*"))) for path in (tmp_path / "break_it_down-group").iterdir()]
    assert groups == [2] * 5
    for mask in needed:
        cost = mask.mask(at_once).make(at_once).json("provenance")
        assert cost["training_seconds"] > 0 and cost["precision"] == "float32" and cost["device"] == "cpu"
    mask_sizes.effects_by_size(at_once)  # of masks of two lambdas, which are not one group
    assert len(list((tmp_path / "break_it_down-group").iterdir())) == 7


def test_a_group_that_is_killed_goes_on_to_the_same_bits(lab, tmp_path, monkeypatch, steps_back):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    labs = [opened(lab, tmp_path / name, masks_at_once=2) for name in ("killed", "whole")]
    needed = [one.candidates[0] for one in tables.searches(lab)]
    for one in labs:
        needed[0].base.make(one)
    count = steps_back.__len__
    steps_back.clear()
    make_all(labs[1], needed, "masks")
    whole, forward = count(), masks.loss

    def killed(*batch):
        if count() == whole // 2:
            raise KeyboardInterrupt
        return forward(*batch)

    steps_back.clear()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(masks, "loss", killed)
        make_all(labs[0], needed, "masks")
    make_all(labs[0], needed, "masks")
    assert whole < count() < whole + whole // 2, "it went on from the middle"
    assert [mask.load(labs[0]) for mask in needed] == [mask.load(labs[1]) for mask in needed]


def test_a_mask_that_diverges_among_others_is_told_and_the_others_are_found(lab, tmp_path, monkeypatch):
    other = opened(lab, tmp_path, masks_at_once=4, masks={"starts": ["layer_2"]})
    group = [mask for one in tables.searches(other) for mask in one.candidates]
    method, broken = Mask.method.fget, group[1]
    monkeypatch.setattr(Mask, "method", property(lambda mask: (
        replace(method(mask), start_value=float("nan")) if mask == broken else method(mask))))  # fmt: skip
    made = make_all(other, group, "masks")
    assert [mask for mask in group if mask.fault(other)] == [broken] and "not finite" in broken.fault(other)
    assert len(group) == 4 and all("training_seconds" in artefact.json("provenance") for artefact in made)


def test_a_seed_more_trains_its_own_masks_alone(lab, tmp_path, monkeypatch):
    trained, real = [], masks.discover_many
    monkeypatch.setattr(masks, "discover_many", lambda model, tasks, *more, **options: (
        trained.append(len(tasks)) or real(model, tasks, *more, **options)))  # fmt: skip
    for seeds in ([0, 1], [0, 1, 2]):
        few = {"seeds": seeds, "starts": ["layer_2"], "inits": [0.05]}
        tables.find_masks(opened(lab, tmp_path, masks_at_once=8, masks=few))
    assert trained == [2, 2, 2]  # the search, both seeds, then the third one: of two subroutines each


def test_masks_at_once_fill_half_of_a_gpu_and_no_more_than_24(monkeypatch, tmp_path):
    """With a GPU that is only said to be there."""
    lab = Lab.open(micro.study(), tmp_path)
    bert, resnet = tables.final_masks(lab)[0], tables.final_masks(lab)[-1]
    assert masks.masks_at_once(lab, bert) == 1  # a CPU
    one = masks._bytes_of(bert)
    monkeypatch.setattr(Lab, "device", property(lambda self: torch.device("cuda")))
    two = Lab(Study.load(micro.study(workers=2)), lab.store)
    for memory, expected in ((2 * 5.5 * one, 5), (2 * 0.5 * one, 1), (2 * 500 * one, 24)):
        properties = type("Properties", (), {"total_memory": memory})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        assert masks.masks_at_once(lab, bert) == expected
        assert masks.masks_at_once(two, bert) == max(1, min(24, int(memory / 4 / one)))
    assert masks.masks_at_once(lab, resnet) == 1
    for changes in ({"search": "halving"}, {"masking": "gumbel_sigmoid"}, {"masking": "magnitude"}):
        other = Lab(Study.load(micro.language(masks=changes)), lab.store)
        assert masks.masks_at_once(other, tables.final_masks(other)[0]) == 1


# -- outputs of frozen prefixes ----------------------------------------------------------------------------------------


def scarce(lab: Lab, gb: float) -> Lab:
    return opened(lab, cache_limit_gb=gb)


def sets_of(lab: Lab) -> tuple:
    base = tables.final_masks(lab)[0].base
    names = ("base", "mask-subject", "mask-verb")
    return base, [base.data(name, split) for name in names for split in ("validation", "test")]


def test_cached_outputs_stay_within_the_limit_of_all_together(lab, kept, monkeypatch, capsys):
    base, needed = sets_of(lab)
    sizes = [prefixes.outputs(lab, base, chosen, "layer_2").gb for chosen in needed]
    assert len(kept) == 6 and min(sizes) > 0
    limit, make, then = 2.5 * max(sizes), prefixes.FrozenPrefix, []
    kept.clear()

    def made(*some, make_room, **more):
        def watched(gb: float) -> None:
            make_room(gb)
            then.append(gb + sum(outputs.gb for outputs in kept.values()))

        return make(*some, make_room=watched, **more)

    monkeypatch.setattr(prefixes, "FrozenPrefix", made)
    for start in ("layer_2", "embeddings"):  # the empty prefix of the first stage has the items as its outputs
        for chosen in needed:
            prefixes.outputs(scarce(lab, limit), base, chosen, start)
            assert sum(outputs.gb for outputs in kept.values()) <= limit
    assert len(then) == 2 * len(needed) and max(then) <= limit  # also at the moment when memory is taken
    assert len(kept) >= 2 and next(reversed(kept))[2] == needed[-1]
    assert capsys.readouterr().err == ""


def test_of_cached_outputs_those_not_used_for_longest_are_dropped(lab, kept):
    base, (first, second, third, *_) = sets_of(lab)
    sizes = [prefixes.outputs(lab, base, chosen, "layer_2").gb for chosen in (first, second, third)]
    for chosen in (first, second, first, third):
        prefixes.outputs(scarce(lab, sum(sizes) - min(sizes[:2]) / 2), base, chosen, "layer_2")
    assert [key[2] for key in kept] == [first, third]


def test_outputs_of_a_group_stay_within_the_limit_together(lab, kept, tmp_path, monkeypatch, capsys):
    (base, others), needed = sets_of(lab), []
    group = [mask for one in tables.searches(lab) for mask in one.candidates if mask.point.start == "layer_2"]
    size = max(prefixes.outputs(lab, base, mask.train, "layer_2").gb for mask in group)
    monkeypatch.setattr(masks, "discover_many", lambda model, tasks, *_, **__: needed.extend(tasks) or [])
    for share, cached in ((2.5, 2), (1.5, 1)):
        kept.clear()
        needed.clear()
        little = scarce(lab, share * size)
        for chosen in others[:2]:
            prefixes.outputs(little, base, chosen, "layer_2")  # of an earlier mask
        masks.discover(little, group, tmp_path / "checkpoint")
        alive = {id(outputs): outputs.gb for outputs in [*(one.items for one in needed), *kept.values()]}
        assert sum(alive.values()) <= share * size
        used = {id(one.items): one.items.gb for one in needed}
        assert len(needed) == len(group) and len(used) == 2 and sum(gb > 0 for gb in used.values()) == cached
        assert ("recomputing them" in capsys.readouterr().err) == (cached < 2)
    assert prefixes.outputs(little, base, group[-1].train, "layer_2").gb > 0, "alone there is room"


def test_a_mask_that_does_not_fit_is_tried_without_what_is_kept_for_others(lab, kept, tmp_path, monkeypatch, capsys):
    (base, others), mask, sizes, held = sets_of(lab), tables.searches(lab)[0].candidates[1], [], []

    def small(model, tasks, *_, **__):
        sizes.append(len(kept))
        alive = [attempt() is not None for attempt in held]
        attempt = torch.ones(3)
        held.append(weakref.ref(attempt))
        if len(kept) > fits:
            raise torch.OutOfMemoryError("one mask: out of memory")
        return alive

    monkeypatch.setattr(masks, "discover_many", small)
    fits = 1
    for chosen in others[:2]:
        prefixes.outputs(lab, base, chosen, "layer_2")
    assert masks.discover(lab, [mask], tmp_path / "checkpoint") == [False], "what did not fit is gone"
    assert sizes == [3, 1]
    message = "one mask: out of memory; trying again without the outputs that are kept for other masks"
    assert capsys.readouterr().err.splitlines()[-1] == message
    fits = 0
    with pytest.raises(torch.OutOfMemoryError, match="^one mask: out of memory$"):
        masks.discover(lab, [mask], tmp_path / "checkpoint")
    assert sizes == [3, 1, 1], "once"
