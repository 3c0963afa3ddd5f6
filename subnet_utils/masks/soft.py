"""Soft masks applied to weights, and the penalty on their size: what a step of mask training adds to a plain one."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from subnet_utils.core.seeds import uniform_like
from subnet_utils.masks.methods import ContinuousSparsification, GumbelSigmoid, HardConcrete, MaskMethod
from subnet_utils.models.frozen import out_of_memory
from subnet_utils.models.layers import autocast_type
from subnet_utils.models.staged import for_each


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


class Flat:
    """Masks of all weights of a network as one tensor, for a GPU.

    A GPU takes as long to start an operation as to mask a small weight. So a dozen operations over all entries are
    faster than a dozen for every weight.

    logits: what is trained, [k, entries] for k masks of the network; views: the same memory by name, [k, *shape].
    narrow: within torch.autocast the weights come in the precision in which they will be multiplied, by one conversion.
    """

    def __init__(
        self, method: MaskMethod, weights: Mapping[str, Tensor], names: Sequence[str], k: int, *, narrow: bool = True
    ):
        self.method, self.first, self.narrow = method, names[0], narrow
        self.at_once, self.tried = narrow, False
        self.shapes = {name: weights[name].shape for name in names}
        self.weights = torch.cat([weights[name].flatten() for name in names])
        self.logits = torch.empty(k, len(self.weights), device=self.weights.device)
        self.views = self._by_name(self.logits)

    @property
    def dtype(self) -> torch.dtype:
        """Of the masked weights."""
        return autocast_type(self.weights) if self.narrow else self.weights.dtype

    def _by_name(self, entries: Tensor) -> dict[str, Tensor]:
        parts = entries.split([math.prod(shape) for shape in self.shapes.values()], dim=-1)
        return {name: part.unflatten(-1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


class FlatMasks(Flat):
    """Continuous sparsification of k masks at once. Made by `of`, where that is possible."""

    @classmethod
    def of(
        cls, method: MaskMethod, weights: Mapping[str, Tensor], names: Sequence[str], k: int, **options: bool
    ) -> "FlatMasks | None":
        """None on a CPU, and for a method other than continuous sparsification at one temperature for all weights.

        None also for one logit a row.
        """
        possible = type(method) is ContinuousSparsification and _on_one_gpu(weights, names)
        if not possible or method.units != "weights" or len({method.beta_of(name, 0) for name in names}) > 1:
            return None
        return cls(method, weights, names, k, **options)

    def __call__(self, epoch: int) -> tuple[dict[str, Tensor], Tensor]:
        """The masked weights, [k, *shape], and the penalties [k]: what `masked_weights` gives, mask by mask."""
        soft = torch.sigmoid(self.method.beta_of(self.first, epoch) * self.logits)
        masked = (self.weights * soft).to(self.dtype)
        return self._by_name(masked), self.method.l0 * soft.sum(dim=1)


class FlatDraws(Flat):
    """All draws of one mask at once, by a method that draws. Made by `of`, where that is possible."""

    @classmethod
    def of(
        cls, method: MaskMethod, weights: Mapping[str, Tensor], names: Sequence[str], k: int, **options: bool
    ) -> "FlatDraws | None":
        """None on a CPU, for another method or several masks, and for one logit a row."""
        possible = type(method) in (GumbelSigmoid, HardConcrete) and k == 1 and _on_one_gpu(weights, names)
        return cls(method, weights, names, k, **options) if possible and method.units == "weights" else None

    def __call__(self, count: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        """The masked weights of so many draws, [count, *shape], and the penalty."""
        uniform = uniform_like(self.logits.expand(count, -1), generator)
        draw = _fused if uniform.numel() >= WORTH_COMPILING else _drawn
        masked = draw(self.method, self.weights, self.logits, uniform, self.dtype)
        return self._by_name(masked), self.method.penalty({}, {"": self.logits})

    def losses(self, network_loss: Callable[..., Tensor], masked: dict[str, Tensor], parts: Sequence[tuple]) -> Tensor:
        """The losses [count] of the parts of a batch, each with its own masked weights: at once where that is possible.

        One by one where parts differ in size, or where torch.vmap cannot do what the network does.
        """
        if self.at_once and len({tuple(tensor.shape for tensor in tree_leaves(part)) for part in parts}) == 1:
            try:
                found = for_each(network_loss, masked, *tree_map(lambda *each: torch.stack(each), *parts))
                if not self.tried and found.requires_grad:  # a few operations fail in the backward pass alone
                    torch.autograd.grad(found.sum(), list(masked.values()), retain_graph=True, allow_unused=True)
                self.tried = True
                return found
            except Exception as error:  # a fault of the network's own comes again below
                if out_of_memory(error):
                    raise
                self.at_once = False
        each = ({name: tensor[i] for name, tensor in masked.items()} for i in range(len(parts)))
        return torch.stack([network_loss(one, *part) for one, part in zip(each, parts, strict=True)])


def _on_one_gpu(weights: Mapping[str, Tensor], names: Sequence[str]) -> bool:
    """Whether weights are on a GPU and are real numbers of one precision, which one tensor can hold."""
    kinds = {(weights[name].is_cuda, weights[name].dtype) for name in names}
    return len(kinds) == 1 and all(there and kind.is_floating_point for there, kind in kinds)


WORTH_COMPILING = 2**22
"""Entries of all draws from which on it pays to compile `_drawn`, which takes some seconds."""


def _drawn(
    method: GumbelSigmoid | HardConcrete, weights: Tensor, logits: Tensor, uniform: Tensor, dtype: torch.dtype
) -> Tensor:
    """Masked weights, [draws, entries]."""
    return (weights * method.sampled(logits, uniform)).to(dtype)


def _fused(*given) -> Tensor:
    """`_drawn`, compiled: one pass over the entries instead of a dozen. As it is where compiling fails."""
    if not WITHOUT_COMPILER:
        try:
            return _compiled()(*given)
        except Exception as error:
            if out_of_memory(error):
                raise
            WITHOUT_COMPILER.append(error)
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            print(f"masks are drawn without torch.compile, which takes longer ({why})", file=sys.stderr, flush=True)
    return _drawn(*given)


WITHOUT_COMPILER: list[Exception] = []
"""Why nothing can be compiled in this process, if that is so."""


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_drawn, dynamic=True)  # one program for all sizes
