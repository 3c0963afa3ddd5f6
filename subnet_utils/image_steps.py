"""Subtask induction with images, step by step (*Instilling Inductive Biases with Subnetworks*, section 5).

A base network classifies images in which shape and texture go together; masks are found in it that classify
mean-pooled images, which have no texture; that subnetwork is put into a new network, which is trained on ordinary
images alone. Images whose shape and texture are of different classes tell which of the two a network goes by. Every
step is an artefact, made once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.image_settings import ImageModel, Images, ImageTraining, Rendered
from subnet_utils.lab import CHECKPOINT, Lab, precision_of, subnetwork_in
from subnet_utils.masks.conditions import CONDITIONS
from subnet_utils.masks.controls import NoControl
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, inherited, measure_all, train_on, transplant, untransferred
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.classifiers import CLASSIFIER
from subnet_utils.models.frozen import CHUNK, full_precision
from subnet_utils.store import Artefact, save_json, save_table, save_tensors
from subnet_utils.study import ROOT
from subnet_utils.tasks import textures
from subnet_utils.tasks.images import (
    ImageSet,
    classical_segments,
    files_of,
    pooled,
    read,
    read_conflicts,
    segment_anything,
    split_folder,
)
from subnet_utils.training import Recipe, TrainingDiverged, generator_for

SETS = ("train", "validation", "test", "conflicts")
POOLED = {"pooled_mask": "mask", "pooled_validation": "validation", "pooled_test": "test"}
"""Mean-pooled set -> the set that it is made of."""
JUDGED = ("test", "pooled_test", "conflicts")
"""Sets on which every network votes."""


@dataclass(frozen=True)
class ImageBase:
    """A base network: trained from scratch, or pretrained with a new classifier, or, as a control, untrained."""

    model: ImageModel
    seed: int
    untrained: bool = False

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its weights depend on."""
        architecture = self.model.architecture.model_dump()
        spec = {"architecture": architecture, "seed": self.seed, "classes": _classes(lab)}
        if self.untrained:
            if architecture["family"] == "vit_classifier":  # its positions depend on it
                spec["resolution"] = settings_of(lab).data.resolution
            published = {"pretrained": None} if architecture["pretrained"] is None else {}
            return spec | {"architecture": architecture | published, "untrained": True}
        if architecture["pretrained"] is not None:
            spec["architecture"] = architecture | {"pretrained": _published(lab, self.model)}
        training = {"training": self.model.base.model_dump(), "precision": lab.study.compute.precision}
        return spec | training | {"data": data_spec(lab)}


@dataclass(frozen=True)
class ShapeMask:
    """A mask to be found on mean-pooled images, with one lambda."""

    base: ImageBase
    l0: float

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the mask depends on."""
        settings = self.base.model.masks.model_dump(exclude={"l0"})
        network = train_image_base(lab, self.base).json("result")["network"]
        own = {"network": network, "l0": self.l0, "masks": settings, "data": data_spec(lab)}
        return {"base": self.base.spec(lab), "precision": lab.study.compute.precision} | own


@dataclass(frozen=True)
class Induced:
    """A network trained on ordinary images from what a condition gives it."""

    base: ImageBase
    condition: str

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its votes depend on, the inherited subnetwork among it."""
        training = self.base.model.linear if self.condition == "linear" else self.base.model.transfer
        spec = {"condition": self.condition, "training": training.model_dump(), "base": self.base.spec(lab)}
        if self.condition in CONDITIONS:
            try:
                mask = chosen_shape_mask(lab, self.base)
            except TrainingDiverged as error:
                return spec | {"fault": str(error)}
            bits = find_shape_mask(lab, mask).json("manifest").get("subnetwork.safetensors")
            return spec | {"mask": mask.spec(lab), "bits": bits}
        return spec | {"network": train_image_base(lab, self.base).json("result")["network"]}


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


def train_image_base(lab: Lab, base: ImageBase) -> Artefact:
    """A base network: weights, history, votes."""
    return lab.store.make("image_base", base.spec(lab), partial(_build_base, lab, base))


