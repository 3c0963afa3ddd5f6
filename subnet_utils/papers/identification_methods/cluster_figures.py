"""Figures on clusters of units."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from subnet_utils.core.lab import Lab
from subnet_utils.masks.feature_vectors import ward
from subnet_utils.papers.identification_methods.cluster_steps import partition, vectors
from subnet_utils.papers.identification_methods.method_figures import named
from subnet_utils.papers.identification_methods.method_steps import Inspected
from subnet_utils.plots.dendrogram import dendrogram as tree

COLORS = {"+": "#0a7f5a", "*": "#7a4a9c", "alike": "0.75"}
"""Of a unit: the function whose mask keeps more of its incoming weights."""
MORE = 1.5
"""How many times as many weights one mask must keep as the other, to be said to keep more."""


def dendrogram(lab: Lab, one: Inspected) -> Figure:
    """The hidden units of a network by Ward's linkage; below, which function's mask keeps more of a unit's weights."""
    network, problem, count = one.network.load(lab), one.network.problem, one.settings.clusters.counts[0]
    found, features = partition(problem, network, "feature_vectors", count), vectors(problem, network)
    training = one.trained[0]
    kept = {name: one.identified(training, name).load(lab).masks for name in problem.functions}
    units = list(features.table.index)
    kinds = [_kind({name: int(masks[at][i].sum()) for name, masks in kept.items()}) for at, i in units]
    figure, ax = plt.subplots(figsize=(7, 2.7))
    tree(ax, ward(features), [int(found.labels[at][i]) for at, i in units], kinds, COLORS)
    figure.supxlabel(f"{len(kinds)} hidden units; masks by {named(training.masking.method)}", fontsize=7.5)
    return figure


def _kind(counts: dict[str, int]) -> str:
    (a, first), (b, second) = counts.items()
    return a if first > MORE * second else b if second > MORE * first else "alike"
