"""Every job of the sections that are counted, a row for each sort: what it reads, trains and evaluates.

Nothing is computed here, so that a profile can be counted whose data would take hours to make.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pandas as pd

from subnet_utils.core.devices import autocast
from subnet_utils.core.jobs import worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.store import key_of
from subnet_utils.core.study import BaseSearch, Experiment, Study
from subnet_utils.papers.break_it_down import mask_sizes, pretraining, search, stimuli
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.ablations import ABLATIONS, KINDS, PROBES
from subnet_utils.papers.break_it_down.base_models import Network, prunings
from subnet_utils.papers.break_it_down.dissection import DRAWS, PARTS
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, sets_of, subroutines_of

COUNTS = ["jobs", "steps", "epochs", "items", "frozen_items", "passes", "networks", "tasks", "read"]
"""Of a row, over all its jobs: their number; steps and epochs of training; items embedded by what is trained or
evaluated; frozen_items, which pass through the frozen prefix before it (all of it: that a process may go on from the
outputs of a shorter one is left out); passes, items that do so once more in every epoch where the cache is too small;
networks that are made of a subnetwork; tasks whose sentences are generated; items, such as images, that are read."""
PLANNED = ["section", "kind", "model", "start", "sort", *COUNTS, "trained_on"]
COUNTED = ("experiments", "pruning", "controls", "pretrained")
RENDERING, PRETRAINING = "rendering", "pretraining"
"""In place of the first masked stage: what else is timed."""


@dataclass(frozen=True)
class Sort:
    """What the times of a job depend on besides its counts. start: first masked stage, if any; examples: a batch;
    exact: trained in float32, though the study trains in bfloat16; network: one such."""

    architecture: Any
    inputs: tuple[str, int]
    start: str
    examples: int
    exact: bool
    network: Network = field(compare=False)

    @classmethod
    def of(cls, network: Network, start: str = "", *, examples: int | None = None, exact: bool = False) -> "Sort":
        """The sort of a network, whole or masked from a stage on."""
        experiment = network.experiment
        inputs = (break_it_down.split_task(network.task)[0], 0)
        if network.task not in LANGUAGE_TASKS:
            inputs = (network.task if start == RENDERING else "", experiment.data.resolution)
        batch = examples or (experiment.masks if start else network.training).batch_size
        return cls(experiment.architecture, inputs, start, batch, exact, network)


class Pool:
    """Jobs of the same workers. What one of them has read or computed it keeps for those that follow.

    networks: in how many networks the jobs are; those in the same one go to as few workers as keep all of them busy.
    """

    def __init__(self, workers: int, networks: int = 1):
        self.workers, self.of_a_network = workers, max(1, workers // max(1, networks))
        self._seen = Counter()

    def pays(self, *about: Any, network: bool = False) -> bool:
        """Whether this job is among the first, one a worker, that need something; network: that is of one network."""
        self._seen[about] += 1
        return self._seen[about] <= (self.of_a_network if network else self.workers)


def plan(lab: Lab, section: str) -> pd.DataFrame:
    """The jobs of a section: section, kind, model, start, sort, `COUNTS`, and trained_on, the items of a mask's table.

    Base models count all their epochs, or those that they took if they are trained already; the masks that count as if
    every search was won from its first start.
    """
    rows: dict[tuple, dict[str, Any]] = {}
    for kind, sort, counts, trained_on in _SECTIONS[section](lab):
        about = {"section": section, "kind": kind, "model": _model(sort), "start": sort.start, "sort": sort}
        row = rows.setdefault((kind, sort, trained_on), about | dict.fromkeys(COUNTS, 0) | {"trained_on": trained_on})
        for name, number in counts.items():
            row[name] += number
    return pd.DataFrame(rows.values(), columns=PLANNED)


def _model(sort: Sort) -> str:
    return sort.network.task if sort.start == RENDERING else sort.network.experiment.model


Job = tuple[str, Sort, dict[str, float], int]
Wanted = tuple[Experiment | BaseSearch, str, Sequence[str]]


def _experiments(lab: Lab) -> Iterator[Job]:
    networks, swept = break_it_down.networks(lab.study), break_it_down.swept(lab.study)
    yield from _rendered(_images_from_scratch(lab.study), known=set())
    yield from _bases(lab, networks)
    yield from _bases(lab, swept)
    yield from _masks_and_effects(lab, networks)
    vision = [network for network in networks if network.experiment.modality == "vision"]
    alone = Pool(1)
    for subroutine in subroutines_of(vision[0].task) if vision else ():  # both readings of the head, for the ledger
        yield _mask(alone, vision[0], subroutine, vision[0].experiment.masks.starts[0])


def _pruning(lab: Lab) -> Iterator[Job]:
    pruned, pool = lab.pruned(), Pool(_workers(lab))
    networks, settings = break_it_down.networks(pruned.study, "pruned"), lab.study.pruning
    for network in networks:
        sizes, task = network.experiment.data.base, (network.experiment.data, network.task)
        examples = min(settings.examples or sizes.train, sizes.train)
        sort = Sort.of(network, network.experiment.architecture.stages[0], examples=settings.batch_size)
        for _ in prunings(lab, network):
            work = {
                "jobs": 1,
                "epochs": settings.epochs,
                "steps": settings.epochs * -(-examples // settings.batch_size),
            }
            work |= {"items": 4 * sizes.validation, "frozen_items": 4 * examples, "networks": 1}
            yield "pruning", sort, work | _read(pool, {task: (sizes.train, sizes.validation)}), 4 * examples
    yield from _as_they_are(networks, Pool(_workers(lab)))
    yield from _masks_and_effects(pruned, networks)


def _controls(lab: Lab) -> Iterator[Job]:
    seeds, as_printed = lab.study.controls.seeds, lab.study.controls.as_printed
    trained = [
        (network, subroutine, seed)
        for network in break_it_down.networks(lab.study)
        for subroutine in subroutines_of(network.task)
        for seed in network.experiment.masks.seeds
        if seeds is None or seed in seeds
    ]
    masks = [(one.untrained(mask_seed=seed if as_printed else None), subroutine) for one, subroutine, seed in trained]
    drawn = {(network.experiment.architecture, network.task, network.draw): network for network, _ in masks}
    yield from _as_they_are(list(drawn.values()), Pool(1))
    finding, effects, nulls, others = (Pool(_workers(lab), len(drawn)) for _ in range(4))
    # an untrained network tells the odd one by next to nothing: its masks are trained in float32
    exact = not isinstance(autocast(lab.study.compute, lab.device), nullcontext)
    for network, subroutine in masks:
        yield _mask(finding, network, subroutine, network.experiment.masks.starts[0], exact=exact)
    for network, subroutine in masks:
        yield _effect(effects, network, subroutine)
    for network, _, _ in trained:
        yield _null(nulls, network, lab.study.controls.draws)
    for network, subroutine, _ in trained:
        yield _other_ablations(others, network, subroutine)
    bases = break_it_down.networks(lab.study)
    finding, effects = (Pool(_workers(lab), len(bases)) for _ in range(2))
    for _ in mask_sizes.factors(lab)[1:]:
        for network, subroutine, _ in trained:
            yield _mask(finding, network, subroutine, network.experiment.masks.starts[0])
            yield _effect(effects, network, subroutine)
    taken_apart = Pool(_workers(lab), len(bases))
    for network in bases:
        yield _dissection(taken_apart, network)


def _pretrained(lab: Lab) -> Iterator[Job]:
    own = lab.pretrained()
    networks = break_it_down.networks(own.study)
    first: dict[str, Network] = {}
    for network in networks:
        if network.experiment.pretraining is not None:
            first.setdefault(key_of("", pretraining.spec(network.experiment, lab.study.compute)), network)
    views = [(one.experiment, task, ("base",)) for one in first.values() for task in one.experiment.pretraining.tasks]
    known = {key for key, *_ in _image_sets(_images_from_scratch(lab.study))}
    yield from _rendered([*views, *_images_from_scratch(own.study)], known)
    yield from (_pretraining(network) for network in first.values())
    yield from _bases(lab, networks)
    yield from _masks_and_effects(own, networks)


_SECTIONS = {"experiments": _experiments, "pruning": _pruning, "controls": _controls, "pretrained": _pretrained}


def _workers(lab: Lab) -> int:
    return worker_count(lab.study.compute)


def _rendered(wanted: Iterable[Wanted], known: set[str]) -> Iterator[Job]:
    """Images to be drawn, but for sets that are known already."""
    for key, experiment, task, n in _image_sets(wanted):
        if key not in known:
            known.add(key)
            sort = Sort.of(Network(experiment, task, experiment.base, 0), RENDERING, examples=1)
            yield "stimuli", sort, {"jobs": 1, "items": 4 * n}, 0


def _image_sets(wanted: Iterable[Wanted]) -> Iterator[tuple[str, Experiment | BaseSearch, str, int]]:
    """Key, experiment, task and number of examples of every part of a set of images."""
    for experiment, task, names in wanted:
        for name, split in product(names, stimuli.SPLITS) if task not in LANGUAGE_TASKS else ():
            for part in stimuli.image_parts(experiment.data, task, name, split):
                yield key_of("stimuli", part), experiment, task, part["n"]


def _images_from_scratch(study: Study) -> list[Wanted]:
    """Whose images the networks without pretraining are trained on: experiment, task and names of the sets."""
    swept = [(study.vit_search, task, ("base",)) for task in study.vit_search.tasks] if study.vit_search else []
    return [(experiment, task, sets_of(task)) for experiment, task in study.pairs()] + swept


def _pretraining(network: Network) -> Job:
    settings, sizes = network.experiment.pretraining, network.experiment.data.base
    if settings.method == "simclr":
        half, tasks = settings.batch_size // 2, len(settings.tasks)
        steps, judged = tasks * sizes.train // half, tasks * sizes.validation // half * settings.batch_size
        read = {"read": 4 * tasks * (sizes.train + sizes.validation)}
    else:
        steps, judged = -(-settings.sentences // settings.batch_size), settings.sentences // 10
        read = {"tasks": len(settings.tasks)}
    sort = Sort.of(network, PRETRAINING, examples=settings.batch_size)
    counts = {"jobs": 1, "steps": settings.epochs * steps, "items": settings.epochs * judged}
    return "pretraining", sort, counts | {"epochs": settings.epochs} | read, 0


def _bases(lab: Lab, networks: list[Network]) -> Iterator[Job]:
    """Networks to be trained."""
    pool = Pool(_workers(lab))
    for network in networks:
        data, training = network.experiment.data, network.training
        sizes, made = data.base, lab.store.find("base", network.spec(lab))
        epochs = made.json("result").get("epochs", training.epochs) if made else training.epochs
        work = {"jobs": 1, "epochs": epochs, "steps": epochs * -(-sizes.train // training.batch_size)}
        work["items"] = 4 * (epochs * sizes.validation + sizes.validation + sizes.test)
        read = _read(pool, {(data, network.task): (sizes.train, sizes.validation, sizes.test)})
        yield "base", Sort.of(network), work | read, 0


def _as_they_are(networks: list[Network], pool: Pool) -> Iterator[Job]:
    """Networks that are not trained but only scored."""
    for network in networks:
        data = network.experiment.data
        sizes = (data.base.validation, data.base.test)
        work = {"jobs": 1, "items": 4 * sum(sizes)} | _read(pool, {(data, network.task): sizes})
        yield "base", Sort.of(network), work, 0


def _masks_and_effects(lab: Lab, networks: list[Network]) -> Iterator[Job]:
    halving, searching, finding, effects = (Pool(_workers(lab), len(networks)) for _ in range(4))
    for network in networks:
        settings = network.experiment.masks
        points = [point.start for point in search.grid(settings)]
        starts = settings.starts[:1] if settings.search == "selected" else points
        halved = settings.search == "halving"
        for subroutine in subroutines_of(network.task):
            for start in starts if halved else ():
                yield _mask(halving, network, subroutine, start, kind="half")
            for start in starts[: -(-len(starts) // 2)] if halved else starts:
                yield _mask(searching, network, subroutine, start, resumed=halved)
            for _ in range(len(settings.seeds) - (settings.search_seed in settings.seeds)):
                yield _mask(finding, network, subroutine, starts[0])
            for _ in settings.seeds:
                yield _effect(effects, network, subroutine)


def _mask(
    pool: Pool,
    network: Network,
    subroutine: str,
    start: str,
    *,
    kind: str = "mask",
    resumed: bool = False,
    exact: bool = False,
) -> Job:
    """A mask to be found, or half of one: the first half, or the second of one that is resumed."""
    settings, data = network.experiment.masks, network.experiment.data
    first_half = max(1, settings.epochs // 2)
    epochs = first_half if kind == "half" else settings.epochs - first_half * resumed
    own = (data.mask.train, data.mask.validation)
    others = (data.probe.validation,) * len(PROBES)
    work = {"jobs": 1, "epochs": epochs, "steps": epochs * -(-data.mask.train // settings.batch_size)}
    judged = data.mask.validation + sum(others)  # own task by the subnetwork, both probes by the ablated model
    work |= {"items": 4 * judged, "passes": epochs * 4 * data.mask.train, "networks": 2}
    work |= _evaluated(pool, network, subroutine, start, own, others)
    return kind, Sort.of(network, start, exact=exact), work, 4 * data.mask.train


def _effect(pool: Pool, network: Network, subroutine: str) -> Job:
    data, start = network.experiment.data, network.experiment.masks.starts[0]
    own, others = (data.mask.test,), (data.probe.test, data.probe.test, data.base.test)
    work = {"jobs": 1, "items": 2 * 4 * (sum(own) + sum(others)), "networks": 2}
    return "effect", Sort.of(network, start), work | _evaluated(pool, network, subroutine, start, own, others), 0


def _null(pool: Pool, network: Network, draws: int) -> Job:
    probes, start = (network.experiment.data.probe.test,) * len(PROBES), network.experiment.masks.starts[0]
    work = {"jobs": 1, "items": len(KINDS) * draws * 4 * sum(probes), "networks": len(KINDS) * draws}
    return "null_draws", Sort.of(network, start), work | _evaluated(pool, network, "", start, (), probes), 0


def _other_ablations(pool: Pool, network: Network, subroutine: str) -> Job:
    data, start = network.experiment.data, network.experiment.masks.starts[0]
    own, others = (data.mask.test,), (data.probe.test, data.probe.test, data.base.test)
    evaluated = _evaluated(pool, network, subroutine, start, own, others)
    for_means = 4 * data.base.validation  # which pass through the whole network
    work = {"jobs": 1, "networks": len(ABLATIONS)} | evaluated
    work["items"] = len(ABLATIONS) * 4 * (sum(own) + sum(others)) + for_means
    work["frozen_items"] += for_means
    return "ablations", Sort.of(network, start), work, 0


def _dissection(pool: Pool, network: Network) -> Job:
    data, start = network.experiment.data, network.experiment.masks.starts[0]
    sizes = (data.probe.test, data.probe.test, data.base.test)
    parts = len(PARTS) - 1 + 2 * (DRAWS - 1)  # all but the whole; each kind of random one several times
    work = {"jobs": 1, "items": (1 + parts) * 4 * sum(sizes), "networks": parts}
    return "dissection", Sort.of(network, start), work | _evaluated(pool, network, "", start, (), sizes), 0


def _evaluated(
    pool: Pool, network: Network, subroutine: str, start: str, own: tuple[int, ...], others: tuple[int, ...]
) -> dict[str, int]:
    """Sets to read and to pass through the frozen prefix: a subroutine's own, and those of both; examples of each."""
    data = (network.experiment.data, network.task)
    of_own, of_others = (pool.pays(network, start, *more, network=True) for more in ((subroutine,), ()))
    frozen = 4 * (sum(own) * of_own + sum(others) * of_others)
    return {"frozen_items": frozen} | _read(pool, {(*data, subroutine): own, data: others})


def _read(pool: Pool, sets: dict[tuple, tuple[int, ...]]) -> dict[str, int]:
    """What is read of some sets: data, task and more -> examples of each."""
    tasks = {about[1] for about in sets if about[1] in LANGUAGE_TASKS}
    sizes = [size for about, several in sets.items() if pool.pays("read", *about) for size in several]
    return {"tasks": sum(pool.pays("sentences", task) for task in tasks), "read": 4 * sum(sizes)}
