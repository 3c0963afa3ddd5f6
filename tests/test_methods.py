"""Ways of finding masks against numpy: schedule, soft and hard masks, draws, penalty, gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.checkpoint import checkpoint

from subnet_utils.masks import soft
from subnet_utils.masks.methods import ContinuousSparsification, GumbelSigmoid, HardConcrete
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import fingerprint

PAPER = ContinuousSparsification()
UNUSED = torch.Generator()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def logits(seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "stages.body.weight": torch.randn(4, 3, generator=draw),
        "stages.head.weight": torch.randn(5, generator=draw),
    }


def test_settings_are_the_papers():
    """Appendix B: beta_max 200, lambda 1e-8, 90 epochs."""
    assert (PAPER.beta_max, PAPER.l0, PAPER.epochs, PAPER.unannealed) == (200, 1e-8, 90, ())


def test_temperature_schedule():
    betas = [PAPER.beta(epoch) for epoch in range(90)]
    assert betas[0] == pytest.approx(200 ** (1 / 90)) and betas[0] == pytest.approx(1.0606, abs=5e-5)
    assert betas[44] == pytest.approx(200**0.5)
    assert betas[-1] == pytest.approx(200)
    ratios = np.divide(betas[1:], betas[:-1])
    np.testing.assert_allclose(ratios, 200 ** (1 / 90))  # exponential: rises by one factor


@pytest.mark.parametrize("epoch", [0, 30, 89])
def test_soft_mask_against_numpy(epoch):
    values = logits()
    soft = PAPER.soft(values, epoch, UNUSED)
    beta = 200 ** ((epoch + 1) / 90)
    assert soft.keys() == values.keys()
    for name, s in values.items():
        np.testing.assert_allclose(soft[name], sigmoid(beta * s.double().numpy()), rtol=1e-4, atol=1e-30)


def test_unannealed_prefixes_stay_at_one():
    """As printed, the MLP head is trained at beta = 1 and then thresholded."""
    values = logits()
    as_printed = ContinuousSparsification(unannealed=("stages.head.",))
    for epoch in (0, 89):
        soft, annealed = as_printed.soft(values, epoch, UNUSED), PAPER.soft(values, epoch, UNUSED)
        head = sigmoid(values["stages.head.weight"].double().numpy())
        np.testing.assert_allclose(soft["stages.head.weight"], head, rtol=1e-6)
        assert torch.equal(soft["stages.body.weight"], annealed["stages.body.weight"])
        assert not torch.equal(soft["stages.head.weight"], annealed["stages.head.weight"])


@pytest.mark.parametrize("value", [0.1, 0.05, 0.0, -0.05])
def test_all_logits_start_at_one_value(value):
    first = ContinuousSparsification(start_value=value).init(torch.zeros(2, 3))
    assert first.dtype == torch.float32 and first.shape == (2, 3) and (first == torch.tensor(value)).all()


@given(seed=st.integers(0, 1000), l0=st.sampled_from([0.0, 1e-8, 0.5]), epoch=st.integers(0, 89))
@settings(max_examples=30, deadline=None)
def test_penalty_is_lambda_times_the_sum(seed, l0, epoch):
    method = ContinuousSparsification(l0=l0)
    soft = method.soft(logits(seed), epoch, UNUSED)
    expected = l0 * sum(mask.double().numpy().sum() for mask in soft.values())
    assert float(method.penalty(soft, {})) == pytest.approx(expected, rel=1e-5, abs=1e-20)


def test_logits_at_the_threshold_are_in_the_ablated_model():
    """H(0) is undefined in equation 3; we take s > 0."""
    smallest = float(np.nextafter(np.float32(0), np.float32(1)))
    hard = PAPER.hard(torch.tensor([[0.0, -0.0, smallest, -smallest, 0.05, -1.0]]))
    assert hard.dtype == torch.bool and hard.tolist() == [[False, False, True, False, True, False]]
    model = torch.nn.Linear(6, 1)
    subnetwork = Subnetwork({"weight": hard}, fingerprint(model))
    kept, ablated = subnetwork.apply(model).weight[0], subnetwork.ablate(model).weight[0]
    assert kept[:2].count_nonzero() == 0 and torch.equal(ablated[:2], model.weight[0, :2])


def test_soft_and_hard_masks_agree_at_the_end():
    """Away from the threshold the last soft mask is the hard one: sigma(200 s) is 1 or 0 where |s| > .1."""
    s = torch.tensor([-1.0, -0.1, 0.1, 1.0])
    assert torch.allclose(PAPER.soft({"w": s}, 89, UNUSED)["w"], PAPER.hard(s).float(), atol=1e-7)


@pytest.mark.parametrize("epoch", [0, 4, 9])
def test_gradients_against_finite_differences(epoch):
    """Of loss and penalty with respect to the logits, on a small regression."""
    method = ContinuousSparsification(epochs=10, l0=0.01, unannealed=("head",))
    draw = torch.Generator().manual_seed(0)
    body, head, x = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((3, 2), (2, 1), (5, 3)))

    def loss(s_body: torch.Tensor, s_head: torch.Tensor) -> torch.Tensor:
        soft = method.soft({"body": s_body, "head": s_head}, epoch, UNUSED)
        out = torch.tanh(x @ (body * soft["body"])) @ (head * soft["head"])
        return out.square().mean() + method.penalty(soft, {})

    start = [0.02 * torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((3, 2), (2, 1))]
    for s in start:
        s.requires_grad_()
    found = torch.autograd.grad(loss(*start), start)
    step = 1e-6
    for gradient, s in zip(found, start, strict=True):
        for i in range(s.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    s.view(-1)[i] += sign * step
                    values.append(float(loss(*start)))
                    s.view(-1)[i] -= sign * step
            assert float(gradient.view(-1)[i]) == pytest.approx(
                (values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-9
            )
    # In closed form: the penalty's share is lambda beta sigma (1 - sigma).
    penalty = torch.autograd.grad(method.penalty(method.soft({"body": start[0]}, epoch, UNUSED), {}), start[0])[0]
    beta = 200 ** ((epoch + 1) / 10)
    sigma = sigmoid(beta * start[0].detach().numpy())
    np.testing.assert_allclose(penalty, 0.01 * beta * sigma * (1 - sigma), rtol=1e-9)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_flat_masks_are_the_masks_of_each_weight(k, precision):
    """What a GPU does with all weights of all masks at once, against what is done with each."""
    method = ContinuousSparsification(epochs=4, l0=1e-3)
    draw = torch.Generator().manual_seed(0)
    shapes = {"b": (6, 5), "a": (2, 3, 2), "c": (4,)}
    weights = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    logits = {name: torch.randn(k, *shape, generator=draw).requires_grad_() for name, shape in shapes.items()}
    flat = soft.FlatMasks(method, weights, ["a", "b"], k)
    for name, view in flat.views.items():
        view.copy_(logits[name].detach())
    flat.logits.requires_grad_()
    towards = {name: torch.randn(k, *shapes[name], generator=draw) for name in flat.views}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        masked, penalties = flat(2)
    assert penalties.shape == (k,) and all(part.dtype == precision for part in masked.values())
    loss = sum((part.float() * towards[name]).sum() for name, part in masked.items())
    (change,) = torch.autograd.grad(loss + penalties @ torch.arange(1.0, k + 1), flat.logits)
    changes = dict(zip(flat.views, change.split([12, 30], dim=1), strict=True))
    for i in range(k):
        own = {name: logits[name][i] for name in flat.views}
        expected, penalty = soft.masked_weights(method, weights, own, 2, draw)
        loss = sum((part * towards[name][i].to(precision)).sum() for name, part in expected.items())
        truth = torch.autograd.grad(loss + (i + 1) * penalty, list(own.values()))
        assert penalties[i].item() == pytest.approx(penalty.item())
        for name, gradient in zip(own, truth, strict=True):
            torch.testing.assert_close(masked[name][i], expected[name].to(precision))
            torch.testing.assert_close(changes[name][i].view(shapes[name]), gradient)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", [GumbelSigmoid(l0=1e-3, temperature=0.7), HardConcrete(l0=1e-3)])
def test_flat_draws_are_the_draws_of_each_weight(method, compiled, monkeypatch):
    """What a GPU does with all weights and draws at once, against what is done with each."""
    if compiled:  # for a GPU; a CPU's compiler takes longer than the test is worth
        monkeypatch.setattr(soft, "WORTH_COMPILING", 0)
        monkeypatch.setattr(soft, "_compiled", lambda: torch.compile(soft._drawn, backend="aot_eager", dynamic=True))
    draw = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=draw) for name, shape in {"a": (2, 3), "b": (6, 5)}.items()}
    logits = {name: torch.randn(weight.shape, generator=draw).requires_grad_() for name, weight in weights.items()}
    flat = soft.FlatDraws(method, weights, ["a", "b"], 1)
    for name, view in flat.views.items():
        view.copy_(logits[name].detach()[None])
    flat.logits.requires_grad_()
    uniform = torch.rand(3, 36, generator=torch.Generator().manual_seed(1))
    masked, penalty = flat(3, torch.Generator().manual_seed(1))
    masked = [{name: part[i] for name, part in masked.items()} for i in range(3)]
    expected = [
        {"a": weights["a"] * method.sampled(logits["a"], one[:6].view(2, 3)),
         "b": weights["b"] * method.sampled(logits["b"], one[6:].view(6, 5))}
        for one in uniform
    ]  # fmt: skip
    assert masked[0]["b"].ne(masked[1]["b"]).any()
    assert penalty.item() == pytest.approx(method.penalty({}, logits).item())
    towards = {name: torch.randn(weight.shape, generator=draw) for name, weight in weights.items()}
    losses = [sum((one[name] * towards[name]).sum() for one in ones for name in "ab") for ones in (masked, expected)]
    (change,) = torch.autograd.grad(losses[0] + penalty, flat.logits)
    truth = torch.autograd.grad(losses[1] + method.penalty({}, logits), list(logits.values()))
    for one, other in zip(masked, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(change[0], torch.cat([part.flatten() for part in truth]))


@pytest.mark.parametrize("network", ["plain", "waits", "ragged", "backward", "numpy"])
def test_parts_of_a_batch_have_their_own_draws(network):
    """At once, or one by one where torch.vmap cannot do what the network does or the parts differ in size."""
    flat = soft.FlatDraws(GumbelSigmoid(), {"a": torch.ones(5)}, ["a"], 1)
    masked = {"a": torch.randn(3, 5, requires_grad=True)}
    parts = [(torch.randn(4 - (network == "ragged" and i == 2), 5),) for i in range(3)]

    def loss(own, inputs):
        scale = {"waits": lambda: float(inputs.sum() > 0), "numpy": lambda: inputs.numpy().max()}
        outputs = inputs @ own["a"] * scale.get(network, lambda: 1.0)()
        return (checkpoint(torch.sin, outputs, use_reentrant=False) if network == "backward" else outputs).sum()

    truth = torch.stack([loss({"a": masked["a"][i]}, *part) for i, part in enumerate(parts)])
    found = flat.losses(loss, masked, parts)
    torch.testing.assert_close(found, truth)
    gradients = [torch.autograd.grad(each.sum(), masked["a"])[0] for each in (found, truth)]
    torch.testing.assert_close(*gradients)
    assert flat.at_once == (network in ("plain", "ragged"))


def test_without_a_compiler_masks_are_drawn_all_the_same(monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("Python.h is missing\nand more")

    monkeypatch.setattr(soft, "_compiled", lambda: fails)
    monkeypatch.setattr(soft, "WITHOUT_COMPILER", [])
    given = GumbelSigmoid(), torch.ones(6), torch.zeros(1, 6), torch.rand(2, 6), torch.float32
    for _ in range(2):
        assert torch.equal(soft._fused(*given), soft._drawn(*given))
    assert capsys.readouterr().err.count("without torch.compile, which takes longer (RuntimeError: Python.h") == 1


def test_flat_draws_are_for_gpus_and_one_mask():
    on_gpu, on_cpu = (dict.fromkeys("ab", SimpleNamespace(is_cuda=there, dtype=torch.float32)) for there in (1, 0))
    assert soft.FlatDraws.of(GumbelSigmoid(), on_cpu, "ab", 1) is None
    assert soft.FlatDraws.of(GumbelSigmoid(), on_gpu, "ab", 2) is None
    assert soft.FlatDraws.of(GumbelSigmoid(units="neurons"), on_gpu, "ab", 1) is None
    assert soft.FlatDraws.of(ContinuousSparsification(), on_gpu, "ab", 1) is None
    mixed = {"a": SimpleNamespace(is_cuda=True, dtype=torch.bfloat16), "b": on_gpu["b"]}
    assert soft.FlatDraws.of(GumbelSigmoid(), mixed, "ab", 1) is None
    assert soft.FlatMasks.of(ContinuousSparsification(), mixed, "ab", 1) is None


def test_flat_masks_are_for_gpus_and_for_one_temperature():
    on_gpu, on_cpu = (dict.fromkeys("ab", SimpleNamespace(is_cuda=there, dtype=torch.float32)) for there in (1, 0))
    method, other = ContinuousSparsification(), ContinuousSparsification(unannealed=("b",))
    assert soft.FlatMasks.of(method, on_cpu, "ab", 1) is None
    assert soft.FlatMasks.of(other, on_gpu, "ab", 1) is None
    with pytest.raises(AttributeError):  # it goes on to what these weights have not
        soft.FlatMasks.of(other, on_gpu, "a", 1)


# Gumbel-sigmoid masks.


def test_settings_are_those_of_are_neural_nets_modular():
    method = GumbelSigmoid()
    first = method.init(torch.zeros(2, 3))
    assert method.temperature == 1 and first.shape == (2, 3) and (first == 2).all()
    assert sigmoid(first.numpy()) == pytest.approx(0.881, abs=5e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("s", [-1.5, 0.0, 2.0])
def test_a_weight_is_drawn_with_the_probability_of_its_logit(s, temperature):
    """Appendix A.3: whatever the temperature."""
    method, n = GumbelSigmoid(temperature=temperature), 40000
    drawn = method.soft({"w": torch.full((n,), s)}, 0, torch.Generator().manual_seed(0))["w"]
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert float(drawn.mean()) == pytest.approx(sigmoid(s), abs=4 * np.sqrt(0.25 / n))


def test_draws_have_the_distribution_of_the_papers_two_uniform_numbers():
    one, two = np.random.default_rng(0).random((2, 100000))
    printed = -np.log(np.log(one) / np.log(two))
    ours = torch.rand(100000, generator=torch.Generator().manual_seed(0)).logit().numpy()
    at = np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(np.quantile(ours, at), np.quantile(printed, at), atol=0.1)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_gradient_of_a_draw_is_that_of_its_soft_counterpart(temperature):
    method, s = GumbelSigmoid(temperature=temperature), torch.linspace(-3, 3, 40).requires_grad_()
    drawn = method.soft({"w": s}, 0, torch.Generator().manual_seed(0))["w"]
    (found,) = torch.autograd.grad(drawn @ torch.arange(40.0), s)
    u = torch.rand(40, generator=torch.Generator().manual_seed(0)).double().numpy()
    chance = sigmoid((s.detach().double().numpy() + np.log(u / (1 - u))) / temperature)
    np.testing.assert_array_equal(drawn.detach(), chance > 0.5)
    expected = np.arange(40) * chance * (1 - chance) / temperature
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_draws_follow_the_generator():
    values, method, draw = logits(), GumbelSigmoid(), torch.Generator().manual_seed(0)
    first, second = method.soft(values, 0, draw), method.soft(values, 0, draw)
    again = method.soft(values, 5, torch.Generator().manual_seed(0))
    assert all(torch.equal(first[name], again[name]) for name in values)
    assert any(not torch.equal(first[name], second[name]) for name in values)


def test_every_logit_pays_alike_however_small():
    """The penalty is of the logits, not of the mask: r = alpha sum l."""
    values = {"a": torch.tensor([-9.0, 2.0], requires_grad=True), "b": torch.tensor([0.5], requires_grad=True)}
    method = GumbelSigmoid(l0=0.25)
    penalty = method.penalty(method.soft(values, 0, UNUSED), values)
    assert penalty.item() == pytest.approx(0.25 * -6.5)
    assert all((gradient == 0.25).all() for gradient in torch.autograd.grad(penalty, values.values()))
    assert method.hard(torch.tensor([-1.0, 0.0, 1e-6])).tolist() == [False, False, True]


def test_shares_of_kept_weights_are_those_of_their_logits():
    """Chi-square over nine logits, 100,000 draws each."""
    n, s = 100000, torch.linspace(-4, 4, 9)
    drawn = GumbelSigmoid().soft({"w": s.expand(n, 9)}, 0, torch.Generator().manual_seed(0))["w"].sum(dim=0).numpy()
    expected = n * sigmoid(s.double().numpy())
    for kept, truth in zip(drawn, expected, strict=True):
        assert chisquare([kept, n - kept], [truth, n - truth]).pvalue > 0.001
    assert chisquare([drawn[4] + 1000, n - drawn[4] - 1000], [n / 2, n / 2]).pvalue < 0.001  # one in a hundred more


def mask_loss(soft: torch.Tensor) -> torch.Tensor:
    """Of a small regression, float64, that has the masks as its weights' factors."""
    draw = torch.Generator().manual_seed(0)
    w, x = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((3, 2), (5, 3)))
    return torch.tanh(x @ (w * soft)).square().mean()


