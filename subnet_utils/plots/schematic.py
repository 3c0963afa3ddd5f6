"""The method in one picture: train a network, find the weights that do one job, cut them out, test what is left. And a
row of boxes for the method of each notebook (`steps`), and masks that are drawn anew in every step (`gumbel_sigmoid`).

`python -m subnet_utils.plots.schematic` draws `figures/method.png`. Its bars show what is expected of a modular network
(*Break It Down*, section 3), not what was measured.
"""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from subnet_utils.core.sections import ROOT
from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.methods import GumbelSigmoid
from subnet_utils.plots.layout import grid
from subnet_utils.plots.style import BLACK, CHANCE_LINE, CONDITIONS, style

LAYERS = (4, 6, 6, 3)
"""Units of the network that is drawn."""
CHOSEN = ((0, 1, 2, 3), (0, 2, 3), (1, 2, 4), (0, 1, 2))
"""Units between which the mask keeps weights, by layer."""
KEPT, CHANCE, RIGHT = 0.7, 0.25, 0.97
"""Share of the weights between chosen units that the mask keeps, and heights of the bars."""
WIDTH, HEIGHT = 7.2, 2.75
"""Of the figure, inches. All places below are in inches."""
BLUE, RED, PALE = CONDITIONS["subnetwork"].color, CONDITIONS["ablated"].color, "0.8"

Edge = tuple[int, int, int]
"""A weight: layer, unit in it, unit in the next one."""


def edges() -> tuple[list[Edge], list[Edge]]:
    """The weights that the mask keeps, and all others."""
    random = np.random.default_rng(4)
    every = [(layer, i, j) for layer, sizes in enumerate(itertools.pairwise(LAYERS)) for i, j in np.ndindex(sizes)]
    kept = [
        (layer, i, j) for layer, i, j in every
        if i in CHOSEN[layer] and j in CHOSEN[layer + 1] and random.random() < KEPT
    ]  # fmt: skip
    return kept, [edge for edge in every if edge not in kept]


def method() -> Figure:
    """The four steps of the method, from left to right."""
    figure = plt.figure(figsize=(WIDTH, HEIGHT), layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT), aspect="equal")
    ax.set_axis_off()
    kept, others = edges()
    _step(ax, 0.85, "1  Train", "a network learns a task\nthat needs A and B")
    _network(ax, 0.85, 1.4, {"0.45": kept + others})
    _step(ax, 2.75, "2  Find", "weights $w$ are frozen; a mask $m$\nlearns to keep the few that do A")
    _network(ax, 2.75, 1.4, {PALE: others, BLUE: kept})
    ax.text(2.75, 0.42, r"$\min_m\ \mathrm{loss}_A(w \odot m) + \lambda \sum m$", ha="center", size=8)
    _step(ax, 4.62, "3  Cut out", "")
    _part(ax, 1.82, kept, BLUE, r"subnetwork  $w \odot m$", (RIGHT, CHANCE), "does A alone")
    _part(ax, 0.66, others, RED, r"ablated network  $w \odot (1 - m)$", (CHANCE, RIGHT), "has lost A, keeps B")
    _step(ax, 6.35, "4  Test", "")
    for start, end in (((1.5, 1.4), (2.05, 1.4)), ((3.42, 1.5), (3.95, 1.75)), ((3.42, 1.3), (3.95, 0.85)),
                       ((5.3, 1.82), (5.75, 1.82)), ((5.3, 0.66), (5.75, 0.66))):  # fmt: skip
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3", "lw": 1})
    return figure


BOX, GAP, TALL = 1.5, 0.3, 0.8
"""Width of a box, room for an arrow, height of the figure, inches."""


def steps(*each: Sequence[str]) -> Figure:
    """A method as boxes from left to right. each: title, text, and the condition whose color the box has, if any."""
    width = len(each) * (BOX + GAP) - GAP
    figure = plt.figure(figsize=(width + 0.1, TALL), dpi=150, layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-0.05, width + 0.05), ylim=(0, TALL))
    ax.set_axis_off()
    for i, (title, text, *condition) in enumerate(each):
        color = CONDITIONS[condition[0]].color if condition else "0.3"
        left, middle = i * (BOX + GAP), i * (BOX + GAP) + BOX / 2
        ax.add_patch(
            FancyBboxPatch((left + 0.06, 0.08), BOX - 0.12, TALL - 0.16, "round,pad=0.06", fc="white", ec=color)
        )
        ax.text(middle, TALL - 0.12, f"{i + 1}  {title}", ha="center", va="top", size=9, weight="bold", color=color)
        ax.text(middle, TALL - 0.36, text, ha="center", va="top", size=7.5, color="0.25", linespacing=1.3)
        if i:
            arrow = {"arrowstyle": "-|>", "color": "0.3", "lw": 1}
            ax.annotate("", (left, TALL / 2), (left - GAP, TALL / 2), arrowprops=arrow)
    return figure


