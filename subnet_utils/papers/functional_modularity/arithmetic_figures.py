"""Figures on modules in arithmetic. Bars are means over seeds, dots are seeds."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.methods import GumbelSigmoid
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.papers.functional_modularity.sharing import HIDDEN
from subnet_utils.plots.layout import grid, label_first_column, legend
from subnet_utils.plots.style import BLACK, CONDITIONS

IOU, IOMIN = CONDITIONS["subnetwork"].color, "#66b3e6"
FUNCTIONS = {"+": "#0a7f5a", "*": "#7a4a9c", "pair 1": "#0a7f5a", "pair 2": "#7a4a9c", "control": "0.6", "none": "0.85"}
"""Colors of functions, as in the map of weights."""
DOT = {"marker": "o", "ms": 2.6, "mfc": "white", "mec": BLACK, "mew": 0.5, "ls": "none"}


def short_layer(name: str) -> str:
    """A weight's name as it fits an axis.

    >>> [short_layer(name) for name in ("layers.0.weight", "lstm.weight_hh_l1", "output.weight")]
    ['layer 1', 'state 2', 'output']
    """
    if name in (HIDDEN, OVERALL):
        return name.replace(" layers", "")
    module, _, weight = name.rpartition(".")
    if weight.startswith("weight_"):
        kind, number = weight.removeprefix("weight_").split("_l")
        return f"{'input' if kind == 'ih' else 'state'} {int(number) + 1}"
    return f"layer {int(module.rpartition('.')[2]) + 1}" if "." in module else module


def shared_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """IoU and IoMin of two functions' masks by layer, with chance and ceiling (Figures 1, 2 and 8).

    table: from `arithmetic_tables.sharing`, of the networks `titles` in its column `title`, a panel each.
    """
    figure, axes = grid(len(titles), width=3.4, height=2.2, across=2, margin=0.6, sharey=True)
    for ax, title in zip(axes, titles, strict=True):
        rows = table[table["title"] == title]
        names = list(dict.fromkeys(rows["layer"]))
        for shift, (metric, color) in zip((-0.2, 0.2), (("iou", IOU), ("iomin", IOMIN)), strict=True):
            label = "intersection over union" if metric == "iou" else "intersection over minimum"
            _bars(ax, rows, names, metric, shift, color=color, label=label)
            for level, style, of in ((f"chance_{metric}", ":", "chance"), (f"ceiling_{metric}", "-", "ceiling")):
                means = rows.groupby("layer")[level].mean()
                for i, name in enumerate(names):
                    ax.hlines(means[name], i + shift - 0.19, i + shift + 0.19, color=BLACK, ls=style, lw=1.2, label=of)
        ax.set_xticks(range(len(names)), [short_layer(name) for name in names], rotation=30, ha="right")
        ax.set(title=title, ylabel="shared weights", ylim=(0, 1.02))
    label_first_column(axes)
    legend(figure, columns=2)
    return figure


def _bars(ax: Axes, rows: pd.DataFrame, names: Sequence[str], value: str, shift: float, **look: str) -> None:
    """A bar for each layer, and a dot for each seed."""
    for i, name in enumerate(names):
        values = rows.loc[rows["layer"] == name, value].dropna()
        ax.bar(i + shift, values.mean(), 0.36, **look)
        ax.plot([i + shift] * len(values), values, **DOT)


def kept_weights(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Weights that each function's mask keeps, by layer (Figure 12). table: from `arithmetic_tables.kept`."""
    figure, axes = grid(len(titles), width=3.4, height=2.2, across=2, margin=0.6)
    for ax, title in zip(axes, titles, strict=True):
        rows = table[(table["title"] == title) & (table["function"] != "control")]
        names, functions = list(dict.fromkeys(rows["layer"])), list(dict.fromkeys(rows["function"]))
        for shift, function in zip((-0.2, 0.2), functions, strict=True):
            own = rows[rows["function"] == function]
            _bars(ax, own, names, "kept", shift, color=FUNCTIONS[function], label=f"mask of {function}")
        ax.set_xticks(range(len(names)), [short_layer(name) for name in names], rotation=30, ha="right")
        ax.set(title=title, ylabel="kept weights")
    label_first_column(axes)
    legend(figure)
    return figure


