"""Examples of the tasks' stimuli: images as figures, sentences as tables."""

from functools import cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.tasks import agreement, shapes
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut, sets_of, subroutines_of
from subnet_utils.plots import layout
from subnet_utils.plots.style import CONDITIONS

SEED = 3
"""Of the examples shown; any other would do."""


def cell(ax: Axes, image: np.ndarray, *, framed: bool) -> None:
    """One image, uint8 [3, H, W]; a framed one breaks the rule."""
    ax.imshow(image.transpose(1, 2, 0))
    frame(ax, framed)


def frame(ax: Axes, framed: bool) -> None:
    """An axes without scales, in red where what it shows breaks the rule."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=CONDITIONS["ablated"].color if framed else "#c4c4c4", lw=2 if framed else 0.6)


def four_kinds(task: str) -> Figure:
    """One image of each kind, from (+A, +B) to (-A, -B), as in Figure 1. Those that break the rule are framed."""
    a, b = (name.capitalize() for name in subroutines_of(task))
    shown = _shown(task, "base")
    figure, axes = layout.grid(4, width=1.75, height=2.0, margin=0)
    for kind, (ax, signs) in enumerate(zip(axes, ("++", "−+", "+−", "−−"), strict=True)):
        row = int((shown.kinds == kind).nonzero()[0])
        cell(ax, shown.items[row].numpy(), framed=kind > 0)
        ax.set_title(f"{signs[0]}{a}, {signs[1]}{b}")
    return figure


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
