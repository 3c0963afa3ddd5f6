"""Every step of *Break It Down* that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.break_it_down import networks, random_controls, tables
from subnet_utils.papers.break_it_down.dissection import pairs_of
from subnet_utils.papers.break_it_down.ledger import both_temperatures
from subnet_utils.papers.break_it_down.mask_sizes import factors, with_factor
from subnet_utils.papers.break_it_down.measurements import Effect


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps that nothing else is made of. What depends on which masks diverged is not among them."""
    section = lab.study.break_it_down
    yield from networks.swept(lab)
    bases = networks.bases(lab)
    bases += networks.pruned_bases(lab) if section.pruning is not None else []
    bases += networks.pretrained_bases(lab) if section.pretrained else []
    yield from (Effect.of(mask) for mask in tables.final_masks(lab, bases))
    masks = random_controls.with_controls(lab, tables.final_masks(lab))
    yield from (Effect.of(mask) for mask in random_controls.random_masks(lab))
    yield from random_controls.null_effects(lab, masks)
    yield from random_controls.other_ablations(masks)
    yield from random_controls.difference_ablations(tables.final_masks(lab))
    yield from (Effect.of(with_factor(mask, factor)) for factor in factors(lab)[1:] for mask in masks)
    yield from pairs_of(tables.final_masks(lab))
    for masks in both_temperatures(tables.final_masks(lab)):
        yield from masks
