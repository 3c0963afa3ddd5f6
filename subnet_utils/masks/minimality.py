"""Minimality: is every weight of a subnetwork needed? Each is left out by itself (Shi et al. 2024)."""

from collections.abc import Callable

import torch
from torch import nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork


@torch.no_grad()
def share_that_matters(
    kept: Subnetwork, model: nn.Module, score: Callable[[nn.Module], float], *, sampled: int, limit: float, draw: str
) -> float:
    """Share of a subnetwork's weights without which its score falls by more than `limit`; 0 if it has none.

    sampled: so many weights are tried, drawn at random by the name `draw`. Raises WrongNetwork for another network.
    """
    network = kept.apply(model)
    weights = dict(network.named_parameters())
    positions = [(name, i) for name, mask in kept.masks.items() for i in mask.flatten().nonzero().flatten().tolist()]
    order = torch.randperm(len(positions), generator=generator_for("minimality", draw))[:sampled].tolist()
    whole, matter = score(network), 0
    for name, i in (positions[j] for j in order):
        flat = weights[name].data.view(-1)  # what is written here is taken back below
        value = flat[i].item()
        flat[i] = 0.0
        matter += whole - score(network) > limit
        flat[i] = value
    return matter / max(len(order), 1)
