"""Every step of subtask induction that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.subtask_induction import arithmetic_steps, image_steps


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps of both notebooks, those that others are made of first."""
    section = lab.section("subtask_induction")
    if section.arithmetic is not None:
        yield from arithmetic_steps.sources(lab)
        for mask in arithmetic_steps.chosen_masks(lab):
            yield from (*mask.candidates, mask)
        yield from (*arithmetic_steps.ablations(lab), *arithmetic_steps.transfers(lab))
    for one in image_steps.models(lab) if section.images is not None else ():
        yield from one.data.sets
        for base in one.bases.values():
            mask = one.mask(base)
            yield from (base, *mask.candidates, mask)
        yield from one.conditions.values()