def load_image_base(lab: Lab, base: ImageBase) -> StagedModel:
    """The base network, frozen. One copy serves all: do not change it."""
    return _loaded_base(lab, base, train_image_base(lab, base).key)


def find_shape_mask(lab: Lab, mask: ShapeMask) -> Artefact:
    """A subnetwork for mean-pooled images, its history and votes; or why there is none, under `fault`."""
    return lab.store.make("shape_mask", mask.spec(lab), partial(_build_mask, lab, mask))


def chosen_shape_mask(lab: Lab, base: ImageBase) -> ShapeMask:
    """Of the masks with different lambdas the one that is most accurate on pooled validation images, then the sparsest.

    Raises TrainingDiverged if the training of all of them did.
    """
    masks = [ShapeMask(base, l0) for l0 in base.model.masks.l0]
    found = {mask: find_shape_mask(lab, mask).json("result") for mask in masks}
    usable = [mask for mask in masks if "fault" not in found[mask]]
    if not usable:
        raise TrainingDiverged(f"no mask came to its end: {found[masks[0]]['fault']}")
    return max(usable, key=lambda mask: (found[mask]["validation_accuracy"], -found[mask]["active"]))


def induce(lab: Lab, induced: Induced) -> Artefact:
    """A network trained from what its condition gives it: history, votes; or why there is none, under `fault`."""
    return lab.store.make("induced", induced.spec(lab), partial(_build_induced, lab, induced))


def _classes(lab: Lab) -> list[str]:
    return list(settings_of(lab).data.classes)


def _made_set(lab: Lab, name: str) -> Artefact:
    return lab.store.make("images", {"set": name, "data": data_spec(lab)}, partial(_build_set, lab, name))


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


def _read(data, name: str) -> ImageSet:
    if name == "conflicts":
        return read_conflicts(ROOT / data.conflicts, data.classes, resolution=data.resolution)
    if name == "test":
        files = [
            (path, i) for i, one in enumerate(data.classes) for path in files_of(ROOT / data.test, one, data.classes)
        ]
        return read(files, data.resolution)
    return read(getattr(_split(data), name), data.resolution)


@lru_cache(maxsize=1)
def _split(data):
    sizes = {"mask": data.mask_per_class, "validation": data.validation_per_class}
    return split_folder(ROOT / data.train, data.classes, **sizes)


@lru_cache(maxsize=1)
def _listing(data) -> str:
    """Digest of names and sizes of all files; faults of the folders come up here, before any work."""
    _split(data)
    names = []
    for folder in (data.train, data.test, data.conflicts):
        for one in data.classes:
            for path in files_of(ROOT / folder, one, data.classes):
                names.append(f"{one}/{path.name} {path.stat().st_size}")
    return f"{generator_for(*names).initial_seed():016x}"


@lru_cache(maxsize=4)
def _published(lab: Lab, model: ImageModel) -> str:
    """Fingerprint of published weights: what a file holds counts, and not where it lies."""
    return fingerprint(_new(lab, ImageBase(model, 0)))


def _new(lab: Lab, base: ImageBase, *, about: str = "base") -> StagedModel:
    """A network before training, with published weights where there are any and the base network asks for them."""
    architecture = base.model.architecture.model_dump()
    if base.untrained or about != "base":
        architecture["pretrained"] = None
    seed = generator_for("image network", about, base.seed).initial_seed() % 2**31
    sizes = {"resolution": settings_of(lab).data.resolution} if architecture["family"] == "vit_classifier" else {}
    more = {"classes": len(_classes(lab))}
    model = build(architecture | more, seed=seed, **sizes)
    published = base.model.architecture.pretrained
    if published is not None and architecture["pretrained"] is None:
        # new weights, but pixels and normalizations as in the network that weights may be inherited from
        drawn, model = model.state_dict(), build(architecture | more | {"pretrained": published}, seed=seed, **sizes)
        model.load_state_dict(drawn)
    return model.to(lab.device)


