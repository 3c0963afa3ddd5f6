"""Is a difference between two probe sets real, when it was measured on a handful of base models?

*Break It Down* (appendix A.1) fits one Gaussian linear model per model, task and subroutine,

    performance = intercept + ablation * [the network is the ablated model],

with standard errors clustered by base model, because masks found in one base are not independent
observations. The intercept is then the mean difference of the subnetworks, and intercept + ablation that of
the ablated models. Two group means saturate the model, so every statistic below depends on the runs of one
network only, through the number and the sum of the values in each base: `Runs`.

The z and the chi-square of the paper treat the standard error as known. It is estimated from 2, 3 or 6
bases, and with so few they are far too optimistic (two bases: z = 3.00 is p = .003, and p = .20 as a t with
one degree of freedom). `compositionality_table` therefore returns t tests, a wild cluster bootstrap and
intervals with them, and `random_control_table`, which compares trained with random networks (appendix I.1),
t tests and permutation tests.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from subnet_utils.papers.break_it_down.tasks.odd_one_out import CHANCE
from subnet_utils.statistics import (
    Runs,
    bootstrap,
    by_base,
    check_options,
    mean_and_error,
    permutation_test,
    ratio,
    smallest_permutation_p,
    stars,
    student,
    wild_bootstrap,
    without_rounding,
)

KEYS = ["model", "task", "subroutine"]
"""What each statistic is computed for, one row of a table each."""
LEVELS = {"network": ("subnetwork", "ablated"), "condition": ("trained", "random")}
"""The factors of the paper's models and their levels."""
_TESTS = (("subnetwork", "intercept", "z"), ("ablated", "ablated", "chi2"))  # network, its test, statistic
_COLUMNS = [*KEYS, "n_runs", "n_bases"] + [
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
_SIGNIFICANCE = ("p", "stars", "t_p", "permutation_p")
_CONTROL_COLUMNS = [
    *KEYS,
    *(f"{count}_{condition}" for count in ("n_bases", "n_runs") for condition in LEVELS["condition"]),
    *(f"{condition}_{network}" for network in LEVELS["network"] for condition in LEVELS["condition"]),
    *("random_coefficient", "random_coefficient_z", *(f"random_coefficient_{name}" for name in _SIGNIFICANCE)),
    *("random_ablated_difference", "random_chi2", *(f"random_{name}" for name in _SIGNIFICANCE)),
    "permutation_p_smallest",
]


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


def compositionality_table(effects: pd.DataFrame, *, seed: int = 0, draws: int = 9999) -> pd.DataFrame:
    """Test whether subnetworks and ablated models do better on one of the two probe sets.

    The statistics of *Break It Down*, Table 1 (appendix A.1), and what else there should be with few
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
      `bootstrap` and `t_interval`.

    Degenerate input, all without a warning. One base: there is no error to estimate, and all but counts and
    means is nan. All bases with the same mean: z is inf or -inf (chi2 inf, p 0), or nan (p nan) if that
    mean is 0. A run with only one of the two networks counts for that one; a network without any run is
    nan. The G of the covariance counts the bases of both networks, all else the bases with runs of the
    network tested.

    Raises ValueError for a missing column, an unknown network, an empty key, or a difference that is not
    finite.
    """
    check_options(level=0.95, draws=draws)
    rows = [
        dict(zip(KEYS, key, strict=True)) | _tests_of(group, seed=seed, draws=draws)
        for key, group in checked_effects(effects).groupby(KEYS, sort=True, observed=True)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def random_control_table(effects: pd.DataFrame, *, seed: int = 0, draws: int = 9999) -> pd.DataFrame:
    """Test whether masks do in random networks what they do in trained ones.

    The statistics of *Break It Down*, Table 12 (appendix I.1), of the two-factor model

        performance = intercept + ablation * [ablated] + random * [random] + interaction * [ablated and random],

    and what else there should be with few bases. Four cell means saturate the model, so each contrast is
    the difference of two means over disjoint clusters: a base is another cluster in the other condition,
    whatever its name. (In the authors' run the random networks are the same three under every base.)

    effects: as for `compositionality_table`, with a column `condition`, 'trained' or 'random'.

    Returns one row per (model, task, subroutine), sorted, whatever the order of the input:

    - `n_bases_trained`, `n_bases_random`, and `n_runs_trained`, `n_runs_random`, runs of subnetworks;
    - `trained_subnetwork`, `random_subnetwork`, `trained_ablated`, `random_ablated`: means over runs;
    - `random_coefficient`, random minus trained subnetworks, with `..._z`, `..._p` (normal), `..._stars`;
    - `random_ablated_difference`, random minus trained ablated models, with `random_chi2`, `random_p`,
      `random_stars`: the Wald test of random + interaction = 0. Covariance: HC0 cluster sandwich times
      G / (G - 1), where G counts the bases of both conditions;
    - `random_coefficient_t_p`, `random_t_p`: the same statistics as a t with G - 2 degrees of freedom, still
      optimistic, because G / (G - 1) does not make up for two means (for 3 + 3 bases .05 is .07);
    - `random_coefficient_permutation_p`, `random_permutation_p`: the difference of the means of the bases'
      means among all ways to call as many of the bases trained, exact up to `EXACT_LABELLINGS` ways,
      otherwise among `draws` random ones and the observed one. Neither falls below `permutation_p_smallest`:
      .1 for 3 + 3 bases, .002 for 6 + 6.

    Degenerate input, all without a warning. A condition with one base or none, or with none in the network
    tested: all but counts and means is nan. Bases with equal means in either condition: z is inf or -inf
    (chi2 inf, p 0), or nan if the conditions have the same mean too, where the permutation p is 1. The degrees
    of freedom and the permutations count the bases with runs of the network tested.

    Raises ValueError as `compositionality_table` does, and for an unknown condition.
    """
    check_options(level=0.95, draws=draws)
    rows = [
        _controls_of(group, seed=seed, draws=draws) | dict(zip(KEYS, key, strict=True))
        for key, group in checked_effects(effects, ("network", "condition")).groupby(KEYS, sort=True, observed=True)
    ]
    return pd.DataFrame(rows, columns=_CONTROL_COLUMNS)


def checked_effects(effects: pd.DataFrame, factors: Sequence[str] = ("network",)) -> pd.DataFrame:
    """Return the needed columns with a finite float `difference` and integer codes of the bases in `base`.

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
    return effects[[*KEYS, *factors]].assign(difference=_finite(effects["difference"]), base=_codes(effects))


def _finite(difference: pd.Series) -> np.ndarray:
    """Return the differences as floats; raise ValueError if one is missing or no number."""
    values = pd.to_numeric(difference, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"{bad.size} rows of effects have no finite 'difference'; leave these runs out")
    return values


def _codes(effects: pd.DataFrame) -> np.ndarray:
    """Return an integer for the base model of each row; bases of different `number` are different bases."""
    base = ["number", "base_model"] if "number" in effects.columns else ["base_model"]
    return effects.groupby(base, sort=False, dropna=False, observed=True).ngroup().to_numpy()


def _tests_of(group: pd.DataFrame, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return the columns of one row of the table from the runs of one model, task and subroutine."""
    n_bases = group["base"].nunique()
    row: dict[str, float | str] = {"n_bases": n_bases}
    for network, test, _ in _TESTS:
        part = group[group["network"] == network]
        row |= {f"{network}_runs": len(part), f"{test}_z": math.nan, f"{test}_stars": ""}
        if len(part):
            runs = by_base(part["difference"], part["base"])
            estimates = _estimates(runs, seed=seed, draws=draws)
            tests = _tests(runs, n_bases, seed=seed, draws=draws)
            row |= {f"{network}_{name}": value for name, value in estimates.items()}
            row |= {f"{test}_{name}": value for name, value in tests.items()}
    row["ablated_chi2"] = row["ablated_z"] ** 2  # a Wald test with one degree of freedom
    row["n_runs"] = max(row["subnetwork_runs"], row["ablated_runs"])
    return row


def _estimates(runs: Runs, *, seed: int, draws: int) -> dict[str, float]:
    """Return the mean over runs and both 95% intervals."""
    mean, low, high = bootstrap(runs, level=0.95, seed=seed, draws=draws)
    _, t_low, t_high = student(runs, level=0.95)
    return {"difference": mean, "bootstrap_low": low, "bootstrap_high": high, "t_low": t_low, "t_high": t_high}


def _tests(runs: Runs, n_bases: int, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return z, its p-values and its stars for the hypothesis that the mean of the runs is 0."""
    z, own_bases = math.nan, len(runs.sums)
    if own_bases > 1:  # a single base with runs has no residual, and would pass for certainty
        z = float(ratio(*mean_and_error(runs.sums, runs, n_bases)))
    wild_p, smallest = wild_bootstrap(runs, seed=seed, draws=draws)
    return _significance(z, own_bases - 1) | {"wild_p": wild_p, "wild_p_smallest": smallest}


def _significance(z: float, freedom: int) -> dict[str, float | str]:
    """Return z, its p-value as a normal variable with the paper's stars, and as a t with `freedom`."""
    p = float(2 * special.ndtr(-abs(z)))
    t_p = math.nan if math.isnan(z) else float(2 * special.stdtr(freedom, -abs(z)))
    return {"z": z, "p": p, "stars": stars(p), "t_p": t_p}


def _controls_of(group: pd.DataFrame, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return the columns of one row of the control table from the runs of one model, task and subroutine."""
    row = dict.fromkeys([*_CONTROL_COLUMNS, "random_z"], math.nan) | _counts(group)
    bases = [row[f"n_bases_{condition}"] for condition in LEVELS["condition"]]
    for network, test in (("subnetwork", "random_coefficient"), ("ablated", "random")):
        cells = _cells(group[group["network"] == network])
        row |= {f"{condition}_{network}": runs.mean for condition, runs in cells.items()} | {f"{test}_stars": ""}
        if len(cells) == 2:
            tests = _contrast(cells["trained"], cells["random"], sum(bases), seed=seed, draws=draws)
            row |= {f"{test}_{name}": value for name, value in tests.items()}
    row["random_coefficient"] = row["random_subnetwork"] - row["trained_subnetwork"]
    row["random_ablated_difference"] = row["random_ablated"] - row["trained_ablated"]
    row["random_chi2"] = row["random_z"] ** 2  # a Wald test with one degree of freedom
    return row | {"permutation_p_smallest": smallest_permutation_p(*bases, draws=draws)}


def _counts(group: pd.DataFrame) -> dict[str, int]:
    """Return the numbers of bases and of runs of subnetworks in each condition."""
    counts = {}
    for condition in LEVELS["condition"]:
        part = group[group["condition"] == condition]
        counts[f"n_bases_{condition}"] = part["base"].nunique()
        counts[f"n_runs_{condition}"] = int((part["network"] == "subnetwork").sum())
    return counts


def _cells(part: pd.DataFrame) -> dict[str, Runs]:
    """Return the runs of each condition that has any."""
    conditions = part.groupby("condition", observed=True)
    return {condition: by_base(runs["difference"], runs["base"]) for condition, runs in conditions}


def _contrast(trained: Runs, random: Runs, n_bases: int, *, seed: int, draws: int) -> dict[str, float | str]:
    """Return the tests of equal means in both conditions: their clusters are disjoint, so the variances add up."""
    z, own_bases = math.nan, (len(trained.sums), len(random.sums))
    if min(own_bases) > 1:  # as in `_tests`
        (mean, error), (random_mean, random_error) = (
            mean_and_error(runs.sums, runs, n_bases) for runs in (trained, random)
        )
        difference = without_rounding(random_mean - mean, max(trained.scale, random.scale))
        z = float(ratio(difference, np.hypot(error, random_error)))
    permutation_p = permutation_test(trained, random, seed=seed, draws=draws)
    return _significance(z, sum(own_bases) - 2) | {"permutation_p": permutation_p}
