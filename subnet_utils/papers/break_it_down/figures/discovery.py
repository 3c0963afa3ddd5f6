"""How networks learn and how subnetworks are found: examples, learning curves, mask search, annealing, sizes, steps.

Functions draw into the Axes (or Figure, where a grid belongs to the drawing) that they are given and return it, in the
looks of `figures`.
"""

from collections.abc import Mapping, Sequence
from os.path import commonprefix

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from subnet_utils.statistics import LEARNED
from subnet_utils.plots.style import CONDITIONS, cut_handle, cut_marks, is_drawn
from subnet_utils.papers.break_it_down.tasks.odd_one_out import CHANCE

MINIMUM_LOSS = float(np.log1p(3 * np.exp(-4)))
"""Smallest cross-entropy of four cosine-similarity logits: .0535 nats (section 5)."""
HATCHED = {"fc": "#e4e4e4", "ec": "#a8a8a8", "hatch": "////", "lw": 0}
FRAMED = {"fill": False, "ec": CONDITIONS["ablated"].color, "lw": 2}
SELECTED = FRAMED | {"ec": "#111111"}
"""On colors that have a red of their own."""
BROKEN = {"ls": (0, (2, 1))}
RUN_COLORS = [sns.color_palette("colorblind")[i] for i in (0, 1, 2, 3, 4, 5, 6, 9)]
"""Of the runs of a panel, in their order: the same in panels of few and of many. Without gray, and a pale yellow."""
_FAILED, _FRAMED, _BROKEN = "_failed", "_framed", "_broken"
SCORES = Normalize(CHANCE - 1, 1 - CHANCE)
"""Colors of search scores: from where ablation helps the target as much as it can to where it spares all else."""


def gallery(figure: Figure | SubFigure, rows: Mapping[str, np.ndarray], *, odd: int = 3) -> Figure | SubFigure:
    """Odd-one-out examples as in Figures 1, 3 and 13-15: a title and four cells a row, the odd one framed.

    rows: title -> uint8 [4, 3, H, W]; odd: the column of the odd one. Raises ValueError for cells of another shape.
    """
    if isinstance(figure, Figure):
        figure.set_layout_engine("compressed")
    grid = figure.subplots(len(rows), 4, squeeze=False)
    for axes, (title, cells) in zip(grid, rows.items(), strict=True):
        cells = np.asarray(cells)
        if cells.ndim != 4 or cells.shape[:2] != (4, 3) or cells.dtype != np.uint8:
            raise ValueError(f"row '{title}' is {cells.dtype} {list(cells.shape)}; give uint8 [4, 3, height, width]")
        for column, (ax, image) in enumerate(zip(axes, cells, strict=True)):
            cell(ax, image, framed=column == odd)
        axes[0].set_ylabel(title, rotation=0, ha="right", va="center", labelpad=6)
    return figure


def cell(ax: Axes, image: np.ndarray, *, framed: bool) -> None:
    """One image, uint8 [3, H, W]; a framed one breaks the rule."""
    ax.imshow(image.transpose(1, 2, 0))
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=CONDITIONS["ablated"].color if framed else "#c4c4c4", lw=2 if framed else 0.6)


