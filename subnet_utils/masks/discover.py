"""Mask discovery: train a mask over a frozen network.

The network is never edited. Its prefix, before the first masked stage, is run once; the suffix runs with weights w * m
passed through `torch.func.functional_call`, so gradients reach the mask's logits alone and any module will do.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.masks.methods import MaskMethod
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix, embed_rows
from subnet_utils.models.staged import StagedModel, fingerprint
from subnet_utils.training import Recipe, fit

HISTOGRAM_BINS = 50


@dataclass(frozen=True)
class Discovery:
    """A subnetwork and how it came about.

    history: one row an epoch with train_loss, beta where the method has one, and the hard mask's density;
    annealing: one row an epoch with the share of soft mask entries in each of 50 equal bins of [0, 1].
    """

    subnetwork: Subnetwork
    history: pd.DataFrame
    annealing: pd.DataFrame


def discover(
    model: StagedModel,
    items: Tensor | FrozenPrefix,
    batches: Callable[[torch.Generator], Iterable[tuple[Tensor, Tensor]]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    method: MaskMethod,
    start: str,
    recipe: Recipe,
    products: Callable[[], AbstractContextManager] = nullcontext,
    checkpoint: Path | None = None,
    label: str = "mask",
) -> Discovery:
    """Find the subnetwork that minimizes the loss (appendix B, equation 2).

    items: the table that rows index, or the prefix's outputs for it; batches(generator): one pass, pairs of rows (any
    shape) and targets; loss(embeddings [*rows.shape, d], targets) a scalar; start: first masked stage; products:
    context in which the suffix runs forward. The model's weights and buffers stay as they are, bit for bit. Raises
    ValueError for an unknown stage or one after which there is no weight, for outputs of another prefix, for a schedule
    of another length than the recipe's, and for a model that changes as it runs; TrainingDiverged for a loss that is
    not finite.
    """
    names = model.maskable(start)
    if not names:
        raise ValueError(f"no weight to mask from stage '{start}' on; start earlier")
    anneals = getattr(method, "epochs", recipe.epochs)
    if anneals != recipe.epochs:
        raise ValueError(
            f"the method anneals over {anneals} epochs, the recipe trains {recipe.epochs}; make them equal"
        )
    network = fingerprint(model)
    prefix, suffix = model.cut(start)
    items = _outputs(prefix, items, next(model.parameters()).device)
    weights = {name: parameter.detach() for name, parameter in suffix.named_parameters()}
    logits = {name: method.init(weights[name].shape).to(items.device).requires_grad_() for name in names}

    def masked_loss(batch: tuple[Tensor, Tensor], epoch: int, generator: torch.Generator) -> Tensor:
        rows, targets = batch
        soft = method.soft(logits, epoch, generator)
        with products():
            masked = weights | {name: weights[name] * mask for name, mask in soft.items()}
            embeddings = embed_rows(suffix, masked, items, rows)
        return loss(embeddings.float(), targets.to(items.device)) + method.penalty(soft)

    history = fit(
        logits, batches, masked_loss, recipe=recipe, observe=lambda epoch: _observe(method, logits, epoch),
        checkpoint=checkpoint, label=label,
    )  # fmt: skip
    annealing = history.filter(regex="^(epoch|bin_)")
    masks = {name: method.hard(tensor.detach()) for name, tensor in logits.items()}
    history = history[[column for column in history if not column.startswith("bin_")]]
    if fingerprint(model) != network:
        raise ValueError("the model changed while its mask was trained (running statistics?); put it in eval mode")
    return Discovery(Subnetwork(masks, network), history, annealing)


def _outputs(prefix: StagedModel, items: Tensor | FrozenPrefix, device: torch.device) -> FrozenPrefix:
    """The prefix's outputs: those given, if they are its own, or new ones for a table of items."""
    if not isinstance(items, FrozenPrefix):
        return FrozenPrefix(prefix, items, device=device, limit_gb=4.0)
    items.require(prefix)
    return items


@torch.no_grad()
def _observe(method: MaskMethod, logits: dict[str, Tensor], epoch: int) -> dict[str, float]:
    """Temperature, density of the hard mask and histogram of the soft one after an epoch."""
    total = sum(tensor.numel() for tensor in logits.values())
    active = sum(int(method.hard(tensor).sum()) for tensor in logits.values())
    soft = method.soft(logits, epoch, torch.Generator())
    counts = sum(torch.histc(mask.float(), HISTOGRAM_BINS, 0.0, 1.0).cpu() for mask in soft.values())
    row = {"beta": method.beta(epoch)} if hasattr(method, "beta") else {}
    row |= {"density": active / total}
    return row | {f"bin_{i:02d}": float(count) / total for i, count in enumerate(counts)}
