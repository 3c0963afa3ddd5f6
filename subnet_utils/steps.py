"""The steps of a study, from stimuli to effects. Each step is a job that makes one artefact from the ones before it.

A step that is finished is never computed twice; independent steps run side by side (`jobs.run_jobs`). What a step
depends on is its specification, which names its artefact: change a parameter and exactly what depends on it is new.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils import stimuli
from subnet_utils.evaluation import Score, score_both, score_model
from subnet_utils.masks import search
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix, embed_rows
from subnet_utils.statistics import clamped_difference
from subnet_utils.store import Artefact, Store, save_json, save_table, save_tensors
from subnet_utils.study import BaseSearch, BaseTraining, Experiment, Study
from subnet_utils.tasks import agreement
from subnet_utils.tasks.odd_one_out import OddOneOut, batches, other_subroutine, similarity_logits
from subnet_utils.training import Recipe, fit, products, resolve_device


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


@dataclass(frozen=True)
class Mask:
    """One mask to be found in a base model: a subroutine, a point of the search, a seed for the order of the data."""

    base: Network
    subroutine: str
    point: search.Point
    seed: int

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the mask depends on; the base itself among it, so that a base rebuilt elsewhere has masks of its own."""
        experiment = self.base.experiment
        return {
            "base": self.base.spec(lab),
            "network": train_base(lab, self.base).json("result")["network"],
            "subroutine": self.subroutine,
            "point": search.columns(self.point),
            "seed": self.seed,
            "settings": experiment.masks.model_dump(include={"epochs", "batch_size", "beta_max", "l0", "as_printed"}),
            "sizes": {"mask": experiment.data.mask.model_dump(), "probe": experiment.data.probe.model_dump()},
        }


def train_base(lab: Lab, network: Network) -> Artefact:
    """A trained base model: weights, history, and accuracy on its own task's validation and test sets."""
    return lab.store.make("base", network.spec(lab), partial(_build_base, lab, network))


def load_base(lab: Lab, network: Network) -> StagedModel:
    """The trained network itself, frozen, on the study's device. One copy serves all: do not change it."""
    return _loaded(lab, network, train_base(lab, network).key)


def find_mask(lab: Lab, mask: Mask) -> Artefact:
    """A subnetwork with its history, its annealing, and its scores on validation data."""
    return lab.store.make("mask", mask.spec(lab), partial(_build_mask, lab, mask))


def load_subnetwork(lab: Lab, mask: Mask) -> Subnetwork:
    """The subnetwork of a mask, found if need be."""
    return Subnetwork.load(find_mask(lab, mask).path / "subnetwork.safetensors")


def measure_effect(lab: Lab, mask: Mask) -> Artefact:
    """Test scores of the subnetwork and of the ablated model: own task, both probe sets, compositional task."""
    return lab.store.make("effect", mask.spec(lab), partial(_build_effect, lab, mask))


