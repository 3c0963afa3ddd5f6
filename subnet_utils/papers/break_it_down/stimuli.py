"""The data sets of a study, by name: rendered images from the store, sentences from the grammar."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from subnet_utils.core.jobs import run_jobs
from subnet_utils.core.sections import Compute, Data
from subnet_utils.core.store import Artefact, Store, key_of, save_tensors
from subnet_utils.core.study import BaseSearch, Experiment
from subnet_utils.papers.break_it_down.tasks import agreement, shapes, tokenization
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut

SPLITS = ("train", "validation", "test")
PART = 500
"""Examples that are drawn and filed together, so that many workers draw a large set, and a killed run goes on in it."""
VERSIONS = {"language": 1, "vision": 1}
"""To be raised when a generator draws other stimuli for the same arguments: artefacts made from the old ones are then
not found."""


def load(store: Store, experiment: Experiment | BaseSearch, task: str, set_name: str, split: str) -> OddOneOut:
    """One split of one of a task's five sets, at the sizes of the experiment. Raises ValueError for unknown names."""
    if task in LANGUAGE_TASKS:
        return _sentences(experiment.data, task, set_name, split, experiment.architecture.pretrained)
    return _images(store, experiment.data, task, set_name, split)


def size_of(data: Data, set_name: str, split: str) -> int:
    """Examples in one split of a set: base, mask and probe sets have sizes of their own."""
    return getattr(getattr(data, set_name.split("-")[0]), split)


def sampling(task: str, data: Data) -> dict[str, Any]:
    """What, besides sizes, decides which stimuli a set holds: part of the specification of all that is made from it."""
    if task in LANGUAGE_TASKS:
        return {"generator": VERSIONS["language"], "data_seed": data.seed, "as_printed": data.as_printed}
    return {"generator": VERSIONS["vision"], "data_seed": data.seed, "resolution": data.resolution}


def render(
    store: Store,
    pairs: Iterable[tuple[Experiment | BaseSearch, str]],
    sets: Callable[[str], Iterable[str]],
    *,
    compute: Compute,
) -> None:
    """Render the images that the following jobs will ask for, many parts at a time; language needs no preparation."""
    jobs = {}
    for experiment, task in pairs:
        wanted = product(sets(task), SPLITS) if task not in LANGUAGE_TASKS else ()
        for set_name, split in wanted:
            for part in image_parts(experiment.data, task, set_name, split):
                if store.find("stimuli", part) is None:
                    jobs[key_of("stimuli", part)] = (store, part)  # models may share a set
    if jobs:
        drawing = compute.model_copy(update={"device": "cpu"})  # beside a GPU, too, by as many cores as there are
        run_jobs(rendered, list(jobs.values()), compute=drawing, label="stimuli")


def require_sentences(experiment: Experiment, task: str) -> None:
    """Raise ValueError, naming the key, if the grammar has not enough sentences for one of a language task's sets."""
    data = experiment.data
    for set_name, split in product(agreement.sets_of(task), SPLITS):
        try:
            if size_of(data, set_name, split):
                sentences(data, task, set_name, split)
        except ValueError as error:
            raise ValueError(f"{experiment.model}, data.{set_name.split('-')[0]}.{split}: {error}") from None


def sentences(data: Data, task: str, set_name: str, split: str) -> agreement.AgreementSet:
    """One split of a set of a language task, as sentences that can be read."""
    n = size_of(data, set_name, split)
    return agreement.generate(task, set_name, n, split=split, seed=data.seed, as_printed=data.as_printed)


@lru_cache(maxsize=64)
def _sentences(data: Data, task: str, set_name: str, split: str, folder: str | None) -> OddOneOut:
    return sentences(data, task, set_name, split).encode(tokenization.tokenizer(folder))


def image_parts(data: Data, task: str, set_name: str, split: str) -> list[dict[str, Any]]:
    """What each part of a set of images depends on: `n` examples, in parts other than the first one `first` and up."""
    n = size_of(data, set_name, split)
    spec = {"task": task, "set": set_name, "split": split, **sampling(task, data)}
    return [spec | {"n": min(PART, n - first)} | ({"first": first} if first else {}) for first in range(0, n, PART)]


def rendered(store: Store, part: Mapping[str, Any]) -> Artefact:
    """One part of a set of images: drawings, palettes and kinds."""

    def build(folder: Path) -> None:
        options = {"seed": part["data_seed"], "split": part["split"], "resolution": part["resolution"]}
        made = shapes.generate(part["task"], part["set"], part["n"], first=part.get("first", 0), **options)
        tensors = {"index": made.index, "palette": made.palette, "kinds": made.kinds}
        save_tensors(folder / "stimuli.safetensors", {name: torch.as_tensor(t) for name, t in tensors.items()})

    return store.make("stimuli", part, build)


@lru_cache(maxsize=6)  # a mask needs five sets; at the paper's size the largest of them takes 2 GB
def _images(store: Store, data: Data, task: str, set_name: str, split: str) -> OddOneOut:
    n, kinds = size_of(data, set_name, split), []
    items = torch.empty(4 * n, 3, data.resolution, data.resolution, dtype=torch.uint8)
    for number, part in enumerate(image_parts(data, task, set_name, split)):
        tensors = rendered(store, part).tensors("stimuli")
        colored = items[4 * PART * number :][: len(tensors["index"])].numpy()
        shapes.rgb(tensors["index"].numpy(), tensors["palette"].numpy(), out=colored)
        kinds.append(tensors["kinds"])
    return OddOneOut(items, torch.arange(4 * n).reshape(n, 4), torch.cat(kinds))
