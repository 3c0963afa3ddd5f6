"""Statistics of shared heads, spread and ablations agree with counts made by hand, and tell effects from none."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from subnet_utils.core.study import Study
from subnet_utils.papers.heuristic_core import findings as unit_findings
from subnet_utils.papers.heuristic_core import published_cores as paper_cores
from subnet_utils.papers.heuristic_core import shared_core
from subnet_utils.papers.heuristic_core import tables as core_tables
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN
from subnet_utils.papers.heuristic_core.published import faithful_sizes, mean_sizes, onset

X, Y = "constituent_cn_x", "lexical_overlap_ln_y"


def masks(seeds: int, keep: int, core: int, *, heads: int = 24, seed: int = 0) -> list[torch.Tensor]:
    """Networks of `keep` of 24 heads; the first `core` are in all of them, the others are drawn."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(seeds):
        own = np.zeros(heads, dtype=int)
        own[:core] = 1
        own[core + rng.permutation(heads - core)[: keep - core]] = 1
        found.append(torch.tensor(own).view(4, 6))
    return found


def pair(lower: list[torch.Tensor], higher: list[torch.Tensor]) -> shared_core.Kept:
    """Networks of two sparsities, those of one seed in the same place."""
    return {0.3: dict(enumerate(lower)), 0.5: dict(enumerate(higher))}


def nested(seeds: int, keep: int, sparser: int, *, core: int = 0, seed: int = 0) -> shared_core.Kept:
    """Networks with few heads that lie in those with more, as those of one pruning seed may."""
    lower, rng = masks(seeds, keep, core, seed=seed), np.random.default_rng(seed + 1000)
    higher = []
    for own in lower:
        rest = np.flatnonzero(own.numpy().ravel())[core:]
        fewer = np.zeros(own.numel(), dtype=int)
        fewer[[*range(core), *rng.permutation(rest)[: sparser - core]]] = 1
        higher.append(torch.tensor(fewer).view_as(own))
    return pair(lower, higher)


def graded(seeds: int = 8) -> shared_core.Kept:
    """Independent networks, each head with a share of its own; three heads, in different layers, are in all."""
    rng, shares = np.random.default_rng(0), np.linspace(0.0, 0.9, 24).reshape(4, 6)
    shares[:3, 0] = 1
    lower, higher = (
        [torch.tensor(rng.random((4, 6)) < own).int() for _ in range(seeds)] for own in (shares, shares**2)
    )
    return pair(lower, higher)


def over_layers(kept: shared_core.Kept) -> shared_core.Kept:
    """The same with neighboring heads in different layers."""
    return {sparsity: {seed: one.view(6, 4).T for seed, one in group.items()} for sparsity, group in kept.items()}


def test_a_planted_core_is_found_and_chance_is_not_taken_for_one():
    kept = pair(masks(6, 17, 6), masks(6, 12, 6, seed=1))
    planted = shared_core.core_size(kept, draws=999)
    assert planted["core"] >= 6 and planted["p"] == pytest.approx(1 / 1000) and planted["networks"] == 12
    both = [int((kept[0.3][i] & kept[0.5][i]).sum()) for i in range(6)]
    assert planted["expected"] == pytest.approx(24 * np.prod([number / 24 for number in both]))
    assert planted["with_one_left_out"] >= planted["core"] and planted["p_less"] > 0.9 and planted["seeds"] == 6
    none = shared_core.core_size(pair(masks(6, 17, 0), masks(6, 12, 0, seed=9)), draws=999)
    assert none["p"] > 0.05 and none["p_less"] > 0.05


def test_networks_of_one_seed_that_are_alike_make_no_core():
    """Four seeds, the sparser network of each within the other: eight networks, but four draws."""
    found = [shared_core.core_size(nested(4, 16, 11, seed=i), draws=499) for i in range(25)]
    assert np.mean([one["core"] for one in found]) == pytest.approx(24 * (11 / 24) ** 4, abs=0.5)
    assert found[0]["expected"] == pytest.approx(24 * (11 / 24) ** 4)
    assert np.mean([one["p"] < 0.05 for one in found]) <= 0.12
    real = shared_core.core_size(nested(6, 17, 11, core=6), draws=999)
    assert real["core"] >= 6 and real["p"] < 0.01


