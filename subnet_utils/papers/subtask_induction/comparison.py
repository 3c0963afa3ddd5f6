"""What the tables of both parts share: groups of rows, intervals over seeds, and the paper's numbers next to ours."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.papers.subtask_induction import reference
from subnet_utils.report.comparison import CLAIM, verdict
from subnet_utils.statistics import Interval, t_interval


def groups(table: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The groups of a table as they first occur, each with what it is about."""
    for about, group in table.groupby(list(keys), sort=False):
        yield dict(zip(keys, about, strict=True)), group


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% t interval of one value a seed. The ends are missing for fewer than two, all for none."""
    return t_interval(values, range(len(values))) if len(values) else Interval(math.nan, math.nan, math.nan)


def interval_of_share(values: Sequence[float]) -> Interval:
    """The `interval` of accuracies or densities, cut to what these can be."""
    return Interval(*np.clip(interval(values), 0, 1).tolist())


def ahead(one: pd.Series, other: pd.Series, name: str) -> dict[str, Any]:
    """By how much one is ahead of the other: mean over seeds of the differences, under the name, with its interval.

    The values have an index with the seed. Several of a seed count as their mean.
    """
    difference = (one - other).dropna().groupby("seed").mean()
    mean, low, high = interval(difference)
    return {name: mean, "low": low, "high": high, "n_runs": len(difference)}


def printed(table: str, **about: Any) -> float:
    """The paper's number in one of the tables in `reference`, NaN if there is none."""
    rows = reference.load(table)
    found = rows[(rows[list(about)] == list(about.values())).all(axis=1)]["paper"]
    return float(found.iloc[0]) if len(found) else math.nan


def compared(values: pd.Series, paper: float, *, comparable: bool, margin: float = CLAIM) -> dict[str, Any]:
    """The paper's accuracy or density, ours with its interval over the seeds that have one, and the verdict.

    It agrees if it lies in the interval, and the interval within `margin` of it. comparable: whether data and networks
    are the paper's, else there is no verdict.
    """
    values = values.dropna()
    mean, low, high = interval_of_share(values)
    judged = verdict(low, high, (paper, paper), margin=margin, comparable=comparable)
    return {"paper": paper, "ours": mean, "ours_low": low, "ours_high": high, "n_runs": len(values), "verdict": judged}


def say(faults: Iterable[str]) -> None:
    """A line for each fault, once."""
    print("".join(f"{line}\n" for line in dict.fromkeys(faults)), end="", file=sys.stderr)
