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
    axes = examples.four_kinds(task).axes
    assert [kinds[drawn(ax).tobytes()] for ax in axes] == [0, 1, 2, 3]
    for kind, ax in enumerate(axes):
        assert ax.get_title() == f"{'−' if kind & 1 else '+'}{a}, {'−' if kind & 2 else '+'}{b}"
        framed = same_color(ax.spines["left"].get_edgecolor(), CONDITIONS["ablated"].color)
        assert framed == (kind > 0)


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
