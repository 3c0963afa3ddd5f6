"""Subnetworks: nothing but booleans, the algebra, apply and ablate, and the network they belong to."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from subnet_utils.core.store import StoreError, save_tensors
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models import StagedModel, build, fingerprint

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 2, 3, 3)}
ARCHITECTURES = {
    "bert": {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16},
    "resnet": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8},
}


def random_masks(seed: int, shapes: dict[str, tuple] = SHAPES, p: float = 0.5) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=draw) < p for name, shape in shapes.items()}


def network(family: str, seed: int = 0) -> StagedModel:
    return build(ARCHITECTURES[family], seed=seed, vocabulary=20, resolution=64)


def subnetwork_of(model: StagedModel, start: str, *, p: float = 0.5, seed: int = 0) -> Subnetwork:
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameters[name].shape) for name in model.maskable(start)}
    return Subnetwork(random_masks(seed, shapes, p), fingerprint(model))


def inputs(family: str) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    if family == "bert":
        tokens = torch.randint(1, 20, (5, 6), generator=draw)
        tokens[:, 0] = 2  # [CLS], which reaches the embedding without passing any matrix
        return tokens
    return torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8, generator=draw)


@st.composite
def subnetworks(draw) -> Subnetwork:
    p = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return Subnetwork(random_masks(draw(st.integers(0, 10**6)), p=p), "n")


@pytest.fixture(params=ARCHITECTURES)
def family(request) -> str:
    return request.param


# -- what a mask can be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0.3, 0.7], [0.0, 1.0], [0, 1]])
def test_only_booleans(values):
    with pytest.raises(TypeError, match="mask of 'w' is torch.*, not boolean; threshold it first"):
        Subnetwork({"w": torch.tensor(values)}, network="n")


def test_immutable():
    mine = torch.tensor([True, False])
    masks = {"w": mine}
    subnetwork = Subnetwork(masks, "n")
    mine[1] = True
    masks["v"] = mine
    assert subnetwork.masks.keys() == {"w"} and subnetwork.masks["w"].tolist() == [True, False]
    with pytest.raises(TypeError):
        subnetwork.masks["w"] = mine
    for field, value in (("masks", masks), ("network", "m")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(subnetwork, field, value)


def test_equality_is_of_bits_names_and_network():
    masks = random_masks(0)
    one = Subnetwork(masks, "n")
    other = {**masks, "b": masks["b"].logical_not()}
    assert one == Subnetwork(dict(reversed(masks.items())), "n")
    assert one != Subnetwork(other, "n") and one != Subnetwork(masks, "m") and one != "n"
    assert one != Subnetwork({"a": masks["a"]}, "n")


# -- algebra -----------------------------------------------------------------------------------------------------------


@given(subnetworks(), subnetworks(), subnetworks())
@settings(max_examples=40, deadline=None)
def test_boolean_algebra(a, b, c):
    empty, everything = a & ~a, a | ~a
    assert (empty.active, empty.density) == (0, 0.0)
    assert (everything.active, everything.density) == (a.total, 1.0)
    assert ~(a & b) == ~a | ~b and ~(a | b) == ~a & ~b
    assert a & b == b & a and a | b == b | a
    assert a & (b | c) == (a & b) | (a & c)
    assert ~~a == a and a & everything == a and a | empty == a
    assert a.active + (~a).active == a.total
    assert (a & b).active + (a | b).active == a.active + b.active
    assert a - b == a & ~b and (a - b) | (a & b) == a and ((a - b) & b).active == 0
    assert a ^ b == b ^ a == (a | b) - (a & b) and (a ^ b) ^ b == a


@given(subnetworks())
@settings(max_examples=40, deadline=None)
def test_counts_against_numpy(a):
    flat = np.concatenate([mask.numpy().ravel() for mask in a.masks.values()])
    assert a.total == sum(math.prod(shape) for shape in SHAPES.values()) == 58
    assert a.active == np.count_nonzero(flat) and a.density == pytest.approx(flat.mean())


@pytest.mark.parametrize("operation", [Subnetwork.__and__, Subnetwork.__or__, Subnetwork.__sub__, Subnetwork.__xor__])
def test_subnetworks_of_two_networks_or_two_starts_are_not_combined(operation):
    one = Subnetwork(random_masks(0), "n")
    with pytest.raises(WrongNetwork, match="subnetworks of two networks, n and m, cannot be combined"):
        operation(one, Subnetwork(random_masks(0), "m"))
    with pytest.raises(WrongNetwork, match="mask different weights; combine those with the same start"):
        operation(one, Subnetwork({"a": one.masks["a"]}, "n"))


# -- in a network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, -2])
def test_apply_and_ablate_change_masked_weights_alone(family, where):
    model = network(family)
    start = model.stage_names[where]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    subnetwork = subnetwork_of(model, start)
    kept, ablated = subnetwork.apply(model).state_dict(), subnetwork.ablate(model).state_dict()
    for name, original in before.items():
        if name in subnetwork.masks:
            mask = subnetwork.masks[name]
            assert torch.equal(kept[name], mask * original)
            assert torch.equal(ablated[name], ~mask * original)
            assert torch.equal(kept[name] + ablated[name], original)  # a partition
        else:
            assert torch.equal(kept[name], original) and torch.equal(ablated[name], original)
    assert subnetwork.masks.keys() == set(model.maskable(start))
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert fingerprint(model) == subnetwork.network
    assert kept.keys() == before.keys() and all(kept[n].data_ptr() != after[n].data_ptr() for n in kept)


def test_whole_and_empty_masks(family):
    model, items = network(family), inputs(family)
    everything = subnetwork_of(model, model.stage_names[0], p=1.1)
    assert torch.equal(everything.apply(model)(items), model(items))
    assert torch.equal((~everything).ablate(model)(items), model(items))
    nothing = everything.ablate(model)
    weights = dict(nothing.named_parameters())
    assert all(weights[name].count_nonzero() == 0 for name in everything.masks)
    assert any(weights[name].count_nonzero() for name in weights.keys() - everything.masks.keys())
    embeddings = nothing(items)
    assert torch.equal(embeddings, embeddings[:1].expand_as(embeddings))  # nothing but biases: all items are one


def test_masked_weights_are_exactly_zero_whatever_they_were():
    """0 times a negative weight is -0, and times an infinite one NaN."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, torch.inf, -2.0]]))
    masks = {"weight": torch.tensor([[False, False, True]])}
    weight = Subnetwork(masks, fingerprint(model)).apply(model).weight.detach()
    assert weight.tolist() == [[0.0, 0.0, -2.0]] and not weight.signbit()[0, :2].any()


