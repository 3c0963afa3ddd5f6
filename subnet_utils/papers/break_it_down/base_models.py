"""Base models: the networks of a study, made once and loaded from the lab's store.

A network is trained on its task, from random or from pretrained weights; or left untrained, for the random control
(appendix I); or trained and then pruned (appendix J). What it depends on is its specification, which names its
artefact: change a parameter and exactly what depends on it is new.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.core.devices import autocast, precision_name
from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import CHECKPOINT, Condition, Lab, file_subnetwork
from subnet_utils.core.sections import BaseTraining, Bert, ResNet, ViT
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact, note, save_json, save_table, save_tensors
from subnet_utils.core.study import BaseSearch, Experiment
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix, embed_rows, full_precision, sent
from subnet_utils.papers.break_it_down import pretraining, stimuli
from subnet_utils.papers.break_it_down.evaluation import score_model
from subnet_utils.papers.break_it_down.tasks import agreement, tokenization
from subnet_utils.papers.break_it_down.tasks.odd_one_out import OddOneOut, batches, similarity_logits
from subnet_utils.statistics import LEARNED
from subnet_utils.training import Recipe, TrainingDiverged, fit

SMALLEST_MARGIN = 0.1
"""Margin of a base model, see `Score`, below which its masks are trained in float32. A similarity logit lies between -4
and 4, where bfloat16 has steps of up to 1/64; the embeddings behind it carry several such errors."""


@dataclass(frozen=True)
class Network:
    """One base model to be: an architecture on a task, with a recipe and a seed.

    draw, deviation: seed of the weights of an untrained one, and how wide they are drawn, if not as the architecture
    says.
    """

    experiment: Experiment | BaseSearch
    task: str
    training: BaseTraining
    seed: int
    condition: "Condition" = "trained"
    draw: int = 0
    deviation: float | None = None

    @property
    def label(self) -> str:
        """A name for progress lines."""
        name = f"{self.experiment.model} {self.task} seed {self.seed}"
        return name if self.condition == "trained" else f"{self.condition} {name}"

    def untrained(self, *, mask_seed: int | None = None, deviation: float | None = None) -> "Network":
        """The control to this network: the same architecture with weights as they are drawn, before any training.

        Each base model has an untrained network of its own. mask_seed: that of the authors' run instead, which has one
        for each mask seed, the same under every base model. deviation: of the weights, None: the architecture's.
        """
        parts = (self.task, self.seed) if mask_seed is None else (mask_seed,)
        draw = generator_for("untrained", *parts).initial_seed() % 2**31
        return replace(self, condition="random", draw=draw, deviation=deviation)

    def trained(self) -> "Network":
        """The trained network that an untrained or pruned one belongs to."""
        return replace(self, condition="trained", draw=0, deviation=None)

    @property
    def architecture(self) -> Bert | ResNet | ViT:
        """That of the experiment, its weights drawn as wide as `deviation` says."""
        architecture = self.experiment.architecture
        return architecture if self.deviation is None else architecture.model_copy(update={"deviation": self.deviation})

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the weights and scores of the network depend on."""
        if self.condition == "pruned":
            settings = lab.study.pruning.model_dump(exclude={"models", "tasks", "seeds"})
            base = self.trained()
            network = train_base(lab, base).json("result")["network"]
            return {"condition": "pruned", "base": base.spec(lab), "network": network, "pruning": settings}
        architecture = {"architecture": self.architecture.model_dump()}
        data = {
            "sizes": self.experiment.data.base.model_dump(),
            **stimuli.sampling(self.task, self.experiment.data),
        }
        if self.condition == "random":
            return {"condition": "random", **architecture, "task": self.task, "seed": self.draw, **data}
        spec = {
            **architecture,
            "task": self.task,
            "seed": self.seed,
            "training": self.training.model_dump(exclude={"seeds"}),
            "precision": lab.study.compute.precision,
            **data,
        }
        if getattr(self.experiment.architecture, "pretrained", None) is not None:
            spec["architecture"] |= {"pretrained": _published(self)}
        if getattr(self.experiment, "pretraining", None) is None:  # a search of base models has no such setting
            return spec
        return spec | {"pretraining": pretraining.spec(self.experiment, lab.study.compute)}


def train_base(lab: Lab, network: Network) -> Artefact:
    """A base model: weights, accuracy on its own task's validation and test sets, and history if it was trained."""
    return lab.store.make("base", network.spec(lab), partial(_build_base, lab, network))


