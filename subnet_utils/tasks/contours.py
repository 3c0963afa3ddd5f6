"""Random closed contours, their outlines on the pixel grid, and where one outline may lie relative to another.

The shapes of *Break It Down* (section 5) come from Zerroug et al. (2022): a blob is four random points, one per
quadrant, joined by recursive midpoint displacement. A contour is drawn as a closed chain of pixels, 1 px wide, and a
shape is moved by whole pixels only. So the polygon through the pixel centers and the image always agree on what touches
what. `Placements` lists the offsets at which two outlines touch or are nested, and do not cross.

Everything works on many contours at once: they are stored one after the other (`Outlines`) and refined level by level.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

MAX_ROUNDS = 200
"""Rounds of rejection sampling before giving up; in practice a handful is enough."""


@dataclass(frozen=True)
class Outlines:
    """m closed polylines, stored one after the other.

    points: [p, 2] (x, y); starts: int [m + 1], outline i is points[starts[i]:starts[i + 1]], first point not repeated.
    """

    points: NDArray
    starts: NDArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray:
        return self.points[self.starts[i] : self.starts[i + 1]]

    @property
    def owner(self) -> NDArray:
        """int [p]: the outline that each point belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @property
    def following(self) -> NDArray:
        """int [p]: index of the next point on the same closed outline."""
        following = np.arange(1, len(self.points) + 1)
        following[self.starts[1:] - 1] = self.starts[:-1]
        return following

    @property
    def extents(self) -> NDArray:
        """int [m, 2]: width and height in pixels of outlines on the pixel grid whose least coordinates are 0."""
        return np.maximum.reduceat(self.points, self.starts[:-1]) + 1

    def moved(self, by: NDArray) -> "Outlines":
        """The outlines, each moved by its own (x, y) [m, 2]."""
        return Outlines(self.points + by[self.owner], self.starts)

    def take(self, rows: NDArray) -> "Outlines":
        """The outlines of these rows [k], in this order; a row may come more than once."""
        counts = np.diff(self.starts)[rows]
        taken = _group(self.points[:0], counts).starts
        return Outlines(self.points[np.repeat(self.starts[rows] - taken[:-1], counts) + np.arange(taken[-1])], taken)


