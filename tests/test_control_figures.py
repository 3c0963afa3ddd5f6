"""The figures of the controls: what is drawn is what the tables say, missing numbers break nothing, all can be read."""

import itertools

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb

from subnet_utils.papers.break_it_down.figures import controls as control_figures
from subnet_utils.papers.break_it_down.figures import overlap as overlap_figures
from subnet_utils.papers.break_it_down.figures.controls import CONTROLS
from subnet_utils.papers.break_it_down.figures.overlap import COMPARISONS
from subnet_utils.plots.style import BASE_MARKERS, CONDITIONS, DIFFERENCES
from tests.test_figures import MACHADO, _lab, _linear, assert_readable, drawn
from tests.test_overlap_figures import overlaps, tick_labels

RED, GRAY = (CONDITIONS[name].color for name in ("ablated", "below"))
pytestmark = pytest.mark.usefixtures("paper_style")


def points(collection) -> np.ndarray:
    return np.asarray(collection.get_offsets())


# -- all effects at once -----------------------------------------------------------------------------------------------


def effects(groups: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    models = ["resnet50", "wide_resnet50", "bert_small", "resnet50_simclr", "vit"]
    tasks = ["inside-contact", "inside-number", "number-contact"]
    keys = list(itertools.product(models, tasks))[:groups]
    rows = [(*key, "", s, n) for key in keys for s in key[1].split("-") for n in ("subnetwork", "ablated")]
    table = pd.DataFrame(rows, columns=["model", "task", "number", "subroutine", "network"])
    means = np.where(table["network"] == "subnetwork", 0.5, -0.3) + rng.normal(0, 0.1, len(table))
    halves = rng.uniform(0.02, 0.3, len(table))
    table = table.assign(ours=means, ours_low=means - halves, ours_high=means + halves)
    return table.assign(paper=means + rng.normal(0, 0.1, len(table)), paper_sd=rng.uniform(0.01, 0.1, len(table)))


def segments(ax) -> list[tuple[float, float, float]]:
    """(height, left end, right end) of every interval."""
    lines = [segment for lines in ax.collections if hasattr(lines, "get_segments") for segment in lines.get_segments()]
    return [(y, x0, x1) for (x0, y), (x1, _) in lines]


def test_forest_draws_every_effect_twice():
    table = effects(14)
    assert len(table) == 56
    figure, ax = plt.subplots(figsize=(7, 9.4))
    assert control_figures.forest(ax, table) is ax
    bars, ours, paper_bars, paper = ax.collections
    rows = np.arange(56)
    assert np.allclose(points(ours)[:, 0], table["ours"]) and np.allclose(points(paper)[:, 0], table["paper"])
    assert np.array_equal(points(ours)[:, 1].round(), rows) and np.array_equal(points(paper)[:, 1].round(), rows)
    assert (points(ours)[:, 1] < points(paper)[:, 1]).all()  # ours above, as the axis points down
    assert [to_hex(color) for color in ours.get_facecolors()] == [CONDITIONS[n].color for n in table["network"]]
    assert {to_hex(c) for c in paper.get_facecolors()} == {"#ffffff"}
    assert {to_hex(c) for c in paper.get_edgecolors()} == {CONDITIONS["paper"].color}
    ends = np.array([[x0, x1] for _, x0, x1 in segments(ax)])
    assert np.allclose(ends[:56], table[["ours_low", "ours_high"]])
    assert np.allclose(ends[56:].mean(axis=1), table["paper"]) and np.allclose(
        np.ptp(ends[56:], axis=1), 2 * table["paper_sd"]
    )
    assert len(bars.get_segments()) == len(paper_bars.get_segments()) == 56
    assert tick_labels(ax.yaxis)[:4] == [
        "inside, subnetwork",
        "inside, ablated",
        "contact, subnetwork",
        "contact, ablated",
    ]
    named = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert len(named) == 14
    assert named["resnet50 · inside-contact"] == 1.5 and named["vit · inside-number"] == 53.5
    assert any(list(line.get_xdata()) == [0, 0] for line in ax.lines)
    assert (ax.get_xlabel(), ax.get_xlim()) == ("Test Target $-$ Test Other", DIFFERENCES)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    looks = ["subnetwork, 95% interval", "ablated model, 95% interval", "paper, mean ± sd"]
    assert legend == [*looks, "arrowhead: interval goes on"]
    assert_readable(figure)


def test_forest_of_one_number_per_row_draws_points_only():
    table = effects(2).drop(columns=["network", "number"])
    table.loc[0, ["ours_low", "ours_high"]] = np.nan
    table.loc[1, ["paper", "paper_sd"]] = np.nan
    table.loc[2, "paper_sd"] = np.nan
    table.loc[3, ["ours", "ours_low", "ours_high"]] = np.nan
    figure, ax = plt.subplots(figsize=(5, 2.2))
    control_figures.forest(ax, table)
    at_rows = [round(y) for y, _, _ in segments(ax)]
    assert at_rows == [1, 2, 4, 5, 6, 7] + [0, 3, 4, 5, 6, 7]
    _, ours, _, paper = ax.collections
    assert np.array_equal(points(ours)[:, 0], table["ours"], equal_nan=True)
    assert np.array_equal(points(paper)[:, 0], table["paper"], equal_nan=True)
    assert tick_labels(ax.yaxis)[0] == "inside"
    assert_readable(figure)


def test_forest_marks_the_rows_that_differ():
    table = effects(1).assign(verdict=["agrees", "differs", "not comparable at this profile", "differs"])
    figure, ax = plt.subplots(figsize=(5, 2))
    control_figures.forest(ax, table)
    labels = ax.get_yticklabels()
    assert [label.get_text().startswith("≠ ") for label in labels] == [False, True, False, True]
    assert [label.get_fontweight() for label in labels] == ["normal", "bold", "normal", "bold"]
    assert "≠ differs from the paper" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert_readable(figure)


def test_intervals_that_run_off_end_in_arrowheads():
    table = effects(1).assign(ours_low=[-2.0, 0.0, 0.1, 0.2], ours_high=[0.0, 0.1, 1.5, 0.3], paper_sd=0.01)
    _, ax = plt.subplots()
    control_figures.forest(ax, table)
    cut = [(line.get_marker(), *line.get_xydata()[0].round(2)) for line in ax.lines if line.get_label() == "_cut"]
    assert cut == [("<", -0.8, -0.16), (">", 0.8, 1.84)]


# -- random subnetworks ------------------------------------------------------------------------------------------------


def controls(draws: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = {"kind": ["random"] * draws + ["complement"] * draws}
    return pd.DataFrame(rows | {"difference": rng.normal(0, 0.05, 2 * draws).round(3)})


def test_null_distribution_counts_every_random_subnetwork():
    draws = controls()
    figure, ax = plt.subplots(figsize=(3.4, 2.6))
    assert control_figures.null_distribution(ax, draws, -0.4, p=0.0123) is ax
    for kind, group in draws.groupby("kind"):
        look = CONTROLS[kind]
        filled = next(s for s in ax.patches if s.get_fill() and to_hex(s.get_facecolor()) == look.color)
        outline = next(s for s in ax.patches if not s.get_fill() and to_hex(s.get_edgecolor()) == look.color)
        assert outline.get_label() == f"200 {look.label}"
        counts, edges, _ = outline.get_data()
        assert np.array_equal(filled.get_data().values, counts) and counts.sum() == 200
        middles = (edges[1:] + edges[:-1]) / 2
        assert (counts * middles).sum() / 200 == pytest.approx(group["difference"].mean(), abs=0.005)
        assert np.ptp(np.diff(edges)) < 1e-12 and np.abs(middles).min() < 1e-12
    observed = [line for line in ax.lines if to_hex(line.get_color()) == RED]
    assert [list(line.get_xdata()) for line in observed] == [[-0.4, -0.4]]
    assert ax.get_xlim()[0] < -0.4
    assert_readable(figure)


@pytest.mark.parametrize(
    ("p", "ends"),
    [
        (None, ["random", "random, without its weights", "without the subnetwork"]),
        (0.0123, ["random", "random, without its weights", "without the subnetwork, p = .012"]),
        ({"random": 1.0, "complement": 0.0004}, ["random, p = 1.000", "weights, p < .001", "without the subnetwork"]),
    ],
)
def test_p_values_are_in_the_legend(p, ends):
    figure, ax = plt.subplots(figsize=(3.4, 2.6))
    control_figures.null_distribution(ax, controls(), -0.2, p=p)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(texts) == 3 and all(text.endswith(end) for text, end in zip(texts, ends, strict=True))
    assert_readable(figure)


def test_histograms_that_coincide_are_both_seen():
    draws = pd.DataFrame({"kind": ["random"] * 39 + ["complement"] * 39, "difference": [0.0, 0.005, 0.01] * 26})
    figure, ax = plt.subplots(figsize=(3.4, 2.6), layout="none")
    control_figures.null_distribution(ax, draws, -0.2)
    ax.get_legend().remove()
    figure.canvas.draw()
    seen = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int).reshape(-1, 3)
    for kind in ("random", "complement"):
        color = 255 * np.array(to_rgb(CONTROLS[kind].color))
        assert (np.abs(seen - color).max(axis=1) < 12).sum() > 20, f"{kind} is hidden"


@pytest.mark.parametrize("observed", [0.0, -0.75, np.nan])
def test_random_subnetworks_that_all_do_the_same(observed):
    draws = pd.DataFrame({"kind": "random", "difference": [0.0] * 19 + [np.nan]})
    figure, ax = plt.subplots(figsize=(3.4, 2.6))
    control_figures.null_distribution(ax, draws, observed)
    _, outline = ax.patches
    counts, edges, _ = outline.get_data()
    assert (counts.max(), counts.sum()) == (19, 19) and outline.get_label() == "19 random"
    assert edges[counts.argmax()] < 0 < edges[counts.argmax() + 1]
    assert ax.get_ylim()[1] > 19
    assert_readable(figure)


def test_no_random_subnetworks_are_refused():
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="no random subnetwork has a difference; measure some first"):
        control_figures.null_distribution(ax, controls().assign(difference=np.nan), -0.2)


