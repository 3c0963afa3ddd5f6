"""The section of a study for subtask induction in arithmetic (*Instilling Inductive Biases*, section 4, appendix B)."""

from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, PositiveFloat, PositiveInt, Section, Seeds, heads_divide_width, without
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS, require_conditions
from subnet_utils.papers.subtask_induction.mask_search import MaskSearch
from subnet_utils.tasks.polynomials import parse
from subnet_utils.training import Training

Held = Annotated[int, Field(ge=10)]
"""So many held-out pairs that some are not on the diagonal, where computations agree."""


class ArithmeticTraining(Training):
    """Training of a source network (appendix B.1)."""

    learning_rate: PositiveFloat = 0.0005
    batch_size: PositiveInt = 50
    epochs: PositiveInt = 50
    patience: PositiveInt | None = 10
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    rows: PositiveInt = 200000
    """Training rows: a fifth of all pairs of 1000 numbers."""


class ArithmeticMasks(MaskSearch):
    """Discovery of a subtask's subnetwork. The sparsest mask at 99% is taken, else the most accurate."""

    rows: PositiveInt = 50000


class ArithmeticTransfer(Training):
    """Training around what was inherited (section 4.2)."""

    learning_rate: PositiveFloat = 0.0002
    batch_size: PositiveInt = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    samples: Distinct[Annotated[int, Field(ge=0)]] = (
        0, 10, 16, 25, 40, 64, 100, 160, 250, 400, 640, 1000, 1600, 2500, 4000, 6400, 10000,
    )  # fmt: skip
    """Disambiguating rows besides the diagonal ones."""
    conditions: Distinct[str] = tuple(CONDITIONS)
    alone_samples: Distinct[Annotated[int, Field(ge=0)]] | None = None
    """For conditions that are trained by themselves (`conditions.TRAINED_ALONE`); None: the same."""
    further_samples: Distinct[Annotated[int, Field(ge=0)]] | None = None
    """For all inductions but the first; None: the same."""
    further_conditions: Distinct[str] = ("subnetwork", "full", "random", "embed_only", "scratch")

    @property
    def training(self) -> Self:
        """The part that one training depends on."""
        return without(self, "samples", "conditions", "alone_samples", "further_samples", "further_conditions")

    def of(self, *, first: bool) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Numbers of rows and conditions of the first induction, or of the others."""
        if first:
            return self.samples, self.conditions
        return self.further_samples or self.samples, self.further_conditions

    @model_validator(mode="after")
    def _known_conditions(self):
        for field in ("conditions", "further_conditions"):
            require_conditions(self, field, CONDITIONS)
        return self


class Induction(Section):
    """The subnetwork of `subtask` moves from a network that computes `source` to one that shall compute `target`."""

    source: str = "a+ab"
    subtask: str = "ab"
    target: str = "a^2+ab"

    @model_validator(mode="after")
    def _readable(self):
        for name in ("source", "subtask", "target"):
            try:
                parse(getattr(self, name))
            except ValueError as error:
                raise invalid(name, str(error)) from None
        return self


class Arithmetic(Section):
    """Subtask induction in modular arithmetic with GPT-2 (*Instilling Inductive Biases*, section 4, appendix B)."""

    max: PositiveInt = 1000
    """Numbers are 0 to max - 1."""
    p: int = 7
    """The modulus."""
    layers: Distinct[PositiveInt] = (2, 4, 6, 8, 10, 12)
    width: PositiveInt = 128
    heads: PositiveInt = 4
    mlp_width: PositiveInt = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """While networks are trained; never while masks are."""
    loss: Literal["all", "answer"] = "all"
    """On all three next symbols, as GPT-2 is trained, or on the answer alone."""
    seeds: Seeds = (0, 1, 2, 3, 4)
    """Each has a base model, a mask, controls, data and new weights of its own."""
    validation: Held = 1000
    test: Held = 1000
    base: ArithmeticTraining = ArithmeticTraining()
    masks: ArithmeticMasks = ArithmeticMasks()
    transfer: ArithmeticTransfer = ArithmeticTransfer()
    inductions: Distinct[Induction] = (Induction(),)
    """The first one is done with all depths, the others with the deepest only."""
    draws: PositiveInt = 20
    """Random subnetworks that a mask's ablation is compared with."""

    @property
    def problem(self) -> Self:
        """The part that everything depends on: numbers, networks without their depth, loss and held-out rows."""
        lists = ("layers", "seeds", "inductions", "draws")
        return without(self, *lists, "base", "masks", "transfer")

    def runs(self) -> list[tuple[Induction, int, int]]:
        """Every induction with a depth and a seed: the first one at all depths, the others at the deepest."""
        first, *others = self.inductions
        pairs = [*product([first], self.layers), *product(others, [max(self.layers)])]
        return [(*pair, seed) for pair in pairs for seed in self.seeds]

    @model_validator(mode="after")
    def _fits_together(self):
        if self.p < 2:
            raise invalid("p", f"p = {self.p} is no modulus; give at least 2")
        if self.max < self.p:
            what = f"max = {self.max} leaves no symbols for the answers mod {self.p}; give a max of at least p"
            raise invalid("max", what)
        heads_divide_width(self)
        held, pairs = self.validation + self.test, self.max**2
        for name, rows, there, least in (
            ("base.rows", self.base.rows, pairs, self.max),
            ("masks.rows", self.masks.rows, pairs, self.max),
            ("transfer.samples", max(self.transfer.samples), pairs - self.max, 0),
            ("transfer.alone_samples", max(self.transfer.alone_samples or (0,)), pairs - self.max, 0),
            ("transfer.further_samples", max(self.transfer.further_samples or (0,)), pairs - self.max, 0),
        ):
            if rows + held > there:
                raise invalid(name, f"{rows:,} and {held:,} held out are more than the {there:,} pairs; lower it")
            if rows < least:
                raise invalid(name, f"{rows:,} rows do not hold each of {least:,} numbers; give at least as many")
        return self
