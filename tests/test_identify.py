"""One call for all methods: what it finds, its defaults, the search for a density, and what it refuses."""

import copy
import subprocess
import sys
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from transformers import BertConfig, BertForSequenceClassification

import subnet_utils
from subnet_utils import Task, identify
from subnet_utils.core.sections import ROOT
from subnet_utils.masks import identify as module
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.identify import MaskSteps, at_density, class_loss
from subnet_utils.masks.masking import (
    METHODS,
    ContinuousSparsification,
    GumbelSigmoid,
    HardConcrete,
    Magnitude,
    Masking,
    ScoredMasking,
    TrainedMasking,
)
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.task_loss import TaskLoss
from subnet_utils.models import fingerprint
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.models.staged import StagedModel, maskable


@pytest.fixture(autouse=True)
def methods_as_before():
    """A class that a test derives from Masking is known by its name in this test alone."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


INPUTS = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
SUM = Task(INPUTS, (INPUTS[:, :2].sum(dim=1) > 0).long())
SHORT = MaskSteps(steps=120, batch_size=40, learning_rate=0.1)


def network() -> nn.Sequential:
    """Hidden units 0 to 3 see inputs 0 and 1 and decide; units 4 to 7 see the others and disturb."""
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    signs = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[:4, :2] = signs
        model[0].weight[4:, 2:] = 2 * torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
        model[2].weight.copy_(torch.tensor([[-1.0, -1, 1, 1, 2, -2, 2, -2], [1.0, 1, -1, -1, -2, 2, -2, 2]]))
    return model.eval()


def accuracy(model: nn.Module) -> float:
    return float((model(INPUTS).argmax(dim=1) == SUM.targets).float().mean())


@pytest.mark.parametrize("method", ["continuous_sparsification", "gumbel_sigmoid", "hard_concrete"])
def test_trained_methods_find_what_does_the_task(method):
    model = network()
    before = fingerprint(model)
    found = identify(model, SUM, method, training=SHORT)
    assert accuracy(found.subnetwork.apply(model)) >= 0.85 > 0.75 > accuracy(model)
    assert found.subnetwork.density < 0.6 and found.subnetwork.network == before == fingerprint(model)
    assert found.passes == 120 * (4 if method == "gumbel_sigmoid" else 1) and len(found.history) == 30
    again = identify(model, SUM, method, training=SHORT)
    other = identify(model, SUM, method, training=SHORT, seed=1)
    assert again.subnetwork == found.subnetwork
    assert not torch.equal(again.scores["0.weight"], other.scores["0.weight"])


@pytest.mark.parametrize("method", ["exact", "attribution", "attribution_ig", "magnitude", "random", "weight_change"])
@pytest.mark.parametrize("density", [1 / 64, 0.3, 1.0])
def test_methods_with_scores_keep_exactly_as_many(method, density):
    found = identify(network(), SUM, method, density=density, before=network)
    assert found.subnetwork.active == round(density * 64)
    sizes = {"exact": 64 + 2, "attribution": 1, "attribution_ig": 10}
    assert found.passes == sizes.get(method, 0), "all 80 items are one batch"


def test_leaving_out_a_weight_that_does_nothing_changes_nothing():
    """The planted zeros score exactly 0, and the subnetwork of all others is the network."""
    found, model = identify(network(), SUM, "exact", density=0.5), network()
    zero = model[0].weight == 0
    assert (found.scores["0.weight"][zero] == 0).all() and (found.scores["0.weight"][~zero] != 0).all()


def test_settings_start_and_only_are_passed_on():
    found = identify(network(), SUM, "attribution_ig", points=3, only=["2.weight"], density=0.5)
    assert found.passes == 3 and set(found.subnetwork.masks) == {"2.weight"} and found.subnetwork.active == 8
    rows = identify(network(), SUM, "attribution", units="neurons", density=0.5).subnetwork.masks["0.weight"]
    assert (rows.all(dim=1) | ~rows.any(dim=1)).all()


def test_lambda_shrinks_with_the_number_of_weights(monkeypatch):
    taken = []

    def find(self, *_, recipe, **__):
        taken.append((self, recipe))
        return SimpleNamespace(scores={"weight": torch.ones(1)})

    monkeypatch.setattr(TrainedMasking, "find", find)
    cases = ((10, "weights"), (750, "weights"), (7500, "weights"), (7500, "neurons"))
    for width, units in cases:
        for method in module.STRENGTHS:
            identify(nn.Linear(width, 20), Task(torch.randn(8, width), torch.arange(8)), method, units=units)
    few = [1e-4, 4e-5, 1e-3]
    many = [1e-5, 4e-5, 1e-4]
    rows = [0.075, 4e-5, 0.75]  # each of 7,500 weights
    np.testing.assert_allclose([masking.l0 for masking, _ in taken], few + few + many + rows)
    assert [recipe.learning_rate for _, recipe in taken[:3]] == [0.01, 0.05, 0.1]
    assert all(recipe.clip == 1.0 and recipe.epochs == 30 for _, recipe in taken)
    taken.clear()
    identify(network(), SUM, "hard_concrete", l0=0.5, start_value=1.0, training=MaskSteps(learning_rate=0.3))
    identify(network(), SUM, HardConcrete(l0=0.25))
    (named, slow), (given, _) = taken
    assert (named.l0, named.start_value, slow.learning_rate) == (0.5, 1.0, 0.3)
    assert given == HardConcrete(l0=0.25)


@pytest.mark.parametrize("steps, interval", [(1, 1), (20, 1), (60, 2), (1009, 1), (1500, 50), (2000, 50)])
def test_intervals_divide_the_steps(steps, interval):
    training = MaskSteps(steps=steps, batch_size=3)
    assert training.interval == interval and training.recipe("magnitude", 0).epochs * interval == steps
    rows = list(training.epoch(5, torch.Generator().manual_seed(0)))
    assert len(rows) == interval and all(one.shape == (3,) and 0 <= one.min() <= one.max() < 5 for one in rows)


def test_the_loss_of_classes_is_over_the_last_dimension():
    outputs, targets = torch.randn(4, 3, 5), torch.randint(0, 5, (4, 3))
    chances = outputs.softmax(dim=-1).gather(-1, targets[..., None])
    assert float(class_loss(outputs, targets)) == pytest.approx(float(-chances.log().mean()), rel=1e-5)


# -- a method of one's own ---------------------------------------------------------------------------------------------


def test_a_method_of_ones_own():
    """The weights that are largest for their neuron: a score, a name, and every call knows it."""

    class LargestOfItsNeuron(ScoredMasking):
        """|w| over the mean |w| of its row, to a power."""

        method: Literal["largest_of_its_neuron"] = "largest_of_its_neuron"
        power: float = 1.0

        def scores(self, model, names, *, seed, before, task):
            weights = {name: weight.abs() for name, weight in task.weights(names).items()}
            return {name: (own / own.mean(dim=1, keepdim=True)) ** self.power for name, own in weights.items()}

    found = identify(network(), SUM, "largest_of_its_neuron", density=0.25, power=2.0)
    weight = network()[0].weight.detach().abs()
    expected = (weight / weight.mean(dim=1, keepdim=True)) ** 2
    torch.testing.assert_close(found.scores["0.weight"], expected)
    assert found.subnetwork.active == 16
    assert identify(network(), SUM, LargestOfItsNeuron(density=0.5)).subnetwork.active == 32


def test_a_method_that_finds_in_its_own_way_sees_all_that_the_others_see():
    class Empty(Masking):
        trains = False

        def find(self, model, items, batches, loss, *, recipe, start=None, only=None, before=None, **options):
            (rows, targets), = batches(torch.Generator())  # fmt: skip
            assert torch.equal(items[rows], INPUTS) and loss(model(items[rows]), targets) > 0
            nothing = Subnetwork({"0.weight": torch.zeros(8, 6) > 0}, fingerprint(model))
            return Discovery(nothing, pd.DataFrame(), pd.DataFrame())

    assert identify(network(), SUM, Empty()).subnetwork.active == 0
    with pytest.raises(ValueError, match="^Empty has neither a density nor an l0 above 0; leave density out$"):
        identify(network(), SUM, Empty(), density=0.1)


# -- a search for a density --------------------------------------------------------------------------------------------


def found_at(density_of, tried: list[float], total: int = 10000):
    """A find() whose masks have the density that a function of lambda says."""

    def find(masking: Masking) -> Discovery:
        tried.append(masking.l0)
        active = torch.arange(total) < round(density_of(masking.l0) * total)
        history = pd.DataFrame({"epoch": [0], "density": [float(active.float().mean())]})
        return Discovery(Subnetwork({"w": active}, "n"), history, history[["epoch"]], {}, 100)

    return find


CURVES = {
    "hyperbola": lambda l0: 1 / (1 + l0 / 1e-4),
    "steep": lambda l0: 1 / (1 + (l0 / 1e-4) ** 3),
    "flat": lambda l0: 1 / (1 + (l0 / 1e-4) ** 0.5),
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("density", [0.02, 0.1, 0.5])
def test_the_density_is_met_within_ten_percent_in_a_few_trainings(curve, density):
    tried = []
    found = at_density(found_at(CURVES[curve], tried), GumbelSigmoid(l0=1e-4), density, tries=8)
    assert found.subnetwork.density == pytest.approx(density, rel=0.1) and len(tried) <= 7
    assert found.passes == 100 * len(tried)
    assert found.history["l0"].iloc[-1] == pytest.approx(tried[-1]), "the last one ended the search"
    assert found.history["target_density"].tolist() == [density] and len(set(tried)) == len(tried)


def test_the_nearest_is_returned_when_tries_are_used_up():
    tried = []
    jump = found_at(lambda l0: 0.6 if l0 < 1e-3 else 0.001, tried)
    found = at_density(jump, ContinuousSparsification(l0=1e-4), 0.3, tries=4)
    assert len(tried) == 4 and found.subnetwork.density == pytest.approx(0.6)
    assert found.history["l0"].item() < 1e-3


def test_an_empty_mask_is_too_sparse():
    tried = []
    at_density(found_at(lambda l0: 0.0, tried), ContinuousSparsification(l0=1.0), 0.1, tries=3)
    assert tried == sorted(tried, reverse=True) and len(set(tried)) == 3


def test_a_trained_method_reaches_a_density():
    found = identify(network(), SUM, l0=0.004, density=0.2, training=SHORT)
    kept = {name: logits > 0 for name, logits in found.scores.items()}
    assert all(torch.equal(kept[name], mask) for name, mask in found.subnetwork.masks.items()), "never cut elsewhere"
    assert found.subnetwork.density == pytest.approx(0.2, rel=0.25) and found.passes in {480, 960, 1440, 1920}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"method": "gumbel_sigmod"}, "unknown method 'gumbel_sigmod'; did you mean 'gumbel_sigmoid'\\? valid: .*"),
        ({"method": subnet_utils.ContinuousSparsification(epochs=3)}, "ContinuousSparsification is no method for .*"),
        ({"method": 3}, "int is no method for identify; give a name, such as 'continuous_sparsification', .*"),
        ({"method": "attribution_ig", "point": 3}, "attribution_ig: point: unknown key; did you mean 'points'\\? .*"),
        ({"method": "attribution_ig", "points": 0}, "attribution_ig: points: 0 is not valid; give more than 0"),
        ({"method": Magnitude(), "power": 2}, "'power' is a setting of a method by name; set it in the object itself"),
        ({"method": "magnitude", "density": 0.0}, "density 0.0 is not valid; give a share above 0 and at most 1"),
        ({"density": 1.5}, "density 1.5 is not valid; give a share above 0 and at most 1"),
        ({"density": float("nan")}, "density nan is not valid; give a share above 0 and at most 1"),
        ({"density": 0.001}, "density 0.001 keeps none of 64 weights; raise it"),
        ({"method": "weight_change"}, "masking.method 'weight_change' needs the network before training; .*"),
        ({"only": ["3.weight"]}, "'3.weight' is no weight that can be masked; .*"),
        ({"model": nn.ReLU()}, "the network has no weight to mask; give one with linear or convolutional layers"),
        ({"method": GumbelSigmoid(l0=0.0), "density": 0.1}, "GumbelSigmoid has neither a density nor .*"),
    ],
)  # fmt: skip
def test_faults_are_said_in_a_line_before_anything_is_trained(arguments, said, monkeypatch):
    def train(*_, **__):
        raise AssertionError("trained")

    monkeypatch.setattr(torch.Tensor, "backward", train)
    with pytest.raises(ValueError, match=f"^{said}$"):
        identify(**{"model": network(), "task": SUM} | arguments)


def test_tasks_and_trainings_that_make_no_sense():
    with pytest.raises(ValueError, match="^80 inputs and 79 targets; give one target for each$"):
        Task(INPUTS, SUM.targets[:79])
    with pytest.raises(ValueError, match="^the task has no items; give at least one$"):
        Task(INPUTS[:0], SUM.targets[:0])
    with pytest.raises(ValueError, match="^steps must be a whole number of at least 1, got 0$"):
        MaskSteps(steps=0)
    with pytest.raises(ValueError, match="^learning_rate must be a positive number, got -1$"):
        identify(network(), SUM, training=MaskSteps(learning_rate=-1))


def test_a_task_may_have_another_loss():
    other = Task(INPUTS, torch.zeros(80, 2), mse_loss)
    assert identify(network(), other, "attribution", density=0.5).subnetwork.active == 32


def test_the_package_is_imported_without_torch():
    code = "import sys, subnet_utils, subnet_utils.masks.masking; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    with pytest.raises(ImportError, match="cannot import name 'identfy'"):
        from subnet_utils import identfy  # noqa: F401


class Bare(nn.Module):
    """Attention-like weights that are parameters of their own, in no layer."""

    def __init__(self):
        super().__init__()
        self.W_in, self.W_out = nn.Parameter(torch.randn(4, 8, 6)), nn.Parameter(torch.randn(4, 6, 2))

    def forward(self, inputs):
        return torch.einsum("bd,hdk,hko->bo", inputs, self.W_in, self.W_out)


def own_networks():
    """Of other makers: a function that makes the network, its inputs, and a call."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=20, num_labels=2, **sizes)
    words = {"input_ids": torch.randint(1, 20, (40, 5)), "attention_mask": torch.ones(40, 5, dtype=torch.long)}
    words["attention_mask"][::2, 3:] = 0
    layers = nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)
    plain = torch.randn(40, 8)
    yield lambda: nn.Sequential(*copy.deepcopy(layers)), plain, lambda network: network(plain)
    yield Bare, plain, lambda network: network(plain)
    yield lambda: BertForSequenceClassification(config), words, lambda network: network(**words).logits


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("method", ["attribution", "gumbel_sigmoid"])
def test_masks_are_found_in_anybodys_network_and_fit_a_fresh_copy(which, method):
    torch.manual_seed(0)
    make, inputs, call = list(own_networks())[which]
    network, fresh = make().eval(), make().eval()
    task = Task(inputs, torch.randint(2, (40,)))
    found = identify(network, task, method, training=MaskSteps(steps=4, batch_size=40), density=0.5).subnetwork
    fresh.load_state_dict(network.state_dict())
    assert set(found.masks) <= set(dict(network.named_parameters())) and len(repr(found)) < 120
    assert repr(task) == "Task(40 items)"
    assert torch.equal(call(found.apply(network)), call(found.apply(fresh)))
    zeroed = copy.deepcopy(network)  # by hand
    with torch.no_grad():
        for name, mask in found.masks.items():
            zeroed.get_parameter(name).mul_(mask)
    torch.testing.assert_close(call(found.apply(fresh)), call(zeroed))


