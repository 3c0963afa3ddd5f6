"""The statistics against statsmodels, brute-force resampling, hand-computed cases and the paper's Tables 1 and 12."""

import math
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.break_it_down.statistics import (
    clamped_difference,
    compositionality_table,
    random_control_table,
)
from subnet_utils.statistics import by_base, permutation_test, runs_needed, stars, t_interval, wild_bootstrap

NUMBERS = ["intercept_z", "intercept_p", "ablated_chi2", "ablated_p"]
quick = settings(max_examples=30, deadline=None)


def frame(subnetwork: dict, ablated: dict) -> pd.DataFrame:
    """Return the effects of one model, task and subroutine from {base: values of its runs}."""
    rows = [
        (base, network, value)
        for network, runs in (("subnetwork", subnetwork), ("ablated", ablated))
        for base, values in runs.items()
        for value in values
    ]
    effects = pd.DataFrame(rows, columns=["base_model", "network", "difference"])
    return effects.assign(model="resnet50", task="inside-contact", subroutine="contact")


def balanced(subnetwork: list[list[float]], ablated: list[list[float]]) -> pd.DataFrame:
    return frame(dict(enumerate(subnetwork)), dict(enumerate(ablated)))


def one(effects: pd.DataFrame) -> pd.Series:
    table = compositionality_table(effects)
    assert len(table) == 1
    return table.iloc[0]


@st.composite
def frames(draw, least: int = 1, bases: int = 4) -> pd.DataFrame:
    """Effects of 2 to 4 bases with `least` to 3 runs of each network in each."""
    difference = st.integers(-75, 75).map(lambda percent: percent / 100)
    runs = st.lists(difference, min_size=least, max_size=3)
    n = draw(st.integers(2, bases))
    effects = balanced([draw(runs) for _ in range(n)], [draw(runs) for _ in range(n)])
    assume(effects["network"].nunique() == 2)
    return effects


def glm(effects: pd.DataFrame) -> tuple[float, float, float, float]:
    """Return z, p, chi2, p of the paper's GLM, fitted by statsmodels."""
    design = np.column_stack([np.ones(len(effects)), effects["network"] == "ablated"])
    groups = pd.factorize(effects["base_model"])[0]
    options = {"groups": groups, "use_correction": False}
    fit = sm.OLS(effects["difference"], design).fit(cov_type="cluster", cov_kwds=options, use_t=False)
    n_bases = groups.max() + 1
    covariance = fit.cov_params().to_numpy() * n_bases / (n_bases - 1)
    z = fit.params.iloc[0] / math.sqrt(covariance[0, 0])
    chi2 = fit.params.sum() ** 2 / covariance.sum()
    return z, 2 * stats.norm.sf(abs(z)), chi2, stats.chi2.sf(chi2, 1)


def has_errors(effects: pd.DataFrame) -> bool:
    """Tell whether the means of the bases differ in both networks, so that z and chi2 are finite numbers."""
    means = effects.groupby(["network", "base_model"])["difference"].mean()
    return bool(means.groupby("network").agg(np.ptp).min() > 1e-6)


@quick
@given(frames())
def test_glm_is_the_one_of_statsmodels(effects):
    assume(has_errors(effects))
    np.testing.assert_allclose(one(effects)[NUMBERS].astype(float), glm(effects), rtol=1e-6, atol=1e-12)


def test_glm_counts_the_bases_of_both_networks():
    """A base with runs of one network only still is one of the GLM's clusters."""
    effects = frame({"a": [0.5, 0.4], "b": [0.3], "c": [0.6]}, {"a": [-0.1], "b": [-0.3, -0.2]})
    row = one(effects)
    np.testing.assert_allclose(row[NUMBERS].astype(float), glm(effects), rtol=1e-9)
    assert (row["n_bases"], row["n_runs"]) == (3, 4)
    z = math.sqrt(row["ablated_chi2"])
    assert row["ablated_t_p"] == pytest.approx(2 * stats.t.sf(z, 1))  # two bases have ablated models


