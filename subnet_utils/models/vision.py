"""Vision networks: residual networks and vision transformers with an embedding head.

*Break It Down* (section 5, appendices B and D) uses ResNet50, Wide ResNet50-2 and ViT. The blocks are torchvision's; we
put them together ourselves so that depth and width are free, and replace batch normalization by instance normalization
without parameters or running statistics, so that an item's embedding does not depend on its batch.

A state is `(images,)`: uint8 [m, 3, H, W], or floats in [0, 1].
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from subnet_utils.core.messages import nearest
from subnet_utils.models.layers import attend, obeying_autocast
from subnet_utils.models.staged import StagedModel, require_multiple, require_positive

MEAN, STD = 0.9, 0.1
"""Pixel statistics that the images are normalized with: white becomes +1, black -9."""
BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


class Stage(nn.Sequential):
    """A chain of modules over a state of one tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """The next state."""
        return (super().forward(x),)


class InstanceNorm(nn.GroupNorm):
    """Instance normalization without parameters, as group normalization with one channel a group.

    The same numbers as nn.InstanceNorm2d, in the precision of the maps also on a GPU.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [m, C, H, W] with mean 0 and variance 1 each, in the precision of x."""
        if x.is_cuda:
            with torch.autocast("cuda", enabled=False):  # which would widen all maps; sums are in float32 anyway
                return super().forward(x)
        return super().forward(x)


class Pixels(nn.Module):
    """Images [m, 3, H, W], uint8 or floats in [0, 1] -> normalized floats.

    reduction: pixels to a side of one cell of the last feature map; 0 where nothing depends on it.
    """

    def __init__(self, reduction: int) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images. Raises ValueError if the last map would be one cell, which is normalized to 0."""
        resolution = min(images.shape[-2:])
        if resolution <= self.reduction:
            raise ValueError(f"images of {resolution} pixels are too small for this network; use over {self.reduction}")
        if images.dtype == torch.uint8:
            pixels = images.to(torch.get_default_dtype())
            return pixels.mul_(1 / (255 * STD)).sub_(MEAN / STD)  # in place: one copy of the images, not three
        return (images - MEAN) / STD


def resnet(
    *,
    block: str,
    depths: Sequence[int],
    width: int,
    width_factor: int = 1,
    head_width: int = 2048,
    embedding: int = 128,
    small_stem: bool = False,
) -> StagedModel:
    """A residual network with stages `stem`, `stage_1` to `stage_4` and `head`.

    block: 'basic' or 'bottleneck'; depths: blocks in each of the four stages; width: channels of the first stage,
    doubled from stage to stage; width_factor: 2 doubles the inner width of bottlenecks (Wide ResNet50-2); head: average
    pooling, then an MLP with one hidden layer of head_width; small_stem: for small images a 3x3 convolution of stride 2
    in place of the 7x7 one and the pooling after it. ResNet50 is ('bottleneck', (3, 4, 6, 3), 64). Raises ValueError
    for sizes that make no network.
    """
    require_positive(width_factor=width_factor, head_width=head_width, embedding=embedding)
    if block == "basic" and width_factor != 1:
        raise ValueError(f"width_factor {width_factor} needs block 'bottleneck'; use 1 with basic blocks")
    pixels = Pixels(reduction=16 if small_stem else 32)
    options = {"small_stem": small_stem, "width_factor": width_factor}
    stages, channels = residual_stages(pixels, InstanceNorm, block, depths, width, **options)
    stages["head"] = nn.Sequential(OrderedDict([*pooling(), *_mlp(channels, head_width, embedding)]))
    return with_convolutions(StagedModel(stages))


def residual_stages(
    pixels: nn.Module,
    norm: Callable[[int], nn.Module],
    block: str,
    depths: Sequence[int],
    width: int,
    *,
    small_stem: bool,
    width_factor: int = 1,
) -> tuple[dict[str, nn.Module], int]:
    """The stages `stem` and `stage_1` to `stage_4`, and their number of output channels.

    Raises ValueError for sizes that make no network.
    """
    if block not in BLOCKS:
        raise ValueError(f"unknown block '{block}'; {nearest(block, BLOCKS)}")
    if not isinstance(depths, Sequence) or len(depths) != 4:
        raise ValueError(f"depths must be four numbers, one per stage, got {depths!r}")
    require_positive(width=width, **{f"depths[{i}]": depth for i, depth in enumerate(depths)})
    kernel = 3 if small_stem else 7
    stem = OrderedDict(
        pixels=pixels, conv1=nn.Conv2d(3, width, kernel, stride=2, padding=kernel // 2, bias=False), bn1=norm(width)
    )
    if not small_stem:
        stem["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    stem["relu"] = nn.ReLU()  # after pooling: the largest of rectified values is the rectified largest one
    stages, channels, make = {"stem": Stage(stem)}, width, BLOCKS[block]
    options = {"base_width": 64 * width_factor, "norm_layer": norm}
    for i, depth in enumerate(depths):
        stride, planes = (1 if i == 0 else 2), width * 2**i
        out, downsample = planes * make.expansion, None
        if stride != 1 or channels != out:
            downsample = nn.Sequential(conv1x1(channels, out, stride), norm(out))
        blocks = [make(channels, planes, stride, downsample, **options)]
        blocks += [make(out, planes, **options) for _ in range(1, depth)]
        stages[f"stage_{i + 1}"], channels = Stage(*blocks), out
    return stages, channels


def pooling() -> list[tuple[str, nn.Module]]:
    """The mean of each channel."""
    return [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]


def _mlp(inputs: int, hidden: int, outputs: int) -> list[tuple[str, nn.Module]]:
    """The embedding head's two linear layers with a ReLU between them."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    return [("hidden", first), ("relu", nn.ReLU()), ("embedding", second)]


