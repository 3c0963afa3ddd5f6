"""Figures of several panels: one grid, one legend."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

NARROWEST, NAME = 4.6, 1.4
"""Inches that a legend needs, and of a name in it, about."""


def grid(
    count: int, *, width: float, height: float, across: int = 4, margin: float = 0.5, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with that many panels, row by row, at most `across` in a row; what is left over is empty.

    width, height: of a panel, inches; margin: more height for what is around them; options: of `plt.subplots`.
    """
    columns = min(count, across)
    rows = math.ceil(count / columns)
    size = (max(NARROWEST, width * columns), height * rows + margin)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **options)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, list(axes.flat[:count])


def label_first_column(axes: Iterable[Axes]) -> None:
    """Keep the label of the vertical axis in the first column alone."""
    for ax in axes:
        if not ax.get_subplotspec().is_first_col():
            ax.set_ylabel("")


def log_axis(ax: Axes, positions: Iterable[float], label: str) -> None:
    """Make the horizontal axis logarithmic, with a tick at each place and no others. label: a format."""
    ax.set_xscale("log")
    ax.set_xticks(positions, [label.format(place) for place in positions])
    ax.minorticks_off()


def panels(table: pd.DataFrame, by: str | list[str], draw: Callable[[Axes, pd.DataFrame], Any], **size: Any) -> Figure:
    """A panel for each group of a table, as they first occur: draw(ax, rows), with a title and one legend for all.

    size: of `grid`.
    """
    groups = list(table.groupby(by, sort=False))
    figure, axes = grid(len(groups), **{"width": 3.4, "height": 2.2, "across": 2, "margin": 0.6, "sharey": True} | size)
    for ax, (title, rows) in zip(axes, groups, strict=True):
        ax.set_title(title)
        draw(ax, rows)
    label_first_column(axes)
    if axes[0].get_legend_handles_labels()[1]:
        legend(figure, columns=2)
    return figure


def named(axes: Iterable[Axes]) -> list[Any]:
    """What panels have a name for: every label once, as it first occurs."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values())


def legend(
    where: Figure | Axes, handles: Sequence[Any] | None = None, *, columns: int | None = None, **look: Any
) -> Legend:
    """The legend of a figure, below it and once for all panels, or of one panel, above it.

    handles: by default what is `named`. columns: by default 2 in a panel; as many as the figure has room for, in rows
    that are about equally long.
    """
    if isinstance(where, Axes):
        handles = named([where]) if handles is None else handles
        return where.legend(handles=handles, ncols=columns or 2,
                            **({"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)} | look))  # fmt: skip
    handles = named(where.axes) if handles is None else handles
    rows = math.ceil(len(handles) / max(2, int(where.get_figwidth() / NAME)))
    columns = columns or math.ceil(len(handles) / max(rows, 1))
    made = where.legend(handles=handles, ncols=max(columns, 1), **({"loc": "outside lower center"} | look))
    made.get_title().set_multialignment("center")
    return made


def short_layer(name: str) -> str:
    """The name of a weight of a feedforward or recurrent network as it fits an axis.

    >>> [short_layer(name) for name in ("layers.0.weight", "lstm.weight_hh_l1", "output.weight")]
    ['layer 1', 'state 2', 'output']
    """
    if name.endswith(" layers"):  # all, or all hidden ones
        return name.removesuffix(" layers")
    module, _, weight = name.rpartition(".")
    if weight.startswith("weight_"):
        kind, number = weight.removeprefix("weight_").split("_l")
        return f"{'input' if kind == 'ih' else 'state'} {int(number) + 1}"
    return f"layer {int(module.rpartition('.')[2]) + 1}" if "." in module else module
