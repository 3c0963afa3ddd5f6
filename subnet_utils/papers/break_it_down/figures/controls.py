"""Drawings of the control analyses, in the style of `figures`: all effects at once, random subnetworks, other
ablations, and how many base models an answer needs.

Functions draw into the Axes that they are given and return it. Red is the ablated model here too, blue the subnetwork,
and black open diamonds are the paper's values; `CONTROLS` has what the other figures do not show.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from subnet_utils.papers.break_it_down.tasks.odd_one_out import CHANCE
from subnet_utils.plots.style import (
    BASE_MARKERS,
    CONDITIONS,
    DIFFERENCES,
    RANDOM,
    RANDOM_OUTSIDE,
    Condition,
    Shape,
    cut_handle,
    cut_marks,
    mean_handle,
    run_look,
)
from subnet_utils.report.comparison import DIFFERS
from subnet_utils.statistics import LEARNED, t_interval

CONTROLS = CONDITIONS | {
    "random": RANDOM,
    "complement": RANDOM_OUTSIDE,
    "zeros": CONDITIONS["ablated"]._replace(label="zeros, as in the paper"),
    "replaced": Condition("#0a7f5a", None, "untrained weights"),
    "mean": Condition("#7a4a9c", None, "units at their mean"),
}
"""How every condition of these figures looks, those of the other figures included."""

_LINE = {"marker": "o", "ms": 4, "lw": 1.5}
SIZED = {
    "own_task": _LINE | {"color": CONDITIONS["subnetwork"].color, "ls": "-", "label": "subnetwork, its own task"},
    "target": _LINE | {"color": CONDITIONS["ablated"].color, "ls": "-", "label": "ablated model, Test Target"},
    "other": _LINE | {"color": CONDITIONS["ablated"].color, "ls": "--", "mfc": "white",
                      "label": "ablated model, Test Other"},
}  # fmt: skip
"""Lines of `by_size`, by what they show."""
LEAST = 0.003
"""Smallest share of the weights on their logarithmic axis."""
AXIS = "Test Target $-$ Test Other"
MOST_BASES = 1000
"""More base models than this are as good as out of reach: the axis of `needed` ends here."""


# -- all effects at once -----------------------------------------------------------------------------------------------


def forest(ax: Axes, table: pd.DataFrame) -> Axes:
    """Every effect of a study in one column: our mean with its 95% interval, below it the paper's mean +- sd.

    table: one row per effect with columns `ours`, `ours_low`, `ours_high`, `paper`, `paper_sd`, those of `model`,
    `task`, `number`, `subroutine` and `network` that tell the effects apart, and perhaps `verdict`; rows whose verdict
    is that they differ have a bold label with a mark. Effects of one model and task are a group, named at the right.
    Without an interval there is a point only, without a value nothing. A row needs about .16 inches of height.
    """
    places = np.arange(len(table))
    looks = [CONTROLS[network if network in CONDITIONS else "ours"] for network in table.get("network", places)]
    colors = np.array([look.color for look in looks])
    ax.axvline(0, color="0.45", lw=0.8, zorder=0)
    _bars(ax, places - 0.16, table["ours_low"], table["ours_high"], colors)
    ax.scatter(table["ours"], places - 0.16, s=16, c=colors, lw=0, zorder=3)
    color, marker, _ = CONTROLS["paper"]
    _bars(ax, places + 0.2, table["paper"] - table["paper_sd"], table["paper"] + table["paper_sd"], color)
    ax.scatter(table["paper"], places + 0.2, s=10, marker=marker, c="white", ec=color, lw=0.8, zorder=3)
    _name_effects(ax, table)
    ax.set(xlabel=AXIS, xlim=DIFFERENCES, ylim=(len(table) - 0.4, -0.6))
    ax.tick_params(axis="y", length=0)
    _forest_legend(ax, dict.fromkeys(looks), differs="verdict" in table and (table["verdict"] == DIFFERS).any())
    return ax


def _bars(ax: Axes, places: np.ndarray, low: pd.Series, high: pd.Series, colors: np.ndarray | str) -> None:
    known = (low.notna() & high.notna()).to_numpy()
    colors = colors if isinstance(colors, str) else colors[known]
    ax.hlines(places[known], low[known], high[known], color=colors, lw=1, zorder=2)
    cut_marks(ax, places[known], low[known], high[known], colors, limits=DIFFERENCES, across=True)


def _name_effects(ax: Axes, table: pd.DataFrame) -> None:
    """Subroutine and network of each row at the left, model and task of each group at the right."""
    labels = _joined(table, ["subroutine", "network"], ", ")
    differs = table["verdict"] == DIFFERS if "verdict" in table else [False] * len(table)
    marked = [f"\N{NOT EQUAL TO} {label}" if mark else label for label, mark in zip(labels, differs, strict=True)]
    ax.set_yticks(range(len(table)), marked)
    for tick, mark in zip(ax.get_yticklabels(), differs, strict=True):
        tick.set_fontweight("bold" if mark else "normal")
    groups = _joined(table, ["model", "task", "number"], " · ")
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    for shade, (start, end) in enumerate(zip(starts, [*starts[1:], len(groups)], strict=True)):
        ax.axhspan(start - 0.5, end - 0.5, color="0.95" if shade % 2 else "none", lw=0, zorder=-1)
        middle = (start + end - 1) / 2
        ax.text(1.015, middle, groups[start], va="center", size=7.5, transform=ax.get_yaxis_transform())


def _joined(table: pd.DataFrame, columns: Sequence[str], separator: str) -> list[str]:
    """The named columns of each row as one text, without those that the table lacks or leaves empty."""
    known = table[[column for column in columns if column in table]].astype(object).fillna("")
    return [separator.join(filter(None, map(str, row))) for row in known.itertuples(index=False)]


def _forest_legend(ax: Axes, looks: Sequence[Condition], *, differs: bool) -> None:
    ours = {look.color: f"{look.label}, 95% interval".replace(", 95% interval" * 2, ", 95% interval") for look in looks}
    handles = [Line2D([], [], color=color, marker="o", ms=4, lw=1, label=label) for color, label in ours.items()]
    color, marker, label = CONTROLS["paper"]
    handles.append(Line2D([], [], color=color, marker=marker, mfc="white", ms=3.5, mew=0.8, lw=1, label=label))
    if differs:
        handles.append(Line2D([], [], ls="none", label="\N{NOT EQUAL TO} differs from the paper"))
    handles += cut_handle([ax], ">")
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2)


# -- random subnetworks ------------------------------------------------------------------------------------------------


def null_distribution(
    ax: Axes,
    draws: pd.DataFrame,
    observed: float | Mapping[str, float],
    *,
    p: float | Mapping[str, float] | None = None,
    masks: Mapping[str, int] | None = None,
) -> Axes:
    """What ablating random subnetworks of the same size does, and in red what ablating the subnetwork does.

    draws: one row per random subnetwork with columns `kind` ('random' from all weights, 'complement' from those outside
    the subnetwork) and `difference`; observed: the difference of the ablated model, of one mask or the mean of a group,
    or one for each kind: where not every mask has room for a control outside itself, that of 'complement' is over fewer
    of them, and is drawn as another line, in the color of its histogram; p: permutation p-value, or one for each kind,
    shown in the legend, where no histogram can hide it; masks: how many each kind is about. An observed value of
    'random' alone says that there is no control outside. Raises ValueError if all differences are missing.
    """
    known = draws.dropna(subset=["difference"])
    if known.empty:
        raise ValueError("no random subnetwork has a difference; measure some first")
    seen = dict(observed) if isinstance(observed, Mapping) else {"ablated": observed}
    edges, p_values = _bins([*known["difference"], *seen.values()]), p if isinstance(p, Mapping) else {"ablated": p}
    for i, (kind, group) in enumerate(known.groupby("kind", sort=False)):
        _histogram(ax, group["difference"], edges, CONTROLS[kind], _p(p_values.get(kind)), dashed=i > 0)
    ax.axvline(0, color="0.45", lw=0.8, ls=":", zorder=0)
    for value, color, label in _observed(seen, masks or {}, _p(p_values.get("ablated"))):
        ax.axvline(value, color=color, lw=2, label=label)
    if "random" in seen and "complement" not in seen:
        ax.plot([], [], ls="none", label="(no room for a control outside it)")
    ax.set(xlabel=f"{AXIS}, ablated", ylabel="random subnetworks", xlim=edges[[0, -1]])
    ax.margins(y=0.1)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1, labelspacing=0.2)
    return ax


def _histogram(ax: Axes, values: pd.Series, edges: np.ndarray, look: Condition, p: str, *, dashed: bool) -> None:
    """From the first to the last bin that holds something: an outline along 0 would look like data. Of two that
    coincide, the lower one shows between the dashes of the other."""
    counts, _ = np.histogram(values, edges)
    first, last = np.flatnonzero(counts)[[0, -1]]
    counts, edges = counts[first : last + 1], edges[first : last + 2]
    ax.stairs(counts, edges, fill=True, color=look.color, alpha=0.3)
    style = {"ls": (0, (2.5, 2.5)), "zorder": 1.6} if dashed else {"zorder": 1.5}
    ax.stairs(counts, edges, color=look.color, lw=1.3, label=f"{len(values)} {look.label}{p}", **style)


def _observed(seen: Mapping[str, float], masks: Mapping[str, int], p: str) -> list[tuple[float, str, str]]:
    """(value, color, label) of each line to draw: one, or one of each kind where the values differ."""
    counts = {kind: f", {n} mask{'s' * (n > 1)}" for kind, n in masks.items()}
    red, (first, *others) = CONTROLS["ablated"].color, seen.items()
    lines = [(first[1], red, f"without the subnetwork{counts.get(first[0], '')}{p}")]
    different = [(kind, value) for kind, value in others if not np.isclose(value, first[1])]
    return lines + [(v, CONTROLS[k].color, f"the same{counts.get(k, '')} with room outside") for k, v in different]


def _bins(values: Sequence[float]) -> np.ndarray:
    """Edges of about 25 equal bins, multiples of half a percent wide, one of them centered at 0.

    Differences are multiples of one over the number of examples: bins of any width would hold unequal numbers of these.
    """
    low, high = np.nanmin(values), np.nanmax(values)
    width = 0.005 * max(1, round((high - low) / 25 / 0.005))
    first, last = np.floor(low / width) - 2, np.ceil(high / width) + 2
    return (np.arange(first, last + 2) - 0.5) * width


def _p(value: float | None) -> str:
    """The end of a label: a p-value to three digits without the zero, or nothing."""
    if value is None:
        return ""
    return f", p = {value:.3f}".replace("= 0.", "= .") if value >= 0.001 else ", p < .001"


# -- subnetworks of other sizes ----------------------------------------------------------------------------------------


def by_size(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracies over the share of the weights that subnetworks keep, each found with a lambda of its own: of the
    subnetwork on its own task, of the ablated model on both probe sets. Thin lines are base models, thick ones their
    means; gray: the share with lambda as for all other results; dotted: chance. A share below `LEAST` is drawn there,
    and the axis says so.

    table: one row per mask with columns `base_model`, `factor` of lambda, `density`, `own_task`, `target`, `other`.
    """
    edge = {LEAST: f"< {100 * LEAST:g}%".replace("0.", ".")} if (table["density"] < LEAST).any() else {}
    table = table.assign(density=table["density"].clip(lower=LEAST))
    means = table.groupby("factor")[["density", *SIZED]].mean()
    if 1.0 in means.index:
        ax.axvline(means.loc[1.0, "density"], color="0.8", lw=3, zorder=0, label="λ as for all other results")
    ax.axhline(CHANCE, color="0.45", lw=0.9, ls=":", zorder=0)
    for column, look in SIZED.items():
        for _, runs in table.sort_values("factor").groupby("base_model"):
            thin = look | {"label": "_base", "lw": 0.5, "ms": 2, "mew": 0.5, "alpha": 0.5}
            ax.plot(runs["density"], runs[column], **thin)
        ax.plot(means["density"], means[column], **look, clip_on=False)
    ax.set(xscale="log", ylim=(0, 1.04), xlabel="weights in the subnetwork", ylabel="accuracy")
    ticks = edge | {0.01: "1%", 0.03: "3%", 0.1: "10%", 0.3: "30%", 1: "100%"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


# -- other ablations ---------------------------------------------------------------------------------------------------


def alternatives(ax: Axes, table: pd.DataFrame) -> Axes:
    """The ablated model's difference when weights are not set to zero: a cluster for each subroutine and ablation.

    table: one row per run with columns `subroutine`, `ablation` ('zeros', 'replaced', 'mean'), `base_model`,
    `difference` and, if known, `base_accuracy`. A marker for each run, one shape per base model, gray below 90%; beside
    them a tick for the mean over the other base models with its 95% interval, as in `figures.differences`.
    """
    subroutines, ablations = list(table["subroutine"].unique()), list(table["ablation"].unique())
    shapes = dict(zip(sorted(table["base_model"].unique()), cycle(BASE_MARKERS), strict=False))
    width = 0.9 / len(ablations)
    ax.axhline(0, color="0.45", lw=0.8, zorder=0)
    for (subroutine, ablation), runs in table.groupby(["subroutine", "ablation"], sort=False):
        place = subroutines.index(subroutine) + width * (ablations.index(ablation) + 0.5) - 0.45
        _points(ax, place + width * np.array([-0.36, 0.08]), runs, shapes, CONTROLS[ablation].color)
        _mean(ax, place + width * np.array([0.18, 0.42]), runs, CONTROLS[ablation].color)
    for boundary in range(1, len(subroutines)):
        ax.axvline(boundary - 0.5, color="0.85", lw=0.7, zorder=0)
    ax.set_xticks(range(len(subroutines)), subroutines)
    ax.tick_params(axis="x", length=0)
    ax.set(xlim=(-0.5, len(subroutines) - 0.5), ylim=DIFFERENCES, ylabel=f"{AXIS}, ablated")
    _alternatives_legend(ax, ablations, gray=not _learned(table).all())
    return ax


def _learned(runs: pd.DataFrame) -> pd.Series:
    if "base_accuracy" not in runs:
        return pd.Series(True, index=runs.index)
    return runs["base_accuracy"] >= LEARNED


def _points(ax: Axes, span: np.ndarray, runs: pd.DataFrame, shapes: Mapping[str, Shape], color: str) -> None:
    """The runs side by side in the order of the table, so that a redrawn figure is the same."""
    x = np.linspace(*span, len(runs)) if len(runs) > 1 else [span.mean()]
    for where, value, base, good in zip(x, runs["difference"], runs["base_model"], _learned(runs), strict=True):
        face = color if good else CONTROLS["below"].color
        ax.plot(where, value, mfc=face, mec="white", mew=0.3, **run_look(shapes[base], learned=good))


def _mean(ax: Axes, span: np.ndarray, runs: pd.DataFrame, color: str) -> None:
    runs = runs[_learned(runs) & runs["difference"].notna()]
    if runs.empty:
        return
    mean, low, high = t_interval(runs["difference"], runs["base_model"])
    ax.plot([span.mean()] * 2, [low, high], color=color, lw=1, zorder=3)
    cut_marks(ax, [span.mean()], [low], [high], color, limits=DIFFERENCES)
    ax.plot(span, [mean, mean], color=color, lw=2, solid_capstyle="butt", zorder=3)


def _alternatives_legend(ax: Axes, ablations: Sequence[str], *, gray: bool) -> None:
    looks = [CONTROLS[name] for name in (*ablations, *["below"] * gray)]
    handles = [Line2D([], [], ls="none", marker="o", ms=5, color=look.color, mec="none", label=look.label)
               for look in looks]  # fmt: skip
    handles += [mean_handle(), *cut_handle([ax])]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2,
              handletextpad=0.3)  # fmt: skip


