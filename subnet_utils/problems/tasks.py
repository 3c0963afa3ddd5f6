"""What networks with known subtasks learn, as a profile says it (notebooks 09c, 10a and 10b)."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, Place, PositiveInt, Section, Seed, Several
from subnet_utils.models.architectures import Bert, ResNet
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, SUBROUTINES

if TYPE_CHECKING:  # a profile is read without them
    from subnet_utils.problems.agreement_rules import AgreementRules
    from subnet_utils.problems.odd_one_out import Subroutines
    from subnet_utils.problems.operations import Operations

ClassName = Annotated[str, Field(pattern=r"^[^,]+$")]
DIGITS = tuple("0123456789")
OneEach = Annotated[int, Field(ge=len(DIGITS))]
"""So many digits, so that there can be one of each."""


class AddMul(Section):
    """Addition and multiplication with remainders, by a feedforward network (`problems.operations`)."""

    task: Literal["add_mul"] = "add_mul"
    modulus: Annotated[int, Field(ge=2)] = 13
    base: Annotated[int, Field(ge=2)] = 13
    """Of the digits; the modulus is a power of it."""
    widths: Several[PositiveInt] = (100, 100)
    """Of the hidden layers."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the items that teaches nothing, and is tested. 0: all items teach and are tested."""

    @model_validator(mode="after")
    def _whole_digits(self):
        if self.base ** round(math.log(self.modulus, self.base)) != self.modulus:
            raise invalid("base", f"the modulus {self.modulus} is no power of {self.base}; change one of them")
        count = round(self.held_out * self.modulus**2)
        if self.held_out and not 0 < count < self.modulus**2:
            raise invalid("held_out", f"holds out {count} of {self.modulus**2} items; take another share, or 0")
        return self

    def problem(self) -> "Operations":
        """What is learned."""
        from subnet_utils.problems.operations import Operations

        return Operations(self.modulus, self.base, self.widths, self.held_out)


class OddOneOutTask(Section):
    """An odd-one-out task and its two subroutines, by a BERT or a ResNet (`problems.odd_one_out`)."""

    task: Literal[*SUBROUTINES]
    architecture: Annotated[Bert | ResNet, Field(discriminator="family")]
    taught: PositiveInt = 4000
    """Examples that the network learns from; `masked`: that each function's masks learn from."""
    masked: PositiveInt = 400
    tested: PositiveInt = 300
    """Examples of each test."""
    resolution: Annotated[int, Field(ge=32)] = 48
    """Of images, pixels."""

    @model_validator(mode="after")
    def _architecture_of_its_kind(self):
        language = self.task in LANGUAGE_TASKS
        if language != (self.architecture.family == "bert"):
            kind = "sentences; give a bert" if language else "images; give a resnet"
            raise invalid("architecture.family", f"items of '{self.task}' are {kind}")
        if getattr(self.architecture, "pretrained", None) is not None:
            raise invalid("architecture.pretrained", "these networks start from random weights; leave it out")
        return self

    def problem(self) -> "Subroutines":
        """What is learned."""
        from subnet_utils.problems.odd_one_out import Subroutines

        return Subroutines(**{name: getattr(self, name) for name in type(self).model_fields})


Learned = Annotated[AddMul | OddOneOutTask, Field(discriminator="task")]


class LanguageModel(Section):
    """Hidden words of sentences, and rules of agreement, by a BERT (`problems.agreement_rules`)."""

    architecture: Bert
    reads: PositiveInt = 20000
    """Sentences of the pretraining."""
    taught: PositiveInt = 2000
    """Sentences that teach a rule, at most; `tested`: of each test."""
    tested: PositiveInt = 500

    def problem(self) -> "AgreementRules":
        """What is learned."""
        from subnet_utils.problems.agreement_rules import AgreementRules

        return AgreementRules(**{name: getattr(self, name) for name in type(self).model_fields})


class Drawn(Section):
    """Digits that the study draws (`tasks.pictures.drawn`)."""

    source: Literal["drawn"]
    train: OneEach = 8000
    test: OneEach = 2000
    resolution: Annotated[int, Field(ge=16)] = 28
    noise: Annotated[float, Field(ge=0, le=1)] = 0.2
    turn: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Largest rotation, radians; shear and size change along."""
    color: bool = False
    """Bright digits on dark ground, each in two colors of its own, in place of white on black."""
    seed: Seed = 0
    classes: ClassVar[tuple[str, ...]] = DIGITS


class Files(Section):
    """Images from a folder: MNIST or Fashion-MNIST as idx files, or CIFAR10's binary version.

    Debian's package dataset-fashion-mnist puts such a folder into /usr/share/datasets/fashion-mnist.
    """

    source: Literal["files"]
    folder: Place
    classes: Distinct[ClassName] = DIGITS
    """In the order of their numbers."""


ImageData = Annotated[Drawn | Files, Field(discriminator="source")]
