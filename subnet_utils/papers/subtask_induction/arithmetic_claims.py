"""Claims of *Instilling Inductive Biases with Subnetworks* on Figure 3, judged (section 4.3, appendix B.2)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.papers.subtask_induction.arithmetic_steps import FOUND
from subnet_utils.papers.subtask_induction.comparison import printed
from subnet_utils.report.comparison import CLAIM, FINDING, verdict
from subnet_utils.report.findings import interval

NEAR = 1.5
"""A ratio is about the paper's if neither is so many times the other: numbers of rows are tried in steps of 1.6."""
CELL = ["seed", "layers", "samples"]


def claims(table: pd.DataFrame, *, profile: str) -> pd.DataFrame:
    """A row for each claim: the paper's number, the range of values that makes the claim true, ours, and the verdict.

    Ours: mean over seeds of each one's mean over depths, with a 95% t interval; of ratios the geometric mean.
    table: from `arithmetic_tables.transfers`, of one induction. An accuracy is judged at the profile `paper` alone.
    """
    return pd.DataFrame([*_scratch(table, profile), *_rows_needed(table), *_alike(table)])


def _scratch(table: pd.DataFrame, profile: str) -> Iterator[dict[str, Any]]:
    paper = printed("subtask_induction", quantity="mean test accuracy", condition="scratch", samples="1000")
    own = table[(table["condition"] == "scratch") & (table["samples"] == 1000)]
    found = interval(own["test_accuracy"], own["seed"])
    claim = "accuracy from scratch with 1,000 rows"
    yield _judged(claim, paper, (paper - CLAIM, paper + CLAIM), found, comparable=profile == "paper")


def _rows_needed(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    paper = printed("subtask_induction", quantity="rows to perfect accuracy, ratio to the subnetwork's")
    found = ratio(table)
    yield _judged("a random subnetwork needs more rows: ratio", paper, (1.0, np.inf), found)
    yield _judged(
        "a random subnetwork needs about six times the rows: ratio", paper, (paper / NEAR, paper * NEAR), found
    )


def _alike(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    wide = table.pivot_table(index=CELL, columns="condition", values="test_accuracy")
    wide = wide.reindex(columns=["random_complement", "random"]).dropna()
    difference = wide["random_complement"] - wide["random"]
    found = interval(difference, difference.index.get_level_values("seed"))
    yield _judged("random weights of the complement are like any random ones: difference", 0.0, (-CLAIM, CLAIM), found)


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
