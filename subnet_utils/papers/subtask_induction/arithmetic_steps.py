"""Subtask induction in modular arithmetic, step by step (*Instilling Inductive Biases with Subnetworks*, section 4).

A source network learns T1, say a + ab; masks are found in it that compute a part of it, ab, alone; that subnetwork is
put into a new network, which is trained on T2, say a^2 + ab, with few rows that tell T2 from what agrees with it where
a = b. Every step is an artefact, made once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import CHECKPOINT, Lab, file_subnetwork, subnetwork_in
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact, save_json, save_table, save_tensors
from subnet_utils.masks.controls import NoControl, random_like
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.masks.transfer import Transfer, Weights, inherited, measure_all, train_on, transplant, untransferred
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.papers.break_it_down.base_models import best_pruning
from subnet_utils.papers.subtask_induction.arithmetic_section import Arithmetic, Induction
from subnet_utils.papers.subtask_induction.arithmetic_task import (
    Rows,
    diagonal_pairs,
    disambiguation_pairs,
    off_diagonal,
    rows_of,
    task_pairs,
)
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS
from subnet_utils.training import Recipe

FOUND = 0.99
"""Accuracy on its subtask from which on a subnetwork counts as found."""
START = "layer_1"
"""Masks cover the matrices of attention and MLP, all layers."""


@dataclass(frozen=True)
class Source:
    """A network that learns a computation from scratch: T1."""

    layers: int
    computation: str
    seed: int

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its weights depend on."""
        return _about(lab, self.layers) | {
            "computation": self.computation,
            "seed": self.seed,
            "training": lab.study.arithmetic.base.model_dump(),
        }


@dataclass(frozen=True)
class SubtaskMask:
    """A mask to be found in a source network, with one lambda."""

    source: Source
    subtask: str
    l0: float

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the mask depends on."""
        settings = lab.study.arithmetic.masks.model_dump(exclude={"l0"})
        network = train_source(lab, self.source).json("result")["network"]
        own = {"network": network, "subtask": self.subtask, "l0": self.l0, "masks": settings}
        return {"source": self.source.spec(lab)} | own


@dataclass(frozen=True)
class Transfers:
    """Networks that learn T2 from the same rows, one under each condition, trained at once."""

    layers: int
    induction: Induction
    seed: int
    samples: int
    conditions: tuple[str, ...]

    @property
    def source(self) -> Source:
        """Where they inherit from."""
        return Source(self.layers, self.induction.source, self.seed)

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the results depend on, the inherited subnetwork among it."""
        more = {"samples", "conditions", "further_samples", "further_conditions"}
        settings = lab.study.arithmetic.transfer.model_dump(exclude=more)
        mask = chosen_mask(lab, self.source, self.induction.subtask)
        return {
            "subnetwork": mask.spec(lab) | {"bits": _bits(lab, mask)},
            "target": self.induction.target,
            "samples": self.samples,
            "conditions": list(self.conditions),
            "transfer": settings,
        }


def train_source(lab: Lab, source: Source) -> Artefact:
    """A network trained on its computation: weights, history, accuracies on held-out rows."""
    return lab.store.make("arithmetic", source.spec(lab), partial(_build_source, lab, source))


def find_subtask(lab: Lab, mask: SubtaskMask) -> Artefact:
    """A subnetwork that computes the subtask, its history and accuracies; or why there is none, under `fault`."""
    return lab.store.make("subtask", mask.spec(lab), partial(_build_mask, lab, mask))


def chosen_mask(lab: Lab, source: Source, subtask: str) -> SubtaskMask:
    """Of the masks with different lambdas the sparsest that computes the subtask, else the most accurate.

    Raises TrainingDiverged if the training of all of them did.
    """
    masks = [SubtaskMask(source, subtask, l0) for l0 in lab.study.arithmetic.masks.l0]
    return masks[best_pruning([find_subtask(lab, mask).json("result") for mask in masks], learned=FOUND)]


