"""The section of a study for subtask induction with images (*Instilling Inductive Biases*, section 5, appendix C)."""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import (
    Distinct,
    Elsewhere,
    Layers,
    Place,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    Seeds,
    heads_divide_width,
)
from subnet_utils.papers.subtask_induction.conditions import (
    CONDITIONS,
    IMAGE_CONDITIONS,
    require_conditions,
    require_known,
)
from subnet_utils.papers.subtask_induction.mask_search import MaskSearch
from subnet_utils.problems.trainings import ModelName, Networks
from subnet_utils.tasks.textures import SHAPES, TEXTURES
from subnet_utils.training import Training


class ResNetClassifier(Section):
    """A ResNet with a linear classifier; by default ResNet18."""

    family: Literal["resnet_classifier"]
    block: Literal["basic", "bottleneck"] = "basic"
    depths: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], Strict(False)] = (2, 2, 2, 2)
    width: PositiveInt = 64
    norm: Literal["batch", "group"] = "batch"
    small_stem: bool = False
    pretrained: Place | None = None
    """File of torchvision's weights, or 'torchvision' to fetch them."""

    @model_validator(mode="after")
    def _groups_divide_width(self):
        if self.norm == "group" and self.width > 4 and self.width % 4:
            raise invalid("width", f"{self.width} channels do not make groups of four; give a multiple of 4")
        if self.norm == "group" and self.pretrained is not None:
            raise invalid("norm", "published weights are of a network with batch normalization; take 'batch'")
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("stem", "stage_1", "stage_2", "stage_3", "stage_4")


