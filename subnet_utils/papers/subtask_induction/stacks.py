"""Networks of one architecture that are trained and measured together: their weights are stacked, [k, ...] by name."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, Weights, inherited, measure_all, transplant
from subnet_utils.models import StagedModel
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS


def started(name: str, donor: StagedModel, found: Subnetwork, fresh: StagedModel, *, seed: int) -> Transfer:
    """What a new network starts from under one of the CONDITIONS. Raises NoControl."""
    condition = CONDITIONS[name]
    kept = inherited(found, condition.inherits, seed=seed)
    return transplant(donor, fresh, kept, carried=condition.carried, frozen=condition.frozen)


def wrong(logits: Tensor, answers: Tensor) -> Tensor:
    """Which answers are wrong."""
    return logits.argmax(dim=-1) != answers


def measured(
    model: StagedModel, inputs: Tensor, answers: Tensor, weights: Weights | None = None, measure: Callable = wrong
) -> Tensor:
    """measure(logits [m, v], answers [m]) of each network, [k, m], by default of one alone; of a sequence the last
    logits are taken."""
    weights = weights or {name: weight.detach()[None] for name, weight in model.named_parameters()}

    def of_last(logits: Tensor, answers: Tensor) -> Tensor:
        return measure(logits if logits.ndim == 2 else logits[:, -1], answers)

    return measure_all(model, weights, inputs, answers, of_last)


def errors(*about: Any) -> list[float]:
    """The share of wrong answers of each network, or the mean of another measure. See `measured`."""
    return measured(*about).double().mean(dim=1).tolist()


def shuffled(targets: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass: numbers of rows [B] and their targets. What is left at the end is a batch, too."""
    for rows in torch.randperm(len(targets), generator=generator).split(size):
        yield rows, targets[rows]


def history_of(history: pd.DataFrame, run: int = 0) -> pd.DataFrame:
    """The history of one of the networks."""
    return history.map(lambda value: value[run] if isinstance(value, list) else value)
