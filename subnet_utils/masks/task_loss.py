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
from subnet_utils.models.frozen import FrozenPrefix, Items, out_of_memory, outputs_of, sent
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
        A batch counts by its items, so that the mean of these losses is the mean over items. networks: for how many the
        call stands within torch.vmap. Raises ValueError for a loss that fails, or is no finite number with a gradient.
        """
        suffix, outputs = self._cut
        own = {name: weight.detach() for name, weight in suffix.named_parameters()}
        batches = list(self.batches(generator_for(self.seed, 0)))
        items = sum(len(rows) for rows, _ in batches)
        for rows, targets in batches:
            self.passes += networks
            distinct, positions = rows.unique(return_inverse=True)
            state = outputs(distinct)
            state = suffix.compact(state) if getattr(suffix, "takes_padding", False) else state
            with evaluating(suffix), self.autocast():
                found = outputs_of(suffix, own | dict(weights), state, outputs.names)[sent(positions, outputs.device)]
            # float64 stays what it is: finite differences need it
            found = found.to(torch.promote_types(found.dtype, torch.float32))
            loss = self._checked(found, sent(targets, outputs.device), networks)
            if any(weight.requires_grad for weight in weights.values()):
                _require_gradient(loss, found)
            yield loss * (len(rows) * len(batches) / items)

    def _checked(self, outputs: Tensor, targets: Tensor, networks: int) -> Tensor:
        about = f"outputs {[*outputs.shape]} and targets {[*targets.shape]} of {targets.dtype}"
        try:
            loss = self.loss(outputs, targets)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if out_of_memory(error) or networks > 1:  # within torch.vmap others are at fault, too
                raise
            raise ValueError(f"the loss fails for {about}: {str(error).splitlines()[0]}") from error
        if not isinstance(loss, Tensor) or loss.ndim:
            raise ValueError(f"the loss must be one number, a tensor without dimensions; for {about} it is not")
        if networks == 1 and not loss.isfinite():
            raise ValueError(f"the network's own loss is {float(loss.detach())}; look at inputs, targets and weights")
        return loss

    @cached_property
    def _cut(self) -> tuple[nn.Module, FrozenPrefix]:
        prefix, suffix = cut(self.model, self.start)
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            return suffix, FrozenPrefix.of(prefix, self.items, device=device, limit_gb=self.limit_gb)


def _require_gradient(loss: Tensor, outputs: Tensor) -> None:
    """Raise ValueError for a loss without one."""
    if not outputs.requires_grad:
        raise ValueError("the outputs have no gradient by the weights; take out torch.no_grad() and detach()")
    if not loss.requires_grad:
        raise ValueError("the loss has no gradient; give one that is differentiable, such as cross-entropy")
