"""Power against the integral that defines it and against simulated experiments; corrections against plain numpy."""

import math
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.break_it_down.contrasts import LEVEL, POWER, corrected, power_table

KEYS = ["model", "task", "subroutine", "network"]
NAMES = dict(zip(KEYS, ["resnet50", "inside-contact", "contact", "subnetwork"], strict=True))


def measured(means: list[float]) -> pd.DataFrame:
    """Effects of bases with these means, each of two runs."""
    rows = [(base, mean + noise) for base, mean in enumerate(means) for noise in (-0.05, 0.05)]
    return pd.DataFrame(rows, columns=["base_model", "difference"]).assign(**NAMES)


def with_sd(n_bases: int, sd: float) -> pd.DataFrame:
    """Effects of bases whose means have this standard deviation."""
    means = np.arange(n_bases) / np.arange(n_bases).std(ddof=1)
    return measured(list(sd * means))


def published(*differences: float) -> pd.DataFrame:
    return pd.DataFrame({"difference_mean": differences}).assign(**NAMES)


def one(effects: pd.DataFrame, paper: pd.DataFrame) -> pd.Series:
    table = power_table(effects, paper)
    assert len(table) == 1
    return table.iloc[0]


def power_by_integral(size: float, n_bases: int) -> float:
    """Return the power on the side of the effect: given the sample's variance, its mean is a normal variable."""
    critical, shift = stats.t.isf(LEVEL / 2, n_bases - 1), size * math.sqrt(n_bases)

    def given_variance(quantile: float) -> float:
        limit = critical * math.sqrt(stats.chi2.ppf(quantile, n_bases - 1) / (n_bases - 1))
        return stats.norm.sf(limit - shift)

    return integrate.quad(given_variance, 0, 1, epsabs=1e-8)[0]


@pytest.mark.parametrize("size", [0.2, 0.9, 2.5, 7.0])
@pytest.mark.parametrize("n_bases", [2, 3, 8])
def test_power_is_the_integral_that_defines_it(size, n_bases):
    row = one(with_sd(n_bases, 0.3), published(0.3 * size))
    assert (row["n_bases"], row["base_sd"], row["paper_difference"]) == (n_bases, pytest.approx(0.3), 0.3 * size)
    assert row["power_now"] == pytest.approx(power_by_integral(size, n_bases), abs=1e-6)
    assert power_by_integral(row["detectable"] / 0.3, n_bases) == pytest.approx(POWER, abs=1e-6)
    needed = int(row["bases_needed"])
    assert power_by_integral(size, needed) >= POWER
    assert needed == 2 or power_by_integral(size, needed - 1) < POWER


def test_power_does_not_depend_on_units_signs_and_order():
    effects, paper = measured([0.5, 0.1, 0.35]), published(-0.2)
    row, mirrored = one(effects, paper), one(effects, published(0.2))
    assert row["bases_needed"] == mirrored["bases_needed"] and row["power_now"] == mirrored["power_now"]
    pd.testing.assert_series_equal(row, one(effects.sample(frac=1, random_state=1), paper), rtol=0, atol=0)
    percent = one(effects.assign(difference=100 * effects["difference"]), published(-20.0))
    assert percent["bases_needed"] == row["bases_needed"]
    assert percent["detectable"] == pytest.approx(100 * row["detectable"])


@pytest.mark.parametrize("size", [1e-2, 3e-3, 1e-3, 1e-9])
def test_small_effects_need_as_many_bases_as_a_normal_variable(size):
    """And are too small for a million of them."""
    needed, normal = one(with_sd(3, 1.0), published(size))["bases_needed"], ((1.959964 + 0.841621) / size) ** 2 + 1.92
    assert needed == (math.inf if normal > 1e6 else pytest.approx(normal, abs=1 + 1e-5 * normal))


@pytest.mark.parametrize("n_bases", [2, 3, 30])
@pytest.mark.parametrize("size", [30.0, 1e3, 1e9, 1e300])
def test_large_effects_need_two_bases(n_bases, size):
    row = one(with_sd(n_bases, 1.0), published(size))
    assert row["bases_needed"] == 2
    assert row["power_now"] == (pytest.approx(power_by_integral(size, n_bases)) if size < 1e3 else 1)


