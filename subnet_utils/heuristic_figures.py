"""Figures of *The Heuristic Core*, from its published numbers."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = {"MNLI": "#111111", "QQP": "#111111", "SO-Swap": "#0069a8", "Prep": "#56a0d3", "Embed-If": "#c8321e",
          "Embed-Verb": "#e08a6d", "PAWS (adv.)": "#c8321e"}  # fmt: skip
"""Black in domain, blue lexical overlap, red constituent."""
DOMAINS = {"in domain": "#111111", "out of domain": "#c8321e", "mixed": "#7a5195"}


def dots(ax: Axes, table: pd.DataFrame) -> Axes:
    """A column of dots, one a pruned network, for every evaluation set; the line is the full network (Figure 2)."""
    names = list(dict.fromkeys(table["name"]))
    for place, name in enumerate(names):
        rows = table[table["name"] == name].sort_values("seed")
        shift = np.linspace(-0.2, 0.2, len(rows))
        ax.plot(place + shift, rows["accuracy"], "o", ms=3.2, mew=0, alpha=0.75, color=COLORS.get(name, "#0069a8"))
        ax.plot([place - 0.36, place + 0.36], [rows["full"].iloc[0]] * 2, color="#111111", lw=1.2)
    ax.set_xticks(range(len(names)), names)
    ax.set(xlim=(-0.6, len(names) - 0.4), ylim=(-0.03, 1.03))
    return ax


def every_subcase(table: pd.DataFrame) -> Figure:
    """All evaluation sets, one a row, a panel for each sparsity (Figure 12). Line: the full network."""
    names = list(dict.fromkeys(table["name"]))
    sparsities = list(dict.fromkeys(table["target_sparsity"]))
    figure, axes = plt.subplots(1, len(sparsities), figsize=(7.2, 0.6 + 0.17 * len(names)), sharey=True, squeeze=False)
    for ax, sparsity in zip(axes.flat, sparsities, strict=True):
        own = table[table["target_sparsity"] == sparsity]
        for place, name in enumerate(names):
            rows = own[own["name"] == name]
            ax.plot(rows["accuracy"], [place] * len(rows), "o", ms=3, mew=0, alpha=0.5, color="#0069a8")
            ax.plot([rows["full"].iloc[0]] * 2, [place - 0.36, place + 0.36], color="#111111", lw=1.2)
        ax.set(title=f"{sparsity:.0%} sparsity", xlabel="accuracy", xlim=(-0.02, 1.02))
    labels = [name.replace("_", " ").replace("lexical overlap", "LO").replace("subsequence", "SUB") for name in names]
    axes[0, 0].set_yticks(range(len(names)), [label.replace("constituent", "CON") for label in labels], fontsize=6.5)
    axes[0, 0].invert_yaxis()
    return figure


def bars(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracies of a few pruned networks, a group of bars each (Figure 3)."""
    seeds = list(dict.fromkeys(table["seed"]))
    names = [name for name in COLORS if name in set(table["name"])]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        rows = table[table["name"] == name].set_index("seed")["accuracy"].reindex(seeds)
        x = np.arange(len(seeds)) + (i - (len(names) - 1) / 2) * width
        ax.bar(x, rows, width * 0.92, color=COLORS[name], label=name)
    ax.set_xticks(range(len(seeds)), [f"seed {seed}" for seed in seeds])
    ax.set(ylabel="accuracy")
    ax.legend(ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1, handlelength=1.2)
    return ax


def over_sparsity(ax: Axes, table: pd.DataFrame) -> Axes:
    """Mean accuracy over sparsity with the range of the seeds (Figure 4)."""
    for name in [name for name in COLORS if name in set(table["name"])]:
        rows = table[table["name"] == name].sort_values("sparsity")
        ax.plot(rows["sparsity"] * 100, rows["mean"], "o-", ms=2.5, lw=1.2, color=COLORS[name], label=name)
        ax.fill_between(rows["sparsity"] * 100, rows["min"], rows["max"], color=COLORS[name], alpha=0.13, lw=0)
    ax.set(xlabel="sparsity (%)", ylabel="accuracy", ylim=(-0.03, 1.03))
    ax.legend(ncols=1)
    return ax


def training(axes: Sequence[Axes], sizes: pd.DataFrame) -> Sequence[Axes]:
    """Accuracy of the full network (first axes) and effective size (second) while fine-tuning (Figure 6).

    Dotted: the smallest size that the grid of sparsities can show.
    """
    for domain, color in DOMAINS.items():
        rows = sizes[sizes["domain"] == domain].sort_values("step")
        for ax, column in zip(axes, ("accuracy", "effective_size"), strict=True):
            ax.plot(rows["step"] / 1000, rows[column], "o-", ms=2.5, lw=1.2, color=color, label=domain)
    axes[1].axhline(sizes["smallest_possible"].min(), color="0.45", ls=":", lw=0.9, zorder=0)
    for ax, label in zip(axes, ("accuracy", "effective size"), strict=True):
        ax.set(xlabel="thousand steps of fine-tuning", ylabel=label, ylim=(-0.03, 1.06))
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1)
    return axes
