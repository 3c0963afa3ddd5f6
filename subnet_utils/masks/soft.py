"""Soft masks applied to weights, and the penalty on their size: what a step of mask training adds to a plain one."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from subnet_utils.masks.methods import ContinuousSparsification, MaskMethod
from subnet_utils.models.layers import autocast_type


def masked_weights(
    method: MaskMethod,
    weights: Mapping[str, Tensor],
    logits: Mapping[str, Tensor],
    epoch: int,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], Tensor]:
    """The weights that have logits, times their soft masks, and the penalty of `method`."""
    soft = method.soft(logits, epoch, generator)
    # a mask of float32 leaves a bfloat16 network what it is
    masked = {name: (weights[name] * mask).to(weights[name].dtype) for name, mask in soft.items()}
    return masked, method.penalty(soft, logits)


class FlatMasks:
    """Masks of all weights of a network as one tensor, for a GPU.

    A GPU takes as long to start an operation as to mask a small weight. So a dozen operations over all entries are
    faster than a dozen for every weight.

    logits: what is trained, [k, entries] for k masks of the network; views: the same memory by name, [k, *shape]. Made
    by `of`, where that is possible.
    """

    def __init__(self, method: ContinuousSparsification, weights: Mapping[str, Tensor], names: Sequence[str], k: int):
        self.method, self.first = method, names[0]
        self.shapes = {name: weights[name].shape for name in names}
        self.weights = torch.cat([weights[name].flatten() for name in names])
        self.logits = torch.empty(k, len(self.weights), device=self.weights.device)
        self.views = self._by_name(self.logits)

    @classmethod
    def of(cls, method: MaskMethod, weights: Mapping[str, Tensor], names: Sequence[str], k: int) -> "FlatMasks | None":
        """None on a CPU, and for a method other than continuous sparsification at one temperature for all weights.

        None also for one logit a row.
        """
        possible = type(method) is ContinuousSparsification and weights[names[0]].is_cuda
        if not possible or method.units != "weights" or len({method.beta_of(name, 0) for name in names}) > 1:
            return None
        return cls(method, weights, names, k)

    def __call__(self, epoch: int) -> tuple[dict[str, Tensor], Tensor]:
        """The masked weights, [k, *shape], and the penalties [k]: what `masked_weights` gives, mask by mask.

        Within torch.autocast the weights come in the precision in which they will be multiplied, by one conversion.
        """
        soft = torch.sigmoid(self.method.beta_of(self.first, epoch) * self.logits)
        masked = (self.weights * soft).to(autocast_type(self.weights))
        return self._by_name(masked), self.method.l0 * soft.sum(dim=1)

    def _by_name(self, entries: Tensor) -> dict[str, Tensor]:
        parts = entries.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
