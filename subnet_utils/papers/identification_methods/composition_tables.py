"""What subnetworks made of two others do: union, intersection, difference. The networks are the observations."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.papers.identification_methods.fine_tuning_steps import fine_tuned
from subnet_utils.papers.identification_methods.method_steps import Composed, Inspected
from subnet_utils.report.findings import ANY, SHARE, groups, judged
from subnet_utils.statistics import LEARNED

ABOVE = (0.05, np.inf)
"""Where a difference of accuracies should be that counts."""
NO_WORSE = (-0.05, np.inf)
ABLE = (LEARNED, np.inf)
Claim = tuple[str, pd.Series, tuple[float, float]]
"""What is claimed, our number by seed, and where it should be."""


def compositions(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """What is left of both functions in every part that is made of two subnetworks: a row a part.

    Columns model, method, seed, repeat; made_of ('A - B': A is the subnetwork of the first function); part ('alone',
    or 'without': the rest of the network); within ('' or the subnetwork from which a random part was drawn); random
    (0 or the number of the draw); density; a, b (accuracy on the functions).
    """
    make_all(lab, [step for one in found for step in one.composition], "compositions")
    return pd.DataFrame(row for one in found for step in one.composition for row in _rows(lab, one, step))


def _rows(lab: Lab, one: Inspected, step: Composed) -> Iterator[dict[str, Any]]:
    who = {"model": one.settings.model, "method": step.first.training.masking.method, "seed": one.network.seed}
    for row in step.result(lab):
        positions = {name: row[name] for name in ("made_of", "part", "within", "random", "density")}
        scores = [row[f"accuracy on {name}"] for name in one.network.problem.functions]
        yield who | {"repeat": step.first.repeat} | positions | dict(zip("ab", scores, strict=True))


def effects(table: pd.DataFrame) -> pd.DataFrame:
    """How sharply an ablation tells two functions apart: a row a method, seed, target and ablation.

    table: from `compositions`.

    effect: accuracy that is left of the other function, less what is left of the target. ablation: 'A' (the whole
    subnetwork), 'A - B' (without what the other function's has, too), and 'random part of A' of the same size.
    """
    rows = []
    without = table[table["part"] == "without"].assign(random=lambda some: some["random"] > 0)
    for target, other, whole, rest in (("a", "b", "A", "A - B"), ("b", "a", "B", "B - A")):
        for kind, name, within in (("A", whole, ""), ("A - B", rest, ""), ("random part of A", rest, whole)):
            drawn = without["random"].eq(bool(within))
            some = without[without["made_of"].eq(name) & without["within"].eq(within) & drawn]
            some = some.assign(ablation=kind, target=target, target_left=some[target], other_left=some[other])
            rows.append(some.assign(effect=some["other_left"] - some["target_left"]))
    by = ["model", "method", "seed", "target", "ablation"]
    means = pd.concat(rows).groupby(by, sort=False)[["target_left", "other_left", "effect", "density"]].mean()
    return means.reset_index()


def findings(table: pd.DataFrame, effect: pd.DataFrame) -> pd.DataFrame:
    """What one expects of compositions, method by method: our number over seeds, its interval and a verdict.

    table, effect: from `compositions` and `effects`.
    """
    rows = []
    for about, some in groups(table, "model", "method"):
        own = effect["model"].eq(about["model"]) & effect["method"].eq(about["method"])
        rows += _judged(about, _claims(some, effect[own]))
    return pd.DataFrame(rows)


def _judged(about: dict[str, Any], claims: Iterable[Claim]) -> list[dict[str, Any]]:
    rows = []
    for claim, ours, there in claims:
        possible = SHARE if there == ABLE else ANY  # an accuracy; all others are differences
        rows.append(about | {"claim": claim} | judged(ours, ours.index, there, possible=possible))
    return rows


def _claims(some: pd.DataFrame, effect: pd.DataFrame) -> Iterator[Claim]:
    """What is claimed of both functions is claimed of the worse one."""
    by = ["made_of", "part", "random", "seed"]
    both = some[some["within"] == ""].assign(random=some["random"] > 0).groupby(by)[["a", "b"]].mean()
    union, shared = both.loc["A | B", "alone"], both.loc["A & B", "without"]
    worse = union.min(axis=1)
    yield "A | B does both", worse.loc[False], ABLE
    yield "and better than random weights of its size", worse.loc[False] - worse.loc[True], ABOVE
    falls = (shared.loc[True] - shared.loc[False]).min(axis=1)
    yield "without A & B both fall, more than without random weights", falls, ABOVE
    sharp = effect.groupby(["ablation", "seed"])["effect"].mean()
    yield "without A - B tells them apart better than without A", sharp.loc["A - B"] - sharp.loc["A"], ABOVE
    yield "and better than without a random part of A", sharp.loc["A - B"] - sharp.loc["random part of A"], ABOVE


def fine_tunings(lab: Lab) -> pd.DataFrame:
    """What networks can do after sparse fine-tunings and their sums: a row for each and each test.

    Columns: those of `fine_tuning_steps.fine_tuned`, kind ('old', 'new', or 'both': a test that needs both new
    functions at once), function, accuracy.
    """
    every = list(fine_tuned(lab))
    make_all(lab, [step for *_, step in every], "fine-tunings")
    rows = []
    for about, network, step in every:
        of, scores = network.problem, step.result(lab)
        for kind, names in {"old": of.functions, "new": of.new, "both": of.composed}.items():
            rows += [about | {"kind": kind, "function": n, "accuracy": scores[f"accuracy on {n}"]} for n in names]
    return pd.DataFrame(rows)


def sums(table: pd.DataFrame) -> pd.DataFrame:
    """What one expects of sums of sparse fine-tunings: our number over seeds, its interval and a verdict.

    table: from `fine_tunings`, where weights change most. Nothing is told of those that have not learned alone.
    """
    rows, by = [], ["kind", "support", "density", "seed"]
    for about, some in groups(table[table["factor"] != 0.5], "model"):
        alone = some[some["of"].eq(some["function"])].groupby(by)["accuracy"].agg(["mean", "min"]).loc["new"]
        best = some[some["of"].isin(some["function"])].groupby(by)["accuracy"].max()
        summed = some[some["of"].eq("sum")].groupby(by)["accuracy"].mean()
        before = some[some["of"].eq("nothing") & some["kind"].eq("old")].groupby("seed")["accuracy"].mean()
        for density in alone.loc["change"].index.unique("density"):
            new, old = (summed[kind, "change", density] for kind in ("new", "old"))
            own = alone.loc["change", density]
            claims: list[Claim] = [
                ("the sum knows both new ones as well as each alone", new - own["mean"], NO_WORSE),
                ("better than the sum of changes of all weights", new - summed["new", "all", 1.0], ABOVE),
                ("better than that of changes of random weights", new - summed["new", "random", density], ABOVE),
                ("and keeps the old ones", old - before, NO_WORSE),
            ]
            if "both" in summed.index:
                both = summed["both", "change", density] - best["both", "change", density]
                claims.append(("does both at once, better than either alone", both, ABOVE))
            about |= {"density": density}
            able = own["min"] >= LEARNED
            rows += _judged(about, ((claim, ours[able], there) for claim, ours, there in claims))
    return pd.DataFrame(rows)
