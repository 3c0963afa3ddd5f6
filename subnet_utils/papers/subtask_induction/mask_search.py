"""The section on the search for masks: several lambdas are tried."""

from typing import Annotated, Self

from pydantic import Field

from subnet_utils.core.sections import Distinct, PositiveFloat, PositiveInt, Section, without
from subnet_utils.masks.masking import ContinuousSparsification, any_masking

USUAL = ContinuousSparsification(start_value=-0.1, beta_max=100.0)


class MaskSearch(Section):
    """The section on how masks are found (appendices A and B.1)."""

    learning_rate: PositiveFloat = 0.001
    epochs: PositiveInt = 50
    batch_size: PositiveInt = 500
    l0: Distinct[Annotated[float, Field(ge=0)]] = (1e-7, 5e-7, 1e-8)
    """Every lambda that is tried, by methods that have one. It takes the place of the method's own."""
    masking: any_masking(USUAL) = USUAL
    """The method."""

    def candidates(self) -> tuple[Self, ...]:
        """The section of each single mask: one for every lambda, or one alone if the method has no lambda."""
        plain = without(self, "l0")
        if "l0" not in type(self.masking).model_fields:
            return (plain,)
        maskings = [self.masking.model_copy(update={"l0": l0}) for l0 in self.l0]
        return tuple(plain.model_copy(update={"masking": masking}) for masking in maskings)
