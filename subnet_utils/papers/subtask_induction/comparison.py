"""A number of the paper's next to ours: the mean over seeds with its interval, and the verdict."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from subnet_utils.report.comparison import verdict
from subnet_utils.statistics import Interval, t_interval


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% t interval of one value a seed. The ends are missing for fewer than two, all for none."""
    return t_interval(values, range(len(values))) if len(values) else Interval(math.nan, math.nan, math.nan)


def compared(values: pd.Series, paper: float, *, comparable: bool) -> dict[str, Any]:
    """The paper's number, ours with its interval over the seeds that have one, and the verdict.

    It agrees if it lies in the interval. comparable: whether data and networks are the paper's, else there is no
    verdict.
    """
    values = values.dropna()
    mean, low, high = interval(values)
    judged = verdict(low, high, (paper, paper), comparable=comparable)
    return {"paper": paper, "ours": mean, "ours_low": low, "ours_high": high, "n_runs": len(values), "verdict": judged}
