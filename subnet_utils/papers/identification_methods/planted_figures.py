"""Figures of the benchmark with known truth, from `planted_tables.scores`. Bars are means, dots are networks."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from subnet_utils.papers.identification_methods.method_figures import color_of, named
from subnet_utils.plots.layout import grid, label_first_column, legend
from subnet_utils.plots.marks import key
from subnet_utils.plots.style import CHANCE_LINE, LEVEL


def leaderboard(table: pd.DataFrame, order: list[str]) -> Figure:
    """Average precision of every method: mean over planted designs, then a panel a design. Line: a random ranking."""
    means = table[table["planted"]].groupby(["design", "method"])[["average_precision", "base_rate"]].mean()
    table = pd.concat([means.reset_index("method").assign(design="mean of those planted"), table])
    designs = list(dict.fromkeys(table["design"]))
    figure, axes = grid(len(designs), width=2.3, height=0.17 * len(order) + 0.5, across=3, margin=0.4, sharey=True)
    for ax, design in zip(axes, designs, strict=True):
        some = table[table["design"] == design]
        positions = some["method"].map(order.index)
        means = some.groupby("method")["average_precision"].mean().reindex(order)
        ax.barh(range(len(order)), means, 0.75, color=[color_of(method) for method in order])
        ax.plot(some["average_precision"], positions, "o", ms=2.6, mfc="white", mec="black", mew=0.5, ls="none")
        ax.axvline(some["base_rate"].mean(), **CHANCE_LINE)
        ax.set(xlim=(0, 1.02), xlabel="average precision", ylim=(len(order) - 0.4, -0.6))
        ax.set_yticks(range(len(order)), [named(method) for method in order])
        ax.set_title(named(design), loc="left")
    label_first_column(axes)
    return figure


def behavior(table: pd.DataFrame, methods: list[str]) -> Figure:
    """Precision of masks against what they do, each less its design's mean. methods: those that train masks."""
    labels = {"own": "own function, alone", "other_without": "other function, without it"}
    own = table[table["planted"] & table["method"].isin(methods)].set_index(["design", "method"])
    own = own[[*labels, "precision"]] - own.groupby("design")[[*labels, "precision"]].transform("mean")
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.4), sharex=True, sharey=True)
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        for method, some in own.groupby("method"):
            ax.plot(some[name], some["precision"], "o", ms=4, color=color_of(method), mec="white", mew=0.4)
        ax.set(xlabel=f"accuracy on {label} (design mean: 0)")
    axes[0].set_ylabel("precision (design mean: 0)")
    legend(figure, [key(named(method), color_of(method)) for method in methods])
    return figure


def overlaps(table: pd.DataFrame, methods: list[str]) -> Figure:
    """How much two found subnetworks overlap, against how much the planted ones do."""
    figure, ax = plt.subplots(figsize=(4.6, 2.6))
    for method in methods:
        some = table[table["method"].eq(method) & table["planted"]].groupby("true_overlap")["found_overlap"].mean()
        ax.plot(some.index, some, "o-", ms=4, color=color_of(method), label=named(method))
    end = np.nanmax([0, *table["true_overlap"]]) + 0.05
    ax.plot([0, end], [0, end], **LEVEL | {"label": "as planted"})
    ax.set(xlabel="overlap of the planted subnetworks (IoU)", ylabel="overlap of those found", xlim=(-0.01, end))
    legend(figure)
    return figure
