"""The geometry of the vision stimuli: which outlines a cell holds for each rule and kind, and where they lie.

*Break It Down*, section 5 and appendix E. A cell is an image; its kind says which of its task's two subroutines it
violates (0 neither, 1 the first, 2 the second, 3 both):

inside-contact  Two shapes; the smaller one is inside the larger one or outside, and touches it or does not.
inside-number   N = 2 or 3 nested pairs. Number violated: N - 1 or N + 1 pairs. Inside violated: N - 1 pairs, a lone
                large and a lone small shape (as many shapes as in N pairs). Both: N - 1 or N pairs and one lone shape.
number-contact  N = 2 or 3 copies of one outline in one clump; all four cells of an example show the same outline.
                Number violated: a clump of N - 1 or N + 1 (at least 2). Contact violated: one copy of the N stands
                apart. Both: N - 1 or N + 1 copies, one of them apart.

Our stimuli differ from the authors' where theirs have wrong labels, or give the label away:
- Labels are exact, for the polygons and for the pixels. Shapes in contact have 8-neighboring pixels; they share none
  and do not cross. Other shapes keep 3 px between pixel centers (2 px below a resolution of 64), nested ones also a
  tenth of the outer size. Groups (a pair, a clump, a lone shape) have separate bounding boxes.
- In inside-number no two shapes touch, so contact carries no information (the authors' nested pairs touch in 41% of the
  images).
- A large and a small shape are always drawn as a pair that could be nested, with or without touching, or touch from
  outside, whatever the cell then shows. So the sizes of shapes, and the ink, say nothing about the kind.

The paper does not print sizes. Those in inside-contact are the authors'. Those under the two number rules are ours, so
that four pairs, or four copies, fit into a cell at any resolution from 32 on; or the authors', at 128 (`ShapeSizes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from subnet_utils.tasks.contours import (
    MAX_ROUNDS,
    Outlines,
    Placements,
    concatenate,
    on_grid,
    placements,
    random_contours,
)

MOST_SHAPES = {"inside-contact": 2, "inside-number": 8, "number-contact": 4}
"""Shapes in the fullest cell of each task."""
TRIES = 64
"""Random candidates looked at together wherever a free place is sought."""
ShapeSizes = Literal["ours", "authors"]
"""Of shapes under the two number rules."""
COPY_SIZES = (0.15, 0.24)
"""Range of the size of an outline in number-contact, in cells."""
AUTHORS_COPY_SIZES = {2: (0.16, 0.29), 3: (0.145, 0.25)}
"""In the authors' images it depends on N; there the largest is .31, of which three find no room for a clump."""
AUTHORS_SIZES = (0.12, 0.19, 0.46)
"""Least, median and largest outer size that are tried in inside-number; below and above the median the logarithm is
uniform. More of the small ones have no room for a partner, so that in the images the median is the authors' .22. Their
largest is .49, but two of these leave no gap."""
LEAST_PIXELS = {"outer": 10, "inner": 3, "copy": 5}
"""Least sizes; they bind only below a resolution of 64."""
FINEST = 0.5
"""Contours are not refined below half a pixel, where a midpoint moves by no more than a tenth of one."""

PAIR_SIZES = {"inside-contact": (0.25, 0.5), "inside-number": (0.2, 0.3)}
"""Range of the outer size, in cells, ours; the inner one is a fraction of 1 / 4 to 1 / 2.5 of it."""
OUTER_GAPS = {"inside-contact": 0.07, "inside-number": 0.08}
INNER_GAP, COPY_GAP = 0.01, 0.007
"""Finest segments of contours, in units of their size (`random_contours`)."""

Group = list[tuple[int, Sequence[int]]]
"""A rigid set of shapes: row among the outlines, and place (x, y) relative to the others, in pixels."""
Cell = list[Group]
"""One image: groups that stand apart from each other."""