def untrained(network: Network) -> StagedModel:
    """The network before training: its architecture with the weights that its seed draws."""
    architecture, sizes = network.architecture, {"resolution": network.experiment.data.resolution}
    if architecture.family == "bert":
        sizes = {"vocabulary": tokenization.tokenizer(architecture.pretrained).size}
    seed = network.draw if network.condition == "random" else network.seed
    return build(architecture.model_dump(), seed=seed, **sizes)


@lru_cache(maxsize=64)
def _published(network: Network) -> str:
    """Digest of published weights and of their tokenizer: what a folder holds counts, and not where it lies."""
    words = tokenization.tokenizer(network.experiment.architecture.pretrained).encode(agreement.grammar_words())
    return f"{fingerprint(untrained(network))}-{sha256(words.numpy().tobytes()).hexdigest()[:16]}"


def load_base(lab: Lab, network: Network) -> StagedModel:
    """The trained network itself, frozen, on the study's device. One copy serves all: do not change it."""
    return _loaded(lab, network, train_base(lab, network).key)


def _build_base(lab: Lab, network: Network, folder: Path) -> None:
    try:
        model, more = MAKERS[network.condition](lab, network, folder)
    except TrainingDiverged as error:
        if not isinstance(network.experiment, BaseSearch):
            raise
        save_json(folder / "result.json", {"fault": str(error)})  # a sweep goes as far as where training fails
        return
    save_tensors(folder / "weights.safetensors", model.state_dict())
    scores = {split: score_model(model, data_of(lab, network, "base", split)) for split in ("validation", "test")}
    result = {f"{split}_{name}": value for split, score in scores.items() for name, value in asdict(score).items()}
    save_json(folder / "result.json", result | more | {"network": fingerprint(model)})


def _trained(lab: Lab, network: Network, folder: Path) -> tuple[StagedModel, dict[str, Any]]:
    """The network trained on its task, its history filed; how many epochs it took."""
    model = untrained(network)
    settings = getattr(network.experiment, "pretraining", None)
    if settings is not None:
        pretraining.start_from(model, pretrain(lab, network), settings)
    model.to(lab.device)
    train, validation = (data_of(lab, network, "base", split) for split in ("train", "validation"))
    history = _fit_base(lab, network, model, train, validation, folder)
    save_table(folder / "history.parquet", history)
    return model, {"epochs": len(history), "best_epoch": int(history["validation_loss"].idxmin())}


def _as_drawn(lab: Lab, network: Network, folder: Path) -> tuple[StagedModel, dict[str, Any]]:
    """The network before training."""
    return untrained(network).to(lab.device), {"epochs": 0, "best_epoch": 0}


def _pruned(lab: Lab, network: Network, folder: Path) -> tuple[StagedModel, dict[str, Any]]:
    """The trained network without the weights that pruning takes out; how many are left of how many."""
    made = [prune(lab, network, point) for point in prunings(lab, network)]
    found = [artefact.json("result") for artefact in made]
    best = made[best_pruning(found)]
    kept = Subnetwork.load(best.path / "subnetwork.safetensors")
    size = {"active": kept.active, "total": kept.total, "pruning": best.json("result")["point"]}
    return kept.apply(load_base(lab, network.trained())), {"epochs": 0, "best_epoch": 0, **size}


MAKERS = {"trained": _trained, "random": _as_drawn, "pruned": _pruned}
"""How a network of each condition is made."""


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
                embeddings = model(flipped(items(rows.flatten())[0], generator)).unflatten(0, rows.shape)
            else:
                embeddings = embed_rows(model, {}, items, rows)
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


def data_of(lab: Lab, network: Network, set_name: str, split: str) -> OddOneOut:
    """One split of one of the five sets of a base model's task."""
    return stimuli.load(lab.store, network.experiment, network.task, set_name, split)


def precision_of(lab: Lab) -> Callable[[], AbstractContextManager]:
    """The context in which forward passes of training run, at the study's precision; what is being built notes it."""
    note(device=lab.device.type, precision=precision_name(lab.study.compute, lab.device))
    return partial(autocast, lab.study.compute, lab.device)