def test_networks_of_one_seed_that_are_alike_correlate_by_chance():
    """Frequencies at two sparsities agree whenever a seed's networks do, whichever heads these keep."""
    found = [shared_core.correlation(nested(8, 16, 11, seed=i), draws=999) for i in range(40)]
    assert np.mean([one["rho"] for one in found]) > 0.4
    assert np.mean([one["expected"] for one in found]) == pytest.approx(np.mean([one["rho"] for one in found]), abs=0.1)
    assert np.mean([min(one["p"], one["p_less"]) < 0.025 for one in found]) <= 0.15
    some = shared_core.correlation(graded(), draws=999)
    assert some["p"] <= 0.005 and some["p_less"] > 0.99 and some["expected"] < 0.6 < some["rho"]


def test_a_seed_with_one_network_counts_with_what_that_has():
    kept = pair(masks(3, 16, 4), masks(3, 11, 4, seed=1))
    del kept[0.5][1]
    found = shared_core.core_size(kept, draws=9)
    left = kept[0.3][1] & kept[0.3][0] & kept[0.5][0] & kept[0.3][2] & kept[0.5][2]
    assert (found["core"], found["networks"], found["seeds"]) == (int(left.sum()), 5, 3)
    rho = stats.spearmanr(*(sum(group.values()).ravel() for group in kept.values())).statistic
    assert shared_core.correlation(kept, draws=9)["rho"] == pytest.approx(rho)


def test_a_layer_of_which_all_is_kept_makes_no_core_within_layers():
    whole_layer = pair(masks(6, 17, 6), masks(6, 12, 6, seed=1))  # the first six heads are the first layer
    found = shared_core.core_size(whole_layer, within_layers=True, draws=999)
    assert found["core"] == 6 and found["p"] > 0.5 and found["expected"] >= 6 and found["heads"] == 24
    found = shared_core.core_size(over_layers(whole_layer), within_layers=True, draws=999)
    assert found["core"] == 6 and found["p"] == pytest.approx(1 / 1000) and found["expected"] < 1


@pytest.mark.parametrize("within", [False, True])
def test_the_expected_core_is_the_mean_over_all_ways_to_choose(within):
    """Two seeds with 2 and 1 of 3 heads: every pair of choices, counted out; of two layers, the mean counts twice."""
    layers = 2 if within else 1
    kept = {0.3: {7: torch.tensor([[1, 1, 0], [1, 0, 0]][:layers]), 8: torch.tensor([[0, 1, 0], [0, 1, 1]][:layers])}}
    ways = [len(set(one) & {other}) for one in itertools.combinations(range(3), 2) for other in range(3)]
    found = shared_core.core_size(kept, within_layers=within, draws=9)
    assert found["expected"] == pytest.approx(layers * np.mean(ways))


def test_a_seed_is_left_out_at_both_sparsities_at_once():
    """By hand: rho without each seed at both."""
    lower, higher = masks(4, 12, 4), masks(4, 10, 4, seed=3)

    def on_fishers_scale(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
        frequencies = (sum(group).numpy().ravel() for group in (one, other))
        return math.atanh(stats.spearmanr(*frequencies).statistic)

    rest = [([*lower[:i], *lower[i + 1 :]], [*higher[:i], *higher[i + 1 :]]) for i in range(4)]
    without = [on_fishers_scale(*both) for both in rest]
    variance = 3**2 / 4 * float(np.var(without, ddof=1))
    found = shared_core.correlation(pair(lower, higher), draws=9)
    reach = (math.atanh(found["high"]) - math.atanh(found["low"])) / 2
    assert reach == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(variance))


def test_a_ratio_that_hangs_on_one_seed_says_so():
    inside, outside = [0.9, 0.91, 0.92, 0.93], [0.9, 0.91, 0.92, 0.1]
    rows = [{"target_sparsity": 0.5, "seed": seed, "domain": domain, "accuracy": accuracy}
            for domain, values in (("in domain", inside), ("out of domain", outside))
            for seed, accuracy in enumerate(values)]  # fmt: skip
    (row,) = unit_findings._differently(pd.DataFrame(rows))
    without = [np.std(np.delete(outside, i)) / np.std(np.delete(inside, i)) for i in range(4)]
    assert (row["least"], row["most"]) == pytest.approx((1, max(without)))
    assert row["least"] < row["our_value"] < row["most"]


