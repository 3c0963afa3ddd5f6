"""Subtask induction with images, step by step (*Instilling Inductive Biases with Subnetworks*, section 5).

A base network classifies images in which shape and texture go together. Masks are found in it that classify
mean-pooled images, which have no texture. That subnetwork is put into a new network, which is trained on ordinary
images alone. Images whose shape and texture are of different classes tell which of the two a network goes by.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, train_on, untransferred
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.papers.subtask_induction import images_section as section
from subnet_utils.papers.subtask_induction.chosen_mask import ChosenMask, Mask
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS
from subnet_utils.papers.subtask_induction.image_sets import ImageSets, image_sets, listing, settings_of
from subnet_utils.papers.subtask_induction.stacks import errors, history_of, measured, shuffled, started

VALIDATION = {"validation": "validation", "pooled": "pooled_validation"}
"""Sets on which networks are judged while they are trained, by their names in the history."""


@dataclass(frozen=True)
class Network:
    """A network to be. architecture: without its published weights.

    resolution: pixels a side, of a ViT, whose positions depend on it; weights: digest of published weights in a local
    file or folder, or their name on the hub; place: where they are had.
    """

    architecture: section.ResNetClassifier | section.ViTClassifier
    classes: int
    seed: int
    resolution: int | None = None
    weights: str = ""
    place: str | None = field(default=None, compare=False)

    def fresh(self, about: str = "base", *, published: bool = False) -> StagedModel:
        """The network before training. about: base, or target for the one that inherits; published: whether its
        weights are the published ones, if there are any."""
        seed = generator_for("image network", about, self.seed).initial_seed() % 2**31
        sizes = self.architecture.model_dump() | {"classes": self.classes}
        make = partial(build, seed=seed, resolution=self.resolution)
        model = make(sizes | {"pretrained": self.place})
        if self.place is not None and not published:
            # new weights, but pixels and normalizations as in the network that weights may be inherited from
            model.load_state_dict(make(sizes | {"pretrained": None}).state_dict())
        return model


@dataclass(frozen=True)
class UntrainedBase(Step):
    """A base network as it is drawn: a control. `load` gives it, frozen."""

    keeps: ClassVar[int] = 4
    published: ClassVar[bool] = False

    network: Network

    def build(self, lab: Lab, folder: Path) -> dict[str, str]:
        """File its weights."""
        return _filed(self.network.fresh(), folder)

    def read(self, lab: Lab, artefact: Artefact) -> StagedModel:
        """See the class."""
        model = self.network.fresh(published=self.published)
        model.load_state_dict(artefact.tensors("weights"))
        return model.to(lab.device).eval().requires_grad_(False)


@dataclass(frozen=True)
class TrainedBase(UntrainedBase):
    """A base network that is trained from scratch, or pretrained and given a new classifier. It votes."""

    published: ClassVar[bool] = True

    data: ImageSets
    training: section.ImageTraining
    precision: str = "auto"

    def build(self, lab: Lab, folder: Path) -> dict[str, str]:
        """Train it. Raises WeightsError for published weights that cannot be had."""
        pretrained = self.network.place is not None
        model = self.network.fresh(published=True).to(lab.device)
        start = _only_classifier(model, model) if pretrained else untransferred(model)
        _train(self, lab, folder, model, start, updating=not pretrained, label="base")
        votes(lab, self.data, model.eval(), folder)
        return _filed(model, folder)


@dataclass(frozen=True)
class ShapeMask(Mask):
    """A mask in a base network that classifies mean-pooled images. The subnetwork alone votes."""

    search: section.ImageMasks
    base: UntrainedBase
    data: ImageSets
    precision: str = "auto"

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find it; its accuracy on pooled validation images is measured after every epoch."""
        model, network = self.base.load(lab), self.base.network
        train, held = (self.data.load(lab, title) for title in ("pooled_mask", VALIDATION["pooled"]))

        def accuracy(kept: Subnetwork) -> dict[str, float]:
            return {"validation_accuracy": 1 - errors(kept.apply(model), held.pixels, held.shapes)[0]}

        options = {"start": self.search.start, "seed": network.seed, "autocast": lab.autocast, "watch": accuracy,
                   "before": lambda: network.fresh(published=self.base.published),
                   "label": f"shape mask, seed {network.seed}"}  # fmt: skip
        kept, size = self.discovered(lab, folder, model, train.pixels, train.shapes, cross_entropy, **options)
        votes(lab, self.data, kept.apply(model), folder)
        return accuracy(kept) | size


