"""What an effect measured in few base models, and one among many, is worth.

`power_table` asks how many base models one would need to see an effect of the paper's size, and what those we
have could show; `corrected` keeps the share of false findings at bay where a table holds many tests.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from subnet_utils.papers.break_it_down.statistics import KEYS, checked_effects
from subnet_utils.statistics import Runs, by_base, ratio, without_rounding

_BY = [*KEYS, "network"]
_COLUMNS = [*_BY, "n_bases", "difference", "base_sd", "paper_difference", "power_now", "detectable", "bases_needed"]
_MANY = 10**6  # from so many bases on a t variable is a normal one, to six digits
_LEAST_LEVEL = 1e-4  # below it the noncentral t distribution for two bases is beyond scipy
_NEVER = 1e-16  # probability of what does not happen
_CORRECTIONS = {"holm": "holm", "bh": "fdr_bh"}  # our name, that of statsmodels


def power_table(
    effects: pd.DataFrame, reference: pd.DataFrame, *, power: float = 0.8, level: float = 0.05
) -> pd.DataFrame:
    """Return how many base models it takes to see the paper's effect, and what those we have can show.

    The test is the two-sided one-sample t test of the bases' means against 0 at `level`. The effect is the
    paper's, its spread over bases is ours: the paper publishes only the spread of single runs.

    effects: as for `compositionality_table`, at best with many bases. reference: one row or more per (model,
    task, subroutine, network) with the column `difference_mean`, such as the rows of one condition of
    `reference.load("effects")`; of several rows, such as singular and plural, the mean counts.

    Returns one row per (model, task, subroutine, network) of `effects`, sorted:

    - `n_bases`, `difference`, `base_sd`: number, mean and standard deviation of the bases' means;
    - `paper_difference`, nan if `reference` has none;
    - `power_now`: the probability that as many bases as we have find the paper's effect, on its side of 0;
    - `detectable`: the smallest true difference that they find with probability `power`;
    - `bases_needed`: the least number of bases, 2 or more, that find the paper's effect with probability
      `power`; inf for an effect of 0, or one too small to count the bases.

    With one base there is no spread, and all that needs it is nan. Bases that all agree need two to see any
    effect. The spread is itself an estimate: from three bases the true one is between .5 and 6.3 times as
    large (95% interval), and `bases_needed` goes with its square.

    Raises ValueError as `compositionality_table` does, for a missing column of `reference` or several
    conditions in it, or unless .0001 <= level < power < 1.
    """
    if not _LEAST_LEVEL <= level < power < 1:
        raise ValueError(f"level {level:g} and power {power:g} are not {_LEAST_LEVEL:g} <= level < power < 1")
    paper = _paper_differences(reference)
    rows = [
        dict(zip(_BY, key, strict=True))
        | _power_of(by_base(group["difference"], group["base"]), paper.get(key, math.nan), power=power, level=level)
        for key, group in checked_effects(effects).groupby(_BY, sort=True, observed=True)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def corrected(table: pd.DataFrame, p_columns: Iterable[str]) -> pd.DataFrame:
    """Return the table with `<column>_holm` and `<column>_bh` after all columns, for each column of p-values.

    The tests of one column are one family. Holm's adjusted values bound the probability of any false finding,
    those of Benjamini and Hochberg the expected share of false ones among the findings (for independent or
    positively dependent tests). A nan is no test: it is left out of the family and stays nan.

    Raises ValueError for a missing column, or a value that is no probability.
    """
    adjusted = {}
    for column in p_columns:
        if column not in table.columns:
            raise ValueError(f"table has no column {column!r}; it has {', '.join(map(str, table.columns))}")
        p = table[column].to_numpy(dtype=float, na_value=np.nan)
        outside = p[(p < 0) | (p > 1)]
        if outside.size:
            raise ValueError(f"p-value {outside[0]:g} in {column!r} is outside [0, 1]; give probabilities")
        adjusted |= {f"{column}_{name}": _adjusted(p, method) for name, method in _CORRECTIONS.items()}
    return table.assign(**adjusted)


def _adjusted(p: np.ndarray, method: str) -> np.ndarray:
    """Return the adjusted p-values of the family of those that are not nan."""
    tested, adjusted = ~np.isnan(p), p.copy()
    if tested.any():
        adjusted[tested] = multipletests(p[tested], method=method)[1]
    return adjusted


def _paper_differences(reference: pd.DataFrame) -> dict[tuple, float]:
    """Return the paper's mean difference of each (model, task, subroutine, network)."""
    for column in [*_BY, "difference_mean"]:
        if column not in reference.columns:
            raise ValueError(f"reference has no column {column!r}; it needs {', '.join([*_BY, 'difference_mean'])}")
    if "condition" in reference.columns and reference["condition"].nunique() > 1:
        raise ValueError("reference has several conditions, such as trained and random; choose one")
    return reference.groupby(_BY, observed=True)["difference_mean"].mean().to_dict()


def _power_of(runs: Runs, effect: float, *, power: float, level: float) -> dict[str, float]:
    """Return the columns of one row of the power table, from its runs and the paper's effect."""
    n_bases = len(runs.sums)
    sd = without_rounding(runs.means.std(ddof=1) if n_bases > 1 else math.nan, runs.scale)
    size = abs(float(ratio(effect, sd)))
    return {
        "n_bases": n_bases,
        "difference": float(runs.means.mean()),
        "base_sd": float(sd),
        "paper_difference": effect,
        "power_now": _power(size, n_bases, level),
        "detectable": float(_detectable(n_bases, power, level) * sd),
        "bases_needed": _bases_needed(size, power, level),
    }


def _power(size: float, n_bases: int, level: float) -> float:
    """Return the probability that so many bases find an effect of `size` standard deviations.

    The wrong side of a two-sided test does not count: it would find something else, and statsmodels returns nan
    where that is all but impossible. For large effects the noncentral t distribution fails too, but there even the
    least mean with the largest standard deviation is beyond the critical value.
    """
    if math.isnan(size):
        return math.nan
    freedom = n_bases - 1
    largest_sd = math.sqrt(stats.chi2.isf(_NEVER, freedom) / freedom)
    certain = stats.t.isf(level / 2, freedom) * largest_sd + stats.norm.isf(_NEVER)
    if size > certain / math.sqrt(n_bases):
        return 1.0
    return float(TTestPower().power(size, n_bases, level / 2, alternative="larger"))


def _detectable(n_bases: int, power: float, level: float) -> float:
    """Return the smallest effect, in standard deviations, that so many bases find with probability `power`."""
    if n_bases < 2:
        return math.nan
    high = 1.0
    while _power(high, n_bases, level) < power:
        high *= 2
    return optimize.brentq(lambda size: _power(size, n_bases, level) - power, 0, high)


def _bases_needed(size: float, power: float, level: float) -> float:
    """Return the least number of bases that find an effect of `size` standard deviations with probability `power`."""
    if not size > 0:
        return math.inf if size == 0 else math.nan
    if size < (least := _detectable(_MANY, power, level)):
        factor = least / size  # the effect that normal variables show falls with the root of their number
        return float(np.ceil(_MANY * factor * factor))
    low, high = 1, 2
    while _power(size, high, level) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(size, middle, level) >= power else (middle, high)
    return float(high)