def test_two_bases_by_hand():
    """Two bases: z = (a + b) / |a - b| for their means a and b, whatever the runs within them."""
    row = one(balanced([[0.3, 0.5], [0.1, 0.3]], [[-0.2, -0.4], [0.1, 0.1]]))
    assert row["intercept_z"] == pytest.approx((0.4 + 0.2) / (0.4 - 0.2))
    assert row["ablated_chi2"] == pytest.approx((0.2 / 0.4) ** 2)
    assert row["intercept_t_p"] == pytest.approx(1 - 2 / math.pi * math.atan(3))  # a t(1) is a Cauchy variable
    assert row["subnetwork_difference"] == pytest.approx(0.3)
    assert row["ablated_difference"] == pytest.approx(-0.1)
    assert row["intercept_stars"] == "**" and row["ablated_stars"] == ""


def test_the_two_bases_of_resnet50_inside_contact():
    """Table 1 prints z = 3.00** from two bases: p is .003 as z, .20 as t(1), .5 in a wild bootstrap."""
    table = reference.load("table1")
    printed = table.query("model == 'resnet50' and task == 'inside-contact' and subroutine == 'contact'").iloc[0]
    row = one(balanced([[0.4] * 3, [0.2] * 3], [[0.1] * 3, [-0.2] * 3]))  # any bases with a = 2 b give z = 3
    assert row["intercept_z"] == pytest.approx(printed["intercept_z"], abs=0.01)
    assert row["intercept_stars"] == printed["intercept_stars"] == "**"
    assert row["intercept_p"] == pytest.approx(0.0027, abs=5e-5)
    assert row["intercept_t_p"] == pytest.approx(0.2048, abs=5e-5)
    assert row["intercept_wild_p"] == 0.5


@quick
@given(frames(), st.randoms(use_true_random=False), st.sampled_from([0.01, 0.5, 7.0]))
def test_order_names_and_scale_do_not_matter(effects, random, factor):
    row = one(effects)
    order = random.sample(range(len(effects)), len(effects))
    names = {base: f"base {name}" for base, name in zip(range(4), random.sample(range(9), 4), strict=True)}
    other = effects.iloc[order].assign(base_model=effects["base_model"].map(names))
    pd.testing.assert_series_equal(row, one(other), rtol=0, atol=0)

    scaled = one(effects.assign(difference=factor * effects["difference"]))
    tests = [name for name in row.index if name.startswith(("intercept", "ablated_chi2", "ablated_p", "ablated_wild"))]
    pd.testing.assert_series_equal(row[tests], scaled[tests], rtol=1e-6)
    means = ["subnetwork_difference", "ablated_difference"]
    np.testing.assert_allclose(scaled[means].astype(float), factor * row[means].astype(float), atol=1e-12)

    mirrored = one(effects.assign(difference=-effects["difference"]))
    assert mirrored["intercept_z"] == pytest.approx(-row["intercept_z"], nan_ok=True)
    assert mirrored["intercept_wild_p"] == pytest.approx(row["intercept_wild_p"], nan_ok=True)


def wild_by_regression(effects: pd.DataFrame, contrast: list[float]) -> float:
    """Return the wild cluster bootstrap p-value of contrast @ beta = 0 by regressions on the full design."""
    design = np.column_stack([np.ones(len(effects)), effects["network"] == "ablated"]).astype(float)
    y, codes = effects["difference"].to_numpy(), pd.factorize(effects["base_model"])[0]
    contrast, bread = np.array(contrast), np.linalg.inv(design.T @ design)

    def statistic(response: np.ndarray) -> float:
        beta = bread @ design.T @ response
        scores = design * (response - design @ beta)[:, None]
        sums = np.array([scores[codes == code].sum(axis=0) for code in range(codes.max() + 1)])
        return abs(contrast @ beta) / math.sqrt(contrast @ bread @ sums.T @ sums @ bread @ contrast)

    beta = bread @ design.T @ y
    restricted = beta - bread @ contrast * (contrast @ beta) / (contrast @ bread @ contrast)
    fitted = design @ restricted
    signs = product((1, -1), repeat=codes.max() + 1)
    replicates = np.array([statistic(fitted + np.array(sign)[codes] * (y - fitted)) for sign in signs])
    return float(np.mean(replicates >= statistic(y) * (1 - 1e-9)))


