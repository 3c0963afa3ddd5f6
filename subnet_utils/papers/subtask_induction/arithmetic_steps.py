"""Subtask induction in modular arithmetic, step by step (*Instilling Inductive Biases with Subnetworks*, section 4).

A source network learns T1, say a + ab. Masks are found in it that compute a part of it, ab, alone. That subnetwork is
put into a new network, which is trained on T2, say a^2 + ab. Few of its rows tell T2 from what agrees with it where
a = b.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks.controls import NoControl, random_like
from subnet_utils.masks.transfer import Transfer, train_on, untransferred
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.papers.subtask_induction import arithmetic_section as section
from subnet_utils.papers.subtask_induction.chosen_mask import ChosenMask, Mask
from subnet_utils.papers.subtask_induction.conditions import TRAINED_ALONE
from subnet_utils.papers.subtask_induction.stacks import errors, history_of, shuffled, started
from subnet_utils.tasks import modular_arithmetic as task
from subnet_utils.tasks.modular_arithmetic import Pairs, Rows, rows_of

FOUND = 0.99
"""Accuracy on its subtask from which on a subnetwork counts as found."""


@dataclass(frozen=True)
class Source(Step):
    """A network that learns a computation from scratch: T1. `load` gives it, frozen.

    problem: `Arithmetic.problem`.
    """

    keeps: ClassVar[int] = 8

    problem: section.Arithmetic
    layers: int
    computation: str
    seed: int
    training: section.ArithmeticTraining

    def fresh(self, about: str = "source") -> StagedModel:
        """A network before training: this one, or about='target' the one that inherits from it."""
        sizes = self.problem.model_dump(include={"width", "heads", "mlp_width", "dropout"})
        architecture = {"family": "gpt2", "layers": self.layers, "last_only": self.problem.loss == "answer", **sizes}
        seed = generator_for("arithmetic network", about, self.seed).initial_seed() % 2**31
        return build(architecture, seed=seed, vocabulary=self.problem.max + 1)

    def pairs(self, train: int) -> Pairs:
        """So many pairs for training; those that are held out do not depend on how many."""
        held = self.problem.model_dump(include={"validation", "test"})
        return task.task_pairs(self.problem.max, train=train, **held, seed=self.seed)

    def rows(self, pairs: Tensor, computation: str | None = None) -> Rows:
        """The rows of its computation, or of another one, for given pairs."""
        return rows_of(computation or self.computation, pairs, maximum=self.problem.max, p=self.problem.p)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train it; the epoch with the smallest validation loss is kept."""
        model = self.fresh().to(lab.device)
        train, validation, test = map(self.rows, self.pairs(self.training.rows))
        loss = partial(cross_entropy, reduction="none")
        weights, history = train_on(
            model,
            [untransferred(model)],
            lambda epoch: _batches(train, self.training.batch_size, (self.seed, epoch)),
            loss_of(self.problem),
            lambda now: {"validation_loss": _errors(model, validation, now, loss)},
            recipe=self.training.recipe(self.seed),
            checkpoint=folder / CHECKPOINT,
            label=f"{self.layers} layers, {self.computation}, seed {self.seed}",
        )
        model.load_state_dict({name: weight[0] for name, weight in weights.items()}, strict=False)
        # not the state dict: the output is tied to the embeddings, and a file holds no weight twice
        save_tensors(folder / "weights.safetensors", dict(model.named_parameters()))
        save_table(folder / "history.parquet", history_of(history))
        found = accuracies(model, validation=validation, test=test)
        return found | {"epochs": len(history), "network": fingerprint(model)}

    def read(self, lab: Lab, artefact: Artefact) -> StagedModel:
        """See the class."""
        model = self.fresh().to(lab.device)
        model.load_state_dict(artefact.tensors("weights"), strict=False)
        return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class SubtaskMask(Mask):
    """A mask in a source network that computes the subtask."""

    search: section.ArithmeticMasks
    source: Source
    subtask: str

    @property
    def about(self) -> dict[str, Any]:
        """What tells it from other masks, without its lambda, as columns of a table."""
        source = self.source
        return {"source": source.computation, "subtask": self.subtask, "layers": source.layers, "seed": source.seed}

    @property
    def label(self) -> str:
        """The same as text."""
        return "{layers} layers, {subtask} in {source}, seed {seed}".format(**self.about)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find it, and measure the subnetwork alone on the subtask."""
        source, model = self.source, self.source.load(lab)
        train, validation, test = (source.rows(pairs, self.subtask) for pairs in source.pairs(self.search.rows))
        # from the first layer on: the matrices of attention and MLP
        options = {"start": "layer_1", "seed": source.seed, "before": source.fresh, "label": self.label}
        examples = train.tokens, train.targets, loss_of(source.problem)
        kept, size = self.discovered(lab, folder, model, *examples, **options)
        return accuracies(kept.apply(model), validation=validation, test=test) | size


@dataclass(frozen=True)
class OfSubtask(Step):
    """What is done with a subtask's subnetwork. It is a fault if no mask came to its end."""

    records_faults: ClassVar[bool] = True

    mask: ChosenMask

    @property
    def first(self) -> SubtaskMask:
        """One of the masks of which one is taken. All are in one `source`."""
        return self.mask.first

    @property
    def source(self) -> Source:
        """The network in which the mask was found."""
        return self.first.source


