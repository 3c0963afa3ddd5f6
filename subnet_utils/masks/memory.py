"""Masks that do not fit into memory at once are trained in parts."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from subnet_utils.models.frozen import out_of_memory

TOO_MANY: dict[tuple[str, ...], int] = {}
"""The smallest number of masks that this process could not train at once, by what they are masks of."""


def in_parts(
    train: Callable[[Sequence[Any], tuple[int, ...]], list[Any]], masks: Sequence[Any],
    positions: tuple[int, ...] = (), *, of: tuple[str, ...], split: bool = True, label: str,
) -> list[Any]:  # fmt: skip
    """Train masks at once; if memory runs out, one half after the other, and one by one what cannot be vectorized.

    train(masks, positions): what is found of each; positions: those of the masks among all, if these are not all. of:
    network and start, for which is remembered how many were too many: as many are halved from then on without a trial.
    split: False to try them at once or not at all. Raises torch.OutOfMemoryError if memory runs out with one mask,
    MemoryError if several that must not be split cannot be trained at once.
    """
    count, half = len(masks), (len(masks) + 1) // 2
    if not split or count < TOO_MANY.get(of, math.inf):
        try:
            return train(masks, positions)
        except (RuntimeError, MemoryError) as error:
            # an operation, such as an LSTM's, that torch.vmap has no rule for
            without_vmap = "vmap" in str(error) or "batching rule" in str(error).lower()
            if count > 1 and without_vmap:
                too_many = 2
                said = f"{count} masks cannot be trained at once ({str(error).splitlines()[0]}); one by one"
            elif not out_of_memory(error):
                raise
            elif count == 1:
                remedy = "lower compute.workers, compute.cache_limit_gb or masks.batch_size"
                raise torch.OutOfMemoryError(f"{label}: out of memory with one mask; {remedy}") from error
            else:
                too_many, said = count, f"out of memory with {count} masks at once; trying {half}"
        # not in the handler, whose exception keeps the tensors of the attempt alive
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # so that libraries that allocate for themselves find something, too
        if not split:
            raise MemoryError(f"{count} masks at once do not fit into memory")
        TOO_MANY[of] = too_many
        print(f"{label}: {said}", file=sys.stderr, flush=True)
    own = positions or tuple(range(count))
    return [found for part in (slice(half), slice(half, None))
            for found in in_parts(train, masks[part], own[part], of=of, label=label)]  # fmt: skip
