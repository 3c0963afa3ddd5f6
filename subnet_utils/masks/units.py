"""Structured masks: subnetworks of whole attention heads and MLPs, found by training a gate for each of them.

*The Heuristic Core* (Bhaskar, Friedman and Chen 2024), section 2 and appendix B, after CoFi pruning (Xia et al. 2022);
its gates are `methods.HardConcrete`, but any method that trains logits will do. A unit is an attention head, acting on
the context vector before the output projection, or an MLP, acting on its output before the residual stream. A gate z
turns a unit's activation x into z x + (1 - z) mu: with mu = 0 it is zero ablation, with mu the mean over data mean
ablation. Networks are never edited: gates are hooks on transformers' own BERT, RoBERTa or GPT-2, there for as long as a
`with` block lasts.

A unit subnetwork is a `Subnetwork` with the masks `heads` [layers, heads] and `mlps` [layers], with its algebra, its
random controls and its files.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.masks.methods import MaskMethod
from subnet_utils.masks.select import select
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import full_precision, sent
from subnet_utils.models.staged import fingerprint
from subnet_utils.training import Recipe, fit

Gates = Mapping[str, Tensor]
"""`heads` [layers, heads] and `mlps` [layers]: floats in [0, 1], or booleans."""
Means = Mapping[str, Tensor]
"""`heads` [layers, width] and `mlps` [layers, width]: mean activations."""
Inputs = Mapping[str, Tensor]
"""What the network is called with: `input_ids` [m, T], `attention_mask` [m, T], ..."""
Batches = Callable[[torch.Generator], Iterator[tuple[Inputs, Tensor]]]

MULTIPLIER_SCALE = 10.0
"""The multipliers' learning rate in units of the gates': theirs is 1, the gates' .1."""


class Layer(NamedTuple):
    """Where a layer's gates act: the input of `attention` is the heads' context, the output of `mlp` the MLP's.

    The latter is after the MLP's dropout, as in the authors' code: dropout behind a gate would drop means as well.
    """

    attention: nn.Module
    mlp: nn.Module


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers of transformers' BERT, RoBERTa or GPT-2. Raises ValueError for a model without attention heads."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module):
            first = module[0]
            if hasattr(first, "attention") and hasattr(getattr(first.attention, "output", None), "dense"):
                return [Layer(block.attention.output.dense, block.output.dropout) for block in module]
            if hasattr(first, "attn") and hasattr(first.attn, "c_proj"):
                return [Layer(block.attn.c_proj, block.mlp) for block in module]
    name = type(model).__name__
    raise ValueError(f"{name} has no attention heads that can be gated; give a BERT, RoBERTa or GPT-2 of transformers")


def shape_of(model: nn.Module) -> tuple[int, int]:
    """Number of layers, and of heads in each. Raises ValueError as `layers_of` does."""
    return len(layers_of(model)), model.config.num_attention_heads


def without(model: nn.Module, heads: Iterable[tuple[int, int]] = ()) -> Subnetwork:
    """All units but some heads, (layer, head) each, counted from 0."""
    shape = shape_of(model)
    kept = torch.ones(shape, dtype=torch.bool)
    for head in heads:
        kept[head] = False
    return Subnetwork({"heads": kept, "mlps": torch.ones(shape[0], dtype=torch.bool)}, fingerprint(model))