def test_spread_is_held_against_what_sampling_explains():
    values = {"close": [0.5, 0.51, 0.49], "far": [0.1, 0.5, 0.9]}
    rows = [{"target_sparsity": 0.5, "seed": seed, "set": name, "name": name, "accuracy": value, "full": 0.9}
            for name, own in values.items() for seed, value in enumerate(own)]  # fmt: skip
    table = unit_findings.spread(pd.DataFrame(rows), {"close": 100, "far": 100}).set_index("name")
    assert table.loc["close", "p"] > 0.9 and table.loc["far", "p"] < 1e-6
    assert table.loc["far", "std"] == pytest.approx(0.4) and table.loc["far", "sampling"] == pytest.approx(0.05)


def ablated(core: list[float], others: list[float], joint: float, groups: list[float]) -> pd.DataFrame:
    rows = [{"ablated": f"L0.H{i}", "draw": 0, "in_core": i < len(core), "layer": 0, "head": i, "lost": lost}
            for i, lost in enumerate([*core, *others])]  # fmt: skip
    rows.append({"ablated": "core", "draw": 0, "in_core": True, "lost": joint})
    rows += [{"ablated": "others", "draw": i, "in_core": False, "lost": lost} for i, lost in enumerate(groups)]
    sets = [("in domain", 0.0), (X, 1.0), (Y, 3.0), ("constituent_ce_z", 4.0)]
    return pd.DataFrame([row | {"set": name, "full": 0.9, "accuracy": 0.9 - times * row["lost"]}
                         for row in rows for name, times in sets])  # fmt: skip


def test_drops_are_means_over_the_sets_out_of_domain():
    lost = unit_findings.drops(ablated([0.1], [0.0, 0.02], 0.2, [0.05]), (X, Y))
    found = lost.set_index("ablated")["out_of_domain"]
    assert found["L0.H0"] == pytest.approx(0.2) and found["core"] == pytest.approx(0.4)
    assert lost["in_domain"].abs().max() < 1e-12
    row = lost.set_index("ablated").loc["L0.H0"]
    assert row["entailed"] == pytest.approx(0.4) and row["balanced"] == pytest.approx(0.3)
    both = unit_findings.drops(ablated([], [0.3], 0.0, []).query("ablated == 'L0.H0'"), (X, Y))
    table = unit_findings.ablation_table(lost, both.assign(ablated="L0.H0+L0.H2")).set_index("ablated")
    at_once, beyond = table.loc[paper_cores.STRONGEST], table.loc[paper_cores.BEYOND]
    assert at_once["out_of_domain"] == pytest.approx(2 * 0.3)
    assert beyond["out_of_domain"] == pytest.approx(2 * (0.3 - (0.1 + 0.02))) and beyond["entailed"] > 0
    assert table.loc["one other head, mean", "out_of_domain"] == pytest.approx(0.02)
    assert table.loc["as many others at once, mean", "networks"] == 1


def early(core: list[float], others: list[float]) -> pd.DataFrame:
    """Shares of heads that are kept, by seed; later all of the core's are, whatever they were at first."""
    return pd.DataFrame(
        {"step": step, "sparsity": 0.7, "seed": seed, "core": 1.0 if step > 2 else inside, "others": outside}
        for step in (5, 2)
        for seed, (inside, outside) in enumerate(zip(core, others, strict=True))
    )


def sizes(changes: dict[str, tuple[float, ...]], seeds: int, noise: float = 0.0) -> pd.DataFrame:
    """Effective sizes by domain at steps 1, 3 and 5, or 1 and 5; the last ones differ from seed to seed by noise."""
    return pd.DataFrame(
        {"step": step, "domain": domain, "seed": seed, "accuracy": step / 10,
         "effective_size": size + noise * seed * (step == 5)}
        for domain, own in changes.items() for seed in range(seeds)
        for step, size in zip((1, 3, 5) if len(own) == 3 else (1, 5), own, strict=True)
    )  # fmt: skip


