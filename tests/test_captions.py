"""Captions travel alone, into figures/*.json and the report: each says by itself what its figure shows."""

import pytest

from subnet_utils.core.papers import papers

ELSEWHERE = (
    "T1",
    "T2",
    "The same,",
    "The same for",
    "the same method",
    "can show",
    "the lower sparsity",
    "first seed,",
)
"""What only the notebook's text explains, or the figure before."""


@pytest.mark.parametrize("paper", papers())
def test_no_caption_leans_on_another_or_on_the_text(paper):
    for name, (text, _) in papers()[paper].captions.items():
        assert not [words for words in ELSEWHERE if words in text], name
        assert text[-1] in ".}", name
