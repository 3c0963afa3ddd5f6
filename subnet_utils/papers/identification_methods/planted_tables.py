"""Tables of the benchmark with known truth. Over designs the designs are the observations, within one its networks."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault, make_all
from subnet_utils.papers.identification_methods.planted_steps import Benchmarked
from subnet_utils.report.findings import SHARE, groups, interval, judged

SCORES = ("average_precision", "auroc", "precision_at_size", "precision", "recall", "own", "other", "own_without",
          "other_without")  # fmt: skip
BEHAVIOR = ("own", "other", "own_without", "other_without")
RANDOM = "random"
"""The method that others must beat."""


def _about(one: Benchmarked) -> dict[str, Any]:
    return {"design": one.network.design_name, "seed": one.network.seed, "planted": one.network.is_planted}


def proofs(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """The proof of each network by subtask, or why it is not used (`rejected`); see `known_truth.Planted.proof`.

    Raises Fault if no planted network is proven.
    """
    make_all(lab, [one.network for one in found], "planted networks")
    rows = []
    for one in found:
        fault = one.network.fault(lab)
        about, proven = _about(one) | {"rejected": fault or np.nan}, {} if fault else one.network.result(lab)
        rows += [about | {"subtask": name} | row for name, row in proven.items()] or [about]
    table = pd.DataFrame(rows)
    if (rejected := table.loc[table["planted"], "rejected"]).notna().all():
        raise Fault(f"no planted network can be used; {rejected.iloc[0]}")
    return table[[*table.columns.drop("rejected"), "rejected"]]


def scores(lab: Lab, found: Sequence[Benchmarked]) -> pd.DataFrame:
    """What each method has found in each network whose truth is proven: means over subtasks, a row for each.

    A method that diverged in a network is left out there, and a line says so.

    Columns design, planted (or compiled), seed, method and those of `scoring.score_method`; found_overlap and
    true_overlap, the IoU of both subtasks' subnetworks. Of a ranking, what depends on its size is at the density of its
    section.
    """
    make_all(lab, [step for one in found for step in one.steps], "benchmark")
    rows = []
    for one in (one for one in found if not one.network.fault(lab)):
        for method, step in one.scored.items():
            if fault := step.fault(lab):
                print(f"{method}: {fault}", file=sys.stderr)
            else:
                rows += [_about(one) | {"method": method} | row for row in step.result(lab)]
    table = pd.DataFrame(rows).drop(columns="subtask")
    about = ["design", "planted", "seed", "method"]
    table = table.astype({name: float for name in table if name not in about})
    return table.groupby(about, sort=False).mean().reset_index()


def leaderboard(table: pd.DataFrame) -> pd.DataFrame:
    """Methods by average precision, best first: means over designs, with an interval of average precision; and with the
    narrower one over all networks, for these designs alone (networks_low, networks_high).

    table: from `scores`. first_in: designs in which the method is best; ahead: by how much average precision is above
    the next method's, with its 95% interval.
    """
    table, rows = table[table["planted"]], []
    for about, some in groups(table, "method"):
        found = interval(some["average_precision"], some["design"], "average_precision", SHARE)
        each = interval(some["average_precision"], range(len(some)), within=SHARE)
        found |= {"networks_low": each["low"], "networks_high": each["high"]}
        rows.append(about | found | {name: some[name].mean() for name in SCORES[1:]})
    board = pd.DataFrame(rows).sort_values("average_precision", ascending=False, ignore_index=True)
    wide, pairs = _wide(table), zip(board["method"], board["method"][1:], strict=False)
    board["first_in"] = [int(wide.idxmax(axis=1).eq(method).sum()) for method in board["method"]]
    gaps = pd.DataFrame(interval(wide[a] - wide[b], wide.index, name="ahead") for a, b in pairs)
    return board.join(gaps.rename(columns={"low": "ahead_low", "high": "ahead_high"}).filter(like="ahead"))


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    """Average precision: a row a design, its networks' mean, a column a method."""
    return table.pivot_table(index="design", columns="method", values="average_precision")


def by_design(table: pd.DataFrame) -> pd.DataFrame:
    """Average precision of every method on every design: mean over networks with its interval."""
    return pd.DataFrame(
        about | interval(own["average_precision"], own["seed"], within=SHARE) | {"base_rate": own["base_rate"].mean()}
        for about, own in groups(table, "design", "method")
    )


def behavior(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Does what a mask does say how true it is? Spearman's correlation of each accuracy with precision, in each design.

    table: from `scores`; methods: those that train masks. Columns measure; mean correlation over designs in which the
    measure varies, its interval, n_runs (designs); more, more_low, more_high: how far above that of the own accuracy.
    Empty where all of them diverged.
    """
    some = table[table["method"].isin(methods) & table["planted"]].dropna(subset=["precision"])
    if some.empty:
        return pd.DataFrame()
    each = some[[*BEHAVIOR, "precision"]].groupby(some["design"]).corr("spearman")["precision"].unstack()[[*BEHAVIOR]]
    rows = []
    for name in BEHAVIOR:
        more = interval(each[name] - each["own"], each.index, "more", (-2, 2))
        row = {"measure": name} | interval(each[name], each.index, "correlation", (-1, 1))
        rows.append(row | {"more": more["more"], "more_low": more["low"], "more_high": more["high"]})
    return pd.DataFrame(rows)


def findings(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Is a method better than a random ranking? Average precision above it, with a verdict."""
    wide = _wide(table[table["planted"]])
    return pd.DataFrame(
        {"method": name, "claim": "average precision is .1 above a random ranking's"}
        | judged(wide[name] - wide[RANDOM], wide.index, (0.1, np.inf))
        for name in methods
        if name != RANDOM
    )