def sparser(accuracy: float, spread: float = 0.005) -> pd.DataFrame:
    """Twelve networks of a higher sparsity around an accuracy out of domain; in domain they are more alike."""
    return pd.DataFrame({"target_sparsity": 0.7, "seed": seed, "domain": domain,
                         "accuracy": center + wide * (-1) ** seed}
                        for domain, center, wide in (("out of domain", accuracy, spread), ("in domain", 0.9, 0.001))
                        for seed in range(12))  # fmt: skip


def verdicts(finding: str = "", **change) -> dict[str, str]:
    rng = np.random.default_rng(0)
    parts = {
        "domains": pd.DataFrame(
            {"target_sparsity": 0.5, "seed": i, "domain": domain, "accuracy": 0.5 + wide * rng.standard_normal()}
            for domain, wide in (("in domain", 0.01), ("out of domain", 0.2), ("balanced", 0.1)) for i in range(12)
        ),
        "kept": graded(),
        "sizes": sizes({"in domain": (0.4, 0.4, 0.4), "out of domain": (0.4, 0.6, 0.8), "balanced": (0.4, 0.55, 0.7)},
                       6, noise=0.01),
        "lost": unit_findings.drops(ablated([0.1] * 5, [0.0] * 15, 0.4, [0.02] * 40), (X, Y)),
        "early": early([0.9, 1.0, 0.8], [0.3, 0.4, 0.3]),
    }  # fmt: skip
    parts["domains"] = pd.concat([parts["domains"], sparser(0.05)])
    table = unit_findings.findings(**parts | change, paper={"core": 9.0, "lost out of domain": 0.06})
    compared = table.dropna(subset="paper_value")
    assert set(compared["paper_value"]) == {9.0, 0.06}
    assert compared["statistic"].iloc[0].startswith("heads in all")
    found = {f"{row.finding} {row.statistic}": row.verdict for row in table.itertuples()}
    return {name: verdict for name, verdict in found.items() if name.startswith(finding)}


def test_every_finding_holds_where_it_was_planted():
    found = verdicts()
    sparser_differ = {name for name in found if name.startswith("5") and "spread" in name}
    assert len(found) == 18 and {found[name] for name in found.keys() - sparser_differ} == {"holds"}, found
    assert {found[name] for name in sparser_differ} == {"does not hold"}  # they are less alike out of domain, too


def test_a_core_that_comes_late_is_seen_at_the_first_checkpoint():
    def verdict(*shares: list[float]) -> str:
        (found,) = (one for name, one in verdicts(early=early(*shares)).items() if "kept at step 2," in name)
        return found

    assert verdict([0.9, 1.0, 0.8], [0.3, 0.4, 0.3]) == "holds"
    assert verdict([0.1, 0.2, 0.1], [0.6, 0.7, 0.7]) == "does not hold"
    assert verdict([0.5, 0.9, 0.1], [0.4, 0.3, 0.5]) == "cannot be told"
    without = verdicts(early=early([math.nan] * 3, [0.4] * 3))  # no head is in all networks
    assert not any("kept at step" in name for name in without) and len(without) == 17


def test_findings_do_not_hold_where_the_opposite_was_planted():
    reverse = unit_findings.drops(ablated([0.0] * 5, [0.1] * 15, 0.0, [0.4] * 40), (X, Y))
    assert [*verdicts("4", lost=reverse).values()] == ["does not hold"] * 6
    shrinking = sizes({"in domain": (0.9, 0.4), "out of domain": (0.9, 0.4)}, 6, noise=0.01)
    found = verdicts("3", sizes=shrinking)
    assert set(found.values()) == {"does not hold"}, found  # it shrinks in domain, where it should be flat, too


def test_losses_that_only_follow_layers_are_told_apart_from_the_cores():
    lost = unit_findings.drops(ablated([0.1] * 5, [0.1] * 5 + [0.0] * 10, 0.1, [0.1] * 40), (X, Y))
    single = lost["layer"].notna()
    lost.loc[single, "layer"] = [0] * 10 + [1] * 10  # the core lies in a layer whose heads all matter
    found = verdicts(lost=lost)
    within = {value for name, value in found.items() if "within layers" in name}
    plain = {value for name, value in found.items() if name.endswith("core less others")}
    assert within == {"cannot be told"} and plain == {"holds"}


