"""The paper's value and ours, with a verdict that one rule gives and nobody chooses: `verdict`.

`compare` applies it to many runs. Whether numbers are the same is asked at the papers' own sizes alone, where networks
and data are the paper's; whether a difference points the same way, smaller networks can answer as well.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from subnet_utils.statistics import LEARNED, t_interval

AGREES, DIFFERS, NOT_COMPARABLE = "agrees", "differs", "not comparable at this profile"
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
VERDICTS = (AGREES, DIFFERS, HOLDS, FAILS, OPEN, NOT_COMPARABLE)

PAPER_PROFILES = ("paper", *(f"paper_{one}" for one in ("anaphora", "arithmetic", "gpt2", "qqp", "roberta")))
"""Those of params/ with networks and data of the papers."""
CLAIM = 0.05
"""A difference of accuracies this small is no effect: about one standard error of an accuracy on 200 examples."""
SIZE = 0.25
"""A share of weights is near another one that it differs from by a quarter at most."""
POSITIVE = (0.0, math.inf)
"""The claim that something is above 0."""


VALUE = (AGREES, DIFFERS, OPEN, NOT_COMPARABLE)
FINDING = (HOLDS, FAILS, OPEN, OPEN)
"""What a verdict is called where our interval is inside what is claimed, outside, partly inside, or unknown: for the
paper's values, and for its claims."""


def verdict(
    low: float, high: float, claim: tuple[float, float], words=VALUE, *, margin: float = 0.0, comparable: bool = True
) -> str:
    """The verdict of an interval of ours, `low` to `high` (one number twice), on a range of values that is claimed.

    It is outside if it has nothing in common with the claim. It is inside if it meets the claim and ends less than
    `margin` beyond it. Else it is partly inside: a wide interval agrees with nothing.
    claim: its ends, infinite where it has none; words: see `FINDING`. What touches an end of the claim is partly
    inside, and a claim of one value is met by that value. A NaN makes the verdict unknown.

    >>> verdict(0.1, 0.3, POSITIVE), verdict(-0.1, 0.3, POSITIVE), verdict(-0.3, -0.1, POSITIVE, FINDING)
    ('agrees', 'cannot be told', 'does not hold')
    """
    inside, outside, partly, unknown = words
    if not comparable or any(map(math.isnan, (low, high, *claim))):
        return unknown
    if high < claim[0] or low > claim[1]:
        return outside
    above = claim[0] - margin < low or claim[0] == -math.inf
    below = high < claim[1] + margin or claim[1] == math.inf
    return inside if (above and below) or (low, high) == claim else partly


def at_paper_size(profile: str) -> bool:
    """Whether a profile has networks and data of the papers. A profile of somebody's own is none, whatever its name."""
    return profile in PAPER_PROFILES


def direction(effect: float, p: float, level: float = 0.05) -> float:
    """What a test says of an effect: its sign where p is below the level, else 0; NaN without a test."""
    return math.nan if math.isnan(p) else float(np.sign(effect)) if p < level else 0.0


OURS = ["ours", "ours_low", "ours_high", "n_runs", "n_bases"]
COLUMNS = ["paper", "paper_sd", *OURS, "criterion", "verdict", "reason"]
SHARES = ("accuracy", "density", "share")
"""What is between 0 and 1."""


class Judgement(NamedTuple):
    """A verdict, and why nothing could be said (or '')."""

    verdict: str
    reason: str


