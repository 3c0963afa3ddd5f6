"""Tables of classes and permuted images (*Are Neural Nets Modular?*, sections 3.3 and 5, appendices B.1 and C.8).

Seeds are the independent observations: each has a network, masks and controls of its own. A drop is relative: what
share of a class's right answers under the control mask is lost.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL, expected_iou, iou
from subnet_utils.papers.functional_modularity import image_steps, permuted_steps, reference
from subnet_utils.papers.functional_modularity.image_steps import Family
from subnet_utils.papers.functional_modularity.permuted_steps import DIFFERENT, REPEATED
from subnet_utils.report.comparison import CLAIM, FINDING, POSITIVE, verdict
from subnet_utils.statistics import Interval, t_interval

ENOUGH = 0.95
"""Of the network's accuracy, what a control mask should keep (appendix C.3)."""
ALIVE = 0.5
"""Accuracy below which a network of permuted images has lost a layer: what it shares means nothing."""


def made(lab: Lab) -> list[Family]:
    """All masks without a class and what they are compared with, made if need be."""
    families = image_steps.families(lab)
    make_all(lab, [step for one in families for step in one.steps], "masks of classes")
    return families


def networks(lab: Lab) -> pd.DataFrame:
    """The networks and their control masks: accuracies on test images and densities, a row for each alpha."""
    rows = []
    for one in made(lab):
        base, control, sham = (step.result(lab) for step in (one.network, one.control, one.sham))
        about = _about(one) | {"accuracy": base["accuracy"], "control_accuracy": control["accuracy"]}
        about |= {"control_density": control["active"] / control["total"], "sham_accuracy": sham["accuracy"]}
        kept = control["accuracy"] >= ENOUGH * base["accuracy"]
        rows.append(about | {"control_is_good": bool(kept), "key": one.control.key(lab)})
    return pd.DataFrame(rows)


def drops(lab: Lab) -> pd.DataFrame:
    """Figure 6: a row for each mask without a class.

    target_drop: of that class; other_drop: the largest of another class, `other`; other_share: the second over the
    first, NaN where the first is not above 0. sham_drop: of the same class under a second control mask; null_drop: the
    same without as many random weights of the control, mean over draws, null_highest the largest.
    """
    return pd.DataFrame(row for one in made(lab) for row in _drops(lab, one))


def _drops(lab: Lab, family: Family) -> Iterator[dict[str, Any]]:
    control, names = family.control.result(lab), family.network.problem.source.classes
    sham = lost(control, family.sham.result(lab))
    for name, mask in family.masks.items():
        own, i = lost(control, mask.result(lab)), names.index(name)
        null = [lost(control, row)[i] for row in family.nulls[name].result(lab)]
        others = np.where(np.arange(len(own)) == i, -math.inf, np.nan_to_num(own, nan=-math.inf))
        target, other = own[i], others.max() if np.isfinite(others).any() else math.nan
        yield _about(family) | {
            "class": name, "class_accuracy": by_class(control)[i], "target_drop": target, "other_drop": other,
            "other": names[others.argmax()], "other_share": other / target if target > 0 else math.nan,
            "sham_drop": sham[i], "null_drop": np.mean(null), "null_highest": np.max(null),
            "accuracy": mask.result(lab)["accuracy"], "key": mask.key(lab),
        }  # fmt: skip


def _about(one: Family) -> dict[str, Any]:
    settings = {"l0": one.l0, "usual_l0": one.usual}
    return {"model": one.network.model, "seed": one.network.seed} | settings


def by_class(result: dict[str, Any]) -> np.ndarray:
    """Accuracy of each class, of scores."""
    confusion = np.array(result["confusion"], dtype=float)
    return confusion.diagonal() / confusion.sum(axis=1)


def lost(before: dict[str, Any], after: dict[str, Any]) -> np.ndarray:
    """Relative drop of each class; NaN where there was nothing to lose."""
    first = by_class(before)
    return (first - by_class(after)) / np.where(first > 0, first, np.nan)


def confusions(lab: Lab) -> pd.DataFrame:
    """Figures 17 to 20: share of a class's test images that get an answer, a row each, under the control mask (removed
    is '') and under the masks without a class; `change`: from the one to the other."""
    rows = []
    for one in (one for one in made(lab) if one.usual):
        names = one.network.problem.source.classes
        control = _shares(one.control.result(lab))
        for removed, mask in {"": one.control, **one.masks}.items():
            found = _shares(mask.result(lab))
            about = {"model": one.network.model, "seed": one.network.seed, "removed": removed}
            rows += [about | {"class": names[i], "answer": names[j], "share": found[i, j], "change": change}
                     for (i, j), change in np.ndenumerate(found - control)]  # fmt: skip
    return pd.DataFrame(rows)


