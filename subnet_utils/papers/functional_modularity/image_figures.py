"""Figures of classes and permuted images (*Are Neural Nets Modular?*: Figures 3, 6, 14 and 17 to 20).

Red is a mask without a class, blue the other classes under it, violet a second control mask, green as many random
weights. Small dots are seeds, all else their means. table: from the function of the same name in `image_tables`.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from subnet_utils.papers.functional_modularity.permuted_steps import ALIVE, DIFFERENT, REPEATED
from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import log_axis, panels
from subnet_utils.plots.style import CONDITIONS, LEVEL, RANDOM, Look
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
    """Figure 6: relative drops of every class when its mask is trained without it, beside what else would lower them, a
    panel a network. table: rows at one alpha."""
    named = table.rename(columns={column: look.label for column, look in DROPS.items()} | {"model": "title"})
    colors = {look.label: look.color for look in DROPS.values()}
    long = named.melt(["title", "class"], list(colors), "of", "drop")
    size = {"width": max(3.4, 0.55 * table["class"].nunique() + 1)}
    least = 1.1 * min(long["drop"].min(), 0.0)  # of all panels: the first one would set it for the others
    axis = {"xlabel": "removed class", "ylabel": "relative drop of accuracy", "ylim": (least, 1.05)}
    return bars(long, x="class", y="drop", hue="of", colors=colors, size=size, **axis)


def others(table: pd.DataFrame, *, room: float) -> Figure:
    """Figure 6b: the largest drop of another class over that of the removed one, a color a network. table: as in
    `drops`; room: where the paper's axis ends."""
    colors = dict(zip(table["model"].unique(), sns.color_palette().as_hex(), strict=False))
    axis = {"xlabel": "removed class", "ylabel": "largest other drop / drop\nof the removed class"}
    end, size = "end of the paper's axis", {"width": max(4.6, 0.55 * table["class"].nunique() + 2)}
    some, look = table.assign(title="", **{end: room}), {"colors": colors, "levels": [end], "size": size}
    return bars(some, x="class", y="other_share", hue="model", **look, **axis)


def confusion(table: pd.DataFrame) -> Figure:
    """Figure 17: wrong answers under the control masks, a panel a network. table: `confusions`."""
    wrong = table[(table["removed"] == "") & (table["class"] != table["answer"])]
    most = wrong.groupby(["model", "class", "answer"])["share"].mean().max()
    look = {"cmap": "Blues", "vmin": 0, "vmax": most or 1.0}
    return _heatmaps(wrong, "model", "share", look, across=3, width=2.1)


def changes(table: pd.DataFrame) -> Figure:
    """Figures 18 to 20: how answers change under the mask without a class, a panel each, its row framed. table:
    `confusions` of one network."""
    removed = table[table["removed"] != ""].assign(panel="without " + table["removed"])
    look = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    return _heatmaps(removed, "panel", "change", look, across=5, width=1.9)


def _heatmaps(table: pd.DataFrame, by: str, column: str, look: dict[str, Any], **size: Any) -> Figure:
    """Means over seeds for every class and answer; the row of a removed class is framed."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        classes = list(dict.fromkeys(rows["class"]))
        means = rows.pivot_table(index="class", columns="answer", values=column).loc[classes, classes]
        ax.pcolormesh(means, **look)  # seaborn's heatmap draws the whole figure anew for every panel
        ax.set(aspect="equal", xlabel="answer", ylabel="class", ylim=(len(classes), 0))
        places, turned = [i + 0.5 for i in range(len(classes))], len("".join(classes)) > 2 * len(classes)
        ax.set_xticks(places, classes, rotation=90 if turned else 0)
        ax.set_yticks(places, classes)
        ax.spines[:].set_visible(False)
        for place in (i for i, name in enumerate(classes) if name == rows["removed"].iloc[0]):
            ax.add_patch(Rectangle((0, place), len(classes), 1, fill=False, ec="black", lw=0.9, clip_on=False))
        ax.tick_params(length=0, labelsize=6.5)

    figure = panels(table, by, draw, height=size["width"] + 0.2, margin=0.85, sharey=False, **size)
    image = figure.axes[0].collections[0]
    label = "share of a class's images" if column == "share" else "change of the share of a class's images"
    figure.colorbar(image, ax=figure.axes, location="bottom", shrink=0.5, aspect=40, pad=0.02, label=label)
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
        ax.set(xlabel="alpha", ylabel="relative drop of accuracy", ylim=(None, 1.05))
        log_axis(ax, rows["l0"], "{:.0e}")

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
        about, lost = rows.iloc[0], rows["accuracy"].min() < ALIVE
        title = f"layer {about['layer']}" + (f", new logits {about['start']:g}" if several else "")
        ax.set_title(title + ("\n(a task is not learned)" if lost else ""))
        ax.set(xlabel="task", ylabel="shared weights", ylim=(0, 1.03))
        ax.xaxis.set_major_locator(plt.MaxNLocator(5, integer=True))

    return panels(table, ["start", "layer"], draw, width=2.2, height=1.9, across=table["layer"].nunique())
