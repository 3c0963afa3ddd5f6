"""Controls of the ablations: pure functions of (subnetwork, seed); the tables of notebook 04 at the smallest size."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subnet_utils.core.lab import Lab
from subnet_utils.masks.controls import (
    NoControl,
    mean_outputs,
    random_in_complement,
    random_like,
    replaced,
    units_at_means,
    units_of,
)
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.papers.break_it_down import measurements, paper_tables, random_controls, tables
from subnet_utils.papers.break_it_down.evaluation import score_embeddings
from tests import micro

BERT = {"family": "bert", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32}
RESNET = {"family": "resnet", "block": "basic", "depths": (1, 1, 1, 1), "width": 4, "head_width": 8, "embedding": 8}


def subnetworks(largest: float = 1.0):
    """Subnetworks of two layers with random masks, of at most a share of each layer's weights."""

    def made(seed: int, shares: tuple[float, float]) -> Subnetwork:
        generator = np.random.default_rng(seed)
        masks = {}
        for name, share, shape in zip("ab", shares, ((5, 7), (40,)), strict=True):
            flat = np.zeros(int(np.prod(shape)), dtype=bool)
            flat[generator.permutation(len(flat))[: int(share * len(flat))]] = True
            masks[name] = torch.from_numpy(flat.reshape(shape))
        return Subnetwork(masks, "n")

    share = st.floats(0, largest)
    return st.builds(made, st.integers(0, 1000), st.tuples(share, share))


def counts(subnetwork: Subnetwork) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in subnetwork.masks.items()}


@given(subnetworks(largest=0.5), st.integers(0, 2**31))
def test_random_subnetworks_have_equal_counts_per_layer(subnetwork, seed):
    before = torch.random.get_rng_state()
    for draw in (random_like, random_in_complement):
        drawn = draw(subnetwork, seed=seed)
        assert counts(drawn) == counts(subnetwork) and drawn == draw(subnetwork, seed=seed)
    assert (drawn & subnetwork).active == 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_weight_is_drawn_equally_often():
    subnetwork = Subnetwork({"w": torch.arange(10) < 3}, "n")
    often = sum(random_like(subnetwork, seed=seed).masks["w"].long() for seed in range(2000))
    assert often.sum() == 6000
    assert (often - 600).abs().max() < 5 * np.sqrt(2000 * 0.3 * 0.7)
    outside = sum(random_in_complement(subnetwork, seed=seed).masks["w"].long() for seed in range(700))
    assert (outside[3:] - 300).abs().max() < 5 * np.sqrt(700 * 3 / 7 * 4 / 7)


def test_a_complement_smaller_than_the_mask_is_a_clear_error():
    with pytest.raises(NoControl, match="'w': 6 weights in the subnetwork, 4 outside it"):
        random_in_complement(Subnetwork({"w": torch.arange(10) < 6}, "n"), seed=0)


@pytest.fixture(params=[BERT, RESNET], ids=["bert", "resnet"])
def model(request):
    sizes = {"vocabulary": 30} if request.param is BERT else {"resolution": 48}
    return build(request.param, seed=0, **sizes).eval()


def half_of(model) -> Subnetwork:
    generator = torch.Generator().manual_seed(1)
    start = model.stage_names[1]
    weights = dict(model.named_parameters())
    masks = {name: torch.rand(weights[name].shape, generator=generator) > 0.5 for name in model.maskable(start)}
    return Subnetwork(masks, fingerprint(model))


