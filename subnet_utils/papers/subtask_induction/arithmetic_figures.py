"""Figures of subtask induction: test accuracy against the number of disambiguating rows, one line a condition.

Blue is what inherits the subnetwork, black the whole network. curves, in all functions: columns condition, samples,
mean, low, high, n_runs, and chance, the share of the most common answer.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETLEFT

from subnet_utils.papers.subtask_induction.conditions import VARIANTS
from subnet_utils.plots.layout import grid, label_first_column, legend, named
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, RANDOM, RANDOM_OUTSIDE


class Line(NamedTuple):
    """How a condition looks in every figure."""

    color: str
    style: str
    label: str


BLUE, RED, GREEN = CONDITIONS["subnetwork"].color, CONDITIONS["ablated"].color, RANDOM.color
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
    "random_as_released_unfrozen": Line("#6b7300", "-.", "random, as released, not frozen"),
}
"""Where two conditions have one color, their lines differ; all others can be told apart with deuteranopia."""
MARKERS = {"-": "o", "--": "s", "-.": "^", ":": "D"}
"""Of the line styles. What is not frozen has open ones: it nearly coincides with what is."""
MAIN = ("subnetwork", "full", "random", "scratch")
"""The conditions of Figure 3."""
FROZEN_OR_NOT = {
    "random as in the text": ("subnetwork", "subnetwork_unfrozen", "random", "random_unfrozen", "full"),
    "random as released": ("random_as_released", "random_as_released_unfrozen", "full"),
}
"""Those of Figure 7, under either random control."""
FURTHER = ("subnetwork", "full", "random", "embed_only", "scratch")
"""Those of Figures 8 to 10."""
FEWEST = 3
"""Seeds from which on an interval is drawn: that of two is wider than the panel."""
STEP = 0.23
"""From one condition's points to the next one's, where numbers of rows are 1 apart, so that no point hides another."""
COMMON = "most common answer"
DOTTED = CHANCE_LINE | {"zorder": 0}
DOT = {"marker": "o", "ms": 2.8, "mfc": "white", "mec": BLACK, "mew": 0.6, "ls": "none"}
LABELS = {"text": "random as in the text", "as_released": "random as released", "strict": "all else drawn anew",
          "embed_only": "embeddings as control"}  # fmt: skip


def panels(frames: Sequence[tuple[str, pd.DataFrame]], conditions: Sequence[str] = MAIN, *, across: int = 3) -> Figure:
    """A panel for each (title, curves), with one legend below; conditions that the curves lack are left out."""
    figure, axes = grid(len(frames), width=2.6, height=2.3, across=across, margin=0.6, sharey=True)
    for ax, (title, curves) in zip(axes, frames, strict=True):
        _accuracies(ax, curves, conditions, with_formulas(title))
    return legend_below(figure)


def frozen_or_not(by_depth: Sequence[tuple[str, pd.DataFrame]]) -> Figure:
    """Figure 7: two panels for each (title, curves), one for each random control that there is; see `panels`."""
    shown = [(f"{title}, {reading}", curves[curves["condition"].isin(names)])
             for title, curves in by_depth for reading, names in FROZEN_OR_NOT.items()]  # fmt: skip
    shown = [panel for panel in shown if len(panel[1])]
    return panels(shown, tuple(dict.fromkeys(sum(FROZEN_OR_NOT.values(), ()))), across=2)


def variants(curves: pd.DataFrame) -> Figure:
    """Each reading of the method and its control, side by side, gray between the two. curves: of one depth."""
    means = curves.pivot(index="samples", columns="condition", values="mean")
    shown = [name for name, pair in VARIANTS.items() if set(pair) <= set(means)]
    figure, axes = grid(len(shown), width=1.95, height=2.3, margin=0.6, sharey=True)
    for ax, name in zip(axes, shown, strict=True):
        condition, control = VARIANTS[name]
        _accuracies(ax, curves, VARIANTS[name], LABELS[name])
        gap = means[condition] - means[control]
        ax.bar(range(len(gap)), gap, STEP, means[control], color="0.83", zorder=0)
    return legend_below(figure)


def advantages(gaps: pd.DataFrame, controls: Sequence[str] = ("scratch", "embed_only", "random")) -> Figure:
    """By how much the subnetwork is ahead of each control at each number of rows, a panel for each induction.

    Means over seeds of differences within seeds, with their intervals from `FEWEST` seeds on; 0 is dotted. gaps: from
    `arithmetic_tables.gaps_by_samples`; where an induction was done at several depths, their mean is drawn.
    """
    curves = gaps.rename(columns={"control": "condition", "advantage": "mean"})
    shown = list(curves.groupby(["subtask", "target"], sort=False))
    figure, axes = grid(len(shown), width=1.95, height=2.3, margin=0.75, sharey=True)
    for ax, ((subtask, target), rows) in zip(axes, shown, strict=True):
        over_depths = rows[rows["layers"].eq("all")]
        _lines(ax, rows if over_depths.empty else over_depths, controls, bounds=(-1, 1))
        ax.axhline(0, **DOTTED | {"label": None})
        ax.set(title=with_formulas(f"{subtask} for {target}"), ylabel="advantage in accuracy")
    return legend_below(figure, title="the subnetwork's advantage over")


def ablations(ax: Axes, tests: pd.DataFrame, runs: pd.DataFrame) -> Axes:
    """Accuracy on the source task of the whole network, without random weights, without the subtask's.

    Bars: means over seeds. Dots: seeds, for random weights the mean of each over its draws. Triangle: the draw with the
    lowest mean over seeds. tests: from `arithmetic_tables.ablation_tests`, a group of bars a row; runs: the table that
    it is made from.
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
    ax.set_xticks(positions, [with_formulas(f"{one.subtask} in {one.source}") + f"\n{one.layers} layers"
                              for one in tests.itertuples()])  # fmt: skip
    ax.set(ylabel="accuracy on the source task", ylim=(0, 1.12))
    handles = [*ax.containers[: len(bars)], *lowest, *seed]  # by itself a legend would begin with the marks
    legend(ax, handles, loc="upper center", bbox_to_anchor=(0.5, -0.22), columnspacing=1, handlelength=1.2)
    return ax


