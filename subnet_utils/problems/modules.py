"""Networks that learn several functions, and masks on each function (*Are Neural Nets Modular?*, section 2).

A network learns a whole task and is frozen. Masks are found in it: a control mask on the whole task, and one on each
function. What the task is, a `Problem` says; all experiments of the paper share the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import Section, without
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks.controls import random_like
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.masking import Masking
from subnet_utils.masks.subnetwork import Subnetwork, SubnetworkStep
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.problems.trainings import MaskTraining, WeightTraining
from subnet_utils.training import StepTraining, fit

CONTROL = "control"
"""The function that stands for the whole task; its mask is the paper's "full"."""


class Problem(ABC):
    """What a network learns, and how a part of it is tested. Subclasses are frozen dataclasses of settings."""

    @abstractmethod
    def network(self, seed: int) -> nn.Module:
        """A network before training; the same for the same seed. Use `seeded`."""

    @abstractmethod
    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs [m, ...] and targets [m, ...] that teach a function, or CONTROL: all that the network learns."""

    @abstractmethod
    def scores(self, network: nn.Module) -> dict[str, Any]:
        """What a network, or a part of one, can do: numbers by name, such as its accuracy on each function."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, a scalar: a mean over examples. outputs: [m, ..., classes]; targets: int64 [m, ...].

        By default cross-entropy, nats, over what is asked for: where targets are not -100.
        """
        return cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def finish(self, network: nn.Module) -> nn.Module:
        """A trained network with what is not learned by its loss, such as statistics of norms. By default as it is."""
        return network

    def watched(self, network: nn.Module) -> dict[str, float]:
        """What is to be known of a part after each interval of a mask's training; the mask's history has it."""
        return {}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which modules draw the weights of a seed, whatever was drawn before."""
    with separate_randomness():
        torch.manual_seed(generator_for("modular network", seed).initial_seed())
        yield


