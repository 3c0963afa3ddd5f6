"""Ways of parameterizing a mask so that gradient descent can find it.

A method turns real-valued logits s, one per weight, into a soft mask for training, a penalty on its size, and a hard
mask at the end. Everything else (`discover`, the search, the evaluation) works with any of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from subnet_utils.core.seeds import uniform_like


class MaskMethod(Protocol):
    """What `discover` asks of a method. A checkpoint is known again by its fields, or attributes if it is no dataclass;
    masks that are trained at once may differ in a field called `start_value`. A method that draws may have `samples`,
    the parts of a batch with a draw each, and `expected(logits)`, its masks without noise, for the histograms."""

    deterministic: bool
    """Whether `soft` draws nothing; only then can masks be trained at once."""

    def init(self, weight: Tensor, generator: torch.Generator) -> Tensor:
        """Logits of a weight before training, float32, of its shape or of one that broadcasts to it.

        weight: of the frozen network; generator: on the CPU, of the mask's seed, for a method that draws them.
        """

    def soft(self, logits: Mapping[str, Tensor], epoch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The soft mask used in a step of training, entries in [0, 1]; the generator is on the CPU."""

    def penalty(self, soft: Mapping[str, Tensor], logits: Mapping[str, Tensor]) -> Tensor:
        """The term that the loss gets for the mask's size."""

    def hard(self, logits: Tensor) -> Tensor:
        """The binary mask that the logits stand for. Like them it broadcasts to the weight's shape."""


