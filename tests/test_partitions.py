"""Clusters of units: cuts, spectral clustering, lesions, feature vectors, and the tree of units."""

import copy
import pickle
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from scipy import sparse, stats
from scipy.cluster.hierarchy import linkage
from scipy.special import comb
from torch import nn

from subnet_utils.masks import partitions
from subnet_utils.masks.feature_vectors import feature_vectors, hierarchical, ward
from subnet_utils.masks.overlap import OVERALL, iou
from subnet_utils.masks.partitions import Partition, clustered, graph, ncut, shuffled, spectral, strengths
from subnet_utils.masks.specialization import fisher, local_specialization, silenced
from subnet_utils.masks.subnetwork import WrongNetwork
from subnet_utils.models import fingerprint
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.plots.dendrogram import MIXED, dendrogram
from tests.test_figures import assert_readable

NAMES = ["layers.0.weight", "layers.1.weight", "layers.2.weight"]
CONVOLUTIONS = ["0.weight", "2.weight", "6.weight"]


def network(widths: list[int], seed: int = 0) -> FeedForward:
    torch.manual_seed(seed)
    return FeedForward(widths, classes=1)


def blocks(widths: list[int], count: int, outside: float, seed: int = 0) -> tuple[FeedForward, np.ndarray]:
    """A network of blocks, and the block of each unit; weights between blocks are smaller by a factor."""
    model, draw = network(widths, seed), np.random.default_rng(seed)
    own = [draw.permutation(np.arange(width) % count) for width in widths]
    with torch.no_grad():
        for layer, (before, after) in zip(model.layers, pairwise(own), strict=True):
            layer.weight.mul_(torch.from_numpy(np.where(after[:, None] == before, 1.0, outside)))
    return model, np.concatenate(own)


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))  # fmt: skip


def joined(partition: Partition) -> np.ndarray:
    return torch.cat(list(partition.labels.values())).numpy()


def rand_index(one: np.ndarray, other: np.ndarray) -> float:
    """Adjusted for chance (Hubert and Arabie 1985)."""
    table = pd.crosstab(one, other).to_numpy()
    both, first, second = (comb(n, 2).sum() for n in (table, table.sum(0), table.sum(1)))
    expected = first * second / comb(table.sum(), 2)
    return (both - expected) / ((first + second) / 2 - expected)


def cut_by_hand(adjacency: np.ndarray, labels: np.ndarray) -> float:
    total = 0.0
    for cluster in set(labels):
        inside = [i for i, label in enumerate(labels) if label == cluster]
        outside = [i for i, label in enumerate(labels) if label != cluster]
        total += sum(adjacency[i, j] for i in inside for j in outside) / (adjacency[inside].sum() + 1e-8)
    return total


# -- clusters by weights -----------------------------------------------------------------------------------------------


def test_disjoint_blocks_are_found_exactly(capsys):
    model, truth = blocks([6, 10, 10, 4], 2, outside=0.0)
    for layer in model.layers:  # some units are a thousand times as strong as others
        layer.weight.data *= torch.exp(3 * torch.randn_like(layer.weight[:, :1]))
    found = spectral(model, NAMES, 2, seed=0)
    assert rand_index(joined(found), truth) == 1
    assert ncut(graph(model, NAMES).adjacency, joined(found)) < 1e-6
    assert "the graph is not connected; parts from inputs to outputs: 2, units left out with others: 0" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("dense", [0, 1000])
def test_planted_blocks_are_found_in_noise(dense, monkeypatch, capsys):
    monkeypatch.setattr(partitions, "DENSE", dense)
    model, truth = blocks([12, 30, 30, 12], 3, outside=0.2)
    found = spectral(model, NAMES, 3, seed=0)
    assert rand_index(joined(found), truth) == 1 and found.count == 3
    assert found.sizes.to_numpy().tolist() == [[4] * 3, [10] * 3, [10] * 3, [4] * 3]
    assert capsys.readouterr().err == ""


def test_the_cut_by_hand():
    # two pairs, joined within by 3 and 1, and with one edge of 2 between them: 2 / (3 + 3 + 2) + 2 / (1 + 1 + 2)
    adjacency = np.array([[0, 3, 0, 0], [3, 0, 2, 0], [0, 2, 0, 1], [0, 0, 1, 0]], dtype=float)
    assert ncut(sparse.csr_array(adjacency), np.array([0, 0, 1, 1])) == pytest.approx(0.75)
    draw = np.random.default_rng(0)
    half = np.triu(draw.random((9, 9)), 1)
    labels = np.array([0, 1, 2, 0, 1, 2, 2, 2, 0])
    assert ncut(sparse.csr_array(half + half.T), labels) == pytest.approx(cut_by_hand(half + half.T, labels))


