"""Soft masks applied to weights, and the penalty on their size: what a step of mask training adds to a plain one."""

from collections.abc import Mapping

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
    masked = {name: fused[name][0] if name in fused else weights[name] * soft[name] for name in logits}
    return masked, method.penalty({name: fused[name][1] if name in fused else soft[name] for name in logits})


class Annealed(torch.autograd.Function):
    """w sigma(beta s) and the sum of sigma(beta s), with fewer passes through memory than operator by operator: the
    same numbers and gradients to the last bit."""

    @staticmethod
    def forward(ctx, logits: Tensor, weight: Tensor, beta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The masked weight as `dtype`, and the sum of its mask; logits and weight are of one shape."""
        soft = (logits * beta).sigmoid_()
        ctx.save_for_backward(weight, soft)
        ctx.beta = beta
        return (weight * soft).to(dtype), soft.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, of_masked: Tensor, of_sum: Tensor) -> tuple[Tensor, None, None, None]:
        """(g w + h) sigma (1 - sigma) beta, for the gradients g of the masked weight and h of the sum."""
        weight, soft = ctx.saved_tensors
        change = of_masked * weight if of_masked.dtype == weight.dtype else of_masked.to(weight.dtype).mul_(weight)
        torch.ops.aten.sigmoid_backward.grad_input(change.add_(of_sum), soft, grad_input=change)
        return change.mul_(ctx.beta), None, None, None


def _precision(weight: Tensor) -> torch.dtype:
    """In which a weight is multiplied: torch.autocast's, which leaves float64 alone."""
    narrow = torch.is_autocast_enabled("cpu") and weight.dtype == torch.float32
    return torch.get_autocast_dtype("cpu") if narrow else weight.dtype
