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

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import CHECKPOINT, Lab, file_subnetwork, subnetwork_in
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact, save_json, save_table, save_tensors
from subnet_utils.masks.controls import NoControl
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, inherited, measure_all, train_on, transplant, untransferred
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.classifiers import CLASSIFIER
from subnet_utils.models.frozen import CHUNK, full_precision
from subnet_utils.papers.break_it_down.base_models import precision_of
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS
from subnet_utils.papers.subtask_induction.image_sets import data_spec, image_set, settings_of
from subnet_utils.papers.subtask_induction.images_section import ImageModel, ImageTraining
from subnet_utils.tasks.images import ImageSet
from subnet_utils.training import Recipe, TrainingDiverged

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
        spec = {"architecture": architecture, "seed": self.seed, "classes": list(settings_of(lab).data.classes)}
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

    @property
    def inherits_nothing(self) -> bool:
        """Whether all of it is drawn anew, so that base network and mask do not matter."""
        about = CONDITIONS.get(self.condition)
        return about is not None and about.inherits == "nothing" and not about.carried

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its votes depend on, the inherited subnetwork among it."""
        training = self.base.model.linear if self.condition == "linear" else self.base.model.transfer
        spec = {"condition": self.condition, "training": training.model_dump(), "base": self.base.spec(lab)}
        if self.inherits_nothing:
            return spec
        if self.condition in CONDITIONS:
            try:
                mask = chosen_shape_mask(lab, self.base)
            except TrainingDiverged as error:
                return spec | {"fault": str(error)}
            bits = find_shape_mask(lab, mask).json("manifest").get("subnetwork.safetensors")
            return spec | {"mask": mask.spec(lab), "bits": bits}
        return spec | {"network": train_image_base(lab, self.base).json("result")["network"]}


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
    more = {"classes": len(list(settings_of(lab).data.classes))}
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

    find = partial(
        discover,
        model,
        train.pixels,
        lambda generator: _shuffled(len(train), training.batch_size, generator, train.shapes),
        cross_entropy,
        method=ContinuousSparsification(training.epochs, training.beta_max, training.mask_init, mask.l0),
        start=training.start,
        recipe=Recipe(training.learning_rate, training.epochs, mask.base.seed),
        autocast=precision_of(lab),
        watch=accuracy,
        limit_gb=cache_limit(lab.study.compute),
        checkpoint=folder / CHECKPOINT,
        label=f"shape mask in {mask.base.model.model}, seed {mask.base.seed}",
    )
    kept = file_subnetwork(folder, find)
    if kept is None:
        return
    save_tensors(folder / "votes.safetensors", votes(lab, kept.apply(model)))
    save_json(folder / "result.json", accuracy(kept) | {"active": kept.active, "total": kept.total})


def _build_induced(lab: Lab, induced: Induced, folder: Path) -> None:
    base, condition = induced.base, induced.condition
    fresh, donor = _new(lab, base, about="target"), load_image_base(lab, base)
    training, more = base.model.transfer, ()
    try:
        if induced.inherits_nothing:
            start = untransferred(fresh)
        elif condition == "linear":
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
    weights = _class_weights(labels, len(list(settings_of(lab).data.classes))).to(lab.device)
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
    _save_history(history, folder, list(held))


def _class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights of the loss that make all classes count alike, as in the paper; float32 [classes]."""
    counts = labels.bincount(minlength=classes)
    return (len(labels) / (len(counts) * counts.clamp(min=1))).float()


def _save_history(history: pd.DataFrame, folder: Path, names: Sequence[str]) -> None:
    """The history of the one network, with accuracies on the sets of these names in place of errors."""
    flat = history.map(lambda value: value[0] if isinstance(value, list) else value)
    accuracies = {f"{name}_accuracy": 1 - flat[f"{name}_error"] for name in names}
    table = pd.DataFrame({"epoch": flat["epoch"], "train_loss": flat["train_loss"], **accuracies})
    save_table(folder / "history.parquet", table)


def _rows(sets: Sequence[ImageSet], rows: Tensor) -> Tensor:
    """Images of several sets, numbered through; large sets are not copied into one."""
    if len(sets) == 1:
        return sets[0].pixels.index_select(0, rows)
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
