"""Means over runs that are clustered in a handful of base models: errors, resampling, permutation.

Masks found in one base are not independent observations, so base models are the units of everything here: `by_base`
adds up runs within each, and every statistic is a function of their numbers and sums.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special, stats

_ROUNDING = 1e-12  # relative to the largest value; anything smaller is rounding error and counts as zero
LEARNED = 0.9
"""Accuracy from which on a network has learned its task, or a subnetwork its own (*Break It Down*, section 3). Networks
below it are shown in gray and left out of the statistics."""
NO_TEST = "n/a"
"""In place of stars where no test is possible: nothing would read as 'not significant'."""
_MARKS = {0.001: "***", 0.01: "**", 0.05: "*", 0.1: "."}


class Interval(NamedTuple):
    """A mean and the limits of its interval, in the units of the values; the limits are nan with one base."""

    mean: float
    low: float
    high: float


class Runs(NamedTuple):
    """The runs of one group, added up within each base model."""

    sums: np.ndarray  # [bases] sum of the values
    sizes: np.ndarray  # [bases] number of runs
    scale: float  # largest absolute value

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return float(self.sums.sum() / self.sizes.sum())

    @property
    def means(self) -> np.ndarray:
        """The mean of each base, [bases]."""
        return self.sums / self.sizes


def by_base(values: ArrayLike, clusters: ArrayLike) -> Runs:
    """Add up values within clusters.

    Values and bases are put in an order of their own: no result depends on the order of the rows or on the names of the
    bases, be it through rounding or through random draws.

    >>> by_base([1.0, 2.0, 4.0], ["a", "a", "b"]).means.tolist()
    [4.0, 1.5]
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
    return Runs(sums[bases], sizes[bases], float(np.abs(values).max()))


def mean_and_error(sums: np.ndarray, runs: Runs, n_bases: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over runs and its cluster-robust standard error: HC0 sandwich times G / (G - 1).

    sums: [..., bases], those of `runs` or of replicates of them; the results have the leading shape. For a group mean
    the sandwich is the sum of the squared cluster sums of residuals over the squared number of runs.
    """
    n = runs.sizes.sum()
    mean = without_rounding(sums.sum(axis=-1) / n, runs.scale)
    residuals = sums - runs.sizes * mean[..., None]
    error = np.sqrt(n_bases / (n_bases - 1) * (residuals**2).sum(axis=-1)) / n
    return mean, without_rounding(error, runs.scale)


def without_rounding(values: ArrayLike, scale: float) -> np.ndarray:
    """Set to 0 what differs from 0 by rounding only, so that runs that are all equal have no error at all."""
    values = np.asarray(values)
    return np.where(np.abs(values) <= _ROUNDING * scale, 0.0, values)


def ratio(mean: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return mean / error, with x / 0 = +-inf and 0 / 0 = nan."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return mean / error


def wild_bootstrap(runs: Runs, *, seed: int, draws: int) -> float:
    """Return the two-sided wild cluster bootstrap p-value of mean = 0.

    Cameron, Gelbach and Miller (2008): under the null the residuals are the values themselves; each replicate flips the
    sign of all runs of a base at once and is studentized again. The observed signs count as one of the random vectors,
    which keeps the test valid. nan for fewer than two bases, or where there is no statistic.

    >>> wild_bootstrap(by_base([0.2, 0.3, 0.4], [0, 1, 2]), seed=0, draws=999)  # as small as three bases allow
    0.25
    """
    n_bases = len(runs.sums)
    if n_bases < 2:
        return math.nan
    if n_bases <= 12:  # all of them, 4096 at most
        signs = np.array(list(product((1, -1), repeat=n_bases)))
    else:
        random = np.random.default_rng(seed).choice((1, -1), size=(draws, n_bases))
        signs = np.vstack([np.ones((1, n_bases), dtype=random.dtype), random])
    observed = abs(ratio(*mean_and_error(runs.sums, runs, n_bases)))
    replicates = abs(ratio(*mean_and_error(signs * runs.sums, runs, n_bases)))
    # the tolerance makes ties, above all with the observed statistic itself, independent of rounding
    return math.nan if np.isnan(observed) else float(np.mean(replicates >= observed * (1 - 1e-9)))


def permutation_test(one: Runs, other: Runs, *, seed: int, draws: int) -> float:
    """Return the two-sided permutation p-value of equal means of the bases' means in two groups of bases.

    If the group makes no difference, every way to divide the bases into groups of these sizes was as likely. Bases
    count equally, however many runs they have. nan if a group has fewer than two bases.

    >>> permutation_test(by_base([1, 2, 3], [0, 1, 2]), by_base([7, 8, 9], [0, 1, 2]), seed=0, draws=999)
    0.1
    """
    if min(len(one.sums), len(other.sums)) < 2:
        return math.nan
    scale = max(one.scale, other.scale) or 1.0

    def difference(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        # rounded: ties, above all with the observed difference itself, must not depend on rounding errors
        return np.round(np.abs(first.mean(axis) - second.mean(axis)) / scale, 12)

    labellings = math.comb(len(one.sums) + len(other.sums), len(one.sums))
    resamples = math.inf if labellings <= 20_000 else draws  # all of them up to 8 + 8 bases
    options = {"vectorized": True, "alternative": "greater", "n_resamples": resamples, "rng": seed}
    return float(stats.permutation_test((one.means, other.means), difference, **options).pvalue)


def stars(p: float) -> str:
    """Return the paper's mark of a p-value: '***' up to .001, '**' up to .01, '*' up to .05, '.' up to .1, else ''.

    >>> stars(0.03), stars(0.3)
    ('*', '')
    """
    return next((mark for limit, mark in _MARKS.items() if p <= limit), "")


def t_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Return the mean of the base models' means and its Student interval at 95%.

    values: [runs]; clusters: [runs] the base model of each run. It has (bases - 1) degrees of freedom. Bases count
    equally, however many runs they have. With equally many runs this is the mean of all runs, and the standard error is
    the cluster-robust one of the paper. One base: the limits are nan. Raises ValueError for no values, unequal lengths,
    and values that are not finite.

    >>> [round(number, 2) for number in t_interval([0.6, 0.7, 0.8], [0, 1, 2])]
    [0.7, 0.45, 0.95]
    """
    means = by_base(values, clusters).means
    mean = float(means.mean())
    if len(means) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(special.stdtrit(len(means) - 1, 0.975) * stats.sem(means))
    return Interval(mean, mean - half, mean + half)


def runs_needed(values: ArrayLike, *, half: float) -> float:
    """Return how many values would give a 95% t interval of +-half, if they spread as these do; nan for one value.

    Up to 1,000; if these are too few, infinity.

    >>> runs_needed([0.5, 0.6, 0.7], half=0.05)
    18.0
    """
    if len(values) < 2:
        return math.nan
    n = np.arange(2, 1000)
    enough = special.stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(n) <= half
    return float(n[enough][0]) if enough.any() else math.inf
