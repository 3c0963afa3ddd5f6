"""Image classifiers: ResNets and vision transformers with a linear layer for an answer.

*Instilling Inductive Biases with Subnetworks* (section 5.2, appendix C.1) uses ResNet18 and ViT-B/16, pretrained, with
a new classifier for 16 classes. The blocks are torchvision's. Given sizes make smaller networks of the same kind.

A state is `(images,)`: uint8 [m, 3, H, W], or floats in [0, 1]. The last stage, `classifier`, returns logits
[m, classes] and is never masked.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from subnet_utils.core.messages import first_line, nearest
from subnet_utils.models.layers import obeying_autocast
from subnet_utils.models.staged import StagedModel, require_positive
from subnet_utils.models.vision import TokenHead, pooling, residual_stages, transformer_stages, with_convolutions

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels: what torchvision's weights expect."""
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""What ViT's own weights expect, and what is used without published weights."""
CLASSIFIER = "classifier"
VIT_NAMES = {
    r"embeddings\.cls_token": "patches.class_token",
    r"embeddings\.position_embeddings": "patches.pos_embedding",
    r"embeddings\.patch_embeddings\.projection": "patches.conv_proj",
    r"attention\.[qkv]_proj\.": "self_attention.in_proj_",
    r"attention\.o_proj": "self_attention.out_proj",
    r"layernorm_before": "ln_1",
    r"layernorm_after": "ln_2",
    r"mlp\.fc1": "mlp.0",
    r"mlp\.fc2": "mlp.3",
    r"^layernorm": f"{CLASSIFIER}.ln",
    r"^layers\.(\d+)": lambda found: f"layer_{int(found[1]) + 1}",
}
"""Patterns of transformers' names of a ViT's parts, and ours."""
RESNET_NAMES = {r"^layer": "stage_", r"^fc": f"{CLASSIFIER}.fc", r"^(?=conv1|bn1)": "stem."}
"""Of torchvision's names of a ResNet's."""
TORCHVISION = "torchvision"
"""In place of a file: the weights that torchvision publishes, fetched from its server."""


class WeightsError(ValueError):
    """Published weights cannot be had or do not fit; the message names the file and the remedy."""


class Channels(nn.Module):
    """Images [m, 3, H, W], uint8 or floats in [0, 1] -> floats normalized channel by channel."""

    def __init__(self, statistics: tuple[Sequence[float], Sequence[float]]) -> None:
        super().__init__()
        self.mean, self.std = map(tuple, statistics)

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images."""
        values = images.to(torch.get_default_dtype()) / 255 if images.dtype == torch.uint8 else images
        mean, std = (_of_channels(numbers, values.dtype, values.device) for numbers in (self.mean, self.std))
        return (values - mean) / std


@lru_cache(maxsize=16)
def _of_channels(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers [3, 1, 1] on a device. They are sent once: to send them to a GPU means to wait for it."""
    return torch.tensor(numbers, dtype=dtype, device=device)[:, None, None]


