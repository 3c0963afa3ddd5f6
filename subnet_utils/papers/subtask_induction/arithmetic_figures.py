"""Figures of subtask induction: test accuracy against the number of disambiguating rows, one line a condition.

Functions draw into the Axes that they are given, or make a whole figure of panels. One map gives every condition its
color, line and label, here and in `images_figures`. Red is the ablated model and green a random subnetwork,
as in all figures of the companion; blue is what inherits the subnetwork, black the whole network.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETLEFT
from matplotlib.ticker import FixedLocator, NullLocator

from subnet_utils.papers.subtask_induction.conditions import VARIANTS
from subnet_utils.plots.style import CONDITIONS, RANDOM, RANDOM_OUTSIDE


class Line(NamedTuple):
    """How a condition looks in every figure."""

    color: str
    style: str
    label: str


BLUE, RED, GREEN = CONDITIONS["subnetwork"].color, CONDITIONS["ablated"].color, RANDOM.color
BLACK = "#111111"
LINES = {
    "subnetwork": Line(BLUE, "-", "subtask induction"),
    "full": Line(BLACK, "-", "whole network inherited"),
    "random": Line(GREEN, "-", "random subnetwork"),
    "random_complement": Line(RANDOM_OUTSIDE.color, ":", "random, in the complement"),
    "random_as_released": Line("#6b7300", "-", "random, as released"),
    "embed_only": Line("#cc6fae", "-", "embeddings, norms and biases only"),
    "scratch": Line("#8c8c8c", "-", "from scratch"),
    "strict": Line("#66b3e6", "--", "subnetwork, all else drawn anew"),
    "strict_random": Line("#63bd92", "--", "random, all else drawn anew"),
    "subnetwork_unfrozen": Line(BLUE, "-.", "subtask induction, not frozen"),
    "random_unfrozen": Line(GREEN, "-.", "random subnetwork, not frozen"),
}
"""Where two conditions have one color, their lines differ; all others can be told apart with deuteranopia."""
MARKERS = {"-": "o", "--": "s", "-.": "^", ":": "D"}
"""Of the line styles."""
OPEN = "-."
"""Style of what is not frozen: its markers are open, so that it is not taken for what it nearly coincides with."""
MAIN = ("subnetwork", "full", "random", "scratch")
"""The conditions of Figure 3."""
FURTHER = ("subnetwork", "full", "random", "embed_only", "scratch")
"""Those of Figures 8 to 10."""
FEWEST = 3
"""Seeds from which on an interval is drawn: that of two is wider than the panel."""
FEW_NUMBERS = 3
"""Up to so many numbers of rows get points side by side: lines would tell of what is between them, which was not
tried."""
STEP, WIDE_STEP = 0.07, 0.23
"""From one line to the next, in the smallest gap between numbers of rows: no interval lies on another. The wide one is
for few lines that nearly coincide: no point hides another."""
COMMON, CHANCE = "most common answer", "chance"
"""What the levels are called that accuracies are compared with."""
BETWEEN = "0.83"
DOTTED = {"color": "0.45", "ls": ":", "lw": 0.9, "zorder": 0}
LABELS = {"text": "random as in the text", "as_released": "random as released", "strict": "all else drawn anew",
          "embed_only": "embeddings as control"}  # fmt: skip


def with_formulas(text: str) -> str:
    """A label with its computations set as formulas; a letter alone may be a word and stays.

    >>> with_formulas("ab for a^3+ab")
    '$ab$ for $a^3+ab$'
    """
    return re.sub(r"(?<!\S)[ab][ab\d^+-]+(?!\S)", lambda found: f"${found[0]}$", text)


def accuracy_lines(ax: Axes, curves: pd.DataFrame, conditions: Sequence[str]) -> Axes:
    """Mean test accuracy with its interval over the number of rows, 0 at the left of a logarithmic axis.

    Intervals are bars, from `FEWEST` seeds on; lines are shifted a little for them.
    curves: columns condition, samples, mean, low, high, n_runs, and chance, the share of the most common answer, which
    is dotted; conditions that it lacks are left out. Up to `FEW_NUMBERS` numbers have points in place of lines.
    """
    _lines(ax, curves, conditions, bounds=(0, 1))
    ax.axhline(curves["chance"].iloc[0], label=COMMON, **DOTTED)
    ax.set(ylabel="test accuracy", ylim=(0, 1.03))
    return ax


def _lines(
    ax: Axes,
    curves: pd.DataFrame,
    conditions: Sequence[str],
    *,
    bounds: tuple[float, float],
    step: float = STEP,
) -> None:
    """Means over the number of rows with intervals, cut off at the bounds of what is possible."""
    positions = _positions(curves)
    few = len(positions) <= FEW_NUMBERS
    for name, shift in _shifts(curves, conditions, step).items():
        rows = curves[curves["condition"] == name].sort_values("samples")
        x = rows["samples"].map(positions) + shift
        _draw(ax, x, rows["mean"], LINES[name], few=few)
        if (rows["n_runs"] >= FEWEST).all():
            ends = rows["low"].clip(*bounds), rows["high"].clip(*bounds)
            ax.vlines(x, *ends, color=LINES[name].color, lw=1.2 if few else 0.9)
    ax.xaxis.set_major_locator(FixedLocator(list(positions.values())))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{number:g}" for number in positions], rotation=45 if len(positions) > 6 else 0)
    ax.set(xlabel="disambiguating rows")
    if few:
        ax.set_xlim(-0.5, len(positions) - 0.5)


def interval_note(*curves: pd.DataFrame, cut: str = ", cut off at 0 and 1") -> str:
    """What the bars are, for a caption. curves: as in `accuracy_lines`, of all panels; cut: where bars are cut off."""
    runs = pd.concat(curves)["n_runs"]
    seeds = " to ".join(str(number) for number in sorted({int(runs.min()), int(runs.max())}))
    if runs.max() < FEWEST:
        return f"Too few seeds ({seeds}) for intervals."
    beyond = f", from {FEWEST} seeds on" if runs.min() < FEWEST else ""
    return f"Bars: 95% intervals over {seeds} seeds{beyond}{cut}."


def panels(frames: Sequence[tuple[str, pd.DataFrame]], conditions: Sequence[str] = MAIN, *, across: int = 3) -> Figure:
    """A panel for each (title, curves), with one legend below."""
    figure, axes = _grid(len(frames), across, width=2.6)
    for ax, (title, curves) in zip(axes.flat, frames, strict=False):
        accuracy_lines(ax, curves, conditions)
        ax.set_title(with_formulas(title))
    return legend_below(figure, axes)


def variants(curves: pd.DataFrame) -> Figure:
    """Each reading of the method and its control, side by side, gray between the two. curves: of one depth."""
    shown = [name for name, pair in VARIANTS.items() if set(pair) <= set(curves["condition"])]
    figure, axes = _grid(len(shown), len(shown))
    for ax, name in zip(axes.flat, shown, strict=True):
        accuracy_lines(ax, curves, VARIANTS[name])
        _between(ax, curves, *VARIANTS[name])
        ax.set_title(LABELS[name])
    return legend_below(figure, axes)


def advantages(gaps: pd.DataFrame, controls: Sequence[str] = ("scratch", "embed_only", "random")) -> Figure:
    """By how much the subnetwork is ahead of each control at each number of rows, a panel for each induction.

    Means over seeds of differences within seeds, with their intervals from `FEWEST` seeds on; 0 is dotted. gaps: from
    `arithmetic_tables.gaps_by_samples`; where an induction was done at several depths, their mean is drawn.
    """
    curves = gaps.rename(columns={"control": "condition", "advantage": "mean"})
    shown = list(curves.groupby(["subtask", "target"], sort=False))
    figure, axes = _grid(len(shown), 4, below=0.75)
    for ax, ((subtask, target), rows) in zip(axes.flat, shown, strict=False):
        over_depths = rows[rows["layers"].eq("all")]
        _lines(ax, rows if over_depths.empty else over_depths, controls, bounds=(-1, 1), step=WIDE_STEP)
        ax.axhline(0, **DOTTED)
        ax.set(title=with_formulas(f"{subtask} for {target}"), ylabel="advantage in accuracy")
    return legend_below(figure, axes, title="the subnetwork's advantage over")


def _grid(count: int, across: int, *, width: float = 1.95, below: float = 0.6) -> tuple[Figure, np.ndarray]:
    """Axes [rows, columns] for so many panels. width: inches of a panel; below: for the legend."""
    columns = min(count, across)
    rows = math.ceil(count / columns)
    size = (max(4.6, width * columns), 2.3 * rows + below)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, axes


def ablations(ax: Axes, tests: pd.DataFrame, runs: pd.DataFrame) -> Axes:
    """Accuracy on the source task of the whole network, without random weights, without the subtask's.

    Bars: means over seeds.
    tests: from `subtask_induction.ablation_tests`, a group of bars a row; runs: the table that it is made from. Dots:
    seeds, for random weights the mean of each over its draws. Triangle: the draw with the lowest mean over seeds.
    """
    keys = ["source", "subtask", "layers"]
    bars = {"whole network": (BLACK, "whole network"), "random ablated": (GREEN, "without random weights"),
            "ablated": (RED, "without the subtask's weights")}  # fmt: skip
    by_seed = runs.groupby([*keys, "network", "seed"])["source_accuracy"].mean()
    for place, about in enumerate(tests[keys].itertuples(index=False)):
        for shift, (network, (color, label)) in zip((-0.27, 0.0, 0.27), bars.items(), strict=True):
            _bar(ax, place + shift, by_seed.loc[(*about, network)], color, label)
    positions = np.arange(len(tests))
    look = {"marker": CARETLEFT, "ms": 5, "ls": "none", "color": BLACK}  # at the bar's edge, clear of the dots
    lowest = ax.plot(positions + 0.12, tests["random_lowest"], **look, label="lowest mean of a draw")
    seed = ax.plot([], [], **DOT, label="a seed")
    names = [with_formulas(f"{one.subtask} in {one.source}") for one in tests.itertuples()]
    ax.set_xticks(positions, [f"{name}\n{layers} layers" for name, layers in zip(names, tests["layers"], strict=True)])
    ax.set(ylabel="accuracy on the source task", ylim=(0, 1.12))
    handles = [*ax.containers[: len(bars)], *lowest, *seed]  # by itself a legend would begin with the marks
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, columnspacing=1, handlelength=1.2
    )
    return ax


def legend_below(figure: Figure, axes: np.ndarray, *, title: str | None = None) -> Figure:
    """One legend for all panels, below the figure: every label once, levels to compare with last. The y-axis is named
    at the left only."""
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    found = {}
    for ax in axes.flat:
        found |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    found |= {level: found.pop(level) for level in (COMMON, CHANCE) if level in found}
    columns = max(2, int(figure.get_figwidth() / 1.9))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, title=title)
    return figure


DOT = {"marker": "o", "ms": 2.8, "mfc": "white", "mec": BLACK, "mew": 0.6, "ls": "none"}


def _bar(ax: Axes, x: float, seeds: pd.Series, color: str, label: str) -> None:
    """A bar as high as the mean, a dot for each seed, and the mean in figures above them all."""
    spread = np.linspace(-0.07, 0.07, len(seeds)) if len(seeds) > 1 else 0
    ax.bar(x, seeds.mean(), 0.24, color=color, label=label)
    ax.plot(np.full(len(seeds), x) + spread, seeds, **DOT)
    ax.text(x, seeds.max() + 0.025, f"{seeds.mean():.2f}", ha="center", va="bottom", fontsize=6.5)


def _draw(ax: Axes, x: pd.Series, means: pd.Series, line: Line, *, few: bool) -> None:
    """Points, joined by a line unless there are few."""
    look = {"mfc": "white", "mew": 0.8} if line.style == OPEN else {"mec": "white", "mew": 0.4}
    look |= {"ls": "none", "ms": 4} if few else {"ls": line.style, "ms": 3.6, "lw": 1.1}
    ax.plot(x, means, color=line.color, label=line.label, marker=MARKERS[line.style], zorder=3, **look)


def _between(ax: Axes, curves: pd.DataFrame, condition: str, control: str) -> None:
    """Gray from the control's means to the condition's."""
    shifts, positions = _shifts(curves, (condition, control)), _positions(curves)
    means = curves.pivot(index="samples", columns="condition", values="mean")
    x = means.index.map(positions).to_numpy()
    if len(positions) > FEW_NUMBERS:
        ax.fill_between(x, means[control], means[condition], color=BETWEEN, zorder=0, lw=0)
    else:
        wide = shifts[control] - shifts[condition]
        ax.bar(x, means[condition] - means[control], wide, means[control], color=BETWEEN, zorder=0)


def _positions(curves: pd.DataFrame) -> dict[float, float]:
    """Where each number of rows stands: a few side by side, more on a logarithmic axis, 0 a step left of the others."""
    numbers = sorted(curves["samples"].unique())
    if len(numbers) <= FEW_NUMBERS:
        return {number: i for i, number in enumerate(numbers)}
    logarithms = {number: math.log10(number) for number in numbers if number > 0}
    first, second, *_ = logarithms.values()
    return {number: logarithms.get(number, 2 * first - second) for number in numbers}


def _shifts(curves: pd.DataFrame, conditions: Sequence[str], step: float = STEP) -> dict[str, float]:
    """The conditions that are there, and how far each stands from its number of rows: points farther than lines."""
    shown = [name for name in conditions if name in set(curves["condition"])]
    few = curves["samples"].nunique() <= FEW_NUMBERS
    step = min(0.15, 0.7 / max(1, len(shown))) if few else step * np.diff(list(_positions(curves).values())).min()
    return {name: (i - (len(shown) - 1) / 2) * step for i, name in enumerate(shown)}
