"""*Break It Down* (Lepori, Serre and Pavlick 2023): the tables behind its figures.

Each function returns one tidy table of a study and makes whatever it needs and is not there yet. `bases` are the base
models that a table is about: by default those that start from random weights; see `networks` for the others.
"""

import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.break_it_down import networks, search
from subnet_utils.papers.break_it_down.masks import AnyMask, FinalMask, Mask, Search, Settings
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.papers.break_it_down.tasks.odd_one_out import split_task, subroutines_of

SEARCHED = ["model", "task", "number", "base_model", "subroutine"]
"""Columns that identify one search."""
FOUND = "own_task_accuracy", "ablated_difference", "score", "active", "total", "density"
"""Columns that a mask whose training diverged does not have."""


def train_bases(lab: Lab, bases: Sequence[Network] | None = None) -> pd.DataFrame:
    """Train every base model: one row each with accuracies and artefact key (Table 2)."""
    bases = networks.bases(lab) if bases is None else bases
    made = make_all(lab, bases, "base models")
    return pd.DataFrame([_base_row(*pair) for pair in zip(bases, made, strict=True)])


def histories(lab: Lab) -> pd.DataFrame:
    """Learning curves of every base model: identity, epoch, losses in nats, validation accuracy."""
    tables = [base.make(lab).table("history").assign(**identity(base)) for base in networks.bases(lab)]
    return pd.concat(tables, ignore_index=True)


def search_vit(lab: Lab) -> pd.DataFrame:
    """The sweep of appendix D (Table 4): validation accuracy for layers x batch size x learning rate x task.

    A setting whose training diverged has a row that says so under `fault`, and no accuracy. Empty if the study has no
    such sweep.
    """
    swept = networks.swept(lab)
    rows = []
    for network, artefact in zip(swept, make_all(lab, swept, "ViT search"), strict=True):
        point = {"layers": network.architecture.layers, "batch_size": network.training.batch_size}
        point |= {"learning_rate": network.training.learning_rate, "task": network.task}
        result = {**artefact.json("result"), "key": artefact.key}
        kept = {name: result.get(name) for name in ("validation_accuracy", "epochs", "key", "fault")}
        rows.append(point | kept | {"model": network.experiment.model})
    return pd.DataFrame(rows)


def searches(lab: Lab, bases: Sequence[Network] | None = None) -> list[Search]:
    """The search of every base model and subroutine."""
    bases = networks.bases(lab) if bases is None else bases
    return [search_of(base, subroutine) for base in bases for subroutine in subroutines_of(base.task)]


def search_of(base: Network, subroutine: str) -> Search:
    """The search for one mask: a grid of settings, or the one setting that the authors' search picked."""
    settings = base.experiment.masks
    points = search.grid(settings)
    if settings.search == "selected":
        about = (base.experiment.paper_model, *split_task(base.task), subroutine, base.base_seed + 1)
        points = [search.selected_by_authors(*about, condition=base.condition)]
    masks = [Mask.of(base, subroutine, point, settings.search_seed, Settings.of(settings)) for point in points]
    return Search(tuple(mask.half for mask in masks) if settings.search == "halving" else tuple(masks))


def search_masks(lab: Lab, bases: Sequence[Network] | None = None) -> pd.DataFrame:
    """The mask search (appendix C): one row per base, subroutine and setting, on validation data, winners marked.

    A halved search has rows for the settings that went on. A mask whose training diverged has a row that says so under
    `fault`, and no scores.
    """
    wanted = searches(lab, bases)
    make_all(lab, wanted, "mask search")
    table = mask_table(lab, [mask for one in wanted for mask in one.tried(lab)], "mask search")
    winners = [group.index[search.best(group["score"])] for _, group in table.groupby(SEARCHED, sort=False)]
    return table.assign(winner=table.index.isin(winners))


