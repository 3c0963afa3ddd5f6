"""How well a subnetwork, and the network without it, do on the sets of a mask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import prefixes
from subnet_utils.papers.break_it_down.evaluation import NETWORKS, Score, score_from
from subnet_utils.papers.break_it_down.statistics import clamped_difference

if TYPE_CHECKING:
    from subnet_utils.papers.break_it_down.masks import AnyMask, Roles


def scores(
    lab: Lab, mask: "AnyMask", subnetwork: Subnetwork, roles: "Roles", only: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """Scores of the subnetwork and the ablated model, one row each; only: on the sets of which roles.

    Raises WrongNetwork for a subnetwork of another network.
    """
    only, base, start = only or dict.fromkeys(NETWORKS, tuple(roles.sets)), mask.base.load(lab), mask.start(lab)
    sets, rows = outputs_of(lab, mask, roles, dict.fromkeys(role for own in only.values() for role in own)), []
    for name, part in zip(NETWORKS, (subnetwork, ~subnetwork), strict=True):
        found = score_from(part.apply(base), start, {role: sets[role] for role in only[name]})
        rows.append({"network": name, "density": part.density, **columns(found)})
    return rows


def outputs_of(lab: Lab, mask: "AnyMask", roles: "Roles", chosen: Iterable[str]) -> dict[str, tuple]:
    """The sets of some roles, with the outputs of the stages before the mask's start: role -> (outputs, set)."""
    start = mask.start(lab)
    return {
        role: (prefixes.outputs(lab, mask.base, roles.sets[role], start), roles.sets[role].load(lab)) for role in chosen
    }


def columns(found: dict[str, Score]) -> dict[str, float]:
    """Scores as columns: accuracy and margin on each set, and the clamped difference between target and other, if these
    are among them."""
    probes = [found[role].accuracy for role in ("target", "other") if role in found]
    difference = {"difference": float(clamped_difference(*probes))} if len(probes) == 2 else {}
    accuracies = {f"{role}_accuracy": score.accuracy for role, score in found.items()}
    margins = {f"{role}_margin": score.margin for role, score in found.items()}
    return {**difference, **accuracies, **margins}
