"""Training that is counted in steps, over an endless supply of batches of pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.core.step import CHECKPOINT
from subnet_utils.models.frozen import sent
from subnet_utils.training import StepTraining, fit

BUCKET = 16  # batches whose rows are sorted by length together


def train(
    network: nn.Module, rows: int, batch: Callable[[Tensor, torch.Generator], Any], loss: Callable[[Any], Tensor],
    training: StepTraining, *, about: str, order: str, folder: Path, label: str,
    observe: Callable[[], Mapping[str, float]], file: Callable[[int], None] = lambda step: None,
) -> pd.DataFrame:  # fmt: skip
    """Train a network in place; the history, a row for each interval with the number of `step`s.

    rows: of the data; batch(rows, generator): some of them; loss(batch): of it; observe(): what the history notes after
    an interval; file(step): files what is kept then; about, order: names of the random draws. Every interval has seeds
    of its own, so that one that goes on from a checkpoint sees what it would have seen.
    """

    def one_interval(interval: int) -> Iterator[Any]:
        generator = generator_for(about, training.seed, interval)
        torch.manual_seed(generator_for("dropout", training.seed, interval).initial_seed())
        for chosen in stream(rows, training.batch_size, (order, training.seed), training.steps_in(interval)):
            yield batch(chosen, generator)

    @torch.no_grad()
    def after(interval: int) -> Mapping[str, float]:
        network.eval()
        found = observe()
        network.train()
        return found

    def filed(interval: int) -> dict[str, float]:
        step = training.steps_in(interval).stop
        file(step)
        return {"step": step}

    with separate_randomness():
        return fit(
            dict(network.train().named_parameters()), one_interval, lambda one, interval: loss(one),
            recipe=training.recipe(), observe=after, file=filed, checkpoint=folder / CHECKPOINT, label=label,
        )  # fmt: skip


def stream(count: int, size: int, about: tuple, steps: range) -> Iterator[Tensor]:
    """Rows of some batches of an endless supply of `count` rows, in which every pass has an order of its own."""
    in_pass = -(-count // size)
    order, now = [], -1
    for step in steps:
        if step // in_pass != now:
            now = step // in_pass
            order = torch.randperm(count, generator=generator_for(*about, now)).split(size)
        yield order[step % in_pass]


def shuffled_batches(
    count: int, size: int, generator: torch.Generator, lengths: Tensor | None = None
) -> Sequence[Tensor]:
    """All rows once, in random batches; of rows of like length where lengths [count] are given.

    Then rows are sorted by length within random groups of BUCKET batches, and the batches shuffled: no batch is much
    longer than most of its rows, and which rows meet still changes with every pass.
    """
    order = torch.randperm(count, generator=generator)
    if lengths is None:
        return order.split(size)
    groups = [group[lengths[group].argsort(stable=True)] for group in order.split(size * BUCKET)]
    batches = [batch for group in groups for batch in group.split(size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def on_device(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same on a device."""
    return {name: sent(tensor, device) for name, tensor in inputs.items()}