def test_another_network_is_refused():
    model, other = network("bert"), network("bert", seed=1)
    subnetwork = subnetwork_of(model, "layer_1")
    message = f"belongs to network {fingerprint(model)}, not to .*; load the base it was found in"
    one_bit = copy.deepcopy(model)
    with torch.no_grad():
        one_bit.stages["layer_2"].output.LayerNorm.bias[0] += 1e-6
    masked = subnetwork.apply(model)
    for wrong in (other, one_bit, masked, network("resnet")):
        for operation in (subnetwork.apply, subnetwork.ablate):
            with pytest.raises(WrongNetwork, match=message):
                operation(wrong)
    subnetwork.apply(copy.deepcopy(model))  # a copy of the same weights is the same network


@pytest.mark.parametrize("masks", [{"weight": torch.ones(1, dtype=torch.bool)}, {"wieght": torch.ones(2, 3) > 0}])
def test_masks_that_fit_no_weight_are_refused(masks):
    """A mask of one entry would be broadcast over the weight."""
    model = torch.nn.Linear(3, 2)
    name = next(iter(masks))
    with pytest.raises(WrongNetwork, match=f"has no weight '{name}' of shape"):
        Subnetwork(masks, fingerprint(model)).apply(model)


# -- on disk -----------------------------------------------------------------------------------------------------------


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_saved_and_loaded(shapes, seed, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "subnetwork.safetensors"
    subnetwork = Subnetwork(random_masks(seed, {f"stages.w{i}": shape for i, shape in enumerate(shapes)}), "0123")
    subnetwork.save(path)
    found = Subnetwork.load(path)
    assert found == subnetwork and found.network == "0123"
    assert all(mask.dtype == torch.bool for mask in found.masks.values())


@pytest.mark.parametrize("shape", [(), (1,), (8,), (9,), (3, 5, 7)])
def test_odd_sizes_are_saved(shape, tmp_path):
    for value in (True, False):
        subnetwork = Subnetwork({"w": torch.full(shape, value)}, "n")
        subnetwork.save(tmp_path / "w")
        assert Subnetwork.load(tmp_path / "w").masks["w"].tolist() == subnetwork.masks["w"].tolist()


def test_memory_layout_does_not_matter(tmp_path):
    mask = random_masks(0, {"w": (4, 3, 2, 2)})["w"].to(memory_format=torch.channels_last)
    Subnetwork({"w": mask}, "n").save(tmp_path / "w")
    assert torch.equal(Subnetwork.load(tmp_path / "w").masks["w"], mask)


def test_eight_entries_a_byte(tmp_path):
    shape = (1001, 99)
    Subnetwork(random_masks(0, {"w": shape}), "n").save(tmp_path / "w")
    assert 0 < (tmp_path / "w").stat().st_size - math.prod(shape) / 8 < 500


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "subnetwork.safetensors"
    Subnetwork(random_masks(0), "0123").save(path)
    content = path.read_bytes()
    for size in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(StoreError, match="cannot be read as safetensors"):
            Subnetwork.load(path)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(StoreError):
            Subnetwork.load(path)


def test_foreign_and_missing_files_are_refused(tmp_path):
    save_tensors(tmp_path / "weights", {"w": torch.ones(2)})
    with pytest.raises(StoreError, match="weights holds no subnetwork; give a file written by Subnetwork.save"):
        Subnetwork.load(tmp_path / "weights")
    (tmp_path / "notes").write_text("not tensors at all")
    for name, said in (
        ("notes", "notes cannot be read as safetensors"),
        ("nowhere", "there is no file .*nowhere; give"),
    ):
        with pytest.raises(StoreError, match=said):
            Subnetwork.load(tmp_path / name)


def test_a_subnetwork_can_be_sent_to_another_process_and_saved_by_name(tmp_path):
    one = Subnetwork({"b": torch.tensor([[True, False]]), "a": torch.tensor([False])}, network="n")
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert other == one and other is not one
        with pytest.raises(TypeError):
            other.masks["a"] = torch.tensor([True])
    one.save(str(tmp_path / "mask.safetensors"))
    assert Subnetwork.load(str(tmp_path / "mask.safetensors")) == one


def test_it_is_shown_in_one_line():
    a = Subnetwork({"v": torch.tensor([[True]]), "w": torch.tensor([True, False])}, network="n")
    assert repr(a) == "Subnetwork(2 of 3 weights in 2 matrices of n)"
