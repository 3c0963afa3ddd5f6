"""One call for all ways of finding a subnetwork: a network and a task in, a `Discovery` out.

Two kinds of methods are behind it (`masking`). Some train a logit for every weight; others give every weight a score
and keep the highest. Whatever the method, the same things come back: a mask, what its weights were ranked by, and how
many passes over a batch it took.

>>> import torch
>>> from subnet_utils import Task, identify
>>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> inputs = torch.randn(60, 4)
>>> task = Task(inputs, (inputs[:, 0] > 0).long())
>>> found = identify(network, task, "attribution", density=0.25)
>>> found.subnetwork.active, found.subnetwork.total, found.passes
(12, 48, 1)
>>> without = found.subnetwork.ablate(network)

A method of one's own is a class with a name and `scores`; `identify` then knows it by that name, too:

>>> from typing import Literal
>>> from subnet_utils.masks.masking import ScoredMasking
>>> class Smallest(ScoredMasking):
...     '''The weights that are nearest to 0.'''
...
...     method: Literal["smallest"] = "smallest"
...
...     def scores(self, model, names, *, seed, before, task):
...         return {name: -weight.abs() for name, weight in task.weights(names).items()}
>>> identify(network, task, "smallest", density=0.5).subnetwork.active
24
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from operator import index
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from subnet_utils.core.messages import explain, nearest
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.masking import METHODS, Masking, TrainedMasking
from subnet_utils.masks.task_loss import TaskLoss
from subnet_utils.models.frozen import Items, tables
from subnet_utils.models.staged import fingerprint, maskable, require_own_weights, require_positive, uncompiled
from subnet_utils.training import Recipe

LEARNING_RATES = {"continuous_sparsification": 0.01, "gumbel_sigmoid": 0.05, "hard_concrete": 0.1}
"""Of Adam, by method; .01 for others."""
STRENGTHS = {"continuous_sparsification": 1e-4, "gumbel_sigmoid": 4e-5, "hard_concrete": 1e-3}
"""lambda for networks of up to 15,000 weights. Of larger ones lambda times the number of weights is the same: the
penalty is a sum over all logits. But alpha of the Gumbel-sigmoid is what each logit pays, and the same at any size."""
LARGE = 15_000
SETTINGS = {"gumbel_sigmoid": {"samples": 4}, "hard_concrete": {"start_value": 2.0}}
"""What else is not as in a profile, where the defaults are the papers'."""
NEAR = 1.1
"""A search for a density ends where it is met up to this factor."""


def class_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of outputs [..., classes] and targets [...], a scalar."""
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


@dataclass(frozen=True, repr=False)
class Task:
    """What a subnetwork is to do.

    inputs: [m, ...], or several by name, as a tokenizer gives them to a network of transformers; targets: [m, ...];
    loss(outputs, targets): a scalar; of several outputs it gets the `logits`, or the first. Raises ValueError for no
    items, for inputs and targets of unequal length, and for what is no tensor or not finite.

    >>> task = Task(torch.eye(2), torch.tensor([0, 1]))
    >>> round(float(task.loss(torch.zeros(2, 2), task.targets)), 3)  # of a guess between two classes
    0.693
    """

    inputs: Items
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = class_loss

    def __post_init__(self):
        given = [("targets", self.targets), *(("inputs", table) for table in tables(self.inputs))]
        for what, table in given:
            if not isinstance(table, Tensor) or not table.ndim:
                raise ValueError(f"{what} must be a tensor with a row for each item; use torch.as_tensor")
            if table.is_floating_point() and not table.isfinite().all():
                item = int((~table.isfinite().reshape(len(table), -1).all(dim=1)).nonzero()[0])
                raise ValueError(f"{what} of item {item} are not finite; correct them or leave the item out")
            if len(table) != len(self.targets):
                raise ValueError(f"{len(table)} inputs and {len(self.targets)} targets; give one target for each")
        if not len(self.targets):
            raise ValueError("the task has no items; give at least one")

    def __repr__(self) -> str:
        """One line."""
        return f"Task({len(self.targets):,} items)"


@dataclass(frozen=True)
class MaskSteps:
    """How long logits are trained: by Adam, in batches drawn with replacement, with gradients of norm 1 at most.

    learning_rate: None for the method's own (`LEARNING_RATES`). Raises ValueError for numbers below 1.

    >>> MaskSteps(steps=1500).interval
    50
    """

    steps: int = 1500
    batch_size: int = 256
    learning_rate: float | None = None

    def __post_init__(self):
        require_positive(steps=self.steps, batch_size=self.batch_size)

    @property
    def interval(self) -> int:
        """Steps that count as an epoch, in which nothing is annealed: a divisor of all steps, a thirtieth at most."""
        return next(i for i in range(max(1, self.steps // 30), 0, -1) if self.steps % i == 0)

    def recipe(self, method: str, seed: int) -> Recipe:
        """The recipe for a method."""
        rate = LEARNING_RATES.get(method, 0.01) if self.learning_rate is None else self.learning_rate
        return Recipe(rate, self.steps // self.interval, seed, clip=1.0)

    def epoch(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Rows [batch] of so many items, batch by batch."""
        for _ in range(self.interval):
            yield torch.randint(count, (self.batch_size,), generator=generator)


