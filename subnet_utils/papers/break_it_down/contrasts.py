"""What an effect measured in few base models, and one among many, is worth.

`power_table` asks how many base models one would need to see an effect of the paper's size, and what those we have
could show; `corrected` keeps the share of false findings at bay where a table holds many tests.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy import optimize
from statsmodels.stats.power import TTestPower

from subnet_utils.papers.break_it_down.statistics import KEYS, checked_effects
from subnet_utils.report.significance import adjusted
from subnet_utils.statistics import by_base, ratio, without_rounding

POWER, LEVEL = 0.8, 0.05
"""The probability with which an effect shall be found, by a two-sided test at this level."""
MANY = 10**6
"""More bases than these are not counted."""
_BY = [*KEYS, "network"]


def power_table(effects: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """How many base models it takes to see the paper's effect, and what those we have can show.

    The test is the two-sided one-sample t test of the bases' means against 0. The effect is the paper's, its spread
    over bases is ours: the paper publishes only the spread of single runs.

    effects: as for `compositionality_table`. reference: `difference_mean` by model, task, subroutine and network, such
    as one condition of `reference.load("effects")`; of several rows, such as singular and plural, the mean counts.

    Returns one row per (model, task, subroutine, network) of `effects`, sorted:

    - `n_bases`, `difference`, `base_sd`: number, mean and standard deviation of the bases' means;
    - `paper_difference`, nan if `reference` has none;
    - `power_now`: the probability that as many bases as we have find the paper's effect, on its side of 0;
    - `detectable`: the smallest true difference that they find with probability `POWER`;
    - `bases_needed`: the least number of bases, 2 or more, that find the paper's effect with probability `POWER`; inf
      for an effect of 0, or one that takes more than `MANY`.

    With one base there is no spread, and all that needs it is nan. The spread is itself an estimate: from three bases
    the true one is between .5 and 6.3 times as large (95% interval), and `bases_needed` goes with its square.

    Raises ValueError as `compositionality_table` does.
    """
    paper, rows = reference.groupby(_BY, observed=True)["difference_mean"].mean().to_dict(), []
    for key, group in checked_effects(effects).groupby(_BY, observed=True):
        runs, effect = by_base(group["difference"], group["base"]), paper.get(key, math.nan)
        n_bases = len(runs.means)
        sd = float(without_rounding(runs.means.std(ddof=1) if n_bases > 1 else math.nan, runs.scale))
        size, difference = abs(float(ratio(np.float64(effect), sd))), float(runs.means.mean())
        found = _power(size, n_bases), _detectable(n_bases) * sd, _bases_needed(size)
        rows.append([*key, n_bases, difference, sd, effect, *found])
    measured = ["n_bases", "difference", "base_sd", "paper_difference", "power_now", "detectable", "bases_needed"]
    return pd.DataFrame(rows, columns=[*_BY, *measured])


def corrected(table: pd.DataFrame, p_columns: Iterable[str]) -> pd.DataFrame:
    """The table with `<column>_holm` and `<column>_bh` after all columns, for each column of p-values.

    The tests of one column are one family. Holm's adjusted values bound the probability of any false finding, those of
    Benjamini and Hochberg the expected share of false ones among the findings (for independent or positively dependent
    tests). A nan is no test: it is left out of the family and stays nan.

    Raises KeyError for a missing column, ValueError for a value that is no probability.
    """
    found = {}
    for column in p_columns:
        p = table[column].to_numpy(dtype=float, na_value=np.nan)
        for name, method in (("holm", "holm"), ("bh", "fdr_bh")):
            found[f"{column}_{name}"] = adjusted(p, method, column)
    return table.assign(**found)


def _power(size: float, n_bases: float) -> float:
    """The probability that so many bases find an effect of `size` standard deviations, on its own side of 0."""
    if math.isnan(size) or n_bases < 2:
        return math.nan
    power = float(TTestPower().power(size, n_bases, LEVEL / 2, alternative="larger"))
    return 1.0 if math.isnan(power) else power  # statsmodels has no number for effects that are sure to be found


def _detectable(n_bases: int) -> float:
    """The smallest effect, in standard deviations, that so many bases find with probability `POWER`."""
    if n_bases < 2:
        return math.nan
    high = 1.0
    while _power(high, n_bases) < POWER:
        high *= 2
    return optimize.brentq(lambda size: _power(size, n_bases) - POWER, 0, high)


def _bases_needed(size: float) -> float:
    """The least number of bases that find an effect of `size` standard deviations with probability `POWER`."""
    if math.isnan(size) or _power(size, MANY) < POWER:
        return math.nan if math.isnan(size) else math.inf
    if _power(size, 2) >= POWER:
        return 2.0
    return float(math.ceil(optimize.brentq(lambda n_bases: _power(size, n_bases) - POWER, 2, MANY)))
