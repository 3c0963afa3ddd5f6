"""The section of a study on modules in sequence tasks (*Are Neural Nets Modular?*, section 4)."""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, PositiveInt, Section, Seeds, Several, heads_divide_width
from subnet_utils.problems.trainings import MaskTraining, WeightTraining

Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Entropy = Annotated[float, Field(ge=1, le=16)]
Split = Literal["jump", "turn left", "length", "easy"]


class LstmPair(Section):
    """An LSTM that reads and one that answers (appendix C.7.1)."""

    family: Literal["lstm"]
    width: PositiveInt = 200
    layers: PositiveInt = 2
    embedding: PositiveInt = 16
    dropout: Dropout = 0.5
    """While the network is trained; never while masks are."""
    own_outputs: Share = 0.5
    """Of the batches: the decoder reads its own answer in training. In mask training it always reads the right one."""


class TransformerPair(Section):
    """A Transformer's encoder and decoder (appendix C.7.1)."""

    family: Literal["transformer"]
    width: PositiveInt = 100
    layers: PositiveInt = 3
    """Of the encoder, and of the decoder."""
    heads: PositiveInt = 4
    mlp_width: PositiveInt = 200
    dropout: Dropout = 0.1

    @model_validator(mode="after")
    def _heads_fit(self):
        return heads_divide_width(self)


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


class SequenceNetwork(Section):
    """One kind of network that learns SCAN or a task of mathematics, and masks on the training sets of its splits."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Name in our tables."""
    architecture: Annotated[LstmPair | TransformerPair, Field(discriminator="family")]
    training: WeightTraining = WeightTraining()
    masks: MaskTraining = MaskTraining()
    task: Literal["scan", "add_or_sub", "linear_1d", "differentiate", "sort", "collect"] = "scan"
    questions: Questions | None = None
    """Of a task of mathematics. None: as many as the paper has."""
    splits: Distinct[Split] | None = None
    """Those with a mask. None: all of the task."""
    seeds: Seeds = tuple(range(10))
    repeats: PositiveInt = 2
    """Control masks, with seeds of their own: how much two of them overlap is the most that one can expect."""
    direct: Distinct[Split] | None = None
    """Splits that networks learn from the start, without masks (Figure 15)."""

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
        if self.task == "scan" and self.questions:
            raise invalid("questions", "are for mathematics; leave them out, or name another task")
        if self.task != "scan" and self.architecture.family == "lstm":
            raise invalid("architecture", f"'{self.task}' is learned by Transformers; take 'transformer'")
        return self


SequenceNetworks = Several[SequenceNetwork]
