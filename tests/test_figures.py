"""Marks, grids, legends, and panels of effects: what is drawn is what the numbers say, and it can be read."""

from unittest import mock

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.text import Text

from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.break_it_down.figures import effects as figures
from subnet_utils.papers.break_it_down.figures.effects import STARS
from subnet_utils.papers.break_it_down.statistics import clamped_difference
from subnet_utils.plots import layout, marks
from subnet_utils.plots.style import BASE_MARKERS, CONDITIONS
from subnet_utils.statistics import NO_TEST

pytestmark = pytest.mark.usefixtures("paper_style")
BLUE, RED, GRAY, BLACK = (CONDITIONS[name].color for name in ("subnetwork", "ablated", "below", "paper"))
MACHADO = {  # severity 1.0, linear RGB (Machado, Oliveira and Fernandes 2009, table 1)
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.fixture(scope="module")
def effects() -> pd.DataFrame:
    """Three bases, the last of which has not learned its task, three masks each."""
    rng = np.random.default_rng(0)
    rows = []
    for subroutine in ("inside", "contact"):
        for network, target, other in (("subnetwork", 0.93, 0.3), ("ablated", 0.45, 0.8)):
            for base in range(3):
                for mask_seed in range(3):
                    accuracies = np.clip((target, other) + rng.normal(0, 0.04, 2) + 0.02 * base, 0, 1)
                    row = {"model": "resnet", "task": "inside-contact", "number": "", "subroutine": subroutine}
                    row |= {"base_model": str(base), "base_accuracy": (0.99, 0.95, 0.76)[base], "network": network}
                    row |= {"mask_seed": mask_seed, "target_accuracy": accuracies[0], "other_accuracy": accuracies[1]}
                    rows.append(row | {"difference": clamped_difference(*accuracies)})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    table = reference.load("effects")
    return table[
        (table["condition"] == "trained") & (table["model"] == "resnet50") & (table["task"] == "inside-contact")
    ]


def markers(ax, shapes: tuple[str, ...] = BASE_MARKERS) -> list:
    """The single-point lines drawn with one of the shapes: the runs of a panel."""
    points = [line for line in ax.lines if line.get_marker() in shapes and len(line.get_xdata()) == 1]
    return [line for line in points if line.get_label() != "_cut"]


def assert_readable(figure) -> None:
    """No text that is drawn leaves the figure, overlaps another, or is smaller than 6.5 points."""
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)  # the layout settles
    with mock.patch.object(Text, "draw", autospec=True, side_effect=Text.draw) as draw:
        figure.draw(renderer)
    texts = list(dict.fromkeys(call.args[0] for call in draw.call_args_list))
    texts = [text for text in texts if text.get_text().strip() and text.get_visible()]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert len(texts) >= 2
    for i, (text, box) in enumerate(zip(texts, boxes, strict=True)):
        assert text.get_fontsize() >= 6.5, text
        assert min(box.x0, box.y0) >= -1, f"{text.get_text()!r} leaves the figure"
        assert box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1, f"{text.get_text()!r} leaves it"
        for other, other_box in zip(texts[:i], boxes[:i], strict=True):
            assert not _overlap(box, other_box), f"{text.get_text()!r} overlaps {other.get_text()!r}"


def _overlap(a, b) -> bool:
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def explained(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[-1].get_texts()]


def intervals(ax) -> dict[str, list[tuple[float, float, float]]]:
    """Mean, low and high of every interval, by color."""
    found = {}
    for container in ax.containers:
        line, _, bars = container.lines
        mean = line.get_ydata() if np.ptp(line.get_xdata()) == 0 else line.get_xdata()
        ends = np.array([segment for bar in bars for segment in bar.get_segments()])
        axis = int(np.ptp(ends[:, :, 0]) == 0) if len(ends) else 1
        for value, segment in zip(mean, ends[:, :, axis], strict=True):
            found.setdefault(to_hex(line.get_color()), []).append((float(value), *map(float, segment)))
    return found


def differences(effects, reference=None, stars=None):
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    figures.differences(ax, effects, NO_PAPER if reference is None else reference, stars or {})
    return figure, ax


NO_PAPER = pd.DataFrame({"subroutine": [], "network": []})


def test_every_run_has_a_marker_of_its_base_and_gray_means_below_90_percent(effects):
    _, ax = differences(effects)
    runs = markers(ax)
    assert len(runs) == len(effects) == 36
    for network, color in (("subnetwork", BLUE), ("ablated", RED)):
        for base, shape in zip(("0", "1"), BASE_MARKERS, strict=False):
            chosen = effects[(effects["network"] == network) & (effects["base_model"] == base)]
            own = [m for m in runs if m.get_marker() == shape and to_hex(m.get_markerfacecolor()) == color]
            assert sorted(m.get_ydata()[0] for m in own) == sorted(chosen["difference"])
    gray = [m for m in runs if to_hex(m.get_markerfacecolor()) == GRAY]
    assert {m.get_marker() for m in gray} == {BASE_MARKERS[2]}
    assert sorted(m.get_ydata()[0] for m in gray) == sorted(effects.loc[effects["base_model"] == "2", "difference"])
    assert max(m.get_zorder() for m in gray) < min(m.get_zorder() for m in runs if m not in gray), "gray ones hide none"
    assert ax.get_ylim() == (-0.8, 0.8)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["inside", "contact"]
    assert any(np.array_equal(line.get_ydata(), [0, 0]) for line in ax.lines)


