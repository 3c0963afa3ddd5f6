"""Subnetwork transfer: what is inherited, what stays frozen, and that many networks at once are many networks."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from subnet_utils import checkpoints
from subnet_utils.masks.controls import NoControl
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.masks.transfer import Transfer, inherited, measure_all, train_on, transplant, untransferred
from subnet_utils.models import build, fingerprint
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS
from subnet_utils.training import Recipe, TrainingDiverged

SIZES = {"family": "gpt2", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16}


def network(seed: int, **changes):
    return build(SIZES | changes, seed=seed, vocabulary=12).eval()


@pytest.fixture(scope="module")
def donor():
    return network(0)


@pytest.fixture(scope="module")
def found(donor):
    generator = torch.Generator().manual_seed(3)
    shapes = {name: donor.get_parameter(name).shape for name in donor.maskable("layer_1")}
    return Subnetwork({n: torch.rand(s, generator=generator) < 0.2 for n, s in shapes.items()}, fingerprint(donor))


TOKENS = torch.arange(30).reshape(10, 3) % 11
TARGETS = torch.arange(30, 60).reshape(10, 3) % 12


def loss(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(
    transfers, *, epochs=4, patience=None, weight_decay=0.1, learning_rate=0.01, errors=None, checkpoint=None, **changes
):
    count = len(transfers)
    model = network(5, **changes).to(next(iter(transfers[0].start.values())).dtype)

    def batches(epoch):
        yield from zip(TOKENS.expand(count, -1, -1).split(4, 1), TARGETS.expand(count, -1, -1).split(4, 1), strict=True)

    seen = []

    def validate(weights):
        seen.append({name: tensor.clone() for name, tensor in weights.items()})
        if errors and len(seen) > len(errors):
            raise KeyboardInterrupt
        return {"validation_loss": errors[len(seen) - 1] if errors else [0.5] * count}

    recipe = Recipe(learning_rate, epochs, 0, patience=patience, weight_decay=weight_decay)
    weights, history = train_on(model, transfers, batches, loss, validate, recipe=recipe, checkpoint=checkpoint)
    return weights, history, seen


def test_gpt2_equals_that_of_transformers(donor):
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, n_inner=16, vocab_size=12, n_positions=8, bos_token_id=None, eos_token_id=None
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).eval()
    renamed = {}
    for name, weight in donor.named_parameters():
        _, stage, rest = name.split(".", 2)
        place = f"h.{int(stage[6:]) - 1}.{rest}" if stage.startswith("layer_") else rest
        renamed[f"transformer.{place}"] = weight.detach() + 0.1 * torch.randn_like(weight)
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert not unexpected and missing == ["lm_head.weight"]
    with torch.no_grad():
        ours = torch.func.functional_call(
            donor, dict(zip(dict(donor.named_parameters()), renamed.values(), strict=True)), TOKENS
        )
        assert_close(ours, theirs(TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_the_output_is_tied_to_the_embeddings(donor):
    assert donor.stages["unembedding"].weight is donor.stages["embeddings"].wte.weight
    names = [name for name, _ in donor.named_parameters()]
    assert "stages.unembedding.weight" not in names
    changed = {"stages.embeddings.wte.weight": torch.zeros(12, 8)}
    with torch.no_grad():
        assert torch.func.functional_call(donor, changed, TOKENS).abs().max() == 0


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_each_condition_inherits(donor, found, name):
    condition, fresh = CONDITIONS[name], network(1)
    kept = inherited(found, condition.inherits, seed=7)
    made = transplant(donor, fresh, kept, carried=condition.carried, frozen=condition.frozen)
    theirs, new = dict(donor.named_parameters()), dict(fresh.named_parameters())
    for weight, values in made.start.items():
        mask = kept.masks.get(weight)
        if mask is None:
            assert torch.equal(values, (theirs if condition.carried else new)[weight])
        else:
            assert torch.equal(values[mask], theirs[weight][mask])
            assert torch.equal(values[~mask], new[weight][~mask])
            assert torch.equal(made.frozen.get(weight, torch.zeros_like(mask)), mask & condition.frozen)
    per_layer = {weight: int(mask.sum()) for weight, mask in kept.masks.items()}
    own = {weight: int(mask.sum()) for weight, mask in found.masks.items()}
    sizes = {weight: mask.numel() for weight, mask in found.masks.items()}
    expected = {"all": sizes, "nothing": dict.fromkeys(own, 0),
                "all but random": {weight: sizes[weight] - own[weight] for weight in own}}  # fmt: skip
    assert per_layer == expected.get(condition.inherits, own)
    if condition.inherits == "complement":
        assert (kept & found).active == 0
    assert kept == inherited(found, condition.inherits, seed=7)


def test_frozen_weights_keep_their_bits_through_weight_decay(donor, found):
    made = transplant(donor, network(1), found, carried=True, frozen=True)
    weights, _, _ = train([made, untransferred(network(3))], weight_decay=0.5, dropout=0.2)
    for name, original in donor.named_parameters():
        trained, mask = weights[name][0], found.masks.get(name)
        if mask is None:
            assert not torch.equal(trained, original)
        else:
            assert torch.equal(trained[mask], original[mask])
            assert (trained[~mask] != made.start[name][~mask]).float().mean() > 0.99
    loose = transplant(donor, network(1), found, carried=True, frozen=False)
    free, _, _ = train([loose], weight_decay=0.5)
    name = donor.maskable("layer_1")[0]
    assert not torch.equal(free[name][0][found.masks[name]], donor.get_parameter(name)[found.masks[name]])


def test_many_at_once_are_what_each_is_alone(donor, found):
    made = [
        transplant(donor, network(1), inherited(found, c.inherits, seed=0), carried=c.carried, frozen=c.frozen)
        for c in CONDITIONS.values()
    ]
    # in float64: Adam makes much of the rounding of gradients that should be zero
    made = [Transfer({name: weight.double() for name, weight in one.start.items()}, one.frozen) for one in made]
    together, _, _ = train(made)
    for i, one in enumerate(made):
        alone, _, _ = train([one])
        for name, weight in alone.items():
            assert_close(together[name][i], weight[0], rtol=1e-6, atol=1e-8)


def test_the_best_epoch_of_each_is_kept(donor):
    made = [untransferred(network(1)), untransferred(network(2))]
    errors = [[0.5, 0.5], [0.2, 0.6], [0.3, 0.4], [0.2, 0.5]]
    weights, history, seen = train(made, patience=4, errors=errors)
    assert len(history) == 4
    for name, tensor in weights.items():
        assert torch.equal(tensor[0], seen[1][name][0])  # the first of equals
        assert torch.equal(tensor[1], seen[2][name][1])


def test_an_interrupted_run_goes_on_to_the_same_bits(donor, found, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    made = [transplant(donor, network(1), found, carried=True, frozen=True), untransferred(network(2))]
    errors = [[0.5, 0.5], [0.2, 0.6], [0.3, 0.4], [0.2, 0.5]]
    whole, history, _ = train(made, patience=4, errors=errors, dropout=0.2)
    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(made, patience=4, errors=errors[:2], dropout=0.2, checkpoint=file)
    resumed, again, seen = train(made, patience=4, errors=errors[2:], dropout=0.2, checkpoint=file)
    assert len(seen) == 2 and len(again) == len(history) == 4
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_dropout_is_a_pure_function_of_the_seed_and_leaves_the_global_state(donor):
    before = torch.get_rng_state()
    first, second = (train([untransferred(network(1))], dropout=0.3)[0] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before, torch.get_rng_state())
    without, _, _ = train([untransferred(network(1))])
    assert not torch.equal(first["stages.embeddings.wte.weight"], without["stages.embeddings.wte.weight"])


def test_measures_of_many_networks(donor):
    models = [donor, network(1)]
    weights = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in donor.named_parameters()
    }
    found = measure_all(donor, weights, TOKENS, TARGETS, lambda logits, targets: (logits.argmax(-1) == targets).all(-1))
    with torch.no_grad():
        expected = torch.stack([(model(TOKENS).argmax(-1) == TARGETS).all(-1) for model in models])
    assert found.shape == (2, 10) and torch.equal(found, expected)


def test_what_does_not_fit_is_refused(donor, found):
    other = network(4)
    with pytest.raises(WrongNetwork, match="belongs to network"):
        transplant(other, network(1), found, carried=True, frozen=True)
    with pytest.raises(ValueError, match="differ in their weights' names or shapes"):
        transplant(donor, network(1, layers=1), found, carried=True, frozen=True)
    with pytest.raises(ValueError, match="unknown 'half'; did you mean 'all'"):
        inherited(found, "half", seed=0)
    with pytest.raises(NoControl, match="use random_like"):
        inherited(~found, "complement", seed=0)
    with pytest.raises(TrainingDiverged, match="is not finite"):
        train([untransferred(network(1))], learning_rate=1e30)
