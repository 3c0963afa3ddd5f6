"""Layers of our own: attention, sentences without their padding, convolutions that obey autocast within torch.vmap."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subnet_utils.core import devices
from subnet_utils.core.sections import Compute
from subnet_utils.models import build, layers
from subnet_utils.models.layers import Convolution, attend, obeying_autocast, packed


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def keep_of(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: tensor for name, tensor in zip(named, found, strict=True) if tensor is not None}


# Attention.


def test_in_bfloat16_on_a_cpu_torchs_own_attention_is_written_out(monkeypatch):
    monkeypatch.setattr(devices, "has_bfloat16", lambda device: True)
    for precision, fused in (("float32", True), ("bfloat16", False)):
        with devices.autocast(Compute(precision=precision), torch.device("cpu")):
            assert torch.backends.cuda.flash_sdp_enabled() == fused, "the switch is one for all devices"
            assert torch.is_autocast_enabled("cpu") != fused
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("readers", [1, 9])
def test_attention_is_torchs(readers):
    query, key, value = draws(2, 3, readers, 4), draws(2, 3, 9, 4, seed=1), draws(2, 3, 9, 4, seed=2)
    keep = keep_of([9, 5])[:, None, None, :]
    for mask in (keep, None):
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        assert_close(attend(query, key, value, mask), expected)


# Packing.


def test_packed_places_hold_every_real_token_once(monkeypatch):
    monkeypatch.setattr(layers, "GRAIN", 4)
    keep = keep_of([2, 7, 3, 1])
    positions = packed(keep)
    assert len(positions) == 16  # 13 real tokens, filled up
    assert len(positions.unique()) == len(positions)
    assert positions[:13].tolist() == keep.flatten().nonzero().squeeze(1).tolist()


def test_packing_is_left_out_where_it_does_not_pay(monkeypatch):
    assert packed(keep_of([2, 7, 3, 1])) is None  # a grain is more than all tokens
    monkeypatch.setattr(layers, "GRAIN", 1)
    assert packed(torch.ones(4, 5, dtype=torch.bool)) is None
    seen = []
    torch.vmap(lambda keep: seen.append(packed(keep)) or keep)(keep_of([1, 9])[:, None])
    assert seen == [None]


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_packed_layers_compute_what_padded_ones_do(monkeypatch, precision):
    model = build(
        {"family": "bert", "layers": 3, "width": 16, "heads": 2, "mlp_width": 32}, seed=0, vocabulary=30
    ).double()
    tokens = torch.randint(1, 30, (6, 9), generator=torch.Generator().manual_seed(0)) * keep_of([9, 2, 5, 3, 3, 1])
    monkeypatch.setattr(layers, "GRAIN", 4)
    results = []
    for worth in (0.95, 0.0):
        monkeypatch.setattr(layers, "WORTH", worth)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            embeddings = model.float()(tokens) if precision == torch.bfloat16 else model(tokens)
        results.append((embeddings.double(), gradients(embeddings.double().square().sum(), model)))
    (one, of_one), (other, of_other) = results
    near = {"rtol": 0.05, "atol": 0.05} if precision == torch.bfloat16 else {"rtol": 1e-8, "atol": 1e-10}
    assert_close(one, other, **near)
    assert of_one.keys() == of_other.keys()
    largest = max(float(gradient.abs().max()) for gradient in of_other.values())  # that of the keys' bias is 0
    for name in of_one:
        assert_close(of_one[name] / largest, of_other[name] / largest, **near)


# Convolutions.


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_vectorized_convolutions_obey_autocast(kernel, precision):
    """torch.vmap takes a convolution apart before autocast sees it."""
    plain = torch.nn.Conv2d(3, 4, kernel, padding=kernel // 2, bias=kernel == 7)
    conv = obeying_autocast(torch.nn.Sequential(torch.nn.Sequential(plain)))
    maps, weights = draws(5, 2, 3, 8, 8, dtype=precision), draws(5, 4, 3, kernel, kernel, seed=1, dtype=precision)
    bias = {} if plain.bias is None else {"0.0.bias": plain.bias.detach().to(precision)}

    def alone(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"0.0.weight": weight} | bias, (x,))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        together, each = torch.vmap(alone)(maps, weights), torch.stack(list(map(alone, maps, weights)))
        shared = torch.vmap(partial(alone, maps[0]))(weights)
    narrow = torch.float64 if precision == torch.float64 else torch.bfloat16
    assert together.dtype == each.dtype == shared.dtype == narrow
    assert_close(together, each, rtol=0.02, atol=0.02)
    assert torch.vmap(alone)(maps, weights).dtype == precision, "without autocast as they are"


def test_every_convolution_of_a_network_obeys_autocast_where_it_is_vectorized():
    sizes = {"block": "bottleneck", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8}
    small = {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "patch": 8, "head_width": 8}
    for model in (
        build({"family": "resnet", **sizes}, seed=0),
        build({"family": "vit", **small}, seed=0, resolution=16),
    ):
        convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
        assert convolutions and all(isinstance(module, Convolution) for module in convolutions)


# Mirrored images.


def test_flips_draw_what_they_drew():
    from subnet_utils.tasks.odd_one_out import mirrored

    images = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected, generator = images, torch.Generator().manual_seed(1)
    for dimension in (2, 3):
        chosen = torch.rand(40, generator=generator) < 0.5
        expected = torch.where(chosen[:, None, None, None], expected.flip(dimension), expected)
    before = images.clone()
    assert torch.equal(mirrored(images, torch.Generator().manual_seed(1)), expected)
    assert torch.equal(images, before)