@dataclass(frozen=True)
class Induced(Step):
    """A network trained on ordinary images from what its condition gives it. It votes.

    base, mask: where it inherits from, without those that the condition does not ask for.
    """

    records_faults: ClassVar[bool] = True

    network: Network
    condition: str
    data: ImageSets
    training: section.ImageTraining
    base: TrainedBase | None = None
    mask: ChosenMask | None = None
    precision: str = "auto"

    def build(self, lab: Lab, folder: Path) -> dict[str, str]:
        """Train it. Raises Fault if there is no mask or no control, or if training diverges."""
        fresh = self.network.fresh("target").to(lab.device)
        titles = ("train", "pooled_mask") if self.condition == "mixture" else ("train",)
        options = {"titles": titles, "updating": self.condition != "linear", "label": self.condition}
        _train(self, lab, folder, fresh, self._start(lab, fresh), **options)
        votes(lab, self.data, fresh.eval(), folder)
        return {"network": fingerprint(fresh)}

    def _start(self, lab: Lab, fresh: StagedModel) -> Transfer:
        if self.base is None:
            return untransferred(fresh)
        donor = self.base.load(lab)
        if self.mask is None:
            return _only_classifier(donor, fresh) if self.condition == "linear" else untransferred(donor)
        return started(self.condition, donor, self.mask.load(lab), fresh, seed=self.network.seed)


@dataclass(frozen=True)
class ModelSteps:
    """The steps of one model of a study with one seed."""

    model: section.ImageModel
    base: TrainedBase
    data: ImageSets

    @property
    def about(self) -> dict[str, Any]:
        """The model and the seed, as columns of a table."""
        return {"model": self.model.model, "paper_model": self.model.paper_model, "seed": self.base.network.seed}

    @property
    def bases(self) -> dict[str, UntrainedBase]:
        """The base network and its control, by name."""
        return {"trained": self.base, "random": UntrainedBase(self.base.network)}

    def mask(self, base: UntrainedBase) -> ChosenMask:
        """The mask that is taken, in the base network or in its control."""
        searches = self.model.masks.candidates()
        return ChosenMask(tuple(ShapeMask(search, base, self.data, self.base.precision) for search in searches))

    @property
    def conditions(self) -> dict[str, Induced]:
        """The networks of all conditions, by name."""
        made, mask = {}, self.mask(self.base)
        for name in self.model.conditions:
            inherits = {} if name == "scratch" else {"base": self.base}
            inherits |= {"mask": mask} if name in CONDITIONS and inherits else {}
            training = self.model.linear if name == "linear" else self.model.transfer
            made[name] = Induced(
                self.base.network, name, self.data, training, **inherits, precision=self.base.precision
            )
        return made


def models(lab: Lab) -> list[ModelSteps]:
    """The steps of every model and seed of a study."""
    images, precision = settings_of(lab), lab.study.compute.precision
    data, made = image_sets(images), []
    for model in images.models:
        first = _network(model, data)
        # what a local file holds counts, and not where it lies; the hub is not asked before something is made
        local = first.place is not None and Path(first.place).exists()
        weights = published_weights(first, first.place) if local else first.place or ""
        for seed in model.seeds:
            base = TrainedBase(replace(first, seed=seed, weights=weights), data, model.base, precision)
            made.append(ModelSteps(model, base, data))
    return made


def require_images(lab: Lab) -> None:
    """Raise ImageError for a folder that lacks classes or images, WeightsError for weights that cannot be had."""
    images = settings_of(lab)
    if isinstance(images.data, section.Folders):  # first: weights may have to be fetched
        listing(images.data)
    for model in images.models:
        if (place := model.architecture.pretrained) is not None:
            published_weights(_network(model, image_sets(images)), place)


@lru_cache(maxsize=4)
def published_weights(network: Network, place: str) -> str:
    """Digest of published weights. place: the network's, which equality leaves out. Raises WeightsError."""
    return fingerprint(network.fresh(published=True))