def ablate_subtask(lab: Lab, mask: SubtaskMask) -> Artefact:
    """Accuracies with and without the subnetwork, and without random ones of its size: a row each."""
    spec = mask.spec(lab) | ablation_spec(lab, mask)
    return lab.store.make("subtask_ablation", spec, partial(_build_ablation, lab, mask))


def ablation_spec(lab: Lab, mask: SubtaskMask) -> dict[str, Any]:
    """What an ablation depends on besides the mask's own specification."""
    return {"draws": lab.study.arithmetic.draws, "bits": _bits(lab, mask)}


def transfer(lab: Lab, transfers: Transfers) -> Artefact:
    """Networks trained around what they inherited: a row for each condition."""
    return lab.store.make("transfers", transfers.spec(lab), partial(_build_transfers, lab, transfers))


def load_subtask(lab: Lab, mask: SubtaskMask) -> Subnetwork:
    """The subnetwork of a mask. Raises TrainingDiverged if its training ended without one."""
    return subnetwork_in(find_subtask(lab, mask))


def load_source(lab: Lab, source: Source) -> StagedModel:
    """The trained source network, frozen. One copy serves all: do not change it."""
    return _loaded(lab, source, train_source(lab, source).key)


def _bits(lab: Lab, mask: SubtaskMask) -> str | None:
    """Checksum of a subnetwork: one that was built anew with other bits has results of its own."""
    return find_subtask(lab, mask).json("manifest").get("subnetwork.safetensors")


def _about(lab: Lab, layers: int) -> dict[str, Any]:
    settings = lab.study.arithmetic
    common = settings.model_dump(include={"max", "p", "loss", "dropout", "validation", "test"})
    return {"architecture": _architecture(settings, layers)} | common


def _architecture(settings: Arithmetic, layers: int) -> dict[str, Any]:
    return {"family": "gpt2", "layers": layers, **settings.model_dump(include={"width", "heads", "mlp_width"})}


def _new(lab: Lab, layers: int, *about: str | int) -> StagedModel:
    """A network as it is before training."""
    settings = lab.study.arithmetic
    more = {"dropout": settings.dropout, "last_only": settings.loss == "answer"}
    architecture = _architecture(settings, layers) | more
    seed = generator_for("arithmetic network", *about).initial_seed() % 2**31
    return build(architecture, seed=seed, vocabulary=settings.max + 1).to(lab.device)


@lru_cache(maxsize=8)
def _loaded(lab: Lab, source: Source, key: str) -> StagedModel:
    model, weights = _new(lab, source.layers, "source", source.seed), train_source(lab, source).tensors("weights")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval().requires_grad_(False)


def _build_source(lab: Lab, source: Source, folder: Path) -> None:
    settings = lab.study.arithmetic
    training, model = settings.base, _new(lab, source.layers, "source", source.seed)
    sizes = {"train": training.rows, "validation": settings.validation, "test": settings.test}
    pairs = task_pairs(settings.max, **sizes, seed=source.seed)
    train, *held = (_rows(lab, source.computation, part) for part in (pairs.train, pairs.validation, pairs.test))
    weights, history = train_on(
        model,
        [untransferred(model)],
        lambda epoch: _batches(train, training.batch_size, (source.seed, epoch)),
        _loss(settings),
        lambda found: {"validation_loss": _losses(model, found, held[0])},
        recipe=Recipe(
            training.learning_rate, training.epochs, source.seed, training.patience, weight_decay=training.weight_decay
        ),
        checkpoint=folder / CHECKPOINT,
        label=f"{source.layers} layers, {source.computation}, seed {source.seed}",
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name][0])
    # not the state dict: the output is tied to the embeddings, and a file holds no weight twice
    save_tensors(folder / "weights.safetensors", dict(model.named_parameters()))
    save_table(folder / "history.parquet", _flat(history, 0))
    accuracies = {f"{name}_accuracy": 1 - _errors(model, weights, rows)[0]
                  for name, rows in zip(("validation", "test"), held, strict=True)}  # fmt: skip
    save_json(folder / "result.json", accuracies | {"epochs": len(history), "network": fingerprint(model)})


