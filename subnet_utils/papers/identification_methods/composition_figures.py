"""Figures on compositions of subnetworks. Bars are means over seeds, dots are seeds."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.papers.identification_methods.method_figures import named
from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import log_axis, panels
from subnet_utils.plots.marks import OPEN
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, LEVEL

LEFT = {"target_left": "its function", "other_left": "the other function"}
COLORS = dict(zip(LEFT.values(), (CONDITIONS["ablated"].color, CONDITIONS["subnetwork"].color), strict=True))
LOOK = {"y": "accuracy", "ylabel": "accuracy", "ylim": (0, 1.02), "size": {"across": 3, "width": 2.4}}
SUPPORTS = {"change": "#0069a8", "random": "0.55"}
SUPPORT_NAMES = {"change": "those that change most", "random": "random ones"}
SUMMED = {"old": "old ones, summed", "new": "new ones, summed", "both": "both at once, summed"}
FUNCTIONS = {"a": "A's function", "b": "B's function"}
PARTS = dict(zip(FUNCTIONS.values(), ("#0a7f5a", "#7a4a9c"), strict=True))


def ablations(effect: pd.DataFrame, model: str) -> Figure:
    """What is left of both functions without A, without A - B, and without a random part of A as large as A - B.

    effect: from `composition_tables.effects`; a panel a method.
    """
    some = effect.assign(ablation="without\n" + effect["ablation"].replace("random part of A", "random part"))
    long = _by_method(some[some["model"] == model], ["ablation", "seed", "target"], LEFT)
    return bars(long, x="ablation", hue="of", colors=COLORS, **LOOK | {"ylabel": "accuracy that is left"})


def parts(table: pd.DataFrame, model: str) -> Figure:
    """What each part that is made of A and B does alone, with random weights of its size as a level.

    table: from `composition_tables.compositions`; a panel a method.
    """
    some = table[table["model"].eq(model) & table["part"].eq("alone") & table["within"].eq("")]
    long = _by_method(some.assign(drawn=some["random"] > 0), ["made_of", "seed", "drawn"], FUNCTIONS)
    means = long.groupby(["title", "made_of", "of", "seed", "drawn"], sort=False)["accuracy"].mean().unstack("drawn")
    means = means.rename(columns={False: "accuracy", True: "random weights"}).reset_index()
    return bars(means, x="made_of", hue="of", colors=PARTS, levels=["random weights"], **LOOK)


def _by_method(table: pd.DataFrame, about: list[str], columns: dict[str, str]) -> pd.DataFrame:
    """A row for each accuracy, a title for each method. columns: those of accuracies, and what they are of."""
    long = table.assign(title=table["method"].map(named)).melt(["title", *about], list(columns), "of", "accuracy")
    return long.assign(of=long["of"].map(columns))


def fine_tunings(table: pd.DataFrame, model: str) -> Figure:
    """Accuracy on old and new functions after sparse fine-tunings, by the share of the weights that may change.

    table: from `composition_tables.fine_tunings`. First the function that was learned, alone; then what the sum of both
    fine-tunings does: the old functions, the new ones, and where there is such a test, both new ones at once.
    """
    of_model = table[table["model"] == model]
    before, some = of_model[of_model["of"] == "nothing"], of_model[of_model["factor"] == 1.0]
    alone = some[some["of"].eq(some["function"])].assign(panel="learned alone")
    summed = some[some["of"].eq("sum")].assign(panel=lambda rows: rows["kind"].map(SUMMED))

    def draw(ax: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby(["support", "density"])["accuracy"].mean()
        seeds = rows.groupby(["support", "density", "seed"])["accuracy"].mean().reset_index(["density", "seed"])
        start = before[before["function"].isin(rows["function"])]["accuracy"].mean()
        ax.axhline(means["all"].item(), **LEVEL | {"color": BLACK, "label": "all weights may change"})
        ax.axhline(start, **CHANCE_LINE | {"label": "before"})
        for support, color in SUPPORTS.items():
            ax.plot(means[support], color=color, label=SUPPORT_NAMES[support])
            ax.plot("density", "accuracy", "o", data=seeds.loc[support], color=color, label="_seeds", **OPEN)
        ax.set(xlabel="share that may change", ylim=(-0.02, 1.02), ylabel="accuracy")
        log_axis(ax, means["random"].index, "{:.0%}")

    return panels(pd.concat([alone, summed]), "panel", draw, width=1.9, height=1.9, across=4)
