"""Agreement in number, rule by rule: sentences in which the word is hidden whose form the rule decides.

Templates and words are those of `agreement`, and one template more, in which two rules act. A language model that knows
a rule finds the right form of the hidden word likelier than the wrong one (Marvin and Linzen 2018; Goldberg 2019).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import generator_for
from subnet_utils.tasks.agreement import TEMPLATES, WORDS
from subnet_utils.tasks.hidden_words import PADDING, word_positions
from subnet_utils.tasks.tokenization import Vocabulary, WordPiece, tokenizer

RULES = {
    "relative verb": {"relative"},
    "embedded verb": {"embedded"},
    "main verb": {"verb", "thing_verb"},
    "pronoun": {"pronoun"},
    "main verb and pronoun": {"verb", "pronoun"},
}
"""Name of a rule -> slots of the templates whose form it decides."""
TWO_RULES = "the {subject} that {reflexive} {pronoun} {verb}"
FORMS = (*TEMPLATES["form"], TWO_RULES)
SLOTS = {form: re.findall(r"{(\w+)}", form) for form in FORMS}
FILLERS = {
    slot: list(zip(rows["number"], rows["singular"], rows["plural"], strict=True))
    for slot, rows in WORDS.groupby("slot", sort=False)
}
PEOPLE = [both for slot in ("subject", "attractor") for _, *both in FILLERS[slot]]
READ = FILLERS | {slot: [(FILLERS[slot][0][0], *both) for both in PEOPLE] for slot in ("subject", "attractor")}
"""Fillers of the slots when sentences are read: people stand in all places, so that some verb tells their number."""
HIDDEN = 2
"""Words of each sentence that are hidden when sentences are read; the shortest one has three."""
LONGEST = 16
"""Tokens to which sentences are filled up, so that those of several rules fit together."""
MANY = 2**40
"""Numbers are drawn below this; what is left of them after a division is as good as even."""


class Cloze(NamedTuple):
    """Token ids: sentences [m, L] with the hidden words' token in g places; right and wrong forms [m, g] for these."""

    inputs: Tensor
    right: Tensor
    wrong: Tensor


@cache
def cloze(rule: str, tested: int, taught: int, pretrained: str | None = None) -> tuple[Cloze, Cloze]:
    """Sentences of a rule that test it, and at most so many that teach it. With the words hidden none is among both.

    pretrained: whose tokens these are, see `tokenization.tokenizer`. Sentences whose two forms differ in more tokens
    than words are left out; the word-level vocabulary has none. Raises ValueError for an unknown rule, and for so many
    tests that nothing is left to teach.
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule '{rule}'; {nearest(rule, RULES)}")
    test = list(_pairs(rule, tested, generator_for("agreement rule", rule, "tested")))
    seen = {_open(*both) for both in test}
    drawn = _pairs(rule, taught, generator_for("agreement rule", rule, "taught"))
    teach = [both for both in drawn if _open(*both) not in seen]
    if not teach:
        raise ValueError(f"{tested} sentences that test '{rule}' leave none that teaches it; ask for fewer")
    tokens = tokenizer(pretrained)
    return _hidden(test, rule, tokens), _hidden(teach, rule, tokens)


def reading(count: int, pretrained: str | None = None, *, seed: int) -> tuple[Tensor, Tensor]:
    """Sentences [count, L] that do not teach the last two rules, with hidden words, and these [count, HIDDEN].

    All templates are in them. Main verbs and pronouns are singular or plural whatever they should agree with, and
    whatever the other one is; the other two rules are kept. pretrained: see `cloze`.
    """
    words, generator = tokenizer(pretrained), generator_for("agreement rules, reading", seed)
    tokens = _encoded([right for right, _ in _drawn(FORMS, set(), count, generator, read=True)], words)
    order = torch.rand(tokens.shape, generator=generator).masked_fill(~word_positions(tokens), -1.0)
    where = order.topk(HIDDEN, dim=1).indices.sort(dim=1).values
    return tokens.scatter(1, where, words.mask), tokens.gather(1, where)


def _open(right: str, wrong: str) -> tuple[str, ...]:
    """The words that two sentences have in common, with a gap where they differ."""
    return tuple(a if a == b else "" for a, b in zip(right.split(), wrong.split(), strict=True))


def _pairs(rule: str, count: int, generator: torch.Generator) -> Iterator[tuple[str, str]]:
    """Sentences with the right form, and with the wrong one. Two rules have their own template, one has all others."""
    slots = RULES[rule]
    forms = [form for form in FORMS if slots & set(SLOTS[form]) and (form == TWO_RULES) == ("and" in rule)]
    return _drawn(forms, slots, count, generator)


def _drawn(
    forms: Sequence[str], flipped: set[str], count: int, generator: torch.Generator, *, read: bool = False
) -> Iterator[tuple[str, str]]:
    """Sentences, each with its like in which the flipped slots have the other number. read: as `reading` has them."""
    fillers = READ if read else FILLERS
    most = max(map(len, SLOTS.values()))
    for which, a, b, free, *numbers in torch.randint(MANY, (count, 4 + most), generator=generator).tolist():
        form = forms[which % len(forms)]
        plural = {"A": a % 2, "B": (b if read else a) % 2, "free": free % 2, "": 0}
        own = {"pronoun": b // 2 % 2} if read else {}  # another number than that of the verb
        words = {slot: fillers[slot][n % len(fillers[slot])] for slot, n in zip(SLOTS[form], numbers, strict=False)}
        right = {slot: both[own.get(slot, plural[number])] for slot, (number, *both) in words.items()}
        wrong = {slot: both[1 - plural[number]] for slot, (number, *both) in words.items() if slot in flipped}
        yield form.format(**right), form.format(**right | wrong)


def _hidden(pairs: Iterable[tuple[str, str]], rule: str, words: Vocabulary | WordPiece) -> Cloze:
    """Sentences without the words in which the two of a pair differ."""
    right, wrong = _encoded([sentence for both in zip(*pairs, strict=True) for sentence in both], words).chunk(2)
    positions = 1 + ("and" in rule)
    rows = (right != wrong).sum(dim=1) == positions
    right, wrong = right[rows], wrong[rows]
    differ = right != wrong
    forms = (some[differ].view(-1, positions) for some in (right, wrong))
    return Cloze(right.masked_fill(differ, words.mask), *forms)


def _encoded(sentences: list[str], words: Vocabulary | WordPiece) -> Tensor:
    tokens = words.encode(sentences)
    return pad(tokens, (0, max(0, LONGEST - tokens.shape[1])), value=PADDING)