def operations(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """Which operation a network performs under each mask (Figure 13). table: from `arithmetic_tables.operations`."""
    masks, asked = list(dict.fromkeys(table["mask"])), list(dict.fromkeys(table["asked"]))
    figure, axes = grid(len(titles) * len(masks), width=2.2, height=1.9, across=len(masks), margin=0.6, sharey=True)
    for ax, (title, mask) in zip(axes, [(title, mask) for title in titles for mask in masks], strict=True):
        rows = table[(table["title"] == title) & (table["mask"] == mask)]
        for j, done in enumerate(dict.fromkeys(rows["done"])):
            for i, question in enumerate(asked):
                values = rows[(rows["done"] == done) & (rows["asked"] == question)]["share"]
                label = "neither" if done == "none" else f"performs {done}"
                ax.bar(i + 0.26 * (j - 1), values.mean(), 0.24, color=FUNCTIONS[done], label=label)
                ax.plot([i + 0.26 * (j - 1)] * len(values), values, **DOT)
        ax.set_xticks(range(len(asked)), [f"asked for {one}" for one in asked])
        name = "control mask" if mask == "control" else f"mask of {mask}"
        ax.set(title=f"{title}: {name}", ylabel="share of items", ylim=(0, 1.02))
    label_first_column(axes)
    legend(figure)
    return figure


def parts(table: pd.DataFrame, kinds: Sequence[str], titles: Sequence[str]) -> Figure:
    """Accuracies of parts of networks on both functions, one panel a network (Figure 7, Tables 1 to 3 as a picture).

    table: from `arithmetic_tables.accuracies` with columns `title` and `kind`, the name of a part.
    """
    figure, axes = grid(len(titles), width=3.4, height=2.3, across=2, margin=0.7, sharey=True)
    for ax, title in zip(axes, titles, strict=True):
        rows = table[table["title"] == title]
        tested = list(dict.fromkeys(rows["tested_on"]))
        for shift, function in zip((-0.2, 0.2), tested, strict=True):
            for i, kind in enumerate(kinds):
                values = rows[(rows["tested_on"] == function) & (rows["kind"] == kind)]["accuracy"]
                ax.bar(i + shift, values.mean(), 0.36, color=FUNCTIONS[function], label=f"accuracy on {function}")
                ax.plot([i + shift] * len(values), values, **DOT)
        ax.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right")
        ax.set(title=title, ylabel="accuracy", ylim=(0, 1.05))
    label_first_column(axes)
    legend(figure)
    return figure


def by_strength(table: pd.DataFrame) -> Figure:
    """Accuracy of the control mask against beta, the color says how much is shared (Figure 10).

    table: from `arithmetic_tables.by_strength`, a panel for each of its models.
    """
    models = list(dict.fromkeys(table["model"]))
    figure, axes = grid(len(models), width=3.4, height=2.2, across=2, margin=0.3, sharey=True)
    for ax, title in zip(axes, models, strict=True):
        rows = table[table["model"] == title]
        points = ax.scatter(rows["beta"], rows["control_accuracy"], c=100 * rows["shared"], cmap="cividis", s=22)
        figure.colorbar(points, ax=ax, label="weights of the first mask\nthat the second has, %")
        ax.set(xscale="log", title=title, xlabel="β", ylabel="accuracy under the control mask")
    label_first_column(axes)
    return figure


def settled(table: pd.DataFrame, titles: Sequence[str]) -> Figure:
    """How sure masks are of their weights: histograms of the probabilities to be kept (Figure 9), linear and log."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4), sharex=True)
    for ax, scale in zip(axes, ("linear", "log"), strict=True):
        for title in titles:
            means = table[table["title"] == title].groupby("bin")["share"].mean()
            ax.step(means.index, means, where="mid", lw=1.1, label=title)
        ax.set(xlabel="probability to be kept", ylabel="share of the weights", yscale=scale)
    axes[0].set_ylim(0, 0.05)
    axes[0].set_title("up to 5%", loc="left")
    axes[1].set_title("all, logarithmic", loc="left")
    legend(figure, columns=min(3, len(titles)))
    return figure


def method(*, seed: int = 0) -> Figure:
    """The method as a picture: logits, four draws of a mask for the parts of one batch, and the mask at the end.

    Everything in it is computed by the method itself, for 8 by 8 logits.
    """
    generator = generator_for("picture", seed)
    logits = {"w": 2.5 * torch.randn(8, 8, generator=generator)}
    found = GumbelSigmoid()
    draws = [found.soft(logits, 0, generator)["w"] for _ in range(4)]
    pictures = [found.expected(logits["w"]), *draws, found.hard(logits["w"]).float()]
    titles = [r"keep with $\sigma(l)$", *(f"draw {i + 1}" for i in range(4)), "at the end: $l > 0$"]
    figure, axes = grid(6, width=1.15, height=1.15, across=6, margin=0.45)
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.imshow(picture.detach().numpy(), cmap="Blues", vmin=0, vmax=1.2)
        ax.set_title(title, fontsize=7, weight="normal")
        ax.set(xticks=[], yticks=[])
    kept = float(np.mean([draw.mean() for draw in draws]))
    figure.supxlabel(
        f"Each quarter of a batch gets a draw of its own. The four keep {kept:.0%} of the weights, "
        f"σ(l) says {found.expected(logits['w']).mean():.0%}.", fontsize=7.5
    )  # fmt: skip
    return figure
