"""The one training loop, for base models and masks alike.

`fit` optimizes a dictionary of tensors in place. What an epoch draws must be a pure function of (seed, epoch): a run
that was killed goes on from its last checkpoint and ends with the same bits as one that was not.

Several runs of one recipe can be stacked and trained at once. Their loss is then a vector, one number a run, and every
parameter has the runs as its first dimension; nothing flows from one run to another.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field, model_validator
from torch import Tensor

from subnet_utils.checkpoints import Checkpoint
from subnet_utils.core.devices import progress_bar
from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import PositiveFloat, PositiveInt, Section, Seed
from subnet_utils.core.step import Fault
from subnet_utils.core.store import note

SAMPLE: ContextVar[Callable[..., pd.DataFrame] | None] = ContextVar("sample", default=None)
"""What stands in for `fit` where it is asked how long a training will take (`cost.sample`)."""


class TrainingDiverged(Fault):
    """A loss or a parameter is not finite; the message names the run, the epoch and what to change."""


@dataclass(frozen=True)
class Recipe:
    """How to optimize: by default Adam, without weight decay in *Break It Down* (sections 5 and B).

    seed: one for each of the runs that are stacked. patience: epochs without a better validation loss before training
    stops; the best weights are kept, of each stacked run its own. None: all epochs are run and the last weights are
    kept, as for masks. final_share: of the learning rate, to which it falls by a cosine; 1 for a constant one. linear:
    it falls to 0 in a line instead, after `warmup` epochs in which it rises.
    optimizer: 'adam', whose weight decay is decoupled (AdamW), or 'sgd' with momentum .9. judged_by: column of the
    history that is small where the weights are good, and never below 0, where a run with a patience ends. clip: largest
    norm of the gradients of a run, to which longer ones are scaled. frozen_norm: of gradients that the clip counts
    besides. Raises ValueError for what is none of this.
    """

    learning_rate: float
    epochs: int
    seed: int | tuple[int, ...]
    patience: int | None = None
    final_share: float = 1.0
    weight_decay: float = 0.0
    judged_by: str = "validation_loss"
    optimizer: Literal["adam", "sgd"] = "adam"
    linear: bool = False
    warmup: int = 0
    clip: float | None = None
    frozen_norm: float = 0.0

    def __post_init__(self):
        epochs, patience = self.epochs, self.patience
        wrong = {
            f"learning_rate must be a positive number, got {self.learning_rate}": not 0 < self.learning_rate < math.inf,
            f"epochs must be at least 1, got {epochs}": epochs < 1,
            f"patience must be None or at least 1, got {patience}": patience is not None and patience < 1,
            f"optimizer must be 'adam' or 'sgd', got '{self.optimizer}'": self.optimizer not in ("adam", "sgd"),
        }
        if faults := [fault for fault, there in wrong.items() if there]:
            raise ValueError(faults[0])

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch; its last value would be reached in the one after the last."""
        if self.linear:
            return self.learning_rate * min(
                (epoch + 1) / (self.warmup + 1), (self.epochs - epoch) / (self.epochs - self.warmup)
            )
        height = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.learning_rate * (self.final_share + (1 - self.final_share) * height)


@dataclass(frozen=True)
class Dropping(Recipe):
    """A recipe whose learning rate is a tenth from each of some intervals on."""

    drops: tuple[int, ...] = ()

    def rate(self, epoch: int) -> float:
        """See `Recipe.rate`."""
        return super().rate(epoch) * 0.1 ** sum(epoch >= drop for drop in self.drops)


class Optimization(Section):
    """What the sections on training have in common."""

    learning_rate: PositiveFloat = 0.001
    batch_size: PositiveInt = 32
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """With Adam it is decoupled, as in AdamW."""
    clip: PositiveFloat | None = None
    """Largest norm of the gradients, to which longer ones are scaled."""
    frozen_norm: Annotated[float, Field(ge=0)] = 0.0
    """Norm that the clip counts besides. Frozen weights may still hold the gradients of their own last step: at most 1
    in the released code of *Are Neural Nets Modular?*, which counts them when masks are trained."""


