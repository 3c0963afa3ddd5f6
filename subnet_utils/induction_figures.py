"""Figures of subtask induction: test accuracy against the number of disambiguating rows, one line a condition.

Functions draw into the Axes that they are given, or make a whole figure of panels; one map gives every condition its
color, line and label.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from subnet_utils.masks.conditions import VARIANTS


class Line(NamedTuple):
    """How a condition looks in every figure."""

    color: str
    style: str
    label: str


LINES = {
    "subnetwork": Line("#0069a8", "-", "subtask induction"),
    "full": Line("#111111", "-", "whole network inherited"),
    "random": Line("#c8321e", "-", "random subnetwork"),
    "random_complement": Line("#c8321e", ":", "random, in the complement"),
    "random_as_released": Line("#d98c00", "-", "random, as released"),
    "embed_only": Line("#3a8f4d", "-", "embeddings, norms, biases only"),
    "scratch": Line("#8c8c8c", "-", "from scratch"),
    "strict": Line("#0069a8", "--", "subnetwork alone (strict)"),
    "strict_random": Line("#c8321e", "--", "random alone (strict)"),
    "subnetwork_unfrozen": Line("#0069a8", "-.", "subtask induction, not frozen"),
    "random_unfrozen": Line("#c8321e", "-.", "random subnetwork, not frozen"),
}
MAIN = ("subnetwork", "full", "random", "scratch")
"""The conditions of Figure 3."""
FURTHER = ("subnetwork", "full", "random", "embed_only", "scratch")
"""Those of Figures 8 to 10."""
FEWEST = 3
"""Seeds from which on an interval is drawn: that of two is wider than the panel."""
LABELS = {"text": "random as in the text", "as_released": "random as released", "strict": "subnetwork alone",
          "embed_only": "embeddings as control"}  # fmt: skip


def accuracy_lines(ax: Axes, curves: pd.DataFrame, conditions: Sequence[str]) -> Axes:
    """Mean test accuracy with its interval over the number of rows, 0 at the left of a logarithmic axis.

    curves: columns condition, samples, mean, low, high, n_runs, and chance, the share of the most common answer, which
    is dotted; conditions that it lacks are left out.
    """
    numbers = sorted(curves["samples"].unique())
    places = {number: _place(number, numbers) for number in numbers}
    for name in conditions:
        rows = curves[curves["condition"] == name].sort_values("samples")
        if rows.empty:
            continue
        line, x = LINES[name], rows["samples"].map(places)
        ax.plot(x, rows["mean"], ls=line.style, color=line.color, label=line.label, marker="o", ms=2.6, lw=1.2)
        if (rows["n_runs"] >= FEWEST).all():
            ax.fill_between(x, rows["low"].clip(0, 1), rows["high"].clip(0, 1), color=line.color, alpha=0.13, lw=0)
    ax.axhline(curves["chance"].iloc[0], color="0.45", ls=":", lw=0.9, zorder=0)
    ax.xaxis.set_major_locator(FixedLocator(list(places.values())))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{number:g}" for number in numbers], rotation=45 if len(numbers) > 6 else 0)
    ax.set(xlabel="disambiguating rows", ylabel="test accuracy", ylim=(0, 1.03))
    return ax


def panels(frames: Sequence[tuple[str, pd.DataFrame]], conditions: Sequence[str] = MAIN, *, across: int = 3) -> Figure:
    """A panel for each (title, curves), with one legend below."""
    columns = min(len(frames), across)
    rows = math.ceil(len(frames) / columns)
    size = (max(4.6, 2.6 * columns), 2.3 * rows + 0.6)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
    for ax in axes.flat[len(frames) :]:
        ax.set_axis_off()
    for i, (ax, (title, curves)) in enumerate(zip(axes.flat, frames, strict=False)):
        accuracy_lines(ax, curves, conditions)
        ax.set_title(title)
        if i % columns:
            ax.set_ylabel("")
    return _legend(figure, axes)


def variants(curves: pd.DataFrame) -> Figure:
    """Each reading of the method and its control, side by side. curves: of one depth."""
    shown = [name for name, pair in VARIANTS.items() if set(pair) <= set(curves["condition"])]
    figure, axes = plt.subplots(1, len(shown), figsize=(max(4.6, 1.95 * len(shown)), 2.9), squeeze=False, sharey=True)
    for i, (ax, name) in enumerate(zip(axes.flat, shown, strict=True)):
        pair = VARIANTS[name]
        accuracy_lines(ax, curves, pair)
        upper, lower = (curves[curves["condition"] == one].sort_values("samples") for one in pair)
        places = [_place(number, sorted(curves["samples"].unique())) for number in upper["samples"]]
        ax.fill_between(places, lower["mean"].to_numpy(), upper["mean"].to_numpy(), color="0.9", zorder=0, lw=0)
        ax.set_title(LABELS[name])
        if i:
            ax.set_ylabel("")
    return _legend(figure, axes)


def ablations(ax: Axes, tests: pd.DataFrame) -> Axes:
    """Accuracy on T1 of the whole network, without the subtask's weights and without random ones. tests: one row a bar
    group, with columns label, whole_network, ablated, random_ablated, random_lowest.
    """
    bars = {"whole_network": ("#8c8c8c", "whole network"), "random_ablated": ("#c8321e", "without random weights"),
            "ablated": ("#0069a8", "without the subtask's weights")}  # fmt: skip
    places = np.arange(len(tests))
    for shift, (column, (color, label)) in zip((-0.26, 0.0, 0.26), bars.items(), strict=True):
        drawn = ax.bar(places + shift, tests[column], 0.24, color=color, label=label)
        ax.bar_label(drawn, fmt="%.2f", padding=1, fontsize=6.5)
    ax.plot(places, tests["random_lowest"], "v", color="#111111", ms=4, ls="none", label="lowest of the draws")
    ax.set_xticks(places, tests["label"])
    ax.set(ylabel="accuracy on T1", ylim=(0, 1.12))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return ax


def _place(number: float, numbers: Sequence[float]) -> float:
    """Where a number of rows stands: logarithmic, and 0 one step to the left of the smallest other one."""
    others = [value for value in numbers if value > 0]
    if number > 0:
        return math.log10(number)
    step = math.log10(others[1] / others[0]) if len(others) > 1 else 0.5
    return (math.log10(others[0]) if others else 0.0) - step


def _legend(figure: Figure, axes: np.ndarray) -> Figure:
    found = {}
    for ax in axes.flat:
        found.update(dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True)))
    columns = max(2, int(figure.get_figwidth() / 1.9))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)
    return figure
