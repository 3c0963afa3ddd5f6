"""Scaled dot-product attention for short sequences."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, [..., heads, L, d] each.

    keep: booleans that broadcast to [..., heads, L, L], False where a key is padding; one key at least must be kept.

    On a CPU this is written out: torch's fused kernel is ten times slower there in bfloat16 (its backward pass, torch
    2.13), no faster in float32 at these lengths, and cannot be vectorized over masks.
    """
    if query.is_cuda:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(dim=-1) @ value
