"""Figures on modules in arithmetic. Bars are means over seeds, dots are seeds.

table: from the function of the same name in `arithmetic_tables`; titles: those that are shown, a panel each.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import log_axis, panels, short_layer
from subnet_utils.plots.style import BLACK, CONDITIONS

METRICS = {"iou": "intersection over union", "iomin": "intersection over minimum"}
COLORS = dict(zip(METRICS.values(), (CONDITIONS["subnetwork"].color, "#66b3e6"), strict=True))
BY_STRENGTH = {"control_accuracy": ("accuracy under the control mask", BLACK),
               "ceiling_iou": ("overlap of two masks of one function", CONDITIONS["mean"].color),
               "hidden_iou": ("overlap in hidden layers (IoU)", CONDITIONS["subnetwork"].color),
               "chance_iou": ("by chance", "0.6"), "scale": ("on the scale between", "#d98c00")}  # fmt: skip
FUNCTIONS = {"+": "#0a7f5a", "*": "#7a4a9c", "pair 1": "#0a7f5a", "pair 2": "#7a4a9c", "neither": "0.85"}
"""Colors of functions, as in the map of weights."""


def _of(table: pd.DataFrame, titles: Sequence[str]) -> pd.DataFrame:
    """The rows of some networks, with the names of weights as they fit an axis."""
    some = table[table["title"].isin(titles)]
    return some.assign(layer=some["layer"].map(short_layer)) if "layer" in some else some


def shared_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """IoU and IoMin of two functions' masks by layer, chance and ceiling (Figures 1, 2 and 8). table: `sharing`."""
    some = _of(table, titles)
    long = pd.concat(
        some[["title", "layer"]].assign(
            metric=name, shared=some[metric], chance=some[f"chance_{metric}"], ceiling=some[f"ceiling_{metric}"]
        )
        for metric, name in METRICS.items()
    )
    axis = {"ylabel": "shared weights", "ylim": (0, 1.02)}
    return bars(long, x="layer", y="shared", hue="metric", colors=COLORS, levels=["chance", "ceiling"], **axis)


def kept_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Weights that each function's mask keeps, by layer (Figure 12). table: `kept`."""
    some = _of(table[table["function"] != "control"], titles)
    look = {"colors": FUNCTIONS, "label": "mask of {}", "ylabel": "kept weights"}
    return bars(some, x="layer", y="kept", hue="function", size={"sharey": False}, **look)


def operations(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Which operation a network performs under each mask (Figure 13)."""
    some = _of(table, titles)
    masks = ("mask of " + some["mask"]).replace("mask of control", "control mask")
    asked, done = "asked for " + some["asked"], some["done"].replace("none", "neither")
    some = some.assign(title=some["title"] + "\n" + masks, asked=asked, done=done)
    look = {"colors": FUNCTIONS, "label": "performs {}", "ylabel": "share of items", "ylim": (0, 1.02)}
    return bars(some, x="asked", y="share", hue="done", size={"width": 2.2, "across": masks.nunique()}, **look)


def parts(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Accuracies of parts on both functions (Figure 7, Tables 1 to 3). table: `accuracies` with a column `kind`."""
    look = {"colors": FUNCTIONS, "label": "accuracy on {}", "ylabel": "accuracy", "ylim": (0, 1.05)}
    return bars(_of(table, titles), x="kind", y="accuracy", hue="tested_on", size={"height": 1.9}, **look)


def by_strength(table: pd.DataFrame) -> Figure:
    """Accuracy under the control mask, and what two functions' masks share, against beta (Figure 10)."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby("beta")[[*BY_STRENGTH]].mean()
        for column, (label, color) in BY_STRENGTH.items():
            ax.plot(means.index, means[column], "-", rows["beta"], rows[column], "o", ms=2, color=color, label=label)
        log_axis(ax, means.index[:: 1 + len(means) // 5], "{:.1e}")
        ax.set(xlabel="β", ylabel="accuracy, or overlap", ylim=(0, 1.02))

    return panels(table, "model", draw, width=4.6)


def by_size(table: pd.DataFrame) -> Figure:
    """Weights of one function's mask that the other's has, too, by network (Figure 11). table: `by_strength`."""
    of = "weights of one function's mask that the other's has"
    some = table.rename(columns=lambda name: name.removesuffix("_shared")).assign(title=table["task"], of=of)
    names = [model.removeprefix(f"{task}_") for model, task in zip(table["model"], table["task"], strict=True)]
    look = {"colors": {of: CONDITIONS["subnetwork"].color}, "ylabel": "shared weights", "ylim": (0, 1.02)}
    return bars(some.assign(name=names), x="name", y="shared", hue="of", levels=["chance", "ceiling"], **look)


def settled(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """How sure masks are of their weights: histograms of the probabilities to be kept, logarithmic (Figure 9)."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby("bin")["share"].mean()
        ax.bar(means.index, means, width=means.index[1] - means.index[0], color=CONDITIONS["subnetwork"].color)
        ax.set(xlabel="probability to be kept", ylabel="share of the weights", yscale="log")
        ax.set_title(rows["title"].iloc[0], fontsize=7)

    return panels(_of(table, titles), "title", draw, width=1.8, height=1.5, across=4)
