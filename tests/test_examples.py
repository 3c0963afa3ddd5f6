"""Examples of stimuli: what is drawn is of the kind and of the set that its title says."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color

from subnet_utils.papers.break_it_down.figures import examples
from subnet_utils.plots.style import CONDITIONS
from subnet_utils.tasks import shapes
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS, sets_of, subroutines_of


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def drawn(ax: plt.Axes) -> np.ndarray:
    return np.asarray(ax.images[0].get_array()).transpose(2, 0, 1)


@pytest.mark.parametrize("task", VISION_TASKS)
def test_images_are_of_the_kind_in_their_title(task):
    """Bit 0 of a kind: the first subroutine is violated; bit 1: the second."""
    stimuli = shapes.generate(task, "base", 24, seed=examples.SEED, split="test").odd_one_out()
    kinds = {item.numpy().tobytes(): kind for item, kind in zip(stimuli.items, stimuli.kinds.tolist(), strict=True)}
    a, b = (name.capitalize() for name in subroutines_of(task))
    axes = [ax for ax in examples.four_kinds(task).axes if ax.images]
    assert [kinds[drawn(ax).tobytes()] for ax in axes] == [0, 1, 2, 3]
    for kind, ax in enumerate(axes):
        assert ax.get_title() == f"{'−' if kind & 1 else '+'}{a}, {'−' if kind & 2 else '+'}{b}"
        framed = same_color(ax.spines["left"].get_edgecolor(), CONDITIONS["ablated"].color)
        assert framed == (kind > 0)
    right, upper = (np.array([getattr(ax.get_position(), side) for ax in axes]) for side in ("x0", "y0"))
    assert right.argmax() in (0, 2) and upper.argmax() in (0, 1), "the rule is in the upper right quadrant"


def test_what_the_hypotheses_predict_is_what_the_paper_says_of_them():
    """Section 3: one template gives equal accuracies; parts give a positive difference, and without one a negative."""
    template, parts = [ax for ax in examples.four_kinds("inside-contact").axes if ax.patches and not ax.images]
    for ax, signs in ((template, "=="), (parts, "><")):
        bars = np.reshape([bar.get_height() for bar in ax.patches], (2, 2))
        assert "".join("=><"[int(np.sign(target - other))] for target, other in bars) == signs
        assert [text.get_text() for text in ax.texts] == [f"difference {sign} 0" for sign in signs]
        assert [bar.get_facecolor()[:3] == (1, 1, 1) for bar in ax.patches] == [False, True] * 2
    assert parts.get_ylabel() == "" and [label.get_text() for label in parts.get_xticklabels()][1] == "ablated model"


def test_a_row_of_a_gallery_is_an_example_of_its_set():
    names = ("mask-contact", "base")
    axes = [ax for ax in examples.sets("inside-contact", names=names).axes if ax.images]
    expected = [
        item
        for name in names
        for item in shapes.generate("inside-contact", name, 24, seed=examples.SEED, split="test")
        .odd_one_out()
        .items[:4]
    ]
    assert all(np.array_equal(drawn(ax), item) for ax, item in zip(axes, expected, strict=True))
    assert len({ax.get_position().y0 for ax in axes}) == 2
    assert [ax.get_ylabel() for ax in axes[::4]] == ["for the mask\nof contact", "the whole task"]


def test_tables_name_the_task_first_and_hold_every_set_and_kind():
    sentences, counts = examples.sentences(), examples.sentence_counts()
    for table in (sentences, counts):
        assert table.columns[0] == "task" and list(table["task"].unique()) == list(LANGUAGE_TASKS)
    for task, rows in sentences.groupby("task"):
        assert list(rows["set"]) == list(sets_of(task))
    assert set(counts["kind"]) == {0, 1, 2}  # no sentence is wrong in both: number agrees or it does not
    assert (counts["distinct"] <= counts["sentences"]).all()
