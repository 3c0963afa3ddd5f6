"""Scores that look at the task: against closed forms, finite differences and masked forward passes."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from subnet_utils.masks.attribution import attributed, integrated, left_out
from subnet_utils.masks.masking import (
    METHODS,
    Attribution,
    AttributionIG,
    Exact,
    Magnitude,
    ScoredMasking,
    SpectralClusters,
)
from subnet_utils.masks.select import select_rows
from subnet_utils.masks.task_loss import TaskLoss
from subnet_utils.models import StagedModel
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.training import Recipe

RECIPE = Recipe(0.1, 1, 0)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


INPUTS, TARGETS = draw(12, 5), torch.arange(12) % 3


def in_batches(targets: torch.Tensor, size: int):
    rows = torch.arange(len(targets)).split(size)
    return lambda generator: [(some, targets[some]) for some in rows]


def task_of(model: nn.Module, size: int = 4, **options) -> TaskLoss:
    return TaskLoss(model, INPUTS, in_batches(TARGETS, size), cross_entropy, **options)


def whole_loss(model: nn.Module, weights: dict[str, torch.Tensor]) -> float:
    """On all items at once: batches of equal size have the same mean."""
    with torch.no_grad():
        return float(cross_entropy(torch.func.functional_call(model, weights, (INPUTS,)), TARGETS))


NAMES = ("0.weight", "2.weight")


def test_of_a_linear_network_in_closed_form():
    """L = mean of (x w - y)^2, so dL/dw = 2 X^T (X w - y) / n."""
    model, y = nn.Linear(5, 1, bias=False).double(), draw(12, 1, seed=1)
    task = TaskLoss(model, INPUTS, in_batches(y, 4), mse_loss)
    w, x = model.weight.detach().numpy()[0], INPUTS.numpy()
    gradient = 2 * x.T @ (x @ w - y[:, 0].numpy()) / 12
    found = attributed(task, task.weights(["weight"]))["weight"]
    np.testing.assert_allclose(found[0], w * gradient, rtol=1e-12)
    assert task.passes == 3


def test_gradients_against_finite_differences():
    model = network()
    task = task_of(model)
    weights = task.weights(NAMES)
    found = attributed(task, weights)
    for name, weight in weights.items():
        for i in range(weight.numel()):
            around = []
            for step in (1e-5, -1e-5):
                moved = weight.clone()
                moved.view(-1)[i] += step
                around.append(whole_loss(model, {**weights, name: moved}))
            expected = float(weight.view(-1)[i]) * (around[0] - around[1]) / 2e-5
            assert float(found[name].view(-1)[i]) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_integrated_gradients_sum_to_what_the_weights_do():
    model = network()
    task = task_of(model)
    weights = {name: 3 * weight for name, weight in task.weights(NAMES).items()}
    nothing = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    change = whole_loss(model, weights) - whole_loss(model, nothing)
    total = sum(float(effect.sum()) for effect in integrated(task, weights, 200).values())
    at_the_end = sum(float(effect.sum()) for effect in attributed(task, weights).values())
    assert total == pytest.approx(change, rel=0.01) and at_the_end != pytest.approx(change, rel=0.05)
    assert task.passes == 3 * 201


@pytest.mark.parametrize("at_once", [1, 7, 128])
def test_what_is_left_out_against_masked_forward_passes(at_once, monkeypatch):
    monkeypatch.setattr("subnet_utils.masks.attribution.AT_ONCE", at_once)
    model = network()
    task = task_of(model)
    weights = task.weights(NAMES)
    found, whole = left_out(task, weights), whole_loss(model, weights)
    for name, weight in weights.items():
        for i in range(weight.numel()):
            without = weight.clone()
            without.view(-1)[i] = 0
            expected = whole_loss(model, {**weights, name: without}) - whole
            assert float(found[name].view(-1)[i]) == pytest.approx(expected, abs=1e-6)
    chunks = -(-30 // at_once) - (-18 // at_once)
    assert task.passes == 3 * (30 + 18 + chunks), "in each the whole network, too"


def test_a_large_network_is_refused_before_anything_runs():
    wide = nn.Linear(300, 200)
    said = "'exact' leaves out every weight in turn, of 60,000; take 'attribution' above 50,000"
    with pytest.raises(ValueError, match=f"^{said}$"):
        Exact().find(wide, None, None, None, recipe=RECIPE)


@pytest.mark.parametrize("masking", [Attribution(density=0.25), AttributionIG(density=0.25, points=3), Exact()])
def test_the_best_are_kept_and_the_network_stays_as_it_is(masking):
    model = nn.Sequential(nn.Dropout(0.5), *network()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = masking.find(model, INPUTS, in_batches(TARGETS, 4), cross_entropy, recipe=RECIPE)
    assert found.subnetwork.active == round(masking.density * 48) and model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    kept = torch.cat([found.scores[name][mask] for name, mask in found.subnetwork.masks.items()])
    left = torch.cat([found.scores[name][~mask] for name, mask in found.subnetwork.masks.items()])
    assert kept.min() >= left.max()
    again = masking.find(model, INPUTS, in_batches(TARGETS, 4), cross_entropy, recipe=RECIPE)
    assert again.subnetwork == found.subnetwork, "no dropout"
    passes = {"attribution": 1, "attribution_ig": 3, "exact": 48 + 2}
    assert found.passes == 3 * passes[masking.method]


def test_methods_that_do_not_look_at_the_task_take_no_pass():
    found = Magnitude(density=0.5).find(network(), None, None, None, recipe=RECIPE)
    assert found.passes == 0 and torch.equal(found.scores["0.weight"], network()[0].weight.detach().abs())


def test_what_comes_before_the_start_is_run_once_or_taken():
    """The scores of a suffix are those of the whole network, restricted to it."""
    plain, runs = network(), []
    first, last = nn.Sequential(plain[0], plain[1]), plain[2]
    first.register_forward_hook(lambda *_: runs.append(1))

    class State(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return (self.inner(x),)

    staged = StagedModel({"first": State(first), "last": last})
    expected = attributed(task_of(plain), task_of(plain).weights(NAMES))["2.weight"]
    task = task_of(staged, start="last")
    found = integrated(task, task.weights(["stages.last.weight"]), 4)["stages.last.weight"]
    assert len(runs) == 2, "one item to see its size, then all"
    prefix = FrozenPrefix(staged.cut("last")[0], INPUTS, device=torch.device("cpu"), limit_gb=1.0)
    given = TaskLoss(staged, prefix, in_batches(TARGETS, 4), cross_entropy, start="last")
    again = attributed(given, given.weights(["stages.last.weight"]))["stages.last.weight"]
    torch.testing.assert_close(again, expected)
    assert not torch.allclose(found, expected)


def test_items_in_several_places_of_a_batch():
    """Rows may have any shape, and an item may stand in them more than once."""
    model, rows = network(), torch.tensor([[0, 1], [1, 1], [3, 0]])
    task = TaskLoss(model, INPUTS, lambda generator: [(rows, rows)], lambda out, _: out.square().sum())
    (loss,) = task.losses(task.weights(NAMES))
    assert float(loss) == pytest.approx(model(INPUTS[rows.flatten()]).square().sum().item())


# -- whole rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 20, 30, 47, 62, 86])
def test_whole_rows_come_as_near_to_the_count_as_rows_allow(count):
    scores = {"a": draw(8, 4).abs(), "b": draw(3, 2, 3, 3, seed=1).abs()}
    found = select_rows(scores, count, network="n")
    rows = [(float(row.sum()), row.numel(), name, i) for name in "ab" for i, row in enumerate(scores[name])]
    rows.sort(reverse=True)
    sizes = np.cumsum([size for _, size, _, _ in rows])
    number = 1 + min(range(len(rows)), key=lambda i: abs(sizes[i] - count))
    expected = {(name, i) for _, _, name, i in rows[:number]}
    kept = {(name, i) for name in "ab" for i, row in enumerate(found.masks[name]) if row.all()}
    assert kept == expected and found.active == sizes[number - 1]


def test_a_method_keeps_whole_neurons():
    found = Attribution(density=0.4, units="neurons").find(
        network(), INPUTS, in_batches(TARGETS, 4), cross_entropy, recipe=RECIPE
    )
    rows = [mask.all(dim=1) | ~mask.any(dim=1) for mask in found.subnetwork.masks.values()]
    assert all(row.all() for row in rows) and abs(found.subnetwork.active - 0.4 * 48) <= 3
    assert found.history["density"].item() == found.subnetwork.density


def test_a_method_without_scores_says_so():
    class Unwritten(ScoredMasking):
        method: Literal["unwritten"] = "unwritten"

    METHODS.pop("unwritten")
    with pytest.raises(TypeError, match="^Unwritten has no scores\\(\\); write one$"):
        Unwritten().find(network(), None, None, None, recipe=RECIPE)


def test_clusters_are_ranked_by_the_loss_without_them():
    """Two blocks that are hardly joined: the loss without each one's weights, computed in full."""
    model = network()
    with torch.no_grad():
        for weight, rows, columns in ((model[0].weight, 3, 2), (model[2].weight, 1, 3)):
            weight.mul_(0.01)
            weight[:rows, :columns] += 2.0
            weight[rows:, columns:] += 3.0
    found = SpectralClusters(density=0.5, clusters=2).find(
        model, INPUTS, in_batches(TARGETS, 4), cross_entropy, recipe=RECIPE
    )
    blocks = []
    for first in (True, False):
        inside = [torch.zeros(6, 5, dtype=torch.bool), torch.zeros(3, 6, dtype=torch.bool)]
        for mask, rows, columns in zip(inside, (3, 1), (2, 3), strict=True):
            (mask[:rows, :columns] if first else mask[rows:, columns:]).fill_(True)
        left = {name: model.get_parameter(name).masked_fill(m, 0.0) for name, m in zip(NAMES, inside, strict=True)}
        blocks.append((inside, whole_loss(model, left) - whole_loss(model, {})))
    for inside, effect in blocks:
        for name, mask in zip(NAMES, inside, strict=True):
            np.testing.assert_allclose(found.scores[name][mask], effect, atol=1e-9)
    between = [~(a | b) for a, b in zip(blocks[0][0], blocks[1][0], strict=True)]
    lowest = min(effect for _, effect in blocks)
    assert all((found.scores[name][mask] < lowest).all() for name, mask in zip(NAMES, between, strict=True))
