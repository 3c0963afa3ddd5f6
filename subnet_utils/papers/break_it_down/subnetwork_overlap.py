"""Subnetwork overlap: the tables of notebook 06.

*Break It Down* (appendix K) compares the subnetworks of one base model, by layer: three runs of the same mask, and the
weights that all three share between the two subroutines. Here for every base model, for pairs as well as for triples,
in the corrected form and as printed, with what random masks of the same sizes would give.
"""

from itertools import combinations, groupby
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.masks import heads, overlap
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import reference, tables
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.papers.break_it_down.tasks.odd_one_out import subroutines_of
from subnet_utils.report import verdict
from subnet_utils.statistics import LEARNED, t_interval

PRINTED = {"inside": 13, "number": 14, "between": 15}
"""Tables of the paper by what they compare, all for one ResNet50 on inside-number."""
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
    for network, found in _subnetworks(lab):
        about = _about(lab, network)
        for comparison, columns in _comparisons(found).items():
            frame = pd.DataFrame(columns).rename_axis("layer").reset_index()
            frame = frame.reindex(columns=["layer", "iou", "expected", "as_printed"])
            rows.append(frame.assign(comparison=comparison, n_masks=sum(map(len, found.values())), **about))
    return pd.concat(rows, ignore_index=True)


def pairs(lab: Lab) -> pd.DataFrame:
    """Overlap of every two masks of a base model, over all layers that both mask: iou, expected, and the sources."""
    rows = []
    for network, found in _subnetworks(lab):
        masks = [(subroutine, i, one) for subroutine, several in found.items() for i, one in enumerate(several)]
        for (first, i, a), (second, j, b) in combinations(masks, 2):
            values = {"iou": overlap.iou([a, b]), "expected": overlap.expected_iou([a, b])}
            kind = {"comparison": f"within {first}" if first == second else "between"}
            overall = {name: layers[overlap.OVERALL] for name, layers in values.items()}
            rows.append(_about(lab, network) | kind | {"first": f"{first} {i}", "second": f"{second} {j}"} | overall)
    return pd.DataFrame(rows)