def smallest_cut(adjacency: np.ndarray) -> float:
    """Over all ways to divide 10 nodes in two."""
    inside = [[0, *rest] for size in range(9) for rest in combinations(range(1, 10), size)]
    return min(cut_by_hand(adjacency, np.isin(np.arange(10), own).astype(int)) for own in inside)


def test_spectral_clusters_against_all_bipartitions():
    """Of ten layered graphs with random weights seven come within 1% of the best cut, and the worst is 7% off."""
    ratios = []
    for seed in range(10):
        adjacency = graph(network([3, 4, 3], seed), NAMES[:2]).adjacency
        ratios.append(ncut(adjacency, clustered(adjacency, 2, seed=0)) / smallest_cut(adjacency.toarray()))
    assert min(ratios) > 1 - 1e-9 and max(ratios) < 1.1 and np.median(ratios) < 1.01


def test_the_strength_of_a_kernel_is_the_sum_of_its_absolute_weights():
    model = convolutional()
    weight, found = model[2].weight.detach().numpy(), strengths(model, CONVOLUTIONS)
    for i, j in np.ndindex(6, 4):
        assert found["2.weight"][i, j] == pytest.approx(sum(abs(float(one)) for one in weight[i, j].flat))
    adjacency = graph(model, CONVOLUTIONS).adjacency.toarray()
    assert adjacency.shape == (15, 15) and (adjacency == adjacency.T).all()
    assert (adjacency[6:12, 2:6] == found["2.weight"]).all() and not adjacency[6:, :2].any()


def test_units_that_are_not_between_inputs_and_outputs_are_left_out(capsys):
    model = network([3, 5, 5, 2])
    first, second, third = (layer.weight.data for layer in model.layers)
    first[0], second[:, 0] = 0, 0  # isolated
    first[1], second[:, 1], second[2], third[:, 2] = 0, 0, 0, 0
    second[2, 1] = 1.0  # joined with each other only
    found = spectral(model, NAMES, 2, seed=0)
    left_out = {layer: (own < 0).nonzero().flatten().tolist() for layer, own in found.labels.items()}
    assert left_out == {"inputs": [], NAMES[0]: [0, 1], NAMES[1]: [2], NAMES[2]: []}
    assert "parts from inputs to outputs: 1, units left out with others: 2" in capsys.readouterr().err


# -- the null of shuffled weights --------------------------------------------------------------------------------------


def test_p_of_the_shuffle_null():
    model, _ = blocks([6, 10, 10, 4], 2, outside=0.2)
    found = shuffled(model, NAMES, 2, draws=19, seed=0)
    assert found.p == 1 / 20 and found.z == pytest.approx((found.observed - found.null.mean()) / found.null.std(ddof=1))
    assert found.z < -3 and len(set(found.null)) == 19
    assert shuffled(model, NAMES, 2, draws=3, seed=0).null.tolist() == found.null[:3].tolist()
    random = shuffled(network([6, 10, 10, 4]), NAMES, 2, draws=19, seed=0)
    assert random.p == (1 + sum(cut <= random.observed for cut in random.null)) / 20 > 0.05


def test_zeros_alone_are_no_clusters_if_they_stay_in_place():
    """Disjoint blocks: a shuffle of all weights joins them, one of the weights that are not zero leaves them apart."""
    model, _ = blocks([6, 10, 10, 4], 2, outside=0.0)
    assert shuffled(model, NAMES, 2, draws=9, seed=0).p == 1 / 10
    in_place = shuffled(model, NAMES, 2, draws=9, seed=0, nonzero=True)
    assert in_place.null.max() < 1e-6
    three = shuffled(model, NAMES, 3, draws=2, seed=0, nonzero=True)
    assert three.null.std() > 1e-3, "weights are shuffled all the same"


# -- a partition and its weights ---------------------------------------------------------------------------------------


