"""Examples of the tasks' stimuli: images as figures, sentences as tables."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.tasks import agreement, shapes
from subnet_utils.tasks.odd_one_out import CHANCE, LANGUAGE_TASKS, OddOneOut, sets_of, subroutines_of
from subnet_utils.plots import layout, marks
from subnet_utils.plots.style import CHANCE_LINE, CONDITIONS

SEED = 3
"""Of the examples shown; any other would do."""
PREDICTED = {
    "One template for the whole task": {"subnetwork": (1.0, 1.0), "ablated": (CHANCE, CHANCE)},
    "A part for each subroutine": {"subnetwork": (1.0, CHANCE), "ablated": (CHANCE, 1.0)},
}
"""Hypothesis -> network -> accuracy on Test Target and Test Other, if it were wholly true. The second hypothesis is
structural compositionality."""


def cell(ax: Axes, image: np.ndarray, *, framed: bool) -> None:
    """One image, uint8 [3, H, W]; a framed one breaks the rule."""
    ax.imshow(image.transpose(1, 2, 0))
    frame(ax, framed)


def frame(ax: Axes, framed: bool) -> None:
    """An axes without scales, in red where what it shows breaks the rule."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=CONDITIONS["ablated"].color if framed else "#c4c4c4", lw=2 if framed else 0.6)


def four_kinds(task: str) -> Figure:
    """Figure 1: one image of each kind, (+A, +B) at the upper right, and what either hypothesis predicts. Images that
    break the rule are framed."""
    a, b = (name.capitalize() for name in subroutines_of(task))
    shown = _shown(task, "base")
    figure = plt.figure(figsize=(8.2, 3.2))
    grid = figure.add_gridspec(2, 4, width_ratios=(1, 1, 1.5, 1.5))
    for kind, signs in enumerate(("++", "−+", "+−", "−−")):
        ax = figure.add_subplot(grid[kind // 2, 1 - kind % 2])
        row = int((shown.kinds == kind).nonzero()[0])
        cell(ax, shown.items[row].numpy(), framed=kind > 0)
        ax.set_title(f"{signs[0]}{a}, {signs[1]}{b}")
    drawn = [prediction(figure.add_subplot(grid[:, 2 + i]), name) for i, name in enumerate(PREDICTED)]
    layout.label_first_column(drawn[1:])
    tests = [marks.key("Test Target", marker="s"), marks.key("Test Other", marker="s", mec="0.3", mfc="white")]
    layout.legend(figure, [*tests, *layout.named(drawn)])
    return figure


def prediction(ax: Axes, hypothesis: str) -> Axes:
    """What a hypothesis of `PREDICTED` says of a subnetwork and of the network without it: accuracies as bars, filled
    on Test Target, and the sign of their difference. Dotted: chance."""
    for place, (network, (target, other)) in enumerate(PREDICTED[hypothesis].items()):
        color = CONDITIONS[network].color
        ax.bar(place - 0.2, target, 0.36, fc=color, ec=color)
        ax.bar(place + 0.2, other, 0.36, fc="white", ec=color)
        sign = "=><"[int(np.sign(target - other))]
        ax.text(place, max(target, other) + 0.03, f"difference {sign} 0", ha="center", size=7.5)
    ax.axhline(CHANCE, zorder=3, **CHANCE_LINE)
    ax.set_xticks(range(2), [CONDITIONS[network].label for network in PREDICTED[hypothesis]])
    ax.set(title=hypothesis, ylabel="accuracy", ylim=(0, 1.15), yticks=(0, 0.25, 0.5, 0.75, 1))
    return ax


def sets(task: str, *, names: tuple[str, ...] | None = None) -> Figure:
    """One example of each set of a vision task, a row each, the odd one last and framed (Figures 3 and 13 to 15)."""
    names = names or sets_of(task)
    figure, axes = layout.grid(4 * len(names), width=1.3, height=1.1, margin=0)
    figure.set_layout_engine("compressed")
    for name, row in zip(names, np.reshape(axes, (-1, 4)), strict=True):
        for column, (ax, image) in enumerate(zip(row, _shown(task, name).items[:4].numpy(), strict=True)):
            cell(ax, image, framed=column == 3)
        row[0].set_ylabel(_said(name), rotation=0, ha="right", va="center", labelpad=6)
    return figure


def _said(name: str) -> str:
    """A set in words."""
    kind, _, subroutine = name.partition("-")
    return {"base": "the whole task", "mask": f"for the mask\nof {subroutine}", "probe": f"Test {subroutine}"}[kind]


@cache
def _shown(task: str, name: str) -> OddOneOut:
    """Examples of a set, more than are shown: of so many some are of each kind, and drawing fewer takes as long."""
    return shapes.generate(task, name, 24, seed=SEED, split="test").odd_one_out()


def sentences() -> pd.DataFrame:
    """One example of each set of the language tasks, the odd one last (appendix F)."""
    return pd.concat([agreement.gallery(task, seed=SEED) for task in LANGUAGE_TASKS], ignore_index=True)


def sentence_counts() -> pd.DataFrame:
    """Sentences per task, kind and template, and how many of them are distinct."""
    return pd.concat([agreement.counts(task) for task in LANGUAGE_TASKS], ignore_index=True)
