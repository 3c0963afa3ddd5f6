"""Base models: the networks of a study, each a step.

A network is trained on its task, from random or from pretrained weights (`Trained`); or left untrained, for the random
control (appendix I, `Untrained`); or trained and then pruned (appendix J, `Pruned`).
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import without
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks.masking import Masking
from subnet_utils.masks.select import sparsest
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix, embed_rows, sent
from subnet_utils.papers.break_it_down.architectures import Bert, ResNet, ViT
from subnet_utils.papers.break_it_down.evaluation import score_model
from subnet_utils.papers.break_it_down.precision import mask_training
from subnet_utils.papers.break_it_down.pretraining import Pretraining, start_from
from subnet_utils.papers.break_it_down.section import BaseSearch, BaseTraining, Experiment
from subnet_utils.papers.break_it_down.sets import ExampleSet, Sentences, example_set, published
from subnet_utils.papers.break_it_down.tasks import tokenization
from subnet_utils.papers.break_it_down.tasks.odd_one_out import OddOneOut, batches, similarity_logits
from subnet_utils.statistics import LEARNED
from subnet_utils.training import Recipe, fit

Architecture = Bert | ResNet | ViT


@dataclass(frozen=True)
class Network(Step):
    """One base model to be. `load` gives the network itself, frozen, on the study's device.

    experiment: of the study that it belongs to, for names in tables and for lists of settings; no part of the key.
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

    @property
    def base_seed(self) -> int:
        """The seed of the trained network that this one is, or belongs to."""
        return self.seed

    @property
    def trained(self) -> "Network":
        """The trained network that an untrained or pruned one belongs to."""
        return self

    @property
    def modality(self) -> str:
        """`language` or `vision`."""
        return "language" if self.architecture.family == "bert" else "vision"

    def data(self, set_name: str, split: str) -> ExampleSet:
        """One split of one of the five sets of the network's task."""
        vocabulary = self.validation.vocabulary if isinstance(self.validation, Sentences) else None
        return example_set(self.experiment.data, self.task, set_name, split, vocabulary)

    def fresh(self) -> StagedModel:
        """The network before training: its architecture with the weights that its seed draws, or published ones."""
        if isinstance(self.validation, Sentences):
            place = self.validation.vocabulary and self.validation.vocabulary.place
            architecture = self.architecture.model_copy(update={"pretrained": place})
            return fresh_network(architecture, seed=self.seed, vocabulary=tokenization.tokenizer(place).size)
        return fresh_network(self.architecture, seed=self.seed, resolution=self.validation.parts[0].resolution)

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
        architecture = self.architecture
        if deviation is not None:
            architecture = architecture.model_copy(update={"deviation": deviation})
        common = {"task": self.task, "validation": self.validation, "test": self.test, "experiment": self.experiment}
        return Untrained(architecture, seed=draw, twin=self, **common)


@dataclass(frozen=True)
class Swept(Trained):
    """A network of a sweep, which goes as far as where training fails."""

    records_faults = True


@dataclass(frozen=True)
class Untrained(Network):
    """A network before training.

    twin: the trained network that it is a control to. It is a name: with other weights there the control is the same.
    """

    condition = "random"

    twin: Trained = field(compare=False, repr=False)

    @property
    def base_seed(self) -> int:
        """See `Network`."""
        return self.twin.seed

    @property
    def trained(self) -> Trained:
        """See `Network`."""
        return self.twin

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """File the weights as they are drawn."""
        return self.file(lab, folder, self.fresh().to(lab.device), epochs=0, best_epoch=0)


@dataclass(frozen=True)
class Pruning(Step):
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
        with mask_training(lab, base) as autocast:
            found = self.masking.find(
                model,
                train.items,
                lambda generator: batches(train, self.batch_size, generator=generator),
                lambda embeddings, odd: cross_entropy(similarity_logits(embeddings), odd),
                start=base.architecture.stages[0],
                recipe=Recipe(self.learning_rate, self.epochs, base.seed),
                before=partial(base.first, lab),
                autocast=autocast,
                limit_gb=cache_limit(lab.study.compute),
                checkpoint=folder / CHECKPOINT,
                label=f"pruning {base.label}",
            )
        found.save(folder)
        kept = found.subnetwork
        accuracy = score_model(kept.apply(model), base.validation.load(lab)).accuracy
        return {"validation_accuracy": accuracy, "active": kept.active, "total": kept.total}

    def read(self, lab: Lab, artefact: Artefact) -> Subnetwork:
        """See the class."""
        return Subnetwork.load(artefact.path / "subnetwork.safetensors")


@dataclass(frozen=True)
class Pruned(Network):
    """The trained network without the weights that pruning takes out: of several prunings that with the fewest weights
    that has learned, or else the most accurate."""

    condition = "pruned"

    candidates: tuple[Pruning, ...]

    @property
    def trained(self) -> Trained:
        """See `Network`."""
        return self.candidates[0].base

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
    section = lab.study.break_it_down
    if section.pruning is None:
        raise ValueError(f"profile '{lab.study.name}' has no 'pruning'; add it")
    return [_pruned(lab, base) for base in bases(lab, section.to_prune())]


