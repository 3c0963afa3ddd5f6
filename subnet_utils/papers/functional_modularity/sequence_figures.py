"""Figures on modules in sequence tasks. Bars and thick lines are means over seeds, dots and thin lines are seeds."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.papers.functional_modularity.arithmetic_figures import DOT
from subnet_utils.papers.functional_modularity.sequence_steps import CONTROL_MASK, DIRECT, OWN_MASK, RANDOM_MASK, WHOLE
from subnet_utils.plots.layout import grid, label_first_column, legend
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, RANDOM

COLORS = {WHOLE: BLACK, CONTROL_MASK: "0.6", OWN_MASK: CONDITIONS["subnetwork"].color, RANDOM_MASK: RANDOM.color,
          DIRECT: "#d98c00"}  # fmt: skip
MASKED = (CONTROL_MASK, OWN_MASK, RANDOM_MASK)
"""What Figure 4a shows, and random masks."""
LEARNED = (WHOLE, OWN_MASK, DIRECT)
"""What Figure 15 shows, and the network without a mask."""
LEVELS = (WHOLE, CONTROL_MASK, OWN_MASK, RANDOM_MASK)
"""What Figure 5 shows, and random masks."""


def accuracies(table: pd.DataFrame, parts: Sequence[str] = MASKED) -> Figure:
    """Accuracy in each split's tests, a panel for each model (Figures 4a, 5 and 15). table: `accuracies`."""
    models = list(dict.fromkeys(table["model"]))
    figure, axes = grid(len(models), width=3.4, height=2.2, across=2, margin=0.6, sharey=True)
    for ax, model in zip(axes, models, strict=True):
        rows = table[table["model"] == model]
        splits = list(dict.fromkeys(rows["split"]))
        for j, part in enumerate(parts):
            own = rows[rows["part"] == part].groupby("split")["accuracy"]
            for i, split in enumerate(splits):
                place = i + (j - (len(parts) - 1) / 2) * 0.78 / len(parts)
                if split in own.groups:
                    _bar(ax, place, own.get_group(split), 0.72 / len(parts), color=COLORS[part], label=part)
        ax.set_xticks(range(len(splits)), splits)
        ax.set(title=model, ylabel="accuracy in the tests", ylim=(0, 1.02))
    label_first_column(axes)
    legend(figure)
    return figure


def output_weights(table: pd.DataFrame, split: str = "jump") -> Figure:
    """Output weights of each token that a split's mask lacks, a panel for each model (Figure 4b).

    Dotted: what a second control mask lacks. table: from `sequence_tables.output_weights`.
    """
    table = table[table["split"] == split]
    models, tokens = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["token"]))
    figure, axes = grid(len(models), width=3.4, height=2.4, across=2, margin=0.6, sharey=True)
    for ax, model in zip(axes, models, strict=True):
        rows = table[table["model"] == model].groupby("token")
        for i, token in enumerate(tokens):
            one = rows.get_group(token)
            _bar(ax, i, one["lost"], width=0.6, color=COLORS[OWN_MASK], label=f"mask of {split}")
            look = CHANCE_LINE | {"color": BLACK, "lw": 1.3, "label": "another control mask"}
            ax.hlines(one["lost_by_chance"].mean(), i - 0.4, i + 0.4, **look)
        ax.set_xticks(range(len(tokens)), tokens, rotation=40, ha="right")
        ax.set(title=model, ylabel="share of weights lost", ylim=(0, None))
    label_first_column(axes)
    legend(figure)
    return figure


def along_steps(table: pd.DataFrame) -> Figure:
    """Accuracy against the weights that are left while a mask is trained, a panel for each model and split.

    table: from `sequence_tables.along_steps`.
    """
    panels = list(table.groupby(["model", "split"], sort=False))
    figure, axes = grid(len(panels), width=2.4, height=2.2, across=3, margin=0.7, sharey=True)
    for ax, ((model, split), rows) in zip(axes, panels, strict=True):
        for part, value, style, label in (
            (CONTROL_MASK, "accuracy", "-", "control mask"),
            (OWN_MASK, "accuracy", "-", "mask of the split"),
            (OWN_MASK, "own", "--", "the same, on its training set"),
        ):
            own = rows[rows["part"] == part]
            for _, run in own.groupby("seed"):
                ax.plot(run["density"], run[value], color=COLORS[part], ls=style, lw=1, marker="o", ms=2, label=label)
        ax.invert_xaxis()
        ax.set(title=f"{model}: {split}", xlabel="weights kept", ylabel="accuracy", ylim=(0, 1.02))
    label_first_column(axes)
    legend(figure)
    return figure


def _bar(ax: Axes, place: float, values: pd.Series, width: float = 0.24, **look: str) -> None:
    """A bar as high as the mean, and a dot for each seed."""
    ax.bar(place, values.mean(), width, **look)
    ax.plot([place] * len(values), values, **DOT)
