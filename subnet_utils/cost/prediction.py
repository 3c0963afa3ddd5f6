"""What a profile costs on this machine: its steps are counted, a few of each kind are timed, and the two multiplied.

The unit is the job-second, the time of one job while the others run beside it as they will in the study. Divided by the
number of jobs at a time it is the time one waits, up to the ends, where a job has no neighbour.
"""

import math
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils import break_it_down
from subnet_utils.cost.timing import masked_step, now, plain_step, race
from subnet_utils.jobs import run_jobs, worker_count
from subnet_utils.lab import Lab, Network, untrained
from subnet_utils.masks import search
from subnet_utils.models.frozen import FrozenPrefix, embed_all
from subnet_utils.models.staged import StagedModel
from subnet_utils.steps import Mask, masks_at_once, seconds_of
from subnet_utils.store import Artefact
from subnet_utils.tasks import agreement, tokenization
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, subroutines_of
from subnet_utils.training import autocast

STEPS, WARM_UP = 6, 2
FEW_EXAMPLES = 4
LONG_STEP = 2.0
"""Seconds: a step that would take longer is timed with few examples instead, and its time taken in proportion."""
ITEMS = 512
"""Different items in a timing, and at most this many sentences or images."""
SORT = ["model", "layers", "examples", "start"]
"""What the time of a step depends on within a study: model and depth, examples a batch, first masked stage if any."""
COUNTS = ["jobs", "steps", "items", "frozen_items", "passes"]


def plan(lab: Lab) -> pd.DataFrame:
    """Every job of a study, a row for each sort: kind, model, layers, examples a batch and first masked stage.

    jobs: their number; and over all of them: steps; items embedded by what is trained; frozen_items, which pass through
    the frozen prefix before it; and passes, items that do so once more in every epoch where the cache is too small.
    Bases count all their epochs, or those that they took if they are trained already; the mask search all of its
    settings; the masks that count as if every search was won from its first start.
    """
    rows = [row for network in _bases(lab) for row in _base_jobs(lab, network)]
    rows += [row for network in break_it_down.networks(lab.study) for row in _mask_jobs(network)]
    by = ["kind", *SORT, "trained_on"]
    return pd.DataFrame(rows).groupby(by, sort=False, as_index=False)[COUNTS].sum()


def predict(lab: Lab) -> pd.DataFrame:
    """`plan` with the milliseconds of a step, the microseconds of an item, and the job-seconds that follow."""
    table = plan(lab).merge(pd.DataFrame(_timed(lab)), on=SORT, how="left")
    too_large = table["trained_on"] * table["frozen_item_gb"] > lab.study.compute.cache_limit_gb
    frozen = table["frozen_items"] + table["passes"].where(too_large, 0)
    microseconds = table["items"] * table["item_us"] + frozen * table["frozen_item_us"]
    return table.assign(predicted_s=table["steps"] * table["step_ms"] / 1e3 + microseconds / 1e6)


def measured(lab: Lab) -> pd.DataFrame:
    """What the jobs of a finished study took, in job-seconds, by kind, model and start.

    Raises ValueError if the study is not finished. A job counts with the time that was noted when it was made, whatever
    else the machine did then; one that was interrupted, with the time of its last part.
    """
    rows = [
        {"kind": artefact.kind, "model": model, "start": start, "measured_s": seconds_of(artefact)}
        for model, start, artefact in _artefacts(lab)
    ]
    return pd.DataFrame(rows).groupby(["kind", "model", "start"], sort=False, as_index=False).sum()


def waiting(job_seconds: float, lab: Lab) -> float:
    """Seconds that one waits for so many job-seconds."""
    return job_seconds / worker_count(lab.study.compute)


def kinds(lab: Lab) -> list[Network]:
    """One base model of every model of a study."""
    return list({network.experiment.model: network for network in reversed(_bases(lab))}.values())[::-1]


