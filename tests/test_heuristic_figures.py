"""Accuracies of pruned networks: every set is seen, named and told apart from the others."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from subnet_utils.papers.heuristic_core import figures, published
from subnet_utils.papers.heuristic_core.figures import DOMAINS, LOOKS
from subnet_utils.papers.heuristic_core.head_figures import PATTERNS
from tests.test_figures import MACHADO, _lab, _linear, assert_readable, explained

OWN = ("in domain", "SO-Swap", "Prep", "PP-Subj", "Rel-Subj", "Embed-If", "After-If", "Embed-Verb", "Adverb",
       "entailed", "Rel-Clause", "Embed-Since")  # fmt: skip
TOGETHER = {
    "our network": [LOOKS[name][0] for name in OWN],
    "questions": [LOOKS[name][0] for name in ("QQP", "PAWS (adv.)", "PAWS (equivalent)", "entailed")],
    "domains": [color for color, _ in DOMAINS.values()],
    "attention": [color for _, color in PATTERNS.values()],
}
"""Colors of one figure."""


@pytest.mark.parametrize("deficiency", [None, *MACHADO])
@pytest.mark.parametrize("colors", TOGETHER.values(), ids=TOGETHER)
def test_colors_of_one_figure_differ_for_every_eye(colors, deficiency):
    matrix = np.eye(3) if deficiency is None else np.array(MACHADO[deficiency])
    seen = {color: _lab(np.clip(matrix @ _linear(to_rgb(color)), 0, 1)) for color in colors}
    assert len(seen) == len(colors)
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 10, (one, other)  # CIE76; 2.3 is a just noticeable difference


def accuracies(names, seeds: int = 3) -> pd.DataFrame:
    """Of networks pruned to 0.2 and 0.5."""
    return pd.DataFrame({"name": name, "set": name, "target_sparsity": sparsity, "seed": seed, "full": 0.9,
                         "accuracy": 0.9 - sparsity - seed / 50}
                        for name in names for sparsity in (0.2, 0.5) for seed in range(seeds))  # fmt: skip


KINDS = ("constituent_cn_adverb", "subsequence_se_PP_on_obj", "in domain", "lexical_overlap_ln_subject-object_swap",
         "constituent_ce_adverb", "lexical_overlap_le_passive", "lexical_overlap_ln_passive")  # fmt: skip


@pytest.mark.usefixtures("paper_style")
@pytest.mark.parametrize("names", [KINDS, KINDS[::-1]])
def test_subcases_stand_in_one_order_and_have_names_that_can_be_read(names):
    figure = figures.every_subcase(accuracies(names))
    found = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert found == ["in domain", "entailed: the heuristic is right", "lexical overlap: passive",
                     "subsequence: PP on object", "constituent: adverb", "not entailed: the heuristic is wrong",
                     "lexical overlap: passive", "lexical overlap: subject-object swap (SO-Swap)",
                     "constituent: adverb (Adverb)"]  # fmt: skip
    handles = dict(zip(explained(figure), figure.legends[0].legend_handles, strict=True))
    full = [line for line in figure.axes[0].lines if line.get_label() == "full network"]
    assert {line.get_marker() for line in full} == {handles["full network"].get_marker()} == {"|"}
    assert_readable(figure)


@pytest.mark.usefixtures("paper_style")
def test_all_30_subcases_of_the_paper_are_drawn():
    every = published.subnetworks("mnli", every_subcase=True).rename(columns={"evaluation_set": "set"})
    figure = figures.every_subcase(every)
    found = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert len(found) == 34 and found[:2] == ["MNLI matched", "MNLI mismatched"]
    assert found.index("not entailed: the heuristic is wrong") == 18
    assert_readable(figure)


def by_sparsity(names) -> pd.DataFrame:
    """The whole network, then means of two sparsities with a range, the same for all sets."""
    return pd.DataFrame({"name": name, "sparsity": sparsity, "mean": mean, "min": low, "max": high} for name in names
                        for sparsity, mean, low, high in ((0, 0.9, 0.9, 0.9), (0.2, 0.8, 0.5, 0.9),
                                                          (0.5, 0.4, 0.1, 0.6)))  # fmt: skip


def ranges(ax) -> list[list[float]]:
    """[x, low, high] of every bar of range."""
    return [[bar[0][0], bar[0][1], bar[1][1]] for lines in ax.collections for bar in lines.get_segments()]


def test_lines_that_coincide_stand_side_by_side_with_their_ranges():
    _, ax = plt.subplots()
    figures.over_sparsity(ax, by_sparsity(["in domain", "SO-Swap", "Prep"]))
    positions = np.array([line.get_xdata() for line in ax.lines])
    assert (np.diff(positions, axis=0) > 0).all() and positions.min() == 0
    assert np.ptp(positions, axis=0) == pytest.approx(0.15 * 20) and np.abs(positions - [0, 20, 50]).max() <= 3
    assert [line.get_marker() for line in ax.lines] == ["o", "s", "^"]
    found = np.array(ranges(ax)).reshape(3, 3, 3)
    assert (found[:, :, 0] == positions).all() and (
        found[:, 0, 1] == found[:, 0, 2]
    ).all()  # the whole one has no range
    assert (found[:, 1, 1:] == [0.5, 0.9]).all()
    plt.close("all")


@pytest.mark.usefixtures("paper_style")
@pytest.mark.parametrize("names", [OWN[:10], ("in domain", "Prep", "constituent_cn_disjunction", "entailed")])
def test_a_panel_for_every_heuristic_and_one_legend(names):
    figure = figures.by_heuristic(figures.over_sparsity, by_sparsity(names))
    own = ["lexical overlap", "subsequence", "constituent", "entailed"]
    assert {ax.get_title() for ax in figure.axes} == (set(own) if len(names) == 10 else set(own) - {"subsequence"})
    assert all("in domain" in ax.get_legend_handles_labels()[1] for ax in figure.axes)
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == sorted(names)
    assert_readable(figure)
    questions = ["in domain", "PAWS (adv.)", "entailed"]
    figure = figures.by_heuristic(figures.over_sparsity, by_sparsity(questions))
    assert [ax.get_title() for ax in figure.axes] == ["PAWS (adv.)", "entailed"]


def sizes(steps) -> pd.DataFrame:
    return pd.DataFrame({"step": step, "domain": domain, "accuracy": 0.8, "effective_size": 0.7, "size_min": 0.5,
                         "size_max": 0.9, "smallest_possible": 0.5}
                        for step in steps for domain in DOMAINS)  # fmt: skip


def test_effective_sizes_have_their_range_and_accuracies_none():
    _, axes = plt.subplots(1, 2)
    figures.training(axes, sizes((100, 200, 900)), title="MNLI")
    assert {(low, high) for _, low, high in ranges(axes[1])} == {(0.5, 0.9)}
    assert {(low, high) for _, low, high in ranges(axes[0])} == {(0.8, 0.8)}
    assert len({x for x, _, _ in ranges(axes[1])}) == 3 * len(DOMAINS)
    assert [ax.get_title() for ax in axes] == ["MNLI", "MNLI"]
    assert axes[1].get_ylabel() == "effective size (share of units)"
    assert axes[1].lines[-1].get_label() == "smallest size on the grid"
    _, axes = plt.subplots(1, 2)
    figures.training(axes, sizes((100, 200, 900)), possible=(1.0, 0.8, 0.5))
    grid = [line.get_ydata()[0] for line in axes[1].lines if line.get_label() == "all sizes on the grid"]
    assert grid == [1.0, 0.8, 0.5]
    plt.close("all")


def test_lines_of_learning_differ_in_what_has_a_meaning():
    """A line has its set's color and marker, as everywhere, and no width or dashes of its own."""
    table = pd.DataFrame({"name": name, "step": step, "accuracy": 1.0}
                         for name in OWN[:4] for step in range(0, 4000, 50))  # fmt: skip
    figure, ax = plt.subplots()
    figures.learning(ax, table)
    assert {(line.get_linewidth(), line.get_linestyle()) for line in ax.lines} == {(0.8, "-")}
    assert [(line.get_color(), line.get_marker()) for line in ax.lines] == [LOOKS[name] for name in OWN[:4]]
    positions = [line.get_markevery() for line in ax.lines]
    assert len(set(positions)) == 4, "where lines coincide, each still shows"
    plt.close("all")


def test_few_checkpoints_have_a_tick_each_and_points_beside_it():
    label = "steps of fine-tuning"
    for steps, says in (
        ((400, 700, 1000, 4000), f"{label} (not to scale)"),
        ((400, 700, 1000), label),
        ((400,), label),
    ):
        _, axes = plt.subplots(1, 2)
        figures.training(axes, sizes(steps))
        for ax in axes:
            assert [tick.get_text() for tick in ax.get_xticklabels()] == [str(step) for step in steps]
            assert ax.get_xlabel() == says
            positions = np.array([line.get_xdata() for line in ax.lines if line.get_marker() != "None"])
            assert np.abs(positions - ax.get_xticks()).max() == pytest.approx(0.075)
        plt.close("all")
