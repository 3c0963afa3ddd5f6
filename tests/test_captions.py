"""Captions travel alone, into figures/*.json and the report: each says by itself what its figure shows."""

import ast

import nbformat
import pytest

from subnet_utils.core.study import ROOT

NOTEBOOKS = ("07_subtask_induction", "07b_shape_bias", "08_heuristic_core")
ELSEWHERE = ("T1", "T2", "The same,", "the same method", "can show", "the lower sparsity", "first seed")
"""What only the notebook's text explains, or the figure before."""


def captions(notebook: str) -> dict[str, str]:
    """Source of all captions of a code cell, by the cell's source."""
    found = {}
    for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            nodes = list(ast.walk(ast.parse(cell.source)))
            values = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "caption"]
            assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
            values += [node.value for node in assigned if "caption" in ast.unparse(node).split("=")[0]]
            found[cell.source] = " ".join(ast.unparse(value) for value in values)
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_no_caption_leans_on_another_or_on_the_text(notebook):
    for text in captions(notebook).values():
        assert not [words for words in ELSEWHERE if words in text], text


@pytest.mark.parametrize(
    ("notebook", "name", "said"),
    [
        ("02_discover_masks", "mask_search", ("Test Other less that on Test Target, each at least .25",)),
        ("03_ablations", "taken_apart_", ("Framed: the odd one", "bold: the answer", "whole test")),
        ("03_ablations", "bases_needed", ("singular and plural pooled",)),
        ("04_random_controls", "assembled", ("ticks their means", "Diamond:", "different stages")),
        ("04_random_controls", 'by_size"', ("singular and plural pooled", "less than .3%")),
        ("06_overlap", "weight_map_", ("described",)),
        ("07_subtask_induction", "induction_figure_3", ("{moved}", "{bars}")),
        ("07_subtask_induction", "induction_figure_6", ("{moved}", "{bars}")),
        ("07_subtask_induction", "induction_figure_7", ("{moved}", "{bars}", "(open)")),
        ("07_subtask_induction", "induction_figure_{number}", ("subtask_induction.caption", "{bars}")),
        ("07_subtask_induction", "induction_variants", ("subtask_induction.caption", "{bars}", "Gray:")),
        ("07b_shape_bias", "shape_measures_", ("{model}", "robustness:", "shape bias:", "95% interval")),
        ("07b_shape_bias", "shape_by_class", ("mean over seeds (", "nunique()})")),
        ("07b_shape_bias", "shape_votes_", ("{model}", "{seed}", "subnetwork alone")),
        ("08_heuristic_core", "core_figure_6", ("Mixed:", "share of heads and MLPs", "on the grid")),
        ("08_heuristic_core", "core_own_figure_6", ("Mixed:", "balanced:", "share of heads and MLPs", "on the grid")),
        ("08_heuristic_core", "core_own_checkpoints", ("side by side",)),
        ("08_heuristic_core", "core_own_figure_3", ("sparsities[0]",)),
        ("08_heuristic_core", "core_figure_12", ("authors' twelve",)),
        ("08_heuristic_core", "core_own_learning", ("Widths",)),
        ("08_heuristic_core", "core_own_figure_5", ("how many heads (numbers)",)),
        ("08_heuristic_core", "core_own_figure_7", ("whose_maps",)),
    ],
)
def test_captions_define_what_their_figures_show(notebook, name, said):
    (text,) = [text for source, text in captions(notebook).items() if f'"{name}' in source]
    assert not [words for words in said if words not in text], text
