"""Figures of subtask induction with images: what is seen, what is answered, and by which cue.

chance, in all functions: one out of the number of classes, which is dotted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from subnet_utils.papers.subtask_induction.arithmetic_figures import BLACK, DOTTED, FEWEST, LINES, Line, legend_below
from subnet_utils.plots.layout import grid
from subnet_utils.report.findings import SHARE, interval

NETWORKS = {
    "base": Line(BLACK, "-", "base network"),
    "mask": Line("#12305c", "-", "subnetwork alone"),
    "subnetwork": LINES["subnetwork"],
    "random": LINES["random"],
    "embed_only": LINES["embed_only"]._replace(label="classifier, norms and biases only"),
    "strict": LINES["strict"],
    "scratch": LINES["scratch"],
    "mixture": Line("#7a4a14", "-", "pretrained, with pooled images"),
    "linear": Line("#cbb06a", "-", "pretrained, new classifier"),
}
"""How the networks look and what they are called, top to bottom. There are no embeddings here, but a classifier."""
UNTRAINED = "#9b72c4"
SHARES = {"robustness": "share of answers\nnot by texture", "shape_bias": "share by shape, of\nanswers by either cue",
          "shape_accuracy": "accuracy by shape"}  # fmt: skip
"""What a measure counts, if not just the accuracy."""
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


def dots(table: pd.DataFrame, measures: Mapping[str, str], *, chance: float) -> Figure:
    """A panel a measure, a row a network: mean and 95% interval (from three seeds on), cut off at 0, 1, and below them
    one dot a seed.

    table: of one model, columns model, network, seed and the measures; measures: column -> title.
    """
    rows = _networks(table)
    size = (2.1 + 1.65 * len(measures), 1.3 + 0.24 * len(rows))
    figure, axes = plt.subplots(1, len(measures), figsize=size, sharey=True, squeeze=False)
    for ax, (measure, title) in zip(axes.flat, measures.items(), strict=True):
        for place, (name, line) in enumerate(rows.items()):
            values = table[table["network"] == name][measure].dropna()
            # below the interval, which would hide the seeds
            ax.plot(values, np.full(len(values), place + 0.3), "o", ms=3, color=line.color, alpha=0.6, mew=0)
            mean, *ends, _ = interval(values, range(len(values)), within=SHARE).values()
            if len(values) >= FEWEST:
                ax.plot(ends, [place, place], color=line.color, lw=1.2)
            ax.plot(mean, place, "o", ms=5, color=line.color, mec="white", mew=0.6)
        if measure not in ("robustness", "shape_bias"):  # for which guessing gives no constant
            ax.axvline(chance, **DOTTED)
        ax.set(title=title, xlabel=SHARES.get(measure, "accuracy"), xlim=(-0.02, 1.02))
        ax.set_xticks((0, 0.5, 1), ("0", ".5", "1"))
        ax.grid(axis="x", color="0.9", lw=0.6)
        ax.set_axisbelow(True)
    axes[0, 0].set_yticks(range(len(rows)), [line.label for line in rows.values()])
    axes[0, 0].invert_yaxis()
    figure.suptitle(table["model"].iloc[0], fontsize=8.5, fontweight="bold")
    return legend_below(figure)


def dynamics(history: pd.DataFrame, *, chance: float) -> Figure:
    """Validation accuracy while training, on original (left) and pooled images (right), a row a model (Figure 5).

    Thin: seeds; thick: their mean. history: columns model, seed, network, epoch (from 0), validation_accuracy and
    pooled_accuracy.
    """
    columns = {"validation_accuracy": "original images", "pooled_accuracy": "mean-pooled images"}
    shown = [(*one, *column) for one in history.groupby("model", sort=False) for column in columns.items()]
    figure, axes = grid(len(shown), width=2.8, height=2.1, across=2, margin=0.4, sharey=True, sharex="row")
    for ax, (model, own, column, title) in zip(axes, shown, strict=True):
        _curves(ax, own, "network", column, _networks(own))
        ax.axhline(chance, **DOTTED)
        ax.set(title=f"{model}: {title}", ylabel="validation accuracy")
    return legend_below(figure)


def discovery(history: pd.DataFrame, *, chance: float) -> Figure:
    """Accuracy of thresholded masks on pooled images by epoch, in trained and untrained networks (Figure 11).

    history: columns model, seed, condition ("trained" or "random"), epoch (from 0), validation_accuracy, and base, that
    of the whole network.
    """
    models = list(history.groupby("model", sort=False))
    figure, axes = grid(len(models), width=2.9, height=2.1, sharey=True)
    looks = {"trained": NETWORKS["mask"]._replace(label="mask in the base network"),
             "random": Line(UNTRAINED, "-", "mask in an untrained network")}  # fmt: skip
    for ax, (model, own) in zip(axes, models, strict=True):
        _curves(ax, own, "condition", "validation_accuracy", looks)
        whole = own.groupby("seed")["base"].first().mean()
        ax.axhline(whole, color=NETWORKS["base"].color, ls="--", lw=1, label="whole base network")
        ax.axhline(chance, **DOTTED)
        ax.set(title=model, ylabel="accuracy, pooled images")
    return legend_below(figure)


def by_class(table: pd.DataFrame) -> Figure:
    """Mean accuracy on pooled images, class by class, a row a model; lines: the range over seeds.

    table: columns model, seed, network, class and accuracy.
    """
    models, classes, networks = list(table.groupby("model", sort=False)), table["class"].unique(), _networks(table)
    figure, axes = grid(len(models), width=0.62 * len(classes) + 1, height=1.9, across=1)
    positions = np.arange(len(classes))
    for ax, (model, rows) in zip(axes, models, strict=True):
        for i, (network, line) in enumerate(networks.items()):
            own = rows[rows["network"] == network].groupby("class", sort=False)["accuracy"]
            found = own.agg(["mean", "min", "max"]).reindex(classes)
            x = positions + (i - (len(networks) - 1) / 2) * 0.5 / len(networks)
            ax.vlines(x, found["min"], found["max"], color=line.color, lw=1.2)
            ax.plot(x, found["mean"], "o", ms=5, color=line.color, mec="white", mew=0.6, label=line.label)
        ax.axhline(1 / len(classes), **DOTTED)
        ax.set(title=model, ylabel="accuracy, pooled images", ylim=(-0.03, 1.03))
        ax.set_xticks(positions, classes, rotation=45 if len(classes) > 10 else 0)
    return legend_below(figure)


def answers(shown: Sequence[Mapping[str, Any]], table: pd.DataFrame, *, seed: int) -> Figure:
    """Cue-conflict images, and below each the cue that every network's answer goes by.

    shown: from `images_tables.answers`, of that seed; table: as in `dots`, of the same model. At the right stands the
    mean accuracy by shape over seeds, since one seed's answers to a few images may be unlike those of the others.
    """
    rows = [name for name in NETWORKS if name in shown[0]["cues"]]
    options = {"height_ratios": (1, 0.2 * len(rows)), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(2, len(shown), figsize=(2.5 + 0.72 * len(shown), 1.6 + 0.17 * len(rows)), **options)
    for (above, below), one in zip(axes.T, shown, strict=True):
        _image(above, one["image"])
        above.set_title(f"{one['shape']},\n{one['texture']}", fontsize=6.5, fontweight="normal")
        _cues(below, [one["cues"][name] for name in rows])
    axes[1, 0].set_yticks(range(len(rows)), [NETWORKS[name].label for name in rows])
    axes[1, 0].tick_params(axis="y", length=0)
    means = table.groupby("network")["shape_accuracy"].mean()
    right = axes[1, -1].secondary_yaxis("right")
    right.set_yticks(range(len(rows)), [f"{means[name]:.2f}" for name in rows])
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    right.set_ylabel("accuracy by shape,\nmean of all seeds", fontsize=7)
    figure.suptitle(f"{table['model'].iloc[0]}, seed {seed}", fontsize=8.5, fontweight="bold")
    labels = {cue: cue if cue == "neither" else f"answers by {cue}" for cue in CUES}
    handles = [Patch(color=color, label=labels[cue]) for cue, color in CUES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _networks(table: pd.DataFrame) -> dict[str, Line]:
    """How the networks of a table look."""
    return {name: line for name, line in NETWORKS.items() if name in set(table["network"])}


def _cues(ax: Axes, cues: Sequence[str]) -> None:
    ax.imshow([[to_rgb(CUES[cue])] for cue in cues], aspect="auto")
    ax.set(xticks=[], yticks=[])
    ax.hlines(np.arange(0.5, len(cues) - 1), *ax.get_xlim(), color="white", lw=1.2)
    ax.spines[:].set_visible(False)


def _curves(ax: Axes, table: pd.DataFrame, by: str, column: str, looks: Mapping[str, Line]) -> None:
    """Accuracies by epoch. Thin: seeds; thick: their mean."""
    for name, (color, _, label) in looks.items():
        wide = table[table[by] == name].pivot(index="epoch", columns="seed", values=column)
        ax.plot(wide.index + 1, wide, color=color, lw=0.6, alpha=0.4)
        ax.plot(wide.index + 1, wide.mean(axis=1), color=color, lw=1.7, label=label)
    ax.xaxis.set_major_locator(plt.MaxNLocator("auto", integer=True))
    ax.set(xlabel="epoch", ylim=(0, 1.03))


def _image(ax: Axes, image: np.ndarray) -> None:
    ax.imshow(image)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="#c4c4c4", lw=0.6)
