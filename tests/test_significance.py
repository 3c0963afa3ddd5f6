"""Tests beside verdicts against all sign changes, Student's t by scipy, and a computation by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from subnet_utils.report import findings
from subnet_utils.report.significance import adjusted, equivalence, paired


@pytest.mark.parametrize("seed", range(4))
def test_the_paired_test_is_that_of_all_sign_changes(seed):
    values = np.random.default_rng(seed).normal(0.5, 1, size=2 + 2 * seed)
    means = [abs(np.mean(values * signs)) for signs in product((1, -1), repeat=len(values))]
    assert paired(values) == pytest.approx(np.mean(np.array(means) >= abs(values.mean()) - 1e-12))


def test_few_networks_show_nothing():
    assert paired([0.9, 0.9]) == 0.5 and paired([0.9] * 5) == 2 / 2**5
    assert np.isnan(paired([0.9])) and np.isnan(paired([0.0, 0.0])) and np.isnan(equivalence([0.0], 0.05))


def test_equivalence_is_the_larger_of_two_one_sided_tests():
    values = np.array([0.01, -0.02, 0.03, 0.0])
    error = values.std(ddof=1) / 2
    larger = stats.t.sf((values.mean() + 0.05) / error, 3), stats.t.cdf((values.mean() - 0.05) / error, 3)
    assert equivalence(values, 0.05) == pytest.approx(max(larger))
    assert equivalence(values, 0.05) < 0.05 < equivalence(values + 0.05, 0.05)


def test_equivalence_below_5_percent_is_a_90_percent_interval_inside():
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.02, 0.03, size=6)
        low, high = stats.t.interval(0.9, 5, values.mean(), stats.sem(values))
        assert (equivalence(values, 0.05) < 0.05) == (low > -0.05 and high < 0.05)


def test_values_without_spread_are_equal_or_not():
    assert equivalence([0.0, 0.0], 0.05) == 0.0 and equivalence([0.2, 0.2], 0.05) == 1.0


def test_holm_leaves_out_what_is_no_test():
    found = adjusted([0.01, np.nan, 0.04, 0.03])  # Holm (1979): .01 x 3, .03 x 2, then no less than the one before
    np.testing.assert_allclose(found, [0.03, np.nan, 0.06, 0.06])
    with pytest.raises(ValueError, match="p-value 1.2 in 'p' is outside"):
        adjusted([1.2])


def test_the_interval_of_a_share_ends_where_shares_end():
    table = pd.DataFrame({"accuracy": [0.7, 1.0, 1.0], "scale": [0.7, 1.0, 1.0], "seed": [0, 1, 2], "title": "one"})
    assert findings.with_intervals(table, ["title"])["high"].tolist() == [1.0]
    assert findings.with_intervals(table, ["title"], "scale")["high"].item() > 1
