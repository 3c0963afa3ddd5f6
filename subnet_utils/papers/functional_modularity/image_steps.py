"""Which weights of a classifier serve one class alone? (*Are Neural Nets Modular?*, section 5, appendices B.1 and C.8).

A network learns all classes and is frozen. A control mask is trained on all of them, and a mask on all but one, whose
output layer is the control's. What the latter lacks served the missing class alone, if the network without it fails at
that class and at no other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import load_tensors, save_tensors
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint
from subnet_utils.papers.functional_modularity import image_section as section
from subnet_utils.papers.functional_modularity.image_networks import build, norms, settle
from subnet_utils.papers.functional_modularity.modules import CONTROL, Mask, Network, Problem, seeded
from subnet_utils.papers.functional_modularity.trainings import MaskTraining
from subnet_utils.tasks import pictures
from subnet_utils.tasks.pictures import PictureError, Pictures

AGAIN = 1000
"""Added to a network's seed for its second mask on the same function."""
CHUNK = 500
"""Images that a network sees at once when it is tested."""


@dataclass(frozen=True)
class Source:
    """The images of a study. data: of files without the folder; files: digest of what they hold; folder: where."""

    data: section.Drawn | section.Files
    files: str = ""
    folder: str = field(default="", compare=False)

    @classmethod
    def of(cls, data: section.Drawn | section.Files) -> "Source":
        """The images that a section names. Where there are none in a folder, steps have names but cannot be made."""
        if data.source == "drawn":
            return cls(data)
        try:
            files = _digest(data.folder)
        except PictureError:
            files = "missing"
        return cls(data.model_copy(update={"folder": ""}), files, data.folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, in the order of their numbers."""
        return self.data.classes

    def load(self, title: str) -> Pictures:
        """The images of `train` or `test`. Raises PictureError for files that cannot be read or have changed."""
        return _loaded(self)[title]


@lru_cache(maxsize=2)
def _loaded(source: Source) -> dict[str, Pictures]:
    data = source.data
    sizes = {"train": data.train, "test": data.test}
    if data.source == "drawn":
        look = {name: getattr(data, name) for name in ("resolution", "noise", "turn", "seed")}
        return {title: pictures.drawn(count, about=title, **look) for title, count in sizes.items()}
    if _digest(source.folder) != source.files:
        raise PictureError(f"the images of {source.folder} have changed; start again")
    found = pictures.from_folder(Path(source.folder))
    if (most := max(int(one.labels.max()) for one in found.values())) >= len(source.classes):
        raise PictureError(f"{source.folder} has a class number {most}; give 'classes' at least {most + 1} names")
    return {title: Pictures(one.pixels[: sizes[title]], one.labels[: sizes[title]]) for title, one in found.items()}


@lru_cache(maxsize=4)
def _digest(folder: str) -> str:
    return pictures.digest_of(Path(folder))


def without(name: str) -> str:
    """The function of all classes but one."""
    return f"without {name}"


def only(first: str, second: str) -> str:
    """The function of two classes."""
    return f"only {first} and {second}"


@dataclass(frozen=True)
class Classes(Problem):
    """Images of several classes. Functions are some of the classes; scores are counts of (class, answer) on test
    images."""

    source: Source
    architecture: section.Convolutional | section.Residual
    augment: bool = False

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        channels = self.source.load("train").pixels.shape[1]
        with seeded(seed):
            return build(self.architecture, channels, len(self.source.classes), augment=self.augment)

    def kept(self, function: str) -> tuple[int, ...]:
        """Numbers of the classes of a function. Raises KeyError for an unknown one."""
        names = self.source.classes
        every = tuple(range(len(names)))
        found = {CONTROL: every} | {without(name): (*every[:i], *every[i + 1 :]) for i, name in enumerate(names)}
        found |= {only(names[i], names[j]): (i, j) for i, j in combinations(every, 2)}
        return found[function]

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """Training images of the function's classes; all networks have the same."""
        train = self.source.load("train")
        rows = torch.isin(train.labels, torch.tensor(self.kept(function)))
        return train.pixels[rows], train.labels[rows]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, nats."""
        return cross_entropy(outputs, targets)

    def scores(self, network: nn.Module) -> dict[str, Any]:
        """accuracy; confusion: a row for each class, a count for each answer."""
        test, count = self.source.load("test"), len(self.source.classes)
        answers = answered(network, test.pixels)
        confusion = (test.labels * count + answers).bincount(minlength=count**2).reshape(count, count)
        return {"accuracy": float(confusion.trace() / confusion.sum()), "confusion": confusion.tolist()}


@torch.no_grad()
def answered(network: nn.Module, images: Tensor) -> Tensor:
    """The class that a network gives to each image, [n]."""
    device = next(network.parameters()).device
    return torch.cat([network(chunk.to(device)).argmax(dim=1).cpu() for chunk in images.split(CHUNK)])


@dataclass(frozen=True)
class Classifier(Network):
    """A network that has learned all classes. Statistics of batch normalization are those of its final weights: one
    pass over the training images, so that they do not depend on where a training was interrupted."""

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train all weights, then set the statistics."""
        found, network = super().build(lab, folder), self.problem.network(self.seed)
        if not norms(network):
            return found
        network.load_state_dict(load_tensors(folder / "weights.safetensors")[0])
        inputs = self.problem.source.load("train").pixels
        settle(network.to(lab.device), (chunk.to(lab.device) for chunk in inputs.split(CHUNK)))
        save_tensors(folder / "weights.safetensors", network.state_dict())
        return self.problem.scores(network) | {"network": fingerprint(network)}


@dataclass(frozen=True)
class Null(Step):
    """Scores of the control without random weights: as many in every layer as it has and a class's mask lacks."""

    control: Mask
    mask: Mask
    draws: int

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Test them, a row a draw."""
        control, mask, network = (step.load(lab) for step in (self.control, self.mask, self.mask.network))
        problem = self.mask.network.problem
        drawn = (thinned(control, control & ~mask, seed=draw) for draw in range(self.draws))
        return [{"draw": draw} | problem.scores(one.apply(network)) for draw, one in enumerate(drawn)]


def thinned(subnetwork: Subnetwork, lost: Subnetwork, *, seed: int) -> Subnetwork:
    """A subnetwork without random ones of its weights, as many in every layer as are `lost`."""
    masks = {}
    for name, mask in subnetwork.masks.items():
        places = mask.flatten().nonzero().flatten()
        order = torch.randperm(len(places), generator=generator_for("thinned", seed, name))
        kept = mask.flatten().clone()
        kept[places[order[: int(lost.masks[name].sum())]]] = False
        masks[name] = kept.reshape(mask.shape)
    return Subnetwork(masks, subnetwork.network)


@dataclass(frozen=True)
class Family:
    """What is made of one network at one strength of the penalty. usual: whether it is that of the masks' section;
    masks: without a class, by its name; nulls: one for each of them."""

    network: Classifier
    l0: float
    usual: bool
    control: Mask
    sham: Mask
    masks: dict[str, Mask]
    nulls: dict[str, Null]

    @property
    def steps(self) -> list[Step]:
        """All steps."""
        return [self.network, self.control, self.sham, *self.masks.values(), *self.nulls.values()]


def settings_of(lab: Lab) -> section.Images:
    """The part of a study that is about images."""
    return lab.section("functional_modularity").images


def require_images(lab: Lab) -> None:
    """Raise PictureError for a folder that is named and holds no images."""
    settings = settings_of(lab)
    for data in (settings.data, settings.permuted.data):
        if data is not None and data.source == "files":
            _digest(data.folder)
            Source.of(data).load("train")


def networks(lab: Lab) -> list[tuple[section.ImageNetwork, Classifier]]:
    """The networks of a study, each with its section."""
    settings = settings_of(lab)
    source, made = Source.of(settings.data), []
    for one in settings.networks:
        problem = Classes(source, one.architecture, one.training.augment)
        made += [(one, Classifier(problem, one.training, seed, model=one.model)) for seed in one.seeds]
    return made


def families(lab: Lab) -> list[Family]:
    """Masks without a class and what they are compared with, at all strengths of the penalty: the usual one first."""
    made = []
    for settings, network in networks(lab):
        removed = settings.removed or network.problem.source.classes
        made.append(_family(settings, network, settings.masks, removed))
        for l0 in settings.l0 or ():
            masking = settings.masks.masking.model_copy(update={"l0": l0})
            training = settings.masks.model_copy(update={"masking": masking})
            made.append(_family(settings, network, training, removed[:3]))
    return made


def _family(settings: section.ImageNetwork, network: Classifier, training: MaskTraining, removed) -> Family:
    seed = network.seed
    l0, usual = getattr(training.masking, "l0", 0.0), training == settings.masks
    control = Mask(network, CONTROL, training, seed)
    sham = Mask(network, CONTROL, training, seed + AGAIN, given=control)
    masks = {name: Mask(network, without(name), training, seed, given=control) for name in removed}
    nulls = {name: Null(control, mask, settings.draws) for name, mask in masks.items()}
    return Family(network, l0, usual, control, sham, masks, nulls)


def stability(lab: Lab) -> list[tuple[Mask, Mask]]:
    """Two masks each on random pairs of classes (appendix B.1). No layer is given, unlike in the released code."""
    made = []
    for settings, network in networks(lab):
        pairs = list(combinations(network.problem.source.classes, 2))
        chosen = torch.randperm(len(pairs), generator=generator_for("pairs of classes", network.seed))
        for i in chosen[: settings.pairs].tolist():
            made.append(tuple(
                Mask(network, only(*pairs[i]), settings.masks, seed) for seed in (network.seed, network.seed + AGAIN)
            ))  # fmt: skip
    return made


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps of the notebook."""
    from subnet_utils.papers.functional_modularity import permuted_steps

    for family in families(lab):
        yield from family.steps
    for pair in stability(lab):
        yield from pair
    yield from permuted_steps.tasks(lab)
