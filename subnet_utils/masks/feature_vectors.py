"""Clusters of units that do the same: they respond to the same inputs and go with the same outputs.

*Interpreting Layered Neural Networks via Hierarchical Modular Representation* (Watanabe 2019): the feature vector of a
hidden unit has its correlations with all inputs and all outputs. Ward's method joins units with similar vectors, and
its tree gives clusters of any number. Correlations keep their sign here: units of opposite sign are apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import Tensor, nn

from subnet_utils.masks.partitions import INPUTS, Partition, layer_of, strengths
from subnet_utils.models.frozen import full_precision
from subnet_utils.models.staged import evaluating, fingerprint, watched

OUTPUTS = "outputs"
"""Of a feature vector: the part with correlations with outputs."""


@dataclass(frozen=True, eq=False)
class FeatureVectors:
    """table: correlations, a row for each live unit (layer, unit), a column for each dimension (`INPUTS` or `OUTPUTS`,
    number) that varies; widths: layer -> number of units, of all layers of the chain; network: its fingerprint."""

    table: pd.DataFrame
    widths: Mapping[str, int]
    network: str


def feature_vectors(model: nn.Module, inputs: Tensor, targets: Tensor, names: Sequence[str]) -> FeatureVectors:
    """Correlations over items of every hidden unit with every input and output.

    inputs: [m, ...] what the network is called with; targets: [m, ...] such as its outputs, or right answers as 0 and
    1; names: the weights of a chain, from inputs to outputs. A ReLU must follow each hidden layer: a unit's activation
    is the ReLU of its layer's output, that of a channel is the mean over places. Units that are the same for all items,
    such as dead ones, have no correlation and are left out; so are such inputs and outputs. Raises ValueError as
    `partitions.strengths` does, for a chain without hidden units, and if there are not as many targets as inputs.
    """
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs but {len(targets)} targets; give one target for each input")
    if len(names) < 2:
        raise ValueError(f"a chain of {len(names)} weights has no hidden units; give two or more")
    found = strengths(model, names)
    widths = {INPUTS: next(iter(found.values())).shape[1]} | {name: len(own) for name, own in found.items()}
    units = _standardized(_activations(model, inputs, names[:-1]))
    dimensions = _standardized({INPUTS: inputs.flatten(1), OUTPUTS: targets.flatten(1)})
    return FeatureVectors(units.T @ dimensions / len(inputs), widths, fingerprint(model))


def ward(features: FeatureVectors) -> np.ndarray:
    """The tree of the units by Ward's method, [units - 1, 4], as scipy has it. Raises ValueError for fewer than two."""
    if len(features.table) < 2:
        raise ValueError(f"{len(features.table)} units are alive, too few for a tree; give more or other items")
    return linkage(features.table.to_numpy(), "ward")


def hierarchical(features: FeatureVectors, count: int) -> Partition:
    """The clusters of hidden units where `ward`'s tree has so many branches. Inputs, outputs and dead units are -1.

    Raises ValueError for more clusters than live units, and as `ward` does.
    """
    units = features.table.index
    if not 1 <= count <= len(units):
        raise ValueError(f"{len(units)} live units cannot be {count} clusters; ask for fewer, but at least 1")
    own = pd.Series(cut_tree(ward(features), n_clusters=count)[:, 0], units, dtype=np.int64)
    labels = {layer: torch.full((width,), -1) for layer, width in features.widths.items()}
    for (layer, unit), cluster in own.items():
        labels[layer][unit] = cluster
    return Partition(labels, features.network)


@torch.no_grad()
def _activations(model: nn.Module, inputs: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """[m, units] of every layer, by its weight's name."""
    found, layers, device = {}, {name: layer_of(model, name) for name in names}, next(model.parameters()).device

    def note(name: str, _: Tensor, output: Tensor) -> None:
        active = output.relu()
        found[name] = active if isinstance(layers[name], nn.Linear) else active.flatten(2).mean(dim=2)

    with watched(layers, note), evaluating(model), full_precision(device):
        model(inputs.to(device))
    return found


def _standardized(parts: Mapping[str, Tensor]) -> pd.DataFrame:
    """[m, columns] with mean 0 and variance 1, without columns that do not vary; columns: (part, number)."""
    tables = {part: pd.DataFrame(values.detach().cpu().double().numpy()) for part, values in parts.items()}
    table = pd.concat(tables, axis=1)
    table = table.loc[:, table.max() > table.min()]
    return (table - table.mean()) / table.std(ddof=0)