def identify(
    model: nn.Module, task: Task, method: str | Masking = "gumbel_sigmoid", *, density: float | None = None,
    training: MaskSteps | None = None, seed: int = 0, start: str | None = None, only: Sequence[str] | None = None,
    before: Callable[[], nn.Module] | None = None, **settings: Any,
) -> Discovery:  # fmt: skip
    """The subnetwork of a network that does a task.

    method: a name in `masking.METHODS`, with `settings` as its fields, or a `Masking` with all of them. By name the
    defaults are those of this module, which fit networks of 14,000 to 150,000 weights. density: the share of the
    maskable weights that is wanted; a method with scores meets it exactly, one that trains by `at_density`. start,
    only: see `discover_many`. before(): the network before it was trained, for methods that look at what has changed.

    Methods with scores see all items once, in batches; those that train see what `training` says.

    The network stays as it is. Raises ValueError before anything is trained: for an unknown method or setting, a
    density that keeps no weight or more than all, a task or training that is none, a network without weights to mask, a
    method that needs `before` without it, and a loss that fails, has no gradient or is not finite. Raises
    TrainingDiverged if that comes later.

    >>> network = nn.Linear(4, 2)
    >>> task = Task(torch.randn(50, 4), torch.randint(2, (50,)))
    >>> identify(network, task, "magnitude", density=0.25).subnetwork.active
    2
    """
    model, training = uncompiled(model), training or MaskSteps()
    for given, kind in ((task, Task), (training, MaskSteps)):
        if not isinstance(given, kind):
            raise ValueError(f"a {type(given).__name__} is no {kind.__name__}; give {kind.__name__}(...)")
    sizes = _sizes(model, start, only)
    masking = _masking(method, settings, sizes)
    if not hasattr(seed, "__index__"):
        raise ValueError(f"seed {seed!r} is not valid; give a whole number")
    seed = index(seed)

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        every = torch.arange(len(task.targets)).split(training.batch_size)
        for rows in training.epoch(len(task.targets), generator) if masking.trains else every:
            yield rows, task.targets[rows]

    def find(one: Masking) -> Discovery:
        recipe = training.recipe(getattr(one, "method", ""), seed)
        options = {"start": start, "only": only, "before": before, "recipe": recipe}
        return one.find(model, task.inputs, batches, task.loss, **options)

    if density is not None:
        _require_density(density, sum(math.prod(shape) for shape in sizes))
    with _as_it_is(model, seed):
        if masking.trains:
            _require_loss(model, task, start, only)
        found = find(masking) if density is None else at_density(find, masking, density)
    if found.scores and not any(score.any() for score in found.scores.values()):
        raise ValueError("all scores are 0: the loss does not change with the weights; take another loss or method")
    return found


