"""The networks of *Are Neural Nets Modular?*, section 5: a simple CNN (Table 5), and ResNets for small images."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from subnet_utils import torchvision_operators  # noqa: F401 - before torchvision is imported
from subnet_utils.papers.functional_modularity.image_section import Convolutional, Residual

SHIFT = 4
"""Pixels by which an image is moved at most."""


class Pixels(nn.Module):
    """uint8 images [m, channels, r, r] -> floats from -1 to 1. augment: in training mirrored and shifted at random."""

    def __init__(self, *, augment: bool = False) -> None:
        super().__init__()
        self.augment = augment

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        pixels = images.float() / 127.5 - 1
        return shifted(mirrored(pixels)) if self.augment and self.training else pixels


def mirrored(images: Tensor) -> Tensor:
    """Half of the images [m, channels, r, r], left-right."""
    chosen = torch.rand(len(images)).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def shifted(images: Tensor) -> Tensor:
    """Every image moved by up to `SHIFT` pixels each way; what comes in is gray."""
    count, channels, _, side = images.shape
    padded = nn.functional.pad(images, [SHIFT] * 4)
    down, right = torch.randint(2 * SHIFT + 1, (2, count, 1)).to(images.device) + torch.arange(side).to(images.device)
    which, color = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    # one index a dimension: of another layout a small convolution on a CPU ends the process (torch 2.13)
    return padded[which, color, down[:, None, :, None], right[:, None, None, :]]


def build(architecture: Convolutional | Residual, channels: int, classes: int, *, augment: bool = False) -> nn.Module:
    """The network that a section describes. Its weights are drawn from torch's own random state."""
    pixels, of = Pixels(augment=augment), (channels, classes)
    if architecture.family == "cnn":
        return cnn(pixels, *of, widths=architecture.widths, dropout=architecture.dropout)
    return resnet(pixels, *of, depth=architecture.depth, width=architecture.width)


def cnn(
    pixels: nn.Module, channels: int, classes: int, *, widths: Sequence[int], dropout: Sequence[float]
) -> nn.Sequential:
    """Table 5: four convolutions of 3 x 3, pooling after the first three, a mean over places, a linear layer."""
    parts, drops = OrderedDict(pixels=pixels), (0.0, 0.0, *dropout)
    for i, (inputs, outputs, drop) in enumerate(zip((channels, *widths), widths, drops, strict=False), start=1):
        parts |= {f"conv{i}": nn.Conv2d(inputs, outputs, 3, padding=1), f"relu{i}": nn.ReLU()}
        parts |= {f"dropout{i}": nn.Dropout(drop)} if drop else {}
        parts |= {f"pool{i}": nn.MaxPool2d(2)} if i < len(widths) else {}
    return _with_output(parts, widths[-1], classes)


def resnet(pixels: nn.Module, channels: int, classes: int, *, depth: int, width: int) -> nn.Sequential:
    """He et al. (2016), section 4.2: (depth - 2) / 6 basic blocks at each of three sizes, with batch normalization."""
    from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

    parts = OrderedDict(pixels=pixels, conv=conv3x3(channels, width), norm=nn.BatchNorm2d(width), relu=nn.ReLU())
    inputs = width
    for size in range(3):
        outputs = width * 2**size
        for block in range((depth - 2) // 6):
            stride = 2 if size and not block else 1
            shorter = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs)) if stride > 1 else None
            parts[f"block{size + 1}_{block + 1}"] = BasicBlock(inputs, outputs, stride, shorter)
            inputs = outputs
    return _with_output(parts, inputs, classes)


def _with_output(parts: OrderedDict[str, nn.Module], inputs: int, classes: int) -> nn.Sequential:
    parts |= {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "output": nn.Linear(inputs, classes)}
    return nn.Sequential(parts)


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    """The layers whose running statistics have to be right."""
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


@torch.no_grad()
def settle(network: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Set the running statistics to their means over batches, and the network to evaluation mode.

    Those that training leaves depend on its last steps, and on where it was interrupted; these on the weights alone.
    """
    network.eval()
    for norm in norms(network):
        norm.train()
    for number, images in enumerate(batches, start=1):
        for norm in norms(network):
            norm.momentum = 1 / number
        network(images)
    for norm in norms(network):
        norm.momentum = 0.1  # torch's own
        norm.num_batches_tracked.zero_()
    return network.eval()