def _build_base(lab: Lab, network: Network, folder: Path) -> None:
    model = _untrained(network).to(lab.device)
    train, validation, test = (_data(lab, network, "base", split) for split in stimuli.SPLITS)
    history = _fit_base(lab, network, model, train, validation, folder)
    save_table(folder / "history.parquet", history)
    save_tensors(folder / "weights.safetensors", model.state_dict())
    on_validation, on_test = score_model(model, validation), score_model(model, test)
    result = {
        "validation_accuracy": on_validation.accuracy,
        "validation_loss": on_validation.loss,
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
    precision = _precision(lab, network)

    def loss(batch: tuple[Tensor, Tensor], epoch: int, generator: torch.Generator) -> Tensor:
        rows, odd = batch
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
        lambda generator: batches(train, training.batch_size, generator=generator),
        loss,
        recipe=Recipe(training.learning_rate, training.epochs, network.seed, training.patience),
        validate=validate,
        checkpoint=folder / "checkpoint.safetensors",
        label=network.label,
    )


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images [k, 3, H, W], each mirrored left-right and top-bottom with probability one half."""
    for dimension in (2, 3):
        chosen = torch.rand(len(images), generator=generator).lt(0.5).to(images.device)
        images = torch.where(chosen[:, None, None, None], images.flip(dimension), images)
    return images


def _build_mask(lab: Lab, mask: Mask, folder: Path) -> None:
    network, settings, point = mask.base, mask.base.experiment.masks, mask.point
    own_task = f"mask-{mask.subroutine}"
    train = _data(lab, network, own_task, "train")
    found = discover(
        load_base(lab, network),
        _outputs(lab, network, own_task, "train", point.start),
        lambda generator: batches(train, settings.batch_size, generator=generator),
        lambda embeddings, odd: cross_entropy(similarity_logits(embeddings), odd),
        method=_method(mask),
        start=point.start,
        recipe=Recipe(point.learning_rate, settings.epochs, mask.seed),
        products=_precision(lab, network),
        checkpoint=folder / "checkpoint.safetensors",
        label=f"{network.label} {mask.subroutine}",
    )
    found.subnetwork.save(folder / "subnetwork.safetensors")
    save_table(folder / "history.parquet", found.history)
    save_table(folder / "annealing.parquet", found.annealing)
    rows = _rows(lab, mask, found.subnetwork, "validation")
    counts = {"active": found.subnetwork.active, "total": found.subnetwork.total}
    save_json(folder / "result.json", {"validation": rows, "score": _search_score(rows), **counts})


def _method(mask: Mask) -> ContinuousSparsification:
    settings, experiment = mask.base.experiment.masks, mask.base.experiment
    head = ("stages.head.",) if settings.as_printed and experiment.modality == "vision" else ()
    return ContinuousSparsification(settings.epochs, settings.beta_max, mask.point.mask_init, settings.l0, head)


def _build_effect(lab: Lab, mask: Mask, folder: Path) -> None:
    save_json(folder / "result.json", _rows(lab, mask, load_subnetwork(lab, mask), "test"))


def _rows(lab: Lab, mask: Mask, subnetwork: Subnetwork, split: str) -> list[dict[str, Any]]:
    """Scores of the subnetwork and the ablated model, one row each."""
    network, start = mask.base, mask.point.start
    sets = {
        "own_task": f"mask-{mask.subroutine}",
        "target": f"probe-{mask.subroutine}",
        "other": f"probe-{other_subroutine(network.task, mask.subroutine)}",
        "compositional": "base",
    }
    measured = {
        role: (_outputs(lab, network, name, split, start), _data(lab, network, name, split))
        for role, name in sets.items()
    }
    scores = score_both(load_base(lab, network), subnetwork, start, measured)
    densities = {"subnetwork": subnetwork.density, "ablated": (~subnetwork).density}
    return [_row(name, densities[name], of_sets) for name, of_sets in scores.items()]


def _row(network: str, density: float, scores: dict[str, Score]) -> dict[str, Any]:
    """One row: accuracies and margins on each set, and the clamped difference between target and other."""
    difference = clamped_difference(scores["target"].accuracy, scores["other"].accuracy)
    accuracies = {f"{role}_accuracy": score.accuracy for role, score in scores.items()}
    margins = {f"{role}_margin": score.margin for role, score in scores.items()}
    return {"network": network, "density": density, "difference": float(difference), **accuracies, **margins}


def _search_score(rows: list[dict[str, Any]]) -> float:
    subnetwork, ablated = ({row["network"]: row for row in rows}[name] for name in ("subnetwork", "ablated"))
    return search.score(subnetwork["own_task_accuracy"], ablated["target_accuracy"], ablated["other_accuracy"])


def _data(lab: Lab, network: Network, set_name: str, split: str) -> OddOneOut:
    return stimuli.load(lab.store, network.experiment, network.task, set_name, split)


def _precision(lab: Lab, network: Network):
    convolutional = network.experiment.architecture.family == "resnet"
    return partial(products, lab.study.compute, lab.device, convolutional=convolutional)


def _untrained(network: Network) -> StagedModel:
    architecture, sizes = network.experiment.architecture, {"resolution": network.experiment.data.resolution}
    if architecture.family == "bert":
        sizes = {"vocabulary": agreement.tokenizer(architecture.pretrained).size}
    return build(architecture.model_dump(), seed=network.seed, **sizes)


@lru_cache(maxsize=4)
def _loaded(lab: Lab, network: Network, key: str) -> StagedModel:
    model = _untrained(network)
    model.load_state_dict(train_base(lab, network).tensors("weights"))
    return model.to(lab.device).eval().requires_grad_(False)


def _whole(lab: Lab, model: StagedModel, data: OddOneOut) -> FrozenPrefix:
    """The items themselves, as the outputs of an empty prefix."""
    prefix, _ = model.cut(model.stage_names[0])
    return FrozenPrefix(prefix, data.items, device=lab.device, limit_gb=lab.study.compute.cache_limit_gb)


@lru_cache(maxsize=5)  # what one mask needs: a set to train on and four to measure on; each may fill cache_limit_gb
def _outputs(lab: Lab, network: Network, set_name: str, split: str, start: str) -> FrozenPrefix:
    """Outputs of a base's frozen prefix for a set's items, kept for the next mask of the same base and start."""
    prefix, _ = load_base(lab, network).cut(start)
    items = _data(lab, network, set_name, split).items
    return FrozenPrefix(prefix, items, device=lab.device, limit_gb=lab.study.compute.cache_limit_gb)
