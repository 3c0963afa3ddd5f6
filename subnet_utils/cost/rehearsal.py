"""How long jobs take that depend on each other: a study's own functions, run with every training cut short.

Everything that is trained goes through `training.fit`, and everything that is made through a store. So a study can be
rehearsed: in a store of its own every training makes a few steps of its first epoch, validates once, and counts with
the seconds that all of its epochs would take; what is made besides is made as always. Jobs that differ in nothing that
costs time, such as seeds, are made once or twice and copied. As the copies have the same weights, they fit all that is
made of them.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact, Building, Store, building, clocks
from subnet_utils.training import REHEARSAL, Recipe, fit

NOTHING = np.zeros(2)
WARM_UP, STEPS = 2, 4
"""Steps that are not timed, and the fewest that are."""
ENOUGH, LONG = 0.5, 3.0
"""Seconds after which no further step of a training is timed, if STEPS were; if not."""
CHECKS = 0.4
"""Seconds within which a validation is repeated: the first one takes longer than those that follow."""
POSITIVE = 0.4
"""Share of the trained numbers that are positive after a rehearsal. As many of a mask's weights are kept: of the few
steps that were made it would keep all or none, and no random control of its size could be drawn."""
NOT_ARTEFACTS = ("partial", "quarantine", "sorts")
"""Folders of a store that are no kind of artefact."""
DATA = ("stimuli", "images")
"""Kinds of artefacts that are not rehearsed but taken from the study's own store, or made there."""
CHOSEN = frozenset({"network", "bits", "l0"})
"""What is only known of an artefact once that is made which it is made of: fingerprints, and which lambda was taken."""
DETAILS = CHOSEN | {"seed", "step", "units", "computation", "subtask", "target"}
"""What an artefact's specification says that makes it another one but costs no time."""


@dataclass
class Shortened:
    """Stands in for `fit`: makes a few steps and knows what an epoch would take.

    seconds: how long steps are timed; counting: whether an epoch has an end. epochs: all that the recipe asks for, 0 as
    long as nothing was trained.
    """

    seconds: float = ENOUGH
    counting: bool = True
    epochs: int = 0
    first: "FirstEpoch | None" = None

    def __call__(
        self,
        parameters: dict[str, Tensor],
        batches: Callable[[int], Iterable[Any]],
        loss: Callable[[Any, int], Tensor],
        *,
        recipe: Recipe,
        stop_after: int | None = None,
        file: Callable[[int], Mapping[str, float]] | None = None,
        faults: dict[int, str] | None = None,
        label: str,
        **judges: Callable[..., Mapping[str, Any]] | None,
    ) -> pd.DataFrame:
        """The history as `fit` gives it, every epoch like the first; the parameters are as if they had been trained."""
        self.first = first = FirstEpoch(batches, self.seconds, self.counting)
        judged = {name: partial(first.judge, name, judge) for name, judge in judges.items() if judge is not None}
        with rehearsing(None):
            options = {"file": file, "stop_after": 1, "faults": faults, "label": label}
            history = fit(parameters, first, loss, recipe=recipe, **options, **judged)
        _as_if_trained(parameters)
        self.epochs = recipe.epochs if stop_after is None else min(stop_after, recipe.epochs)
        (row,) = history.to_dict("records")
        later = [row | {"epoch": i} | (file(i) if file else {}) for i in range(1, self.epochs)]
        return pd.DataFrame([row, *later])

    def more(self, epochs: int | None) -> np.ndarray:
        """What so many epochs take beyond the seconds that were spent on the first."""
        return self.epoch * (epochs or self.epochs) - (NOTHING if self.first is None else self.first.spent)

    @property
    def epoch(self) -> np.ndarray:
        """Seconds of an epoch, by both clocks."""
        return NOTHING if self.first is None else self.first.seconds


