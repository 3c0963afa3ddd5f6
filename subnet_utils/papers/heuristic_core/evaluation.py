"""Accuracies of a classifier of sentence pairs on all sets of a study."""

import torch
from torch import Tensor, nn

from subnet_utils.models.frozen import full_precision
from subnet_utils.papers.heuristic_core.pair_networks import Encoded
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN, PairSets
from subnet_utils.papers.heuristic_core.step_training import on_device
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import two_classes

CHUNK = 256
"""Pairs that are judged at once."""


@torch.no_grad()
def logits_of(network: nn.Module, data: Encoded) -> Tensor:
    """Logits [n, classes] of all pairs; those of one length go together."""
    order = data.inputs["attention_mask"].sum(dim=1).argsort(stable=True)
    device = next(network.parameters()).device
    with full_precision(device):
        found = [network(**on_device(data.batch(rows), device)).logits.float().cpu() for rows in order.split(CHUNK)]
    return torch.cat(found)[order.argsort()]


def accuracies_of(network: nn.Module, pairs: PairSets) -> dict[str, float]:
    """Accuracy on every set; of all but the first in HANS's two classes."""
    found = {}
    for name, data in pairs.sets.items():
        predicted = logits_of(network, data).argmax(dim=-1)
        if name != IN_DOMAIN:
            predicted = two_classes(predicted, entailment=pairs.entailed_class)
        found[name] = float((predicted == data.labels).double().mean())
    return found
