"""Clusters of units: does a network fall into parts that are strongly connected inside and weakly to each other?

*Clusterability in Neural Networks* (Filan, Casper et al. 2021), and *Graphical Clusterability and Local Specialization
in Deep Neural Networks* (Casper et al. 2022): units are the nodes of a graph. The absolute weight between two units is
the strength of their edge; between two channels it is the sum over the kernel. Spectral clustering looks for k clusters
with a small normalized cut. The same weights, shuffled within each layer, say whether it is smaller than chance.

A network is given by a chain: the names of its weights, from inputs to outputs. Its layers of units are `INPUTS`, and
the outputs of each weight under that weight's name. The last ones are the network's outputs.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import linalg, sparse
from scipy.cluster.vq import ClusterError, kmeans2
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from torch.autograd import grad

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.masks.task_loss import TaskLoss
from subnet_utils.models.staged import fingerprint, watched
from subnet_utils.statistics import ratio

INPUTS = "inputs"
"""The layer of the network's inputs. Other layers of units have the name of the weight that leads to them."""
RESTARTS = 25
"""Runs of k-means."""
DENSE = 1000
"""Units up to which all eigenvectors are computed directly. Larger graphs are left to Lanczos iterations."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Units of a network in clusters, numbered from 0.

    labels: layer -> int64 tensor [units], layers from inputs to outputs. -1 is a unit that is left out: it is isolated
    or dead, or of a layer that is not clustered. network: fingerprint of the network. Raises TypeError for labels that
    are not int64.
    """

    labels: Mapping[str, Tensor]
    network: str

    def __post_init__(self) -> None:
        for layer, own in self.labels.items():
            if own.dtype != torch.int64:
                raise TypeError(f"labels of '{layer}' are {own.dtype}, not torch.int64; give whole numbers")
        frozen = {layer: own.detach().cpu().clone() for layer, own in self.labels.items()}
        object.__setattr__(self, "labels", MappingProxyType(frozen))

    def __reduce__(self):
        return Partition, (dict(self.labels), self.network)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The layers between inputs and outputs."""
        return tuple(self.labels)[1:-1]

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(max(own.max() for own in self.labels.values())) + 1

    @property
    def sizes(self) -> pd.DataFrame:
        """Number of units: a row for each layer, a column for each cluster."""
        return pd.DataFrame({cluster: {layer: int((own == cluster).sum()) for layer, own in self.labels.items()}
                             for cluster in range(self.count)})  # fmt: skip

    def require(self, model: nn.Module) -> None:
        """Raise WrongNetwork for any other network than the one that was divided."""
        if (found := fingerprint(model)) != self.network:
            raise WrongNetwork(
                f"these clusters are of network {self.network}, not {found}; load the one they belong to"
            )

    def subnetwork(self, model: nn.Module, cluster: int) -> Subnetwork:
        """The weights between two units of one cluster, among all weights of the chain.

        Raises WrongNetwork for another network, ValueError for a cluster that does not exist.
        """
        self.require(model)
        if cluster not in range(self.count):
            raise ValueError(f"there is no cluster {cluster}; give one of 0 to {self.count - 1}")
        inside = {layer: own == cluster for layer, own in self.labels.items()}
        masks = {}
        for before, name in pairwise(inside):
            pairs, shape = inside[name][:, None] & inside[before], model.get_parameter(name).shape
            masks[name] = pairs.reshape(*pairs.shape, *[1] * (len(shape) - 2)).expand(shape)
        return Subnetwork(masks, self.network)

    def best_overlap(self, mask: Subnetwork) -> float:
        """The largest IoU of a mask with the weights inside one of the clusters, of a chain of matrices."""
        both, inside = torch.zeros(self.count), torch.zeros(self.count)
        for (_, before), (name, after) in pairwise(self.labels.items()):
            own = torch.where(after[:, None] == before, after[:, None], -1)  # the cluster that each weight is inside
            inside += own[own >= 0].bincount(minlength=self.count)
            kept = own[mask.masks[name]]
            both += kept[kept >= 0].bincount(minlength=self.count)
        return float((both / (inside + mask.active - both)).max())

    def randomized(self, draw: int) -> "Partition":
        """Random clusters that have as many units in each layer. Units that are left out stay out."""

        def moved(layer: str, own: Tensor) -> Tensor:
            inside, found = own[own >= 0], own.clone()
            order = torch.randperm(len(inside), generator=generator_for("random clusters", draw, layer))
            found[own >= 0] = inside[order]
            return found

        return Partition({layer: moved(layer, own) for layer, own in self.labels.items()}, self.network)


class Graph(NamedTuple):
    """adjacency: [n, n] strengths between the n units that take part; kept: bool [units], which these are of all units
    of the chain, layer after layer; widths: layer -> number of its units; lost: units with weights, not kept."""

    adjacency: sparse.csr_array
    kept: np.ndarray
    widths: dict[str, int]
    lost: int


class Shuffled(NamedTuple):
    """observed: the network's normalized cut; null: [draws] those of shuffled networks; p: of a cut as small as the
    observed one, which counts as one of the draws; z: the observed one in standard deviations of the null."""

    observed: float
    null: np.ndarray
    p: float
    z: float


def layer_of(model: nn.Module, name: str) -> nn.Module:
    """The linear or convolutional layer with this weight. Raises ValueError for any other name."""
    parameters = dict(model.named_parameters())
    if name not in parameters:
        raise ValueError(f"the network has no weight '{name}'; {nearest(name, parameters)}")
    layer, kind = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    if kind != "weight" or not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise ValueError(f"'{name}' is neither a matrix nor a convolution; give weights of such layers")
    return layer


def require_chain(task: TaskLoss, names: Sequence[str]) -> None:
    """Raise ValueError unless each layer with these weights gets what the layer before it gave, on the first batch."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    layers = {name: layer_of(task.model, name) for name in names}
    with watched(layers, lambda name, *both: seen[name].append(both)):
        next(iter(task.losses({name: weight.requires_grad_() for name, weight in task.weights(names).items()})))
    for name, own in seen.items():
        if len(own) != 1:
            raise ValueError(f"'{name}' is used {len(own)} times, so the network is no chain; take another method")
    for (before, [(_, given)]), (after, [(taken, _)]) in pairwise(seen.items()):
        if not taken.requires_grad or grad(taken.sum(), given, allow_unused=True, retain_graph=True)[0] is None:
            raise ValueError(f"'{after}' does not take what '{before}' gives: the network is no chain of layers; "
                             "take another method")  # fmt: skip


