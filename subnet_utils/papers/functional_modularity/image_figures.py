"""Figures of classes and permuted images (*Are Neural Nets Modular?*: Figures 3, 6, 14 and 17 to 20).

Red is a mask without a class, blue the other classes under it, violet a second control mask, green as many random
weights. Small dots are seeds, ticks their means.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from subnet_utils.papers.functional_modularity.permuted_steps import DIFFERENT, REPEATED
from subnet_utils.plots.layout import grid, label_first_column, legend
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
    models = list(table.groupby("model", sort=False))
    width = max(3.4, 0.55 * table["class"].nunique() + 1)
    figure, axes = grid(len(models), width=width, height=2.3, across=2, margin=0.6, sharey=True)
    for ax, (model, own) in zip(axes, models, strict=True):
        classes = list(dict.fromkeys(own["class"]))
        for i, (column, look) in enumerate(DROPS.items()):
            _dots(ax, own, classes, column, look, shift=(i - 1.5) * 0.2)
        ax.axhline(0, **LEVEL)
        ax.set(title=model, ylabel="relative drop of accuracy", xlabel="removed class", ylim=(None, 1.05))
        _name_classes(ax.set_xticks, classes)
    return _finished(figure, axes)


def others(table: pd.DataFrame, *, room: float) -> Figure:
    """Figure 6b: the largest drop of another class over that of the removed one. room: the end of the paper's axis."""
    figure, ax = plt.subplots(figsize=(max(4.6, 0.55 * table["class"].nunique() + 2), 2.5))
    classes, models = list(dict.fromkeys(table["class"])), list(table.groupby("model", sort=False))
    colors = [look.color for look in (*SEQUENCES.values(), CONDITIONS["random"])]
    for i, (model, own) in enumerate(models):
        shift = (i - (len(models) - 1) / 2) * 0.25
        _dots(ax, own, classes, "other_share", Look(colors[i % 3], "os^"[i % 3], model), shift=shift)
    ax.axhline(room, **CHANCE_LINE | {"label": "end of the paper's axis"})
    ax.set(ylabel="largest other drop / drop\nof the removed class", xlabel="removed class")
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    _name_classes(ax.set_xticks, classes)
    return _finished(figure, [ax])


def _dots(ax: Axes, table: pd.DataFrame, classes: Sequence[str], column: str, look: Look, *, shift: float) -> None:
    """A dot for each seed, and for several a tick at their mean."""
    for place, name in enumerate(classes):
        values = table.loc[table["class"] == name, column].dropna()
        if values.empty:  # a line without points would have no end, and leave the panels no room
            continue
        spread = np.linspace(-0.05, 0.05, len(values)) if len(values) > 1 else np.zeros(len(values))
        ax.plot(place + shift + spread, values, ls="none", marker=look.marker, ms=4, mec="white", mew=0.4,
                color=look.color, label=look.label, clip_on=False)  # fmt: skip
        if len(values) > 1:
            ax.plot([place + shift - 0.09, place + shift + 0.09], [values.mean()] * 2, color=look.color, lw=1.2)
    ax.set_xlim(-0.6, len(classes) - 0.4)


def confusion(table: pd.DataFrame) -> Figure:
    """Figure 17: answers under the control masks, a panel a network. table: `image_tables.confusions`."""
    control = table[table["removed"] == ""]
    panels = list(control.groupby("model", sort=False))
    return _heatmaps([(model, own, None) for model, own in panels], "share", across=3, size=2.1, cmap="Blues",
                     limits=(0, 1), label="share of a class's images")  # fmt: skip


def changes(table: pd.DataFrame) -> Figure:
    """Figures 18 to 20: how answers change under the mask without a class, a panel each, its row framed. table:
    `image_tables.confusions` of one network."""
    removed = table[table["removed"] != ""]
    panels = [(f"without {name}", own, name) for name, own in removed.groupby("removed", sort=False)]
    return _heatmaps(panels, "change", across=5, size=1.9, cmap="RdBu_r", limits=(-1, 1),
                     label="change of the share of a class's images")  # fmt: skip


