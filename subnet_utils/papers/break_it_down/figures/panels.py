"""Whole figures of several panels, one function each.

The other modules of this folder draw the panels, into the Axes that they are given and return.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from subnet_utils.papers.break_it_down import paper_tables, subnetwork_overlap
from subnet_utils.papers.break_it_down.figures import controls, discovery, dissection, effects, overlap, rows
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS, split_task, subroutines_of
from subnet_utils.plots import layout, marks
from subnet_utils.plots.style import CONDITIONS
from subnet_utils.statistics import LEARNED, NO_TEST

TASKS = (*dict.fromkeys(split_task(task)[0] for task in LANGUAGE_TASKS), *VISION_TASKS)
"""In the order of the panels of a figure."""
PANEL = {"width": 2.3, "height": 2.3}
"""Size of a panel of effects, inches."""
ABOUT = ["model", "task", "number"]
RUN_COLORS = [*sns.color_palette("colorblind")[:7], *sns.color_palette("dark"), *sns.color_palette("pastel")]
"""Of base models, in the order of their seeds."""


def learning_curves(history: pd.DataFrame) -> Figure:
    """Loss and validation accuracy of every base model, two panels for each task. history: from
    `break_it_down.histories`."""
    history = history.assign(run="base " + history["base_seed"].astype(str))
    palette = dict(zip(sorted(history["run"].unique()), RUN_COLORS, strict=False))
    groups = _groups(history, ABOUT)
    figure, axes = layout.grid(2 * len(groups), width=2.1, height=1.7, sharey="col")
    for i, (names, runs) in enumerate(groups):
        discovery.learning_curves(axes[2 * i : 2 * i + 2], runs, palette)
        axes[2 * i].set_title(_title(*names), loc="left")
    looks = {"validation": {}, "training": discovery.TRAINING}
    keys = [Line2D([], [], **{"color": "0.3", "label": label} | look) for label, look in looks.items()]
    runs = [Line2D([], [], color=color, label=run) for run, color in palette.items()]
    layout.legend(figure, [*runs, *keys, Line2D([], [], **discovery.LEVELS)])
    return figure


def heatmaps(search: pd.DataFrame, bases: pd.DataFrame) -> Figure:
    """The mask search of one base model per task, the first that has learned it, a panel for each subroutine: scores on
    validation data. search, bases: from `break_it_down.search_masks` and `train_bases`."""
    keys = [*ABOUT, "base_model"]
    search = search.merge(bases[[*keys, "test_accuracy"]].rename(columns={"test_accuracy": "base_accuracy"}), on=keys)
    settings = len(search[["learning_rate", "mask_init"]].drop_duplicates())
    figure, panels = _panels(search, [*ABOUT, "subroutine"], width=2.6, height=min(2.4, 0.95 + 0.35 * settings))
    for ax, (model, task, number, subroutine), group in panels:
        learned, note = _learned(group)
        base = learned["base_model"].iloc[0]
        discovery.search_heatmap(ax, group[group["base_model"] == base])
        ax.set_title(f"{_title(model, task, number)}\n{subroutine}, base {base.rsplit('-')[-1]}{note}")
    axes = [ax for ax in figure.axes if ax.collections]
    layout.label_first_column(axes)
    shown = [Patch(label=label, **look) for name, (label, look) in discovery.FRAMES.items() if marks.drawn(axes, name)]
    layout.legend(figure, shown)
    figure.colorbar(axes[0].collections[0], ax=axes, label="score", aspect=30, fraction=0.02, pad=0.01)
    return figure


def assembled(table: pd.DataFrame) -> Figure:
    """Accuracy on the whole task of a network's parts, alone, put together and taken out, a panel for each model and
    task. Base models below 90% are left out, unless none is above. table: from `dissection.assembled`.
    """
    shown, note = _learned(table, "\n(below 90%)")
    figure, panels = _panels(shown, ABOUT, width=2.5, height=2.4)
    for ax, (model, task, number), one in panels:
        names = dict(zip("AB", subroutines_of("-".join(filter(None, (task, number)))), strict=True))
        dissection.assembled(ax, one, names)
        ax.set_title(_title(model, task, number) + note)
    *kinds, mean, knows = dissection.assembled_keys()
    columns = 4 if len(figure.axes) > 2 else 2
    layout.legend(figure, [*kinds, mean, *layout.named(figure.axes), knows], columns=columns)
    return figure


def differences(table: pd.DataFrame, stars: pd.DataFrame) -> Figure:
    """Figures 4 to 7 and 16 to 18: Test Target minus Test Other for every task of some models. table: from
    `break_it_down.effects`; stars: columns model, task, subroutine, network, stars."""
    figure, panels = _panels(table, ["paper_model", "task", "number"], **PANEL)
    for ax, _, runs in panels:
        _differences(ax, runs, stars, _panel_title(table, runs))
    return _explained(figure, table, stars=_star_note(table))


def by_start(starts: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """The runs behind Figures 5 and 7: differences by what the networks started from, a row of panels each, a column
    for every task. starts: name of a start -> effects and stars as in `differences`, all with the same tasks."""
    every = pd.concat([some for some, _ in starts.values()], ignore_index=True)
    tasks = [name for name, _ in _groups(every, ["task", "number"])]
    figure, axes = layout.grid(len(starts) * len(tasks), across=len(tasks), sharey=True, **PANEL)
    for ax, ((start, (some, stars)), (task, number)) in zip(axes, product(starts.items(), tasks), strict=True):
        runs = some[(some["task"] == task) & (some["number"] == number)]
        if len(runs):
            first = ax.get_subplotspec().is_first_row()
            _differences(ax, runs, stars, _title("", task, number) if first else "")
        ax.set_ylabel(f"{start}\n{effects.DIFFERENCE}")
    layout.label_first_column(axes)
    return _explained(figure, every, stars=_star_note(every))


def start_heatmaps(means: pd.DataFrame) -> Figure:
    """Figures 5 and 7: mean differences by what the networks started from, the paper's and ours, a panel for each task.
    means: from `paper_tables.by_start`, of one family."""
    means = means.sort_values("number", ascending=False, kind="stable")  # singular first, as everywhere
    groups = _groups(means, ["task", "number"])
    figure, axes = layout.grid(len(groups), width=3.5, height=2.0, across=2)
    for ax, (about, rows) in zip(axes, groups, strict=True):
        effects.start_heatmap(ax, rows).set_title(_title("", *about))
    label = effects.DIFFERENCE
    figure.colorbar(axes[0].collections[0], ax=axes, label=label, aspect=30, fraction=0.02, pad=0.01)
    return figure


def accuracies(table: pd.DataFrame) -> Figure:
    """Figures 8 to 12, and the lower rows of 16 and 17: absolute accuracies on both probe sets, a column for every
    task, subnetworks above ablated models. table: as in `differences`."""
    groups = _groups(table, ["paper_model", "task", "number"])
    figure, axes = layout.grid(2 * len(groups), across=len(groups), margin=0, sharey=True, **PANEL)
    for ax, (network, (_, runs)) in zip(axes, product(effects.NETWORKS, groups), strict=True):
        effects.accuracies(ax, runs, _printed(runs), network)
        if ax.get_subplotspec().is_first_row():
            ax.set_title(_panel_title(table, runs))
    layout.label_first_column(axes)
    return _explained(figure, table, probes=True)


def step_times(times: pd.DataFrame) -> Figure:
    """Milliseconds of a training step, a panel per model, all to one scale: without masks, and with masks from each
    start on. times: from `cost.step_times`, columns model, precision, trained and ms."""
    models = list(times.groupby("model", sort=False))
    bars = [one["trained"].nunique() for _, one in models]
    height = 0.42 * np.mean(bars) + 0.25
    options = {"sharex": True, "height_ratios": bars}
    figure, axes = layout.grid(len(models), width=5.4, height=height, across=1, margin=0.8, **options)
    for ax, (model, one) in zip(axes, models, strict=True):
        discovery.step_times(ax, one)
        ax.set_title(model)
        ax.label_outer()
    layout.legend(figure)
    return figure


def null_distributions(draws: pd.DataFrame, tests: pd.DataFrame) -> Figure:
    """Ablation effects of random subnetworks, a panel for each model, task and subroutine, with the observed mean; one
    for each kind of them where it is not over the same masks. draws, tests: from
    `random_controls.null_draws` and `grouped_tests`."""
    keys = ["model", "task", "subroutine"]
    draws = draws[draws["base_accuracy"] >= LEARNED]  # the others are not in the observed mean either
    means = draws.groupby([*keys, "kind", "draw"], sort=False)["difference"].mean()
    own = {about: group.droplevel(keys).reset_index() for about, group in means.groupby(level=keys, sort=False)}
    figure, panels = _panels(tests, keys, width=3.0, height=2.5, across=3, sharex=True)  # a small effect looks small
    shown = []
    for ax, (model, task, subroutine), one in panels:
        one = one.sort_values("kind", ascending=False)  # 'random', of all masks, first
        controls.null_distribution(ax, own[model, task, subroutine], one)
        ax.tick_params(labelbottom=True)
        shown.append((ax, f"{_title(model, task)}\n{subroutine}"))
    lines = max(len(ax.get_legend().get_texts()) for ax, _ in shown)
    for ax, title in shown:  # all at one height
        ax.set_title(title, pad=6 + 11 * lines)
    return figure


def by_size(table: pd.DataFrame) -> Figure:
    """Subnetworks and ablated models by the size of the subnetwork, a panel for each model, task and subroutine. Base
    models below 90% are left out, unless none is above. table: from `mask_sizes.effects_by_size`.
    """
    least = max(table["density"].min(), controls.LEAST)
    figure, panels = _panels(_learned(table)[0], ["model", "task", "subroutine"], width=2.5, height=2.1)
    for ax, (model, task, subroutine), one in panels:
        controls.by_size(ax, one)
        ax.set(title=f"{_title(model, task)}\n{subroutine}", xlim=(0.8 * least, 1.1))
    layout.label_first_column(figure.axes)
    layout.legend(figure)
    return figure


def alternatives(table: pd.DataFrame) -> Figure:
    """The ablated model's difference by what takes the weights' place, a panel for each model and task."""
    figure, panels = _panels(table, ABOUT, width=2.7, height=2.3, across=3)
    for ax, (model, task, number), one in panels:
        effects.differences(ax, one, by="ablation").set_ylabel(f"{effects.DIFFERENCE}, ablated")
        ax.set_title(_title(model, task, number))
    return effects.legend(figure, table["ablation"].unique())


def overlaps(layers: pd.DataFrame) -> Figure:
    """Figure 19: overlap by layer, the mean over base models that learned their task and each of them, a panel for each
    model and task, the paper's one after ours of its task. If no base model has learned, all of them. layers: from
    `subnetwork_overlap.by_layer`."""
    shown, note = _learned(layers)
    shown = shown[shown.groupby("layer")["iou"].transform(lambda values: values.notna().any())]
    groups = _groups(shown, ABOUT)
    figure, axes = layout.grid(len(groups) + 1, width=4.6, height=2.9, across=2)
    theirs = axes.pop(next((i + 1 for i, (about, _) in enumerate(groups) if "inside-number" in about), -1))
    overlap.overlap(theirs, subnetwork_overlap.printed_layers())
    theirs.set_title("the paper's resnet50\ninside-number", pad=20)
    for ax, ((model, task, number), one) in zip(axes, groups, strict=True):
        means = one.groupby(["layer", "comparison"], sort=False)
        mean = means[["iou", "expected"]].mean().assign(bases=means["iou"].count()).reset_index()
        overlap.overlap(ax, mean, one if one["base_model"].nunique() > 1 else None)
        ax.set_title(_title(model, task, number) + note, pad=20)
    layout.label_first_column(figure.axes)
    layout.legend(figure, overlap.keys(figure.axes))
    return figure


def forest(compared: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """All effects with intervals, the paper's and ours. compared: from `paper_tables.effects`, of this table."""
    figure, ax = plt.subplots(figsize=(6.4, 1.0 + 0.17 * len(compared)))
    rows.forest(ax, _under_our_names(compared, table))
    return figure


