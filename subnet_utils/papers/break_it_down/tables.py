"""*Break It Down* (Lepori, Serre and Pavlick 2023): the tables behind its figures.

Each function returns one tidy table of a study and makes whatever it needs and is not there yet. `bases` are the base
models that a table is about: by default those that start from random weights; see `networks` for the others.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.papers.break_it_down import networks, search
from subnet_utils.papers.break_it_down.masks import AnyMask, FinalMask, Mask, Search
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.tasks.odd_one_out import split_task, subroutines_of

SEARCHED = ["model", "task", "number", "base_model", "subroutine"]
"""Columns that identify one search."""
FOUND = "own_task_accuracy", "ablated_difference", "score", "active", "total", "density"
"""Columns that a mask whose training diverged does not have."""


def train_bases(lab: Lab, bases: Sequence[Network] | None = None) -> pd.DataFrame:
    """Train every base model: one row each with accuracies and artefact key (Table 2)."""
    bases, rows = bases or networks.bases(lab), []
    for base, artefact in zip(bases, make_all(lab, bases, "base models"), strict=True):
        result, cost = artefact.json("result"), artefact.json("provenance")
        shown = ("validation_accuracy", "test_accuracy", "test_margin", "epochs", "best_epoch")
        kept = {name: result[name] for name in shown}
        rows.append(identity(base) | kept | {"seconds": cost["seconds"], "key": artefact.key})
    return pd.DataFrame(rows)


def histories(lab: Lab) -> pd.DataFrame:
    """Learning curves of every base model: identity, epoch, losses in nats, validation accuracy."""
    tables = [base.make(lab).table("history").assign(**identity(base)) for base in networks.bases(lab)]
    return pd.concat(tables, ignore_index=True)


def search_vit(lab: Lab) -> pd.DataFrame:
    """The sweep of appendix D (Table 4): validation accuracy for layers x batch size x learning rate x task.

    A setting whose training diverged has a row that says so under `fault`, and no accuracy. Empty if the study has no
    such sweep.
    """
    swept, rows = networks.swept(lab), []
    for network, artefact in zip(swept, make_all(lab, swept, "ViT search"), strict=True):
        training, result = network.training, artefact.json("result")
        point = {"layers": network.architecture.layers, "task": network.task, "batch_size": training.batch_size}
        kept = {name: result.get(name) for name in ("validation_accuracy", "epochs", "fault")}
        rows.append(point | {"learning_rate": training.learning_rate, "key": artefact.key} | kept)
    return pd.DataFrame(rows)


def searches(lab: Lab) -> list[Search]:
    """The search of every base model and subroutine."""
    return [search_of(base, subroutine) for base in networks.bases(lab) for subroutine in subroutines_of(base.task)]


def search_of(base: Network, subroutine: str) -> Search:
    """The search for one mask: a grid of settings, or the one setting that the authors' search picked."""
    settings = base.experiment.masks
    points = search.grid(settings)
    if settings.search == "selected":
        about = (base.experiment.paper_model, *split_task(base.task), subroutine, base.base_seed + 1)
        points = [search.selected_by_authors(*about, condition=base.condition)]
    masks = [Mask.of(base, subroutine, point, settings.search_seed) for point in points]
    return Search(tuple(mask.half for mask in masks) if settings.search == "halving" else tuple(masks))


def search_masks(lab: Lab) -> pd.DataFrame:
    """The mask search (appendix C): one row per base, subroutine and setting, on validation data, winners marked.

    A halved search has rows for the settings that went on. A mask whose training diverged has a row that says so under
    `fault`, and no scores.
    """
    every = searches(lab)
    make_all(lab, every, "mask search")
    table = mask_table(lab, [mask for one in every for mask in one.tried(lab)], "mask search")
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
        first, scores = full.candidates[0], {}
        for name, one in (("score", full), ("score_halved", halved)):
            found = (mask.result(lab).get("score") for mask in one.tried(lab))
            scores[name] = max(filter(None, found), default=0.0)
        n = len(full.candidates)
        saved = (n - len(halved.tried(lab))) / n / 2
        about = identity(first.base) | {"subroutine": first.subroutine}
        rows.append(about | scores | {"same": full.load(lab) == halved.load(lab), "epochs_saved": saved})
    return pd.DataFrame(rows)


