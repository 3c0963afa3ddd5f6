"""How networks learn and how subnetworks are found: learning curves, mask search, annealing, and times of steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from subnet_utils.tasks.odd_one_out import CHANCE
from subnet_utils.plots import layout
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS
from subnet_utils.statistics import LEARNED

MINIMUM_LOSS = float(np.log1p(3 * np.exp(-4)))
"""Smallest cross-entropy of four cosine-similarity logits: .0535 nats (section 5)."""
TRAINING = {"ls": (0, (3, 1.5)), "lw": 0.9}
LEVELS = CHANCE_LINE | {"label": "smallest loss possible; chance and 90%"}
HATCHED = {"fc": "#e4e4e4", "ec": "#a8a8a8", "hatch": "////", "lw": 0}
SELECTED = {"fill": False, "ec": BLACK, "lw": 2}
FRAMES = {
    "_failed": ("own task below 90%, or no score", HATCHED),
    "_selected": ("selected", SELECTED),
    "_broken": ("selected, though none reaches 90%", SELECTED | {"ls": (0, (2, 1))}),
}
"""Labels of what is drawn around scores, what the legend says of each, and its look."""


def learning_curves(axes: Sequence[Axes], history: pd.DataFrame, palette: Mapping[str, Any]) -> Sequence[Axes]:
    """Loss in nats (first axes: training dashed, validation solid) and validation accuracy (second) of each `run`, in
    the color that the palette gives it. Dotted: the smallest loss possible, and chance and 90% accuracy."""
    losses, accuracies = axes
    history = history.assign(epoch=history["epoch"] + 1)
    look = {"hue": "run", "palette": palette, "estimator": None, "legend": False}
    look |= {"marker": "o"} if history["epoch"].nunique() == 1 else {}
    sns.lineplot(history, x="epoch", y="train_loss", ax=losses, alpha=0.8, **TRAINING, **look)
    sns.lineplot(history, x="epoch", y="validation_loss", ax=losses, **look)
    sns.lineplot(history, x="epoch", y="validation_accuracy", ax=accuracies, **look)
    for ax, level in ((losses, MINIMUM_LOSS), (accuracies, CHANCE), (accuracies, LEARNED)):
        ax.axhline(level, zorder=0, **CHANCE_LINE)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    losses.set(ylabel="loss (nats)", yscale="log")
    losses.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    losses.yaxis.set_major_formatter("{x:g}")
    losses.yaxis.set_minor_formatter("")
    accuracies.set(ylabel="validation accuracy", ylim=(0.15, 1.03))
    return axes


def search_heatmap(ax: Axes, search: pd.DataFrame) -> Axes:
    """The mask search of one base model and subroutine (appendix C): a score per setting, the winner framed.

    search: one row per setting with columns `start`, `mask_init`, `learning_rate`, `score`, `own_task_accuracy`.
    Where all subnetworks are below 90% on their own task, the frame is broken. Ties go to the first row, as in the
    search. Raises ValueError if a setting occurs twice: then it is more than one search.
    """
    setting = search["learning_rate"].map("{:g}, ".format) + search["mask_init"].map("{:g}".format)
    table = search.assign(
        row=setting.str.replace("-", "\N{MINUS SIGN}"),
        column=search["start"].map(_readable),
        shown=search["score"].where(search["own_task_accuracy"] >= LEARNED),
    )
    shown = table.pivot(index="row", columns="column", values="shown")
    shown = shown.reindex(index=table["row"].unique(), columns=table["column"].unique())
    numbers = shown.map(lambda score: f"{score:.2f}".replace("-", "\N{MINUS SIGN}"))
    sns.heatmap(shown, ax=ax, vmin=CHANCE - 1, vmax=1 - CHANCE, cmap="RdBu", annot=numbers, fmt="", cbar=False,
                linewidths=1, annot_kws={"size": 7.5})  # fmt: skip
    if shown.isna().any(axis=None):
        ax.patch.set(label="_failed", **HATCHED)
    best = table.loc[table["score"].fillna(-1).idxmax()]
    place = (shown.columns.get_loc(best["column"]), shown.index.get_loc(best["row"]))
    label = "_broken" if (table["own_task_accuracy"] < LEARNED).all() else "_selected"
    ax.add_patch(Rectangle(place, 1, 1, zorder=3, clip_on=False, label=label, **FRAMES[label][1]))
    ax.set(xlabel="masking starts at", ylabel="learning rate,\ninitial value")
    ax.tick_params(length=0, labelrotation=0)
    return ax


def annealing(axes: Sequence[Axes], trace: pd.DataFrame, histograms: pd.DataFrame) -> Sequence[Axes]:
    """One mask hardening: temperature and density over epochs (left), its soft values at five epochs (right).

    axes: two; trace: one row an epoch (from 0) with `epoch`, `density`, the share of weights that the hard mask keeps,
    and `beta` where the method has one; histograms: one row an epoch with `epoch` and `bin_00`, `bin_01`, ..., the
    shares of soft values in equal bins of [0, 1]. A ranking has none, so the right axes are left out.
    """
    left, right = axes
    twin, epochs = left.twinx(), trace["epoch"] + 1
    lines = [(twin, 100 * trace["density"], CONDITIONS["random"].color, "weights kept (%)", "-")]
    if "beta" in trace:
        beta = "inverse temperature $\\beta$"
        lines.insert(0, (left, trace["beta"], CONDITIONS["mean"].color, beta, (0, (4, 1.5))))
    left.yaxis.set_visible("beta" in trace)
    for ax, values, color, name, line in lines:
        ax.plot(epochs, values, color=color, ls=line, marker="o" if len(epochs) == 1 else None)
        ax.set_ylabel(name, color=color)
        ax.tick_params(axis="y", colors=color, which="both")
    left.set(xlabel="epoch", yscale="log")
    left.yaxis.set_major_formatter("{x:g}")
    twin.set_ylim(0, None)
    twin.spines["right"].set_visible(True)
    shares = histograms.set_index("epoch").filter(regex=r"^bin_\d+$")
    if shares.empty:
        right.remove()
        return axes
    shares = shares.iloc[np.unique(np.linspace(0, len(shares) - 1, 5).round().astype(int))]
    edges = np.linspace(0, 1, shares.shape[1] + 1)
    for (epoch, values), color in zip(shares.iterrows(), sns.color_palette("viridis_r", len(shares)), strict=True):
        drawable = values.clip(lower=1e-12)  # a logarithmic axis has no zero
        right.stairs(drawable, edges, color=color, lw=1.3, label=str(epoch + 1), baseline=None)
    smallest = shares.where(shares > 0).min(axis=None)
    right.set(xlabel="soft mask $\\sigma(\\beta s)$" if "beta" in trace else "soft mask", ylabel="share of weights", yscale="log", ylim=(smallest / 2, 2))
    layout.legend(right, columns=1, title="epoch", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def step_times(ax: Axes, times: pd.DataFrame) -> Axes:
    """Milliseconds of a step in one model: a bar for each precision, grouped by what is trained, which is all weights
    or masks from a stage on."""
    names = times["trained"].map(lambda name: name if " " in name else f"masks from {_readable(name)} on")
    palette = [CONDITIONS[name].color for name in ("below", "ours", "paper")][: times["precision"].nunique()]
    sns.barplot(times.assign(trained=names), x="ms", y="trained", hue="precision", palette=palette, ax=ax, width=0.7)
    ax.get_legend().remove()
    for container in ax.containers:
        ax.bar_label(container, fmt="%.0f", padding=2, fontsize=7)
    ax.set(xlabel="ms a step, median", ylabel="")
    ax.margins(x=0.14)
    ax.tick_params(axis="y", length=0)
    return ax


def _readable(stage: Any) -> str:
    return str(stage).replace("_", " ")