@dataclass(frozen=True)
class Scenes:
    """The geometry of some cells: outlines on the pixel grid, (x, y) with whole numbers at pixel centers.

    cell: int [m], the cell of each outline, in ascending order; kinds: int8 [cells].
    """

    outlines: Outlines
    cell: NDArray
    kinds: NDArray

    def drawings(self, resolution: int) -> NDArray:
        """uint8 [cells, r, r]: each outline's pixels hold its number within its cell, counted from 1."""
        number = np.arange(len(self.cell)) - np.searchsorted(self.cell, self.cell) + 1
        drawings = np.zeros((len(self.kinds), resolution, resolution), dtype=np.uint8)
        owner, (x, y) = self.outlines.owner, self.outlines.points.T
        drawings[self.cell[owner], y, x] = number[owner]
        return drawings


def random_scenes(
    task: str, kinds: NDArray, *, resolution: int, rng: np.random.Generator, sizes: ShapeSizes = "ours"
) -> Scenes:
    """Cells of the given kinds, int [n, 4], for n examples of a vision task; N is drawn for each example.

    Raises RuntimeError if the bounded search for a shape or a free place fails; below a resolution of 32 it may.
    """
    cells_of = {"inside-contact": _inside_contact, "inside-number": _inside_number, "number-contact": _number_contact}
    outlines, cells = cells_of[task](kinds, resolution, rng, sizes)
    rows, cell, corners = _laid_out(cells, outlines.extents, resolution, rng)
    placed = outlines.take(rows)
    return Scenes(placed.moved(corners), cell, kinds.reshape(-1).astype(np.int8))


def least_gap(resolution: int) -> int:
    """Pixels between the centers of pixels of shapes that do not touch: 3, so two clear ones; 2 below 64."""
    return 3 if resolution >= 64 else 2


def _inside_contact(
    kinds: NDArray, resolution: int, rng: np.random.Generator, sizes: ShapeSizes
) -> tuple[Outlines, list[Cell]]:
    outlines, positions = _pairs("inside-contact", kinds.size, resolution, rng, sizes)
    cells = []
    for i, (kind, place) in enumerate(zip(kinds.flat, positions, strict=True)):
        large, small = 2 * i, 2 * i + 1
        if kind == 3:
            cells.append([[(large, (0, 0))], [(small, (0, 0))]])
        else:
            way = (place.touching_inside, place.touching_outside, place.clear_inside)[kind]
            cells.append([[(large, (0, 0)), (small, rng.choice(place.offsets(way)))]])
    return outlines, cells


def _inside_number(
    kinds: NDArray, resolution: int, rng: np.random.Generator, sizes: ShapeSizes
) -> tuple[Outlines, list[Cell]]:
    n = np.repeat(rng.integers(2, 4, len(kinds)), 4)
    kinds = kinds.reshape(-1)
    nested = np.choose(kinds, [n, n - 1, _other_number(n, 1, rng), n - rng.integers(0, 2, len(n))])
    pairs = nested + kinds % 2  # lone shapes come from a pair too, so that their sizes say nothing
    outlines, positions = _pairs("inside-number", int(pairs.sum()), resolution, rng, sizes)
    cells = []
    for kind, count, pair in zip(kinds, nested, np.cumsum(pairs) - pairs, strict=True):
        together = range(pair, pair + count)
        cell = [
            [(2 * i, (0, 0)), (2 * i + 1, rng.choice(positions[i].offsets(positions[i].clear_inside)))]
            for i in together
        ]
        alone = ([], [0, 1], [], [int(rng.integers(2))])[kind]
        cells.append(cell + [[(2 * (pair + count) + which, (0, 0))] for which in alone])
    return outlines, cells