def _bar(ax: Axes, x: float, seeds: pd.Series, color: str, label: str) -> None:
    """A bar as high as the mean, a dot for each seed, and the mean in figures above them all."""
    spread = np.linspace(-0.07, 0.07, len(seeds)) if len(seeds) > 1 else 0
    ax.bar(x, seeds.mean(), 0.24, color=color, label=label)
    ax.plot(x + spread, seeds, **DOT)
    ax.text(x, seeds.max() + 0.025, f"{seeds.mean():.2f}", ha="center", va="bottom", fontsize=6.5)


def _accuracies(ax: Axes, curves: pd.DataFrame, conditions: Sequence[str], title: str) -> None:
    """Mean test accuracies over the number of rows; the share of the most common answer is dotted."""
    _lines(ax, curves, conditions, bounds=(0, 1))
    ax.axhline(curves["chance"].iloc[0], **DOTTED | {"label": COMMON})
    ax.set(title=title, ylabel="test accuracy", ylim=(0, 1.03))


def _lines(ax: Axes, curves: pd.DataFrame, conditions: Sequence[str], *, bounds: tuple[float, float]) -> None:
    """Means with intervals, cut off at the bounds of what is possible, at equal distances."""
    numbers = sorted(curves["samples"].unique())
    shown = [name for name in conditions if name in set(curves["condition"])]
    few = len(numbers) <= 3  # points without lines, which would tell of what was not tried
    step = min(STEP, 0.7 / max(1, len(shown)))
    for i, name in enumerate(shown):
        rows, (color, style, label) = curves[curves["condition"] == name].sort_values("samples"), LINES[name]
        x = rows["samples"].map(numbers.index) + (i - (len(shown) - 1) / 2) * step
        look = {"mfc": "white", "mew": 0.8} if style == "-." else {"mec": "white", "mew": 0.4}
        look |= {"ls": "none", "ms": 4} if few else {"ls": style, "ms": 3.6, "lw": 1.1}
        ax.plot(x, rows["mean"], color=color, label=label, marker=MARKERS[style], zorder=3, **look)
        if (rows["n_runs"] >= FEWEST).all():
            ends = rows["low"].clip(*bounds), rows["high"].clip(*bounds)
            ax.vlines(x, *ends, color=color, lw=1.2 if few else 0.9)
    ax.set_xticks(range(len(numbers)), [f"{number:g}" for number in numbers], rotation=45 if len(numbers) > 6 else 0)
    ax.set(xlabel="disambiguating rows", xlim=(-0.5, len(numbers) - 0.5))


def with_formulas(text: str) -> str:
    """A label with its computations set as formulas; a letter alone may be a word and stays.

    >>> with_formulas("ab for a^3+ab")
    '$ab$ for $a^3+ab$'
    """
    return re.sub(r"(?<!\S)[ab][ab\d^+-]+(?!\S)", lambda found: f"${found[0]}$", text)


def interval_note(*curves: pd.DataFrame, cut: str = ", cut off at 0 and 1") -> str:
    """What the bars are, for a caption. curves: of all panels; cut: where bars are cut off."""
    runs = pd.concat(curves)["n_runs"]
    seeds = " to ".join(map(str, sorted({int(runs.min()), int(runs.max())})))
    if runs.max() < FEWEST:
        return f"Too few seeds ({seeds}) for intervals."
    beyond = f", from {FEWEST} seeds on" if runs.min() < FEWEST else ""
    return f"Bars: 95% intervals over {seeds} seeds{beyond}{cut}."


def legend_below(figure: Figure, *, title: str | None = None) -> Figure:
    """One legend for all panels, levels to compare with last. The y-axis is named at the left only."""
    label_first_column(figure.axes)
    handles = sorted(named(figure.axes), key=lambda handle: handle.get_label() in (COMMON, CHANCE_LINE["label"]))
    legend(figure, handles, columns=max(2, int(figure.get_figwidth() / 1.9)), title=title)  # inches: labels are long
    return figure
