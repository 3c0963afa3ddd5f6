"""How many weights two masks share, between what chance gives and what two masks of one function share.

The paper measures sharing by intersection over union and intersection over minimum (section 2), and by the share of one
mask's weights that the other has, too. None of them says how much to expect. Two random masks of these densities share
some weights: chance. Two masks of the same function in the same network do not share all: the ceiling. `scale` puts a
number between the two.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from subnet_utils.masks.overlap import OVERALL, expected_iou
from subnet_utils.masks.subnetwork import Subnetwork

HIDDEN = "hidden layers"
"""The entry of a table that takes all layers as one but the first and the last."""
MEASURES = ["iou", "iomin", "shared"]
DRAWS = 100
"""Pairs of random masks."""


def overlaps(one: Subnetwork, other: Subnetwork, names: Sequence[str]) -> pd.DataFrame:
    """How much two masks share by layer, then in `HIDDEN` and `OVERALL`, each with what chance gives.

    Columns layer, iou, iomin, shared (of the first mask's weights), and chance_iou, chance_iomin, chance_shared. Random
    masks with m and n of the N weights of a layer have m n / N in common; several layers have their sum. NaN where a
    mask is empty. names: of the weights, from the inputs to the outputs. Raises WrongNetwork for masks of two networks.
    """
    parts = {"one": one, "other": other, "both": one & other, "either": one | other}
    counts = {part: [int(mask.masks[name].sum()) for name in names] for part, mask in parts.items()}
    counts["total"] = [one.masks[name].numel() for name in names]
    sizes = pd.DataFrame(counts, index=list(names)).assign(common=lambda of: of["one"] * of["other"] / of["total"])
    sums = pd.DataFrame({HIDDEN: sizes.iloc[1:-1].sum(), OVERALL: sizes.sum()}).T
    sizes = pd.concat([sizes, sums])
    least = sizes[["one", "other"]].min(axis=1)
    found = {
        "iou": sizes["both"] / sizes["either"],
        "iomin": sizes["both"] / least,
        "shared": sizes["both"] / sizes["one"],
        "chance_iou": sizes["common"] / (sizes["one"] + sizes["other"] - sizes["common"]),
        "chance_iomin": sizes["common"] / least,
        "chance_shared": sizes["common"] / sizes["one"],
    }
    return pd.DataFrame(found).rename_axis("layer").reset_index()


def drawn_iou(one: Subnetwork, other: Subnetwork, names: Sequence[str]) -> dict[str, float]:
    """The mean IoU of random masks with as many weights in every layer, by layer as in `overlaps`."""
    inner = [Subnetwork({name: mask.masks[name] for name in names[1:-1]}, mask.network) for mask in (one, other)]
    hidden = expected_iou(inner, draws=DRAWS)[OVERALL] if len(names) > 2 else np.nan
    return expected_iou([one, other], draws=DRAWS) | {HIDDEN: hidden}


def pairs(first: Sequence[Subnetwork], second: Sequence[Subnetwork]) -> list[tuple[Subnetwork, Subnetwork]]:
    """Every mask of one function with every one of another, of other seeds if there are any.

    Masks of one seed learn from the same draws and the same batches, and are more alike by that alone.
    """
    others = [(a, b) for (i, a), (j, b) in product(enumerate(first), enumerate(second)) if i != j]
    return others or list(zip(first, second, strict=False))


def between_functions(masks: Mapping[str, Sequence[Subnetwork]], names: Sequence[str]) -> pd.DataFrame:
    """Overlaps of the masks of two functions beside chance and ceiling: one row a layer.

    masks: of each function some masks, each with a seed of its own. Values are means: of what `overlaps` and
    `drawn_iou` give over `pairs` of both functions; `ceiling_iou` and so on over two masks of one
    function, NaN where there is none; `scale` (by IoU) and `scale_iomin` run from 0, chance, to 1, the ceiling, NaN
    where that is not above chance. IoU of masks that differ in size is never 1. names: as in `overlaps`.
    """
    first, second = masks.values()
    found = [
        overlaps(a, b, names).assign(drawn_iou=lambda table, pair=(a, b): table["layer"].map(drawn_iou(*pair, names)))
        for a, b in pairs(first, second)
    ]
    same = [overlaps(a, b, names) for some in masks.values() for a, b in zip(some[:-1], some[1:], strict=True)]
    mean, ceiling = (pd.concat(some).groupby("layer", sort=False).mean() for some in (found, same or found))
    ceiling = ceiling[MEASURES].add_prefix("ceiling_")
    mean = mean.join(ceiling if same else ceiling * np.nan)
    for measure, name in (("iou", "scale"), ("iomin", "scale_iomin")):
        room = mean[f"ceiling_{measure}"] - mean[f"chance_{measure}"]
        mean[name] = (mean[measure] - mean[f"chance_{measure}"]) / room.where(room > 0)
    return mean.reset_index()