def _heatmaps(panels, column: str, *, across: int, size: float, cmap: str, limits, label: str) -> Figure:
    figure, axes = grid(len(panels), width=size, height=size + 0.2, across=across, margin=0.85)
    for ax, (title, own, framed) in zip(axes, panels, strict=True):
        classes = list(dict.fromkeys(own["class"]))
        means = own.groupby(["class", "answer"])[column].mean().unstack().loc[classes, classes]
        image = ax.imshow(means, cmap=cmap, vmin=limits[0], vmax=limits[1])
        if framed is not None:
            row = classes.index(framed) - 0.5
            ax.add_patch(Rectangle((-0.5, row), len(classes), 1, fill=False, ec="black", lw=0.9, clip_on=False))
        ax.set(title=title, xlabel="answer", ylabel="class")
        _name_classes(ax.set_xticks, classes)
        ax.set_yticks(range(len(classes)), classes)
        ax.tick_params(length=0, labelsize=6.5)
    label_first_column(axes)
    figure.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=40, pad=0.02, label=label)
    return figure


def _name_classes(set_ticks, classes: Sequence[str]) -> None:
    """Short names stand, long ones are turned."""
    long = max(map(len, classes)) > 3
    set_ticks(range(len(classes)), classes, **({"rotation": 45, "ha": "right"} if long else {}))


def by_l0(table: pd.DataFrame) -> Figure:
    """Drops against alpha, a panel a network: means over seeds and classes. table: `image_tables.by_l0`."""
    models = list(table.groupby("model", sort=False))
    figure, axes = grid(len(models), width=2.8, height=2.3, across=3, margin=0.6, sharey=True)
    for ax, (model, own) in zip(axes, models, strict=True):
        own = own.sort_values("l0")
        for column, look in DROPS.items():
            ax.plot(own["l0"], own[column], color=look.color, marker=look.marker, ms=4, label=look.label)
            ax.vlines(own["l0"], own[f"{column}_low"].clip(-1, 1), own[f"{column}_high"].clip(-1, 1),
                      color=look.color, lw=0.9)  # fmt: skip
        ax.axhline(0, **LEVEL)
        ax.set(xscale="log", title=model, xlabel="alpha", ylabel="relative drop of accuracy", ylim=(None, 1.05))
    return _finished(figure, axes)


def sharing(table: pd.DataFrame) -> Figure:
    """Figures 3 and 14: shares of a task's weights that earlier tasks use, a column a layer, a row a start of new
    logits; dotted: the share of the layer's weights that are used, which is chance. table: `image_tables.sharing`."""
    panels = list(table.groupby(["start", "layer"], sort=False))
    layers = table["layer"].nunique()
    figure, axes = grid(len(panels), width=2.2, height=1.9, across=layers, margin=0.6, sharex=True, sharey=True)
    for ax, ((start, layer), own) in zip(axes, panels, strict=True):
        for i, (name, look) in enumerate(SEQUENCES.items()):
            rows = own[own["sequence"] == name]
            means = rows.groupby("task")[["shared", "used"]].mean()
            ax.plot(means.index, means["used"], color=look.color, ls=":", lw=1, label=f"chance, {look.label}")
            ax.plot(means.index, means["shared"], color=look.color, marker=look.marker, ms=4, label=look.label)
            if rows["seed"].nunique() > 1:
                ax.plot(rows["task"] + 0.12 * (2 * i - 1), rows["shared"], ls="none", marker=look.marker, ms=2,
                        alpha=0.5, color=look.color)  # fmt: skip
        several = f", new logits {start:g}" if table["start"].nunique() > 1 else ""
        ax.set(title=f"layer {layer}{several}", ylabel="shared weights", ylim=(0, 1.03))
        ax.set_xlim(table["task"].min() - 0.4, table["task"].max() + 0.4)
        ax.xaxis.set_major_locator(plt.MaxNLocator(5, integer=True))
    for ax in axes[-layers:]:
        ax.set_xlabel("task")
    return _finished(figure, axes)


def _finished(figure: Figure, axes: Sequence[Axes]) -> Figure:
    label_first_column(axes)
    legend(figure, columns=2)
    return figure