class FirstEpoch:
    """One pass, of which few batches are handed on and the others counted; what it and its validation take.

    All times are seconds by both clocks; spent: what this has taken of that which `seconds` stands for.
    """

    def __init__(self, batches: Callable[[int], Iterable[Any]], enough: float, counting: bool):
        self.batches, self.enough, self.counting = batches, enough, counting
        self.steps: list[np.ndarray] = []
        self.judging: dict[str, np.ndarray] = {}
        self.number = 0
        self.spent = self.after = NOTHING
        self._ended: np.ndarray | None = None

    def __call__(self, epoch: int) -> Iterator[Any]:
        source = iter(self.batches(epoch))
        begun = before = both_clocks()
        for batch in source:
            yield batch
            now = both_clocks()
            self.steps.append(now - before)
            before = now
            enough = self.enough if len(self.steps) >= WARM_UP + STEPS else LONG
            if (before - begun)[0] > enough:
                break
        self.number = len(self.steps) + (sum(1 for _ in source) if self.counting else 0)
        self._ended = both_clocks()
        # what the first steps take longer than the others is left out: it happens once and not in every epoch
        self.spent = sum(self.steps[WARM_UP:], len(self.steps[:WARM_UP]) * self.step) + (self._ended - before)

    def judge(self, name: str, judge: Callable[..., Mapping[str, Any]], *about: Any) -> Mapping[str, Any]:
        """What `judge` says, repeated until it is known how long that takes once everything has run before."""
        times = [both_clocks()]
        if not self.judging and self._ended is not None:  # what `fit` itself does after an epoch
            self.after = times[0] - self._ended
        while len(times) == 1 or (len(times) < 4 and (times[-1] - times[0])[0] < CHECKS):
            found = judge(*about)
            times.append(both_clocks())
        each = np.diff(times, axis=0)
        self.judging[name] = np.median(each[1:] if len(each) > 1 else each, axis=0)
        self.spent = self.spent + times[-1] - times[0]
        return found

    @property
    def step(self) -> np.ndarray:
        """Of the steps that were not to warm up, if there were any: the median."""
        return np.median(self.steps[WARM_UP:] or self.steps[-1:], axis=0)

    @property
    def seconds(self) -> np.ndarray:
        """Of a whole epoch."""
        return self.number * self.step + self.rest

    @property
    def rest(self) -> np.ndarray:
        """Of what follows the steps."""
        return self.after + sum(self.judging.values(), NOTHING)


def both_clocks() -> np.ndarray:
    """Seconds on the wall's clock and of processor time, `store.clocks`, once the GPU has caught up."""
    if torch.cuda.is_initialized():  # a study on the CPU leaves the GPU alone
        torch.cuda.synchronize()
    return np.array(clocks())


@contextmanager
def rehearsing(training: Shortened | None) -> Iterator[None]:
    """Let something stand in for `fit`; None: nothing."""
    token = REHEARSAL.set(training)
    try:
        yield
    finally:
        REHEARSAL.reset(token)


@torch.no_grad()
def _as_if_trained(parameters: Mapping[str, Tensor]) -> None:
    """Give trained numbers random signs."""
    for name, tensor in parameters.items():
        positive = torch.rand(tensor.shape, generator=generator_for("rehearsal", name)) < POSITIVE
        tensor.copy_(torch.where(positive.to(tensor.device), tensor.abs(), -tensor.abs()))


@dataclass(frozen=True)
class _Known:
    """What was seen when an artefact was made. fixed, epoch: seconds by both clocks, without epochs and of each."""

    uses: tuple[str, ...]
    fixed: np.ndarray
    epoch: np.ndarray
    epochs: int


_KNOWN: dict[tuple[Path, str], list[_Known]] = {}
"""What this process has made, by store and sort. Processes that work side by side make one of each sort each, so that
none is timed without the neighbors that it will have."""


