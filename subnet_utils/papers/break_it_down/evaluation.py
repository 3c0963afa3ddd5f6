"""How well a network, or a part of one, tells the odd one out.

Always in float32: in the authors' own runs 41% of the ResNet50 subnetworks sit within .01 of the loss of a guess while
scoring above 90%, so accuracy can ride on tiny gaps between logits. The margin is reported beside it for that reason.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import FrozenPrefix, embed_all, full_precision
from subnet_utils.models.staged import StagedModel
from subnet_utils.papers.break_it_down.tasks.odd_one_out import OddOneOut, draw, similarity_logits

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


def score_both(
    model: StagedModel,
    subnetwork: Subnetwork,
    start: str,
    sets: Mapping[str, tuple[FrozenPrefix, OddOneOut]],
    *,
    wanted: Mapping[str, Collection[str]] | None = None,
) -> dict[str, dict[str, Score]]:
    """Scores of the subnetwork and the ablated model on several sets: {network: {set: score}}.

    sets: the outputs of the frozen prefix before `start`, and the set they belong to; wanted: {network: names of sets},
    if it is not both networks on all of them. The hard masks are applied once.
    Raises WrongNetwork if the subnetwork was found in another model, ValueError if it masks weights before `start` or
    if the outputs are of another prefix.
    """
    _, suffix = model.cut(start)
    early = sorted(subnetwork.masks.keys() - dict(suffix.named_parameters()).keys())
    if early:
        raise ValueError(f"the subnetwork masks '{early[0]}', before stage '{start}'; start where it does")
    wanted, apply = wanted or dict.fromkeys(NETWORKS, sets), (subnetwork.apply, subnetwork.ablate)
    return {
        name: score_from(masked(model), start, {role: sets[role] for role in wanted[name]})
        for name, masked in zip(NETWORKS, apply, strict=True)
    }


def score_from(model: StagedModel, start: str, sets: Mapping[str, tuple[FrozenPrefix, OddOneOut]]) -> dict[str, Score]:
    """Scores of a network on several sets, whose items have passed its stages before `start`.

    Raises ValueError if the outputs are of another prefix than the network's.
    """
    prefix, suffix = model.cut(start)
    for frozen, _ in sets.values():
        frozen.require(prefix)
    return {name: score_embeddings(embed_all(suffix, frozen), data) for name, (frozen, data) in sets.items()}
