"""The section of a study for subtask induction in arithmetic (*Instilling Inductive Biases*, section 4, appendix B)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from subnet_utils.core.messages import fault, nearest
from subnet_utils.core.sections import Distinct, PositiveFloat, PositiveInt, Section, Seeds
from subnet_utils.masks.masking import ContinuousSparsification, any_masking
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS
from subnet_utils.papers.subtask_induction.polynomials import parse, require_numbers


class ArithmeticTraining(Section):
    """Training of a network on a computation (*Instilling Inductive Biases*, appendix B.1), best epoch kept."""

    learning_rate: PositiveFloat = 0.0005
    batch_size: PositiveInt = 50
    epochs: PositiveInt = 50
    patience: PositiveInt = 10
    """Epochs without a smaller validation loss before training stops."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled, as in AdamW."""
    rows: PositiveInt = 200000
    """Training rows: a fifth of all pairs of 1000 numbers."""


class ArithmeticMasks(Section):
    """Discovery of a subtask's subnetwork (appendices A and B.1). Of several lambdas the sparsest mask at 99% wins,
    else the most accurate."""

    learning_rate: PositiveFloat = 0.001
    epochs: PositiveInt = 50
    batch_size: PositiveInt = 500
    rows: PositiveInt = 50000
    l0: Distinct[Annotated[float, Field(ge=0)]] = (1e-7, 5e-7, 1e-8)
    masking: any_masking() = ContinuousSparsification(start_value=-0.1, beta_max=100.0)
    """The method; `l0` above takes the place of its own."""


class ArithmeticTransfer(Section):
    """Training around what was inherited (section 4.2)."""

    learning_rate: PositiveFloat = 0.0002
    epochs: PositiveInt = 100
    batch_size: PositiveInt = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    samples: Distinct[Annotated[int, Field(ge=0)]] = (
        0, 10, 16, 25, 40, 64, 100, 160, 250, 400, 640, 1000, 1600, 2500, 4000, 6400, 10000,
    )  # fmt: skip
    """Disambiguating rows beside the diagonal ones."""
    conditions: Distinct[str] = tuple(CONDITIONS)
    further_samples: Distinct[Annotated[int, Field(ge=0)]] | None = None
    """For all inductions but the first; None: the same."""
    further_conditions: Distinct[str] = ("subnetwork", "full", "random", "embed_only", "scratch")

    @model_validator(mode="after")
    def _known_conditions(self):
        for field in ("conditions", "further_conditions"):
            for name in getattr(self, field):
                if name not in CONDITIONS:
                    raise fault(field, f"'{name}' is unknown; {nearest(name, CONDITIONS)}")
            for name in ("subnetwork", "random"):
                if name not in getattr(self, field):
                    raise fault(field, f"'{name}' is missing; a subnetwork and its control belong together")
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
                raise fault(name, str(error)) from None
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
    validation: PositiveInt = 1000
    test: PositiveInt = 1000
    base: ArithmeticTraining = ArithmeticTraining()
    masks: ArithmeticMasks = ArithmeticMasks()
    transfer: ArithmeticTransfer = ArithmeticTransfer()
    inductions: Distinct[Induction] = (Induction(),)
    """The first one is done with all depths, the others with the deepest only."""
    draws: PositiveInt = 20
    """Random subnetworks that a mask's ablation is compared with."""

    @model_validator(mode="after")
    def _fits_together(self):
        try:
            require_numbers(self.max, self.p)
        except ValueError as error:
            raise fault("p" if self.p < 2 else "max", str(error)) from None
        if self.width % self.heads:
            raise fault("width", f"{self.width} is not a multiple of heads {self.heads}; change one of them")
        held, pairs = self.validation + self.test, self.max**2
        for name, rows, there in (
            ("base.rows", self.base.rows, pairs),
            ("masks.rows", self.masks.rows, pairs),
            ("transfer.samples", max(self.transfer.samples), pairs - self.max),
            ("transfer.further_samples", max(self.transfer.further_samples or (0,)), pairs - self.max),
        ):
            if rows + held > there:
                raise fault(name, f"{rows:,} and {held:,} held out are more than the {there:,} pairs; lower it")
        for name, rows in (("base.rows", self.base.rows), ("masks.rows", self.masks.rows)):
            if rows < self.max:
                raise fault(name, f"{rows:,} rows do not hold each of {self.max:,} numbers; give at least as many")
        return self
