"""A subnetwork: which of a network's weights take part.

*Break It Down* (section 3.1) defines a subnetwork by a binary mask over the weights of a base model, Sub = M(w * m),
and the ablated model by its complement. `Subnetwork` is that mask: immutable, boolean by construction, and bound to the
one network in which it was found.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact, StoreError, digest_of, load_tensors, save_tensors
from subnet_utils.models.staged import fingerprint, uncompiled

Network = TypeVar("Network", bound=nn.Module)


class WrongNetwork(ValueError):
    """A subnetwork was applied to, or combined with one of, another network than its own."""


@dataclass(frozen=True, eq=False)
class Subnetwork:
    """One boolean tensor per masked weight of a network.

    masks: parameter name -> bool tensor of the weight's shape, True where the weight takes part (copied; do not write
    into it); network: fingerprint of the network that it was found in. Raises TypeError for a mask that is not boolean.

    >>> a = Subnetwork({"w": torch.tensor([True, False])}, network="n")
    >>> (~a).masks["w"].tolist(), (a | ~a).density, (a & ~a).density
    ([False, True], 1.0, 0.0)
    >>> b = Subnetwork({"w": torch.tensor([True, True])}, network="n")
    >>> (b - a).masks["w"].tolist(), (a - b).active, (a ^ b).active
    ([False, True], 0, 1)
    """

    masks: Mapping[str, Tensor]
    network: str

    def __post_init__(self):
        for name, mask in self.masks.items():
            if mask.dtype != torch.bool:
                raise TypeError(f"mask of '{name}' is {mask.dtype}, not boolean; threshold it first (s > 0)")
        frozen = {name: self.masks[name].detach().cpu().clone() for name in sorted(self.masks)}
        object.__setattr__(self, "masks", MappingProxyType(frozen))

    def __reduce__(self):
        return Subnetwork, (dict(self.masks), self.network)

    def __repr__(self) -> str:
        """One line: how many weights of how many matrices."""
        return f"Subnetwork({self.active:,} of {self.total:,} weights in {len(self.masks)} matrices of {self.network})"

    def __invert__(self) -> "Subnetwork":
        """The complement among the masked weights; applied to the base it is the ablated model."""
        return Subnetwork({name: ~mask for name, mask in self.masks.items()}, self.network)

    def __and__(self, other: "Subnetwork") -> "Subnetwork":
        """Weights in both. Raises WrongNetwork if the two are not of one network and one set of masked weights."""
        if not isinstance(other, Subnetwork):
            return NotImplemented
        self._match(other)
        return Subnetwork({name: mask & other.masks[name] for name, mask in self.masks.items()}, self.network)

    def __or__(self, other: "Subnetwork") -> "Subnetwork":
        """Weights in either. Raises WrongNetwork as `&` does."""
        if not isinstance(other, Subnetwork):
            return NotImplemented
        self._match(other)
        return Subnetwork({name: mask | other.masks[name] for name, mask in self.masks.items()}, self.network)

    def __sub__(self, other: "Subnetwork") -> "Subnetwork":
        """Weights in this one and not in the other. Raises WrongNetwork as `&` does."""
        return self & ~other if isinstance(other, Subnetwork) else NotImplemented

    def __xor__(self, other: "Subnetwork") -> "Subnetwork":
        """Weights in exactly one of the two. Raises WrongNetwork as `&` does."""
        return (self - other) | (other - self) if isinstance(other, Subnetwork) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Subnetwork):
            return NotImplemented
        return (
            self.network == other.network
            and self.masks.keys() == other.masks.keys()
            and all(torch.equal(mask, other.masks[name]) for name, mask in self.masks.items())
        )

    @property
    def active(self) -> int:
        """Number of weights that take part ("Act. Param." of Tables 5 to 11)."""
        return sum(int(mask.sum()) for mask in self.masks.values())

    @property
    def total(self) -> int:
        """Number of masked weights ("Tot. Param.")."""
        return sum(mask.numel() for mask in self.masks.values())

    @property
    def density(self) -> float:
        """active / total, between 0 and 1."""
        return self.active / self.total

    def require(self, model: nn.Module) -> None:
        """Raise WrongNetwork for any other network than the one in which this subnetwork was found."""
        found = fingerprint(uncompiled(model))
        if found != self.network:
            raise WrongNetwork(
                f"this subnetwork belongs to network {self.network}, not to {found}; load the base it was found in"
            )

    def apply(self, model: Network) -> Network:
        """A copy of the network, without `torch.compile`, with all masked weights outside the subnetwork set to zero.

        Biases, norms, embeddings and weights below the first masked stage are as they were. Raises WrongNetwork if
        `model` is not the network in which this subnetwork was found, or has no weight of a mask's name and shape; the
        model itself is not changed.

        >>> network = nn.Linear(2, 1)
        >>> _ = network.weight.data.copy_(torch.tensor([3.0, 5.0]))
        >>> first = Subnetwork({"weight": torch.tensor([[True, False]])}, fingerprint(network))
        >>> first.apply(network).weight.tolist(), first.ablate(network).weight.tolist()
        ([[3.0, 0.0]], [[0.0, 5.0]])
        """
        self.require(model)
        subnetwork = copy.deepcopy(uncompiled(model))
        parameters = dict(subnetwork.named_parameters())
        for name, mask in self.masks.items():
            if name not in parameters or parameters[name].shape != mask.shape:
                shape = tuple(mask.shape)
                raise WrongNetwork(f"the network has no weight '{name}' of shape {shape}; find the mask in it")
        with torch.no_grad():
            for name, mask in self.masks.items():
                # masked_fill, not a product: 0 * w would keep a negative zero and spread a NaN or an infinity
                parameters[name].masked_fill_(~mask.to(parameters[name].device), 0.0)
        return subnetwork

    def ablate(self, model: Network) -> Network:
        """The ablated model: a copy of the network without this subnetwork's weights. Raises as `apply` does."""
        return (~self).apply(model)

    def save(self, path: Path) -> None:
        """Write to a safetensors file, eight entries a byte."""
        packed = {name: torch.from_numpy(np.packbits(mask.numpy().ravel())) for name, mask in self.masks.items()}
        shapes = json.dumps({name: list(mask.shape) for name, mask in self.masks.items()})
        digest = digest_of(packed, shapes, self.network)
        save_tensors(Path(path), packed, {"network": self.network, "shapes": shapes, "digest": digest})

    @classmethod
    def load(cls, path: Path) -> "Subnetwork":
        """Read what `save` wrote. Raises StoreError if the file is damaged or holds no subnetwork."""
        packed, metadata = load_tensors(Path(path))
        if not {"network", "shapes", "digest"} <= metadata.keys():
            raise StoreError(f"{path} holds no subnetwork; give a file written by Subnetwork.save")
        if metadata["digest"] != digest_of(packed, metadata["shapes"], metadata["network"]):
            raise StoreError(f"{path} is damaged: it does not match its digest; delete it and run again")
        masks = {}
        for name, shape in json.loads(metadata["shapes"]).items():
            bits = np.unpackbits(packed[name].numpy(), count=prod(shape)).astype(bool)
            masks[name] = torch.from_numpy(bits.reshape(shape))
        return cls(masks, metadata["network"])

    def _match(self, other: "Subnetwork") -> None:
        if self.network != other.network:
            raise WrongNetwork(f"subnetworks of two networks, {self.network} and {other.network}, cannot be combined")
        if self.masks.keys() != other.masks.keys():
            raise WrongNetwork("these subnetworks mask different weights; combine those with the same start stage")


class SubnetworkStep(Step):
    """A step whose artefact holds a subnetwork as `subnetwork`. `load` gives it."""

    def read(self, lab: Any, artefact: Artefact) -> Subnetwork:
        """See the class."""
        return Subnetwork.load(artefact.path / "subnetwork.safetensors")
