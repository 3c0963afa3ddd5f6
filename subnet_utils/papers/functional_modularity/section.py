"""The section of a study for *Are Neural Nets Modular?*: modules in arithmetic, sequences and images."""

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from subnet_utils.core import sections
from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import Distinct, Layers, PositiveFloat, PositiveInt, Section, Seed, Seeds, Several
from subnet_utils.masks.masking import GumbelSigmoid, methods_fit
from subnet_utils.problems import trainings
from subnet_utils.problems.tasks import ClassName, ImageData
from subnet_utils.problems.trainings import MaskTraining, ModelName, Networks, WeightTraining
from subnet_utils.training import Dropping, Recipe

Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Entropy = Annotated[float, Field(ge=1, le=16)]
Split = Literal["jump", "turn left", "length", "easy"]
COMMANDS = 20910
"""Commands of SCAN."""


class MaskedNetwork(Section):
    """One kind of network, how it learns, and the masks in it."""

    model: ModelName
    """Name in our tables."""
    training: WeightTraining = WeightTraining()
    masks: MaskTraining = MaskTraining()
    seeds: Seeds = tuple(range(10))

    _methods_fit = model_validator(mode="after")(methods_fit)


class FeedForward(Section):
    """Linear layers with ReLUs between them."""

    family: Literal["feedforward"]
    widths: Several[PositiveInt] = (2000, 2000, 2000, 2000)
    """Of the hidden layers."""


class Lstm(Section):
    """An LSTM that sees its input for several steps."""

    family: Literal["lstm"]
    width: PositiveInt = 256
    layers: Layers = 2
    reading: Literal["together", "forced"] = "together"
    """Of two pairs: both at once, or one after the other."""
    steps: PositiveInt = 3


class ArithmeticNetwork(MaskedNetwork):
    """A network that learns two functions (sections 3.1 and 3.2)."""

    paper_network: Literal["FNN", "LSTM", "LSTM_forced"] | None = None
    """The network of the paper's tables that ours stands beside."""
    task: Literal["add_mul", "double_addition"]
    architecture: Annotated[FeedForward | Lstm, Field(discriminator="family")]
    repeats: PositiveInt = 2
    """Masks for each function, with seeds of their own: how much two of them overlap is the most one can expect."""
    copied: sections.DistinctOrNone[Seed] = ()
    """Seeds whose networks are also taken with one pair's inputs and outputs copied onto the other's (Figure 8)."""
    others: Annotated[tuple[MaskTraining, ...], Strict(False)] = ()
    """Other ways of finding masks in the same networks, such as another method."""
    l0: Distinct[PositiveFloat] | None = None
    """Other values of alpha, for all masks (appendix C.3, Figure 10)."""
    pool: PositiveInt = 100000
    """Items with both pairs that an LSTM is trained on; there are 10^8."""
    examples: Annotated[int, Field(gt=0, lt=10000)] | None = None
    """Items of each function that the network and its masks learn from, drawn by the seed. None: all 10,000."""
    tested: Annotated[int, Field(gt=0, le=10000)] = 10000
    """Items of each function that test the network and its masks."""

    @model_validator(mode="after")
    def _fits_together(self):
        lstm, pairs = self.architecture.family == "lstm", self.task == "double_addition"
        if self.copied and (lstm or not pairs):
            raise invalid("copied", "is for feedforward networks that add two pairs; leave it out")
        if unknown := [seed for seed in self.copied if seed not in self.seeds]:
            raise invalid("copied", f"{unknown[0]} is none of the seeds; add it to them")
        trainings.must_train("masks", self.masks, "as notebook 09d needs; give it in 'others'")
        methods = [one.masking.method for one in (self.masks, *self.others)]
        if len(set(methods)) < len(methods):
            raise invalid("others", "has a method twice, that of 'masks' counted; give each method once")
        if self.examples and lstm and pairs:
            raise invalid("examples", "an LSTM reads items with both pairs; set 'pool' instead")
        if lstm and self.architecture.reading == "forced":
            if not pairs:
                raise invalid("architecture.reading", "'forced' needs two pairs; take 'together'")
            if self.architecture.steps % 2:
                raise invalid("architecture.steps", f"{self.architecture.steps} cannot be halved; give an even number")
        return self


