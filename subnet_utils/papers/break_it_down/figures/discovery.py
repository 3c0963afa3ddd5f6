"""How networks learn and how subnetworks are found: learning curves, mask search, annealing, and times of steps.

Functions draw into the Axes that they are given and return it.
"""

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from subnet_utils.papers.break_it_down.tasks.odd_one_out import CHANCE
from subnet_utils.plots import layout
from subnet_utils.plots.marks import drawn
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS
from subnet_utils.statistics import LEARNED

MINIMUM_LOSS = float(np.log1p(3 * np.exp(-4)))
"""Smallest cross-entropy of four cosine-similarity logits: .0535 nats (section 5)."""
DASHES = (0, (3, 1.5))
LEVELS = CHANCE_LINE | {"label": "smallest loss possible; chance and 90%"}
RUN_COLORS = [sns.color_palette("colorblind")[i] for i in (0, 1, 2, 3, 4, 5, 6, 9)]
"""Of the runs of a panel, in their order: the same in panels of few and of many. Without gray, and a pale yellow."""
HATCHED = {"fc": "#e4e4e4", "ec": "#a8a8a8", "hatch": "////", "lw": 0}
SELECTED = {"fill": False, "ec": BLACK, "lw": 2}
BROKEN = SELECTED | {"ls": (0, (2, 1))}
FRAMES = {
    "_failed": ("own task below 90%", HATCHED),
    "_selected": ("selected", SELECTED),
    "_broken": ("selected, though none reaches 90%", BROKEN),
}
"""Labels of what is drawn around scores, what the legend says of each, and its look."""
SCORES = Normalize(CHANCE - 1, 1 - CHANCE)
SCORE_COLORS = plt.get_cmap("RdBu")
"""Colors of search scores: from where ablation helps the target as much as it can to where it spares all else."""


def learning_curves(axes: Sequence[Axes], history: pd.DataFrame) -> Sequence[Axes]:
    """Loss (first axes: training dashed, validation solid) and validation accuracy (second) of each run.

    axes: two; history: one row per run and epoch with columns `run`, `epoch` (from 0), `train_loss`,
    `validation_loss` (nats), `validation_accuracy`. Dotted: the smallest loss possible, and chance and 90% accuracy.
    A single epoch is a point.
    """
    losses, accuracies = axes
    names = list(dict.fromkeys(history["run"]))
    colors = RUN_COLORS[: len(names)] if len(names) <= len(RUN_COLORS) else sns.color_palette("husl", len(names))
    for name, color in zip(names, colors, strict=True):
        curve = history[history["run"] == name].sort_values("epoch")
        epochs, look = curve["epoch"] + 1, {"color": color, "marker": "o" if len(curve) == 1 else None, "ms": 4}
        losses.plot(epochs, curve["train_loss"], ls=DASHES, lw=0.9, alpha=0.8, mfc="white", **look)
        losses.plot(epochs, curve["validation_loss"], **look)
        accuracies.plot(epochs, curve["validation_accuracy"], label=str(name), **look)
    for ax, level in ((losses, MINIMUM_LOSS), (accuracies, CHANCE), (accuracies, LEARNED)):
        ax.axhline(level, zorder=0, **LEVELS | {"label": "_level"})
    losses.set(xlabel="epoch", ylabel="loss (nats)", yscale="log")
    losses.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    losses.yaxis.set_major_formatter("{x:g}")
    losses.yaxis.set_minor_formatter("")
    accuracies.set(xlabel="epoch", ylabel="validation accuracy", ylim=(0.15, 1.03))
    _name_runs(accuracies)
    for ax in axes:
        ax.set_xlim(*np.clip(ax.get_xlim(), (-np.inf, 1.5), (0.5, np.inf)))  # a single epoch has room, too
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return axes


def _name_runs(ax: Axes) -> None:
    """A legend in the panel's lower right; of many runs with what their names have in common once, above the rest."""
    handles, names = ax.get_legend_handles_labels()
    common = commonprefix(names) if len(names) > 6 else ""
    ax.legend(handles, [name.removeprefix(common) for name in names], title=common.strip() or None,
              ncols=1 if len(names) <= 3 else 2 if len(names) <= 6 else 4, loc="lower right",
              bbox_to_anchor=(1.0, 0.12), handlelength=1.2, labelspacing=0.2, columnspacing=1.0)  # fmt: skip


def learning_keys() -> list[Line2D]:
    """What the legend of `learning_curves` says of line styles."""
    looks = ({"color": "0.3", "label": "validation"}, {"color": "0.3", "ls": DASHES, "lw": 0.9, "label": "training"})
    return [Line2D([], [], **look) for look in (*looks, LEVELS)]


