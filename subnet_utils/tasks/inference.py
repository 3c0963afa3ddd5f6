"""Natural-language inference: does a premise entail a hypothesis? (*The Heuristic Core*, section 2)

Where HANS (McCoy, Pavlick and Linzen 2019) is not at hand, pairs are generated after its schemes, in words of our own:
lexical overlap (all words of the hypothesis are in the premise), subsequence (they stand there in one piece) and
constituent (as a clause of its own), each in kinds that are entailed and kinds that are not. A training set consists of
pairs for which the heuristic "all words are known, so yes" is right, and of a stated share of pairs for which it is
wrong.
"""

from collections.abc import Mapping, Sequence, Set
from random import Random
from typing import NamedTuple

import pandas as pd
import torch

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.tasks.sentence_pairs import ENTAILED, NOT_ENTAILED, Pair, is_entailed

PEOPLE = ("baker", "clerk", "dancer", "driver", "farmer", "guard", "miner", "monk", "nurse", "pilot", "poet", "sailor",
          "singer", "student", "tailor", "writer")  # fmt: skip
DONE_TO = ("admired", "blamed", "called", "followed", "greeted", "helped", "paid", "praised", "thanked", "watched")
DONE = ("argued", "danced", "laughed", "left", "sang", "slept", "smiled", "waited")
DRAWN = {
    "did": DONE_TO, "had": DONE_TO, "done": DONE, "acted": ("{did} {c}", "{done}"),
    "near": ("behind", "beside", "near", "opposite"),
    "knew": ("knew", "learned", "noticed", "realized"), "supposed": ("assumed", "claimed", "hoped", "suspected"),
    "since": ("because", "since", "while"), "if": ("if", "unless", "whenever"),
    "surely": ("clearly", "luckily", "sadly"), "perhaps": ("maybe", "perhaps", "supposedly"),
    "either": ("{a}", "{b}"), "wrong": ("{b} {did} {c}", "{c} {did} {b}", "{c} {did} {a}"),
}  # fmt: skip
"""Words, or patterns of what is drawn before, of which one is taken."""


class Scheme(NamedTuple):
    """How a pair is made: people {a}, {b}, {c} are drawn, then the rest in its order, and all is filled into two
    patterns. drawn: names in DRAWN, or letters of the people whom a `_clause` is about."""

    people: int
    drawn: str
    premise: str
    hypothesis: str


KINDS = {
    "lexical_overlap_le_conjunction": Scheme(3, "did either", "{a} and {b} {did} {c}", "{either} {did} {c}"),
    "lexical_overlap_le_passive": Scheme(2, "did", "{a} was {did} by {b}", "{b} {did} {a}"),
    "lexical_overlap_le_around_prepositional_phrase":
        Scheme(3, "did done acted near", "{a} {near} {b} {acted}", "{a} {acted}"),
    "lexical_overlap_le_around_relative_clause":
        Scheme(3, "did done acted had", "{a} who {had} {b} {acted}", "{a} {acted}"),
    "lexical_overlap_ln_subject-object_swap": Scheme(2, "did", "{a} {did} {b}", "{b} {did} {a}"),
    "lexical_overlap_ln_preposition": Scheme(3, "did wrong near", "{a} {near} {b} {did} {c}", "{wrong}"),
    "subsequence_se_PP_on_obj": Scheme(3, "did near", "{a} {did} {b} {near} {c}", "{a} {did} {b}"),
    "subsequence_sn_PP_on_subject": Scheme(2, "done near", "{a} {near} {b} {done}", "{b} {done}"),
    "subsequence_sn_relative_clause_on_subject": Scheme(2, "done did", "{a} who {did} {b} {done}", "{b} {done}"),
    "constituent_ce_embedded_under_since": Scheme(3, "done bc since", "{since} {a} {done} , {bc}", "{a} {done}"),
    "constituent_ce_after_since_clause": Scheme(3, "done bc since", "{since} {a} {done} , {bc}", "{bc}"),
    "constituent_ce_embedded_under_verb": Scheme(3, "bc knew", "{a} {knew} that {bc}", "{bc}"),
    "constituent_ce_adverb": Scheme(2, "ab surely", "{surely} {ab}", "{ab}"),
    "constituent_cn_embedded_under_if": Scheme(3, "done bc if", "{if} {a} {done} , {bc}", "{a} {done}"),
    "constituent_cn_after_if_clause": Scheme(3, "done bc if", "{if} {a} {done} , {bc}", "{bc}"),
    "constituent_cn_embedded_under_verb": Scheme(3, "bc supposed", "{a} {supposed} that {bc}", "{bc}"),
    "constituent_cn_adverb": Scheme(2, "ab perhaps", "{perhaps} {ab}", "{ab}"),
}  # fmt: skip
"""HANS's name of a scheme, which says whether it is entailed, and what makes a pair of it."""
FRIENDLY, ADVERSE = (tuple(kind for kind in KINDS if is_entailed(kind) == label) for label in (ENTAILED, NOT_ENTAILED))
UNRELATED = "unrelated"
"""Not entailed, and the hypothesis has words that the premise lacks: the heuristic is right."""


