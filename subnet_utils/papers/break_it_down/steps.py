"""Every step of *Break It Down* that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.break_it_down import networks, random_controls, tables
from subnet_utils.papers.break_it_down.dissection import Parts
from subnet_utils.papers.break_it_down.ledger import both_temperatures
from subnet_utils.papers.break_it_down.mask_sizes import factors, with_factor
from subnet_utils.papers.break_it_down.masks import FinalMask
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.networks import Network


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps that nothing else is made of. What depends on which masks diverged is not among them."""
    section = lab.study.break_it_down
    yield from networks.swept(lab)
    yield from _effects(lab, networks.bases(lab))
    if section.pruning is not None:
        yield from _effects(lab, networks.pruned_bases(lab))
    if section.pretrained:
        yield from _effects(lab, networks.pretrained_bases(lab))
    masks = random_controls.with_controls(lab, tables.final_masks(lab))
    yield from (Effect.of(mask) for mask in random_controls.random_masks(lab))
    yield from random_controls.null_effects(lab, masks)
    yield from random_controls.other_ablations(masks)
    yield from (Effect.of(with_factor(mask, factor)) for factor in factors(lab)[1:] for mask in masks)
    yield from (Parts.of(pair) for pair in _first_of_each(tables.final_masks(lab)))
    for masks in both_temperatures(tables.final_masks(lab)):
        yield from masks


def _effects(lab: Lab, bases: list[Network]) -> Iterator[Step]:
    return (Effect.of(mask) for mask in tables.final_masks(lab, bases))


def _first_of_each(masks: list[FinalMask]) -> list[tuple[FinalMask, ...]]:
    """The first masks of both subroutines of every base model."""
    found: dict[Network, dict[str, FinalMask]] = {}
    for mask in masks:
        found.setdefault(mask.base, {}).setdefault(mask.subroutine, mask)
    return [tuple(pair.values()) for pair in found.values()]
