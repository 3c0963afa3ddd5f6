"""The heads of *The Heuristic Core*: which of them pruned networks share, what they cost, where they look.

Functions draw into the Axes that they are given and return it; one that lays out panels returns its Figure.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from subnet_utils.papers.heuristic_core.figures import along_steps, grouped_bars, with_range
from subnet_utils.plots.layout import legend
from subnet_utils.plots.style import LEVEL

MAPS = 2
"""Heads whose attention is shown on one pair (Figure 7)."""
PLACE = {"in_domain": "in domain", "out_of_domain": "out of domain"}
CORE, REST = "#c8321e", "#8a8a8a"
PATTERNS = {"repeated": ("same word in the other sentence", "#0069a8"), "previous": ("word before", "#85bb65"),
            "next": ("word after", "#2f7d32"), "separator": ("separator", "#e0a030")}  # fmt: skip
"""Of what a head looks at: its name in figures, and its color."""


def shared_heads(ax: Axes, table: pd.DataFrame, sparsities: Sequence[float]) -> Axes:
    """How many heads are in i networks of the lower and j of the higher sparsity (Figure 5). table:
    `tables.frequencies`; sparsities: the lower and the higher one."""
    every = (range(int(table[name].iloc[0]) + 1) for name in ("n_lower", "n_higher"))
    counts = table.value_counts(["lower", "higher"]).unstack(fill_value=0)
    counts = counts.reindex(index=next(every), columns=next(every), fill_value=0).to_numpy()
    ax.pcolormesh(np.log1p(counts), cmap="Blues", shading="nearest", edgecolors="white", lw=0.8)
    for i, j in np.argwhere(counts):
        ax.text(j, i, str(counts[i, j]), ha="center", va="center", fontsize=7,
                color="white" if counts[i, j] > counts.max() / 3 else "#222222")  # fmt: skip
    low, high = sparsities
    ax.set(xlabel=f"networks of {high:.0%} sparsity with a head", ylabel=f"networks of {low:.0%} sparsity with a head")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return ax


def head_frequencies(ax: Axes, table: pd.DataFrame, sparsities: Sequence[float]) -> Axes:
    """In how many networks every head is, the most frequent first (Figure 13). Red names: the core. table:
    `tables.frequencies`; sparsities: the lower and the higher one."""
    rows = table.assign(total=table["lower"] + table["higher"]).sort_values("total", ascending=False, kind="stable")
    colors = dict(zip((f"{sparsity:.0%} sparsity" for sparsity in sparsities), ("#7ebcf0", "#0b3c5d"), strict=True))
    grouped_bars(ax, rows[["lower", "higher"]].set_axis(list(colors), axis=1), colors)
    ax.set_xticks(range(len(rows)), rows["head_name"], rotation=90, fontsize=5.5 if len(rows) > 40 else 6.5)
    for label, inside in zip(ax.get_xticklabels(), rows["in_core"], strict=True):
        label.set_color(CORE if inside else "#222222")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(ylabel="networks with this head", xlim=(-0.7, len(rows) - 0.3), ylim=(0, None))
    legend(ax)
    return ax


def core_by_number(ax: Axes, table: pd.DataFrame) -> Axes:
    """Heads that all networks of the first k seeds share, over random orders, against as many random heads a seed."""
    ax.fill_between(table["seeds"], table["min"], table["max"], color=CORE, alpha=0.15, lw=0)
    ax.plot(table["seeds"], table["mean"], color=CORE, label="pruned networks")
    ax.plot(table["seeds"], table["expected"], color=REST, ls="--", label="as many random heads")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="pruning seeds, two networks each", ylabel="heads that all of them have", ylim=(0, None))
    ax.legend()
    return ax


def without_heads(lost: pd.DataFrame, *, named: int = 5) -> Figure:
    """What ablating a head costs in domain (left) and out of it (right), on one scale.

    A row for each head of the core, red, and for each of the `named` others that cost (or bring) most; one for all
    other heads, one for the core at once, and one for as many others at once. lost: `findings.drops`.
    """
    rows = _rows(lost, named)
    figure, axes = plt.subplots(1, 2, figsize=(7, 0.8 + 0.21 * len(rows)), sharey=True, sharex=True)
    for ax, (column, title) in zip(axes, PLACE.items(), strict=True):
        for place, own in enumerate(rows.values()):
            spread = np.arange(len(own)) * 0.618 % 1 - 0.5  # dots of one row lie one above the other, in no order
            ax.plot(own[column], place + 0.7 * spread * (len(own) > 1), "o", ms=3.6, mew=0, alpha=0.7,
                    color=CORE if own["in_core"].iloc[0] else REST)  # fmt: skip
        ax.axvline(0, **LEVEL)
        ax.grid(axis="y", color="0.92", lw=0.6)
        ax.set(title=title, xlabel="accuracy lost", axisbelow=True)
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    for label, own in zip(axes[0].get_yticklabels(), rows.values(), strict=True):
        label.set_color(CORE if own["in_core"].iloc[0] else "#222222")
    return figure


def _rows(lost: pd.DataFrame, named: int) -> dict[str, pd.DataFrame]:
    """The rows of `without_heads`, from above."""
    core, single = lost["in_core"].astype(bool), lost["layer"].notna()
    extreme = single & lost.index.isin(lost.loc[single & ~core, list(PLACE)].abs().max(axis=1).nlargest(named).index)
    heads = pd.concat([lost[single & core], lost[extreme]])
    rest, others = lost[single & ~core & ~extreme], lost[~single & ~core]
    rows = {head["ablated"]: heads.iloc[[i]] for i, (_, head) in enumerate(heads.iterrows())}
    rows |= {f"other heads ({len(rest)})": rest, "the core at once": lost[~single & core]}
    rows |= {f"as many others at once ({len(others)})": others}
    return {name: own for name, own in rows.items() if len(own)}


def attention_shares(ax: Axes, table: pd.DataFrame) -> Axes:
    """Where heads look: shares of attention on a repeated word, neighbors and separators (Figure 9). table:
    `tables.attention`. Dotted: the half from which on a head counts as of that category."""
    names = {column: name for column, (name, _) in PATTERNS.items()}
    grouped_bars(ax, table.rename(columns=names), dict(PATTERNS.values()))
    half = ax.axhline(0.5, color="0.4", ls=":", lw=0.8, label="half of its attention")
    ax.set_xticks(range(len(table)), table["head_name"], rotation=90 if len(table) > 8 else 0)
    ax.set(ylabel="share of attention", ylim=(0, 1.02))
    legend(ax, [*ax.containers, half], columnspacing=1, handlelength=1.2)
    return ax


def attention_map(ax: Axes, attention: Tensor, tokens: Sequence[str]) -> Axes:
    """One head on one pair: rows look at columns (Figure 7). The scale is that of all maps, 0 to 1."""
    ax.imshow(attention.numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=6.5)
    ax.set(xlabel="to", ylabel="from")
    return ax


def whose_maps(core: int) -> str:
    """Whose attention is shown in `MAPS` maps, for a caption. core: how many heads the core has. A core of no more
    heads than maps is shown as a whole, wherever its heads look."""
    if 0 < core <= MAPS:
        return "Attention of the heads of the core (all are shown)" if core > 1 else "Attention of the head of the core"
    among = "heads of the core" if core else "heads"
    return f"Attention of the {MAPS} {among} that look most at repeated words"


def core_over_training(ax: Axes, table: pd.DataFrame) -> Axes:
    """How often the core's heads, and others, are in sparse pruned networks of earlier checkpoints.

    table: `tables.checkpoint_heads`. Several rows of a step are seeds: their mean, with bars from the smallest to
    the largest. Without a core there are only other heads.
    """
    looks = {"heads of the core": (CORE, "o"), "other heads": (REST, "s")}
    named = table.rename(columns=dict(zip(("core", "others"), looks, strict=True)))
    shares = named.melt("step", list(looks), "name").dropna()
    means = shares.groupby(["name", "step"])["value"].agg(["mean", "min", "max"]).reset_index()
    means["x"] = means["step"].map(along_steps(ax, table["step"]))
    with_range(ax, means, {name: look for name, look in looks.items() if name in set(means["name"])})
    ax.set(ylabel="share of these heads kept", ylim=(-0.03, 1.03))
    legend(ax)
    return ax
