"""Subnetwork overlap: the tables of notebook 06.

*Break It Down* (appendix K) compares the subnetworks of one base model, by layer: three runs of the same mask, and the
weights that all three share between the two subroutines. Here for every base model, for pairs as well as for triples,
in the corrected form and as printed, with what random masks of the same sizes would give.
"""

from collections.abc import Iterator
from itertools import combinations, groupby
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.masks import heads, overlap
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import reference, tables
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.report.comparison import at_paper_size, verdict
from subnet_utils.statistics import LEARNED, t_interval

TASK = ["paper_model", "task", "number"]
PRINTED = {"within inside": 13, "within number": 14, "between": 15}
"""Tables of the paper by what they compare, all for one ResNet50 on inside-number."""
PRINTED_NAMES = {"backbone.layer4": "stages.stage_4", "mlp.model.0": "stages.head.hidden",
                 "mlp.model.2": "stages.head.embedding"}  # fmt: skip
"""What weights are called there, and here."""
PRINTED_LAYERS = 12
"""In each of them: stage 4 and the head."""
NEARLY_ALL, NEAR = 0.95, 0.1
"""The share of the layers in which a claim has to hold, and by how much an overlap may be another than the paper's."""


def by_layer(lab: Lab) -> pd.DataFrame:
    """Overlap in every base model: a row per comparison and layer, and one for all layers as one.

    comparison: 'within <subroutine>', the masks of all seeds, or 'between', the intersections of the two subroutines'
    masks. Columns: iou; expected, of random masks with as many weights in every layer as those compared; as_printed,
    for the comparisons within; n_masks of the base. A base with one mask a subroutine has no comparison within.
    """
    rows = []
    for _, about, found in _subnetworks(lab):
        compared = {f"within {name}": several for name, several in found.items() if len(several) > 1}
        if len(found) == 2:
            compared["between"] = [overlap.common(several) for several in found.values()]
        for comparison, several in compared.items():
            frame = pd.DataFrame({"iou": overlap.iou(several), "expected": overlap.expected_iou(several)})
            frame["as_printed"] = float("nan") if comparison == "between" else overlap.as_printed(several)
            frame = frame.rename_axis("layer").reset_index()
            rows.append(frame.assign(comparison=comparison, n_masks=sum(map(len, found.values())), **about))
    return pd.concat(rows, ignore_index=True)


def pairs(lab: Lab) -> pd.DataFrame:
    """Overlap of every two masks of a base model, over all layers that both mask: iou, expected, and the sources."""
    rows = []
    for _, about, found in _subnetworks(lab):
        masks = [(subroutine, i, one) for subroutine, several in found.items() for i, one in enumerate(several)]
        for (first, i, a), (second, j, b) in combinations(masks, 2):
            kind = {"comparison": f"within {first}" if first == second else "between"}
            measures = {"iou": overlap.iou, "expected": overlap.expected_iou}
            overall = {name: measure([a, b])[overlap.OVERALL] for name, measure in measures.items()}
            rows.append(about | kind | {"first": f"{first} {i}", "second": f"{second} {j}"} | overall)
    return pd.DataFrame(rows)


def printed_layers() -> pd.DataFrame:
    """Tables 13 to 15 as columns of Figure 19: layer, by its name here, comparison, iou, expected (unknown) and bases.

    What is within a subroutine is |m1 & m2 & m3| / |m3| there, and its label says so.
    """
    parts = [reference.load(f"table{number}").assign(comparison=name) for name, number in PRINTED.items()]
    table = pd.concat(parts, ignore_index=True)
    table["layer"] = table["layer"].replace(PRINTED_NAMES, regex=True) + ".weight"
    table["comparison"] = table["comparison"].str.replace("within ", "as printed: ")
    return table[["layer", "comparison", "iou"]].assign(expected=float("nan"), bases=1)