# -- how many base models ----------------------------------------------------------------------------------------------


def needed(ax: Axes, table: pd.DataFrame) -> Axes:
    """Base models that an effect would need to be found with 80% power, beside those that were trained.

    table: one row per effect with columns `label`, `bases_needed` (infinity if no number would do, NaN if unknown) and
    `n_bases`, those that learned their task. More than `MOST_BASES` is an arrow at the edge; of an unknown number the
    row says why there is none.
    """
    places, bases = np.arange(len(table)), table["bases_needed"].to_numpy(dtype=float)
    beyond, known = bases > MOST_BASES, ~np.isnan(bases)
    ends, color = np.minimum(bases, MOST_BASES), CONTROLS["ours"].color
    ax.hlines(places[known], table["n_bases"][known], ends[known], color="0.75", lw=1.2, zorder=1)
    ax.plot(table["n_bases"], places, "|", ms=8, mew=1.5, color="0.25", label="trained, and learned the task")
    reachable = np.where(beyond, np.nan, bases)
    ax.plot(reachable, places, "o", ms=5, color=color, label="needed for 80% power", clip_on=False)
    if beyond.any():  # an empty line that is not clipped would count as a point in the figure's corner
        ax.plot(ends[beyond], places[beyond], ">", ms=5.5, mfc="white", mec=color, clip_on=False)
    for place in places[beyond]:
        ax.text(1.03, place, f"> {MOST_BASES}", va="center", size=7.5, transform=ax.get_yaxis_transform())
    for place, there in zip(places[~known], table["n_bases"][~known], strict=True):
        reason = "one base has no spread" if there < 2 else "not in the paper"
        ax.text(1.25 * there, place, f"unknown: {reason}", va="center", size=7, color="0.3")
    ax.set_yticks(places, table["label"])
    ax.set(xlabel="base models", xscale="log", xlim=(0.9, MOST_BASES), ylim=(len(table) - 0.5, -0.5))
    ax.set_xticks([1, 3, 10, 30, 100, 300, 1000])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2, handletextpad=0.3)
    return ax
