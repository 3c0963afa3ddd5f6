"""The seconds of a step, an item and whatever else a plan counts, measured on a few of each sort."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subnet_utils.core.devices import autocast
from subnet_utils.core.jobs import cores_a_job, run_jobs, worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.store import Store
from subnet_utils.cost.plan import PRETRAINING, RENDERING, Sort
from subnet_utils.cost.rehearsal import ENOUGH, NOTHING, Shortened, both_clocks, rehearsing
from subnet_utils.cost.timing import masked_step, plain_step
from subnet_utils.masks.controls import drawn_ahead, random_like
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix, embed_all, full_precision
from subnet_utils.models.staged import StagedModel, fingerprint
from subnet_utils.papers.break_it_down import stimuli
from subnet_utils.papers.break_it_down.base_models import Network, untrained
from subnet_utils.papers.break_it_down.pretraining.hidden_words import grammatical, masked_language_model
from subnet_utils.papers.break_it_down.pretraining.views import simclr
from subnet_utils.papers.break_it_down.steps import masks_at_once
from subnet_utils.papers.break_it_down.tasks import agreement, tokenization
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut
from subnet_utils.papers.break_it_down.tasks.shapes import CHUNK

FEW_EXAMPLES = 4
LONG_STEP = 2.0
"""Seconds: a step that would take longer is timed with few examples instead, and its time taken in proportion."""
ITEMS = 512
"""Different items in a timing, and at most this many sentences or images."""
ROUNDS = 3
Times = dict[str, np.ndarray]
"""Seconds, by both clocks, of one of what a plan counts; `gb`: size of a frozen prefix's output for an item, twice."""


def times(lab: Lab, sorts: Sequence[Sort]) -> list[Times]:
    """Times of every sort, measured by as many jobs at a time as the study has: the mean over them.

    All of them are at the same sort at once, as in a study most neighbors are: two trainings that read much memory slow
    each other more than two different jobs do.
    """
    workers = worker_count(lab.study.compute)
    jobs = [(lab, sort) for sort in sorts for _ in range(workers)]
    found = run_jobs(_times, jobs, compute=lab.study.compute, label="timing")
    return [_mean(found[i : i + workers]) for i in range(0, len(found), workers)]


def _mean(several: Sequence[Times]) -> Times:
    return {name: np.mean([one[name] for one in several], axis=0) for name in several[0]}


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
        return _drawn(sort.network)
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
        found["networks"] = _of_a_control(model, start, cores_a_job(lab.study.compute))
    at_once = masks_at_once(lab, network) if start else 1
    precision = partial(full_precision, lab.device) if sort.exact else partial(autocast, lab.study.compute, lab.device)

    def step(masks: int, examples: int, **how: float) -> Times:
        options = {"examples": examples, "autocast": precision}
        if start:
            train = masked_step(model.requires_grad_(False), items, start, masks=masks, **options)
        else:
            train = plain_step(model, items, flips=network.training.flips, **options)
        return _of_a_step(partial(train, iter), **how)

    return found | _as_many_as_fit(lambda masks: _in_time(partial(step, masks), sort.examples, at_once=masks), at_once)


def _as_many_as_fit(time: Callable[[int], Times], masks: int) -> Times:
    """Times of so many masks trained at once, halved as in the study until they fit into memory."""
    while masks > 1:
        try:
            return time(masks)
        except MemoryError as error:
            print(f"{error}; timing half of them", file=sys.stderr, flush=True)
        masks = (masks + 1) // 2  # not in the handler, which keeps what did not fit
    return time(masks)


def _in_time(step: Callable[..., Times], examples: int, *, few: int = FEW_EXAMPLES, at_once: int = 1) -> Times:
    """Times of a step with so many examples, or in proportion of one with few; for each of several trained at once."""
    found, share = step(few, seconds=0.0), examples / few
    if found["steps"][0] * share <= LONG_STEP:
        found, share = step(examples), 1
    return found | {"steps": found["steps"] * share / at_once, "epochs": found["epochs"] / at_once}


def _of_a_step(train: Callable[[], Any], seconds: float = ENOUGH) -> Times:
    """Of a step, and of what comes after each epoch."""
    training = Shortened(seconds, counting=False)
    with rehearsing(training):
        train()
    return {"steps": training.first.step, "epochs": training.first.rest}


def _rounds() -> Iterator[int]:
    """Of something that is timed again and again: a few, and as many as there is time for."""
    begun = both_clocks()
    for i in count():
        if i >= ROUNDS and (both_clocks() - begun)[0] > ENOUGH:
            return
        yield i


def _of_an_item(model: StagedModel, items: Tensor, start: str, lab: Lab) -> Times:
    """Without gradients through the frozen prefix and through the rest, and the prefix's output, GiB."""
    prefix, suffix = model.cut(start)
    rounds = []
    for _ in _rounds():
        before = both_clocks()
        table = FrozenPrefix(prefix, items, device=lab.device, limit_gb=math.inf)
        between = both_clocks()
        embed_all(suffix, {}, table)
        rounds.append((between - before, both_clocks() - between))
    frozen, rest = np.median(rounds, axis=0) / len(items)
    return {"items": rest, "frozen_items": frozen, "gb": np.full(2, table.gb / len(items))}