def compared(layers: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Tables 13 to 15: the mean over layers, ours for every task, and the paper's for inside-number.

    layers: from `by_layer`. The paper's numbers within a subroutine are |m1 & m2 & m3| / |m3|, comparable to ours
    `as printed`; low, high: the 95% interval of these over base models. They are judged at the profile `paper` only,
    where networks are the paper's, and if all of ours have masks in the paper's layers, those from stage 4 on.
    """
    ours = _learned(layers)
    judged = ours["iou"].where(ours["comparison"] == "between", ours["as_printed"])
    groups = ours.assign(judged=judged).groupby([*TASK, "comparison"], sort=False)
    table = groups.agg(
        ours=("iou", "mean"), ours_as_printed=("as_printed", "mean"), expected=("expected", "mean"),
        n_bases=("base_model", "nunique"), rows=("layer", "size"),
    )  # fmt: skip
    ends = [_interval(group.groupby("base_model")["judged"].mean()) for _, group in groups]
    table = table.assign(low=[low for low, _ in ends], high=[high for _, high in ends]).reset_index()
    printed = {name: reference.load(f"table{number}")["iou"].mean() for name, number in PRINTED.items()}
    theirs = (table["paper_model"] == "resnet50") & (table["task"] == "inside-number")
    table.insert(4, "paper", table["comparison"].map(printed).where(theirs))
    comparable = (table["rows"] == PRINTED_LAYERS * table["n_bases"]) & (at_paper_size(profile))
    table["verdict"] = [verdict(*interval, (paper - NEAR, paper + NEAR), comparable=same)
                        for interval, paper, same in zip(ends, table["paper"], comparable, strict=True)]  # fmt: skip
    return table.drop(columns="rows")


def claim(layers: pd.DataFrame) -> pd.DataFrame:
    """The paper's claim that subroutines share fewer weights than runs of one do, in every layer: a row per task.

    Columns: layers, of all learned bases, in which all three overlaps can be had; lower: in how many of them the
    overlap between is below both within; lower_corrected: the same with each overlap `corrected` for chance, since
    larger masks overlap more; above_chance: in how many the overlap between is more than that of random sets of weights
    as large as the two intersections. The verdict is that of an interval over base models of the share that is lower.
    """
    ours, rows = _learned(layers), []
    ours = ours.assign(corrected=overlap.corrected(ours["iou"], ours["expected"]))
    for key, group in ours.groupby(TASK, sort=False):
        counts, shares = [], []
        for value in ("iou", "corrected"):
            table = group.pivot(index=["base_model", "layer"], columns="comparison", values=value).dropna()
            if len(table.columns) < 3:  # one mask a subroutine
                table = table.iloc[:0].assign(between=[])
            below = table["between"] < table.drop(columns="between").min(axis=1)
            counts += [len(table), below.sum()]
            shares.append(below.groupby("base_model").mean())
        of, lower, _, lower_corrected = counts
        judged = verdict(*_interval(shares[0]), (NEARLY_ALL, np.inf))
        rows.append([*key, of, lower, lower_corrected, (table["between"] > 0).sum(), judged])
    return pd.DataFrame(rows, columns=[*TASK, "layers", "lower", "lower_corrected", "above_chance", "verdict"])


def _interval(shares: pd.Series) -> tuple[float, float]:
    """The 95% interval of a share over base models: anything for one of them, NaN for none."""
    if len(shares) < 2:
        return (0.0, 1.0) if len(shares) else (np.nan, np.nan)
    low, high = t_interval(shares, shares.index)[1:]  # it does not know what is possible
    return max(low, 0.0), min(high, 1.0)


def by_head(lab: Lab) -> pd.DataFrame:
    """What the subnetworks of each subroutine keep of each attention head: a row per base model, layer and head.

    Columns: layer; head, counted from 1 as in the figures; subroutines, as 'first, second'; first and second: the share
    of the head's weights that their masks keep, mean over the masks' seeds. Base models without attention, or without
    a mask of either subroutine, have no row.
    """
    rows = []
    for network, about, found in _subnetworks(lab):
        count = getattr(network.architecture, "heads", None)
        if count is None or len(found) < 2:
            continue
        first, second = ([heads.densities(one, count) for one in several] for several in found.values())
        for layer in (layer for layer in first[0] if layer in second[0]):
            shares = (np.mean([one[layer] for one in each], axis=0) for each in (first, second))
            place = about | {"subroutines": ", ".join(found), "layer": layer}
            for i, (a, b) in enumerate(zip(*shares, strict=True), 1):
                rows.append(place | {"head": i, "first": a, "second": b})
    return pd.DataFrame(rows)


def division(by_head: pd.DataFrame) -> pd.DataFrame:
    """Do two subroutines divide the heads of a layer between them? A row per model and task.

    by_head: the table of that name. Of every base model that has learned, the correlation over its heads of what the
    masks of one subroutine keep and those of the other, both as differences from their layer's mean: below 0 one takes
    the heads that the other leaves, above 0 both want the same ones, and masks that choose weights of any head alike
    have 0 on average. Columns: n_bases; below, in how many it is negative; correlation, their mean on Fisher's scale,
    with its 95% interval, low and high (t over bases, singular and plural together).
    """
    learned, rows = by_head[by_head["base_accuracy"] >= LEARNED], []
    for (model, task), bases in learned.groupby(["paper_model", "task"], sort=False):
        found = bases.groupby("base_model", sort=False).apply(_within_layers, include_groups=False).dropna()
        on_fishers_scale = np.arctanh(found.clip(-0.9999, 0.9999))
        interval = t_interval(on_fishers_scale, found.index) if len(found) else (np.nan,) * 3
        mean, low, high = np.tanh(interval).tolist()
        rows.append([model, task, len(found), (found < 0).sum(), mean, low, high])
    return pd.DataFrame(rows, columns=["paper_model", "task", "n_bases", "below", "correlation", "low", "high"])


def _within_layers(heads_of_base: pd.DataFrame) -> float:
    """Correlation over heads of both shares, less their layer's mean; NaN where either does not vary."""
    shares = heads_of_base[["first", "second"]]
    centered = shares - shares.groupby(heads_of_base["layer"]).transform("mean")
    if np.isclose(centered.std(), 0).any():
        return float("nan")
    return float(np.corrcoef(centered["first"], centered["second"])[0, 1])


def _learned(layers: pd.DataFrame) -> pd.DataFrame:
    return layers[(layers["layer"] != overlap.OVERALL) & (layers["base_accuracy"] >= LEARNED)]


def _subnetworks(lab: Lab) -> Iterator[tuple[Network, dict[str, Any], dict[str, list[Subnetwork]]]]:
    """Every base model, its columns, and its subnetworks by subroutine, those of all mask seeds."""
    for network, own in groupby(tables.used_masks(lab), key=lambda mask: mask.base):
        found: dict[str, list[Subnetwork]] = {}
        for mask in own:
            found.setdefault(mask.subroutine, []).append(mask.load(lab))
        yield network, tables.identity(network) | {"base_accuracy": network.result(lab)["test_accuracy"]}, found
