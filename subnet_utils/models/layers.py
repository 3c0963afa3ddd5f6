"""What layers are made of here: attention, convolutions that obey autocast, sentences without their padding."""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

WORTH = 0.95
"""Share of real tokens from which on packing would cost as much as it saves."""
GRAIN = 128
"""Tokens are taken in multiples of this, with some padding among them: oneDNN prepares its products anew for every
shape that it has not seen, which takes as long as the product itself."""
Network = TypeVar("Network", bound=nn.Module)


def is_vectorized(tensor: Tensor) -> bool:
    """Whether a tensor stands for many at once, within torch.vmap or another of torch's function transforms."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d)) v: query [..., heads, readers, d], key and value [..., heads, L, d].

    keep: booleans that broadcast to [..., heads, readers, L], False where a key is padding, not for all of a row.

    Written out on a CPU, where torch's fused kernel is slower in bfloat16, and for many masks at once, over which the
    fused kernels cannot be vectorized. On a GPU equal seeds need not give equal bits beyond 64 tokens: there gradients
    are added up in whatever order they come.
    """
    if query.is_cuda and not is_vectorized(query):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(dim=-1) @ value


class Convolution(nn.Conv2d):
    """torch's convolution, in the precision of autocast within torch.vmap, too, which takes it apart too early."""

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


def packed(keep: Tensor) -> Tensor | None:
    """Places of a batch's real tokens, counted row by row, and of enough padding to fill up the last GRAIN.

    About a quarter of a batch is padding. Linear layers, normalization and activations need no rectangle; attention
    alone does. keep: booleans [m, L]. None where packing does not pay, as on a GPU, which would have to wait for the
    count, and within torch.vmap, where every network would have a count of its own.
    """
    if keep.is_cuda or is_vectorized(keep):
        return None
    count = -(-int(keep.sum()) // GRAIN) * GRAIN
    return (~keep).flatten().argsort(stable=True)[:count] if count < WORTH * keep.numel() else None


def spread(rows: Tensor, positions: Tensor, n: int) -> Tensor:
    """Rows [k, d] at their positions among n, 0 elsewhere."""
    return rows.new_zeros(n, *rows.shape[1:]).index_copy(0, positions, rows)