def check(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured job-seconds by kind of job, and in all, with the measured relative to the predicted."""
    table = predicted.groupby("kind", sort=False)[["predicted_s"]].sum()
    table["measured_s"] = measured.groupby("kind")["measured_s"].sum()
    table.loc["all"] = table.sum()
    return table.assign(ratio=table["measured_s"] / table["predicted_s"]).reset_index()


def _bases(lab: Lab) -> list[Network]:
    return [*break_it_down.networks(lab.study), *break_it_down.swept(lab.study)]


def _base_jobs(lab: Lab, network: Network) -> Iterator[dict[str, Any]]:
    sizes, training = network.experiment.data.base, network.training
    made = lab.store.find("base", network.spec(lab))
    epochs = made.json("result")["epochs"] if made else training.epochs
    steps = epochs * -(-sizes.train // training.batch_size)
    items = 4 * (epochs * sizes.validation + sizes.validation + sizes.test)
    counts = {"jobs": 1, "steps": steps, "items": items, "frozen_items": 0, "passes": 0, "trained_on": 0}
    yield {"kind": "base", **_sort(network, ""), **counts}


def _sort(network: Network, start: str) -> dict[str, Any]:
    architecture = network.experiment.architecture
    layers = sum(architecture.depths) if architecture.family == "resnet" else architecture.layers
    examples = network.experiment.masks.batch_size if start else network.training.batch_size
    return {"model": network.experiment.model, "layers": layers, "examples": examples, "start": start}


def _mask_jobs(network: Network) -> Iterator[dict[str, Any]]:
    settings, data = network.experiment.masks, network.experiment.data
    steps = settings.epochs * -(-data.mask.train // settings.batch_size)
    sets = (data.mask, data.probe, data.probe, data.base)
    on_validation, on_test = (4 * sum(getattr(sizes, split) for sizes in sets) for split in ("validation", "test"))
    trained_on = 4 * data.mask.train
    search_share = 0.75 if settings.search == "halving" else 1  # half of the settings stop after half of the epochs

    def jobs(kind: str, start: str, number: int, **each: float) -> dict[str, Any]:
        counts = {name: round(number * count) for name, count in each.items()}
        return {"kind": kind, **_sort(network, start), "jobs": number, **counts, "trained_on": trained_on}

    def masks(start: str, number: int, share: float = 1) -> dict[str, Any]:
        work = {"steps": share * steps, "items": 2 * on_validation, "frozen_items": trained_on + on_validation}
        return jobs("mask", start, number, **work, passes=share * settings.epochs * trained_on)

    for _ in subroutines_of(network.task):
        selected = settings.search == "selected"
        starts = settings.starts[:1] if selected else [point.start for point in search.grid(settings)]
        yield from (masks(start, 1, search_share) for start in starts)
        yield masks(starts[0], len(settings.seeds) - (settings.search_seed in settings.seeds))
        work = {"steps": 0, "items": 2 * on_test, "frozen_items": on_test, "passes": 0}
        yield jobs("effect", starts[0], len(settings.seeds), **work)


def _timed(lab: Lab) -> list[dict[str, Any]]:
    """Times of a step and of an item for every sort, measured by as many jobs at a time as the study has."""
    sorts = {}
    for network in _bases(lab):
        starts = ("", *network.experiment.masks.starts) if hasattr(network.experiment, "masks") else ("",)
        for start in starts:
            sorts.setdefault(tuple(_sort(network, start).values()), (lab, network, start))
    jobs = list(sorts.values())
    company = islice(cycle(jobs), -len(jobs) % worker_count(lab.study.compute))  # the last ones, too, have neighbours
    return run_jobs(_time, [*jobs, *company], compute=lab.study.compute, label="timing steps")[: len(jobs)]


def _time(lab: Lab, network: Network, start: str) -> dict[str, Any]:
    batch_size = _sort(network, start)["examples"]
    model, items = untrained(network).to(lab.device).eval(), sample_items(network)
    times = _of_an_item(model, items, start or model.stage_names[0], lab)
    at_once = masks_at_once(lab, network) if start else 1

    def seconds(examples: int, steps: int) -> float:
        options = {"examples": examples, "autocast": partial(autocast, lab.study.compute, lab.device)}
        if start:
            contender = masked_step(model.requires_grad_(False), items, start, masks=at_once, **options)
        else:
            contender = plain_step(model, items, **options)
        return race({"step": contender}, steps=steps, warm_up=WARM_UP)["seconds"].median() / at_once

    step = seconds(FEW_EXAMPLES, 2) * batch_size / FEW_EXAMPLES
    if step <= LONG_STEP:
        step = seconds(batch_size, STEPS)
    return {**_sort(network, start), "step_ms": 1e3 * step, **times}


def _of_an_item(model: StagedModel, items: Tensor, start: str, lab: Lab) -> dict[str, float]:
    """Microseconds without gradients through the frozen prefix and through the rest, and the prefix's output, GiB."""
    prefix, suffix = model.cut(start)
    rounds = []
    for _ in range(3):
        before = now()
        table = FrozenPrefix(prefix, items, device=lab.device, limit_gb=math.inf)
        between = now()
        embed_all(suffix, {}, table)
        rounds.append((between - before, now() - between))
    frozen, rest = (1e6 * statistics.median(seconds) / len(items) for seconds in zip(*rounds, strict=True))
    return {"item_us": rest, "frozen_item_us": frozen, "frozen_item_gb": table.gb / len(items)}


def sample_items(network: Network) -> Tensor:
    """Items to time steps with: sentences of the network's task, or images of its resolution that are noise."""
    data = network.experiment.data
    if network.task in LANGUAGE_TASKS:
        sample = agreement.generate(network.task, "base", ITEMS // 4, split="train", seed=data.seed)
        return sample.encode(tokenization.tokenizer(network.experiment.architecture.pretrained)).items
    shape = (ITEMS, 3, data.resolution, data.resolution)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _artefacts(lab: Lab) -> Iterator[tuple[str, str, Artefact]]:
    """Model, start and artefact of every job of a finished study. Raises ValueError if one is not there."""
    networks = break_it_down.networks(lab.study)
    for network in _bases(lab):
        yield network.experiment.model, "", _finished(lab, "base", network)
    searched = [mask for network in networks for mask in break_it_down.candidates(network)]
    if any(network.experiment.masks.search == "halving" for network in networks):
        raise ValueError(f"profile '{lab.study.name}' halves its search: the time of its parts is not noted together")
    for mask in searched:
        yield mask.base.experiment.model, mask.point.start, _finished(lab, "mask", mask)
    final = break_it_down.final_masks(lab)  # computes nothing, since the search is finished
    for mask in final:
        if mask not in searched:
            yield mask.base.experiment.model, mask.point.start, _finished(lab, "mask", mask)
        yield mask.base.experiment.model, mask.point.start, _finished(lab, "effect", mask)


def _finished(lab: Lab, kind: str, job: Network | Mask) -> Artefact:
    artefact = lab.store.find(kind, job.spec(lab))
    if artefact is None:
        raise ValueError(f"profile '{lab.study.name}' is not finished; run: make reproduce PROFILE={lab.study.name}")
    return artefact