def _number_contact(
    kinds: NDArray, resolution: int, rng: np.random.Generator, sizes: ShapeSizes
) -> tuple[Outlines, list[Cell]]:
    first = rng.integers(2, 4, len(kinds)) if sizes == "authors" else None  # their sizes depend on it
    low, high = COPY_SIZES if first is None else np.array([AUTHORS_COPY_SIZES[n] for n in first]).T
    extents = np.maximum(rng.uniform(low, high, len(kinds)) * resolution, LEAST_PIXELS["copy"])
    gap = max(COPY_GAP, FINEST / extents.max())
    outlines = on_grid(random_contours(len(kinds), inner_radius=0.05, gap=gap, rng=rng), extents)
    itself = placements(outlines, outlines, np.full(len(kinds), least_gap(resolution)))
    n = np.repeat(rng.integers(2, 4, len(kinds)) if first is None else first, 4).reshape(kinds.shape)
    counts = np.where(kinds % 2, _other_number(n, 2, rng), n)
    cells = []
    for (row, column), kind in np.ndenumerate(kinds):
        separate = int(kind >= 2)
        clump = _clump(counts[row, column] - separate, itself[row], outlines.extents[row], resolution, rng)
        cells.append([[(row, offset) for offset in clump]] + separate * [[(row, (0, 0))]])
    return outlines, cells


def _other_number(n: NDArray, least: int, rng: np.random.Generator) -> NDArray:
    """n - 1 or n + 1 with equal chances, and n + 1 where n - 1 is below the least."""
    other = n + rng.choice([-1, 1], n.shape)
    return np.where(other < least, n + 1, other)


