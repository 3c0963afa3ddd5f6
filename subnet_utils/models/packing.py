"""Sentences without their padding: only real tokens pass through what works on each token alone.

A batch is as wide as its longest sentence, so about a quarter of it is padding even after trimming. Linear layers,
normalization and activations need no rectangle; attention alone does.
"""

import torch
from torch import Tensor

WORTH = 0.95
"""Share of real tokens from which on packing would cost as much as it saves."""
GRAIN = 128
"""Tokens are taken in multiples of this, with some padding among them: oneDNN prepares its products anew for every
shape that it has not seen, which takes as long as the product itself."""


def packed(keep: Tensor) -> Tensor | None:
    """Places of a batch's real tokens, counted row by row, and of enough padding to fill up the last GRAIN.

    None where packing does not pay or cannot be done. keep: booleans [m, L]. It does not pay on a GPU, which would have
    to wait for the count, and cannot be done within torch.vmap, where every network would have a count of its own.
    """
    if keep.is_cuda or is_vectorized(keep):
        return None
    count = -(-int(keep.sum()) // GRAIN) * GRAIN
    return (~keep).flatten().argsort(stable=True)[:count] if count < WORTH * keep.numel() else None


def is_vectorized(tensor: Tensor) -> bool:
    """Whether a tensor stands for many at once, within torch.vmap or another of torch's function transforms."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def spread(rows: Tensor, places: Tensor, n: int) -> Tensor:
    """Rows [k, d] at their places among n, 0 elsewhere."""
    return rows.new_zeros(n, *rows.shape[1:]).index_copy(0, places, rows)
