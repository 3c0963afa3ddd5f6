"""Every masked weight of a network on one page, in the color of the subnetwork that keeps it."""

import math
from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor
from torch.nn import functional

from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.plots import layout
from subnet_utils.plots.style import BLACK, CONDITIONS

NEITHER = "#ececec"
"""Color of a weight that is in no subnetwork."""
COLORS = [NEITHER, *(CONDITIONS[name].color for name in ("random", "mean", "complement"))]
"""Of a weight in neither, in the first, in the second subnetwork, and in both."""
DOTS = 150
"""To the inch, as the style has it. A cell of a weight is a whole number of dots, so that none is blurred."""
WIDTH, GAP, TITLE, LEGEND, LETTER = 1050, 15, 30, 54, 8.5
"""Dots: of the map's width, about; between two weights; of the heights of names and of the legend; of a letter."""
LARGEST_CELL, PAGE = 4, 1.5
"""Dots to a side of a cell where the network is small; how much wider than high a large network is laid out."""


def weight_map(
    found: Mapping[str, Subnetwork], titles: Mapping[str, str] | None = None, *, heads: int | None = None
) -> Figure:
    """Every weight that two subnetworks of one network mask, an entry a dot in the color of those that keep it.

    found: what each computes -> the subnetwork. titles: what is written above each weight, in this order, by default
    the names. Rows of a weight are its outputs, columns its inputs (of a convolution, the places of its kernel for each
    of them); one that is taller than wide lies on its side. All are to one scale, and where that is finer than the
    print neighbors have their mean color. heads: of attention, between which lines are drawn. Raises ValueError if
    there are not two subnetworks or no weight that both mask, WrongNetwork if they are of different networks.
    """
    first, second = found.values()
    if first.network != second.network:
        raise WrongNetwork(f"subnetworks of different networks, {first.network} and {second.network}, share no weights")
    titles = {name: title for name, title in (titles or {name: name for name in first.masks}).items()
              if name in first.masks.keys() & second.masks.keys()}  # fmt: skip
    if not titles:
        raise ValueError("no weight is masked in both of these subnetworks; choose masks of one start")
    shapes = {name: _lying(first.masks[name]).shape for name in titles}
    entries, dots = _cell(shapes.values())
    cells = {name: _cells(first.masks[name], second.masks[name], entries) for name in titles}
    positions, width, height = _positions(cells, titles, dots)
    figure = plt.figure(figsize=(width / DOTS, (height + LEGEND) / DOTS))
    figure.set_layout_engine("none")  # not at once, or saving it would bring back the layout that the style asks for
    for name, place in positions.items():
        ax = _drawn(figure, cells[name], shapes[name], place, dots)
        ax.set_title(titles[name], loc="left", size=7, weight="normal", pad=2)
        if heads:
            _head_lines(ax, titles[name], heads, *shapes[name])
    _legend(figure, found, list(titles))
    return figure


def _lying(mask: Tensor) -> Tensor:
    """A weight's entries in rows and columns, no more rows than columns."""
    flat = mask.flatten(1)
    return flat.T if flat.shape[0] > flat.shape[1] else flat


def _cells(first: Tensor, second: Tensor, entries: int) -> np.ndarray:
    """Colors [rows, columns, 3] of a weight's cells, each the mean of a square of so many entries to a side."""
    colors = [to_rgb(color) for color in COLORS]
    picture = torch.tensor(colors, dtype=torch.float64)[_lying(first) + 2 * _lying(second).int()].permute(2, 0, 1)
    mean = functional.avg_pool2d(picture, entries, ceil_mode=True, count_include_pad=False)
    return mean.permute(1, 2, 0).numpy()


def _cell(shapes: Collection[tuple[int, int]]) -> tuple[int, int]:
    """Entries to a side of a cell, and its dots, one of which is 1: the longest weight is about as wide as the map."""
    dots = WIDTH / max(PAGE * math.sqrt(sum(map(math.prod, shapes))), *(columns for _, columns in shapes))
    return (1, min(LARGEST_CELL, round(dots))) if dots > 0.75 else (math.ceil(1 / dots), 1)


def _positions(
    cells: Mapping[str, np.ndarray], titles: Mapping[str, str], dots: int
) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Each weight's upper left corner, in dots from the map's, its width and height; weights are set like words."""
    widths = {name: max(dots * cell.shape[1], math.ceil(LETTER * len(titles[name]))) for name, cell in cells.items()}
    room = max(WIDTH, *widths.values())
    positions, left, top, height = {}, 0, 0, 0
    for name, width in widths.items():
        if left + width > room:
            left, top, height = 0, top + height, 0
        positions[name] = left, top + TITLE
        left, height = left + width + GAP, max(height, TITLE + dots * len(cells[name]))
    return positions, room, top + height


def _drawn(figure: Figure, cells: np.ndarray, shape: tuple[int, int], place: tuple[int, int], dots: int) -> Axes:
    """One weight, in coordinates of its entries."""
    size = DOTS * figure.get_size_inches()
    (left, top), (width, height) = place / size, dots * np.array(cells.shape[1::-1]) / size
    ax = figure.add_axes((left, 1 - top - height, width, height))
    ax.imshow(cells, interpolation="nearest", aspect="auto", extent=(0, shape[1], shape[0], 0))
    ax.set_axis_off()
    return ax


def _head_lines(ax: Axes, title: str, heads: int, rows: int, columns: int) -> None:
    """Lines between attention heads: outputs of query, key and value, inputs of what follows."""
    part, look = title.split(" ", 1)[-1], {"color": BLACK, "lw": 0.6}
    if part in ("query", "key", "value"):
        ax.hlines(np.linspace(0, rows, heads + 1)[1:-1], 0, columns, **look)
    elif part in ("attention out", "query, key, value"):  # the latter on its side
        count = heads * (3 if "," in part else 1)
        ax.vlines(np.linspace(0, columns, count + 1)[1:-1], 0, rows, **look)


def _legend(figure: Figure, found: Mapping[str, Subnetwork], names: Sequence[str]) -> None:
    """The colors, and the share of the weights that has each of them."""
    a, b = (torch.cat([one.masks[name].flatten() for name in names]).numpy() for one in found.values())
    first, second = found
    shares = {f"only {first}": a & ~b, f"only {second}": b & ~a, "both": a & b, "neither": ~(a | b)}
    colors = [*COLORS[1:], NEITHER]
    handles = [Patch(color=color, label=f"{label}: {_percent(share.mean())}")
               for color, (label, share) in zip(colors, shares.items(), strict=True)]  # fmt: skip
    layout.legend(figure, handles, columns=4, loc="lower center")


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"