def compare(ours: pd.DataFrame, paper: pd.DataFrame, *, by: Sequence[str], value: str, profile: str) -> pd.DataFrame:
    """One row per group of `by` in ours: the paper's mean and sd, our mean and interval, and the verdict.

    ours: one row per run with columns `by`, `value`, `base_model` and, if known, `base_accuracy`. Runs of base models
    below 90% are left out, as in the paper's tests, unless a group has no others: then it is shown and not judged.
    paper: either one row per group with `<value>_mean`, `<value>_sd` (and `n_bases`), or one row per run with `value`.

    `ours` is the mean over base models of each one's mean over runs; `ours_low`, `ours_high` its 95% interval, t with
    n_bases - 1 degrees of freedom, since runs that share a base model are not independent; of shares cut at 0 and 1.

    - value: the claim is the paper's mean +- sd, with a margin of .05 (of a density a quarter of the paper's). A
      difference on the other side of 0 than the paper's, which is beyond +-.05, agrees with none.
    - sign: the paper claims a direction if its mean is beyond +-.05 and further from 0 than its standard error over
      base models (sd / sqrt(n_bases)); beyond +-.05 but within its own noise it claims nothing. We agree if our
      interval lies on that side of 0 and our mean is beyond .05, and differ if the interval has nothing beyond .05.
      Within +-.05 it claims no effect: we agree if our interval is within +-.05, and differ if it is beyond.

    All else cannot be told, nor can anything with one base model, which has no interval.

    The criterion is value `at_paper_size`, otherwise sign for `difference` and none for all else.
    Raises ValueError for a missing column, no runs, or several paper rows for one group.
    """
    by = list(by)
    _require(ours, [*by, value, "base_model"], "ours")
    _require(paper, by, "paper")
    if ours.empty:
        raise ValueError("ours has no runs to compare; run the notebook that makes them first")
    groups = _with_keys(ours, by).groupby(by, sort=False, observed=True)
    table = pd.DataFrame([dict(zip(by, key, strict=True)) | _summarize(group, value) for key, group in groups])
    if value in SHARES:  # a t interval does not know what is possible
        table[["ours_low", "ours_high"]] = table[["ours_low", "ours_high"]].clip(0, 1)
    table = table.merge(_summarize_paper(_with_keys(paper, by), by, value), on=by, how="left")
    criterion = "value" if at_paper_size(profile) else "sign" if value == "difference" else "none"
    judged = [_judge(row, criterion, value) for row in table.itertuples()]
    table["criterion"] = criterion
    table[list(Judgement._fields)] = pd.DataFrame(judged, index=table.index)
    return table[[*by, *COLUMNS]]


def _require(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(f"{name} has no column {', '.join(missing)}; it has: {', '.join(map(str, frame))}")


def _with_keys(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The frame with missing keys as '': vision has no grammatical number, and csv files leave it empty."""
    return frame.assign(**{key: frame[key].astype(object).where(frame[key].notna(), "") for key in by})


def _summarize(group: pd.DataFrame, value: str) -> dict[str, float | int | bool]:
    """Mean and interval over the base models that learned their task, or over all of them if none did."""
    learned = group.get("base_accuracy", pd.Series(1.0, index=group.index)) >= LEARNED
    runs = group[learned] if learned.any() else group
    numbers = *t_interval(runs[value], runs["base_model"]), len(runs), runs["base_model"].nunique()
    return dict(zip(OURS, numbers, strict=True)) | {"learned": bool(learned.any())}


def _summarize_paper(paper: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    if f"{value}_mean" not in paper:
        _require(paper, [value], "paper")
        groups = paper.groupby(by, sort=False)[value]
        return groups.agg(paper="mean", paper_sd="std", paper_bases="size").reset_index()
    if paper.duplicated(by).any():
        first = paper.loc[paper.duplicated(by), by].iloc[0].to_dict()
        raise ValueError(f"paper has several rows for {first}; select one condition and model before comparing")
    columns = {f"{value}_mean": "paper", f"{value}_sd": "paper_sd", "n_bases": "paper_bases"}
    return paper.reindex(columns=[*by, *columns]).rename(columns=columns)


def _judge(row: NamedTuple, criterion: str, value: str) -> Judgement:
    if math.isnan(row.paper):
        return Judgement(NOT_COMPARABLE, "the paper reports no such value")
    if not row.learned:
        return Judgement(NOT_COMPARABLE, "no base model reaches 90%")
    if criterion == "none":
        return Judgement(NOT_COMPARABLE, f"{value} depends on the size of network and data")
    if math.isnan(row.ours_low):
        return Judgement(OPEN, "one base model gives no interval")
    return _judge_value(row, value) if criterion == "value" else _judge_sign(row)


def _judge_value(row: NamedTuple, value: str) -> Judgement:
    sd = 0.0 if math.isnan(row.paper_sd) else row.paper_sd
    margin = SIZE * row.paper if value == "density" else CLAIM
    found = verdict(row.ours_low, row.ours_high, (row.paper - sd, row.paper + sd), margin=margin)
    turned = value == "difference" and abs(row.paper) > CLAIM and row.ours * row.paper < 0
    return Judgement(OPEN if found == AGREES and turned else found, "")


def _judge_sign(row: NamedTuple) -> Judgement:
    if abs(row.paper) <= CLAIM:
        return Judgement(verdict(row.ours_low, row.ours_high, (-CLAIM, CLAIM)), "")
    if abs(row.paper) <= row.paper_sd / math.sqrt(row.paper_bases):
        return Judgement(NOT_COMPARABLE, "the paper's own runs show no direction")
    side = math.copysign(1, row.paper)
    low, high = sorted((side * row.ours_low, side * row.ours_high))
    agrees = low > 0 and side * row.ours > CLAIM
    return Judgement(AGREES if agrees else verdict(low, high, (CLAIM, math.inf)), "")
