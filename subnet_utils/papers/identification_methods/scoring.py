"""How near a method comes to a known truth: of its ranking, of its mask, and of what the mask does."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from subnet_utils.core.messages import nearest
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.recovery import mask_scores, ranking_scores
from subnet_utils.papers.identification_methods.known_truth import Planted
from subnet_utils.tasks.modular_tasks import accuracy


def score_method(planted: Planted, found: Mapping[str, Discovery]) -> list[dict[str, Any]]:
    """What a method has found in a network with known truth, one row for each subtask that it was given.

    found: subtask -> a `Discovery`, or anything with `subnetwork` and `scores`; scores are None without a ranking. A
    row has `subtask`; `density`; accuracy on the `own` and the `other` subtask of the mask alone, and of the network
    without it (`own_without`, `other_without`; of several other subtasks the mean); what `mask_scores` says; and what
    `ranking_scores` says where there are scores. Nothing is trained.
    Raises ValueError and WrongNetwork as these do, and for an unknown subtask.
    """
    if unknown := sorted(found.keys() - planted.truth.keys()):
        raise ValueError(f"no subtask '{unknown[0]}' is planted; {nearest(unknown[0], planted.truth)}")
    return [_row(planted, name, one) for name, one in found.items()]


def _row(planted: Planted, name: str, found: Discovery) -> dict[str, Any]:
    truth, mask = planted.truth[name], found.subnetwork
    row = {"subtask": name, "density": mask.density}
    for suffix, part in (("", mask), ("_without", ~mask)):
        network = part.apply(planted.model)
        accuracies = {task: accuracy(network, items) for task, items in planted.tasks.items()}
        own = accuracies.pop(name)
        row |= {f"own{suffix}": own, f"other{suffix}": float(np.mean(list(accuracies.values())))}
    row |= mask_scores(mask, truth) | {"base_rate": truth.density}
    return row | (ranking_scores(found.scores, truth) if found.scores is not None else {})
