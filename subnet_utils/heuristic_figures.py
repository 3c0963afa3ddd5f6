"""Figures of *The Heuristic Core*, from its published numbers and from networks of our own."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

COLORS = {"MNLI": "#111111", "QQP": "#111111", "in domain": "#111111", "SO-Swap": "#0069a8", "Prep": "#56a0d3",
          "PP-Subj": "#2f7d32", "Rel-Subj": "#85bb65", "Embed-If": "#c8321e", "After-If": "#8c1d40",
          "Embed-Verb": "#e08a6d", "Adverb": "#e8b08c", "PAWS (adv.)": "#c8321e", "entailed": "#9a9a9a"}  # fmt: skip
"""Black in domain, blue lexical overlap, green subsequence, red constituent, gray entailed."""
IN_DOMAIN_NAMES = ("MNLI", "QQP", "in domain")
UNTIL_THOUSANDS = 5000
"""Steps are counted in thousands from here on."""
CORE, REST = "#c8321e", "#8a8a8a"
PATTERN_COLORS = {"repeated": "#0069a8", "previous": "#85bb65", "next": "#2f7d32", "separator": "#e0a030"}
DOMAINS = {"in domain": "#111111", "out of domain": "#c8321e", "mixed": "#7a5195", "balanced": "#2f7d32"}


def _in_order(table: pd.DataFrame) -> list[str]:
    """Names of the sets: those that have a color of their own, then others."""
    found = list(dict.fromkeys(table["name"]))
    return [name for name in COLORS if name in found] + [name for name in found if name not in COLORS]


def _color(name: str) -> str:
    return COLORS.get(name, "#0069a8")


def dots(ax: Axes, table: pd.DataFrame) -> Axes:
    """A column of dots, one a pruned network, for every evaluation set; the line is the full network (Figure 2)."""
    names = list(dict.fromkeys(table["name"]))
    for place, name in enumerate(names):
        rows = table[table["name"] == name].sort_values("seed")
        shift = np.linspace(-0.2, 0.2, len(rows))
        ax.plot(place + shift, rows["accuracy"], "o", ms=3.2, mew=0, alpha=0.75, color=_color(name))
        ax.plot([place - 0.36, place + 0.36], [rows["full"].iloc[0]] * 2, color="#111111", lw=1.2)
    ax.set_xticks(range(len(names)), names)
    ax.set(xlim=(-0.6, len(names) - 0.4), ylim=(-0.03, 1.03))
    return ax


def every_subcase(table: pd.DataFrame) -> Figure:
    """All evaluation sets, one a row, a panel for each sparsity (Figure 12). Line: the full network."""
    names = sorted(dict.fromkeys(table["name"]), key=lambda name: name not in IN_DOMAIN_NAMES)
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
    names = _in_order(table)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        rows = table[table["name"] == name].set_index("seed")["accuracy"].reindex(seeds)
        x = np.arange(len(seeds)) + (i - (len(names) - 1) / 2) * width
        ax.bar(x, rows, width * 0.92, color=_color(name), label=name)
    ax.set_xticks(range(len(seeds)), [f"seed {seed}" for seed in seeds])
    ax.set(ylabel="accuracy", ylim=(0, 1.03))
    columns = len(names) if len(names) < 6 else -(-len(names) // 2)
    ax.legend(ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1, handlelength=1.2)
    return ax


def over_sparsity(ax: Axes, table: pd.DataFrame) -> Axes:
    """Mean accuracy over sparsity with the range of the seeds (Figure 4)."""
    for name in _in_order(table):
        rows, color = table[table["name"] == name].sort_values("sparsity"), _color(name)
        ax.plot(rows["sparsity"] * 100, rows["mean"], "o-", ms=2.5, lw=1.2, color=color, label=name)
        ax.fill_between(rows["sparsity"] * 100, rows["min"], rows["max"], color=color, alpha=0.13, lw=0)
    ax.set(xlabel="sparsity (%)", ylabel="accuracy", ylim=(-0.03, 1.03))
    ax.legend(ncols=1)
    return ax


def training(axes: Sequence[Axes], sizes: pd.DataFrame) -> Sequence[Axes]:
    """Accuracy of the full network (first axes) and effective size (second) while fine-tuning (Figure 6).

    Dotted: the smallest size that the grid of sparsities can show.
    """
    unit = 1000 if sizes["step"].max() > UNTIL_THOUSANDS else 1
    for domain, color in DOMAINS.items():
        rows = sizes[sizes["domain"] == domain].sort_values("step")
        if rows.empty:
            continue
        for ax, column in zip(axes, ("accuracy", "effective_size"), strict=True):
            ax.plot(rows["step"] / unit, rows[column], "o-", ms=2.5, lw=1.2, color=color, label=domain)
    axes[1].axhline(sizes["smallest_possible"].min(), color="0.45", ls=":", lw=0.9, zorder=0)
    for ax, label in zip(axes, ("accuracy", "effective size"), strict=True):
        ax.set(xlabel=f"{'thousand ' if unit > 1 else ''}steps of fine-tuning", ylabel=label, ylim=(-0.03, 1.06))
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1)
    return axes


def learning(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracy on every set while the network is fine-tuned (Figure 10)."""
    for name in [name for name in COLORS if name in set(table["name"])]:
        rows = table[table["name"] == name]
        ax.plot(rows["step"], rows["accuracy"], lw=1.8 if name == "in domain" else 1, color=COLORS[name], label=name)
    ax.set(xlabel="steps of fine-tuning", ylabel="accuracy", ylim=(-0.03, 1.03))
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def shared_heads(ax: Axes, table: pd.DataFrame) -> Axes:
    """How many heads are in i networks of the lower and j of the higher sparsity (Figure 5). table: `frequencies`."""
    rows, columns = int(table["n_lower"].iloc[0]), int(table["n_higher"].iloc[0])
    counts = np.zeros((rows + 1, columns + 1), dtype=int)
    np.add.at(counts, (table["lower"].to_numpy(), table["higher"].to_numpy()), 1)
    ax.imshow(np.log1p(counts), cmap="Blues", origin="lower", aspect="auto")
    for (i, j), number in np.ndenumerate(counts):
        if number:
            ax.text(j, i, str(number), ha="center", va="center", fontsize=7,
                    color="white" if number > counts.max() / 3 else "#222222")  # fmt: skip
    ax.set(xlabel="networks of the higher sparsity", ylabel="networks of the lower sparsity")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return ax


