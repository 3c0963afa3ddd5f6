"""Do subnetworks consist of the same weights? Overlap by layer, and what chance alone would give.

*Break It Down* (appendix K, Figure 19, Tables 13 to 15) compares the three subnetworks of a subroutine, and the weights
that all three share between subroutines, by intersection over union. Large subnetworks overlap anyway, so each number
has its expectation for random masks with as many weights in every layer, and is `corrected` for it.

Subnetworks whose masking starts at different stages are compared on the weights that all of them mask. Every table has
one entry a layer, which is one masked weight, in the order of their names, and last `OVERALL`: all layers as one.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork

OVERALL = "all layers"
"""The entry of a table that takes all layers as one: the sum of the intersections over the sum of the unions."""


def iou(subnetworks: Sequence[Subnetwork]) -> dict[str, float]:
    """|intersection of all| / |union of all|, NaN where all are empty: Tables 13 and 14 as they are headed.

    Raises ValueError for fewer than two subnetworks or none of their weights in common, WrongNetwork for subnetworks of
    different networks.

    >>> a, b = (Subnetwork({"w": torch.tensor(kept)}, "n") for kept in ([True, True, False], [False, True, True]))
    >>> iou([a, b])
    {'w': 0.3333333333333333, 'all layers': 0.3333333333333333}
    """
    layers = _layers(subnetworks, least=2)
    return _ratios(_count(layers, lambda masks: masks.all(dim=0)), _count(layers, lambda masks: masks.any(dim=0)))


def as_printed(subnetworks: Sequence[Subnetwork]) -> dict[str, float]:
    """|intersection of all| / |the last|, NaN where the last is empty: the numbers printed in Tables 13 and 14.

    The authors' union was computed as an intersection. It depends on the order of the subnetworks, and is never below
    `iou`. Raises as `iou` does.
    """
    layers = _layers(subnetworks, least=2)
    return _ratios(_count(layers, lambda masks: masks.all(dim=0)), _count(layers, lambda masks: masks[-1]))


def common(subnetworks: Sequence[Subnetwork]) -> Subnetwork:
    """The weights that are in all subnetworks, among those that all of them mask; of one, the same again.

    Table 15 is the `iou` of two of these. Raises as `iou` does, but needs no more than one subnetwork.

    >>> a, b = (Subnetwork({"w": torch.tensor(kept)}, "n") for kept in ([True, True, False], [False, True, True]))
    >>> common([a, b]).masks["w"].tolist()
    [False, True, False]
    """
    layers = _layers(subnetworks, least=1)
    return Subnetwork({name: masks.all(dim=0) for name, masks in layers.items()}, subnetworks[0].network)


def expected_iou(subnetworks: Sequence[Subnetwork], *, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """The mean `iou` of independent random masks, each with as many weights in every layer as one of the subnetworks.

    A pure function of these numbers and the seed. Draws in which all masks are empty have no IoU. Raises as `iou` does.
    """
    layers = _layers(subnetworks, least=2)
    totals = np.array([masks[0].numel() for masks in layers.values()])
    active = np.array([masks.flatten(1).sum(dim=1).tolist() for masks in layers.values()]).T
    sizes = [np.tile(of_one, (draws, 1)) for of_one in active]
    shared, whole = _random_overlap(sizes, totals, np.random.default_rng(seed))
    return _ratios(pd.DataFrame(shared, columns=list(layers)), pd.DataFrame(whole, columns=list(layers)))


def corrected(found: float, expected: float) -> float:
    """Overlap corrected for chance: 0 as much as is expected, 1 the same weights; (found - expected) / (1 - expected).

    As the adjusted Rand index is made of the Rand index (Hubert and Arabie 1985). Numbers or columns; NaN where chance
    alone gives the same weights.

    >>> float(corrected(0.75, expected=0.5))
    0.5
    """
    room = 1 - expected
    return (found - expected) / np.where(room > 0, room, np.nan)


def _random_overlap(
    sizes: Sequence[np.ndarray], totals: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of the intersection and the union of random masks, [draws, layers] each.

    sizes: of every mask [draws, layers]; totals: weights of each layer. No mask is drawn: how many weights of the next
    one fall into the intersection so far, the rest of the union and the rest of the layer is a draw from an urn.
    """
    shared = whole = sizes[0]
    for size in sizes[1:]:
        in_shared = generator.hypergeometric(shared, totals - shared, size)
        in_rest = generator.hypergeometric(whole - shared, totals - whole, size - in_shared)
        shared, whole = in_shared, whole + size - in_shared - in_rest
    return shared, whole


def _layers(subnetworks: Sequence[Subnetwork], *, least: int) -> dict[str, Tensor]:
    """The masks of all subnetworks, [subnetworks, *shape], for each weight that all of them mask."""
    if len(subnetworks) < least:
        raise ValueError(f"an overlap is that of {least} or more, got {len(subnetworks)}; find masks with more seeds")
    found = sorted({subnetwork.network for subnetwork in subnetworks})
    if len(found) > 1:
        raise WrongNetwork(f"subnetworks of different networks, {' and '.join(found)}, have no weights in common")
    names = sorted(set.intersection(*(set(subnetwork.masks) for subnetwork in subnetworks)))
    if not names:
        raise ValueError("no weight is masked in all of these subnetworks; compare others")
    return {name: torch.stack([subnetwork.masks[name] for subnetwork in subnetworks]) for name in names}


def _count(layers: Mapping[str, Tensor], combine: Callable[[Tensor], Tensor]) -> pd.DataFrame:
    """How many weights of each layer are in the combined mask: one row, a column for each layer."""
    return pd.DataFrame({name: [int(combine(masks).sum())] for name, masks in layers.items()})


def _ratios(shared: pd.DataFrame, whole: pd.DataFrame) -> dict[str, float]:
    """Mean over draws (rows) of shared / whole for each layer and for all as one; 0 / 0 is NaN and left out."""
    shared, whole = (counts.assign(**{OVERALL: counts.sum(axis=1)}) for counts in (shared, whole))
    return (shared / whole).mean().to_dict()