def strengths(model: nn.Module, names: Sequence[str]) -> dict[str, np.ndarray]:
    """How strongly units are connected: weight -> [outputs, inputs], absolute weights summed over the kernel.

    Raises ValueError for weights that are no chain, and as `layer_of` does.
    """
    found = {name: layer_of(model, name).weight.detach().cpu().double().abs() for name in names}
    if not names or len(found) < len(names):
        raise ValueError(f"{len(names)} names of {len(found)} weights are no chain; give one or more, each once")
    for before, after in pairwise(found):
        outputs, inputs = len(found[before]), found[after].shape[1]
        if outputs != inputs:
            remedy = "give the weights of a chain from inputs to outputs"
            raise ValueError(f"'{before}' has {outputs} outputs but '{after}' has {inputs} inputs; {remedy}")
    return {name: weight.reshape(*weight.shape[:2], -1).sum(dim=2).numpy() for name, weight in found.items()}


def graph(model: nn.Module, names: Sequence[str]) -> Graph:
    """The units of a chain and the strengths between them.

    A unit takes part if its part of the graph has an input and an output; weights that are zero are no edges. So units
    without weights are dropped, and so are small parts inside the network (as in the authors' code). All parts from
    inputs to outputs are kept: they are perfect clusters. One line on stderr says if the graph has several parts.
    Raises ValueError if no path joins inputs and outputs, and as `strengths` does.
    """
    made = _graph(strengths(model, names))
    parts = connected_components(made.adjacency, directed=False)[0]
    if parts > 1 or made.lost:
        print(f"the graph is not connected; parts from inputs to outputs: {parts}, units left out with others: "
              f"{made.lost}", file=sys.stderr, flush=True)  # fmt: skip
    return made


def ncut(adjacency: sparse.csr_array, labels: np.ndarray) -> float:
    """The normalized cut: over clusters, the sum of (strength of edges that leave) / (strength of all edges + 1e-8).

    adjacency: [n, n]; labels: [n], whole numbers from 0. An edge inside counts twice, once for each end.
    """
    member = np.eye(labels.max() + 1)[labels]
    between = member.T @ (adjacency @ member)
    volume = between.sum(axis=1)
    return float(((volume - np.diag(between)) / (volume + 1e-8)).sum())


