"""The section of a study on modules in sequence tasks (*Are Neural Nets Modular?*, section 4)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, PositiveInt, Section, Seeds, Several, heads_divide_width
from subnet_utils.papers.functional_modularity.trainings import MaskTraining, WeightTraining

Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


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


class SequenceNetwork(Section):
    """One kind of network that learns SCAN, and masks on the training sets of its splits."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Name in our tables."""
    architecture: Annotated[LstmPair | TransformerPair, Field(discriminator="family")]
    training: WeightTraining = WeightTraining()
    masks: MaskTraining = MaskTraining()
    splits: Distinct[Literal["jump", "turn left", "length"]] = ("jump", "turn left", "length")
    seeds: Seeds = tuple(range(10))
    repeats: PositiveInt = 2
    """Control masks, with seeds of their own: how much two of them overlap is the most that one can expect."""
    direct: Distinct[Literal["jump", "turn left", "length"]] | None = ("jump", "turn left", "length")
    """Splits that networks learn from the start, without masks (Figure 15)."""

    @model_validator(mode="after")
    def _direct_has_masks(self):
        if strange := [split for split in self.direct or () if split not in self.splits]:
            raise invalid("direct", f"'{strange[0]}' is not among the splits with a mask; add it to splits")
        return self


SequenceNetworks = Several[SequenceNetwork]