def learning_curves(axes: Sequence[Axes], history: pd.DataFrame, *, run: str = "run") -> Sequence[Axes]:
    """Loss (first axes: training dashed, validation solid) and validation accuracy (second) of each run.

    axes: two; history: one row per run and epoch with columns `run`, `epoch` (from 0), `train_loss`,
    `validation_loss` (nats), `validation_accuracy`. Dotted: the smallest loss possible, and chance and 90% accuracy.
    A single epoch is a point.
    """
    losses, accuracies = axes
    names = list(dict.fromkeys(history[run]))
    colors = RUN_COLORS[: len(names)] if len(names) <= len(RUN_COLORS) else sns.color_palette("husl", len(names))
    for name, color in zip(names, colors, strict=True):
        curve = history[history[run] == name].sort_values("epoch")
        epochs, look = curve["epoch"] + 1, {"color": color, "marker": "o" if len(curve) == 1 else None, "ms": 4}
        losses.plot(epochs, curve["train_loss"], ls=(0, (3, 1.5)), lw=0.9, alpha=0.8, mfc="white", **look)
        losses.plot(epochs, curve["validation_loss"], **look)
        accuracies.plot(epochs, curve["validation_accuracy"], label=name, **look)
    losses.axhline(MINIMUM_LOSS, color="0.45", ls=":", lw=0.9, zorder=0)
    for level in (CHANCE, LEARNED):
        accuracies.axhline(level, color="0.45", ls=":", lw=0.9, zorder=0)
    losses.set(xlabel="epoch", ylabel="loss (nats)", yscale="log")
    losses.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    losses.yaxis.set_major_formatter("{x:g}")
    losses.yaxis.set_minor_formatter("")
    accuracies.set(xlabel="epoch", ylabel="validation accuracy", ylim=(0.15, 1.03))
    look = {"handlelength": 1.2, "labelspacing": 0.2, "columnspacing": 1.0}
    look |= {"loc": "lower right", "bbox_to_anchor": (1.0, 0.12)}
    if len(names) <= 6:
        accuracies.legend(ncols=1 if len(names) <= 3 else 2, **look)
    else:  # what they have in common once, above the rest
        common = commonprefix(list(map(str, names)))
        rest = [str(name).removeprefix(common) for name in names]
        handles = accuracies.get_legend_handles_labels()[0]
        accuracies.legend(handles, rest, title=common.strip() or None, ncols=4, **look)
    for ax in axes:
        ax.set_xlim(*np.clip(ax.get_xlim(), (-np.inf, 1.5), (0.5, np.inf)))  # a single epoch has room, too
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return axes


def learning_legend(figure: Figure) -> Figure:
    """The legend of the line styles of `learning_curves`, once for all panels, below the figure."""
    handles = [Line2D([], [], color="0.3", label="validation"),
               Line2D([], [], color="0.3", ls=(0, (3, 1.5)), lw=0.9, label="training"),
               Line2D([], [], color="0.45", ls=":", lw=0.9,
                      label="smallest loss possible; chance and 90%")]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def search_heatmap(ax: Axes, search: pd.DataFrame, *, explain: bool = True) -> Axes:
    """The mask search of one base model and subroutine (appendix C): a score per setting, the winner framed.

    search: one row per setting with columns `start`, `mask_init`, `learning_rate`, `score`, `own_task_accuracy`.
    Settings whose subnetwork is below 90% on its own task are gray and hatched; where all are, the frame is broken.
    Ties go to the first row, as in the search. explain: draw the color bar and the legend; panels of one figure need
    them once (`search_legend`). Raises ValueError if a setting occurs twice: then it is more than one search.
    """
    if search.duplicated(["learning_rate", "mask_init", "start"]).any():
        raise ValueError("search has several rows for one setting; select one base model, subroutine and seed")
    settings = [_setting(*pair) for pair in zip(search["learning_rate"], search["mask_init"], strict=True)]
    points = search.assign(row=settings, column=search["start"].map(_readable))
    rows, columns = list(points["row"].unique()), list(points["column"].unique())
    scores = points.pivot(index="row", columns="column", values="score").loc[rows, columns]
    own_task = points.pivot(index="row", columns="column", values="own_task_accuracy").loc[rows, columns]
    failed = own_task < LEARNED  # no accuracy, because training diverged or was stopped, stays blank
    labels = scores.map(lambda score: f"{score:.2f}".replace("-", "\N{MINUS SIGN}"))
    sns.heatmap(scores, ax=ax, mask=failed, annot=labels, fmt="", cmap="RdBu", vmin=SCORES.vmin, vmax=SCORES.vmax,
                linewidths=1, annot_kws={"size": 7.5}, cbar=explain, cbar_kws={"label": "score"})  # fmt: skip
    for row, column in np.argwhere(failed.to_numpy()):
        ax.add_patch(Rectangle((column + 0.02, row + 0.02), 0.96, 0.96, label=_FAILED, **HATCHED))
    winner = points.loc[points["score"].fillna(-1).idxmax()]
    place = (columns.index(winner["column"]), rows.index(winner["row"]))
    kind = SELECTED | (BROKEN | {"label": _BROKEN} if failed.to_numpy().all() else {"label": _FRAMED})
    ax.add_patch(Rectangle(place, 1, 1, zorder=3, clip_on=False, **kind))
    ax.set(xlabel="masking starts at", ylabel="learning rate,\ninitial value")
    ax.tick_params(length=0, axis="both")
    ax.tick_params(axis="y", rotation=0)
    if explain:
        ax.legend(
            handles=_search_handles([ax]), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2
        )
    return ax


