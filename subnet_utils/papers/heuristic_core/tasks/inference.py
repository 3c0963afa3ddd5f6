"""Natural-language inference: does a premise entail a hypothesis? (*The Heuristic Core*, section 2)

Where HANS (McCoy, Pavlick and Linzen 2019) is not at hand, pairs are generated after its schemes, in words of our own:
lexical overlap (all words of the hypothesis are in the premise), subsequence (they stand there in one piece) and
constituent (as a clause of its own), each in kinds that are entailed and kinds that are not. A training set consists of
pairs for which the heuristic "all words are known, so yes" is right, and of a stated share of pairs for which it is
wrong.
"""

import random
from collections.abc import Callable, Mapping, Sequence, Set

import pandas as pd
import torch

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import ENTAILED, NOT_ENTAILED, Pair

PEOPLE = ("baker", "clerk", "dancer", "driver", "farmer", "guard", "miner", "monk", "nurse", "pilot", "poet", "sailor",
          "singer", "student", "tailor", "writer")  # fmt: skip
DONE_TO = ("admired", "blamed", "called", "followed", "greeted", "helped", "paid", "praised", "thanked", "watched")
DONE = ("argued", "danced", "laughed", "left", "sang", "slept", "smiled", "waited")
PLACES = ("behind", "beside", "near", "opposite")
KNOWN, SUPPOSED = ("knew", "learned", "noticed", "realized"), ("assumed", "claimed", "hoped", "suspected")
SINCE, IF = ("because", "since", "while"), ("if", "unless", "whenever")
SURELY, PERHAPS = ("clearly", "luckily", "sadly"), ("maybe", "perhaps", "supposedly")

Draw = random.Random


def _people(draw: Draw, count: int) -> list[str]:
    return [f"the {name}" for name in draw.sample(PEOPLE, count)]


def _clause(draw: Draw, subject: str, other: str) -> str:
    """A short sentence about somebody, or about two."""
    return f"{subject} {draw.choice(DONE)}" if draw.random() < 0.5 else f"{subject} {draw.choice(DONE_TO)} {other}"


def _conjunction(draw: Draw) -> Pair:
    a, b, c = _people(draw, 3)
    verb = draw.choice(DONE_TO)
    return f"{a} and {b} {verb} {c}", f"{draw.choice((a, b))} {verb} {c}"


def _passive(draw: Draw) -> Pair:
    a, b = _people(draw, 2)
    verb = draw.choice(DONE_TO)
    return f"{a} was {verb} by {b}", f"{b} {verb} {a}"


def _around_preposition(draw: Draw) -> Pair:
    a, b, c = _people(draw, 3)
    clause = draw.choice((f"{draw.choice(DONE_TO)} {c}", draw.choice(DONE)))
    return f"{a} {draw.choice(PLACES)} {b} {clause}", f"{a} {clause}"


def _around_clause(draw: Draw) -> Pair:
    a, b, c = _people(draw, 3)
    clause = draw.choice((f"{draw.choice(DONE_TO)} {c}", draw.choice(DONE)))
    return f"{a} who {draw.choice(DONE_TO)} {b} {clause}", f"{a} {clause}"


def _swap(draw: Draw) -> Pair:
    a, b = _people(draw, 2)
    verb = draw.choice(DONE_TO)
    return f"{a} {verb} {b}", f"{b} {verb} {a}"


def _preposition(draw: Draw) -> Pair:
    a, b, c = _people(draw, 3)
    verb = draw.choice(DONE_TO)
    wrong = draw.choice((f"{b} {verb} {c}", f"{c} {verb} {b}", f"{c} {verb} {a}"))
    return f"{a} {draw.choice(PLACES)} {b} {verb} {c}", wrong


def _place_of_object(draw: Draw) -> Pair:
    a, b, c = _people(draw, 3)
    verb = draw.choice(DONE_TO)
    return f"{a} {verb} {b} {draw.choice(PLACES)} {c}", f"{a} {verb} {b}"


def _place_of_subject(draw: Draw) -> Pair:
    a, b = _people(draw, 2)
    verb = draw.choice(DONE)
    return f"{a} {draw.choice(PLACES)} {b} {verb}", f"{b} {verb}"


def _clause_of_subject(draw: Draw) -> Pair:
    a, b = _people(draw, 2)
    verb = draw.choice(DONE)
    return f"{a} who {draw.choice(DONE_TO)} {b} {verb}", f"{b} {verb}"


def _subordinate(words: Sequence[str], *, main: bool) -> Callable[[Draw], Pair]:
    def make(draw: Draw) -> Pair:
        a, b, c = _people(draw, 3)
        first, second = f"{a} {draw.choice(DONE)}", _clause(draw, b, c)
        return f"{draw.choice(words)} {first} , {second}", second if main else first

    return make


def _embedded(verbs: Sequence[str]) -> Callable[[Draw], Pair]:
    def make(draw: Draw) -> Pair:
        a, b, c = _people(draw, 3)
        clause = _clause(draw, b, c)
        return f"{a} {draw.choice(verbs)} that {clause}", clause

    return make


def _adverb(words: Sequence[str]) -> Callable[[Draw], Pair]:
    def make(draw: Draw) -> Pair:
        a, b = _people(draw, 2)
        clause = _clause(draw, a, b)
        return f"{draw.choice(words)} {clause}", clause

    return make


