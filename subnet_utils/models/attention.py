"""Scaled dot-product attention for short sequences."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from subnet_utils.models.packing import at_least_float32, is_vectorized

SHORT = 32
"""Scores in a row up to which softmax is written out on a CPU."""


def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, [..., heads, L, d] each.

    keep: booleans that broadcast to [..., heads, L, L], False where a key is padding; one key at least must be kept.

    On a CPU this is written out: torch's fused kernel is ten times slower there in bfloat16 (its backward pass, torch
    2.13), no faster in float32 at these lengths, and cannot be vectorized over masks. So it is on a GPU for many masks
    at once, where torch would take float32 for bfloat16.

    On a GPU equal seeds need not give equal bits beyond 64 tokens: torch's fused kernels share out longer rows of keys
    and add up the queries' gradients in whatever order they come, unless all of torch is set to be deterministic.
    """
    if query.is_cuda and not is_vectorized(query):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    scale = 1 / math.sqrt(query.shape[-1])
    if key.shape[-2] > max(SHORT, query.shape[-1]):  # fewer numbers than there are scores
        query, scale = scale * query, 1.0
    return softmax(query @ key.transpose(-1, -2), keep, scale) @ value


def softmax(scores: Tensor, keep: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * scores) over the last dimension, 0 where `keep`, which broadcasts to the scores, is False."""
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    if scores.is_cuda or scores.shape[-1] > SHORT:
        return (scores if scale == 1 else scale * scores).softmax(dim=-1)
    return ShortSoftmax.apply(scores, scale)


class ShortSoftmax(torch.autograd.Function):
    """Softmax over rows of a few numbers: on a CPU torch's kernel takes three times as long for rows shorter than its
    vectors, of which it handles one at a time. Computed in float32 at the least, as there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, scale: float) -> Tensor:
        """scores: [..., L], a finite one in each row."""
        exact = at_least_float32(scores)
        weights = ((exact - exact.amax(dim=-1, keepdim=True)) * scale).exp()
        return (weights / weights.sum(dim=-1, keepdim=True)).to(scores.dtype)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, float], output: Tensor) -> None:
        """Keep what the gradient needs: the result."""
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """scale p (g - sum p g)."""
        (result,) = ctx.saved_tensors
        weights = at_least_float32(result)
        weighted = weights * gradient
        inner = weighted.sum(dim=-1, keepdim=True)
        return ((weighted - weights * inner) * ctx.scale).to(gradient.dtype), None


def attend_once(
    query: Tensor, hidden: Tensor, key_weight: Tensor, value_weight: Tensor, keep: Tensor | None = None
) -> Tensor:
    """`attend` for one query an item, without the keys and values of its tokens: [m, width], but for the values' bias.

    query: [m, heads, d]; hidden: [m, L, width]; weights of the key and value projections: [width, width]; keep: [m, L].
    A score is q (K x) = (q K) x, and the weighted sum of values V x is V of the weighted sum of x. So both matrices
    meet one vector an item and head instead of L an item: the products are those of a single token. The keys' bias adds
    the same to all scores of an item, which softmax does not see.
    """
    heads, size = query.shape[-2:]
    probes = query.transpose(0, 1) @ key_weight.unflatten(0, (heads, size))
    scores = probes.transpose(0, 1) @ hidden.transpose(1, 2)
    read = softmax(scores, None if keep is None else keep[:, None, :], 1 / math.sqrt(size)) @ hidden
    return (read.transpose(0, 1) @ value_weight.unflatten(0, (heads, size)).transpose(1, 2)).transpose(0, 1).flatten(1)