class Training(Optimization):
    """The section on a training that is counted in epochs. The weights of its best epoch are kept."""

    epochs: PositiveInt = 100
    patience: PositiveInt | None = None
    """Epochs without a better one before training stops. None: all epochs are run."""
    optimizer: Literal["adam", "sgd"] = "adam"
    final_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of the learning rate, to which it falls by a cosine. 1: it is constant."""

    def recipe(self, seed: int, **more: Any) -> Recipe:
        """The recipe of a training with this seed. more: other fields of `Recipe`, such as `judged_by`."""
        own = {name: getattr(self, name) for name in Training.model_fields.keys() - {"batch_size"}}
        return Recipe(**own | {"patience": self.patience or self.epochs, "seed": seed} | more)


class StepTraining(Optimization):
    """The section on a training that is counted in steps. The last weights are kept."""

    steps: PositiveInt
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps until the learning rate is reached."""
    interval: PositiveInt
    """Steps between evaluations, and between changes of the learning rate."""
    schedule: Literal["linear", "constant"] = "linear"
    """Of the learning rate: after the warm-up it falls to 0 in a line, or it is constant from the first step on."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _warmup_is_shorter(self):
        if self.warmup >= self.steps:
            raise invalid("warmup", f"{self.warmup} steps are not fewer than steps {self.steps}; lower it")
        if self.warmup and self.schedule == "constant":
            raise invalid("warmup", "a constant learning rate has none; set it to 0, or schedule to 'linear'")
        return self

    def recipe(self, seed: int | None = None) -> Recipe:
        """The recipe, with another seed if one is given. An interval counts as an epoch: the learning rate changes from
        one to the next."""
        intervals, warmup = (-(-steps // self.interval) for steps in (self.steps, self.warmup))
        return Recipe(
            self.learning_rate, intervals, self.seed if seed is None else seed, weight_decay=self.weight_decay,
            linear=self.schedule == "linear", warmup=min(warmup, intervals - 1), clip=self.clip,
            frozen_norm=self.frozen_norm,
        )  # fmt: skip

    def steps_in(self, interval: int) -> range:
        """Numbers of an interval's steps; the last one may be shorter."""
        first = interval * self.interval
        return range(first, min(first + self.interval, self.steps))


@dataclass
class Progress:
    """Where a run stands: all that, with the tensors, its `Checkpoint` must hold."""

    epoch: int = 0
    best_loss: float | list[float] = math.inf
    best_epoch: int | list[int] = -1
    history: list[dict[str, float | list[float]]] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    """Which of the stacked runs diverged, by number, and how; text, as the keys of JSON are."""

    def exhausted(self, recipe: Recipe) -> bool:
        """Whether the epochs, the patience or the runs are used up, or nothing can be better than the best of each."""
        if self.faults and len(self.faults) == len(self.history[-1]["train_loss"]):
            return True
        waited = self.epoch - 1 - int(np.max(self.best_epoch))
        if recipe.patience is not None and (waited >= recipe.patience or not np.any(self.best_loss)):
            return True
        return self.epoch >= recipe.epochs


