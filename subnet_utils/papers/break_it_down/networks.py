"""Base models: the networks of a study, each a step.

A network is trained on its task, from random or from pretrained weights (`Trained`); or left untrained, for the random
control (appendix I, `Untrained`); or trained and then pruned (appendix J, `Pruned`).
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.devices import precision_name
from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, note, save_table, save_tensors
from subnet_utils.masks.masking import Masking
from subnet_utils.masks.select import sparsest
from subnet_utils.masks.subnetwork import SubnetworkStep
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.architectures import Bert, ResNet, ViT
from subnet_utils.models.frozen import FrozenPrefix, embed_rows, full_precision, sent
from subnet_utils.papers.break_it_down.evaluation import score_model
from subnet_utils.papers.break_it_down.pretraining import Pretraining, start_from
from subnet_utils.papers.break_it_down.section import BaseSearch, BaseTraining, Experiment
from subnet_utils.papers.break_it_down.sets import SPLITS, ExampleSet, Sentences, example_set, published
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks import tokenization
from subnet_utils.tasks.odd_one_out import batches, mirrored
from subnet_utils.tasks.odd_one_out import similarity_loss as loss
from subnet_utils.training import Recipe, fit

Architecture = Bert | ResNet | ViT
SMALLEST_MARGIN = 0.1
"""Margin of a base model, see `evaluation.Score`, below which its masks are trained in float32. A similarity logit lies
between -4 and 4, where bfloat16 has steps of up to 1/64; the embeddings behind it carry several such errors."""
UNSURE = (
    f"it is unsure of its answers: the odd one's score is less than {SMALLEST_MARGIN} above the next. "
    "Its masks are trained in float32, which takes longer"
)


@dataclass(frozen=True)
class Network(Step):
    """One base model to be. `load` gives the network itself, frozen, on the study's device.

    experiment: of the study that it belongs to, for names in tables and for lists of settings; no part of the key.
    trained, base_seed: the trained network that this one is, or belongs to, and its seed.
    """

    keeps: ClassVar[int] = 4
    condition: ClassVar[str]
    """The authors' name for what a network is: 'trained', 'random' or 'pruned'; a pretrained one is trained, too."""

    architecture: Architecture
    task: str
    validation: ExampleSet
    test: ExampleSet
    seed: int
    experiment: Experiment | BaseSearch = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """A name for progress lines."""
        name = f"{self.experiment.model} {self.task} seed {self.base_seed}"
        return name if self.condition == "trained" else f"{self.condition} {name}"

    base_seed = property(lambda self: self.seed)
    trained = property(lambda self: self)
    modality = property(lambda self: self.architecture.modality)

    @property
    def about(self) -> dict[str, Any]:
        """What every network has, by name of the field."""
        return {one.name: getattr(self, one.name) for one in fields(Network)}

    def data(self, set_name: str, split: str) -> ExampleSet:
        """One split of one of the five sets of the network's task."""
        vocabulary = self.validation.vocabulary if isinstance(self.validation, Sentences) else None
        return example_set(self.experiment.data, self.task, set_name, split, vocabulary)

    def fresh(self) -> StagedModel:
        """The network before training: its architecture with the weights that its seed draws, or published ones."""
        settings = self.architecture.model_dump(exclude_none=True)
        if not isinstance(self.validation, Sentences):
            return build(settings, seed=self.seed, resolution=self.validation.parts[0].resolution)
        place = self.validation.vocabulary and self.validation.vocabulary.place
        settings |= {"pretrained": place} if place else {}
        return build(settings, seed=self.seed, vocabulary=tokenization.tokenizer(place).size)

    def first(self, lab: Lab) -> StagedModel:
        """The network that training on its task began with."""
        return self.fresh()

    def read(self, lab: Lab, artefact: Artefact) -> StagedModel:
        """See the class."""
        model = self.fresh()
        model.load_state_dict(artefact.tensors("weights"))
        return model.to(lab.device).eval().requires_grad_(False)

    def file(self, lab: Lab, folder: Path, model: StagedModel, **more: Any) -> dict[str, Any]:
        """File the weights; scores on validation and test sets, the network's fingerprint and more as the result."""
        save_tensors(folder / "weights.safetensors", model.state_dict())
        sets = {"validation": self.validation, "test": self.test}
        scores = {split: asdict(score_model(model, chosen.load(lab))) for split, chosen in sets.items()}
        result = {f"{split}_{name}": value for split, score in scores.items() for name, value in score.items()}
        unsure = result["validation_margin"] < SMALLEST_MARGIN and self.condition != "random"
        if unsure and precision_name(lab.study.compute, lab.device) != "float32":
            print(f"{self.label}: {UNSURE}", file=sys.stderr)  # here, so once for each network
        return result | more | {"network": fingerprint(model)}