# -- other ablations ---------------------------------------------------------------------------------------------------


def ablations() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    keys = itertools.product(["inside", "number"], ["zeros", "replaced", "mean"], ["0", "1", "2"], range(3))
    table = pd.DataFrame(list(keys), columns=["subroutine", "ablation", "base_model", "mask_seed"])
    return table.assign(difference=rng.normal(-0.3, 0.1, len(table)))


def runs_of(ax, color: str) -> list:
    return [line for line in ax.lines if line.get_marker() in BASE_MARKERS and line.get_markerfacecolor() == color]


def test_alternatives_draw_every_run_and_the_mean_of_each_ablation():
    table = ablations()
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    assert control_figures.alternatives(ax, table) is ax
    for ablation, group in table.groupby("ablation"):
        color = CONTROLS[ablation].color
        runs = runs_of(ax, color)
        assert [(run.get_marker(), run.get_ydata()[0]) for run in runs] == [
            (BASE_MARKERS[int(base)], value)
            for base, value in zip(group["base_model"], group["difference"], strict=True)
        ]
        assert [round(run.get_xdata()[0]) for run in runs] == [0] * 9 + [1] * 9
        by_base = group.groupby(["subroutine", "base_model"])["difference"].mean()
        ticks = [line for line in ax.lines if line.get_linewidth() == 2 and line.get_color() == color]
        assert [t.get_ydata()[0] for t in ticks] == pytest.approx(list(by_base.groupby("subroutine").mean()))
        bars = [line.get_ydata() for line in ax.lines if line.get_linewidth() == 1 and line.get_color() == color]
        expected = [stats.t.interval(0.95, 2, b.mean(), stats.sem(b)) for _, b in by_base.groupby("subroutine")]
        assert np.allclose([b for b in bars if len(b) == 2], expected)
        clear = min(tick.get_xdata()[0] for tick in ticks) - max(run.get_xdata()[0] for run in runs[:9])
        assert clear > 0
    assert tick_labels(ax.xaxis) == ["inside", "number"] and ax.get_ylim() == DIFFERENCES
    places = sorted(
        (line.get_xdata()[0], line.get_markerfacecolor()) for line in ax.lines if len(line.get_xdata()) == 1
    )
    order = [color for color, _ in itertools.groupby(color for _, color in places)]
    assert order == [CONTROLS[a].color for a in ("zeros", "replaced", "mean")] * 2  # clusters do not mix
    assert CONTROLS["zeros"].color == RED
    assert_readable(figure)


