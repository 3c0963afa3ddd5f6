"""Small pictures of a few classes: drawn digits, which need no files, and sets in two plain formats.

Digits are drawn in the fonts that come with matplotlib, each turned, sheared, scaled and moved at random, with noise:
a stand-in for MNIST, and in color for CIFAR10. From a folder come the files of MNIST or Fashion-MNIST (idx, also
gzipped) and the binary version of CIFAR10. Neither format can run code, unlike pickles.
"""

import gzip
import hashlib
import math
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from subnet_utils.core.seeds import generator_for

FONTS = (
    "DejaVuSans", "DejaVuSans-BoldOblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-BoldItalic", "STIXGeneral",
    "cmr10", "cmss10",
)  # fmt: skip
SIDE = 48
"""Of a digit before it is turned and scaled, pixels."""
IDX = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}
CIFAR = {"train": "data_batch_*.bin", "test": "test_batch.bin"}
REMEDY = "give one with MNIST's or Fashion-MNIST's idx files (gzipped or not), or CIFAR10's binary version"


class PictureError(ValueError):
    """A folder holds no set of pictures that can be read; the message names it and the remedy."""


@dataclass(frozen=True)
class Pictures:
    """pixels: uint8 [n, channels, r, r]; labels: int64 [n], numbers of classes."""

    pixels: Tensor
    labels: Tensor


def drawn(
    count: int, *, resolution: int, noise: float, turn: float, seed: int, about: str, color: bool = False
) -> Pictures:
    """So many digits, each class as likely: white on black, or bright on dark in two colors drawn for each.

    resolution: pixels a side; noise: standard deviation of what is added to every pixel, which is from 0 to 1; turn:
    largest rotation, radians, which also bounds shear and half the change in size; about: name of the set; sets of one
    seed and different names differ.
    """
    draws = generator_for("pictures", seed, about)
    labels, fonts = (torch.randint(n, (count,), generator=draws) for n in (10, len(FONTS)))
    angle, shear, wider, higher, right, down, light = (2 * torch.rand(7, count, generator=draws) - 1).unbind()
    cos, sin = (turn * angle).cos(), (turn * angle).sin()
    wide, high = ((0.5 * turn * size).exp() for size in (wider, higher))
    rows = torch.stack([cos * wide, -sin * high + turn * shear, 0.15 * right, sin * wide, cos * high, 0.15 * down])
    grid = affine_grid(rows.T.reshape(count, 2, 3), [count, 1, resolution, resolution], align_corners=False)
    images = grid_sample(_glyphs()[labels, fonts], grid, align_corners=False) * (0.8 + 0.2 * light)[:, None, None, None]
    if color:
        dark, bright = torch.rand(2, count, 3, 1, 1, generator=draws) / 2 + torch.tensor([0.0, 0.5]).view(2, 1, 1, 1, 1)
        images = dark + (bright - dark) * images
    images = images + noise * torch.randn(images.shape, generator=draws)
    return Pictures((images.clamp(0, 1) * 255).round().byte(), labels)


@cache
def _glyphs() -> Tensor:
    """Every digit in every font: [10, fonts, 1, SIDE, SIDE], from 0 to 1."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), SIDE) for name in FONTS]
    return torch.stack([torch.stack([_glyph(str(digit), font) for font in fonts]) for digit in range(10)])


def _glyph(text: str, font: ImageFont.FreeTypeFont) -> Tensor:
    image = Image.new("L", (SIDE, SIDE))
    left, top, right, bottom = font.getbbox(text)
    place = (SIDE - left - right) / 2, (SIDE - top - bottom) / 2
    ImageDraw.Draw(image).text(place, text, fill=255, font=font)
    return torch.from_numpy(np.array(image)).float()[None] / 255


def from_folder(folder: Path) -> dict[str, Pictures]:
    """The sets `train` and `test` of a folder in one of the formats. Raises PictureError."""
    read = _cifar if any(folder.glob(CIFAR["test"])) else _idx_set
    return {title: read(folder, title) for title in ("train", "test")}


def digest_of(folder: Path) -> str:
    """Of what the files of the sets hold, wherever they lie. Raises PictureError for a folder without such files."""
    named = [name for pair in IDX.values() for name in pair]
    found = [_file(folder, name) for name in named] if not any(folder.glob(CIFAR["test"])) else _cifar_files(folder)
    digest = hashlib.sha256()
    for path in found:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _idx_set(folder: Path, title: str) -> Pictures:
    pixels, labels = (read_idx(_file(folder, name)) for name in IDX[title])
    if pixels.ndim != 3 or pixels.shape[:1] != labels.shape or not pixels.size:
        raise PictureError(f"{folder}: pictures {pixels.shape} and labels {labels.shape} do not match; fetch it again")
    return Pictures(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels).long())


def _file(folder: Path, name: str) -> Path:
    """The one file of a folder whose name begins so."""
    found = sorted(filter(Path.is_file, folder.glob(f"{name}[-.]idx*")))  # Kaggle has folders of this name, too
    if not found:
        raise PictureError(f"no file {name}-idx*-ubyte in {folder}; {REMEDY}")
    return found[0]


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes from a file in MNIST's idx format: two zeros, type 8, dimensions, sizes (big-endian), data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise PictureError(f"{path} cannot be read ({error}); fetch it again") from None
    start = 4 + 4 * content[3] if len(content) > 3 else 0
    sizes = np.frombuffer(content[4:start], ">u4") if len(content) >= start else ()
    if content[:3] != b"\0\0\x08" or len(content) - start != math.prod(map(int, sizes)):
        raise PictureError(f"{path} is no idx file of bytes, or not whole; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy()


def _cifar(folder: Path, title: str) -> Pictures:
    """Of 3,073 bytes each: a label, and red, green and blue in 32 rows of 32."""
    files = [path.read_bytes() for path in _cifar_files(folder) if path.match(CIFAR[title])]
    if not files or any(not content or len(content) % 3073 for content in files):
        raise PictureError(f"{folder} lacks pictures of CIFAR10's binary version ({CIFAR[title]}); fetch it again")
    rows = torch.from_numpy(np.frombuffer(b"".join(files), np.uint8).reshape(-1, 3073).copy())
    return Pictures(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long())


def _cifar_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in CIFAR.values() for path in folder.glob(pattern) if path.is_file())
