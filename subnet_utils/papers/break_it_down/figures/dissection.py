"""A network taken apart, drawn: its answers to single examples, and how well its parts solve the whole task."""

import re
from collections.abc import Mapping
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor

from subnet_utils.papers.break_it_down import dissection, releases
from subnet_utils.papers.break_it_down.dissection import ALONE, PARTS, WHOLE, Dissection
from subnet_utils.papers.break_it_down.figures.examples import cell, frame
from subnet_utils.tasks.odd_one_out import CHANCE, subroutines_of
from subnet_utils.plots import marks
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, Look
from subnet_utils.zoo import Entry

BOX = {"fc": "white", "ec": "none", "pad": 0.5}
"""Behind words that stand on a line."""
EXPECTED = {"marker": "D", "ms": 4, "mfc": "white", "mec": BLACK, "mew": 0.8}
"""What a subnetwork has that knows its own subroutine alone."""
KINDS = {"whole network": BLACK, "subnetworks": CONDITIONS["subnetwork"].color,
         "random ones": CONDITIONS["random"].color, "without them": CONDITIONS["ablated"].color}  # fmt: skip
"""Colors of the parts that are put together, by what they are."""


def one_example(shown: Dissection) -> Figure:
    """Figure 2 with a network in place of the drawing: what the whole and its parts answer to an example of each
    probe set, and their accuracy on the whole set."""
    parts, several = list(shown.accuracies.index), len(shown.items)
    heights = (1.0 if isinstance(next(iter(shown.items.values())), Tensor) else 1.1, 0.24 * len(parts))
    figure = plt.figure(figsize=(1.3 + 4.1 * several, sum(heights) + 0.7))
    grid = figure.add_gridspec(2, 4 * several, height_ratios=heights)
    for i, (subroutine, items) in enumerate(shown.items.items()):
        above = [figure.add_subplot(grid[0, 4 * i + item]) for item in range(4)]
        for item, ax in enumerate(above):
            _item(ax, items[item], framed=item == 3)
        above[1].set_title(f"Test {subroutine}", x=1.1)
        below = figure.add_subplot(grid[1, 4 * i : 4 * i + 4])
        own = shown.answers[shown.answers["subroutine"] == subroutine]
        probabilities = own.pivot(index="part", columns="item", values="probability").loc[parts]
        answers(below, probabilities, shown.accuracies[f"Test {subroutine}"])
        below.set_xlabel("probability of being the odd one")
        if i:
            below.tick_params(labelleft=False)
    figure.suptitle(shown.title, fontsize=8.5)
    return figure


def one_part(entry: Entry, *, example: int, part: str) -> Figure:
    """`one_example` of a network of the zoo and one of its `dissection.parts`, before one example of each test."""
    parts = dissection.parts({one: entry.masks[one] for one in subroutines_of(entry.card["name"])})
    return one_example(releases.dissected(entry, {part: parts[part]}, example=example))


def _item(ax: Axes, item: Any, *, framed: bool) -> None:
    """An image, or a sentence with a few words a line; a framed one breaks the rule."""
    if isinstance(item, Tensor):
        cell(ax, item.numpy(), framed=framed)
    else:
        ax.text(0.5, 0.5, fill(item, 12), ha="center", va="center", fontsize=7, transform=ax.transAxes)
        frame(ax, framed)


def answers(ax: Axes, probabilities: pd.DataFrame, accuracies: pd.Series, *, odd: int = 3) -> Axes:
    """What networks answer to one odd-one-out example: how probable they hold each item to be the odd one.

    probabilities: a row for each network, a column for each of the four items; the largest of a row, its answer, is
    bold, the item that is the odd one framed. accuracies: of the same networks on the whole set, written at the right.
    """
    rows = range(len(probabilities))
    sns.heatmap(probabilities, vmin=0, vmax=1, cmap="Greys", annot=probabilities.map(_two_digits), fmt="", cbar=False,
                annot_kws={"size": 7.5}, ax=ax)  # fmt: skip
    for row, largest in enumerate(probabilities.to_numpy().argmax(axis=1)):
        ax.texts[row * probabilities.shape[1] + largest].set_weight("bold")
    ax.add_patch(Rectangle((odd, 0), 1, len(rows), clip_on=False, zorder=3, fill=False,
                           ec=CONDITIONS["ablated"].color, lw=2))  # fmt: skip
    ax.set(xticks=[], ylabel="")
    right = ax.secondary_yaxis("right")
    right.set_yticks(np.add(rows, 0.5), [_two_digits(value) for value in accuracies[probabilities.index]])
    right.spines[:].set_visible(False)
    for one in (ax, right):
        one.tick_params(length=0, labelrotation=0)
    ax.text(1.02, 1.03, "accuracy", transform=ax.transAxes, fontsize=6.5)
    return ax


def assembled(ax: Axes, table: pd.DataFrame, names: Mapping[str, str]) -> Axes:
    """Accuracy on the whole task of one task's parts: a dot for each base model, a tick for their mean.

    table: from `dissection.assembled`; names: of the subroutines A and B. Dotted: chance. An open diamond: what a part
    has that is always right where its own subroutine tells the odd one, and guesses elsewhere.
    Colors: `KINDS`. Parts that the table lacks are of masks that start at different stages.
    """
    limits = (0, 1.02)
    for place, part in enumerate(PARTS):
        rows = table[table["part"] == part]
        values, color = rows["whole_task"], KINDS[_kind(part)]
        if values.empty:
            ax.text(0.04, place, "different starts", va="center", color="0.45", fontsize=6.5, bbox=BOX)
            continue
        ax.plot(values, [place] * len(values), "o", ms=3.5, color=color, alpha=0.6, mec="none", clip_on=False)
        marks.means(ax, place, (values.mean(), np.nan, np.nan), Look(color, None, ""), limits=limits, across=True)
        if rows["knows_one"].notna().any():
            ax.plot(rows["knows_one"].mean(), place, ls="none", zorder=4, **EXPECTED)
    ax.axvline(CHANCE, zorder=0, **CHANCE_LINE)
    ax.set(xlim=limits, ylim=(len(PARTS) - 0.5, -0.5), xlabel="accuracy, whole task")
    ax.set_yticks(range(len(PARTS)), [re.sub(r"\b[AB]\b", lambda found: names[found[0]], part) for part in PARTS])
    ax.tick_params(axis="y", length=0)
    return ax


def _kind(part: str) -> str:
    if part == WHOLE:
        return "whole network"
    return "random ones" if part.startswith("random") else "subnetworks" if part in ALONE else "without them"


def assembled_keys() -> list[Line2D]:
    """What the legend of `assembled` says of colors and marks."""
    mean = marks.key("mean over base models", marker="|", **marks.TICK | {"mec": "0.3"})
    knows = marks.key("expected of a part that knows its\nsubroutine and guesses at the other", **EXPECTED)
    return [*(marks.key(kind, color, ms=4) for kind, color in KINDS.items()), mean, knows]


def _two_digits(value: float) -> str:
    """.25, 1.00."""
    return f"{value:.2f}".removeprefix("0") if value < 1 else "1.00"
