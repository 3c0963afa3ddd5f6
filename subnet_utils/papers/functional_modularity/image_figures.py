"""Figures of classes and permuted images (*Are Neural Nets Modular?*: Figures 3, 6, 14 and 17 to 20).

Red is a mask without a class, blue the other classes under it, violet a second control mask, green as many random
weights. Small dots are seeds, ticks their means.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from subnet_utils.papers.functional_modularity.permuted_steps import DIFFERENT, REPEATED
from subnet_utils.plots.layout import panels
from subnet_utils.plots.style import CHANCE_LINE, CONDITIONS, LEVEL, RANDOM, Look
from subnet_utils.tasks.pictures import Pictures

DROPS = {
    "target_drop": Look(CONDITIONS["ablated"].color, "o", "the removed class"),
    "other_drop": Look(CONDITIONS["subnetwork"].color, "s", "worst other class"),
    "sham_drop": Look("#7a4a9c", "^", "same class, second control mask"),
    "null_drop": Look(RANDOM.color, "v", "same class, as many random weights removed"),
}
SEQUENCES = {
    DIFFERENT: Look(CONDITIONS["subnetwork"].color, "o", DIFFERENT),
    REPEATED: Look(CONDITIONS["ablated"].color, "s", REPEATED),
}


def pictures(images: Pictures, classes: Sequence[str], *, each: int = 4) -> Figure:
    """Some images of every class, a column each."""
    figure, axes = plt.subplots(each, len(classes), figsize=(0.62 * len(classes), 0.62 * each + 0.2), squeeze=False)
    for i, (column, name) in enumerate(zip(axes.T, classes, strict=True)):
        for ax, image in zip(column, images.pixels[images.labels == i][:each], strict=False):
            ax.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=255)
        column[0].set_title(name, fontsize=7.5, fontweight="normal")
    for ax in axes.flat:
        ax.set_axis_off()
    return figure


def drops(table: pd.DataFrame) -> Figure:
    """Figure 6: relative drops of every class when its mask is trained without it, beside what else would lower them.

    A panel a network. table: rows of `image_tables.drops` at one alpha.
    """

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        for i, (column, look) in enumerate(DROPS.items()):
            _dots(ax, rows, column, look, shift=(i - 1.5) * 0.2)
        ax.axhline(0, **LEVEL)
        ax.set(ylabel="relative drop of accuracy", ylim=(None, 1.05))

    return panels(table, "model", draw, width=max(3.4, 0.55 * table["class"].nunique() + 1))


def others(table: pd.DataFrame, *, room: float) -> Figure:
    """Figure 6b: the largest drop of another class over that of the removed one. room: the end of the paper's axis."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        _dots(ax, rows, "other_share", DROPS["other_drop"])
        ax.axhline(room, **CHANCE_LINE | {"label": "end of the paper's axis"})
        ax.set(ylabel="largest other drop / drop\nof the removed class", ylim=(min(0, ax.get_ylim()[0]), None))

    return panels(table, "model", draw, width=max(3.4, 0.3 * table["class"].nunique() + 1))


def _dots(ax: Axes, table: pd.DataFrame, column: str, look: Look, *, shift: float = 0.0) -> None:
    """A dot for each seed, and a tick at their mean, for each class."""
    classes = list(dict.fromkeys(table["class"]))
    means = table.groupby("class")[column].mean().reindex(classes)
    marks = {"marker": look.marker, "ms": 4, "mec": "white", "mew": 0.4}
    ax.plot(table["class"].map(classes.index) + shift, table[column], ls="none", color=look.color, label=look.label,
            **marks)  # fmt: skip
    places = np.arange(len(classes)) + shift
    ax.hlines(means, places - 0.09, places + 0.09, color=look.color, lw=1.2)
    long = max(map(len, classes)) > 3
    ax.set_xticks(range(len(classes)), classes, **({"rotation": 45, "ha": "right"} if long else {}))
    ax.set(xlabel="removed class", xlim=(-0.6, len(classes) - 0.4))


