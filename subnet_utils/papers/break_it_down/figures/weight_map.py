"""Every masked weight of a network on one page, in the color of the subroutine whose subnetwork keeps it."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.papers.break_it_down.dissection import Parts
from subnet_utils.papers.break_it_down.figures.overlap import COMPARISONS, layer_order, short_layer
from subnet_utils.plots import layout
from subnet_utils.plots.style import BLACK

NEITHER = "#ececec"
"""Color of a weight that is in no subnetwork."""
DOTS = 150
"""To the inch, as `figures.style` has it. A cell of a weight is a whole number of dots, so that none is blurred."""
WIDTH, GAP, TITLE, LEGEND = 1050, 15, 30, 54
"""Dots: of the map's width, about; between two weights; of the heights of their names and of the legend."""
LETTER = 8.5
"""Dots of a letter of a name."""
LARGEST_CELL = 4
"""Dots to a side of a cell where the network is small."""
PAGE = 1.5
"""How much wider than high the blocks of a large network are laid out."""


def weight_map(found: Mapping[str, Subnetwork], *, heads: int | None = None) -> Figure:
    """Every weight that two subnetworks of one network mask, an entry a dot in the color of those that keep it.

    found: subroutine -> its subnetwork. Rows of a weight are its outputs, columns its inputs (of a convolution, the
    places of its kernel for each of them); one that is taller than wide lies on its side. All are to one scale, and
    where that is finer than the print neighbors have their mean color. heads: of attention, between which lines are
    drawn. Raises ValueError if there are not two subnetworks or no weight that both mask, WrongNetwork if they are of
    different networks.
    """
    if len(found) != 2:
        raise ValueError(f"a map shows two subnetworks, got {len(found)}; give one of each subroutine")
    first, second = found.values()
    if first.network != second.network:
        raise WrongNetwork(f"subnetworks of different networks, {first.network} and {second.network}, share no weights")
    names = sorted(first.masks.keys() & second.masks.keys(), key=layer_order)
    if not names:
        raise ValueError("no weight is masked in both of these subnetworks; choose masks of one start")
    shapes = {name: _lying(first.masks[name]).shape for name in names}
    shelves = _shelves(shapes)
    entries, dots = _cell(min(_dots_of_an_entry(shelf, shapes) for shelf in shelves))
    cells = {name: _mixed(_colored(first.masks[name], second.masks[name]), entries) for name in names}
    places, width, height = _places(shelves, cells, dots)
    figure = plt.figure(figsize=(max(width, WIDTH) / DOTS, (height + LEGEND) / DOTS))
    figure.set_layout_engine("none")  # not at once, or saving it would bring back the layout that the style asks for
    for name, place in places.items():
        ax = _drawn(figure, cells[name], shapes[name], place, dots)
        ax.set_title(short_layer(name), loc="left", size=7, weight="normal", pad=2)
        if heads:
            _head_lines(ax, name, heads, *shapes[name])
    _legend(figure, found, names)
    return figure


def described(lab: Lab, pair: Parts) -> str:
    """What the caption of a map says: which weights are drawn, what lines are, and how the weights lie."""
    masks = [mask.mask(lab) for mask in pair.masks]
    latest = min(masks, key=lambda mask: mask.stages).point.start.replace("_", " ")
    starts = {mask.point.start for mask in masks}
    where = f", from {latest} on (one of them starts before)" if len(starts) > 1 else ""
    lines = " Black lines part attention heads." if pair.heads else ""
    return (
        f"{pair.title}: every weight that both masks cover{where}, by the subroutines whose subnetworks keep it (first "
        f"masks).{lines} What is taller than wide lies on its side."
    )


def _lying(mask: Tensor) -> np.ndarray:
    """A weight's entries in rows and columns, no more rows than columns."""
    flat = mask.flatten(1).numpy()
    return flat.T if flat.shape[0] > flat.shape[1] else flat


def _colored(first: Tensor, second: Tensor) -> np.ndarray:
    """Colors [rows, columns, 3] of a weight's entries."""
    colors = np.array([to_rgb(color) for color in (NEITHER, *(look.color for look in COMPARISONS.values()))])
    return colors[_lying(first) + 2 * _lying(second).astype(int)]


Shape = tuple[int, int]
Line = list[str]
Block = list[Line]


def _blocks(shapes: Mapping[str, Shape]) -> list[Block]:
    """The blocks of the network, each in lines no longer than its longest weight. One that finds room at the end of the
    last line, as a small head does, has none of its own."""
    blocks: list[Block] = []
    for _, own in groupby(shapes, key=lambda name: layer_order(name)[:3]):
        names = list(own)
        if blocks and _length([*blocks[-1][-1], *names], shapes) <= _longest(blocks[-1], shapes):
            blocks[-1][-1] += names
            continue
        longest = max(shapes[name][1] for name in names)
        lines: Block = [[]]
        for name in names:
            if _length([*lines[-1], name], shapes) > longest:
                lines.append([])
            lines[-1].append(name)
        blocks.append(lines)
    return blocks