def test_alternatives_of_bases_that_did_not_learn_are_gray_and_outside_the_mean():
    table = ablations().assign(base_accuracy=lambda t: np.where(t["base_model"] == "2", 0.5, 0.95))
    table.loc[0, "difference"] = np.nan
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    control_figures.alternatives(ax, table)
    assert len(runs_of(ax, GRAY)) == 18 and {run.get_marker() for run in runs_of(ax, GRAY)} == {BASE_MARKERS[2]}
    assert {run.get_zorder() for run in runs_of(ax, GRAY)} == {1.5}, "a gray run hides none that counts"
    good = table[(table["base_model"] != "2") & (table["ablation"] == "zeros") & (table["subroutine"] == "inside")]
    first = next(line for line in ax.lines if line.get_linewidth() == 2)
    assert first.get_ydata()[0] == pytest.approx(good.groupby("base_model")["difference"].mean().mean())
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {CONDITIONS["below"].label, CONDITIONS["ours"].label} < {*named}
    assert_readable(figure)


def test_alternatives_of_one_run_without_a_mean():
    table = pd.DataFrame({"subroutine": ["inside"], "ablation": ["mean"], "base_model": ["0"], "difference": [-0.2]})
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    control_figures.alternatives(ax, table)
    assert len(runs_of(ax, CONTROLS["mean"].color)) == 1
    control_figures.alternatives(ax, table.assign(difference=np.nan))
    assert [line.get_ydata()[0] for line in ax.lines if line.get_linewidth() == 2] == [-0.2]
    assert_readable(figure)


# -- how many base models ----------------------------------------------------------------------------------------------


