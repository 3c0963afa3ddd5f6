"""Agreement in number: the language stimuli of *Break It Down* (section 6 and appendix F).

The templates are those of Marvin & Linzen in which the noun of interest is the second word. Every combination of words
is a sentence. Subject-verb agreement composes the number of the subject (A) with that of its
verb (B); reflexive anaphora the number of the antecedent (A) with that of the pronoun (B). Each comes as a
singular and a plural task, so that only sentences that follow the rule are grammatical: in the others exactly
one of A and B has the wrong number, never both (with both flipped a sentence is grammatical again).

Flipping A changes the noun and, in subject relatives, the embedded verb that agrees with it ("the pilots that
love the minister is tall"); flipping B changes the main verb or the pronoun alone. So the sentences with B
flipped in one number are those with A flipped in the other. The attractor noun and its own verb agree with
each other and are singular or plural independently of the rest.
"""

import functools
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from string import Formatter
from typing import Protocol

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.messages import nearest
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut, composition, sets_of


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


SUBJECTS = _words("author, pilot, surgeon, farmer, manager, customer, officer, teacher, senator, consultant")
ATTRACTORS = _words("guard, chef, architect, skater, dancer, minister, taxi driver, assistant, executive, parent")
THINGS = _words("movie, book, game, song, picture, painting, novel, poem, show")
EMBEDDED_VERBS = _words("likes, admires, hates, loves")
ANIMATE_VERBS = _words("laughs, swims, smiles, is tall, is old, is young, is short")
INANIMATE_VERBS = _words("is good, is bad, is new, is popular, is unpopular, brings joy to people, interests people")
ANIMATE_PREPOSITIONS = _words("next to, behind, in front of, near, to the side of, across from")
INANIMATE_PREPOSITIONS = _words("from, by")
REFLEXIVE_VERBS = _words("hurt, injured, congratulated, embarrassed, disguised, hated, doubted")
PRONOUNS = _words("himself, herself")

SPLITS = ("train", "validation", "test")
FRACTIONS = (0.8, 0.1, 0.1)


def plural_noun(noun: str) -> str:
    """Plural of a noun of the grammar: all of them are regular ("taxi driver" -> "taxi drivers")."""
    return noun + "s"


def plural_verb(verb: str) -> str:
    """Plural of a verb phrase: "is old" -> "are old", "interests people" -> "interest people"."""
    first, *rest = verb.split()
    return " ".join(["are" if first == "is" else first.removesuffix("s"), *rest])


def plural_pronoun(pronoun: str) -> str:
    """Plural of a reflexive pronoun: himself and herself merge."""
    return "themselves"


# slot -> (whose number it has, how its plural is made). "free" is the attractor's number; a slot that is not
# listed has no number. `relative` is the embedded verb of a subject relative, which agrees with the subject.
NUMBERED_SLOTS = {
    "subject": ("A", plural_noun),
    "relative": ("A", plural_verb),
    "main": ("B", plural_verb),
    "pronoun": ("B", plural_pronoun),
    "attractor": ("free", plural_noun),
    "embedded": ("free", plural_verb),
}
ANIMATE = {
    "subject": SUBJECTS,
    "relative": EMBEDDED_VERBS,
    "main": ANIMATE_VERBS,
    "pronoun": PRONOUNS,
    "attractor": ATTRACTORS,
    "embedded": EMBEDDED_VERBS,
    "preposition": ANIMATE_PREPOSITIONS,
    "reflexive": REFLEXIVE_VERBS,
}
INANIMATE = ANIMATE | {"subject": THINGS, "main": INANIMATE_VERBS, "preposition": INANIMATE_PREPOSITIONS}


@dataclass(frozen=True)
class Template:
    """A sentence form with {slots}, and the words (in the singular) that may fill each slot."""

    name: str
    form: str
    words: dict[str, tuple[str, ...]]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots, in the order of the form."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.form) if name)

    def sentences(self, *, a_plural: bool, b_plural: bool) -> Iterator[str]:
        """All sentences with these numbers of A and B, and both numbers of the attractor if there is one."""
        slots, by_place = self.slots, re.sub(r"{\w+}", "{}", self.form)  # twice as fast as by name
        for free_plural in (False, True) if "attractor" in slots else (False,):
            plural = {"A": a_plural, "B": b_plural, "free": free_plural}
            yield from starmap(by_place.format, product(*(self._forms(slot, plural) for slot in slots)))

    def _forms(self, slot: str, plural: dict[str, bool]) -> list[str]:
        whose, inflect = NUMBERED_SLOTS.get(slot, (None, None))
        return [inflect(word) if plural.get(whose) else word for word in self.words[slot]]


