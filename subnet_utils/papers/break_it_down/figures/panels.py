"""Whole figures of several panels, one function each; the panels themselves are drawn by `figures`."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.statistics import LEARNED
from subnet_utils.papers.break_it_down import paper_tables

from subnet_utils.papers.break_it_down.tasks.odd_one_out import split_task
from subnet_utils.papers.break_it_down.figures import (
    controls as control_figures,
    discovery as discovery_figures,
    dissection as dissection_figures,
    overlap as overlap_figures,
)
from subnet_utils.plots import style as figures
from subnet_utils.plots.style import CONDITIONS
from subnet_utils.statistics import NO_TEST
from subnet_utils.papers.break_it_down.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS, subroutines_of

TASKS = (*dict.fromkeys(split_task(task)[0] for task in LANGUAGE_TASKS), *VISION_TASKS)
"""In the order of the panels of a figure."""
PANEL = (2.3, 2.3)
"""Width and height of a panel, inches."""


def learning_curves(history: pd.DataFrame) -> Figure:
    """Loss and validation accuracy of every base model, a column of two panels for each task.

    history: from `break_it_down.histories`.
    """
    groups = _groups(history, ["model", "task", "number"])
    columns = min(4, len(groups))
    rows = math.ceil(len(groups) / columns)
    size = (max(4.6, 2.1 * columns), 3.4 * rows)
    figure, axes = plt.subplots(2 * rows, columns, figsize=size, squeeze=False, sharey="row")
    for ax in axes.flat:
        ax.set_axis_off()
    for i, ((model, task, number), runs) in enumerate(groups):
        row, column = divmod(i, columns)
        pair = axes[2 * row : 2 * row + 2, column]
        for ax in pair:
            ax.set_axis_on()
        discovery_figures.learning_curves(pair, runs.assign(run="base " + runs["base_seed"].astype(str)))
        pair[0].set(title=f"{model}\n{_title(task, number)}", xlabel="")
        if column:
            pair[0].set_ylabel("")
            pair[1].set_ylabel("")
    return discovery_figures.learning_legend(figure)


def heatmaps(search: pd.DataFrame, bases: pd.DataFrame) -> Figure:
    """The mask search of one base model per task, the first that has learned it, a panel for each subroutine: scores on
    validation data.

    search, bases: from `break_it_down.search_masks` and `train_bases`.
    """
    keys = ["model", "task", "number", "base_model"]
    search = search.merge(bases[[*keys, "test_accuracy"]].rename(columns={"test_accuracy": "base_accuracy"}), on=keys)
    groups = _groups(search, ["model", "task", "number", "subroutine"])
    settings = len(search[["learning_rate", "mask_init"]].drop_duplicates())
    figure, axes = _grid(len(groups), width=2.6, height=min(2.4, 0.95 + 0.35 * settings))
    layout = figure.get_layout_engine()
    figure.set_layout_engine("none")
    for ax, ((model, task, number, subroutine), group) in zip(axes, groups, strict=True):
        for other in axes:
            other.set_visible(other is ax)  # seaborn draws the whole figure whenever it has made a panel
        learned = group[group["base_accuracy"] >= LEARNED]
        base = (group if learned.empty else learned)["base_model"].iloc[0]
        discovery_figures.search_heatmap(ax, group[group["base_model"] == base], explain=False)
        below = " (below 90%)" if learned.empty else ""
        ax.set_title(f"{model}\n{_title(task, number)}\n{subroutine}, base {base.rsplit('-')[-1]}{below}")
        if not ax.get_subplotspec().is_first_col():
            ax.set_ylabel("")
    for ax in axes:
        ax.set_visible(True)
    figure.set_layout_engine(layout)
    return discovery_figures.search_legend(figure, axes)


def assembled(table: pd.DataFrame) -> Figure:
    """Accuracy on the whole task of a network's parts, alone, put together and taken out, a panel for each model and
    task. Base models below 90% are left out, unless none is above. table: from `dissection.assembled`.
    """
    learned = table[table["base_accuracy"] >= LEARNED]
    groups = _groups(table if learned.empty else learned, ["model", "task", "number"])
    figure, axes = _grid(len(groups), width=2.5, height=2.4, across=4)
    for ax, ((model, task, number), rows) in zip(axes, groups, strict=True):
        names = dict(zip("AB", subroutines_of("-".join(filter(None, (task, number)))), strict=True))
        dissection_figures.assembled(ax, rows, names)
        ax.set_title(f"{model}\n{_title(task, number)}" + ("\n(below 90%)" if learned.empty else ""))
    handles, columns = dissection_figures.assembled_handles(), 4 if len(axes) > 2 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2)
    return figure


def differences(effects: pd.DataFrame, stars: pd.DataFrame) -> Figure:
    """Figures 4 to 7 and 16 to 18: Test Target minus Test Other for every task of some models, the paper's mean beside
    ours.

    effects: from `break_it_down.effects`; stars: columns model, task, subroutine, network, stars.
    """
    groups = _groups(effects, ["paper_model", "task", "number"])
    figure, axes = _grid(len(groups), width=PANEL[0], height=PANEL[1])
    for ax, (_, runs) in zip(axes, groups, strict=True):
        _differences(ax, runs, stars, _panel_title(effects, runs))
    _head(figure, effects)
    return figures.legend(figure, stars=_star_note(effects), below=_below(effects))


def by_start(starts: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """Figures 5 and 7: differences by what the networks started from, a row of panels each, a column for every task.

    starts: name of a start -> effects and stars as in `differences`, all with the same tasks.
    """
    every = pd.concat([effects for effects, _ in starts.values()], ignore_index=True)
    tasks = [name for name, _ in _groups(every, ["task", "number"])]
    size = (max(4.6, PANEL[0] * len(tasks)), PANEL[1] * len(starts) + 0.5)
    figure, axes = plt.subplots(len(starts), len(tasks), figsize=size, squeeze=False, sharey=True)
    for i, (row, (start, (effects, stars))) in enumerate(zip(axes, starts.items(), strict=True)):
        for ax, (task, number) in zip(row, tasks, strict=True):
            runs = effects[(effects["task"] == task) & (effects["number"] == number)]
            if len(runs):
                _differences(ax, runs, stars, "" if i else _title(task, number))
        row[0].set_ylabel(f"{start}\n{row[0].get_ylabel()}")
        for ax in row[1:]:
            ax.set_ylabel("")
    _head(figure, every)
    return figures.legend(figure, stars=_star_note(every))


def accuracies(effects: pd.DataFrame) -> Figure:
    """Figures 8 to 12, and the lower rows of 16 and 17: absolute accuracies on both probe sets, a column for every
    task, subnetworks above ablated models."""
    groups = _groups(effects, ["paper_model", "task", "number"])
    size = (max(4.6, PANEL[0] * len(groups)), 2 * PANEL[1])
    figure, axes = plt.subplots(2, len(groups), figsize=size, squeeze=False, sharey=True)
    for column, (_, runs) in zip(axes.T, groups, strict=True):
        for ax, network in zip(column, figures.NETWORKS, strict=True):
            title = _panel_title(effects, runs) if network == figures.NETWORKS[0] else ""
            figures.accuracies(ax, runs, _printed(runs), title=title, network=network)
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    _head(figure, effects)
    return figures.legend(figure, probes=True, below=_below(effects))


def step_times(times: pd.DataFrame) -> Figure:
    """Milliseconds of a training step, a panel per model, all to one scale: without masks, and with masks from each
    start on.

    times: from `cost.compare`, columns model, precision, trained and ms.
    """
    models = list(times.groupby("model", sort=False))
    groups = [rows["trained"].nunique() for _, rows in models]
    size = (5.4, 0.8 + 0.42 * sum(groups) + 0.25 * len(groups))
    figure, axes = plt.subplots(len(models), 1, figsize=size, height_ratios=groups, sharex=True, squeeze=False)
    for ax, (model, rows) in zip(axes.flat, models, strict=True):
        discovery_figures.step_times(ax, rows)
        ax.set_title(model)
        ax.label_outer()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def null_distributions(draws: pd.DataFrame, tests: pd.DataFrame) -> Figure:
    """Ablation effects of random subnetworks, a panel for each model, task and subroutine, with the observed mean; one
    for each kind of them where it is not over the same masks.

    draws, tests: from `random_controls.null_draws` and `grouped_tests`.
    """
    draws = draws[draws["base_accuracy"] >= LEARNED]  # the others are not in the observed mean either
    groups = _groups(tests, ["model", "task", "subroutine"])
    figure, axes = _grid(len(groups), width=3.0, height=2.5, across=3)
    for ax, ((model, task, subroutine), rows) in zip(axes, groups, strict=True):
        own = draws[(draws["model"] == model) & (draws["task"] == task)]
        own = own[own["subroutine"] == subroutine].groupby(["kind", "draw"], sort=False)["difference"].mean()
        rows = rows.set_index("kind").sort_index(ascending=False)  # 'random', which has all masks, before 'complement'
        about = {"p": rows["p"].to_dict(), "masks": rows["n_masks"].to_dict()}
        control_figures.null_distribution(ax, own.reset_index(), rows["observed"].to_dict(), **about)
    lines = max(len(ax.get_legend().get_texts()) for ax in axes)
    for ax, ((model, task, subroutine), _) in zip(axes, groups, strict=True):
        ax.set_title(f"{_title(task, '', model)}\n{subroutine}", pad=6 + 11 * lines)
    limits = np.array([ax.get_xlim() for ax in axes])
    for ax in axes:  # so that a small effect looks small
        ax.set_xlim(limits[:, 0].min(), limits[:, 1].max())
    return figure


def by_size(table: pd.DataFrame) -> Figure:
    """Subnetworks and ablated models by the size of the subnetwork, a panel for each model, task and subroutine. Base
    models below 90% are left out, unless none is above. table: from `mask_sizes.effects_by_size`.
    """
    learned = table[table["base_accuracy"] >= LEARNED]
    groups = _groups(table if learned.empty else learned, ["model", "task", "subroutine"])
    figure, axes = _grid(len(groups), width=2.5, height=2.1)
    least = max(table["density"].min(), control_figures.LEAST)
    for ax, ((model, task, subroutine), rows) in zip(axes, groups, strict=True):
        control_figures.by_size(ax, rows)
        ax.set(title=f"{_title(task, '', model)}\n{subroutine}", xlim=(0.8 * least, 1.1))
        if not ax.get_subplotspec().is_first_col():
            ax.set_ylabel("")
    handles = axes[0].get_legend_handles_labels()[0]
    figure.legend(handles=[*handles[1:], handles[0]], loc="outside lower center", ncols=len(handles))
    return figure


def alternatives(table: pd.DataFrame) -> Figure:
    """The ablated model's difference by what takes the weights' place, a panel for each model and task."""
    groups = _groups(table, ["model", "task", "number"])
    figure, axes = _grid(len(groups), width=2.7, height=2.3, across=3)
    entries = {}
    for ax, ((model, task, number), rows) in zip(axes, groups, strict=True):
        control_figures.alternatives(ax, rows)
        ax.set_title(_title(task, number, model))
        own = ax.get_legend()  # gray and arrowheads are explained only where there are some
        entries |= {text.get_text(): handle for text, handle in zip(own.get_texts(), own.legend_handles, strict=True)}
        own.remove()
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=min(4, len(entries)))
    return figure


def overlaps(layers: pd.DataFrame) -> Figure:
    """Figure 19: overlap by layer, the mean over base models that learned their task and each of them, a panel for each
    model and task. If no base model has learned, all of them.

    layers: from `subnetwork_overlap.by_layer`.
    """
    learned = layers[layers["base_accuracy"] >= LEARNED]
    shown, note = (layers, " (below 90%)") if learned.empty else (learned, "")
    shown = shown[shown.groupby("layer")["iou"].transform(lambda values: values.notna().any())]
    groups = _groups(shown, ["model", "task", "number"])
    figure, axes = _grid(len(groups), width=4.6, height=2.9, across=2)
    drawn = [set(rows["layer"]) for _, rows in groups]
    named_below = [one == other for one, other in zip(drawn, drawn[2:], strict=False)]
    for i, (ax, ((model, task, number), rows)) in enumerate(zip(axes, groups, strict=True)):
        means = rows.groupby(["layer", "comparison"], sort=False)
        mean = means[["iou", "expected"]].mean().assign(bases=means["iou"].count()).reset_index()
        several = rows if rows["base_model"].nunique() > 1 else None
        overlap_figures.overlap(ax, mean, several, explain=False)
        ax.set_title(_title(task, number, model) + note, pad=20)
        if not ax.get_subplotspec().is_first_col():
            ax.set_ylabel("")
        if i + 2 < len(groups):
            ax.set_xlabel("")
            ax.tick_params(axis="x", labelbottom=not all(named_below[i - i % 2 :][:2]))  # a row gains by both or none
    return overlap_figures.overlap_legend(figure, axes)


def forest(compared: pd.DataFrame, effects: pd.DataFrame) -> Figure:
    """All effects with intervals, the paper's and ours. compared: from `paper_tables.effects`, of these effects."""
    figure, ax = plt.subplots(figsize=(6.4, 1.0 + 0.17 * len(compared)))
    control_figures.forest(ax, compared.assign(model=compared["model"].map(_both_names(effects))))
    return figure


