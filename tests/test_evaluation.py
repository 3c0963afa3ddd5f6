"""Accuracy, loss and margin against numpy; ties; subnetwork and ablated model; full precision."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from subnet_utils.masks.controls import mean_outputs
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import measure_all
from subnet_utils.masks.units import mean_activations
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.papers.break_it_down.evaluation import Score, score_embeddings, score_from, score_model
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks.odd_one_out import OddOneOut

CPU = torch.device("cpu")
ARCHITECTURES = {
    "bert": {"family": "bert", "layers": 3, "width": 16, "heads": 2, "mlp_width": 32},
    "resnet": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8},
}


def set_of(items: Tensor, n: int, *, seed: int = 0) -> OddOneOut:
    """n examples of four random items each."""
    draw = torch.Generator().manual_seed(seed)
    examples = torch.stack([torch.randperm(len(items), generator=draw)[:4] for _ in range(n)])
    return OddOneOut(items, examples, torch.zeros(len(items), dtype=torch.int8))


def reference(embeddings: np.ndarray, examples: np.ndarray) -> tuple[float, float, float]:
    """Accuracy, cross-entropy and margin, example by example; the odd one is in column 3."""
    right, losses, margins = [], [], []
    for rows in examples:
        e = embeddings[rows].astype(np.float64)
        e = e / np.linalg.norm(e, axis=1, keepdims=True)
        logits = -(e @ e.T).sum(axis=1)
        right.append(logits.argmax() == 3)
        losses.append(-np.log(np.exp(logits[3]) / np.exp(logits).sum()))
        margins.append(logits[3] - logits[:3].max())
    return float(np.mean(right)), float(np.mean(losses)), float(np.median(margins))


def network(family: str, seed: int = 0) -> StagedModel:
    return build(ARCHITECTURES[family], seed=seed, vocabulary=20, resolution=64)


def items_for(family: str, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if family == "bert":
        return torch.randint(1, 20, (12, 7), generator=draw)
    return torch.randint(0, 256, (12, 3, 64, 64), dtype=torch.uint8, generator=draw)


def subnetwork_of(model: StagedModel, start: str) -> Subnetwork:
    draw, parameters = torch.Generator().manual_seed(5), dict(model.named_parameters())
    masks = {name: torch.rand(parameters[name].shape, generator=draw) < 0.5 for name in model.maskable(start)}
    return Subnetwork(masks, fingerprint(model))


def outputs(model: StagedModel, data: OddOneOut, start: str) -> FrozenPrefix:
    return FrozenPrefix(model.cut(start)[0], data.items, device=CPU, limit_gb=1.0)


@pytest.fixture(params=ARCHITECTURES)
def family(request) -> str:
    return request.param


@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), dimension=st.integers(2, 9))
@settings(max_examples=50, deadline=None)
def test_scores_against_numpy(seed, n, dimension):
    embeddings = torch.randn(15, dimension, generator=torch.Generator().manual_seed(seed))
    data = set_of(torch.zeros(15, 1), n, seed=seed)
    score = score_embeddings(embeddings, data)
    accuracy, loss, margin = reference(embeddings.numpy(), data.examples.numpy())
    assert score.accuracy == pytest.approx(accuracy, abs=1e-12)
    assert (score.loss, score.margin) == pytest.approx((loss, margin), abs=1e-5)


def test_a_perfect_and_an_inverted_geometry():
    """Three equal and one opposite: the margin is 4, the loss its minimum. With the odd one moved it is all wrong."""
    embeddings = torch.tensor([[1.0, 0.0]] * 3 + [[-2.0, 0.0]])
    table = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int8)
    right = OddOneOut(table[0], torch.arange(4).repeat(9, 1), table[1])
    wrong = OddOneOut(table[0], torch.tensor([1, 2, 3, 0]).repeat(9, 1), table[1])
    least = math.log(1 + 3 * math.exp(-4))
    assert score_embeddings(embeddings, right) == Score(1.0, pytest.approx(least, abs=1e-6), 4.0)
    assert score_embeddings(embeddings, wrong) == Score(0.0, pytest.approx(least + 4, abs=1e-5), -4.0)


@pytest.mark.parametrize("dimension", [1, 3, 128])
def test_collapsed_embeddings_score_at_chance(dimension):
    """Were the first of equal logits taken with the odd one always in one place, they would score 0 or 1."""
    one = torch.randn(dimension, generator=torch.Generator().manual_seed(dimension))
    score = score_embeddings(one.repeat(20, 1), set_of(torch.zeros(20, 1), 3000))
    assert abs(score.accuracy - 0.25) < 0.032  # 4 sd
    assert score.margin == 0.0 and score.loss == pytest.approx(math.log(4), abs=1e-9)


@pytest.mark.parametrize("n", [10, 20, 100, 200, 300, 500, 1000])
def test_nine_tenths_reach_the_threshold(n):
    """A mean that is rounded to below .9 would throw a mask out of the search."""
    good, bad = [0, 1, 2, 3], [1, 2, 3, 0]
    examples = torch.tensor([good] * (9 * n // 10) + [bad] * (n // 10))
    data = OddOneOut(torch.zeros(4, 1), examples, torch.zeros(4, dtype=torch.int8))
    accuracy = score_embeddings(torch.tensor([[1.0, 0.0]] * 3 + [[-1.0, 0.0]]), data).accuracy
    assert accuracy == 0.9 >= LEARNED


def test_scores_repeat_whatever_the_global_random_state():
    embeddings, data = torch.ones(9, 2), set_of(torch.zeros(9, 1), 50)
    first = score_embeddings(embeddings, data)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    assert score_embeddings(embeddings, data) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_score_of_a_model_is_that_of_its_embeddings(family):
    model, data = network(family), set_of(items_for(family), 30)
    accuracy, loss, margin = reference(model(data.items).detach().numpy(), data.examples.numpy())
    score = score_model(model, data)
    assert score.accuracy == accuracy
    assert (score.loss, score.margin) == pytest.approx((loss, margin), abs=1e-5)


@pytest.mark.parametrize("where", [0, 2])
def test_parts_score_from_a_later_stage_as_whole_networks_do(family, where):
    model = network(family)
    start = model.stage_names[where]
    before = fingerprint(model)
    sets = {str(seed): set_of(items_for(family, seed), 30, seed=seed) for seed in (1, 2)}
    subnetwork = subnetwork_of(model, start)
    for whole in (subnetwork.apply(model), subnetwork.ablate(model)):
        scores = score_from(whole, start, {name: (outputs(model, data, start), data) for name, data in sets.items()})
        assert list(scores) == list(sets)
        for name, data in sets.items():
            expected, found = score_model(whole, data), scores[name]
            assert found.accuracy == expected.accuracy
            assert (found.loss, found.margin) == pytest.approx((expected.loss, expected.margin), abs=1e-5)
    assert fingerprint(model) == before


def test_always_in_float32(family):
    """Even in the middle of training in bfloat16: accuracies can ride on gaps that it rounds away."""
    model, data = network(family), set_of(items_for(family), 30)
    start = model.stage_names[2]

    def scores() -> tuple[Score, dict]:
        return score_model(model, data), score_from(model, start, {"s": (outputs(model, data, start), data)})

    plain = scores()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(data.items).to(torch.bfloat16).dtype == torch.bfloat16
        assert scores() == plain


def test_no_tf32_in_evaluation():
    """On a GPU torch would compute convolutions with ten bits of mantissa, and products if an environment says so; the
    settings are put back afterwards."""
    seen, model, data = [], network("resnet"), set_of(items_for("resnet"), 5)
    kinds = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [kind.allow_tf32 for kind in kinds]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    classifier = BertForSequenceClassification(BertConfig(vocab_size=9, **sizes)).eval()
    pairs = {"input_ids": torch.ones(2, 3, dtype=torch.int64), "attention_mask": torch.ones(2, 3, dtype=torch.int64)}

    def note(*_: object) -> None:
        seen.extend(kind.allow_tf32 for kind in kinds)

    model.stages["head"].register_forward_hook(note)
    classifier.register_forward_hook(note)
    weights = {name: weight.detach()[None] for name, weight in model.named_parameters()}
    forwards = (
        lambda: score_model(model, data),
        lambda: measure_all(model, weights, data.items, torch.zeros(len(data.items)), lambda made, _: made[:, 0]),
        lambda: mean_outputs(model, model.maskable("head")[:1], [data.items]),
        lambda: mean_activations(classifier, [pairs]),
    )
    try:
        for kind in kinds:
            kind.allow_tf32 = True
        for forward in forwards:
            seen.clear()
            forward()
            assert seen and not any(seen) and all(kind.allow_tf32 for kind in kinds)
    finally:
        for kind, allowed in zip(kinds, before, strict=True):
            kind.allow_tf32 = allowed


NEWER = """
import torch
from subnet_utils.models.frozen import full_precision
kinds = torch.backends.cuda.matmul, torch.backends.cudnn.conv
{setting}
before = [kind.fp32_precision for kind in kinds]
with full_precision(torch.device("cpu")), full_precision(torch.device("cpu")):
    print(*(kind.fp32_precision for kind in kinds))
