"""Whole figures of several panels, one function each; the panels themselves are drawn by `figures`."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from subnet_utils import control_figures, figures, paper_tables
from subnet_utils.lab import LEARNED
from subnet_utils.tasks import agreement, shapes
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, sets_of, subroutines_of

SEED = 3
"""Of the examples shown; any other would do."""
PANEL = (2.3, 2.3)
"""Width and height of a panel, inches."""


def four_kinds(task: str) -> Figure:
    """One image of each kind, from (+A, +B) to (-A, -B), as in Figure 1. Those that break the rule are framed."""
    a, b = (name.capitalize() for name in subroutines_of(task))
    shown = shapes.generate(task, "base", 24, seed=SEED, split="test").odd_one_out()
    figure, axes = plt.subplots(1, 4, figsize=(7, 2.0))
    for kind, (ax, signs) in enumerate(zip(axes, ("++", "−+", "+−", "−−"), strict=True)):
        row = int((shown.kinds == kind).nonzero()[0])
        figures.cell(ax, shown.items[row].numpy(), framed=kind > 0)
        ax.set_title(f"{signs[0]}{a}, {signs[1]}{b}")
    return figure


def sets(task: str, *, names: tuple[str, ...] | None = None) -> Figure:
    """One example of each set of a vision task, the odd one last and framed (Figures 3 and 13 to 15)."""
    rows = {}
    for name in names or sets_of(task):
        example = shapes.generate(task, name, 1, seed=SEED, split="test").odd_one_out()
        rows[name] = example.items.numpy()
    return figures.gallery(plt.figure(figsize=(5.2, 1.1 * len(rows))), rows)


def sentences() -> pd.DataFrame:
    """One example of each set of the language tasks, the odd one last (appendix F)."""
    return _by_task(lambda task: agreement.gallery(task, seed=SEED).reset_index())


def sentence_counts() -> pd.DataFrame:
    """Sentences per task, kind and template, and how many of them are distinct."""
    return _by_task(agreement.counts)


def learning_curves(history: pd.DataFrame) -> Figure:
    """Loss and validation accuracy of every base model, a column of two panels for each task.

    history: from `break_it_down.histories`.
    """
    groups = list(history.groupby(["model", "task", "number"], sort=False))
    columns = min(4, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure, axes = plt.subplots(2 * rows, columns, figsize=(max(4.6, 2.1 * columns), 3.4 * rows), squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for i, ((_, task, number), runs) in enumerate(groups):
        row, column = divmod(i, columns)
        pair = axes[2 * row : 2 * row + 2, column]
        for ax in pair:
            ax.set_axis_on()
        figures.learning_curves(pair, runs.assign(run="base " + runs["base_seed"].astype(str)))
        pair[0].set(title=f"{task} {number}".strip(), xlabel="")
        if column:
            pair[0].set_ylabel("")
            pair[1].set_ylabel("")
    return figures.learning_legend(figure)


def heatmaps(search: pd.DataFrame) -> Figure:
    """The mask search of one base model per task, a panel for each subroutine: scores on validation data."""
    groups = list(search.groupby(["model", "task", "number", "subroutine"], sort=False))
    figure, axes = _grid(len(groups), width=2.6, height=2.4)
    for ax, ((model, task, number, subroutine), group) in zip(axes, groups, strict=True):
        base = group["base_model"].iloc[0]
        figures.search_heatmap(ax, group[group["base_model"] == base], explain=False)
        shared = search[(search["task"] == task) & (search["number"] == number)]["model"].nunique() > 1
        name = f"{model}\n" if shared else ""  # needed only where two models have the task
        ax.set_title(f"{name}{task} {number}\n{subroutine}, base {base.rsplit('-')[-1]}".replace(" \n", "\n"))
    return figures.search_legend(figure)


def differences(effects: pd.DataFrame, stars: pd.DataFrame) -> Figure:
    """Figures 4 to 7 and 16 to 18: Test Target minus Test Other for every task of some models, the paper's mean beside
    ours.

    effects: from `break_it_down.effects`; stars: columns model, task, subroutine, network, stars.
    """
    return _panels(effects, stars)


def accuracies(effects: pd.DataFrame) -> Figure:
    """Figures 8 to 12, and the lower rows of 16 and 17: absolute accuracies on both probe sets for every task."""
    return _panels(effects, None)


def step_times(times: pd.DataFrame) -> Figure:
    """Milliseconds of a training step, a panel per model: without masks and with masks from each start.

    times: from `cost.compare`, columns model, precision, trained and ms.
    """
    models = list(times.groupby("model", sort=False))
    figure, axes = _grid(len(models), width=3.0, height=2.2, across=3)
    for ax, (model, rows) in zip(axes, models, strict=True):
        figures.step_times(ax, rows)
        ax.set_title(model)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def null_distributions(draws: pd.DataFrame, tests: pd.DataFrame) -> Figure:
    """Ablation effects of random subnetworks, a panel for each model, task and subroutine, with the observed mean.

    draws, tests: from `random_controls.null_draws` and `grouped_tests`.
    """
    draws = draws[draws["base_accuracy"] >= LEARNED]  # the others are not in the observed mean either
    groups = list(tests.groupby(["paper_model", "task", "subroutine"], sort=False))
    figure, axes = _grid(len(groups), width=3.0, height=2.5, across=3)
    for ax, ((paper_model, task, subroutine), rows) in zip(axes, groups, strict=True):
        own = draws[(draws["paper_model"] == paper_model) & (draws["task"] == task)]
        own = own[own["subroutine"] == subroutine].groupby(["kind", "draw"])["difference"].mean().reset_index()
        p = dict(zip(rows["kind"], rows["p"], strict=True))
        control_figures.null_distribution(ax, own, float(rows["observed"].iloc[0]), p=p)
        ax.set_title(f"{paper_model} · {task}\n{subroutine}", pad=38)
    return figure


def alternatives(table: pd.DataFrame) -> Figure:
    """The ablated model's difference by what takes the weights' place, a panel for each model and task."""
    groups = list(table.groupby(["paper_model", "task", "number"], sort=False))
    figure, axes = _grid(len(groups), width=2.7, height=2.3, across=3)
    legends = []
    for ax, ((paper_model, task, number), rows) in zip(axes, groups, strict=True):
        control_figures.alternatives(ax, rows)
        ax.set_title(f"{paper_model} · {task} {number}".strip())
        legends.append(ax.get_legend())
        legends[-1].remove()
    fullest = max(legends, key=lambda one: len(one.get_texts()))  # gray is explained only where there is some
    labels = [text.get_text() for text in fullest.get_texts()]
    figure.legend(fullest.legend_handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return figure


def overlaps(layers: pd.DataFrame) -> Figure:
    """Figure 19: overlap by layer, the mean over base models that learned their task, a panel for each model and task.

    layers: from `subnetwork_overlap.by_layer`.
    """
    learned = layers[layers["base_accuracy"] >= LEARNED]
    groups = list((layers if learned.empty else learned).groupby(["paper_model", "task", "number"], sort=False))
    figure, axes = _grid(len(groups), width=4.6, height=2.9, across=2)
    for ax, ((paper_model, task, number), rows) in zip(axes, groups, strict=True):
        mean = rows.groupby(["layer", "comparison"], sort=False)[["iou", "expected"]].mean().reset_index()
        control_figures.overlap(ax, mean)
        ax.set_title(f"{paper_model} · {task} {number}".strip(), pad=40)
    return figure


def forest(compared: pd.DataFrame) -> Figure:
    """All effects with intervals, the paper's and ours. compared: from `paper_tables.effects`."""
    figure, ax = plt.subplots(figsize=(6.4, 1.0 + 0.17 * len(compared)))
    control_figures.forest(ax, compared)
    return figure