def test_a_core_of_one_head_is_compared_with_every_other_head_once():
    """One of 32: however much it costs, two sides leave p = 2/32."""
    table = ablated([0.3], np.linspace(0, 0.2, 31), 0.3, np.linspace(0, 0.2, 31))
    found = list(unit_findings._harms(unit_findings.drops(table, (X, Y))))
    rows = [row for row in found if "within layers" not in row["statistic"]]
    assert [(row["p"], row["least_p"], row["verdict"]) for row in rows] == [(2 / 32, 2 / 32, "cannot be told")] * 4


def test_groups_of_other_heads_are_different_ones():
    heads = [(layer, head) for layer in range(2) for head in range(5)]
    groups = core_tables._other_groups(heads, 3, 49)
    assert len(set(groups)) == 49 and all(len(set(group)) == 3 for group in groups)
    assert len(core_tables._other_groups(heads, 1, 49)) == 10 and core_tables._other_groups(heads, 0, 49) == []
    assert core_tables._other_groups(heads, 11, 49) == []  # fewer than the core has


def test_a_seed_without_a_change_cannot_make_p_smaller():
    own = sizes({"out of domain": (0.4, 0.8)}, 6)
    own.loc[(own["seed"] == 0) & (own["step"] == own["step"].max()), "effective_size"] = 0.4
    row = next(unit_findings._grows(own))
    assert (row["p"], row["least_p"], row["verdict"]) == (0.0625, 0.0625, "cannot be told")


def test_few_draws_no_core_and_equal_seeds_tell_nothing():
    few = unit_findings.drops(ablated([0.1] * 5, [0.0] * 15, 0.4, [0.02] * 5), (X, Y))
    found = verdicts(lost=few)
    assert {value for name, value in found.items() if "without all" in name} == {"cannot be told"}
    none = unit_findings.drops(ablated([], [0.0] * 20, 0.4, [0.02] * 40), (X, Y))
    found = verdicts("4", lost=none)
    assert set(found.values()) == {"cannot be told"} and all("no head is in all networks" in name for name in found)
    ceiling = sizes({"in domain": (1.0, 1.0), "out of domain": (1.0, 1.0)}, 3)
    assert set(verdicts("3", sizes=ceiling).values()) == {"cannot be told"}
    for seeds, says in ((1, "cannot be told"), (5, "cannot be told"), (6, "holds")):  # 2 * 2 ** -5 is above .05
        assert set(verdicts("3", sizes=sizes({"out of domain": (0.4, 0.8)}, seeds)).values()) == {says}
    empty = pair(masks(6, 12, 0), masks(6, 12, 0, seed=9))
    found = {name: value for name, value in verdicts(kept=empty).items() if "heads in all" in name}
    assert set(found.values()) == {"cannot be told"}


def test_seeds_that_agree_in_domain_to_the_last_pair_do_not_hide_a_spread_outside():
    rng = np.random.default_rng(3)
    flat = pd.DataFrame({"target_sparsity": 0.5, "seed": i, "domain": domain, "accuracy": value}
                        for i in range(12)
                        for domain, value in (("in domain", 1.0), ("out of domain", rng.random())))  # fmt: skip
    assert set(verdicts("1", domains=flat).values()) == {"holds"}


def test_one_network_far_off_makes_no_spread():
    """Eleven networks alike in both domains and one that lost all: swaps call that a spread, ranks do not."""
    inside = 0.9 + 0.01 * np.array([0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 0.5])
    outside = np.roll(inside, 3)
    outside[4] = 0.0
    rows = pd.DataFrame({"target_sparsity": 0.5, "seed": i, "domain": domain, "accuracy": values[i]}
                        for domain, values in (("in domain", inside), ("out of domain", outside))
                        for i in range(12))  # fmt: skip
    (row,) = unit_findings._differently(rows)
    centered = [values - np.mean(values) for values in (outside, inside)]
    ratios = [abs(np.log(np.var(np.where(swap, *centered)) / np.var(np.where(swap, *centered[::-1]))))
              for swap in itertools.product((True, False), repeat=12)]  # fmt: skip
    assert row["p"] == pytest.approx(np.mean(np.array(ratios) >= ratios[0] - 1e-9))
    further = abs(outside - np.median(outside)) - abs(inside - np.median(inside))
    ranks = stats.rankdata(abs(further)) * np.sign(further)
    sums = np.array([np.dot(abs(ranks), signs) for signs in itertools.product((1, -1), repeat=12)])
    assert row["rank_p"] == pytest.approx(np.mean(abs(sums) >= abs(ranks.sum()) - 1e-9), abs=0.02)
    assert row["least_p"] == 2 / 2**12 and row["rank_p"] > 0.2 and row["verdict"] == "cannot be told"


