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

from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.overlap_figures import COMPARISONS, layer_order, short_layer

NEITHER = "#ececec"
"""Color of a weight that is in no subnetwork."""
WIDTH, GAP, TITLE, LEGEND = 7.0, 0.1, 0.19, 0.35
"""Inches: of the map's width, between two weights, and of the heights of their names and of the legend."""
LETTER = 0.056
"""Inches of a letter of a name."""
LARGEST_ENTRY = 0.03
"""Inches of an entry where the network is small."""
DOTS = 150
"""To the inch, an entry each as far as blocks of the network can be laid out so."""


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
    pictures = {name: _colored(first.masks[name], second.masks[name]) for name in names}
    shelves = _shelves(pictures)
    scale = min(LARGEST_ENTRY, *(_fitting(shelf, pictures) for shelf in shelves))
    places, width, height = _places(shelves, pictures, scale)
    figure = plt.figure(figsize=(max(width, WIDTH), height + LEGEND), layout="none")
    for name, place in places.items():
        ax = _drawn(figure, pictures[name], short_layer(name), place, scale)
        if heads:
            _head_lines(ax, name, heads, *pictures[name].shape[:2])
    _legend(figure, found, names)
    return figure


def _colored(first: Tensor, second: Tensor) -> np.ndarray:
    """Colors [rows, columns, 3] of a weight's entries."""
    a, b = (mask.flatten(1).numpy() for mask in (first, second))
    if a.shape[0] > a.shape[1]:
        a, b = a.T, b.T
    colors = np.array([to_rgb(color) for color in (NEITHER, *(look.color for look in COMPARISONS.values()))])
    return colors[a + 2 * b.astype(int)]


Line = list[str]
Block = list[Line]


def _blocks(pictures: Mapping[str, np.ndarray]) -> list[Block]:
    """The blocks of the network, each in lines no longer than its longest weight. One that finds room at the end of the
    last line, as a small head does, has none of its own."""
    blocks: list[Block] = []
    for _, own in groupby(pictures, key=lambda name: layer_order(name)[:3]):
        names = list(own)
        if blocks and _length([*blocks[-1][-1], *names], pictures) <= _longest(blocks[-1], pictures):
            blocks[-1][-1] += names
            continue
        longest = max(pictures[name].shape[1] for name in names)
        lines: Block = [[]]
        for name in names:
            if _length([*lines[-1], name], pictures) > longest:
                lines.append([])
            lines[-1].append(name)
        blocks.append(lines)
    return blocks


def _shelves(pictures: Mapping[str, np.ndarray]) -> list[list[Block]]:
    """Blocks side by side, as many as leave an entry about a dot, or, of large networks, as make a page of them."""
    blocks = _blocks(pictures)
    area = sum(picture.shape[0] * picture.shape[1] for picture in pictures.values())
    room = max(1.2 * WIDTH * DOTS, 1.5 * math.sqrt(area))
    shelves: list[list[Block]] = [[]]
    for block in blocks:
        if shelves[-1] and sum(_longest(other, pictures) for other in [*shelves[-1], block]) > room:
            shelves.append([])
        shelves[-1].append(block)
    return shelves


def _length(line: Line, pictures: Mapping[str, np.ndarray]) -> int:
    return sum(pictures[name].shape[1] for name in line)


def _longest(block: Block, pictures: Mapping[str, np.ndarray]) -> int:
    return max(_length(line, pictures) for line in block)


def _fitting(shelf: Sequence[Block], pictures: Mapping[str, np.ndarray]) -> float:
    """Inches of an entry with which a shelf is as wide as the map."""
    gaps = sum(max(map(len, block)) for block in shelf) - 1
    return (WIDTH - GAP * gaps) / sum(_longest(block, pictures) for block in shelf)


def _places(
    shelves: Sequence[Sequence[Block]], pictures: Mapping[str, np.ndarray], scale: float
) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Where each weight's upper left corner is, in inches from the map's, and how wide and high that is."""
    places, width, top = {}, 0.0, 0.0
    for shelf in shelves:
        left, bottom = 0.0, top
        for block in shelf:
            right, below = left, top
            for line in block:
                across = left
                for name in line:
                    places[name] = across, below + TITLE
                    across += max(scale * pictures[name].shape[1], LETTER * len(short_layer(name))) + GAP
                right, below = max(right, across), below + TITLE + scale * max(len(pictures[name]) for name in line)
            left, bottom = right, max(bottom, below)
        width, top = max(width, left - GAP), bottom
    return places, width, top


def _drawn(figure: Figure, picture: np.ndarray, name: str, place: tuple[float, float], scale: float) -> Axes:
    """One weight, its name above it."""
    size = figure.get_size_inches()
    width, height = scale * np.array(picture.shape[1::-1]) / size
    left, top = np.array(place) / size
    ax = figure.add_axes((left, 1 - top - height, width, height))
    rows, columns = picture.shape[:2]
    ax.imshow(_mixed(picture, max(1, int(1 / (scale * DOTS)))), aspect="auto", extent=(0, columns, rows, 0))
    ax.set_axis_off()
    ax.set_title(name, loc="left", size=7, weight="normal", pad=2)
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
    look = {"color": "#111111", "lw": 0.6}
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
    figure.legend(handles=handles, loc="lower center", ncols=4)