@lru_cache(maxsize=4)
def _loaded_base(lab: Lab, base: ImageBase, key: str) -> StagedModel:
    model = _new(lab, base)
    model.load_state_dict(train_image_base(lab, base).tensors("weights"))
    return model.eval().requires_grad_(False)


def _build_base(lab: Lab, base: ImageBase, folder: Path) -> None:
    model = _new(lab, base)
    if not base.untrained:
        pretrained = base.model.architecture.pretrained is not None
        start = _only_classifier(model, model) if pretrained else untransferred(model)
        _train(lab, model, start, base.model.base, base.seed, folder, updating=not pretrained, label="base")
    save_tensors(folder / "weights.safetensors", model.state_dict())
    if not base.untrained:
        save_tensors(folder / "votes.safetensors", votes(lab, model.eval()))
    save_json(folder / "result.json", {"network": fingerprint(model)})


def _build_mask(lab: Lab, mask: ShapeMask, folder: Path) -> None:
    model, training = load_image_base(lab, mask.base), mask.base.model.masks
    train, held = image_set(lab, "pooled_mask"), image_set(lab, "pooled_validation")

    def accuracy(kept: Subnetwork) -> dict[str, float]:
        return {"validation_accuracy": 1 - _errors(kept.apply(model), held)}

    try:
        found = discover(
            model,
            train.pixels,
            lambda generator: _shuffled(len(train), training.batch_size, generator, train.shapes),
            cross_entropy,
            method=ContinuousSparsification(training.epochs, training.beta_max, training.mask_init, mask.l0),
            start=training.start,
            recipe=Recipe(training.learning_rate, training.epochs, mask.base.seed),
            autocast=precision_of(lab),
            watch=accuracy,
            checkpoint=folder / CHECKPOINT,
            label=f"shape mask in {mask.base.model.model}, seed {mask.base.seed}",
        )
    except TrainingDiverged as error:
        save_json(folder / "result.json", {"fault": str(error)})
        return
    kept = found.subnetwork
    kept.save(folder / "subnetwork.safetensors")
    save_table(folder / "history.parquet", found.history)
    save_tensors(folder / "votes.safetensors", votes(lab, kept.apply(model)))
    save_json(folder / "result.json", accuracy(kept) | {"active": kept.active, "total": kept.total})


def _build_induced(lab: Lab, induced: Induced, folder: Path) -> None:
    base, condition = induced.base, induced.condition
    fresh, donor = _new(lab, base, about="target"), load_image_base(lab, base)
    training, more = base.model.transfer, ()
    try:
        if condition == "linear":
            start, training = _only_classifier(donor, fresh), base.model.linear
        elif condition == "mixture":
            start, more = untransferred(donor), ("pooled_mask",)
        else:
            found = subnetwork_in(find_shape_mask(lab, chosen_shape_mask(lab, base)))
            about = CONDITIONS[condition]
            kept = inherited(found, about.inherits, seed=base.seed)
            start = transplant(donor, fresh, kept, carried=about.carried, frozen=about.frozen)
        _train(
            lab, fresh, start, training, base.seed, folder, more=more, updating=condition != "linear", label=condition
        )
    except (NoControl, TrainingDiverged) as error:
        save_json(folder / "result.json", {"fault": str(error)})
        return
    save_tensors(folder / "votes.safetensors", votes(lab, fresh.eval()))
    save_json(folder / "result.json", {"network": fingerprint(fresh)})


def _only_classifier(donor: StagedModel, fresh: StagedModel) -> Transfer:
    """All of the donor, frozen, but a new linear classifier."""
    own = f"stages.{CLASSIFIER}.fc."
    start, new = untransferred(donor).start, untransferred(fresh).start
    return Transfer(
        {name: new[name] if name.startswith(own) else tensor for name, tensor in start.items()},
        {name: torch.ones(tensor.shape, dtype=torch.bool) for name, tensor in donor.named_parameters()
         if not name.startswith(own)},
    )  # fmt: skip