@dataclass(frozen=True)
class Ablation(OfSubtask):
    """Accuracies with and without the subnetwork, and without random ones of its size: a row each."""

    draws: int

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure every network on T1 and on the subtask."""
        model, kept, source = self.source.load(lab), self.mask.load(lab), self.source
        test = source.pairs(source.training.rows).test
        networks = {
            ("whole network", 0): model, ("subnetwork", 0): kept.apply(model), ("ablated", 0): kept.ablate(model),
            **{("random ablated", draw): random_like(kept, seed=draw).ablate(model) for draw in range(self.draws)},
        }  # fmt: skip
        sets = {"source": source.rows(test), "subtask": source.rows(test, self.first.subtask)}
        return [{"network": name, "draw": draw} | accuracies(one, **sets) for (name, draw), one in networks.items()]


@dataclass(frozen=True)
class Transfers(OfSubtask):
    """Networks that learn T2 from the same rows, one under each condition, trained at once: a row each.

    samples: rows that are not on the diagonal. A control that cannot be had, or that diverges, has a `fault` instead.
    """

    target: str
    samples: int
    conditions: tuple[str, ...]
    training: section.ArithmeticTransfer

    @property
    def work(self) -> float:
        """Depth times rows."""
        return self.source.layers * (self.source.problem.max + self.samples)

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Train them; of each the epoch with the fewest errors on validation rows is kept."""
        fresh = self.source.fresh("target").to(lab.device)
        starts, rows = self._starts(lab, fresh)
        if not starts:
            return rows
        train, sets = self._sets()
        seed, faults = self.source.seed, {}
        weights, history = train_on(
            fresh,
            list(starts.values()),
            lambda epoch: _batches(train, self.training.batch_size, (seed, epoch), count=len(starts)),
            loss_of(self.source.problem),
            lambda now: {"validation_error": _errors(fresh, sets["validation"], now)},
            recipe=self.training.recipe(seed, judged_by="validation_error"),
            checkpoint=folder / CHECKPOINT,
            faults=faults,
            label=f"{self.source.layers} layers, {self.target}, {self.samples} rows, seed {seed}",
        )
        wrong = {name: _errors(fresh, of, weights) for name, of in sets.items()}
        for i, name in enumerate(starts):
            own = history_of(history, i)["validation_error"]
            found = {f"{part}_accuracy": 1 - values[i] for part, values in wrong.items()}
            found |= {"best_epoch": int(own.fillna(math.inf).idxmin()), "epochs": len(own)}
            rows.append({"condition": name} | ({"fault": faults[i]} if i in faults else found))
        return rows

    def _starts(self, lab: Lab, fresh: StagedModel) -> tuple[dict[str, Transfer], list[dict[str, Any]]]:
        """What each condition starts from; a row with the fault for each control that cannot be had."""
        donor, found = self.source.load(lab), self.mask.load(lab)
        starts, faults = {}, []
        for name in self.conditions:
            try:
                starts[name] = started(name, donor, found, fresh, seed=self.source.seed)
            except NoControl as error:  # the others can be had all the same
                faults.append({"condition": name, "fault": str(error)})
        return starts, faults

    def _sets(self) -> tuple[Rows, dict[str, Rows]]:
        """Training rows, and those to judge by: pairs that neither the source network nor its mask was trained on."""
        maximum = self.source.problem.max
        held = self.source.pairs(maximum)
        out = torch.cat([held.validation, held.test])
        more = task.disambiguation_pairs(maximum, train=self.samples, held=out, seed=self.source.seed)
        differ = {name: pairs[pairs[:, 0] != pairs[:, 1]] for name, pairs in held._asdict().items() if name != "train"}
        sets = differ | {"diagonal": task.diagonal_pairs(maximum)}
        rows = partial(self.source.rows, computation=self.target)
        return rows(torch.cat([sets["diagonal"], more])), {name: rows(pairs) for name, pairs in sets.items()}