def test_effects_without_a_size_are_inf_or_nan():
    row = one(with_sd(3, 0.2), published(0.0))
    assert row["bases_needed"] == math.inf and row["power_now"] == pytest.approx(0.025)
    assert one(with_sd(3, 0.2), published(1e-300))["bases_needed"] == math.inf
    row = one(measured([0.4]), published(0.3))
    assert (row["n_bases"], row["difference"], row["paper_difference"]) == (1, pytest.approx(0.4), 0.3)
    assert row[["base_sd", "power_now", "detectable", "bases_needed"]].isna().all()
    row = one(with_sd(3, 0.2), published().astype({"difference_mean": float}))
    assert row[["paper_difference", "power_now", "bases_needed"]].isna().all() and row["detectable"] > 0
    row = one(measured([0.1, 0.1, 0.1]), published(0.3))  # rounding must not pass for a spread
    assert (row["base_sd"], row["power_now"], row["detectable"], row["bases_needed"]) == (0, 1, 0, 2)
    row = one(measured([0.1, 0.1, 0.1]), published(0.0))
    assert row[["power_now", "bases_needed"]].isna().all()


def test_singular_and_plural_are_one_effect_over_all_bases():
    effects = pd.concat([measured([0.5, 0.3]).assign(number="singular"), measured([0.2, 0.0]).assign(number="plural")])
    row = one(effects, published(0.1, 0.4))
    assert (row["n_bases"], row["paper_difference"]) == (4, 0.25)
    assert row["base_sd"] == pytest.approx(np.std([0.5, 0.3, 0.2, 0.0], ddof=1))


def test_power_table_takes_the_reference_of_one_condition_and_sorts_its_rows():
    other = measured([0.1, 0.3]).assign(network="ablated")
    effects = pd.concat([measured([0.5, 0.3, 0.1]), other, other.assign(model="bert_small")])
    paper = reference.load("effects")
    table = power_table(effects, paper.query("condition == 'trained'"))
    assert list(zip(table["model"], table["network"], strict=True)) == [
        ("bert_small", "ablated"),
        ("resnet50", "ablated"),
        ("resnet50", "subnetwork"),
    ]
    assert table["paper_difference"].tolist() == [pytest.approx(math.nan, nan_ok=True), -0.2902, 0.5761]
    empty = power_table(effects[:0], paper[:0])
    assert len(empty) == 0 and list(empty) == list(table)


def test_bad_questions_of_power_are_refused():
    with pytest.raises(ValueError, match="effects have no column 'difference'"):
        power_table(measured([0.1, 0.2]).drop(columns="difference"), published(0.1))


def holm(p: list[float]) -> np.ndarray:
    """Multiply the i-th smallest of m by m - i, never fall below an earlier one."""
    p, order = np.array(p), np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(steps[np.argsort(order)], 1)


def benjamini_hochberg(p: list[float]) -> np.ndarray:
    """Multiply the i-th smallest of m by m / i, never exceed a later one."""
    p, order = np.array(p), np.argsort(p)
    steps = np.minimum.accumulate((p[order] * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1]
    return np.minimum(steps[np.argsort(order)], 1)


@mock.patch("gc.collect")  # statsmodels collects garbage in each correction, which takes long
@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
def test_corrections_are_those_of_a_few_lines_of_numpy(collect, p):
    table = pd.DataFrame({"p": pd.Series(p, dtype=float), "z_p": 0.5})  # another family
    table.index = [0] * len(p)  # labels that stand twice must not matter
    result, tested = corrected(table, ["z_p", "p"]), ~np.isnan(p)
    assert list(result) == ["p", "z_p", "z_p_holm", "z_p_bh", "p_holm", "p_bh"]
    pd.testing.assert_frame_equal(result[["p", "z_p"]], table)
    assert result.loc[~tested, ["p_holm", "p_bh"]].isna().all(axis=None)
    family = table["p"][tested].tolist()
    np.testing.assert_allclose(result["p_holm"][tested], holm(family), rtol=1e-12)
    np.testing.assert_allclose(result["p_bh"][tested], benjamini_hochberg(family), rtol=1e-12)


@pytest.mark.parametrize(("columns", "message"), [(["z"], "p-value 2.5 in 'z' is outside"), (["p", "z"], "outside")])
def test_bad_p_values_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        corrected(pd.DataFrame({"z": [0.1, 2.5], "p": [0.1, math.nan]}), columns)