OBJECT_RELATIVE = "the {subject} that the {attractor} {embedded} {main}"
OBJECT_RELATIVE_BARE = "the {subject} the {attractor} {embedded} {main}"
PREPOSITIONAL = "the {subject} {preposition} the {attractor} {main}"
SUBJECT_RELATIVE = "the {subject} that {relative} the {attractor} {main}"
REFLEXIVE_RELATIVE = "the {subject} that the {attractor} {embedded} {reflexive} {pronoun}"
TEMPLATES: dict[str, tuple[Template, ...]] = {
    "sv-agreement": (
        Template("object relative, animate", OBJECT_RELATIVE, ANIMATE),
        Template("object relative, inanimate", OBJECT_RELATIVE, INANIMATE),
        Template("object relative without that, animate", OBJECT_RELATIVE_BARE, ANIMATE),
        Template("object relative without that, inanimate", OBJECT_RELATIVE_BARE, INANIMATE),
        Template("prepositional, animate", PREPOSITIONAL, ANIMATE),
        Template("prepositional, inanimate", PREPOSITIONAL, INANIMATE),
        Template("subject relative", SUBJECT_RELATIVE, ANIMATE),
        Template("simple", "the {subject} {main}", ANIMATE),
    ),
    "anaphora": (
        Template("reflexive object relative", REFLEXIVE_RELATIVE, ANIMATE),
        Template("simple reflexive", "the {subject} {reflexive} {pronoun}", ANIMATE),
    ),
}
"""Templates of each agreement: eight for subject-verb, two for reflexives."""


def _paper_sizes(task: str) -> dict[str, dict[str, int]]:
    subject_verb = task.startswith("sv-agreement")
    train, validation, test, probe = (9500, 500, 1000, 300) if subject_verb else (2500, 200, 200, 200)
    sizes = {"train": train, "validation": validation, "test": test}
    probes = {"validation": probe, "test": probe}
    return {name: dict(probes if name.startswith("probe") else sizes) for name in sets_of(task)}


PAPER_SIZES: dict[str, dict[str, dict[str, int]]] = {task: _paper_sizes(task) for task in LANGUAGE_TASKS}
"""Examples of each task, set and split in appendix F; the probe sets have no train split."""


@functools.cache
def _table(task: str) -> pd.DataFrame:
    """The table of `sentences`, with a column `item`: a number for each distinct sentence."""
    if task not in LANGUAGE_TASKS:
        raise ValueError(f"unknown language task '{task}'; {nearest(task, LANGUAGE_TASKS)}")
    agreement, number = task.rsplit("-", 1)
    plural = number == "plural"
    rows = [
        (sentence, template.name, kind)
        for kind, (a, b) in enumerate([(plural, plural), (not plural, plural), (plural, not plural)])
        for template in TEMPLATES[agreement]
        for sentence in template.sentences(a_plural=a, b_plural=b)
    ]
    table = pd.DataFrame(rows, columns=["sentence", "template", "kind"]).astype({"kind": "int8"})
    return table.assign(item=pd.factorize(table["sentence"])[0])


def sentences(task: str) -> pd.DataFrame:
    """Every sentence of a language task (section 6, appendix F), one row each.

    Columns: sentence (lower-case words, no punctuation), template, kind (int8: 0 grammatical, 1 = A flipped,
    2 = B flipped). 37,870 subject-verb or 11,340 reflexive rows per kind. "themselves" stands once for
    himself and once for herself, as in the authors' data, so its sentences occur twice; `counts` gives the
    distinct ones.
    Raises ValueError for an unknown language task, naming the nearest one.
    """
    return _table(task)[["sentence", "template", "kind"]]