def settings_of(lab: Lab) -> section.Arithmetic:
    """The arithmetic part of a study."""
    return lab.section("subtask_induction").arithmetic


def sources(lab: Lab) -> list[Source]:
    """The source networks of a study."""
    return list(dict.fromkeys(mask.first.source for mask in chosen_masks(lab)))


def chosen_masks(lab: Lab) -> list[ChosenMask]:
    """The masks of a study that are taken: one for every source network and subtask."""
    return list(dict.fromkeys(_mask(settings_of(lab), *run) for run in settings_of(lab).runs()))


def ablations(lab: Lab) -> list[Ablation]:
    """The ablations of a study."""
    return [Ablation(mask, settings_of(lab).draws) for mask in chosen_masks(lab)]


def transfers(lab: Lab) -> list[Transfers]:
    """The transfers of a study."""
    settings, made = settings_of(lab), []
    for induction, layers, seed in settings.runs():
        mask = _mask(settings, induction, layers, seed)
        samples, conditions = settings.transfer.of(first=induction == settings.inductions[0])
        about = {"target": induction.target, "training": settings.transfer.training}
        alone = [((name,), settings.transfer.alone_samples or samples) for name in conditions if name in TRAINED_ALONE]
        for names, numbers in ((tuple(name for name in conditions if name not in TRAINED_ALONE), samples), *alone):
            made += [Transfers(mask, samples=number, conditions=names, **about) for number in numbers]
    return made


def _mask(settings: section.Arithmetic, induction: section.Induction, layers: int, seed: int) -> ChosenMask:
    source = Source(settings.problem, layers, induction.source, seed, settings.base)
    masks = [SubtaskMask(search, source, induction.subtask) for search in settings.masks.candidates()]
    return ChosenMask(tuple(masks), learned=FOUND)


def loss_of(problem: section.Arithmetic) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean cross-entropy, nats, of all three next symbols or of the answer: (logits [m, 3, v], targets [m, 3])."""
    if problem.loss == "all":
        return lambda logits, targets: cross_entropy(logits.flatten(0, 1), targets.flatten())
    return lambda logits, targets: cross_entropy(logits[:, -1], targets[:, -1])


def accuracies(model: StagedModel, **sets: Rows) -> dict[str, float]:
    """Shares of right answers of a network in some sets, as columns of a table."""
    return {f"{name}_accuracy": 1 - _errors(model, rows)[0] for name, rows in sets.items()}


def _errors(model: StagedModel, rows: Rows, *options: Any) -> list[float]:
    return errors(model, rows.tokens, rows.answers, *options)


def _batches(rows: Rows, size: int, about: tuple, *, count: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass for networks that all see the same: tokens and targets [count, B, 3]."""
    for batch, targets in shuffled(rows.targets, size, generator_for("arithmetic batches", *about)):
        yield rows.tokens[batch].expand(count, -1, -1), targets.expand(count, -1, -1)
