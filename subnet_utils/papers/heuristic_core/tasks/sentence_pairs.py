"""Pairs of sentences with labels, of several kinds, and what networks say of them (*The Heuristic Core*, section 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ENTAILED, NOT_ENTAILED = 0, 1
"""HANS's two labels; of PAWS, that two questions mean the same, or not."""
SAME, DIFFERENT = "paws_equivalent", "paws_non_equivalent"
"""The two kinds of PAWS."""
Pair = tuple[str, str]


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs. labels: int64 [n]; kinds: HANS's subcase of each, or another name for where it comes from."""

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    labels: Tensor
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.premises)


def text_pairs(pairs: Pairs) -> frozenset[Pair]:
    """Premises with their hypotheses."""
    return frozenset(zip(pairs.premises, pairs.hypotheses, strict=True))


def take(pairs: Pairs, rows: Sequence[int]) -> Pairs:
    """Some of the pairs, in the order of `rows`."""
    return Pairs(
        tuple(pairs.premises[i] for i in rows),
        tuple(pairs.hypotheses[i] for i in rows),
        pairs.labels[list(rows)],
        tuple(pairs.kinds[i] for i in rows),
    )


def by_name(pairs: Pairs) -> dict[str, Pairs]:
    """The pairs of every kind, kinds in their order."""
    rows: dict[str, list[int]] = {}
    for i, kind in enumerate(pairs.kinds):
        rows.setdefault(kind, []).append(i)
    return {kind: take(pairs, own) for kind, own in rows.items()}


def first_of_each(pairs: Pairs, count: int) -> Pairs:
    """At most `count` pairs of every kind, in their order."""
    seen: dict[str, int] = {}
    rows = []
    for i, kind in enumerate(pairs.kinds):
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= count:
            rows.append(i)
    return take(pairs, rows)


def two_classes(predictions: Tensor, *, entailment: int = 0) -> Tensor:
    """Predictions among the classes of training as HANS's two: what is not entailment is not entailed (int64 [n]).

    entailment: which class it is. The largest of MNLI's three logits decides; those of neutral and contradiction are
    not summed.
    """
    return torch.where(predictions == entailment, ENTAILED, NOT_ENTAILED)


def by_kind(predictions: Tensor, pairs: Pairs) -> dict[str, float]:
    """Accuracy on every kind of pair, of predictions among HANS's two classes. Raises ValueError for an empty set."""
    if not len(pairs):
        raise ValueError("there are no pairs to judge; give a set that is not empty")
    right = (predictions == pairs.labels).double()
    places: dict[str, list[int]] = {}
    for i, kind in enumerate(pairs.kinds):
        places.setdefault(kind, []).append(i)
    return {kind: float(right[own].mean()) for kind, own in places.items()}


def is_entailed(kind: str) -> int:
    """The label of all pairs of a HANS subcase: `le`, `se` and `ce` in its name are entailed, `ln`, `sn`, `cn` not.

    The same for the kinds of PAWS.

    Raises ValueError for another name.
    """
    if kind in (SAME, DIFFERENT):
        return ENTAILED if kind == SAME else NOT_ENTAILED
    for part in kind.split("_"):
        if part in ("le", "se", "ce"):
            return ENTAILED
        if part in ("ln", "sn", "cn"):
            return NOT_ENTAILED
    raise ValueError(f"'{kind}' is no subcase of HANS; its name must have one of le, se, ce, ln, sn, cn")