class LstmPair(Section):
    """An LSTM that reads and one that answers (appendix C.7.1)."""

    family: Literal["lstm"]
    width: PositiveInt = 200
    layers: Layers = 2
    embedding: PositiveInt = 16
    dropout: Rate = 0.5
    """While the network is trained; never while masks are."""
    own_outputs: Share = 0.5
    """Of the batches: the decoder reads its own answer in training. In mask training it always reads the right one."""


class TransformerPair(Section):
    """A Transformer's encoder and decoder (appendix C.7.1)."""

    family: Literal["transformer"]
    width: PositiveInt = 100
    layers: Layers = 3
    """Of the encoder, and of the decoder."""
    heads: PositiveInt = 4
    mlp_width: PositiveInt = 200
    dropout: Rate = 0.1

    _heads_fit = model_validator(mode="after")(sections.heads_divide_width)


class Questions(Section):
    """Questions of a task of mathematics (`tasks.mathematics`)."""

    train: PositiveInt = 656666
    """Of each level, to learn from."""
    test: PositiveInt = 10000
    entropy: Annotated[tuple[Entropy, Entropy], Strict(False)] | None = None
    """Another range: about as many digits do the numbers of a question have. None: the original's."""

    @model_validator(mode="after")
    def _rises(self):
        if self.entropy and self.entropy[0] >= self.entropy[1]:
            raise invalid("entropy", "does not rise; give the least, then the largest")
        return self


class SequenceNetwork(MaskedNetwork):
    """A network that learns SCAN or a task of mathematics; masks are on the training sets of its splits (section 4)."""

    architecture: Annotated[LstmPair | TransformerPair, Field(discriminator="family")]
    task: Literal["scan", "add_or_sub", "linear_1d", "differentiate", "sort", "collect"] = "scan"
    questions: Questions | None = None
    """Of a task of mathematics. None: as many as the paper has."""
    splits: Distinct[Split] | None = None
    """Those with a mask. None: all of the task."""
    repeats: PositiveInt = 2
    """Control masks, with seeds of their own: how much two of them overlap is the most that one can expect."""
    direct: Distinct[Split] | None = None
    """Splits that networks learn from the start, without masks (Figure 15)."""
    tested: Annotated[int, Field(ge=1000, le=COMMANDS)] = COMMANDS
    """Commands of SCAN that test the network and its masks; in all splits together."""

    @property
    def with_masks(self) -> tuple[str, ...]:
        """The splits with a mask."""
        return self.splits or self._known

    @property
    def _known(self) -> tuple[str, ...]:
        return ("jump", "turn left", "length") if self.task == "scan" else ("easy",)

    @model_validator(mode="after")
    def _fits_together(self):
        if strange := [split for split in self.with_masks if split not in self._known]:
            raise invalid("splits", f"'{strange[0]}' is no split of {self.task}; it has {', '.join(self._known)}")
        if strange := [split for split in self.direct or () if split not in self.with_masks]:
            raise invalid("direct", f"'{strange[0]}' is not among the splits with a mask; add it to splits")
        trainings.must_train(
            "masks", self.masks, "and notebook 09b shows how they come about; take gumbel_sigmoid, for instance"
        )
        if self.task == "scan" and self.questions:
            raise invalid("questions", "are for mathematics; leave them out, or name another task")
        if self.task != "scan" and self.tested < COMMANDS:
            raise invalid("tested", "counts commands of SCAN; set questions.test instead")
        if self.task != "scan" and self.architecture.family == "lstm":
            raise invalid("architecture", f"'{self.task}' is learned by Transformers; take 'transformer'")
        return self


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