def _shelves(shapes: Mapping[str, Shape]) -> list[list[Block]]:
    """Blocks side by side, as many as leave an entry about a dot, or, of large networks, as make a page of them."""
    blocks = _blocks(shapes)
    area = sum(rows * columns for rows, columns in shapes.values())
    room = max(1.2 * WIDTH, PAGE * math.sqrt(area))
    shelves: list[list[Block]] = [[]]
    for block in blocks:
        if shelves[-1] and sum(_longest(other, shapes) for other in [*shelves[-1], block]) > room:
            shelves.append([])
        shelves[-1].append(block)
    return shelves


def _length(line: Line, shapes: Mapping[str, Shape]) -> int:
    return sum(shapes[name][1] for name in line)


def _longest(block: Block, shapes: Mapping[str, Shape]) -> int:
    return max(_length(line, shapes) for line in block)


def _dots_of_an_entry(shelf: Sequence[Block], shapes: Mapping[str, Shape]) -> float:
    """With which a shelf is as wide as the map."""
    gaps = sum(max(map(len, block)) for block in shelf) - 1
    return (WIDTH - GAP * gaps) / sum(_longest(block, shapes) for block in shelf)


def _cell(dots: float) -> tuple[int, int]:
    """Entries to a side of a cell, and dots: one of them is 1, for an entry to have about so many dots."""
    return (1, min(LARGEST_CELL, round(dots))) if dots > 0.75 else (math.ceil(1 / dots), 1)


def _places(
    shelves: Sequence[Sequence[Block]], cells: Mapping[str, np.ndarray], dots: int
) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Where each weight's upper left corner is, in dots from the map's, and how wide and high that is."""
    places, width, top = {}, 0, 0
    for shelf in shelves:
        left, bottom = 0, top
        for block in shelf:
            right, below = left, top
            for line in block:
                across = left
                for name in line:
                    places[name] = across, below + TITLE
                    across += max(dots * cells[name].shape[1], math.ceil(LETTER * len(short_layer(name)))) + GAP
                right, below = max(right, across), below + TITLE + dots * max(len(cells[name]) for name in line)
            left, bottom = right, max(bottom, below)
        width, top = max(width, left - GAP), bottom
    return places, width, top


def _drawn(figure: Figure, cells: np.ndarray, shape: Shape, place: tuple[int, int], dots: int) -> Axes:
    """One weight, in coordinates of its entries."""
    size = DOTS * figure.get_size_inches()
    (left, top), (width, height) = place / size, dots * np.array(cells.shape[1::-1]) / size
    ax = figure.add_axes((left, 1 - top - height, width, height))
    ax.imshow(cells, interpolation="nearest", aspect="auto", extent=(0, shape[1], shape[0], 0))
    ax.set_axis_off()
    return ax


def _mixed(picture: np.ndarray, factor: int) -> np.ndarray:
    """Mean colors of squares of so many entries to a side, those at the edge perhaps smaller."""
    for axis in (0, 1):
        starts = np.arange(0, picture.shape[axis], factor)
        sizes = np.diff([*starts, picture.shape[axis]])
        picture = np.add.reduceat(picture, starts, axis) / np.expand_dims(sizes, [i for i in range(3) if i != axis])
    return picture


def _head_lines(ax: Axes, name: str, heads: int, rows: int, columns: int) -> None:
    """Lines between attention heads: outputs of query, key and value, inputs of what follows."""
    part = short_layer(name).split(" ", 1)[-1]
    look = {"color": BLACK, "lw": 0.6}
    if part in ("query", "key", "value"):
        ax.hlines([rows * i / heads for i in range(1, heads)], 0, columns, **look)
    elif part == "attention out":
        ax.vlines([columns * i / heads for i in range(1, heads)], 0, rows, **look)
    elif part == "query, key, value":  # on its side
        ax.vlines([columns * i / heads / 3 for i in range(1, 3 * heads)], 0, rows, **look)


def _legend(figure: Figure, found: Mapping[str, Subnetwork], names: Sequence[str]) -> None:
    """The colors, and the share of the weights that has each of them."""
    a, b = (np.concatenate([one.masks[name].flatten().numpy() for name in names]) for one in found.values())
    shares = {f"{subroutine} alone": share for subroutine, share in zip(found, (a & ~b, b & ~a), strict=True)}
    shares |= {"both": a & b, "neither": ~(a | b)}
    colors = [*(look.color for look in COMPARISONS.values()), NEITHER]
    handles = [Patch(color=color, label=f"{label}: {share.mean():.0%}")
               for color, (label, share) in zip(colors, shares.items(), strict=True)]  # fmt: skip
    layout.legend(figure, handles, columns=4, loc="lower center")
