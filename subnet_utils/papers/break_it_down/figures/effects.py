"""What subnetworks do and what is lost without them: panels of Figures 4 to 12 and 16 to 18, and of other ablations.

In every cluster a run is a marker, one shape for each
base model, gray below 90%. Right of the runs are a tick for our mean over base models with its 95% interval (t,
without the gray ones), and an open diamond for the paper's mean +- sd.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.tasks.odd_one_out import CHANCE
from subnet_utils.plots import layout, marks
from subnet_utils.plots.style import BASE_MARKERS, CHANCE_LINE, CONDITIONS, LEVEL, Look
from subnet_utils.statistics import LEARNED, NO_TEST, t_interval

DIFFERENCES = (-0.8, 0.8)
"""Limits of an axis of differences of clamped accuracies, which cannot be beyond .75."""
DIFFERENCE = "Test Target $-$ Test Other"
NETWORKS = ("subnetwork", "ablated")
BELOW = CONDITIONS["below"].label
BY_START = {"paper_scratch": "paper,\nfrom\nscratch", "paper_pretrained": "paper,\npre-\ntrained",
          "ours_scratch": "ours,\nfrom\nscratch", "ours_pretrained": "ours,\npre-\ntrained"}  # fmt: skip
"""Columns of a heat map by start, and what they are called."""
STARS = "*** p < .001, ** .01, * .05, \N{DAGGER} .1: the paper's test"


def differences(
    ax: Axes,
    effects: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    stars: Mapping[tuple[str, str], str] | None = None,
    *,
    by: str = "network",
) -> Axes:
    """One panel of Figure 4: accuracy on Test Target minus Test Other, subnetworks in blue, ablated models in red.

    effects: the runs of one model and task, with columns `model`, `task`, `subroutine`, `network` (or another one, `by`
    which there are clusters), `base_model`, `base_accuracy`, `difference`. reference: rows of `break_it_down_effects`
    for one condition, model and task (and number). stars: mark of each (subroutine, network), written above its
    cluster. Raises ValueError for runs of several models or tasks, or several reference rows for one cluster.
    """
    ax.axhline(0, **LEVEL)
    groups = [(name, effects[effects[by] == name], "difference") for name in CONDITIONS if (effects[by] == name).any()]
    for x, subroutine, name in _clusters(ax, effects, groups, reference, DIFFERENCES):
        mark = (stars or {}).get((subroutine, name), "").replace(".", "\N{DAGGER}")
        ax.text(x, 1.025, mark, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    ax.set(ylim=DIFFERENCES, ylabel=DIFFERENCE)
    return ax


def accuracies(ax: Axes, effects: pd.DataFrame, reference: pd.DataFrame, network: str) -> Axes:
    """One panel of Figures 8 to 12: accuracy of subnetworks, or of ablated models, on Test Target (filled) and Test
    Other (open), not clamped.

    effects: as in `differences`, with columns `target_accuracy` and `other_accuracy`; network: which of both is shown.
    Dotted: chance, .25.
    """
    ax.axhline(CHANCE, zorder=0, **CHANCE_LINE)
    runs, limits = effects[effects["network"] == network], (0.0, 1.04)
    groups = [(network, runs, value) for value in ("target_accuracy", "other_accuracy")]
    _clusters(ax, effects, groups, reference, limits)
    ax.set(ylim=limits, ylabel=f"{CONDITIONS[network].label}: accuracy")
    return ax


def start_heatmap(ax: Axes, means: pd.DataFrame) -> Axes:
    """One panel of Figures 5 and 7: mean differences by what the networks started from, the paper's and ours.

    means: rows of `paper_tables.by_start` of one task and number. A subroutine's subnetworks stand above the networks
    without them. Blue is above 0, red below, as far as clamped accuracies go.
    """
    networks = pd.Categorical(means["network"], NETWORKS)
    means = means.assign(network=networks).sort_values(["subroutine", "network"])
    shown = means.set_index(means["subroutine"] + ", " + means["network"].astype(str))[list(BY_START)].astype(float)
    numbers = shown.map(lambda value: f"{value:.2f}".replace("-", "\N{MINUS SIGN}"))
    sns.heatmap(shown, ax=ax, vmin=CHANCE - 1, vmax=1 - CHANCE, cmap="RdBu", annot=numbers, fmt="", cbar=False,
                linewidths=1, annot_kws={"size": 7.5}, xticklabels=list(BY_START.values()))  # fmt: skip
    ax.axvline(2, color="white", lw=5)
    ax.tick_params(length=0, labelrotation=0)
    ax.set(xlabel="", ylabel="")
    return ax


def legend(
    figure: Figure, names: Sequence[str] = NETWORKS, *, probes: bool = False, stars: str = "", below: str = BELOW
) -> Figure:
    """The legend of all panels, of what they show: colors, with `probes` fillings, and other marks.

    names: of the conditions whose colors are explained. stars: what explains the marks of the paper's own test, such as
    `STARS`. below: what gray runs are.
    """
    handles = [marks.key(CONDITIONS[name].label, CONDITIONS[name].color) for name in names]
    if probes:
        handles += [marks.key("Test Target"), marks.key("Test Other", mec="0.3", mfc="white")]
    handles += [*layout.named(figure.axes), *marks.keys(figure.axes, below=below)]
    if stars and any(text.get_text() == NO_TEST for ax in figure.axes for text in ax.texts):
        stars += f"\n{NO_TEST}: no test, for want of two base models above 90% or of any variance"
    layout.legend(figure, handles, title=stars or None, handletextpad=0.3)
    return figure


def _clusters(
    ax: Axes,
    effects: pd.DataFrame,
    groups: Sequence[tuple[str, pd.DataFrame, str]],
    reference: pd.DataFrame | None,
    limits: tuple[float, float],
) -> list[tuple[float, str, str]]:
    """Draw a cluster for each subroutine and group (condition, runs, name of the value); where they are."""
    for name in ("model", "task"):
        found = effects[name].unique()
        if len(found) != 1:
            raise ValueError(f"a panel shows one {name}; effects have {', '.join(map(str, found)) or 'none'}")
    bases = sorted(effects["base_model"].unique())
    shapes = {base: BASE_MARKERS[i % len(BASE_MARKERS)] for i, base in enumerate(bases)}
    subroutines, positions = effects["subroutine"].unique(), []
    for place, subroutine in enumerate(subroutines):
        for i, (condition, runs, value) in enumerate(groups):
            x = place + 0.9 / len(groups) * (i + 0.5) - 0.42
            own = runs[runs["subroutine"] == subroutine]
            _cluster(ax, x, own.assign(shape=own["base_model"].map(shapes)), value, condition, limits)
            if reference is not None:
                _paper(ax, x + 0.12, reference, (subroutine, condition, value), limits)
            positions.append((x, subroutine, condition))
        if place:
            ax.axvline(place - 0.5, color="0.85", lw=0.7, zorder=0)
    ax.set_xticks(range(len(subroutines)), subroutines)
    ax.set_xlim(-0.5, len(subroutines) - 0.5)
    ax.tick_params(axis="x", length=0)
    return positions


def _cluster(ax: Axes, x: float, runs: pd.DataFrame, value: str, condition: str, limits: tuple[float, float]) -> None:
    """Runs, and right of them the mean of those that count, which is at x."""
    color = CONDITIONS[condition].color
    marks.runs(ax, x - 0.13, runs, value, color, width=0.065, filled=value != "other_accuracy")
    learned = runs[(runs["base_accuracy"] >= LEARNED) & runs[value].notna()]
    if len(learned):
        interval = t_interval(learned[value], learned["base_model"])
        marks.means(ax, x, interval, Look(color, None, ""), limits=limits)


def _paper(
    ax: Axes, x: float, reference: pd.DataFrame, shown: tuple[str, str, str], limits: tuple[float, float]
) -> None:
    """The paper's mean +- sd of what is shown: subroutine, network and the name of the value."""
    subroutine, network, value = shown
    rows = reference[(reference["subroutine"] == subroutine) & (reference["network"] == network)]
    if len(rows) > 1:
        raise ValueError(f"reference has {len(rows)} rows for {subroutine}, {network}; select one condition and model")
    if len(rows):
        marks.paper_values(ax, x, rows[f"{value}_mean"], rows[f"{value}_sd"], limits=limits)
