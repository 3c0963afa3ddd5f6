"""A control mask in half of a network's layers (*Are Neural Nets Modular?*, appendix B.2, Figure 7)."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from subnet_utils.core.lab import Lab
from subnet_utils.plots.bars import bars
from subnet_utils.plots.style import CONDITIONS, RANDOM
from subnet_utils.problems.modules import CONTROL, Masked
from subnet_utils.report.findings import claimed, groups

LOW = 0.1
"""A drop of accuracy that is still called low."""
HALVES = ("early half", "late half")
COLORS = {"control mask": CONDITIONS["subnetwork"].color, "random mask": RANDOM.color}


def accuracies(lab: Lab, found: Iterable[Masked]) -> pd.DataFrame:
    """Accuracy of each network under its control mask in all layers or in half of them, and under random masks."""
    rows = []
    for one in found:
        name = one.network.problem.known
        about = one.about | {"base_accuracy": one.network.result(lab)[name]}
        rows += [about | {"part": row["part"], "accuracy": row[name]} for row in one.halves.result(lab)]
    return pd.DataFrame(rows)


def claims(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """That the drop is low, for each model and half, with our numbers. table: columns model, seed, part,
    base_accuracy, accuracy."""
    for half in HALVES:
        for about, part in groups(table[table["part"] == half], "model"):
            drop = part["base_accuracy"] - part["accuracy"]
            yield about | claimed("Figure 7", f"drop with the {half} masked", drop, part["seed"], (-math.inf, LOW))


def figure(table: pd.DataFrame) -> Figure:
    """Accuracies under the control mask and under a random one, in all layers and in either half. Other parts of the
    table are left out."""
    layers = table["part"].str.removeprefix("random ").replace(CONTROL, "all layers")
    masks = table["part"].str.startswith("random ").map({True: "random mask", False: "control mask"})
    some = table.assign(title=table["model"], layers=layers, mask=masks, whole=table["base_accuracy"])
    some = some[layers.isin(["all layers", *HALVES])].rename(columns={"whole": "whole network"})
    look = {"colors": COLORS, "levels": ["whole network"], "ylabel": "accuracy", "ylim": (0, 1.02)}
    return bars(some, x="layers", y="accuracy", hue="mask", size={"width": 2.4, "height": 1.8, "across": 3}, **look)
