"""From a base model to its effects: masks are found in it, and it is measured with and without what they cover.

A step that is finished is never computed twice; independent steps run side by side (`jobs.run_jobs`). A mask's
specification holds that of its base model and the fingerprint of its weights.
"""

import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from subnet_utils.core.jobs import cache_limit, worker_count
from subnet_utils.core.lab import CHECKPOINT, Lab, subnetwork_in
from subnet_utils.core.store import Artefact, save_json, save_table
from subnet_utils.masks.discover import Discovery, MaskTask, discover_many
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.papers.break_it_down import search
from subnet_utils.papers.break_it_down.base_models import (
    Network,
    data_of,
    load_base,
    mask_precision,
    throughout,
    train_base,
    untrained,
)
from subnet_utils.papers.break_it_down.evaluation import NETWORKS, Score, score_both
from subnet_utils.papers.break_it_down.statistics import clamped_difference
from subnet_utils.papers.break_it_down.tasks.odd_one_out import (
    OddOneOut,
    batches,
    other_subroutine,
    similarity_logits,
)
from subnet_utils.training import Recipe, TrainingDiverged

HALF_STATE = "state.safetensors"
ROLES = ("own_task", "target", "other", "compositional")
"""What the sets that a mask is measured on are to it: the task it was trained on, both probe sets, the base's task."""
EVERYTHING = dict.fromkeys(NETWORKS, ROLES)
VALIDATED = {"subnetwork": ("own_task",), "ablated": ("target", "other")}
"""What masks are scored on for the search, on validation data (appendix C): network -> roles of the sets."""