def items_of(model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if "embeddings" in model.stage_names:
        return torch.randint(1, 30, (6, 7), generator=generator)
    return torch.randint(0, 256, (6, 3, 48, 48), generator=generator, dtype=torch.uint8)


def test_replaced_weights_are_the_donors_and_all_others_ours(model):
    subnetwork, before = half_of(model), fingerprint(model)
    donor = build(BERT if "embeddings" in model.stage_names else RESNET, seed=5,
                  **({"vocabulary": 30} if "embeddings" in model.stage_names else {"resolution": 48}))  # fmt: skip
    changed = dict(replaced(model, subnetwork, donor).named_parameters())
    theirs = dict(donor.named_parameters())
    for name, weight in model.named_parameters():
        mask = subnetwork.masks.get(name, torch.zeros_like(weight, dtype=torch.bool))
        assert torch.equal(changed[name][mask], theirs[name][mask])
        assert torch.equal(changed[name][~mask], weight[~mask])
    assert fingerprint(model) == before
    with pytest.raises(WrongNetwork):
        replaced(donor, subnetwork, model)


def test_units_are_those_with_the_largest_share():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]], dtype=torch.bool)
    units = units_of(Subnetwork({"w": mask}, "n"))["w"]  # 6 of 16 weights: 1.5 of 4 units, rounded to 2
    assert units.tolist() == [True, False, True, False]


def test_mean_outputs_equal_those_that_hooks_see(model):
    items, names = items_of(model), [name for name in model.maskable(model.stage_names[1]) if "pooler" not in name]
    seen = {}
    for name in names:
        layer = model.get_submodule(name.removesuffix(".weight"))
        layer.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.detach().numpy()}))
    model(items)
    whole = dict(seen)  # the hooks see the smaller batches that follow, too
    means = mean_outputs(model, names, items.split(2))
    for name in names:
        values = whole[name]
        axes = (0, 2, 3) if values.ndim == 4 else tuple(range(values.ndim - 1))
        assert means[name].numpy() == pytest.approx(values.mean(axis=axes, dtype=np.float64), abs=1e-5)


def test_a_linear_layer_on_maps_has_its_channels_last():
    layer = torch.nn.Linear(3, 6)
    model, maps = StagedModel({"only": layer}), torch.randn(4, 5, 2, 3, generator=torch.Generator().manual_seed(0))
    (mean,) = mean_outputs(model, ["stages.only.weight"], [maps]).values()
    torch.testing.assert_close(mean, layer(maps).mean(dim=(0, 1, 2)).detach())


@pytest.mark.parametrize("norm", [None, torch.nn.BatchNorm2d(4)])
def test_a_mean_needs_a_bias_to_be_kept_in(norm):
    layer = torch.nn.Linear(3, 4, bias=False) if norm is None else torch.nn.Conv2d(3, 4, 3, bias=False)
    model = StagedModel({"only": torch.nn.Sequential(layer, norm) if norm else torch.nn.Sequential(layer)})
    name, chosen = "stages.only.0.weight", torch.tensor([True, False, False, True])
    with pytest.raises(ValueError, match="the layer of 'stages.only.0.weight' has no bias to keep a unit's mean"):
        units_at_means(model, {name: chosen}, {name: torch.ones(4)})


def test_means_are_taken_over_sentences_without_padding_and_whole_images():
    sentences = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 4], [3, 2, 0, 0], [1, 0, 0, 0]])
    found = [batch.tolist() for batch in measurements._unpadded(sentences)]
    assert found == [[[1]], [[5, 6], [3, 2]], [[7, 8, 9, 4]]]
    images = torch.zeros(300, 3, 2, 2, dtype=torch.uint8)  # black is no padding
    assert [batch.shape for batch in measurements._unpadded(images)] == [(256, 3, 2, 2), (44, 3, 2, 2)]


def test_a_unit_at_its_mean_is_constant(model):
    """Of linear layers the output is the mean; of convolutions zero, which is what the norm makes of any constant."""
    items, subnetwork, before = items_of(model), half_of(model), fingerprint(model)
    units = units_of(subnetwork)
    means = mean_outputs(model, units, [items])
    changed = units_at_means(model, units, means)
    assert fingerprint(model) == before
    checked = 0
    for name in means:
        layer = changed.get_submodule(name.removesuffix(".weight"))
        seen = []
        layer.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.detach()))
        changed(items)
        out = seen[0].movedim(1, -1) if seen[0].ndim == 4 else seen[0]
        expected = means[name] if layer.bias is not None else torch.zeros_like(means[name])
        assert torch.allclose(out[..., units[name]], expected[units[name]].expand_as(out[..., units[name]]), atol=1e-6)
        checked += int(units[name].sum())
    assert checked > 10


