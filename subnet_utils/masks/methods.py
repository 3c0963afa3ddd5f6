"""Ways of parameterizing a mask so that gradient descent can find it.

A method turns real-valued logits s, one per weight, into a soft mask for training, a penalty on its size, and a hard
mask at the end. Everything else (`discover`, the search, the evaluation) works with any of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class MaskMethod(Protocol):
    """What `discover` asks of a method."""

    deterministic: bool
    """Whether `soft` draws nothing; only then can masks be trained at once."""

    def init(self, shape: torch.Size) -> Tensor:
        """Logits before training."""

    def soft(self, logits: Mapping[str, Tensor], epoch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The soft mask used in training, entries in [0, 1]."""

    def penalty(self, soft: Mapping[str, Tensor]) -> Tensor:
        """The term that the loss gets for the mask's size."""

    def hard(self, logits: Tensor) -> Tensor:
        """The binary mask that the logits stand for."""


@dataclass(frozen=True)
class ContinuousSparsification:
    """sigma(beta s) with beta rising to beta_max (Savarese et al. 2020; *Break It Down*, appendix B, equation 2).

    The loss gets lambda * sum sigma(beta s), lambda = `l0`. Epoch e, from 0, of E trains at beta = beta_max^((e+1)/E).
    The hard mask is s > 0: a logit exactly at the threshold is outside the subnetwork, in the ablated model.
    unannealed: prefixes of parameter names whose beta stays 1, as the MLP head's did in the authors' run.
    """

    epochs: int = 90
    beta_max: float = 200.0
    start_value: float = 0.05
    l0: float = 1e-8
    unannealed: tuple[str, ...] = ()

    deterministic: ClassVar[bool] = True

    def beta(self, epoch: int) -> float:
        """Inverse temperature in an epoch (from 0)."""
        return self.beta_max ** ((epoch + 1) / self.epochs)

    def beta_of(self, name: str, epoch: int) -> float:
        """Inverse temperature of one parameter's mask."""
        return 1.0 if name.startswith(self.unannealed) else self.beta(epoch)

    def init(self, shape: torch.Size) -> Tensor:
        """All logits start at the same value (appendix C)."""
        return torch.full(tuple(shape), self.start_value)

    def soft(self, logits: Mapping[str, Tensor], epoch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """sigma(beta s), deterministic: the generator is not used."""
        return {name: torch.sigmoid(self.beta_of(name, epoch) * s) for name, s in logits.items()}

    def penalty(self, soft: Mapping[str, Tensor]) -> Tensor:
        """lambda times the sum of all entries."""
        return self.l0 * torch.stack([mask.sum() for mask in soft.values()]).sum()

    def hard(self, logits: Tensor) -> Tensor:
        """s > 0."""
        return logits > 0