def spectral(model: nn.Module, names: Sequence[str], count: int, *, seed: int) -> Partition:
    """Clusters with a small normalized cut, by spectral clustering.

    Units are points: their entries in the eigenvectors of D^-1/2 A D^-1/2 with the `count` largest eigenvalues, each
    divided by the root of the unit's degree. k-means clusters these points; of `RESTARTS` runs the one with the
    smallest cut counts. Raises ValueError for more clusters than units, and as `graph` does.
    """
    made = graph(model, names)
    labels = np.full(len(made.kept), -1)
    labels[made.kept] = clustered(made.adjacency, count, seed=seed)
    parts = torch.from_numpy(labels).split(list(made.widths.values()))
    return Partition(dict(zip(made.widths, parts, strict=True)), fingerprint(model))


def clustered(adjacency: sparse.csr_array, count: int, *, seed: int) -> np.ndarray:
    """Labels [n] of the nodes of any graph without isolated ones, clustered as in `spectral`."""
    if not 1 <= count <= adjacency.shape[0]:
        raise ValueError(f"{adjacency.shape[0]} units cannot be {count} clusters; ask for fewer, but at least 1")
    generator = np.random.default_rng(seed)
    points = _points(adjacency, count, generator)
    runs = [_means(points, count, generator) for _ in range(RESTARTS)]
    full = [labels for labels in runs if labels is not None]
    if not full:
        raise ValueError(f"k-means leaves one of {count} clusters empty; ask for fewer")
    return min(full, key=partial(ncut, adjacency))


def shuffled(
    model: nn.Module, names: Sequence[str], count: int, *, draws: int, seed: int, nonzero: bool = False
) -> Shuffled:
    """Is the normalized cut smaller than with the same strengths at random places of each layer?

    nonzero: shuffle among edges that are there, so that a pruned network keeps its zeros in place. A kernel is one
    edge, and stays whole. Raises ValueError for fewer than two draws, and as `spectral` does.
    """
    if draws < 2:
        raise ValueError(f"{draws} draws have no spread; ask for two or more")
    found = strengths(model, names)
    observed = _smallest(graph(model, names), count, seed)
    null = np.array([_smallest(_graph(_moved(found, nonzero, np.random.default_rng([seed, draw]))), count, seed)
                     for draw in range(draws)])  # fmt: skip
    p = (1 + int((null <= observed).sum())) / (1 + draws)
    return Shuffled(observed, null, p, float(ratio(observed - null.mean(), null.std(ddof=1))))


def _smallest(made: Graph, count: int, seed: int) -> float:
    return ncut(made.adjacency, clustered(made.adjacency, count, seed=seed))


def _moved(found: Mapping[str, np.ndarray], nonzero: bool, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """The strengths of each layer, shuffled."""
    moved = {name: strength.copy() for name, strength in found.items()}
    for strength in moved.values():
        positions = strength != 0 if nonzero else np.ones_like(strength, dtype=bool)
        strength[positions] = generator.permutation(strength[positions])
    return moved


def _adjacency(found: Mapping[str, np.ndarray]) -> sparse.csr_array:
    """Symmetric [units, units], layer after layer."""
    blocks = [[None] * (len(found) + 1) for _ in range(len(found) + 1)]
    for i, strength in enumerate(found.values()):
        blocks[i + 1][i], blocks[i][i + 1] = strength, strength.T
    return sparse.block_array(blocks, format="csr")


def _graph(found: Mapping[str, np.ndarray]) -> Graph:
    """See `graph`."""
    every, inputs = _adjacency(found), next(iter(found.values())).shape[1]
    widths = {INPUTS: inputs} | {name: len(strength) for name, strength in found.items()}
    part = connected_components(every, directed=False)[1]
    kept = np.isin(part, np.intersect1d(part[:inputs], part[-list(widths.values())[-1] :]))
    if not kept.any():
        raise ValueError("no path of weights joins inputs and outputs; give a network that is not pruned as far")
    lost = int((every[~kept].sum(axis=1) > 0).sum())
    return Graph(every[kept][:, kept], kept, widths, lost)


def _points(adjacency: sparse.csr_array, count: int, generator: np.random.Generator) -> np.ndarray:
    """[n, count], one point a unit. Units of two parts that are not joined coincide within each part."""
    n, root = adjacency.shape[0], np.sqrt(adjacency.sum(axis=1))
    scaled = sparse.diags_array(1 / root) @ adjacency @ sparse.diags_array(1 / root)
    if n > max(DENSE, count):
        vectors = eigsh(scaled, count, which="LA", v0=generator.random(n))[1]
    else:
        vectors = linalg.eigh(scaled.toarray(), subset_by_index=(n - count, n - 1))[1]
    return vectors / root[:, None]


def _means(points: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray | None:
    """Labels by one run of k-means; None if a cluster is empty."""
    try:
        return kmeans2(points, count, minit="++", missing="raise", rng=generator)[1]
    except ClusterError:
        return None
