"""The figure of an overlap: what is drawn is what the table says, missing numbers break nothing, all can be read."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex

from subnet_utils.masks.overlap import OVERALL
from subnet_utils.models import build
from subnet_utils.papers.break_it_down.figures import overlap as overlap_figures
from subnet_utils.papers.break_it_down.figures.overlap import COMPARISONS
from tests.test_figures import assert_readable

pytestmark = pytest.mark.usefixtures("paper_style")
FAMILIES = {
    "resnet": {"block": "bottleneck", "depths": [1, 1, 1, 2], "width": 4, "head_width": 8},
    "bert": {"layers": 2, "width": 8, "heads": 2, "mlp_width": 16},
    "vit": {"layers": 2, "width": 8, "heads": 2, "mlp_width": 16, "patch": 8},
}


def maskable(family: str, start: int = 0) -> tuple[str, ...]:
    model = build({"family": family} | FAMILIES[family], seed=0, vocabulary=20, resolution=64)
    return model.maskable(model.stage_names[start])


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def overlaps(layers, labels=("within inside", "within number", "between")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(layer, label) for label in labels for layer in layers]
    table = pd.DataFrame(rows, columns=["layer", "comparison"])
    return table.assign(iou=rng.uniform(0, 1, len(rows)), expected=rng.uniform(0, 0.3, len(rows)), bases=1)


def test_overlap_draws_every_comparison_and_what_chance_would_give():
    table = overlaps([*sorted(maskable("resnet", -2)), OVERALL])
    figure, ax = plt.subplots(figsize=(7, 3))
    assert overlap_figures.overlap(ax, table) is ax
    layers = [*maskable("resnet", -2), OVERALL]
    for (label, rows), key in zip(table.groupby("comparison", sort=False), ("first", "second", "between"), strict=True):
        heights = rows.set_index("layer").loc[layers]
        own = [line for line in ax.lines if to_hex(line.get_color()) == COMPARISONS[key].color]
        solid, dashed, solid_overall, dashed_overall = own
        assert (solid.get_label(), solid.get_marker()) == (label, COMPARISONS[key].marker)
        assert list(solid.get_xdata()) == list(dashed.get_xdata()) == list(range(len(layers) - 1))
        assert list(solid.get_ydata()) == list(heights["iou"][:-1])
        assert list(dashed.get_ydata()) == list(heights["expected"][:-1])
        assert list(solid_overall.get_ydata()) == [heights["iou"].iloc[-1]]
        assert set(dashed_overall.get_ydata()) == {heights["expected"].iloc[-1]}
        assert solid_overall.get_xdata()[0] > len(layers) - 1  # apart from the layers
        assert [line.is_dashed() for line in own] == [False, True] * 2
    assert tick_labels(ax.xaxis) == [overlap_figures.short_weight(layer) for layer in layers]
    assert ax.get_ylim() == (0, 1)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["within inside", "within number", "between"]
    assert [key.get_label() for key in overlap_figures.keys([ax])] == ["random masks"]
    overall = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    assert len(set(overall)) == 3, "no marker covers another one"
    assert_readable(figure)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_in_the_order_of_the_network_however_they_are_sorted(family):
    layers = maskable(family)
    figure, ax = plt.subplots(figsize=(7, 3))
    overlap_figures.overlap(ax, overlaps(sorted(layers)))
    labels = tick_labels(ax.xaxis)
    assert labels == [overlap_figures.short_weight(layer) for layer in layers]
    assert len(set(labels)) == len(labels) > 10
    assert max(map(len, labels)) <= 19 and not any("stage" in x or "weight" in x or "_" in x for x in labels)
    assert_readable(figure)


def test_a_mean_over_other_base_models_is_on_another_line():
    table = overlaps([*sorted(maskable("resnet", -2)), OVERALL], ["between"])
    layers = [*maskable("resnet", -2), OVERALL]
    table["bases"] = table["layer"].map({layer: 1 if i < 3 else 2 for i, layer in enumerate(layers)})
    each = pd.concat([table.assign(base_model=base) for base in "01"])
    _, ax = plt.subplots()
    overlap_figures.overlap(ax, table, each)
    own = [line for line in ax.lines if line.get_marker() == COMPARISONS["between"].marker]
    assert [len(line.get_xdata()) for line in own] == [3, len(layers) - 4, 1]
    assert [line.get_label() for line in own] == ["between", "_", "_"]
    assert "single base models" in [key.get_label() for key in overlap_figures.keys([ax])]
    thin = [line for line in ax.lines if line.get_alpha() == 0.4]
    assert [len(line.get_xdata()) for line in thin] == [len(layers) - 1] * 2


def test_a_layer_without_overlap_is_a_gap():
    table = overlaps(["stages.head.hidden.weight", "stages.head.embedding.weight"], ["between subroutines"])
    table.loc[0, ["iou", "expected"]] = np.nan
    figure, ax = plt.subplots(figsize=(3.4, 3))
    overlap_figures.overlap(ax, table)
    assert [line.get_color() for line in ax.lines] == [COMPARISONS["between"].color] * 2
    for line, column in zip(ax.lines, ("iou", "expected"), strict=True):
        assert np.array_equal(line.get_ydata(), table[column], equal_nan=True)
    assert_readable(figure)


def test_overlaps_that_cannot_be_told_apart_are_refused():
    _, ax = plt.subplots()
    table = overlaps(["stages.head.hidden.weight"])
    with pytest.raises(ValueError, match="duplicate"):
        overlap_figures.overlap(ax, pd.concat([table, table]))
    for labels in (("a", "b", "c"), ("between x", "between y")):
        with pytest.raises(ValueError, match=f"two subroutines and one 'between'; table has {', '.join(labels)}"):
            overlap_figures.overlap(ax, overlaps(["stages.head.hidden.weight"], labels))
