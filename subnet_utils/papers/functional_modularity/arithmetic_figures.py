"""Figures on modules in arithmetic. Bars are means over seeds, dots are seeds.

table: from the function of the same name in `arithmetic_tables`; titles: those that are shown, a panel each.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.methods import GumbelSigmoid
from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import grid, log_axis, panels, short_layer
from subnet_utils.plots.style import BLACK, CONDITIONS

METRICS = {"iou": "intersection over union", "iomin": "intersection over minimum"}
COLORS = dict(zip(METRICS.values(), (CONDITIONS["subnetwork"].color, "#66b3e6"), strict=True))
BY_STRENGTH = {"control_accuracy": ("accuracy under the control mask", BLACK),
               "ceiling_iou": ("overlap of two masks of one function", CONDITIONS["mean"].color),
               "hidden_iou": ("overlap in hidden layers (IoU)", CONDITIONS["subnetwork"].color),
               "chance_iou": ("by chance", "0.6"), "scale": ("on the scale between", "#d98c00")}  # fmt: skip
FUNCTIONS = {"+": "#0a7f5a", "*": "#7a4a9c", "pair 1": "#0a7f5a", "pair 2": "#7a4a9c", "neither": "0.85"}
"""Colors of functions, as in the map of weights."""


def _of(table: pd.DataFrame, titles: Sequence[str]) -> pd.DataFrame:
    """The rows of some networks, with the names of weights as they fit an axis."""
    some = table[table["title"].isin(titles)]
    return some.assign(layer=some["layer"].map(short_layer)) if "layer" in some else some


def shared_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """IoU and IoMin of two functions' masks by layer, chance and ceiling (Figures 1, 2 and 8). table: `sharing`."""
    some = _of(table, titles)
    long = pd.concat(
        some[["title", "layer"]].assign(
            metric=name, shared=some[metric], chance=some[f"chance_{metric}"], ceiling=some[f"ceiling_{metric}"]
        )
        for metric, name in METRICS.items()
    )
    axis = {"ylabel": "shared weights", "ylim": (0, 1.02)}
    return bars(long, x="layer", y="shared", hue="metric", colors=COLORS, levels=["chance", "ceiling"], **axis)


def kept_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Weights that each function's mask keeps, by layer (Figure 12). table: `kept`."""
    some = _of(table[table["function"] != "control"], titles)
    look = {"colors": FUNCTIONS, "label": "mask of {}", "ylabel": "kept weights"}
    return bars(some, x="layer", y="kept", hue="function", size={"sharey": False}, **look)


def operations(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Which operation a network performs under each mask (Figure 13)."""
    some = _of(table, titles)
    masks = ("mask of " + some["mask"]).replace("mask of control", "control mask")
    asked, done = "asked for " + some["asked"], some["done"].replace("none", "neither")
    some = some.assign(title=some["title"] + "\n" + masks, asked=asked, done=done)
    look = {"colors": FUNCTIONS, "label": "performs {}", "ylabel": "share of items", "ylim": (0, 1.02)}
    return bars(some, x="asked", y="share", hue="done", size={"width": 2.2, "across": masks.nunique()}, **look)


def parts(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Accuracies of parts on both functions (Figure 7, Tables 1 to 3). table: `accuracies` with a column `kind`."""
    look = {"colors": FUNCTIONS, "label": "accuracy on {}", "ylabel": "accuracy", "ylim": (0, 1.05)}
    return bars(_of(table, titles), x="kind", y="accuracy", hue="tested_on", **look)


def by_strength(table: pd.DataFrame) -> Figure:
    """Accuracy under the control mask, and what two functions' masks share, against beta (Figure 10)."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby("beta")[[*BY_STRENGTH]].mean()
        for column, (label, color) in BY_STRENGTH.items():
            ax.plot(means.index, means[column], "-", rows["beta"], rows[column], "o", ms=2, color=color, label=label)
        log_axis(ax, means.index[:: 1 + len(means) // 5], "{:.1e}")
        ax.set(xlabel="β", ylabel="accuracy, or overlap", ylim=(0, 1.02))

    return panels(table, "model", draw, width=4.6)


def settled(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """How sure masks are of their weights: histograms of the probabilities to be kept, logarithmic (Figure 9)."""

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby("bin")["share"].mean()
        ax.bar(means.index, means, width=means.index[1] - means.index[0], color=CONDITIONS["subnetwork"].color)
        ax.set(xlabel="probability to be kept", ylabel="share of the weights", yscale="log")
        ax.set_title(rows["title"].iloc[0], fontsize=7)

    return panels(_of(table, titles), "title", draw, width=1.8, height=1.5, across=4)


def method(*, seed: int = 0) -> Figure:
    """The method itself at work on 8 by 8 logits: a batch in four parts, a draw of a mask for each, what goes forward
    and what the gradient sees (straight-through), and the mask at the end."""
    generator, found = generator_for("picture", seed), GumbelSigmoid()
    logits = {"w": 2.5 * torch.randn(8, 8, generator=generator)}
    draws = [found.soft(logits, 0, generator)["w"].detach() for _ in range(4)]
    batch, noisy = torch.arange(8).div(8).repeat(8, 1).T.floor_divide(0.25) / 3, torch.linspace(-5, 5, 200)
    pictures = [batch, found.expected(logits["w"]), *draws, None, found.hard(logits["w"]).float()]
    titles = ["a batch in 4 parts", r"keep with $\sigma(l)$", *(f"part {i + 1}: a draw" for i in range(4)),
              r"forward $b$, backward $s$", "at the end: $l > 0$"]  # fmt: skip
    figure, axes = grid(8, width=1.4, height=1.2, across=4, margin=0.4)
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.set_title(title, fontsize=7.5, weight="normal")
        if picture is None:
            ax.plot(noisy, (noisy > 0).float(), color=BLACK)
            ax.plot(noisy, noisy.sigmoid(), "--", color=CONDITIONS["subnetwork"].color)
            ax.set_xlabel("$l$ + noise", fontsize=7)
        else:
            ax.imshow(picture.numpy(), cmap="Blues", vmin=0, vmax=1.2)
        ax.set(xticks=[], yticks=[])
    kept, expected = torch.stack(draws).mean(), found.expected(logits["w"]).mean()
    figure.supxlabel(f"The four draws keep {kept:.0%} of the weights, σ(l) says {expected:.0%}.", fontsize=7.5)
    return figure
