"""The sections of a study: compute, architectures, data, training, pretraining, pruning, controls.

Frozen, strictly typed, without unknown keys. Names follow the paper's symbols where it has them; units are in the field
descriptions. `study` puts them together.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)
from pydantic.functional_validators import AfterValidator, PlainValidator

from subnet_utils.faults import auto_or_positive, auto_or_size, distinct, fault, not_empty
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS

T = TypeVar("T")
Several = Annotated[tuple[T, ...], Strict(False), AfterValidator(not_empty)]
Distinct = Annotated[Several[T], AfterValidator(distinct)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Seeds = Distinct[Seed]


class Section(BaseModel):
    """A part of a study: frozen, strictly typed, without unknown keys, NaN or infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Compute(Section):
    """Where and how to compute. Nothing here changes what is computed beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; auto = bfloat16 on GPUs since Ampere and on CPUs with AVX512-BF16;
    elsewhere it is float32 whatever is asked for. Evaluation always is: accuracies can ride on tiny logit gaps."""
    threads: PositiveInt = 1
    """CPU threads of one job. One thread a job, many jobs at a time, is the fastest for small networks."""
    workers: Annotated[Literal["auto"] | int, PlainValidator(auto_or_positive)] = "auto"
    """Jobs (bases, masks) at a time; auto = CPU cores / threads, or 1 on a GPU."""
    masks_at_once: Annotated[Literal["auto"] | int, PlainValidator(auto_or_positive)] = "auto"
    """Masks of one base model trained as one computation; auto = 1 on a CPU and for ResNets, else as many as half of
    the GPU's memory holds by a rough count, at most 24. In a halved search always 1: each mask is paused alone."""
    cache_limit_gb: Annotated[Literal["auto"] | float, PlainValidator(auto_or_size)] = "auto"
    """Cache of frozen prefixes' outputs, GiB a job, besides those in use; what does not fit is recomputed. auto = a
    third of the memory, or half of the GPU's, divided among the jobs at a time."""


def heads_divide_width(architecture: T) -> T:
    """Validator of a transformer's sizes."""
    if architecture.width % architecture.heads:
        what = f"{architecture.width} is not a multiple of heads {architecture.heads}; change one of them"
        raise fault("width", what)
    return architecture


ROOT = Path(__file__).resolve().parents[2]
"""The checkout: params/, artifacts/, figures/ and runs/ lie here, whatever the working directory."""


def _in_checkout(place: str) -> str:
    """Where something lies in the checkout, or its place or name as it is."""
    own = ROOT / Path(place).expanduser()
    return str(own) if own.exists() else place


Place = Annotated[str, AfterValidator(_in_checkout)]
"""A file or folder, or a name on the model hub. Relative paths start at the checkout: notebooks run in folders of their
own."""


class Bert(Section):
    """A BERT encoder; the paper's BERT-small is 4 layers, width 512, 8 heads, MLP width 2048."""

    family: Literal["bert"]
    layers: PositiveInt = 4
    width: PositiveInt = 512
    heads: PositiveInt = 8
    mlp_width: PositiveInt = 2048
    pretrained: Place | None = None
    """Folder (or hub name) to take weights and tokenizer from."""
    deviation: PositiveFloat | None = None
    """Of the weights as they are drawn; None: transformers' .02, whatever the width. What a layer passes on grows with
    the deviation times the root of the width, so .02 at BERT-small's width of 512 is .04 at 128."""

    _widths = model_validator(mode="after")(heads_divide_width)

    @model_validator(mode="after")
    def _drawn_or_taken(self):
        if self.deviation is not None and self.pretrained is not None:
            raise fault("deviation", "pretrained weights are not drawn; remove deviation or pretrained")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a deviation that is not given: artefacts that were made before there was one are still found."""
        fields = dump(self)
        if self.deviation is None:
            fields.pop("deviation", None)
        return fields

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return (*(f"layer_{i}" for i in range(1, self.layers + 1)), "pooler")


class ResNet(Section):
    """A four-stage ResNet, instance-normalized, with an embedding MLP; in the paper bottleneck 3-4-6-3, width 64."""

    family: Literal["resnet"]
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], Strict(False)] = (3, 4, 6, 3)
    width: PositiveInt = 64
    width_factor: PositiveInt = 1
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128
    small_stem: bool = False
    """A 3x3 stem without pooling instead of the 7x7 one, for small images."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("stem", "stage_1", "stage_2", "stage_3", "stage_4", "head")

    @model_validator(mode="after")
    def _wide_bottlenecks(self):
        if self.block == "basic" and self.width_factor != 1:
            raise fault("width_factor", f"{self.width_factor} needs block bottleneck; basic blocks have no inner width")
        return self


