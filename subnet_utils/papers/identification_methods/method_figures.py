"""Figures that put methods side by side. Lines and marks are means over seeds, functions and repeats."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.plots.layout import legend
from subnet_utils.plots.marks import key
from subnet_utils.plots.style import BLACK

COLORS = {
    "gumbel_sigmoid": "#0069a8", "continuous_sparsification": "#0a7f5a", "hard_concrete": "#7a4a9c",
    "attribution": "#d98c00", "attribution_ig": "#c8321e", "exact": "#8c564b",
    "spectral_clusters": "#17a2b8", "magnitude": "#5a9bd4", "weight_change": "#e377c2", "random": "0.55",
}  # fmt: skip
"""Of methods; others get black."""
COLUMNS = {
    "own": ("own", "o", BLACK), "other": ("other", "o", "white"),
    "own_without": ("own, without it", "s", BLACK), "other_without": ("other, without it", "s", "white"),
}  # fmt: skip
"""Of the dot plot: label, marker and filling."""


def named(method: str) -> str:
    """A method's name as it is read.

    >>> named("hard_concrete")
    'hard concrete'
    """
    return method.replace("_", " ")


def color_of(method: str) -> str:
    """Color of a method; black for a user's own."""
    return COLORS.get(method, BLACK)


def side_by_side(curve: pd.DataFrame, table: pd.DataFrame, model: str) -> Figure:
    """Left: accuracy by density, a line a ranking, marks for trained masks. Right: what each method's subnetwork does.

    curve, table: from `method_tables.along_densities` and `side_by_side`. Filled marks and whole lines are the own
    function, hollow marks and dashed lines the other one.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.3), width_ratios=(1.15, 1))
    own = curve[curve["model"].eq(model) & curve["part"].eq("alone")]
    for method, rows in own.groupby("method", sort=False):
        _along(left, method, rows)
    left.set(xscale="log", xlabel="share of the weights", ylabel="accuracy", ylim=(-0.03, 1.03))
    shares = sorted(own["asked"].dropna().unique())
    left.set_xticks(shares, [f"{share:.0%}" for share in shares])
    left.minorticks_off()
    left.set_title("by size", loc="left")
    _dots(right, table[table["model"] == model])
    entries = [key(named(method), color_of(method)) for method in own["method"].unique()]
    entries += [key(label, mec=BLACK, marker=marker, mfc=fill) for label, marker, fill in COLUMNS.values()]
    legend(figure, entries)
    return figure


def _along(ax: Axes, method: str, rows: pd.DataFrame) -> None:
    color = color_of(method)
    if rows["trained"].iloc[0]:
        means = rows.groupby(rows["target"].fillna(0.0))[["density", "own", "other"]].mean()
        for name, fill in (("own", color), ("other", "white")):
            ax.plot(means["density"], means[name], "o", ms=5, mec=color, mfc=fill, mew=1, zorder=3)
    else:
        means = rows.groupby("density")[["own", "other"]].mean()
        ax.plot(means.index, means["own"], color=color, lw=1.3)
        ax.plot(means.index, means["other"], color=color, lw=1, ls="--")


def _dots(ax: Axes, table: pd.DataFrame) -> None:
    methods = list(table["method"].unique())
    random = table[table["method"] == "random"]
    if len(random):
        low, high = random[list(COLUMNS)].min(axis=None), random[["own", "other"]].max(axis=None)
        ax.axvspan(low, high, color="0.92", zorder=0)
    for name, (_, marker, fill) in COLUMNS.items():
        means = table.groupby("method", sort=False)[name].mean()
        ax.plot(means, range(len(methods)), marker, ms=5, mec=BLACK, mfc=fill, mew=0.8)
    for place, method in enumerate(methods):
        ax.axhline(place, color="0.9", lw=0.6, zorder=0)
        ax.annotate(f"{table.loc[table['method'] == method, 'density'].mean():.0%}", (1.04, place), va="center",
                    fontsize=7, annotation_clip=False)  # fmt: skip
    ax.set_yticks(range(len(methods)), [named(method) for method in methods])
    ax.invert_yaxis()
    ax.set(xlabel="accuracy (right: share of the weights)", xlim=(-0.03, 1.03))
    ax.set_title("as found", loc="left")


def agreement(table: pd.DataFrame, model: str) -> Figure:
    """IoU of what two methods find, corrected for chance: 0 is chance, 1 the same weights.

    table: from `method_tables.agreement`. On the diagonal are two seeds of one method.
    """
    some = table[table["model"] == model]
    some = some.assign(corrected=(some["iou"] - some["chance_iou"]) / (1 - some["chance_iou"]))
    order = list(some["method"].unique())
    square = some.groupby(["method", "with_method"])["corrected"].mean().unstack().loc[order, order]
    names = [named(method) for method in order]
    figure, ax = plt.subplots(figsize=(4.6, 3.6))
    values = square.to_numpy().round(2) + 0.0  # no -0.00
    sns.heatmap(values, ax=ax, annot=True, fmt=".2f", cmap="Blues", vmin=0, vmax=1, annot_kws={"size": 7},
                xticklabels=names, yticklabels=names, cbar_kws={"label": "agreement above chance"})  # fmt: skip
    ax.set_xticks(np.arange(len(names)) + 0.5, names, rotation=40, ha="right")
    return figure