def with_convolutions(model: StagedModel) -> StagedModel:
    """The network itself, its convolutions drawn by He's initialization by fan-out, as torchvision's ResNet."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return obeying_autocast(model)


class Patches(nn.Module):
    """Images -> tokens [m, 1 + patches, width]: a class token and projected patches, plus positions."""

    def __init__(self, transformer: VisionTransformer, pixels: nn.Module) -> None:
        super().__init__()
        self.resolution, self.pixels = transformer.image_size, pixels
        self.conv_proj = transformer.conv_proj
        self.class_token = transformer.class_token
        self.pos_embedding = transformer.encoder.pos_embedding

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """The first hidden state. Raises ValueError for images of another resolution than the network's."""
        if images.shape[-2:] != (self.resolution, self.resolution):
            size = "x".join(str(side) for side in images.shape[-2:])
            raise ValueError(f"images are {size} pixels, this network was built for resolution {self.resolution}")
        patches = self.conv_proj(self.pixels(images)).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(images), -1, -1).to(patches.dtype)
        return (torch.cat([token, patches], dim=1) + self.pos_embedding,)


class TransformerLayer(nn.Module):
    """One encoder block of torchvision's vision transformer.

    The attention is written out: nn.MultiheadAttention takes another path in evaluation mode, which rounds differently
    and cannot be vectorized over masks. first_only: compute the new hidden state of the class token alone.
    """

    def __init__(self, block: EncoderBlock, *, first_only: bool) -> None:
        super().__init__()
        self.first_only = first_only
        self.ln_1, self.self_attention = block.ln_1, block.self_attention
        self.ln_2, self.mlp = block.ln_2, block.mlp

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        """Hidden state [m, tokens, width] -> the next one, [m, 1, width] with first_only."""
        normal = self.ln_1(hidden)
        if self.first_only:
            hidden = hidden[:, :1]
        hidden = hidden + self.self_attention.out_proj(self._attend(normal, hidden.shape[1]))
        return (hidden + self.mlp(self.ln_2(hidden)),)

    def _attend(self, normal: Tensor, readers: int) -> Tensor:
        """What the first tokens, so many, read of all."""
        attention = self.self_attention
        projected = functional.linear(normal, attention.in_proj_weight, attention.in_proj_bias)
        query, key, value = (
            part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in projected.chunk(3, dim=-1)
        )
        return attend(query[:, :, :readers], key, value).transpose(1, 2).flatten(2)


class TokenHead(nn.Sequential):
    """A chain of modules over the class token."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden state [m, tokens, width] -> embeddings [m, embedding], or logits."""
        return super().forward(hidden[:, 0])


def vit(
    *,
    layers: int,
    width: int,
    heads: int,
    mlp_width: int,
    patch: int,
    resolution: int,
    head_width: int = 2048,
    embedding: int = 128,
) -> StagedModel:
    """A vision transformer with stages `patches`, `layer_1` to `layer_n` and `head`.

    The paper's (appendix D): 6 or 12 layers, width 768, 12 heads, mlp_width 3072, patches of 16 x 16 pixels.
    Raises ValueError for sizes that make no network.
    """
    require_positive(head_width=head_width, embedding=embedding)
    sizes = {"layers": layers, "width": width, "heads": heads, "mlp_width": mlp_width}
    stages, norm = transformer_stages(Pixels(reduction=0), resolution, patch, **sizes)
    stages["head"] = TokenHead(OrderedDict([("ln", norm), *_mlp(width, head_width, embedding)]))
    return obeying_autocast(StagedModel(stages))


def transformer_stages(
    pixels: nn.Module, resolution: int, patch: int, *, layers: int, width: int, heads: int, mlp_width: int
) -> tuple[dict[str, nn.Module], nn.Module]:
    """The stages `patches` and `layer_1` to `layer_n`, and the normalization that follows them.

    Raises ValueError for sizes that make no network.
    """
    require_positive(layers=layers, width=width, heads=heads, mlp_width=mlp_width, patch=patch, resolution=resolution)
    require_multiple(width, heads)
    if resolution % patch:
        raise ValueError(f"resolution {resolution} is not a multiple of patch {patch}; choose one that divides it")
    transformer = VisionTransformer(resolution, patch, layers, heads, width, mlp_width)
    stages = {"patches": Patches(transformer, pixels)}
    for i, block in enumerate(transformer.encoder.layers):
        stages[f"layer_{i + 1}"] = TransformerLayer(block, first_only=i == layers - 1)
    return stages, transformer.encoder.ln
