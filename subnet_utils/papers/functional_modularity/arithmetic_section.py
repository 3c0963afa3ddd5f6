"""The section of a study on modules in arithmetic (*Are Neural Nets Modular?*, sections 3.1 and 3.2)."""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, PositiveInt, Section, Seed, Seeds, Several
from subnet_utils.problems.trainings import MaskTraining, ModelName, Networks, WeightTraining


class FeedForward(Section):
    """Linear layers with ReLUs between them."""

    family: Literal["feedforward"]
    widths: Several[PositiveInt] = (2000, 2000, 2000, 2000)
    """Of the hidden layers."""


class Lstm(Section):
    """An LSTM that sees its input for several steps."""

    family: Literal["lstm"]
    width: PositiveInt = 256
    layers: PositiveInt = 2
    reading: Literal["together", "forced"] = "together"
    """Of two pairs: both at once, or one after the other."""
    steps: PositiveInt = 3


class ArithmeticNetwork(Section):
    """One kind of network, what it learns, and how."""

    model: ModelName
    paper_network: Literal["FNN", "LSTM", "LSTM_forced"] | None = None
    """The network of the paper's tables that ours stands beside."""
    task: Literal["add_mul", "double_addition"]
    architecture: Annotated[FeedForward | Lstm, Field(discriminator="family")]
    training: WeightTraining = WeightTraining()
    masks: MaskTraining = MaskTraining()
    seeds: Seeds = tuple(range(10))
    repeats: PositiveInt = 2
    """Masks for each function, with seeds of their own: how much two of them overlap is the most one can expect."""
    copied: Annotated[tuple[Seed, ...], Strict(False)] = ()
    """Seeds whose networks are also taken with one pair's inputs and outputs copied onto the other's (Figure 8)."""
    others: Annotated[tuple[MaskTraining, ...], Strict(False)] = ()
    """Other ways of finding masks in the same networks, such as another method."""
    l0: Distinct[Annotated[float, Field(gt=0)]] | None = None
    """Other values of alpha for the control mask and the first function's (appendix C.3, Figure 10)."""
    pool: PositiveInt = 100000
    """Items with both pairs that an LSTM is trained on; there are 10^8."""
    examples: Annotated[int, Field(gt=0, le=10000)] | None = None
    """Items of each function that the network and its masks learn from, drawn by the seed. None: all 10,000."""

    @model_validator(mode="after")
    def _fits_together(self):
        lstm = self.architecture.family == "lstm"
        if self.copied and (lstm or self.task != "double_addition"):
            raise invalid("copied", "is for feedforward networks that add two pairs; leave it out")
        if unknown := [seed for seed in self.copied if seed not in self.seeds]:
            raise invalid("copied", f"{unknown[0]} is none of the seeds; add it to them")
        if self.l0 and not self.masks.masking.trains:
            raise invalid("l0", f"'{self.masks.masking.method}' has no l0 to vary; leave it out")
        if self.examples and lstm and self.task == "double_addition":
            raise invalid("examples", "an LSTM reads items with both pairs; set 'pool' instead")
        if lstm and self.architecture.reading == "forced":
            if self.task != "double_addition":
                raise invalid("architecture.reading", "'forced' needs two pairs; take 'together'")
            if self.architecture.steps % 2:
                raise invalid("architecture.steps", f"{self.architecture.steps} cannot be halved; give an even number")
        return self


ArithmeticNetworks = Networks[ArithmeticNetwork]
