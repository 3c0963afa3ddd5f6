"""How well a network, or a part of one, tells the odd one out.

Always in float32: in the authors' own runs 41% of the ResNet50 subnetworks sit within .01 of the loss of a guess while
scoring above 90%, so accuracy can ride on tiny gaps between logits. The margin is reported beside it for that reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from subnet_utils.core.seeds import generator_for
from subnet_utils.models.frozen import FrozenPrefix, embed_all, full_precision
from subnet_utils.models.staged import StagedModel
from subnet_utils.tasks.odd_one_out import OddOneOut, draw, similarity_logits

NETWORKS = "subnetwork", "ablated"
"""What a mask makes of a network: its subnetwork, and the model without it."""


@dataclass(frozen=True)
class Score:
    """Accuracy in [0, 1]; cross-entropy in nats; margin: median over examples of the odd one's logit minus the largest
    of the other three, so a positive margin is a right answer and its size says how safe it is."""

    accuracy: float
    loss: float
    margin: float


def score_embeddings(embeddings: Tensor, data: OddOneOut) -> Score:
    """Score embeddings [m, d] of the set's items. The odd one's place, which decides exact ties, is drawn at random.

    Raises ValueError if there is not one embedding per item.
    """
    if len(embeddings) != len(data.items):
        raise ValueError(f"{len(embeddings)} embeddings for a set of {len(data.items)} items; embed the same set")
    rows, odd = draw(data.examples, generator=generator_for("evaluation", len(data)))
    with full_precision(embeddings.device):
        logits = similarity_logits(embeddings[rows.to(embeddings.device)].float()).cpu()
    answers = logits.argmax(dim=1)
    right = logits.gather(1, odd[:, None]).squeeze(1)
    best_other = logits.scatter(1, odd[:, None], -torch.inf).max(dim=1).values
    return Score(
        accuracy=float((answers == odd).double().mean()),
        loss=float(torch.nn.functional.cross_entropy(logits.double(), odd)),
        margin=float((right - best_other).quantile(0.5)),
    )


def score_model(model: StagedModel, data: OddOneOut) -> Score:
    """Score a whole network on a set."""
    device = next(model.parameters()).device
    prefix, suffix = model.cut(model.stage_names[0])
    items = FrozenPrefix(prefix, data.items, device=device, limit_gb=math.inf)  # of no stage: the items themselves
    return score_embeddings(embed_all(suffix, items), data)


def score_from(model: StagedModel, start: str, sets: Mapping[str, tuple[FrozenPrefix, OddOneOut]]) -> dict[str, Score]:
    """Scores of a network on several sets, whose items have passed its stages before `start`.

    Raises ValueError if the outputs are of another prefix than the network's, such as that of a part of the network
    whose mask begins before `start`.
    """
    prefix, suffix = model.cut(start)
    for frozen, _ in sets.values():
        frozen.require(prefix)
    return {name: score_embeddings(embed_all(suffix, frozen), data) for name, (frozen, data) in sets.items()}
