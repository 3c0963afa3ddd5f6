"""Figures on compositions of subnetworks. Bars are means over seeds, dots are seeds."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from subnet_utils.papers.identification_methods.method_figures import named
from subnet_utils.plots.bars import bars
from subnet_utils.plots.layout import panels
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, LEVEL

LEFT = {"target_left": "its function", "other_left": "the other function"}
COLORS = dict(zip(LEFT.values(), (CONDITIONS["ablated"].color, CONDITIONS["subnetwork"].color), strict=True))
SUPPORTS = {"change": "#0069a8", "random": "0.55"}
SUPPORT_NAMES = {"change": "those that change most", "random": "random ones"}
SUMMED = {"old": "old ones, summed", "new": "new ones, summed", "both": "both at once, summed"}
FUNCTIONS = {"a": "A's function", "b": "B's function"}
PARTS = dict(zip(FUNCTIONS.values(), ("#0a7f5a", "#7a4a9c"), strict=True))


def ablations(effect: pd.DataFrame, model: str) -> Figure:
    """What is left of both functions without A, without A - B, and without a random part of A as large as A - B.

    effect: from `composition_tables.effects`; a panel a method.
    """
    some = effect[effect["model"] == model]
    some = some.assign(title=some["method"].map(named), ablation=some["ablation"].replace("random part of A", "random"))
    long = some.melt(["title", "ablation", "seed", "target"], list(LEFT), "left", "accuracy")
    long["left"] = long["left"].map(LEFT)
    size = {"across": 3, "width": 2.4}
    axis = {"ylabel": "accuracy that is left", "ylim": (0, 1.02)}
    return bars(long, x="ablation", y="accuracy", hue="left", colors=COLORS, size=size, **axis)


def parts(table: pd.DataFrame, model: str) -> Figure:
    """What each part that is made of A and B does alone, with random weights of its size as a level.

    table: from `composition_tables.compositions`; a panel a method.
    """
    some = table[table["model"].eq(model) & table["part"].eq("alone") & table["within"].eq("")]
    some = some.assign(title=some["method"].map(named), drawn=some["random"] > 0)
    long = some.melt(["title", "made_of", "seed", "drawn"], list(FUNCTIONS), "function", "accuracy")
    long["function"] = long["function"].map(FUNCTIONS)
    by = ["title", "made_of", "function", "seed"]
    means = long.groupby([*by, "drawn"], sort=False)["accuracy"].mean().unstack("drawn").reset_index()
    means = means.rename(columns={False: "accuracy", True: "random weights"})
    size, axis = {"across": 3, "width": 2.4}, {"ylabel": "accuracy", "ylim": (0, 1.02)}
    return bars(
        means, x="made_of", y="accuracy", hue="function", colors=PARTS, levels=["random weights"], size=size, **axis
    )


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
        start = before[before["function"].isin(rows["function"])]["accuracy"].mean()
        ax.axhline(means["all"].item(), **LEVEL | {"color": BLACK, "label": "all weights may change"})
        ax.axhline(start, **CHANCE_LINE | {"label": "before"})
        for support, color in SUPPORTS.items():
            ax.plot(means[support], "o-", ms=4, color=color, label=SUPPORT_NAMES[support])
        ax.set(xscale="log", xlabel="share that may change", ylim=(-0.02, 1.02), ylabel="accuracy")
        shares = means["random"].index
        ax.set_xticks(shares, [f"{share:.0%}" for share in shares])
        ax.minorticks_off()

    return panels(pd.concat([alone, summed]), "panel", draw, width=1.9, height=1.9, across=4)
