"""The data sets of *Break It Down*: images that are drawn once, and sentences from the grammar.

Each task has five sets (base, one mask set and one probe set for each subroutine) in three splits. A set of images is
drawn in parts, which are steps, so that many workers draw a large one. Sentences are generated whenever they are
needed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact, save_tensors
from subnet_utils.models import build, fingerprint
from subnet_utils.papers.break_it_down.section import BaseSearch, Data, Experiment
from subnet_utils.tasks import agreement, shapes, tokenization
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, SPLITS, OddOneOut, sets_of

PART = 500
"""Examples that are drawn and filed together."""


@dataclass(frozen=True)
class Published:
    """Published weights and their tokenizer.

    digest: of a local folder's content, which counts, and not where it lies; of a name on the hub that name: the hub is
    not asked before something is made. place: folder or name.
    """

    digest: str
    place: str = field(compare=False)


@dataclass(frozen=True)
class Drawing(Step):
    """Part of a set of images: `n` examples from the `first` one on. `load` gives drawings, palettes and kinds."""

    version: ClassVar[int] = 1  # of the generator of images

    task: str
    set_name: str
    split: str
    n: int
    seed: int
    resolution: int
    first: int = 0
    sizes: str = "ours"

    def build(self, lab: Lab, folder: Path) -> None:
        """Draw the images."""
        options = {"resolution": self.resolution, "first": self.first, "sizes": self.sizes}
        made = shapes.generate(self.task, self.set_name, self.n, seed=self.seed, split=self.split, **options)
        tensors = {name: torch.as_tensor(getattr(made, name)) for name in ("index", "palette", "kinds")}
        save_tensors(folder / "stimuli.safetensors", tensors)

    def read(self, lab: Lab, artefact: Artefact) -> dict[str, torch.Tensor]:
        """See the class."""
        return artefact.tensors("stimuli")


@dataclass(frozen=True)
class Images:
    """A split of a set of images."""

    parts: tuple[Drawing, ...]

    def load(self, lab: Lab) -> OddOneOut:
        """The examples, with the images in memory."""
        return _images(lab, self)


@dataclass(frozen=True)
class Sentences:
    """A split of a set of sentences. generator: version of the grammar."""

    task: str
    set_name: str
    split: str
    n: int
    seed: int
    as_printed: bool
    vocabulary: Published | None = None
    generator: int = 1

    def load(self, lab: Lab) -> OddOneOut:
        """The examples, as token ids."""
        return _sentences(self)

    def readable(self) -> agreement.AgreementSet:
        """The examples as text."""
        how = {"split": self.split, "seed": self.seed, "as_printed": self.as_printed}
        return agreement.generate(self.task, self.set_name, self.n, **how)


ExampleSet = Images | Sentences


@lru_cache(maxsize=4096)  # one object each, so that its parts are named once
def example_set(data: Data, task: str, set_name: str, split: str, vocabulary: Published | None = None) -> ExampleSet:
    """One split of one of a task's five sets, at the size that `data` gives it."""
    n = getattr(getattr(data, set_name.split("-")[0]), split)  # base, mask and probe sets have sizes of their own
    if task in LANGUAGE_TASKS:
        return Sentences(task, set_name, split, n, data.seed, data.as_printed, vocabulary)
    firsts = range(0, n, PART)
    sizes = "ours" if task == "inside-contact" else data.shape_sizes  # there they are the authors' anyway
    options = {"seed": data.seed, "resolution": data.resolution, "sizes": sizes}
    return Images(tuple(Drawing(task, set_name, split, min(PART, n - i), first=i, **options) for i in firsts))


def published(experiment: Experiment | BaseSearch) -> Published | None:
    """The published weights that an experiment starts from, or None. Raises ValueError for a folder without them."""
    place = getattr(experiment.architecture, "pretrained", None)
    if place is None:
        return None
    return Published(_digest(experiment.architecture) if Path(place).is_dir() else place, place)


@lru_cache(maxsize=16)
def _digest(architecture: Any) -> str:
    tokenizer = tokenization.tokenizer(architecture.pretrained)
    network = build(architecture.model_dump(exclude_none=True), seed=0, vocabulary=tokenizer.size)
    words = tokenizer.encode(agreement.grammar_words())
    return f"{fingerprint(network)}-{sha256(words.numpy().tobytes()).hexdigest()[:16]}"


def require_sentences(lab: Lab) -> None:
    """Raise ValueError, naming the key, if the grammar has not enough sentences for one of a study's sets."""
    _require_sentences(lab.study.break_it_down.experiments)


def require_pretrained(lab: Lab) -> None:
    """The same for the pretrained experiments; also for published weights that cannot be had."""
    pretrained = lab.study.break_it_down.pretrained
    for experiment in pretrained:
        if published(experiment) is not None:
            _digest(experiment.architecture)
    _require_sentences(pretrained)


def _require_sentences(experiments: Iterable[Experiment]) -> None:
    for experiment in experiments:
        for task in experiment.tasks if experiment.modality == "language" else ():
            for set_name, split in product(sets_of(task), SPLITS):
                chosen = example_set(experiment.data, task, set_name, split)
                try:
                    if chosen.n:
                        _draw(chosen)
                except ValueError as error:
                    where = f"{experiment.model}, data.{set_name.split('-')[0]}.{split}"
                    raise ValueError(f"{where}: {error}") from None


@lru_cache(maxsize=256)  # the check of a study and the plan of its steps both ask
def _draw(chosen: Sentences) -> None:
    chosen.readable()


@lru_cache(maxsize=64)
def _sentences(chosen: Sentences) -> OddOneOut:
    return chosen.readable().encode(tokenization.tokenizer(chosen.vocabulary and chosen.vocabulary.place))


@lru_cache(maxsize=6)  # a mask needs five sets; at the paper's size the largest of them takes 2 GB
def _images(lab: Lab, images: Images) -> OddOneOut:
    n, kinds = sum(part.n for part in images.parts), []
    side = images.parts[0].resolution
    items = torch.empty(4 * n, 3, side, side, dtype=torch.uint8)
    for part in images.parts:
        tensors = part.load(lab)
        colored = items[4 * part.first :][: len(tensors["index"])].numpy()
        shapes.rgb(tensors["index"].numpy(), tensors["palette"].numpy(), out=colored)
        kinds.append(tensors["kinds"])
    return OddOneOut(items, torch.arange(4 * n).reshape(n, 4), torch.cat(kinds))