def compared(layers: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Tables 13 to 15: the mean over layers, ours for every task, and the paper's for inside-number.

    layers: from `by_layer`. The paper's numbers within a subroutine are |m1 & m2 & m3| / |m3|, comparable to ours
    `as printed`. Values are judged at the profile `paper` only, where networks are the paper's, and if all of ours
    have masks in the paper's layers, those from stage 4 on.
    """
    ours = layers[(layers["layer"] != overlap.OVERALL) & (layers["base_accuracy"] >= LEARNED)]
    columns = {"ours": "iou", "ours_as_printed": "as_printed", "expected": "expected"}
    grouped = ours.groupby(["paper_model", "task", "number", "comparison"], sort=False)
    table = grouped[list(columns.values())].mean().reset_index().rename(columns={v: k for k, v in columns.items()})
    table["n_bases"] = grouped["base_model"].nunique().to_numpy()
    table["n_layers"] = grouped.size().to_numpy() / table["n_bases"]
    table["paper"] = [_printed_mean(row) for row in table.itertuples()]
    table["verdict"] = [_verdict(row, profile) for row in table.itertuples()]
    first = ["paper_model", "task", "number", "comparison", "paper", "ours", "ours_as_printed", "expected"]
    return table[[*first, "n_bases", "verdict"]]


def claim(layers: pd.DataFrame) -> pd.DataFrame:
    """The paper's claim that subroutines share fewer weights than runs of one do, in every layer: a row per task.

    Columns: layers, of all learned bases, in which all three overlaps can be had; lower: in how many of them the
    overlap between is below both within; lower_corrected: the same with each overlap `corrected` for chance, since
    larger masks overlap more; above_chance: in how many the overlap between is more than that of random sets of weights
    as large as the two intersections.
    """
    ours = layers[(layers["layer"] != overlap.OVERALL) & (layers["base_accuracy"] >= LEARNED)]
    ours = ours.assign(corrected=overlap.corrected(ours["iou"], ours["expected"]))
    rows = []
    for key, group in ours.groupby(["paper_model", "task", "number"], sort=False):
        lower = {}
        for value in ("iou", "corrected"):
            table = group.pivot(index=["base_model", "layer"], columns="comparison", values=value)
            within = [column for column in table if column != "between"]
            table = table.dropna() if len(within) == 2 and "between" in table else table.iloc[:0].assign(between=[])
            lower[value] = table["between"] < table[within].min(axis=1)
        row = {"layers": len(lower["iou"]), "lower": lower["iou"].sum(), "lower_corrected": lower["corrected"].sum()}
        row["above_chance"] = (table["between"] > 0).sum()
        share = row["lower"] / row["layers"] if row["layers"] else float("nan")
        row["verdict"] = verdict(share, share, (NEARLY_ALL, float("inf")))
        rows.append(dict(zip(["paper_model", "task", "number"], key, strict=True)) | row)
    return pd.DataFrame(rows)


def by_head(lab: Lab) -> pd.DataFrame:
    """What the subnetworks of each subroutine keep of each attention head: a row per base model, layer and head.

    Columns: layer; head, counted from 1 as in the figures; subroutines, as 'first, second'; first and second: the share
    of the head's weights that their masks keep, mean over the masks' seeds. Base models without attention, or without
    a mask of either subroutine, have no row.
    """
    rows = []
    for network, found in _subnetworks(lab):
        count = getattr(network.architecture, "heads", None)
        if count is None or len(found) < 2:
            continue
        kept = [_mean_densities(several, count) for several in found.values()]
        about = _about(lab, network) | {"subroutines": ", ".join(found)}
        for layer in kept[0].keys() & kept[1].keys():
            pairs = zip(kept[0][layer], kept[1][layer], strict=True)
            rows += [about | {"layer": layer, "head": i, "first": a, "second": b} for i, (a, b) in enumerate(pairs, 1)]
    return pd.DataFrame(rows)


def division(by_head: pd.DataFrame) -> pd.DataFrame:
    """Do two subroutines divide the heads of a layer between them? A row per model and task.

    by_head: the table of that name. Of every base model that has learned, the correlation over its heads of what the
    masks of one subroutine keep and those of the other, both as differences from their layer's mean: below 0 one takes
    the heads that the other leaves, above 0 both want the same ones, and masks that choose weights of any head alike
    have 0 on average. Columns: n_bases; below, in how many it is negative; correlation, their mean on Fisher's scale,
    with its 95% interval, low and high (t over bases, singular and plural together).
    """
    learned = by_head[by_head["base_accuracy"] >= LEARNED]
    rows = []
    for (model, task), bases in learned.groupby(["paper_model", "task"], sort=False):
        found = bases.groupby("base_model", sort=False).apply(_within_layers, include_groups=False).dropna()
        on_fishers_scale = np.arctanh(found.clip(-0.9999, 0.9999))
        interval = t_interval(on_fishers_scale, found.index) if len(found) else (np.nan,) * 3
        mean, low, high = np.tanh(interval).tolist()
        row = {"paper_model": model, "task": task, "n_bases": len(found), "below": int((found < 0).sum())}
        rows.append(row | {"correlation": mean, "low": low, "high": high})
    return pd.DataFrame(rows)


def _within_layers(heads_of_base: pd.DataFrame) -> float:
    """Correlation over heads of both shares, less their layer's mean; NaN where either does not vary."""
    shares = heads_of_base[["first", "second"]]
    centered = shares - shares.groupby(heads_of_base["layer"]).transform("mean")
    if np.isclose(centered.std(), 0).any():
        return float("nan")
    return float(np.corrcoef(centered["first"], centered["second"])[0, 1])


def _mean_densities(several: list[Subnetwork], count: int) -> dict[str, np.ndarray]:
    each = [heads.densities(one, count) for one in several]
    return {layer: np.mean([one[layer] for one in each], axis=0) for layer in each[0]}


def _subnetworks(lab: Lab) -> list[tuple[Network, dict[str, list[Subnetwork]]]]:
    """Every base model with its subnetworks by subroutine, those of all mask seeds."""
    masks = tables.used_masks(lab)
    found = []
    for network, own in groupby(masks, key=lambda mask: mask.base):
        together = {subroutine: [] for subroutine in subroutines_of(network.task)}
        for mask in own:
            together[mask.subroutine].append(mask.load(lab))
        found.append((network, {name: several for name, several in together.items() if several}))
    return found


def sources(lab: Lab) -> list[str]:
    """Keys of the masks that are compared."""
    return [mask.mask(lab).key(lab) for mask in tables.used_masks(lab)]


def _about(lab: Lab, network: Network) -> dict[str, Any]:
    return tables.identity(network) | {"base_accuracy": network.result(lab)["test_accuracy"]}


def _comparisons(found: dict[str, list[Subnetwork]]) -> dict[str, dict[str, dict[str, float]]]:
    """Columns by layer of each comparison that the masks of one base allow."""
    made = {}
    for subroutine, several in found.items():
        if len(several) > 1:
            made[f"within {subroutine}"] = {
                "iou": overlap.iou(several),
                "expected": overlap.expected_iou(several),
                "as_printed": overlap.as_printed(several),
            }
    if len(found) == 2:
        shared = [overlap.common(several) for several in found.values()]
        made["between"] = {"iou": overlap.iou(shared), "expected": overlap.expected_iou(shared)}
    return made


def _printed_mean(row: Any) -> float:
    """The paper's mean over layers, where it prints such a table."""
    table = PRINTED.get(row.comparison.removeprefix("within "))
    if (row.paper_model, row.task) != ("resnet50", "inside-number") or table is None:
        return float("nan")
    return float(reference.load(f"table{table}")["iou"].mean())


def _verdict(row: Any, profile: str) -> str:
    comparable = profile == "paper" and row.n_layers == PRINTED_LAYERS
    ours = row.ours if row.comparison == "between" else row.ours_as_printed
    return verdict(ours, ours, (row.paper - NEAR, row.paper + NEAR), comparable=comparable)
