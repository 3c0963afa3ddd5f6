"""Agreement in number: the language stimuli of *Break It Down* (section 6 and appendix F).

The templates (`templates.csv`) are those of Marvin & Linzen in which the noun of interest is the second word. The words
(`words.csv`) say whose number they have. Every combination of words is a sentence. Subject-verb agreement composes the
number of the subject (A) with that of its verb (B); reflexive anaphora the number of the antecedent (A) with that of
the pronoun (B).
Each comes as a singular and a plural task, so that only sentences that follow the rule are grammatical: in the others
exactly one of A and B has the wrong number, never both (with both flipped a sentence is grammatical again).

Flipping A changes the noun and, in subject relatives, the embedded verb that agrees with it ("the pilots that
love the minister is tall"); flipping B changes the main verb or the pronoun alone. So the sentences with B
flipped in one number are those with A flipped in the other. The attractor noun and its own verb agree with
each other and are singular or plural independently of the rest.
"""

import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product, starmap
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core import reference
from subnet_utils.core.messages import nearest
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, SPLITS, OddOneOut, composition, sets_of

WORDS, TEMPLATES = (reference.load("subnet_utils.tasks", name) for name in ("words", "templates"))
ENDS = (0.8, 0.9)
"""Where the first and the second split end, as shares of the sentences of a kind."""
PARTITION = 0
"""Seed of the partition that all sets of a task share."""


@functools.cache
def sentences(task: str) -> pd.DataFrame:
    """Every sentence of a language task (section 6, appendix F), one row each; all callers share this table.

    Columns: sentence (lower-case words, no punctuation), template, kind (int8: 0 grammatical, 1 = A flipped,
    2 = B flipped), item (a number for each distinct sentence). 37,870 subject-verb or 11,340 reflexive rows per kind.
    "themselves" stands once for himself and once for herself, as in the authors' data, so its sentences occur twice.
    Raises ValueError for an unknown language task, naming the nearest one.
    """
    if task not in LANGUAGE_TASKS:
        raise ValueError(f"unknown language task '{task}'; {nearest(task, LANGUAGE_TASKS)}")
    agreement, number = task.rsplit("-", 1)
    plural = number == "plural"
    rows = [
        (sentence, row.template, kind)
        for kind, (a, b) in enumerate([(plural, plural), (not plural, plural), (plural, not plural)])
        for row in TEMPLATES[TEMPLATES["agreement"] == agreement].itertuples()
        for sentence in _combinations(row.form, {"A": a, "B": b})
    ]
    table = pd.DataFrame(rows, columns=["sentence", "template", "kind"]).astype({"kind": "int8"})
    return table.assign(item=pd.factorize(table["sentence"])[0])


def _combinations(form: str, plural: dict[str, bool]) -> Iterator[str]:
    """All sentences of a form with {slots} with these numbers of A and B, and both of the attractor if there is one."""
    slots, by_place = re.findall(r"{(\w+)}", form), re.sub(r"{\w+}", "{}", form)  # twice as fast as by name
    for free in (False, True) if "attractor" in slots else (False,):
        words = [_words(slot, plural | {"free": free}) for slot in slots]
        yield from starmap(by_place.format, product(*words))


def _words(slot: str, plural: dict[str, bool]) -> pd.Series:
    """What may fill a slot, in the number of what it agrees with, if any."""
    rows = WORDS[WORDS["slot"] == slot]
    return rows["plural" if plural.get(rows["number"].iloc[0]) else "singular"]


def counts(task: str) -> pd.DataFrame:
    """Sentences per template and kind of a language task: columns task, template, kind, sentences, distinct."""
    groups = sentences(task).assign(task=task).groupby(["task", "template", "kind"], sort=False)["sentence"]
    return groups.agg(sentences="size", distinct="nunique").reset_index()


def splits(task: str, *, seed: int) -> pd.DataFrame:
    """A partition of a task's distinct sentences: rows of `sentences` with a column split (train, validation, test).

    The five sets of a task draw from the same partition, so nothing that a base model or a mask was trained
    on is ever evaluated (the authors' mask sets overlap their base and probe sets). Each kind is divided 8 : 1 : 1, at
    random over all templates. Raises ValueError for an unknown task.
    """
    distinct = sentences(task).drop_duplicates("item").reset_index(drop=True)
    return distinct.assign(split=_divided(distinct["kind"], _generator("splits", task, seed)))


def _divided(kinds: pd.Series, generator: torch.Generator) -> pd.Series:
    """The split of each unit, at random within each kind."""
    split = pd.Series(SPLITS[2], index=kinds.index)
    for _, units in kinds.groupby(kinds):
        order = units.index[torch.randperm(len(units), generator=generator).numpy()]
        first, second = (round(len(units) * end) for end in ENDS)
        split[order[:first]], split[order[first:second]] = SPLITS[:2]
    return split


@dataclass(frozen=True, eq=False)
class AgreementSet:
    """A set of n examples over the m distinct sentences that occur in it.

    sentences: m strings; kinds: int8 [m] the kind of each; examples: int64 [n, 4] rows of `sentences`, the
    odd one in column 3.
    """

    sentences: tuple[str, ...]
    examples: Tensor
    kinds: Tensor

    def encode(self, tokenizer: Any) -> OddOneOut:
        """The same set with its sentences as token ids [m, longest]; tokenizer: of the module `tokenization`."""
        return OddOneOut(tokenizer.encode(self.sentences), self.examples, self.kinds)


