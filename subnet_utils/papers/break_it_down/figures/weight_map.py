"""Every masked weight of a network on one page, in the color of the subroutine whose subnetwork keeps it."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down.dissection import Parts
from subnet_utils.papers.break_it_down.figures.overlap import layer_order, short_weight
from subnet_utils.plots import weight_map as plots


def weight_map(found: Mapping[str, Subnetwork], *, heads: int | None = None) -> Figure:
    """The map (`plots.weight_map`) with the layers of a base model in order and by their short names."""
    names = sorted({name for subnetwork in found.values() for name in subnetwork.masks}, key=layer_order)
    return plots.weight_map(found, {name: short_weight(name) for name in names}, heads=heads)


def described(lab: Lab, pair: Parts) -> str:
    """What the caption of a map says: which weights are drawn, what lines are, and how the weights lie."""
    masks = [mask.mask(lab) for mask in pair.masks]
    latest = min(masks, key=lambda mask: mask.stages).point.start.replace("_", " ")
    starts = {mask.point.start for mask in masks}
    where = f", from {latest} on (one of them starts before)" if len(starts) > 1 else ""
    lines = " Black lines part attention heads." if pair.heads else ""
    return (
        f"{pair.title}: every weight that both masks cover{where}, by the subroutines whose subnetworks keep it (first "
        f"masks).{lines} What is taller than wide lies on its side."
    )
