"""The sets of images of subtask induction: drawn by the study or read from folders, and mean-pooled.

What images and published weights from outside depend on is known by what they hold, and not by where they lie.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from subnet_utils.core.growing import mapped, save_growing
from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact, save_tensors
from subnet_utils.papers.subtask_induction.images_section import Folders, Images, Rendered
from subnet_utils.tasks import images as tasks
from subnet_utils.tasks import textures
from subnet_utils.tasks.images import ImageError, ImageSet

POOLED = {"pooled_mask": "mask", "pooled_validation": "validation", "pooled_test": "test"}
"""Mean-pooled set -> the set that it is made of."""
SETS = ("train", "validation", "test", "conflicts", "mask", *POOLED)


@dataclass(frozen=True)
class SetOfImages(Step):
    """One of the sets. `load` gives the images.

    data: where they come from, of folders without the paths; files: digest of names and sizes of the files of all sets;
    unpooled: the set that a mean-pooled one is made of; resized, side: of those from folders, see `tasks.images.read`;
    folders: with their paths.
    """

    keeps: ClassVar[int] = 16

    title: str
    data: Rendered | Folders
    files: str = ""
    unpooled: "SetOfImages | None" = None
    resized: int = 0
    side: int = 0
    folders: Folders | None = field(default=None, compare=False, repr=False)

    def build(self, lab: Lab, folder: Path) -> None:
        """Draw, read or pool the images. Raises ImageError for a folder that lacks classes or images."""
        path = folder / "images.safetensors"
        if self.unpooled is not None:
            whole = self.unpooled.load(lab)
            labels = {"shapes": whole.shapes, "textures": whole.textures}
            save_growing(path, labels, "pixels", whole.pixels.shape, self._pooled(lab, whole))
        elif self.folders is None:
            made = _rendered(self.data, self.title)
            save_tensors(path, {"pixels": made.pixels, "shapes": made.shapes, "textures": made.textures.clone()})
        else:
            self._read(path)

    def _pooled(self, lab: Lab, whole: ImageSet) -> Callable[[int, int], Tensor]:
        segments = self._segments(lab)
        return lambda start, stop: tasks.pooled(whole.pixels[start:stop], segments)

    def _read(self, path: Path) -> None:
        if listing(self.folders) != self.files:
            raise ImageError(f"the images of {self.folders.train} and its test sets have changed; start again")
        files = _files(self.folders)[self.title]
        labels = {name: torch.tensor([one[i] for one in files]) for i, name in ((1, "shapes"), (2, "textures"))}
        sizes = {"resized": self.resized, "side": self.side}
        paths, shape = [path for path, *_ in files], (len(files), 3, self.side, self.side)
        save_growing(path, labels, "pixels", shape, lambda start, stop: tasks.read(paths[start:stop], **sizes))

    def read(self, lab: Lab, artefact: Artefact) -> ImageSet:
        """See the class."""
        return ImageSet(**mapped(artefact.path / "images.safetensors"))

    def _segments(self, lab: Lab) -> Callable[[NDArray], NDArray]:
        source = getattr(self.data, "segment_anything", None)
        if source is not None:
            return tasks.segment_anything(source, lab.device)
        return partial(tasks.classical_segments, scale=self.data.segment_scale)


@dataclass(frozen=True)
class ImageSets:
    """All sets of a study, and its classes. resolution: pixels a side."""

    classes: tuple[str, ...]
    resolution: int
    sets: tuple[SetOfImages, ...]

    def load(self, lab: Lab, title: str) -> ImageSet:
        """One of the sets: train, mask, validation, test, conflicts, or pooled_mask, pooled_validation, pooled_test."""
        return next(one for one in self.sets if one.title == title).load(lab)


def settings_of(lab: Lab) -> Images:
    """The image part of a study."""
    return lab.section("subtask_induction").images


def image_sets(images: Images) -> ImageSets:
    """The sets of a study. The files of folders are looked at."""
    data, about = images.data, {"data": images.data}
    if isinstance(data, Folders):
        try:
            files = listing(data)
        except ImageError:
            files = "missing"  # steps have names then, but cannot be made
        without_paths = data.model_copy(update={"train": "", "test": "", "conflicts": ""})
        about = {"data": without_paths, "files": files, "folders": data}
    made: dict[str, SetOfImages] = {}
    for title in SETS:
        sizes = _sizes(images, title) if isinstance(data, Folders) and title not in POOLED else {}
        made[title] = SetOfImages(title, unpooled=made.get(POOLED.get(title)), **sizes, **about)
    return ImageSets(tuple(data.classes), data.resolution, tuple(made.values()))


def _sizes(images: Images, title: str) -> dict[str, int]:
    """How a set is read from folders, as in the authors' code: cue-conflict images are not larger than what networks
    see, others have a frame around their middle. It stays on training images that are cut out at random places."""
    side, framed = images.data.resolution, round(images.data.resolution * 256 / 224)
    if title == "conflicts":
        return {"resized": side, "side": side}
    return {"resized": framed, "side": framed if title == "train" and images.crops else side}


def _rendered(data: Rendered, title: str) -> ImageSet:
    """Images drawn by the study; `mask` is the beginning of `train`."""
    count, about = getattr(data, title), "train" if title == "mask" else title
    classes = len(data.classes)
    draws = generator_for("image classes", data.seed, about)
    # a row each, so that a smaller set is the beginning of a larger one
    numbers = torch.rand(count, 3, generator=draws)
    chosen = shapes = (numbers[:, 0] * classes).long()
    if title == "conflicts":
        chosen = (shapes + 1 + (numbers[:, 1] * (classes - 1)).long()) % classes
    elif about == "train":
        chosen = torch.where(numbers[:, 2] < data.texture_share, shapes, (numbers[:, 1] * classes).long())
    names = [data.shapes[i] for i in shapes], [data.textures[i] for i in chosen]
    options = {"resolution": data.resolution, "contrast": data.contrast, "seed": data.seed}
    images, _ = textures.render(*names, **options, about=about)
    return ImageSet(torch.from_numpy(images), shapes, chosen)


@lru_cache(maxsize=1)
def _files(data: Folders) -> dict[str, tasks.Files]:
    """The files of each set. Raises ImageError for a folder that lacks classes or images."""
    sizes = {"mask": data.mask_per_class, "validation": data.validation_per_class}
    split = tasks.split_folder(Path(data.train), data.classes, **sizes)
    test = tasks.split_folder(Path(data.test), data.classes)["train"]
    return split | {"test": test, "conflicts": tasks.conflict_files(Path(data.conflicts), data.classes)}


@lru_cache(maxsize=1)
def listing(data: Folders) -> str:
    """Digest of names and sizes of each set's files. Raises ImageError for a folder that lacks classes or images."""
    names = [f"{title} {path.parent.name}/{path.name} {path.stat().st_size}"
             for title, files in _files(data).items() for path, *_ in files]  # fmt: skip
    return f"{generator_for(*names).initial_seed():016x}"