def needed(power: pd.DataFrame, effects: pd.DataFrame) -> Figure:
    """Base models that the paper's effects would need, by the spread of ours; rows without a spread say so.

    power: from `paper_tables.power`, of these effects.
    """
    named = power.assign(model=power["model"].map(_both_names(effects)))
    names = named[["model", "task", "subroutine", "network"]].agg(" · ".join, axis=1)
    figure, ax = plt.subplots(figsize=(7, 1.0 + 0.19 * max(len(named), 2)))
    control_figures.needed(ax, named.assign(label=names).reset_index(drop=True))
    return figure


def sizes(table: pd.DataFrame, masks: pd.DataFrame) -> Figure:
    """Share of the weights that subnetworks keep, the paper's and ours. table: from `paper_tables.sizes`, of these
    masks."""
    figure, ax = plt.subplots(figsize=(7, 1.0 + 0.15 * max(len(table), 4)))
    named = table.assign(model=table["model"].map(_both_names(masks)))
    discovery_figures.sparsity(ax, named, by=("model", "task", "number", "subroutine"))
    return figure


def described(effects: pd.DataFrame, *, absolute: bool = False) -> str:
    """What captions of `differences`, or with `absolute` of `accuracies`, say: which networks, what is drawn, and of
    how many base models."""
    shown = "accuracy on both probe sets" if absolute else (
        "accuracy on Test Target minus Test Other, each at least .25, which is chance")  # fmt: skip
    learned = effects[effects["base_accuracy"] >= LEARNED]
    bases = effects.groupby(["model", "task", "number"])["base_model"].nunique()
    able = learned.groupby(["model", "task", "number"])["base_model"].nunique().reindex(bases.index, fill_value=0)
    n = " or ".join(map(str, sorted(set(able))))
    gray = f" Gray: {_below(effects)}." if (able < bases).any() else ""
    means = f"Ticks: means over {n} base models with 95% t intervals; diamonds: the paper's mean and sd over its runs."
    return f"{'; '.join(_networks(effects))}: {shown}. A marker is a mask, its shape the base model.{gray} {means}"


