"""Images in which shape and texture both predict the class: an object of a shape, filled with a texture.

They take the place of 16-class ImageNet and its cue-conflict images where these cannot be had (*Instilling Inductive
Biases with Subnetworks*, section 5; Geirhos et al. 2019). In training each class has its own shape and texture. A
conflict image has the shape of one class and the texture of another, and the answer shows which of the two a network
uses. Colors, position, size and orientation say nothing.
"""

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

CHUNK = 128
"""Images drawn from one random stream: a smaller set is the beginning of a larger one."""
OVERSAMPLED = 2
"""Points to a side of a pixel at which outlines are drawn."""

Field = NDArray[np.float64]


def _star(x: Field, y: Field) -> Field:
    angle = np.mod(np.arctan2(y, x), 2 * math.pi / 5) - math.pi / 5
    return np.hypot(x, y) * (1 + 1.1 * (1 - np.abs(angle) / (math.pi / 5)))


def _triangle(x: Field, y: Field) -> Field:
    return np.maximum(-y, (math.sqrt(3) * np.abs(x) + y) / 2) * 1.7


SHAPES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": lambda x, y: np.hypot(x, y) * 1.1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) * 1.25,
    "triangle": _triangle,
    "star": lambda x, y: _star(x, y) * 0.85,
    "cross": lambda x, y: np.maximum(np.minimum(np.abs(x), np.abs(y)) * 3.2, np.maximum(np.abs(x), np.abs(y))),
    "bar": lambda x, y: np.maximum(np.abs(x), np.abs(y) * 3),
    "ring": lambda x, y: 1 + (np.abs(np.hypot(x, y) - 0.72) - 0.27),
    "crescent": lambda x, y: np.maximum(np.hypot(x, y), 1.75 - np.hypot(x - 0.6, y)),
}
"""Name -> function of coordinates, in radii of the object: it is inside where the value is below 1."""


def _wave(phase: Field) -> Field:
    return np.sin(2 * math.pi * phase)


TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "horizontal": lambda u, v: _wave(v),
    "vertical": lambda u, v: _wave(u),
    "rising": lambda u, v: _wave((u + v) * 0.7),
    "falling": lambda u, v: _wave((u - v) * 0.7),
    "checkers": lambda u, v: np.sign(_wave(u * 0.75) * _wave(v * 0.75)),
    "dots": lambda u, v: np.where(_wave(u * 0.9) + _wave(v * 0.9) > 0.9, 1.6, -0.4),
    "grid": lambda u, v: np.where(np.maximum(_wave(u * 0.8), _wave(v * 0.8)) > 0.75, 1.2, -0.8),
    "zigzag": lambda u, v: _wave(v + 0.8 * np.abs(np.mod(u * 0.5, 1) - 0.5)),
}
"""Name -> function of coordinates in periods: lighter where it is above 0, darker where it is below."""


def render(
    shapes: Sequence[str], textures: Sequence[str], *, resolution: int, contrast: float, seed: int, about: str
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """One image for each pair of a shape and a texture, [n, 3, r, r], and where its object is, [n, r, r].

    resolution: pixels a side; contrast: distance of a texture's colors from their mean, each channel from 0 to 1;
    about: name of the set; sets of one seed and different names differ.
    """
    images = np.empty((len(shapes), 3, resolution, resolution), dtype=np.uint8)
    objects = np.empty((len(shapes), resolution, resolution), dtype=bool)
    for first in range(0, len(shapes), CHUNK):
        draws = np.random.default_rng([seed, zlib.crc32(about.encode()), first])
        for i in range(first, min(first + CHUNK, len(shapes))):
            images[i], objects[i] = _image(SHAPES[shapes[i]], TEXTURES[textures[i]], resolution, contrast, draws)
    return images, objects


def _image(shape, texture, resolution: int, contrast: float, draws: np.random.Generator):
    """One image and where its object is. All images take equally many random numbers."""
    radius = draws.uniform(0.24, 0.36)  # of the object; this and the texture's period in sides of the image
    turn, tilt = draws.uniform(0, 2 * math.pi), draws.uniform(-0.15, 0.15)  # of object and texture, radians
    period, phases = draws.uniform(0.09, 0.13), draws.uniform(0, 1, 2)
    center = draws.uniform(radius * 0.9, 1 - radius * 0.9, 2)
    inner, outer = _colors(draws)
    noise = draws.normal(0, 0.02, (3, resolution, resolution))

    coverage = shape(*_turned(_grid(resolution * OVERSAMPLED, center), turn) / radius) < 1
    coverage = coverage.reshape(resolution, OVERSAMPLED, resolution, OVERSAMPLED).mean(axis=(1, 3))
    u, v = _turned(_grid(resolution, np.zeros(2)), tilt) / period + phases[:, None, None]
    filled = inner[:, None, None] + contrast * texture(u, v)
    image = coverage * filled + (1 - coverage) * outer[:, None, None] + noise
    return (image.clip(0, 1) * 255).round().astype(np.uint8), coverage > 0.5


def _colors(draws: np.random.Generator) -> NDArray:
    """Mean colors of object and background, at least .35 apart if one of the candidates is: [2, 3]."""
    candidates = draws.uniform(0.2, 0.8, (16, 2, 3))
    distances = np.linalg.norm(candidates[:, 0] - candidates[:, 1], axis=1)
    far = distances >= 0.35
    return candidates[far.argmax() if far.any() else distances.argmax()]


def _grid(side: int, center: NDArray) -> NDArray:
    """Coordinates x (to the right) and y (upwards) of points, in sides of the image, from a center: [2, side, side]."""
    line = (np.arange(side) + 0.5) / side
    x, y = np.meshgrid(line, line[::-1])
    return np.stack([x, y]) - center[:, None, None]


def _turned(points: NDArray, angle: float) -> NDArray:
    cos, sin = math.cos(angle), math.sin(angle)
    return np.stack([cos * points[0] - sin * points[1], sin * points[0] + cos * points[1]])
