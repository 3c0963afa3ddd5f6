"""Tables of the benchmark with known truth. The planted networks are the independent observations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.papers.identification_methods.planted_steps import Benchmarked
from subnet_utils.report.findings import groups, interval, judged

SCORES = ("average_precision", "auroc", "precision_at_size", "precision", "recall", "own", "other", "own_without",
          "other_without")  # fmt: skip
BEHAVIOR = ("own", "other", "own_without", "other_without")
RANDOM = "random"
"""The method that others must beat."""


def _about(one: Benchmarked) -> dict[str, Any]:
    return {"design": one.network.design_name, "seed": one.network.seed, "planted": one.network.is_planted}


def proofs(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """The proof of each network by subtask, or why it is not used (`rejected`); see `known_truth.Planted.proof`."""
    make_all(lab, [one.network for one in found], "planted networks")
    rows = []
    for one in found:
        fault = one.network.fault(lab)
        about, proven = _about(one) | {"rejected": fault or np.nan}, {} if fault else one.network.result(lab)
        rows += [about | {"subtask": name} | row for name, row in proven.items()] or [about]
    table = pd.DataFrame(rows)
    return table[[*table.columns.drop("rejected"), "rejected"]]


def scores(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """What each method has found in each network whose truth is proven: means over subtasks, a row for each.

    Columns design, planted (or compiled), seed, method and those of `scoring.score_method`; found_overlap and
    true_overlap, the IoU of both subtasks' subnetworks. Of a ranking, what depends on its size is at the density of its
    section.
    """
    make_all(lab, [step for one in found for step in one.steps], "benchmark")
    rows = [
        _about(one) | {"method": method} | row
        for one in found
        if not one.network.fault(lab)
        for method, step in one.scored.items()
        for row in step.result(lab)
    ]
    table = pd.DataFrame(rows).drop(columns="subtask")
    about = ["design", "planted", "seed", "method"]
    table = table.astype({name: float for name in table if name not in about})
    return table.groupby(about, sort=False).mean().reset_index()


def leaderboard(table: pd.DataFrame) -> pd.DataFrame:
    """Methods by average precision, best first: means over planted networks, with an interval of average precision.

    table: from `scores`. ahead: by how much average precision is above the next method's in the same networks, with
    its 95% interval.
    """
    table, rows = table[table["planted"]], []
    for about, some in groups(table, "method"):
        found = interval(some["average_precision"], _networks(some), name="average_precision")
        rows.append(about | found | {name: some[name].mean() for name in SCORES[1:]})
    board = pd.DataFrame(rows).sort_values("average_precision", ascending=False, ignore_index=True)
    wide, pairs = _by_network(table), zip(board["method"], board["method"][1:], strict=False)
    gaps = pd.DataFrame(interval(wide[a] - wide[b], wide.index, name="ahead") for a, b in pairs)
    gaps = gaps.rename(columns={"low": "ahead_low", "high": "ahead_high"})
    return board.join(gaps.drop(columns="n_runs", errors="ignore"))


def _by_network(table: pd.DataFrame) -> pd.DataFrame:
    """Average precision: a row a network, a column a method."""
    return table.assign(network=_networks(table)).pivot(index="network", columns="method", values="average_precision")


def _networks(table: pd.DataFrame) -> pd.Series:
    return table["design"] + " " + table["seed"].astype(str)


def by_design(table: pd.DataFrame) -> pd.DataFrame:
    """Average precision of every method on every design: mean over networks with its interval."""
    rows = []
    for about, some in groups(table, "design", "method"):
        rows.append(about | interval(some["average_precision"], some["seed"]) | {"base_rate": some["base_rate"].mean()})
    return pd.DataFrame(rows)


def behavior(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Does what a mask does say how true it is? Spearman's correlation of each accuracy with precision.

    table: from `scores`; methods: those that train masks. Columns measure, correlation (NaN where the measure does not
    vary), n (masks), low, high (of the measure).
    """
    some = table[table["method"].isin(methods) & table["planted"]].dropna(subset=["precision"])
    found = some[[*BEHAVIOR, "precision"]].corr("spearman")["precision"].drop("precision")
    found = pd.DataFrame({"correlation": found, "n": len(some)}).rename_axis("measure")
    return found.assign(low=some[list(BEHAVIOR)].min(), high=some[list(BEHAVIOR)].max()).reset_index()


def findings(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Is a method better than a random ranking? Average precision above it in the same networks, with a verdict."""
    wide = _by_network(table[table["planted"]])
    return pd.DataFrame(
        {"method": name, "claim": "average precision is .1 above a random ranking's"}
        | judged(wide[name] - wide[RANDOM], wide.index, (0.1, np.inf))
        for name in methods
        if name != RANDOM
    )