def gumbel_sigmoid(*, seed: int = 0) -> Figure:
    """Masks by the Gumbel-sigmoid (Csordas et al. 2021, section 2), computed for 8 by 8 logits: a batch in four parts,
    a draw for each, what goes forward and what the gradient sees (straight-through), and the mask at the end."""
    generator, found = generator_for("picture", seed), GumbelSigmoid()
    logits = {"w": 2.5 * torch.randn(8, 8, generator=generator)}
    draws = [found.soft(logits, 0, generator)["w"].detach() for _ in range(4)]
    batch, noisy = torch.arange(8).div(8).repeat(8, 1).T.floor_divide(0.25) / 3, torch.linspace(-5, 5, 200)
    pictures = [batch, found.expected(logits["w"]), *draws, None, found.hard(logits["w"]).float()]
    titles = ["a batch in 4 parts", r"keep with $\sigma(l)$", *(f"part {i + 1}: a draw" for i in range(4)),
              r"forward $b$, backward $s$", "at the end: $l > 0$"]  # fmt: skip
    figure, axes = grid(8, width=1.4, height=1.2, across=4, margin=0.4)
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.set_title(title, fontsize=7.5, weight="normal")
        if picture is None:
            ax.plot(noisy, (noisy > 0).float(), color=BLACK)
            ax.plot(noisy, noisy.sigmoid(), "--", color=BLUE)
            ax.set_xlabel("$l$ + noise", fontsize=7)
        else:
            ax.imshow(picture.numpy(), cmap="Blues", vmin=0, vmax=1.2)
        ax.set(xticks=[], yticks=[])
    kept, expected = torch.stack(draws).mean(), found.expected(logits["w"]).mean()
    figure.supxlabel(f"The four draws keep {kept:.0%} of the weights, σ(l) says {expected:.0%}.", fontsize=7.5)
    return figure


def _step(ax: Axes, x: float, title: str, text: str) -> None:
    """The head of a step, and what happens in it."""
    ax.text(x, HEIGHT - 0.12, title, ha="center", va="top", size=9.5, weight="bold", color=BLACK)
    ax.text(x, HEIGHT - 0.32, text, ha="center", va="top", size=7.5, color="0.25", linespacing=1.3)


def _network(ax: Axes, x: float, y: float, weights: dict[str, list[Edge]], height: float = 1.15) -> None:
    """A network in the middle of (x, y): weights by their color, and all units."""
    across = np.linspace(x - 0.55, x + 0.55, len(LAYERS))
    up = [y + height * (np.arange(size) - (size - 1) / 2) / max(LAYERS) for size in LAYERS]
    for color, lines in weights.items():
        for layer, i, j in lines:
            ax.plot(across[layer : layer + 2], (up[layer][i], up[layer + 1][j]), color=color,
                    lw=1.1 if color == BLUE else 0.6, solid_capstyle="round", zorder=1)  # fmt: skip
    for place, heights in zip(across, up, strict=True):
        ax.plot([place] * len(heights), heights, "o", ms=5 * height / 1.15, mfc="white", mec=BLACK, mew=0.7, zorder=2)


def _part(ax: Axes, y: float, weights: list[Edge], color: str, name: str, right: tuple, outcome: str) -> None:
    """A part of the network that is cut out, and its accuracy on both tests."""
    ax.text(4.62, y + 0.47, name, ha="center", size=7.5, color=color)
    _network(ax, 4.62, y, {color: weights}, height=0.85)
    bars = ax.inset_axes((5.95, y - 0.33, 0.8, 0.66), transform=ax.transData, ylim=(0, 1.05), yticks=[])
    bars.bar((0, 1), right, tick_label=("A", "B"), color=color, width=0.6)
    bars.axhline(CHANCE, **CHANCE_LINE)
    bars.text(1.5, CHANCE, "chance", va="center", size=6.5, color="0.45")
    bars.set_ylabel("accuracy", size=6.5, labelpad=2)
    bars.tick_params(length=0, labelsize=7.5)
    ax.text(6.35, y + 0.47, outcome, ha="center", size=7.5, color=color)


if __name__ == "__main__":
    style()
    method().savefig(ROOT / "figures" / "method.png", dpi=200)
