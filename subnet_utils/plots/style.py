"""What a subnetwork does, and the looks of all figures: one style, one map from condition to color, marker and label.

Functions draw into the Axes (or Figure, where a grid belongs to the drawing) that they are given and return it; only
notebooks save. Blue is the subnetwork, red the ablated model, gray a run whose base model is below 90%, and black open
diamonds are the paper's values, in every figure. The colors stay apart in all common kinds of color blindness.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from subnet_utils.papers.break_it_down.tasks.odd_one_out import CHANCE
from subnet_utils.statistics import LEARNED, NO_TEST, t_interval


class Condition(NamedTuple):
    """How a condition looks in every figure. The marker None means: one shape for each base model."""

    color: str
    marker: str | None
    label: str


CONDITIONS = {
    "subnetwork": Condition("#0069a8", None, "subnetwork"),
    "ablated": Condition("#c8321e", None, "ablated model"),
    "below": Condition("#9a9a9a", None, "base model below 90%"),
    "ours": Condition("#0069a8", "o", "ours, 95% interval"),
    "paper": Condition("#111111", "D", "paper, mean ± sd"),
}
RANDOM = Condition("#0a7f5a", "o", "random")
RANDOM_OUTSIDE = Condition("#d98c00", "s", "random, without its weights")
"""Random subnetworks: of all weights, and of those outside the subnetwork."""
Shape = str | tuple[int, int, int] | Path
RIGHT_HALF = Path.unit_circle_righthalf().transformed(Affine2D().translate(-0.4, 0))
UPPER_HALF = RIGHT_HALF.transformed(Affine2D().rotate_deg(90))
BASE_MARKERS: tuple[Shape, ...] = ("o", "s", "X", "*", RIGHT_HALF, (4, 1, 45), UPPER_HALF, "P")
"""Shapes of the base models of one panel, in order of their names: no diamond or arrowhead of other things."""
RUN_SIZES = {"X": 5.2, "*": 5.6, RIGHT_HALF: 5.0, (4, 1, 45): 6.2, UPPER_HALF: 5.0, "P": 5.2}
"""Points across the marker of a run: what is not round has less area and is larger."""

DIFFERENCES = (-0.8, 0.8)
"""Limits of an axis of differences of clamped accuracies, which cannot be beyond .75."""
NETWORKS = ("subnetwork", "ablated")
PROBES = {"target_accuracy": "Test Target", "other_accuracy": "Test Other"}
STARS = "*** p < .001, ** .01, * .05, \N{DAGGER} .1: the paper's test"
CHANCE_LINE = {"color": "0.45", "lw": 0.9, "ls": ":", "label": "chance"}
_GRAY, _PAPER, _CUT = "_below", "_paper", "_cut"  # labels of what a legend names only where it is drawn
MINIMUM_LOSS = float(np.log1p(3 * np.exp(-4)))
"""Smallest cross-entropy of four cosine-similarity logits: .0535 nats (section 5)."""


def style() -> None:
    """Set the companion's style for all figures that follow: small, legible print, few lines, 150 dots per inch.

    Sizes are for figures drawn at their printed width: 3.4 inches for a column, 7 for a page.
    """
    sns.set_theme(context="paper", style="ticks", palette="colorblind", font="DejaVu Sans")
    plt.rcParams.update({
        "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8.5, "axes.titleweight": "bold",
        "xtick.labelsize": 7.5, "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5, "legend.title_fontsize": 7.5, "legend.frameon": False,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
        "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
        "figure.dpi": 150, "savefig.dpi": 150, "figure.constrained_layout.use": True, "pdf.fonttype": 42,
    })  # fmt: skip


def differences(
    ax: Axes,
    effects: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    stars: Mapping[tuple[str, str], str] | None = None,
    title: str = "",
) -> Axes:
    """One panel of Figure 4: accuracy on Test Target minus Test Other, subnetworks in blue, ablated models in red.

    effects: the runs of one model and task, with columns `model`, `task`, `subroutine`, `network`, `base_model`,
    `base_accuracy`, `difference`; a marker each, one shape per base model, gray below 90%. Beside them a tick for our
    mean over base models with its 95% interval (t, without the gray ones), and an open diamond for the paper's mean
    +- sd. reference: rows of `break_it_down_effects` for one condition, model and task (and number). stars: mark of
    each (subroutine, network), written above its cluster. What runs off the axis, ours or the paper's, ends in an
    arrowhead.
    Raises ValueError for runs of several models or tasks, or several reference rows for one cluster.
    """
    ax.axhline(0, color="0.45", lw=0.8, zorder=0)
    for x, subroutine, network, runs in _clusters(effects, {"subnetwork": -0.23, "ablated": 0.23}):
        _draw_runs(ax, x - 0.13, runs, "difference", CONDITIONS[network].color, width=0.06)
        _draw_mean(ax, x, runs, "difference", CONDITIONS[network].color, width=0.055, limits=DIFFERENCES)
        _draw_paper(ax, x + 0.12, reference, (subroutine, network, "difference"), limits=DIFFERENCES)
        mark = (stars or {}).get((subroutine, network), "").replace(".", "\N{DAGGER}")
        ax.text(x, 1.025, mark, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    _name_subroutines(ax, effects)
    ax.set(ylim=DIFFERENCES, ylabel="Test Target $-$ Test Other")
    ax.set_title(title, pad=14 if stars else 5)
    return ax


def accuracies(
    ax: Axes, effects: pd.DataFrame, reference: pd.DataFrame | None = None, title: str = "", *, network: str
) -> Axes:
    """One panel of Figures 8 to 12: accuracy of subnetworks, or of ablated models, on Test Target (filled) and Test
    Other (open), not clamped.

    effects: as in `differences`, with columns `target_accuracy` and `other_accuracy`; network: which of both is shown.
    Dotted: chance, .25.
    """
    ax.axhline(CHANCE, zorder=0, **CHANCE_LINE)
    color, limits = CONDITIONS[network].color, (0.0, 1.04)
    for middle, subroutine, _, runs in _clusters(effects, {network: 0.0}):
        for x, value in zip((middle - 0.23, middle + 0.23), PROBES, strict=True):
            _draw_runs(ax, x - 0.11, runs, value, color, width=0.075, filled=value == "target_accuracy")
            _draw_mean(ax, x + 0.02, runs, value, color, width=0.055, limits=limits)
            _draw_paper(ax, x + 0.13, reference, (subroutine, network, value), limits=limits)
    _name_subroutines(ax, effects)
    ax.set(ylim=limits, ylabel=f"{CONDITIONS[network].label}: accuracy")
    ax.set_title(title)
    return ax


def legend(figure: Figure, *, probes: bool = False, stars: str = "", below: str = CONDITIONS["below"].label) -> Figure:
    """The legend of `differences` (or with `probes` of `accuracies`), once for all panels, below the figure.

    It names what the panels show: gray runs, the paper's values and arrowheads only where there are some. stars: what
    explains the marks of the paper's own test, such as `STARS`. below: what gray runs are.
    """
    gray = [CONDITIONS["below"]._replace(label=below)] * is_drawn(figure.axes, _GRAY)
    looks = [*(CONDITIONS[name] for name in NETWORKS), *gray]
    handles = [_handle(look, marker="o", mec="none") for look in looks]
    if probes:
        fills = zip(PROBES.values(), ("0.3", "white"), strict=True)
        handles += [_handle(Condition("0.3", None, name), marker="o", mec="0.3", mfc=fill) for name, fill in fills]
        handles.append(Line2D([], [], **CHANCE_LINE))
    handles.append(mean_handle())
    if is_drawn(figure.axes, _PAPER):
        handles.append(_handle(CONDITIONS["paper"], marker="D", mfc="white", mec=CONDITIONS["paper"].color, ms=4))
    handles += cut_handle(figure.axes)
    if stars and any(text.get_text() == NO_TEST for ax in figure.axes for text in ax.texts):
        stars += f"\n{NO_TEST}: no test, for want of two base models above 90% or of any variance"
    rows = -(-len(handles) // max(2, int(figure.get_figwidth() / 1.4)))
    columns = -(-len(handles) // rows)  # no row of one name below a full one
    look = {"columnspacing": 1.2, "handletextpad": 0.3, "title": stars or None}
    made = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
    made.get_title().set_multialignment("center")
    return figure


def is_drawn(axes: Iterable[Axes], label: str) -> bool:
    """Whether one of the panels has something with that label, which begins with _ if no legend shows it."""
    return any(drawn.get_label() == label for ax in axes for drawn in (*ax.lines, *ax.containers, *ax.patches))


def cut_handle(axes: Iterable[Axes], marker: str = "^") -> list[Line2D]:
    """What a legend says about arrowheads, if `cut_marks` has drawn one in a panel."""
    arrowhead = Condition("0.3", None, "arrowhead: interval goes on")
    return [_handle(arrowhead, marker=marker, mec="none", ms=4)] * is_drawn(axes, _CUT)


def mean_handle() -> Line2D:
    """What a legend says about ticks of means and the bars through them."""
    return _handle(Condition("0.3", None, CONDITIONS["ours"].label), marker="+", ms=9, mew=1.5)


def _handle(condition: Condition, **look: object) -> Line2D:
    return Line2D([], [], ls="none", color=condition.color, label=condition.label, **({"ms": 5} | look))


def _clusters(effects: pd.DataFrame, shifts: Mapping[str, float]) -> Iterable[tuple[float, str, str, pd.DataFrame]]:
    """(place, subroutine, network, runs) for every cluster of a panel, the runs with the shape of their base model."""
    for column in ("model", "task"):
        names = effects[column].unique()
        if len(names) != 1:
            raise ValueError(f"a panel shows one {column}; effects have {', '.join(map(str, names)) or 'none'}")
    bases = sorted(effects["base_model"].unique())
    shapes = {base: BASE_MARKERS[i % len(BASE_MARKERS)] for i, base in enumerate(bases)}
    effects = effects.assign(shape=effects["base_model"].map(shapes))
    for place, subroutine in enumerate(effects["subroutine"].unique()):
        for network, shift in shifts.items():
            chosen = (effects["subroutine"] == subroutine) & (effects["network"] == network)
            yield place + shift, subroutine, network, effects[chosen]


def _draw_runs(
    ax: Axes, x: float, runs: pd.DataFrame, value: str, color: str, *, width: float, filled: bool = True
) -> None:
    """A marker for each run, side by side in the order of the table, so that a redrawn figure is the same; gray ones
    below all others, which count."""
    places = x + np.linspace(-width, width, len(runs)) if len(runs) > 1 else [x]
    for place, run in zip(places, runs.to_dict("records"), strict=True):
        learned = run["base_accuracy"] >= LEARNED
        color_of_run = color if learned else CONDITIONS["below"].color
        look = (
            {"mfc": color_of_run, "mec": "white", "mew": 0.3}
            if filled
            else {"mfc": "none", "mec": color_of_run, "mew": 0.8}
        )
        look |= {"label": "_run" if learned else _GRAY} | run_look(run["shape"], learned=learned)
        ax.plot(place, run[value], **look)


def run_look(shape: Shape, *, learned: bool) -> dict[str, object]:
    """Shape, size and layer of the marker of a run."""
    look = {"ls": "none", "marker": shape, "ms": RUN_SIZES.get(shape, 4), "alpha": 0.9, "clip_on": False}
    return look | {"zorder": 2 if learned else 1.5}


def _draw_mean(
    ax: Axes, x: float, runs: pd.DataFrame, value: str, color: str, *, width: float, limits: tuple[float, float]
) -> None:
    learned = runs[runs["base_accuracy"] >= LEARNED]
    if learned.empty:
        return
    mean, low, high = t_interval(learned[value], learned["base_model"])
    ax.plot([x, x], [low, high], color=color, lw=1, zorder=3)
    ax.plot([x - width, x + width], [mean, mean], color=color, lw=2, solid_capstyle="butt", zorder=3)
    cut_marks(ax, [x], [low], [high], color, limits=limits)


def cut_marks(
    ax: Axes,
    places: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    color: str | Sequence[str],
    *,
    limits: tuple[float, float],
    across: bool = False,
) -> None:
    """Arrowheads where intervals run off the axis, whose limits are given; across: intervals lie, and do not stand."""
    colors = [color] * len(places) if isinstance(color, str) else color
    ends = ((low, limits[0], np.less, "<" if across else "v"), (high, limits[1], np.greater, ">" if across else "^"))
    for values, limit, beyond, marker in ends:
        for place, value, own in zip(places, values, colors, strict=True):
            if beyond(value, limit):
                at = (limit, place) if across else (place, limit)
                ax.plot(*at, marker, color=own, ms=3.5, mec="none", clip_on=False, zorder=3.5, label=_CUT)


def _draw_paper(
    ax: Axes,
    x: float,
    reference: pd.DataFrame | None,
    shown: tuple[str, str, str],
    *,
    limits: tuple[float, float],
) -> None:
    """The paper's mean +- sd of what is shown: subroutine, network and the name of the value."""
    if reference is None:
        return
    subroutine, network, value = shown
    rows = reference[(reference["subroutine"] == subroutine) & (reference["network"] == network)]
    if len(rows) > 1:
        raise ValueError(f"reference has {len(rows)} rows for {subroutine}, {network}; select one condition and model")
    color, marker, _ = CONDITIONS["paper"]
    for mean, sd in rows[[f"{value}_mean", f"{value}_sd"]].itertuples(index=False):
        ax.errorbar([x], [mean], [sd], fmt=marker, ms=3.6, color=color, mfc="white", mew=0.8, elinewidth=0.8, zorder=3,
                    label=_PAPER)  # fmt: skip
        cut_marks(ax, [x], [mean - sd], [mean + sd], color, limits=limits)


def _name_subroutines(ax: Axes, effects: pd.DataFrame) -> None:
    names = effects["subroutine"].unique()
    ax.set_xticks(range(len(names)), names)
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.tick_params(axis="x", length=0)
    for boundary in range(1, len(names)):
        ax.axvline(boundary - 0.5, color="0.85", lw=0.7, zorder=0)
