"""Figures on modules in sequence tasks, from `sequence_tables`. Bars are means over seeds, dots and lines are seeds."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.papers.functional_modularity.sequence_steps import CONTROL_MASK, DIRECT, OWN_MASK, RANDOM_MASK, WHOLE
from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import panels
from subnet_utils.plots.style import BLACK, CONDITIONS, RANDOM

COLORS = {WHOLE: BLACK, CONTROL_MASK: "0.6", OWN_MASK: CONDITIONS["subnetwork"].color, RANDOM_MASK: RANDOM.color,
          DIRECT: "#d98c00"}  # fmt: skip
MASKED = (CONTROL_MASK, OWN_MASK, RANDOM_MASK)
SPLITS, LEVELS = (WHOLE, OWN_MASK, DIRECT), (WHOLE, *MASKED)
"""What Figures 4a, 15 and 5 show; with random masks, and the network without a mask."""


def accuracies(table: pd.DataFrame, parts: Sequence[str] = MASKED) -> Figure:
    """Accuracy in each split's tests (Figures 4a, 5 and 15), of models with all of the parts if there are any."""
    some = table[table["part"].isin(parts)].assign(title=table["model"]).replace({"split": {"easy": "hard questions"}})
    whole = some.groupby("model")["part"].transform("nunique") == len(parts)
    some = some[whole] if whole.any() else some
    axis = {"ylabel": "accuracy in the tests", "ylim": (0, 1.02)}
    return bars(some, x="split", y="accuracy", hue="part", colors=COLORS, **axis)


def output_weights(table: pd.DataFrame, split: str = "jump") -> Figure:
    """Output weights of each token that a split's mask lacks, as lines what a second control mask lacks (Figure 4b)."""
    some = table[table["split"] == split].assign(title=table["model"], of=f"mask of {split}")
    some = some.rename(columns={"lost_by_chance": "another control mask"})
    look = {"colors": {f"mask of {split}": COLORS[OWN_MASK]}, "ylabel": "share of weights lost", "ylim": (0, None)}
    return bars(some, x="token", y="lost", hue="of", levels=["another control mask"], **look)


def along_steps(table: pd.DataFrame) -> Figure:
    """Accuracy against the weights that are left while a mask is trained, a panel for each model and split."""
    lines = (
        (OWN_MASK, "own", {"color": "#66b3e6", "lw": 0.7}, "mask of the split, on what it is trained for"),
        (OWN_MASK, "accuracy", {"color": COLORS[OWN_MASK], "lw": 1.2}, "mask of the split"),
        (CONTROL_MASK, "accuracy", {"color": BLACK, "lw": 0.7, "ls": "--"}, "control mask"),
    )

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        for part, value, look, label in lines:
            for _, run in rows[rows["part"] == part].groupby("seed"):
                ax.plot(run["density"], run[value], **look, label=label)
        ax.invert_xaxis()
        ax.set(xlabel="weights kept, falling", ylabel="accuracy", ylim=(0, 1.02))

    table = table.assign(title=table["model"] + ": " + table["split"])
    return panels(table, "title", draw, width=2.4, across=3, margin=0.7)