@contextmanager
def _as_it_is(model: nn.Module, seed: int) -> Iterator[None]:
    """Context with gradients and the seed's random numbers, after which the buffers are as they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with separate_randomness(), torch.enable_grad():
            torch.manual_seed(generator_for("identify", seed).initial_seed())
            yield
    finally:
        for name, buffer in model.named_buffers():
            if not torch.equal(buffer, buffers[name]):
                buffer.copy_(buffers[name])


def _require_loss(model: nn.Module, task: Task, start: str | None, only: Sequence[str] | None) -> None:
    """Raise ValueError for a network that changes as it runs, and for a loss of a few items that says nothing. A line
    on stderr names a task that the network itself does not do."""
    few, network = slice(None, None, max(1, len(task.targets) // 64)), fingerprint(model)
    named = isinstance(task.inputs, Mapping)
    inputs = {name: own[few] for name, own in task.inputs.items()} if named else task.inputs[few]
    batch = torch.arange(len(task.targets[few])), task.targets[few]
    probe = TaskLoss(model, inputs, lambda generator: [batch], task.loss, start=start)
    weights = {name: weight.requires_grad_() for name, weight in probe.weights(maskable(model, start, only)).items()}
    (loss,) = (found.detach() for found in probe.losses(weights))
    if fingerprint(model) != network:
        raise ValueError("the model changed while it ran; take out what writes to its buffers")
    if task.loss is class_loss and float(loss) > (guess := _loss_of_a_guess(task.targets)) > 0:
        what = f"the network has a loss of {float(loss):.2f} on this task, a guess has {guess:.2f}"
        print(f"{what}: a mask may learn what the network does not do; look at the targets", file=sys.stderr)


def _loss_of_a_guess(targets: Tensor) -> float:
    """The least loss without a look at the inputs, nats: the entropy of the classes."""
    share = targets[targets >= 0].unique(return_counts=True)[1].double() / (targets >= 0).sum()
    return -float(torch.special.xlogy(share, share).sum())


def at_density(find: Callable[[Masking], Discovery], masking: Masking, density: float, tries: int = 4) -> Discovery:
    """The subnetwork with this share of the weights, or the nearest that was found.

    A method with scores keeps exactly as many. One that trains is trained with other lambdas (`l0`) until the density
    is met within 10%, at most `tries` times: trained logits are never cut elsewhere than at their threshold, because
    their order says little. On logarithmic scales the next lambda is where the line through two trainings meets the
    density: those nearest to it on both sides, or the two farthest ones on one side. The first guess is a slope of -.5.

    find(masking): trains or scores. Its `history` gets the columns `l0` and `target_density`; `passes` counts all
    trainings. Raises ValueError for a method with no size to set.
    """
    if "density" in type(masking).model_fields:
        return find(masking.model_copy(update={"density": density}))
    if not getattr(masking, "l0", 0.0) > 0:
        raise ValueError(f"{type(masking).__name__} has neither a density nor an l0 above 0; leave density out")
    found: list[tuple[float, float, Discovery]] = []
    strength, passes = math.log(masking.l0), 0
    for _ in range(tries):
        one = find(masking.model_copy(update={"l0": math.exp(strength)}))
        passes += one.passes
        off = math.log(max(one.subnetwork.active, 0.5) / (density * one.subnetwork.total))
        found.append((strength, off, one))
        if abs(off) <= math.log(NEAR):
            break
        strength = _next([(at, miss) for at, miss, _ in found])
    at, _, best = min(found, key=lambda trial: abs(trial[1]))
    history = best.history.assign(l0=math.exp(at), target_density=density)
    return replace(best, history=history, passes=passes)


def _next(tried: Sequence[tuple[float, float]]) -> float:
    """The next log lambda, from those that were tried and by how much the density was too high, in logarithms."""
    high, low = ([point for point in tried if (point[1] > 0) == above] for above in (True, False))
    if not (high and low):
        (at, off), *others = sorted(tried, reverse=bool(high))
        slope = min(-0.1, (off - others[0][1]) / (at - others[0][0])) if others else -0.5
        return at + max(-3.0, min(3.0, -off / slope))
    (a, too_high), (b, too_low) = min(high, key=lambda point: point[1]), max(low, key=lambda point: point[1])
    # not too near to either: at a cliff the line would creep along its edge
    share = min(0.75, max(0.25, too_high / (too_high - too_low)))
    return a + share * (b - a)


def _sizes(model: nn.Module, start: str | None, only: Sequence[str] | None) -> list[torch.Size]:
    """Shapes of the weights to be masked."""
    names = maskable(model, start, only)
    if not names:
        raise ValueError("the network has no weight to mask; give one with linear or convolutional layers")
    require_own_weights(model, names)
    weights = dict(model.named_parameters())
    return [weights[name].shape for name in names]


def _masking(method: str | Masking, settings: dict[str, Any], sizes: Sequence[torch.Size]) -> Masking:
    """The method with its settings. Raises ValueError for an unknown name of either."""
    if isinstance(method, Masking):
        if settings:
            raise ValueError(f"'{next(iter(settings))}' is a setting of a method by name; set it in the object itself")
        return method
    if not isinstance(method, str) or method not in METHODS:
        if not isinstance(method, str):
            advice = "give a name, such as 'continuous_sparsification', and its settings as options"
            raise ValueError(f"{type(method).__name__} is no method for identify; {advice}")
        raise ValueError(f"unknown method '{method}'; {nearest(method, METHODS)}")
    kind, own = METHODS[method], SETTINGS.get(method, {}) | settings
    if issubclass(kind, TrainedMasking) and method in STRENGTHS and "l0" not in own:
        own["l0"] = _strength(method, sizes, rows=own.get("units") == "neurons")
    try:
        return kind(**own)
    except ValidationError as error:
        raise ValueError(f"{method}: {'; '.join(explain(kind, error))}") from None


def _strength(method: str, sizes: Sequence[torch.Size], *, rows: bool) -> float:
    """lambda for a network. The logit of a row pays for all of its weights, except the Gumbel-sigmoid's."""
    if method == "gumbel_sigmoid":
        return STRENGTHS[method]
    total = sum(map(math.prod, sizes))
    paid = total / sum(shape[0] for shape in sizes) if rows else 1.0
    return STRENGTHS[method] * paid * min(1.0, LARGE / total)


def _require_density(density: float, total: int) -> None:
    if not isinstance(density, Real) or not 0 < density <= 1:
        raise ValueError(f"density {density!r} is not valid; give a share above 0 and at most 1")
    if round(density * total) < 1:
        raise ValueError(f"density {density} keeps none of {total:,} weights; raise it")
