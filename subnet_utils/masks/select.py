"""From a score for every weight to the subnetwork of the highest ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from subnet_utils.masks.subnetwork import Subnetwork


def select(scores: Mapping[str, Tensor], count: int, *, network: str) -> Subnetwork:
    """The subnetwork of exactly `count` weights with the highest scores, over all weights at once.

    Of equal scores those count first that stand first in the order of the names. Raises ValueError for more weights
    than there are, and for a score that is not a number.

    >>> select({"w": torch.tensor([3.0, 1.0, 2.0])}, 2, network="n").masks["w"].tolist()
    [True, False, True]
    """
    names = sorted(scores)
    flat = torch.cat([scores[name].detach().double().cpu().flatten() for name in names])
    if not 0 <= count <= len(flat):
        raise ValueError(f"{count:,} of {len(flat):,} weights cannot be kept; lower the density")
    if flat.isnan().any():
        raise ValueError("a score is not a number; look at the network's weights")
    kept = torch.zeros(len(flat), dtype=torch.bool)
    kept[flat.sort(descending=True, stable=True).indices[:count]] = True
    parts = kept.split([scores[name].numel() for name in names])
    return Subnetwork({name: part.view(scores[name].shape) for name, part in zip(names, parts, strict=True)}, network)