def test_queries_keys_and_values_of_a_vision_transformer_have_means_too():
    """They are one matrix and no layer: in all but the last block each token has its own, as linear algebra has it."""
    sizes = {"family": "vit", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16, "patch": 16, "head_width": 8}
    model = build(sizes | {"embedding": 8}, seed=0, resolution=48).eval()
    items, name = items_of(model), "stages.layer_1.self_attention.in_proj_weight"
    seen, block = [], model.get_submodule("stages.layer_1")
    block.ln_1.register_forward_hook(lambda _, __, out: seen.append(out.detach().double()))
    model(items)
    own = block.self_attention
    projected = seen[0].flatten(0, 1) @ own.in_proj_weight.detach().double().T + own.in_proj_bias.detach().double()
    units = units_of(half_of(model))
    assert name in units
    means = mean_outputs(model, units, items.split(2))
    torch.testing.assert_close(means[name].double(), projected.mean(dim=0), atol=1e-5, rtol=0)
    changed = units_at_means(model, units, means).get_submodule("stages.layer_1.self_attention")
    chosen = units[name]
    assert chosen.any() and (changed.in_proj_weight[chosen] == 0).all()
    assert torch.equal(changed.in_proj_bias[chosen], means[name][chosen])
    assert torch.equal(changed.in_proj_weight[~chosen], own.in_proj_weight[~chosen])
    assert torch.equal(changed.in_proj_bias[~chosen], own.in_proj_bias[~chosen])


def test_embeddings_have_no_units():
    model = build(BERT, seed=0, vocabulary=30)
    with pytest.raises(ValueError, match="not the weight of a linear or convolutional layer"):
        mean_outputs(model, ["stages.embeddings.word_embeddings.weight"], [])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(micro.whole_study(precision="float32"), tmp_path_factory.mktemp("store"))


def test_untrained_networks_are_distinct_unless_as_printed(lab):
    """They are at chance because nothing trains them."""
    bases = dict.fromkeys(mask.base for mask in random_controls.random_masks(lab))
    assert len({base.seed for base in bases}) == len(bases) == 4  # two tasks with two base models each
    for base in bases:
        made, result = base.make(lab), base.result(lab)
        assert base.condition == "random" and result["epochs"] == 0 and not made.has("history.parquet")
        assert fingerprint(base.load(lab)) == result["network"] == fingerprint(base.fresh())
    printed = Lab.open(micro.but(micro.whole_study(), controls={"as_printed": True}), lab.store.root)
    of_seed = {}
    for mask in random_controls.random_masks(printed):
        of_seed.setdefault(mask.seed, set()).add(mask.base.seed)
    assert {seed: len(draws) for seed, draws in of_seed.items()} == {0: 1, 1: 1}  # the same under every base model


def test_random_effects_have_the_settings_of_the_trained_ones(lab):
    trained, random = tables.effects(lab), random_controls.random_effects(lab)
    assert set(random["condition"]) == {"random"} and set(random["mask_seed"]) == {0}
    keys = ["model", "task", "number", "base_model", "subroutine", "mask_seed", "network", "start", "base_accuracy"]
    own = trained[trained["mask_seed"] == 0]
    assert random[keys].values.tolist() == own[keys].values.tolist()


def with_masks(lab: Lab, **changes) -> Lab:
    """The lab with other settings of the masks of its language model."""
    study = micro.whole_study(precision="float32")
    bert, resnet = study["break_it_down"]["experiments"]
    return Lab.open(micro.but(study, experiments=[bert | {"masks": bert["masks"] | changes}, resnet]), lab.store.root)


def test_lambda_of_the_control_is_the_experiments_own_unless_it_is_given(lab):
    other = with_masks(lab, control_l0=1e-3)
    usual, given = ({mask.base.experiment.model: mask.settings.masking.l0 for mask in random_controls.random_masks(of)}
                    for of in (lab, other))  # fmt: skip
    assert usual == {"bert_micro": 1e-8, "resnet_micro": 1e-8} and given == usual | {"bert_micro": 1e-3}
    assert tables.final_masks(other) == tables.final_masks(lab)


