"""Mean-pooled images, and image sets from folders (*Instilling Inductive Biases with Subnetworks*, section 5.1).

Mean pooling gives every pixel the mean of its segment: local texture is gone, global shape is left. The paper takes the
segments from Segment Anything; without its weights, a classical segmentation takes its place. Sets come from folders in
torchvision's layout, one folder for each class: 16-class ImageNet, and the cue-conflict images of Geirhos et al. (2019)
without those whose two cues agree.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from subnet_utils.core.messages import first_line, nearest

POINTS, SMALLEST = 16, 100
"""Segment Anything gets a grid of 16 x 16 points on the image, and of 8 x 8 on each of its quarters. Segments of fewer
pixels than the second number are dropped."""


class ImageError(ValueError):
    """A folder lacks a class, or a file is no image; the message names it and the remedy."""


@dataclass(frozen=True)
class ImageSet:
    """Images and what they show. pixels: uint8 [n, 3, r, r]; shapes, textures: int64 [n], numbers of classes.

    In an ordinary image shape and texture are of the same class.
    """

    pixels: Tensor
    shapes: Tensor
    textures: Tensor


def mean_pool(image: NDArray[np.uint8], segments: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Paint each segment with its mean color. Large ones come first, so that a smaller one lies over a larger one.

    image: [h, w, 3]; segments: [k, h, w], which may overlap. A mean is over all original pixels of the segment. Pixels
    that are in no segment get their common mean.
    """
    painted = np.empty_like(image)
    large_first = np.argsort(-segments.sum(axis=(1, 2)), kind="stable")
    for where in (~segments.any(axis=0), *segments[large_first]):
        if where.any():
            painted[where] = image[where].mean(axis=0).round()
    return painted