@dataclass(frozen=True)
class Mask:
    """One mask to be found in a base model: a subroutine, a point of the search, a seed for the order of the data."""

    base: Network
    subroutine: str
    point: search.Point
    seed: int

    @property
    def stages(self) -> int:
        """Stages of the base from the first masked one on, which are trained: the more, the longer it takes."""
        stages = self.base.experiment.architecture.stages
        return len(stages) - stages.index(self.point.start)

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What the mask depends on; the base itself among it, so that a base rebuilt elsewhere has masks of its own."""
        experiment, judged_by = self.base.experiment, {"exclude": {"test"}}
        return {
            "base": self.base.spec(lab),
            "network": train_base(lab, self.base).json("result")["network"],
            "subroutine": self.subroutine,
            "point": search.columns(self.point),
            "seed": self.seed,
            "settings": experiment.masks.model_dump(include={"epochs", "batch_size", "beta_max", "l0", "as_printed"}),
            "sizes": {
                "mask": experiment.data.mask.model_dump(**judged_by),
                "probe": experiment.data.probe.model_dump(**judged_by),
            },
        }


def measured_spec(lab: Lab, mask: Mask) -> dict[str, Any]:
    """What depends on a mask that is found depends on: on its bits, which another machine may round anew, and on the
    sizes of the test sets."""
    data, bits = mask.base.experiment.data, find_mask(lab, mask).json("manifest").get("subnetwork.safetensors")
    return mask.spec(lab) | {"bits": bits, "test": {"mask": data.mask.test, "probe": data.probe.test}}


def find_mask(lab: Lab, mask: Mask) -> Artefact:
    """A subnetwork with its history, its annealing, and its scores on validation data.

    If its training diverged there is none of that, and the result says why under `fault`.
    """
    return lab.store.make("mask", mask.spec(lab), partial(_build_mask, lab, mask))


def find_half(lab: Lab, mask: Mask) -> Artefact:
    """A mask after half of its epochs: scores on validation data, and the state from which `find_mask` goes on."""
    return lab.store.make("half", mask.spec(lab), partial(_build_half, lab, mask))


def find_masks_at_once(lab: Lab, masks: Sequence[Mask]) -> list[Artefact]:
    """Several masks of one base, start and learning rate, trained at once; each is an artefact as from `find_mask`.

    What was trained together is an artefact too, so that filing the masks one by one can be interrupted. Of a group
    that was not begun as such only those masks are trained that are missing: a study that asks for more seeds finds the
    others.
    """
    missing = [mask for mask in masks if lab.store.find("mask", mask.spec(lab)) is None]
    if missing and len(missing) < len(masks) and not lab.store.is_begun("masks", _group_spec(lab, masks)):
        find_masks_at_once(lab, missing)
    elif len(masks) > 1 and missing:
        together = lab.store.make("masks", _group_spec(lab, masks), partial(_build_masks, lab, masks))
        for i, mask in enumerate(masks):
            lab.store.make("mask", mask.spec(lab), partial(_file_mask, lab, mask, together, f"{i:02d}"))
    return [find_mask(lab, mask) for mask in masks]


def masks_at_once(lab: Lab, network: Network) -> int:
    """How many masks of a base are trained at once: as the study says.

    auto: on a GPU, as many as fit into half of its memory by a rough count, up to 24, if the network is a transformer;
    convolutions with weights of their own for every mask are slower than one mask after the other. On a CPU one, where
    stacking saves nothing and the jobs share the cores already. One as well in a halved search, which pauses each mask.
    """
    if network.experiment.masks.search == "halving":
        return 1
    if lab.study.compute.masks_at_once != "auto":
        return lab.study.compute.masks_at_once
    if lab.device.type != "cuda" or network.experiment.architecture.family == "resnet":
        return 1
    # of the whole memory, not of what is free at the moment: the same masks must be together in a run that goes on
    memory = torch.cuda.get_device_properties(lab.device).total_memory / 2 / worker_count(lab.study.compute)
    return max(1, min(24, int(memory / _bytes_of_a_mask(lab, network))))


def load_subnetwork(lab: Lab, mask: Mask) -> Subnetwork:
    """The subnetwork of a mask, found if need be. Raises TrainingDiverged if its training ended without one."""
    return subnetwork_in(find_mask(lab, mask))


def seconds_of(artefact: Artefact) -> float:
    """What a base, mask or effect took, with its share of the time of masks trained at once."""
    result = artefact.json("result")
    share = result.get("training_seconds", 0.0) if isinstance(result, dict) else 0.0
    return artefact.json("provenance")["seconds"] + share


def measure_effect(lab: Lab, mask: Mask) -> Artefact:
    """Test scores of the subnetwork and of the ablated model: own task, both probe sets, compositional task."""
    return lab.store.make("effect", measured_spec(lab, mask), partial(_build_effect, lab, mask))


def _build_half(lab: Lab, mask: Mask, folder: Path) -> None:
    state, epochs = folder / HALF_STATE, mask.base.experiment.masks.epochs
    (found,) = _discover(lab, [mask], state, stop_after=max(1, epochs // 2))
    if isinstance(found, TrainingDiverged):
        save_json(folder / "result.json", {"fault": str(found)})
        return
    rows = _rows(lab, mask, found.subnetwork, "validation", VALIDATED)
    own_task = {row["network"]: row for row in rows}["subnetwork"]["own_task_accuracy"]
    save_json(folder / "result.json", {"score": _search_score(rows), "own_task_accuracy": own_task})


def _build_mask(lab: Lab, mask: Mask, folder: Path) -> None:
    checkpoint, half = folder / CHECKPOINT, lab.store.find("half", mask.spec(lab))
    if half is not None and not checkpoint.exists() and (half.path / HALF_STATE).exists():
        beside = folder / ".half"  # whole or not at all, like all that is written
        shutil.copy(half.path / HALF_STATE, beside)
        beside.replace(checkpoint)
    (found,) = _discover(lab, [mask], checkpoint)
    _save_mask(lab, mask, found, folder)


def _group_spec(lab: Lab, masks: Sequence[Mask]) -> dict[str, Any]:
    return {"masks": [mask.spec(lab) for mask in masks]}


def _build_masks(lab: Lab, masks: Sequence[Mask], folder: Path) -> None:
    """Train masks at once and keep what was found, numbered in order, to be scored and filed one by one."""
    started = time.monotonic()
    found = _discover(lab, masks, folder / CHECKPOINT)
    faults = {}
    for i, discovery in enumerate(found):
        if isinstance(discovery, TrainingDiverged):
            faults[f"{i:02d}"] = str(discovery)
        else:
            _save_discovery(discovery, folder, f"_{i:02d}")
    share = (time.monotonic() - started) / len(masks)
    save_json(folder / "result.json", {"faults": faults, "training_seconds": round(share, 2)})


def _file_mask(lab: Lab, mask: Mask, together: Artefact, number: str, folder: Path) -> None:
    """Score one of the masks that were trained at once."""
    result = together.json("result")
    seconds = {"training_seconds": result["training_seconds"]}
    if number in result["faults"]:
        save_json(folder / "result.json", {"fault": result["faults"][number], **seconds})
        return
    subnetwork = Subnetwork.load(together.path / f"subnetwork_{number}.safetensors")
    tables = (together.table(f"{name}_{number}") for name in ("history", "annealing"))
    _save_discovery(Discovery(subnetwork, *tables), folder)
    save_json(folder / "result.json", _mask_result(lab, mask, subnetwork) | seconds)


def _discover(
    lab: Lab, masks: Sequence[Mask], checkpoint: Path, *, stop_after: int | None = None
) -> list[Discovery | TrainingDiverged]:
    network, settings, point = masks[0].base, masks[0].base.experiment.masks, masks[0].point
    tables: dict[str, FrozenPrefix] = {}
    for subroutine in sorted({mask.subroutine for mask in masks}):
        own = lab, network, f"mask-{subroutine}", "train", point.start
        tables[subroutine] = _outputs(*own, beside=tables.values())
    seeds = f"{len(masks)} masks" if len(masks) > 1 else f"mask seed {masks[0].seed}"
    train = partial(
        discover_many,
        load_base(lab, network),
        [_wanted(lab, mask, tables[mask.subroutine]) for mask in masks],
        lambda embeddings, odd: cross_entropy(similarity_logits(embeddings), odd),
        start=point.start,
        recipe=Recipe(point.learning_rate, settings.epochs, masks[0].seed),
        autocast=mask_precision(lab, network),
        checkpoint=checkpoint,
        stop_after=stop_after,
        label=f"{network.label} {' and '.join(tables)} {seeds}",
    )
    with throughout(lab, network):
        try:
            return train()
        except torch.OutOfMemoryError as error:  # with one mask alone
            if not _drop_all_but(tables.values()):
                raise
            said = f"{error}; trying again without the outputs that are kept for other masks"
        # not in the handler, whose exception keeps the tensors of the attempt alive
        print(said, file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
        return train()


def _wanted(lab: Lab, mask: Mask, outputs: FrozenPrefix) -> MaskTask:
    batch_size = mask.base.experiment.masks.batch_size
    train = data_of(lab, mask.base, f"mask-{mask.subroutine}", "train")
    return MaskTask(
        outputs, lambda generator: batches(train, batch_size, generator=generator), _method(mask), mask.seed
    )


def _save_mask(lab: Lab, mask: Mask, found: Discovery | TrainingDiverged, folder: Path) -> None:
    if isinstance(found, TrainingDiverged):
        save_json(folder / "result.json", {"fault": str(found)})
        return
    _save_discovery(found, folder)
    save_json(folder / "result.json", _mask_result(lab, mask, found.subnetwork))


def _save_discovery(found: Discovery, folder: Path, suffix: str = "") -> None:
    found.subnetwork.save(folder / f"subnetwork{suffix}.safetensors")
    save_table(folder / f"history{suffix}.parquet", found.history)
    save_table(folder / f"annealing{suffix}.parquet", found.annealing)


def _mask_result(lab: Lab, mask: Mask, subnetwork: Subnetwork) -> dict[str, Any]:
    """Scores on validation data, the search's score, and the mask's size."""
    rows = _rows(lab, mask, subnetwork, "validation", VALIDATED)
    counts = {"active": subnetwork.active, "total": subnetwork.total}
    return {"validation": rows, "score": _search_score(rows), **counts}


def _method(mask: Mask) -> ContinuousSparsification:
    settings, experiment = mask.base.experiment.masks, mask.base.experiment
    head = ("stages.head.",) if settings.as_printed and experiment.modality == "vision" else ()
    return ContinuousSparsification(settings.epochs, settings.beta_max, mask.point.mask_init, settings.l0, head)


def _build_effect(lab: Lab, mask: Mask, folder: Path) -> None:
    save_json(folder / "result.json", _rows(lab, mask, load_subnetwork(lab, mask), "test"))


def sets_for(
    lab: Lab, mask: Mask, split: str, roles: Sequence[str] = ROLES
) -> dict[str, tuple[FrozenPrefix, OddOneOut]]:
    """The sets on which a mask is measured, by role, with the outputs of the stages before its start."""
    network, start = mask.base, mask.point.start
    names = {
        "own_task": f"mask-{mask.subroutine}",
        "target": f"probe-{mask.subroutine}",
        "other": f"probe-{other_subroutine(network.task, mask.subroutine)}",
        "compositional": "base",
    }
    return {
        role: (_outputs(lab, network, names[role], split, start), data_of(lab, network, names[role], split))
        for role in roles
    }


def columns(scores: dict[str, Score]) -> dict[str, float]:
    """Scores as columns: accuracy and margin on each set, and the clamped difference between target and other, if these
    are among them."""
    probes = [scores[role].accuracy for role in ("target", "other") if role in scores]
    difference = {"difference": float(clamped_difference(*probes))} if len(probes) == 2 else {}
    accuracies = {f"{role}_accuracy": score.accuracy for role, score in scores.items()}
    margins = {f"{role}_margin": score.margin for role, score in scores.items()}
    return {**difference, **accuracies, **margins}


def _rows(
    lab: Lab, mask: Mask, subnetwork: Subnetwork, split: str, wanted: Mapping[str, Sequence[str]] = EVERYTHING
) -> list[dict[str, Any]]:
    """Scores of the subnetwork and the ablated model, one row each; wanted: on the sets of which roles."""
    sets = sets_for(lab, mask, split, [role for role in ROLES if any(role in roles for roles in wanted.values())])
    scores = score_both(load_base(lab, mask.base), subnetwork, mask.point.start, sets, wanted=wanted)
    densities = {"subnetwork": subnetwork.density, "ablated": (~subnetwork).density}
    return [{"network": name, "density": densities[name], **columns(of_sets)} for name, of_sets in scores.items()]


def _search_score(rows: list[dict[str, Any]]) -> float:
    subnetwork, ablated = ({row["network"]: row for row in rows}[name] for name in ("subnetwork", "ablated"))
    return search.score(subnetwork["own_task_accuracy"], ablated["target_accuracy"], ablated["other_accuracy"])


def _bytes_of_a_mask(lab: Lab, network: Network) -> float:
    """Rough memory of one more mask in training: ten copies of its weights, twenty of every hidden state."""
    architecture = network.experiment.architecture
    weights = sum(parameter.numel() for parameter in untrained(network).parameters())
    tokens = 16 if architecture.family == "bert" else (network.experiment.data.resolution / architecture.patch) ** 2
    states = 4 * network.experiment.masks.batch_size * tokens * architecture.layers * architecture.width
    return 4.0 * (10 * weights + 20 * states)


def _outputs(
    lab: Lab, network: Network, set_name: str, split: str, start: str, beside: Collection[FrozenPrefix] = ()
) -> FrozenPrefix:
    """Outputs of a base's frozen prefix for a set's items, kept for the next mask of the same base and start, or of a
    later one, whose prefix goes on from them.

    Those that were not used for longest are dropped before all together exceed `cache_limit`, and those of another base
    as soon as there are any of this one: jobs come base by base, and on a GPU the masks need the room. beside: outputs
    in use meanwhile; what they leave of the limit is all that there is.
    """
    about, limit = (lab, network, set_name, split), cache_limit(lab.study.compute)
    left = limit - sum(outputs.gb for outputs in beside)

    def make_room(gb: float) -> None:
        others = [key for key, outputs in _KEPT.items() if outputs not in beside]
        while others and sum(_KEPT[key].gb for key in others) + gb > left:
            del _KEPT[others.pop(0)]

    if (*about, start) not in _KEPT:
        for other in [key for key in _KEPT if key[:2] != (lab, network)]:
            del _KEPT[other]
        prefix, _ = load_base(lab, network).cut(start)
        items = data_of(lab, network, set_name, split).items
        before = [_KEPT[*about, stage] for stage in prefix.stage_names if (*about, stage) in _KEPT]
        shorter = before[-1] if before else None
        options = {"limit_gb": left, "shorter": shorter, "make_room": make_room}
        outputs = FrozenPrefix(prefix, items, device=lab.device, **options)
        if beside and not outputs.gb:
            return outputs  # alone they may fit
        _KEPT[*about, start] = outputs
    _KEPT.move_to_end((*about, start))
    return _KEPT[*about, start]


def _drop_all_but(used: Collection[FrozenPrefix]) -> bool:
    """Let go of all other outputs that are kept; whether they took any room."""
    others = [key for key, outputs in _KEPT.items() if outputs not in used]
    return sum(_KEPT.pop(key).gb for key in others) > 0


_KEPT: OrderedDict[tuple, FrozenPrefix] = OrderedDict()
"""Cached outputs of this process, the least recently used first."""