def head_frequencies(ax: Axes, table: pd.DataFrame, columns: Sequence[str] = ("lower", "higher")) -> Axes:
    """In how many networks every head is, the most frequent first (Figure 13). Red names: the core."""
    rows = table.assign(total=table[list(columns)].sum(axis=1)).sort_values("total", ascending=False, kind="stable")
    x = np.arange(len(rows))
    for shift, column, color in ((-0.2, columns[0], "#56a0d3"), (0.2, columns[1], "#0b3c5d")):
        ax.bar(x + shift, rows[column], 0.4, color=color, label=f"{column} sparsity")
    ax.set_xticks(x, rows["head_name"], rotation=90, fontsize=5.5 if len(rows) > 40 else 6.5)
    for label, inside in zip(ax.get_xticklabels(), rows["in_core"], strict=True):
        label.set_color(CORE if inside else "#222222")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(ylabel="networks with this head", xlim=(-0.7, len(rows) - 0.3))
    ax.legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
    return ax


def core_by_number(ax: Axes, table: pd.DataFrame) -> Axes:
    """Heads that the first k networks share, over random orders, against networks of random heads."""
    ax.fill_between(table["networks"], table["min"], table["max"], color=CORE, alpha=0.15, lw=0)
    ax.plot(table["networks"], table["mean"], color=CORE, label="pruned networks")
    ax.plot(table["networks"], table["expected"], color=REST, ls="--", label="as many random heads")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="networks", ylabel="heads that all of them have", ylim=(0, None))
    ax.legend()
    return ax


def without_heads(ax: Axes, lost: pd.DataFrame) -> Axes:
    """What ablating a head costs in domain and out of it; crosses: all of the core at once, and as many others."""
    single = lost.dropna(subset=["layer"])
    for inside, color, label in ((False, REST, "other heads"), (True, CORE, "heads of the core")):
        rows = single[single["in_core"] == inside]
        ax.plot(rows["in_domain"], rows["out_of_domain"], "o", ms=4, mew=0, alpha=0.8, color=color, label=label)
    for group, color, label in (("others", REST, "as many others at once"), ("core", CORE, "the core at once")):
        rows = lost[lost["ablated"] == group]
        ax.plot(rows["in_domain"], rows["out_of_domain"], "X", ms=6, mec="white", mew=0.5, color=color, label=label)
    ax.axhline(0, color="0.8", lw=0.8, zorder=0)
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    ax.set(xlabel="accuracy lost in domain", ylabel="accuracy lost out of domain")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def attention_shares(ax: Axes, table: pd.DataFrame) -> Axes:
    """Where heads look: shares of attention on a repeated word, neighbors and separators (Figure 9)."""
    patterns = list(PATTERN_COLORS)
    x, width = np.arange(len(table)), 0.8 / len(patterns)
    for i, pattern in enumerate(patterns):
        shift = (i - (len(patterns) - 1) / 2) * width
        ax.bar(x + shift, table[pattern], width, color=PATTERN_COLORS[pattern], label=pattern)
    ax.axhline(0.5, color="0.4", ls=":", lw=0.8)
    ax.set_xticks(x, table["head_name"], rotation=90 if len(table) > 8 else 0)
    ax.set(ylabel="share of attention", ylim=(0, 1.02))
    ax.legend(ncols=len(patterns), loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1, handlelength=1.2)
    return ax


def attention_map(ax: Axes, attention: Tensor, tokens: Sequence[str]) -> Axes:
    """One head on one pair: rows look at columns (Figure 7)."""
    ax.imshow(attention.numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=6.5)
    return ax


def core_over_training(ax: Axes, table: pd.DataFrame) -> Axes:
    """How often the core's heads, and others, are in sparse pruned networks of earlier checkpoints."""
    for column, color, label in (("core", CORE, "heads of the core"), ("others", REST, "other heads")):
        ax.plot(table["step"], table[column], "o-", ms=3, lw=1.2, color=color, label=label)
    ax.set(xlabel="steps of fine-tuning", ylabel="share of networks with them", ylim=(-0.03, 1.03))
    ax.legend()
    return ax
