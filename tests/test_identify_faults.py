"""Networks and tasks with which nothing can be identified: they are told from others early, and stay as they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from subnet_utils import Task, identify
from subnet_utils.masks import methods
from subnet_utils.masks.identify import MaskSteps


def of_first(items: int = 60) -> Task:
    inputs = torch.randn(items, 8, generator=torch.Generator().manual_seed(0))
    return Task(inputs, (inputs[:, 0] > 0).long())


def shared() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 2))


def tied() -> nn.Module:
    found = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    found[2].weight = found[0].weight
    return found


@pytest.mark.parametrize("method", ["attribution", "attribution_ig", "exact", "continuous_sparsification"])
@pytest.mark.parametrize("network", [shared, tied])
def test_a_weight_at_two_places_is_masked_at_both_and_the_network_stays(network, method):
    network, task = network(), of_first()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    outputs = network(task.inputs)
    found = identify(network, task, method, training=MaskSteps(steps=4))
    assert torch.equal(network(task.inputs), outputs)
    assert all(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    nothing = (found.subnetwork & ~found.subnetwork).apply(network)
    assert torch.equal(nothing[0].weight, nothing[2].weight) and not nothing[0].weight.any()
    assert found.subnetwork.total == 64 + 16


def test_items_count_alike_whatever_batches_they_are_in():
    network, task = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2)), of_first(257)
    inputs, targets = task.inputs, task.targets
    weights = {name: weight.detach().requires_grad_() for name, weight in network.named_parameters()}
    loss = task.loss(torch.func.functional_call(network, weights, (inputs,)), targets)
    names = ("0.weight", "2.weight")
    gradients = dict(zip(names, torch.autograd.grad(loss, [weights[name] for name in names]), strict=True))
    found = identify(network, task, "attribution", training=MaskSteps(batch_size=256))
    for name, gradient in gradients.items():
        assert torch.allclose(found.scores[name], (gradient * weights[name]).abs().detach(), atol=1e-6)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return self.layer(inputs)


@pytest.mark.parametrize("method", ["attribution", "gumbel_sigmoid"])
def test_a_network_that_changes_as_it_runs_is_refused_and_stays(method):
    network = Counts()
    with pytest.raises(ValueError, match="^the model changed while it ran; take out what writes to its buffers$"):
        identify(network, of_first(), method)
    assert network.calls == 0


def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(-1) != targets).float().mean()


class Lost(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).detach()


class Twice(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).repeat(2, 1)


class Nothing(nn.Linear):
    def forward(self, inputs):
        return {}


@pytest.mark.parametrize("method", ["attribution", "continuous_sparsification"])
@pytest.mark.parametrize(
    "network, change, line",
    [
        (
            nn.Linear,
            {"loss": wrong},
            "the loss has no gradient; give one that is differentiable, such as cross-entropy",
        ),
        (Lost, {}, "the outputs have no gradient by the weights; take out torch.no_grad() and detach()"),
        (Twice, {}, "for 60 inputs the network gives a tensor [120, 2]; it must give a row for each"),
        (Nothing, {}, "for 60 inputs the network gives a dict; it must give a row for each"),
        (
            nn.Linear,
            {"targets": torch.arange(60)},
            "the loss fails for outputs [60, 2] and targets [60] of torch.int64",
        ),
        (nn.Linear, {"targets": torch.full((60,), -100)}, "the network's own loss is nan; look at inputs, targets and"),
        (nn.Linear, {"loss": lambda outputs, targets: outputs}, "the loss must be one number, a tensor without dim"),
    ],
)
def test_a_loss_that_says_nothing_is_refused_before_the_training(network, change, line, method, monkeypatch):
    monkeypatch.setattr("subnet_utils.masks.discover.fit", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError) as found:
        identify(network(8, 2), replace(of_first(), **change), method)
    assert str(found.value).startswith(line) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    "change, line",
    [
        ({"inputs": torch.full((60, 8), float("nan"))}, "inputs of item 0 are not finite"),
        ({"inputs": np.zeros((60, 8))}, "inputs must be a tensor with a row for each item"),
        ({"targets": torch.tensor(3)}, "targets must be a tensor with a row for each item"),
    ],
)
def test_a_task_is_of_finite_tensors(change, line):
    with pytest.raises(ValueError, match=line):
        replace(of_first(), **change)


def test_scores_that_are_all_zero_choose_nothing():
    sure = nn.Linear(8, 2)
    with torch.no_grad():
        sure.weight.zero_()
        sure.weight[:, 0] = torch.tensor([-1e4, 1e4])
    with pytest.raises(ValueError, match="^all scores are 0: the loss does not change with the weights"):
        identify(sure, replace(of_first(), inputs=of_first().inputs.sign()), "attribution")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("method", ["magnitude", "continuous_sparsification"])
@pytest.mark.parametrize("computed", [parametrizations.weight_norm, weight_norm])
def test_weights_that_are_computed_from_others_are_refused(computed, method):
    network = nn.Sequential(computed(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, 2))
    with pytest.raises(
        ValueError, match="^'0[.].* is computed from other parameters; remove its parametrization first$"
    ):
        identify(network, of_first(), method)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.output = nn.Linear(8, 2)

    def forward(self, inputs):
        shares = (self.query(inputs) @ self.key(inputs).T).softmax(dim=-1)
        return self.output(shares @ self.value(inputs))


@pytest.mark.parametrize(
    "network, line",
    [
        (
            Attends,
            "'key.weight' does not take what 'query.weight' gives: the network is no chain of layers; take another",
        ),
        (shared, "'0.weight' is used 2 times, so the network is no chain; take another method"),
    ],
)
def test_clusters_are_of_chains_alone(network, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        identify(network(), of_first(), "spectral_clusters")


def test_items_may_be_of_one_column():
    task = Task(torch.linspace(-1, 1, 3000)[:, None], (torch.arange(3000) >= 1500).long())
    network = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2))
    assert identify(network, task, "gumbel_sigmoid", training=MaskSteps(steps=10)).subnetwork.total == 12


def test_a_seed_is_a_whole_number_of_any_kind():
    network = nn.Linear(8, 2)
    one, other = (identify(network, of_first(), "random", seed=seed) for seed in (3, np.int64(3)))
    assert one.subnetwork == other.subnetwork
    with pytest.raises(ValueError, match="^seed 1.5 is not valid; give a whole number$"):
        identify(network, of_first(), "random", seed=1.5)
    with pytest.raises(ValueError, match="^density '0.1' is not valid"):
        identify(network, of_first(), "random", density="0.1")


@pytest.mark.parametrize(("change", "line"), [
    ({"task": (torch.eye(8), torch.arange(8))}, r"a tuple is no Task; give Task\(...\)"),
    ({"training": {"steps": 20}}, r"a dict is no MaskSteps; give MaskSteps\(...\)"),
])  # fmt: skip
def test_a_task_and_a_training_are_objects(change, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        identify(**{"model": nn.Linear(8, 2), "task": of_first(), "method": "magnitude"} | change)


def test_steps_are_whole_numbers_of_any_kind():
    assert MaskSteps(steps=np.int64(20)).interval == MaskSteps(steps=20).interval
    with pytest.raises(ValueError, match="^steps must be a whole number of at least 1, got 1.5$"):
        MaskSteps(steps=1.5)


def test_of_no_names_the_message_speaks():
    with pytest.raises(ValueError, match="^only names no weight; name one or more, or leave it out$"):
        identify(nn.Linear(8, 2), of_first(), "random", only=[])


@pytest.mark.parametrize("method", ["attribution", "gumbel_sigmoid"])
def test_a_compiled_network_is_the_network_itself(method):
    network = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled, steps = torch.compile(network, backend="eager"), MaskSteps(steps=20)
    one, other = (identify(which, of_first(), method, training=steps).subnetwork for which in (network, compiled))
    assert one == other
    inputs = of_first().inputs
    assert torch.equal(one.apply(compiled)(inputs), one.apply(network)(inputs))


def test_the_network_before_training_may_be_the_network_itself_and_must_fit():
    network, first = nn.Linear(8, 2), nn.Linear(8, 2)
    one, other = (identify(network, of_first(), "weight_change", before=before) for before in (first, lambda: first))
    assert one.subnetwork == other.subnetwork
    with pytest.raises(
        ValueError, match=r"^the network before training has no 'weight' of shape \[2, 8\]; give one of"
    ):
        identify(network, of_first(), "weight_change", before=nn.Linear(1, 2))


def test_a_class_of_discover_is_no_method_of_identify():
    with pytest.raises(ValueError, match="give a name, such as .*, and its settings as options$"):
        identify(nn.Linear(8, 2), of_first(), methods.ContinuousSparsification())
    for wrong_setting in ({"units": "rows"}, {"beta_max": 0.5}, {"l0": -1.0}, {"epochs": 0}):
        with pytest.raises(ValueError, match="not valid; give"):
            methods.ContinuousSparsification(**wrong_setting)


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.output = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, inputs):
        return self.output(self.lstm(inputs.unflatten(1, (4, 2)))[0][:, -1])


def test_weights_of_a_recurrent_layer_are_left_out_one_by_one():
    network, task = Reads(), of_first()
    found = identify(network, task, "exact").scores["lstm.weight_hh_l0"]
    whole = task.loss(network(task.inputs), task.targets)
    with torch.no_grad():
        network.lstm.weight_hh_l0[4, 1] = 0.0
        assert torch.allclose(found[4, 1], task.loss(network(task.inputs), task.targets) - whole, atol=1e-6)
