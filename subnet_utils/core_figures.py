"""The heads of *The Heuristic Core*: which of them pruned networks share, what they cost, where they look.

Functions draw into the Axes that they are given and return it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from subnet_utils.heuristic_figures import along_steps, dodge, labelled_bars, with_range

LINEAR = 0.01
"""Losses of accuracy up to a point are drawn on a linear scale, larger ones on a logarithmic one."""
CORE, REST = "#c8321e", "#8a8a8a"
PATTERN_COLORS = {"repeated": "#0069a8", "previous": "#85bb65", "next": "#2f7d32", "separator": "#e0a030"}


def shared_heads(ax: Axes, table: pd.DataFrame, sparsities: Sequence[float]) -> Axes:
    """How many heads are in i networks of the lower and j of the higher sparsity (Figure 5).

    table: `unit_pruning.frequencies`; sparsities: the lower and the higher one.
    """
    rows, columns = int(table["n_lower"].iloc[0]), int(table["n_higher"].iloc[0])
    counts = np.zeros((rows + 1, columns + 1), dtype=int)
    np.add.at(counts, (table["lower"].to_numpy(), table["higher"].to_numpy()), 1)
    x, y = np.arange(columns + 1), np.arange(rows + 1)
    ax.pcolormesh(x, y, np.log1p(counts), cmap="Blues", shading="nearest", edgecolors="white", lw=0.8)
    for (i, j), number in np.ndenumerate(counts):
        if number:
            ax.text(j, i, str(number), ha="center", va="center", fontsize=7,
                    color="white" if number > counts.max() / 3 else "#222222")  # fmt: skip
    low, high = sparsities
    ax.set(xlabel=f"networks of {high:.0%} sparsity with a head", ylabel=f"networks of {low:.0%} sparsity with a head")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return ax


def head_frequencies(ax: Axes, table: pd.DataFrame, sparsities: Sequence[float]) -> Axes:
    """In how many networks every head is, the most frequent first (Figure 13). Red names: the core.

    table: `unit_pruning.frequencies`; sparsities: the lower and the higher one.
    """
    rows = table.assign(total=table["lower"] + table["higher"]).sort_values("total", ascending=False, kind="stable")
    x = np.arange(len(rows))
    looks = ((-0.21, "lower", "#7ebcf0"), (0.21, "higher", "#0b3c5d"))
    for (shift, column, color), sparsity in zip(looks, sparsities, strict=True):
        labelled_bars(ax, x + shift, rows[column], 0.42, color, f"{sparsity:.0%} sparsity")
    ax.set_xticks(x, rows["head_name"], rotation=90, fontsize=5.5 if len(rows) > 40 else 6.5)
    for label, inside in zip(ax.get_xticklabels(), rows["in_core"], strict=True):
        label.set_color(CORE if inside else "#222222")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(ylabel="networks with this head", xlim=(-0.7, len(rows) - 0.3), ylim=(0, None))
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


def without_heads(ax: Axes, lost: pd.DataFrame, *, named: int = 5) -> Axes:
    """What ablating a head costs in domain and out of it; crosses: all of the core at once, and as many others.

    lost: `unit_findings.drops`. The `named` heads that cost (or bring) most have their names. A single head may cost a
    hundred times what others do, so the axes are linear up to a loss of `LINEAR` and logarithmic beyond.
    """
    single, groups = lost[lost["layer"].notna()], lost[lost["layer"].isna()]
    inside = single["in_core"].astype(bool)
    kinds = {"as many others at once": (groups[groups["ablated"] == "others"], REST, "x"),
             "the core at once": (groups[groups["ablated"] == "core"], CORE, "x"),
             "other heads": (single[~inside], REST, "o"), "heads of the core": (single[inside], CORE, "o")}  # fmt: skip
    ax.set_xscale("symlog", linthresh=LINEAR)
    ax.set_yscale("symlog", linthresh=LINEAR)
    for label, (rows, color, marker) in kinds.items():
        if len(rows):
            look = {"ms": 5, "mew": 1.1} if marker == "x" else {"ms": 4, "mew": 0, "alpha": 0.8}
            ax.plot(rows["in_domain"], rows["out_of_domain"], marker, color=color, label=label, **look)
    ax.axhline(0, color="0.8", lw=0.8, zorder=0)
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    _name_extremes(ax, single, named)
    ax.set(xlabel="accuracy lost in domain", ylabel="accuracy lost out of domain")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def _name_extremes(ax: Axes, single: pd.DataFrame, count: int) -> None:
    """Write the names of the heads whose ablation changes most, in or out of domain, beside their dots.

    A name that would be written over another one is left out.
    """
    order = single[["in_domain", "out_of_domain"]].abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    written: list[np.ndarray] = []
    for _, row in single.loc[order[:count]].iterrows():
        place = row[["in_domain", "out_of_domain"]].to_numpy(dtype=float)
        at = ax.transData.transform(place) * 72 / ax.figure.dpi  # in points, of which a name takes about 25 by 8
        if all((np.abs(at - other) > (28, 9)).any() for other in written):
            ax.annotate(row["ablated"], place, xytext=(4, 2), textcoords="offset points", fontsize=6.5,
                        color=CORE if row["in_core"] else "#222222")  # fmt: skip
            written.append(at)


def attention_shares(ax: Axes, table: pd.DataFrame) -> Axes:
    """Where heads look: shares of attention on a repeated word, neighbors and separators (Figure 9).

    table: `unit_pruning.attention`. Dotted: the half from which on a head counts as of that category.
    """
    patterns = list(PATTERN_COLORS)
    x, width = np.arange(len(table)), 0.8 / len(patterns)
    for i, pattern in enumerate(patterns):
        shift = (i - (len(patterns) - 1) / 2) * width
        labelled_bars(ax, x + shift, table[pattern], width, PATTERN_COLORS[pattern], pattern)
    ax.axhline(0.5, color="0.4", ls=":", lw=0.8)
    ax.text(1.01, 0.5, "half:\nits category", transform=ax.get_yaxis_transform(), va="center", fontsize=6.5)
    ax.set_xticks(x, table["head_name"], rotation=90 if len(table) > 8 else 0)
    ax.set(ylabel="share of attention", ylim=(0, 1.02))
    ax.legend(ncols=len(patterns), loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1, handlelength=1.2)
    return ax


def attention_map(ax: Axes, attention: Tensor, tokens: Sequence[str]) -> Axes:
    """One head on one pair: rows look at columns (Figure 7). The scale is that of all maps, 0 to 1."""
    ax.imshow(attention.numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=6.5)
    ax.set(xlabel="to", ylabel="from")
    return ax


def core_over_training(ax: Axes, table: pd.DataFrame) -> Axes:
    """How often the core's heads, and others, are in sparse pruned networks of earlier checkpoints.

    table: `unit_pruning.checkpoint_heads`. Several rows of a step are seeds: their mean, with bars from the smallest to
    the largest. Without a core there are only other heads.
    """
    looks = {"core": ((CORE, "o"), "heads of the core"), "others": ((REST, "s"), "other heads")}
    places = along_steps(ax, table["step"])
    for (column, (look, label)), shift in zip(looks.items(), dodge(places.values(), 2), strict=True):
        rows = table.dropna(subset=[column]).groupby("step")[column].agg(["mean", "min", "max"])
        if len(rows):
            with_range(ax, rows.index.map(places) + shift, rows, look, label)
    ax.set(ylabel="share of these heads kept", ylim=(-0.03, 1.03))
    ax.legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
    return ax