def search_legend(figure: Figure, axes: Sequence[Axes]) -> Figure:
    """The legend of `search_heatmap`, of what the panels show, and its color bar, once for all of them."""
    figure.legend(handles=_search_handles(axes), loc="outside lower center", ncols=3)
    figure.colorbar(ScalarMappable(SCORES, "RdBu"), ax=list(axes), label="score", aspect=30, fraction=0.02, pad=0.01)
    return figure


def _search_handles(axes: Sequence[Axes]) -> list[Patch]:
    """Only what one of the panels has: a frame is not solid and broken at once, nor has every search failures."""
    looks = {
        _FAILED: ("own task below 90%", HATCHED),
        _FRAMED: ("selected", SELECTED),
        _BROKEN: ("selected, though none reaches 90%", SELECTED | BROKEN),
    }
    return [Patch(label=label, **look) for name, (label, look) in looks.items() if is_drawn(axes, name)]


def _setting(learning_rate: float, mask_init: float) -> str:
    return f"{learning_rate:g}, {mask_init:g}".replace(" -", " \N{MINUS SIGN}")


def annealing(
    axes: Sequence[Axes], trace: pd.DataFrame, histograms: pd.DataFrame, *, epochs: Sequence[int] | None = None
) -> Sequence[Axes]:
    """One mask hardening: temperature and density over epochs (left), its soft values at a few epochs (right).

    axes: two; trace: one row an epoch (from 0) with `epoch`, `beta` and `density`, the share of weights that the hard
    mask keeps; histograms: one row an epoch with `epoch` and `bin_00`, `bin_01`, ..., the shares of sigma(beta s) in
    equal bins of [0, 1]; epochs: those to draw, by default five from first to last. Raises ValueError for an epoch that
    is not there.
    """
    left, right = axes
    _beta_and_density(left, trace)
    shares = histograms.set_index("epoch").filter(regex=r"^bin_\d+$")
    chosen = shares.index[np.linspace(0, len(shares) - 1, 5).round().astype(int)] if epochs is None else epochs
    missing = [epoch for epoch in chosen if epoch not in shares.index]
    if missing:
        raise ValueError(f"histograms have no epoch {missing[0]}; they have {shares.index.min()}-{shares.index.max()}")
    chosen = list(dict.fromkeys(chosen))
    edges = np.linspace(0, 1, shares.shape[1] + 1)
    for epoch, color in zip(chosen, sns.color_palette("viridis_r", len(chosen)), strict=True):
        drawable = shares.loc[epoch].clip(lower=1e-12)  # a logarithmic axis has no zero
        right.stairs(drawable, edges, color=color, lw=1.3, label=str(epoch + 1), baseline=None)
    smallest = shares.loc[chosen].where(shares > 0).min(axis=None)
    right.set(xlabel="soft mask $\\sigma(\\beta s)$", ylabel="share of weights", yscale="log", ylim=(smallest / 2, 2))
    right.legend(title="epoch", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def _beta_and_density(ax: Axes, trace: pd.DataFrame) -> None:
    """beta on a logarithmic axis at the left, density on its own axis at the right, each axis in its curve's color."""
    beta, density = "#7a4a9c", "#0a7f5a"
    twin = ax.twinx()
    ax.plot(trace["epoch"] + 1, trace["beta"], color=beta, ls=(0, (4, 1.5)))
    twin.plot(trace["epoch"] + 1, 100 * trace["density"], color=density)
    ax.set(xlabel="epoch", yscale="log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_ylabel("inverse temperature $\\beta$", color=beta)
    twin.set_ylabel("weights kept (%)", color=density)
    twin.set_ylim(0, None)
    twin.spines["right"].set_visible(True)
    ax.tick_params(axis="y", colors=beta, which="both")
    twin.tick_params(axis="y", colors=density)


def sparsity(ax: Axes, table: pd.DataFrame, *, by: Sequence[str] = ("task", "number", "subroutine")) -> Axes:
    """Share of the masked weights that each subnetwork keeps, ours and the paper's, on a logarithmic axis.

    table: from `report.compare(..., value="density")`, one row per subnetwork with columns `by`, `ours`, `ours_low`,
    `ours_high`, `paper`, `paper_sd` as fractions. Whiskers that leave the axis end in an arrowhead. Where two models
    would have the same label, a column `model` tells them apart.
    """
    if "model" in table and table[list(by)].duplicated().any():
        by = ("model", *by)
    places = np.arange(len(table))
    percent = 100 * table[["ours", "ours_low", "ours_high", "paper", "paper_sd"]].astype(float)
    means = percent[["ours", "paper"]].to_numpy()
    floor = np.nanmin(means[means > 0]) / 3
    bands = {"ours": (percent["ours_low"], percent["ours_high"]),
             "paper": (percent["paper"] - percent["paper_sd"], percent["paper"] + percent["paper_sd"])}  # fmt: skip
    for name, (low, high), shift in zip(bands, bands.values(), (-0.16, 0.16), strict=True):
        color, marker, label = CONDITIONS[name]
        ax.hlines(places + shift, low.clip(lower=floor), high.clip(lower=floor, upper=100), color=color, lw=1)
        cut_marks(ax, places + shift, low, high, color, limits=(floor, 100), across=True)
        fill = "white" if name == "paper" else color
        ax.plot(percent[name], places + shift, marker, ms=4.5, mfc=fill, mec=color, label=label, ls="none")
    ax.set_yticks(places, [" · ".join(filter(None, map(str, row))) for row in table[list(by)].itertuples(index=False)])
    ax.set(xlabel="weights kept (%)", xscale="log", xlim=(floor, 130), ylim=(len(table) - 0.5, -0.5))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.grid(axis="x", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    handles = [*ax.get_legend_handles_labels()[0], *cut_handle([ax], "<")]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return ax


def step_times(ax: Axes, times: pd.DataFrame) -> Axes:
    """Milliseconds of a step in one model: a bar for each precision, grouped by what is trained, which is all weights
    or masks from a stage on."""
    precisions = list(times["precision"].unique())
    colors = dict(zip(precisions, ["#9a9a9a", "#0069a8", "#111111"], strict=False))
    sns.barplot(times, x="ms", y="trained", hue="precision", palette=colors, ax=ax, legend=False, width=0.7)
    for container, precision in zip(ax.containers, precisions, strict=True):
        container.set_label(precision)
        ax.bar_label(container, fmt="%.0f", padding=2, fontsize=7)
    labels = [label.get_text() for label in ax.get_yticklabels()]  # a stage is one word, all weights are several
    ax.set_yticks(ax.get_yticks(), [name if " " in name else f"masks from {_readable(name)} on" for name in labels])
    ax.set(xlabel="ms a step, median", ylabel="")
    ax.margins(x=0.14)
    ax.tick_params(axis="y", length=0)
    return ax


def _readable(stage: str) -> str:
    return str(stage).replace("_", " ")