def test_weights_of_the_control_are_drawn_as_wide_as_is_said_and_no_others(lab):
    other, name = with_masks(lab, control_deviation=0.1), "stages.layer_1.attention.self.query.weight"
    for usual, wide in zip(random_controls.random_masks(lab), random_controls.random_masks(other), strict=True):
        assert wide.base.trained == usual.base.trained  # what it is a control to
        assert (wide == usual) == (usual.base.experiment.model == "resnet_micro")
        if wide != usual:
            assert wide.base.architecture.deviation == 0.1
            assert torch.allclose(wide.base.fresh().state_dict()[name], 5 * usual.base.fresh().state_dict()[name])
    # the weights that take the place of ablated ones are as wide as those that training began with
    donors = [random_controls.other_ablations(tables.final_masks(of))[0].donor for of in (lab, other)]
    assert donors[0] == donors[1] and float(donors[0].fresh().state_dict()[name].std()) == pytest.approx(0.02, rel=0.2)
    found, usual = random_controls.random_effects(other), random_controls.random_effects(lab)
    assert found["base_accuracy"].tolist() == usual["base_accuracy"].tolist()
    language = found["model"] == "bert_micro"
    assert not set(found[language]["key"]) & set(usual["key"]) and set(found[~language]["key"]) <= set(usual["key"])


def test_random_draws_are_as_many_as_asked_for_beside_every_mask(lab):
    draws = random_controls.null_draws(lab)
    per_mask = draws.groupby([*random_controls.RUN, "kind"]).size()
    assert set(per_mask) == {4}
    assert len(per_mask.xs("random", level="kind")) == len([m for m in tables.final_masks(lab) if m.seed == 0])
    clamped = draws["target_accuracy"].clip(lower=0.25) - draws["other_accuracy"].clip(lower=0.25)
    assert draws["difference"].to_numpy() == pytest.approx(clamped.to_numpy())


def test_permutation_p_counts_draws_as_low_as_the_observed():
    about = {"model": "m", "paper_model": "p", "task": "t", "number": "", "base_model": "0", "subroutine": "s"}
    effects = pd.DataFrame([
        about | {"mask_seed": seed, "network": "ablated", "difference": value, "base_accuracy": 1.0}
        for seed, value in ((0, -0.3), (1, 0.1))
    ])  # fmt: skip
    draws = pd.DataFrame([
        about | {"mask_seed": seed, "kind": "random", "draw": i, "difference": value}
        for seed in (0, 1) for i, value in enumerate((-0.4, -0.3, 0.0, 0.2))
    ])  # fmt: skip
    each = random_controls.permutation_tests(effects, draws)
    assert each["p"].tolist() == [3 / 5, 4 / 5]  # -.4 and -.3 are as low as -.3; three are as low as .1
    together = random_controls.grouped_tests(effects, draws)
    assert together["p"].tolist() == [3 / 5]  # the observed mean is -.1; -.4 and -.3 lie below it
    assert together["observed"].tolist() == pytest.approx([-0.1])
    below = random_controls.grouped_tests(effects.assign(base_accuracy=0.5), draws)
    assert below.empty


def test_ablation_by_zeros_is_the_ablated_model(lab):
    table = random_controls.ablations(lab)
    zeros = table[table["ablation"] == "zeros"].reset_index(drop=True)
    ablated = tables.effects(lab).query("network == 'ablated' and mask_seed == 0").reset_index(drop=True)
    for column in ("difference", "own_task_accuracy", "target_margin", "compositional_accuracy"):
        assert zeros[column].to_numpy() == pytest.approx(ablated[column].to_numpy(), abs=1e-6)
    assert table.groupby("ablation").size().to_dict() == {name: len(zeros) for name in ("zeros", "replaced", "mean")}


