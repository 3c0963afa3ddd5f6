"""Mask discovery: train masks over a frozen network, one or many at once.

The network is never edited. Its prefix, before the first masked stage, is run once; the suffix runs with weights w * m
passed through `called_with`, so gradients reach the mask's logits alone and any module will do. Many
masks of one network are one computation, vectorized over the masks (`torch.func.vmap`): what keeps a GPU busy that a
single small mask would leave idle.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import save_table
from subnet_utils.masks.losses import Batch, Losses
from subnet_utils.masks.memory import in_parts
from subnet_utils.masks.methods import MaskMethod
from subnet_utils.masks.soft import Flat, FlatDraws, FlatMasks
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix, Items, sent
from subnet_utils.models.staged import cut, evaluating, fingerprint, maskable, require_own_weights, uncompiled
from subnet_utils.training import Recipe, TrainingDiverged, fit


@dataclass(frozen=True)
class MaskTask:
    """A mask to be found.

    items: the table that rows index, or the prefix's outputs for it; batches(generator): one pass, pairs of rows (any
    shape) and targets; seed: of all that training draws.
    """

    items: Items | FrozenPrefix
    batches: Callable[[torch.Generator], Iterable[tuple[Tensor, Tensor]]]
    method: MaskMethod
    seed: int


@dataclass(frozen=True, repr=False)
class Discovery:
    """A subnetwork and how it came about.

    history: one row an epoch with train_loss, beta where the method has one, and the hard mask's density;
    annealing: one row an epoch with the share of soft mask entries in each of 50 equal bins of [0, 1].
    scores: what the weights were ranked by, by parameter name and of the weight's shape, on the CPU. These are the last
    logits of a method that trains. passes: forward and backward passes over a batch that it took; a batch in four parts
    counts four times. Neither is filed.
    """

    subnetwork: Subnetwork
    history: pd.DataFrame
    annealing: pd.DataFrame
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    passes: int = 0

    def __repr__(self) -> str:
        """One line."""
        return f"Discovery({self.subnetwork!r}, {self.passes:,} passes)"

    def save(self, folder: Path) -> None:
        """File it in the folder of an artefact: `subnetwork`, `history` and `annealing`."""
        self.subnetwork.save(folder / "subnetwork.safetensors")
        save_table(folder / "history.parquet", self.history)
        save_table(folder / "annealing.parquet", self.annealing)


def discover(
    model: nn.Module,
    items: Items | FrozenPrefix,
    batches: Callable[[torch.Generator], Iterable[tuple[Tensor, Tensor]]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    method: MaskMethod,
    recipe: Recipe,
    **options: Any,
) -> Discovery:
    """Find the subnetwork that minimizes the loss (*Break It Down*, appendix B, equation 2).

    items, batches, method: see `MaskTask`; loss, recipe and options: see `discover_many`. Raises ValueError as that
    does, TrainingDiverged for a loss that is not finite.

    >>> from subnet_utils import ContinuousSparsification
    >>> from subnet_utils.training import Recipe
    >>> network, inputs, targets = nn.Linear(2, 2), torch.randn(40, 2), torch.randint(2, (40,))
    >>> options = {"method": ContinuousSparsification(epochs=3), "recipe": Recipe(0.01, epochs=3, seed=0)}
    >>> batches = lambda generator: [(torch.arange(40), targets)]
    >>> found = discover(network, inputs, batches, nn.functional.cross_entropy, **options)
    >>> found.subnetwork.total, len(found.history), found.passes
    (4, 3, 3)
    """
    (found,) = discover_many(model, [MaskTask(items, batches, method, recipe.seed)], loss, recipe=recipe, **options)
    if isinstance(found, TrainingDiverged):
        raise found
    return found


def discover_many(
    model: nn.Module,
    tasks: Sequence[MaskTask],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    start: str | None = None,
    only: Sequence[str] | None = None,
    recipe: Recipe,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    watch: Callable[[Subnetwork], Mapping[str, float]] | None = None,
    limit_gb: float = 4.0,
    checkpoint: Path | None = None,
    stop_after: int | None = None,
    split: bool = True,
    label: str = "mask",
) -> list[Discovery | TrainingDiverged]:
    """Find several subnetworks of one network at once: those that `discover` finds one by one, up to rounding.

    The masks have the start, learning rate and epochs in common, and methods that differ in nothing but the first value
    of the logits; each has its data, its seed and its optimizer state. The network is in evaluation mode meanwhile, and
    its weights and buffers stay as they are, bit for bit. A mask whose loss is not finite comes back as the
    TrainingDiverged that says so, and the others go on.

    loss(embeddings [*rows.shape, d], targets): a scalar. start: first masked stage of a StagedModel, or None to mask
    all weight matrices of any module. only: names of some of these, to mask no others. recipe: without its seed, each
    mask has its own. autocast: context in which the
    suffix runs forward. watch(subnetwork): what to add to the history after each epoch. limit_gb: of a table's outputs
    that are kept (`FrozenPrefix`). checkpoint: a file to go on from, of the same network, items, method and recipe;
    other targets or another loss need a file of their own. stop_after: pause after so many epochs, with the subnetworks
    as they are then. split: see `memory.in_parts`.

    Raises ValueError for masks that cannot be trained together, an unknown stage or one after which there is no weight,
    outputs of another prefix, a schedule of another length than the recipe's, a weight that is tied to one before the
    start, a loss that is not one number, and a model that changes as it runs.
    """
    if not tasks:
        return []
    _require_alike(tasks, recipe)
    model = uncompiled(model)
    names = maskable(model, start, only)
    if not names:
        raise ValueError(f"no weight to mask from stage '{start}' on; start earlier" if start else "no weight to mask")
    network = fingerprint(model)
    require_own_weights(model, names)
    prefix, suffix = cut(model, start)
    device = next(model.parameters()).device
    tables = {id(one.items): one.items for one in tasks}
    with evaluating(model):
        made = partial(FrozenPrefix.of, prefix, device=device, limit_gb=limit_gb)
        outputs = {key: made(items) for key, items in tables.items()}
        ready = [replace(one, items=outputs[id(one.items)]) for one in tasks]
        train = _Together(suffix, names, network, loss, recipe, autocast, watch, checkpoint, stop_after, label)
        found = train.all(ready, split=split)
    if fingerprint(model) != network:
        raise ValueError("the model changed while its mask was trained; take out what writes to its buffers")
    return found


@dataclass(frozen=True)
class _Together:
    """What the masks that are trained at once share."""

    suffix: nn.Module
    names: tuple[str, ...]
    network: str
    loss: Callable[[Tensor, Tensor], Tensor]
    recipe: Recipe
    autocast: Callable[[], AbstractContextManager]
    watch: Callable[[Subnetwork], Mapping[str, float]] | None
    checkpoint: Path | None
    stop_after: int | None
    label: str

    def all(self, tasks: Sequence[MaskTask], *, split: bool) -> list[Discovery | TrainingDiverged]:
        """Train all at once, or in parts, each of which has a checkpoint of its own; split: see `in_parts`."""

        def train(part: Sequence[MaskTask], positions: tuple[int, ...]) -> list[Discovery | TrainingDiverged]:
            file = self.checkpoint
            if file is not None and positions:
                file = file.with_stem(f"{file.stem}-{'-'.join(map(str, positions))}")
            return self._train(part, file)

        return in_parts(train, tasks, of=(self.network, self.names[0]), split=split, label=self.label)

    def _train(self, tasks: Sequence[MaskTask], checkpoint: Path | None) -> list[Discovery | TrainingDiverged]:
        weights = {name: parameter.detach() for name, parameter in self.suffix.named_parameters()}
        method = tasks[0].method
        together = method, weights, self.names, len(tasks)
        # cuDNN's recurrent layers take all their weights in one precision
        narrow = not any(isinstance(layer, nn.RNNBase) for layer in self.suffix.modules())
        flat = FlatMasks.of(*together, narrow=narrow) or FlatDraws.of(*together, narrow=narrow)
        drawn_there = ["cuda"] if weights[self.names[0]].is_cuda and not method.deterministic else []
        logits, trained = self._first_logits(tasks, weights, flat)

        losses = Losses(
            self.suffix, weights, tasks[0].items.names, method, logits, flat, self.loss, self.autocast, self.label
        )
        faults: dict[int, str] = {}
        history = fit(
            trained,
            lambda epoch: self._batches(tasks, epoch),
            losses,
            recipe=replace(self.recipe, seed=tuple(one.seed for one in tasks)),
            observe=lambda epoch: _observe(method, logits, epoch, weights) | self._watched(method, logits),
            checkpoint=checkpoint,
            about=[self.network, *([_described(one.method), one.items.digest] for one in tasks), *drawn_there],
            stop_after=self.stop_after,
            faults=faults,
            label=self.label,
        )
        return [
            TrainingDiverged(faults[i]) if i in faults else self._discovery(tasks[i], logits, history, i)
            for i in range(len(tasks))
        ]

    def _first_logits(
        self, tasks: Sequence[MaskTask], weights: Mapping[str, Tensor], flat: Flat | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The logits by name, [k, *shape] for k masks; and the same memory as the tensors that are trained."""
        draws = [generator_for("first logits", one.seed) for one in tasks]
        both = list(zip(tasks, draws, strict=True))
        first = {
            name: torch.stack([one.method.init(weights[name], draw).cpu() for one, draw in both]) for name in self.names
        }
        if flat is None:
            logits = {name: values.to(weights[name].device).requires_grad_() for name, values in first.items()}
            return logits, logits
        for name, values in first.items():
            flat.views[name].copy_(values)
        return flat.views, {"logits": flat.logits.requires_grad_()}

    def _batches(self, tasks: Sequence[MaskTask], epoch: int) -> Iterator[Batch]:
        """One pass over all masks' data at once. Masks of a method that draws are trained one by one."""
        device, takes_padding = tasks[0].items.device, getattr(self.suffix, "takes_padding", False)
        generators = [generator_for(one.seed, epoch) for one in tasks]
        passes = [one.batches(generator) for one, generator in zip(tasks, generators, strict=True)]
        for batch in zip_longest(*passes):
            if None in batch:
                raise ValueError(
                    f"{self.label}: masks trained at once need equally many batches; train them one by one"
                )
            rows, positions = _distinct([rows for rows, _ in batch])
            together = zip((one.items for one in tasks), rows, strict=True)
            # neighbours with the same items are looked up together
            states = [items(torch.cat([row for _, row in same])) for items, same in groupby(together, itemgetter(0))]
            if not takes_padding and len({tuple(t.shape[1:] for t in state) for state in states}) > 1:
                raise ValueError(f"{self.label}: items of masks trained at once differ in shape; train them one by one")
            state = tuple(_joined(tensors) for tensors in zip(*states, strict=True))
            state = self.suffix.compact(state) if takes_padding else state
            yield (
                tuple(tensor.unflatten(0, (len(tasks), -1)) for tensor in state),
                sent(positions, device),
                sent(torch.stack([targets for _, targets in batch]), device),
                generators[0],
            )

    def _watched(self, method: MaskMethod, logits: dict[str, Tensor]) -> dict[str, list[float]]:
        """What is to be known of every mask's subnetwork as it is now."""
        if self.watch is None:
            return {}
        count = len(next(iter(logits.values())))
        rows = [self.watch(self._thresholded(method, logits, i)) for i in range(count)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _thresholded(self, method: MaskMethod, logits: dict[str, Tensor], i: int) -> Subnetwork:
        return Subnetwork(self._whole({n: method.hard(s.detach()[i]) for n, s in logits.items()}), self.network)

    def _whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One entry a weight, where there may be one a row."""
        return {name: part.expand(self.suffix.get_parameter(name).shape) for name, part in parts.items()}

    def _discovery(self, task: MaskTask, logits: dict[str, Tensor], history: pd.DataFrame, i: int) -> Discovery:
        own = history.map(lambda value: value[i] if isinstance(value, list) else value)
        bins = [column for column in own if column.startswith("bin_")]
        found, annealing = self._thresholded(task.method, logits, i), own[["epoch", *bins]]
        if len(own) == self.recipe.epochs:
            warn_if_all_are_kept(self.label, found.active, found.total)
        scores = self._whole({name: tensor.detach()[i].cpu() for name, tensor in logits.items()})
        # counted anew: a training that went on from a checkpoint has not seen all of its batches
        parts = getattr(task.method, "samples", 1)
        passes = len(own) * sum(len(rows.chunk(parts)) for rows, _ in task.batches(generator_for(task.seed, 0)))
        return Discovery(found, own.drop(columns=bins), annealing, scores, passes)


def warn_if_all_are_kept(label: str, active: int, total: int) -> None:
    """Say that a mask cut nothing out, and what to do: often no logit had the time to come down to 0."""
    if active == total:
        remedy = "train longer, or raise learning_rate or l0"
        print(f"{label}: the mask keeps all {total:,} weights; {remedy}", file=sys.stderr, flush=True)


def _described(method: MaskMethod) -> dict[str, str]:
    """A method's name and settings."""
    about = {"method": type(method).__name__} | {name: repr(value) for name, value in vars(method).items()}
    if about.get("units") == "'weights'":
        del about["units"]  # checkpoints from before there were others are still known
    return about


def _require_alike(tasks: Sequence[MaskTask], recipe: Recipe) -> None:
    """Raise ValueError for no method, for masks that cannot be trained together, or a schedule of another length."""
    for one in (one.method for one in tasks if not hasattr(one.method, "init")):
        raise ValueError(f"method {one!r} is not valid; give an object of masks.methods, such as GumbelSigmoid()")
    if len(tasks) > 1 and not tasks[0].method.deterministic:
        raise ValueError("a method that draws random numbers trains one mask at a time; train them one by one")
    for one in tasks:
        epochs = getattr(one.method, "epochs", recipe.epochs)
        if epochs != recipe.epochs:
            raise ValueError(
                f"the method anneals over {epochs} epochs, the recipe trains {recipe.epochs}; make them equal"
            )
        if _described(one.method) | {"start_value": ""} != _described(tasks[0].method) | {"start_value": ""}:
            raise ValueError(
                "masks trained at once may differ only in seed, data and start_value; train them one by one"
            )


def _distinct(rows: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Distinct rows of each batch, as many for each (the first repeated), and where each entry is: [k, *rows.shape]."""
    found = [row.unique(return_inverse=True) for row in rows]
    most = max(len(distinct) for distinct, _ in found)
    padded = [torch.cat([distinct, distinct[:1].expand(most - len(distinct))]) for distinct, _ in found]
    return padded, torch.stack([positions for _, positions in found])


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenation over items; shorter sentences than those of another set get padding, which is 0 in every state."""
    if len(tensors) == 1:
        return tensors[0]
    if tensors[0].ndim > 1:
        longest = max(tensor.shape[1] for tensor in tensors)
        other_dimensions = [0, 0] * (tensors[0].ndim - 2)
        tensors = [nn.functional.pad(tensor, [*other_dimensions, 0, longest - tensor.shape[1]]) for tensor in tensors]
    return torch.cat(list(tensors))


@torch.no_grad()
def _observe(
    method: MaskMethod, logits: dict[str, Tensor], epoch: int, weights: Mapping[str, Tensor]
) -> dict[str, float | list[float]]:
    """Temperature, density of the hard masks and histogram of the soft ones after an epoch, each a list over masks.

    The density counts weights, the histogram logits; one logit may stand for a row of weights.
    """
    total = sum(tensor[0].numel() for tensor in logits.values())
    each = {name: weights[name].numel() // tensor[0].numel() for name, tensor in logits.items()}
    expected = getattr(method, "expected", None)
    soft = {n: expected(s) for n, s in logits.items()} if expected else method.soft(logits, epoch, torch.Generator())
    row = {"beta": method.beta(epoch)} if hasattr(method, "beta") else {}
    # mask by mask: what `hard` keeps of one may depend on all of it
    hard = [torch.stack([method.hard(mask).sum() * each[name] for mask in masks]) for name, masks in logits.items()]
    row |= {"density": (sum(hard).double() / sum(weights[name].numel() for name in logits)).tolist()}
    counts = [torch.stack([torch.histc(mask.float(), 50, 0.0, 1.0) for mask in masks]) for masks in soft.values()]
    bins = sum(of_one.double() for of_one in counts) / total
    return row | {f"bin_{j:02d}": shares.tolist() for j, shares in enumerate(bins.T)}
