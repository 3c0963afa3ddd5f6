"""Figures of subtask induction with images: what is seen, what is answered, and by which cue."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from subnet_utils.induction_figures import FEWEST, LINES
from subnet_utils.subtask_induction import interval

COLORS = {name: line.color for name, line in LINES.items()} | {
    "base": "#5d3a9b", "mask": "#111111", "strict": "#56a0d3", "mixture": "#d98c00", "linear": "#8b6b4a",
}  # fmt: skip
"""Of the networks; those of the conditions are the same as in arithmetic."""
CUES = {"shape": "#0069a8", "texture": "#c8321e", "neither": "#d9d9d9"}


def pairs(shown: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> Figure:
    """Originals above mean-pooled images, a column a class (Figure 4)."""
    figure, axes = plt.subplots(2, len(shown), figsize=(max(3.4, 0.87 * len(shown)), 2.0), squeeze=False)
    for column, (name, *images) in zip(axes.T, shown, strict=True):
        for ax, image in zip(column, images, strict=True):
            _image(ax, image)
        column[0].set_title(name, fontsize=7.5, fontweight="normal")
    for ax, label in zip(axes[:, 0], ("original", "mean-pooled"), strict=True):
        ax.set_ylabel(label)
    return figure


def dots(table: pd.DataFrame, measures: Mapping[str, str], names: Mapping[str, str]) -> Figure:
    """A panel a measure, a row a network: one dot a seed, mean and 95% interval (from three seeds on).

    table: columns network, seed and the measures; measures: column -> title; names: network -> label, top to bottom.
    """
    rows = [name for name in names if name in set(table["network"])]
    size = (2.1 + 1.65 * len(measures), 0.55 + 0.24 * len(rows))
    figure, axes = plt.subplots(1, len(measures), figsize=size, sharey=True, squeeze=False)
    for ax, (measure, title) in zip(axes.flat, measures.items(), strict=True):
        for place, name in enumerate(rows):
            values = table[table["network"] == name][measure].dropna()
            color = COLORS.get(name, "#444444")
            ax.plot(values, np.full(len(values), place), "o", ms=3, color=color, alpha=0.45, mew=0)
            mean, low, high = interval(values)
            if len(values) >= FEWEST:
                ax.plot(np.clip([low, high], 0, 1), [place, place], color=color, lw=1.6)
            ax.plot(mean, place, "o", ms=5, color=color, mec="white", mew=0.6)
        ax.set(title=title, xlim=(-0.02, 1.02), xticks=(0, 0.5, 1))
        ax.set_xticklabels(["0", ".5", "1"])
        ax.grid(axis="x", color="0.9", lw=0.6)
        ax.set_axisbelow(True)
    axes[0, 0].set_yticks(range(len(rows)), [names[name] for name in rows])
    axes[0, 0].invert_yaxis()
    return figure


def dynamics(history: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Validation accuracy while training, on original (left) and pooled images (right), a row a model (Figure 5).

    Thin: seeds; thick: their mean.
    """
    models = list(dict.fromkeys(history["model"]))
    size = (5.6, 2.1 * len(models) + 0.4)
    figure, axes = plt.subplots(len(models), 2, figsize=size, squeeze=False, sharey=True, sharex="row")
    columns = {"validation_accuracy": "original images", "pooled_accuracy": "mean-pooled images"}
    for row, model in zip(axes, models, strict=True):
        for ax, (column, title) in zip(row, columns.items(), strict=True):
            own = history[history["model"] == model]
            shown = {name: (COLORS[name], label) for name, label in names.items() if name in set(own["network"])}
            _curves(ax, own, "network", column, shown)
            ax.set(title=f"{model}: {title}", xlabel="epoch", ylim=(0, 1.03))
        row[0].set_ylabel("validation accuracy")
    return _legend(figure, axes)