def test_the_loss_of_a_network_with_named_inputs_is_its_own():
    make, words, call = list(own_networks())[2]
    network, targets = make().eval(), torch.randint(2, (40,))
    loss = TaskLoss(network, words, lambda _: [(torch.arange(40), targets)], class_loss)
    (found,) = loss.losses({})
    torch.testing.assert_close(found, class_loss(call(network), targets))
    with pytest.raises(ValueError, match="leave out the start, or give one tensor"):
        FrozenPrefix(StagedModel({"first": nn.Identity()}), words, device=torch.device("cpu"), limit_gb=1.0)


class LikeTransformerLens(nn.Module):
    """Bare parameters, named as there; heads have biases of two dimensions."""

    def __init__(self):
        super().__init__()
        shapes = {"W_E": (9, 8), "W_pos": (5, 8), "W_Q": (2, 8, 4), "b_Q": (2, 4), "W_U": (8, 9), "b_U": (1, 9)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))
        self.cls_token, self.position_embeddings = (nn.Parameter(torch.randn(1, 1, 8)) for _ in range(2))
        self.rel_pos_bias, self.embedding = nn.Parameter(torch.randn(4, 4)), nn.Linear(8, 8)


def test_embeddings_tokens_and_biases_are_no_weights_whatever_their_shape():
    assert maskable(LikeTransformerLens()) == ("W_Q", "W_U", "embedding.weight")