def test_the_rank_test_keeps_its_level_with_heavy_tails():
    rng = np.random.default_rng(0)
    found = [unit_findings._paired_ranks(*rng.standard_t(2, size=(2, 12)))[0] for _ in range(400)]
    assert np.mean(np.array(found) < 0.05) < 0.07


@pytest.mark.parametrize(
    ("accuracy", "spread", "says"),
    [(0.05, 0.005, "holds"), (0.0, 0.0, "holds"), (0.6, 0.005, "does not hold"), (0.1, 0.1, "cannot be told")],
)
def test_sparser_networks_are_pure_heuristic_below_a_tenth(accuracy, spread, says):
    domains = pd.concat([sparser(0.9).assign(target_sparsity=0.5), sparser(accuracy, spread)])
    (row,) = unit_findings._heuristic(domains)
    assert (row["verdict"], row["n"]) == (says, 12) and row["our_value"] == pytest.approx(accuracy)
    values = domains[(domains["target_sparsity"] == 0.7) & (domains["domain"] == "out of domain")]["accuracy"]
    reach = stats.t.ppf(0.975, 11) * stats.sem(values)
    assert (row["low"], row["high"]) == pytest.approx((accuracy - reach, accuracy + reach))


def test_the_papers_own_numbers_are_tested_alike():
    table = unit_findings.of_published().set_index(["task", "statistic"])
    grown = table[table["finding"].str.startswith("3") & table["p"].notna()]
    assert len(grown) == 4 and set(grown["least_p"]) <= {0.25, 0.5} and set(grown["verdict"]) == {"cannot be told"}
    lower = table.loc[("MNLI", "50% sparsity: spread over seeds, out of domain / in domain")]
    assert lower["verdict"] == "holds" and lower["rank_p"] < 0.01
    sparse = table[table["finding"].str.startswith("5") & table["p"].isna()]
    assert set(sparse["verdict"]) == {"holds"} and sparse["recomputed"].max() < 0.02 and set(sparse["n"]) == {12}
    spread = table[table["finding"].str.startswith("5") & table["p"].notna()]
    assert len(spread) and set(spread["verdict"]) == {"cannot be told"}  # none was found, which shows none to be absent


def test_paper_profiles_can_show_that_a_size_grows():
    for name in ("paper", "paper_qqp", "paper_roberta", "paper_gpt2"):
        pruning = Study.load(name).heuristic_core.pruning
        assert unit_findings._least(len(pruning.grid_seeds)) < unit_findings.LEVEL
        assert len(pruning.grid_sparsities) > 12 and max(pruning.grid_sparsities) >= 0.65