def _group(points: NDArray, counts: NDArray) -> Outlines:
    return Outlines(points, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def concatenate(parts: list[Outlines]) -> Outlines:
    """All outlines of several collections, in order."""
    return _group(np.concatenate([p.points for p in parts]), np.concatenate([np.diff(p.starts) for p in parts]))


def random_contours(n: int, *, inner_radius: float, gap: float, rng: np.random.Generator) -> Outlines:
    """n random closed contours that fill the unit square.

    Four points, one per quadrant, in the annulus inner_radius <= r <= 0.5; consecutive ones joined by midpoint
    displacement until no segment is wider or higher than `gap`. A contour that enters the inner disc is thrown away.
    The others are rotated at random and scaled, each axis by itself, to the unit bounding box (Zerroug et al., 2022).
    Raises RuntimeError if the annulus is too thin to find n contours.
    """
    found: list[Outlines] = []
    missing, tried = n, 0
    for _ in range(MAX_ROUNDS):
        batch = 8 + int(1.2 * missing * np.clip(tried / (n - missing + 1), 1.5, 20))
        contours = _refined(_quadrants(batch, inner_radius, rng), inner_radius, gap, rng)
        found.append(_to_unit_box(contours, rng))
        missing, tried = missing - len(contours), tried + batch
        if missing <= 0:
            return concatenate(found).take(np.arange(n))
    raise RuntimeError(f"found only {n - missing} of {n} contours of inner radius {inner_radius}; use a smaller one")


def _quadrants(n: int, inner_radius: float, rng: np.random.Generator) -> Outlines:
    """n squares of four points, each uniform over its quadrant of the annulus."""
    points = np.zeros((4 * n, 2))
    todo = np.arange(4 * n)
    while len(todo):
        points[todo] = rng.uniform(0, 0.5, (len(todo), 2))
        radius = np.hypot(*points[todo].T)
        todo = todo[(radius < inner_radius) | (radius > 0.5)]
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    return _group(points * np.tile(signs, (n, 1)), np.full(n, 4))


def _refined(contours: Outlines, inner_radius: float, gap: float, rng: np.random.Generator) -> Outlines:
    """Midpoint displacement, level by level: what recursion would do to each segment, for all segments at once."""
    while True:
        chords = contours.points[contours.following] - contours.points
        long = np.flatnonzero((np.abs(chords) > gap).any(axis=1))
        if not len(long):
            return contours
        middles = _displaced(contours.points[long] + chords[long] / 2, np.hypot(*chords[long].T) / 5, rng)
        owner = contours.owner
        alive = np.ones(len(contours), dtype=bool)
        alive[owner[long][np.hypot(*middles.T) < inner_radius]] = False
        counts = np.bincount(np.concatenate([owner, owner[long]]), minlength=len(contours))
        contours = _group(np.insert(contours.points, long + 1, middles, axis=0), counts).take(np.flatnonzero(alive))


def _displaced(middles: NDArray, reach: NDArray, rng: np.random.Generator) -> NDArray:
    """Each middle moved uniformly inside a disc of radius `reach`, again and again until it lies within r <= 0.5."""
    moved = np.empty_like(middles)
    todo = np.arange(len(middles))
    while len(todo):
        angle = rng.uniform(0, 2 * np.pi, len(todo))
        radius = reach[todo] * np.sqrt(rng.uniform(0, 1, len(todo)))
        moved[todo] = middles[todo] + np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        todo = todo[np.hypot(*moved[todo].T) > 0.5]
    return moved


def _to_unit_box(contours: Outlines, rng: np.random.Generator) -> Outlines:
    if not len(contours):
        return contours
    angle = rng.uniform(0, 2 * np.pi, len(contours))[contours.owner]
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = contours.points.T
    points = np.stack([cos * x - sin * y, sin * x + cos * y], axis=1)
    low = np.minimum.reduceat(points, contours.starts[:-1])
    high = np.maximum.reduceat(points, contours.starts[:-1])
    return Outlines((points - low[contours.owner]) / (high - low)[contours.owner], contours.starts)


def on_grid(contours: Outlines, sizes: NDArray) -> Outlines:
    """Pixel chains of contours in the unit square, each drawn `sizes` [m] pixels wide and high.

    Vertices are rounded to pixels and joined by straight lines, one pixel per step, so that consecutive pixels are
    8-neighbors. Points int [p, 2] from 0 to round(size) - 1.
    """
    corners = np.rint(contours.points * (np.rint(sizes) - 1)[contours.owner, None]).astype(np.int64)
    steps = corners[contours.following] - corners
    lengths = np.abs(steps).max(axis=1)
    segment = np.repeat(np.arange(len(corners)), lengths)
    along = np.arange(len(segment)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chain = corners[segment] + np.rint(steps[segment] * (along / lengths[segment])[:, None]).astype(np.int64)
    return _group(chain, np.bincount(contours.owner, weights=lengths, minlength=len(contours)).astype(np.int64))


@dataclass(frozen=True)
class Placements:
    """Where a second outline may lie from a first one: bool [h, w], indexed by offsets [y, x] + origin in pixels.

    touching_inside, touching_outside, clear_inside: it lies in the first and touches it, touches it from outside, lies
    in it and keeps the gap. wrong: the two cross, or neither touch nor keep the gap.
    """

    touching_inside: NDArray
    touching_outside: NDArray
    clear_inside: NDArray
    wrong: NDArray
    origin: NDArray

    @property
    def all_possible(self) -> bool:
        """Whether the second can touch the first from inside and from outside, and lie in it clearly."""
        return bool(self.touching_inside.any() and self.touching_outside.any() and self.clear_inside.any())

    def offsets(self, where: NDArray) -> NDArray:
        """int [k, 2]: the offsets (x, y) at which one of the tables holds."""
        return np.argwhere(where)[:, ::-1] - self.origin

    def forbidden(self, offsets: NDArray) -> NDArray:
        """bool [...]: whether offsets [..., 2] are wrong; those beyond the table are too far for that."""
        positions = np.clip(offsets + self.origin, 0, np.array(self.wrong.shape[::-1]) - 1)
        return self.wrong[positions[..., 1], positions[..., 0]]


def placements(first: Outlines, second: Outlines, gaps: NDArray) -> list[Placements]:
    """Where second[i] may lie relative to first[i], with its own gap [m] in pixels (at least 2).

    Two outlines touch if some of their pixels are 8-neighbors; they cross if they share a pixel, or one slips through
    the other between two diagonal neighbors; the gap is between pixel centers (Chebyshev). Inside means inside the
    polygon, by the even-odd rule. Outside means that the shape could be moved away in steps that cross no outline
    pixel. A bay that neighboring pixels close is neither.
    """
    masks = _masks(first)
    stacks = masks, _barriers(masks), _interiors(first, masks.shape), _exteriors(masks)
    return [_placements(*one, second[i], int(gaps[i])) for i, one in enumerate(zip(*stacks, strict=True))]


def _placements(
    outline: NDArray, barrier: NDArray, inside: NDArray, outside: NDArray, chain: NDArray, gap: int
) -> Placements:
    origin = chain.max(axis=0) + gap
    shape = tuple(np.array(outline.shape) + origin[::-1] + gap)
    rows, columns = (slice(start, start + outline.shape[0]) for start in (origin - chain[0])[::-1])
    within, without = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
    within[rows, columns], without[rows, columns] = inside, outside
    shared = _collisions(outline, chain, origin, shape)
    crossing = shared | _collisions(barrier & ~outline, chain, origin, shape)
    near, crowded = (ndimage.maximum_filter(shared, 2 * reach + 1) for reach in (1, gap - 1))
    touching = near & ~crossing
    ways = touching & within, touching & without, ~crowded & within
    return Placements(*ways, wrong=crossing | (crowded & ~near), origin=origin + 1)  # masks have a margin of one pixel


def _collisions(pixels: NDArray, chain: NDArray, origin: NDArray, shape: tuple[int, ...]) -> NDArray:
    """bool `shape`: offsets, shifted by origin, at which a pixel of the chain falls on one of `pixels` [h, w]."""
    y, x = np.nonzero(pixels)
    fixed = (y + origin[1]) * shape[1] + x + origin[0]
    moving = chain[:, 1] * shape[1] + chain[:, 0]
    grid = np.zeros(shape, dtype=bool)
    grid.reshape(-1)[fixed[:, None] - moving[None, :]] = True
    return grid


def _masks(outlines: Outlines) -> NDArray:
    """bool [m, side, side]: the outlines' pixels, with a margin of one pixel on every side."""
    side = int(outlines.points.max()) + 3
    masks = np.zeros((len(outlines), side, side), dtype=bool)
    masks[outlines.owner, outlines.points[:, 1] + 1, outlines.points[:, 0] + 1] = True
    return masks


def _interiors(outlines: Outlines, shape: tuple[int, int, int]) -> NDArray:
    """bool `shape`: what has an odd number of chain steps to the next row at its left; right off the outlines only."""
    (x, y), (next_x, next_y) = outlines.points.T + 1, outlines.points[outlines.following].T + 1
    crossing = y != next_y
    row, column = np.minimum(y, next_y)[crossing], ((x + next_x) // 2 + 1)[crossing]
    flips = np.zeros(shape, dtype=np.uint8)
    np.add.at(flips, (outlines.owner[crossing], row, column), 1)
    return np.cumsum(flips, axis=2, dtype=np.uint8) % 2 == 1


def _exteriors(masks: NDArray) -> NDArray:
    """bool [m, side, side]: background that is 4-connected to the margin."""
    within_image = np.zeros((3, 3, 3), dtype=bool)
    within_image[1] = ndimage.generate_binary_structure(2, 1)
    regions, _ = ndimage.label(~masks, structure=within_image)
    return regions == regions[:, :1, :1]


def _barriers(masks: NDArray) -> NDArray:
    """Outlines made 4-connected, so that no 8-connected chain can slip through between two diagonal neighbors."""
    barriers = masks.copy()
    falling = masks[:, :-1, :-1] & masks[:, 1:, 1:]
    rising = masks[:, 1:, :-1] & masks[:, :-1, 1:]
    barriers[:, :-1, 1:] |= falling
    barriers[:, 1:, :-1] |= falling
    barriers[:, :-1, :-1] |= rising
    barriers[:, 1:, 1:] |= rising
    return barriers