def needed(power: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Base models that the paper's effects would need, by the spread of ours. Where not all that were trained learned
    their task, a row says how many did. power: from `paper_tables.power`, of this table."""
    ours = _under_our_names(power, table).reset_index(drop=True)
    names = ours[["model", "task", "subroutine", "network"]].agg(" · ".join, axis=1)
    of_all = " (" + ours["n_bases"].astype(str) + " of " + ours["n_trained"].astype(str) + ")"
    names += of_all.where(ours["n_bases"] < ours["n_trained"], "")
    figure, ax = plt.subplots(figsize=(7, 1.0 + 0.19 * max(len(ours), 2)))
    rows.needed(ax, ours.assign(label=names))
    return figure


def sizes(table: pd.DataFrame, masks: pd.DataFrame) -> Figure:
    """Share of the weights that subnetworks keep, the paper's and ours. table: from `paper_tables.sizes`, of these
    masks."""
    figure, ax = plt.subplots(figsize=(7, 1.0 + 0.15 * max(len(table), 4)))
    rows.sparsity(ax, _under_our_names(table, masks), by=[*ABOUT, "subroutine"])
    return figure


def described(table: pd.DataFrame, *, absolute: bool = False) -> str:
    """What captions of `differences`, or with `absolute` of `accuracies`, say: which networks, what is drawn, and of
    how many base models."""
    shown = "accuracy on both probe sets" if absolute else (
        "accuracy on Test Target minus Test Other, each at least .25, which is chance")  # fmt: skip
    bases = table.groupby(ABOUT)["base_model"].nunique()
    learned = table[table["base_accuracy"] >= LEARNED].groupby(ABOUT)["base_model"].nunique()
    learned = learned.reindex(bases.index, fill_value=0)
    n = " or ".join(map(str, sorted(set(learned))))
    gray = f" Gray: {_below(table)}." if (learned < bases).any() else ""
    spread = " with 95% t intervals" if (learned > 1).any() else ""
    means = f"Ticks: means over {n} base models{spread}; diamonds: the paper's mean and sd over its runs."
    return f"{'; '.join(_networks(table))}: {shown}. A marker is a mask, its shape the base model.{gray} {means}"


def _differences(ax: Axes, runs: pd.DataFrame, stars: pd.DataFrame, title: str) -> None:
    """A panel of one model and task. The stars are of singular and plural together, as the paper's test is."""
    marks = stars[(stars["model"] == runs["paper_model"].iloc[0]) & (stars["task"] == runs["task"].iloc[0])]
    keyed = dict.fromkeys(runs[["subroutine", "network"]].itertuples(index=False, name=None), NO_TEST)
    keyed |= {(row.subroutine, row.network): row.stars for row in marks.itertuples()}
    effects.differences(ax, runs, _printed(runs), keyed)
    ax.set_title(title, pad=14)


def _below(table: pd.DataFrame) -> str:
    """What the gray runs of a figure are; an untrained network solves nothing, and its twin is meant."""
    untrained = "untrained twin of a " if (table["condition"] == "random").all() else ""
    return untrained + CONDITIONS["below"].label


def _star_note(table: pd.DataFrame) -> str:
    """What the stars mean; only language has a number over which the test is pooled."""
    numbers = table["number"] != ""
    pooled = f"{'' if numbers.all() else 'in language '}singular and plural pooled"
    return f"{effects.STARS}, {pooled}" if numbers.any() else effects.STARS


def _printed(runs: pd.DataFrame) -> pd.DataFrame:
    """The authors' effects of the condition, model, task and number that some runs are of."""
    ((condition, *about),) = runs[["condition", "paper_model", "task", "number"]].drop_duplicates().to_numpy()
    paper = paper_tables.printed_effects(condition)
    return paper[(paper[ABOUT] == about).all(axis=1)]


def _groups(table: pd.DataFrame, by: list[str]) -> list[tuple[tuple, pd.DataFrame]]:
    """Rows by task and more, tasks in the same order in every figure, all else as it comes."""
    groups = list(table.groupby(by, sort=False))
    return sorted(groups, key=lambda group: TASKS.index(group[0][by.index("task")]))


def _panels(
    table: pd.DataFrame, by: list[str], **size: float
) -> tuple[Figure, Iterator[tuple[Axes, tuple, pd.DataFrame]]]:
    """A figure, and for each of its panels the values of `by` and the rows that have them."""
    groups = _groups(table, by)
    figure, axes = layout.grid(len(groups), **size)
    return figure, ((ax, *group) for ax, group in zip(axes, groups, strict=True))


def _learned(table: pd.DataFrame, note: str = " (below 90%)") -> tuple[pd.DataFrame, str]:
    """The rows of base models that have learned their task, or all where none has; then with a note for a title."""
    learned = table[table["base_accuracy"] >= LEARNED]
    return (table, note) if learned.empty else (learned, "")


def _title(model: str, task: str, *more: str) -> str:
    """What a panel shows, number or subroutine last; model: ours, not the paper's that it stands for."""
    return "\n".join(filter(None, (model, " ".join(filter(None, (task, *more))))))


def _panel_title(table: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Task and number of a panel's runs, below their model if the figure shows several."""
    model, *about = runs[ABOUT].iloc[0]
    return _title(model if table["model"].nunique() > 1 else "", *about)


def _explained(figure: Figure, table: pd.DataFrame, **shown: Any) -> Figure:
    """With a legend, and the networks above: a figure may be alone, without a caption."""
    names = _networks(table)
    figure.suptitle("\n".join(names), fontsize=8.5)
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.16 * len(names))  # panels stay as high as without
    return effects.legend(figure, below=_below(table), **shown)


def _networks(table: pd.DataFrame) -> list[str]:
    """Each of our models, the paper's that it stands for, and what has been done to it."""
    names, shown = _both_names(table), table[["paper_model", "condition"]].drop_duplicates()
    states = {"trained": "trained from scratch", "random": "untrained", "pruned": "pruned"}
    states |= {(model, "trained"): "pretrained" for model in paper_tables.STARTS}
    pairs = shown.itertuples(index=False, name=None)
    return [f"{names[model]}, {states.get((model, condition), states[condition])}" for model, condition in pairs]


def _under_our_names(compared: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    return compared.assign(model=compared["model"].map(_both_names(table)))


def _both_names(table: pd.DataFrame) -> dict[str, str]:
    """The paper's model -> our model that stands for it, and that name if it is another."""
    pairs = table[["paper_model", "model"]].drop_duplicates().itertuples(index=False)
    return {paper: own if own == paper else f"{own} (paper: {paper})" for paper, own in pairs}
