"""The pairs of a study: as text, and as a network takes them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import ROOT
from subnet_utils.core.seeds import generator_for
from subnet_utils.papers.heuristic_core.pair_networks import Encoded, Transformer, published_facts
from subnet_utils.papers.heuristic_core.section import GeneratedPairs, PairFiles
from subnet_utils.tasks import inference, pair_files
from subnet_utils.tasks.pair_files import DataError
from subnet_utils.tasks.sentence_pairs import ENTAILED, Pair, is_entailed, texts_of

IN_DOMAIN = "in domain"
"""Name of the set that is like the training pairs."""
MISMATCHED = "mismatched"
"""Name of the set like the training pairs, but from other sources."""
OUT_OF_DOMAIN = "out of domain"
"""The mean of the sets that defy the heuristic."""
FILES = ("train", "test", "mismatched", "hans", "paws")


@dataclass(frozen=True)
class PairData:
    """The pairs of a study. Files count by what is in them, wherever they lie. section: as in the study, but with a
    digest in place of every file; files: where they lie."""

    section: GeneratedPairs | PairFiles
    files: PairFiles | None = field(default=None, compare=False)

    @classmethod
    def of(cls, section: GeneratedPairs | PairFiles) -> "PairData":
        """The pairs of a section."""
        if isinstance(section, GeneratedPairs):
            return cls(section)
        positions = {name: place for name in FILES if (place := getattr(section, name)) is not None}
        return cls(section.model_copy(update={name: _digest(place) for name, place in positions.items()}), section)

    def texts(self) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
        """The training pairs, and every set that networks are judged on. Raises ValueError if there are not as many
        pairs as are to be generated, DataError for files that cannot be read or do not fit."""
        return _generated(self.section) if self.files is None else _read(self)

    def judged(self) -> frozenset[Pair]:
        """All pairs that networks are judged on: none of them may be in what they are trained on."""
        return frozenset().union(*(texts_of(pairs) for pairs in self.texts()[1].values()))


@dataclass(frozen=True, eq=False)
class PairSets:
    """The training pairs and the sets that networks are judged on. entailed_class: the class that means entailment."""

    train: Encoded
    sets: dict[str, Encoded]
    entailed_class: int


@lru_cache(maxsize=4)
def pair_sets(data: PairData, transformer: Transformer) -> PairSets:
    """All pairs as a network takes them. Raises ValueError for what cannot be read or does not fit."""
    train, sets = data.texts()
    encoded = {name: transformer.encode(pairs) for name, pairs in sets.items()}
    return PairSets(transformer.encode(train), encoded, data.section.entailed_class)


def is_friendly(name: str) -> bool:
    """Whether a set is entailed, so that the heuristic is right: a subcase of HANS, or PAWS's equivalent questions."""
    return name not in (IN_DOMAIN, MISMATCHED, OUT_OF_DOMAIN) and is_entailed(name) == ENTAILED


def domains_of(sets: Iterable[str], out_of_domain: Iterable[str]) -> dict[str, list[str]]:
    """Domain -> names of its sets; `entailed` are all of `sets` that are."""
    return {"in domain": [IN_DOMAIN], OUT_OF_DOMAIN: [*out_of_domain],
            "entailed": [name for name in dict.fromkeys(sets) if is_friendly(name)]}  # fmt: skip


def require_pairs(lab: Lab) -> None:
    """Raise ValueError for what notebooks 08b and 08c need and what is not there: files, published weights, enough
    pairs. All files are read, names on the hub are fetched."""
    section = lab.section("heuristic_core")
    if section.architecture.family == "published":
        published_facts(section.architecture.weights, section.architecture.max_length)
    try:
        PairData.of(section.data).texts()
    except ValueError as error:
        if section.generated is None:
            raise
        raise ValueError(f"heuristic_core.generated: {error}") from None


@lru_cache(maxsize=2)
def _generated(data: GeneratedPairs) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    splits = inference.mixture({"train": data.train, "test": data.test}, counter=data.counter, seed=data.seed)
    known = texts_of(splits["train"])
    others = {kind: inference.generate(kind, data.each, seed=data.seed, split="out of domain", besides=known)
              for kind in inference.KINDS}  # fmt: skip
    return splits["train"], {IN_DOMAIN: splits["test"]} | others


@lru_cache(maxsize=2)
def _read(data: PairData) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    files = data.files
    train, test = _in_domain(files)
    outside = pair_files.read_hans(_path(files.hans)) if files.hans else pair_files.read_paws(_path(files.paws))
    for kind in files.out_of_domain:
        if kind not in set(outside["kind"]):
            raise DataError(f"{files.hans or files.paws} has no pair of '{kind}'; take it out of out_of_domain")
    if files.each is not None:
        outside = outside.groupby("kind").head(files.each)
    if PairData.of(files) != data:
        raise DataError(f"{files.train}, or another file of pairs, has changed while this ran; run again")
    inside = {IN_DOMAIN: test}
    if files.mismatched is not None:
        inside[MISMATCHED] = pair_files.read_pairs(_path(files.mismatched), labels=files.classes)
    return train, inside | dict(iter(outside.groupby("kind", sort=False)))


def _in_domain(files: PairFiles) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs for training, and those for testing."""
    train = pair_files.read_pairs(_path(files.train), labels=files.classes)
    if files.test is not None:
        return train, pair_files.read_pairs(_path(files.test), labels=files.classes)
    kept = len(train) - files.held_out
    if kept <= 0:
        held = f"{files.held_out:,} of {len(train):,} pairs cannot be held out"
        raise DataError(f"{files.train}: {held}; lower held_out")
    order = torch.randperm(len(train), generator=generator_for("held-out pairs")).tolist()
    return train.iloc[order[:kept]], train.iloc[order[kept:]]


def _path(place: str) -> str | Path:
    """A name on the hub as it is, a path from the checkout."""
    return place if place.startswith(pair_files.HUB) else ROOT / Path(place).expanduser()


def _digest(place: str) -> str:
    """Of a file's content. A name on the hub stands for itself; so does a file that is not there, to read it fails."""
    path = _path(place)
    if isinstance(path, str) or not path.is_file():
        return place
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
