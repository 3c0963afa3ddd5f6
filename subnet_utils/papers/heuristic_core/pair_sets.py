"""The pairs of a study, as text and as a network takes them, and what they and published weights depend on."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import ROOT
from subnet_utils.core.seeds import generator_for
from subnet_utils.models import fingerprint
from subnet_utils.papers.heuristic_core.pair_networks import (
    Encoded,
    PretrainedError,
    body_of,
    encode_published,
    encode_words,
    positions_of,
    published_network,
    published_tokenizer,
)
from subnet_utils.papers.heuristic_core.section import GeneratedPairs, Inference, PairFiles
from subnet_utils.papers.heuristic_core.tasks import inference, pair_files
from subnet_utils.papers.heuristic_core.tasks.pair_files import DataError
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import (
    ENTAILED,
    Pair,
    Pairs,
    by_name,
    first_of_each,
    is_entailed,
    take,
    text_pairs,
)

IN_DOMAIN = "in domain"
"""Name of the set that is like the training pairs."""
AFTER_SPACE = "\u0120"
"""How byte pairs write a space before a word."""
OUT_OF_DOMAIN = "out of domain"
"""The mean of the sets that defy the heuristic."""


def settings_of(lab: Lab) -> Inference:
    """The section of a study. Raises ValueError if there is none."""
    if lab.study.inference is None:
        raise ValueError(f"profile '{lab.study.name}' has no 'inference' section; add one")
    return lab.study.inference


@dataclass(frozen=True, eq=False)
class PairSets:
    """The training pairs and the sets that networks are judged on. entailed_class: the class that means entailment."""

    train: Encoded
    sets: dict[str, Encoded]
    entailed_class: int


@lru_cache(maxsize=4)
def pair_sets(lab: Lab) -> PairSets:
    """All pairs of a study. Raises DataError or PretrainedError for what cannot be read or does not fit."""
    settings = settings_of(lab)
    train, sets = _text_sets(lab)
    encode = encoder_of(lab)
    return PairSets(encode(train), {name: encode(pairs) for name, pairs in sets.items()}, settings.data.entailed_class)


def first_pairs(lab: Lab) -> pd.DataFrame:
    """The first pair of every set as text: set, premise, hypothesis, follows."""
    sets, entailed = _text_sets(lab)[1], settings_of(lab).data.entailed_class
    rows = []
    for name, pairs in sets.items():
        yes = entailed if name == IN_DOMAIN else ENTAILED
        follows = "yes" if int(pairs.labels[0]) == yes else "no"
        rows.append({"set": name, "premise": pairs.premises[0], "hypothesis": pairs.hypotheses[0], "follows": follows})
    return pd.DataFrame(rows)


def judged_pairs(lab: Lab) -> frozenset[Pair]:
    """All pairs that networks are judged on: none of them may be in what they are trained on."""
    return frozenset().union(*(text_pairs(pairs) for pairs in _text_sets(lab)[1].values()))


def is_friendly(name: str) -> bool:
    """Whether a set is entailed, so that the heuristic is right: a subcase of HANS, or PAWS's equivalent questions."""
    return name not in (IN_DOMAIN, OUT_OF_DOMAIN) and is_entailed(name) == ENTAILED


def encoder_of(lab: Lab) -> Callable[[Pairs], Encoded]:
    """What writes pairs as the study's network takes them."""
    architecture = settings_of(lab).architecture
    if architecture.family == "published":
        tokenizer = published_tokenizer(architecture.weights)
        encode = partial(encode_published, tokenizer=tokenizer, max_length=architecture.max_length)
    else:
        encode = partial(encode_words, words=inference.words(), types=architecture.family == "bert")
    return lambda pairs: encode(pairs.premises, pairs.hypotheses, pairs.labels)


def word_numbers(lab: Lab) -> torch.Tensor | None:
    """int64 [vocabulary]: equal for tokens that write one word; None if there are no such tokens.

    The byte pairs of GPT-2 and RoBERTa differ after a space, and at a sentence's start by their capital.
    """
    architecture = settings_of(lab).architecture
    if architecture.family != "published":
        return None
    tokenizer = published_tokenizer(architecture.weights)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return torch.from_numpy(pd.factorize(pd.Series(tokens).str.removeprefix(AFTER_SPACE).str.lower())[0]).long()


