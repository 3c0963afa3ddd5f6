"""Figures of one network of the zoo that a reader changes by sliders, and that stand still where nobody reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython import display, get_ipython
from matplotlib.figure import Figure

from subnet_utils.masks.controls import random_like, random_part
from subnet_utils.masks.identify import MaskSteps, Task, identify
from subnet_utils.masks.overlap import common, expected_iou, iou
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down.figures.overlap import layer_order, short_weight
from subnet_utils.plots import bars, layout
from subnet_utils.plots.style import CONDITIONS
from subnet_utils.plots.weight_map import COLORS
from subnet_utils.report import readable
from subnet_utils.tasks.odd_one_out import CHANCE, subroutines_of
from subnet_utils.zoo import Entry


def show(draw: Callable[..., Figure], entry: Entry, caption: str, /, **positions: Sequence[Any]) -> None:
    """Show `draw(entry, **chosen)`, its caption, a slider over each range of positions and a menu of each list."""

    def drawn(**chosen: Any) -> Figure:
        figure = draw(entry, **chosen)
        plt.close(figure)  # or else the inline backend would draw it once more
        return figure

    if _is_read():
        from ipywidgets import SelectionSlider, interact  # takes a while to import

        look, ranges = {"continuous_update": False}, {name: at for name, at in positions.items() if isinstance(at, range)}
        interact(drawn, **positions | {name: SelectionSlider(options=at, **look) for name, at in ranges.items()})
    else:  # as under papermill: the first positions, so that every run gives the same
        display.display(drawn(**{name: at[0] for name, at in positions.items()}))
    readable.put_caption(caption)


def _is_read() -> bool:
    """Whether somebody is at the notebook: the request to run a cell says whether it may ask for input."""
    kernel = getattr(get_ipython(), "kernel", None)
    return kernel is not None and kernel.get_parent().get("content", {}).get("allow_stdin", False)


def taken_out(entry: Entry, *, subroutine: str, percent: int, draw: int) -> Figure:
    """Accuracies of a share of a subnetwork and of as many random weights, alone and taken out, on both tests."""
    share = random_part(entry.masks[subroutine], percent / 100, seed=draw)
    tests = dict.fromkeys(subroutines_of(entry.card["name"]), CHANCE)
    title = f"{percent}% of {subroutine}: {share.active:,} weights, draw {draw}"
    return _with_random(entry, share, tests, title, seed=draw)


def by_penalty(entry: Entry, *, function: str, power: int) -> Figure:
    """The same of a subnetwork that is found on the spot, with lambda = 10^power. function: a test of the entry."""
    inputs, targets = entry.tests[function]
    task, training = Task(inputs, targets), MaskSteps(steps=300)
    method = {"method": "continuous_sparsification", "l0": 10.0**power}
    found = identify(entry.network, task, training=training, **method).subnetwork
    tests = dict.fromkeys(entry.tests, 1 / len(targets.unique()))
    title = f"$\\lambda = 10^{{{power}}}$: {found.density:.0%} of the weights are kept for {function}"
    return _with_random(entry, found, tests, title, seed=0)


def _with_random(entry: Entry, kept: Subnetwork, tests: Mapping[str, float], title: str, *, seed: int) -> Figure:
    """Accuracies of a subnetwork and of as many random weights. tests: names, each with what chance gives."""
    drawn = random_like(kept, seed=seed)
    parts = [("alone", "subnetwork", kept), ("alone", "random", drawn)]
    parts += [("taken out", "ablated", ~kept), ("taken out", "random", ~drawn)]
    rows = [
        (where, CONDITIONS[look].label, f"Test {test}", entry.accuracy(entry.part(one), test), chance)
        for where, look, one in parts
        for test, chance in tests.items()
    ]
    table = pd.DataFrame(rows, columns=["title", "part", "test", "accuracy", "chance"])
    colors = {look.label: look.color for look in CONDITIONS.values()}
    axis = {"ylabel": "accuracy", "ylim": (0, 1.05)}
    figure = bars.bars(table, x="test", y="accuracy", hue="part", colors=colors, levels=["chance"], **axis)
    figure.suptitle(title, fontsize=8.5)
    return figure


def overlap(entry: Entry, *, first: str, second: str, layer: int) -> Figure:
    """Weights in one mask, in both, in the other, of the n-th layer that all masks cover: found, and by chance."""
    name = sorted(common([*entry.masks.values()]).masks, key=layer_order)[layer]
    masks = [entry.masks[one] for one in (first, second)]
    a, b = (one.masks[name] for one in masks)
    n, m, shared = (int(mask.sum()) for mask in (a, b, a & b))
    both = pd.Series({"by chance": n * m / a.numel(), "found": shared})
    counts = pd.DataFrame({first: n - both, "both": both, second: m - both})
    figure, ax = plt.subplots(figsize=(5.2, 1.5))
    counts.plot.barh(stacked=True, width=0.8, color=[COLORS[i] for i in (1, 3, 2)], ax=ax, xlabel="weights")
    found, chance = (each(masks)[name] for each in (iou, expected_iou))
    ax.set_title(f"layer {short_weight(name)}: IoU {found:.2f}, by chance {chance:.2f}", pad=20)
    layout.legend(ax, columns=3)
    return figure
