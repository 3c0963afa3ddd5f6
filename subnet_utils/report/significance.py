"""Tests beside verdicts: of equality, of a difference, and of many at once. The networks are the observations.

With n networks a sign test by permutation has no p below 2^(1 - n). So a large p of few networks says nothing.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from subnet_utils.statistics import by_base, wild_bootstrap

RANDOM_DRAWS = 39
"""Random draws that must all be exceeded: then a two-sided p is .05, the observed value among the draws."""


def paired(differences: ArrayLike) -> float:
    """Two-sided p of no difference, by permutation: each network's two values change places, in all ways.

    differences: [networks], one value less the other. Exact up to 12 networks. NaN for fewer than two, and if nothing
    differs.
    """
    return wild_bootstrap(by_base(differences, range(len(differences))), seed=0, draws=9999)


def equivalence(differences: ArrayLike, within: float) -> float:
    """p of a difference that is `within` or larger, by two one-sided t tests (TOST); small if both values are the same.

    differences: [networks]. NaN for fewer than two.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return math.nan
    if np.ptp(values) == 0:  # no spread: t is infinite
        return float(abs(values[0]) >= within)
    return float(ttost_paired(values, np.zeros_like(values), -within, within)[0])


def adjusted(p: ArrayLike, method: str = "holm", column: str = "p") -> np.ndarray:
    """The p-values of one family, adjusted for their number (statsmodels' `multipletests`). A NaN is no test: it stays.

    column: their name. Raises ValueError for a value that is no probability.

    >>> adjusted([0.01, 0.04]).tolist()
    [0.02, 0.04]
    """
    p = np.array(p, dtype=float)
    if (outside := p[(p < 0) | (p > 1)]).size:
        raise ValueError(f"p-value {outside[0]:g} in {column!r} is outside [0, 1]; give probabilities")
    tested = ~np.isnan(p)
    if tested.any():
        p[tested] = multipletests(p[tested], method=method)[1]
    return p