def _differences(ax: Axes, runs: pd.DataFrame, stars: pd.DataFrame, title: str) -> None:
    """A panel of one model and task. The stars are of singular and plural together, as the paper's test is."""
    marks = stars[(stars["model"] == runs["paper_model"].iloc[0]) & (stars["task"] == runs["task"].iloc[0])]
    keyed = dict.fromkeys(runs[["subroutine", "network"]].itertuples(index=False, name=None), NO_TEST)
    keyed |= {(row.subroutine, row.network): row.stars for row in marks.itertuples()}
    figures.differences(ax, runs, _printed(runs), keyed, title=title)


def _below(effects: pd.DataFrame) -> str:
    """What the gray runs of a figure are; an untrained network solves nothing, and its twin is meant."""
    untrained = "untrained twin of a " if (effects["condition"] == "random").all() else ""
    return untrained + CONDITIONS["below"].label


def _star_note(effects: pd.DataFrame) -> str:
    """What the stars mean; only language has a number over which the test is pooled."""
    numbers = effects["number"] != ""
    pooled = f"{'' if numbers.all() else 'in language '}singular and plural pooled"
    return f"{figures.STARS}, {pooled}" if numbers.any() else figures.STARS


def _printed(runs: pd.DataFrame) -> pd.DataFrame:
    """The authors' effects of the condition, model, task and number that some runs are of."""
    about = runs[["condition", "paper_model", "task", "number"]].drop_duplicates()
    ((condition, paper_model, task, number),) = about.itertuples(index=False)
    paper = paper_tables.printed_effects(condition)
    return paper[(paper["model"] == paper_model) & (paper["task"] == task) & (paper["number"] == number)]