def final_masks(lab: Lab, bases: Sequence[Network] | None = None) -> list[FinalMask]:
    """The masks that count: the winner of every search, with every seed."""
    return [
        FinalMask.of(base, subroutine, search_of(base, subroutine), seed)
        for base in bases or networks.bases(lab)
        for subroutine in subroutines_of(base.task)
        for seed in base.experiment.masks.seeds
    ]


def used_masks(lab: Lab, bases: Sequence[Network] | None = None) -> list[FinalMask]:
    """The masks that count and whose training did not diverge. Raises ValueError if there is none."""
    return used(lab, final_masks(lab, bases), "masks")


def used(lab: Lab, masks: Sequence[AnyMask], label: str) -> list[AnyMask]:
    """Those of some masks whose training did not diverge. Raises ValueError if there is none."""
    make_all(lab, masks, label)
    left = [mask for mask in masks if not mask.fault(lab)]
    if not left:
        raise ValueError(f"no mask is left to measure: {attempted(mask_table(lab, masks, label))}")
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
    return measured(lab, [Effect.of(mask) for mask in masks], "ablations")


def measured(lab: Lab, steps: Sequence[Any], label: str, table: str | None = None) -> pd.DataFrame:
    """What steps measured with their `mask`, as one table, with columns that say which mask each row is about.

    table: of the artefacts, if the rows are not in their results.
    """
    made, frames = make_all(lab, steps, label), []
    for step, artefact in zip(steps, made, strict=True):
        rows = artefact.table(table) if table else pd.DataFrame(artefact.json("result"))
        mask, base = step.mask, step.mask.base
        judged = base.trained if base.condition == "random" else base
        about = {"subroutine": mask.subroutine, "mask_seed": mask.seed, "start": mask.start(lab), "key": artefact.key}
        about |= {"base_accuracy": judged.result(lab)["test_accuracy"]}
        frames.append(rows.assign(**identity(base), **about))
    return pd.concat(frames, ignore_index=True)


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
    """How many masks of a table were attempted and are used, and why others are not: a row per subroutine (and factor).
    masks: from `find_masks`."""
    by = [name for name in ("model", "task", "number", "subroutine", "factor") if name in masks]
    groups = masks.groupby(by, sort=False)["fault"]
    return groups.agg(attempted="size", used=lambda faults: int((faults == "").sum()),
                      faults=lambda faults: "; ".join(filter(None, faults.unique()))).reset_index()  # fmt: skip


def attempted(masks: pd.DataFrame) -> str:
    """How many masks of a table were attempted and are used, with the first reason why one is not."""
    dropped = masks[masks["fault"] != ""]
    counts = f"{len(masks)} masks attempted, {len(masks) - len(dropped)} used"
    return counts if dropped.empty else f"{counts}; {dropped['fault'].iloc[0]}"


def _mask_row(lab: Lab, mask: Mask) -> dict[str, Any]:
    artefact = mask.make(lab)
    result, cost = artefact.json("result"), artefact.json("provenance")
    row = identity(mask.base) | {"subroutine": mask.subroutine, **asdict(mask.point), "mask_seed": mask.seed}
    row |= dict.fromkeys(FOUND)
    if "fault" not in result:
        subnetwork, ablated = result["validation"]
        row |= {"own_task_accuracy": subnetwork["own_task_accuracy"], "ablated_difference": ablated["difference"]}
        row |= {name: result[name] for name in ("score", "active", "total")}
        row["density"] = result["active"] / result["total"]
    seconds = cost["seconds"] + cost.get("training_seconds", 0.0)
    return row | {"seconds": seconds, "key": artefact.key, "fault": result.get("fault", "")}
