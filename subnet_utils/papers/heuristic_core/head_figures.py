"""The heads of *The Heuristic Core*: which of them pruned networks share, what they cost, where they look.

Functions draw into the Axes that they are given and return it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch
from matplotlib.ticker import FixedLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from subnet_utils.papers.heuristic_core.figures import along_steps, dodge, grouped_bars, legend_above, with_range

LINEAR = 0.01
"""Losses of accuracy up to a point are drawn on a linear scale, larger ones on a logarithmic one."""
LOSS_TICKS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0)
NAME_SIZE = np.array([25.0, 8.0])
"""Width and height of a head's name, in points."""
MAPS = 2
"""Heads whose attention is shown on one pair (Figure 7)."""
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
    colors = dict(zip((f"{sparsity:.0%} sparsity" for sparsity in sparsities), ("#7ebcf0", "#0b3c5d"), strict=True))
    grouped_bars(ax, rows[["lower", "higher"]].set_axis(list(colors), axis=1), colors)
    ax.set_xticks(range(len(rows)), rows["head_name"], rotation=90, fontsize=5.5 if len(rows) > 40 else 6.5)
    for label, inside in zip(ax.get_xticklabels(), rows["in_core"], strict=True):
        label.set_color(CORE if inside else "#222222")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(ylabel="networks with this head", xlim=(-0.7, len(rows) - 0.3), ylim=(0, None))
    ax.legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
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


def without_heads(ax: Axes, lost: pd.DataFrame, *, named: int = 5) -> Axes:
    """What ablating a head costs in domain and out of it; crosses: all of the core at once, and as many others.

    lost: `unit_findings.drops`. Heads of the core and the `named` that cost (or bring) most have their names. One head
    may cost a hundred times what others do, so the axes are linear up to a loss of `LINEAR` and logarithmic beyond.
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
        axis.set_major_locator(FixedLocator([-tick for tick in LOSS_TICKS] + [0, *LOSS_TICKS]))
        axis.set_minor_locator(FixedLocator([sign * i * unit for sign in (-1, 1) for unit in (0.001, 0.01, 0.1)
                                             for i in range(1, 10)]))  # fmt: skip
        axis.set_major_formatter("{x:g}")
    ax.set(xlabel="accuracy lost in domain", ylabel="accuracy lost out of domain")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    _name_extremes(ax, single, named, lost[["in_domain", "out_of_domain"]].to_numpy(dtype=float))
    return ax


def _name_extremes(ax: Axes, single: pd.DataFrame, count: int, points: np.ndarray) -> None:
    """Write the names of the core's heads and of those whose ablation changes most, in or out of domain, each joined to
    its dot by a line.

    points: all that are drawn, which no name hides. Every name takes the nearest place that is free.
    """
    order = single[["in_domain", "out_of_domain"]].abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    ax.figure.draw_without_rendering()  # the layout settles, and with it what is free
    to_points = 72 / ax.figure.dpi
    taken = [(*at, 4.0, 4.0) for at in ax.transData.transform(points) * to_points]
    frame = ax.get_window_extent().extents * to_points
    inside = single["in_core"].astype(bool)
    for _, row in single.loc[[head for head in order if inside[head] or head in order[:count]]].iterrows():
        place = row[["in_domain", "out_of_domain"]].to_numpy(dtype=float)
        shift = _free_place(ax.transData.transform(place) * to_points, NAME_SIZE, taken, frame)
        ax.annotate(row["ablated"], place, xytext=shift, textcoords="offset points", ha="center", va="center",
                    fontsize=6.5, color=CORE if row["in_core"] else "#222222")  # fmt: skip
        end = shift * (1 - min(NAME_SIZE / 2 / np.maximum(np.abs(shift), 1e-9))) / 72  # at the name's edge, in inches
        beside = ax.transData + ScaledTranslation(*end, ax.figure.dpi_scale_trans)
        ax.add_artist(ConnectionPatch(place, place, ax.transData, beside, lw=0.5, color="0.4", shrinkA=2))


def _free_place(at: np.ndarray, size: np.ndarray, taken: list, frame: np.ndarray) -> np.ndarray:
    """Shift of a box from a dot to where it meets nothing, nearest first; the box and its line are added to `taken`.

    All in points. taken: (x, y, width, height) of boxes by their middles; frame: x0, y0, x1, y1. Where nothing is free,
    the box stands beside its dot.
    """
    wide, high = size
    turns = np.radians((30, -30, 150, -150, 60, -60, 120, -120, 90, -90, 0, 180))
    shifts = [np.array([np.cos(turn) * (radius + wide / 2), np.sin(turn) * (radius + high / 2)])
              for radius in range(8, 60, 4) for turn in turns]  # fmt: skip

    def is_free(shift: np.ndarray) -> bool:
        x, y = at + shift
        inside = frame[0] < x - wide / 2 and x + wide / 2 < frame[2] and frame[1] < y - high / 2 and y < frame[3]
        return inside and not any(abs(x - a) < (wide + w) / 2 and abs(y - b) < (high + h) / 2 for a, b, w, h in taken)

    found = next(filter(is_free, shifts), shifts[0])
    taken += [(*(at + part * found), 2.0, 2.0) for part in (0.3, 0.5, 0.7)]  # the line
    taken.append((*(at + found), wide, high))
    return found


def attention_shares(ax: Axes, table: pd.DataFrame) -> Axes:
    """Where heads look: shares of attention on a repeated word, neighbors and separators (Figure 9).

    table: `unit_pruning.attention`. Dotted: the half from which on a head counts as of that category.
    """
    grouped_bars(ax, table, PATTERN_COLORS)
    ax.axhline(0.5, color="0.4", ls=":", lw=0.8)
    ax.text(1.01, 0.5, "half:\nits category", transform=ax.get_yaxis_transform(), va="center", fontsize=6.5)
    ax.set_xticks(range(len(table)), table["head_name"], rotation=90 if len(table) > 8 else 0)
    ax.set(ylabel="share of attention", ylim=(0, 1.02))
    legend_above(ax, len(PATTERN_COLORS))
    return ax


def attention_map(ax: Axes, attention: Tensor, tokens: Sequence[str]) -> Axes:
    """One head on one pair: rows look at columns (Figure 7). The scale is that of all maps, 0 to 1."""
    ax.imshow(attention.numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=6.5)
    ax.set(xlabel="to", ylabel="from")
    return ax


def whose_maps(core: int) -> str:
    """Whose attention is shown in `MAPS` maps, for a caption. core: how many heads the core has.

    A core of no more heads than maps is shown as a whole, wherever its heads look.
    """
    if 0 < core <= MAPS:
        return "Attention of the heads of the core (all are shown)" if core > 1 else "Attention of the head of the core"
    among = "heads of the core" if core else "heads"
    return f"Attention of the {MAPS} {among} that look most at repeated words"


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
