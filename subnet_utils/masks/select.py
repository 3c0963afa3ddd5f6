"""Which weights are kept, and which of several masks: from scores to a choice."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from subnet_utils.core.step import Fault
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


def select_rows(scores: Mapping[str, Tensor], count: int, *, network: str) -> Subnetwork:
    """The whole rows with the highest sums of scores, at least one: of about `count` weights.

    A row is an entry of a weight's first dimension. Rows are taken from the highest on, as many as come nearest to the
    count. Raises ValueError as `select` does.

    >>> select_rows({"w": torch.tensor([[3.0, 1.0], [2.0, 2.5]])}, 2, network="n").masks["w"].tolist()
    [[False, False], [True, True]]
    """
    sums = {name: scores[name].detach().double().cpu().flatten(1).sum(dim=1) for name in sorted(scores)}
    sizes = torch.cat([torch.full(own.shape, scores[name][0].numel()) for name, own in sums.items()])
    reached = sizes[torch.cat([*sums.values()]).sort(descending=True, stable=True).indices].cumsum(dim=0)
    rows = select(sums, int((reached - count).abs().argmin()) + 1, network=network).masks
    shaped = {name: rows[name].view(-1, *[1] * (scores[name].ndim - 1)) for name in rows}
    return Subnetwork({name: kept.expand(scores[name].shape) for name, kept in shaped.items()}, network)


def sparsest(found: Sequence[Mapping[str, Any]], *, learned: float) -> int:
    """Which of several masks is taken: the fewest weights among those that have learned, else the most accurate.

    found: `validation_accuracy` and `active` of each, or `fault`. Raises Fault if there are only faults.

    >>> found = {"validation_accuracy": 0.97, "active": 90}, {"validation_accuracy": 0.95, "active": 40}
    >>> sparsest(found, learned=0.9), sparsest(found, learned=0.96)
    (1, 0)
    """
    usable = [i for i, one in enumerate(found) if "fault" not in one]
    if not usable:
        raise Fault(f"no mask came to its end: {found[0]['fault']}")
    able = [i for i in usable if found[i]["validation_accuracy"] >= learned]
    if able:
        return min(able, key=lambda i: found[i]["active"])
    return max(usable, key=lambda i: found[i]["validation_accuracy"])
