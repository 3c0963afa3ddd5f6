"""Trainings cut short: a few batches are trained on and timed, and count for all that would follow.

Everything that is trained goes through `training.fit`. While `sample_fit` stands in for it, an artefact is made in a
fraction of its time, and its provenance notes the seconds that it would take.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step, fault_of, with_parents
from subnet_utils.core.store import Artefact, Store, building, clocks, key_of
from subnet_utils.training import SAMPLE, Recipe, fit

BATCHES = 6
"""Batches of an epoch that are trained on, if they take ENOUGH seconds; the others are only counted."""
ENOUGH, LONG = 0.5, 5.0
"""Seconds after which no further batch is taken; and after which none is, even if there were few."""


def sample_fit(
    parameters: dict[str, Tensor], batches: Callable[[int], Iterable[Any]], loss: Callable[[Any, int], Tensor], *,
    recipe: Recipe, stop_after: int | None = None, file: Callable[[int], Mapping[str, float]] | None = None,
    **options: Any,
) -> pd.DataFrame:  # fmt: skip
    """What stands in for `fit`: two short epochs, of which the second is timed. The history has as many as asked for.

    The artefact that is being built counts with the seconds of all epochs. Early stopping is not foreseen.
    """
    epochs = recipe.epochs if stop_after is None else min(stop_after, recipe.epochs)
    are_logits = all(len(tensor.unique()) == 1 for tensor in parameters.values())  # they start at one value
    marks, left, ended, begun, made = [], 0, now(), now(), min(2, epochs)

    def few(epoch: int) -> Iterator[Any]:
        nonlocal marks, left, ended
        source, marks = iter(batches(epoch)), [now()]
        for batch in source:
            yield batch
            marks.append(now())
            if (marks[-1] - marks[0])[0] > (ENOUGH if len(marks) > BATCHES else LONG):
                break
        left, ended = sum(1 for _ in source), now()

    with standing_in(None):
        history = fit(parameters, few, loss, recipe=recipe, stop_after=made, file=file, **options)
    if (work := building()) is not None:
        times = np.diff(marks, axis=0)
        each = np.median(times[min(1, len(times) - 1) :], axis=0)  # the first batch of all takes longer
        epoch = (len(times) + left) * each + (now() - ended)  # with what has followed its batches
        work.seconds += epochs * epoch - (now() - begun)
    for name, logits in parameters.items() if are_logits else ():
        # after so few steps all or none would be positive, and no random control could be drawn
        positive = torch.rand(logits.shape, generator=generator_for("sample", name)) < 0.4
        logits.data.copy_(logits.abs() * (2.0 * positive - 1).to(logits.device))
    rows = history.to_dict("records")
    return pd.DataFrame([*rows, *(rows[-1] | {"epoch": i} | (file(i) if file else {}) for i in range(made, epochs))])


def now() -> np.ndarray:
    """Seconds on the wall's clock and of processor time, once the GPU has caught up."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clocks()


@contextmanager
def standing_in(stand_in: Callable[..., pd.DataFrame] | None) -> Iterator[None]:
    """Let something stand in for `fit`; None: nothing."""
    token = SAMPLE.set(stand_in)
    try:
        yield
    finally:
        SAMPLE.reset(token)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when the time is over. For the main thread alone."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"takes over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def made_of_samples(
    step: Step, samples: Mapping[str, Artefact], lab: Lab, about: Callable[[Step], str],
    stand_in: Callable[..., pd.DataFrame], limit: float,
) -> tuple[Artefact | None, str]:  # fmt: skip
    """A step made from samples of what it is made of, in a lab with a `SampleStore`; or None, and why.

    samples: by what `about` says of a step; stand_in: for `fit`; limit: seconds.
    """
    try:
        for parent in with_parents(step.parents):
            if about(parent) not in samples:
                return None, f"it needs {parent.kind()}, which could not be made"
            lab.store.stand_ins[parent.key(lab)] = samples[about(parent)]
        lab.store.stand_ins.pop(step.key(lab), None)  # of its own a step is to be made, even if another stood in for it
        with standing_in(stand_in), time_limit(limit):
            artefact = step.make(lab)
    except Exception as error:  # of any kind: the other groups go on
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    fault = fault_of(artefact)
    return (None, f"it ended early: {fault}") if fault else (artefact, "")


class SampleStore(Store):
    """A store for samples. What is in the study's own store is taken from there.

    stand_ins: key -> the sample of another step, for what is in neither.
    """

    def __init__(self, root: Path | str, real: Store):
        super().__init__(root)
        self.real, self.stand_ins = real, {}

    def find(self, kind: str, spec: Mapping[str, Any]) -> Artefact | None:
        """As `Store.find`, in all of them."""
        return self.real.find(kind, spec) or super().find(kind, spec) or self.stand_ins.get(key_of(kind, spec))
