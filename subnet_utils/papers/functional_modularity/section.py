"""The section of a study for *Are Neural Nets Modular?*."""

from pydantic import model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Section
from subnet_utils.papers.functional_modularity.arithmetic_section import ArithmeticNetworks
from subnet_utils.papers.functional_modularity.image_section import Images
from subnet_utils.papers.functional_modularity.sequence_section import SequenceNetworks


class FunctionalModularity(Section):
    """Modules for functions: in arithmetic (notebook 09a), sequences (09b) and images (09c)."""

    arithmetic: ArithmeticNetworks | None = None
    sequences: SequenceNetworks | None = None
    images: Images | None = None

    @model_validator(mode="after")
    def _something_to_do(self):
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise invalid("", f"no part says what to do; add one: {', '.join(type(self).model_fields)}")
        return self
