"""Figures on compositions of subnetworks. Bars are means over seeds, dots are seeds."""

import pandas as pd
from matplotlib.figure import Figure

from subnet_utils.papers.identification_methods.method_figures import named
from subnet_utils.plots.bars import bars
from subnet_utils.plots.style import CONDITIONS

LEFT = {"target_left": "its function", "other_left": "the other function"}
COLORS = dict(zip(LEFT.values(), (CONDITIONS["ablated"].color, CONDITIONS["subnetwork"].color), strict=True))
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
    return bars(long, x="ablation", y="accuracy", hue="left", colors=COLORS, size=size, ylim=(0, 1.02))


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
