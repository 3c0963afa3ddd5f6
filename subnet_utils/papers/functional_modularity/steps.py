"""Every step of the paper that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.functional_modularity import arithmetic_steps, image_steps, permuted_steps, sequence_steps


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps of all notebooks."""
    section = lab.section("functional_modularity")
    if section.arithmetic is not None:
        yield from arithmetic_steps.every_step(lab)
    if section.images is not None:
        yield from image_steps.every_step(lab)
        yield from permuted_steps.tasks(lab)
    if section.sequences is not None:
        yield from sequence_steps.every_step(lab)
