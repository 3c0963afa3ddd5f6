"""Masks of *Break It Down*: one for each base model, subroutine, setting of the search, and seed.

`Mask` is one training. `Search` says which setting of several is the best (appendix C). `FinalMask` is the mask that
counts: the winner of a search, with a seed. All are steps, so the whole graph is known before anything is trained.
"""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from subnet_utils.core.jobs import worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import CHECKPOINT, Fault, Step
from subnet_utils.core.store import Artefact, note, save_json
from subnet_utils.masks.discover import Discovery, MaskTask, discover_many
from subnet_utils.masks.masking import Masking
from subnet_utils.masks.methods import MaskMethod
from subnet_utils.masks.subnetwork import Subnetwork, SubnetworkStep
from subnet_utils.papers.break_it_down import prefixes, search
from subnet_utils.papers.break_it_down.networks import Network, loss, mask_training, with_settings
from subnet_utils.papers.break_it_down.scoring import scores
from subnet_utils.papers.break_it_down.sets import ExampleSet
from subnet_utils.tasks.odd_one_out import batches, other_subroutine
from subnet_utils.training import Recipe, TrainingDiverged

HALF_STATE = "state.safetensors"
VALIDATED = {"subnetwork": ("own_task",), "ablated": ("target", "other")}
"""What masks are scored on for the search, on validation data (appendix C): network -> roles of the sets."""


@dataclass(frozen=True)
class Roles:
    """The sets that a mask is measured on: the task that it was trained on, both probe sets, the base's task."""

    own_task: ExampleSet
    target: ExampleSet
    other: ExampleSet
    compositional: ExampleSet | None = None

    @classmethod
    def of(cls, base: Network, subroutine: str, split: str) -> "Roles":
        """The sets of one split for the masks of a subroutine; the base's task on test data alone."""
        return cls(
            base.data(f"mask-{subroutine}", split),
            base.data(f"probe-{subroutine}", split),
            base.data(f"probe-{other_subroutine(base.task, subroutine)}", split),
            base.data("base", split) if split == "test" else None,
        )

    @property
    def sets(self) -> dict[str, ExampleSet]:
        """Those that there are, by role."""
        return {role: chosen for role, chosen in vars(self).items() if chosen is not None}


@dataclass(frozen=True)
class Settings:
    """How a mask is trained, besides what the search varies. as_printed: see `section.MaskTraining`."""

    masking: Masking
    epochs: int
    batch_size: int
    as_printed: bool = False


@dataclass(frozen=True)
class AnyMask(Step):
    """A mask in a base model. `load` gives the subnetwork. Without one the result says why under `fault`."""

    records_faults = True

    base: Network
    subroutine: str
    point: "search.Point | Search"
    seed: int
    settings: Settings
    train: ExampleSet
    validation: Roles

    @classmethod
    def of(cls, base: Network, subroutine: str, point: Any, seed: int) -> "AnyMask":
        """The mask of a subroutine, with the settings and the sets that the base's experiment has for it."""
        masks = base.experiment.masks
        settings = Settings(masks.masking, masks.epochs, masks.batch_size, masks.as_printed)
        train, validation = base.data(f"mask-{subroutine}", "train"), Roles.of(base, subroutine, "validation")
        return cls(base, subroutine, point, seed, settings, train, validation)

    def mask(self, lab: Lab) -> "Mask":
        """The training that it stands for."""
        raise TypeError(f"{type(self).__name__} has no mask(lab); write one")

    def start(self, lab: Lab) -> str:
        """The first masked stage."""
        return self.mask(lab).point.start