def test_needed_bases_beside_those_there_are():
    table = pd.DataFrame({
        "label": ["inside, subnetwork", "inside, ablated", "contact, subnetwork", "contact, ablated", "verb, ablated"],
        "bases_needed": [2.0, 37.0, 5000.0, np.inf, np.nan], "n_bases": [3, 2, 3, 3, 6],
    })  # fmt: skip
    figure, ax = plt.subplots(figsize=(5, 2.2))
    assert control_figures.needed(ax, table) is ax
    there, needed, beyond = ax.lines
    assert list(there.get_xdata()) == [3, 2, 3, 3, 6]
    assert np.array_equal(needed.get_xdata(), [2, 37, np.nan, np.nan, np.nan], equal_nan=True)
    assert (list(beyond.get_xdata()), list(beyond.get_ydata()), beyond.get_marker()) == ([1000, 1000], [2, 3], ">")
    assert tick_labels(ax.yaxis) == list(table["label"]) and ax.yaxis_inverted()
    assert ax.get_xscale() == "log" and " ".join(tick_labels(ax.xaxis)) == "1 3 10 30 100 300 1000"
    joined = [(y, x0, x1) for y, x0, x1 in segments(ax)]
    assert joined == [(0, 3, 2), (1, 2, 37), (2, 3, 1000), (3, 3, 1000)]
    said = [("> 1000", 2), ("> 1000", 3), ("unknown: not in the paper", 4)]
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == said
    assert_readable(figure)


def test_needed_without_anything_out_of_reach():
    table = pd.DataFrame({"label": ["inside", "contact"], "bases_needed": [1000, 4], "n_bases": [3, 3]})
    figure, ax = plt.subplots(figsize=(5, 1.6))
    control_figures.needed(ax, table)
    assert list(ax.lines[1].get_xdata()) == [1000, 4]
    assert not ax.texts and len(ax.lines) == 2
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["trained, and learned the task", "needed for 80% power"]
    assert_readable(figure)
    assert figure.get_tightbbox().y0 > 0, "nothing is drawn in the figure's corner"


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
    control_figures.by_size(ax, sizes())
    means = {line.get_label(): line.get_xydata() for line in ax.lines if not line.get_label().startswith("_")}
    assert list(means)[1:] == ["subnetwork, its own task", "ablated model, Test Target", "ablated model, Test Other"]
    np.testing.assert_allclose(means["ablated model, Test Target"], [[0.51, 0.3], [0.23, 0.75], [0.07, 1.0]])
    np.testing.assert_allclose(means["ablated model, Test Other"][:, 1], 0.85)
    thin = [line.get_xydata() for line in ax.lines if line.get_linewidth() == 0.5]
    dots = {line.get_markersize() for line in ax.lines if line.get_linewidth() == 0.5}
    assert dots == {2}, "a base model of one size is seen, too"
    assert len(thin) == 6 and all(np.all(np.diff(line[:, 0]) < 0) for line in thin), "in the order of lambda"
    (own,) = [line for line in ax.lines if line.get_linewidth() == 3]
    np.testing.assert_allclose(own.get_xdata(), 0.23)
    assert_readable(figure)
    _, other = plt.subplots()
    control_figures.by_size(other, sizes().assign(density=[0.0, 0.2, 0.5] * 2))
    assert [min(line.get_xdata()) for line in other.lines if line.get_linewidth() == 0.5] == [control_figures.LEAST] * 6
    assert tick_labels(other.xaxis)[0] == "< .3%" and tick_labels(ax.xaxis)[0] == "1%"


# -- all of them -------------------------------------------------------------------------------------------------------


DRAWINGS = {
    "overlap": lambda ax: overlap_figures.overlap(ax, overlaps(["stages.head.hidden.weight"])),
    "forest": lambda ax: control_figures.forest(ax, effects(2)),
    "null": lambda ax: control_figures.null_distribution(ax, controls(), -0.3, p=0.01),
    "by size": lambda ax: control_figures.by_size(ax, sizes()),
    "alternatives": lambda ax: control_figures.alternatives(ax, ablations()),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_the_same_table_gives_the_same_picture(draw):
    pictures = []
    for _ in range(2):
        figure, ax = plt.subplots(figsize=(5, 3))
        draw(ax)
        pictures.append(drawn(figure))
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("deficiency", [None, *MACHADO])
@pytest.mark.parametrize(
    "shown",
    [("first", "second", "between"), ("random", "complement", "ablated"), ("zeros", "replaced", "mean", "below")],
)
def test_colors_of_one_figure_differ_for_every_eye(shown, deficiency):
    looks, matrix = CONTROLS | COMPARISONS, np.eye(3) if deficiency is None else np.array(MACHADO[deficiency])
    seen = [_lab(np.clip(matrix @ _linear(to_rgb(looks[name].color)), 0, 1)) for name in shown]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20
