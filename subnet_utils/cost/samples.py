"""The seconds of a step, an item and whatever else a plan counts, measured on a few of each sort."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from subnet_utils import stimuli
from subnet_utils.cost.plan import PRETRAINING, RENDERING, Sort
from subnet_utils.cost.rehearsal import Shortened, rehearsing
from subnet_utils.cost.timing import masked_step, now, plain_step
from subnet_utils.jobs import run_jobs, worker_count
from subnet_utils.lab import Lab, Network, untrained
from subnet_utils.masks.controls import random_like
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix, embed_all, full_precision
from subnet_utils.models.staged import StagedModel, fingerprint
from subnet_utils.pretraining.views import simclr
from subnet_utils.steps import masks_at_once
from subnet_utils.store import Store, provenance
from subnet_utils.tasks import agreement, tokenization
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut
from subnet_utils.training import autocast

FEW_EXAMPLES = 4
LONG_STEP = 2.0
"""Seconds: a step that would take longer is timed with few examples instead, and its time taken in proportion."""
ITEMS = 512
"""Different items in a timing, and at most this many sentences or images."""
DRAWN = 32
"""Examples whose images are drawn to see how long that takes."""

Times = dict[str, float]
"""Seconds by what a plan counts; `gb`, the frozen prefix's output for an item; `busy`, processor time in a second."""


def times(lab: Lab, sorts: Sequence[Sort]) -> list[Times]:
    """Times of every sort, measured by as many jobs at a time as the study has."""
    jobs = [(lab, sort) for sort in sorts]
    company = islice(cycle(jobs), -len(jobs) % worker_count(lab.study.compute))  # the last ones, too, have neighbours
    return run_jobs(_times, [*jobs, *company], compute=lab.study.compute, label="timing")[: len(jobs)]