def test_without_a_difference_the_other_masks_weights_stay(lab):
    """By hand: what A has and B has not is set to zero, and the network is scored anew."""
    masks = tables.used_masks(lab)
    steps = random_controls.difference_ablations(masks)
    assert len(steps) == len(masks) and all(
        step.mask.base == step.other.base and step.mask.subroutine != step.other.subroutine for step in steps
    )
    step = steps[0]
    a, b, rows = step.mask.load(lab), step.other.load(lab), step.result(lab)
    only = {name: mask & ~b.masks[name] if name in b.masks else mask for name, mask in a.masks.items()}
    changed = Subnetwork(only, a.network).ablate(step.mask.base.load(lab))
    target = step.test.sets["target"].load(lab)
    with torch.no_grad():
        expected = score_embeddings(changed(target.items), target)
    assert [row["ablation"] for row in rows] == ["difference", "random part", "random part"]
    assert rows[0]["target_accuracy"] == expected.accuracy
    removed = sum(int(mask.sum()) for mask in only.values()) / a.total
    assert all(row["removed"] == pytest.approx(removed) for row in rows)


def test_an_ablation_is_sharper_by_the_mean_over_the_bases_that_learned():
    rows = []
    for base, (whole, rest, random) in enumerate([(-0.1, -0.5, -0.2), (-0.2, -0.5, -0.1), (-0.1, -0.6, -0.1)]):
        about = {"model": "m", "task": "t", "base_model": str(base), "subroutine": "s", "base_accuracy": 0.95}
        effects = {"A": whole, "A - B": rest, "random part of A": random}
        rows += [about | {"ablation": name, "difference": effect} for name, effect in effects.items()]
        rows += [row | {"base_model": f"bad{base}", "base_accuracy": 0.5, "difference": 9.0} for row in rows[-3:]]
    found = random_controls.sharper(pd.DataFrame(rows)).set_index("claim")
    assert list(found["ours"].round(3)) == [-0.4, -0.4] and found["n_runs"].eq(3).all()
    assert found["verdict"].eq("holds").all()


def test_means_of_ablations_are_over_the_bases_that_learned():
    about = {"model": "tiny", "paper_model": "resnet50", "task": "inside-number", "number": "", "subroutine": "inside"}
    runs = pd.DataFrame([
        about | {"ablation": kind, "base_model": base, "base_accuracy": accuracy, "target_accuracy": target,
                 "other_accuracy": 0.9, "difference": max(target, 0.25) - 0.9}
        for kind, shift in (("zeros", 0.0), ("mean", 0.1))
        for base, accuracy, target in (("0", 0.95, 0.2 + shift), ("0", 0.95, 0.4 + shift), ("1", 1.0, 0.5 + shift),
                                       ("2", 0.8, 0.9))
    ])  # fmt: skip
    means = random_controls.mean_ablations(runs).set_index("ablation")
    assert list(means.index) == ["zeros", "mean"] and means["n_bases"].tolist() == [2, 2]
    assert means["target_accuracy"].tolist() == pytest.approx([0.4, 0.5])
    assert means.loc["zeros", "difference"] == pytest.approx(((0.25 + 0.4) / 2 + 0.5) / 2 - 0.9)
    assert random_controls.mean_ablations(runs.assign(base_accuracy=0.5)).empty


@pytest.mark.parametrize(
    ("stars", "p", "ours", "paper", "verdict"),
    [
        ("***", 0.01, 0.4, 0.5, "agrees"), ("***", 0.01, -0.4, 0.5, "differs"),
        ("***", 0.2, 0.4, 0.5, "cannot be told"), (".", 0.2, -0.4, 0.5, "cannot be told"),
        ("", 0.01, 0.4, 0.5, "cannot be told"), (np.nan, 0.2, 0.4, 0.5, "not comparable at this profile"),
        (np.nan, 0.01, 0.4, 0.5, "not comparable at this profile"),
        ("*", np.nan, 0.4, 0.5, "not comparable at this profile"),
    ],
)  # fmt: skip
def test_significant_in_the_other_direction_is_a_difference(stars, p, ours, paper, verdict):
    assert paper_tables._significance_verdicts(pd.DataFrame([[stars, p, ours, paper]])) == [verdict]


