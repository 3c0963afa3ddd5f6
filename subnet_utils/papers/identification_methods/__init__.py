"""*Identifying Subnetworks*: methods side by side, composition, and a benchmark with known truth."""

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.identification_methods.section import IdentificationMethods

PAPER = Paper(
    name="identification_methods",
    title="Identifying Subnetworks",
    reference="Wold 2024",
    section=IdentificationMethods,
    notebooks=(
        Notebook("10a_identification_methods", about="networks", requires="steps:require"),
        Notebook("10b_composition", "networks", "fine_tuning_steps:require_weights", ("10a_identification_methods",)),
        Notebook("10c_benchmark", about="benchmark", requires="planted_steps:benchmarked"),
    ),
    releases="releases:releases",
    also_shows={
        "Identification Methods, Section 1": "The survey's vocabulary",
        "Identification Methods, Section 2": "Methods side by side",
        "Identification Methods, Section 3": "Composition",
    },
)