def test_our_mean_and_interval_are_over_the_bases_that_learned(effects):
    _, ax = differences(effects)
    learned = effects[effects["base_accuracy"] >= 0.9]
    by_base = learned.groupby(["network", "subroutine", "base_model"])["difference"].mean()
    for network, color in (("subnetwork", BLUE), ("ablated", RED)):
        groups = [base for _, base in by_base[network].groupby("subroutine")]
        expected = [(b.mean(), *stats.t.interval(0.95, len(b) - 1, b.mean(), stats.sem(b))) for b in groups]
        assert np.allclose(sorted(intervals(ax)[color]), sorted(expected))
    _, ax = differences(effects.assign(base_accuracy=0.8))
    assert {to_hex(m.get_markerfacecolor()) for m in markers(ax)} == {GRAY}
    assert intervals(ax) == {}, "no base model has learned"


def test_the_papers_values_are_black_open_diamonds_in_every_panel(effects, paper):
    _, left = differences(effects, paper)
    _, right = plt.subplots()
    for network in figures.NETWORKS:
        figures.accuracies(right, effects, paper, network)
    for ax, values in ((left, ["difference"]), (right, ["target_accuracy", "other_accuracy"])):
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert {to_hex(line.get_markerfacecolor()) for line in diamonds} == {"#ffffff"}
        mean, sd = (paper[[f"{value}_{name}" for value in values]].to_numpy().ravel() for name in ("mean", "sd"))
        expected = zip(mean, mean - sd, mean + sd, strict=True)
        assert np.allclose(sorted(intervals(ax)[BLACK]), sorted(expected))


def test_stars_stand_above_their_own_cluster(effects):
    _, ax = differences(effects, stars={("inside", "subnetwork"): "***", ("contact", "ablated"): "*"})
    positions = {text.get_text(): text.get_position()[0] for text in ax.texts if text.get_text()}
    assert set(positions) == {"***", "*"}
    assert -0.5 < positions["***"] < 0 < 1 < positions["*"] < 1.5
    _, ax = differences(effects, stars={("inside", "subnetwork"): "."})  # a point is not seen above a line
    assert [text.get_text() for text in ax.texts if text.get_text()] == ["\N{DAGGER}"]


def test_accuracies_are_not_clamped_and_test_other_is_open(effects):
    _, ax = plt.subplots()
    figures.accuracies(ax, effects.assign(other_accuracy=0.1), NO_PAPER, "ablated")
    runs = markers(ax)
    assert len(runs) == 2 * (effects["network"] == "ablated").sum()
    assert {m.get_ydata()[0] for m in runs if m.get_markerfacecolor() == "none"} == {0.1}
    assert any(np.array_equal(line.get_ydata(), [0.25, 0.25]) for line in ax.lines)


def test_other_ablations_have_a_cluster_each_in_their_own_order(effects):
    table = pd.concat([effects.assign(ablation=name, difference=effects["difference"] + shift)
                       for name, shift in (("zeros", 0.0), ("replaced", 0.1), ("mean", 0.2))])  # fmt: skip
    table.loc[table.index[0], "difference"] = np.nan
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    figures.differences(ax, table, by="ablation")
    colors = [CONDITIONS[name].color for name in ("zeros", "replaced", "mean")]
    ticks = sorted((c.lines[0].get_xdata()[0], to_hex(c.lines[0].get_color())) for c in ax.containers)
    assert [color for _, color in ticks] == colors * 2, "clusters do not mix"
    runs = sorted((m.get_xdata()[0], m.get_markerfacecolor()) for m in markers(ax) if m.get_label() == "_run")
    assert list(dict.fromkeys(color for x, color in runs if x < 0.5)) == colors
    assert_readable(figures.legend(figure, ["zeros", "replaced", "mean"]))
    assert explained(figure)[:3] == [CONDITIONS[name].label for name in ("zeros", "replaced", "mean")]


@pytest.mark.parametrize("column", ["model", "task"])
def test_what_does_not_belong_into_one_panel_is_refused(effects, column):
    with pytest.raises(ValueError, match=rf"one {column}; effects have .*another"):
        differences(pd.concat([effects, effects.assign(**{column: "another"})]))
    with pytest.raises(ValueError, match="select one condition and model"):
        differences(effects, reference.load("effects"))


