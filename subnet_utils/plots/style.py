"""The looks of all figures: one style, and one map from condition to color, marker and label.

Blue is the subnetwork, red the ablated model, green a random subnetwork, gray a run whose base model is below 90%, and
black open diamonds are the paper's values. The colors differ in all common kinds of color blindness.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.path import Path
from matplotlib.transforms import Affine2D


class Look(NamedTuple):
    """How a condition looks in every figure. The marker None is a tick, or for runs one shape for each base model."""

    color: str
    marker: str | None
    label: str


RANDOM = Look("#0a7f5a", "o", "random")
RANDOM_OUTSIDE = Look("#d98c00", "s", "random, without its weights")
"""Random subnetworks: of all weights, and of those outside the subnetwork."""
CONDITIONS = {
    "subnetwork": Look("#0069a8", None, "subnetwork"),
    "ablated": Look("#c8321e", None, "ablated model"),
    "below": Look("#9a9a9a", None, "base model below 90%"),
    "ours": Look("#0069a8", "o", "ours, 95% interval"),
    "paper": Look("#111111", "D", "paper, mean ± sd"),
    "random": RANDOM,
    "complement": RANDOM_OUTSIDE,
    "zeros": Look("#c8321e", None, "zeros, as in the paper"),
    "replaced": Look("#0a7f5a", None, "untrained weights"),
    "mean": Look("#7a4a9c", None, "units at their mean"),
}
BLACK = CONDITIONS["paper"].color
CHANCE_LINE = {"color": "0.45", "lw": 0.9, "ls": ":", "label": "chance"}
LEVEL = {"color": "0.45", "lw": 0.8, "zorder": 0}
"""Of a line that values are compared with, such as 0."""

Shape = str | tuple[int, int, int] | Path
RIGHT_HALF = Path.unit_circle_righthalf().transformed(Affine2D().translate(-0.4, 0))
UPPER_HALF = RIGHT_HALF.transformed(Affine2D().rotate_deg(90))
BASE_MARKERS: tuple[Shape, ...] = ("o", "s", "X", "*", RIGHT_HALF, (4, 1, 45), UPPER_HALF, "P")
"""Shapes of the base models of one panel, in order of their names: no diamond or arrowhead of other things."""
RUN_SIZES = {"X": 5.2, "*": 5.6, RIGHT_HALF: 5.0, (4, 1, 45): 6.2, UPPER_HALF: 5.0, "P": 5.2}
"""Points across the marker of a run: what is not round has less area and is larger."""


def style() -> None:
    """Set the companion's style for all figures that follow: small, legible print, few lines, 150 dots per inch.

    Sizes are for figures drawn at their printed width: 3.4 inches for a column, 7 for a page.
    """
    sns.set_theme(context="paper", style="ticks", palette="colorblind", font="DejaVu Sans")
    plt.rcParams.update({
        "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8.5, "axes.titleweight": "bold",
        "xtick.labelsize": 7.5, "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5, "legend.title_fontsize": 7.5, "legend.frameon": False, "legend.columnspacing": 1.2,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
        "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
        "figure.dpi": 150, "savefig.dpi": 150, "figure.constrained_layout.use": True, "pdf.fonttype": 42,
    })  # fmt: skip
