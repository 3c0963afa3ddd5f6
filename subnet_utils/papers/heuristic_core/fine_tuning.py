"""The classifier of sentence pairs: fine-tuned, its checkpoints, and what pruning wants of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks import units
from subnet_utils.models import fingerprint
from subnet_utils.models.frozen import full_precision, sent
from subnet_utils.papers.heuristic_core.pair_networks import Encoded, Transformer
from subnet_utils.papers.heuristic_core.pair_pretraining import PairLanguageModel
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN, MISMATCHED, PairData, PairSets, pair_sets
from subnet_utils.papers.heuristic_core.section import FineTuning
from subnet_utils.papers.heuristic_core.step_training import on_device, train
from subnet_utils.tasks.sentence_pairs import ENTAILED, NOT_ENTAILED

Batch = tuple[dict[str, Tensor], Tensor]
"""Inputs, and labels or the whole network's log-probabilities."""
CHUNK = 256  # pairs that are judged at once


@torch.no_grad()
def logits_of(network: nn.Module, data: Encoded) -> Tensor:
    """Logits [n, classes] of all pairs; those of one length go together."""
    order = data.inputs["attention_mask"].sum(dim=1).argsort(stable=True)
    with full_precision(network.device):
        found = [network(**on_device(data.batch(rows), network.device)).logits.cpu()
                 for rows in order.split(CHUNK)]  # fmt: skip
    return torch.cat(found)[order.argsort()]


def accuracies_of(network: nn.Module, pairs: PairSets) -> dict[str, float]:
    """Accuracy on every set; of all out of domain in HANS's two classes: what is not entailment is not entailed. The
    largest of MNLI's three logits decides; those of neutral and contradiction are not summed."""
    found = {}
    for name, data in pairs.sets.items():
        predicted = logits_of(network, data).argmax(dim=-1)
        if name not in (IN_DOMAIN, MISMATCHED):
            predicted = torch.where(predicted == pairs.entailed_class, ENTAILED, NOT_ENTAILED)
        found[name] = float((predicted == data.labels).double().mean())
    return found


@dataclass(frozen=True)
class PairNetwork(Step):
    """The fine-tuned network: weights of its checkpoints, accuracies on every set after every interval (`history`).
    precision: of the training of published weights. Small networks gain nothing from bfloat16 and stay in float32."""

    transformer: Transformer
    data: PairData
    training: FineTuning
    pretraining: PairLanguageModel | None = None
    precision: str = "auto"
    model: str = field(default="", compare=False)

    def pairs(self) -> PairSets:
        """Its training pairs, and the sets that it is judged on."""
        return pair_sets(self.data, self.transformer)

    def autocast(self, lab: Lab) -> Callable[[], AbstractContextManager]:
        """Context of forward passes in training."""
        return lab.autocast if self.transformer.is_published else nullcontext

    def fresh(self, lab: Lab) -> nn.Module:
        """The network before fine-tuning."""
        seed = generator_for("pair network", self.training.seed).initial_seed() % 2**31
        network = self.transformer.classifier(classes=len(self.data.section.classes), seed=seed)
        if self.pretraining is not None:
            fits = network.base_model.load_state_dict(self.pretraining.load(lab), strict=False)
            if fits.unexpected_keys or any("pooler" not in name for name in fits.missing_keys):  # it has no pooler
                raise ValueError(f"pretrained weights do not fit {type(network).__name__}: {fits}")
        return network.to(lab.device)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Fine-tune it."""
        network, pairs, autocast = self.fresh(lab), self.pairs(), self.autocast(lab)

        def loss(batch: Batch) -> Tensor:
            with autocast():
                logits = network(**on_device(batch[0], lab.device)).logits
            return cross_entropy(logits.float(), sent(batch[1], lab.device))

        def file(step: int) -> None:
            if step in self.training.kept:
                save_tensors(folder / f"weights_{step}.safetensors", network.state_dict())

        history = train(
            network, len(pairs.train), lambda rows, _: (pairs.train.batch(rows), pairs.train.labels[rows]), loss,
            self.training, about="fine-tuning draws", order="fine-tuning",
            observe=lambda: accuracies_of(network, pairs), file=file, folder=folder, label=f"{self.model}: fine-tuning",
        )  # fmt: skip
        save_table(folder / "history.parquet", history)
        return {"accuracies": {name: float(history[name].iloc[-1]) for name in pairs.sets},
                "network": fingerprint(network)}  # fmt: skip

    def read(self, lab: Lab, artefact: Artefact) -> nn.Module:
        """The last checkpoint. Others: `Checkpoint`."""
        return Checkpoint(self, self.training.steps).load(lab)


@dataclass(frozen=True)
class Checkpoint:
    """The network after a number of steps. Raises ValueError for a step whose weights are not kept."""

    network: PairNetwork
    step: int

    def __post_init__(self) -> None:
        if self.step not in self.network.training.kept:
            raise ValueError(f"no checkpoint at step {self.step}; add it to heuristic_core.finetuning.checkpoints")

    def load(self, lab: Lab) -> nn.Module:
        """The network, frozen. One copy serves all: do not change it."""
        return _loaded(self, lab, self.network.make(lab).digest)


@lru_cache(maxsize=4)
def _loaded(checkpoint: Checkpoint, lab: Lab, digest: str) -> nn.Module:
    network = checkpoint.network.fresh(lab)
    network.load_state_dict(checkpoint.network.make(lab).tensors(f"weights_{checkpoint.step}"))
    return network.eval().requires_grad_(False)


@dataclass(frozen=True)
class Teacher(Step):
    """What pruning wants of a checkpoint: its log-probabilities of the training pairs, its units' mean activations.
    mean_examples: training pairs over which means are taken, at most. `load` gives these tensors."""

    keeps = 2

    checkpoint: Checkpoint
    mean_examples: int

    def build(self, lab: Lab, folder: Path) -> None:
        """Run the checkpoint over the training pairs."""
        network, pairs = self.checkpoint.load(lab), self.checkpoint.network.pairs().train
        first = torch.arange(min(len(pairs), self.mean_examples))
        means = units.mean_activations(network, (pairs.batch(rows) for rows in first.split(CHUNK)))
        probabilities = log_softmax(logits_of(network, pairs), dim=-1)
        save_tensors(folder / "teacher.safetensors", {"log_probabilities": probabilities, **means})

    def read(self, lab: Lab, artefact: Artefact) -> dict[str, Tensor]:
        """Its tensors."""
        return artefact.tensors("teacher")

    def means(self, lab: Lab, ablation: str) -> dict[str, Tensor] | None:
        """Mean activations, which stand in for ablated units; None for zeros."""
        known = self.load(lab)
        return {name: known[name].to(lab.device) for name in ("heads", "mlps")} if ablation == "mean" else None
