"""The mask search: the order of the grid, the score, the winner, and the authors' own choices."""

import math

import pytest

from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.break_it_down.search import Point, best, grid, score, selected_by_authors
from subnet_utils.papers.break_it_down.section import MaskTraining


def test_the_papers_grid():
    """Appendix C: learning rates x initializations x configurations, in the order that decides ties."""
    points = grid(MaskTraining(starts=("layer_1", "layer_3", "layer_4")))
    assert len(points) == len(set(points)) == 24
    assert points[:4] == [
        Point(0.01, 0.1, "layer_1"), Point(0.01, 0.1, "layer_3"), Point(0.01, 0.1, "layer_4"),
        Point(0.01, 0.05, "layer_1"),
    ]  # fmt: skip
    assert points[12:14] == [Point(0.0001, 0.1, "layer_1"), Point(0.0001, 0.1, "layer_3")]
    assert points[-1] == Point(0.0001, -0.05, "layer_4")
    assert grid(MaskTraining(starts=("a", "b"), masking="magnitude")) == [Point(0.01, 0.1, "a"), Point(0.01, 0.1, "b")]


@pytest.mark.parametrize(
    ("own_task", "target", "other", "expected"),
    [
        (0.95, 0.30, 0.90, 0.60),
        (0.95, 0.90, 0.30, -0.60),  # damage to the wrong subroutine counts against it
        (0.95, 0.00, 0.90, 0.65),  # below chance is chance: clamped to .25
        (0.95, 0.10, 0.20, 0.00),
        (0.95, 0.25, 1.00, 0.75),
        (0.90, 0.25, 1.00, 0.75),  # "at least 90%"
        (269 / 300, 0.25, 1.00, 0.00),
        (0.00, 0.25, 1.00, 0.00),
    ],
)
def test_score_is_the_papers(own_task, target, other, expected):
    assert score(own_task, target, other) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([0.1, 0.5, 0.3], 1),
        ([0.1, 0.5, 0.5, 0.5], 1),  # the first on ties
        ([0.0, 0.0, 0.0], 0),  # none passed
        ([-0.2, -0.1, 0.0, -0.3], 2),  # a mask that failed its own task (0) beats one that damages the wrong subroutine
        ([math.nan, -0.2, math.nan], 1),  # one that diverged comes last
        ([math.nan, math.nan], 0),
    ],
)
def test_highest_score_wins_and_the_first_on_ties(scores, winner):
    assert best(scores) == winner


def test_the_authors_choices_are_those_of_the_table():
    rows = reference.load("selected_masks").fillna({"number": ""}).query("condition == 'trained'")
    assert len(rows) == 102
    for row in rows[::4].itertuples():
        point = selected_by_authors(row.model, row.task, row.number, row.subroutine, row.base)
        assert point == Point(row.learning_rate, row.mask_init, row.mask_start)
        assert point in grid(MaskTraining(starts=(row.mask_start,)))


@pytest.mark.parametrize(
    "wrong",
    [
        ("bert_small", "sv-agreement", "singular", "subject", 4),
        ("bert_small", "sv-agreement", "", "subject", 1),
        ("bert_tiny", "sv-agreement", "singular", "subject", 1),
        ("resnet50", "inside-contact", "", "number", 1),
    ],
)
def test_bases_that_the_authors_did_not_have_are_refused(wrong):
    with pytest.raises(ValueError, match=f"selected no mask for .*{wrong[0]}.*; use masks.search: grid"):
        selected_by_authors(*wrong)