def test_the_weights_within_a_cluster():
    model = convolutional()
    found = spectral(model, CONVOLUTIONS, 2, seed=0)
    own = found.subnetwork(model, 1)
    layers = list(found.labels)
    for before, name in pairwise(layers):
        for i, j in np.ndindex(*own.masks[name].shape[:2]):
            inside = found.labels[name][i] == found.labels[before][j] == 1
            assert (own.masks[name][i, j] == inside).all()
    assert 0 < own.active < own.total == sum(model.get_parameter(name).numel() for name in CONVOLUTIONS)
    assert iou([own, found.subnetwork(model, 0)])[OVERALL] == 0
    assert found.hidden == ("0.weight", "2.weight")
    again = pickle.loads(pickle.dumps(found))
    assert again.network == found.network and (joined(again) == joined(found)).all()


def partition_of(model: nn.Module, **labels: list[int]) -> Partition:
    tensors = {name.replace("_", "."): torch.tensor(own) for name, own in labels.items()}
    return Partition(tensors, fingerprint(model))


def test_random_clusters_leave_out_the_same_units():
    labels = {"inputs": torch.tensor([0, -1, 1, 1, -1]), "a": torch.tensor([-1, 0, 1])}
    drawn = [Partition(labels, "n").randomized(draw).labels for draw in range(20)]
    for layer, own in labels.items():
        assert all(torch.equal(one[layer] < 0, own < 0) for one in drawn)
        assert all(torch.equal(one[layer].sort().values, own.sort().values) for one in drawn)
    assert len({tuple(one["inputs"].tolist()) for one in drawn}) == 3


def test_faults_are_one_line():
    model = network([3, 5, 4, 2])
    both = nn.ModuleDict({"table": nn.Embedding(4, 3), "deep": nn.LSTM(3, 3), "norm": nn.LayerNorm(3)})
    found = spectral(model, NAMES, 2, seed=0)
    features = feature_vectors(model, torch.randn(20, 3), torch.randn(20, 2), NAMES)
    tries = {
        "14 units cannot be 15 clusters; ask for fewer": lambda: spectral(model, NAMES, 15, seed=0),
        "'layers.0.weight' has 5 outputs but 'layers.2.weight' has 4 inputs": lambda: graph(model, NAMES[::2]),
        "no weight 'layers.3.weight'; did you mean": lambda: graph(model, ["layers.3.weight"]),
        "2 names of 1 weights are no chain": lambda: graph(model, NAMES[:1] * 2),
        "'layers.0.bias' is neither a matrix nor a convolution": lambda: graph(model, ["layers.0.bias"]),
        "'table.weight' is neither": lambda: graph(both, ["table.weight"]),
        "'deep.weight_ih_l0' is neither": lambda: graph(both, ["deep.weight_ih_l0"]),
        "'norm.weight' is neither": lambda: graph(both, ["norm.weight"]),
        "there is no cluster 2; give one of 0 to 1": lambda: found.subnetwork(model, 2),
        "1 draws have no spread": lambda: shuffled(model, NAMES, 2, draws=1, seed=0),
        r"\d live units cannot be 10 clusters": lambda: hierarchical(features, 10),
        "20 inputs but 2 targets": lambda: feature_vectors(model, torch.zeros(20, 3), torch.zeros(2, 2), NAMES),
        "a chain of 1 weights has no hidden": lambda: feature_vectors(
            model, torch.zeros(2, 3), torch.zeros(2, 2), ["w"]
        ),
    }
    for message, act in tries.items():
        with pytest.raises(ValueError, match=message) as error:
            act()
        assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match="labels of 'a' are torch.float32, not torch.int64"):
        Partition({"a": torch.zeros(2)}, "n")
    empty = copy.deepcopy(model)
    empty.layers[1].weight.data.zero_()
    with pytest.raises(ValueError, match="no path of weights joins inputs and outputs"):
        graph(empty, NAMES)
    with pytest.raises(WrongNetwork, match="these clusters are of network"):
        found.subnetwork(empty, 0)
    with pytest.raises(WrongNetwork, match="these clusters are of network"):
        local_specialization(found, empty, lambda model: {"a": 0.0}, draws=2, seed=0)


# -- lesions -----------------------------------------------------------------------------------------------------------


def test_a_lesion_is_the_network_without_these_units():
    model, gone = network([4, 6, 5, 3]).double(), torch.tensor([True, False, False, True, True, False])
    inputs = torch.randn(50, 4, dtype=torch.float64)
    smaller = network([4, 3, 5, 3]).double()
    for one, other in zip(smaller.layers, model.layers, strict=True):
        for name in ("weight", "bias"):
            kept = getattr(other, name).data
            kept = kept[~gone] if other is model.layers[0] else kept
            getattr(one, name).data = kept[:, ~gone] if other is model.layers[1] and name == "weight" else kept
    lesioned = silenced(model, NAMES[0], gone)
    assert torch.allclose(lesioned(inputs), smaller(inputs), rtol=0, atol=1e-15)
    assert (lesioned.layers[0](inputs).relu()[:, gone] == 0).all() and not torch.allclose(
        model(inputs), smaller(inputs)
    )


