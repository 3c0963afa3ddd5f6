"""Is a difference between two probe sets real, when it was measured on a handful of base models?

*Break It Down* (appendix A.1) fits one Gaussian linear model per model, task and subroutine,

    performance = intercept + ablation * [the network is the ablated model],

with standard errors clustered by base model, because masks found in one base are not independent
observations. The intercept is then the mean difference of the subnetworks, and intercept + ablation that of
the ablated models. Two group means saturate the model, so every statistic below depends on the runs of one
network only, through the number and the sum of the values in each base: `_Runs`.

The z and the chi-square of the paper treat the standard error as known. It is estimated from 2, 3 or 6
bases, and with so few they are far too optimistic (two bases: z = 3.00 is p = .003, and p = .20 as a t with
one degree of freedom). `compositionality_table` therefore returns t tests, a wild cluster bootstrap and
intervals beside them.
"""

import math
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special, stats

from subnet_utils.tasks.odd_one_out import CHANCE

EXACT_SIGNS = 12
"""Up to this many bases the wild bootstrap enumerates all 2^G sign vectors (4096)."""
EXACT_RESAMPLES = 8
"""Up to this many bases the bootstrap interval enumerates all G^G resamples (6435 distinct ones)."""

_KEYS = ["model", "task", "subroutine"]
_REQUIRED = [*_KEYS, "base_model", "network", "difference"]
_ROUNDING = 1e-12  # relative to the largest value; anything smaller is rounding error and counts as zero
_MARKS = {0.001: "***", 0.01: "**", 0.05: "*", 0.1: "."}
_TESTS = (("subnetwork", "intercept", "z"), ("ablated", "ablated", "chi2"))  # network, its test, statistic
_COLUMNS = [*_KEYS, "n_runs", "n_bases"] + [
    column
    for network, test, statistic in _TESTS
    for column in (
        f"{network}_runs",
        f"{network}_difference",
        f"{test}_{statistic}",
        *(f"{test}_{name}" for name in ("p", "stars", "t_p", "wild_p", "wild_p_smallest")),
        *(f"{network}_{name}" for name in ("bootstrap_low", "bootstrap_high", "t_low", "t_high")),
    )
]


class Interval(NamedTuple):
    """A mean and the limits of its interval, in the units of the values; the limits are nan with one base."""

    mean: float
    low: float
    high: float


class _Runs(NamedTuple):
    """The runs of one network, added up within each base model."""

    sums: np.ndarray  # [bases] sum of the values
    sizes: np.ndarray  # [bases] number of runs
    scale: float  # largest absolute value


def clamped_difference(target: ArrayLike, other: ArrayLike) -> ArrayLike:
    """Return max(target, 1/4) - max(other, 1/4): accuracy on Test-Target minus accuracy on Test-Other.

    *Break It Down*, footnote 13: an accuracy below chance is no evidence for the other subroutine. Arguments
    are accuracies as fractions, numbers or arrays of one shape; the result keeps the shape and lies in
    [-.75, .75]. Missing values stay missing. Raises ValueError for an accuracy outside [0, 1], such as a
    percentage.
    """
    return _clamped("target", target) - _clamped("other", other)


def _clamped(name: str, accuracy: ArrayLike) -> ArrayLike:
    """Return max(accuracy, chance) as a number, an array, or a Series if `accuracy` is one."""
    values = np.asarray(accuracy, dtype=float)
    outside = values[(values < 0) | (values > 1)]
    if outside.size:
        raise ValueError(f"{name} accuracy {outside[0]:g} is outside [0, 1]; give it as a fraction")
    clamped = np.maximum(values, CHANCE)
    return pd.Series(clamped, index=accuracy.index) if isinstance(accuracy, pd.Series) else clamped


def stars(p: float) -> str:
    """Return the paper's mark of a p-value: '***' up to .001, '**' up to .01, '*' up to .05, '.' up to .1.

    Anything larger, and nan (no test was possible), is ''. Raises ValueError for a number that is no
    probability.
    """
    if math.isnan(p):
        return ""
    if not 0 <= p <= 1:
        raise ValueError(f"p-value {p:g} is outside [0, 1]; give a probability")
    return next((mark for limit, mark in _MARKS.items() if p <= limit), "")