class ViT(Section):
    """A vision transformer with an embedding MLP; the paper's are 6 and 12 layers, width 768, 12 heads, patch 16."""

    family: Literal["vit"]
    layers: PositiveInt = 6
    width: PositiveInt = 768
    heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    patch: PositiveInt = 16
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128

    _widths = model_validator(mode="after")(heads_divide_width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("patches", *(f"layer_{i}" for i in range(1, self.layers + 1)), "head")


class Sizes(Section):
    """Examples per split."""

    train: Annotated[int, Field(ge=0)] = 0
    validation: PositiveInt
    test: PositiveInt


class Data(Section):
    """How much data, and which."""

    base: Sizes
    mask: Sizes
    probe: Sizes
    resolution: Annotated[int, Field(ge=32)] = 128
    """Side of an image, pixels (vision)."""
    seed: Seed = 0
    as_printed: bool = False
    """Sample language sets as the authors did: mask sets overlap base and probe sentences."""


class BaseTraining(Section):
    """Training of the base models (appendix A): Adam without weight decay, best validation loss kept."""

    learning_rate: PositiveFloat
    batch_size: PositiveInt
    epochs: PositiveInt = 100
    patience: PositiveInt = 75
    """Epochs without a better validation loss before training stops."""
    seeds: Seeds = (0, 1, 2)
    flips: bool = False
    """Mirror images at random while training (vision); the paper does not."""


class MaskTraining(Section):
    """Continuous sparsification (appendices B and C)."""

    search: Literal["grid", "halving", "selected"] = "grid"
    """grid: the paper's search, by its rule; halving: the same, but after half of the epochs only the better half of
    the settings goes on (successive halving, one rung); selected: the hyperparameters that the authors chose."""
    learning_rates: Distinct[PositiveFloat] = (0.01, 0.0001)
    inits: Distinct[float] = (0.1, 0.05, 0.0, -0.05)
    starts: Distinct[str]
    """Stages to start masking at."""
    search_seed: Seed = 0
    seeds: Seeds = (0, 1, 2)
    epochs: PositiveInt = 90
    batch_size: PositiveInt = 64
    beta_max: Annotated[float, Field(ge=1)] = 200.0
    l0: Annotated[float, Field(ge=0)] = 1e-8
    """lambda, the weight of the sum of soft mask entries in the loss."""
    control_l0: Annotated[float, Field(ge=0)] | None = None
    """lambda of the masks over untrained networks; None: the same. The gradients of an untrained network are small: a
    lambda above the paper's can outweigh them, and leaves empty masks that say nothing."""
    control_deviation: PositiveFloat | None = None
    """Of the weights of these untrained networks (BERT); None: the architecture's. See `Bert.deviation`."""
    as_printed: bool = False
    """Keep the MLP head's temperature at 1, as in the authors' run (vision)."""


class SimCLR(Section):
    """Contrastive pretraining of a ResNet on the images of the three rules (section 8, appendix G)."""

    method: Literal["simclr"]
    learning_rate: PositiveFloat = 0.0005
    """Falls to a fiftieth by a cosine."""
    batch_size: Annotated[int, Field(ge=4, multiple_of=2)] = 256
    """Images, half of them breaking their rule; each gives two views."""
    epochs: PositiveInt = 100
    temperature: PositiveFloat = 0.07
    tasks: Distinct[Literal[VISION_TASKS]] = VISION_TASKS
    """Whose base sets give the images."""
    seed: Seed = 0


class MaskedLanguageModel(Section):
    """Pretraining of a BERT on grammatical sentences of the templates: what a study can do without a model hub.

    The paper starts from BERT-small's published weights instead; see `Bert.pretrained`.
    """

    method: Literal["masked_language_model"]
    learning_rate: PositiveFloat = 0.0005
    batch_size: PositiveInt = 64
    epochs: PositiveInt = 10
    sentences: PositiveInt = 20000
    """Distinct sentences at most, all from training splits."""
    tasks: Distinct[Literal[LANGUAGE_TASKS]] = LANGUAGE_TASKS
    """Whose base sets give the sentences."""
    seed: Seed = 0


class Pruning(Section):
    """Continuous sparsification of a whole base model on its own task (appendix J), before masks are looked for in it.

    Of the settings that keep 90% on validation data the one with the fewest weights is taken, else the most accurate.
    """

    models: Distinct[str]
    """Names of experiments."""
    tasks: Distinct[Literal[VISION_TASKS + LANGUAGE_TASKS]]
    seeds: Seeds | None = None
    """Of the base models to prune; None: all that the experiments have."""
    learning_rates: Distinct[PositiveFloat] = (0.01, 0.0001)
    inits: Distinct[float] = (0.1, 0.05, 0.0, -0.05)
    epochs: PositiveInt = 90
    batch_size: PositiveInt = 64
    beta_max: Annotated[float, Field(ge=1)] = 200.0
    l0: Annotated[float, Field(ge=0)] = 1e-8
    examples: PositiveInt | None = None
    """Of the base training set; None: all of it."""


class Controls(Section):
    """Controls of the ablations (appendix I and beyond)."""

    draws: PositiveInt = 99
    """Random subnetworks for each discovered one, of its size and once more in its complement; the smallest possible
    permutation p-value is 1 / (draws + 1)."""
    seeds: Seeds | None = None
    """Of the masks for which there are controls; None: all."""
    l0_factors: Distinct[PositiveFloat] | None = None
    """What lambda is multiplied by for masks of other sizes, whose ablations stand beside those of the masks found with
    lambda itself; none: no such masks."""
    as_printed: bool = False
    """The same three untrained networks under every base model, one for each mask seed, as in the authors' run."""
