"""Many values at once, one below the other: all effects, sizes of subnetworks, and how many base models are needed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from subnet_utils.papers.break_it_down.figures.effects import DIFFERENCE, DIFFERENCES
from subnet_utils.plots import layout, marks
from subnet_utils.plots.style import CONDITIONS, LEVEL, Look
from subnet_utils.report.comparison import DIFFERS

ABOVE, UNDER = -0.16, 0.18
"""Places of ours and of the paper's value in a row, as the axis points down."""
MOST_BASES = 1000
"""More base models than this are as good as out of reach: the axis of `needed` ends here."""


def forest(ax: Axes, table: pd.DataFrame) -> Axes:
    """Every effect of a study in one column: our mean with its 95% interval, below it the paper's mean +- sd.

    table: one row per effect, from `report.compare`. Rows that differ from the paper's have a bold label with a mark.
    Effects of one model and task are a group, named at the right.
    """
    ax.axvline(0, **LEVEL)
    looks = {name: CONDITIONS[name]._replace(marker="o") for name in table["network"].unique()}
    looks = {name: look._replace(label=f"{look.label}, 95% interval") for name, look in looks.items()}
    _ours_and_the_papers(ax, table, {looks[name]: table["network"] == name for name in looks}, DIFFERENCES)
    differs = table["verdict"] == DIFFERS
    _name_effects(ax, table, differs)
    ax.set(xlabel=DIFFERENCE, xlim=DIFFERENCES, ylim=(len(table) - 0.4, -0.6))
    ax.tick_params(axis="y", length=0)
    noted = [marks.key("\N{NOT EQUAL TO} differs from the paper", marker="")] * bool(differs.any())
    layout.legend(ax, [*layout.named([ax]), *noted, *marks.keys([ax], cut=">")])
    return ax


def _ours_and_the_papers(
    ax: Axes, table: pd.DataFrame, ours: Mapping[Look, Any], limits: tuple[float, float]
) -> None:
    """A row for each of the table: ours above, in the look of its kind, and the paper's."""
    positions, how = np.arange(len(table)), {"limits": limits, "across": True}
    for look, chosen in ours.items():
        values = [table.loc[chosen, column] for column in ("ours", "ours_low", "ours_high")]
        marks.means(ax, positions[chosen] + ABOVE, values, look, label=look.label, **how)
    paper = CONDITIONS["paper"].label
    marks.paper_values(ax, positions + UNDER, table["paper"], table["paper_sd"], label=paper, **how)


def _name_effects(ax: Axes, table: pd.DataFrame, differs: pd.Series) -> None:
    """Subroutine and network of each row at the left, model and task of each group at the right."""
    labels = _joined(table, ["subroutine", "network"], ", ")
    marked = [f"\N{NOT EQUAL TO} {label}" if mark else label for label, mark in zip(labels, differs, strict=True)]
    ax.set_yticks(range(len(table)), marked)
    for tick, mark in zip(ax.get_yticklabels(), differs, strict=True):
        tick.set_fontweight("bold" if mark else "normal")
    groups = _joined(table, ["model", "task", "number"], " · ")
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    for shade, (start, end) in enumerate(zip(starts, [*starts[1:], len(groups)], strict=True)):
        ax.axhspan(start - 0.5, end - 0.5, color="0.95" if shade % 2 else "none", lw=0, zorder=-1)
        middle = (start + end - 1) / 2
        ax.text(1.015, middle, groups[start], va="center", size=7.5, transform=ax.get_yaxis_transform())


def _joined(table: pd.DataFrame, columns: Sequence[str], separator: str) -> list[str]:
    """The named columns of each row as one text, without those that are empty."""
    rows = table[list(columns)].astype(object).fillna("").itertuples(index=False)
    return [separator.join(filter(None, map(str, row))) for row in rows]


def sparsity(ax: Axes, table: pd.DataFrame, *, by: Sequence[str]) -> Axes:
    """Share of the masked weights that each subnetwork keeps, ours and the paper's, on a logarithmic axis.

    table: from `report.compare(..., value="density")`, one row per subnetwork with columns `by`, whose values name the
    rows, `ours`, `ours_low`, `ours_high`, `paper`, `paper_sd` as fractions.
    """
    percent = 100 * table[["ours", "ours_low", "ours_high", "paper", "paper_sd"]].astype(float)
    floor = percent[["ours", "paper"]].where(lambda means: means > 0).min(axis=None) / 3
    ax.set(xlabel="weights kept (%)", xscale="log", xlim=(floor, 130), ylim=(len(table) - 0.5, -0.5))
    _ours_and_the_papers(ax, percent, {CONDITIONS["ours"]: slice(None)}, (floor, 100))
    ax.set_yticks(range(len(table)), _joined(table, by, " · "))
    _vertical_grid(ax)
    layout.legend(ax, [*layout.named([ax]), *marks.keys([ax], cut="<")])
    return ax


def needed(ax: Axes, table: pd.DataFrame) -> Axes:
    """Base models that an effect would need to be found with 80% power, and those that were trained.

    table: one row per effect with columns `label`, `bases_needed` (infinity if no number would do, NaN if unknown) and
    `n_bases`, those that learned their task. More than `MOST_BASES` is an arrow at the edge; of an unknown number the
    row says why there is none.
    """
    positions, bases = np.arange(len(table)), table["bases_needed"].to_numpy(dtype=float)
    beyond, known = bases > MOST_BASES, ~np.isnan(bases)
    ends, color = np.minimum(bases, MOST_BASES), CONDITIONS["ours"].color
    ax.hlines(positions[known], table["n_bases"][known], ends[known], color="0.75", lw=1.2, zorder=1)
    ax.plot(table["n_bases"], positions, "|", ms=8, mew=1.5, color="0.25", label="trained, and learned the task")
    reachable = np.where(beyond, np.nan, bases)
    ax.plot(reachable, positions, "o", ms=5, color=color, label="needed for 80% power", clip_on=False)
    for place in positions[beyond]:
        ax.plot(MOST_BASES, place, ">", ms=5.5, mfc="white", mec=color, clip_on=False)
        ax.text(1.03, place, f"> {MOST_BASES}", va="center", size=7.5, transform=ax.get_yaxis_transform())
    for place, there in zip(positions[~known], table["n_bases"][~known], strict=True):
        reason = "one base has no spread" if there < 2 else "not in the paper"
        ax.text(1.25 * there, place, f"unknown: {reason}", va="center", size=7, color="0.3")
    ax.set_yticks(positions, table["label"])
    ax.set(xlabel="base models", xscale="log", xlim=(0.9, MOST_BASES), ylim=(len(table) - 0.5, -0.5))
    ax.set_xticks([1, 3, 10, 30, 100, 300, 1000])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="y", length=0)
    _vertical_grid(ax)
    layout.legend(ax, handletextpad=0.3)
    return ax


def _vertical_grid(ax: Axes) -> None:
    ax.xaxis.set_major_formatter("{x:g}")
    ax.grid(axis="x", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