@dataclass(frozen=True)
class Network(Step):
    """A network that has learned its whole task. `load` gives it, frozen. model: its name in tables."""

    keeps: ClassVar[int] = 8

    problem: Problem
    training: WeightTraining
    seed: int
    model: str = field(default="", compare=False)

    @property
    def work(self) -> float:
        """Steps."""
        return self.training.steps

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train all weights."""
        network = self.problem.network(self.seed).to(lab.device).train()
        inputs, targets = (tensor.to(lab.device) for tensor in self.problem.examples(CONTROL, self.seed))

        def interval(number: int) -> Iterator[Tensor]:
            generator = generator_for("modular batches", self.seed, number)
            torch.manual_seed(generator.initial_seed())  # dropout: the same from a checkpoint on
            return drawn(len(inputs), self.training, generator)

        def loss(rows: Tensor, number: int) -> Tensor:
            rows = rows.to(lab.device)
            with lab.autocast():
                outputs = network(inputs[rows])
            return self.problem.loss(outputs.float(), targets[rows])

        options = {"recipe": self.training.recipe(self.seed), "checkpoint": folder / CHECKPOINT}
        with separate_randomness():
            label = f"{self.model}, seed {self.seed}"
            history = fit(dict(network.named_parameters()), interval, loss, label=label, **options)
        network = self.problem.finish(network.eval())
        save_tensors(folder / "weights.safetensors", network.state_dict())
        save_table(folder / "history.parquet", history)
        return self.problem.scores(network) | {"network": fingerprint(network)}

    def read(self, lab: Lab, artefact: Artefact) -> nn.Module:
        """See the class."""
        network = self.problem.network(self.seed)
        network.load_state_dict(artefact.tensors("weights"))
        return network.to(lab.device).eval().requires_grad_(False)


def networks(settings: Section, problem: Problem, kind: type[Network] = Network) -> list[Network]:
    """The network of a section, one for each of its seeds."""
    training = without(settings.training, "seed")
    return [kind(problem, training, seed, settings.model) for seed in settings.seeds]


@dataclass(frozen=True)
class Mask(SubnetworkStep):
    """A mask on one function of a network, or on its whole task (CONTROL). `load` gives the subnetwork.

    network: a `Network`, or another step with its `problem`, `seed` and `model` that loads a network. given: a mask of
    the same network; the output layer keeps the part that is in it, and is not searched (section 5).
    """

    network: Step
    function: str
    training: MaskTraining
    seed: int
    given: "Mask | None" = None

    @property
    def work(self) -> float:
        """Steps; one takes about as long as four of a network's own."""
        return 4 * self.training.steps

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Find it."""
        problem, network = self.network.problem, self.network.load(lab)
        last = maskable(network)[-1]
        given = {last: self.given.load(lab).masks[last]} if self.given else {}
        fixed = Subnetwork(given, fingerprint(network))
        searched = fixed.apply(network)
        found = self.search(
            lab, self.training.masking, searched,
            only=[name for name in maskable(network) if name not in given],
            watch=lambda kept: problem.watched(kept.apply(searched)),
            checkpoint=folder / CHECKPOINT,
        )  # fmt: skip
        kept = Subnetwork({**found.subnetwork.masks, **given}, fixed.network)
        found.save(folder)
        kept.save(folder / "subnetwork.safetensors")
        return problem.scores(kept.apply(network)) | {"active": kept.active, "total": kept.total}

    def search(self, lab: Lab, masking: Masking, network: nn.Module, **options: Any) -> Discovery:
        """The subnetwork of a network for the function. options: of `masks.discover.discover_many`."""
        training, problem = self.training, self.network.problem
        inputs, targets = problem.examples(self.function, self.network.seed)

        def interval(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            return ((rows, targets[rows]) for rows in drawn(len(inputs), training, generator))

        return masking.find(
            network, inputs, interval, problem.loss,
            recipe=training.recipe(self.seed),
            before=partial(problem.network, self.network.seed),
            autocast=lab.autocast,
            limit_gb=cache_limit(lab.study.compute),
            label=f"{self.network.model}, seed {self.network.seed}, {self.function}", **options,
        )  # fmt: skip


@dataclass(frozen=True)
class Halves(Step):
    """Scores of a network under a mask, under it in half of the layers alone, and so under a random one (`halves`)."""

    mask: Mask

    def build(self, lab: Lab, folder: Path) -> list[dict[str, Any]]:
        """Measure them, a row a part."""
        network, kept = self.mask.network.load(lab), self.mask.load(lab)
        parts = halves(kept, maskable(network), seed=self.mask.network.seed)
        return [{"part": part, **self.mask.network.problem.scores(one.apply(network))} for part, one in parts]


def halves(kept: Subnetwork, names: Sequence[str], *, seed: int) -> Iterator[tuple[str, Subnetwork]]:
    """A control mask; the same in the early or late half of the layers, the others being whole; and all of it for a
    random mask with as many weights in every layer. A middle layer is late."""
    whole, middle = kept | ~kept, len(names) // 2
    for before, mask in {"": kept, "random ": random_like(kept, seed=seed)}.items():
        yield f"{before}{CONTROL}", mask
        yield f"{before}early half", with_layers(whole, mask, names[:middle])
        yield f"{before}late half", with_layers(whole, mask, names[middle:])


def with_layers(mask: Subnetwork, other: Subnetwork, names: Sequence[str]) -> Subnetwork:
    """A subnetwork that in some layers is another one of the same network."""
    return Subnetwork({**mask.masks, **{name: other.masks[name] for name in names}}, mask.network)


@dataclass(frozen=True)
class Masked:
    """A network and one way of finding masks in it. settings: the section of both, with `masks`, the usual way."""

    settings: Section
    network: Step
    training: MaskTraining

    @property
    def usual(self) -> bool:
        """Whether masks are found in the usual way."""
        return self.training == self.settings.masks

    def mask(self, function: str, repeat: int = 0, given: Mask | None = None) -> Mask:
        """A mask; each repeat has a seed of its own."""
        return Mask(self.network, function, without(self.training, "seed"), 1000 * repeat + self.network.seed, given)


def strengths(settings: Section) -> list[MaskTraining]:
    """The usual training of masks at each alpha in `l0`."""
    maskings = [settings.masks.masking.model_copy(update={"l0": l0}) for l0 in settings.l0 or ()]
    return [settings.masks.model_copy(update={"masking": masking}) for masking in maskings]


def drawn(examples: int, training: StepTraining, generator: torch.Generator) -> Iterator[Tensor]:
    """The batches of one interval: rows [batch], with replacement."""
    for _ in range(training.interval):
        yield torch.randint(examples, (training.batch_size,), generator=generator)


def batches_of(
    lab: Lab, network: Network, functions: Sequence[str], training: StepTraining, about: str
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """The batches of an epoch, by its number: `drawn` from the examples of some functions. about: what for."""

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        examples = [network.problem.examples(name, network.seed) for name in functions]
        inputs, targets = (torch.cat(parts).to(lab.device) for parts in zip(*examples, strict=True))
        for rows in drawn(len(inputs), training, generator_for(about, network.seed, epoch)):
            yield inputs[rows], targets[rows]

    return batches
