"""A tree of units: which of them are alike, which clusters they are in, and what else is known of each."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from scipy.cluster import hierarchy

from subnet_utils.plots.layout import legend

MIXED = "#8a8a8a"
"""Color of branches that join clusters."""
BRANCHES = ("#4c72b0", "#dd8452", "#c44e52", "#8c6d50", "#da8bc3", "#b8a04a", "#4aa3c0")
"""Colors of clusters, none of them green or purple: so the papers' functions are drawn."""
HEIGHT, GAP = 0.07, 0.02
"""Of the strip, and of the space above it, in parts of the tree's height."""


def dendrogram(
    ax: Axes, tree: np.ndarray, clusters: Sequence[int], kinds: Sequence[Hashable], colors: Mapping[Hashable, str]
) -> Axes:
    """Draw a tree with a color for each cluster, and below it a strip with the kind of each unit.

    tree: [units - 1, 4] of `feature_vectors.ward`; clusters, kinds: [units], of the same units; kinds are such as the
    function whose mask keeps most of a unit's incoming weights; colors: of each kind. The height at which branches join
    is Ward's distance.
    """
    branches = _branch_colors(tree, clusters)
    drawn = hierarchy.dendrogram(tree, ax=ax, no_labels=True, link_color_func=branches.__getitem__)
    ax.set(ylabel="Ward's distance", xticks=[])
    ax.spines["bottom"].set_visible(False)
    strip = ax.inset_axes((0, -HEIGHT - GAP, 1, HEIGHT))
    strip.imshow([[to_rgb(colors[kinds[unit]]) for unit in drawn["leaves"]]], aspect="auto", interpolation="nearest")
    strip.set_axis_off()
    seen = set(kinds)
    legend(ax, [Patch(color=color, label=kind) for kind, color in colors.items() if kind in seen], columns=4)
    return ax


def _branch_colors(tree: np.ndarray, clusters: Sequence[int]) -> list[str]:
    """Color of every node, leaves first: that of its cluster, or gray above several."""
    below: list[int | None] = list(clusters)
    for left, right in tree[:, :2].astype(int):
        below.append(below[left] if below[left] == below[right] else None)
    return [MIXED if cluster is None else BRANCHES[cluster % len(BRANCHES)] for cluster in below]
