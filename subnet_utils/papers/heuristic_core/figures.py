"""Figures of *The Heuristic Core*, from its published numbers and from networks of our own.

Functions draw into the Axes that they are given and return it; those that lay out a grid of panels return its Figure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from subnet_utils.papers.heuristic_core.tables import SHORT
from subnet_utils.plots.layout import legend
from subnet_utils.tasks.sentence_pairs import ENTAILED, is_entailed

LOOKS = {"MNLI": ("#111111", "o"), "QQP": ("#111111", "s"), "in domain": ("#111111", "o"),
         "mismatched": ("#3d3d3d", "v"),
         "SO-Swap": ("#0069a8", "s"), "Prep": ("#7ebcf0", "^"), "PP-Subj": ("#2f8a2a", "D"),
         "Rel-Subj": ("#b0d250", "v"), "Embed-If": ("#d4301a", "P"), "After-If": ("#661732", "X"),
         "Embed-Verb": ("#f59420", "<"), "Adverb": ("#deae9a", ">"),
         "PAWS (adv.)": ("#a0379b", "X"), "PAWS (equivalent)": ("#c8c8c8", "p"),
         "Rel-Clause": ("#c8c8c8", "p"), "Embed-Since": ("#555555", "h"), "entailed": ("#9a9a9a", "d")}  # fmt: skip
"""Color and marker of every set: black in domain, blue lexical overlap, green subsequence, red constituent, gray
entailed, purple paraphrases. In lightness, too, they differ enough to be told apart in all common kinds of color
blindness."""
SETS = {short: name for name, short in SHORT.items()}
SUBCASE = re.compile("(lexical_overlap|subsequence|constituent)_[lsc][en]_(.+)")
"""HANS's name of a subcase, such as `lexical_overlap_ln_preposition`."""
HEURISTICS = {"lexical overlap": "SO-Swap", "subsequence": "PP-Subj", "constituent": "Embed-If"}
"""In the order of HANS's paper, and a subcase whose color stands for all."""
FEW = 5
"""As many sparsities or steps stand on the axis, each by itself."""
DOMAINS = {"in domain": ("#111111", "o"), "out of domain": ("#c8321e", "s"), "mixed": ("#7a5195", "^"),
           "balanced": ("#2f7d32", "D"), "entailed": ("#9a9a9a", "d"), "OOD-E": ("#7ebcf0", "v")}  # fmt: skip


def by_heuristic(draw: Callable[[Axes, pd.DataFrame], Axes], *tables: pd.DataFrame) -> Figure:
    """A panel for the sets of each heuristic and one for entailed ones, the set in domain in all; one legend below.

    draw: `over_sparsity` or `learning`; tables: what it takes, with a column name, one for each network. Titles have
    the name of the set in domain where there is one (MNLI, QQP).
    """
    panels = [panel for table in tables for panel in _panels(table)]
    figure, axes = plt.subplots(1, len(panels), figsize=(7.2, 2.5), sharey=True, squeeze=False)
    for ax, (title, rows) in zip(axes.flat, panels, strict=True):
        draw(ax, rows).set_title(title)
        ax.label_outer()
    legend(figure)
    return figure


