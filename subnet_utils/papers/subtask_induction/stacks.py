"""Networks of one architecture that are trained and measured together: their weights are stacked, [k, ...] by name."""

from collections.abc import Callable, Iterator

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.masks.transfer import Weights, measure_all
from subnet_utils.models import StagedModel


def means(
    measure: Callable[[Tensor, Tensor], Tensor],
    model: StagedModel,
    inputs: Tensor,
    answers: Tensor,
    weights: Weights | None = None,
) -> list[float]:
    """The mean over all inputs of measure(logits [m, v], answers [m]), for each network; by default for one alone."""
    weights = weights or {name: weight.detach()[None] for name, weight in model.named_parameters()}

    def of_last(logits: Tensor, answers: Tensor) -> Tensor:
        return measure(logits if logits.ndim == 2 else logits[:, -1], answers)

    return measure_all(model, weights, inputs, answers, of_last).double().mean(dim=1).tolist()


def wrong(logits: Tensor, answers: Tensor) -> Tensor:
    """Which answers are wrong."""
    return logits.argmax(dim=-1) != answers


def shuffled(targets: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass: numbers of rows [B] and their targets. What is left at the end is a batch, too."""
    for rows in torch.randperm(len(targets), generator=generator).split(size):
        yield rows, targets[rows]


def history_of(history: pd.DataFrame, run: int = 0) -> pd.DataFrame:
    """The history of one of the networks."""
    return history.map(lambda value: value[run] if isinstance(value, list) else value)