class ImageTraining(WeightTraining):
    """Training of a classifier (appendix C.8)."""

    optimizer: Literal["adam", "sgd"] = "adam"
    drops: sections.DistinctOrNone[PositiveInt] = ()
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


class ImageNetwork(MaskedNetwork):
    """A network that learns all classes of images (section 5)."""

    paper_network: Literal["CNN", "CNN without dropout", "ResNet-110"] | None = None
    """The paper's network that ours stands beside."""
    architecture: Annotated[Convolutional | Residual, Field(discriminator="family")]
    training: ImageTraining = ImageTraining()
    masks: MaskTraining = MaskTraining(learning_rate=0.001)
    removed: Distinct[ClassName] | None = None
    """Classes that a mask is trained without, each in turn. None: all."""
    l0: Distinct[PositiveFloat] | None = None
    """Other values of alpha, for the first three of these classes."""
    pairs: Annotated[int, Field(ge=0, le=45)] = 0
    """Random pairs of classes, on each of which two masks are trained (appendix B.1)."""
    draws: PositiveInt = 10
    """Random ablations of the control that a mask is compared with."""

    @model_validator(mode="after")
    def _has_a_penalty(self):
        if self.l0:
            trainings.must_train("masks", self.masks, "so it has no penalty; leave 'l0' out")
        return self


class Permuted(Section):
    """One network learns one permutation of the pixels after another (section 3.3, appendix C.6)."""

    data: ImageData | None = None
    """None: as for the other networks. Colors are averaged."""
    widths: Several[PositiveInt] = (800, 800, 64)
    """Of the hidden layers."""
    tasks: Annotated[int, Field(ge=2)] = 11
    training: MaskTraining = MaskTraining(steps=30000, masking=GumbelSigmoid(l0=0.00001, samples=8))
    """Of weights and masks together."""
    start_values: Distinct[float] = (2.0, 0.0, -1.0)
    """First logits of new weights, each a sequence of its own: Figure 3, then Figure 14."""
    first_layer: float | None = None
    """First logits of the first layer. None: as of new weights."""
    seeds: Seeds = tuple(range(10))

    @property
    def problem(self) -> Self:
        """The part that one task depends on."""
        return sections.without(self, "data", "tasks", "start_values", "seeds")

    @model_validator(mode="after")
    def _fits_together(self):
        if self.training.weight_decay:
            raise invalid("training.weight_decay", "would change frozen weights; set it to 0")
        if getattr(self.training.masking, "units", "weights") != "weights":
            raise invalid("training.masking.units", "each weight is new or old here; set it to 'weights'")
        trainings.must_train(
            "training", self.training, "and here weights learn with theirs; take gumbel_sigmoid, for instance"
        )
        return self


class Images(Section):
    """Modules in classifiers of images: classes of a CNN, and permuted pixels."""

    data: ImageData
    networks: Networks[ImageNetwork]
    permuted: Permuted

    @model_validator(mode="after")
    def _fits_together(self):
        trainings.beside_one_each(self.networks)
        for one in self.networks:
            if wrong := [name for name in one.removed or () if name not in self.data.classes]:
                what = f"'{wrong[0]}', which '{one.model}' removes, is no class; {nearest(wrong[0], self.data.classes)}"
                raise invalid("networks", what)
        return self


class FunctionalModularity(Section):
    """Modules for functions: in arithmetic (notebooks 09a and 09d), sequences (09b) and images (09c)."""

    arithmetic: Networks[ArithmeticNetwork] | None = None
    sequences: Networks[SequenceNetwork] | None = None
    images: Images | None = None

    _something_to_do = model_validator(mode="after")(sections.has_a_part)

    @model_validator(mode="after")
    def _networks_of_the_paper(self):
        for task in ("add_mul", "double_addition"):
            trainings.beside_one_each(one for one in self.arithmetic or () if one.task == task)
        return self
