"""The heads' figures: what is drawn is what the tables say, and names can be read."""

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from subnet_utils.papers.heuristic_core import head_figures
from tests.test_figures import assert_readable
from tests.test_heuristic_figures import ranges


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ablated(core: int) -> pd.DataFrame:
    """Heads that cost 1, 2, ... hundredths, the last ones are the core; one brings something."""
    rows = [{"ablated": f"L0.H{i}", "layer": 0, "head": i, "in_core": i >= 6 - core, "in_domain": i / 100,
             "out_of_domain": 0.0} for i in range(6)]  # fmt: skip
    rows.append({"ablated": "L1.H0", "layer": 1, "head": 0, "in_core": False, "in_domain": 0.0, "out_of_domain": -0.5})
    groups = [("core", 0.5), ("others", 0.1)] if core else []
    return pd.DataFrame(rows + [{"ablated": name, "in_core": name == "core", "in_domain": lost, "out_of_domain": lost}
                                for name, lost in groups])  # fmt: skip


@pytest.mark.usefixtures("paper_style")
def test_ablations_name_the_extreme_heads_and_no_group_that_is_empty():
    figure = head_figures.without_heads(ablated(2), named=2)
    assert rows_of(figure) == ["L0.H4", "L0.H5", "L0.H3", "L1.H0", "other heads (3)", "the core at once",
                               "as many others at once (1)"]  # fmt: skip
    for ax, column in zip(figure.axes, ("in_domain", "out_of_domain"), strict=True):
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        drawn = {round(place): sorted(line.get_xdata()) for line in dots for place in line.get_ydata()}
        expected = ablated(2)[column]
        assert drawn == {0: [expected[4]], 1: [expected[5]], 2: [expected[3]], 3: [expected[6]],
                         4: sorted(expected[:3]), 5: [0.5], 6: [0.1]}, "every dot stands in its row"  # fmt: skip
        assert ax.get_xscale() == "linear"
    assert_readable(figure)
    assert rows_of(head_figures.without_heads(ablated(0), named=2)) == ["L0.H5", "L1.H0", "other heads (5)"]
    plt.close("all")


def rows_of(figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_checkpoints_without_a_core_show_other_heads_alone():
    table = pd.DataFrame({"step": [4, 4, 10, 10], "core": [0.5, 1.0, 1.0, 1.0], "others": [0.3, 0.5, 0.4, 0.4]})
    _, ax = plt.subplots()
    head_figures.core_over_training(ax, table)
    assert labels(ax) == ["heads of the core", "other heads"]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0.75, 1.0], [0.4, 0.4]]
    assert [bar[1:] for bar in ranges(ax)] == [[0.5, 1.0], [1.0, 1.0], [0.3, 0.5], [0.4, 0.4]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "10"]
    _, ax = plt.subplots()
    head_figures.core_over_training(ax, table.assign(core=math.nan))
    assert labels(ax) == ["other heads"]
    plt.close("all")


@pytest.mark.usefixtures("paper_style")
def test_frequencies_say_the_sparsities():
    rows = [{"layer": 0, "head": i, "head_name": f"L0.H{i}", "lower": 2, "higher": min(i, 2), "n_lower": 2,
             "n_higher": 2, "in_core": i >= 2} for i in range(4)]  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(7, 3))
    head_figures.shared_heads(axes[0], pd.DataFrame(rows), (0.2, 0.5))
    assert "50%" in axes[0].get_xlabel() and "20%" in axes[0].get_ylabel()
    counts = {(text.get_position(), text.get_text()) for text in axes[0].texts}
    assert counts == {((0, 2), "1"), ((1, 2), "1"), ((2, 2), "2")}
    head_figures.head_frequencies(axes[1], pd.DataFrame(rows), (0.2, 0.5))
    assert labels(axes[1]) == ["20% sparsity", "50% sparsity"]
    assert [text.get_text() for text in axes[1].texts] == ["0"]  # of the head that no network at 50% has
    assert_readable(figure)
