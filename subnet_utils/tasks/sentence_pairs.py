"""Pairs of sentences with labels, of several kinds, and what networks say of them (*The Heuristic Core*, section 2).

Pairs are a table with the columns premise, hypothesis, label, and kind: HANS's subcase, or another name.
"""

import pandas as pd

ENTAILED, NOT_ENTAILED = 0, 1
"""HANS's two labels; of PAWS, that two questions mean the same, or not."""
SAME, DIFFERENT = "paws_equivalent", "paws_non_equivalent"
"""The two kinds of PAWS."""
Pair = tuple[str, str]


def texts_of(pairs: pd.DataFrame) -> frozenset[Pair]:
    """Premises with their hypotheses."""
    return frozenset(zip(pairs["premise"], pairs["hypothesis"], strict=True))


def is_entailed(kind: str) -> int:
    """The label of all pairs of a HANS subcase: `le`, `se` and `ce` in its name are entailed, `ln`, `sn`, `cn` not. The
    same for the kinds of PAWS. Raises ValueError for another name."""
    if kind in (SAME, DIFFERENT):
        return ENTAILED if kind == SAME else NOT_ENTAILED
    for part in kind.split("_"):
        if part in ("le", "se", "ce", "ln", "sn", "cn"):
            return ENTAILED if part.endswith("e") else NOT_ENTAILED
    raise ValueError(f"'{kind}' is no subcase of HANS; its name must have one of le, se, ce, ln, sn, cn")
