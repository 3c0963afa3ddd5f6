"""Soft masks applied to weights, and the penalty on their size: what a step of mask training adds to a plain one."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from subnet_utils.masks.methods import ContinuousSparsification, MaskMethod
from subnet_utils.models.packing import is_vectorized

LARGE = 2**17
"""Entries from which on a weight is masked in one function: below, calling it takes longer than it saves."""


def masked_weights(
    method: MaskMethod,
    weights: Mapping[str, Tensor],
    logits: Mapping[str, Tensor],
    epoch: int,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], Tensor]:
    """The weights that have logits, times their soft masks, and the penalty of `method`.

    Within torch.autocast a large weight comes in the precision in which it will be multiplied.
    """
    fused = {}
    if type(method) is ContinuousSparsification:  # one derived from it may say something else about its mask
        fused = {
            name: Annealed.apply(s, weights[name], method.beta_of(name, epoch), _precision(weights[name]))
            for name, s in logits.items()
            if s.numel() >= LARGE and not s.is_cuda and not is_vectorized(s)
        }
    soft = method.soft({name: s for name, s in logits.items() if name not in fused}, epoch, generator)
    masked = {
        # a mask of float32 leaves a bfloat16 network what it is
        name: fused[name][0] if name in fused else (weights[name] * soft[name]).to(weights[name].dtype)
        for name in logits
    }
    return masked, method.penalty({name: fused[name][1] if name in fused else soft[name] for name in logits}, logits)


class FlatMasks:
    """Masks of all weights of a network as one tensor, for a GPU: to start an operation takes it as long as to mask a
    small weight, so a dozen over all entries are faster than a dozen for every weight.

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
        """None on a CPU, and for a method other than continuous sparsification at one temperature for all weights."""
        possible = type(method) is ContinuousSparsification and weights[names[0]].is_cuda
        if not possible or len({method.beta_of(name, 0) for name in names}) > 1:
            return None
        return cls(method, weights, names, k)

    def __call__(self, epoch: int) -> tuple[dict[str, Tensor], Tensor]:
        """The masked weights, [k, *shape], and the penalties [k]: what `masked_weights` gives, mask by mask."""
        beta = self.method.beta_of(self.first, epoch)
        masked, size = Annealed.apply(self.logits, self.weights, beta, _precision(self.weights))
        return self._by_name(masked), self.method.l0 * size

    def _by_name(self, entries: Tensor) -> dict[str, Tensor]:
        parts = entries.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


class Annealed(torch.autograd.Function):
    """w sigma(beta s) and the sum of sigma(beta s), with fewer passes through memory than operator by operator: the
    same numbers and gradients to the last bit."""

    @staticmethod
    def forward(ctx, logits: Tensor, weight: Tensor, beta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The masked weight as `dtype`, and the sum of its mask. Logits and weight are of one shape, or the logits are
        [k, entries] for a weight [entries], and so are the sums [k]."""
        soft = (logits * beta).sigmoid_()
        ctx.save_for_backward(weight, soft)
        ctx.beta = beta
        return (weight * soft).to(dtype), soft.sum() if soft.ndim == weight.ndim else soft.sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, of_masked: Tensor, of_sum: Tensor) -> tuple[Tensor, None, None, None]:
        """(g w + h) sigma (1 - sigma) beta, for the gradients g of the masked weight and h of the sum."""
        weight, soft = ctx.saved_tensors
        change = of_masked * weight if of_masked.dtype == weight.dtype else of_masked.to(weight.dtype).mul_(weight)
        torch.ops.aten.sigmoid_backward.grad_input(change.add_(of_sum.unsqueeze(-1)), soft, grad_input=change)
        return change.mul_(ctx.beta), None, None, None


def _precision(weight: Tensor) -> torch.dtype:
    """In which a weight is multiplied: torch.autocast's, which leaves float64 alone."""
    device = weight.device.type
    narrow = torch.is_autocast_enabled(device) and weight.dtype == torch.float32
    return torch.get_autocast_dtype(device) if narrow else weight.dtype