def test_what_comes_back_is_a_line():
    found = identify(nn.Linear(4, 2), Task(torch.randn(6, 4), torch.randint(2, (6,))), "magnitude", density=0.5)
    assert repr(found) == f"Discovery({found.subnetwork!r}, 0 passes)" and len(repr(found)) < 120


def test_the_package_names_what_it_gives():
    assert {*subnet_utils.__all__} <= {*dir(subnet_utils)} and subnet_utils.zoo.load
    assert all(getattr(subnet_utils, name) for name in subnet_utils.__all__)


def test_whether_a_network_does_a_task_is_seen_in_all_of_it(capsys):
    """Items sorted by class, of which the network does not do the first ones alone."""
    inputs = torch.tensor([[-1.0]] * 70 + [[1.0]] * 930)
    mostly = nn.Linear(1, 2)
    with torch.no_grad():
        mostly.weight.copy_(torch.tensor([[0.0], [2.75]]))
        mostly.bias.copy_(torch.tensor([0.0, 3.25]))
    identify(mostly, Task(inputs, (inputs[:, 0] > 0).long()), "gumbel_sigmoid", training=MaskSteps(steps=1))
    assert "look at the targets" not in capsys.readouterr().err


def test_a_task_that_the_network_does_not_do_is_named(capsys):
    """A mask can learn it all the same: weights that are left out are a way to compute."""
    adds = nn.Linear(6, 2)
    with torch.no_grad():
        adds.weight.zero_()[:, :2] = torch.tensor([[-5.0], [5.0]])
    identify(adds, SUM, "magnitude", density=0.5)
    identify(adds, SUM, "gumbel_sigmoid", training=MaskSteps(steps=2))
    assert "look at the targets" not in capsys.readouterr().err
    identify(adds, Task(INPUTS, 1 - SUM.targets), "gumbel_sigmoid", training=MaskSteps(steps=2))
    said = capsys.readouterr().err
    assert "on this task, a guess has 0.68: a mask may learn what the network does not do; look at the targets" in said
    identify(adds, Task(INPUTS, torch.zeros(80, dtype=torch.long)), training=MaskSteps(steps=2))
    assert "look at the targets" not in capsys.readouterr().err  # of one class nothing can be guessed