assert [kind.fp32_precision for kind in kinds] == before, before
print(*before)
"""


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("torch.backends.fp32_precision = 'tf32'", "ieee ieee\ntf32 tf32\n"),
        ("kinds[0].fp32_precision = 'tf32'", "ieee ieee\ntf32 tf32\n"),
        ("torch.backends.cudnn.fp32_precision = kinds[0].fp32_precision = 'ieee'", "ieee ieee\nieee ieee\n"),
    ],
)
def test_no_tf32_where_it_was_set_by_its_newer_names(setting, expected):
    """torch then refuses to read the older ones; in a process of its own, since there is no way back."""
    code = NEWER.format(setting=setting)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == expected, done.stderr


def test_what_does_not_fit_is_refused():
    model, other = network("bert"), network("bert", seed=1)
    data = set_of(items_for("bert"), 10)
    part = subnetwork_of(model, "layer_2").apply(model)
    sets = {start: {"s": (outputs(model, data, start), data)} for start in ("layer_1", "layer_2", "layer_3")}
    with pytest.raises(ValueError, match="11 embeddings for a set of 12 items"):
        score_embeddings(torch.ones(11, 2), data)
    for wrong in (sets["layer_1"], sets["layer_3"], {"s": (outputs(other, data, "layer_2"), data)}):
        with pytest.raises(ValueError, match="prefix outputs are of another network or start"):
            score_from(part, "layer_2", wrong)
    with pytest.raises(ValueError, match="prefix outputs are of another network or start"):
        score_from(part, "layer_3", sets["layer_3"])  # it is masked before
    early, usual = (score_from(part, start, sets[start]) for start in ("layer_1", "layer_2"))
    assert early["s"].accuracy == usual["s"].accuracy  # a shorter prefix is only slower