def test_pages_and_single_columns_are_readable(effects, paper):
    figure, axes = layout.grid(4, width=1.8, height=2.2, sharey=True)
    for ax in axes:
        figures.differences(ax, effects, paper, dict.fromkeys([("inside", "ablated"), ("contact", "ablated")], "***"))
        ax.set_title("inside-contact", pad=14)
        ax.label_outer()
    assert_readable(figures.legend(figure))
    figure, _ = differences(effects, paper)
    assert_readable(figures.legend(figure))
    figure, ax = plt.subplots(figsize=(3.4, 2.8))
    figures.accuracies(ax, effects, paper, "subnetwork")
    assert_readable(figures.legend(figure, probes=True))


def test_intervals_that_run_off_the_axis_end_in_arrowheads(effects):
    """With two bases that differ much a t interval is wider than the axis: a bar that ends there would be a lie."""
    two = effects[(effects["base_model"] != "2") & (effects["subroutine"] == "inside")]
    factors = two["base_model"].map({"0": 0.2, "1": 1.0})
    _, ax = differences(two.assign(difference=two["difference"] * factors))
    cut = [(line.get_marker(), float(line.get_ydata()[0])) for line in ax.lines if line.get_label() == marks.CUT]
    assert sorted(cut) == [("^", 0.8), ("^", 0.8), ("v", -0.8), ("v", -0.8)]
    _, ax = differences(two.assign(difference=0.1 + 0.01 * two["base_model"].astype(int)))
    assert not marks.drawn([ax], marks.CUT)
    _, ax = plt.subplots()
    look = {"limits": (0.1, 1), "across": True}
    marks.means(ax, [1, 2, 3], ([0.5, 0.5, np.nan], [0, 0.2, 0], [0.7, 2, 1]), CONDITIONS["ours"], **look)
    cut = [(line.get_marker(), *line.get_xydata()[0]) for line in ax.lines if line.get_label() == marks.CUT]
    assert cut == [("<", 0.1, 1), ("<", 0.1, 3), (">", 1, 2)]


def test_the_legend_names_what_is_drawn_and_nothing_else(effects, paper):
    always = [CONDITIONS[name].label for name in ("subnetwork", "ablated", "ours")]
    figure, ax = differences(effects[effects["base_model"] == "1"])
    assert explained(figures.legend(figure)) == always
    figure, ax = differences(effects, paper.assign(difference_sd=0.7))
    below, diamond = (CONDITIONS[name].label for name in ("below", "paper"))
    shapes = "shape: base model"
    found = [*always[:2], shapes, below, always[2], diamond, "arrowhead: interval goes on"]
    assert explained(figures.legend(figure)) == found
    assert explained(figures.legend(figure, probes=True))[2:4] == ["Test Target", "Test Other"]
    assert not figure.legends[0].get_title().get_text()


def test_the_legend_explains_the_stars_and_where_there_is_no_test(effects):
    for marked, ends in (("***", STARS), (NO_TEST, "of any variance")):
        figure, _ = differences(effects, stars={("inside", "ablated"): marked})
        title = figures.legend(figure, stars=STARS).legends[-1].get_title().get_text()
        assert title.startswith(STARS) and title.endswith(ends)


def test_a_grid_leaves_the_rest_of_its_last_row_empty_and_one_legend_names_each_label_once():
    figure, axes = layout.grid(3, width=2, height=2, across=2)
    assert len(axes) == 3 and [ax.axison for ax in figure.axes] == [True] * 3 + [False]
    for ax, labels in zip(axes, (("a",), ("a", "b"), ("_c",)), strict=True):
        for label in labels:
            ax.plot([0, 1], label=label)
        ax.set_ylabel("y")
    layout.label_first_column(axes)
    assert [ax.get_ylabel() for ax in axes] == ["y", "", "y"]
    layout.legend(figure)
    assert explained(figure) == ["a", "b"]


def test_each_of_eight_base_models_has_a_shape_of_its_own(effects):
    base = effects[(effects["base_model"] == "0") & (effects["mask_seed"] == 0)]
    _, ax = differences(pd.concat([base.assign(base_model=str(i)) for i in range(8)], ignore_index=True))
    clusters = [markers(ax)[i : i + 8] for i in range(0, 32, 8)]
    assert all([run.get_marker() for run in cluster] == [*BASE_MARKERS] for cluster in clusters)
    inked = []
    for run in clusters[0]:
        figure = plt.figure(figsize=(0.1, 0.1), dpi=600)
        figure.add_artist(plt.Line2D([0.5], [0.5], ls="none", marker=run.get_marker(), ms=run.get_markersize(), mew=0))
        figure.canvas.draw()
        inked.append(np.asarray(figure.canvas.buffer_rgba())[..., 0] < 128)
    for i, one in enumerate(inked):
        for other in inked[:i]:
            assert (one ^ other).sum() > 0.2 * (one | other).sum(), "shapes that print alike"


def _linear(rgb) -> np.ndarray:
    rgb = np.asarray(rgb)
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
