"""Is a difference between two probe sets real, when it was measured on a handful of base models?

*Break It Down* (appendix A.1) fits one Gaussian linear model per model, task and subroutine,

    performance = intercept + ablation * [the network is the ablated model],

with standard errors clustered by base model, because masks found in one base are not independent observations. The
intercept is then the mean difference of the subnetworks, and intercept + ablation that of the ablated models. Two group
means saturate the model, so every statistic depends on the runs of one network only: `Runs`.

The paper treats the standard error as known. It is estimated from 2, 3 or 6 bases, and then the z and the chi-square
are far too optimistic (two bases: z = 3.00 is p = .003, and p = .20 as a t with one degree of freedom). So there are t
tests, a wild cluster bootstrap and permutation tests beside them.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from subnet_utils.statistics import (
    Runs,
    by_base,
    mean_and_error,
    permutation_test,
    ratio,
    stars,
    wild_bootstrap,
    without_rounding,
)
from subnet_utils.tasks.odd_one_out import CHANCE

KEYS = ["model", "task", "subroutine"]
"""What each statistic is computed for, one row of a table each."""
LEVELS = {"network": ("subnetwork", "ablated"), "condition": ("trained", "random")}
"""The factors of the paper's models and their levels."""
RANDOM = {"seed": 0, "draws": 9999}
"""Of the tests that are too many to enumerate."""
_TEST = ("z", "chi2", "p", "stars", "t_p")
_COMPOSITIONALITY = {"subnetwork": "intercept", "ablated": "ablated"}  # network -> what the test of it is called
_CONTROL = {"subnetwork": "random_coefficient", "ablated": "random"}
_SHIFT = {"subnetwork": "random_coefficient", "ablated": "random_ablated_difference"}


def clamped_difference(target: ArrayLike, other: ArrayLike) -> ArrayLike:
    """max(target, 1/4) - max(other, 1/4): accuracy on Test-Target minus accuracy on Test-Other.

    *Break It Down*, footnote 13: an accuracy below chance is no evidence for the other subroutine. Arguments are
    fractions, numbers or arrays; missing values stay missing. Raises ValueError for an accuracy outside [0, 1], such as
    a percentage.
    """
    for name, accuracy in (("target", target), ("other", other)):
        values = np.asarray(accuracy, dtype=float)
        outside = values[(values < 0) | (values > 1)]
        if outside.size:
            raise ValueError(f"{name} accuracy {outside[0]:g} is outside [0, 1]; give it as a fraction")
    return np.maximum(target, CHANCE) - np.maximum(other, CHANCE)


def compositionality_table(effects: pd.DataFrame) -> pd.DataFrame:
    """Test whether subnetworks and ablated models do better on one of the two probe sets (Table 1, appendix A.1).

    effects: one row per run and network, with columns `model`, `task`, `subroutine`, `base_model`, `network`
    ('subnetwork' or 'ablated') and `difference` (see `clamped_difference`). Bases below 90% are for the caller to leave
    out. Bases of different `number`, if there is such a column, are different bases: the paper collapses singular and
    plural, so that language has G = 6 of them.

    Returns one row per (model, task, subroutine), sorted:

    - `n_bases` (G); `n_runs`, those of the network that has more; `subnetwork_difference`, `ablated_difference`: means;
    - `intercept_z`, `..._p` (normal), `..._stars`; `ablated_chi2`, `..._p`, `..._stars`, the Wald test of intercept +
      ablation = 0 with one degree of freedom. Covariance: HC0 cluster sandwich times G / (G - 1), without the factor
      (n - 1) / (n - k), where G counts the bases of both networks;
    - `..._t_p`: the same as a t with a degree of freedom less than the network has bases; `..._wild_p`: see
      `subnet_utils.statistics.wild_bootstrap`.

    One base, or a network without runs: no test, nan. All bases with the same mean: z is inf or -inf (chi2 inf, p 0),
    or nan if that mean is 0.

    Raises ValueError for a missing column, an unknown network, an empty key, or a difference that is not finite.
    """
    rows = []
    for key, group in checked_effects(effects).groupby(KEYS, observed=True):
        networks = group.groupby("network", observed=True)
        row = dict(zip(KEYS, key, strict=True)) | dict.fromkeys(("intercept_stars", "ablated_stars"), "")
        row |= {"n_bases": group["base"].nunique(), "n_runs": networks.size().max()}
        for network, part in networks:
            runs = by_base(part["difference"], part["base"])
            tests = _zero_mean(runs, row["n_bases"])
            row |= {f"{network}_difference": runs.mean} | _named(_COMPOSITIONALITY[network], tests)
        rows.append(row)
    differences = [f"{network}_difference" for network in _COMPOSITIONALITY]
    return pd.DataFrame(
        rows, columns=[*KEYS, "n_bases", "n_runs", *differences, *_columns(_COMPOSITIONALITY, "wild_p")]
    )


