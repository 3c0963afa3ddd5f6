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
    figure, ax = plt.subplots(figsize=(6, 3))
    head_figures.without_heads(ax, ablated(2), named=2)
    assert {text.get_text() for text in ax.texts} == {"", "L1.H0", "L0.H5", "L0.H4"}, "the core, too"
    assert labels(ax) == ["as many others at once", "the core at once", "other heads", "heads of the core"]
    assert_readable(figure)
    _, ax = plt.subplots()
    head_figures.without_heads(ax, ablated(0))
    assert labels(ax) == ["other heads"]


@pytest.mark.usefixtures("paper_style")
def test_heads_that_change_alike_all_have_their_names():
    figure, ax = plt.subplots(figsize=(6, 3))
    alike = ablated(0)
    alike["in_domain"], alike["out_of_domain"] = [0.2, 0.2001, 0.2002, 0.0, 0.0, 0.0, -0.1], 0.01
    head_figures.without_heads(ax, alike, named=4)
    assert [text.get_text() for text in ax.texts[::2]] == ["L1.H0", "L0.H0", "L0.H1", "L0.H2"]
    assert [line.xy for line in ax.texts[1::2]] == [(-0.1, 0.01), (0.2, 0.01), (0.2001, 0.01), (0.2002, 0.01)]
    assert_readable(figure)


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
