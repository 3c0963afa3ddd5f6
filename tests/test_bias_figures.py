"""The figures with images, from made-up measures: names can be read, and lines differ."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from subnet_utils.papers.subtask_induction import arithmetic_figures as induction_figures
from subnet_utils.papers.subtask_induction import images_figures as bias_figures
from subnet_utils.papers.subtask_induction import images_tables as shape_bias
from subnet_utils.papers.subtask_induction.arithmetic_figures import BLACK, FURTHER, GREEN, LINES, MAIN, RED, Line
from subnet_utils.papers.subtask_induction.conditions import IMAGE_CONDITIONS, VARIANTS
from subnet_utils.papers.subtask_induction.images_figures import NETWORKS, UNTRAINED
from tests.test_figures import MACHADO, _lab, _linear
from tests.test_shape_bias import levels


def test_every_class_has_its_mean_its_range_and_its_name_in_all_panels():
    values = {"circle": ((0.0, 0.2), (0.5, 0.7)), "bar": ((0.4, 0.4), (0.1, 0.9))}
    table = pd.DataFrame({"model": model, "seed": seed, "network": network, "class": name, "accuracy": accuracy}
                         for model in ("cnn", "vit")
                         for name, pair in values.items()
                         for network, accuracies in zip(("base", "subnetwork"), pair, strict=True)
                         for seed, accuracy in enumerate(accuracies))  # fmt: skip
    for ax in bias_figures.by_class(table).axes:
        assert [label.get_text() for label in ax.get_xticklabels()] == ["circle", "bar"]
        assert not ax.patches and levels(ax) == [1 / 2] and "pooled" in ax.get_ylabel()
        means = [line.get_ydata() for line in ax.lines if line.get_marker() == "o"]
        assert np.allclose(means, [[0.1, 0.4], [0.6, 0.5]])
        assert np.allclose([bar[:, 1] for lines in ax.collections for bar in lines.get_segments()],
                           [(0, 0.2), (0.4, 0.4), (0.5, 0.7), (0.1, 0.9)])  # fmt: skip
    plt.close("all")


def test_votes_are_those_of_a_typical_seed():
    accuracies = {"base": (0.0, 0.1, 0.2, 0.3), "subnetwork": (0.1, 0.5, 0.3, 0.4)}
    table = pd.DataFrame({"network": network, "seed": seed, "shape_accuracy": value}
                         for network, values in accuracies.items() for seed, value in enumerate(values))  # fmt: skip
    assert shape_bias.typical_seed(table) == 2  # .3, the lower of the middle two
    assert shape_bias.typical_seed(table[table["network"] == "base"]) == 1


def test_what_is_the_same_in_arithmetic_and_with_images_looks_the_same():
    assert list(NETWORKS) == ["base", "mask", *IMAGE_CONDITIONS]
    both = NETWORKS.keys() & LINES.keys()
    assert both == {"subnetwork", "random", "embed_only", "strict", "scratch"}
    assert all(NETWORKS[name][:2] == LINES[name][:2] for name in both)
    # there are no embeddings in one, no classifier in the other
    assert {name for name in both if NETWORKS[name] != LINES[name]} == {"embed_only"}
    assert NETWORKS["base"].color == LINES["full"].color


def figure_lines() -> dict[str, list[Line]]:
    """What is in one figure. With images lines have one style and differ in nothing but their color."""
    arithmetic = {"3, 6": (*MAIN, "random_complement"), "8-10": FURTHER,
                  "variants": dict.fromkeys(sum(VARIANTS.values(), ()))}  # fmt: skip
    images = {"11": [NETWORKS["base"].color, NETWORKS["mask"].color, UNTRAINED], "ablations": [BLACK, GREEN, RED]}
    arithmetic |= {f"7, {reading}": names for reading, names in induction_figures.FROZEN_OR_NOT.items()}
    lines = {about: [Line(color, "-", "") for color in colors] for about, colors in images.items()}
    return lines | {"networks": [*NETWORKS.values()]} | {
        about: [LINES[name] for name in names] for about, names in arithmetic.items()}  # fmt: skip


@pytest.mark.parametrize("deficiency", [None, *MACHADO])
@pytest.mark.parametrize("about", figure_lines())
def test_lines_of_one_figure_can_be_told_apart_by_every_eye(about, deficiency):
    matrix = np.eye(3) if deficiency is None else np.array(MACHADO[deficiency])
    for one, other in combinations(figure_lines()[about], 2):
        seen = [_lab(np.clip(matrix @ _linear(to_rgb(line.color)), 0, 1)) for line in (one, other)]
        # CIE76; 2.3 is a just noticeable difference
        assert one.style != other.style or np.linalg.norm(seen[0] - seen[1]) > 10, (one, other)
