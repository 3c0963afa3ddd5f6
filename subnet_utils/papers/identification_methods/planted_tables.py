"""Tables of the benchmark with known truth. The planted networks are the independent observations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.papers.identification_methods.planted_steps import Benchmarked
from subnet_utils.report.findings import groups, interval, judged

SCORES = ("average_precision", "auroc", "precision_at_size", "precision", "recall", "own", "other", "own_without",
          "other_without")  # fmt: skip
BEHAVIOR = ("own", "other", "own_without", "other_without")
RANDOM = "random"
"""The method that others must beat."""


def made(lab: Lab, found: Sequence[Benchmarked]) -> list[str]:
    """Make the benchmark, and return the keys."""
    return [one.key for one in make_all(lab, [step for one in found for step in one.steps], "benchmark")]


def _about(one: Benchmarked) -> dict[str, Any]:
    return {"design": one.network.design_name, "seed": one.network.seed, "planted": one.network.is_planted}


def proofs(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """The proof of each network by subtask, or why it is not used (`rejected`); see `known_truth.proof`."""
    rows = []
    for one in found:
        if fault := one.network.fault(lab):
            rows.append(_about(one) | {"rejected": fault})
        else:
            rows += [_about(one) | {"subtask": name} | row for name, row in one.network.result(lab).items()]
    return pd.DataFrame(rows).reindex(columns=[*_columns(rows), "rejected"])


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name != "rejected"]


def scores(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """What each method has found in each network whose truth is proven: means over subtasks, a row for each.

    Columns design, planted (or compiled), seed, method and those of `scoring.score_method`; found_overlap and
    true_overlap, the IoU of both subtasks' subnetworks. Of a ranking, what depends on its size is at the density of its
    section.
    """
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
    wide = table.assign(network=_networks(table)).pivot(index="network", columns="method", values="average_precision")
    gaps = [_gap(wide[a] - wide[b]) for a, b in zip(board["method"], board["method"][1:], strict=False)]
    return board.join(pd.DataFrame(gaps))


def _gap(difference: pd.Series) -> dict[str, float]:
    found = interval(difference, difference.index, name="ahead")
    return {"ahead": found["ahead"], "ahead_low": found["low"], "ahead_high": found["high"]}


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
    rows = []
    for name in BEHAVIOR:
        varies = some[name].nunique() > 1
        value = stats.spearmanr(some[name], some["precision"]).statistic if varies else np.nan
        rows.append({"measure": name, "correlation": value, "n": len(some), "low": some[name].min()})
        rows[-1]["high"] = some[name].max()
    return pd.DataFrame(rows)


def findings(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Is a method better than a random ranking? Average precision above it in the same networks, with a verdict."""
    table = table[table["planted"]]
    wide = table.assign(network=_networks(table)).pivot(index="network", columns="method", values="average_precision")
    return pd.DataFrame(
        {"method": name, "claim": "average precision is .1 above a random ranking's"}
        | judged(wide[name] - wide[RANDOM], wide.index, (0.1, np.inf))
        for name in methods
        if name != RANDOM
    )
