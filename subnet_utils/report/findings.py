"""Claims over seeds: means with their intervals, and verdicts. The seeds are the observations."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from subnet_utils.report.comparison import FINDING, SHARES, verdict
from subnet_utils.statistics import runs_needed, t_interval

SHARE = (0.0, 1.0)
"""Between what an accuracy is, and all else that is a share of a whole. A t interval does not know it."""
ANY = (-np.inf, np.inf)
WIDTH = 0.05
"""Half of an interval that would settle a question about an accuracy or an overlap."""


def interval(
    values: ArrayLike, seeds: ArrayLike, name: str = "ours", within: tuple[float, float] = ANY
) -> dict[str, float]:
    """`name`: mean of the seeds' means; low, high: its 95% t interval, cut to what is possible; n_runs: seeds.

    What is not finite is left out; where nothing is left there are NaN and no seeds.
    """
    values, seeds = np.asarray(values, dtype=float), np.asarray(seeds)
    there = np.isfinite(values)
    found = t_interval(values[there], seeds[there]) if there.any() else [np.nan] * 3
    return dict(zip((name, "low", "high"), np.clip(found, *within), strict=True)) | {"n_runs": len(set(seeds[there]))}


def judged(
    values: ArrayLike, seeds: ArrayLike, claim: tuple[float, float], words: Sequence[str] = FINDING, *,
    possible: tuple[float, float] = ANY, **options: bool,
) -> dict[str, Any]:  # fmt: skip
    """The `interval` of what is claimed to lie in a range, and the verdict. words, options: of `verdict`."""
    found = interval(values, seeds, within=possible)
    return found | {"verdict": verdict(found["low"], found["high"], claim, words, **options)}


def claimed(
    place: str, claim: str, values: ArrayLike, seeds: ArrayLike, within: tuple[float, float], *, paper: float = np.nan,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A row on what a paper says: place, its figure or table; claim, in words; the range in which our number should be.

    paper: the number that it prints. seeds_needed: how many seeds an interval of +-.05 would take, if they spread as
    ours do. options: of `judged`.
    """
    about = {"place": place, "claim": claim, "paper": paper, "claimed_from": within[0], "claimed_to": within[1]}
    frame = pd.DataFrame({"ours": np.asarray(values, dtype=float), "seed": np.asarray(seeds)})
    means = frame[np.isfinite(frame["ours"])].groupby("seed")["ours"].mean()
    return about | judged(values, seeds, within, **options) | {"seeds_needed": runs_needed(means, half=WIDTH)}


def with_intervals(table: pd.DataFrame, by: Sequence[str], value: str = "accuracy") -> pd.DataFrame:
    """Mean over seeds with a 95% t interval, for every group of columns; NaN where no seed has a value."""
    within = SHARE if value in SHARES else ANY
    return pd.DataFrame(
        about | interval(some[value], some["seed"], value, within) for about, some in groups(table, *by)
    )


def groups(table: pd.DataFrame, *columns: str) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The groups of a table as they first occur, each with what it is about."""
    for about, group in table.groupby(list(columns), sort=False, dropna=False):
        yield dict(zip(columns, about, strict=True)), group
