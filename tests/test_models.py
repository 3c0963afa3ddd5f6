"""Models: totals as printed, equality with torchvision and transformers, cutting, masking without editing."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.vision_transformer import VisionTransformer
from transformers import BertConfig, BertModel

from subnet_utils.models import build, fingerprint
from subnet_utils.models.language import bert
from subnet_utils.models.staged import StagedModel
from subnet_utils.models.vision import resnet, vit

SMALL = {
    "bert": {"family": "bert", "layers": 3, "width": 16, "heads": 2, "mlp_width": 32},
    "resnet": {"family": "resnet", "block": "basic", "depths": [1, 1, 2, 1], "width": 4, "head_width": 8},
    "bottleneck": {"family": "resnet", "block": "bottleneck", "depths": [1, 1, 1, 1], "width": 4, "small_stem": True},
    "vit": {"family": "vit", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32, "patch": 16, "head_width": 8},
}
SIZES = {"vocabulary": 30, "resolution": 64}
BERT_SMALL = {"layers": 4, "width": 512, "heads": 8, "mlp_width": 2048, "vocabulary": 30522}


@pytest.fixture(params=SMALL)
def name(request) -> str:
    return request.param


def small(name: str, *, seed: int = 0, **changes) -> StagedModel:
    return build({**SMALL[name], **changes}, seed=seed, **SIZES)


def items(name: str, n: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if name != "bert":
        return torch.randint(0, 256, (n, 3, 64, 64), dtype=torch.uint8, generator=generator)
    tokens = torch.randint(1, 30, (n, 9), generator=generator)
    tokens[: n // 2, 6:] = 0
    return tokens


def masked_total(model: StagedModel, start: str) -> int:
    parameters = dict(model.named_parameters())
    return sum(math.prod(parameters[name].shape) for name in model.maskable(start))


def random_masks(model: StagedModel, start: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    parameters = dict(model.named_parameters())
    return {name: torch.rand(parameters[name].shape, generator=generator) < 0.7 for name in model.maskable(start)}


# The totals printed in Tables 5 to 11.


@pytest.mark.parametrize(
    ("width_factor", "start", "total"),
    [
        (1, "stem", 27_911_360),
        (1, "stage_3", 26_476_544),
        (1, "stage_4", 19_398_656),
        (2, "stem", 71_222_464),
        (2, "stage_3", 67_108_864),
        (2, "stage_4", 46_399_488),
    ],
)
def test_residual_networks_have_the_printed_masked_totals(width_factor, start, total):
    with torch.device("meta"):
        model = resnet(block="bottleneck", depths=(3, 4, 6, 3), width=64, width_factor=width_factor)
    assert masked_total(model, start) == total


@pytest.mark.parametrize(("start", "total"), [("layer_1", 12_845_056), ("layer_3", 6_553_600), ("layer_4", 3_407_872)])
def test_bert_small_has_the_printed_masked_totals(start, total):
    # Not printed: layer 4 alone is 4 x 512^2 + 2 x 512 x 2048 = 3,145,728, plus the pooler's 512^2.
    with torch.device("meta"):
        model = bert(**BERT_SMALL)
    assert masked_total(model, start) == total


def test_a_bert_is_drawn_as_wide_as_one_says():
    name = "stages.layer_2.attention.self.query.weight"
    usual, same, wide = (small("bert", **more).get_parameter(name)
                         for more in ({}, {"deviation": 0.02}, {"deviation": 0.08}))  # fmt: skip
    assert torch.equal(usual, same), "as transformers draws it"
    torch.testing.assert_close(wide, 4 * usual)


def test_vision_transformer_total_by_hand():
    with torch.device("meta"):
        model = vit(layers=6, width=768, heads=12, mlp_width=3072, patch=16, resolution=128)
    layer, head, patches = 12 * 768**2, 768 * 2048 + 2048 * 128, 3 * 16**2 * 768
    assert masked_total(model, "patches") == patches + 6 * layer + head
    assert masked_total(model, "layer_6") == layer + head


def test_masks_cover_matrices_only_and_every_matrix_that_is_no_embedding(name):
    model = small(name)
    matrices = {key for key, weight in model.named_parameters() if weight.ndim > 1}
    never = {key for key in matrices if "embeddings" in key or "class_token" in key or "pos_embedding" in key}
    assert set(model.maskable(model.stage_names[0])) == matrices - never
    assert all("bias" not in key for key in model.maskable(model.stage_names[0]))


# Independent references: the same weights in torchvision's and transformers' own networks.


def normalized(images: torch.Tensor) -> torch.Tensor:
    return (images / 255 - 0.9) / 0.1


@pytest.mark.parametrize("width_factor", [1, 2])
def test_resnet50_features_equal_torchvision(width_factor):
    depths = (3, 4, 6, 3) if width_factor == 1 else (1, 1, 1, 1)
    theirs = ResNet(
        Bottleneck, list(depths), norm_layer=torch.nn.InstanceNorm2d, width_per_group=64 * width_factor
    ).requires_grad_(False)
    theirs.fc = torch.nn.Identity()
    ours = resnet(block="bottleneck", depths=depths, width=64, width_factor=width_factor, head_width=4)
    renamed = {
        f"stages.stem.{key}" if key == "conv1.weight" else key.replace("layer", "stages.stage_"): weight
        for key, weight in theirs.state_dict().items()
    }
    missing, unexpected = ours.load_state_dict(renamed, strict=False)
    assert not unexpected and all(key.startswith("stages.head.") for key in missing)
    images = items("resnet", 2).double() / 255  # in float32, fifty normalizations of 2 x 2 cells blow the rounding up
    with torch.no_grad():
        (features,) = ours.double().cut("head")[0](images)
    assert_close(features.mean(dim=(2, 3)), theirs.double()((images - 0.9) / 0.1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("training", [True, False])
def test_vision_transformer_equals_torchvision(training):
    theirs = VisionTransformer(64, 16, 2, 2, 16, 32).train(training)
    theirs.heads = torch.nn.Identity()
    ours = small("vit").train(training)
    renamed = {
        key.replace("encoder.layers.encoder_layer_0", "stages.layer_1")
        .replace("encoder.layers.encoder_layer_1", "stages.layer_2")
        .replace("encoder.ln", "stages.head.ln")
        .replace("encoder.pos_embedding", "stages.patches.pos_embedding")
        .replace("conv_proj", "stages.patches.conv_proj")
        .replace("class_token", "stages.patches.class_token"): weight
        for key, weight in theirs.state_dict().items()
    }
    missing, unexpected = ours.load_state_dict(renamed, strict=False)
    assert not unexpected and all(key.startswith(("stages.head.hidden", "stages.head.embed")) for key in missing)
    images = items("vit")
    with torch.no_grad():
        (hidden,) = ours.cut("head")[0](images)
        assert_close(ours.stages["head"].ln(hidden[:, 0]), theirs(normalized(images)), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder with a tiny BertModel, no weight of it at its initial value, and the network."""
    torch.manual_seed(5)
    config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)
    network = BertModel(config).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("bert")
    network.save_pretrained(folder)
    return folder, network