def counts(task: str) -> pd.DataFrame:
    """Sentences per template and kind of a language task: columns template, kind, sentences, distinct."""
    groups = _table(task).groupby(["template", "kind"], sort=False)["sentence"]
    return groups.agg(sentences="size", distinct="nunique").reset_index()


def splits(task: str, *, seed: int, fractions: Sequence[float] = FRACTIONS) -> pd.DataFrame:
    """A partition of a task's distinct sentences: columns sentence, kind, split (train, validation, test).

    The five sets of a task draw from the same partition, so nothing that a base model or a mask was trained
    on is ever evaluated (the authors' mask sets overlap their base and probe sets). Each kind is divided by
    `fractions`, at random over all templates. `seed` is the `split_seed` of `generate`.
    Raises ValueError for an unknown task or for fractions that do not make a partition.
    """
    distinct = _table(task).drop_duplicates("item")
    codes = _divide(distinct["kind"], fractions, _generator("splits", task, seed))
    names = [SPLITS[code] for code in codes.tolist()]
    return distinct[["sentence", "kind"]].assign(split=names).reset_index(drop=True)


def _divide(kinds: pd.Series, fractions: Sequence[float], generator: torch.Generator) -> Tensor:
    """Split number (0 to 2) of each unit [m]: within each kind a random `fractions` of the units."""
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1):
        raise ValueError(f"fractions {tuple(fractions)}: give three positive shares, {SPLITS}, with sum 1")
    kinds = torch.tensor(kinds.to_numpy())
    codes = torch.empty(len(kinds), dtype=torch.int64)
    for kind in kinds.unique():
        units = (kinds == kind).nonzero().flatten()
        units = units[torch.randperm(len(units), generator=generator)]
        first, second = (round(len(units) * share) for share in (fractions[0], fractions[0] + fractions[1]))
        codes[units] = (torch.arange(len(units))[:, None] >= torch.tensor([first, second])).sum(dim=1)
    return codes