class ViTClassifier(Section):
    """A vision transformer with a linear classifier; by default ViT-B/16."""

    family: Literal["vit_classifier"]
    layers: Layers = 12
    width: PositiveInt = 768
    heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    patch: PositiveInt = 16
    pretrained: Place | None = None
    """Folder (or hub name) from which transformers loads a ViT."""

    _widths = model_validator(mode="after")(heads_divide_width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("patches", *(f"layer_{i}" for i in range(1, self.layers + 1)))


class Rendered(Section):
    """Images that the study draws: objects of a shape, filled with a texture, both of which predict the class."""

    shapes: Distinct[str] = ("circle", "square", "triangle", "star", "cross", "bar", "ring", "crescent")
    """One for each class."""
    textures: Distinct[str] = ("horizontal", "vertical", "rising", "falling", "checkers", "dots", "grid", "zigzag")
    """One for each class, in the order of the shapes."""
    resolution: Annotated[int, Field(ge=32)] = 48
    """Side of an image, pixels."""
    contrast: Annotated[float, Field(gt=0, le=0.5)] = 0.12
    """Of the textures: distance of their colors from the mean, each channel from 0 to 1."""
    texture_share: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Of the images of a class, how many have its texture for certain; the others have one at random."""
    segment_scale: PositiveFloat = 2000.0
    """Of the segmentation for mean pooling: larger for larger segments."""
    train: PositiveInt = 4000
    mask: PositiveInt = 2000
    """Training images that are mean-pooled, for masks and for the data mixture."""
    validation: PositiveInt = 500
    test: PositiveInt = 1000
    conflicts: PositiveInt = 1000
    """Test images whose texture is another class's."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _fits_together(self):
        if len(self.shapes) != len(self.textures):
            what = f"{len(self.textures)} for {len(self.shapes)} shapes; every class needs one of each"
            raise invalid("textures", what)
        if len(self.shapes) < 2:
            raise invalid("shapes", "one class is no choice; give at least two")
        require_known(self, "shapes", SHAPES)
        require_known(self, "textures", TEXTURES)
        if self.mask > self.train:
            raise invalid("mask", f"{self.mask:,} of {self.train:,} training images cannot be pooled; lower it")
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """What a class is called: by its shape."""
        return self.shapes


class Folders(Section):
    """Images from folders, one folder a class: 16-class ImageNet and the cue-conflict images."""

    train: Place
    test: Place
    conflicts: Place
    """Files such as `cat/cat3-elephant1.png`: shape, then texture."""
    classes: Distinct[str] = (
        "airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat",
        "chair", "clock", "dog", "elephant", "keyboard", "knife", "oven", "truck",
    )  # fmt: skip
    resolution: Annotated[int, Field(ge=32)] = 224
    mask_per_class: PositiveInt = 900
    """Training images that are mean-pooled; in the paper 13,929 in all. A class with fewer images than this and the
    next number together gives as large a share of what it has: of 586 knives the paper pools 527 and keeps 59."""
    validation_per_class: PositiveInt = 100
    """Training images kept for choosing epochs and masks; in the paper 1,549 in all."""
    segment_anything: Elsewhere | None = None
    """Folder (or hub name) of a Segment Anything model; None: a classical segmentation."""
    segment_scale: PositiveFloat = 300.0
    """Of the classical segmentation: larger for larger segments."""


class ImageTraining(Training):
    """Training of a classifier; the epoch with the fewest errors on validation images is kept (appendix C.1)."""

    optimizer: Literal["adam", "sgd"] = "sgd"
    batch_size: PositiveInt = 128
    epochs: PositiveInt = 20
    weight_decay: Annotated[float, Field(ge=0)] = 0.0001
    flips: bool = False
    """Mirror images left-right at random."""
    crops: bool = False
    """Cut images out at random places, of photographs with a frame of 1/14 of their side; else out of their middle."""


class ImageMasks(MaskSearch):
    """Discovery of the shape subnetwork on mean-pooled images. The most accurate mask is taken."""

    start: str
    """First stage with masked weights."""
    epochs: PositiveInt = 100
    batch_size: PositiveInt = 32
    l0: Distinct[Annotated[float, Field(ge=0)]] = (1e-6, 1e-7, 1e-8)


class ImageModel(Section):
    """One architecture: base network, masks and what is trained around them."""

    model: ModelName
    paper_model: Literal["resnet18", "vit_b"]
    architecture: Annotated[ResNetClassifier | ViTClassifier, Field(discriminator="family")]
    base: ImageTraining = ImageTraining()
    """Of the base network from scratch, or, with pretrained weights, of its classifier alone."""
    masks: ImageMasks
    transfer: ImageTraining = ImageTraining()
    linear: ImageTraining = ImageTraining()
    """Of a new classifier on the base network's features."""
    seeds: Seeds = (0, 1, 2)
    conditions: Distinct[str] = IMAGE_CONDITIONS

    @model_validator(mode="after")
    def _fits_together(self):
        stages = self.architecture.stages
        if self.masks.start not in stages:
            raise invalid("masks.start", f"'{self.masks.start}' is not a stage; {nearest(self.masks.start, stages)}")
        require_conditions(self, "conditions", (*IMAGE_CONDITIONS, *CONDITIONS))
        return self


class Images(Section):
    """Subtask induction with images: a shape bias for classifiers."""

    rendered: Rendered | None = None
    folders: Folders | None = None
    models: Networks[ImageModel]

    @property
    def data(self) -> Rendered | Folders:
        """Where the images come from."""
        return self.rendered or self.folders

    @property
    def crops(self) -> bool:
        """Whether any training cuts images out at random places."""
        return any(part.crops for one in self.models for part in (one.base, one.transfer, one.linear))

    @model_validator(mode="after")
    def _fits_together(self):
        if (self.rendered is None) == (self.folders is None):
            raise invalid("", "give either 'rendered' or 'folders'")
        if self.crops and self.folders is None:
            raise invalid("", "'crops' is for photographs from 'folders'; images that are drawn have no frame")
        for one in self.models:
            if one.architecture.family == "vit_classifier" and self.data.resolution % one.architecture.patch:
                what = f"{self.data.resolution} is not a multiple of patch {one.architecture.patch} of '{one.model}'"
                raise invalid("resolution", f"{what}; change one of them")
        return self