def _pairs(
    task: str, n: int, resolution: int, rng: np.random.Generator, sizes: ShapeSizes
) -> tuple[Outlines, list[Placements]]:
    """n pairs of outlines, the outer one in row 2i and the inner one in row 2i + 1, that can be placed in every way."""
    found: list[Outlines] = []
    positions: list[Placements] = []
    for _ in range(MAX_ROUNDS):
        outers, inners, gaps = _random_pairs(task, n - len(positions) + n // 8 + 4, resolution, rng, sizes)
        tried = placements(outers, inners, gaps)
        good = [i for i, place in enumerate(tried) if place.all_possible][: n - len(positions)]
        order = np.stack([good, np.array(good, dtype=int) + len(outers)], axis=1).reshape(-1).astype(int)
        found.append(concatenate([outers, inners]).take(order))
        positions += [tried[i] for i in good]
        if len(positions) == n:
            return concatenate(found), positions
    raise RuntimeError(f"found only {len(positions)} of {n} nested pairs for '{task}'; use a higher resolution")


def _random_pairs(
    task: str, n: int, resolution: int, rng: np.random.Generator, sizes: ShapeSizes
) -> tuple[Outlines, Outlines, NDArray]:
    """n outer and n inner outlines, and the gap [n] in pixels to keep between them where they do not touch."""
    shares = rng.uniform(*PAIR_SIZES[task], n)
    if (task, sizes) == ("inside-number", "authors"):
        shares = np.exp(np.interp(rng.random(n), [0, 0.5, 1], np.log(AUTHORS_SIZES)))
    outer = np.maximum(shares * resolution, LEAST_PIXELS["outer"])
    inner = np.maximum(outer * rng.uniform(1 / 4, 1 / 2.5, n), LEAST_PIXELS["inner"])
    gaps = np.maximum(least_gap(resolution), np.ceil(0.1 * outer)).astype(int)
    outers = random_contours(n, inner_radius=0.2, gap=OUTER_GAPS[task], rng=rng)
    inners = random_contours(n, inner_radius=0.05, gap=max(INNER_GAP, FINEST / inner.max()), rng=rng)
    return on_grid(outers, outer), on_grid(inners, inner), gaps


def _clump(count: int, itself: Placements, extent: NDArray, resolution: int, rng: np.random.Generator) -> NDArray:
    """Offsets [count, 2] of copies of an outline, each touching an earlier one; any two touch or keep the gap."""
    touching = itself.offsets(itself.touching_outside)
    slack = 0.04 * resolution  # so that a free place for both is soon found
    # for one more copy on each axis, even if the cell has no lone one: so clumps look the same in both kinds of cells
    room = resolution - 2 - extent - least_gap(resolution) - slack
    for _ in range(MAX_ROUNDS):
        clump = np.zeros((1, 2), dtype=int)
        while len(clump) < count:
            tried = clump[rng.integers(len(clump), size=TRIES)] + touching[rng.integers(len(touching), size=TRIES)]
            span = np.maximum(tried, clump.max(axis=0)) - np.minimum(tried, clump.min(axis=0)) + extent
            fits = np.flatnonzero((span <= room).all(axis=1))
            free = fits[~itself.forbidden(tried[fits, None] - clump).any(axis=1)]
            if not len(free):
                break
            clump = np.concatenate([clump, tried[free[:1]]])
        if len(clump) == count:
            return clump
    raise RuntimeError(f"found no clump of {count} shapes; use a resolution above {resolution}")


def _laid_out(
    cells: list[Cell], extents: NDArray, resolution: int, rng: np.random.Generator
) -> tuple[NDArray, NDArray, NDArray]:
    """Rows [m] of all shapes of all cells, their cells [m] and the top left pixels [m, 2] of their bounding boxes."""
    flat = [(i, j, *shape) for i, cell in enumerate(cells) for j, group in enumerate(cell) for shape in group]
    cell, part, rows = (np.array(column) for column in list(zip(*flat, strict=True))[:3])
    offsets = np.array([offset for *_, offset in flat])
    first = np.flatnonzero(np.diff(cell, prepend=-1) | np.diff(part, prepend=-1))  # of each group
    low = np.minimum.reduceat(offsets, first)
    boxes = np.zeros((len(cells), part.max() + 1, 2), dtype=int)
    boxes[cell[first], part[first]] = np.maximum.reduceat(offsets + extents[rows], first) - low
    corners = _free_positions(boxes, resolution, rng)[cell, part]
    return rows, cell, corners + offsets - np.repeat(low, np.diff(first, append=len(rows)), axis=0)


def _free_positions(boxes: NDArray, resolution: int, rng: np.random.Generator) -> NDArray:
    """Top left pixels [m, g, 2] for boxes [m, g, 2] (0: none): uniform, given the gap and a free pixel at the edges.

    For boxes so large that no such place is soon found, places near the edges are tried more often.
    """
    positions = np.zeros_like(boxes)
    todo = np.arange(len(boxes))
    for round_ in range(MAX_ROUNDS):
        size = boxes[todo, None]
        shape = (len(todo), TRIES, *boxes.shape[1:])
        where = rng.random(shape) if round_ < MAX_ROUNDS // 2 else rng.beta(0.2, 0.2, shape)
        tried = 1 + np.floor(np.minimum(where, 1 - 1e-9) * (resolution - 1 - size)).astype(int)
        free = _spaced(tried, size, least_gap(resolution))
        found = free.any(axis=1)
        positions[todo[found]] = tried[found, free.argmax(axis=1)[found]]
        todo = todo[~found]
        if not len(todo):
            return positions
    raise RuntimeError(f"found no free place for {(boxes[todo[0], :, 0] > 0).sum()} groups at resolution {resolution}")


def _spaced(low: NDArray, size: NDArray, gap: int) -> NDArray:
    """bool [m, t]: whether no two boxes (corners [m, t, g, 2], sizes [m, 1, g, 2]) are closer than the gap."""
    free = np.ones(low.shape[:2], dtype=bool)
    for i in range(low.shape[2]):
        for j in range(i):
            after = low[:, :, i] - low[:, :, j] > size[:, :, j] + gap - 2
            before = low[:, :, j] - low[:, :, i] > size[:, :, i] + gap - 2
            absent = (size[:, :, i, 0] == 0) | (size[:, :, j, 0] == 0)
            free &= (after | before).any(axis=2) | absent
    return free
