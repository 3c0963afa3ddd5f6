"""Vision stimuli of *Break It Down*: data sets of outlines that are nested, in contact, or of a certain number.

Section 5, appendix E and Figures 1, 3 and 13 to 15. A cell is an image of closed outlines, 1 px wide without
antialiasing, on white; each outline has a random color that says nothing. An example is four cells, three that follow a
rule and the odd one. `scenes` says what the cells of each rule show, and how they differ from the authors' images.
`odd_one_out` says which kinds of cells make up a set.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.colors import hsv_to_rgb
from numpy.typing import NDArray

from subnet_utils.core.messages import nearest
from subnet_utils.tasks.odd_one_out import SPLITS, VISION_TASKS, OddOneOut, composition
from subnet_utils.tasks.scenes import MOST_SHAPES, ShapeSizes, random_scenes

CHUNK = 50
"""Examples drawn from one random stream; chunks are independent, so that a set may be drawn in parts."""


@dataclass(frozen=True)
class Stimuli:
    """The 4n cells of n examples, as drawings and palettes; the odd one of example i is cell 4i + 3.

    index: uint8 [4n, r, r], 0 for the background and k for the k-th shape; palette: uint8 [4n, k, 3], white first;
    kinds: int8 [4n], 0 to 3 (bit 0: first subroutine violated, bit 1: second).
    """

    index: NDArray
    palette: NDArray
    kinds: NDArray

    def odd_one_out(self) -> OddOneOut:
        """The same as an odd-one-out set with items uint8 [4n, 3, r, r]."""
        items = torch.from_numpy(rgb(self.index, self.palette))
        return OddOneOut(items, torch.arange(len(items)).reshape(-1, 4), torch.from_numpy(self.kinds))


def generate(
    task: str,
    set_name: str,
    n: int,
    *,
    seed: int,
    split: str,
    resolution: int = 128,
    first: int = 0,
    sizes: ShapeSizes = "ours",
) -> Stimuli:
    """n examples of one of the 15 sets of vision stimuli, from the `first` one on.

    A pure function of its arguments. The first k of n examples are those that n = k gives, and the others those that
    `first=k` gives. One core makes 300 or more examples a second at 128 pixels. Raises ValueError for an
    unknown task, set or split (naming the nearest one), a resolution below 32 pixels, a number out of range, or a first
    example that is no multiple of 50, as many as are drawn together.

    >>> one = generate("inside-contact", "base", 2, split="test", seed=0, resolution=32).odd_one_out()
    >>> one.items.shape, one.examples.shape
    (torch.Size([8, 3, 32, 32]), torch.Size([2, 4]))
    """
    for what, name, valid in (("vision task", task, VISION_TASKS), ("split", split, SPLITS)):
        if name not in valid:
            raise ValueError(f"unknown {what} '{name}'; {nearest(name, valid)}")
    numbers = {"n": (n, 1), "seed": (seed, 0), "resolution": (resolution, 32), "first": (first, 0)}
    for name, (number, least) in numbers.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < least:
            raise ValueError(f"{name} is {number!r}; it must be a whole number of at least {least}")
    if first % CHUNK:
        raise ValueError(f"first is {first}; it must be a multiple of {CHUNK}")
    chunks = range(first // CHUNK, -(-(first + n) // CHUNK))
    parts = zip(*(_chunk(task, set_name, seed, split, resolution, number, sizes) for number in chunks), strict=True)
    return Stimuli(*(np.concatenate(arrays)[: 4 * n] for arrays in parts))


def rgb(index: NDArray, palette: NDArray, *, out: NDArray | None = None) -> NDArray:
    """Colored cells, uint8 [m, 3, h, w], in `out` if given, of drawings [m, h, w] and palettes [m, k, 3], uint8."""
    items = np.empty((len(index), 3, *index.shape[1:]), dtype=np.uint8) if out is None else out
    for item, drawing, colors in zip(items, index, palette, strict=True):
        np.take(colors.T, drawing, axis=1, out=item, mode="clip")  # "raise" would go through a copy, six times slower
    return items


def _chunk(
    task: str, set_name: str, seed: int, split: str, resolution: int, number: int, sizes: ShapeSizes
) -> tuple[NDArray, NDArray, NDArray]:
    """Drawings, palettes and kinds of one chunk, with independent random streams for the scenes and the colors."""
    name = zlib.crc32(f"{task}/{set_name}/{split}".encode())
    streams = np.random.SeedSequence([seed, name, resolution, number]).spawn(2)
    geometry, colors = (np.random.default_rng(stream) for stream in streams)
    generator = torch.Generator().manual_seed(int(geometry.integers(2**31)))
    kinds = composition(task, set_name, CHUNK, both=True, generator=generator).numpy()
    scenes = random_scenes(task, kinds, resolution=resolution, rng=geometry, sizes=sizes)
    used = np.bincount(scenes.cell, minlength=kinds.size)
    return scenes.drawings(resolution), _palettes(used, MOST_SHAPES[task], colors), scenes.kinds


def _palettes(used: NDArray, most: int, rng: np.random.Generator) -> NDArray:
    """uint8 [cells, 1 + most, 3]: white, then one color per shape: hue and value in [0, 1], saturation in [.5, 1]."""
    colors = hsv_to_rgb(rng.uniform([0, 0.5, 0], [1, 1, 1], (len(used), most, 3)))
    palette = np.full((len(used), 1 + most, 3), 255, dtype=np.uint8)
    shown = np.arange(most) < used[:, None]
    palette[:, 1:][shown] = np.rint(255 * colors[shown])
    return palette
