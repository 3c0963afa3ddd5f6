"""Figures that put methods side by side. Lines and marks are means over seeds, functions and repeats."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.plots.layout import label_first_column, legend, log_axis
from subnet_utils.plots.marks import key
from subnet_utils.plots.style import BLACK

COLORS = {
    "gumbel_sigmoid": "#0069a8", "continuous_sparsification": "#0a7f5a", "hard_concrete": "#7a4a9c",
    "attribution": "#d98c00", "attribution_ig": "#c8321e", "exact": "#8c564b",
    "spectral_clusters": "#17a2b8", "magnitude": "#5a9bd4", "weight_change": "#e377c2", "random": "0.55",
}  # fmt: skip
"""Of methods; others get black."""
MARKERS = {"gumbel_sigmoid": "s", "continuous_sparsification": "^", "hard_concrete": "v"}
"""Of trained masks, which may lie on each other; others get a dot."""
COLUMNS = {
    "own": ("own", "o", BLACK, -0.2), "other": ("other", "o", "white", -0.2),
    "own_varied": ("own, other varies", "D", "#f0c419", 0.0),
    "own_without": ("own, without it", "s", BLACK, 0.2), "other_without": ("other, without it", "s", "white", 0.2),
}  # fmt: skip
"""Of the dot plot: label, marker, filling, and place in a method's row."""
SIZES = {"white": 6, "#f0c419": 4, BLACK: 3}  # of marks by filling: a filled one is seen in a hollow one


def named(method: str) -> str:
    """A method's name as it is read.

    >>> named("hard_concrete")
    'hard concrete'
    """
    return method.replace("attribution_ig", "integrated attribution").replace("_", " ")


def color_of(method: str) -> str:
    """Color of a method; black for a user's own."""
    return COLORS.get(method, BLACK)


def side_by_side(curve: pd.DataFrame, table: pd.DataFrame, model: str) -> Figure:
    """Left: accuracy by density, a line a ranking, marks for trained masks. Right: what each method's subnetwork does.

    curve, table: from `method_tables.along_densities` and `side_by_side`. Filled marks and whole lines are the own
    function, hollow marks and dashed lines the other one. Where the other function may vary, a panel between them shows
    the own function there.
    """
    own, rows = curve[curve["model"].eq(model) & curve["part"].eq("alone")], table[table["model"] == model]
    panels = {"by size": ("own", "other")}
    if rows["own_varied"].notna().any():
        panels = {"other held fixed": ("own", "other"), "other varies": ("own_varied",)}
    figure, axes = plt.subplots(1, len(panels) + 1, figsize=(7, 3.3), width_ratios=[1.1] * len(panels) + [1])
    for ax, (title, names) in zip(axes, panels.items(), strict=False):
        _by_size(ax, own, names)
        ax.set_title(title, loc="left")
    label_first_column(axes[:-1])
    shown = [name for name in COLUMNS if rows[name].notna().any()]
    _dots(axes[-1], rows, shown)
    entries = [key(named(one), color_of(one), MARKERS.get(one, "o")) for one in own["method"].unique()]
    entries += [key(COLUMNS[name][0], mec=BLACK, marker=COLUMNS[name][1], mfc=COLUMNS[name][2]) for name in shown]
    legend(figure, entries)
    return figure


def _by_size(ax: Axes, table: pd.DataFrame, names: Sequence[str]) -> None:
    for method, rows in table.groupby("method", sort=False):
        color, trained = color_of(method), rows["trained"].iloc[0]
        means = rows.groupby(rows["target"].fillna(0.0) if trained else "density")[["density", *names]].mean()
        for name, fill, line in zip(names, (color, "white"), ("-", "--"), strict=False):
            shape = {"marker": MARKERS.get(method, "o"), "mfc": fill, "ms": SIZES.get(fill, 5)}
            mark = {"ls": "none", "zorder": 3} | shape
            ax.plot(means["density"], means[name], color=color, lw=1.2, **mark if trained else {"ls": line})
    ax.set(xlabel="share of the weights", ylabel="accuracy", ylim=(-0.03, 1.03))
    log_axis(ax, sorted(table["asked"].dropna().unique()), "{:.0%}")


def _dots(ax: Axes, table: pd.DataFrame, names: Sequence[str]) -> None:
    methods = list(table["method"].unique())
    random = table[table["method"] == "random"]
    if len(random):
        drawn = random[["own", "other"]]
        ax.axvspan(drawn.min(axis=None), drawn.max(axis=None), color="0.92", zorder=0)
    means = table.groupby("method", sort=False)[["density", *names]].mean()
    for name in names:
        _, marker, fill, place = COLUMNS[name]
        look = {"ms": SIZES[fill], "zorder": 8 - SIZES[fill], "mec": BLACK, "mfc": fill}
        ax.plot(means[name], np.arange(len(methods)) + place, marker, **look)
    for place, method in enumerate(methods):
        ax.axhline(place, color="0.9", lw=0.6, zorder=0)
        ax.annotate(f"{means['density'][method]:.0%}", (1.1, place), va="center", fontsize=7, annotation_clip=False)
    ax.set_yticks(range(len(methods)), [named(method) for method in methods])
    ax.invert_yaxis()
    ax.set(xlabel="accuracy", xlim=(-0.03, 1.03))
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
    figure, ax = plt.subplots(figsize=(2.2 + 0.36 * len(names), 1.2 + 0.36 * len(names)))
    values = square.to_numpy().round(2) + 0.0  # no -0.00
    sns.heatmap(values, ax=ax, annot=True, fmt=".2f", cmap="Blues", vmin=0, vmax=1, annot_kws={"size": 7},
                xticklabels=names, yticklabels=names, cbar_kws={"label": "agreement above chance"})  # fmt: skip
    ax.set_xticks(np.arange(len(names)) + 0.5, names, rotation=40, ha="right")
    return figure