def _shares(result: dict[str, Any]) -> np.ndarray:
    confusion = np.array(result["confusion"], dtype=float)
    return confusion / confusion.sum(axis=1, keepdims=True)


def taken_over(table: pd.DataFrame, *, most: int = 2) -> pd.DataFrame:
    """To which classes the images of a removed class go: the largest gains, means over seeds. table: `confusions`."""
    own = table[(table["removed"] == table["class"]) & (table["answer"] != table["class"])]
    means = own.groupby(["model", "removed", "answer"], sort=False)["change"].mean().reset_index()
    return means.sort_values("change", ascending=False).groupby(["model", "removed"], sort=False).head(most)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds and classes of `drops` for each network and alpha, over the classes removed at each alpha."""
    rows = []
    for (model, l0), group in table.groupby(["model", "l0"], sort=False):
        columns = ["target_drop", "other_drop", "sham_drop", "null_drop"]
        found = {name: _interval(group[name], group["seed"]) for name in columns}
        ends = {f"{name}{end}": value for name, one in found.items()
                for end, value in zip(("", "_low", "_high"), one, strict=True)}  # fmt: skip
        usual = {"usual_l0": bool(group["usual_l0"].any()), "n_seeds": group["seed"].nunique()}
        rows.append({"model": model, "l0": l0} | usual | ends)
    return pd.DataFrame(rows)


def by_l0(table: pd.DataFrame) -> pd.DataFrame:
    """`summary` of the networks with several alphas, over the classes that were removed at all of them."""
    parts = []
    for _, group in table.groupby("model", sort=False):
        count = group["l0"].nunique()
        if count > 1:
            parts.append(group[group.groupby("class")["l0"].transform("nunique") == count])
    return summary(pd.concat(parts)) if parts else pd.DataFrame()


CLAIMS = {
    "other_drop": "a removed class loses more than any other",
    "sham_drop": "... than under a second control mask",
    "null_drop": "... than without as many random weights",
}


def findings(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's claims on classes: differences of drops, with 95% intervals over seeds, and verdicts. table: `drops`.

    With and without dropout, classes and seeds are paired.
    """
    usual, rows = table[table["usual_l0"]], []
    for model, group in usual.groupby("model", sort=False):
        for column, claim in CLAIMS.items():
            difference = group["target_drop"] - group[column]
            rows.append({"model": model, "claim": claim} | _judged(difference, group["seed"], POSITIVE))
    return pd.DataFrame(rows)