def _of_a_control(model: StagedModel, start: str, threads: int) -> np.ndarray:
    """To draw a random subnetwork, so many of them side by side, and take it out of the network."""
    parameters = dict(model.named_parameters())
    masks = {name: torch.rand(parameters[name].shape) < 0.5 for name in model.maskable(start)}
    found, rounds = Subnetwork(masks, fingerprint(model)), [both_clocks()]
    for i in _rounds():
        for random in drawn_ahead(random_like, found, range(threads * i, threads * (i + 1)), threads=threads):
            random.ablate(model)
        rounds.append(both_clocks())
    return np.median(np.diff(rounds, axis=0), axis=0) / threads


def _reading(network: Network) -> Times:
    """To generate the sentences of a task and draw a set of them; or to read an image that is drawn."""
    data, task = network.experiment.data, network.task
    if task in LANGUAGE_TASKS:
        before = both_clocks()
        agreement.generate(task, "base", 1, split="validation", seed=data.seed)
        return {"tasks": both_clocks() - before}
    return {"read": _drawn(network)["read"]}


def _drawn(network: Network) -> Times:
    """To draw an image, and to read one."""
    data, task = network.experiment.data, network.task
    sizes = data.base.model_copy(update={"validation": CHUNK})  # fewer examples would take as long
    experiment = network.experiment.model_copy(update={"data": data.model_copy(update={"base": sizes})})
    with TemporaryDirectory() as folder:
        store = Store(folder)
        (part,) = stimuli.image_parts(experiment.data, task, "base", "validation")
        noted = stimuli.rendered(store, part).json("provenance")
        before = both_clocks()
        stimuli.load(store, experiment, task, "base", "validation")
        read = both_clocks() - before
    drawn = np.array([noted["seconds"], noted["cpu_seconds"]])
    return {"items": drawn / (4 * CHUNK), "read": read / (4 * CHUNK)}


def _contrastive(lab: Lab, sort: Sort) -> Times:
    """SimCLR on noise."""
    network, settings = sort.network, sort.network.experiment.pretraining
    model = untrained(network).to(lab.device)
    precision = partial(autocast, lab.study.compute, lab.device)

    def step(images: int, **how: float) -> Times:
        found = _of_a_step(simclr_on_noise(network, model, images, precision=precision), **how)
        return found | {"items": found["epochs"] / images, "epochs": NOTHING}

    found = _in_time(step, settings.batch_size, few=min(2 * FEW_EXAMPLES, settings.batch_size))
    return found | {"read": _reading(network)["read"]}


def simclr_on_noise(network: Network, model: StagedModel, images: int, **how: Any) -> Callable[[], Any]:
    """A contrastive pretraining with so many images a batch, and as many to validate; how: see `simclr`."""
    options = network.experiment.pretraining.model_dump(include={"learning_rate", "epochs", "temperature", "seed"})
    train, held = (_noise_set(network, number * images // 2) for number in (8, 1))
    return partial(simclr, model, [train], [held], batch_size=images, **options, **how)


def _noise_set(network: Network, examples: int) -> OddOneOut:
    items = _noise(4 * examples, network.experiment.data.resolution)
    return OddOneOut(items, torch.arange(4 * examples).view(-1, 4), torch.zeros(4 * examples, dtype=torch.int8))


def _language_model(lab: Lab, sort: Sort) -> Times:
    """The masked language model on sentences of its first task."""
    before = both_clocks()
    sets = few_sentences(sort.network)
    reading, model = both_clocks() - before, untrained(sort.network).to(lab.device)
    precision = partial(autocast, lab.study.compute, lab.device)
    found = _of_a_step(language_model_on(*sets, sort.network, model, precision=precision))
    return found | {"items": found["epochs"] / len(sets[1]), "epochs": NOTHING, "tasks": reading}


def few_sentences(network: Network) -> tuple[Tensor, Tensor]:
    """To pretrain with, and to validate."""
    settings = network.experiment.pretraining
    draw = partial(grammatical, settings.tasks[:1], seed=settings.seed, tokenizer=tokenization.tokenizer())
    return draw("train", limit=8 * settings.batch_size), draw("validation", limit=ITEMS)


def language_model_on(
    sentences: Tensor, held: Tensor, network: Network, model: StagedModel, **how: Any
) -> Callable[[], Any]:
    """A masked language model's training on given sentences; how: see `masked_language_model`."""
    settings = network.experiment.pretraining
    options = settings.model_dump(include={"learning_rate", "epochs", "batch_size", "seed"})
    return partial(masked_language_model, model, sentences, held, **options, **how)
