"""Subnetwork transfer: put a subnetwork into a network that is otherwise drawn anew, and train on around it.

*Instilling Inductive Biases with Subnetworks* (section 3.2, equation 1) minimizes L(M(m * w_original + (1 - m) w_new))
over w_new. Here that is what a forward pass computes: frozen weights are chosen by the mask at every step and never
touched by the optimizer, so that they stay as they are, bit for bit, whatever weight decay does to w_new.

Several transfers of one architecture are trained at once (`torch.func.vmap`), which is what small networks need.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.masks.controls import random_in_complement, random_like
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import CHUNK, full_precision, sent
from subnet_utils.models.staged import StagedModel, called_with, evaluating, for_each
from subnet_utils.training import Recipe, fit

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Transfer:
    """A network to be trained. start: its weights, and running statistics, by name.

    frozen: name -> bool, True where a weight stays as it is.
    """

    start: Weights
    frozen: Weights


def inherited(subnetwork: Subnetwork, what: str, *, seed: int) -> Subnetwork:
    """The masked weights that a condition inherits, from the discovered subnetwork and a seed for what is drawn.

    Raises ValueError for an unknown choice, NoControl if the complement has not enough weights.
    """
    choices = {
        "subnetwork": lambda: subnetwork,
        "all": lambda: subnetwork | ~subnetwork,
        "nothing": lambda: subnetwork & ~subnetwork,
        "random": lambda: random_like(subnetwork, seed=seed),
        "all but random": lambda: ~random_like(subnetwork, seed=seed),
        "complement": lambda: random_in_complement(subnetwork, seed=seed),
    }
    if what not in choices:
        raise ValueError(f"unknown '{what}'; {nearest(what, sorted(choices))}")
    return choices[what]()


def transplant(donor: StagedModel, fresh: StagedModel, kept: Subnetwork, *, carried: bool, frozen: bool) -> Transfer:
    """The weights of `fresh` with those of `donor` in the places that `kept` names.

    carried: all that no mask covers comes from the donor too, running statistics among it, but no whole numbers.
    frozen: the kept ones are not trained. Raises WrongNetwork if `kept` is not a subnetwork of the donor, ValueError
    for networks of different shapes.
    """
    kept.require(donor)
    ours, theirs = state(fresh), state(donor)
    if {n: w.shape for n, w in ours.items()} != {n: w.shape for n, w in theirs.items()}:
        raise ValueError("donor and new network differ in their weights' names or shapes; build both alike")
    start = {}
    for name, weight in ours.items():
        donated = theirs[name].detach()
        if name in kept.masks:
            start[name] = torch.where(kept.masks[name].to(weight.device), donated, weight.detach())
        else:
            start[name] = (donated if carried else weight.detach()).clone()
    stays = {name: mask for name, mask in kept.masks.items() if mask.any()} if frozen else {}
    return Transfer(start, stays)


def untransferred(fresh: StagedModel) -> Transfer:
    """A network that inherits nothing: ordinary training."""
    return Transfer({name: weight.detach().clone() for name, weight in state(fresh).items()}, {})


def state(model: StagedModel) -> dict[str, Tensor]:
    """Weights and running statistics by name, without counters."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def train_on(
    model: StagedModel,
    transfers: Sequence[Transfer],
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    loss: Callable[[Tensor, Tensor], Tensor],
    validate: Callable[[dict[str, Tensor]], Mapping[str, list[float]]],
    *,
    recipe: Recipe,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    updating: bool = True,
    **options: Any,
) -> tuple[dict[str, Tensor], pd.DataFrame]:
    """Train every transfer, all at once: the weights [k, ...] of each one's best epoch, and the history.

    model: of the architecture; its own weights are not used. batches(epoch): pairs of inputs and targets, [k, B, ...]
    each for k transfers; loss(output, targets): a scalar for one network; validate(weights [k, ...]): lists of k
    numbers, with what the recipe judges by; updating: whether the network is in training mode, which dropout and
    running statistics (these for one network at a time) depend on; options: of `fit`, such as `checkpoint`. Frozen
    weights come back with the bits that they had. Raises TrainingDiverged as `fit` does.
    """
    device = next(model.parameters()).device
    fixed = {name: torch.stack([one.start[name] for one in transfers]).to(device) for name in transfers[0].start}
    trained = dict(model.named_parameters())
    new = {name: weights.clone().requires_grad_(name in trained) for name, weights in fixed.items()}
    stays = {}
    for name in sorted({name for one in transfers for name in one.frozen}):
        none = torch.zeros(fixed[name].shape[1:], dtype=torch.bool)
        stays[name] = torch.stack([one.frozen.get(name, none) for one in transfers]).to(device)

    def one_loss(own, original, kept, inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast():
            outputs = called_with(model, _merged(own, original, kept), inputs)
        return loss(outputs.float(), targets)

    def losses(batch: tuple[Tensor, Tensor], epoch: int) -> Tensor:
        inputs, targets = (sent(tensor, device) for tensor in batch)
        return for_each(one_loss, new, fixed, stays, inputs, targets, randomness="different")

    def whole() -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: tensor.detach() for name, tensor in _merged(new, fixed, stays).items()}

    def one_pass(epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
        # dropout draws from the global state: here a pure function of (seed, epoch), like all that an epoch draws
        torch.manual_seed(generator_for("dropout", recipe.seed, epoch).initial_seed())
        return batches(epoch)

    model.train(updating)
    with separate_randomness():
        history = fit(new, one_pass, losses, recipe=recipe, validate=lambda: validate(whole()), **options)
    for name, buffer in model.eval().named_buffers():
        if name.endswith("num_batches_tracked"):  # no checkpoint has it and nothing reads it: the same after any pause
            buffer.zero_()
    return whole(), history


@torch.no_grad()
def measure_all(
    model: StagedModel, weights: Weights, inputs: Tensor, targets: Tensor, measure: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """measure(output, targets) [m] of k networks on the same m items, [k, m]: chunk by chunk, in evaluation mode and in
    float32.

    weights: [k, ...] by name; inputs, targets: [m, ...].
    """
    device = next(model.parameters()).device

    def every(items: Tensor, answers: Tensor) -> Tensor:
        return for_each(lambda own: measure(called_with(model, own, items), answers), dict(weights))

    chunks = zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True)
    with evaluating(model), full_precision(device):
        return torch.cat([every(items.to(device), answers.to(device)) for items, answers in chunks], dim=1)


def _merged(new: Weights, original: Weights, stays: Weights) -> dict[str, Tensor]:
    """m * w_original + (1 - m) * w_new, chosen and not computed: no bit of a frozen weight changes."""
    return dict(new) | {name: torch.where(mask, original[name], new[name]) for name, mask in stays.items()}
