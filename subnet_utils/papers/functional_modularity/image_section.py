"""The section of a study on modules in classifiers of images (*Are Neural Nets Modular?*, sections 3.3 and 5)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Strict, model_validator

from subnet_utils.core import sections
from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import Distinct, Place, PositiveFloat, PositiveInt, Section, Seed, Seeds, Several
from subnet_utils.problems.trainings import MaskTraining, ModelName, Networks, WeightTraining
from subnet_utils.training import Recipe

DIGITS = tuple("0123456789")
Rate = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[^,]+$")]


class Drawn(Section):
    """Digits that the study draws (`tasks.pictures.drawn`)."""

    source: Literal["drawn"]
    train: PositiveInt = 8000
    test: PositiveInt = 2000
    resolution: Annotated[int, Field(ge=16)] = 28
    noise: Annotated[float, Field(ge=0, le=1)] = 0.2
    turn: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Largest rotation, radians; shear and size change along."""
    seed: Seed = 0
    classes: ClassVar[tuple[str, ...]] = DIGITS


class Files(Section):
    """Images from a folder: MNIST or Fashion-MNIST as idx files, or CIFAR10's binary version."""

    source: Literal["files"]
    folder: Place
    classes: Distinct[Name] = DIGITS
    """In the order of their numbers."""


ImageData = Annotated[Drawn | Files, Field(discriminator="source")]


class Convolutional(Section):
    """The paper's simple CNN (Table 5)."""

    family: Literal["cnn"]
    widths: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], Strict(False)] = (32, 64, 128, 256)
    dropout: Annotated[tuple[Rate, Rate], Strict(False)] = (0.25, 0.5)
    """After the third and the fourth convolution."""


class Residual(Section):
    """A ResNet for small images (He et al. 2016), by default ResNet-110."""

    family: Literal["resnet"]
    depth: Literal[8, 14, 20, 32, 44, 56, 110] = 110
    width: PositiveInt = 16
    """Channels of the first third."""


@dataclass(frozen=True)
class Dropping(Recipe):
    """A recipe whose learning rate is a tenth from each of some intervals on."""

    drops: tuple[int, ...] = ()

    def rate(self, epoch: int) -> float:
        """See `Recipe.rate`."""
        return super().rate(epoch) * 0.1 ** sum(epoch >= drop for drop in self.drops)


class ImageTraining(WeightTraining):
    """Training of a classifier (appendix C.8)."""

    optimizer: Literal["adam", "sgd"] = "adam"
    drops: Annotated[tuple[PositiveInt, ...], Strict(False)] = ()
    """Steps at which the learning rate falls to a tenth."""
    augment: bool = False
    """Mirror images left-right and shift them by up to 4 pixels, at random."""

    def recipe(self, seed: int | None = None) -> Recipe:
        """The recipe, with the optimizer and the drops."""
        drops = tuple(step // self.interval for step in self.drops)
        return Dropping(**vars(super().recipe(seed)) | {"optimizer": self.optimizer, "drops": drops})

    @model_validator(mode="after")
    def _drops_between_intervals(self):
        if wrong := [step for step in self.drops if step % self.interval or step >= self.steps]:
            raise invalid("drops", f"{wrong[0]} is no multiple of interval {self.interval} below steps; change it")
        return self


class ImageNetwork(Section):
    """One kind of network, how it learns all classes, and the masks in it."""

    model: ModelName
    paper_network: Literal["CNN", "CNN without dropout", "ResNet-110"] | None = None
    """The paper's network that ours stands beside."""
    architecture: Annotated[Convolutional | Residual, Field(discriminator="family")]
    training: ImageTraining = ImageTraining()
    masks: MaskTraining = MaskTraining(learning_rate=0.001)
    seeds: Seeds = tuple(range(10))
    removed: Distinct[Name] | None = None
    """Classes that a mask is trained without, each in turn. None: all."""
    l0: Distinct[Annotated[float, Field(gt=0)]] | None = None
    """Other values of alpha, for the first three of these classes."""
    pairs: Annotated[int, Field(ge=0, le=45)] = 0
    """Random pairs of classes, on each of which two masks are trained (appendix B.1)."""
    draws: PositiveInt = 10
    """Random ablations of the control that a mask is compared with."""


class Permuted(Section):
    """One network learns one permutation of the pixels after another (section 3.3, appendix C.6)."""

    data: ImageData | None = None
    """None: as for the other networks. Colors are averaged."""
    widths: Several[PositiveInt] = (800, 800, 64)
    """Of the hidden layers."""
    tasks: Annotated[int, Field(ge=2)] = 11
    training: WeightTraining = WeightTraining(learning_rate=0.01, steps=30000)
    """Of weights and masks together."""
    l0: PositiveFloat = 0.00001
    """The paper's alpha."""
    samples: PositiveInt = 8
    """Parts of a batch, each with a draw of the mask."""
    starts: Distinct[float] = (2.0, 0.0, -1.0)
    """First logits of new weights, each a sequence of its own: Figure 3, then Figure 14."""
    first_layer: float | None = None
    """First logits of the first layer. None: as of new weights."""
    seeds: Seeds = tuple(range(10))

    @property
    def problem(self) -> Self:
        """The part that one task depends on."""
        return sections.without(self, "data", "tasks", "starts", "seeds")

    @model_validator(mode="after")
    def _fits_together(self):
        if self.training.weight_decay:
            raise invalid("training.weight_decay", "would change frozen weights; set it to 0")
        if self.training.batch_size % self.samples:
            what = f"{self.samples} do not divide the batch of {self.training.batch_size}; change one of them"
            raise invalid("samples", what)
        return self


class Images(Section):
    """Modules in classifiers of images: classes of a CNN, and permuted pixels."""

    data: ImageData
    networks: Networks[ImageNetwork]
    permuted: Permuted

    @model_validator(mode="after")
    def _removed_are_classes(self):
        for one in self.networks:
            if wrong := [name for name in one.removed or () if name not in self.data.classes]:
                what = f"'{wrong[0]}', which '{one.model}' removes, is no class; {nearest(wrong[0], self.data.classes)}"
                raise invalid("networks", what)
        return self