def fit(
    parameters: dict[str, Tensor],
    batches: Callable[[int], Iterable[Any]],
    loss: Callable[[Any, int], Tensor],
    *,
    recipe: Recipe,
    validate: Callable[[], Mapping[str, float]] | None = None,
    observe: Callable[[int], Mapping[str, float | list[float]]] | None = None,
    file: Callable[[int], Mapping[str, float]] | None = None,
    checkpoint: Path | None = None,
    about: Any = None,
    stop_after: int | None = None,
    faults: dict[int, str] | None = None,
    label: str = "training",
) -> pd.DataFrame:
    """Optimize `parameters` (leaf tensors, changed in place) and return the history, one row an epoch.

    batches(epoch) is one pass over the data, whose draws come from `generator_for(seed, epoch)`; loss(batch, epoch) a
    scalar, or a vector with one number for each stacked run, which the history then holds as a list; validate() what to
    add to the history after an epoch, among it what the recipe judges by when it has a patience; observe(epoch) the
    same for what only describes the parameters; file(epoch) the same for what is only written down, the parameters of
    some epochs among it. checkpoint: a file to resume from and write to; one that is damaged or was written by another
    run is not used, and a line says so. about: what tells this run from others besides its recipe and its parameters'
    shapes, as JSON. stop_after: epochs after which to pause, with a checkpoint from which a call without it goes on as
    if there had been no pause. faults: where it is given, one of stacked runs that diverges ends alone; why is noted
    there by its number, its tensors are set to zero, its numbers in the history are NaN, and the others go on.

    Raises TrainingDiverged when a loss or a parameter is not finite and `faults` is not given, ValueError for a
    patience without `validate` and for an epoch without batches.
    """
    if (sample := SAMPLE.get()) is not None:
        options = {"validate": validate, "observe": observe, "file": file, "stop_after": stop_after, "faults": faults}
        return sample(parameters, batches, loss, recipe=recipe, label=label, **options)
    if recipe.patience is not None and validate is None:
        raise ValueError(f"{label}: a patience needs validate() and its {recipe.judged_by}; give both or neither")
    optimizer = _optimizer(parameters, recipe)
    best = {} if recipe.patience is None else {name: tensor.detach().clone() for name, tensor in parameters.items()}
    saved = Checkpoint(checkpoint, parameters, best, optimizer, {"recipe": asdict(recipe), "about": about})
    state = Progress(**saved.resume(label))
    check = _Check(state, optimizer, label, alone=faults is not None)
    last = recipe.epochs if stop_after is None else min(stop_after, recipe.epochs)
    with progress_bar(last, label, start=min(state.epoch, last)) as advance:
        while not state.exhausted(recipe) and state.epoch < last:
            optimizer.param_groups[0]["lr"] = recipe.rate(state.epoch)
            row = {"epoch": state.epoch, "train_loss": _epoch(batches, loss, check, recipe)}
            row.update(validate() if validate else {})
            row.update(file(state.epoch) if file else {})
            row.update(observe(state.epoch) if observe else {})
            check.finite("the validation loss", row.get(recipe.judged_by, 0.0))
            _note(state, check.without_faults(row), parameters, best, recipe)
            saved.save_if_due(state)
            advance(row)
    if stop_after is not None:
        saved.save(state)
    if recipe.patience is not None:
        _copy(best, parameters)
    if faults is not None:
        faults.update({int(run): fault for run, fault in state.faults.items()})
    note(epochs=state.epoch)
    return pd.DataFrame(state.history)


def _optimizer(parameters: Mapping[str, Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    # fused: one pass over weights, gradients and moments instead of about ten
    common = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "fused": True}
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters.values(), momentum=0.9, **common)
    kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
    return kind(parameters.values(), **common)