@pytest.mark.parametrize("seed", range(4))
def test_wild_bootstrap_is_the_one_of_the_whole_regression(seed):
    """Unequal numbers of runs, so that no shortcut by symmetry helps."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, (2, 4))
    effects = balanced(*([list(rng.normal(0.1, 0.3, n)) for n in row] for row in sizes))
    row = one(effects)
    assert row["intercept_wild_p"] == wild_by_regression(effects, [1, 0])
    assert row["ablated_wild_p"] == wild_by_regression(effects, [1, 1])


def test_wild_bootstrap_reaches_its_smallest_p_value_and_no_less():
    for n_bases in (2, 3, 6):
        values = [[0.3 + 0.01 * base] * 2 for base in range(n_bases)]
        row = one(balanced(values, values))
        assert row["intercept_wild_p"] == 2 / 2**n_bases


def test_wild_bootstrap_of_many_bases_draws_by_seed():
    rng = np.random.default_rng(0)
    sums = rng.normal(0.02, 0.1, 13)
    runs = by_base(sums, range(13))
    # equal sizes make the studentized statistic a growing function of |sum of signs * values|
    signs = np.array(list(product((1, -1), repeat=13)))
    exact = np.mean(abs(signs @ sums) >= abs(sums.sum()) - 1e-12)
    first, again, other = (wild_bootstrap(runs, seed=seed, draws=9999) for seed in (0, 0, 1))
    assert first == again != other
    assert first == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 9999))
    certain = by_base([0.5 + base / 100 for base in range(30)], range(30))
    assert wild_bootstrap(certain, seed=0, draws=99) == 0.01


def test_t_interval_is_the_one_of_scipy_over_base_means():
    values, clusters = [0.1, 0.3, 0.6, 0.5], ["a", "a", "b", "c"]
    means = [0.2, 0.6, 0.5]
    expected = stats.t.interval(0.95, 2, loc=np.mean(means), scale=stats.sem(means))
    interval = t_interval(values, clusters)
    assert interval == t_interval(torch.tensor(values, dtype=torch.float64), torch.tensor([5, 5, 6, 7]))
    assert interval.mean == pytest.approx(np.mean(means))
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_one_base_has_means_and_nothing_else():
    row = one(balanced([[0.5, 0.6]], [[-0.2, 0.0]]))
    assert (row["n_bases"], row["n_runs"]) == (1, 2)
    assert (row["subnetwork_difference"], row["ablated_difference"]) == pytest.approx((0.55, -0.1))
    rest = row.drop(["model", "task", "subroutine", "n_bases", "n_runs", "subnetwork_difference", "ablated_difference"])
    assert list(rest.filter(like="stars")) == ["", ""]
    assert rest.drop(["intercept_stars", "ablated_stars"]).isna().all()
    interval = t_interval([0.5, 0.6], [0, 0])
    assert interval.mean == pytest.approx(0.55) and math.isnan(interval.low) and math.isnan(interval.high)


@pytest.mark.parametrize("value", [0.3, 0.1, 0.7, -0.1])
def test_equal_runs_have_no_error(value):
    """Values whose sums round: the residuals must count as zero, not as 1e-17."""
    row = one(balanced([[value] * 3, [value] * 6, [value] * 7], [[0.0] * 3] * 3))
    assert row["intercept_z"] == math.copysign(math.inf, value) and row["intercept_p"] == 0
    assert row["intercept_stars"] == "***" and row["intercept_t_p"] == 0 and row["intercept_wild_p"] == 0.25
    assert math.isnan(row["ablated_chi2"]) and math.isnan(row["ablated_p"]) and math.isnan(row["ablated_wild_p"])
    assert row["ablated_difference"] == 0 and row["ablated_stars"] == ""


def test_a_network_without_runs_or_with_one_base_is_nan():
    row = one(frame({0: [0.5], 1: [0.4]}, {}))
    assert row["intercept_z"] == pytest.approx(9)
    assert row.filter(regex="^ablated").drop("ablated_stars").isna().all()
    row = one(frame({0: [0.5], 1: [0.4]}, {0: [-0.3, -0.2]}))  # no residual must not become certainty
    assert math.isnan(row["ablated_chi2"]) and row["ablated_stars"] == "" and row["ablated_difference"] == -0.25


def test_rows_are_sorted_and_groups_separate():
    base = balanced([[0.5], [0.4]], [[-0.3], [-0.1]])
    other = base.assign(subroutine="inside", difference=base["difference"] / 2 + 0.01)
    table = compositionality_table(pd.concat([other, base, base.assign(model="bert_small")], ignore_index=True))
    keys = list(zip(table["model"], table["subroutine"], strict=True))
    assert keys == [("bert_small", "contact"), ("resnet50", "contact"), ("resnet50", "inside")]
    pd.testing.assert_series_equal(table.iloc[1], one(base), check_names=False)
    pd.testing.assert_series_equal(table.iloc[2], one(other), check_names=False)


def test_bases_of_different_number_are_different_bases():
    rng = np.random.default_rng(3)
    singular = balanced(rng.normal(size=(3, 3)).tolist(), rng.normal(size=(3, 3)).tolist())
    plural = singular.assign(difference=rng.normal(size=18))
    both = pd.concat([singular.assign(number="singular"), plural.assign(number="plural")])
    renamed = pd.concat([singular, plural.assign(base_model=plural["base_model"] + 3)])
    assert one(both)["n_bases"] == 6 and one(both.drop(columns="number"))["n_bases"] == 3
    pd.testing.assert_series_equal(one(both), one(renamed))
    assert one(singular.assign(number=None))["n_bases"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.drop(columns="difference"), "no column 'difference'"),
        (lambda e: e.replace("ablated", "Ablated"), "unknown network 'Ablated' .* 'subnetwork' or 'ablated'"),
        (lambda e: e.assign(difference=[math.nan, *e["difference"][1:]]), "1 rows .* no finite 'difference'"),
        (lambda e: e.assign(difference=[math.inf, *e["difference"][1:]]), "no finite 'difference'"),
        (lambda e: e.assign(base_model=[None, *e["base_model"][1:]]), "1 rows .* no 'base_model'"),
        (lambda e: e.assign(task=None), "4 rows .* no 'task'"),
    ],
)
def test_bad_effects_are_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        compositionality_table(change(balanced([[0.5], [0.4]], [[-0.3], [-0.1]])))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "clusters", "message"),
    [
        ([], [], "one finite value or more"),
        ([0.1, math.nan], [0, 1], "one finite value or more"),
        ([0.1, 0.2], [0, None], "one finite value or more"),
        ([0.1, 0.2], [0], "2 values but 1 clusters"),
    ],
)
def test_bad_values_are_refused_in_one_line(values, clusters, message):
    with pytest.raises(ValueError, match=message):
        t_interval(values, clusters)


def test_clamped_difference_by_hand():
    assert clamped_difference(1.0, 0.1) == 0.75
    assert clamped_difference(0.2, 0.1) == 0
    assert clamped_difference(0.1, 1.0) == -0.75
    assert clamped_difference(0.9, 0.5) == pytest.approx(0.4)
    series = clamped_difference(pd.Series([1.0, 0.25], index=[7, 8]), pd.Series([0.0, 0.5], index=[7, 8]))
    pd.testing.assert_series_equal(series, pd.Series([0.75, -0.25], index=[7, 8]))
    assert np.isnan(clamped_difference(np.array([np.nan, 0.5]), 0.5)).tolist() == [True, False]


@pytest.mark.parametrize(("target", "other"), [(99.4, 0.3), (0.5, [0.5, 1.01]), (-0.01, 0.5)])
def test_clamped_difference_refuses_percentages(target, other):
    with pytest.raises(ValueError, match=r"^(target|other) accuracy .* is outside \[0, 1\]; give it as a fraction$"):
        clamped_difference(target, other)


def test_stars_at_and_beside_the_limits():
    cases = {0: "***", 0.001: "***", 0.0011: "**", 0.01: "**", 0.011: "*", 0.05: "*", 0.051: ".", 0.1: ".", 0.11: ""}
    assert {p: stars(p) for p in cases} == cases
    assert stars(1) == "" and stars(math.nan) == ""


@pytest.mark.parametrize(("name", "statistic"), [("table1", "intercept"), ("table12", "random")])
def test_stars_of_the_printed_statistics_are_the_printed_ones(name, statistic):
    table = reference.load(f"{name}")
    z = [stars(p) for p in 2 * stats.norm.sf(table[f"{statistic}_z"].abs())]
    chi2 = [stars(p) for p in stats.chi2.sf(table["ablated_chi2"], 1)]
    assert z == list(table[f"{statistic}_stars"]) and chi2 == list(table["ablated_stars"])


def both(trained: pd.DataFrame, random: pd.DataFrame) -> pd.DataFrame:
    """Return the effects of both conditions, which may use the same names of bases."""
    return pd.concat([trained.assign(condition="trained"), random.assign(condition="random")], ignore_index=True)


def control(effects: pd.DataFrame) -> pd.Series:
    table = random_control_table(effects)
    assert len(table) == 1
    return table.iloc[0]


def unequal(seed: int, trained: int = 3, random: int = 4) -> pd.DataFrame:
    """Effects of random size with 1 to 4 runs of each network in each base."""
    rng = np.random.default_rng(seed)

    def runs(mean: float, bases: int) -> dict[int, list[float]]:
        return {base: list(rng.normal(mean + rng.normal(0, 0.1), 0.1, rng.integers(1, 5))) for base in range(bases)}

    return both(frame(runs(0.5, trained), runs(-0.2, trained)), frame(runs(0.4, random), runs(0.1, random)))


@pytest.mark.parametrize("seed", range(5))
def test_two_factor_glm_is_the_one_of_statsmodels(seed):
    """Unequal runs and bases; the names of the bases are the same in both conditions."""
    effects = unequal(seed)
    data = effects.assign(ablation=effects["network"] == "ablated", random=effects["condition"] == "random")
    data = data.astype({"ablation": float, "random": float})
    options = {"groups": data.groupby(["condition", "base_model"]).ngroup(), "use_correction": False}
    fit = sm.OLS.from_formula("difference ~ ablation * random", data).fit(cov_type="cluster", cov_kwds=options)
    covariance = fit.cov_params() * 7 / 6
    beta, terms = fit.params, ["random", "ablation:random"]
    z = beta["random"] / math.sqrt(covariance.loc["random", "random"])
    chi2 = beta[terms].sum() ** 2 / covariance.loc[terms, terms].to_numpy().sum()

    row = control(effects)
    found = row[["random_coefficient", "random_coefficient_z", "random_ablated_difference", "random_chi2"]]
    np.testing.assert_allclose(found.astype(float), [beta["random"], z, beta[terms].sum(), chi2], rtol=1e-10)
    found = row[["random_coefficient_p", "random_p", "random_coefficient_t_p", "random_t_p"]].astype(float)
    t_p = 2 * stats.t.sf(abs(z), 5), stats.f.sf(chi2, 1, 5)
    np.testing.assert_allclose(found, [2 * stats.norm.sf(abs(z)), stats.chi2.sf(chi2, 1), *t_p], rtol=1e-9)
    assert row["random_coefficient_stars"] == stars(row["random_coefficient_p"])
    assert row["random_stars"] == stars(row["random_p"])


def permutation_p(trained: np.ndarray, random: np.ndarray) -> float:
    """Return the exact permutation p-value of equal means of two groups of bases, one division at a time."""
    means = [*trained, *random]
    observed, larger, divisions = abs(np.mean(trained) - np.mean(random)), 0, 0
    for chosen in combinations(range(len(means)), len(trained)):
        rest = [means[base] for base in range(len(means)) if base not in chosen]
        divisions += 1
        larger += abs(np.mean([means[base] for base in chosen]) - np.mean(rest)) >= observed - 1e-9
    return larger / divisions


@pytest.mark.parametrize(("trained", "random"), [(3, 3), (2, 4), (5, 2), (6, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_permutation_test_divides_the_bases_in_all_ways(trained, random, seed):
    effects = unequal(seed, trained, random)
    row = control(effects)
    for network, test in (("subnetwork", "random_coefficient"), ("ablated", "random")):
        part = effects[effects["network"] == network]
        means = part.groupby(["condition", "base_model"])["difference"].mean()
        assert row[f"{test}_permutation_p"] == permutation_p(means["trained"].to_numpy(), means["random"].to_numpy())


@pytest.mark.parametrize(("trained", "random", "smallest"), [(3, 3, 2 / 20), (2, 3, 1 / 10), (6, 6, 2 / 924)])
def test_permutation_test_reaches_its_smallest_p_value_and_no_less(trained, random, smallest):
    values = [[0.3 + 0.01 * base] for base in range(6)]
    effects = both(balanced(values[:trained], values[:trained]), balanced(values[:random], values[:random]))
    shifted = effects.assign(difference=effects["difference"] + (effects["condition"] == "trained"))
    row = control(shifted)
    assert row["random_coefficient_permutation_p"] == row["random_permutation_p"] == pytest.approx(smallest)
    assert control(effects)["random_permutation_p"] > smallest


def test_permutation_test_of_many_bases_draws_by_seed():
    rng = np.random.default_rng(4)
    trained, random = rng.normal(0.1, 0.1, 12), rng.normal(0.03, 0.1, 12)
    groups = by_base(trained, range(12)), by_base(random, range(12))
    first, again, other = (permutation_test(*groups, seed=seed, draws=9999) for seed in (0, 0, 1))
    assert first == again != other

    def difference(one, two, axis):
        return np.abs(one.mean(axis=axis) - two.mean(axis=axis))

    scipy_p = stats.permutation_test(
        (trained, random), difference, vectorized=True, n_resamples=9999, alternative="greater", rng=5
    ).pvalue
    assert 0.02 < scipy_p < 0.5
    assert first == pytest.approx(scipy_p, abs=4 * math.sqrt(2 * scipy_p / 9999))
    assert permutation_test(by_base(trained + 1, range(12)), groups[1], seed=0, draws=99) == 0.01


@pytest.mark.parametrize("seed", range(3))
def test_control_does_not_depend_on_order_and_names(seed):
    effects = unequal(seed, 9, 9)  # more divisions than are enumerated
    row = control(effects)
    random = np.random.default_rng(seed)
    names = dict(zip(range(9), random.permutation(list("ihgfedcba")), strict=True))
    other = effects.sample(frac=1, random_state=seed).replace({"base_model": names})
    pd.testing.assert_series_equal(row, control(other), rtol=0, atol=0)
    own = effects["condition"] + effects["base_model"].astype(str)  # the conditions share no base by their names
    pd.testing.assert_series_equal(row, control(effects.assign(base_model=own)), rtol=0, atol=0)
    numbered = [effects.assign(number=number) for number in ("singular", "plural")]
    assert list(control(pd.concat(numbered)).filter(like="n_bases")) == [18, 18]


def untested(row: pd.Series, test: str) -> bool:
    """Tell whether a contrast has no statistic, p-value or stars."""
    names = [f"{test}_{name}" for name in ("p", "t_p", "permutation_p")]
    names.append("random_chi2" if test == "random" else f"{test}_z")
    return row[names].isna().all() and row[f"{test}_stars"] == ""


def test_control_without_two_bases_in_each_condition_has_means_and_no_tests():
    pair, single = balanced([[0.5], [0.3]], [[-0.3], [-0.1]]), balanced([[0.2, 0.1]], [[0.0, 0.1]])
    row = control(both(pair, single))
    assert (row["n_bases_trained"], row["n_bases_random"]) == (2, 1)
    assert (row["random_coefficient"], row["random_ablated_difference"]) == pytest.approx((-0.25, 0.25))
    assert untested(row, "random_coefficient") and untested(row, "random")
    row = control(both(single, single))
    assert untested(row, "random") and row["random_coefficient"] == 0

    row = control(pair.assign(condition="random"))
    assert row["n_bases_trained"] == 0
    assert untested(row, "random_coefficient") and untested(row, "random")
    assert row[["random_coefficient", "random_ablated_difference"]].isna().all()

    row = control(both(pair, pair[pair["network"] == "subnetwork"]))
    assert row["random_coefficient_z"] == 0 and row["random_coefficient_permutation_p"] == 1
    assert untested(row, "random") and math.isnan(row["random_ablated_difference"])


@pytest.mark.parametrize("value", [0.3, 0.1, 0.7, -0.1])
def test_control_of_equal_runs_has_no_error(value):
    """Values whose sums round: neither errors nor the difference of the ablated models may be 1e-17."""
    trained = balanced([[value] * 3, [value] * 6], [[value] * 3, [value] * 7])
    row = control(both(trained, balanced([[0.0] * 3] * 2, [[value] * 6, [value] * 5])))
    assert row["random_coefficient_z"] == math.copysign(math.inf, -value) and row["random_coefficient_stars"] == "***"
    assert row["random_coefficient_p"] == row["random_coefficient_t_p"] == 0
    assert row["random_coefficient_permutation_p"] == pytest.approx(1 / 3)
    assert math.isnan(row["random_chi2"]) and math.isnan(row["random_p"]) and row["random_permutation_p"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.drop(columns="condition"), "no column 'condition'; they need .*, condition"),
        (lambda e: e.replace("random", "pruned"), "unknown condition 'pruned' .* 'trained' or 'random'"),
        (lambda e: e.replace("random", None), "unknown condition"),
        (lambda e: e.replace("ablated", "Ablated"), "unknown network 'Ablated' .* 'subnetwork' or 'ablated'"),
        (lambda e: e.assign(difference=math.nan), "8 rows .* no finite 'difference'"),
    ],
)
def test_bad_controls_are_refused_in_one_line(change, message):
    pair = balanced([[0.5], [0.4]], [[-0.3], [-0.1]])
    with pytest.raises(ValueError, match=message) as error:
        random_control_table(change(both(pair, pair)))
    assert "\n" not in str(error.value)
    for table, of in ((random_control_table, both(pair, pair)), (compositionality_table, pair)):
        assert table(of[:0]).empty and list(table(of[:0])) == list(table(of))


@pytest.mark.parametrize("spread", [0.001, 0.05, 0.2])
def test_as_many_runs_are_needed_as_make_the_interval_narrow(spread):
    needed = int(runs_needed([-spread, 0.0, spread], half=0.05))
    for n in (n for n in (needed - 1, needed) if n > 1):
        values = np.arange(n) - (n - 1) / 2
        _, low, high = t_interval(spread * values / values.std(ddof=1), range(n))
        assert ((high - low) / 2 <= 0.05) == (n == needed)