@dataclass(frozen=True)
class Trained(Network):
    """A network trained on its task, with its history."""

    condition = "trained"

    train: ExampleSet
    training: BaseTraining
    precision: str = "auto"
    pretraining: Pretraining | None = None

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train all weights; the best ones by validation loss count."""
        model = self.first(lab).to(lab.device)
        history = _fit(self, lab, model, folder)
        save_table(folder / "history.parquet", history)
        best_epoch = int(history["validation_loss"].idxmin())
        return self.file(lab, folder, model, epochs=len(history), best_epoch=best_epoch)

    def first(self, lab: Lab) -> StagedModel:
        """See `Network`."""
        model = self.fresh()
        if self.pretraining is not None:
            start_from(model, self.pretraining.make(lab), self.pretraining.settings)
        return model

    def untrained(self, *, mask_seed: int | None = None, deviation: float | None = None) -> "Untrained":
        """The control to this network: the same architecture with weights as they are drawn, before any training.

        Each base model has an untrained network of its own. mask_seed: that of the authors' run instead, which has one
        for each mask seed, the same under every base model. deviation: of the weights, None: the architecture's.
        """
        parts = (self.task, self.seed) if mask_seed is None else (mask_seed,)
        draw = generator_for("untrained", *parts).initial_seed() % 2**31
        changes = {} if deviation is None else {"deviation": deviation}
        about = self.about | {"architecture": self.architecture.model_copy(update=changes), "seed": draw}
        return Untrained(**about, twin=self)


@dataclass(frozen=True)
class Swept(Trained):
    """A network of a sweep, which goes as far as where training fails."""

    records_faults = True


@dataclass(frozen=True)
class Untrained(Network):
    """A network before training. twin: the trained one that it is a control to, whatever the weights there."""

    condition = "random"

    twin: Trained = field(compare=False, repr=False)

    base_seed = property(lambda self: self.twin.seed)
    trained = property(lambda self: self.twin)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """File the weights as they are drawn."""
        return self.file(lab, folder, self.fresh().to(lab.device), epochs=0, best_epoch=0)


@contextmanager
def mask_training(lab: Lab, base: Network) -> Iterator[Callable[[], AbstractContextManager]]:
    """The time in which masks of a base are trained. Gives the context in which their forward passes run.

    For a base near collapse, which tells the odd one by less than `SMALLEST_MARGIN`, both are float32 from end to end:
    a GPU's convolutions would take TF32 on the way back.
    """
    if base.result(lab)["validation_margin"] >= SMALLEST_MARGIN:
        yield lab.autocast
        return
    note(precision="float32", near_collapse=True)
    with full_precision(lab.device):
        yield partial(full_precision, lab.device)


@dataclass(frozen=True)
class Pruning(SubnetworkStep):
    """A subnetwork of a trained network that computes its whole task. `load` gives the subnetwork.

    examples: of the base training set, None: all; learning_rate, masking: one setting of the search.
    """

    records_faults = True

    base: Trained
    learning_rate: float
    masking: Masking
    epochs: int
    batch_size: int
    examples: int | None
    precision: str = "auto"

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find it and measure its accuracy on validation data."""
        base, model, train = self.base, self.base.load(lab), self.base.train.load(lab)
        train = replace(train, examples=train.examples[: self.examples])
        recipe = Recipe(self.learning_rate, self.epochs, base.seed)
        about = {"start": base.architecture.stages[0], "recipe": recipe, "before": partial(base.first, lab)}
        about |= {"checkpoint": folder / CHECKPOINT, "label": f"pruning {base.label}"}

        def one_pass(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            return batches(train, self.batch_size, generator=generator)

        with mask_training(lab, base) as autocast:
            about |= {"autocast": autocast, "limit_gb": cache_limit(lab.study.compute)}
            found = self.masking.find(model, train.items, one_pass, loss, **about)
        found.save(folder)
        kept = found.subnetwork
        accuracy = score_model(kept.apply(model), base.validation.load(lab)).accuracy
        return {"validation_accuracy": accuracy, "active": kept.active, "total": kept.total}


@dataclass(frozen=True)
class Pruned(Network):
    """The trained network without the weights that pruning takes out: of several prunings that with the fewest weights
    that has learned, or else the most accurate."""

    condition = "pruned"

    candidates: tuple[Pruning, ...]

    trained = property(lambda self: self.candidates[0].base)

    def first(self, lab: Lab) -> StagedModel:
        """See `Network`."""
        return self.trained.first(lab)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Choose a pruning and apply it."""
        chosen = self.candidates[sparsest([one.result(lab) for one in self.candidates], learned=LEARNED)]
        kept = chosen.load(lab)
        point = {"learning_rate": chosen.learning_rate, "mask_init": getattr(chosen.masking, "start_value", math.nan)}
        size = {"active": kept.active, "total": kept.total, "pruning": point}
        return self.file(lab, folder, kept.apply(self.trained.load(lab)), epochs=0, best_epoch=0, **size)


def bases(lab: Lab, experiments: tuple[Experiment, ...] | None = None) -> list[Trained]:
    """Every base model of some experiments, by default of those that start from random weights."""
    experiments = lab.study.break_it_down.experiments if experiments is None else experiments
    return [trained(lab, e, task, e.base, seed) for e in experiments for task in e.tasks for seed in e.base.seeds]


def pretrained_bases(lab: Lab) -> list[Trained]:
    """Every base model that starts from pretrained weights. Raises ValueError if the study has none."""
    experiments = lab.study.break_it_down.pretrained
    if not experiments:
        raise ValueError(f"profile '{lab.study.name}' has no 'pretrained' experiments; add one")
    return bases(lab, experiments)


def pruned_bases(lab: Lab) -> list[Pruned]:
    """Every base model that the study prunes, pruned. Raises ValueError if it prunes none."""
    section, found = lab.study.break_it_down, []
    if (settings := section.pruning) is None:
        raise ValueError(f"profile '{lab.study.name}' has no 'pruning'; add it")
    own = {"epochs": settings.epochs, "batch_size": settings.batch_size, "examples": settings.examples}
    own["precision"] = lab.study.compute.precision
    maskings = [with_settings(settings.masking, start_value=init) for init in settings.inits]
    for base in bases(lab, section.to_prune()):
        points = product(settings.learning_rates, maskings)
        candidates = dict.fromkeys(Pruning(base, rate, masking, **own) for rate, masking in points)
        found.append(Pruned(**base.about, candidates=tuple(candidates)))
    return found


def swept(lab: Lab) -> list[Swept]:
    """Every network of the sweep over vision transformers; none if the study has no sweep."""
    sweep, found = lab.study.break_it_down.vit_search, []
    points = product(sweep.layers, sweep.batch_sizes, sweep.learning_rates, sweep.tasks) if sweep else ()
    for layers, batch_size, learning_rate, task in points:
        training = sweep.base.model_copy(update={"batch_size": batch_size, "learning_rate": learning_rate})
        architecture = sweep.architecture.model_copy(update={"layers": layers})
        own = sweep.model_copy(update={"architecture": architecture})
        found.append(trained(lab, own, task, training, sweep.base.seeds[0], kind=Swept))
    return found


def trained(
    lab: Lab, experiment: Experiment | BaseSearch, task: str, training: BaseTraining, seed: int, kind: type = Trained
) -> Trained:
    """One base model of an experiment."""
    weights, architecture = published(experiment), experiment.architecture
    if weights is not None:
        architecture = architecture.model_copy(update={"pretrained": None})  # by content, not by place: in the sets
    return kind(
        architecture,
        task,
        seed=seed,
        experiment=experiment,
        training=without(training, "seeds"),
        precision=lab.study.compute.precision,
        pretraining=_pretraining(lab, experiment),
        **{split: example_set(experiment.data, task, "base", split, weights) for split in SPLITS},
    )


def _pretraining(lab: Lab, experiment: Experiment | BaseSearch) -> Pretraining | None:
    settings, data = getattr(experiment, "pretraining", None), experiment.data
    if settings is None:
        return None
    about = {"precision": lab.study.compute.precision, "model": experiment.model}
    if settings.method != "simclr":
        return Pretraining(experiment.architecture, settings, **about)
    sets = (tuple(example_set(data, task, "base", split) for task in settings.tasks) for split in SPLITS[:2])
    return Pretraining(experiment.architecture, settings, tuple(sets), data.resolution, **about)


def with_settings(masking: Masking, **changes: float) -> Masking:
    """The method with other settings, if it trains logits: `start_value`, their first value, or `l0`, lambda."""
    return masking.model_copy(update=changes) if masking.trains else masking


def _fit(network: Trained, lab: Lab, model: StagedModel, folder: Path) -> pd.DataFrame:
    """Train all weights of a network; the best ones by validation loss are left in it. Returns the history."""
    training, train, validation = network.training, network.train.load(lab), network.validation.load(lab)
    prefix, _ = model.cut(model.stage_names[0])  # of no stage: its outputs are the items themselves
    items = FrozenPrefix(prefix, train.items, device=lab.device, limit_gb=math.inf)

    def one_pass(epoch: int) -> Iterator[tuple[Tensor, Tensor, torch.Generator]]:
        generator = generator_for(network.seed, epoch)
        for rows, odd in batches(train, training.batch_size, generator=generator):
            yield rows, odd, generator

    def of_batch(batch: tuple[Tensor, Tensor, torch.Generator], epoch: int) -> Tensor:
        rows, odd, generator = batch
        with lab.autocast():
            if training.flips:
                embeddings = model(mirrored(items(rows.flatten())[0], generator)).unflatten(0, rows.shape)
            else:
                embeddings = embed_rows(model, items, rows)
        return loss(embeddings.float(), sent(odd, lab.device))

    def validate() -> dict[str, float]:
        found = score_model(model, validation)
        return {"validation_loss": found.loss, "validation_accuracy": found.accuracy}

    about = {"recipe": training.recipe(network.seed), "checkpoint": folder / CHECKPOINT, "label": network.label}
    return fit(dict(model.named_parameters()), one_pass, of_batch, validate=validate, **about)