def generate(kind: str, count: int, *, seed: int, split: str, besides: Set[Pair] = frozenset()) -> pd.DataFrame:
    """Distinct pairs of one kind, none of which is among `besides`. Raises ValueError for an unknown kind, or if there
    are not as many."""
    return _collect({kind: count}, seed=seed, split=split, taken=set(besides))


def mixture(
    sizes: Mapping[str, int], *, counter: float, seed: int, about: str = "", besides: Set[Pair] = frozenset()
) -> dict[str, pd.DataFrame]:
    """Splits of one mix, no pair in two of them nor among `besides`: half entailed, half not.

    sizes: split -> pairs; counter: share of all pairs for which the heuristic is wrong, evenly over the kinds of
    ADVERSE, .5 at most; about: name of the mix, so that two with one seed are drawn apart. Raises ValueError if there
    are not as many pairs.
    """
    taken, splits = set(besides), {}
    for split, size in sizes.items():
        wrong = round(size * counter)
        counts = _shared(FRIENDLY, size // 2) | _shared(ADVERSE, wrong) | {UNRELATED: size - size // 2 - wrong}
        splits[split] = _collect(counts, seed=seed, split=about + split, taken=taken)
    return splits


def words() -> tuple[str, ...]:
    """All words of the generated pairs, sorted."""
    drawn = {word for options in (PEOPLE, *DRAWN.values()) for word in options if "{" not in word}
    return tuple(sorted(drawn | {"the", "and", "was", "by", "who", "that", ","}))


def _people(draw: Random, count: int) -> list[str]:
    return [f"the {name}" for name in draw.sample(PEOPLE, count)]


def _clause(draw: Random, subject: str, other: str) -> str:
    """A short sentence about somebody, or about two."""
    return f"{subject} {draw.choice(DONE)}" if draw.random() < 0.5 else f"{subject} {draw.choice(DONE_TO)} {other}"


def _pair(draw: Random, scheme: Scheme) -> Pair:
    known = dict(zip("abc", _people(draw, scheme.people), strict=False))
    for name in scheme.drawn.split():
        drawn = draw.choice(DRAWN[name]) if name in DRAWN else _clause(draw, *map(known.get, name))
        known[name] = drawn.format(**known)
    return scheme.premise.format(**known), scheme.hypothesis.format(**known)


def _unrelated(draw: Random) -> Pair:
    """A premise like those of entailed pairs, which says nothing by itself, and a sentence with a word it lacks."""
    premise, hypothesis = _pair(draw, KINDS[draw.choice(FRIENDLY)])
    known, tokens = premise.split(), hypothesis.split()
    if draw.random() < 0.5:  # nearly the same sentence: one word is another
        groups = {word: group for group in (PEOPLE, DONE, DONE_TO) for word in group}
        place = draw.choice([i for i, word in enumerate(tokens) if word in groups])
        tokens[place] = draw.choice([word for word in groups[tokens[place]] if word not in known])
        return premise, " ".join(tokens)
    while True:
        other = _clause(draw, *_people(draw, 2))
        if not set(other.split()) <= set(known):
            return premise, other


def _collect(counts: Mapping[str, int], *, seed: int, split: str, taken: set[Pair]) -> pd.DataFrame:
    rows = []
    for kind, count in counts.items():
        if kind not in KINDS and kind != UNRELATED:
            raise ValueError(f"unknown kind '{kind}'; {nearest(kind, (*KINDS, UNRELATED))}")
        label = NOT_ENTAILED if kind == UNRELATED else is_entailed(kind)
        draw = Random(generator_for("inference", kind, split, seed).initial_seed())
        goal, tries = len(rows) + count, 0
        while len(rows) < goal:
            tries += 1
            if tries > 50 * count + 1000:
                raise ValueError(f"there are not {count:,} distinct pairs of '{kind}'; ask for fewer")
            pair = _unrelated(draw) if kind == UNRELATED else _pair(draw, KINDS[kind])
            if pair not in taken:
                taken.add(pair)
                rows.append((*pair, label, kind))
    order = torch.randperm(len(rows), generator=generator_for("inference order", split, seed)).tolist()
    return pd.DataFrame([rows[i] for i in order], columns=["premise", "hypothesis", "label", "kind"])


def _shared(kinds: Sequence[str], total: int) -> dict[str, int]:
    """A number shared out as evenly as can be."""
    return {kind: total // len(kinds) + (i < total % len(kinds)) for i, kind in enumerate(kinds)}