def _groups(table: pd.DataFrame, by: list[str]) -> list[tuple[tuple, pd.DataFrame]]:
    """Rows by task and more, tasks in the same order in every figure, all else as it comes."""
    groups = list(table.groupby(by, sort=False))
    return sorted(groups, key=lambda group: TASKS.index(group[0][by.index("task")]))


def _title(task: str, number: str, model: str = "") -> str:
    """What a panel shows; model: ours, not the paper's that it stands for."""
    return " ".join(filter(None, (f"{model} ·" if model else "", task, number)))


def _panel_title(effects: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Task and number of a panel's runs, below their model if the figure shows several."""
    model, task, number = runs[["model", "task", "number"]].iloc[0]
    return f"{model}\n" * (effects["model"].nunique() > 1) + _title(task, number)


def _head(figure: Figure, effects: pd.DataFrame) -> None:
    """A figure alone, without a caption, says which networks it shows."""
    names = _networks(effects)
    figure.suptitle("\n".join(names), fontsize=8.5)
    rows = figure.axes[0].get_gridspec().nrows * (effects["model"].nunique() > 1)  # whose titles have a line more
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.16 * (len(names) + rows))  # panels stay as high as without


def _networks(effects: pd.DataFrame) -> list[str]:
    """Each of our models, the paper's that it stands for, and what has been done to it."""
    names, shown = _both_names(effects), effects[["paper_model", "condition"]].drop_duplicates()
    states = {"trained": "trained from scratch", "random": "untrained", "pruned": "pruned"}
    states |= {(model, "trained"): "pretrained" for model in paper_tables.STARTS}
    pairs = shown.itertuples(index=False, name=None)
    return [f"{names[model]}, {states.get((model, condition), states[condition])}" for model, condition in pairs]


def _both_names(effects: pd.DataFrame) -> dict[str, str]:
    """The paper's model -> our model that stands for it, and that name if it is another."""
    pairs = effects[["paper_model", "model"]].drop_duplicates().itertuples(index=False)
    return {paper: own if own == paper else f"{own} (paper: {paper})" for paper, own in pairs}


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