KINDS: dict[str, tuple[int, Callable[[Draw], Pair]]] = {
    "lexical_overlap_le_conjunction": (ENTAILED, _conjunction),
    "lexical_overlap_le_passive": (ENTAILED, _passive),
    "lexical_overlap_le_around_prepositional_phrase": (ENTAILED, _around_preposition),
    "lexical_overlap_le_around_relative_clause": (ENTAILED, _around_clause),
    "lexical_overlap_ln_subject-object_swap": (NOT_ENTAILED, _swap),
    "lexical_overlap_ln_preposition": (NOT_ENTAILED, _preposition),
    "subsequence_se_PP_on_obj": (ENTAILED, _place_of_object),
    "subsequence_sn_PP_on_subject": (NOT_ENTAILED, _place_of_subject),
    "subsequence_sn_relative_clause_on_subject": (NOT_ENTAILED, _clause_of_subject),
    "constituent_ce_embedded_under_since": (ENTAILED, _subordinate(SINCE, main=False)),
    "constituent_ce_after_since_clause": (ENTAILED, _subordinate(SINCE, main=True)),
    "constituent_ce_embedded_under_verb": (ENTAILED, _embedded(KNOWN)),
    "constituent_ce_adverb": (ENTAILED, _adverb(SURELY)),
    "constituent_cn_embedded_under_if": (NOT_ENTAILED, _subordinate(IF, main=False)),
    "constituent_cn_after_if_clause": (NOT_ENTAILED, _subordinate(IF, main=True)),
    "constituent_cn_embedded_under_verb": (NOT_ENTAILED, _embedded(SUPPOSED)),
    "constituent_cn_adverb": (NOT_ENTAILED, _adverb(PERHAPS)),
}
"""HANS's name of a scheme -> its label and what makes a pair of it."""
FRIENDLY = tuple(kind for kind, (label, _) in KINDS.items() if label == ENTAILED)
ADVERSE = tuple(kind for kind, (label, _) in KINDS.items() if label == NOT_ENTAILED)
UNRELATED = "unrelated"
"""Not entailed, and the hypothesis has words that the premise lacks: the heuristic is right."""


def generate(kind: str, count: int, *, seed: int, split: str, besides: Set[Pair] = frozenset()) -> pd.DataFrame:
    """Distinct pairs of one kind, none of which is among `besides`.

    Raises ValueError for an unknown kind, or if there are not as many.
    """
    return _collect({kind: count}, seed=seed, split=split, taken=set(besides))


def mixture(
    sizes: Mapping[str, int], *, counter: float, seed: int, about: str = "", besides: Set[Pair] = frozenset()
) -> dict[str, pd.DataFrame]:
    """Splits of one mix, no pair in two of them nor among `besides`: half entailed, half not.

    sizes: split -> pairs; counter: share of all pairs for which the heuristic is wrong, evenly over the kinds of
    ADVERSE; about: name of the mix, so that two with one seed are drawn apart. Raises ValueError for a share outside
    [0, .5], or if there are not as many pairs.
    """
    if not 0 <= counter <= 0.5:
        raise ValueError(f"counter {counter:g} is not possible; give a share of at least 0 and at most .5")
    taken = set(besides)
    splits = {}
    for split, size in sizes.items():
        wrong = round(size * counter)
        counts = _shared(FRIENDLY, size // 2) | _shared(ADVERSE, wrong) | {UNRELATED: size - size // 2 - wrong}
        splits[split] = _collect(counts, seed=seed, split=about + split, taken=taken)
    return splits


def words() -> tuple[str, ...]:
    """All words of the generated pairs, sorted."""
    groups = (PEOPLE, DONE_TO, DONE, PLACES, KNOWN, SUPPOSED, SINCE, IF, SURELY, PERHAPS)
    return tuple(sorted({word for group in groups for word in group} | {"the", "and", "was", "by", "who", "that", ","}))


def _unrelated(draw: Draw) -> Pair:
    """A premise like those of entailed pairs, which says nothing by itself, and a sentence with a word it lacks."""
    premise, hypothesis = KINDS[draw.choice(FRIENDLY)][1](draw)
    missing = [word for group in (PEOPLE, DONE, DONE_TO) for word in group if word not in premise.split()]
    tokens = hypothesis.split()
    if draw.random() < 0.5:  # nearly the same sentence: one word is another
        groups = {word: group for group in (PEOPLE, DONE, DONE_TO) for word in group}
        place = draw.choice([i for i, word in enumerate(tokens) if word in groups])
        own = [word for word in groups[tokens[place]] if word in missing]
        tokens[place] = draw.choice(own)
        return premise, " ".join(tokens)
    while True:
        a, b = _people(draw, 2)
        other = _clause(draw, a, b)
        if not set(other.split()) <= set(premise.split()):
            return premise, other


def _collect(counts: Mapping[str, int], *, seed: int, split: str, taken: set[Pair]) -> pd.DataFrame:
    rows = []
    for kind, count in counts.items():
        if kind not in KINDS and kind != UNRELATED:
            raise ValueError(f"unknown kind '{kind}'; {nearest(kind, (*KINDS, UNRELATED))}")
        label, make = KINDS.get(kind, (NOT_ENTAILED, _unrelated))
        draw = Draw(generator_for("inference", kind, split, seed).initial_seed())
        found, tries = 0, 0
        while found < count:
            tries += 1
            if tries > 50 * count + 1000:
                raise ValueError(f"there are not {count:,} distinct pairs of '{kind}'; ask for fewer")
            pair = make(draw)
            if pair not in taken:
                taken.add(pair)
                rows.append((*pair, label, kind))
                found += 1
    order = torch.randperm(len(rows), generator=generator_for("inference order", split, seed)).tolist()
    return pd.DataFrame([rows[i] for i in order], columns=["premise", "hypothesis", "label", "kind"])


def _shared(kinds: Sequence[str], total: int) -> dict[str, int]:
    """A number shared out as evenly as can be."""
    return {kind: total // len(kinds) + (i < total % len(kinds)) for i, kind in enumerate(kinds)}