def generate(task: str, set_name: str, n: int, *, split: str, seed: int, as_printed: bool = False) -> AgreementSet:
    """n examples of a set of a language task: four sentences each, across templates and not minimal pairs.

    Sentences are drawn uniformly (sentences, not templates: no printed example is a simple sentence) and without
    replacement from those of the split (`splits`). Each is there as often as the grammar generates it: twice if it has
    a "themselves" that stands for himself and for herself, else once. The four of an example are distinct.

    as_printed: the authors' sampling, in which sets overlap. Every set is drawn from all rows of the grammar. Only its
    own three splits share no row. So a mask or a base may have been trained on test sentences of a probe, and the two
    rows of a "themselves" sentence may fall into different splits.

    Deterministic for its arguments. Raises ValueError for an unknown task, set or split, and for an n that is not
    positive or needs more sentences than the split has.

    >>> one = generate("sv-agreement-singular", "base", 2, split="test", seed=0)
    >>> (one.kinds[one.examples] > 0).tolist()  # which sentences have a wrong number
    [[False, False, False, True], [False, False, False, True]]
    """
    table = sentences(task)
    if split not in SPLITS:
        raise ValueError(f"task '{task}' has no split '{split}'; {nearest(split, SPLITS)}")
    if n < 1:
        raise ValueError(f"{task} {set_name}: n = {n} examples asked for; ask for at least 1")
    generator = _generator("generate", task, set_name, split, seed, PARTITION, as_printed)
    kinds = composition(task, set_name, n, both=False, generator=generator)
    if as_printed:
        pool = table[_divided(table["kind"], _generator("rows", task, set_name, PARTITION)) == split]
    else:  # all rows of the split's sentences: a merged one has two
        pool = table[table["item"].isin(splits(task, seed=PARTITION).query("split == @split")["item"])]
    items = _filled(kinds, pool, f"{task} {set_name} {split}", generator)
    used, examples = items.unique(return_inverse=True)
    shown = table.drop_duplicates("item").iloc[used.numpy()]
    return AgreementSet(tuple(shown["sentence"]), examples, torch.tensor(shown["kind"].to_numpy()))


def _filled(kinds: Tensor, pool: pd.DataFrame, name: str, generator: torch.Generator) -> Tensor:
    """A sentence for every cell of `kinds` [n, 4]: items [n, 4]. Each row of the pool is used once at most."""
    items = torch.empty_like(kinds)
    for kind in kinds.unique().tolist():
        cells = kinds == kind
        rows = torch.tensor(pool.loc[pool["kind"] == kind, "item"].to_numpy())
        needed, most, distinct = int(cells.sum()), int(cells.sum(dim=1).max()), len(rows.unique())
        if needed > len(rows) or most > distinct:
            need = f"n = {len(kinds)} needs {needed} sentences of kind {kind} ({most} distinct)"
            raise ValueError(f"{name}: {need}, the split has {len(rows)} ({distinct} distinct); ask for fewer")
        items[cells] = _dealt(rows, cells.nonzero()[:, 0], generator)
    return items


def _dealt(rows: Tensor, owners: Tensor, generator: torch.Generator) -> Tensor:
    """Deal `rows` [r] at random to c <= r cells of examples `owners` [c], no item twice to one: items [c]."""
    order = rows[torch.randperm(len(rows), generator=generator)]
    while True:
        hands = pd.Series((owners * (rows.max() + 1) + order[: len(owners)]).numpy())
        repeated = hands.duplicated().to_numpy().nonzero()[0].tolist()
        if not repeated:
            return order[: len(owners)]
        for cell in repeated:
            other = int(torch.randint(len(order), (), generator=generator))
            order[[cell, other]] = order[[other, cell]]


def _generator(*arguments: object) -> torch.Generator:
    """A random stream of its own for each list of arguments (a sha256 of them is the seed)."""
    digest = hashlib.sha256("|".join(map(str, arguments)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def gallery(task: str, *, seed: int) -> pd.DataFrame:
    """One example of each of the five sets, as appendix F prints them: a row per set, the odd sentence last.

    Ungrammatical sentences have the linguists' asterisk. In a mask set some items that follow its rule have one, too.
    """
    rows = []
    for name in sets_of(task):
        one = generate(task, name, 1, split="test", seed=seed)
        rows.append([task, name, *("*" * bool(one.kinds[i]) + one.sentences[i] for i in one.examples[0])])
    return pd.DataFrame(rows, columns=["task", "set", "1", "2", "3", "odd one out"])


def grammar_words() -> tuple[str, ...]:
    """All words of the grammar in both numbers, sorted ("taxi driver" is two words)."""
    phrases = [*TEMPLATES["form"].str.replace(r"{\w+}", "", regex=True), *WORDS["singular"], *WORDS["plural"]]
    return tuple(sorted({word for phrase in phrases for word in phrase.split()}))
