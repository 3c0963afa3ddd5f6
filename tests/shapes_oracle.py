"""What the cells of the vision tasks show, read from their polygons with shapely, without the generator's code.

Two outlines touch if they come closer than CONTACT pixels: 8-neighboring pixels are at most sqrt(2) apart, and pixels
with a clear one between them at least 2. A shape is nested in another one if its outline lies in the area that the
other outline encloses.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import shapely
from numpy.typing import NDArray

CONTACT = 1.7


@dataclass(frozen=True)
class Reading:
    """shapes: how many; touching: unordered pairs; nested: (outer, inner); crossing: outlines meet in a point."""

    shapes: int
    touching: frozenset[tuple[int, int]]
    nested: frozenset[tuple[int, int]]
    crossing: bool

    @property
    def lone(self) -> int:
        """Shapes that are not part of exactly one nested pair."""
        memberships = Counter(shape for pair in self.nested for shape in pair)
        return sum(memberships[shape] != 1 for shape in range(self.shapes))

    @property
    def clumps(self) -> tuple[int, ...]:
        """Sizes of the groups of shapes that hang together by touching, largest first."""
        group = list(range(self.shapes))
        for i, j in self.touching:
            group = [group[i] if g == group[j] else g for g in group]
        return tuple(sorted(Counter(group).values(), reverse=True))


def read(polygons: list[NDArray]) -> Reading:
    """Read one cell."""
    outlines = [shapely.LineString(np.concatenate([points, points[:1]])) for points in polygons]
    areas = [shapely.union_all(list(shapely.polygonize([shapely.unary_union(line)]).geoms)) for line in outlines]
    pairs = list(combinations(range(len(polygons)), 2))
    distances = {(i, j): shapely.distance(outlines[i], outlines[j]) for i, j in pairs}
    return Reading(
        shapes=len(polygons),
        touching=frozenset(pair for pair, distance in distances.items() if distance < CONTACT),
        nested=frozenset(
            (i, j) for i, j in permutations(range(len(polygons)), 2) if shapely.covers(areas[i], outlines[j])
        ),
        crossing=any(distance == 0 for distance in distances.values()),
    )


def kind(task: str, reading: Reading, n: int) -> int | None:
    """Kind of a cell in an example of number n (bit 0: first subroutine violated, bit 1: second); None if it shows
    nothing that belongs to the task."""
    if reading.crossing:
        return None
    return {"inside-contact": _inside_contact, "inside-number": _inside_number, "number-contact": _number_contact}[
        task
    ](reading, n)


def _inside_contact(reading: Reading, n: int) -> int | None:
    if reading.shapes != 2:
        return None
    return (not reading.nested) + 2 * (not reading.touching)


def _inside_number(reading: Reading, n: int) -> int | None:
    """n pairs: 2n shapes."""
    pairs = len(reading.nested)
    # Number of nested pairs and of lone shapes of each kind (a lone large and a lone small one, or either).
    valid = {0: {(n, 0)}, 1: {(n - 1, 2)}, 2: {(n - 1, 0), (n + 1, 0)}, 3: {(n - 1, 1), (n, 1)}}
    kind = (reading.lone > 0) + 2 * (reading.shapes != 2 * n)
    return kind if not reading.touching and (pairs, reading.lone) in valid[kind] else None


def _number_contact(reading: Reading, n: int) -> int | None:
    kind = (reading.shapes != n) + 2 * (len(reading.clumps) > 1)
    count = reading.shapes
    whole = reading.clumps == (count,) or reading.clumps == (count - 1, 1)
    return kind if whole and not reading.nested and abs(count - n) <= 1 and count > 1 else None