def confusion(table: pd.DataFrame) -> Figure:
    """Figure 17: answers under the control masks, a panel a network. table: `image_tables.confusions`."""
    control = table[table["removed"] == ""].rename(columns={"share": "share of a class's images"})
    return _heatmaps(control, "model", "share of a class's images", "Blues", (0, 1), across=3, width=2.1)


def changes(table: pd.DataFrame) -> Figure:
    """Figures 18 to 20: how answers change under the mask without a class, a panel each, its row framed. table:
    `image_tables.confusions` of one network."""
    removed = table[table["removed"] != ""].rename(columns={"change": "change of the share of a class's images"})
    named = removed.assign(panel="without " + removed["removed"])
    return _heatmaps(named, "panel", "change of the share of a class's images", "RdBu_r", (-1, 1), across=5, width=1.9)


def _heatmaps(table: pd.DataFrame, by: str, column: str, cmap: str, limits: tuple[float, float], **size) -> Figure:
    """Means over seeds for every class and answer; the row of a removed class is framed."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        classes = list(dict.fromkeys(rows["class"]))
        means = rows.pivot_table(index="class", columns="answer", values=column).loc[classes, classes]
        look = {"cmap": cmap, "vmin": limits[0], "vmax": limits[1], "cbar": False, "square": True}
        sns.heatmap(means, ax=ax, xticklabels=True, yticklabels=True, **look)
        for place in (i for i, name in enumerate(classes) if name == rows["removed"].iloc[0]):
            ax.add_patch(Rectangle((0, place), len(classes), 1, fill=False, ec="black", lw=0.9, clip_on=False))
        ax.tick_params(length=0, labelsize=6.5)
        ax.tick_params("y", rotation=0)

    figure = panels(table, by, draw, height=size["width"] + 0.2, margin=0.85, sharey=False, **size)
    image = figure.axes[0].collections[0]
    figure.colorbar(image, ax=figure.axes, location="bottom", shrink=0.5, aspect=40, pad=0.02, label=column)
    return figure


def by_l0(table: pd.DataFrame) -> Figure:
    """Drops against alpha, a panel a network: means over seeds and classes. table: `image_tables.by_l0`."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        rows = rows.sort_values("l0")
        for column, look in DROPS.items():
            ax.plot(rows["l0"], rows[column], color=look.color, marker=look.marker, ms=4, label=look.label)
            low, high = rows[f"{column}_low"].clip(-1, 1), rows[f"{column}_high"].clip(-1, 1)
            ax.vlines(rows["l0"], low, high, color=look.color, lw=0.9)
        ax.axhline(0, **LEVEL)
        ax.set(xscale="log", xlabel="alpha", ylabel="relative drop of accuracy", ylim=(None, 1.05))

    return panels(table, "model", draw, width=2.8, across=3)


def sharing(table: pd.DataFrame) -> Figure:
    """Figures 3 and 14: shares of a task's weights that earlier tasks use, a column a layer, a row a start of new
    logits; dotted: the share of the layer's weights that are used, which is chance. table: `image_tables.sharing`."""
    several = table["start"].nunique() > 1

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        for name, look in SEQUENCES.items():
            own, color = rows[rows["sequence"] == name], {"color": look.color}
            means = own.groupby("task")[["shared", "used"]].mean()
            ax.plot(means.index, means["used"], ls=":", lw=1, label=f"chance, {look.label}", **color)
            ax.plot(means.index, means["shared"], marker=look.marker, ms=4, label=look.label, **color)
            ax.plot(own["task"], own["shared"], ls="none", marker=look.marker, ms=2, alpha=0.5, **color)
        about = rows.iloc[0]
        ax.set_title(f"layer {about['layer']}" + (f", new logits {about['start']:g}" if several else ""))
        ax.set(xlabel="task", ylabel="shared weights", ylim=(0, 1.03))
        ax.xaxis.set_major_locator(plt.MaxNLocator(5, integer=True))

    return panels(table, ["start", "layer"], draw, width=2.2, height=1.9, across=table["layer"].nunique())
