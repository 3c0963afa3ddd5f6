"""What the zoo may hold of *The Heuristic Core*: the fine-tuned network and all networks that it was pruned to."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.masks import units
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.heuristic_core import steps
from subnet_utils.papers.heuristic_core.fine_tuning import PairNetwork, logits_of
from subnet_utils.papers.heuristic_core.pair_networks import Encoded
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN
from subnet_utils.zoo.release import Release, Tensors, Test, committed

TASK = (
    "It says whether one sentence follows from another. A test has pairs like those that it learned from (in domain), "
)
TASK += "or pairs that defy the rule of thumb that word overlap means yes. A mask is a pruned network: heads and MLPs."


class Gated(nn.Module):
    """A network with some of its units; the others put out their means, or zeros where there are none.

    Raises WrongNetwork for a subnetwork of another network.
    """

    def __init__(self, network: nn.Module, kept: Subnetwork, means: Tensors):
        super().__init__()
        kept.require(network)
        self.network, self.gates, self.means, self.device = network, dict(kept.masks), means or None, network.device

    def forward(self, **inputs: Tensor) -> Any:
        """See the class."""
        with units.gated(self.network, self.gates, self.means) as network:
            return network(**inputs)


def releases(lab: Lab) -> Iterator[Release]:
    """The network of a study, if it learns from generated pairs."""
    section = lab.section("heuristic_core")
    if section.generated is None:
        return
    own = steps.network(lab)
    yield Release(
        section.model,
        TASK,
        network=own,
        seed=own.training.seed,
        chance=0.5,
        fresh=partial(own.transformer.classifier, classes=2, seed=0),
        masks=partial(_masks, lab),
        tests=partial(_tests, own),
        logits=logits,
        more=means,
        part=Gated,
        effects=partial(committed, lab.study.name, "core_own_findings"),
    )


def logits(network: nn.Module, inputs: Tensors) -> Tensor:
    """Logits [n, 2] of all pairs."""
    labels = inputs["input_ids"][:, 0]  # of no use there
    return logits_of(network, Encoded(inputs, labels, labels))


def means(lab: Lab) -> Tensors:
    """Mean activations of its units, if they were pruned by mean ablation."""
    return steps.teacher(lab).means(lab, lab.section("heuristic_core").pruning.ablation) or {}


def _masks(lab: Lab) -> dict[str, steps.PrunedUnits]:
    return {f"sparsity-{one.sparsity:.0%}-seed-{one.seed}".replace("%", ""): one for one in steps.prunings(lab)}


def _tests(own: PairNetwork) -> dict[str, Test]:
    """Pairs like those that it learned from, and each kind that defies the heuristic."""
    sets, kinds = own.pairs().sets, (IN_DOMAIN, *own.data.section.out_of_domain)
    return {kind: (dict(sets[kind].inputs), sets[kind].labels) for kind in kinds}