def test_pretrained_bert_equals_transformers(pretrained):
    folder, network = pretrained
    model = small("bert", pretrained=str(folder))
    tokens = items("bert")
    with torch.no_grad():
        expected = network(tokens, attention_mask=(tokens != 0).long()).last_hidden_state[:, 0]
        assert_close(model(tokens), expected, rtol=1e-4, atol=1e-5)
        assert_close(model.train()(tokens), expected, rtol=1e-4, atol=1e-5)  # no dropout in training either
    pooler = "pooler.dense.weight"
    assert torch.equal(model.get_parameter(f"stages.{pooler}"), network.get_parameter(pooler))


def test_last_layer_for_cls_alone_equals_the_full_computation():
    model = small("bert")
    short = model(items("bert"))
    model.stages["layer_3"].first_only = False
    state = model.cut("pooler")[0](items("bert"))
    assert state[0].shape == (4, 9, 16)
    assert_close(short, model.stages["pooler"](*state), rtol=1e-5, atol=1e-6)


# Padding.


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5), extra=st.integers(0, 4))
def test_padding_changes_no_embedding(lengths, extra):
    model = small("bert")
    tokens = torch.zeros(len(lengths), 8 + extra, dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.arange(1, length + 1) + row
    with torch.no_grad():
        together = model(*model.compact((tokens,)))
        alone = torch.cat([model(tokens[row : row + 1, :length]) for row, length in enumerate(lengths)])
        assert model.compact((tokens,))[0].shape == (len(lengths), max(lengths))
        assert_close(model(tokens), alone, rtol=1e-4, atol=1e-5)
        assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", ["layer_1", "layer_2", "layer_3", "pooler"])
def test_cached_states_can_be_compacted(start):
    model = small("bert")
    tokens = items("bert")
    prefix, suffix = model.cut(start)
    state = tuple(tensor[:2] for tensor in prefix(tokens))  # the two sentences of 6 tokens
    compact = suffix.compact(state)
    assert [tensor.shape[1] for tensor in compact] == ([1, 1] if start == "pooler" else [6, 6])
    assert_close(suffix(*compact), model(tokens)[:2], rtol=1e-5, atol=1e-6)


def test_compact_changes_no_image():
    images = items("resnet")
    assert small("resnet").compact((images,))[0] is images


# Vision inputs.


def test_pixels_are_normalized_alike_as_bytes_and_as_floats():
    pixels = small("resnet").stages["stem"].pixels
    white = torch.full((1, 3, 64, 64), 255, dtype=torch.uint8)
    assert_close(pixels(white), torch.ones(1, 3, 64, 64))
    assert_close(pixels(torch.zeros_like(white)), torch.full((1, 3, 64, 64), -9.0))
    images = items("resnet")
    assert_close(pixels(images), pixels(images / 255))


def test_an_embedding_does_not_depend_on_its_batch(name):
    model = small(name)
    batch = items(name)
    assert_close(model(batch)[1:2], model(batch[1:2]), rtol=1e-4, atol=1e-5)


def test_bfloat16_products_in_channels_last_run_and_stay_close():
    model = small("resnet").to(memory_format=torch.channels_last)
    images = items("resnet").contiguous(memory_format=torch.channels_last)
    exact = model(images).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(images)
    rough.float().square().sum().backward()
    assert rough.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(rough.float(), exact).min() > 0.99
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(("small_stem", "smallest"), [(False, 33), (True, 17)])
def test_images_too_small_for_instance_normalization_are_refused(small_stem, smallest):
    model = small("resnet", small_stem=small_stem)
    assert model(torch.rand(2, 3, smallest, smallest)).shape == (2, 128)
    with pytest.raises(ValueError, match=f"images of {smallest - 1} pixels .* use over {smallest - 1}"):
        model(torch.rand(2, 3, smallest - 1, smallest - 1))


# Cutting.


def test_prefix_and_suffix_make_the_whole_at_every_start(name):
    model = small(name)
    whole = model(items(name))
    for start in model.stage_names:
        prefix, suffix = model.cut(start)
        assert torch.equal(suffix(*prefix(items(name))), whole)
        assert prefix.stage_names + suffix.stage_names == model.stage_names
        parts = dict(prefix.named_parameters()) | dict(suffix.named_parameters())
        assert parts.keys() == dict(model.named_parameters()).keys()
        assert all(parts[key] is weight for key, weight in model.named_parameters())
        assert suffix.maskable(start) == model.maskable(start)


def test_cutting_at_the_first_stage_leaves_an_empty_prefix(name):
    prefix, suffix = small(name).cut(small(name).stage_names[0])
    state = (items(name),)
    assert prefix(*state) is not None and prefix(*state)[0] is state[0]
    assert not list(prefix.parameters())


@pytest.mark.parametrize("method", ["cut", "maskable"])
def test_unknown_stage_is_named_with_the_nearest(method):
    with pytest.raises(ValueError, match="unknown stage 'stage_9'; did you mean 'stage_.'. valid: stem, stage_1"):
        getattr(small("resnet"), method)("stage_9")


# Masking without editing.


def test_masked_call_equals_an_edited_copy_and_edits_nothing(name):
    model = small(name)
    before = fingerprint(model)
    for start in model.stage_names[1:3]:
        masks = random_masks(model, start)
        prefix, suffix = model.cut(start)
        parameters = dict(suffix.named_parameters())
        masked = {key: parameters[key] * mask for key, mask in masks.items()}
        edited = copy.deepcopy(model)
        with torch.no_grad():
            for key, mask in masks.items():
                edited.get_parameter(key).mul_(mask)
        out = functional_call(suffix, masked, prefix(items(name)))
        assert_close(out, edited(items(name)), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(out, model(items(name)))
    assert fingerprint(model) == before


def test_a_mask_of_zeros_gives_finite_embeddings_that_know_nothing(name):
    model = small(name)
    parameters = dict(model.named_parameters())
    batch = items(name)
    if name == "bert":
        batch[:, 0] = 1  # the same [CLS] in every sentence
    zeros = {key: torch.zeros_like(parameters[key]) for key in model.maskable(model.stage_names[0])}
    out = functional_call(model, zeros, (batch,))
    assert out.isfinite().all()
    assert_close(out, out[:1].expand_as(out))


def test_every_masked_weight_gets_a_gradient_but_the_pooler(name):
    model = small(name)
    model(items(name)).square().sum().backward()
    without = {key for key in model.maskable(model.stage_names[0]) if model.get_parameter(key).grad is None}
    assert without == ({"stages.pooler.dense.weight"} if name == "bert" else set())


def test_many_masks_at_once_equal_one_at_a_time(name):
    # torch's fused attention on CPU has no batching rule; its plain form does.
    model = small(name)
    prefix, suffix = model.cut(model.stage_names[1])
    state = tuple(tensor.detach() for tensor in prefix(items(name)))
    weights = {key: model.get_parameter(key).detach() for key in model.maskable(model.stage_names[1])}
    generator = torch.Generator().manual_seed(3)
    logits = {key: torch.randn(2, *weight.shape, generator=generator) for key, weight in weights.items()}

    def loss(scores):
        masked = {key: weights[key] * torch.sigmoid(score) for key, score in scores.items()}
        return functional_call(suffix, masked, state)[:, ::2].square().mean()

    with sdpa_kernel(SDPBackend.MATH):
        together = vmap(grad(loss))(logits)
    for i in range(2):
        alone = grad(loss)({key: score[i] for key, score in logits.items()})
        assert all(torch.allclose(together[key][i], alone[key], rtol=1e-3, atol=1e-6) for key in alone)
    assert max(gradient.abs().max() for gradient in together.values()) > 1e-5


# Identity and determinism.


def test_weights_are_a_function_of_the_seed_alone(name):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = fingerprint(small(name, seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    assert fingerprint(small(name, seed=3)) == first
    assert fingerprint(small(name, seed=4)) != first


def test_fingerprint_sees_one_bit_and_no_memory_layout():
    model = small("resnet")
    before = fingerprint(model)
    assert len(before) == 16 and int(before, 16) >= 0
    assert fingerprint(copy.deepcopy(model).to(memory_format=torch.channels_last)) == before
    assert fingerprint(copy.deepcopy(model).to(torch.bfloat16)) != before
    expanded, whole = (torch.nn.Module() for _ in range(2))
    expanded.register_buffer("scale", torch.ones(()).expand(8))
    whole.register_buffer("scale", torch.ones(8))
    assert fingerprint(expanded) == fingerprint(whole)
    bits = model.get_parameter("stages.head.embedding.bias").detach().view(torch.int32)
    bits[0] ^= 1
    assert fingerprint(model) != before
    assert fingerprint(torch.nn.ModuleDict({"renamed": model})) != fingerprint(model)


def test_convolutions_start_as_torchvisions():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet(block="basic", depths=(1, 1, 1, 1), width=32)
    weight = model.get_parameter("stages.stage_4.0.conv1.weight")  # 128 channels in, 256 out
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.01)  # He, by fan-out


# Bad input.

BAD = [
    ({"family": "bart"}, "unknown model family 'bart'; did you mean 'bert'"),
    ({}, "unknown model family 'None'"),
    ({**SMALL["bert"], "layer": 3}, "bert has no key 'layer'; did you mean 'layers'"),
    ({**SMALL["bert"], "vocabulary": 9}, "bert has no key 'vocabulary'"),
    ({"family": "bert", "layers": 2}, "bert needs 'width'"),
    ({**SMALL["bert"], "heads": 3}, "width 16 is not a multiple of heads 3"),
    ({**SMALL["bert"], "layers": 0}, "layers must be a whole number of at least 1, got 0"),
    ({**SMALL["bert"], "pretrained": "./nowhere"}, "pretrained './nowhere' is not a folder; give a folder"),
    ({**SMALL["resnet"], "block": "botleneck"}, "unknown block 'botleneck'; did you mean 'bottleneck'"),
    ({**SMALL["resnet"], "depths": [1, 1, 1]}, "depths must be four numbers"),
    ({**SMALL["resnet"], "depths": [1, 1, 1, 1.5]}, r"depths\[3\] must be a whole number"),
    ({**SMALL["resnet"], "width_factor": 2}, "width_factor 2 needs block 'bottleneck'"),
    ({**SMALL["vit"], "patch": 24}, "resolution 64 is not a multiple of patch 24"),
]


@pytest.mark.parametrize(("architecture", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_impossible_architectures_are_one_clear_line(architecture, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(architecture, seed=0, **SIZES)
    assert "\n" not in str(caught.value)


def test_sizes_that_follow_from_the_data_are_asked_for():
    with pytest.raises(ValueError, match="bert needs 'vocabulary'"):
        build(SMALL["bert"], seed=0)
    with pytest.raises(ValueError, match="vit needs 'resolution'"):
        build(SMALL["vit"], seed=0)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="images are 32x32 pixels, this network was built for resolution 64"):
        small("vit")(torch.rand(1, 3, 32, 32))
    with pytest.raises(ValueError, match="images of 32 pixels are too small"):
        small("resnet")(torch.rand(1, 3, 32, 32))
    with pytest.raises(ValueError, match="sentences of 9 tokens exceed max_length 8"):
        small("bert", max_length=8)(items("bert"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 2}, "has num_hidden_layers 3, the architecture asks for 2"),
        ({"max_length": 600}, "has max_position_embeddings 512, the architecture asks for 600"),
    ],
)
def test_pretrained_weights_of_another_size_are_refused(pretrained, changes, message):
    with pytest.raises(ValueError, match=message):
        small("bert", pretrained=str(pretrained[0]), **changes)


def test_damaged_pretrained_weights_are_refused(pretrained, tmp_path):
    folder, network = pretrained
    with pytest.raises(ValueError, match="cannot be loaded: .*; give a folder with config.json"):
        small("bert", pretrained=str(tmp_path))
    weights = {key: weight for key, weight in network.state_dict().items() if "layer.2" not in key}
    network.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match="lacks 16 weights, such as 'encoder.layer.2"):
        small("bert", pretrained=str(tmp_path))
    damaged = (folder / "model.safetensors").read_bytes()[:1000]
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(ValueError, match="cannot be loaded: .*; give a folder with config.json"):
        small("bert", pretrained=str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")  # a pickle
    with pytest.raises(ValueError, match="cannot be loaded: .*; give a folder with config.json"):
        small("bert", pretrained=str(tmp_path))


def test_libraries_that_take_seconds_are_imported_when_a_network_is_built():
    program = (
        "import sys, subnet_utils.papers.break_it_down.tables, subnet_utils.core.notebook\n"
        "heavy = ('torchvision', 'transformers.modeling_utils')\n"
        "from subnet_utils import check, shards\n"
        "assert check.main(['tiny']) == 0 and shards.missing(shards.Study.load('tiny'))\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "from subnet_utils.models import build\n"
        "build({'family': 'bert', 'layers': 2, 'width': 8, 'heads': 2, 'mlp_width': 16}, seed=0, vocabulary=9)\n"
        "assert 'transformers.modeling_utils' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Stages of one's own.


def test_stages_hand_on_tuples():
    model = StagedModel({"first": torch.nn.Linear(2, 2), "second": torch.nn.Linear(2, 2)})
    with pytest.raises(TypeError, match="what comes before stage 'second' must return a tuple of tensors"):
        model(torch.ones(1, 2))


@pytest.mark.parametrize("unmasked", ["head", ("haed",)])
def test_unmasked_stages_are_names_of_stages(unmasked):
    with pytest.raises(ValueError, match="unmasked must be names of stages, got 'h"):
        StagedModel({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)}, unmasked=unmasked)
    model = StagedModel({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)}, unmasked=("head",))
    prefix, suffix = model.cut("head")
    assert model.maskable("body") == ("stages.body.weight",) and suffix.maskable("head") == ()
    assert prefix.maskable("body") == ("stages.body.weight",)


def test_convolutions_of_any_dimension_are_masked_and_recurrent_layers_are_not():
    kinds = [torch.nn.Conv1d, torch.nn.Conv3d, torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d]
    layers = [kind(2, 2, 1) for kind in kinds] + [torch.nn.LSTM(2, 2)]
    model = StagedModel({"only": torch.nn.ModuleList(layers)})
    assert model.maskable("only") == tuple(f"stages.only.{i}.weight" for i in range(4))