def _build_mask(lab: Lab, mask: SubtaskMask, folder: Path) -> None:
    settings, model = lab.study.arithmetic, load_source(lab, mask.source)
    training, sizes = settings.masks, {"validation": settings.validation, "test": settings.test}
    pairs = task_pairs(settings.max, train=training.rows, **sizes, seed=mask.source.seed)
    train, validation, test = (_rows(lab, mask.subtask, part) for part in (pairs.train, pairs.validation, pairs.test))
    find = partial(
        discover,
        model,
        train.tokens,
        lambda generator: _shuffled(train, training.batch_size, generator),
        _loss(settings),
        method=ContinuousSparsification(training.epochs, training.beta_max, training.mask_init, mask.l0),
        start=START,
        recipe=Recipe(training.learning_rate, training.epochs, mask.source.seed),
        limit_gb=cache_limit(lab.study.compute),
        checkpoint=folder / CHECKPOINT,
        label=f"{mask.source.layers} layers, {mask.subtask} in {mask.source.computation}, seed {mask.source.seed}",
    )
    kept = file_subnetwork(folder, find)
    if kept is None:
        return
    alone = _stacked(kept.apply(model))
    accuracies = {f"{name}_accuracy": 1 - _errors(model, alone, rows)[0]
                  for name, rows in (("validation", validation), ("test", test))}  # fmt: skip
    save_json(folder / "result.json", accuracies | {"active": kept.active, "total": kept.total})


def _build_ablation(lab: Lab, mask: SubtaskMask, folder: Path) -> None:
    settings, model, kept = lab.study.arithmetic, load_source(lab, mask.source), load_subtask(lab, mask)
    sizes = {"train": settings.base.rows, "validation": settings.validation, "test": settings.test}
    pairs = task_pairs(settings.max, **sizes, seed=mask.source.seed)
    whole, part = (_rows(lab, computation, pairs.test) for computation in (mask.source.computation, mask.subtask))
    networks = {("whole network", 0): model, ("subnetwork", 0): kept.apply(model), ("ablated", 0): kept.ablate(model)}
    for draw in range(settings.draws):
        networks["random ablated", draw] = random_like(kept, seed=draw).ablate(model)
    rows = []
    for (name, draw), network in networks.items():
        weights = _stacked(network)
        source, subtask = (1 - _errors(model, weights, of)[0] for of in (whole, part))
        rows.append({"network": name, "draw": draw, "source_accuracy": source, "subtask_accuracy": subtask})
    save_json(folder / "result.json", rows)


def _build_transfers(lab: Lab, transfers: Transfers, folder: Path) -> None:
    settings, seed, target = lab.study.arithmetic, transfers.seed, transfers.induction.target
    training, fresh = settings.transfer, _new(lab, transfers.layers, "target", seed)
    starts, rows = _starts(lab, transfers, fresh)
    # what the source network and its mask were never trained on is what the new networks are judged by, too
    sizes = {"train": settings.max, "validation": settings.validation, "test": settings.test}
    held = task_pairs(settings.max, **sizes, seed=seed)
    out = torch.cat([held.validation, held.test])
    more = disambiguation_pairs(settings.max, train=transfers.samples, held=out, seed=seed)
    train = _rows(lab, target, torch.cat([diagonal_pairs(settings.max), more]))
    sets = {name: _rows(lab, target, pairs)
            for name, pairs in (("validation", off_diagonal(held.validation)), ("test", off_diagonal(held.test)),
                                ("diagonal", diagonal_pairs(settings.max)))}  # fmt: skip
    faults: dict[int, str] = {}
    if starts:
        weights, history = train_on(
            fresh,
            list(starts.values()),
            lambda epoch: _batches(train, training.batch_size, (seed, epoch), count=len(starts)),
            _loss(settings),
            lambda now: {"validation_error": _errors(fresh, now, sets["validation"])},
            recipe=Recipe(
                training.learning_rate, training.epochs, seed, training.epochs,
                weight_decay=training.weight_decay, judged_by="validation_error",
            ),
            checkpoint=folder / CHECKPOINT,
            faults=faults,
            label=f"{transfers.layers} layers, {target}, {transfers.samples} rows, seed {seed}",
        )  # fmt: skip
        errors = {name: _errors(fresh, weights, of) for name, of in sets.items()}
    for i, name in enumerate(starts):
        if i in faults:
            rows.append({"condition": name, "fault": faults[i]})
            continue
        own = _flat(history, i)["validation_error"]
        accuracies = {f"{part}_accuracy": 1 - values[i] for part, values in errors.items()}
        rows.append({"condition": name} | accuracies | {"best_epoch": int(own.idxmin()), "epochs": len(own)})
    save_json(folder / "result.json", rows)


