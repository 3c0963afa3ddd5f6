"""Networks for small images: the simple CNN of *Are Neural Nets Modular?* (Table 5), and ResNets (He et al. 2016)."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from subnet_utils import torchvision_operators  # noqa: F401 - before torchvision is imported

SHIFT = 4
"""Pixels by which an image is moved at most."""
Layers = Iterator[tuple[str, nn.Module]]


class Pixels(nn.Module):
    """uint8 images [m, channels, r, r] -> floats from -1 to 1. augment: in training `moved`."""

    def __init__(self, *, augment: bool = False) -> None:
        super().__init__()
        self.augment = augment

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        pixels = images.to(torch.get_default_dtype()) / 127.5 - 1
        return moved(pixels) if self.augment and self.training else pixels


def moved(images: Tensor) -> Tensor:
    """Half of the images [m, channels, r, r] mirrored, all moved by up to `SHIFT` pixels each way; gray comes in."""
    count, channels, _, side = images.shape
    padded = nn.functional.pad(images, [SHIFT] * 4)
    mirrored = torch.rand(count, 1) < 0.5
    down, right = torch.randint(2 * SHIFT + 1, (2, count, 1)) + torch.arange(side)
    right = torch.where(mirrored, padded.shape[-1] - 1 - right, right)
    down, right = (positions.to(images.device) for positions in (down[:, None, :, None], right[:, None, None, :]))
    which, color = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    # one index a dimension: of another layout a small convolution on a CPU ends the process (torch 2.13)
    return padded[which, color, down, right]


def build(family: str, channels: int, classes: int, *, augment: bool = False, **sizes: Any) -> nn.Sequential:
    """A network, its last layer `output`. family: 'cnn' or 'resnet'; sizes: of `cnn_layers` or `resnet_layers`.

    torch's own random state draws the weights.
    """
    simple = family == "cnn"
    parts = OrderedDict(pixels=Pixels(augment=augment))
    parts.update((cnn_layers if simple else resnet_layers)(channels, **sizes))
    width = sizes["widths"][-1] if simple else 4 * sizes["width"]
    parts.update(mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), output=nn.Linear(width, classes))
    return nn.Sequential(parts)


def cnn_layers(inputs: int, widths: Sequence[int], dropout: Sequence[float]) -> Layers:
    """Table 5: four convolutions of 3 x 3, pooling after the first three, dropout after the last two."""
    drops = (0.0, 0.0, *dropout)
    for i, (outputs, drop) in enumerate(zip(widths, drops, strict=True), start=1):
        yield f"conv{i}", nn.Conv2d(inputs, outputs, 3, padding=1)
        yield f"relu{i}", nn.ReLU()
        if drop:
            yield f"dropout{i}", nn.Dropout(drop)
        if i < len(drops):
            yield f"pool{i}", nn.MaxPool2d(2)
        inputs = outputs


def resnet_layers(channels: int, depth: int, width: int) -> Layers:
    """He et al. (2016), section 4.2: (depth - 2) / 6 basic blocks at each of three sizes, with batch normalization."""
    from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

    yield from {"conv": conv3x3(channels, width), "norm": nn.BatchNorm2d(width), "relu": nn.ReLU()}.items()
    for size in range(3):
        outputs = width * 2**size
        for block in range((depth - 2) // 6):
            stride = 2 if size and not block else 1
            inputs = outputs // stride
            shorter = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs)) if stride > 1 else None
            yield f"block{size + 1}_{block + 1}", BasicBlock(inputs, outputs, stride, shorter)


def settle(network: nn.Sequential, batches: Iterable[Tensor]) -> nn.Sequential:
    """Set statistics of batch normalization to their means over batches of images, and the network to evaluation mode.

    Those that training leaves depend on its last steps, and on where it was interrupted; these on the weights alone.
    """
    device = next(network.parameters()).device
    network.eval()
    update_bn((network.pixels(images.to(device)) for images in batches), network[1:])
    return network.eval()