@contextmanager
def gated(model: nn.Module, gates: Gates | Subnetwork, means: Means | None = None) -> Iterator[nn.Module]:
    """The network with gates on its units, inside the block; means: None for zero ablation. A gate of 1 leaves every
    bit as it is. Raises WrongNetwork for a subnetwork of another network, ValueError for gates of the wrong shape."""
    if isinstance(gates, Subnetwork):
        gates.require(model)
        gates = gates.masks
    shape, own = shape_of(model), {name: tuple(gates[name].shape) for name in ("heads", "mlps")}
    if own != {"heads": shape, "mlps": shape[:1]}:
        needed = f"do not fit {shape[0]} layers of {shape[1]} heads; make them for this model"
        raise ValueError(f"gates for {own['heads']} heads and {own['mlps']} MLPs {needed}")

    def through(kind: str, i: int, x: Tensor) -> Tensor:
        """z x + (1 - z) mu, which is (x - mu) z + mu but leaves every bit of x where z is 1."""
        gate, center = gates[kind][i].to(x), 0.0 if means is None else means[kind][i].to(x)
        if kind == "heads":
            gate = gate.repeat_interleave(x.shape[-1] // len(gate))
        return x * gate + (1 - gate) * center

    with _hooked(model, through):
        yield model


@contextmanager
def _hooked(model: nn.Module, through: Callable[[str, int, Tensor], Tensor]) -> Iterator[None]:
    """Inside the block the context of layer i is through("heads", i, context), its MLP's output likewise ("mlps")."""
    with ExitStack() as hooks:
        for i, (attention, mlp) in enumerate(layers_of(model)):
            hooks.enter_context(attention.register_forward_pre_hook(lambda _, x, i=i: through("heads", i, *x)))
            hooks.enter_context(mlp.register_forward_hook(lambda _, x, output, i=i: through("mlps", i, output)))
        yield


@torch.no_grad()
def mean_activations(model: nn.Module, batches: Iterable[Inputs]) -> dict[str, Tensor]:
    """Mean of every layer's context vectors and MLP outputs over all tokens that are not padding: [layers, width] each.
    Raises ValueError if there is no batch."""
    device, layers = next(model.parameters()).device, len(layers_of(model))
    sums = {kind: [torch.zeros(1, device=device)] * layers for kind in ("heads", "mlps")}
    real, count = torch.empty(0), 0

    def note(kind: str, i: int, x: Tensor) -> Tensor:
        sums[kind][i] = sums[kind][i] + (x.double() * real[..., None]).sum(dim=(0, 1))
        return x

    with _hooked(model, note), full_precision(device):
        for batch in batches:
            real = batch["attention_mask"].to(device)
            count += int(real.sum())
            model(**{name: tensor.to(device) for name, tensor in batch.items()})
    if not count:
        raise ValueError("no batch to take mean activations from; give it data")
    return {kind: torch.stack(found).div(count).float() for kind, found in sums.items()}


@dataclass(frozen=True)
class Schedule:
    """How long to prune, and how fast. In the paper, for a target of s percent: 6500 + 50 s steps of warm-up of the
    target sparsity, then 6 s more; learning rates .1 of the gates and 1 of the multipliers.

    steps: in all; warmup: of them until the target is reached; rate_warmup: until the learning rate is reached, after
    which it falls to 0 in a line; interval: steps between rows of the history, and between checkpoints at the least.
    """

    steps: int
    warmup: int
    learning_rate: float = 0.1
    rate_warmup: int = 200
    weight_decay: float = 0.01
    interval: int = 50

    @property
    def intervals(self) -> int:
        """How many there are; the last one may be shorter."""
        return math.ceil(self.steps / self.interval)

    def __post_init__(self) -> None:
        if not 0 < self.warmup <= self.steps or not 0 <= self.rate_warmup < self.steps:
            sizes = f"{self.steps} steps, {self.warmup} of warm-up, {self.rate_warmup} of the learning rate's"
            raise ValueError(f"{sizes}: warm-ups must fit into the steps; make these more")

    def recipe(self, seed: int) -> Recipe:
        """For `fit`: an interval counts as an epoch."""
        warmup = min(self.intervals - 1, math.ceil(self.rate_warmup / self.interval))
        return Recipe(self.learning_rate, self.intervals, seed, weight_decay=self.weight_decay, linear=True,
                      warmup=warmup)  # fmt: skip


def prune(
    model: nn.Module, batches: Batches, means: Means | None, *, sparsity: float, schedule: Schedule, method: MaskMethod,
    seed: int, precision: Callable[[], AbstractContextManager] = nullcontext, checkpoint: Path | None = None,
    label: str = "pruning",
) -> tuple[dict[str, Tensor], pd.DataFrame]:  # fmt: skip
    """Gates that keep the network's predictions while a share `sparsity` of its units is turned off (appendix B).

    Minimizes KL(full || gated) + l1 (t - s) + l2 (t - s)^2 over the gates, t the target and s the share of sampled
    gates that is off, and maximizes it over the multipliers l1 and l2, which stand in for the method's own penalty.
    batches(generator): an endless supply of inputs and the full network's log-probabilities [m, classes]; precision:
    context of the forward passes. The network's dropout is on, as in the authors' run; its weights stay as they are,
    and are frozen, in evaluation mode, afterwards. Gives each unit's gate without noise, and the history, a row for
    each interval of the schedule. Raises TrainingDiverged for a loss that is not finite.
    """
    run = _Pruning(model.train().requires_grad_(False), means, sparsity, schedule, method, seed, precision)
    try:
        with separate_randomness():
            history = fit(
                run.logits | {"multipliers": run.multipliers}, partial(run.interval, batches), run.loss,
                recipe=schedule.recipe(seed), observe=run.observe, checkpoint=checkpoint, label=label,
            )  # fmt: skip
    finally:
        model.eval()
    return {name: own.cpu() for name, own in run.scores().items()}, history


@dataclass
class _Pruning:
    """One run of `prune`: what is trained, on what, by which loss."""

    model: nn.Module
    means: Means | None
    sparsity: float
    schedule: Schedule
    method: MaskMethod
    seed: int
    precision: Callable[[], AbstractContextManager]

    def __post_init__(self) -> None:
        (layers, heads), self.device = shape_of(self.model), next(self.model.parameters()).device
        self.multipliers = torch.zeros(2, device=self.device, requires_grad=True)
        self.logits, draws = {}, generator_for("gates", self.seed)
        for name, size in {"heads": (layers, heads), "mlps": (layers,)}.items():  # near where the method starts
            near = self.method.init(torch.empty(size), draws) + 0.01 * torch.randn(*size, generator=draws)
            self.logits[name] = near.to(self.device).requires_grad_()

    def interval(self, batches: Batches, interval: int) -> Iterator[tuple[int, Inputs, Tensor, torch.Generator]]:
        """Steps, batches and the generator of gates: seeded anew, so that a run that goes on sees the same."""
        generator, schedule = generator_for("pruning", self.seed, interval), self.schedule
        torch.manual_seed(generator_for("dropout", self.seed, interval).initial_seed())
        supply = iter(batches(generator))
        first = interval * schedule.interval
        for step in range(schedule.steps)[first : first + schedule.interval]:
            batch = next(supply, None)
            if batch is None:
                raise ValueError(f"the batches ended at step {step} of {schedule.steps}; give them without end")
            yield step, *batch, generator

    def loss(self, batch: tuple[int, Inputs, Tensor, torch.Generator], interval: int) -> Tensor:
        """Of one step; an interval counts as an epoch of the method."""
        step, inputs, full, generator = batch
        _decay(self.multipliers, self.schedule.recipe(0).rate(interval) * self.schedule.weight_decay)
        gates = self.method.soft(self.logits, interval, generator)
        with self.precision(), gated(self.model, gates, self.means):
            answers = self.model(**{name: sent(tensor, self.device) for name, tensor in inputs.items()}).logits
        found = log_softmax(answers.float(), dim=-1)
        divergence = kl_div(found, sent(full, self.device), log_target=True, reduction="batchmean")
        units = sum(gate.numel() for gate in gates.values())
        off = 1 - sum(gate.sum() for gate in gates.values()) / units
        missing = self.sparsity * min(1.0, (step + 1) / self.schedule.warmup) - off
        return divergence + _constraint(missing, self.multipliers * MULTIPLIER_SCALE)

    def observe(self, interval: int) -> dict[str, float]:
        """A row of the history."""
        scores = torch.cat([own.flatten() for own in self.scores().values()])
        l1, l2 = (self.multipliers.detach() * MULTIPLIER_SCALE).tolist()
        step = min((interval + 1) * self.schedule.interval, self.schedule.steps)
        return {"step": step, "sparsity": 1 - float(scores.mean()), "l1": l1, "l2": l2}

    def scores(self) -> dict[str, Tensor]:
        """Gates without noise, in [0, 1]: as the method says, or else sigma of the logits."""
        gate = getattr(self.method, "expected", torch.sigmoid)
        return {name: gate(own.detach()) for name, own in self.logits.items()}


def _constraint(missing: Tensor, multipliers: Tensor) -> Tensor:
    """l1 (t - s) + l2 (t - s)^2: gradients descend on the gates, and climb on the multipliers."""
    first, second = multipliers
    descent = first.detach() * missing + second.detach() * missing**2
    ascent = first * missing.detach() + second * missing.detach() ** 2
    return descent - (ascent - ascent.detach())


@torch.no_grad()
def _decay(multipliers: Tensor, share: float) -> None:
    """Weight decay of a step at the multipliers' own learning rate; the optimizer's is at the gates'."""
    multipliers.mul_((1 - MULTIPLIER_SCALE * share) / (1 - share))


def sparsest_of(scores: Gates, *, sparsity: float, network: str) -> Subnetwork:
    """The units with the highest scores, exactly as many as a sparsity leaves (rounded); of equals the first."""
    units = sum(own.numel() for own in scores.values())
    return select(scores, round((1 - sparsity) * units), network=network)


def nearest_by_threshold(scores: Gates, *, sparsity: float, network: str) -> Subnetwork:
    """The units above the threshold that comes closest to a sparsity, of 0, .05, ..., 1 (appendix B); of equals the
    first. The sparsity that it reaches is seldom the one asked for."""
    every = torch.cat([own.flatten() for own in scores.values()])
    best = min(np.linspace(0, 1, 21), key=lambda threshold: abs(float((every <= threshold).double().mean()) - sparsity))
    return Subnetwork({name: own > best for name, own in scores.items()}, network)
