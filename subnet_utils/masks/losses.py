"""The losses of masks that are trained at once, one number each: what `discover` minimizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subnet_utils.masks.methods import MaskMethod
from subnet_utils.masks.soft import Flat, FlatDraws, FlatMasks, masked_weights
from subnet_utils.models.frozen import State, outputs_of
from subnet_utils.models.staged import for_each

Batch = tuple[State, Tensor, Tensor, torch.Generator]
"""States that enter the suffix, positions of the rows in them and targets, of all masks; and the first's generator."""


@dataclass(frozen=True)
class Losses:
    """Losses [k] of k masks of one network on a batch, their penalties included.

    suffix: the part of the network with masked weights; weights: all of its parameters; states: names of what enters
    it; logits: of each mask, [k, *shape], by name; flat: the same as one tensor, where that is possible; loss, autocast
    and label: see `discover_many`.
    """

    suffix: nn.Module
    weights: Mapping[str, Tensor]
    states: tuple[str, ...]
    method: MaskMethod
    logits: dict[str, Tensor]
    flat: Flat | None
    loss: Callable[[Tensor, Tensor], Tensor]
    autocast: Callable[[], AbstractContextManager]
    label: str

    def __call__(self, batch: Batch, epoch: int) -> Tensor:
        """Raises ValueError for a loss that is not one number."""
        state, positions, targets, generator = batch
        if isinstance(self.flat, FlatMasks):
            with self.autocast():
                masked, penalties = self.flat(epoch)
            found = for_each(self._of_network, masked, state, positions, targets) + penalties
        elif isinstance(self.flat, FlatDraws):
            found = for_each(lambda *own: self._of_draws(*own, generator), state, positions, targets)
        else:
            found = for_each(lambda *own: self._of_mask(*own, epoch, generator), self.logits, state, positions, targets)
        if found.ndim != 1:
            raise ValueError(f"{self.label}: the loss of a mask must be one number, not {tuple(found.shape[1:])}")
        return found

    def _of_network(self, masked: dict[str, Tensor], state: State, positions: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            embeddings = outputs_of(self.suffix, self.weights | masked, state, self.states)
        return self.loss(embeddings[positions].float(), targets)

    def _of_mask(self, own: dict[str, Tensor], state: State, positions: Tensor, targets: Tensor, *draws) -> Tensor:
        found, parts = [], list(self._parts(state, positions, targets))
        for part in parts:
            with self.autocast():
                masked, penalty = masked_weights(self.method, self.weights, own, *draws)
            found.append(self._of_network(masked, *part))
        return _mean(torch.stack(found), parts) + penalty

    def _of_draws(self, state: State, positions: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        parts = list(self._parts(state, positions, targets))
        with self.autocast():
            masked, penalty = self.flat(len(parts), generator)
        return _mean(self.flat.losses(self._of_network, masked, parts), parts) + penalty

    def _parts(self, state: State, positions: Tensor, targets: Tensor) -> Iterator[tuple[State, Tensor, Tensor]]:
        """A batch in at most as many parts as the method draws masks, each with the items that it needs."""
        samples = getattr(self.method, "samples", 1)
        if samples == 1:
            yield state, positions, targets
            return
        for some, answers in zip(positions.chunk(samples), targets.chunk(samples), strict=True):
            # on a GPU it takes longer to look for what stands twice than to compute it twice
            count = some.numel()
            twice = (some.flatten(), torch.arange(count, device=some.device).view_as(some)) if some.is_cuda else None
            rows, own = twice or some.unique(return_inverse=True)
            yield tuple(tensor.index_select(0, rows) for tensor in state), own, answers


def _mean(losses: Tensor, parts: Sequence[tuple[State, Tensor, Tensor]]) -> Tensor:
    """The mean over all items of a batch, from the means over its parts. The last part may be smaller."""
    sizes = [len(targets) for _, _, targets in parts]
    if len({*sizes}) == 1:
        return losses.mean(dim=0)
    return torch.tensordot(losses.new_tensor(sizes) / sum(sizes), losses, dims=1)