class ThresholdedAtZero:
    """Logits that all start at the same value; the hard mask is s > 0.

    units: 'weights', or 'neurons' for one logit a row, [rows, 1, ...]. A row is an entry of the weight's first
    dimension: an output of a matrix, a filter of a convolution. The penalty then counts rows, however long they are.
    """

    start_value: float
    units: str

    def __post_init__(self):
        if self.units not in ("weights", "neurons"):
            raise ValueError(f"units '{self.units}' are not valid; give 'weights' or 'neurons'")
        for name, least in {"l0": 0, "beta_max": 1, "epochs": 1, "samples": 1}.items():
            if getattr(self, name, least) < least:
                raise ValueError(f"{name} {getattr(self, name)} is not valid; give {least} or more")

    def init(self, weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """`start_value` everywhere."""
        rows = (*weight.shape[:1], *[1] * (weight.ndim - 1))
        return torch.full(rows if self.units == "neurons" else tuple(weight.shape), self.start_value)

    def hard(self, logits: Tensor) -> Tensor:
        """s > 0."""
        return logits > 0


class Drawn(ThresholdedAtZero):
    """Soft masks that are drawn anew in every step. Subclasses have `sampled`."""

    deterministic: ClassVar[bool] = False

    def soft(self, logits: Mapping[str, Tensor], epoch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """A draw of every mask."""
        return {name: self.sampled(s, uniform_like(s, generator).to(s)) for name, s in logits.items()}


@dataclass(frozen=True)
class ContinuousSparsification(ThresholdedAtZero):
    """sigma(beta s) with beta rising to beta_max (Savarese et al. 2020; *Break It Down*, appendix B, equation 2).

    The loss gets lambda * sum sigma(beta s), lambda = `l0`. Epoch e, from 0, of E trains at beta = beta_max^((e+1)/E).
    The hard mask is s > 0: a logit exactly at the threshold is outside the subnetwork, in the ablated model.
    unannealed: prefixes of parameter names whose beta stays 1, as the MLP head's did in the authors' run.

    >>> method = ContinuousSparsification(epochs=2, beta_max=100.0)
    >>> method.beta(0), method.beta(1), method.hard(torch.tensor([-0.1, 0.0, 0.1])).tolist()
    (10.0, 100.0, [False, False, True])
    """

    epochs: int = 90
    beta_max: float = 200.0
    start_value: float = 0.05
    l0: float = 1e-8
    unannealed: tuple[str, ...] = ()
    units: str = "weights"

    deterministic: ClassVar[bool] = True

    def beta(self, epoch: int) -> float:
        """Inverse temperature in an epoch (from 0)."""
        return self.beta_max ** ((epoch + 1) / self.epochs)

    def beta_of(self, name: str, epoch: int) -> float:
        """Inverse temperature of one parameter's mask."""
        return 1.0 if name.startswith(self.unannealed) else self.beta(epoch)

    def soft(self, logits: Mapping[str, Tensor], epoch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """sigma(beta s), deterministic: the generator is not used."""
        return {name: torch.sigmoid(self.beta_of(name, epoch) * s) for name, s in logits.items()}

    def penalty(self, soft: Mapping[str, Tensor], logits: Mapping[str, Tensor]) -> Tensor:
        """lambda times the sum of all soft entries."""
        return self.l0 * torch.stack([mask.sum() for mask in soft.values()]).sum()


@dataclass(frozen=True)
class GumbelSigmoid(Drawn):
    """Hard masks drawn anew in every step, each weight kept with probability sigma(s) (Csordas et al. 2021, *Are Neural
    Nets Modular?*, section 2, equations 1 and 2).

    A draw keeps a weight if z = (s + log u - log(1 - u)) / `temperature` is above 0, u uniform in (0, 1), which has the
    distribution of the paper's s - log(log U1 / log U2); the gradient is that of sigma(z). The loss gets alpha * sum s,
    alpha = `l0`: a logit without any other gradient falls for as long as training goes on, so choose alpha, learning
    rate and steps together (appendix C.3; the paper's beta is alpha times the examples of a batch). The hard mask is
    s > 0, what is more likely kept than not; at first that is .88 (the text says .9). samples: into how many parts a
    batch is cut, each of which has a draw of its own; 4 or 8 in the paper.

    >>> round(float(GumbelSigmoid().expected(torch.tensor(2.0))), 2)
    0.88
    """

    l0: float = 1e-6
    temperature: float = 1.0
    start_value: float = 2.0
    samples: int = 1
    units: str = "weights"

    def sampled(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Hard masks for uniform numbers between 0 and 1 (equation 2, straight through)."""
        chance = torch.sigmoid((logits + uniform.logit()) / self.temperature)
        return chance.round() + (chance - chance.detach())  # the latter is 0; rounded, .5 is 0

    def expected(self, logits: Tensor) -> Tensor:
        """The probability that a weight is kept."""
        return torch.sigmoid(logits)

    def penalty(self, soft: Mapping[str, Tensor], logits: Mapping[str, Tensor]) -> Tensor:
        """alpha times the sum of all logits."""
        return self.l0 * torch.stack([s.sum() for s in logits.values()]).sum()


@dataclass(frozen=True)
class HardConcrete(Drawn):
    """Gates between 0 and 1, drawn anew in every step (Louizos, Welling and Kingma 2018, *Learning Sparse Neural
    Networks through L0 Regularization*; heads and MLPs in *The Heuristic Core*, appendix B).

    A logit is their log alpha. With u uniform in (0, 1) a gate is sigma((log u - log(1 - u) + s) / BETA), stretched to
    (LOW, HIGH) and cut to [0, 1]: it often is exactly 0 or 1. The loss gets lambda * sum P(gate > 0), lambda = `l0`.
    The hard mask is s > 0, where a gate without noise is above one half.

    >>> HardConcrete().expected(torch.tensor([-5.0, 5.0])).tolist()
    [0.0, 1.0]
    """

    l0: float = 1e-8
    start_value: float = 10.0
    units: str = "weights"

    BETA: ClassVar[float] = 2 / 3
    LOW: ClassVar[float] = -0.1
    HIGH: ClassVar[float] = 1.1
    EPSILON: ClassVar[float] = 1e-6

    def sampled(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Gates for uniform numbers between 0 and 1 (Louizos et al., equations 10 and 11)."""
        uniform = uniform.clamp(self.EPSILON, 1 - self.EPSILON)
        concrete = torch.sigmoid((uniform.log() - (1 - uniform).log() + logits) / self.BETA)
        return (concrete * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def expected(self, logits: Tensor) -> Tensor:
        """The gates without noise (equation 13)."""
        return (torch.sigmoid(logits) * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def penalty(self, soft: Mapping[str, Tensor], logits: Mapping[str, Tensor]) -> Tensor:
        """lambda times the expected number of gates above 0 (equation 12)."""
        shift = self.BETA * math.log(-self.LOW / self.HIGH)
        return self.l0 * torch.stack([torch.sigmoid(s - shift).sum() for s in logits.values()]).sum()