class Rehearsal(Store):
    """A store in which trainings are cut short, and whose artefacts note the seconds that they would take.

    real: the study's own store, from which sets of images are taken; epochs: see `epochs_taken`.
    """

    def __init__(self, root: Path | str, real: Store, epochs: Mapping[str, int]):
        super().__init__(root)
        self.real, self.epochs = real, dict(epochs)

    def make(self, kind: str, spec: Mapping[str, Any], build: Callable[[Path], None]) -> Artefact:
        """As `Store.make`."""
        return self.real.make(kind, spec, build) if kind in DATA else super().make(kind, spec, build)

    def find(self, kind: str, spec: Mapping[str, Any]) -> Artefact | None:
        """As `Store.find`."""
        return self.real.find(kind, spec) if kind in DATA else super().find(kind, spec)

    def finished(self) -> Iterator[Artefact]:
        """All that was made."""
        for path in sorted(self.root.glob("*/*/manifest.json")):
            kind, key = path.parts[-3:-1]
            if kind not in NOT_ARTEFACTS:
                yield Artefact(kind, key, path.parent)

    def _build(self, artefact: Artefact, spec: Mapping[str, Any], build: Callable[[Path], None]) -> None:
        sort, training = outline(artefact.kind, spec, DETAILS), Shortened()
        known, epochs = _KNOWN.setdefault((self.root, sort), []), self.epochs.get(outline(artefact.kind, spec, CHOSEN))
        first = self.root / "sorts" / sha256(sort.encode()).hexdigest()[:16]
        # what is not trained is made twice: the first one of a process also reads the data
        copied = len(known) > 1 or (known and known[-1].epochs)

        def rehearse(folder: Path) -> None:
            works.append(building())
            if copied:
                building().uses.update(dict.fromkeys(known[-1].uses))
                more = known[-1].fixed + known[-1].epoch * (epochs or known[-1].epochs)
            else:
                with rehearsing(training):
                    build(folder)
                more = training.more(epochs)
                _publish(folder, first)
            _take(first, folder)
            works[0].more(*map(float, more))

        works: list[Building] = []
        super()._build(artefact, spec, rehearse)
        (work,) = works
        if not copied:
            fixed = np.array([work.seconds, work.cpu_seconds]) - training.epoch * (epochs or training.epochs)
            known.append(_Known(tuple(work.uses), fixed, training.epoch, training.epochs))


def _publish(folder: Path, first: Path) -> None:
    """Let an artefact's files be those of its sort, unless another process was the first to make one."""
    own = first.with_name(f"{first.name}-{os.getpid()}")
    own.mkdir(parents=True)
    for file in folder.iterdir():
        os.link(file, own / file.name)
    try:
        own.rename(first)
    except OSError:  # it is there
        shutil.rmtree(own)


def _take(first: Path, folder: Path) -> None:
    """Replace a folder's files by those of its sort, which take no room a second time: with the same weights they fit
    whatever is made of any other of the sort."""
    for file in folder.iterdir():
        file.unlink()
    for file in first.iterdir():
        os.link(file, folder / file.name)


def outline(kind: str, spec: Mapping[str, Any], without: frozenset[str]) -> str:
    """A specification as text, without some of its numbers and names wherever they stand in it."""
    return json.dumps([kind, _without(spec, without)], sort_keys=True)


def _without(part: Any, names: frozenset[str]) -> Any:
    if isinstance(part, list | tuple):
        return [_without(one, names) for one in part]
    if not isinstance(part, Mapping):
        return part
    kept = {name: value for name, value in part.items() if name not in names or _is_whole(name, value)}
    return {name: _without(value, names) for name, value in kept.items()}


def _is_whole(name: str, value: Any) -> bool:
    """Whether a value is a specification itself and no number or name."""
    return isinstance(value, Mapping) and name != "units"


def epochs_taken(store: Store) -> dict[str, int]:
    """Outline -> epochs that a store's artefacts were trained: fewer than their recipe says where they stopped early.

    The mean of those that are alike.
    """
    found: dict[str, list[int]] = {}
    for path in store.root.glob("*/*/provenance.json"):
        kind = path.parent.parent.name
        try:
            epochs = json.loads(path.read_text()).get("epochs")
            spec = json.loads((path.parent / "spec.json").read_text())
        except (OSError, ValueError):  # damaged, or just being put in its place: one of those alike will do
            continue
        if epochs is not None and kind not in NOT_ARTEFACTS:
            found.setdefault(outline(kind, spec, CHOSEN), []).append(epochs)
    return {name: round(sum(several) / len(several)) for name, several in found.items()}