def random_control_table(effects: pd.DataFrame) -> pd.DataFrame:
    """Test whether masks do in random networks what they do in trained ones (Table 12, appendix I.1).

    The two-factor model is

        performance = intercept + ablation * [ablated] + random * [random] + interaction * [ablated and random].

    Four cell means saturate it, so each contrast is the difference of two means over disjoint clusters: a base is
    another cluster in the other condition, whatever its name. (In the authors' run the random networks are the same
    three under every base.)

    effects: as for `compositionality_table`, with a column `condition`, 'trained' or 'random'.

    Returns one row per (model, task, subroutine), sorted:

    - `n_bases_trained`, `n_bases_random`;
    - `random_coefficient`, random minus trained subnetworks, with `..._z`, `..._p` (normal), `..._stars`;
    - `random_ablated_difference`, random minus trained ablated models, with `random_chi2`, `..._p`, `..._stars`: the
      Wald test of random + interaction = 0. Covariance as there, where G counts the bases of both conditions;
    - `..._t_p`: the same as a t with G - 2 degrees of freedom, still optimistic, because G / (G - 1) does not make up
      for two means (for 3 + 3 bases .05 is .07); `..._permutation_p`: see `subnet_utils.statistics.permutation_test`.

    Fewer than two bases in a condition: no test, nan. Bases with equal means in either condition: z is inf or -inf, or
    nan if the conditions have the same mean too, where the permutation p is 1.

    Raises ValueError as `compositionality_table` does, and for an unknown condition.
    """
    rows = []
    for key, group in checked_effects(effects, ("network", "condition")).groupby(KEYS, observed=True):
        bases = group.groupby("condition", observed=True)["base"].nunique().reindex(LEVELS["condition"], fill_value=0)
        row = dict(zip(KEYS, key, strict=True)) | bases.add_prefix("n_bases_").to_dict()
        row |= dict.fromkeys(("random_coefficient_stars", "random_stars"), "")
        for network, part in group.groupby("network", observed=True):
            conditions = part.groupby("condition", observed=True)
            cells = {condition: by_base(runs["difference"], runs["base"]) for condition, runs in conditions}
            if len(cells) == 2:
                row[_SHIFT[network]] = cells["random"].mean - cells["trained"].mean
                row |= _named(_CONTROL[network], _equal_means(**cells, n_bases=bases.sum()))
        rows.append(row)
    counts = [f"n_bases_{condition}" for condition in LEVELS["condition"]]
    return pd.DataFrame(rows, columns=[*KEYS, *counts, *_SHIFT.values(), *_columns(_CONTROL, "permutation_p")])


def checked_effects(effects: pd.DataFrame, factors: tuple[str, ...] = ("network",)) -> pd.DataFrame:
    """The needed columns with a finite float `difference` and integer codes of the bases in `base`.

    factors: which of `LEVELS` the effects must have. Raises ValueError as `compositionality_table` does.
    """
    required = [*KEYS, "base_model", *factors, "difference"]
    for column in required:
        if column not in effects.columns:
            raise ValueError(f"effects have no column {column!r}; they need {', '.join(required)}")
    for factor in factors:
        unknown = effects[factor][~effects[factor].isin(LEVELS[factor])]
        if len(unknown):
            valid = " or ".join(map(repr, LEVELS[factor]))
            raise ValueError(f"unknown {factor} {unknown.iloc[0]!r} in effects; use {valid}")
    for column in [*KEYS, "base_model"]:
        if missing := effects[column].isna().sum():
            raise ValueError(f"{missing} rows of effects have no {column!r}; fill it in")
    difference = pd.to_numeric(effects["difference"], errors="coerce").astype(float)
    if bad := (~np.isfinite(difference)).sum():
        raise ValueError(f"{bad} rows of effects have no finite 'difference'; leave these runs out")
    base = [name for name in ("number", "base_model") if name in effects]
    codes = effects.groupby(base, sort=False, dropna=False, observed=True).ngroup()
    return effects[[*KEYS, *factors]].assign(difference=difference.to_numpy(), base=codes.to_numpy())


def _columns(tests: dict[str, str], *more: str) -> list[str]:
    return [f"{test}_{name}" for test in tests.values() for name in (*_TEST, *more)]


def _named(test: str, found: dict[str, Any]) -> dict[str, Any]:
    return {f"{test}_{name}": value for name, value in found.items()}


def _zero_mean(runs: Runs, n_bases: int) -> dict[str, Any]:
    """Tests of the hypothesis that the mean of the runs is 0."""
    z, own_bases = math.nan, len(runs.sums)
    if own_bases > 1:  # a single base with runs has no residual, and would pass for certainty
        z = float(ratio(*mean_and_error(runs.sums, runs, n_bases)))
    return _significance(z, own_bases - 1) | {"wild_p": wild_bootstrap(runs, **RANDOM)}


def _equal_means(trained: Runs, random: Runs, n_bases: int) -> dict[str, Any]:
    """Tests of equal means in both conditions: their clusters are disjoint, so the variances add up."""
    z, own_bases = math.nan, (len(trained.sums), len(random.sums))
    if min(own_bases) > 1:  # as in `_zero_mean`
        both = (mean_and_error(runs.sums, runs, n_bases) for runs in (trained, random))
        (mean, error), (random_mean, random_error) = both
        difference = without_rounding(random_mean - mean, max(trained.scale, random.scale))
        z = float(ratio(difference, np.hypot(error, random_error)))
    permutation_p = permutation_test(trained, random, **RANDOM)
    return _significance(z, sum(own_bases) - 2) | {"permutation_p": permutation_p}


def _significance(z: float, freedom: int) -> dict[str, Any]:
    """z, its square, its p-value as a normal variable with the paper's stars, and as a t with `freedom`."""
    p = float(2 * special.ndtr(-abs(z)))
    t_p = math.nan if math.isnan(z) else float(2 * special.stdtr(freedom, -abs(z)))
    return dict(zip(_TEST, (z, z**2, p, stars(p), t_p), strict=True))
