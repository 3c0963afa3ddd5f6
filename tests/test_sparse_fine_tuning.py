"""Sparse fine-tuning: exactly the chosen weights change, and differences are sums of changes."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from subnet_utils.core.store import StoreError
from subnet_utils.masks.masking import Random
from subnet_utils.masks.select import select
from subnet_utils.masks.sparse_fine_tuning import SparseDifference, by_recipe, furthest, sparse_fine_tuning
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models import fingerprint
from subnet_utils.training import Recipe

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS[:, :3].argmax(dim=1)
STEPS = 6
NAMES = ("0.weight", "4.weight")
TOTAL = 5 * 6 + 6 * 3


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3)
        return nn.Sequential(*layers).eval()


def batches(epoch: int):
    return zip(INPUTS.split(8), TARGETS.split(8), strict=True)


def train(weight_decay: float = 0.01):
    return by_recipe(batches, cross_entropy, Recipe(0.01, STEPS, 0, weight_decay=weight_decay))


def learned(count: int = 10, **options) -> SparseDifference:
    return sparse_fine_tuning(network(), options.pop("train", train()), count, **options)


@pytest.mark.parametrize("count", [1, 10, TOTAL - 1])
def test_exactly_so_many_weights_change_and_all_else_keeps_its_bits(count):
    """Under weight decay, with biases, norms and running statistics."""
    before, after = network().state_dict(), learned(count).apply(network()).state_dict()
    changed = {name: int((before[name] != after[name]).sum()) for name in before}
    assert sum(changed.values()) == count and {name for name in changed if changed[name]} <= set(NAMES)


def test_with_all_weights_it_is_plain_fine_tuning_to_the_bit():
    """A loop of its own, over the weights that a mask covers; the statistics of the norm are those of each batch."""
    plain = network().train()
    own = [plain.get_parameter(name) for name in NAMES]
    optimizer = torch.optim.Adam(own, lr=0.01, fused=True)
    for _ in range(STEPS):
        for inputs, targets in batches(0):
            optimizer.zero_grad()
            cross_entropy(plain(inputs), targets).backward(inputs=own)
            optimizer.step()
    found = learned(TOTAL).apply(network())
    for name in NAMES:
        assert torch.equal(found.get_parameter(name), plain.get_parameter(name))
        assert not torch.equal(found.get_parameter(name), network().get_parameter(name))


def test_the_chosen_are_those_that_moved_furthest():
    tuned = network()
    train()(tuned, None)
    assert not torch.equal(tuned[0].bias, network()[0].bias), "the first training is of all weights"
    moved = {name: (tuned.get_parameter(name) - network().get_parameter(name)).detach().abs() for name in NAMES}
    least = torch.cat([one.flatten() for one in moved.values()]).sort(descending=True).values[9]
    chosen = learned(10).changed
    assert all(torch.equal(chosen.masks[name], moved[name] >= least) for name in NAMES)
    assert chosen == furthest(network(), train(), NAMES, 10)


def test_a_support_is_trained_without_a_first_training():
    calls = []

    def counted(model, frozen):
        calls.append(frozen)
        train()(model, frozen)

    scores = Random().scores(network(), NAMES, seed=3, before=None, task=None)
    support = select(scores, 7, network=fingerprint(network()))
    found = sparse_fine_tuning(network(), counted, 7, support=support)
    assert found.changed == support and len(calls) == 1
    assert all(torch.equal(calls[0][name], ~support.masks[name]) for name in NAMES) and calls[0]["1.running_mean"].all()


def test_what_is_added_and_taken_away_is_gone():
    phi, start = learned(), network()
    assert fingerprint((phi + phi.scaled(-1.0)).apply(start)) == fingerprint(start)
    there = phi.apply(start)
    for name, change in phi.dense().items():  # in float32, step by step: up to a unit in the last place of the larger
        weight, moved = (model.get_parameter(name).detach() for model in (start, there))
        off = (moved - change.float() - weight).abs()
        assert (off <= torch.finfo(torch.float32).eps * torch.maximum(weight.abs(), moved.abs())).all()


def test_differences_add_up_where_both_change_a_weight():
    masks = [[True, True, False], [False, True, True]]
    one, other = (
        SparseDifference(Subnetwork({"w": torch.tensor([mask])}, "n"), {"w": torch.tensor(values)})
        for mask, values in zip(masks, [[1.0, 2.0], [10.0, 20.0]], strict=True)
    )
    both = one + other.scaled(0.5)
    assert both.dense()["w"].tolist() == [[1.0, 7.0, 10.0]] and both.changed.active == 3
    assert one.dense()["w"].tolist() == [[1.0, 2.0, 0.0]]


def test_the_task_is_learned():
    model = network()
    many = by_recipe(batches, cross_entropy, Recipe(0.05, 40, 0))
    found = sparse_fine_tuning(model, many, 30).apply(model).train()
    assert cross_entropy(found(INPUTS), TARGETS) < 0.5 * cross_entropy(network().train()(INPUTS), TARGETS)


def test_it_is_of_one_network():
    phi, other = learned(), network(1)
    with pytest.raises(WrongNetwork, match="load the base it was found in"):
        phi.apply(other)
    with pytest.raises(WrongNetwork, match="load the base it was found in"):
        phi.apply(phi.apply(network()))
    with pytest.raises(WrongNetwork, match="subnetworks of two networks"):
        phi + sparse_fine_tuning(other, train(), 10)
    with pytest.raises(WrongNetwork):
        sparse_fine_tuning(other, train(), 10, support=phi.changed)


def test_it_comes_back_from_a_file(tmp_path):
    phi, path = learned(), tmp_path / "phi.safetensors"
    phi.save(path)
    for again in (SparseDifference.load(path), pickle.loads(pickle.dumps(phi))):
        assert again.changed == phi.changed
        assert all(torch.equal(again.values[name], phi.values[name]) for name in NAMES)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        SparseDifference.load(path)
    phi.changed.save(path)
    with pytest.raises(StoreError, match="holds no difference"):
        SparseDifference.load(path)


def disobedient(model, frozen):
    train()(model, None)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"count": 0}, "0 of 48 weights cannot be trained; give a count from 1 to 48"),
        ({"count": 49}, "49 of 48 weights cannot be trained; give a count from 1 to 48"),
        ({"train": disobedient}, "train\\(\\) moved weights of '0.weight' that were frozen; leave those as they are"),
    ],
)
def test_faults_are_said_in_a_line(options, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        learned(**options)


def test_a_support_or_values_of_another_size_are_refused():
    chosen = learned(10).changed
    with pytest.raises(ValueError, match="^the support has 10 weights, not 9; make them equal$"):
        learned(9, support=chosen)
    with pytest.raises(ValueError, match="^values and mask differ in names or number"):
        SparseDifference(chosen, {name: torch.zeros(1) for name in NAMES})
