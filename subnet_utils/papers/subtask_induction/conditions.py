"""What a network can inherit from another: the conditions that subtask induction compares, and their controls.

*Instilling Inductive Biases with Subnetworks*, sections 3.2 and 4.3, appendix B.3. The authors' released code departs
from the text in ways that change the conclusion, so each reading has a name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import Section


@dataclass(frozen=True)
class Condition:
    """What one network inherits from another. The masked weights are attention and MLP matrices.

    inherits: which of the masked weights; carried: whether embeddings, positions, norms and biases come along, to be
    trained; frozen: whether the inherited masked weights stay as they are.
    """

    inherits: str
    carried: bool = True
    frozen: bool = True


CONDITIONS = {
    "subnetwork": Condition("subnetwork"),
    "full": Condition("all", frozen=False),
    "random": Condition("random"),
    "random_complement": Condition("complement"),
    "random_as_released": Condition("all but random"),
    "embed_only": Condition("nothing"),
    "scratch": Condition("nothing", carried=False),
    "strict": Condition("subnetwork", carried=False),
    "strict_random": Condition("random", carried=False),
    "subnetwork_unfrozen": Condition("subnetwork", frozen=False),
    "random_unfrozen": Condition("random", frozen=False),
    "random_as_released_unfrozen": Condition("all but random", frozen=False),
}
"""What is compared. `text` sets `subnetwork` against `random`, as the paper's words have it, but for embeddings, norms
and biases, which come along although it does not say so. `as_released`, its code, sets it against `random_as_released`,
where the sampled weights are those drawn anew and all others are inherited and frozen. `strict` draws everything
outside the mask anew, embeddings too; `embed_only` inherits nothing but those."""

TRAINED_ALONE = ("random_as_released_unfrozen",)
"""Conditions whose networks are trained by themselves: they came later, and what was made before keeps its key."""

IMAGE_CONDITIONS = ("subnetwork", "random", "embed_only", "strict", "scratch", "mixture", "linear")
"""What is compared with images (Table 1). `mixture` trains the whole base network on with mean-pooled images among the
others; `linear` trains a new classifier on its features; the rest as in `CONDITIONS`, where no embeddings but the
classifier comes along. The paper has no random subnetworks here and none of the next two."""

VARIANTS = {
    "text": ("subnetwork", "random"),
    "as_released": ("subnetwork", "random_as_released"),
    "strict": ("strict", "strict_random"),
    "embed_only": ("subnetwork", "embed_only"),
}
"""Name of a variant -> the condition, and its control."""


def require_conditions(section: Section, field: str, known: Iterable[str]) -> None:
    """Raise an error for an unknown name among a section's conditions, and for a subnetwork without its control."""
    require_known(section, field, known)
    for name in ("subnetwork", "random"):
        if name not in getattr(section, field):
            raise invalid(field, f"'{name}' is missing; a subnetwork and its control belong together")


def require_known(section: Section, field: str, known: Iterable[str]) -> None:
    """Raise an error, with the nearest valid name, for an unknown one among a section's."""
    for name in getattr(section, field):
        if name not in known:
            raise invalid(field, f"'{name}' is unknown; {nearest(name, known)}")