def finite_differences(loss, s: torch.Tensor, step: float = 1e-6) -> np.ndarray:
    units = torch.eye(s.numel(), dtype=s.dtype).view(-1, *s.shape)
    with torch.no_grad():
        return np.array([float(loss(s + step * one) - loss(s - step * one)) / (2 * step) for one in units])


def test_gradient_of_a_step_of_hard_concrete_against_finite_differences():
    """With the same noise every time."""
    method = HardConcrete(l0=0.01)

    def loss(s: torch.Tensor) -> torch.Tensor:
        soft = method.soft({"w": s}, 0, torch.Generator().manual_seed(3))
        return mask_loss(soft["w"]) + method.penalty(soft, {"w": s})

    s = torch.linspace(-1, 1, 6, dtype=torch.float64).view(3, 2).requires_grad_()
    (found,) = torch.autograd.grad(loss(s), s)
    np.testing.assert_allclose(found.flatten(), finite_differences(loss, s.detach()), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_gradient_of_a_step_of_gumbel_sigmoid_against_finite_differences(temperature):
    """The loss is that of the hard draw; as a logit moves, the mask moves as its soft counterpart does."""
    method = GumbelSigmoid(l0=0.01, temperature=temperature)
    u = torch.rand((3, 2), generator=torch.Generator().manual_seed(3)).double()
    s = torch.linspace(-1, 1, 6, dtype=torch.float64).view(3, 2)

    def soft(s: torch.Tensor) -> torch.Tensor:
        return 1 / (1 + torch.exp(-(s + torch.log(u / (1 - u))) / temperature))

    def straight_through(moved: torch.Tensor) -> torch.Tensor:
        return mask_loss((soft(s) > 0.5) + soft(moved) - soft(s)) + 0.01 * moved.sum()

    leaf = s.clone().requires_grad_()
    drawn = method.soft({"w": leaf}, 0, torch.Generator().manual_seed(3))
    (found,) = torch.autograd.grad(mask_loss(drawn["w"]) + method.penalty(drawn, {"w": leaf}), leaf)
    np.testing.assert_allclose(found.flatten(), finite_differences(straight_through, s), rtol=1e-4, atol=1e-8)


def test_the_penalty_of_hard_concrete_is_the_expected_number_of_gates_above_zero():
    """Equation 12: P(gate > 0) = sigma(s - (2/3) log(.1/1.1)), in closed form and in 100,000 draws."""
    method, s, n = HardConcrete(l0=1.0), torch.linspace(-3, 3, 5), 100000
    closed = sigmoid(s.double().numpy() - 2 / 3 * np.log(0.1 / 1.1))
    drawn = method.soft({"w": s.expand(n, 5)}, 0, torch.Generator().manual_seed(0))["w"]
    np.testing.assert_allclose((drawn > 0).double().mean(dim=0), closed, atol=4 * np.sqrt(0.25 / n))
    assert float(method.penalty({}, {"w": s})) == pytest.approx(closed.sum(), rel=1e-6)
    assert 0 < float((drawn == 1).float().mean()) < 1 and drawn.min() == 0


# One logit a row.


@pytest.mark.parametrize("kind", [ContinuousSparsification, GumbelSigmoid, HardConcrete])
def test_one_logit_stands_for_a_row(kind):
    method = kind(units="neurons", start_value=1.0, l0=1.0)
    first = {"w": method.init(torch.zeros(4, 3)), "k": method.init(torch.zeros(2, 3, 5, 5))}
    assert first["w"].shape == (4, 1) and first["k"].shape == (2, 1, 1, 1)
    weights = {"w": torch.ones(4, 3), "k": torch.ones(2, 3, 5, 5)}
    masked, penalty = soft.masked_weights(method, weights, first, 0, torch.Generator().manual_seed(0))
    assert masked["k"].shape == (2, 3, 5, 5) and all((row == row.flatten()[0]).all() for row in masked["k"])
    each = {"ContinuousSparsification": float(method.soft(first, 0, UNUSED)["w"][0]), "GumbelSigmoid": 1.0,
            "HardConcrete": sigmoid(1.0 - 2 / 3 * np.log(0.1 / 1.1))}  # fmt: skip
    assert float(penalty) == pytest.approx(6 * each[kind.__name__], rel=1e-5), "of six rows, not of 162 weights"


def test_flat_masks_are_not_for_rows():
    on_gpu = {"a": SimpleNamespace(is_cuda=True, dtype=torch.float32)}
    assert soft.FlatMasks.of(ContinuousSparsification(units="neurons"), on_gpu, "a", 1) is None
