"""Sparse fine-tuning: a task learned by changing few weights, and the changes as something to be added up.

Ansell, Ponti, Korhonen and Vulic 2022, *Composable Sparse Fine-Tuning for Cross-Lingual Transfer* (section 3): a
network theta0 is fine-tuned to theta1. The k weights that moved furthest, |theta1 - theta0|, are chosen. All weights go
back to theta0, and only the chosen ones are trained again, to theta2. What is learned is phi = theta2 - theta0, which
is 0 elsewhere. Differences of several tasks add up: theta0 + phi_A + phi_B.

The mask says which weights may change. It is no subnetwork that does the task alone.
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from subnet_utils.core.store import StoreError, digest_of, load_tensors, save_tensors
from subnet_utils.masks.select import select
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, state, train_on, untransferred
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.training import Recipe

Network = TypeVar("Network", bound=nn.Module)
Train = Callable[[nn.Module, Mapping[str, Tensor] | None], None]
"""train(network, frozen): trains a network in place. frozen: name -> bool, True where a weight must stay as it is, of
all parameters and running statistics; None to train all."""


@dataclass(frozen=True, eq=False)
class SparseDifference:
    """Weights of a network that changed, and by how much.

    changed: which, a subnetwork of theta0. values: by parameter name, the changes [entries of that mask that are True]
    in their order, in float64: theta0 + phi then has the bits of theta2. Raises ValueError if they do not fit.

    >>> start = torch.nn.Linear(2, 1)
    >>> some = Subnetwork({"weight": torch.tensor([[True, False]])}, fingerprint(start))
    >>> phi = SparseDifference(some, {"weight": torch.tensor([3.0])})
    >>> (phi + phi.scaled(0.5)).dense()["weight"].tolist()
    [[4.5, 0.0]]
    """

    changed: Subnetwork
    values: Mapping[str, Tensor]

    def __post_init__(self):
        own = {name: self.values[name].detach().cpu().double().clone() for name in sorted(self.values)}
        if {n: len(one) for n, one in own.items()} != {n: int(m.sum()) for n, m in self.changed.masks.items()}:
            raise ValueError("values and mask differ in names or number; give one value for every changed weight")
        object.__setattr__(self, "values", MappingProxyType(own))

    def __reduce__(self):
        return SparseDifference, (self.changed, dict(self.values))

    def __add__(self, other: "SparseDifference") -> "SparseDifference":
        """Both changes; where both change a weight they add up. Raises WrongNetwork for those of two networks."""
        either, theirs = self.changed | other.changed, other.dense()
        return _picked(either, {name: own + theirs[name] for name, own in self.dense().items()})

    def scaled(self, factor: float) -> "SparseDifference":
        """The changes times a number."""
        return replace(self, values={name: factor * own for name, own in self.values.items()})

    def dense(self) -> dict[str, Tensor]:
        """phi by parameter name, of the weights' shapes: 0 where nothing changed."""
        nothing = {name: torch.zeros(mask.shape).double() for name, mask in self.changed.masks.items()}
        return {n: zeros.masked_scatter(self.changed.masks[n], self.values[n]) for n, zeros in nothing.items()}

    def apply(self, model: Network) -> Network:
        """A copy of the network with theta0 + phi; all other weights keep their bits.

        Raises WrongNetwork for another network than theta0. So nothing can be applied to what it gives: add differences
        up first. `(phi + phi.scaled(-1)).apply(model)` has the bits of theta0.
        """
        self.changed.require(model)
        changed = copy.deepcopy(model)
        with torch.no_grad():
            for name, phi in self.dense().items():
                weight = changed.get_parameter(name)
                mask, moved = self.changed.masks[name].to(weight.device), weight.double() + phi.to(weight.device)
                weight.copy_(torch.where(mask, moved.to(weight.dtype), weight))
        return changed

    def save(self, path: Path) -> None:
        """Write to a safetensors file: places and values of the changed entries."""
        positions = {f"places of {n}": mask.flatten().nonzero()[:, 0] for n, mask in self.changed.masks.items()}
        tensors = positions | {f"values of {name}": own for name, own in self.values.items()}
        shapes = json.dumps({name: list(mask.shape) for name, mask in self.changed.masks.items()})
        digest = digest_of(tensors, shapes, self.changed.network)
        save_tensors(Path(path), tensors, {"network": self.changed.network, "shapes": shapes, "digest": digest})

    @classmethod
    def load(cls, path: Path) -> "SparseDifference":
        """Read what `save` wrote. Raises StoreError if the file is damaged or holds no difference."""
        tensors, metadata = load_tensors(Path(path))
        ours = all(name.startswith(("places of ", "values of ")) for name in tensors)
        if not (ours and {"network", "shapes", "digest"} <= metadata.keys()):
            raise StoreError(f"{path} holds no difference; give a file written by SparseDifference.save")
        if metadata["digest"] != digest_of(tensors, metadata["shapes"], metadata["network"]):
            raise StoreError(f"{path} is damaged: it does not match its digest; delete it and run again")
        shapes = json.loads(metadata["shapes"])
        masks = {name: torch.zeros(prod(shape), dtype=torch.bool) for name, shape in shapes.items()}
        for name, mask in masks.items():
            mask[tensors[f"places of {name}"]] = True
        changed = Subnetwork({name: mask.view(shapes[name]) for name, mask in masks.items()}, metadata["network"])
        return cls(changed, {name: tensors[f"values of {name}"] for name in shapes})


