"""Tables on clusters of units: are they there, what do they do, and do they coincide with masks?"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step, make_all
from subnet_utils.masks.specialization import fisher
from subnet_utils.papers.identification_methods.cluster_steps import BestCluster, Cut, Lesions, clustered, of_pictures
from subnet_utils.papers.identification_methods.method_steps import Inspected


def _steps(lab: Lab, found: Sequence[Inspected], kind: type[Step]) -> list[tuple[dict[str, Any], Step]]:
    """Every step of a kind, finished, with what it is about."""
    every = [*(pair for one in found for pair in clustered(one)), *of_pictures(lab)]
    own = [(about, step) for about, step in every if isinstance(step, kind)]
    make_all(lab, [step for _, step in own], "clusters")
    return own


def cuts(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """Normalized cuts beside those of shuffled networks (mean, sd): a row a network and number of clusters.

    accuracy: of the network, mean over its functions; zeros: whether weights that are 0 were moved by shuffling.
    """
    rows = []
    for about, step in _steps(lab, found, Cut):
        accuracies = pd.Series(step.network.result(lab)).filter(like="accuracy on").astype(float)
        rows.append(about | {"accuracy": accuracies.mean()} | step.result(lab))
    table = pd.DataFrame(rows)
    return table.assign(z=(table["n_cut"] - table["shuffled"]) / table["sd"].where(table["sd"] > 0))


def compared_with_masks(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """IoU of each mask with the cluster that fits best, and with the best of random clusters: means over functions."""
    table = pd.DataFrame(about | step.result(lab) for about, step in _steps(lab, found, BestCluster))
    by = ["model", "seed", "kind", "clusters", "method"]
    return table.groupby(by, sort=False)[["iou", "random_iou", "p"]].mean().reset_index()


def lesions(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """p-values over all clusters of a network: of means (important) and of ranges (specialized).

    Columns model, seed, kind, clusters, lesions; mean_fisher, mean_p_max, range_fisher, range_p_max.
    """
    rows = []
    for about, step in _steps(lab, found, Lesions):
        table = step.make(lab).table("lesions")
        row = about | {"lesions": len(table)}
        for name in ("mean", "range"):
            row |= {f"{name}_fisher": fisher(table[f"{name}_p"]), f"{name}_p_max": table[f"{name}_p_max"].min()}
        rows.append(row)
    return pd.DataFrame(rows)
