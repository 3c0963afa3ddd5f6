"""Mean ablation of weights against a computation by hand, and what it must leave as it is."""

import pytest
import torch
from torch import nn

from subnet_utils.masks.mean_ablation import mean_ablated
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.models.staged import fingerprint, maskable


@pytest.fixture
def network():
    torch.manual_seed(0)
    return FeedForward([3, 5, 4], classes=2).requires_grad_(False)


@pytest.fixture
def inputs():
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(1))


def some(network: nn.Module, share: float) -> Subnetwork:
    draw = torch.Generator().manual_seed(2)
    shapes = {name: network.get_parameter(name).shape for name in maskable(network)}
    return Subnetwork(
        {n: torch.rand(shape, generator=draw) < share for n, shape in shapes.items()}, fingerprint(network)
    )


def test_biases_take_up_the_mean_contributions(network, inputs):
    kept = some(network, 0.5)
    changed, (first, second) = mean_ablated(kept, network, inputs), network.layers
    hidden = torch.relu(inputs @ first.weight.T + first.bias)  # of the whole network
    for layer, own, entering in zip((first, second), changed.layers, (inputs, hidden), strict=True):
        mask = kept.masks["layers.0.weight" if layer is first else "layers.1.weight"]
        for i in range(len(layer.weight)):
            lost = sum(float(layer.weight[i, j] * entering[:, j].mean()) for j in range(len(mask[i])) if not mask[i, j])
            assert float(own.bias[i]) == pytest.approx(float(layer.bias[i]) + lost, abs=1e-6)
        assert torch.equal(own.weight, layer.weight * mask)


def test_a_network_in_training_stays_as_it_is(inputs):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).requires_grad_(False)
    kept, before = some(network, 0.5), fingerprint(network)
    first, second = mean_ablated(kept, network.train(), inputs), mean_ablated(kept, network, inputs)
    assert fingerprint(network) == before and network.training and torch.equal(first[3].bias, second[3].bias)


def test_the_whole_stays_whole_and_nothing_is_constant(network, inputs):
    every, before = some(network, 2.0), network(inputs)
    assert torch.equal(mean_ablated(every, network, inputs)(inputs), before)
    outputs = mean_ablated(~every, network, inputs)(inputs).flatten(1)
    torch.testing.assert_close(outputs, before.flatten(1).mean(dim=0).expand_as(outputs))
    assert torch.equal(network(inputs), before)  # the network itself is as it was


@pytest.mark.parametrize("model", [nn.Conv2d(2, 3, 3), nn.Linear(2, 3, bias=False)])
def test_layers_that_cannot_take_up_a_mean_are_refused(model):
    every = Subnetwork({"weight": torch.ones(model.weight.shape, dtype=torch.bool)}, fingerprint(model))
    with pytest.raises(ValueError, match="'weight' has no bias that could take up a mean; ablate it with zeros"):
        mean_ablated(every, model, torch.zeros(1, 2))