def _train(
    lab: Lab,
    model: StagedModel,
    start: Transfer,
    training: ImageTraining,
    seed: int,
    folder: Path,
    *,
    more: Sequence[str] = (),
    updating: bool,
    label: str,
) -> None:
    """Train a network on ordinary images, and on further sets; the best epoch's weights are left in it.

    The history has the accuracy on validation images and on the same ones mean-pooled, after every epoch.
    """
    sets = [image_set(lab, name) for name in ("train", *more)]
    labels = torch.cat([one.shapes for one in sets])
    counts = labels.bincount(minlength=len(_classes(lab)))
    weights = (len(labels) / (len(counts) * counts.clamp(min=1))).float().to(lab.device)  # by class, as in the paper
    held = {"validation": image_set(lab, "validation"), "pooled": image_set(lab, "pooled_validation")}

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = generator_for("image batches", seed, epoch)
        for rows, targets in _shuffled(len(labels), training.batch_size, generator, labels):
            pixels = _rows(sets, rows)
            if training.flips:
                mirrored = torch.rand(len(rows), generator=generator) < 0.5
                pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
            yield pixels[None], targets[None]

    def validate(found: dict[str, Tensor]) -> dict[str, list[float]]:
        return {f"{name}_error": [_errors(model, one, found)] for name, one in held.items()}

    found, history = train_on(
        model,
        [start],
        batches,
        lambda logits, targets: cross_entropy(logits, targets, weight=weights),
        validate,
        recipe=Recipe(
            training.learning_rate, training.epochs, seed, training.epochs, final_share=training.final_share,
            weight_decay=training.weight_decay, judged_by="validation_error", optimizer=training.optimizer,
        ),
        autocast=precision_of(lab),
        updating=updating,
        checkpoint=folder / CHECKPOINT,
        label=f"{label}, seed {seed}",
    )  # fmt: skip
    model.load_state_dict({name: tensor[0] for name, tensor in found.items()}, strict=False)
    flat = history.map(lambda value: value[0] if isinstance(value, list) else value)
    accuracies = {f"{name}_accuracy": 1 - flat[f"{name}_error"] for name in held}
    save_table(
        folder / "history.parquet",
        pd.DataFrame({"epoch": flat["epoch"], "train_loss": flat["train_loss"], **accuracies}),
    )


def _rows(sets: Sequence[ImageSet], rows: Tensor) -> Tensor:
    """Images of several sets, numbered through; large sets are not copied into one."""
    if len(sets) == 1:
        return sets[0].pixels[rows]
    first = len(sets[0])
    found = torch.empty(len(rows), *sets[0].pixels.shape[1:], dtype=torch.uint8)
    own = rows < first
    found[own], found[~own] = sets[0].pixels[rows[own]], sets[1].pixels[rows[~own] - first]
    return found


@torch.no_grad()
def votes(lab: Lab, model: StagedModel) -> dict[str, Tensor]:
    """The class that a network gives to every image of the test sets, in float32: int64 [n] each."""
    with full_precision(lab.device):
        return {name: torch.cat([
            model(chunk.to(lab.device)).argmax(dim=1).cpu() for chunk in image_set(lab, name).pixels.split(CHUNK)
        ]) for name in JUDGED}  # fmt: skip


def _errors(model: StagedModel, images: ImageSet, weights: dict[str, Tensor] | None = None) -> float:
    """Share of wrong answers, of a network or of the same with other weights [1, ...]."""
    own = weights or {name: tensor.detach()[None] for name, tensor in model.named_parameters()}
    with full_precision(next(model.parameters()).device):
        wrong = measure_all(
            model, own, images.pixels, images.shapes, lambda logits, shapes: logits.argmax(dim=1) != shapes
        )
    return float(wrong.double().mean())


def _shuffled(count: int, size: int, generator: torch.Generator, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass: numbers of images [B] and their classes [B]."""
    for rows in torch.randperm(count, generator=generator).split(size):
        yield rows, labels[rows]