def sparse_fine_tuning(
    model: nn.Module, train: Train, count: int, *, support: Subnetwork | None = None
) -> SparseDifference:
    """Learn a task by changing exactly `count` weights of a network, which itself stays as it is.

    train: see `Train`; `by_recipe` makes one. It is called twice, with copies of the network: to train all weights, and
    to train the chosen ones alone, by an optimizer without a past. support: weights chosen in another way, such as at
    random, of which there are then `count`; the first training is left out.

    Raises ValueError for a count of 0 or of more than the maskable weights, for a support of another size, and if
    `train` moved what it was told to leave; WrongNetwork for a support of another network.
    """
    names = maskable(model)
    total = sum(model.get_parameter(name).numel() for name in names)
    if not 1 <= count <= total:
        raise ValueError(f"{count:,} of {total:,} weights cannot be trained; give a count from 1 to {total:,}")
    chosen = furthest(model, train, names, count) if support is None else support
    chosen.require(model)
    if chosen.active != count:
        raise ValueError(f"the support has {chosen.active:,} weights, not {count:,}; make them equal")
    tuned = copy.deepcopy(model)
    frozen = _all_but(chosen, model)
    train(tuned, frozen)
    _require_still(model, tuned, frozen)
    moved = {n: tuned.get_parameter(n).detach().double() - model.get_parameter(n).detach() for n in chosen.masks}
    return _picked(chosen, moved)


def furthest(model: nn.Module, train: Train, names: Iterable[str], count: int) -> Subnetwork:
    """The named weights that move furthest when all of the network is trained; of equals the first."""
    tuned = copy.deepcopy(model)
    train(tuned, None)
    moved = {name: (tuned.get_parameter(name) - model.get_parameter(name)).detach().abs() for name in names}
    return select(moved, count, network=fingerprint(model))


def random_support(model: nn.Module, count: int, *, generator: torch.Generator) -> Subnetwork:
    """Weights that may change, drawn at random from all that can be masked: what a choice is compared with."""
    scores = {name: torch.rand(model.get_parameter(name).shape, generator=generator) for name in maskable(model)}
    return select(scores, count, network=fingerprint(model))


def by_recipe(
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]], loss: Callable[[Tensor, Tensor], Tensor], recipe: Recipe
) -> Train:
    """A `Train` by `transfer.train_on`. batches(epoch): pairs of inputs and targets [B, ...].

    Weight decay acts in the training of all weights only: it would pull at the chosen ones for no task's sake.
    """

    def train(network: nn.Module, frozen: Mapping[str, Tensor] | None) -> None:
        def stacked(epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
            return ((inputs[None], targets[None]) for inputs, targets in batches(epoch))

        one = Transfer(untransferred(network).start, frozen or {})
        own = recipe if frozen is None else replace(recipe, weight_decay=0.0)
        weights, _ = train_on(network, [one], stacked, loss, lambda weights: {}, recipe=own)
        network.load_state_dict({name: tensor[0] for name, tensor in weights.items()}, strict=False)

    return train


def _all_but(chosen: Subnetwork, model: nn.Module) -> dict[str, Tensor]:
    """True where a weight or running statistic is not among the chosen ones."""
    free = {name: mask for name, mask in chosen.masks.items() if mask.any()}
    return {n: ~free[n] if n in free else torch.ones(t.shape, dtype=torch.bool) for n, t in state(model).items()}


def _require_still(model: nn.Module, tuned: nn.Module, frozen: Mapping[str, Tensor]) -> None:
    before, after = state(model), state(tuned)
    for name, mask in frozen.items():
        still = mask.to(before[name].device)
        if not torch.equal(before[name][still], after[name][still]):
            raise ValueError(f"train() moved weights of '{name}' that were frozen; leave those as they are")


def _picked(changed: Subnetwork, dense: Mapping[str, Tensor]) -> SparseDifference:
    return SparseDifference(changed, {name: dense[name].cpu()[mask] for name, mask in changed.masks.items()})
