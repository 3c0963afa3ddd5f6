"""Figure 19: how much subnetworks overlap, layer by layer."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from subnet_utils.masks.overlap import OVERALL
from subnet_utils.plots import layout
from subnet_utils.plots.marks import drawn
from subnet_utils.plots.style import CONDITIONS, Look

COMPARISONS = {
    "first": Look(CONDITIONS["random"].color, "o", ""),
    "second": Look(CONDITIONS["mean"].color, "s", ""),
    "between": Look(CONDITIONS["complement"].color, "^", ""),
}
"""How each comparison looks; its label is in the table."""
DASHED = {"ls": (0, (4, 2)), "lw": 0.9}
CHANCE, ONE_BASE = "_chance", "_base"
"""Labels of lines that `keys` explains where there are some."""


def overlap(ax: Axes, table: pd.DataFrame, each: pd.DataFrame | None = None) -> Axes:
    """Figure 19: overlap by layer within each subroutine and between them, dashed what random masks would give.

    table: one row per layer and comparison with columns `layer` (name of the weight, or `OVERALL`), `comparison` (a
    label; one that starts with 'between' is drawn as such), `iou`, `expected` (NaN leaves a gap) and `bases`, of how
    many base models they are means: where that changes, the line is broken, as other networks are no step. each: the
    same for every single base model, with `base_model`, in thin lines. Raises ValueError for more than two
    comparisons within subroutines or one between them, and for two rows of one layer and comparison.
    """
    layers = sorted(table["layer"].unique(), key=layer_order)
    positions = {layer: i + 0.6 * (layer == OVERALL) for i, layer in enumerate(layers)}
    looks = _looks(table["comparison"].unique())
    for i, look in enumerate(looks):
        rows = table[table["comparison"] == look.label].set_index("layer").reindex(layers).reset_index()
        shift = 0.24 * (i - (len(looks) - 1) / 2)  # of all layers as one, so that none covers another
        _line(ax, rows.assign(x=rows["layer"].map(positions)), look, shift)
        for _, one in [] if each is None else each[each["comparison"] == look.label].groupby("base_model"):
            heights = one.set_index("layer")["iou"].reindex([x for x in layers if x != OVERALL])
            ax.plot(range(len(heights)), heights, color=look.color, lw=0.6, alpha=0.4, zorder=1, label=ONE_BASE)
    ax.set_xticks(list(positions.values()), [short_weight(layer) for layer in layers], rotation=90)
    ax.set(xlim=(-0.5, max(positions.values()) + 0.5), ylim=(0, 1), xlabel="layer", ylabel="intersection over union")
    layout.legend(ax, columns=3, handlelength=1.8)
    return ax


def _line(ax: Axes, rows: pd.DataFrame, look: Look, shift: float) -> None:
    """One comparison: a line for each stretch of means over as many base models, a point for all layers as one."""
    breaks = rows["layer"].eq(OVERALL) | rows["bases"].ne(rows["bases"].shift())
    for number, (_, part) in enumerate(rows.groupby(breaks.cumsum())):
        ax.plot(part["x"] + shift * part["layer"].eq(OVERALL), part["iou"], marker=look.marker, ms=4.5, mec="white",
                mew=0.4, lw=1, clip_on=False, color=look.color, label="_" if number else look.label)  # fmt: skip
        x, y = part["x"].to_numpy(), part["expected"].to_numpy()
        if len(x) == 1:  # a point alone is as wide as its column
            x, y = x[0] + np.array([-0.35, 0.35]), np.repeat(y, 2)
        ax.plot(x, y, color=look.color, zorder=1.5, label=CHANCE, **DASHED)


def keys(axes: Sequence[Axes]) -> list[Line2D]:
    """What the legend says of dashed and thin lines, those that panels of `overlap` have."""
    entries = {
        CHANCE: Line2D([], [], color="0.3", label="random masks", **DASHED),
        ONE_BASE: Line2D([], [], color="0.3", lw=0.6, alpha=0.6, label="single base models"),
    }
    return [entry for label, entry in entries.items() if drawn(axes, label)]


def short_weight(name: str) -> str:
    """A weight's name as it fits an axis: stage, block and part.

    >>> [short_weight(f"stages.{rest}.weight") for rest in ("stage_4.0.conv1", "layer_2.output.dense", "head.hidden")]
    ['4.0 conv1', '2 mlp out', 'head hidden']
    """
    stage, block, part = _split(name)
    return f"{re.sub('^(stage|layer)_', '', stage)}{block} {_PARTS.get(part, part)}".strip()


_PARTS = {
    "conv_proj": "", "conv1": "conv1", "conv2": "conv2", "conv3": "conv3", "downsample.0": "downsample",
    "attention.self.query": "query", "attention.self.key": "key", "attention.self.value": "value",
    "self_attention.in_proj_weight": "query, key, value",
    "attention.output.dense": "attention out", "self_attention.out_proj": "attention out",
    "intermediate.dense": "mlp in", "output.dense": "mlp out", "mlp.0": "mlp in", "mlp.3": "mlp out",
    "hidden": "hidden", "embedding": "embedding", "dense": "",
}  # fmt: skip
"""What the weights of a block are called, in the order in which an item passes them."""


def _split(name: str) -> tuple[str, str, str]:
    """Stage, block ('' or a point and a number) and part of a weight's name."""
    stage, _, rest = name.removeprefix("stages.").removesuffix(".weight").partition(".")
    block, part = re.fullmatch(r"(?:(\d+)\.)?(.*)", rest).groups(default="")
    return stage, f".{block}" if block else "", part


def layer_order(layer: str) -> tuple[int, int, int, int]:
    """Where a layer is in its network: numbered stages are between the first and the last, all layers as one after."""
    stage, block, part = _split(layer)
    number = int((re.search(r"\d+$", stage) or ["0"])[0])
    rank = 1 if number else {"head": 2, "pooler": 2, OVERALL: 3}.get(stage, 0)
    return rank, number, int(block[1:] or 0), list(_PARTS).index(part) if part in _PARTS else len(_PARTS)


def _looks(labels: Sequence[str]) -> list[Look]:
    """Look of each comparison: those within subroutines in the order of the table, then the one between them."""
    within, between = ([x for x in labels if x.startswith("between") == crossing] for crossing in (False, True))
    if len(within) > 2 or len(between) > 1:
        raise ValueError(f"an overlap has two subroutines and one 'between'; table has {', '.join(labels)}")
    keys = [*("first", "second")[: len(within)], *["between"] * len(between)]
    return [COMPARISONS[key]._replace(label=label) for label, key in zip([*within, *between], keys, strict=True)]