def mask_precision(lab: Lab, network: Network) -> Callable[[], AbstractContextManager]:
    """As `precision_of` for masks of a base, or float32 if it tells the odd one by less than `SMALLEST_MARGIN`."""
    if not _is_near_collapse(lab, network):
        return precision_of(lab)
    note(device=lab.device.type, precision="float32", near_collapse=True)
    if precision_name(lab.study.compute, lab.device) != "float32":
        why = f"tells the odd one by less than {SMALLEST_MARGIN}, near collapse"
        print(f"{network.label}: {why}; its masks are trained in float32", file=sys.stderr)
    return partial(full_precision, lab.device)


def throughout(lab: Lab, network: Network) -> AbstractContextManager:
    """Context of the training of such masks from end to end: a GPU's convolutions would take TF32 on the way back."""
    return full_precision(lab.device) if _is_near_collapse(lab, network) else nullcontext()


def _is_near_collapse(lab: Lab, network: Network) -> bool:
    return train_base(lab, network).json("result")["validation_margin"] < SMALLEST_MARGIN


def pretrain(lab: Lab, network: Network) -> Artefact:
    """The pretrained weights that a network starts from. Raises ValueError for one that starts from random weights."""
    return pretraining.pretrain(lab.store, network.experiment, lab.study.compute)


def prunings(lab: Lab, network: Network) -> list[tuple[float, float]]:
    """The settings of the search for a pruned network: learning rate and first value of the mask's logits."""
    return list(product(lab.study.pruning.learning_rates, lab.study.pruning.inits))


def prune(lab: Lab, network: Network, point: tuple[float, float]) -> Artefact:
    """A subnetwork of the trained network that computes its whole task, found by continuous sparsification."""
    spec = network.spec(lab)
    learning_rate, start_value = point
    spec["pruning"] = {
        name: value for name, value in spec["pruning"].items() if name not in ("learning_rates", "inits")
    } | {"learning_rate": learning_rate, "mask_init": start_value}
    return lab.store.make("pruning", spec, partial(_build_pruning, lab, network.trained(), point))


def best_pruning(found: Sequence[Mapping[str, Any]], *, learned: float = LEARNED) -> int:
    """Which of several masks is taken: the fewest weights among those that have learned, else the most accurate.

    found: `validation_accuracy` and `active` of each, or `fault`. Raises TrainingDiverged if there are only faults.
    """
    usable = [i for i, one in enumerate(found) if "fault" not in one]
    if not usable:
        raise TrainingDiverged(f"no mask came to its end: {found[0]['fault']}")
    able = [i for i in usable if found[i]["validation_accuracy"] >= learned]
    if able:
        return min(able, key=lambda i: found[i]["active"])
    return max(usable, key=lambda i: found[i]["validation_accuracy"])


def _build_pruning(lab: Lab, network: Network, point: tuple[float, float], folder: Path) -> None:
    settings, model, (learning_rate, start_value) = lab.study.pruning, load_base(lab, network), point
    train = data_of(lab, network, "base", "train")
    train = replace(train, examples=train.examples[: settings.examples])
    find = partial(
        discover,
        model,
        train.items,
        lambda generator: batches(train, settings.batch_size, generator=generator),
        lambda embeddings, odd: cross_entropy(similarity_logits(embeddings), odd),
        method=ContinuousSparsification(settings.epochs, settings.beta_max, start_value, settings.l0),
        start=network.experiment.architecture.stages[0],
        recipe=Recipe(learning_rate, settings.epochs, network.seed),
        autocast=mask_precision(lab, network),
        limit_gb=cache_limit(lab.study.compute),
        checkpoint=folder / CHECKPOINT,
        label=f"pruning {network.label}",
    )
    with throughout(lab, network):
        kept = file_subnetwork(folder, find)
    if kept is None:
        return
    accuracy = score_model(kept.apply(model), data_of(lab, network, "base", "validation")).accuracy
    size = {"active": kept.active, "total": kept.total}
    about = {"learning_rate": learning_rate, "mask_init": start_value}
    save_json(folder / "result.json", {"validation_accuracy": accuracy, **size, "point": about})


@lru_cache(maxsize=4)
def _loaded(lab: Lab, network: Network, key: str) -> StagedModel:
    model = untrained(network)
    model.load_state_dict(train_base(lab, network).tensors("weights"))
    return model.to(lab.device).eval().requires_grad_(False)


def _whole(lab: Lab, model: StagedModel, data: OddOneOut) -> FrozenPrefix:
    """The items themselves, as the outputs of an empty prefix."""
    prefix, _ = model.cut(model.stage_names[0])
    return FrozenPrefix(prefix, data.items, device=lab.device, limit_gb=math.inf)