def _network(model: section.ImageModel, data: ImageSets) -> Network:
    """The network of a model with seed 0."""
    plain = model.architecture.model_copy(update={"pretrained": None})
    resolution = data.resolution if plain.family == "vit_classifier" else None
    return Network(plain, len(data.classes), 0, resolution, place=model.architecture.pretrained)


def votes(lab: Lab, data: ImageSets, model: StagedModel, folder: Path) -> None:
    """File the class that a network gives to every image of the test sets: int64 [n] each."""
    sets = {name: data.load(lab, name) for name in ("test", "pooled_test", "conflicts")}
    found = {name: measured(model, one.pixels, one.shapes, measure=lambda logits, _: logits.argmax(dim=1))[0]
             for name, one in sets.items()}  # fmt: skip
    save_tensors(folder / "votes.safetensors", found)


def _filed(model: StagedModel, folder: Path) -> dict[str, str]:
    save_tensors(folder / "weights.safetensors", model.state_dict())
    return {"network": fingerprint(model)}


def _only_classifier(donor: StagedModel, fresh: StagedModel) -> Transfer:
    """All of the donor, frozen, but a new linear classifier."""
    from subnet_utils.models.classifiers import CLASSIFIER  # imports torchvision, which takes seconds

    own = f"stages.{CLASSIFIER}.fc."
    new = {name: tensor for name, tensor in untransferred(fresh).start.items() if name.startswith(own)}
    old = {name: tensor for name, tensor in donor.named_parameters() if not name.startswith(own)}
    frozen = {name: torch.ones(tensor.shape, dtype=torch.bool) for name, tensor in old.items()}
    return Transfer(dict(untransferred(donor).start) | new, frozen)


def _train(
    step: TrainedBase | Induced, lab: Lab, folder: Path, model: StagedModel, start: Transfer, *,
    titles: Sequence[str] = ("train",), updating: bool, label: str,
) -> None:  # fmt: skip
    """Train a network on some sets of images; the best epoch's weights are left in it, and its history is filed."""
    sets = [step.data.load(lab, title) for title in titles]
    pixels, labels = ConcatDataset([one.pixels for one in sets]), torch.cat([one.shapes for one in sets])
    counts = labels.bincount(minlength=len(step.data.classes))
    # all classes count alike, as in the paper
    weights = (len(labels) / (len(counts) * counts.clamp(min=1))).float().to(lab.device)
    held = {f"{name}_error": step.data.load(lab, title) for name, title in VALIDATION.items()}
    found, history = train_on(
        model,
        [start],
        lambda epoch: _batches(step, pixels, labels, epoch),
        lambda logits, targets: cross_entropy(logits, targets, weight=weights),
        lambda now: {name: errors(model, one.pixels, one.shapes, now) for name, one in held.items()},
        recipe=step.training.recipe(step.network.seed, judged_by="validation_error"),
        autocast=lab.autocast,
        updating=updating,
        checkpoint=folder / CHECKPOINT,
        label=f"{label}, seed {step.network.seed}",
    )
    model.load_state_dict({name: tensor[0] for name, tensor in found.items()}, strict=False)
    flat = history_of(history)
    accuracies = {f"{name}_accuracy": 1 - flat[f"{name}_error"] for name in VALIDATION}
    save_table(folder / "history.parquet", flat[["epoch", "train_loss"]].assign(**accuracies))


def _batches(step: TrainedBase | Induced, images: Sequence[Tensor], labels: Tensor, epoch: int) -> Iterator[Any]:
    generator = generator_for("image batches", step.network.seed, epoch)
    for rows, targets in shuffled(labels, step.training.batch_size, generator):
        cut = partial(_cut, side=step.data.resolution, generator=generator if step.training.crops else None)
        pixels = torch.stack([cut(images[i]) for i in rows.tolist()])
        if step.training.flips:
            mirrored = torch.rand(len(rows), generator=generator) < 0.5
            pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
        yield pixels[None], targets[None]


def _cut(image: Tensor, *, side: int, generator: torch.Generator | None) -> Tensor:
    """A square of an image [3, r, r], so many pixels a side: at a random place, or without a generator its middle."""
    spare = image.shape[-1] - side
    positions = [spare // 2] * 2 if generator is None else torch.randint(spare + 1, (2,), generator=generator).tolist()
    top, left = positions
    return image[:, top : top + side, left : left + side]
