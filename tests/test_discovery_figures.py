"""Learning curves, mask search and annealing: what is drawn is what the numbers say."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt

from subnet_utils.papers.break_it_down.figures import discovery as discovery_figures
from subnet_utils.papers.break_it_down.figures import panels
from tests.test_figures import assert_readable, explained

pytestmark = pytest.mark.usefixtures("paper_style")


def test_search_heatmap_frames_the_first_of_the_best_and_hatches_the_failed():
    grid = [(rate, init, start) for rate in (0.01, 0.0001) for init in (0.1, -0.05) for start in ("stem", "stage_4")]
    search = pd.DataFrame(grid, columns=["learning_rate", "mask_init", "start"])
    search["score"] = [0.1, 0.0, 0.3, 0.6, 0.0, 0.6, -0.2, 0.1]
    search["own_task_accuracy"] = [0.95, 0.89, 0.95, 0.95, 0.3, 0.95, 0.95, 0.95]
    figure, ax = plt.subplots(figsize=(3.4, 2.6))
    discovery_figures.search_heatmap(ax, search)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["0.01, 0.1", "0.01, −0.05", "0.0001, 0.1", "0.0001, −0.05"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["stem", "stage 4"]
    shown = np.ma.filled(ax.collections[0].get_array().astype(float), np.nan)
    assert np.array_equal(shown, [[0.1, np.nan], [0.3, 0.6], [np.nan, 0.6], [-0.2, 0.1]], equal_nan=True)
    assert ax.patch.get_hatch() and ax.patch.get_label() == "_failed"
    (frame,) = ax.patches
    assert frame.get_xy() == (1, 1) and frame.get_linestyle() in ("-", "solid")
    assert sorted(text.get_text() for text in ax.texts) == ["0.10", "0.10", "0.30", "0.60", "0.60", "−0.20"]
    negative, positive = (ax.collections[0].to_rgba(score) for score in (-0.2, 0.1))
    assert positive[2] > positive[0] and negative[0] > negative[2], "blue where ablation does what it should, else red"
    assert_readable(figure)
    with pytest.raises(ValueError, match="duplicate"):
        discovery_figures.search_heatmap(ax, pd.concat([search, search]))


def hardening(epochs: int = 12, bins: int = 50) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    beta = 200 ** ((np.arange(epochs) + 1) / epochs)
    logits = 0.05 + np.linspace(0, 0.05, epochs)[:, None] * rng.normal(-0.5, 1, 5000)
    soft = 1 / (1 + np.exp(-beta[:, None] * logits))
    shares = np.stack([np.histogram(row, bins, (0, 1))[0] / 5000 for row in soft])
    trace = pd.DataFrame({"epoch": range(epochs), "beta": beta, "density": (logits > 0).mean(axis=1)})
    histograms = pd.DataFrame(shares, columns=[f"bin_{i:02d}" for i in range(bins)])
    return trace, histograms.assign(epoch=range(epochs))


def test_annealing_draws_temperature_density_and_histograms():
    trace, histograms = hardening()
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4))
    discovery_figures.annealing(axes, trace, histograms)
    beta, twin = axes[0], figure.axes[2]
    assert beta.get_yscale() == "log"
    assert np.allclose(beta.lines[0].get_ydata(), trace["beta"])
    assert np.allclose(twin.lines[0].get_ydata(), 100 * trace["density"])
    steps = axes[1].patches
    assert [step.get_label() for step in steps] == ["1", "4", "7", "9", "12"]
    values, edges, _ = steps[-1].get_data()
    assert np.allclose(values, histograms.filter(like="bin_").iloc[-1], atol=1e-11)
    assert np.allclose(edges, np.linspace(0, 1, 51))
    assert_readable(figure)


def test_masks_of_other_methods_have_no_temperature():
    trace, histograms = hardening()
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4))
    discovery_figures.annealing(axes, trace.drop(columns="beta"), histograms)
    assert [len(ax.lines) for ax in figure.axes] == [0, 0, 1]
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4))
    discovery_figures.annealing(axes, trace[["epoch", "density"]].tail(1), histograms[["epoch"]].tail(1))  # a ranking
    assert [len(ax.lines) for ax in figure.axes] == [0, 1]


def test_learning_curves_have_one_color_a_run():
    epochs = np.arange(5)
    history = pd.concat(
        pd.DataFrame({
            "base_seed": seed, "model": "m", "task": "number-contact", "number": "", "epoch": epochs,
            "train_loss": np.exp(-epochs * speed), "validation_loss": 1.1 * np.exp(-epochs * speed),
            "validation_accuracy": 1 - 0.75 * np.exp(-epochs * speed),
        })
        for seed, speed in ((0, 0.5), (1, 0.3))
    )  # fmt: skip
    figure = panels.learning_curves(
        pd.concat([history, history[history["base_seed"] == 1].assign(task="inside-number")])
    )
    one, two = (figure.axes[i : i + 2] for i in (2, 0))
    colors = [line.get_color() for line in one[1].lines[:2]]
    assert colors[0] != colors[1] == two[1].lines[0].get_color(), "a base has one color in all panels"
    assert [line.get_color() for line in one[0].lines[:4]] == colors * 2
    accuracy = history.loc[history["base_seed"] == 1, "validation_accuracy"]
    assert np.allclose(one[1].lines[1].get_ydata(), accuracy)
    assert list(one[1].lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert abs(discovery_figures.MINIMUM_LOSS - 0.0535) < 1e-4
    said = ["base 0", "base 1", "validation", "training", "smallest loss possible; chance and 90%"]
    assert explained(figure) == said
    assert_readable(figure)
    figure = panels.learning_curves(history[history["epoch"] == 0])  # as in the profile check
    assert {line.get_marker() for line in figure.axes[1].lines[:2]} == {"o"}
