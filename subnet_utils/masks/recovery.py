"""How near a ranking of weights, or a mask, comes to a known truth.

A ranking is a score for every weight. It is compared with the truth as a test is with a disease: the area under the
receiver operating characteristic (AUROC) and average precision, over all maskable weights at once. Weights with equal
scores count together: no result depends on their order.
"""

from collections.abc import Mapping

import numpy as np
from scipy.stats import mannwhitneyu
from torch import Tensor

from subnet_utils.masks.subnetwork import Subnetwork


def ranking_scores(scores: Mapping[str, Tensor], truth: Subnetwork) -> dict[str, float]:
    """AUROC, average precision, precision among as many weights as the truth has, and the base rate.

    Of average precision, precision at the size of the truth and base rate a random ranking has the same, of AUROC one
    half. Where the size falls among equal scores, the precision is that of a random choice among these. Raises
    ValueError for a score that is not a number, for other weights than those of the truth, and for a truth that has
    none or all of them.

    >>> import torch
    >>> truth = Subnetwork({"w": torch.tensor([True, False, True, False])}, network="n")
    >>> found = ranking_scores({"w": torch.tensor([4.0, 3.0, 2.0, 1.0])}, truth)
    >>> found["auroc"], found["precision_at_size"], found["base_rate"]
    (0.75, 0.5, 0.5)
    """
    values, true = _flat(scores, truth)
    hits, kept = _steps(values, true)
    return {
        "auroc": float(mannwhitneyu(values[true], values[~true]).statistic / (true.sum() * (~true).sum())),
        "average_precision": float(np.sum(np.diff(hits) / hits[-1] * (hits[1:] / kept[1:]))),
        "precision_at_size": float(np.interp(hits[-1], kept, hits) / hits[-1]),
        "base_rate": float(true.mean()),
    }


def _steps(values: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the truth, and all weights, at or above every score there is, from above; first 0 and 0."""
    _, groups = np.unique(-values, return_inverse=True)
    hits, kept = np.bincount(groups, weights=true), np.bincount(groups)
    return tuple(np.concatenate([[0.0], np.cumsum(counts)]) for counts in (hits, kept))


def _flat(scores: Mapping[str, Tensor], truth: Subnetwork) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truth of all weights, in the same order."""
    if missing := sorted(scores.keys() ^ truth.masks.keys()):
        raise ValueError(f"scores and truth do not both have '{missing[0]}'; score all maskable weights and no others")
    names = sorted(scores)
    for name in names:
        if scores[name].shape != truth.masks[name].shape:
            shapes = tuple(scores[name].shape), tuple(truth.masks[name].shape)
            raise ValueError(f"scores of '{name}' have shape {shapes[0]}, its weights {shapes[1]}; give one for each")
    values = np.concatenate([scores[name].detach().cpu().double().numpy().ravel() for name in names])
    true = np.concatenate([truth.masks[name].numpy().ravel() for name in names])
    if np.isnan(values).any():
        raise ValueError("a score is not a number; look at the method")
    if not 0 < true.sum() < len(true):
        raise ValueError("the truth has none or all of the weights; there is nothing to rank")
    return values, true


def mask_scores(found: Subnetwork, truth: Subnetwork) -> dict[str, float]:
    """Precision and recall of a mask, and its IoU with the truth. An empty mask has a precision of NaN.

    Raises WrongNetwork for a mask of another network or of other weights, ValueError for a truth without weights.

    >>> import torch
    >>> true, kept = torch.tensor([[True, True, False], [True, False, False]])
    >>> mask_scores(Subnetwork({"w": kept}, "n"), truth=Subnetwork({"w": true}, "n"))
    {'precision': 1.0, 'recall': 0.5, 'iou': 0.5}
    """
    if not truth.active:
        raise ValueError("the truth has none of the weights; there is nothing to find")
    both, either = (found & truth).active, (found | truth).active
    precision = both / found.active if found.active else float("nan")
    return {"precision": precision, "recall": both / truth.active, "iou": both / either}