def discovery(history: pd.DataFrame) -> Figure:
    """Accuracy of thresholded masks on pooled images by epoch, in trained and untrained networks (Figure 11)."""
    models = list(dict.fromkeys(history["model"]))
    figure, axes = plt.subplots(1, len(models), figsize=(max(3.4, 2.9 * len(models)), 2.6), squeeze=False, sharey=True)
    looks = {"trained": (COLORS["subnetwork"], "mask in the base network"),
             "random": (COLORS["scratch"], "mask in an untrained network")}  # fmt: skip
    for ax, model in zip(axes.flat, models, strict=True):
        own = history[history["model"] == model]
        _curves(ax, own, "condition", "validation_accuracy", looks)
        whole = own.groupby("seed")["base"].first().mean()
        ax.axhline(whole, color=COLORS["base"], ls="--", lw=1, label="whole base network")
        ax.set(title=model, xlabel="epoch", ylim=(0, 1.03))
    axes[0, 0].set_ylabel("accuracy, pooled images")
    return _legend(figure, axes)


def by_class(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Bars of the mean accuracy on pooled images, class by class, a row a model; lines: the range over seeds."""
    models, classes = (list(dict.fromkeys(table[column])) for column in ("model", "class"))
    names = {name: label for name, label in names.items() if name in set(table["network"])}
    size = (max(4.6, 0.62 * len(classes) + 1), 1.9 * len(models) + 0.5)
    figure, axes = plt.subplots(len(models), 1, figsize=size, squeeze=False, sharex=True)
    places, width = np.arange(len(classes)), 0.8 / len(names)
    for ax, model in zip(axes.flat, models, strict=True):
        for i, (network, label) in enumerate(names.items()):
            own = table[(table["model"] == model) & (table["network"] == network)]
            found = own.groupby("class", sort=False)["accuracy"].agg(["mean", "min", "max"]).reindex(classes)
            x = places + (i - (len(names) - 1) / 2) * width
            ax.bar(x, found["mean"], width * 0.94, color=COLORS[network], label=label)
            ax.vlines(x, found["min"], found["max"], color="#111111", lw=0.7)
        ax.set(title=model, ylabel="accuracy", ylim=(0, 1.03))
        ax.set_xticks(places, classes, rotation=45 if len(classes) > 10 else 0)
    return _legend(figure, axes)


def ballots(shown: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Figure:
    """Cue-conflict images, and below each the cue that every network's answer goes by."""
    rows = [name for name in names if name in shown[0]["votes"]]
    size = (1.9 + 0.72 * len(shown), 1.35 + 0.17 * len(rows))
    figure, axes = plt.subplots(
        2, len(shown), figsize=size, squeeze=False, height_ratios=(1, 0.2 * len(rows)), layout="constrained"
    )
    for column, one in zip(axes.T, shown, strict=True):
        _image(column[0], one["image"])
        column[0].set_title(f"{one['shape']},\n{one['texture']}", fontsize=6.5, fontweight="normal")
        column[1].imshow([[to_rgb(CUES[one["votes"][name]])] for name in rows], aspect="auto")
        column[1].set(xticks=[], yticks=[])
        column[1].set_yticks(np.arange(0.5, len(rows)), minor=True)
        column[1].grid(which="minor", color="white", lw=1.2)
        column[1].tick_params(which="minor", length=0)
        column[1].spines[:].set_visible(False)
    axes[1, 0].set_yticks(range(len(rows)), [names[name] for name in rows])
    axes[1, 0].tick_params(axis="y", length=0)
    handles = [
        Patch(color=color, label=f"answers by {cue}" if cue != "neither" else cue) for cue, color in CUES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _curves(ax: Axes, table: pd.DataFrame, by: str, column: str, looks: Mapping[str, tuple[str, str]]) -> None:
    for name, (color, label) in looks.items():
        own = table[table[by] == name]
        for _, run in own.groupby("seed"):
            ax.plot(run["epoch"] + 1, run[column], color=color, lw=0.6, alpha=0.4)
        mean = own.groupby("epoch")[column].mean()
        ax.plot(mean.index + 1, mean, color=color, lw=1.7, label=label)
    ax.xaxis.set_major_locator(plt.MaxNLocator("auto", integer=True))


def _image(ax: Axes, image: np.ndarray) -> None:
    ax.imshow(image)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="#c4c4c4", lw=0.6)


def _legend(figure: Figure, axes: np.ndarray) -> Figure:
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=max(1, min(len(labels), int(figure.get_figwidth() / 1.9)))
    )
    return figure