@dataclass
class _Check:
    """That numbers are finite. alone: one of stacked runs for which they are not ends alone."""

    state: Progress
    optimizer: torch.optim.Optimizer
    label: str
    alone: bool

    @property
    def parameters(self) -> list[Tensor]:
        """All that is trained."""
        return self.optimizer.param_groups[0]["params"]

    def finite(self, what: str, value: Tensor | float | list[float]) -> None:
        """Raise TrainingDiverged for a number that is NaN or infinite, or have the runs (dimension 0) end alone."""
        stacked = torch.as_tensor(value).ndim > 0
        values = torch.atleast_1d(torch.as_tensor(value))
        bad = ~values.isfinite().reshape(len(values), -1).all(dim=1)
        runs = [run for run in bad.nonzero().flatten().tolist() if str(run) not in self.state.faults]
        remedy = f"lower the learning rate ({self.optimizer.param_groups[0]['lr']:g})"
        for run in runs:
            one = f"{self.label}, run {run + 1} of {len(values)}" if len(values) > 1 else self.label
            message = f"{one}: {what} in epoch {self.state.epoch} is not finite; {remedy}"
            if not (self.alone and stacked):
                raise TrainingDiverged(message)
            self.state.faults[str(run)] = message
        if runs and len(self.state.faults) < len(values):
            said = "\n".join(self.state.faults[str(run)] for run in runs)
            print(f"{said}. The others go on", file=sys.stderr, flush=True)

    def parameters_finite(self, *, stacked: bool) -> None:
        """The same for the parameters: the last step has no later loss to show that it went wrong."""
        for parameter in self.parameters:
            values = parameter.detach()
            # a sum is finite if all its terms are, unless it overflows: then the terms are looked at one by one
            if not values.sum().isfinite():
                self.finite("a parameter", values if stacked else values.abs().max())

    @torch.no_grad()
    def clear(self) -> None:
        """Set what belongs to runs that have ended to zero, so that nothing has to cope with NaN."""
        for run in map(int, self.state.faults):
            for parameter in self.parameters:
                for tensor in (parameter, *self.optimizer.state[parameter].values()):
                    if tensor.shape == parameter.shape:
                        tensor[run] = 0

    def without_faults(self, row: dict[str, float | list[float]]) -> dict[str, float | list[float]]:
        """An epoch's numbers, NaN for the runs that have ended."""
        for name, values in row.items():
            if isinstance(values, list):
                row[name] = [math.nan if str(run) in self.state.faults else value for run, value in enumerate(values)]
        return row


def _epoch(batches, loss, check: _Check, recipe: Recipe) -> float | list[float]:
    """One pass of optimization; the mean loss over its batches, of each run if they are stacked."""
    losses, epoch, optimizer = [], check.state.epoch, check.optimizer
    for batch in batches(epoch):
        optimizer.zero_grad(set_to_none=True)
        value = loss(batch, epoch)
        value.sum().backward()
        if recipe.clip is not None:
            used = [parameter.grad for parameter in check.parameters if parameter.grad is not None]
            _clip(used, recipe, stacked=value.ndim == 1)
        optimizer.step()
        losses.append(value.detach())
    if not losses:
        raise ValueError(f"{check.label}: epoch {epoch} has no batches; give it data")
    mean = torch.stack(losses).mean(dim=0)
    check.finite("the loss", mean)
    check.parameters_finite(stacked=mean.ndim == 1)
    check.clear()
    return mean.tolist()


def _clip(gradients: list[Tensor], recipe: Recipe, *, stacked: bool) -> None:
    """Scale gradients in place to a norm of at most `recipe.clip`, those of each stacked run by themselves."""
    norms = torch.stack([gradient.flatten(int(stacked)).norm(dim=-1) for gradient in gradients]).norm(dim=0)
    norms = torch.hypot(norms, norms.new_tensor(recipe.frozen_norm))
    factors = (recipe.clip / norms.clamp(min=1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.reshape(-1, *[1] * (gradient.ndim - 1)) if stacked else factors)


def _note(state: Progress, row: dict[str, float], parameters, best, recipe: Recipe) -> None:
    """Add an epoch to the history and keep the weights if they are the best so far."""
    state.history.append(row)
    state.epoch += 1
    if recipe.patience is None:
        return
    if recipe.judged_by not in row:
        raise ValueError(f"validate() gives no '{recipe.judged_by}' to judge by; {nearest(recipe.judged_by, row)}")
    loss = row[recipe.judged_by]
    if np.min(loss) < 0:
        raise ValueError(f"'{recipe.judged_by}', which runs are judged by, fell to {np.min(loss):g}; keep it above 0")
    better = np.less(loss, state.best_loss)
    state.best_loss = np.where(better, loss, state.best_loss).tolist()
    state.best_epoch = np.where(better, state.epoch - 1, state.best_epoch).tolist()
    if np.any(better):
        _copy(parameters, best, torch.from_numpy(better.nonzero()[0]) if isinstance(loss, list) else ...)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor], runs: Any = ...) -> None:
    """Copy tensors, or those of some of the stacked runs."""
    for name, tensor in target.items():
        tensor[runs] = source[name][runs]
