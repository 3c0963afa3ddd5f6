"""Layers that are computed another way than torch's own, to be faster on a CPU: the same numbers and gradients."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from subnet_utils.models import attention, build, convolution, packing, vision
from subnet_utils.models.attention import ShortSoftmax, attend, attend_once, softmax
from subnet_utils.models.convolution import WIDE, Conv3x3, Convolution, PlaceByPlace, TapByTap, with_conv3x3
from subnet_utils.models.packing import Spread, Take, packed
from subnet_utils.models.vision import InstanceNorm, MaxPool, NormOverPlaces
from subnet_utils.papers.break_it_down.base_models import flipped


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def keep_of(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: tensor for name, tensor in zip(named, found, strict=True) if tensor is not None}


# Softmax over short rows.


def test_softmax_of_short_rows_is_softmax():
    scores = draws(3, 2, 5, 7)
    assert_close(ShortSoftmax.apply(scores, 0.3), (0.3 * scores).softmax(dim=-1))
    assert gradcheck(lambda x: ShortSoftmax.apply(x, 0.3), draws(2, 3, 4))


def test_softmax_gives_padding_nothing_and_survives_large_scores():
    keep = keep_of([3, 1])[:, None, None, :]
    found = softmax(1e4 * draws(2, 2, 3, 3), keep, 1.0)
    assert found[1, :, :, 1:].abs().max() == 0
    assert_close(found.sum(dim=-1), torch.ones(2, 2, 3).double())


@pytest.mark.parametrize("length", [attention.SHORT, attention.SHORT + 1])
def test_softmax_is_the_same_at_the_length_from_which_on_it_is_torchs(length):
    scores = draws(2, 2, length, dtype=torch.float32)
    assert_close(softmax(scores, None, 0.5), (0.5 * scores).softmax(dim=-1))
    assert ("Short" in str(softmax(scores, None, 0.5).grad_fn)) == (length <= attention.SHORT)


@pytest.mark.parametrize("length", [attention.SHORT, attention.SHORT + 1, 70])
@pytest.mark.parametrize("size", [4, 64])
def test_attention_is_torchs_whatever_is_multiplied_by_its_scale(length, size):
    query, key, value = (draws(2, 3, length, size, seed=seed) for seed in range(3))
    keep = keep_of([length, 5])[:, None, None, :]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    assert_close(attend(query, key, value, keep), expected)


def test_softmax_of_bfloat16_is_computed_in_float32():
    scores = draws(4, 30, dtype=torch.bfloat16)
    exact = ShortSoftmax.apply(scores.detach().double(), 1.0)
    assert (ShortSoftmax.apply(scores, 1.0).double() - exact).abs().max() <= exact.max() / 256  # one rounding


def test_softmax_can_be_vectorized():
    scores = draws(3, 4, 5)
    together = torch.vmap(lambda one: ShortSoftmax.apply(one, 2.0))(scores)
    assert_close(together, ShortSoftmax.apply(scores, 2.0))
    (found,) = torch.autograd.grad((together**2).sum(), scores)
    (expected,) = torch.autograd.grad(((2 * scores).softmax(dim=-1) ** 2).sum(), scores)
    assert_close(found, expected)


# One query an item.


def test_one_query_without_keys_and_values_equals_attention():
    hidden, keep = draws(3, 6, 8), keep_of([6, 4, 1])
    to_key, to_value = draws(8, 8, seed=1), draws(8, 8, seed=2)
    query, bias = draws(3, 2, 4, seed=3), draws(8, seed=4)
    key, value = (
        (hidden @ weight.T + more).unflatten(-1, (2, 4)).transpose(1, 2)
        for weight, more in ((to_key, bias), (to_value, 0.0))  # a bias of the keys changes nothing
    )
    expected = attend(query[:, :, None], key, value, keep[:, None, None, :]).squeeze(2).flatten(1)
    found = attend_once(query, hidden, to_key, to_value, keep)
    assert_close(found, expected)
    inputs = (query, hidden, to_key, to_value)
    for one, other in zip(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected)), strict=True):
        assert_close(one, other)


# Packing.


def test_packed_places_hold_every_real_token_once(monkeypatch):
    monkeypatch.setattr(packing, "GRAIN", 4)
    keep = keep_of([2, 7, 3, 1])
    places = packed(keep)
    assert len(places) == 16  # 13 real tokens, filled up
    assert len(places.unique()) == len(places)
    assert places[:13].tolist() == keep.flatten().nonzero().squeeze(1).tolist()


def test_packing_is_left_out_where_it_does_not_pay(monkeypatch):
    assert packed(keep_of([2, 7, 3, 1])) is None  # a grain is more than all tokens
    monkeypatch.setattr(packing, "GRAIN", 1)
    assert packed(torch.ones(4, 5, dtype=torch.bool)) is None
    seen = []
    torch.vmap(lambda keep: seen.append(packed(keep)) or keep)(keep_of([1, 9])[:, None])
    assert seen == [None]


def test_take_and_spread_undo_each_other():
    places = torch.tensor([4, 0, 3])
    rows = draws(3, 2)
    spread = Spread.apply(rows, places, 5)
    assert torch.equal(spread[[1, 2]], torch.zeros(2, 2).double())
    assert torch.equal(Take.apply(spread, places), rows)
    assert gradcheck(lambda x: Take.apply(x, places), draws(5, 2))
    assert gradcheck(lambda x: Spread.apply(x, places, 5), draws(3, 2))


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_packed_layers_compute_what_padded_ones_do(monkeypatch, precision):
    model = build(
        {"family": "bert", "layers": 3, "width": 16, "heads": 2, "mlp_width": 32}, seed=0, vocabulary=30
    ).double()
    tokens = torch.randint(1, 30, (6, 9), generator=torch.Generator().manual_seed(0)) * keep_of([9, 2, 5, 3, 3, 1])
    monkeypatch.setattr(packing, "GRAIN", 4)
    results = []
    for worth in (0.95, 0.0):
        monkeypatch.setattr(packing, "WORTH", worth)
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


# Channels last.


def test_normalization_over_places_is_instance_normalization():
    maps = draws(3, 5, 2, 2)
    expected = torch.nn.InstanceNorm2d(5)(maps)
    found = InstanceNorm(5)(maps.contiguous(memory_format=torch.channels_last))
    assert_close(found, expected)
    assert gradcheck(lambda x: NormOverPlaces.apply(x, 1e-5), draws(2, 4, 3))


def test_normalization_leaves_its_gradient_to_what_changes_it_in_place():
    maps = draws(2, 3, 2, 2)
    (expected,) = torch.autograd.grad(torch.nn.InstanceNorm2d(3)(maps).relu().square().sum(), maps)
    normal = InstanceNorm(3)(maps.contiguous(memory_format=torch.channels_last))
    (found,) = torch.autograd.grad(torch.relu_(normal).square().sum(), maps)
    assert_close(found, expected)


def test_channels_last_changes_no_number(monkeypatch):
    architecture = {"family": "resnet", "block": "basic", "depths": [1, 1, 2, 1], "width": 4, "head_width": 8}
    model = build(architecture, seed=0).double()
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)).double()
    monkeypatch.setattr(convolution, "FEW", 0)  # products have channels last whatever they are given
    results = []
    for small in (8, 0):
        monkeypatch.setattr(vision, "SMALL", small)
        layouts = []
        handle = model.stages["stage_4"].register_forward_hook(
            lambda module, inputs, output, layouts=layouts: layouts.append(output[0].is_contiguous())
        )
        embeddings = model(images)
        handle.remove()
        assert layouts == [small == 0]
        results.append((embeddings, gradients(embeddings.square().sum(), model)))
    (one, of_one), (other, of_other) = results
    assert_close(one, other, rtol=1e-8, atol=1e-10)
    assert_close(of_one, of_other, rtol=1e-6, atol=1e-9)


# Convolutions on small maps.


@pytest.mark.parametrize(("side", "stride"), [(2, 1), (2, 2), (3, 2), (4, 2), ((2, 3), (1, 2)), (1, 1)])
def test_products_place_by_place_are_a_convolution(side, stride):
    height, width = side if isinstance(side, tuple) else (side, side)
    stride = stride if isinstance(stride, tuple) else (stride, stride)
    maps, weight = draws(3, 5, height, width), draws(4, 5, 3, 3, seed=1)
    expected = torch.nn.functional.conv2d(maps, weight, stride=stride, padding=1)
    assert_close(PlaceByPlace.apply(maps, weight, stride), expected)
    assert gradcheck(lambda x, w: PlaceByPlace.apply(x, w, stride), (maps, weight))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_takes_products_for_small_results_alone(stride):
    plain = torch.nn.Conv2d(3, 4, 3, stride=stride, padding=1, bias=False).double()
    conv = Conv3x3(plain)
    assert conv.weight is plain.weight
    assert conv.state_dict().keys() == plain.state_dict().keys()
    for side in (2 * stride, 2 * stride + 1, 8):
        maps = draws(2, 3, side, side)
        assert_close(conv(maps), plain(maps))
        assert ("PlaceByPlace" in str(conv(maps).grad_fn)) == (side == 2 * stride)


@pytest.mark.parametrize("side", [(4, 4), (3, 4), (2, 2), (1, 3)])
def test_products_tap_by_tap_are_the_gradient_of_a_convolution(side):
    maps, weight = draws(3, 5, *side), draws(4, 5, 3, 3, seed=1)
    assert torch.equal(TapByTap.apply(maps, weight), torch.nn.functional.conv2d(maps, weight, padding=1))
    assert gradcheck(TapByTap.apply, (maps, weight))
    assert gradcheck(lambda w: TapByTap.apply(maps.detach(), w), (weight,))


@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "stride", "precision", "taken"),
    [
        (WIDE, WIDE, 4, 1, torch.bfloat16, "TapByTap"),
        (WIDE, WIDE, 3, 1, torch.bfloat16, "TapByTap"),
        (WIDE, WIDE, 4, 1, torch.float32, "Convolution"),
        (WIDE, WIDE, 5, 1, torch.bfloat16, "Convolution"),
        (WIDE, WIDE, 6, 2, torch.bfloat16, "Convolution"),
        (WIDE, WIDE, 4, 2, torch.bfloat16, "PlaceByPlace"),
        (WIDE, WIDE, 2, 1, torch.bfloat16, "PlaceByPlace"),
        (WIDE - 1, WIDE, 4, 1, torch.bfloat16, "Convolution"),
        (WIDE, WIDE - 1, 4, 1, torch.bfloat16, "Convolution"),
    ],
)
def test_wide_kernels_on_small_maps_get_their_gradient_tap_by_tap(inputs, outputs, side, stride, precision, taken):
    plain = torch.nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    conv, maps = Conv3x3(plain), draws(2, inputs, side, side, dtype=torch.float32).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        found, expected = conv(maps), plain(maps)
    assert taken in str(found.grad_fn)
    assert found.dtype == expected.dtype == precision
    (gradient,), (other,) = (torch.autograd.grad(one.square().sum(), plain.weight) for one in (found, expected))
    assert gradient.dtype == torch.float32 and gradient.is_contiguous()
    assert_close(gradient, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_a_small_convolution_obeys_autocast_and_frozen_maps():
    plain = torch.nn.Conv2d(64, 32, 3, padding=1, bias=False)
    maps = draws(5, 64, 2, 2, dtype=torch.float32).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = Conv3x3(plain)(maps), plain(maps)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), plain.weight)
    (other,) = torch.autograd.grad(expected.square().sum(), plain.weight)
    assert gradient.dtype == torch.float32
    assert_close(gradient, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


@pytest.mark.parametrize("side", [2, 4, 8])
def test_autocast_leaves_convolutions_in_float64_alone(side):
    plain = torch.nn.Conv2d(WIDE, WIDE, 3, padding=1, bias=False).double()
    maps = draws(1, WIDE, side, side).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Conv3x3(plain)(maps)
    assert found.dtype == torch.float64
    assert_close(found, plain(maps))


def test_small_convolutions_can_be_vectorized_over_their_weights():
    conv = Conv3x3(torch.nn.Conv2d(3, 4, 3, padding=1, bias=False))
    maps, weights = draws(2, 3, 2, 2, dtype=torch.float32), draws(6, 4, 3, 3, 3, dtype=torch.float32)
    together = torch.vmap(lambda w: torch.func.functional_call(conv, {"weight": w}, (maps,)))(weights)
    assert_close(together[5], torch.nn.functional.conv2d(maps, weights[5], padding=1))


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_vectorized_convolutions_obey_autocast(kernel, precision):
    """torch.vmap takes a convolution apart before autocast sees it."""
    plain = torch.nn.Conv2d(3, 4, kernel, padding=kernel // 2, bias=kernel == 7)
    conv = with_conv3x3(torch.nn.Sequential(torch.nn.Sequential(plain)))
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


def test_a_network_draws_the_weights_that_it_drew_and_computes_the_same(monkeypatch):
    architecture = {"family": "resnet", "block": "basic", "depths": [1, 1, 2, 1], "width": 4, "head_width": 8}
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)).double()
    fast = build(architecture, seed=0).double()
    monkeypatch.setattr(vision, "with_conv3x3", lambda block: block)
    plain = build(architecture, seed=0).double()
    assert fast.maskable("stem") == plain.maskable("stem")
    assert all(torch.equal(a, b) for a, b in zip(fast.state_dict().values(), plain.state_dict().values(), strict=True))
    seen = []
    apply = PlaceByPlace.apply
    monkeypatch.setattr(convolution.PlaceByPlace, "apply", lambda *given: seen.append(given) or apply(*given))
    one, other = fast(images), plain(images)
    assert len(seen) == 2  # both convolutions of the last stage
    assert_close(one, other, rtol=1e-8, atol=1e-10)
    assert_close(gradients(one.square().sum(), fast), gradients(other.square().sum(), plain), rtol=1e-6, atol=1e-9)


# Mirrored images.


def test_flips_draw_what_they_drew():
    images = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected, generator = images, torch.Generator().manual_seed(1)
    for dimension in (2, 3):
        chosen = torch.rand(40, generator=generator) < 0.5
        expected = torch.where(chosen[:, None, None, None], expected.flip(dimension), expected)
    before = images.clone()
    assert torch.equal(flipped(images, torch.Generator().manual_seed(1)), expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 9, 7), (2, 32, 8, 8), (3, 33, 10, 10)])
def test_max_pooling_is_torchs(dtype, shape):
    values = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(0)).view(shape)
    maps = ((values % 251) / 8).to(dtype).requires_grad_()  # numbers that bfloat16 has; some are equal
    ours, torchs = MaxPool(3, stride=2, padding=1), torch.nn.MaxPool2d(3, stride=2, padding=1)
    pooled, expected = ours(maps), torchs(maps)
    assert torch.equal(pooled, expected) and pooled.is_contiguous()
    gradient = torch.randint(-4, 5, pooled.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    ((found,), (wanted,)) = (torch.autograd.grad(map_, maps, gradient) for map_ in (pooled, expected))
    assert torch.equal(found, wanted) and found.is_contiguous()


def test_max_pooling_of_many_networks_at_once():
    maps = torch.randn(3, 2, 5, 9, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    pool = MaxPool(3, stride=2, padding=1)
    together, apart = torch.vmap(pool)(maps), torch.stack([pool(one) for one in maps])
    assert torch.equal(together, apart)
    assert torch.equal(*(torch.autograd.grad(pooled.square().sum(), maps)[0] for pooled in (together, apart)))
