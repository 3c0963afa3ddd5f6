"""A network of which we know what does what, and the proof of it.

The parts are known because they were planted (`planted`) or set by hand (`compiled`). That is no proof. A subtask's
part must do the subtask alone; without it the network must fail at the subtask; and the other subtask must not need it.
`Planted.proof` measures this, and a network for which it does not hold is not used.

Two parts may share weights. Then both subtasks need what is shared, and a subtask is unharmed only by the loss of what
the other has for itself.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import StoreError, digest_of, load_tensors, save_tensors
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint
from subnet_utils.tasks.digit_arithmetic import Items
from subnet_utils.tasks.modular_tasks import accuracy, chance

LEAST = 0.98
"""Accuracy from which on a part does its subtask."""
SLACK = 0.1
"""By how much accuracy may be above chance where a subtask cannot be done."""
ABLE = ("whole", "alone", "with noise", "without others")
UNABLE = ("without", "others", "without shared")
FILE = "planted.safetensors"


class Designed(Protocol):
    """What describes a network with known truth: a frozen dataclass of settings."""

    shares: ClassVar[tuple[float, ...]]
    """Which shares of the weights without a function are put back at random, to see that they do nothing."""

    def network(self, seed: int) -> nn.Module:
        """The network before anything was planted, the same for the same seed."""

    def tasks(self) -> Mapping[str, Items]:
        """Its subtasks by name."""


@dataclass(frozen=True, eq=False)
class Planted:
    """A network with known truth.

    parts: for each subtask the parts that do it, one, or several of which each is enough.
    """

    model: nn.Module
    parts: Mapping[str, tuple[Subnetwork, ...]]
    design: Designed
    seed: int

    @property
    def tasks(self) -> Mapping[str, Items]:
        """The subtasks by name, in the order of `parts`."""
        return self.design.tasks()

    @cached_property
    def truth(self) -> dict[str, Subnetwork]:
        """For each subtask all weights with a function in it."""
        return {name: reduce(or_, parts) for name, parts in self.parts.items()}

    @cached_property
    def noise(self) -> Subnetwork:
        """The weights without a function."""
        return ~reduce(or_, self.truth.values())

    @cached_property
    def proof(self) -> dict[str, dict[str, float]]:
        """Accuracy on each subtask of the parts that must be able to do it, and of those that must not.

        chance: of the commonest answer. Able: `whole`, the network; `alone`, its part (the worst of several); `with
        noise`, its part with random shares of the weights without a function (the worst of several); `without others`,
        the network without what the other subtasks have for themselves. Not able: `without`, the network without its
        part; `others`, the other subtasks' parts; `without shared`, where parts share weights, the network without
        these. `without all of others`, the network without the others' parts, is able if nothing is shared, else not.
        """
        return {name: _proof(self, name) for name in self.parts}


def _proof(planted: Planted, name: str) -> dict[str, float]:
    task, own = planted.tasks[name], planted.truth[name]
    others = reduce(or_, (truth for other, truth in planted.truth.items() if other != name))
    parts, shared = planted.parts[name], own & others

    def score(kept: Subnetwork) -> float:
        return accuracy(kept.apply(planted.model), task)

    found = {"chance": chance(task), "whole": score(own | ~own), "alone": min(score(part) for part in parts)}
    found["with noise"] = min(score(part | some) for part in parts for some in _shares(planted))
    found["without others"], found["without"] = score(~(others & ~own)), score(~own)
    found["others"] = max(score(part) for other in planted.parts if other != name for part in planted.parts[other])
    found["without all of others"] = score(~others)
    return found | ({"without shared": score(~shared)} if shared.active else {})


def _shares(planted: Planted) -> Iterator[Subnetwork]:
    """The weights without a function, a random share of them at a time."""
    noise = planted.noise
    for share in planted.design.shares:
        generator = generator_for("noise put back", planted.seed, share)
        drawn = {name: torch.rand(mask.shape, generator=generator) < share for name, mask in noise.masks.items()}
        yield noise & Subnetwork(drawn, noise.network)


def shortfall(proven: Mapping[str, Mapping[str, float]], *, least: float = LEAST, slack: float = SLACK) -> float:
    """How much is missing in a proof: the sum of all that is too low or too high, 0 where it holds."""
    low = sum(max(0.0, least - row[name]) for row in proven.values() for name in ABLE)
    above = (row[name] - row["chance"] - slack for row in proven.values() for name in UNABLE if name in row)
    return low + sum(max(0.0, excess) for excess in above)


def holds(proven: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether the truth is proven: at least `LEAST` where it is able, at most chance + `SLACK` where it is not."""
    return shortfall(proven) == 0.0


def save(planted: Planted, folder: Path) -> None:
    """Write weights, masks and design to one file in a folder; `load` reads it."""
    tensors = {f"weights/{name}": tensor for name, tensor in planted.model.state_dict().items()}
    for task, parts in planted.parts.items():
        for i, part in enumerate(parts):
            tensors |= {f"part/{task}/{i}/{name}": mask for name, mask in part.masks.items()}
    about = {"kind": type(planted.design).__name__, "design": asdict(planted.design), "seed": planted.seed}
    header = json.dumps(about | {"copies": {task: len(parts) for task, parts in planted.parts.items()}})
    save_tensors(Path(folder) / FILE, tensors, {"planted": header, "digest": digest_of(tensors, header)})


def load(folder: Path, *designs: type[Designed]) -> Planted:
    """Read what `save` wrote of one of these designs. Raises StoreError if the file is damaged or holds none."""
    path = Path(folder) / FILE
    tensors, metadata = load_tensors(path)
    if not {"planted", "digest"} <= metadata.keys():
        raise StoreError(f"{path} holds no planted network; give a folder that save() wrote into")
    if metadata["digest"] != digest_of(tensors, metadata["planted"]):
        raise StoreError(f"{path} is damaged: it does not match its digest; delete it and run again")
    about = json.loads(metadata["planted"])
    design = {kind.__name__: kind for kind in designs}[about["kind"]](**about["design"])
    model = design.network(about["seed"])
    model.load_state_dict({name: tensors[f"weights/{name}"] for name in model.state_dict()})
    network = fingerprint(model)

    def part(task: str, i: int) -> Subnetwork:
        start = f"part/{task}/{i}/"
        masks = {name.removeprefix(start): mask for name, mask in tensors.items() if name.startswith(start)}
        return Subnetwork(masks, network)

    parts = {task: tuple(part(task, i) for i in range(count)) for task, count in about["copies"].items()}
    return Planted(model, parts, design, about["seed"])