def classical_segments(image: NDArray[np.uint8], *, scale: float) -> NDArray[np.bool_]:
    """Segments by Felzenszwalb and Huttenlocher's graph method: [k, h, w], a partition.

    scale: larger for larger segments; none is smaller than a hundredth of the image.
    """
    from skimage.segmentation import felzenszwalb  # a third of a second to import, needed by few

    found = felzenszwalb(image, scale=scale, sigma=0.5, min_size=image.shape[0] * image.shape[1] // 100)
    return found[None] == np.arange(found.max() + 1)[:, None, None]


def segment_anything(source: str, device: torch.device) -> Callable[[NDArray[np.uint8]], NDArray[np.bool_]]:
    """Segments of the image, and then of its four quarters, by a Segment Anything model from a local folder or a hub.

    Raises ImageError if there is no such model; at the first image also if torchvision's operators are missing.
    """
    generate = _mask_generation(source, str(device))

    def found(image: NDArray[np.uint8], points: int) -> NDArray[np.bool_]:
        try:
            masks = generate(Image.fromarray(image), points_per_crop=points)["masks"]
        except RuntimeError as error:
            if "custom C++ ops" not in str(error):
                raise
            what = "mask generation needs torchvision's compiled operators, which do not load beside this torch"
            raise ImageError(f"{what}; install the torchvision built for it, or leave out 'segment_anything'") from None
        return np.array([np.asarray(mask) for mask in masks], dtype=bool).reshape(-1, *image.shape[:2])

    def segments(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
        # not with the library's own crops: version 5.13 fails on crops with fewer points than the whole image
        height, width = (side // 2 for side in image.shape[:2])
        every = [found(image, POINTS)]
        for top, left in product((0, height), (0, width)):
            quarter = slice(top, None if top else height), slice(left, None if left else width)
            inside = found(image[quarter], POINTS // 2)
            placed = np.zeros((len(inside), *image.shape[:2]), dtype=bool)
            placed[:, *quarter] = inside
            # a segment that the inner border cuts is a piece of one that was found in the whole image
            row, column = height - 1 if top == 0 else height, width - 1 if left == 0 else width
            every.append(placed[~placed[:, row].any(axis=1) & ~placed[:, :, column].any(axis=1)])
        masks = np.concatenate(every)
        return masks[masks.sum(axis=(1, 2)) >= SMALLEST]

    return segments


@lru_cache(maxsize=1)
def _mask_generation(source: str, device: str):
    from transformers import pipeline  # seconds to import, needed by few

    try:
        return pipeline("mask-generation", model=source, device=device, trust_remote_code=False,
                        model_kwargs={"use_safetensors": True})  # fmt: skip
    except Exception as error:  # transformers, its hub client and safetensors raise many unrelated types
        message = f"no Segment Anything model in {source}: {first_line(error)}"
        raise ImageError(f"{message}; give a folder or hub name, or leave 'segment_anything' out") from None


def pooled(pixels: Tensor, segments: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]) -> Tensor:
    """Every image mean-pooled: uint8 [n, 3, r, r]."""
    painted = [mean_pool(image, segments(image)) for image in pixels.permute(0, 2, 3, 1).numpy()]
    return torch.from_numpy(np.stack(painted)).permute(0, 3, 1, 2).contiguous()


Files = list[tuple[Path, int, int]]
"""Files with the numbers of their classes by shape and by texture."""


def split_folder(folder: Path, classes: Sequence[str], *, mask: int = 0, validation: int = 0) -> dict[str, Files]:
    """The files of a folder that has one folder for each class: train, of these mask (to be mean-pooled), validation.

    mask, validation: how many of each class, spread evenly over its files; of a class with fewer files than both, as
    large shares of what there is. Raises ImageError for a class without a folder, or with too few images for both.
    """
    split: dict[str, Files] = {"train": [], "mask": [], "validation": []}
    for label, name in enumerate(classes):
        files = files_of(folder, name, classes)
        pooled, kept = _shares(len(files), mask, validation)
        if min(pooled, kept) < min(1, mask, validation):
            what = f"{folder / name} holds {len(files)} images, too few to pool some and to validate with others"
            raise ImageError(f"{what}; add images or leave the class out")
        held = _spread(files, kept)
        rest = sorted(set(files) - set(held))
        for title, paths in {"train": rest, "mask": _spread(rest, pooled), "validation": held}.items():
            split[title] += [(path, label, label) for path in paths]
    return split


def _shares(there: int, mask: int, validation: int) -> tuple[int, int]:
    """How many files of a class to pool and to keep. What is not whole goes to the second, as the authors round."""
    taken = min(there, mask + validation)
    pooled = taken * mask // max(1, mask + validation)
    return pooled, taken - pooled


def conflict_files(folder: Path, classes: Sequence[str]) -> Files:
    """Cue-conflict images: a folder for each class of shape, files such as `cat3-elephant1.png` (shape, then texture).

    Left out are images whose shape and texture are of one class (80 of 1,280), and those whose texture is not among the
    classes. Raises ImageError as `split_folder` does, for a file whose name does not say its folder's shape and a
    texture, and if no image is left.
    """
    found: Files = []
    for label, name in enumerate(classes):
        for path in files_of(folder, name, classes):
            named = re.fullmatch(rf"{re.escape(name)}\d*-(.+?)\d*", path.stem)
            if not named:
                raise ImageError(f"{path} does not tell its shape and texture; name it as in '{name}3-elephant1.png'")
            if named[1] != name and named[1] in classes:
                found.append((path, label, classes.index(named[1])))
    if not found:
        raise ImageError(f"no image in {folder} has the shape of one class and the texture of another; fetch it again")
    return found


def files_of(folder: Path, name: str, classes: Sequence[str]) -> list[Path]:
    """The images of one class, by name. Raises ImageError if there is no such folder, or nothing in it."""
    from torchvision.datasets.folder import IMG_EXTENSIONS  # seconds to import, needed by few

    if not folder.is_dir():
        raise ImageError(f"no folder {folder}; give the folder that holds one folder a class")
    within = folder / name
    if not within.is_dir():
        there = sorted(path.name for path in folder.iterdir() if path.is_dir())
        hint = nearest(name, there) if there else "there are no folders in it: give the one that holds one a class"
        raise ImageError(f"{folder} has no folder for class '{name}'; {hint}")
    found = sorted(path for path in within.iterdir() if path.suffix.lower() in IMG_EXTENSIONS)
    if not found:
        raise ImageError(f"{within} holds no images ({', '.join(IMG_EXTENSIONS)}); fill it or leave the class out")
    if broken := [path for path in found if not path.is_file()]:
        raise ImageError(f"{broken[0]} is a folder, or a link to nothing; remove it or fetch it again")
    return found


def _spread(files: Sequence[Path], count: int) -> list[Path]:
    """`count` of the files, at even distances."""
    return [files[i * len(files) // count] for i in range(count)]


def read(files: Sequence[Path], *, resized: int, side: int) -> Tensor:
    """Images whose shorter side is resized, and of which the middle is cut out: uint8 [n, 3, side, side].

    resized: the shorter side then has so many pixels; side: pixels a side of the middle. Raises ImageError for a file
    that is no image of eight bits a channel.
    """
    pixels = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    for i, path in enumerate(files):
        try:
            with Image.open(path) as opened:
                if opened.mode[0] in "IF":  # which `convert` cuts to black and white
                    raise ImageError(f"{path} has more than eight bits a channel; save it with eight")
                image = opened.convert("RGB")
        except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
            raise ImageError(f"{path} cannot be read as an image ({error}); remove it or fetch it again") from None
        sizes = [max(side, round(length * resized / min(image.size))) for length in image.size]
        left, top = ((length - side) // 2 for length in sizes)
        cut = image.resize(sizes, Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))
        pixels[i] = torch.from_numpy(np.array(cut)).permute(2, 0, 1)
    return pixels
