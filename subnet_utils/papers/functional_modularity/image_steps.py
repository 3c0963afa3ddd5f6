"""Which weights of a classifier serve one class alone? (*Are Neural Nets Modular?*, section 5, appendices B.1 and C.8).

A network learns all classes and is frozen. A control mask is trained on all of them, and a mask on all but one, whose
output layer is the control's. What the latter lacks served the missing class alone, if the network without it fails at
that class and at no other.
"""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.masks.controls import random_within
from subnet_utils.models.small_images import build, settle
from subnet_utils.papers.functional_modularity import section
from subnet_utils.problems.modules import CONTROL, Halves, Mask, Masked, Network, Problem, networks, seeded, strengths
from subnet_utils.problems.pictures import Source

CHUNK = 500
"""Images that a network sees at once when it is tested."""
WITHOUT, ONLY = "without {}", "only {} and {}"
"""Functions: all classes but one, and two classes."""


@dataclass(frozen=True)
class Classes(Problem):
    """Images of several classes. Functions are some of the classes; scores are counts of (class, answer) on test
    images."""

    source: Source
    architecture: section.Convolutional | section.Residual
    augment: bool = False
    known = "accuracy"

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        channels = self.source.load("train").pixels.shape[1]
        with seeded(seed):
            about = self.architecture.model_dump()
            return build(channels=channels, classes=len(self.source.data.classes), augment=self.augment, **about)

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """Training images of the function's classes; all networks have the same. Raises KeyError for no function."""
        train, names = self.source.load("train"), self.source.data.classes
        classes = {CONTROL: names} | {WITHOUT.format(name): {*names} - {name} for name in names}
        classes |= {ONLY.format(*pair): pair for pair in combinations(names, 2)}
        rows = torch.tensor([name in classes[function] for name in names])[train.labels]
        return train.pixels[rows], train.labels[rows]

    def finish(self, network: nn.Module) -> nn.Module:
        """See `Problem`: statistics of batch normalization are those of the training images."""
        return settle(network, self.source.load("train").pixels.split(CHUNK))

    @torch.no_grad()
    def scores(self, network: nn.Module) -> dict[str, Any]:
        """accuracy; confusion: a row for each class, a count for each answer."""
        test, count, device = self.source.load("test"), len(self.source.data.classes), next(network.parameters()).device
        answers = torch.cat([network(some.to(device)).argmax(dim=1).cpu() for some in test.pixels.split(CHUNK)])
        confusion = (test.labels * count + answers).bincount(minlength=count**2).reshape(count, count)
        return {"accuracy": float(confusion.trace() / confusion.sum()), "confusion": confusion.tolist()}


class Classifier(Network):
    """A network that has learned all classes."""


@dataclass(frozen=True)
class Null(Step):
    """Scores of the control without random weights: as many in every layer as it has and a class's mask lacks."""

    control: Mask
    mask: Mask
    draws: int

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Test them, a row a draw."""
        control, mask, network = (step.load(lab) for step in (self.control, self.mask, self.mask.network))
        rows = []
        for draw in range(self.draws):
            thinned = control & ~random_within(control & ~mask, control.masks, "thinned", draw)
            rows.append({"draw": draw} | self.mask.network.problem.scores(thinned.apply(network)))
        return rows


@dataclass(frozen=True)
class Family(Masked):
    """What is made of one network at one strength of the penalty: masks without each of some classes, and two masks on
    all classes. `control` is what these need, `sham` the same again with the first one's output layer."""

    network: Classifier

    control = property(lambda self: self.mask(CONTROL))
    sham = property(lambda self: self.mask(CONTROL, 1, self.control))
    halves = property(lambda self: Halves(self.control))

    @property
    def masks(self) -> dict[str, Mask]:
        """A mask without each class, by its name. There are three where the penalty is not the usual one."""
        removed = self.settings.removed or self.network.problem.source.data.classes
        return {name: self.mask(WITHOUT.format(name), 0, self.control) for name in removed[: None if self.usual else 3]}

    def null(self, name: str) -> Null:
        """What the mask without a class is compared with."""
        return Null(self.control, self.masks[name], self.settings.draws)

    @property
    def pairs(self) -> list[tuple[Mask, Mask]]:
        """Two masks each on random pairs of classes (appendix B.1), at the usual penalty. No layer is given, unlike in
        the released code."""
        pairs = list(combinations(self.network.problem.source.data.classes, 2))
        order = torch.randperm(len(pairs), generator=generator_for("pairs of classes", self.network.seed))
        functions = [ONLY.format(*pairs[i]) for i in order[: self.settings.pairs * self.usual].tolist()]
        return [(self.mask(function), self.mask(function, 1)) for function in functions]

    @property
    def steps(self) -> list[Step]:
        """All steps."""
        pairs = [mask for pair in self.pairs for mask in pair]
        null = map(self.null, self.masks)
        return [self.network, self.control, self.halves, self.sham, *self.masks.values(), *null, *pairs]

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for tables."""
        l0 = getattr(self.training.masking, "l0", 0.0)
        return {"model": self.network.model, "seed": self.network.seed, "l0": l0, "usual_l0": self.usual}


def settings_of(lab: Lab) -> section.Images:
    """The part of a study that is about images."""
    return lab.section("functional_modularity").images


def require_images(lab: Lab) -> None:
    """Raise PictureError for images that are not there, and for a class that has none."""
    settings = settings_of(lab)
    for data in (settings.data, settings.permuted.data or settings.data):
        Source.of(data).require_classes()


def families(lab: Lab) -> list[Family]:
    """Every network of the study at all strengths of the penalty, the usual one first."""
    settings = settings_of(lab)
    source, made = Source.of(settings.data), []
    for one in settings.networks:
        problem = Classes(source, one.architecture, one.training.augment)
        classifiers = networks(one, problem, Classifier)
        trainings = dict.fromkeys([one.masks, *strengths(one)])  # `l0` may hold the usual alpha, too
        made += [Family(one, network, training) for network in classifiers for training in trainings]
    return made
