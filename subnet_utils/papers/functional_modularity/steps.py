"""Every step of the paper that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.functional_modularity import arithmetic_steps, image_steps, permuted_steps, sequence_steps


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps of all notebooks."""
    section = lab.section("functional_modularity")
    if section.arithmetic is not None:
        for one in (*arithmetic_steps.dissected(lab), *arithmetic_steps.dissected(lab, sweep=True)):
            yield from one.steps
    if section.images is not None:
        for family in image_steps.families(lab):
            yield from family.steps
        yield from permuted_steps.tasks(lab)
    if section.sequences is not None:
        for one in sequence_steps.inspected(lab):
            yield from one.steps
