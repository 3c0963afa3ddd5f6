"""Examples of the tasks' stimuli: images as figures, sentences as tables."""

from functools import cache

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from subnet_utils.papers.break_it_down.figures import discovery as discovery_figures
from subnet_utils.papers.break_it_down.tasks import agreement, shapes
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut, sets_of, subroutines_of

SEED = 3
"""Of the examples shown; any other would do."""


def four_kinds(task: str) -> Figure:
    """One image of each kind, from (+A, +B) to (-A, -B), as in Figure 1. Those that break the rule are framed."""
    a, b = (name.capitalize() for name in subroutines_of(task))
    shown = _shown(task, "base")
    figure, axes = plt.subplots(1, 4, figsize=(7, 2.0))
    for kind, (ax, signs) in enumerate(zip(axes, ("++", "−+", "+−", "−−"), strict=True)):
        row = int((shown.kinds == kind).nonzero()[0])
        discovery_figures.cell(ax, shown.items[row].numpy(), framed=kind > 0)
        ax.set_title(f"{signs[0]}{a}, {signs[1]}{b}")
    return figure


def sets(task: str, *, names: tuple[str, ...] | None = None) -> Figure:
    """One example of each set of a vision task, the odd one last and framed (Figures 3 and 13 to 15)."""
    rows = {name: _shown(task, name).items[:4].numpy() for name in names or sets_of(task)}
    return discovery_figures.gallery(plt.figure(figsize=(5.2, 1.1 * len(rows))), rows)


@cache
def _shown(task: str, name: str) -> OddOneOut:
    """Examples of a set, more than are shown: of so many some are of each kind, and drawing fewer takes as long."""
    return shapes.generate(task, name, 24, seed=SEED, split="test").odd_one_out()


def sentences() -> pd.DataFrame:
    """One example of each set of the language tasks, the odd one last (appendix F)."""
    return _by_task(lambda task: agreement.gallery(task, seed=SEED).reset_index())


def sentence_counts() -> pd.DataFrame:
    """Sentences per task, kind and template, and how many of them are distinct."""
    return _by_task(agreement.counts)


def _by_task(make) -> pd.DataFrame:
    return pd.concat([make(task).assign(task=task) for task in LANGUAGE_TASKS], ignore_index=True).pipe(_task_first)


def _task_first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["task", *(column for column in frame if column != "task")]]