def halving(lab: Lab) -> pd.DataFrame:
    """What halving a finished search would have done: a row per search, with the winner's score by either way.

    `same`: whether the full search's winner is among the settings that go on, and so wins again; `epochs_saved`: share
    of the epochs that are not trained. Trains every setting to its half, if that is not done. Raises ValueError for a
    study whose search is not a grid: there is nothing to compare with.
    """
    if any(experiment.masks.search != "grid" for experiment in lab.study.break_it_down.experiments):
        raise ValueError(f"profile '{lab.study.name}' has no full search to compare with; set masks.search to grid")
    rows = []
    for full in searches(lab):
        halved = Search(tuple(mask.half for mask in full.candidates))
        make_all(lab, [full, halved], "half of the mask search")
        score, best = ([mask.result(lab).get("score") for mask in one.tried(lab)] for one in (full, halved))
        saved = (len(score) - len(best)) / len(score) / 2
        same = full.load(lab) == halved.load(lab)
        about = identity(full.candidates[0].base) | {"subroutine": full.candidates[0].subroutine}
        scores = {"score": max(filter(None, score), default=0.0), "score_halved": max(filter(None, best), default=0.0)}
        rows.append(about | scores | {"same": same, "epochs_saved": saved})
    return pd.DataFrame(rows)


def final_masks(lab: Lab, bases: Sequence[Network] | None = None) -> list[FinalMask]:
    """The masks that count: the winner of every search, with every seed."""
    bases = networks.bases(lab) if bases is None else bases
    return [
        FinalMask.of(base, subroutine, search_of(base, subroutine), seed, Settings.of(base.experiment.masks))
        for base in bases
        for subroutine in subroutines_of(base.task)
        for seed in base.experiment.masks.seeds
    ]


def used_masks(lab: Lab, bases: Sequence[Network] | None = None) -> list[FinalMask]:
    """The masks that count and whose training did not diverge. Raises ValueError if there is none."""
    wanted = final_masks(lab, bases)
    make_all(lab, wanted, "masks")
    return used(lab, wanted)


def used(lab: Lab, masks: Sequence[AnyMask]) -> list[AnyMask]:
    """Those of some masks whose training did not diverge. Raises ValueError if there is none."""
    left = [mask for mask in masks if not mask.fault(lab)]
    if not left:
        raise ValueError(f"no mask is left to measure: {attempted(mask_table(lab, masks, 'masks'))}")
    return left


def find_masks(lab: Lab, bases: Sequence[Network] | None = None) -> pd.DataFrame:
    """Find the masks that count: one row each with active and masked weights (Tables 5 to 11) and validation scores.

    `fault` is empty, or says why training diverged; such a mask has no numbers, and no effect is measured with it.
    """
    return mask_table(lab, final_masks(lab, bases), "masks")


def mask_table(lab: Lab, masks: Sequence[AnyMask], label: str) -> pd.DataFrame:
    """Find some masks; a row each."""
    make_all(lab, masks, label)
    table = pd.DataFrame([_mask_row(lab, mask.mask(lab)) for mask in masks])
    if (table["fault"] != "").any():
        print(f"{label}: {attempted(table)}", file=sys.stderr)
    return table


def effects(lab: Lab, bases: Sequence[Network] | None = None) -> pd.DataFrame:
    """The table behind Figure 4: one row per mask and network (subnetwork, ablated), measured on test data."""
    make_all(lab, [Effect.of(mask) for mask in final_masks(lab, bases)], "ablations")
    return effects_of(lab, used_masks(lab, bases))


def effects_of(lab: Lab, masks: Sequence[AnyMask]) -> pd.DataFrame:
    """The effects of some masks. `base_accuracy` is the network's own; of a control, that of the trained network."""
    made = make_all(lab, [Effect.of(mask) for mask in masks], "ablations")
    return pd.DataFrame(
        about_mask(lab, mask, artefact) | row
        for mask, artefact in zip(masks, made, strict=True)
        for row in artefact.json("result")
    )


