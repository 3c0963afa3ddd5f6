"""What stands in for published weights and folders of images where a study is rehearsed."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from subnet_utils.cost.stand_ins import saved
from subnet_utils.papers.subtask_induction.images_section import Folders

CLASSES = Folders.model_fields["classes"].get_default()
SIDES = 320, 256
"""Pixels of an image: photographs are no squares."""


def vit(folder: Path) -> Path:
    """A ViT-B/16, at random."""
    from transformers import ViTConfig, ViTModel  # seconds to import, needed by few

    return saved(ViTModel, ViTConfig(), folder, add_pooling_layer=False)


def resnet(folder: Path) -> Path:
    """A file of torchvision's ResNet18, at random."""
    from torchvision.models import resnet18  # seconds to import, needed by few

    folder.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        safetensors.torch.save_file(resnet18().state_dict(), folder / "resnet18.safetensors")
    return folder / "resnet18.safetensors"


def images(folder: Path, *, each: int) -> Path:
    """Folders of random images, so many of each class."""
    return _drawn(folder, (f"{name}/{name}{i}.png" for name in CLASSES for i in range(each)))


def conflicts(folder: Path) -> Path:
    """The same with file names of the cue-conflict images: two textures for each shape."""
    pairs = [(one, CLASSES[(i + shift) % len(CLASSES)]) for i, one in enumerate(CLASSES) for shift in (0, 1, 2)]
    return _drawn(folder, (f"{shape}/{shape}1-{texture}1.png" for shape, texture in pairs))


def _drawn(folder: Path, names: Iterable[str]) -> Path:
    draw = np.random.default_rng(0)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (4, 5, 3), dtype=np.uint8))  # so that there are segments
        coarse.resize(SIDES, Image.Resampling.NEAREST).save(path)
    return folder


MAKERS = {
    "torchvision": resnet,
    "google/vit-base-patch16-224-in21k": vit,
    "data/imagenet16/train": partial(images, each=30),
    "data/imagenet16/validation": partial(images, each=2),
    "data/cue-conflict": conflicts,
}