NORMS = {"group": lambda channels: nn.GroupNorm(max(1, channels // 4), channels), "batch": nn.BatchNorm2d}


def resnet_classifier(
    *,
    classes: int,
    block: str = "basic",
    depths: Sequence[int] = (2, 2, 2, 2),
    width: int = 64,
    norm: str = "batch",
    small_stem: bool = False,
    pretrained: str | None = None,
) -> StagedModel:
    """A ResNet with stages `stem`, `stage_1` to `stage_4` and `classifier`; by default ResNet18.

    norm: 'batch', or 'group' for networks without running statistics; small_stem: a 3x3 convolution of stride 2 in
    place of the 7x7 one and the pooling after it. pretrained: a file (safetensors, or a state dict of tensors alone)
    with torchvision's names, or 'torchvision'; the classifier is drawn anew. Raises ValueError for sizes that make no
    network, WeightsError for weights that cannot be had or do not fit.
    """
    require_positive(classes=classes)
    if norm not in NORMS:
        raise ValueError(f"unknown norm '{norm}'; {nearest(norm, NORMS)}")
    pixels = Channels(IMAGENET if pretrained else HALF)
    stages, channels = residual_stages(pixels, NORMS[norm], block, depths, width, small_stem=small_stem)
    stages[CLASSIFIER] = nn.Sequential(OrderedDict([*pooling(), ("fc", nn.Linear(channels, classes))]))
    model = with_convolutions(StagedModel(stages, unmasked=(CLASSIFIER,)))
    if pretrained is not None:
        weights = {_renamed(name, RESNET_NAMES): tensor for name, tensor in _torchvision(pretrained).items()}
        _load(model, weights, pretrained)
    return model


def vit_classifier(
    *,
    classes: int,
    resolution: int,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    mlp_width: int = 3072,
    patch: int = 16,
    pretrained: str | None = None,
) -> StagedModel:
    """A vision transformer with stages `patches`, `layer_1` to `layer_n` and `classifier`; by default ViT-B/16.

    resolution: pixels a side. pretrained: a folder, or hub name, from which transformers loads a ViT; the classifier is
    drawn anew. Raises ValueError for sizes that make no network, WeightsError for weights that do not fit.
    """
    require_positive(classes=classes)
    sizes = {"layers": layers, "width": width, "heads": heads, "mlp_width": mlp_width}
    stages, norm = transformer_stages(Channels(HALF), resolution, patch, **sizes)
    stages[CLASSIFIER] = TokenHead(OrderedDict([("ln", norm), ("fc", nn.Linear(width, classes))]))
    model = obeying_autocast(StagedModel(stages, unmasked=(CLASSIFIER,)))
    if pretrained is not None:
        weights, epsilon = _transformers(pretrained, layers, heads)
        _load(model, weights, pretrained)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = epsilon
    return model


def _torchvision(source: str) -> Mapping[str, Tensor]:
    """A state dict with torchvision's names. Nothing but tensors is read from a file."""
    if source == TORCHVISION:
        from torchvision.models import ResNet18_Weights  # seconds to import, needed by few

        try:
            return ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True, weights_only=True)
        except OSError as error:
            message = f"torchvision's weights cannot be fetched ({error}); give 'pretrained' a local file"
            raise WeightsError(message) from None
    path = Path(source)
    if not path.is_file():
        raise WeightsError(f"no file {source}; give 'pretrained' a file of weights, or '{TORCHVISION}' to fetch them")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes the two libraries raise
        raise WeightsError(f"{source} cannot be read as weights: {first_line(error)}; get a new one") from None


def _renamed(name: str, ours: Mapping[str, Any]) -> str:
    """Our name of a weight."""
    for pattern, replacement in ours.items():
        name = re.sub(pattern, replacement, name)
    return f"stages.{name}"


def _transformers(source: str, layers: int, heads: int) -> tuple[dict[str, Tensor], float]:
    """The weights of a transformers ViT by our names, and the epsilon of its normalizations."""
    from transformers import ViTModel  # seconds to import, needed by few

    try:
        options = {"add_pooling_layer": False, "use_safetensors": True, "output_loading_info": True}
        found, report = ViTModel.from_pretrained(source, **options)
    except Exception as error:  # transformers, its hub client and safetensors raise many unrelated types
        raise WeightsError(f"no ViT in {source}: {first_line(error)}; give a folder or hub name") from None
    sizes = {"layers": (found.config.num_hidden_layers, layers), "heads": (found.config.num_attention_heads, heads)}
    for what, (theirs, ours) in sizes.items():
        if theirs != ours:
            raise WeightsError(f"{source} has {theirs} {what}, the network {ours}; make them equal")
    if missing := sorted(report["missing_keys"]):  # transformers draws them at random
        raise WeightsError(f"{source} lacks {len(missing)} weights, such as '{missing[0]}'; fetch it again")
    renamed = {}
    for name, tensor in found.state_dict().items():
        renamed.setdefault(_renamed(name, VIT_NAMES), []).append(tensor)
    # torch's attention has query, key and value in one matrix: they come in this order
    return {name: torch.cat(parts) for name, parts in renamed.items()}, found.config.layer_norm_eps


def _load(model: StagedModel, weights: Mapping[str, Tensor], source: str) -> None:
    """Put weights into all of a network but its classifier's linear layer. Raises WeightsError if they do not fit."""
    own = model.state_dict()
    # older files do not count batches, and nothing depends on the count
    passed = (f"stages.{CLASSIFIER}.fc.", "num_batches_tracked")
    needed = {name for name in own if not name.startswith(passed[0]) and not name.endswith(passed[1])}
    for name in sorted(needed):
        if name not in weights:
            raise WeightsError(f"{source} has no '{name.removeprefix('stages.')}'; is it of another architecture?")
        if weights[name].shape != own[name].shape:
            shapes = f"{tuple(weights[name].shape)}, the network {tuple(own[name].shape)}"
            raise WeightsError(f"'{name.removeprefix('stages.')}' in {source} is {shapes}; make the sizes equal")
    model.load_state_dict({name: weights[name] for name in needed}, strict=False)
