"""Convolutions that obey autocast wherever they are run."""

import torch
from torch import Tensor, nn

from subnet_utils.models.packing import is_vectorized


class Convolution(nn.Conv2d):
    """torch's convolution, in the precision of autocast within torch.vmap, too.

    torch.vmap takes a convolution apart before autocast has seen it.
    """

    @classmethod
    def of(cls, conv: nn.Conv2d) -> "Convolution":
        """The convolution itself, as one of these."""
        conv.__class__ = cls
        return conv

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if is_vectorized(x) or is_vectorized(weight):
            dtype = _precision(x)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return super()._conv_forward(x, weight, bias)


def obeying_autocast(block: nn.Module) -> nn.Module:
    """The block itself, its convolutions as `Convolution`, their weights kept."""
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            Convolution.of(module)
    return block


def _precision(x: Tensor) -> torch.dtype:
    """Type of the numbers that maps are convolved with."""
    kind = x.device.type
    narrowed = torch.is_autocast_enabled(kind) and x.dtype != torch.float64  # which autocast leaves alone
    return torch.get_autocast_dtype(kind) if narrowed else x.dtype