def needed(power: pd.DataFrame) -> Figure:
    """Base models that the paper's effects would need. power: from `contrasts.power_table`."""
    known = power.dropna(subset=["bases_needed"])
    names = known[["model", "task", "subroutine", "network"]].agg(" · ".join, axis=1)
    figure, ax = plt.subplots(figsize=(6.4, 1.0 + 0.19 * max(len(known), 2)))
    control_figures.needed(ax, known.assign(label=names).reset_index(drop=True))
    return figure


def _panels(effects: pd.DataFrame, stars: pd.DataFrame | None) -> Figure:
    (condition,) = effects["condition"].unique()  # the authors' runs of which ours are shown
    paper = paper_tables.printed_effects(condition)
    groups = list(effects.groupby(["paper_model", "task", "number"], sort=False))
    figure, axes = _grid(len(groups), width=PANEL[0], height=PANEL[1])
    for ax, ((paper_model, task, number), runs) in zip(axes, groups, strict=True):
        wanted = (paper["model"] == paper_model) & (paper["task"] == task) & (paper["number"] == number)
        title = f"{task} {number}".strip()
        if stars is None:
            figures.accuracies(ax, runs, paper[wanted], title=title)
        else:
            marks = stars[(stars["model"] == paper_model) & (stars["task"] == task)]
            keyed = {(row.subroutine, row.network): row.stars for row in marks.itertuples()}
            figures.differences(ax, runs, paper[wanted], keyed, title=title)
    return figures.legend(figure, probes=stars is None)


def _grid(panels: int, *, width: float, height: float, across: int = 4) -> tuple[Figure, list]:
    """A figure with that many panels, at most four in a row; what is left over is empty."""
    columns = min(panels, across)
    rows = math.ceil(panels / columns)
    size = (max(4.6, width * columns), height * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    flat = list(np.ravel(axes))
    for ax in flat[panels:]:
        ax.set_axis_off()
    return figure, flat[:panels]


def _by_task(make) -> pd.DataFrame:
    return pd.concat([make(task).assign(task=task) for task in LANGUAGE_TASKS], ignore_index=True).pipe(_task_first)


def _task_first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["task", *(column for column in frame if column != "task")]]
