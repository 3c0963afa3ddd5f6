"""Marks of measurements: single runs, and means with their intervals."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from subnet_utils.plots.style import CONDITIONS, RUN_SIZES, Look
from subnet_utils.statistics import LEARNED

RUN, BELOW, MEAN, PAPER, CUT = "_run", "_below", "_mean", "_paper", "_cut"
"""Labels of marks. Matplotlib shows no label that begins with _, but `drawn` finds it."""
TICK = {"ms": 8, "mew": 2}
POINT = {"ms": 4, "mew": 0}
OPEN = {"ms": 3.6, "mew": 0.8, "mfc": "white"}


def runs(ax: Axes, x: float, table: pd.DataFrame, value: str, color: str, *, width: float, filled: bool = True) -> None:
    """A marker for each run, side by side in the order of the table, so that a figure that is drawn again is the same.

    table: columns `value`, `base_accuracy` and `shape`, the marker of the run's base model. Runs of base models below
    90% are gray, and below all others.
    """
    positions = x + np.linspace(-width, width, len(table)) if len(table) > 1 else [x]
    for place, run in zip(positions, table.to_dict("records"), strict=True):
        learned = run["base_accuracy"] >= LEARNED
        own = color if learned else CONDITIONS["below"].color
        look = {"mfc": own, "mec": "white", "mew": 0.3} if filled else {"mfc": "none", "mec": own, "mew": 0.8}
        ax.plot(place, run[value], ls="none", marker=run["shape"], ms=RUN_SIZES.get(run["shape"], 4), alpha=0.9,
                clip_on=False, zorder=2 if learned else 1.5, label=RUN if learned else BELOW, **look)  # fmt: skip


def means(
    ax: Axes, positions: ArrayLike, values: Sequence[ArrayLike], look: Look, *, limits: tuple[float, float],
    across: bool = False, label: str = MEAN,
) -> None:  # fmt: skip
    """Means with their intervals, which lie `across` or stand: bars end in an arrowhead where they leave the axis.

    values: mean, low and high, each a number or one for each place. Without an interval (NaN) there is a mark only,
    without a mean nothing. A mark is the look's marker, or a tick where it has none. limits: of the axis of values.
    """
    positions, mean, low, high = (np.atleast_1d(np.asarray(one, dtype=float)) for one in (positions, *values))
    size = OPEN if look.marker == "D" else POINT if look.marker else TICK
    mark, error = look.marker or ("|" if across else "_"), np.abs([mean - low, high - mean])
    points = {"x": mean, "y": positions, "xerr": error} if across else {"x": positions, "y": mean, "yerr": error}
    ax.errorbar(**points, fmt=mark, color=look.color, elinewidth=1, zorder=3, label=label, **size)
    for ends, limit, sign, marker in ((low, limits[0], 1, "v<"[across]), (high, limits[1], -1, "^>"[across])):
        for place in positions[sign * ends < sign * limit]:
            at = (limit, place) if across else (place, limit)
            ax.plot(*at, marker, color=look.color, ms=3.5, mec="none", clip_on=False, zorder=3.5, label=CUT)


def paper_values(
    ax: Axes, positions: ArrayLike, mean: pd.Series, sd: pd.Series, label: str = PAPER, **how: Any
) -> None:
    """The paper's means with their standard deviations: open diamonds. how: as in `means`."""
    means(ax, positions, (mean, mean - sd, mean + sd), CONDITIONS["paper"], label=label, **how)


def drawn(axes: Iterable[Axes], label: str) -> bool:
    """Whether one of the panels has something with that label."""
    return any(one.get_label() == label for ax in axes for one in (*ax.get_children(), *ax.containers))


def key(label: str, color: str = "0.3", marker: object = "o", **look: object) -> Line2D:
    """An entry of a legend: a marker, by default a dot."""
    return Line2D([], [], ls="none", color=color, marker=marker, label=label, **({"ms": 5, "mec": "none"} | look))


def keys(axes: Sequence[Axes], *, below: str = CONDITIONS["below"].label, cut: str = "^") -> list[Line2D]:
    """What a legend says of shapes of runs, gray ones, ticks of means, the paper's values and arrowheads, those that
    panels have."""
    paper = CONDITIONS["paper"]
    entries = {
        BELOW: key(below, CONDITIONS["below"].color),
        MEAN: key(CONDITIONS["ours"].label, marker="+", mec="0.3", ms=9, mew=1.5),
        PAPER: key(paper.label, paper.color, paper.marker, mec=paper.color, **OPEN),
        CUT: key("arrowhead: interval goes on", marker=cut, ms=4),
    }
    shapes = {str(line.get_marker()) for ax in axes for line in ax.lines if line.get_label() in (RUN, BELOW)}
    several = [key("shape: base model", marker="s")] if len(shapes) > 1 else []
    return several + [entry for label, entry in entries.items() if drawn(axes, label)]