def test_the_cores_interval_covers_the_core_of_another_sample():
    """Networks drawn twice from the same shares of heads: the first sample's interval has the second one's core."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(30):
        share = rng.beta(0.6, 0.6, size=32)

        def draw(share=share) -> list:
            return [torch.tensor(rng.random(32) < share).view(4, 8) for _ in range(12)]

        first, second = (pair(draw(), draw()) for _ in range(2))
        found = shared_core.core_size(first, draws=400)
        other = int(torch.stack([one for group in second.values() for one in group.values()]).all(dim=0).sum())
        inside += found["low"] <= other <= found["high"]
    assert inside >= 26  # of 30; 95% would be 28.5


def test_one_seed_leaves_the_correlation_without_an_interval():
    found = shared_core.correlation(pair(masks(1, 12, 3), masks(1, 10, 3)), draws=99)
    assert np.isnan(found["low"]) and np.isfinite(found["rho"]) and found["p"] > 0.025
    without = shared_core.correlation(pair(masks(2, 24, 24), masks(2, 10, 3)), draws=99)
    assert np.isnan(without["rho"]) and np.isnan(without["p"])
    *_, row = unit_findings._shared(pair(masks(2, 24, 24), masks(2, 10, 3)))
    assert row["verdict"] == "cannot be told" and np.isnan(row["p"])


def test_networks_that_differ_most_are_chosen():
    points = {0: (0.0, 0.0), 1: (0.1, 0.0), 2: (1.0, 0.0), 3: (0.9, 0.1), 4: (0.4, 0.8)}
    sets = (X, Y, "constituent_ce_z", IN_DOMAIN)
    rows = [{"target_sparsity": sparsity, "seed": seed, "set": name, "name": name, "accuracy": value}
            for sparsity in (0.3, 0.5) for seed, point in points.items()
            for name, value in zip(sets, (*point, 5 * seed, 0.9), strict=True)]  # fmt: skip
    table = unit_findings.differing(pd.DataFrame(rows))
    assert sorted(table["seed"].unique()) == [0, 2, 4] and len(table) == 6
    assert set(table["target_sparsity"]) == {0.3} and set(table["set"]) == {X, Y}
    two = pd.DataFrame(rows)
    assert sorted(unit_findings.differing(two[two["seed"] < 2])["seed"].unique()) == [0, 1]
    one = unit_findings.differing(two[two["seed"] == 2])
    assert one["seed"].unique().tolist() == [2]


def test_the_paper_stands_beside_the_same_rank_and_set():
    names = ["in domain", "Rel-Subj", "in domain"]
    ours = pd.DataFrame({"target_sparsity": [0.25, 0.25, 0.5], "name": names, "mean": 0.9})
    table = unit_findings.with_paper(ours, paper_cores.spread("bert_mnli"))
    assert table["paper_sparsity"].tolist()[::2] == [0.5, 0.7] and table["paper_sparsity"].isna().tolist()[1]
    assert table["paper_full"].tolist()[::2] == [0.8334, 0.8334] and len(table) == 3


def test_two_cores_count_the_heads_that_both_ways_find():
    lost = unit_findings.drops(ablated([0.3, 0.2, 0.0], [0.25, 0.0, 0.0], 0.5, [0.1]), (X, Y))
    frequencies = pd.DataFrame({"layer": 0, "head": range(6), "lower": [6, 6, 6, 2, 1, 0], "higher": 0})
    row = unit_findings.two_cores(lost, frequencies).iloc[0]
    assert (row["core"], row["shared"]) == (3, 2) and row["expected"] == pytest.approx(1.5)
    # of 20 ways to choose three of six heads, 1 shares all three and 9 share two
    assert row["p"] == pytest.approx(2 * 10 / 20)
    all_three = lost.assign(out_of_domain=lost["out_of_domain"] + lost["in_core"])
    assert unit_findings.two_cores(all_three, frequencies).iloc[0]["p"] == pytest.approx(2 / 20)
    assert row["rho"] == pytest.approx(0.4839, abs=1e-4)
    alike = unit_findings.two_cores(lost, frequencies.assign(lower=6)).iloc[0]
    assert math.isnan(alike["rho"]) and math.isnan(alike["rho_p"]), "without ranks nothing is correlated"


def test_effective_size_is_that_of_the_sparsest_faithful_network_of_each_seed():
    full = pd.DataFrame({"step": [1], "domain": ["d"], "accuracy": [0.8]})
    pruned = pd.DataFrame({"step": 1, "domain": "d", "seed": [0, 0, 0, 1, 1, 1], "sparsity": [0.1, 0.3, 0.5] * 2,
                           "accuracy": [0.79, 0.5, 0.78, 0.1, 0.2, 0.3]})  # fmt: skip
    found = faithful_sizes(full, pruned)
    assert found.set_index("seed")["effective_size"].to_dict() == {0: 0.5, 1: 1.0}
    mean = mean_sizes(found).iloc[0]
    assert mean["effective_size"] == 0.75 and mean["smallest_possible"] == 0.5 and mean["n_runs"] == 2


def test_the_onset_of_generalization_comes_after_the_lowest_accuracy():
    assert onset(pd.Series({500: 0.9, 10_000: 0.05, 20_000: 0.2, 30_000: 0.5})) == 20_000
    assert onset(pd.Series({500: 0.9, 10_000: 0.5})) is None


def test_draws_without_a_correlation_do_not_count():
    one = [torch.tensor([[True, False]])] * 2  # half of the draws have both heads equally often
    found = shared_core.correlation(pair(one, one), draws=99)
    assert (found["rho"], found["p"], found["p_less"]) == (1, 1, 1)