def test_table_12_sets_the_papers_statistics_beside_ours():
    rows = [
        {"model": "tiny", "paper_model": "bert_small", "task": "sv-agreement", "number": "", "subroutine": "subject",
         "base_model": str(base), "condition": condition, "network": network, "base_accuracy": 1.0,
         "difference": level + 0.01 * base, "own_task_accuracy": 0.5 + 0.1 * base, "density": 0.1 * base}
        for base in range(3)
        for condition, network, level in (
            ("trained", "subnetwork", 0.5), ("random", "subnetwork", 0.1),
            ("trained", "ablated", -0.4), ("random", "ablated", 0.3),
        )
    ]  # fmt: skip
    (row,) = paper_tables.table_12(pd.DataFrame(rows)).to_dict("records")
    assert (row["paper_random_z"], row["paper_ablated_chi2"]) == (2.13, 19.17)
    assert row["random_coefficient"] == pytest.approx(-0.4)
    assert row["coefficient_verdict"] == "differs"  # significant, but the paper's is positive
    assert row["chi2_verdict"] == "agrees"  # ablated untrained networks do better on the target in both
    assert (row["random_own_task"], row["random_density"]) == (pytest.approx(0.6), pytest.approx(0.1))
    assert (row["paper_random_own_task"], row["paper_random_density"]) == (1.0, pytest.approx((0.0286 + 0.0071) / 2))
    guessing = pd.DataFrame(rows).assign(own_task_accuracy=lambda table: table["own_task_accuracy"] - 0.3)
    (row,) = paper_tables.table_12(guessing).to_dict("records")
    assert row["random_own_task"] == pytest.approx(0.3)
    assert {row["coefficient_verdict"], row["chi2_verdict"]} == {"not comparable at this profile"}
    assert row["random_coefficient"] == pytest.approx(-0.4)  # shown all the same


def test_verdicts_without_masks_that_fail_their_own_task():
    """Three bases of two masks each; two masks fail and carry the effect, and so does a base that did not learn."""
    about = {"model": "tiny", "paper_model": "bert_small", "task": "sv-agreement", "number": "singular",
             "subroutine": "subject"}  # fmt: skip
    rows = [
        about | {"base_model": str(base), "key": f"{base}-{seed}", "network": network, "base_accuracy": learned,
                 "own_task_accuracy": own if network == "subnetwork" else 0.0, "difference": value}
        for base, seed, learned, own, value in (
            (0, 0, 1.0, 0.95, 0.0), (0, 1, 1.0, 0.5, 0.8), (1, 0, 1.0, 0.9, 0.002), (1, 1, 1.0, 0.5, 0.8),
            (2, 0, 0.5, 0.2, 0.7), (2, 1, 0.5, 0.95, 0.7),
        )
        for network in ("subnetwork", "ablated")
    ]  # fmt: skip
    table = paper_tables.effects(pd.DataFrame(rows), "tiny").set_index("network")
    row = table.loc["subnetwork"]
    assert (row["n_runs"], row["failed"]) == (4, 2) and row["ours"] == pytest.approx((0.4 + 0.401) / 2)
    assert row["ours_without_failed"] == pytest.approx((0.0 + 0.002) / 2)
    assert (row["verdict"], row["verdict_without_failed"]) == ("agrees", "differs")
    assert table.loc["ablated", "failed"] == 2
    failed = pd.DataFrame(rows).assign(own_task_accuracy=0.5)
    table = paper_tables.effects(failed, "tiny")
    assert set(table["failed"]) == {4} and table["ours_without_failed"].isna().all()
    assert set(table["verdict_without_failed"]) == {"not comparable at this profile"}
    some = failed.assign(own_task_accuracy=[0.5] * 4 + [0.95] * 8)  # one base is left, and one that did not learn
    table = paper_tables.effects(some, "tiny")
    assert list(table["ours_without_failed"]) == [pytest.approx(0.401)] * 2