def data_spec(lab: Lab) -> dict[str, Any]:
    """What the pairs depend on; of files their content. Raises DataError for one that is not there."""
    data = settings_of(lab).data
    if isinstance(data, GeneratedPairs):
        return {"generated": data.model_dump()}
    own = data.model_dump()
    for name in ("train", "test", "hans", "paws"):
        own[name] = own[name] and _digest(_place(own[name]))
    for name in ("paws", "entailed"):  # what older artefacts were named without
        if own[name] is None:
            del own[name]
    return {"files": own}


@lru_cache(maxsize=4)
def published_digest(weights: str, max_length: int) -> str:
    """Of published weights and of their tokenizer. Raises PretrainedError if they cannot be had, or have fewer
    positions than `max_length`."""
    words = published_tokenizer(weights).backend_tokenizer.to_str()
    body = body_of(published_network(weights, classes=2, seed=0))
    if max_length > (positions := positions_of(body)):
        needed = f"set inference.architecture.max_length to {positions} or less"
        raise PretrainedError(f"'{weights}' has {positions} positions, fewer than max_length {max_length}; {needed}")
    return f"{fingerprint(body)}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def _text_sets(lab: Lab) -> tuple[Pairs, dict[str, Pairs]]:
    """The training pairs, and every set that networks are judged on."""
    settings = settings_of(lab)
    return _generated(settings.data) if settings.generated else _read(settings.data)


def require_pairs(lab: Lab) -> None:
    """Raise DataError for pairs that cannot be had: of files and names on the hub all are read, which fetches them."""
    if settings_of(lab).generated is None:
        _text_sets(lab)


def require_generated(lab: Lab) -> None:
    """Raise ValueError, naming the key, if the schemes do not make as many pairs as the study generates."""
    if settings_of(lab).generated is None:
        return
    try:
        _generated(settings_of(lab).generated)
    except ValueError as error:
        raise ValueError(f"inference.generated: {error}") from None


@lru_cache(maxsize=2)
def _generated(data: GeneratedPairs) -> tuple[Pairs, dict[str, Pairs]]:
    splits = inference.mixture({"train": data.train, "test": data.test}, counter=data.counter, seed=data.seed)
    known = text_pairs(splits["train"])
    others = {kind: inference.generate(kind, data.each, seed=data.seed, split="out of domain", besides=known)
              for kind in inference.KINDS}  # fmt: skip
    return splits["train"], {IN_DOMAIN: splits["test"]} | others


def _read(data: PairFiles) -> tuple[Pairs, dict[str, Pairs]]:
    train = pair_files.read_pairs(_place(data.train), labels=data.classes)
    if data.test is not None:
        test = pair_files.read_pairs(_place(data.test), labels=data.classes)
    else:
        order = torch.randperm(len(train), generator=generator_for("held-out pairs")).tolist()
        if data.held_out >= len(train):
            held = f"{data.held_out:,} of {len(train):,} pairs cannot be held out"
            raise DataError(f"{data.train}: {held}; lower held_out")
        test, train = (take(train, rows) for rows in (order[-data.held_out :], order[: -data.held_out]))
    read, where = (pair_files.read_hans, data.hans) if data.hans else (pair_files.read_paws, data.paws)
    outside = read(_place(where))
    for kind in data.out_of_domain:
        if kind not in outside.kinds:
            raise DataError(f"{where} has no pair of '{kind}'; take it out of out_of_domain")
    if data.each is not None:
        outside = first_of_each(outside, data.each)
    return train, {IN_DOMAIN: test} | by_name(outside)


def _place(place: str) -> str | Path:
    """A name on the hub as it is, a path from the checkout."""
    return place if place.startswith(pair_files.HUB) else ROOT / Path(place).expanduser()


@lru_cache(maxsize=16)
def _digest(place: str | Path) -> str:
    if isinstance(place, str):
        return place
    if not place.is_file():
        raise DataError(f"no file {place}; give a table of premise, hypothesis and label")
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
