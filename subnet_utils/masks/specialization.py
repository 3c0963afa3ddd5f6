"""What does a cluster of units do? The network without it, against the network without as many random units.

*Graphical Clusterability and Local Specialization in Deep Neural Networks* (Casper et al. 2022) takes the units of one
cluster out of one layer, a lesion. The mean drop of accuracy over subtasks says how important they are. The range of
the drops, largest minus smallest, says how specialized. Two departures: a random set that does as much counts against
the cluster, and the range is not divided by the mean, which may be 0.

A lesion sets a unit's incoming weights and its bias to zero. Its output is exactly 0 if a ReLU follows, with nothing
between that moves 0, such as batch normalization.
"""

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.partitions import Partition, layer_of
from subnet_utils.models.staged import require_positive
from subnet_utils.statistics import ratio, without_rounding

Network = TypeVar("Network", bound=nn.Module)
Scores = Callable[[nn.Module], Mapping[str, float]]
"""The accuracy of a network on each subtask."""


@torch.no_grad()
def silenced(model: Network, name: str, units: Tensor) -> Network:
    """A copy of the network in which some outputs of a weight's layer are 0. units: bool [outputs].

    Raises ValueError as `partitions.layer_of` does.
    """
    changed = copy.deepcopy(model)
    layer = layer_of(changed, name)
    for part in (layer.weight, layer.bias):
        if part is not None:
            part[units.to(part.device)] = 0.0
    return changed


def local_specialization(
    partition: Partition, model: nn.Module, scores: Scores, *, draws: int, seed: int
) -> pd.DataFrame:
    """What lesions of clusters cost: a row for each hidden layer and each cluster that has units there.

    A draw shuffles the labels of each layer among its units that have one. So each cluster has a random set of its size
    in every draw. Columns: layer, cluster, units; and for `mean` and `range` (of the drops over subtasks): the value,
    `_random`, its mean over draws, `_p`, and `_p_max`. p is the share of draws with as much or more, with the observed
    value among them. p_max is that share for the largest z value of any cluster: it holds for all rows at once, and its
    minimum is a test that some cluster stands out. It needs no independence of clusters, as `fisher` does. Raises
    WrongNetwork for another network, ValueError for a partition without labels in a hidden layer.
    """
    partition.require(model)
    require_positive(draws=draws)
    whole = _values(scores(model))
    tables = [_lesions(partition, layer, model, scores, whole, draws, seed) for layer in partition.hidden]
    rows = [row for layer_rows, _ in tables for row in layer_rows]
    if not rows:
        raise ValueError("no unit of a hidden layer is in a cluster; give a partition of hidden units")
    found = np.concatenate([costs for _, costs in tables if costs.size], axis=1)
    table = pd.DataFrame(rows, columns=["layer", "cluster", "units"])
    return table.assign(**_tested("mean", found[..., 0]), **_tested("range", found[..., 1]))


def fisher(p: ArrayLike) -> float:
    """Fisher's combination of p values: chance of a product as small if all hypotheses are true.

    It assumes that the tests are independent. Those of clusters of one layer are not.
    """
    return float(stats.chi2.sf(-2 * np.log(p).sum(), 2 * np.size(p)))


def _values(scores: Mapping[str, float]) -> np.ndarray:
    return np.array([scores[name] for name in sorted(scores)], dtype=float)


def _lesions(
    partition: Partition, layer: str, model: nn.Module, scores: Scores, whole: np.ndarray, draws: int, seed: int
) -> tuple[list[tuple[str, int, int]], np.ndarray]:
    """Layer, cluster and units of each lesion, and costs [1 + draws, lesions, mean and range], the observed first."""
    labels, generator = partition.labels[layer].clone(), generator_for("lesion", seed, layer)
    labeled = (labels >= 0).nonzero().flatten()
    clusters, sizes = (found.tolist() for found in labels[labeled].unique(return_counts=True))
    costs = np.empty((1 + draws, len(clusters), 2))
    for draw in range(1 + draws):
        for i, cluster in enumerate(clusters):
            drops = whole - _values(scores(silenced(model, layer, labels == cluster)))
            costs[draw, i] = drops.mean(), np.ptp(drops)
        labels[labeled] = labels[labeled[torch.randperm(len(labeled), generator=generator)]]
    return [(layer, *own) for own in zip(clusters, sizes, strict=True)], costs


def _tested(name: str, found: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of one statistic; found: [1 + draws, lesions], the observed first."""
    found = found.round(12)  # ties must not depend on rounding errors
    above = without_rounding(found - found.mean(axis=0), 1.0)
    z = np.nan_to_num(ratio(above, found.std(axis=0))).round(9)
    largest = z.max(axis=1)
    return {
        name: found[0],
        f"{name}_random": found[1:].mean(axis=0),
        f"{name}_p": (found >= found[0]).mean(axis=0),
        f"{name}_p_max": (largest[:, None] >= z[0]).mean(axis=0),
    }