def search_heatmap(ax: Axes, search: pd.DataFrame) -> Axes:
    """The mask search of one base model and subroutine (appendix C): a score per setting, the winner framed.

    search: one row per setting with columns `start`, `mask_init`, `learning_rate`, `score`, `own_task_accuracy`.
    Settings whose subnetwork is below 90% on its own task are gray and hatched; where all are, the frame is broken.
    Ties go to the first row, as in the search. Raises ValueError if a setting occurs twice: then it is more than one
    search.
    """
    if search.duplicated(["learning_rate", "mask_init", "start"]).any():
        raise ValueError("search has several rows for one setting; select one base model, subroutine and seed")
    settings = [_setting(*pair) for pair in zip(search["learning_rate"], search["mask_init"], strict=True)]
    points = search.assign(row=settings, column=search["start"].map(_readable))
    rows, columns = list(points["row"].unique()), list(points["column"].unique())
    for point in points.itertuples():
        _setting_cell(ax, columns.index(point.column), rows.index(point.row), point)
    winner = points.loc[points["score"].fillna(-1).idxmax()]
    place = (columns.index(winner["column"]), rows.index(winner["row"]))
    label = "_broken" if (points["own_task_accuracy"] < LEARNED).all() else "_selected"
    ax.add_patch(Rectangle(place, 1, 1, zorder=3, clip_on=False, label=label, **FRAMES[label][1]))
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set(xlabel="masking starts at", ylabel="learning rate,\ninitial value")
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _setting_cell(ax: Axes, x: int, y: int, point: Any) -> None:
    """One setting: its score in its color, or hatched; blank without one, because training diverged or was stopped."""
    if point.own_task_accuracy < LEARNED:
        ax.add_patch(Rectangle((x + 0.02, y + 0.02), 0.96, 0.96, label="_failed", **HATCHED))
    elif not np.isnan(point.score):
        ax.add_patch(Rectangle((x, y), 1, 1, fc=SCORE_COLORS(SCORES(point.score)), ec="white", lw=1))
        color = "white" if abs(point.score) > SCORES.vmax / 2 else "0.15"
        number = f"{point.score:.2f}".replace("-", "\N{MINUS SIGN}")
        ax.text(x + 0.5, y + 0.5, number, ha="center", va="center", color=color, size=7.5)


def search_legend(figure: Figure, axes: Sequence[Axes]) -> Figure:
    """The legend of `search_heatmap`, of what the panels show, and its color bar, once for all of them."""
    shown = [Patch(label=label, **look) for name, (label, look) in FRAMES.items() if drawn(axes, name)]
    layout.legend(figure, shown)
    figure.colorbar(
        ScalarMappable(SCORES, SCORE_COLORS), ax=list(axes), label="score", aspect=30, fraction=0.02, pad=0.01
    )
    return figure


def _setting(learning_rate: float, mask_init: float) -> str:
    return f"{learning_rate:g}, {mask_init:g}".replace(" -", " \N{MINUS SIGN}")


def annealing(axes: Sequence[Axes], trace: pd.DataFrame, histograms: pd.DataFrame) -> Sequence[Axes]:
    """One mask hardening: temperature and density over epochs (left), its soft values at five epochs (right).

    axes: two; trace: one row an epoch (from 0) with `epoch`, `beta` and `density`, the share of weights that the hard
    mask keeps; histograms: one row an epoch with `epoch` and `bin_00`, `bin_01`, ..., the shares of sigma(beta s) in
    equal bins of [0, 1].
    """
    left, right = axes
    _beta_and_density(left, trace)
    shares = histograms.set_index("epoch").filter(regex=r"^bin_\d+$")
    shares = shares.iloc[np.unique(np.linspace(0, len(shares) - 1, 5).round().astype(int))]
    edges = np.linspace(0, 1, shares.shape[1] + 1)
    for (epoch, values), color in zip(shares.iterrows(), sns.color_palette("viridis_r", len(shares)), strict=True):
        drawable = values.clip(lower=1e-12)  # a logarithmic axis has no zero
        right.stairs(drawable, edges, color=color, lw=1.3, label=str(epoch + 1), baseline=None)
    smallest = shares.where(shares > 0).min(axis=None)
    right.set(xlabel="soft mask $\\sigma(\\beta s)$", ylabel="share of weights", yscale="log", ylim=(smallest / 2, 2))
    layout.legend(right, columns=1, title="epoch", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def _beta_and_density(ax: Axes, trace: pd.DataFrame) -> None:
    """beta on a logarithmic axis at the left, density on its own axis at the right, each axis in its curve's color."""
    beta, density = CONDITIONS["mean"].color, CONDITIONS["random"].color
    twin = ax.twinx()
    ax.plot(trace["epoch"] + 1, trace["beta"], color=beta, ls=(0, (4, 1.5)))
    twin.plot(trace["epoch"] + 1, 100 * trace["density"], color=density)
    ax.set(xlabel="epoch", yscale="log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_ylabel("inverse temperature $\\beta$", color=beta)
    twin.set_ylabel("weights kept (%)", color=density)
    twin.set_ylim(0, None)
    twin.spines["right"].set_visible(True)
    ax.tick_params(axis="y", colors=beta, which="both")
    twin.tick_params(axis="y", colors=density)


def step_times(ax: Axes, times: pd.DataFrame) -> Axes:
    """Milliseconds of a step in one model: a bar for each precision, grouped by what is trained, which is all weights
    or masks from a stage on."""
    precisions = list(times["precision"].unique())
    looks = (CONDITIONS[name].color for name in ("below", "ours", "paper"))
    colors = dict(zip(precisions, looks, strict=False))
    sns.barplot(times, x="ms", y="trained", hue="precision", palette=colors, ax=ax, legend=False, width=0.7)
    for container, precision in zip(ax.containers, precisions, strict=True):
        container.set_label(precision)
        ax.bar_label(container, fmt="%.0f", padding=2, fontsize=7)
    labels = [label.get_text() for label in ax.get_yticklabels()]  # a stage is one word, all weights are several
    ax.set_yticks(ax.get_yticks(), [name if " " in name else f"masks from {_readable(name)} on" for name in labels])
    ax.set(xlabel="ms a step, median", ylabel="")
    ax.margins(x=0.14)
    ax.tick_params(axis="y", length=0)
    return ax


def _readable(stage: Any) -> str:
    return str(stage).replace("_", " ")