def about_mask(lab: Lab, mask: AnyMask, artefact: Artefact) -> dict[str, Any]:
    """Columns that say what an artefact made of a mask is about."""
    judged = mask.base.trained if mask.base.condition == "random" else mask.base
    return identity(mask.base) | {
        "subroutine": mask.subroutine, "mask_seed": mask.seed, "start": mask.start(lab), "key": artefact.key,
        "base_accuracy": judged.result(lab)["test_accuracy"],
    }  # fmt: skip


def pruned_networks(lab: Lab) -> pd.DataFrame:
    """What pruning left of each base model: weights, and test accuracy before and after (appendix J)."""
    rows = []
    for network in networks.pruned_bases(lab):
        before, after = network.trained.result(lab), network.result(lab)
        size = {"active": after["active"], "total": after["total"], "density": after["active"] / after["total"]}
        accuracy = {"accuracy_before": before["test_accuracy"], "accuracy_after": after["test_accuracy"]}
        rows.append(identity(network) | after["pruning"] | size | accuracy)
    return pd.DataFrame(rows)


def annealing(lab: Lab, mask: AnyMask) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How one mask came about: its history, and per epoch the shares of soft mask entries in 50 bins of [0, 1]."""
    artefact = mask.mask(lab).make(lab)
    return artefact.table("history"), artefact.table("annealing")


def identity(network: Network) -> dict[str, Any]:
    """Columns that say which base model a row is about. Bases of singular and plural are distinct clusters."""
    task, number = split_task(network.task)
    return {
        "condition": network.condition,
        "model": network.experiment.model,
        "paper_model": network.experiment.paper_model,
        "task": task,
        "number": number,
        "base_model": f"{number}-{network.base_seed}".lstrip("-"),
        "base_seed": network.base_seed,
    }


def attempts(masks: pd.DataFrame) -> pd.DataFrame:
    """How many masks of a table were attempted and how many are used, a row per subroutine, with the reasons why others
    are not. masks: from `find_masks`, or with a column `factor` from `mask_sizes.find_masks`."""
    by = [name for name in ("model", "task", "number", "subroutine", "factor") if name in masks]
    groups = masks.groupby(by, sort=False)["fault"]
    return groups.agg(attempted="size", used=lambda faults: int((faults == "").sum()),
                      faults=lambda faults: "; ".join(filter(None, faults.unique()))).reset_index()  # fmt: skip


def attempted(masks: pd.DataFrame) -> str:
    """How many masks of a table were attempted and are used, with the first reason why one is not."""
    dropped = masks[masks["fault"] != ""]
    counts = f"{len(masks)} masks attempted, {len(masks) - len(dropped)} used"
    return counts if dropped.empty else f"{counts}; {dropped['fault'].iloc[0]}"


def _base_row(network: Network, artefact: Artefact) -> dict[str, Any]:
    result = artefact.json("result")
    kept = ("validation_accuracy", "test_accuracy", "test_margin", "epochs", "best_epoch")
    cost = {"seconds": artefact.json("provenance")["seconds"], "key": artefact.key}
    return identity(network) | {name: result[name] for name in kept} | cost


def _mask_row(lab: Lab, mask: Mask) -> dict[str, Any]:
    artefact = mask.make(lab)
    result, cost = artefact.json("result"), artefact.json("provenance")
    point = {name: getattr(mask.point, name) for name in ("learning_rate", "mask_init", "start")}
    about = {"subroutine": mask.subroutine, **point, "mask_seed": mask.seed}
    seconds = cost["seconds"] + cost.get("training_seconds", 0.0)
    made = {"seconds": seconds, "key": artefact.key, "fault": result.get("fault", "")}
    return identity(mask.base) | about | (_found(result) if "fault" not in result else dict.fromkeys(FOUND)) | made


def _found(result: dict[str, Any]) -> dict[str, float]:
    validation = {row["network"]: row for row in result["validation"]}
    numbers = (
        validation["subnetwork"]["own_task_accuracy"],
        validation["ablated"]["difference"],
        result["score"],
        result["active"],
        result["total"],
        result["active"] / result["total"],
    )
    return dict(zip(FOUND, numbers, strict=True))