def _panels(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and rows of each panel of one network."""
    inside = table["name"].isin(("MNLI", "QQP", "in domain", "mismatched"))
    task = "".join(f"{name}: " for name in table["name"][inside].unique() if name not in ("in domain", "mismatched"))
    titles = {name: _panel(name) for name in _in_order(table[~inside])}
    for title in dict.fromkeys(titles.values()):
        yield task + title, table[inside | (table["name"].map(titles) == title)]


def _in_order(table: pd.DataFrame) -> list[str]:
    """Names of the sets: those that have a look of their own, then others."""
    return sorted(table["name"].unique(), key=lambda name: [*LOOKS, name].index(name))


def _look(name: str) -> tuple[str, str]:
    return LOOKS.get(name, ("#7a5195", "*"))


def _answer(name: str) -> str:
    """What follows in all pairs of a set: `entailed`, `not entailed`, or nothing that would hold for all of them."""
    try:
        return "entailed" if is_entailed(name) == ENTAILED else "not entailed"
    except ValueError:  # the set in domain has both
        return ""


def _parts(name: str) -> tuple[str, str]:
    """Heuristic and kind of a subcase, to be read: `subsequence`, `PP on object`. Of another set '' and its name."""
    found = SUBCASE.fullmatch(name)
    parts = found.groups() if found else ("", name)
    return tuple(re.sub(r"\bobj\b", "object", part.replace("_", " ")) for part in parts)


def _panel(name: str) -> str:
    """The heuristic that a set defies, or that it is entailed. name: short or HANS's."""
    own = SETS.get(name, name)
    return "entailed" if "entailed" in (name, _answer(own)) else _parts(own)[0] or name


def dodge(positions: Iterable[float], count: int) -> np.ndarray:
    """A shift along the axis for each of `count` lines, over .15 of the smallest gap between neighboring places. To
    both sides, but to the right alone where a point would stand below 0: no sparsity or step is there."""
    if count == 1:
        return np.zeros(1)
    values = np.unique(list(positions))
    width = 0.15 * (np.diff(values).min() if len(values) > 1 else 1.0)
    return np.linspace(0, width, count) - (width / 2 if values[0] >= width / 2 else 0)


def along_steps(ax: Axes, steps: Iterable[int]) -> dict[int, float]:
    """Where each step of fine-tuning stands; the axis gets its label, and ticks where there are few.

    Up to `FEW` steps have a tick each and stand one beside the other, so that lines side by side have room; the label
    says so where that is not to scale. More are to scale, in thousands beyond 5000.
    """
    found = sorted(set(steps))
    if len(found) > FEW:
        unit = 1000 if found[-1] > 5000 else 1
        ax.set_xlabel(f"{'thousand ' if unit > 1 else ''}steps of fine-tuning")
        return {step: step / unit for step in found}
    positions = {step: float(i) for i, step in enumerate(found, start=1)}
    ax.set_xticks(list(positions.values()), [str(step) for step in found])
    scaled = len(set(np.diff(found))) <= 1
    ax.set(xlabel="steps of fine-tuning" + ("" if scaled else " (not to scale)"), xlim=(0.5, len(found) + 0.5))
    return positions


def with_range(ax: Axes, table: pd.DataFrame, looks: Mapping[str, tuple[str, str]]) -> None:
    """Means, joined by a thin line for each name, with bars from the smallest to the largest, side by side. table:
    columns name, x, mean, min, max; looks: color and marker of each name."""
    for (name, (color, marker)), shift in zip(looks.items(), dodge(table["x"], len(looks)), strict=True):
        rows = table[table["name"] == name].sort_values("x")
        ax.vlines(rows["x"] + shift, rows["min"], rows["max"], color=color, lw=0.9, alpha=0.7)
        ax.plot(rows["x"] + shift, rows["mean"], marker=marker, ms=3.6, mew=0, lw=0.7, color=color, label=name)


def grouped_bars(ax: Axes, table: pd.DataFrame, colors: Mapping[str, str]) -> None:
    """A group of bars for each row of a table, in the order and the colors of `colors`, whose keys are columns. A 0
    stands in the place of a bar that is too low to be seen."""
    width = 0.8 / len(colors)
    for i, (name, color) in enumerate(colors.items()):
        x = np.arange(len(table)) + (i - (len(colors) - 1) / 2) * width
        ax.bar(x, table[name], width * 0.92, color=color, lw=0, label=name)
        for place in x[table[name].round(2).to_numpy() == 0]:
            ax.annotate("0", (place, 0), xytext=(0, 1.5), textcoords="offset points", ha="center", fontsize=6.5)


def dots(ax: Axes, table: pd.DataFrame) -> Axes:
    """A column of dots, one a pruned network, for every evaluation set; the line is the full network (Figure 2).

    table: a row for each network and set with columns name, seed, accuracy, full. Only the first panel of a row has a
    label at its left; `legend` names dots and lines once.
    """
    names = table["name"].unique()
    for place, name in enumerate(names):
        rows = table[table["name"] == name].sort_values("seed")
        shift = np.linspace(-0.2, 0.2, len(rows))
        ax.plot(place + shift, rows["accuracy"], "o", ms=3.2, mew=0, alpha=0.75, color=_look(name)[0],
                label="pruned networks")  # fmt: skip
        ax.hlines(rows["full"].iloc[0], place - 0.36, place + 0.36, color="#111111", lw=1.2, label="full network")
    ax.set_xticks(range(len(names)), names)
    ax.set(xlim=(-0.6, len(names) - 0.4), ylim=(-0.03, 1.03))
    if ax.get_subplotspec().is_first_col():
        ax.set_ylabel("accuracy")
    return ax


def every_subcase(table: pd.DataFrame) -> Figure:
    """All evaluation sets, one a row, a panel for each sparsity (Figure 12). Line: the full network.

    table: as in `dots`, with columns set (HANS's names) and target_sparsity. In domain above, then the entailed sets,
    then the others, each by heuristic.
    """
    rows, sparsities = _subcase_rows(table["set"].unique()), sorted(table["target_sparsity"].unique())
    positions = {name: place for place, (name, _) in enumerate(rows) if name}
    figure, axes = plt.subplots(1, len(sparsities), figsize=(7.2, 0.9 + 0.16 * len(rows)), sharey=True, squeeze=False)
    for ax, sparsity in zip(axes.flat, sparsities, strict=True):
        own = table[table["target_sparsity"] == sparsity]
        place, parts = own["set"].map(positions), own["set"].map(_parts)
        colors = [_look(HEURISTICS.get(heuristic, "in domain"))[0] for heuristic, _ in parts]
        ax.hlines(place, 0, 1, color="0.92", lw=0.6, zorder=0, transform=ax.get_yaxis_transform())
        ax.scatter(own["accuracy"], place, s=9, lw=0, alpha=0.6, c=colors, label="pruned networks")
        ax.plot(own["full"], place, "|", ms=8.5, mew=1.2, color="#111111", label="full network")
        ax.set(title=f"{sparsity:.0%} sparsity", xlabel="accuracy", xlim=(-0.02, 1.02), ylim=(len(rows) - 0.4, -0.6))
        ax.tick_params(axis="y", length=0)
    axes[0, 0].set_yticks(range(len(rows)), [label for _, label in rows], fontsize=6.5)
    for tick, (name, _) in zip(axes[0, 0].get_yticklabels(), rows, strict=True):
        tick.set_fontweight("normal" if name else "bold")
    legend(figure)
    return figure


def _subcase_rows(names: Sequence[str]) -> list[tuple[str, str]]:
    """(set, label) of each row of `every_subcase` from above; a heading has the label alone."""
    order, rows = ["", *HEURISTICS], []
    for answer, right in (("", ""), ("entailed", "right"), ("not entailed", "wrong")):
        own = [(name, _subcase_label(name)) for name in names if _answer(name) == answer]
        own.sort(key=lambda row: (order.index(_parts(row[0])[0]), row[1]))
        rows += [("", f"{answer}: the heuristic is {right}")] * bool(own and answer) + own
    return rows


def _subcase_label(name: str) -> str:
    """`lexical overlap: subject-object swap (SO-Swap)`."""
    heuristic, kind = _parts(name)
    if not heuristic:
        return SHORT.get(name, name.replace("mnli-", "MNLI "))
    return f"{heuristic}: {kind}" + (f" ({SHORT[name]})" if name in SHORT else "")


def bars(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracies of a few pruned networks, a group of bars each (Figure 3)."""
    names, wide = _in_order(table), table.pivot_table(index="seed", columns="name", values="accuracy", sort=False)
    grouped_bars(ax, wide, {name: _look(name)[0] for name in names})
    ax.set_xticks(range(len(wide)), [f"seed {seed}" for seed in wide.index])
    ax.set(ylabel="accuracy", ylim=(0, 1.03))
    legend(ax, columns=len(names) if len(names) < 6 else -(-len(names) // 2), columnspacing=1,
           handlelength=1.2)  # fmt: skip
    return ax


def over_sparsity(ax: Axes, table: pd.DataFrame) -> Axes:
    """Mean accuracy over sparsity with the range of the seeds (Figure 4). The whole network, at 0%, has no range.

    table: a row for each sparsity and set with columns name, sparsity, mean, min, max. More than five sets are easier
    to read in panels (`by_heuristic`).
    """
    looks = {name: _look(name) for name in _in_order(table)}
    with_range(ax, table.assign(x=100 * table["sparsity"]), looks)
    ax.set(xlabel="sparsity (%)", ylabel="accuracy", ylim=(-0.03, 1.03))
    if table["sparsity"].nunique() <= FEW:
        ax.set_xticks(100 * table["sparsity"].unique())
    return ax


def training(
    axes: Sequence[Axes], sizes: pd.DataFrame, *, title: str = "", possible: Sequence[float] = ()
) -> Sequence[Axes]:
    """Accuracy of the full network (first axes) and effective size (second) while fine-tuning (Figure 6).

    sizes: from `published.mean_sizes`; title: of both axes. Bars: the range of the seeds; the full network has none.
    Dotted: the smallest size on the grid of sparsities; with the `possible` ones all of them.
    """
    looks = {domain: look for domain, look in DOMAINS.items() if (sizes["domain"] == domain).any()}
    columns = {"accuracy": ["accuracy"] * 3,
               "effective size (share of units)": ["effective_size", "size_min", "size_max"]}  # fmt: skip
    for ax, (label, triple) in zip(axes, columns.items(), strict=True):
        values = sizes[triple].set_axis(["mean", "min", "max"], axis=1)
        x = sizes["step"].map(along_steps(ax, sizes["step"]))
        with_range(ax, values.assign(name=sizes["domain"], x=x), looks)
        ax.set(ylabel=label, ylim=(-0.03, 1.06), title=title)
    label = "all sizes on the grid" if possible else "smallest size on the grid"
    for size in possible or [sizes["smallest_possible"].min()]:
        axes[1].axhline(size, color="0.45", ls=":", lw=0.9, zorder=0, label=label)
    return axes


def learning(ax: Axes, table: pd.DataFrame) -> Axes:
    """Accuracy on every set while the network is fine-tuned (Figure 10). table: columns name, step, accuracy.

    Not smoothed. More than a few sets hide each other and are easier to read in panels (`by_heuristic`). Of lines that
    coincide the markers tell, which stand at other steps for each.
    """
    names = _in_order(table)
    for i, name in enumerate(names):
        rows, (color, marker) = table[table["name"] == name].sort_values("step"), _look(name)
        every = (i / len(names) / 6, 1 / 6)  # of the panel's diagonal
        look = {"ms": 3.6, "mew": 0, "lw": 0.8, "markevery": every, "zorder": 3 if name == "in domain" else 2}
        ax.plot(rows["step"], rows["accuracy"], color=color, marker=marker, label=name, **look)
    ax.set(xlabel="steps of fine-tuning", ylabel="accuracy", ylim=(-0.03, 1.03))
    ax.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    return ax