def bootstrap_interval(
    values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95, seed: int = 0, draws: int = 9999
) -> Interval:
    """Return the mean of all runs and its percentile interval over base models drawn with replacement.

    values: [runs]; clusters: [runs] the base model of each run. Up to `EXACT_RESAMPLES` bases every
    resample is enumerated, and `seed` and `draws` play no part. With two or three bases the 95% interval is
    just the range of the bases' means, which covers far less than 95%: show `t_interval` then. One base:
    the limits are nan. Raises ValueError for no values, unequal lengths, values that are not finite, or a
    level outside (0, 1).
    """
    _check_options(level=level, draws=draws)
    return _bootstrap(_by_base(values, clusters), level=level, seed=seed, draws=draws)


def t_interval(values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the mean of the base models' means and its Student interval.

    It has (bases - 1) degrees of freedom. Bases count equally, however many runs they have. With equally
    many runs this is the mean of all runs, and the standard error is the cluster-robust one of the paper.
    One base: the limits are nan. Arguments and errors as for `bootstrap_interval`.
    """
    _check_options(level=level, draws=1)
    return _student(_by_base(values, clusters), level=level)


def compositionality_table(effects: pd.DataFrame, *, seed: int = 0, draws: int = 9999) -> pd.DataFrame:
    """Test whether subnetworks and ablated models do better on one of the two probe sets.

    The statistics of *Break It Down*, Table 1 (appendix A.1), and what should stand beside them with few
    bases.

    effects: one row per run and network, with columns `model`, `task`, `subroutine`, `base_model`,
    `network` ('subnetwork' or 'ablated') and `difference` (see `clamped_difference`). Bases that did not
    learn their task (below 90%) are for the caller to leave out. If there is a column `number`, bases of
    different number are different bases: the paper collapses singular and plural, so that language has G =
    6 of them.

    Returns one row per (model, task, subroutine), sorted, whatever the order of the input:

    - `n_bases` (G), `subnetwork_runs`, `ablated_runs`, and the larger of these two as `n_runs`;
    - `subnetwork_difference`, `ablated_difference`: means over runs;
    - `intercept_z`, `intercept_p` (normal) and `intercept_stars`; `ablated_chi2`, `ablated_p` and
      `ablated_stars`, the Wald test of intercept + ablation = 0 with one degree of freedom. Covariance: HC0
      cluster sandwich times G / (G - 1), without the factor (n - 1) / (n - k);
    - `intercept_t_p`, `ablated_t_p`: the same statistics as a t with G - 1 degrees of freedom;
    - `intercept_wild_p`, `ablated_wild_p`: wild cluster bootstrap with the null imposed and Rademacher
      weights, exact up to `EXACT_SIGNS` bases, otherwise from `draws` random sign vectors. It cannot fall
      below `..._wild_p_smallest`, which is 2 / 2^G when exact: three bases never get below .25;
    - `..._bootstrap_low`, `..._bootstrap_high`, `..._t_low`, `..._t_high`: 95% intervals over bases, of
      `bootstrap_interval` and `t_interval`.

    Degenerate input, all without a warning. One base: there is no error to estimate, and all but counts and
    means is nan. All bases with the same mean: z is inf or -inf (chi2 inf, p 0), or nan (p nan) if that
    mean is 0. A run with only one of the two networks counts for that one; a network without any run is
    nan. The G of the covariance counts the bases of both networks, all else the bases with runs of the
    network tested.

    Raises ValueError for a missing column, an unknown network, an empty key, or a difference that is not
    finite.
    """
    _check_options(level=0.95, draws=draws)
    effects = _checked(effects)
    rows = [
        dict(zip(_KEYS, key, strict=True)) | _tests_of(group, seed=seed, draws=draws)
        for key, group in effects.groupby(_KEYS, sort=True, observed=True)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _checked(effects: pd.DataFrame) -> pd.DataFrame:
    """Return the needed columns with a finite float `difference` and integer codes of the bases in `base`."""
    for column in _REQUIRED:
        if column not in effects.columns:
            raise ValueError(f"effects have no column {column!r}; they need {', '.join(_REQUIRED)}")
    unknown = effects["network"][~effects["network"].isin([network for network, *_ in _TESTS])]
    if len(unknown):
        raise ValueError(f"unknown network {unknown.iloc[0]!r} in effects; use 'subnetwork' or 'ablated'")
    for column in [*_KEYS, "base_model"]:
        if missing := effects[column].isna().sum():
            raise ValueError(f"{missing} rows of effects have no {column!r}; fill it in")
    values = pd.to_numeric(effects["difference"], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"{bad.size} rows of effects have no finite 'difference'; leave these runs out")
    base = ["number", "base_model"] if "number" in effects.columns else ["base_model"]
    codes = effects.groupby(base, sort=False, dropna=False, observed=True).ngroup()
    return effects[[*_KEYS, "network"]].assign(difference=values, base=codes.to_numpy())


def _tests_of(group: pd.DataFrame, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return the columns of one row of the table from the runs of one model, task and subroutine."""
    n_bases = group["base"].nunique()
    row: dict[str, float | str] = {"n_bases": n_bases}
    for network, test, _ in _TESTS:
        part = group[group["network"] == network]
        row |= {f"{network}_runs": len(part), f"{test}_z": math.nan, f"{test}_stars": ""}
        if len(part):
            runs = _by_base(part["difference"], part["base"])
            estimates = _estimates(runs, seed=seed, draws=draws)
            tests = _tests(runs, n_bases, seed=seed, draws=draws)
            row |= {f"{network}_{name}": value for name, value in estimates.items()}
            row |= {f"{test}_{name}": value for name, value in tests.items()}
    row["ablated_chi2"] = row["ablated_z"] ** 2  # a Wald test with one degree of freedom
    row["n_runs"] = max(row["subnetwork_runs"], row["ablated_runs"])
    return row


def _estimates(runs: _Runs, *, seed: int, draws: int) -> dict[str, float]:
    """Return the mean over runs and both 95% intervals."""
    mean, low, high = _bootstrap(runs, level=0.95, seed=seed, draws=draws)
    student = _student(runs, level=0.95)
    return {
        "difference": mean,
        "bootstrap_low": low,
        "bootstrap_high": high,
        "t_low": student.low,
        "t_high": student.high,
    }


def _tests(runs: _Runs, n_bases: int, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return z, its p-values and its stars for the hypothesis that the mean of the runs is 0."""
    z, own_bases = math.nan, len(runs.sums)
    if own_bases > 1:  # a single base with runs has no residual, and would pass for certainty
        z = float(_statistic(*_mean_and_error(runs.sums, runs, n_bases)))
    p = float(2 * stats.norm.sf(abs(z)))
    wild_p, smallest = _wild_bootstrap(runs, seed=seed, draws=draws)
    return {
        "z": z,
        "p": p,
        "stars": stars(p),
        "t_p": float(2 * stats.t.sf(abs(z), own_bases - 1)) if own_bases > 1 else math.nan,
        "wild_p": wild_p,
        "wild_p_smallest": smallest,
    }


def _by_base(values: ArrayLike, clusters: ArrayLike) -> _Runs:
    """Add up values within clusters.

    Values and bases are put in an order of their own, so that no result depends on the order of the rows or
    on the names of the bases, be it through rounding or through the random draws.
    """
    values, clusters = np.asarray(values, dtype=float), np.asarray(clusters, dtype=object)
    if values.ndim != 1 or values.shape != clusters.shape:
        raise ValueError(f"{values.size} values but {clusters.size} clusters; give one cluster per value")
    if not len(values) or not np.isfinite(values).all() or pd.isna(clusters).any():
        raise ValueError("give one finite value or more, each with its cluster; leave failed runs out")
    order = np.argsort(values, kind="stable")
    codes = pd.factorize(clusters)[0][order]
    sums, sizes = np.bincount(codes, weights=values[order]), np.bincount(codes)
    bases = np.lexsort((sums, sizes))
    return _Runs(sums[bases], sizes[bases], float(np.abs(values).max()))


def _mean_and_error(sums: np.ndarray, runs: _Runs, n_bases: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over runs and its cluster-robust standard error: HC0 sandwich times G / (G - 1).

    sums: [..., bases], those of `runs` or of replicates of them; the results have the leading shape. For a
    group mean the sandwich is the sum of the squared cluster sums of residuals over the squared number of
    runs.
    """
    n = runs.sizes.sum()
    mean = _without_rounding(sums.sum(axis=-1) / n, runs.scale)
    residuals = sums - runs.sizes * mean[..., None]
    error = np.sqrt(n_bases / (n_bases - 1) * (residuals**2).sum(axis=-1)) / n
    return mean, _without_rounding(error, runs.scale)


def _without_rounding(values: ArrayLike, scale: float) -> np.ndarray:
    """Set to 0 what differs from 0 by rounding only, so that runs that are all equal have no error at all."""
    values = np.asarray(values)
    return np.where(np.abs(values) <= _ROUNDING * scale, 0.0, values)


def _statistic(mean: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return mean / error, with x / 0 = +-inf and 0 / 0 = nan."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return mean / error


def _wild_bootstrap(runs: _Runs, *, seed: int, draws: int) -> tuple[float, float]:
    """Return the two-sided wild cluster bootstrap p-value of mean = 0, and the smallest one attainable.

    Cameron, Gelbach and Miller (2008): under the null the residuals are the values themselves; each
    replicate flips the sign of all runs of a base at once and is studentized again. The observed signs
    count as one of the random vectors, which keeps the test valid. nan for fewer than two bases, or where
    there is no statistic.
    """
    n_bases = len(runs.sums)
    if n_bases < 2:
        return math.nan, math.nan
    signs = _sign_vectors(n_bases, seed=seed, draws=draws)
    observed = abs(_statistic(*_mean_and_error(runs.sums, runs, n_bases)))
    replicates = abs(_statistic(*_mean_and_error(signs * runs.sums, runs, n_bases)))
    smallest = max(2 / 2**n_bases, 1 / len(signs))
    # the tolerance makes ties, above all with the observed statistic itself, independent of rounding
    p = float(np.mean(replicates >= observed * (1 - 1e-9)))
    return (math.nan if np.isnan(observed) else p), smallest


def _sign_vectors(n_bases: int, *, seed: int, draws: int) -> np.ndarray:
    """Return sign vectors [vectors, bases]: all of them, or the all-positive one and `draws` random ones."""
    if n_bases <= EXACT_SIGNS:
        return np.array(list(product((1, -1), repeat=n_bases)))
    random = np.random.default_rng(seed).choice((1, -1), size=(draws, n_bases))
    return np.vstack([np.ones((1, n_bases), dtype=random.dtype), random])


def _bootstrap(runs: _Runs, *, level: float, seed: int, draws: int) -> Interval:
    """Return the mean over runs and its percentile interval over resampled bases."""
    mean = float(runs.sums.sum() / runs.sizes.sum())
    if len(runs.sums) < 2:
        return Interval(mean, math.nan, math.nan)
    counts, weights = _resamples(len(runs.sums), seed=seed, draws=draws)
    means = (counts @ runs.sums) / (counts @ runs.sizes)
    low, negative_high = (
        np.quantile(sign * means, (1 - level) / 2, weights=weights, method="inverted_cdf") for sign in (1, -1)
    )
    return Interval(mean, float(low), 0.0 - float(negative_high))  # 0 - x, because -x would print -0.0


def _resamples(n_bases: int, *, seed: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each base is drawn, [resamples, bases], and the relative weight of each resample."""
    if n_bases > EXACT_RESAMPLES:
        shares = np.full(n_bases, 1 / n_bases)
        return np.random.default_rng(seed).multinomial(n_bases, shares, size=draws), np.ones(draws)
    chosen = np.array(list(combinations_with_replacement(range(n_bases), n_bases)))
    counts = (chosen[:, :, None] == np.arange(n_bases)).sum(axis=1)
    return counts, math.factorial(n_bases) / special.factorial(counts).prod(axis=1)


def _student(runs: _Runs, *, level: float) -> Interval:
    """Return the mean of the bases' means and its Student interval."""
    means = runs.sums / runs.sizes
    mean = float(means.mean())
    if len(means) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(stats.t.ppf((1 + level) / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
    return Interval(mean, mean - half, mean + half)


def _check_options(*, level: float, draws: int) -> None:
    """Raise ValueError for a level or a number of draws that means nothing."""
    if not 0 < level < 1:
        raise ValueError(f"level {level:g} is outside (0, 1); give a fraction such as 0.95")
    if draws < 1:
        raise ValueError(f"draws {draws} is no number of draws; give at least 1, better thousands")
