"""Drawings of the controls: random subnetworks of the same size, and subnetworks of other sizes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from subnet_utils.papers.break_it_down.figures.effects import DIFFERENCE
from subnet_utils.tasks.odd_one_out import CHANCE
from subnet_utils.plots import layout
from subnet_utils.plots.style import CHANCE_LINE, CONDITIONS, LEVEL

KINDS = ("random", "complement")
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


def null_distribution(ax: Axes, draws: pd.DataFrame, tests: pd.DataFrame) -> Axes:
    """What ablating random subnetworks of the same size does, and in red what ablating the subnetwork does.

    draws: one row per random subnetwork with columns `kind` ('random' from all weights, 'complement' from those outside
    the subnetwork) and `difference`. tests: one row a kind, 'random' first, with `observed`, the mean difference of the
    ablated models, the permutation p-value `p`, and `n_masks`. Where not every mask has room for a control outside
    itself, `observed` of 'complement' is of fewer masks: a line of its own. The legend says so if there is no such
    control. Raises ValueError if all differences are missing.
    """
    known = draws.dropna(subset=["difference"])
    if known.empty:
        raise ValueError("no random subnetwork has a difference; measure some first")
    edges = _bins([*known["difference"], *tests["observed"]])
    about = tests.set_index("kind")
    groups = {kind: known.loc[known["kind"] == kind, "difference"] for kind in KINDS if (known["kind"] == kind).any()}
    labels = [f"{len(values)} {CONDITIONS[kind].label}{_p(about.loc[kind, 'p'])}" for kind, values in groups.items()]
    for (kind, values), label in zip(groups.items(), labels, strict=True):
        ax.hist(values, edges, color=CONDITIONS[kind].color, label=label, rwidth=1, lw=0, alpha=0.75)
    ax.axvline(0, ls=":", **LEVEL)
    for row in tests[~np.isclose(tests["observed"], tests["observed"].shift())].itertuples():
        first = row.kind == "random"
        color, name = (CONDITIONS["ablated"].color, "without the subnetwork, {}") if first else (
            CONDITIONS[row.kind].color, "the same, {} with room outside")  # fmt: skip
        ax.axvline(row.observed, color=color, lw=2, label=name.format(f"{row.n_masks} mask{'s' * (row.n_masks > 1)}"))
    if "complement" not in groups:
        ax.plot([], [], ls="none", label="(no room for a control outside it)")
    ax.set(xlabel=f"{DIFFERENCE}, ablated", ylabel="random subnetworks")
    ax.yaxis.get_major_locator().set_params(integer=True)
    layout.legend(ax, columns=1, labelspacing=0.2)
    return ax


def _bins(values: Sequence[float]) -> np.ndarray:
    """Edges of equal bins, one centered at 0: at most about 25, at least .02 wide, multiples of half a percent."""
    low, high = np.nanmin(values), np.nanmax(values)
    width = 0.005 * max(4, round((high - low) / 25 / 0.005))
    first, last = np.floor(low / width) - 2, np.ceil(high / width) + 2
    return (np.arange(first, last + 2) - 0.5) * width


def _p(value: float) -> str:
    """The end of a label: a p-value to three digits without the zero."""
    return f", p = {value:.3f}".replace("= 0.", "= .") if value >= 0.001 else ", p < .001"


def by_size(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracies over the share of the weights that subnetworks keep, each found with a lambda of its own. Thin lines
    are base models, thick ones their means; dotted: chance. A share below `LEAST` is drawn there, as the axis says.

    table: one row per mask with columns `base_model`, `factor` of lambda, `density`, `own_task`, `target`, `other`.
    """
    edge = {LEAST: f"< {100 * LEAST:g}%".replace("0.", ".")} if (table["density"] < LEAST).any() else {}
    table = table.assign(density=table["density"].clip(lower=LEAST))
    means = table.groupby("factor")[["density", *SIZED]].mean()
    if 1.0 in means.index:
        ax.axvline(means.loc[1.0, "density"], color="0.8", lw=3, zorder=0, label="λ as for all other results")
    ax.axhline(CHANCE, zorder=0, **CHANCE_LINE | {"label": "_chance"})
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
