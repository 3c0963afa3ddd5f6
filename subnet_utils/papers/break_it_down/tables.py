"""*Break It Down* (Lepori, Serre and Pavlick 2023): the tables behind its figures.

Each function returns one tidy table of a study and builds whatever it needs and is not there yet: base models, then the
mask search, then the masks that count, then the ablations.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any

import pandas as pd

from subnet_utils.core.jobs import run_jobs
from subnet_utils.core.lab import Condition, Lab, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.core.study import BaseSearch, Study
from subnet_utils.papers.break_it_down import search, stimuli
from subnet_utils.papers.break_it_down.base_models import Network, pretrain, prune, prunings, train_base
from subnet_utils.papers.break_it_down.steps import (
    Mask,
    find_half,
    find_mask,
    find_masks_at_once,
    masks_at_once,
    measure_effect,
    measured_spec,
    seconds_of,
)
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, sets_of, subroutines_of

SEARCHED = ["model", "task", "number", "base_model", "subroutine"]
"""Columns that identify one search."""


def networks(study: Study, condition: Condition = "trained") -> list[Network]:
    """Every base model of a study, or of one condition what belongs to each."""
    return [Network(e, task, e.base, seed, condition) for e, task in study.pairs() for seed in e.base.seeds]


def swept(study: Study) -> list[Network]:
    """Every network of the sweep over vision transformers; none if the study has no sweep."""
    sweep = study.vit_search
    return [] if sweep is None else [_swept(sweep, **point) for point in _sweep_points(sweep)]


def train_bases(lab: Lab) -> pd.DataFrame:
    """Train every base model: one row each with accuracies and artefact key (Table 2)."""
    stimuli.render(lab.store, lab.study.pairs(), _base_only, compute=lab.study.compute)
    wanted = networks(lab.study, lab.condition)
    _prepare(lab, wanted)
    # profiles list their models from small to large
    made = make_all(lab, "base", train_base, wanted, "base models", work=wanted.index)
    return pd.DataFrame([_base_row(*pair) for pair in zip(wanted, made, strict=True)])


def histories(lab: Lab) -> pd.DataFrame:
    """Learning curves of every base model: identity, epoch, losses in nats, validation accuracy."""
    wanted = networks(lab.study, lab.condition)
    tables = [train_base(lab, network).table("history").assign(**identity(network)) for network in wanted]
    return pd.concat(tables, ignore_index=True)


def search_vit(lab: Lab) -> pd.DataFrame:
    """The sweep of appendix D (Table 4): validation accuracy for layers x batch size x learning rate x task.

    A setting whose training diverged has a row that says so under `fault`, and no accuracy. Empty if the study has no
    such sweep.
    """
    sweep = lab.study.vit_search
    if sweep is None:
        return pd.DataFrame()
    pairs = [(sweep, task) for task in sweep.tasks]
    stimuli.render(lab.store, pairs, _base_only, compute=lab.study.compute)
    points = _sweep_points(sweep)
    made = make_all(lab, "base", train_base, swept(lab.study), "ViT search")
    results = [{**artefact.json("result"), "key": artefact.key} for artefact in made]
    rows = [point | {name: result.get(name) for name in ("validation_accuracy", "epochs", "key", "fault")}
            for point, result in zip(points, results, strict=True)]  # fmt: skip
    return pd.DataFrame(rows).assign(model=sweep.model)


def search_masks(lab: Lab) -> pd.DataFrame:
    """The mask search (appendix C): one row per base, subroutine and setting, on validation data, winners marked.

    A halved search has rows for the settings that went on. A mask whose training diverged has a row that says so under
    `fault`, and no scores.
    """
    train_bases(lab)
    stimuli.render(lab.store, lab.study.pairs(), sets_of, compute=lab.study.compute)
    table = find(lab, _tried(lab), "mask search")
    winners = [group.index[search.best(group)] for _, group in table.groupby(SEARCHED, sort=False)]
    return table.assign(winner=table.index.isin(winners))


def candidates(network: Network) -> Iterator[Mask]:
    """The masks that the search tries in a base model, or the one setting that the authors' search picked."""
    settings = network.experiment.masks
    for subroutine in subroutines_of(network.task):
        points = search.grid(settings)
        if settings.search == "selected":
            about = (network.experiment.paper_model, *split_task(network.task), subroutine, network.seed + 1)
            points = [search.selected_by_authors(*about, condition=network.condition)]
        yield from (Mask(network, subroutine, point, settings.search_seed) for point in points)


