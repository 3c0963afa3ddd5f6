"""Captions travel alone, into figures/*.json and the report: each says by itself what its figure shows."""

import ast

import nbformat
import pytest

from subnet_utils.core.study import ROOT

NOTEBOOKS = ("07_subtask_induction", "07b_shape_bias", "08_heuristic_core")
ELSEWHERE = ("T1", "T2", "The same,", "the same method", "can show", "the lower sparsity", "first seed")
"""What only the notebook's text explains, or the figure before."""


def captions(notebook: str) -> list[str]:
    """Source of all captions, a text for each code cell."""
    found = []
    for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            nodes = list(ast.walk(ast.parse(cell.source)))
            values = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "caption"]
            assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
            values += [node.value for node in assigned if "caption" in ast.unparse(node).split("=")[0]]
            found.append(" ".join(ast.unparse(value) for value in values))
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_no_caption_leans_on_another_or_on_the_text(notebook):
    for text in captions(notebook):
        assert not [words for words in ELSEWHERE if words in text], text
