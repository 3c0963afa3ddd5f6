"""Gates over heads and MLPs are exact on transformers' own networks, and pruning reaches the sparsity asked for."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from subnet_utils.masks import units
from subnet_utils.masks.methods import GumbelSigmoid, HardConcrete
from subnet_utils.masks.subnetwork import WrongNetwork
from subnet_utils.models.staged import fingerprint
from subnet_utils.training import TrainingDiverged

LAYERS, HEADS, WIDTH = 2, 4, 16
ENCODER = {"vocab_size": 30, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
           "intermediate_size": 24, "num_labels": 3, "max_position_embeddings": 40}  # fmt: skip
DECODER = {"vocab_size": 30, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "num_labels": 3, "pad_token_id": 1,
           "n_positions": 40}  # fmt: skip
GATES = HardConcrete(start_value=2.5)
MAKERS = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER)),
    "roberta": lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**ENCODER)),
    "gpt2": lambda: transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**DECODER)),
}


def make(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MAKERS[name]()
        for parameter in model.parameters():
            if parameter.ndim > 1:  # normalizations stay as they are: else the answer would hardly depend on the input
                nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.fixture(params=MAKERS)
def model(request):
    return make(request.param)


@pytest.fixture
def inputs():
    tokens = torch.randint(2, 30, (5, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, 6:] = 0
    tokens[0, 6:] = 1
    return {"input_ids": tokens, "attention_mask": mask}


@torch.no_grad()
def logits(model, inputs, gates=None, means=None):
    if gates is None:
        return model(**inputs).logits
    with units.gated(model, gates, means):
        return model(**inputs).logits


def gates_of(**zeros) -> dict:
    """Gates of 1, with zeros at the given places: heads=[(layer, head)], mlps=[layer]."""
    gates = {"heads": torch.ones(LAYERS, HEADS), "mlps": torch.ones(LAYERS)}
    for kind, positions in zeros.items():
        for place in positions:
            gates[kind][place] = 0
    return gates


def test_gates_of_one_change_no_bit(model, inputs):
    means = units.mean_activations(model, [inputs])
    plain = logits(model, inputs)
    for centers in (None, means):
        assert torch.equal(plain, logits(model, inputs, gates_of(), centers))
        assert torch.equal(plain, logits(model, inputs, units.without(model), centers))
    assert torch.equal(plain, logits(model, inputs)), "the hooks are gone"


def test_a_closed_gate_is_the_head_removed_by_hand(model, inputs):
    width = WIDTH // HEADS
    for layer, head in ((0, 1), (1, 3)):
        copied = make(model.config.model_type)
        projection = units.layers_of(copied)[layer].attention
        rows = slice(head * width, (head + 1) * width)
        with torch.no_grad():
            # a linear layer has outputs x inputs, GPT-2's Conv1D inputs x outputs
            if isinstance(projection, nn.Linear):
                projection.weight[:, rows] = 0
            else:
                projection.weight[rows] = 0
        closed = logits(model, inputs, gates_of(heads=[(layer, head)]))
        torch.testing.assert_close(closed, logits(copied, inputs), atol=1e-6, rtol=1e-6)
        assert not torch.allclose(closed, logits(model, inputs), atol=1e-4)


def test_a_closed_mlp_adds_nothing(model, inputs):
    copied = make(model.config.model_type)
    layer = units.layers_of(copied)[1].mlp
    layer.register_forward_hook(lambda module, _, output: torch.zeros_like(output))
    closed = logits(model, inputs, gates_of(mlps=[1]))
    torch.testing.assert_close(closed, logits(copied, inputs), atol=1e-6, rtol=1e-6)


def test_mean_ablation_is_that_of_plain_numpy(model, inputs):
    """Contexts and MLP outputs noted by hand, averaged in numpy over real tokens, and put back as constants."""
    layer = units.layers_of(model)[0]
    noted = {}
    heads = layer.attention.register_forward_pre_hook(lambda _, given: noted.update(heads=given[0].numpy()))
    with heads, layer.mlp.register_forward_hook(lambda _, __, output: noted.update(mlps=output.numpy())):
        logits(model, inputs)
    real = inputs["attention_mask"].numpy().astype(bool)
    expected = {kind: values[real].astype(np.float64).mean(axis=0) for kind, values in noted.items()}
    parts = [{name: tensor[rows] for name, tensor in inputs.items()} for rows in (slice(2), slice(2, None))]
    means = units.mean_activations(model, parts)
    for kind, mean in expected.items():
        np.testing.assert_allclose(means[kind][0].numpy(), mean, rtol=1e-5, atol=1e-6)

    width, head = WIDTH // HEADS, 2
    constant = torch.from_numpy(expected["heads"][head * width : (head + 1) * width]).float()

    def replace(_, given):
        context = given[0].clone()
        context[..., head * width : (head + 1) * width] = constant
        return (context, *given[1:])

    with layer.attention.register_forward_pre_hook(replace):
        by_hand = logits(model, inputs)
    ablated = logits(model, inputs, gates_of(heads=[(0, head)]), means)
    torch.testing.assert_close(ablated, by_hand, atol=1e-6, rtol=1e-6)


def test_unit_subnetworks_are_subnetworks(inputs):
    model = make("bert")
    every, less = units.without(model), units.without(model, [(0, 1), (1, 2)])
    assert every.total == LAYERS * HEADS + LAYERS == every.active and less.active == every.active - 2
    assert torch.equal(logits(model, inputs, less), logits(model, inputs, gates_of(heads=[(0, 1), (1, 2)])))


def test_units_of_another_network_and_of_another_shape_are_refused(inputs):
    model, other = make("bert"), make("roberta")
    with pytest.raises(WrongNetwork, match="belongs to network"), units.gated(other, units.without(model)):
        pass
    with pytest.raises(ValueError, match=r"gates for \(2, 3\) heads and \(2,\) MLPs do not fit 2 layers of 4 heads"):
        logits(model, inputs, {"heads": torch.ones(2, 3), "mlps": torch.ones(2)})


def test_a_model_without_heads_is_refused():
    with pytest.raises(ValueError, match="Sequential has no attention heads"):
        units.without(nn.Sequential(nn.Linear(2, 2)))


@given(alpha=st.floats(-8, 8), u=st.floats(0, 1))
def test_sampled_gates_follow_the_papers_formula(alpha, u):
    u = min(max(u, 1e-6), 1 - 1e-6)
    concrete = 1 / (1 + np.exp(-(np.log(u) - np.log(1 - u) + alpha) * 3 / 2))
    expected = min(1.0, max(0.0, concrete * 1.2 - 0.1))
    found = GATES.sampled(torch.tensor(alpha, dtype=torch.float64), torch.tensor(u, dtype=torch.float64))
    assert float(found) == pytest.approx(expected, abs=1e-9)
    plain = min(1.0, max(0.0, 1.2 / (1 + np.exp(-alpha)) - 0.1))
    assert float(GATES.expected(torch.tensor(alpha, dtype=torch.float64))) == pytest.approx(plain, abs=1e-9)


def test_discretization_gives_the_number_asked_for_or_the_nearest_threshold():
    scores = {"heads": torch.tensor([[1.0, 0.9, 0.0], [0.52, 0.5, 0.2]]), "mlps": torch.tensor([0.7, 0.02])}
    exact = units.sparsest_of(scores, sparsity=0.5, network="n")
    assert exact.active == 4
    assert exact.masks["heads"].tolist() == [[True, True, False], [True, False, False]]
    assert exact.masks["mlps"].tolist() == [True, False]
    assert units.sparsest_of(scores, sparsity=0.0, network="n").active == 8
    grid = units.nearest_by_threshold(scores, sparsity=0.5, network="n")
    assert grid == exact  # at .5 the unit with a score of .5 is off
    assert units.nearest_by_threshold(scores, sparsity=0.95, network="n").active in (0, 1)


def test_warm_ups_must_fit_into_the_steps():
    for sizes in ({"steps": 100, "warmup": 50}, {"steps": 300, "warmup": 301}, {"steps": 300, "warmup": 0}):
        with pytest.raises(ValueError, match="warm-ups must fit into the steps"):
            units.Schedule(**sizes)


def prune(model, inputs, *, sparsity=0.4, seed=0, schedule=None, method=GATES, means=None, **more):
    with torch.no_grad():
        full = model.eval()(**inputs).logits.log_softmax(dim=-1)

    def batches(generator):
        while True:
            rows = torch.randperm(5, generator=generator)[:3]
            yield {name: tensor[rows] for name, tensor in inputs.items()}, full[rows]

    schedule = schedule or units.Schedule(steps=400, warmup=250, rate_warmup=10, interval=20)
    means = means or units.mean_activations(model, [inputs])
    return units.prune(model, batches, means, sparsity=sparsity, schedule=schedule, method=method, seed=seed, **more)


def test_batches_must_not_end_before_pruning_does(inputs):
    means, schedule = units.mean_activations(make("bert"), [inputs]), units.Schedule(steps=8, warmup=4, rate_warmup=0)
    few = [(inputs, torch.zeros(5, 3).log_softmax(dim=-1))] * 3
    with pytest.raises(ValueError, match="the batches ended at step 3 of 8; give them without end"):
        units.prune(make("bert"), lambda _: iter(few), means, sparsity=0.3, schedule=schedule, method=GATES, seed=0)


def test_pruning_reaches_its_target_and_leaves_the_network_alone(inputs):
    model = make("bert")
    before, state = fingerprint(model), torch.random.get_rng_state()
    _, history = prune(model, inputs)
    assert fingerprint(model) == before and not model.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert history["sparsity"].iloc[-1] == pytest.approx(0.4, abs=0.12)
    assert history["step"].iloc[-1] == 400 and len(history) == 20


def test_another_method_reaches_the_target_too(inputs):
    found, _ = prune(make("bert"), inputs, method=GumbelSigmoid())
    scores = torch.cat([own.flatten() for own in found.values()])
    assert 0 <= scores.min() <= scores.max() <= 1
    assert float((scores > 0.5).double().mean()) == pytest.approx(0.6, abs=0.2)


def test_pruning_depends_on_its_seed_alone_and_resumes_with_the_same_bits(inputs, tmp_path, monkeypatch):
    """The last interval is cut short."""
    schedule = units.Schedule(steps=55, warmup=40, rate_warmup=10, interval=10)
    (whole, history), (again, _), (other, _) = (prune(make("bert"), inputs, seed=seed, schedule=schedule)
                                                for seed in (0, 0, 1))  # fmt: skip
    assert history["step"].to_list() == [10, 20, 30, 40, 50, 55]
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert not torch.equal(whole["heads"], other["heads"])
    monkeypatch.setattr("subnet_utils.checkpoints.SECONDS", 0.0)
    taken, original = [], HardConcrete.sampled

    def die(*args):
        taken.append(args)
        if len(taken) > 30:
            raise KeyboardInterrupt
        return original(*args)

    checkpoint = tmp_path / "checkpoint.safetensors"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HardConcrete, "sampled", die)
        prune(make("bert"), inputs, schedule=schedule, checkpoint=checkpoint)
    resumed, _ = prune(make("bert"), inputs, schedule=schedule, checkpoint=checkpoint)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_diverging_run_is_named(inputs):
    model = make("bert")
    means = {kind: torch.full((LAYERS, WIDTH), torch.nan) for kind in ("heads", "mlps")}
    with pytest.raises(TrainingDiverged, match="not finite"):
        prune(model, inputs, means=means)
    assert not model.training


def test_the_constraint_pushes_gates_down_and_multipliers_up():
    missing, multipliers = torch.tensor(0.3, requires_grad=True), torch.tensor([2.0, 5.0], requires_grad=True)
    value = units._constraint(missing, multipliers)
    value.backward()
    assert float(value.detach()) == pytest.approx(2 * 0.3 + 5 * 0.09)
    assert float(missing.grad) == pytest.approx(2 + 2 * 5 * 0.3)
    assert multipliers.grad.tolist() == pytest.approx([-0.3, -0.09])


def test_multipliers_decay_at_their_own_learning_rate():
    multipliers = torch.tensor([1.0, 2.0])
    units._decay(multipliers, 0.1 * 0.01)
    torch.testing.assert_close(multipliers * (1 - 0.1 * 0.01), torch.tensor([0.99, 1.98]))


def test_means_need_data(inputs):
    with pytest.raises(ValueError, match="no batch"):
        units.mean_activations(make("bert"), [])