def test_a_lesion_of_channels():
    model = convolutional()
    lesioned = silenced(model, "0.weight", torch.tensor([False, True, True, False]))
    seen = lesioned[:2](torch.randn(3, 2, 8, 8))
    assert not seen[:, 1:3].any() and seen[:, [0, 3]].any()


class Bank(nn.Module):
    """Units that only have weights to read: cheap to copy and to score."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.a, self.b = nn.Linear(1, len(values), bias=False), nn.Linear(len(values), 1, bias=False)
        self.a.weight.data = torch.from_numpy(values)[:, None]


def held(model: Bank) -> dict[str, float]:
    """Two subtasks; each unit holds a part of one of them, in turn."""
    values = model.a.weight.detach()[:, 0]
    return {"even": float(values[::2].sum()), "odd": float(values[1::2].sum())}


def test_lesions_by_hand():
    model = Bank(np.array([0.3, 0.1, 0.2, 0.0, 0.0, 0.05]))
    found = partition_of(model, inputs=[-1], a_weight=[0, 1, 0, 1, 1, -1], b_weight=[-1])
    table = local_specialization(found, model, held, draws=99, seed=0)
    assert table[["layer", "cluster", "units"]].to_numpy().tolist() == [["a.weight", 0, 2], ["a.weight", 1, 3]]
    assert table["mean"].tolist() == pytest.approx([0.25, 0.05]) and table["range"].tolist() == pytest.approx(
        [0.5, 0.1]
    )
    # one of the ten pairs is as costly, and none of the triples is cheaper than the second
    assert table["mean_p"].tolist() == pytest.approx([0.1, 1.0], abs=0.08) and table["mean_p"][1] == 1
    # of five units that hold .6 in all, a random pair holds 2/5 and a random triple 3/5: half of it is the mean drop
    assert table["mean_random"].tolist() == pytest.approx([0.12, 0.18], abs=0.02)
    assert (table["mean_p_max"] >= table["mean_p"]).all()
    equal = local_specialization(found, model, lambda model: {"a": 0.7, "b": 0.1}, draws=9, seed=0)
    assert (equal.filter(like="_p") == 1).all(axis=None) and not equal[["mean", "range"]].any(axis=None), "ties count"


def test_p_of_lesions_is_uniform_for_random_labels():
    """Kolmogorov and Smirnov over 500 draws; a random number fills the steps of a tenth between possible values."""
    draw, found = np.random.default_rng(0), []
    model = Bank(draw.normal(size=9))
    for seed in range(500):
        own = partition_of(model, inputs=[-1], a_weight=draw.permutation(np.arange(9) % 3).tolist(), b_weight=[-1])
        table = local_specialization(own, model, held, draws=9, seed=seed)
        found.append([table["mean_p"][0], table["range_p"][1], table["mean_p_max"].min(), table["range_p_max"].min()])
    for p in np.transpose(found) - draw.random((4, 500)) / 10:
        assert stats.kstest(p, "uniform").pvalue > 0.01


def test_fisher_against_scipy():
    p = np.random.default_rng(0).random(7)
    assert fisher(p) == pytest.approx(stats.combine_pvalues(p, "fisher").pvalue)
    assert fisher([0.3]) == pytest.approx(0.3)


# -- clusters by what units do -----------------------------------------------------------------------------------------


def sorted_units() -> tuple[FeedForward, torch.Tensor, torch.Tensor]:
    """Units of each hidden layer that follow the first input, or the second, or are dead; one input is constant."""
    model, inputs = network([3, 6, 5, 2]), torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    inputs[:, 2] = 1.0
    for layer, rows in zip(model.layers, ([0, 1, 0, 1, None, 0], [0, 1, None, 1, 0], [0, 1]), strict=True):
        layer.weight.data *= 0.01
        layer.bias.data.zero_()
        for i, row in enumerate(rows):
            if row is None:
                layer.bias.data[i] = -9.0
            else:
                layer.weight.data[i, row] += 1.0
    return model, inputs, model(inputs)[..., 0].detach()


def test_feature_vectors_are_correlations():
    model, inputs, targets = sorted_units()
    found = feature_vectors(model, inputs, targets, NAMES).table
    assert found.index.tolist() == [(NAMES[0], i) for i in (0, 1, 2, 3, 5)] + [(NAMES[1], i) for i in (0, 1, 3, 4)]
    assert found.columns.tolist() == [("inputs", 0), ("inputs", 1), ("outputs", 0), ("outputs", 1)]
    hidden = model.layers[0](inputs).relu()
    second = model.layers[1](hidden).relu()
    for (layer, unit), row in found.iterrows():
        active = (hidden if layer == NAMES[0] else second)[:, unit].detach()
        by_hand = [np.corrcoef(active, other)[0, 1] for other in (*inputs.T[:2], *targets.T)]
        assert row.to_numpy() == pytest.approx(by_hand, abs=1e-5)


def test_units_that_do_the_same_are_one_cluster():
    model, inputs, targets = sorted_units()
    found = hierarchical(feature_vectors(model, inputs, targets, NAMES), 2)
    of_first, of_second = (found.labels[NAMES[0]][i].item() for i in (0, 1))
    assert {of_first, of_second} == {0, 1}
    expected = {0: of_first, 1: of_second, None: -1}
    assert found.labels[NAMES[0]].tolist() == [expected[row] for row in (0, 1, 0, 1, None, 0)]
    assert found.labels[NAMES[1]].tolist() == [expected[row] for row in (0, 1, None, 1, 0)]
    assert found.labels["inputs"].tolist() == [-1] * 3 and found.labels[NAMES[2]].tolist() == [-1] * 2
    assert found.subnetwork(model, of_first).masks[NAMES[1]].sum() == 2 * 3
    channels = feature_vectors(convolutional(), torch.randn(30, 2, 8, 8), torch.randn(30, 3), CONVOLUTIONS)
    assert channels.table.shape == (10, 2 * 64 + 3)


def lance_williams(points: np.ndarray) -> list[tuple[set[int], float]]:
    """Ward's tree, straight from the recurrence: the members and the height of each union."""
    members = {i: {i} for i in range(len(points))}
    squares = {frozenset((i, j)): ((points[i] - points[j]) ** 2).sum() for i, j in combinations(members, 2)}
    found = []
    while len(members) > 1:
        i, j = pair = min(combinations(members, 2), key=lambda both: squares[frozenset(both)])
        height, new, a, b = squares[frozenset(pair)], max(members) + 1, len(members[i]), len(members[j])
        for k in members.keys() - set(pair):
            c, to_i, to_j = len(members[k]), squares[frozenset((i, k))], squares[frozenset((j, k))]
            squares[frozenset((new, k))] = ((a + c) * to_i + (b + c) * to_j - c * height) / (a + b + c)
        members[new] = members.pop(i) | members.pop(j)
        found.append((members[new], np.sqrt(height)))
    return found