def swept(lab: Lab) -> list[Swept]:
    """Every network of the sweep over vision transformers; none if the study has no sweep."""
    sweep = lab.study.break_it_down.vit_search
    if sweep is None:
        return []
    points = product(sweep.layers, sweep.batch_sizes, sweep.learning_rates, sweep.tasks)
    return [_swept(lab, sweep, *point) for point in points]


def trained(
    lab: Lab, experiment: Experiment | BaseSearch, task: str, training: BaseTraining, seed: int, kind: type = Trained
) -> Trained:
    """One base model of an experiment."""
    weights, data = published(experiment), experiment.data
    sets = {split: example_set(data, task, "base", split, weights) for split in ("train", "validation", "test")}
    architecture = experiment.architecture
    if weights is not None:
        architecture = architecture.model_copy(update={"pretrained": None})  # by content, not by place: in the sets
    own = {"task": task, "seed": seed, "experiment": experiment, "precision": lab.study.compute.precision}
    return kind(
        architecture, training=without(training, "seeds"), pretraining=_pretraining(lab, experiment), **sets, **own
    )


def fresh_network(architecture: Architecture, *, seed: int, **sizes: int) -> StagedModel:
    """A network of an architecture. sizes: `vocabulary` of a BERT, `resolution` of others."""
    return build(architecture.model_dump(exclude_none=True), seed=seed, **sizes)


def _pretraining(lab: Lab, experiment: Experiment | BaseSearch) -> Pretraining | None:
    settings = getattr(experiment, "pretraining", None)
    if settings is None:
        return None
    sets = ()
    if settings.method == "simclr":
        splits = ("train", "validation")
        sets = tuple(
            tuple(example_set(experiment.data, task, "base", split) for task in settings.tasks) for split in splits
        )
    about = {"precision": lab.study.compute.precision, "model": experiment.model}
    resolution = None if settings.method != "simclr" else experiment.data.resolution
    return Pretraining(experiment.architecture, settings, sets, resolution, **about)


def _pruned(lab: Lab, base: Trained) -> Pruned:
    settings, precision = lab.study.break_it_down.pruning, lab.study.compute.precision
    own = {"epochs": settings.epochs, "batch_size": settings.batch_size, "examples": settings.examples}
    points = product(settings.learning_rates, settings.inits)
    candidates = [Pruning(base, rate, starting_at(settings.masking, init), precision=precision, **own)
                  for rate, init in points]  # fmt: skip
    common = {name: getattr(base, name) for name in ("task", "validation", "test", "seed", "experiment")}
    return Pruned(base.architecture, candidates=tuple(dict.fromkeys(candidates)), **common)


def starting_at(masking: Masking, value: float) -> Masking:
    """The method with its logits starting at a value, where it has logits."""
    return masking.model_copy(update={"start_value": value}) if masking.trains else masking


def _swept(lab: Lab, sweep: BaseSearch, layers: int, batch_size: int, learning_rate: float, task: str) -> Swept:
    training = sweep.base.model_copy(update={"batch_size": batch_size, "learning_rate": learning_rate})
    architecture = sweep.architecture.model_copy(update={"layers": layers})
    own = sweep.model_copy(update={"architecture": architecture})
    return trained(lab, own, task, training, sweep.base.seeds[0], kind=Swept)


def _fit(network: Trained, lab: Lab, model: StagedModel, folder: Path) -> pd.DataFrame:
    """Train all weights of a network; the best ones by validation loss are left in it. Returns the history."""
    training, train, validation = network.training, network.train.load(lab), network.validation.load(lab)
    items = _whole(lab, model, train)

    def one_pass(epoch: int) -> Iterator[tuple[Tensor, Tensor, torch.Generator]]:
        generator = generator_for(network.seed, epoch)
        for rows, odd in batches(train, training.batch_size, generator=generator):
            yield rows, odd, generator

    def loss(batch: tuple[Tensor, Tensor, torch.Generator], epoch: int) -> Tensor:
        rows, odd, generator = batch
        with lab.autocast():
            if training.flips:
                embeddings = model(flipped(items(rows.flatten())[0], generator)).unflatten(0, rows.shape)
            else:
                embeddings = embed_rows(model, items, rows)
        return cross_entropy(similarity_logits(embeddings.float()), sent(odd, lab.device))

    def validate() -> dict[str, float]:
        found = score_model(model, validation)
        return {"validation_loss": found.loss, "validation_accuracy": found.accuracy}

    return fit(
        dict(model.named_parameters()),
        one_pass,
        loss,
        recipe=Recipe(training.learning_rate, training.epochs, network.seed, training.patience),
        validate=validate,
        checkpoint=folder / CHECKPOINT,
        label=network.label,
    )


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images [k, 3, H, W], each mirrored left-right and top-bottom with probability one half."""
    numbers = torch.arange(len(images), device=images.device)
    for dimension in (2, 3):
        chosen = sent(torch.rand(len(images), generator=generator).lt(0.5), images.device)
        both = torch.cat([images, images.flip(dimension)])
        images = both.index_select(0, numbers + len(images) * chosen)  # whole images: four times as fast as by a mask
    return images


def _whole(lab: Lab, model: StagedModel, data: OddOneOut) -> FrozenPrefix:
    """The items themselves, as the outputs of an empty prefix."""
    prefix, _ = model.cut(model.stage_names[0])
    return FrozenPrefix(prefix, data.items, device=lab.device, limit_gb=math.inf)
