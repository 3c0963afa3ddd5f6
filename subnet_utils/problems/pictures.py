"""Pictures of several classes, and small chains of layers that learn them: each class is a function.

The clusters of units in such networks can be set beside published ones (*Clusterability in Neural Networks*, Filan et
al. 2021).
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from subnet_utils.models.frozen import full_precision
from subnet_utils.problems.modules import CONTROL, Problem, seeded
from subnet_utils.problems.tasks import Drawn, Files
from subnet_utils.tasks import pictures
from subnet_utils.tasks.pictures import PictureError, Pictures

AT_ONCE = 500
"""Pictures that a network sees at once when it is tested."""


@dataclass(frozen=True)
class Source:
    """The images of a study. data: of files without the folder; files: digest of what they hold; folder: where."""

    data: Drawn | Files
    files: str = ""
    folder: str = field(default="", compare=False)

    @classmethod
    def of(cls, data: Drawn | Files) -> "Source":
        """The images that a section names. Where there are none in a folder, steps have names but cannot be made."""
        if data.source == "drawn":
            return cls(data)
        files = "missing"
        with suppress(PictureError):
            files = _digest(data.folder)
        return cls(data.model_copy(update={"folder": ""}), files, data.folder)

    def load(self, title: str) -> Pictures:
        """The images of `train` or `test`. Raises PictureError for files that cannot be read or have changed."""
        return _loaded(self)[title]

    def require_classes(self) -> None:
        """Raise PictureError as `load` does, and for a class without images."""
        for title in ("train", "test"):
            there = set(self.load(title).labels.tolist())
            if missing := [name for i, name in enumerate(self.data.classes) if i not in there]:
                what = f"{self.folder or 'drawn digits'}: '{title}' has no image of class '{missing[0]}'"
                raise PictureError(f"{what}; each class needs some in 'train' and in 'test', so give more images")


@lru_cache(maxsize=2)
def _loaded(source: Source) -> dict[str, Pictures]:
    return _drawn(source.data) if source.data.source == "drawn" else _read(source)


def _drawn(data: Drawn) -> dict[str, Pictures]:
    sets = ("train", "test")
    look = data.model_dump(exclude={"source", *sets})
    return {title: pictures.drawn(getattr(data, title), about=title, **look) for title in sets}


def _read(source: Source) -> dict[str, Pictures]:
    if _digest(source.folder) != source.files:
        raise PictureError(f"the images of {source.folder} have changed; start again")
    found = pictures.from_folder(Path(source.folder))
    most, classes = max(int(one.labels.max()) for one in found.values()), source.data.classes
    if most >= len(classes):
        raise PictureError(f"{source.folder} has a class number {most}; give 'classes' at least {most + 1} names")
    return found


_digest = lru_cache(maxsize=4)(lambda folder: pictures.digest_of(Path(folder)))


@dataclass(frozen=True)
class PictureClasses(Problem):
    """All classes of pictures. architecture: 'mlp', linear layers; 'cnn', convolutions of 3 x 3 with pooling between.

    widths: neurons or channels of the hidden layers. ReLUs are between them. The last layer is linear; it sees the mean
    of each channel over places, so that a chain of units leads from inputs to outputs.
    """

    source: Source
    architecture: str
    widths: tuple[int, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """The classes."""
        return self.source.data.classes

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        channels, *sides = self.source.load("train").pixels.shape[1:]
        with seeded(seed):
            if self.architecture == "cnn":
                layers = _convolutions(channels, self.widths)
            else:
                layers = _matrices(channels * sides[0] * sides[1], self.widths)
            return nn.Sequential(*layers, nn.Linear(self.widths[-1], len(self.functions)))

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`: pictures from -1 to 1; all networks have the same."""
        pixels, labels = self._set("train")
        rows = labels >= 0 if function == CONTROL else labels == self.functions.index(function)
        return pixels[rows], labels[rows]

    def _set(self, title: str) -> tuple[Tensor, Tensor]:
        found = self.source.load(title)
        return found.pixels.float() / 127.5 - 1, found.labels

    @torch.no_grad()
    def scores(self, network: nn.Module) -> dict[str, float]:
        """accuracy, and `accuracy on` each class, of test pictures."""
        (pixels, labels), device = self._set("test"), next(network.parameters()).device
        with full_precision(device):
            answers = torch.cat([network(some.to(device)).argmax(dim=1).cpu() for some in pixels.split(AT_ONCE)])
        right = (answers == labels).double()
        each = {name: float(right[labels == i].mean()) for i, name in enumerate(self.functions)}
        return {"accuracy": float(right.mean())} | {f"accuracy on {name}": value for name, value in each.items()}


def _matrices(inputs: int, widths: tuple[int, ...]) -> list[nn.Module]:
    """The layers before the last one."""
    pairs = pairwise([inputs, *widths])
    return [nn.Flatten(), *(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU()))]


def _convolutions(channels: int, widths: tuple[int, ...]) -> list[nn.Module]:
    """The layers before the last one; each convolution but the last is followed by pooling."""
    layers = []
    for a, b in pairwise([channels, *widths]):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten()]
