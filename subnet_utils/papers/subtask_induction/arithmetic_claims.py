"""Claims of *Instilling Inductive Biases with Subnetworks* on Figures 3 and 7, judged (section 4.3, appendix B)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.papers.subtask_induction.arithmetic_steps import FOUND
from subnet_utils.papers.subtask_induction.comparison import printed
from subnet_utils.report.comparison import CLAIM, FINDING, at_paper_size, verdict
from subnet_utils.report.findings import interval

NEAR = 1.5
"""A ratio is about the paper's if neither is so many times the other: numbers of rows are tried in steps of 1.6."""
CELL = ["seed", "layers", "samples"]


def claims(table: pd.DataFrame, *, profile: str) -> pd.DataFrame:
    """A row for each claim: the paper's number, the range of values that makes the claim true, ours, and the verdict.

    Ours: mean over seeds of each one's mean over depths, with a 95% t interval; of ratios the geometric mean.
    table: from `arithmetic_tables.transfers`, of one induction. An accuracy is judged at the papers' sizes alone.
    """
    alike = _difference(
        table, "random weights of the complement are like any random ones", "random_complement", "random"
    )
    return pd.DataFrame([*_scratch(table, profile), *_rows_needed(table), alike])


def frozen_or_not(table: pd.DataFrame) -> pd.DataFrame:
    """The claims on Figure 7: differences in test accuracy, as in `claims`; what the table lacks cannot be told.

    A random subnetwork gains by being trained on, up to the whole network; the subtask's own gains nothing.
    """
    rows = [_difference(table, "the subnetwork, trained on, is as good as frozen", "subnetwork_unfrozen", "subnetwork")]
    for control, reading in (("random", "as in the text"), ("random_as_released", "as released")):
        loose, subject = f"{control}_unfrozen", f"a random subnetwork {reading}, trained on,"
        rows.append(_difference(table, f"{subject} is better than frozen", loose, control, (0.0, np.inf)))
        rows.append(_difference(table, f"{subject} is like the whole network", loose, "full"))
    return pd.DataFrame(rows)


def _scratch(table: pd.DataFrame, profile: str) -> Iterator[dict[str, Any]]:
    paper = printed("subtask_induction", quantity="mean test accuracy", condition="scratch", samples="1000")
    own = table[(table["condition"] == "scratch") & (table["samples"] == 1000)]
    found = interval(own["test_accuracy"], own["seed"])
    claim = "accuracy from scratch with 1,000 rows"
    yield _judged(claim, paper, (paper - CLAIM, paper + CLAIM), found, comparable=at_paper_size(profile))


def _rows_needed(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    paper = printed("subtask_induction", quantity="rows to perfect accuracy, ratio to the subnetwork's")
    found = ratio(table)
    yield _judged("a random subnetwork needs more rows: ratio", paper, (1.0, np.inf), found)
    yield _judged(
        "a random subnetwork needs about six times the rows: ratio", paper, (paper / NEAR, paper * NEAR), found
    )


def _difference(
    table: pd.DataFrame, claim: str, one: str, other: str, claimed: tuple[float, float] = (-CLAIM, CLAIM)
) -> dict[str, Any]:
    """By how much one condition is ahead of another with the same seed, depth and number of rows."""
    wide = table.pivot_table(index=CELL, columns="condition", values="test_accuracy")
    wide = wide.reindex(columns=[one, other]).dropna()
    found = interval(wide[one] - wide[other], wide.index.get_level_values("seed"))
    return _judged(f"{claim}: difference", 0.0 if claimed == (-CLAIM, CLAIM) else np.nan, claimed, found)


def ratio(table: pd.DataFrame, *, level: float = FOUND) -> dict[str, float]:
    """How many times the subnetwork's disambiguating rows a random subnetwork needs to a test accuracy: see `claims`.

    What never gets there counts with the most rows tried. If it is the random one, the ratio is larger than it seems,
    and the interval has no upper end; if it is the subnetwork, no lower one. If it is both, depth and seed say nothing
    and are left out.
    """
    tried = table[table["samples"] > 0]
    first = tried["samples"].where(tried["test_accuracy"] >= level, np.inf)
    wide = tried.assign(first=first).pivot_table(
        index=["seed", "layers"], columns="condition", values="first", aggfunc="min"
    )
    wide = wide.reindex(columns=["random", "subnetwork"]).dropna()
    wide = wide[~np.isinf(wide).all(axis=1)]
    logs = np.log(wide.clip(upper=tried["samples"].max()))
    found = interval(logs["random"] - logs["subnetwork"], wide.index.get_level_values("seed"))
    never = np.isinf(wide).any() & ~np.isnan(found["low"])
    ends = {"low": -np.inf} if never["subnetwork"] else {}
    ends |= {"high": np.inf} if never["random"] else {}
    found |= ends
    return {name: float(np.exp(found[name])) for name in ("ours", "low", "high")} | {"n_runs": found["n_runs"]}


def _judged(
    claim: str, paper: float, claimed: tuple[float, float], found: dict[str, float], **options: bool
) -> dict[str, Any]:
    judged = verdict(found["low"], found["high"], claimed, FINDING, **options)
    about = {"claim": claim, "paper": paper, "claimed_low": claimed[0], "claimed_high": claimed[1]}
    return about | found | {"verdict": judged}
