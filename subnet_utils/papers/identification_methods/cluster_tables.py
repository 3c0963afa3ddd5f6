"""Tables on clusters of units: are they there, what do they do, and do they coincide with masks?"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step, make_all
from subnet_utils.masks.specialization import fisher
from subnet_utils.papers.identification_methods.cluster_steps import BestCluster, Cut, Lesions, clustered
from subnet_utils.papers.identification_methods.method_steps import Inspected


def made(lab: Lab, found: Sequence[Inspected]) -> list[str]:
    """Make all on clusters side by side, and return the keys."""
    return [one.key for one in make_all(lab, [step for one in found for _, step in clustered(one)], "clusters")]


def _steps(found: Sequence[Inspected], kind: type[Step]) -> list[tuple[dict[str, Any], Step]]:
    return [(about, step) for one in found for about, step in clustered(one) if type(step) is kind]


def cuts(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """Normalized cuts beside those of shuffled networks (mean, sd): a row a network and number of clusters."""
    table = pd.DataFrame(about | step.result(lab) for about, step in _steps(found, Cut))
    return table.assign(z=(table["n_cut"] - table["shuffled"]) / table["sd"].where(table["sd"] > 0))


def beside_masks(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """IoU of each mask with the cluster that fits best, and with the best of random clusters: means over functions."""
    table = pd.DataFrame(about | step.result(lab) for about, step in _steps(found, BestCluster))
    by = ["model", "seed", "kind", "clusters", "method"]
    return table.groupby(by, sort=False)[["iou", "random_iou", "p"]].mean().reset_index()


def lesions(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """p-values over all clusters of a network: of means (important) and of ranges (specialized).

    Columns model, seed, kind, clusters, lesions; mean_fisher, mean_p_max, range_fisher, range_p_max.
    """
    rows = []
    for about, step in _steps(found, Lesions):
        table = step.make(lab).table("lesions")
        row = about | {"lesions": len(table)}
        for name in ("mean", "range"):
            row |= {f"{name}_fisher": fisher(table[f"{name}_p"]), f"{name}_p_max": table[f"{name}_p_max"].min()}
        rows.append(row)
    return pd.DataFrame(rows)
