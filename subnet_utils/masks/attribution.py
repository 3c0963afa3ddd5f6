"""What each weight does for a task: by gradients, or by leaving it out.

theta are the weights, L is the mean loss over the batches of one pass. A weight's effect on the loss is estimated by
theta dL/dtheta. Of the absolute value SNIP is made (Lee, Ajanthan and Torr 2019, *SNIP: Single-Shot Network Pruning
based on Connection Sensitivity*, equation 4); attribution patching (Nanda 2023) is the same for activations. At a
solved task gradients are close to 0 and say little. Integrated gradients (Sundararajan, Taly and Yan 2017, *Axiomatic
Attribution for Deep Networks*, equation 1) take them on the whole way from weights of 0.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from subnet_utils.masks.task_loss import TaskLoss
from subnet_utils.models.frozen import out_of_memory
from subnet_utils.models.staged import for_each

Weights = Mapping[str, Tensor]
LARGEST = 50_000
"""Weights of a network of which each can be left out: the work grows with the square of their number."""
AT_ONCE = 128
"""Networks that each lack one weight, in one computation."""


def attributed(task: TaskLoss, weights: Weights, at: Sequence[float] = (1.0,)) -> dict[str, Tensor]:
    """theta dL/dtheta, with its sign, of the weights' shapes.

    at: the gradient is the mean of those at theta times each of these numbers.
    """
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for share in at:
        gradients = _gradients(task, {name: share * weight for name, weight in weights.items()})
        for name, gradient in gradients.items():
            sums[name] += gradient / len(at)
    return {name: weights[name] * gradient for name, gradient in sums.items()}


def integrated(task: TaskLoss, weights: Weights, points: int) -> dict[str, Tensor]:
    """The same with gradients at so many midpoints of the way from 0 to theta. All of it sums to L(theta) - L(0)."""
    return attributed(task, weights, [(i + 0.5) / points for i in range(points)])


def left_out(task: TaskLoss, weights: Weights) -> dict[str, Tensor]:
    """L without that one weight, minus L; of the weights' shapes. Raises ValueError for more than 50,000 weights."""
    require_few(weights)
    with torch.no_grad():
        return {name: _without_each(task, weights, name) for name in weights}


def require_few(weights: Weights) -> None:
    """Raise ValueError for more weights than `left_out` takes."""
    total = sum(weight.numel() for weight in weights.values())
    if total > LARGEST:
        raise ValueError(f"'exact' leaves out every weight in turn, of {total:,}; take 'attribution' above {LARGEST:,}")


@torch.no_grad()
def parts_left_out(task: TaskLoss, weights: Weights, parts: Sequence[Weights]) -> dict[str, Tensor]:
    """L without a part of the weights, minus L, for each weight of that part; of the weights' shapes.

    parts: booleans by name; a weight is in one of them at most. What is in none has a score below all others.
    """
    whole, effects = _mean_loss(task, weights), []
    for part in parts:
        left = {name: weight.masked_fill(part[name].to(weight.device), 0.0) for name, weight in weights.items()}
        effects.append(float(_mean_loss(task, left) - whole))
    scores = {name: torch.full_like(weight, min(effects) - 1.0) for name, weight in weights.items()}
    for part, effect in zip(parts, effects, strict=True):
        for name, score in scores.items():
            score[part[name].to(score.device)] = effect
    return scores


def _mean_loss(task: TaskLoss, weights: Weights, **options: int) -> Tensor:
    return torch.stack(list(task.losses(weights, **options))).mean()


def _without_each(task: TaskLoss, weights: Weights, name: str) -> Tensor:
    weight = weights[name]
    positions = torch.arange(weight.numel(), device=weight.device)

    def without(position: Tensor, networks: int) -> Tensor:
        left = weight.masked_fill((positions == position).view(weight.shape), 0.0)
        return _mean_loss(task, {**weights, name: left}, networks=networks)

    def each(some: Tensor) -> Tensor:
        try:  # randomness: where batches are drawn, all networks get the same
            return for_each(partial(without, networks=len(some)), some, randomness="same")
        except RuntimeError as error:  # torch.vmap cannot do all that a network may, such as recurrent layers
            if out_of_memory(error):
                raise
            return torch.stack([without(position, 1) for position in some])

    # with the whole network (position -1) in the same products, what does nothing gets 0 and not a rounding error
    losses = [each(torch.cat([positions[:1] - 1, part])) for part in positions.split(AT_ONCE)]
    return torch.cat([found[1:] - found[0] for found in losses]).view(weight.shape)


def _gradients(task: TaskLoss, weights: Weights) -> dict[str, Tensor]:
    """Of the mean loss by each weight, batch by batch: the graph of one batch is held at a time."""
    leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
    means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for number, loss in enumerate(task.losses(leaves), start=1):
        parts = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
        for mean, part in zip(means.values(), parts, strict=True):
            mean += (part - mean) / number
    return means
