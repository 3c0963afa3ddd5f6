"""Rows of values and figures of the controls: what is drawn is what the tables say, and all can be read."""

import itertools

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb

from subnet_utils.papers.break_it_down.figures import controls, rows
from subnet_utils.papers.break_it_down.figures.overlap import COMPARISONS
from subnet_utils.plots.style import CONDITIONS
from tests.test_figures import MACHADO, _lab, _linear, assert_readable, intervals
from tests.test_overlap_figures import tick_labels

BLUE, RED, BLACK = (CONDITIONS[name].color for name in ("ours", "ablated", "paper"))
pytestmark = pytest.mark.usefixtures("paper_style")


def named(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


# -- many rows ---------------------------------------------------------------------------------------------------------


def effects(groups: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    models = ["resnet50", "wide_resnet50", "bert_small", "resnet50_simclr", "vit"]
    tasks = ["inside-contact", "inside-number", "number-contact"]
    keys = list(itertools.product(models, tasks))[:groups]
    lines = [(*key, "", s, n, "agrees") for key in keys for s in key[1].split("-") for n in ("subnetwork", "ablated")]
    table = pd.DataFrame(lines, columns=["model", "task", "number", "subroutine", "network", "verdict"])
    means = np.where(table["network"] == "subnetwork", 0.5, -0.3) + rng.normal(0, 0.1, len(table))
    halves = rng.uniform(0.02, 0.3, len(table))
    table = table.assign(ours=means, ours_low=means - halves, ours_high=means + halves)
    return table.assign(paper=means + rng.normal(0, 0.1, len(table)), paper_sd=rng.uniform(0.01, 0.1, len(table)))


def test_forest_draws_every_effect_twice():
    table = effects(14)
    figure, ax = plt.subplots(figsize=(7, 9.4))
    rows.forest(ax, table)
    found = intervals(ax)
    for network, color in (("subnetwork", BLUE), ("ablated", RED)):
        own = table.loc[table["network"] == network, ["ours", "ours_low", "ours_high"]]
        assert np.allclose(found[color], own)
    bands = [table["paper"], table["paper"] - table["paper_sd"], table["paper"] + table["paper_sd"]]
    assert np.allclose(found[BLACK], np.transpose(bands))
    heights = {to_hex(c.lines[0].get_color()): c.lines[0].get_ydata() for c in ax.containers}
    assert np.array_equal(np.round(heights[BLUE]), np.arange(0, 56, 2)), "each in its row"
    assert (heights[BLACK][::2] > heights[BLUE]).all(), "ours above, as the axis points down"
    labels = ["inside, subnetwork", "inside, ablated", "contact, subnetwork", "contact, ablated"]
    assert tick_labels(ax.yaxis)[:4] == labels
    groups = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert len(groups) == 14
    assert groups["resnet50 · inside-contact"] == 1.5 and groups["vit · inside-number"] == 53.5
    looks = ["subnetwork, 95% interval", "ablated model, 95% interval", "paper, mean ± sd"]
    assert named(ax) == [*looks, "arrowhead: interval goes on"]
    assert_readable(figure)


def test_forest_without_some_numbers_and_with_rows_that_differ():
    table = effects(1).assign(verdict=["agrees", "differs", "not comparable at this profile", "differs"])
    table.loc[0, ["ours_low", "ours_high"]] = np.nan
    table.loc[1, ["paper", "paper_sd"]] = np.nan
    table.loc[2, "paper_sd"] = np.nan
    table.loc[3, ["ours", "ours_low", "ours_high"]] = np.nan
    figure, ax = plt.subplots(figsize=(5, 2.2))
    rows.forest(ax, table)
    points = {to_hex(c.lines[0].get_color()): c.lines[0].get_xdata() for c in ax.containers}
    assert np.array_equal(points[BLUE], table["ours"][::2]) and np.array_equal(points[BLACK], table["paper"], True)
    labels = ax.get_yticklabels()
    assert [label.get_text().startswith("≠ ") for label in labels] == [False, True, False, True]
    assert [label.get_fontweight() for label in labels] == ["normal", "bold", "normal", "bold"]
    assert "≠ differs from the paper" in named(ax)
    assert_readable(figure)


def test_sparsity_shows_ours_and_the_papers_in_percent():
    table = pd.DataFrame({
        "task": ["sv-agreement", "inside-number"], "number": ["singular", ""], "subroutine": ["verb", "inside"],
        "ours": [0.2, 0.004], "ours_low": [0.1, -0.01], "ours_high": [0.3, 0.02],
        "paper": [0.18, np.nan], "paper_sd": [0.09, np.nan],
    })  # fmt: skip
    figure, ax = plt.subplots(figsize=(4.5, 2))
    rows.sparsity(ax, table, by=["task", "number", "subroutine"])
    assert tick_labels(ax.yaxis) == ["sv-agreement · singular · verb", "inside-number · inside"]
    ours, theirs = (container.lines[0] for container in ax.containers)
    assert (ours.get_marker(), theirs.get_marker()) == ("o", "D")
    assert np.allclose(ours.get_xdata(), [20, 0.4]) and np.allclose(theirs.get_xdata(), [18, np.nan], equal_nan=True)
    (cut,) = (line for line in ax.lines if line.get_label() == "_cut")
    assert cut.get_marker() == "<", "an interval that reaches 0 has no end on a logarithmic axis"
    assert ax.get_xlim()[0] > 0
    assert_readable(figure)


def test_needed_bases_beside_those_there_are():
    table = pd.DataFrame({
        "label": ["inside, subnetwork", "inside, ablated", "contact, subnetwork", "contact, ablated", "verb, ablated"],
        "bases_needed": [2.0, 37.0, 5000.0, np.inf, np.nan], "n_bases": [3, 2, 3, 3, 6],
    })  # fmt: skip
    figure, ax = plt.subplots(figsize=(5, 2.2))
    rows.needed(ax, table)
    there, needed, *beyond = ax.lines
    assert list(there.get_xdata()) == [3, 2, 3, 3, 6]
    assert np.array_equal(needed.get_xdata(), [2, 37, np.nan, np.nan, np.nan], equal_nan=True)
    assert [(*line.get_xydata()[0], line.get_marker()) for line in beyond] == [(1000, 2, ">"), (1000, 3, ">")]
    assert tick_labels(ax.yaxis) == list(table["label"]) and ax.yaxis_inverted()
    said = [("> 1000", 2), ("> 1000", 3), ("unknown: not in the paper", 4)]
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == said
    assert named(ax) == ["trained, and learned the task", "needed for 80% power"]
    assert_readable(figure)


# -- random subnetworks ------------------------------------------------------------------------------------------------


def null(draws: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    kinds = {"kind": ["random"] * draws + ["complement"] * draws}
    return pd.DataFrame(kinds | {"difference": rng.normal(0, 0.05, 2 * draws).round(3)})


def grouped(observed: float, p: tuple[float, ...] = (0.0123, 0.5)) -> pd.DataFrame:
    return pd.DataFrame({"kind": ["random", "complement"][: len(p)], "observed": observed, "p": p, "n_masks": 3})


def null_distribution(draws: pd.DataFrame, about: pd.DataFrame, **options):
    figure, ax = plt.subplots(figsize=(3.4, 2.6), **options)
    controls.null_distribution(ax, draws, about)
    return figure, ax


def test_null_distribution_counts_every_random_subnetwork():
    draws = null()
    figure, ax = null_distribution(draws, grouped(-0.4))
    for bars, kind in zip(ax.containers, ("random", "complement"), strict=True):
        own = draws.loc[draws["kind"] == kind, "difference"]
        assert bars[0].get_label().startswith(f"200 {CONDITIONS[kind].label}, p = ")
        assert {to_hex(bar.get_facecolor()) for bar in bars} == {CONDITIONS[kind].color}
        counts = np.array([bar.get_height() for bar in bars])
        middles = np.array([bar.get_x() for bar in bars])
        assert counts.sum() == 200
        assert (counts * middles).sum() / 200 == pytest.approx(own.mean(), abs=0.01)
    observed = [line for line in ax.lines if to_hex(line.get_color()) == RED]
    assert [list(line.get_xdata()) for line in observed] == [[-0.4, -0.4]]
    assert ax.get_xlim()[0] < -0.4
    assert_readable(figure)


def test_p_values_are_in_the_legend():
    _, ax = null_distribution(null(), grouped(-0.2, (1.0, 0.0004)))
    said = ["200 random, p = 1.000", "200 random, without its weights, p < .001"]
    assert sorted(named(ax)) == [*said, "without the subnetwork, 3 masks"]
    _, ax = null_distribution(null().query("kind == 'random'"), grouped(-0.2, (0.0123,)))
    assert {"(no room for a control outside it)", "200 random, p = .012"} < {*named(ax)}


@pytest.mark.parametrize("observed", [0.0, -0.75, np.nan])
def test_random_subnetworks_that_all_do_the_same(observed):
    draws = pd.DataFrame({"kind": "random", "difference": [0.0] * 19 + [np.nan]})
    figure, ax = null_distribution(draws, grouped(observed, (0.5,)))
    (bars,) = ax.containers
    (bar,) = (bar for bar in bars if bar.get_height())
    assert (bar.get_height(), bars[0].get_label()) == (19, "19 random, p = .500")
    assert bar.get_x() < 0 < bar.get_x() + bar.get_width()
    assert_readable(figure)
    with pytest.raises(ValueError, match="no random subnetwork has a difference; measure some first"):
        null_distribution(draws.assign(difference=np.nan), grouped(observed))


# -- subnetworks of other sizes ----------------------------------------------------------------------------------------


def sizes() -> pd.DataFrame:
    """Two base models; the smallest subnetworks can be taken out without loss."""
    masks = ((10.0, 0.06, 1.0), (1.0, 0.22, 0.75), (0.1, 0.5, 0.3))
    rows = [
        (base, factor, share + 0.02 * base, 1.0, target, 0.9 - 0.1 * base)
        for base in (0, 1)
        for factor, share, target in masks
    ]
    return pd.DataFrame(rows, columns=["base_model", "factor", "density", "own_task", "target", "other"])


def test_lines_by_size_are_base_models_and_their_means():
    figure, ax = plt.subplots()
    controls.by_size(ax, sizes())
    means = {line.get_label(): line.get_xydata() for line in ax.lines if not line.get_label().startswith("_")}
    assert list(means)[1:] == ["subnetwork, its own task", "ablated model, Test Target", "ablated model, Test Other"]
    np.testing.assert_allclose(means["ablated model, Test Target"], [[0.51, 0.3], [0.23, 0.75], [0.07, 1.0]])
    np.testing.assert_allclose(means["ablated model, Test Other"][:, 1], 0.85)
    thin = [line.get_xydata() for line in ax.lines if line.get_linewidth() == 0.5]
    assert len(thin) == 6 and all(np.all(np.diff(line[:, 0]) < 0) for line in thin), "in the order of lambda"
    (own,) = [line for line in ax.lines if line.get_linewidth() == 3]
    np.testing.assert_allclose(own.get_xdata(), 0.23)
    assert_readable(figure)
    _, other = plt.subplots()
    controls.by_size(other, sizes().assign(density=[0.0, 0.2, 0.5] * 2))
    assert [min(line.get_xdata()) for line in other.lines if line.get_linewidth() == 0.5] == [controls.LEAST] * 6
    assert tick_labels(other.xaxis)[0] == "< .3%" and tick_labels(ax.xaxis)[0] == "1%"


@pytest.mark.parametrize("deficiency", [None, *MACHADO])
@pytest.mark.parametrize(
    "shown",
    [
        ("first", "second", "between"),
        ("random", "complement", "ablated"),
        ("zeros", "replaced", "mean", "below"),
        ("subnetwork", "ablated", "below", "paper"),
    ],
)
def test_colors_of_one_figure_differ_for_every_eye(shown, deficiency):
    looks, matrix = CONDITIONS | COMPARISONS, np.eye(3) if deficiency is None else np.array(MACHADO[deficiency])
    seen = [_lab(np.clip(matrix @ _linear(to_rgb(looks[name].color)), 0, 1)) for name in shown]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20