def dropout(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """Whether a removed class loses more in the network with dropout: pairs of equal seed and class. Empty without
    both networks."""
    pair = [_model_of(lab, name) for name in ("CNN", "CNN without dropout")]
    usual = table[table["usual_l0"]].pivot_table(index=["seed", "class"], columns="model", values="target_drop")
    if not set(pair) <= set(usual):
        return pd.DataFrame()
    both = usual[pair].dropna().reset_index()
    means = {"with_dropout": both[pair[0]].mean(), "without": both[pair[1]].mean()}
    judged = _judged(both[pair[0]] - both[pair[1]], both["seed"], POSITIVE)
    return pd.DataFrame([{"claim": "a removed class loses more with dropout"} | means | judged])


def _model_of(lab: Lab, paper_network: str) -> str | None:
    named = [one.model for one, _ in image_steps.networks(lab) if one.paper_network == paper_network]
    return named[0] if named else None


def stability(lab: Lab) -> pd.DataFrame:
    """Appendix B.1: overlap of two masks of one pair of classes, and what chance would give, over all layers."""
    pairs, rows = image_steps.stability(lab), []
    make_all(lab, [mask for pair in pairs for mask in pair], "masks of pairs of classes")
    for one, other in pairs:
        masks = [one.load(lab), other.load(lab)]
        about = {"model": one.network.model, "seed": one.network.seed, "function": one.function}
        overlap = {"iou": iou(masks)[OVERALL], "chance": expected_iou(masks, draws=100)[OVERALL]}
        density = {"density": (masks[0].density + masks[1].density) / 2}
        rows.append(about | overlap | density | {"key": one.key(lab)})
    return pd.DataFrame(rows)


def beside_paper(lab: Lab, table: pd.DataFrame, stable: pd.DataFrame) -> pd.DataFrame:
    """The numbers that the paper's text gives, a range each, beside ours. table, stable: `drops`, `stability`.

    Verdicts only at the profile `paper`: drops depend on data, size of the network and alpha.
    """
    usual, rows = table[table["usual_l0"]], []
    for one in reference.load("images").itertuples():
        own = usual[usual["model"] == _model_of(lab, one.network)]
        values = {
            "drop of the removed class": own["target_drop"],
            "largest drop of another class over it": own["other_share"],
            "overlap of two masks of one function": stable["iou"] if len(stable) else own["target_drop"][:0],
        }.get(one.quantity)
        if values is None or values.empty:
            continue
        seeds = (stable if one.quantity.startswith("overlap") else own)["seed"]
        mean, low, high = _interval(values, seeds)
        judged = verdict(low, high, (one.low, one.high), comparable=lab.study.name == "paper")
        ours = {"ours": mean, "ours_low": low, "ours_high": high, "n_seeds": seeds.nunique()}
        about = {"quantity": one.quantity, "network": one.network, "paper_low": one.low, "paper_high": one.high}
        rows.append(about | ours | {"verdict": judged})
    return pd.DataFrame(rows)


def sharing(lab: Lab) -> pd.DataFrame:
    """Figures 3 and 14: from the second task on, a row for each layer but the first: which share of its weights earlier
    tasks use (`shared`), and which share of all the layer's weights they use (`used`), which is chance."""
    tasks, rows = permuted_steps.tasks(lab), []
    make_all(lab, tasks, "permuted images")
    for task in tasks:
        result = task.result(lab)
        about = {"start": task.start, "sequence": permuted_steps.kind_of(task), "seed": task.seed, "task": task.number}
        for layer in result["layers"]:
            if task.number > 1 and layer["layer"] > 1:
                shared = math.nan if layer["shared"] is None else layer["shared"]
                own = {"layer": layer["layer"], "shared": shared, "used": layer["used"]}
                density = {"density": layer["kept"] / layer["total"], "accuracy": result["accuracy"]}
                rows.append(about | own | density | {"key": task.key(lab)})
    return pd.DataFrame(rows)


def sharing_findings(table: pd.DataFrame) -> pd.DataFrame:
    """What the shares say, for each start of new logits: 95% intervals over seeds, and verdicts, none where a
    network is not `ALIVE`. table: `sharing`."""
    (room,) = reference.load("images").query("quantity == 'shared weights while there is room'")["high"]
    wide = table.pivot(index=["start", "seed", "task", "layer"], columns="sequence", values=["shared", "used"])
    wide, rows = wide.reset_index(), []
    starts, lowest = table["start"].unique(), table.groupby("start")["accuracy"].min()
    for start in starts:
        own = wide[wide["start"] == start]
        early = own[(own["task"] == 2) & (own["layer"] < own["layer"].max())]
        different = own["shared", DIFFERENT]
        judged = {
            f"the second task shares less than {room:g} in inner layers": (early["shared", DIFFERENT], early["seed"],
                                                                           (-math.inf, room)),
            "more is shared than by chance": (different - own["used", DIFFERENT], own["seed"], POSITIVE),
            "permutations share no more than one repeated": (different - own["shared", REPEATED], own["seed"],
                                                             (-math.inf, CLAIM)),
        }  # fmt: skip
        if start != starts[0]:
            first = wide[wide["start"] == starts[0]]["shared", DIFFERENT].to_numpy()
            claim = f"more is shared than with first logits {starts[0]:g}"
            judged[claim] = (different.to_numpy() - first, own["seed"], POSITIVE)
        about = {"start": start, "lowest_accuracy": lowest[start]}
        alive = lowest[start] >= ALIVE
        rows += [about | {"claim": claim} | _judged(*what, comparable=alive) for claim, what in judged.items()]
    return pd.DataFrame(rows)


def _judged(values: Sequence[float], seeds: pd.Series, claim: tuple[float, float], **options) -> dict[str, Any]:
    """Mean and interval of what is claimed to lie in a range, and the verdict."""
    mean, low, high = _interval(values, seeds)
    judged = verdict(low, high, claim, FINDING, **options)
    return {"ours": mean, "ours_low": low, "ours_high": high, "n_seeds": seeds.nunique(), "verdict": judged}


def _interval(values: Sequence[float], seeds: Sequence[int]) -> Interval:
    """The mean of the seeds' means with its 95% t interval; what is not finite is left out."""
    values, seeds = np.asarray(values, dtype=float), np.asarray(seeds)
    there = np.isfinite(values)
    return t_interval(values[there], seeds[there]) if there.any() else Interval(math.nan, math.nan, math.nan)
