"""The section of a study for *Instilling Inductive Biases with Subnetworks*."""

from pydantic import model_validator

from subnet_utils.core import sections
from subnet_utils.core.sections import Section
from subnet_utils.papers.subtask_induction.arithmetic_section import Arithmetic
from subnet_utils.papers.subtask_induction.images_section import Images


class SubtaskInduction(Section):
    """A subnetwork teaches another network: arithmetic (notebook 07), and images (notebook 07b)."""

    arithmetic: Arithmetic | None = None
    images: Images | None = None

    _something_to_do = model_validator(mode="after")(sections.has_a_part)