def sample_items(network: Network) -> Tensor:
    """Items to time steps with: sentences of the network's task, or images of its resolution that are noise."""
    data = network.experiment.data
    if network.task in LANGUAGE_TASKS:
        sample = agreement.generate(network.task, "base", ITEMS // 4, split="train", seed=data.seed)
        return sample.encode(tokenization.tokenizer(network.experiment.architecture.pretrained)).items
    return _noise(ITEMS, data.resolution)


def _noise(count: int, resolution: int) -> Tensor:
    shape = (count, 3, resolution, resolution)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _times(lab: Lab, sort: Sort) -> Times:
    if sort.start == RENDERING:
        return {"items": _reading(sort.network)["drawn"], "busy": 1.0}
    if sort.start == PRETRAINING:
        learn = {"simclr": _contrastive, "masked_language_model": _language_model}
        return learn[sort.network.experiment.pretraining.method](lab, sort)
    return _network(lab, sort)


def _network(lab: Lab, sort: Sort) -> Times:
    network, start = sort.network, sort.start
    reading, items = _reading(network), sample_items(network)
    model = untrained(network).to(lab.device).eval()
    found = reading | _of_an_item(model, items, start or model.stage_names[0], lab)
    if start:
        found["networks"] = _of_a_control(model, start)
    at_once = masks_at_once(lab, network) if start else 1
    precision = partial(full_precision, lab.device) if sort.exact else partial(autocast, lab.study.compute, lab.device)

    def step(examples: int) -> Times:
        options = {"examples": examples, "autocast": precision}
        if start:
            train = masked_step(model.requires_grad_(False), items, start, masks=at_once, **options)
        else:
            train = plain_step(model, items, **options)
        return _of_a_step(partial(train, iter))

    return found | _in_time(step, sort.examples, at_once=at_once)


def _in_time(step: Callable[[int], Times], examples: int, *, few: int = FEW_EXAMPLES, at_once: int = 1) -> Times:
    """Times of a step with so many examples, or in proportion of one with few; for each of several trained at once."""
    found, share = step(few), examples / few
    if found["steps"] * share <= LONG_STEP:
        found, share = step(examples), 1
    return found | {"steps": found["steps"] * share / at_once, "epochs": found["epochs"] / at_once}


def _of_a_step(train: Callable[[], Any]) -> Times:
    """Of a step, and of what comes after each epoch."""
    training = Shortened(counting=False)
    with rehearsing(training):
        train()
    first = training.first
    return {"steps": float(first.step[0]), "epochs": float(first.rest[0]), "busy": float(first.step[1] / first.step[0])}


def _of_an_item(model: StagedModel, items: Tensor, start: str, lab: Lab) -> Times:
    """Without gradients through the frozen prefix and through the rest, and the prefix's output, GiB."""
    prefix, suffix = model.cut(start)
    rounds = []
    for _ in range(3):
        before = now()
        table = FrozenPrefix(prefix, items, device=lab.device, limit_gb=math.inf)
        between = now()
        embed_all(suffix, {}, table)
        rounds.append((between - before, now() - between))
    frozen, rest = (statistics.median(seconds) / len(items) for seconds in zip(*rounds, strict=True))
    return {"items": rest, "frozen_items": frozen, "gb": table.gb / len(items)}


def _of_a_control(model: StagedModel, start: str) -> float:
    """To draw a random subnetwork and take it out of the network."""
    parameters = dict(model.named_parameters())
    masks = {name: torch.rand(parameters[name].shape) < 0.5 for name in model.maskable(start)}
    found, before = Subnetwork(masks, fingerprint(model)), now()
    random_like(found, seed=0).ablate(model)
    return now() - before


def _reading(network: Network) -> Times:
    """To read a set of sentences; or to draw an image, and to read one that is drawn."""
    data, task = network.experiment.data, network.task
    if task in LANGUAGE_TASKS:
        before = now()
        agreement.generate(task, "base", data.base.validation, split="validation", seed=data.seed)
        return {"sets": now() - before}
    sizes = data.base.model_copy(update={"validation": DRAWN})
    experiment = network.experiment.model_copy(update={"data": data.model_copy(update={"base": sizes})})
    provenance()  # asks git once in a process
    with TemporaryDirectory() as folder:
        store, before = Store(folder), now()
        stimuli.load(store, experiment, task, "base", "validation")
        taken = now() - before
        spec = stimuli.image_spec(experiment.data, task, "base", "validation")
        drawing = store.find("stimuli", spec).json("provenance")["seconds"]
    return {"drawn": drawing / (4 * DRAWN), "read": max(0.0, taken - drawing) / (4 * DRAWN)}


def _contrastive(lab: Lab, sort: Sort) -> Times:
    """SimCLR on noise."""
    network, settings = sort.network, sort.network.experiment.pretraining
    model = untrained(network).to(lab.device)
    options = settings.model_dump(include={"learning_rate", "epochs", "temperature", "seed"})

    def step(images: int) -> Times:
        half = images // 2
        train, held = (_noise_set(network, number * half) for number in (8, 1))
        precision = partial(autocast, lab.study.compute, lab.device)
        learn = partial(simclr, model, [train], [held], batch_size=images, precision=precision, **options)
        found = _of_a_step(learn)
        return found | {"items": found["epochs"] / images, "epochs": 0.0}

    found = _in_time(step, settings.batch_size, few=min(2 * FEW_EXAMPLES, settings.batch_size))
    return found | {"read": _reading(network)["read"]}


def _noise_set(network: Network, examples: int) -> OddOneOut:
    items = _noise(4 * examples, network.experiment.data.resolution)
    return OddOneOut(items, torch.arange(4 * examples).view(-1, 4), torch.zeros(4 * examples, dtype=torch.int8))


def _language_model(lab: Lab, sort: Sort) -> Times:
    """The masked language model on sentences of its first task."""
    from subnet_utils.pretraining.hidden_words import grammatical, masked_language_model  # seconds to import

    settings, before = sort.network.experiment.pretraining, now()
    draw = partial(grammatical, settings.tasks[:1], seed=settings.seed, tokenizer=tokenization.tokenizer())
    sentences, held = draw("train", limit=8 * settings.batch_size), draw("validation", limit=ITEMS)
    reading, model = (now() - before) / 2, untrained(sort.network).to(lab.device)
    options = settings.model_dump(include={"learning_rate", "epochs", "batch_size", "seed"})
    precision = partial(autocast, lab.study.compute, lab.device)
    found = _of_a_step(partial(masked_language_model, model, sentences, held, precision=precision, **options))
    return found | {"items": found["epochs"] / len(held), "epochs": 0.0, "sets": reading}