class Tokenizer(Protocol):
    """Turns sentences into token ids; 0 is padding."""

    size: int

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Token ids int64 [m, longest] of m sentences: [CLS] ... [SEP], padded with 0 to the longest."""


@dataclass(frozen=True, eq=False)
class AgreementSet:
    """A set of n examples over the m distinct sentences that occur in it.

    sentences: m strings; kinds: int8 [m] the kind of each; examples: int64 [n, 4] rows of `sentences`, the
    odd one in column 3.
    """

    sentences: tuple[str, ...]
    examples: Tensor
    kinds: Tensor

    def encode(self, tokenizer: Tokenizer) -> OddOneOut:
        """The same set with its sentences as token ids [m, longest]."""
        return OddOneOut(tokenizer.encode(self.sentences), self.examples, self.kinds)


def generate(
    task: str,
    set_name: str,
    n: int,
    *,
    split: str,
    seed: int,
    split_seed: int = 0,
    fractions: Sequence[float] = FRACTIONS,
    as_printed: bool = False,
) -> AgreementSet:
    """n examples of a set of a language task: four sentences each, across templates and not minimal pairs.

    Sentences are drawn uniformly (sentences, not templates: no printed example is a simple sentence) and without
    replacement from those of the split. Each is there as often as the grammar generates it: twice if it has a
    "themselves" that stands for himself and for herself, else once. The four of an example are distinct. Sets with the
    same `split_seed` and `fractions` share one partition (`splits`), whatever their `seed`.

    as_printed: the authors' sampling, in which sets overlap. Every set is drawn from all rows of the grammar. Only its
    own three splits share no row. So a mask or a base may have been trained on test sentences of a probe, and the two
    rows of a "themselves" sentence may fall into different splits.

    Deterministic for its arguments. Raises ValueError for an unknown task, set or split, for bad fractions,
    and for an n that is not positive or needs more sentences than the split has.
    """
    table = _table(task)
    for name, value, valid in (("set", set_name, sets_of(task)), ("split", split, SPLITS)):
        if value not in valid:
            raise ValueError(f"task '{task}' has no {name} '{value}'; {nearest(value, valid)}")
    if n < 1:
        raise ValueError(f"{task} {set_name}: n = {n} examples asked for; ask for at least 1")
    source = ("rows", task, set_name, split_seed) if as_printed else ("splits", task, split_seed)
    units = table if as_printed else table.drop_duplicates("item")
    inside = units[(_divide(units["kind"], fractions, _generator(*source)) == SPLITS.index(split)).numpy()]
    # otherwise all rows of the split's sentences: a merged one has two
    pool = inside if as_printed else table[table["item"].isin(inside["item"])]
    generator = _generator("generate", task, set_name, split, seed, split_seed, as_printed)
    kinds = composition(task, set_name, n, both=False, generator=generator)
    return _collect(_fill(kinds, pool, f"{task} {set_name} {split}", generator), kinds, table)


def _fill(kinds: Tensor, pool: pd.DataFrame, name: str, generator: torch.Generator) -> Tensor:
    """A sentence for every cell of `kinds` [n, 4]: items [n, 4]. Each row of the pool is used once at most."""
    items = torch.empty_like(kinds)
    for kind in kinds.unique().tolist():
        cells = kinds == kind
        rows = torch.tensor(pool.loc[pool["kind"] == kind, "item"].to_numpy())
        needed, most, distinct = int(cells.sum()), int(cells.sum(dim=1).max()), len(rows.unique())
        if needed > len(rows) or most > distinct:
            need = f"n = {len(kinds)} needs {needed} sentences of kind {kind} ({most} distinct)"
            have = f"the split has {len(rows)} ({distinct} distinct)"
            raise ValueError(f"{name}: {need}, {have}; ask for fewer or give it a larger fraction")
        items[cells] = _deal(rows, cells.nonzero()[:, 0], generator)
    return items


def _deal(rows: Tensor, owners: Tensor, generator: torch.Generator) -> Tensor:
    """Deal `rows` [r] at random to c <= r cells of examples `owners` [c], no item twice to one: items [c].

    Only an item with two rows can come twice in an example. It is then exchanged for another row.
    """
    order = rows[torch.randperm(len(rows), generator=generator)]
    while True:
        hands = pd.Series((owners * (rows.max() + 1) + order[: len(owners)]).numpy())
        repeated = hands.duplicated().to_numpy().nonzero()[0].tolist()
        if not repeated:
            return order[: len(owners)]
        for cell in repeated:
            other = int(torch.randint(len(order), (), generator=generator))
            order[[cell, other]] = order[[other, cell]]


def _collect(items: Tensor, kinds: Tensor, table: pd.DataFrame) -> AgreementSet:
    used, examples = items.unique(return_inverse=True)
    kind_of = torch.empty(len(used), dtype=torch.int8)
    kind_of[examples] = kinds.to(torch.int8)
    words = table.drop_duplicates("item")["sentence"].iloc[used.numpy()]
    return AgreementSet(tuple(words), examples, kind_of)


def _generator(*arguments: object) -> torch.Generator:
    """A random stream of its own for each list of arguments (a sha256 of them is the seed)."""
    digest = hashlib.sha256("|".join(map(str, arguments)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def gallery(task: str, *, seed: int, split: str = "test") -> pd.DataFrame:
    """One example of each of the five sets, as appendix F prints them: a row per set, the odd sentence last.

    Ungrammatical sentences have the linguists' asterisk. In a mask set some items that follow its rule have one, too.
    Raises ValueError for an unknown task or split.
    """
    rows = {}
    for name in sets_of(task):
        data = generate(task, name, 1, split=split, seed=seed)
        rows[name] = [("*" if data.kinds[i] else "") + data.sentences[i] for i in data.examples[0].tolist()]
    columns = ["1", "2", "3", "odd one out"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("set")


def grammar_words() -> tuple[str, ...]:
    """All words of the grammar in both numbers, sorted ("taxi driver" is two words)."""
    phrases: set[str] = set()
    for template in (template for templates in TEMPLATES.values() for template in templates):
        phrases.update(text for text, _, _, _ in Formatter().parse(template.form))
        for slot in template.slots:
            _, inflect = NUMBERED_SLOTS.get(slot, (None, str))
            phrases.update(form for word in template.words[slot] for form in (word, inflect(word)))
    return tuple(sorted({word for phrase in phrases for word in phrase.split()}))
