"""What the tables of both parts share: what is ahead of what, and the paper's numbers next to ours."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import pandas as pd

from subnet_utils.papers.subtask_induction import reference
from subnet_utils.report.comparison import CLAIM, verdict
from subnet_utils.report.findings import SHARE, interval


def ahead(one: pd.Series, other: pd.Series, name: str) -> dict[str, Any]:
    """By how much one is ahead of the other: mean over seeds of the differences, under the name, with its interval.

    The values have an index with the seed. Several of a seed count as their mean.
    """
    difference = (one - other).dropna().groupby("seed").mean()
    return interval(difference, difference.index, name)


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
    ours, low, high, count = interval(values, range(len(values)), within=SHARE).values()
    judged = verdict(low, high, (paper, paper), margin=margin, comparable=comparable)
    return {"paper": paper, "ours": ours, "ours_low": low, "ours_high": high, "n_runs": count, "verdict": judged}


def say(faults: Iterable[str]) -> None:
    """A line for each fault, once."""
    print("".join(f"{line}\n" for line in dict.fromkeys(faults)), end="", file=sys.stderr)
