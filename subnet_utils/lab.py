"""The lab: a study, its artefact store, and the base models in it, trained once and loaded from there.

What a base model depends on is its specification, which names its artefact: change a parameter and exactly what depends
on it is new.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils import stimuli
from subnet_utils.evaluation import score_model
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix, embed_rows
from subnet_utils.store import Artefact, Store, save_json, save_table, save_tensors
from subnet_utils.study import BaseSearch, BaseTraining, Experiment, Study
from subnet_utils.tasks import agreement
from subnet_utils.tasks.odd_one_out import OddOneOut, batches, similarity_logits
from subnet_utils.training import Recipe, autocast, fit, generator_for, resolve_device

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Lab:
    """A study and the store in which its artefacts are: all that a step needs."""

    study: Study
    store: Store

    @classmethod
    def open(cls, study: Any, store: Path | str | None = None) -> "Lab":
        """A lab for anything that `Study.load` takes. Raises StudyError if the study is not valid."""
        lab = cls(Study.load(study), Store(store))
        resolve_device(lab.study.compute)
        return lab

    @property
    def device(self) -> torch.device:
        """Where the networks are trained and run."""
        return resolve_device(self.study.compute)


@dataclass(frozen=True)
class Network:
    """One base model to be: an architecture on a task, with a recipe and a seed."""

    experiment: Experiment | BaseSearch
    task: str
    training: BaseTraining
    seed: int

    @property
    def label(self) -> str:
        """A name for progress lines."""
        return f"{self.experiment.model} {self.task} seed {self.seed}"

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the trained weights depend on."""
        return {
            "architecture": self.experiment.architecture.model_dump(),
            "task": self.task,
            "seed": self.seed,
            "training": self.training.model_dump(exclude={"seeds"}),
            "precision": lab.study.compute.precision,
            "sizes": self.experiment.data.base.model_dump(),
            **stimuli.sampling(self.task, self.experiment.data),
        }


def train_base(lab: Lab, network: Network) -> Artefact:
    """A trained base model: weights, history, and accuracy on its own task's validation and test sets."""
    return lab.store.make("base", network.spec(lab), partial(_build_base, lab, network))


def untrained(network: Network) -> StagedModel:
    """The network before training: its architecture with the weights that its seed draws."""
    architecture, sizes = network.experiment.architecture, {"resolution": network.experiment.data.resolution}
    if architecture.family == "bert":
        sizes = {"vocabulary": agreement.tokenizer(architecture.pretrained).size}
    return build(architecture.model_dump(), seed=network.seed, **sizes)


def load_base(lab: Lab, network: Network) -> StagedModel:
    """The trained network itself, frozen, on the study's device. One copy serves all: do not change it."""
    return _loaded(lab, network, train_base(lab, network).key)


def _build_base(lab: Lab, network: Network, folder: Path) -> None:
    model = untrained(network).to(lab.device)
    train, validation, test = (data_of(lab, network, "base", split) for split in stimuli.SPLITS)
    history = _fit_base(lab, network, model, train, validation, folder)
    save_table(folder / "history.parquet", history)
    save_tensors(folder / "weights.safetensors", model.state_dict())
    on_validation, on_test = score_model(model, validation), score_model(model, test)
    result = {
        "validation_accuracy": on_validation.accuracy,
        "validation_loss": on_validation.loss,
        "validation_margin": on_validation.margin,
        "test_accuracy": on_test.accuracy,
        "test_loss": on_test.loss,
        "test_margin": on_test.margin,
        "epochs": len(history),
        "best_epoch": int(history["validation_loss"].idxmin()),
        "network": fingerprint(model),
    }
    save_json(folder / "result.json", result)


def _fit_base(lab: Lab, network: Network, model: StagedModel, train: OddOneOut, validation: OddOneOut, folder: Path):
    """Train all weights of a network; the best ones by validation loss are left in it. Returns the history."""
    training, items = network.training, _whole(lab, model, train)
    precision = precision_of(lab)

    def one_pass(epoch: int) -> Iterator[tuple[Tensor, Tensor, torch.Generator]]:
        generator = generator_for(network.seed, epoch)
        for rows, odd in batches(train, training.batch_size, generator=generator):
            yield rows, odd, generator

    def loss(batch: tuple[Tensor, Tensor, torch.Generator], epoch: int) -> Tensor:
        rows, odd, generator = batch
        with precision():
            if training.flips:
                embeddings = model(_flipped(items(rows.flatten())[0], generator)).unflatten(0, rows.shape)
            else:
                embeddings = embed_rows(model, {}, items, rows)
        return cross_entropy(similarity_logits(embeddings.float()), odd.to(lab.device))

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


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images [k, 3, H, W], each mirrored left-right and top-bottom with probability one half."""
    for dimension in (2, 3):
        chosen = torch.rand(len(images), generator=generator).lt(0.5).to(images.device)
        images = torch.where(chosen[:, None, None, None], images.flip(dimension), images)
    return images


def data_of(lab: Lab, network: Network, set_name: str, split: str) -> OddOneOut:
    """One split of one of the five sets of a base model's task."""
    return stimuli.load(lab.store, network.experiment, network.task, set_name, split)


def precision_of(lab: Lab) -> Callable[[], AbstractContextManager]:
    """The context in which forward passes of training run, at the study's precision."""
    return partial(autocast, lab.study.compute, lab.device)


@lru_cache(maxsize=4)
def _loaded(lab: Lab, network: Network, key: str) -> StagedModel:
    model = untrained(network)
    model.load_state_dict(train_base(lab, network).tensors("weights"))
    return model.to(lab.device).eval().requires_grad_(False)


def _whole(lab: Lab, model: StagedModel, data: OddOneOut) -> FrozenPrefix:
    """The items themselves, as the outputs of an empty prefix."""
    prefix, _ = model.cut(model.stage_names[0])
    return FrozenPrefix(prefix, data.items, device=lab.device, limit_gb=lab.study.compute.cache_limit_gb)
