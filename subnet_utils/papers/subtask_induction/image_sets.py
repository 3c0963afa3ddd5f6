"""The sets of images of subtask induction, made once: drawn by the study or read from folders, and mean-pooled."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import ROOT
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact, save_tensors
from subnet_utils.papers.subtask_induction.images_section import Folders, Images, Rendered
from subnet_utils.tasks import textures
from subnet_utils.tasks.images import (
    ImageSet,
    Split,
    classical_segments,
    files_of,
    pooled,
    read,
    read_conflicts,
    segment_anything,
    split_folder,
)

SETS = ("train", "validation", "test", "conflicts")
POOLED = {"pooled_mask": "mask", "pooled_validation": "validation", "pooled_test": "test"}
"""Mean-pooled set -> the set that it is made of."""


def settings_of(lab: Lab) -> Images:
    """The image section of a study. Raises ValueError if there is none."""
    if lab.study.images is None:
        raise ValueError(f"profile '{lab.study.name}' has no 'images' section; add one")
    return lab.study.images


def data_spec(lab: Lab) -> dict[str, Any]:
    """What the images depend on; of folders, names and sizes of their files and not where they lie.

    Raises ImageError for a folder or class that is not there, or has too few images.
    """
    data = settings_of(lab).data
    if isinstance(data, Rendered):
        return {"rendered": data.model_dump()}
    listing = _listing(data)
    own = data.model_dump(exclude={"train", "test", "conflicts"})
    return {"folders": own | {"files": listing}}


def image_set(lab: Lab, name: str) -> ImageSet:
    """One of the sets: train, mask, validation, test, conflicts, or pooled_mask, pooled_validation, pooled_test."""
    return _loaded_set(lab, name, _made_set(lab, name).key)


def is_prepared(lab: Lab) -> bool:
    """Whether all sets are there."""
    return all(lab.store.find("images", _spec(lab, name)) for name in (*SETS, "mask", *POOLED))


def _made_set(lab: Lab, name: str) -> Artefact:
    return lab.store.make("images", _spec(lab, name), partial(_build_set, lab, name))


def _spec(lab: Lab, name: str) -> dict[str, Any]:
    return {"set": name, "data": data_spec(lab)}


@lru_cache(maxsize=16)
def _loaded_set(lab: Lab, name: str, key: str) -> ImageSet:
    return ImageSet(**_made_set(lab, name).tensors("images"))


def _build_set(lab: Lab, name: str, folder: Path) -> None:
    data = settings_of(lab).data
    if name in POOLED:
        segments = partial(classical_segments, scale=data.segment_scale)
        if getattr(data, "segment_anything", None) is not None:
            segments = segment_anything(data.segment_anything, lab.device)
        made = pooled(image_set(lab, POOLED[name]), segments)
    elif isinstance(data, Rendered):
        made = _rendered(data, name)
    else:
        made = _read(data, name)
    tensors = {"pixels": made.pixels, "shapes": made.shapes, "textures": made.textures.clone()}
    save_tensors(folder / "images.safetensors", tensors)


def _rendered(data: Rendered, name: str) -> ImageSet:
    """Images drawn by the study; `mask` is the beginning of `train`."""
    count, about = getattr(data, name), "train" if name == "mask" else name
    classes = len(data.classes)
    draws = generator_for("image classes", data.seed, about)
    # a row each, so that a smaller set is the beginning of a larger one
    numbers = torch.rand(count, 3, generator=draws)
    shapes = (numbers[:, 0] * classes).long()
    other = (numbers[:, 1] * classes).long()
    if name == "conflicts":
        chosen = (shapes + 1 + (numbers[:, 1] * (classes - 1)).long()) % classes
    else:
        chosen = torch.where(numbers[:, 2] < data.texture_share, shapes, other)
    if name in ("test", "validation"):
        chosen = shapes
    images = textures.render(
        [data.shapes[i] for i in shapes],
        [data.textures[i] for i in chosen],
        resolution=data.resolution,
        contrast=data.contrast,
        seed=data.seed,
        about=about,
    )
    return ImageSet(torch.from_numpy(images.images), shapes, chosen)


def _place(folder: str) -> Path:
    """A path from the checkout, or from the home that it names."""
    return ROOT / Path(folder).expanduser()


def _read(data: Folders, name: str) -> ImageSet:
    if name == "conflicts":
        return read_conflicts(_place(data.conflicts), data.classes, resolution=data.resolution)
    if name == "test":
        files = [
            (path, i) for i, one in enumerate(data.classes) for path in files_of(_place(data.test), one, data.classes)
        ]
        return read(files, data.resolution)
    return read(getattr(_split(data), name), data.resolution)


@lru_cache(maxsize=1)
def _split(data: Folders) -> Split:
    sizes = {"mask": data.mask_per_class, "validation": data.validation_per_class}
    return split_folder(_place(data.train), data.classes, **sizes)


@lru_cache(maxsize=1)
def _listing(data: Folders) -> str:
    """Digest of names and sizes of all files; faults of the folders come up here, before any work."""
    _split(data)
    names = []
    for folder in (data.train, data.test, data.conflicts):
        for one in data.classes:
            for path in files_of(_place(folder), one, data.classes):
                names.append(f"{one}/{path.name} {path.stat().st_size}")
    return f"{generator_for(*names).initial_seed():016x}"