def test_ward_against_lance_and_williams():
    model = network([3, 8, 7, 2])
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    features = feature_vectors(model, inputs, model(inputs)[..., 0], NAMES)
    below = {i: {i} for i in range(len(features.table))}
    for row, (members, height) in zip(ward(features), lance_williams(features.table.to_numpy()), strict=True):
        below[len(below)] = below[int(row[0])] | below[int(row[1])]
        assert below[len(below) - 1] == members and row[2] == pytest.approx(height)


@pytest.mark.usefixtures("paper_style")
def test_the_tree_shows_clusters_and_kinds():
    tree = linkage([[0.0], [5.2], [0.1], [5.0], [5.9]], "ward")
    figure, ax = plt.subplots(figsize=(3.4, 2.4))
    colors = {"add": "#0069a8", "multiply": "#c8321e", "none": "#dddddd"}
    kinds = ["add", "multiply", "add", "multiply", "add"]
    dendrogram(ax, tree, [0, 1, 0, 1, 1], kinds, colors)
    branches = [to_hex(color) for drawn in ax.collections for color in drawn.get_colors()]
    assert branches.count(MIXED) == 1 and len(set(branches)) == 3
    order = [to_hex(color) for color in ax.child_axes[0].images[0].get_array()[0]]
    assert order == [colors[kinds[unit]] for unit in (0, 2, 4, 1, 3)], "the strip is in the order of the leaves"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["add", "multiply"]
    assert_readable(figure)
