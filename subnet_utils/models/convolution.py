"""Convolutions that obey autocast wherever they are run."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from subnet_utils.models.packing import is_vectorized

Network = TypeVar("Network", bound=nn.Module)


class Convolution(nn.Conv2d):
    """torch's convolution, in the precision of autocast within torch.vmap, too.

    torch.vmap takes a convolution apart before autocast has seen it.
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if is_vectorized(x) or is_vectorized(weight):
            dtype = autocast_type(x)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return super()._conv_forward(x, weight, bias)


def obeying_autocast(model: Network) -> Network:
    """The network itself, its convolutions as `Convolution`, their weights kept."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.__class__ = Convolution
    return model


def autocast_type(x: Tensor) -> torch.dtype:
    """Type of the numbers that a tensor is multiplied in: torch.autocast's, which leaves float64 alone."""
    kind = x.device.type
    narrowed = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if narrowed else x.dtype
