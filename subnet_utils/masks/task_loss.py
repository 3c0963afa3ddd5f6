"""The loss of a task as a function of a network's weights: what methods that score weights look at.

The network is not edited. What comes before the first masked stage is run once (`FrozenPrefix`); the rest runs with the
given weights in place of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.models.frozen import FrozenPrefix, Items, outputs_of, sent
from subnet_utils.models.staged import cut, evaluating


@dataclass
class TaskLoss:
    """The loss of a network on a task. model, items, batches, loss and the other fields: see `discover_many`.

    passes: over a batch, so far. Nothing is computed before the first loss is asked for.
    """

    model: nn.Module
    items: Items | FrozenPrefix
    batches: Callable[[torch.Generator], Iterable[tuple[Tensor, Tensor]]]
    loss: Callable[[Tensor, Tensor], Tensor]
    start: str | None = None
    seed: int = 0
    autocast: Callable[[], AbstractContextManager] = nullcontext
    limit_gb: float = 4.0
    passes: int = 0

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The network's own weights by name, without gradients."""
        return {name: self.model.get_parameter(name).detach() for name in names}

    def losses(self, weights: Mapping[str, Tensor], *, networks: int = 1) -> Iterator[Tensor]:
        """The loss of each batch of one pass, a scalar, with these weights in place of the network's own.

        It is differentiable by the weights. The pass is the same one every time, and the network is in evaluation mode.
        networks: for how many the call stands within torch.vmap; it counts in `passes` alone.
        """
        suffix, outputs = self._cut
        own = {name: weight.detach() for name, weight in suffix.named_parameters()}
        for rows, targets in self.batches(generator_for(self.seed, 0)):
            self.passes += networks
            distinct, positions = rows.unique(return_inverse=True)
            state = outputs(distinct)
            state = suffix.compact(state) if getattr(suffix, "takes_padding", False) else state
            with evaluating(suffix), self.autocast():
                found = outputs_of(suffix, own | dict(weights), state, outputs.names)[sent(positions, outputs.device)]
            # float64 stays what it is: finite differences need it
            found = found.to(torch.promote_types(found.dtype, torch.float32))
            yield self.loss(found, sent(targets, outputs.device))

    @cached_property
    def _cut(self) -> tuple[nn.Module, FrozenPrefix]:
        prefix, suffix = cut(self.model, self.start)
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            return suffix, FrozenPrefix.of(prefix, self.items, device=device, limit_gb=self.limit_gb)
