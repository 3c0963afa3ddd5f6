"""Bars over seeds, with a dot for each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.plots.layout import panels
from subnet_utils.plots.style import BLACK

DOT = {"marker": "o", "ms": 2.6, "mfc": "white", "mec": BLACK, "mew": 0.5, "ls": "none", "clip_on": False, "zorder": 3}
"""Of a seed. One at an end of the axis is seen whole."""
LETTERS = 30
"""Of all names along an axis, so that they fit side by side; more are turned, unless a name is broken into lines."""
DOTTED = ("chance",)
"""Levels that are dotted lines across bars; others are whole lines."""


def bars(
    table: pd.DataFrame, *, x: str, y: str, hue: str, colors: Mapping[str, str], label: str = "{}",
    levels: Sequence[str] = (), size: Mapping[str, Any] | None = None, **axis: Any,
) -> Figure:  # fmt: skip
    """Bars as high as means over seeds, with dots for seeds: a panel for each `title` of a table.

    x, y: columns; hue: the column whose entries stand side by side, in `colors`, with `label` for each of them; levels:
    columns with the height of a line across each bar; size: of `panels`; axis: limits and labels.
    """

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        names, hues = (list(dict.fromkeys(rows[column])) for column in (x, hue))
        width = 0.8 / len(hues)
        for i, name in enumerate(hues):
            own, positions = rows[rows[hue] == name], np.arange(len(names)) + width * (i - (len(hues) - 1) / 2)
            means = own.groupby(x)[[y, *levels]].mean().reindex(names)
            ax.bar(positions, means[y], 0.92 * width, color=colors[name], label=label.format(name))
            ax.plot(positions[own[x].map(names.index)], own[y], **DOT)
            for level in levels:
                ends = positions - width / 2, positions + width / 2
                ax.hlines(means[level], *ends, color=BLACK, lw=1.2, ls=":" if level in DOTTED else "-", label=level)
        long = len("".join(names)) > LETTERS and "\n" not in names[0]
        ax.set_xticks(range(len(names)), names, **({"rotation": 40, "ha": "right"} if long else {}))
        ax.set(**axis)

    return panels(table, "title", draw, **size or {})