def _starts(lab: Lab, transfers: Transfers, fresh: StagedModel) -> tuple[dict[str, Transfer], list[dict[str, str]]]:
    """What each condition starts from, and a row with the fault for each control that cannot be had."""
    donor = load_source(lab, transfers.source)
    found = load_subtask(lab, chosen_mask(lab, transfers.source, transfers.induction.subtask))
    starts, faults = {}, []
    for name in transfers.conditions:
        condition = CONDITIONS[name]
        try:
            kept = inherited(found, condition.inherits, seed=transfers.seed)
        except NoControl as error:  # the others can be had all the same
            faults.append({"condition": name, "fault": str(error)})
            continue
        starts[name] = transplant(donor, fresh, kept, carried=condition.carried, frozen=condition.frozen)
    return starts, faults


def _rows(lab: Lab, computation: str, pairs: Tensor) -> Rows:
    return rows_of(computation, pairs, maximum=lab.study.arithmetic.max, p=lab.study.arithmetic.p)


def _loss(settings: Arithmetic):
    """Mean cross-entropy, nats, of all three next symbols or of the answer: (logits [m, 3, v], targets [m, 3])."""
    if settings.loss == "all":
        return lambda logits, targets: cross_entropy(logits.flatten(0, 1), targets.flatten())
    return lambda logits, targets: cross_entropy(logits[:, -1], targets[:, -1])


def _errors(model: StagedModel, weights: Weights, rows: Rows) -> list[float]:
    """Share of wrong answers of each of several networks."""
    wrong = measure_all(
        model, weights, rows.tokens, rows.answers, lambda logits, answers: logits[:, -1].argmax(dim=-1) != answers
    )
    return wrong.double().mean(dim=1).tolist()


def _losses(model: StagedModel, weights: Weights, rows: Rows) -> list[float]:
    """Mean cross-entropy of the answers, nats, of each of several networks."""
    each = measure_all(
        model,
        weights,
        rows.tokens,
        rows.answers,
        lambda logits, answers: cross_entropy(logits[:, -1], answers, reduction="none"),
    )
    return each.double().mean(dim=1).tolist()


def _stacked(model: StagedModel) -> dict[str, Tensor]:
    """The weights of one network as those of a stack of one."""
    return {name: weight.detach()[None] for name, weight in model.named_parameters()}


def _shuffled(rows: Rows, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass: numbers of rows [B] and their targets [B, 3]; what is left of a batch at the end is a batch, too."""
    for batch in torch.randperm(len(rows), generator=generator).split(size):
        yield batch, rows.targets[batch]


def _batches(rows: Rows, size: int, about: tuple, *, count: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass for networks that all see the same: tokens and targets [count, B, 3]."""
    for batch, targets in _shuffled(rows, size, generator_for("arithmetic batches", *about)):
        yield rows.tokens[batch].expand(count, -1, -1), targets.expand(count, -1, -1)


def _flat(history: Any, run: int):
    """The history of one of the stacked runs."""
    return history.map(lambda value: value[run] if isinstance(value, list) else value)