def halved(lab: Lab, network: Network) -> list[Mask]:
    """The settings of one base's search that go on after half of their epochs: per subroutine the better half.

    They are ranked by score, then by own-task accuracy, both as they are at that time, then by their order in the grid.
    """
    kept = []
    for subroutine in subroutines_of(network.task):
        masks = [mask for mask in candidates(network) if mask.subroutine == subroutine]
        results = [find_half(lab, mask).json("result") for mask in masks]
        merits = [(result.get("score", -math.inf), result.get("own_task_accuracy", 0.0)) for result in results]
        order = sorted(range(len(masks)), key=lambda i: merits[i], reverse=True)  # stable: the first of equals stays
        kept += [masks[i] for i in sorted(order[: -(-len(masks) // 2)])]
    return kept


def halving(lab: Lab) -> pd.DataFrame:
    """What halving a finished search would have done: a row per search, with the winner's score by either way.

    `same`: whether the full search's winner is among the settings that go on, and so wins again; `epochs_saved`: share
    of the epochs that are not trained. Trains every setting to its half, if that is not done. Raises ValueError for a
    study whose search is not a grid: there is nothing to compare with.
    """
    if any(experiment.masks.search != "grid" for experiment in lab.study.experiments):
        raise ValueError(f"profile '{lab.study.name}' has no full search to compare with; set masks.search to grid")
    full = search_masks(lab)
    bases, rows = networks(lab.study, lab.condition), []
    tried = [mask for base in bases for mask in candidates(base)]
    make_all(lab, "half", find_half, tried, "half of the mask search", shared=attrgetter("base"))
    for network in bases:
        kept = {find_mask(lab, mask).key for mask in halved(lab, network)}
        about = identity(network)
        mine = full[(full[list(about)] == pd.Series(about)).all(axis=1)]
        for subroutine, group in mine.groupby("subroutine", sort=False):
            going_on = group[group["key"].isin(kept)]
            scores = {"score": group["score"].max(), "score_halved": going_on["score"].max()}
            same = bool(group.loc[group["winner"], "key"].isin(kept).all())
            saved = (len(group) - len(going_on)) / len(group) / 2
            rows.append(about | {"subroutine": subroutine, **scores, "same": same, "epochs_saved": saved})
    return pd.DataFrame(rows)


def final_masks(lab: Lab) -> list[Mask]:
    """The masks that count: the winner of every search, with every seed."""
    table = search_masks(lab)
    points = {searched: search.select(group) for searched, group in table.groupby(SEARCHED)}
    masks = []
    for network in networks(lab.study, lab.condition):
        about = tuple(identity(network)[column] for column in SEARCHED[:-1])
        for subroutine in subroutines_of(network.task):
            point = points[(*about, subroutine)]
            masks += [Mask(network, subroutine, point, seed) for seed in network.experiment.masks.seeds]
    return masks


def used_masks(lab: Lab) -> list[Mask]:
    """The masks that count and whose training did not diverge. Raises ValueError if there is none."""
    table = find_masks(lab)
    used = [mask for mask, fault in zip(final_masks(lab), table["fault"], strict=True) if not fault]
    if not used:
        raise ValueError(f"no mask is left to measure: {attempted(table)}")
    return used


def find_masks(lab: Lab) -> pd.DataFrame:
    """Find the masks that count: one row each with active and masked weights (Tables 5 to 11) and validation scores.

    `fault` is empty, or says why training diverged; such a mask has no numbers, and no effect is measured with it.
    """
    return find(lab, final_masks(lab), "masks", found=_tried(lab))


def effects(lab: Lab) -> pd.DataFrame:
    """The table behind Figure 4: one row per mask and network (subnetwork, ablated), measured on test data."""
    return effects_of(lab, used_masks(lab))


def effects_of(lab: Lab, masks: list[Mask]) -> pd.DataFrame:
    """The effects of some masks. `base_accuracy` is the network's own; of a control, that of the trained network."""
    options = {"shared": attrgetter("base"), "work": attrgetter("stages"), "spec": measured_spec}
    made = make_all(lab, "effect", measure_effect, masks, "ablations", **options)
    return pd.DataFrame(
        about_mask(lab, mask, artefact) | row
        for mask, artefact in zip(masks, made, strict=True)
        for row in artefact.json("result")
    )


def about_mask(lab: Lab, mask: Mask, artefact: Artefact) -> dict[str, Any]:
    """Columns that say what an artefact made of a mask is about."""
    judged = mask.base.trained() if mask.base.condition == "random" else mask.base
    return identity(mask.base) | {
        "subroutine": mask.subroutine, "mask_seed": mask.seed, "start": mask.point.start, "key": artefact.key,
        "base_accuracy": train_base(lab, judged).json("result")["test_accuracy"],
    }  # fmt: skip


def pruned_networks(lab: Lab) -> pd.DataFrame:
    """What pruning left of each base model: weights, and test accuracy before and after (appendix J)."""
    rows = []
    for network in networks(lab.pruned().study, "pruned"):
        before, after = (train_base(lab, one).json("result") for one in (network.trained(), network))
        size = {"active": after["active"], "total": after["total"], "density": after["active"] / after["total"]}
        accuracy = {"accuracy_before": before["test_accuracy"], "accuracy_after": after["test_accuracy"]}
        rows.append(identity(network) | after["pruning"] | size | accuracy)
    return pd.DataFrame(rows)


def annealing(lab: Lab, mask: Mask) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How one mask came about: its history, and per epoch the shares of soft mask entries in 50 bins of [0, 1]."""
    artefact = find_mask(lab, mask)
    return artefact.table("history"), artefact.table("annealing")


def split_task(task: str) -> tuple[str, str]:
    """A task's name without its grammatical number, and the number ('' in vision).

    >>> split_task("sv-agreement-singular")
    ('sv-agreement', 'singular')
    """
    if task not in LANGUAGE_TASKS:
        return task, ""
    name, number = task.rsplit("-", 1)
    return name, number


def identity(network: Network) -> dict[str, Any]:
    """Columns that say which base model a row is about. Bases of singular and plural are distinct clusters."""
    task, number = split_task(network.task)
    return {
        "condition": network.condition,
        "model": network.experiment.model,
        "paper_model": network.experiment.paper_model,
        "task": task,
        "number": number,
        "base_model": f"{number}-{network.seed}".lstrip("-"),
        "base_seed": network.seed,
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
    told = f"{len(masks)} masks attempted, {len(masks) - len(dropped)} used"
    return told if dropped.empty else f"{told}; {dropped['fault'].iloc[0]}"


def _prepare(lab: Lab, wanted: list[Network]) -> None:
    """What base models need before them, many at a time: pretrained weights, or the settings of a pruning tried."""
    missing = [network for network in wanted if lab.store.find("base", network.spec(lab)) is None]
    starting = {network.experiment.model: network for network in missing if network.experiment.pretraining is not None}
    for network in starting.values():
        tasks = network.experiment.pretraining.tasks
        stimuli.render(lab.store, [(network.experiment, task) for task in tasks], _base_only, compute=lab.study.compute)
    _run(lab, pretrain, [(lab, network) for network in starting.values()], "pretraining")
    pruned = [network for network in missing if network.condition == "pruned"]
    if pruned:
        make_all(lab, "base", train_base, [network.trained() for network in pruned], "base models")
        _run(lab, prune, [(lab, network, point) for network in pruned for point in prunings(lab, network)], "pruning")


def _run(lab: Lab, step: Callable, jobs: list[tuple], label: str) -> None:
    if jobs:
        run_jobs(step, jobs, compute=lab.study.compute, label=label)


def _base_only(task: str) -> tuple[str]:
    return ("base",)


def _tried(lab: Lab) -> list[Mask]:
    """The masks of the search that are trained to their end."""
    masks = {network: list(candidates(network)) for network in networks(lab.study, lab.condition)}
    halving = [network for network in masks if network.experiment.masks.search == "halving"]
    halves = [mask for network in halving for mask in masks[network]]
    make_all(lab, "half", find_half, halves, "half of the mask search", shared=attrgetter("base"))
    masks |= {network: halved(lab, network) for network in halving}
    return [mask for tried in masks.values() for mask in tried]


def find(lab: Lab, masks: list[Mask], label: str, *, found: Sequence[Mask] = ()) -> pd.DataFrame:
    """Find masks, but for those `found` before; a row each. Masks are grouped before it is looked which are missing:
    the same ones must be together in a run that goes on after a kill."""
    before = set(found)
    groups = _groups(lab, [mask for mask in masks if mask not in before])
    groups.sort(key=lambda group: group[0].stages, reverse=True)
    jobs = [(lab, group) for group in groups if _missing(lab, "mask", group)]
    common = {"shared": lambda lab, group: group[0].base}
    run_jobs(find_masks_at_once, jobs, compute=lab.study.compute, label=label, **common)
    table = pd.DataFrame([_mask_row(mask, find_mask(lab, mask)) for mask in masks])
    if (table["fault"] != "").any():
        print(f"{label}: {attempted(table)}", file=sys.stderr)
    return table


def _groups(lab: Lab, masks: list[Mask]) -> list[list[Mask]]:
    """Masks that are trained at once: of one base, start and learning rate, as many as the study says.

    Neighbours in this order share the cached outputs of one frozen prefix.
    """
    together = {}
    for mask in masks:
        together.setdefault((mask.base, mask.point.start, mask.point.learning_rate), []).append(mask)
    sizes = {base: masks_at_once(lab, base) for base, _, _ in together}
    return [
        group[i : i + sizes[base]]
        for (base, _, _), group in together.items()
        for i in range(0, len(group), sizes[base])
    ]


def _missing(lab: Lab, kind: str, wanted: list[Network] | list[Mask]) -> list:
    return [one for one in wanted if lab.store.find(kind, one.spec(lab)) is None]


def _sweep_points(sweep: BaseSearch) -> list[dict[str, Any]]:
    names = ("layers", "batch_size", "learning_rate", "task")
    values = product(sweep.layers, sweep.batch_sizes, sweep.learning_rates, sweep.tasks)
    return [dict(zip(names, point, strict=True)) for point in values]


def _swept(sweep: BaseSearch, *, layers: int, batch_size: int, learning_rate: float, task: str) -> Network:
    architecture = sweep.architecture.model_copy(update={"layers": layers})
    training = sweep.base.model_copy(update={"batch_size": batch_size, "learning_rate": learning_rate})
    return Network(sweep.model_copy(update={"architecture": architecture}), task, training, sweep.base.seeds[0])


def _base_row(network: Network, artefact: Artefact) -> dict[str, Any]:
    result = artefact.json("result")
    kept = ("validation_accuracy", "test_accuracy", "test_margin", "epochs", "best_epoch")
    cost = {"seconds": artefact.json("provenance")["seconds"], "key": artefact.key}
    return identity(network) | {name: result[name] for name in kept} | cost


def _mask_row(mask: Mask, artefact: Artefact) -> dict[str, Any]:
    result = artefact.json("result")
    about = {"subroutine": mask.subroutine, **search.columns(mask.point), "mask_seed": mask.seed}
    made = {"seconds": seconds_of(artefact), "key": artefact.key, "fault": result.get("fault", "")}
    return identity(mask.base) | about | (_found(result) if "fault" not in result else dict.fromkeys(FOUND)) | made


FOUND = "own_task_accuracy", "ablated_difference", "score", "active", "total", "density"
"""Columns that a mask whose training diverged does not have."""


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