@dataclass(frozen=True)
class Mask(SubnetworkStep, AnyMask):
    """One training of a mask, with its history, its annealing, and its scores on validation data."""

    def mask(self, lab: Lab) -> "Mask":
        """Itself."""
        return self

    @property
    def stages(self) -> int:
        """Stages of the base from the first masked one on, which are trained."""
        stages = self.base.architecture.stages
        return len(stages) - stages.index(self.point.start)

    work = property(lambda self: self.stages * self.settings.epochs)

    @property
    def method(self) -> MaskMethod:
        """How the logits are trained; in the authors' run the temperature of a vision head's mask stays 1."""
        fixed = self.settings.as_printed and self.base.modality == "vision"
        head = {"unannealed": ("stages.head.",)} if fixed else {}
        return with_settings(self.settings.masking, start_value=self.point.mask_init).build(
            self.settings.epochs, **head
        )

    @property
    def half(self) -> "Half":
        """The same training, up to its half."""
        return Half(**_fields(self))

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find the subnetwork; a training that was paused at its half goes on from there."""
        checkpoint, half = folder / CHECKPOINT, self.half.find(lab)
        if half is not None and not checkpoint.exists() and half.has(HALF_STATE):
            copy = folder / ".half"  # whole or not at all, like all that is written
            shutil.copy(half.path / HALF_STATE, copy)
            copy.replace(checkpoint)
        (found,) = discover(lab, [self], checkpoint)
        return _filed(lab, self, found, folder)

    def group(self, lab: Lab) -> Any:
        """On a GPU the masks of one base with the same settings, start and learning rate are trained at once."""
        many = masks_at_once(lab, self) > 1
        return (self.base, self.point.start, self.point.learning_rate, self.settings) if many else None

    def make_together(self, lab: Lab, steps: Sequence[Step]) -> None:
        """Train several of a group at once, as many as the study says. One that is left over is made alone."""
        size = masks_at_once(lab, self)
        for i in range(0, len(steps) - 1, size):
            chunk = steps[i : i + size]
            group = Group(self.base, tuple(tuple(_fields(one).values())[1:] for one in chunk)).make(lab)
            for number, mask in enumerate(chunk):
                lab.store.make(mask.kind(), mask.spec(lab), partial(_copy, group, f"{number:02d}"))


@dataclass(frozen=True)
class Half(AnyMask):
    """A training up to half of its epochs, one rung of successive halving: scores on validation data, and the state
    from which the other half goes on."""

    def mask(self, lab: Lab) -> Mask:
        """The whole training."""
        return Mask(**_fields(self))

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train until half of the epochs are over."""
        stop_after, whole = max(1, self.settings.epochs // 2), self.mask(lab)
        (found,) = discover(lab, [whole], folder / HALF_STATE, stop_after=stop_after)
        if isinstance(found, TrainingDiverged):
            raise found
        rows = scores(lab, whole, found.subnetwork, self.validation, VALIDATED)
        return {"score": _search_score(*rows), "own_task_accuracy": rows[0]["own_task_accuracy"]}


@dataclass(frozen=True)
class Group(Step):
    """Masks of one base, start and learning rate, trained at once: a folder for each, as its own artefact will be.

    members: the fields of each mask but the base.
    """

    base: Network
    members: tuple[tuple, ...]

    def build(self, lab: Lab, folder: Path) -> None:
        """Train, score and file them."""
        started, masks = time.monotonic(), [Mask(self.base, *member) for member in self.members]
        found = discover(lab, masks, folder / CHECKPOINT)
        note(training_seconds=round((time.monotonic() - started) / len(masks), 2))
        for number, (mask, one) in enumerate(zip(masks, found, strict=True)):
            own = folder / f"{number:02d}"
            own.mkdir(exist_ok=True)
            try:
                result = _filed(lab, mask, one, own)
            except Fault as fault:
                result = {"fault": str(fault)}
            save_json(own / "result.json", result)


@dataclass(frozen=True)
class Search(Step):
    """One search: the setting that wins, by `search.best`. `load` gives that `Point`.

    candidates: the masks that are tried; or their halves, of which the better half goes on to its end.
    """

    candidates: tuple[Mask | Half, ...]

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Compare the scores on validation data."""
        tried = self.tried(lab)
        found = [mask.result(lab).get("score", math.nan) for mask in tried]
        return asdict(tried[search.best(found)].point)

    def read(self, lab: Lab, artefact: Artefact) -> "search.Point":
        """See the class."""
        return search.Point(**artefact.json("result"))

    def tried(self, lab: Lab) -> list[Mask]:
        """The masks that are trained to their end; of halves the better ones.

        They are ranked by score, then by own-task accuracy, both as they are at half time, then by their order.
        """
        if not isinstance(self.candidates[0], Half):
            return list(self.candidates)

        def merit(half: Half) -> tuple[float, float]:
            result = half.result(lab)
            return result.get("score", -math.inf), result.get("own_task_accuracy", 0.0)

        ranked = sorted(self.candidates, key=merit, reverse=True)  # stable: the first of equals stays
        better = ranked[: math.ceil(len(ranked) / 2)]
        return [half.mask(lab) for half in self.candidates if half in better]


@dataclass(frozen=True)
class FinalMask(AnyMask):
    """A mask that counts: at the setting that won a search, with a seed. It stands for a `Mask`, which it makes."""

    def mask(self, lab: Lab) -> Mask:
        """The training that it stands for; the search is done if need be. Raises Fault if the search found nothing."""
        return Mask(**_fields(self) | {"point": self.point.load(lab)})

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Make the mask."""
        mask = self.mask(lab)
        artefact = mask.make(lab)
        if fault := mask.fault(lab):
            raise Fault(fault)
        return {"point": asdict(mask.point), "mask": artefact.key, "content": artefact.digest}

    def read(self, lab: Lab, artefact: Artefact) -> Subnetwork:
        """See `AnyMask`."""
        return self.mask(lab).load(lab)

    def group(self, lab: Lab) -> Any:
        """All of one base, where masks are trained at once."""
        return self.base if masks_at_once(lab, self) > 1 else None

    def make_together(self, lab: Lab, steps: Sequence[Step]) -> None:
        """Train what they stand for in groups."""
        groups: dict[Any, list[Mask]] = {}
        for mask in (step.mask(lab) for step in steps):
            groups.setdefault(mask.group(lab), []).append(mask)
        for masks in groups.values():
            missing = [mask for mask in dict.fromkeys(masks) if not mask.is_done(lab)]
            if len(missing) > 1:
                missing[0].make_together(lab, missing)


def discover(
    lab: Lab, masks: Sequence[Mask], checkpoint: Path, *, stop_after: int | None = None
) -> list[Discovery | TrainingDiverged]:
    """Find masks of one base, start and learning rate at once. When memory runs out with one mask alone, it is tried
    again without the outputs that are kept for others."""
    base, point, settings = masks[0].base, masks[0].point, masks[0].settings
    tables = {}
    for train in dict.fromkeys(mask.train for mask in masks):
        tables[train] = prefixes.outputs(lab, base, train, point.start, in_use=tables.values())
    subroutines = " and ".join(sorted({mask.subroutine for mask in masks}))
    seeds = f"{len(masks)} masks" if len(masks) > 1 else f"mask seed {masks[0].seed}"
    with mask_training(lab, base) as autocast:
        about = {"autocast": autocast, "checkpoint": checkpoint, "label": f"{base.label} {subroutines} {seeds}"}
        about |= {"start": point.start, "recipe": Recipe(point.learning_rate, settings.epochs, masks[0].seed)}
        if not settings.masking.trains:
            (mask,) = masks
            about |= {"before": partial(base.first, lab)}
            return [settings.masking.find(base.load(lab), tables[mask.train], _passes(lab, mask), loss, **about)]
        mask_tasks = [MaskTask(tables[mask.train], _passes(lab, mask), mask.method, mask.seed) for mask in masks]
        train = partial(discover_many, base.load(lab), mask_tasks, loss, stop_after=stop_after, **about)
        try:
            return train()
        except torch.OutOfMemoryError as error:  # with one mask alone
            if not prefixes.drop_all_but(tables.values()):
                raise
            reason = f"{error}; trying again without the outputs that are kept for other masks"
        # not in the handler, whose exception keeps the tensors of the attempt alive
        print(reason, file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
        return train()


def _passes(lab: Lab, mask: Mask) -> Any:
    train = mask.train.load(lab)
    return lambda generator: batches(train, mask.settings.batch_size, generator=generator)


def masks_at_once(lab: Lab, mask: AnyMask) -> int:
    """How many masks of a base are trained at once: as the study says.

    auto: on a GPU, as many as fit into half of its memory by a rough count, up to 24, if the network is a transformer;
    convolutions with weights of their own for every mask are slower than one mask after the other. On a CPU one, where
    stacking saves nothing and the jobs share the cores already. One as well for a method that draws, or that trains
    nothing, and in a halved search, which pauses each mask.
    """
    base, masking = mask.base, mask.settings.masking
    alone = isinstance(mask, Half) or not masking.trains or base.experiment.masks.search == "halving"
    if alone or not masking.build(1).deterministic:
        return 1
    if lab.study.compute.masks_at_once != "auto":
        return lab.study.compute.masks_at_once
    if lab.device.type != "cuda" or base.architecture.family == "resnet":
        return 1
    # of the whole memory, not of what is free at the moment: the same masks must be together in a run that goes on
    memory = torch.cuda.get_device_properties(lab.device).total_memory / 2 / worker_count(lab.study.compute)
    return max(1, min(24, int(memory / _bytes_of(mask))))


def _bytes_of(mask: AnyMask) -> float:
    """Rough memory of one more mask in training: ten copies of its weights, twenty of every hidden state."""
    architecture = mask.base.architecture
    weights = sum(parameter.numel() for parameter in mask.base.fresh().parameters())
    tokens = 16
    if architecture.family != "bert":
        tokens = (mask.train.parts[0].resolution / architecture.patch) ** 2
    states = 4 * mask.settings.batch_size * tokens * architecture.layers * architecture.width
    return 4.0 * (10 * weights + 20 * states)


def _filed(lab: Lab, mask: Mask, found: Discovery | TrainingDiverged, folder: Path) -> dict[str, Any]:
    """File a mask: scores on validation data, the search's score, and its size as the result."""
    if isinstance(found, TrainingDiverged):
        raise found
    found.save(folder)
    rows = scores(lab, mask, found.subnetwork, mask.validation, VALIDATED)
    counts = {"active": found.subnetwork.active, "total": found.subnetwork.total}
    return {"validation": rows, "score": _search_score(*rows), **counts}


def _copy(group: Artefact, number: str, folder: Path) -> None:
    """Copy what a mask's artefact holds from its group, with the notes on how they were trained."""
    about = group.json("provenance")
    note(**{name: about[name] for name in about.keys() & {"device", "precision", "near_collapse", "training_seconds"}})
    shutil.copytree(group.path / number, folder, dirs_exist_ok=True)


def _search_score(subnetwork: dict[str, Any], ablated: dict[str, Any]) -> float:
    return search.score(subnetwork["own_task_accuracy"], ablated["target_accuracy"], ablated["other_accuracy"])


def _fields(mask: AnyMask) -> dict[str, Any]:
    return {field.name: getattr(mask, field.name) for field in fields(mask)}
