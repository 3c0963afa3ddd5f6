"""Structured pruning of a sentence-pair classifier, step by step (*The Heuristic Core*, sections 2 to 5).

A network is fine-tuned on pairs most of which a heuristic solves; some of its checkpoints are kept. Each is pruned to
attention heads and MLPs that keep its predictions, with many seeds. Units are also removed one by one, and together.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import CHECKPOINT, Fault, Step
from subnet_utils.core.store import save_json, save_table, save_tensors
from subnet_utils.masks import units
from subnet_utils.masks.controls import random_like
from subnet_utils.masks.masking import HardConcrete, TrainedMasking
from subnet_utils.masks.subnetwork import Subnetwork, SubnetworkStep
from subnet_utils.models import fingerprint
from subnet_utils.models.frozen import full_precision
from subnet_utils.papers.heuristic_core.attention_patterns import example_maps, patterns
from subnet_utils.papers.heuristic_core.fine_tuning import Batch, Checkpoint, PairNetwork, Teacher, accuracies_of
from subnet_utils.papers.heuristic_core.pair_networks import Transformer
from subnet_utils.papers.heuristic_core.pair_pretraining import PairLanguageModel
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN, PairData
from subnet_utils.papers.heuristic_core.section import UnitPruning
from subnet_utils.papers.heuristic_core.step_training import shuffled_batches


@dataclass(frozen=True)
class PrunedUnits(SubnetworkStep):
    """A checkpoint pruned to a target sparsity with a seed: scores, history, accuracies. `load` gives its units."""

    records_faults = True

    teacher: Teacher
    sparsity: float
    seed: int
    schedule: units.Schedule
    batch_size: int
    by_length: bool = False
    ablation: str = "mean"
    discretization: str = "exact"
    masking: TrainedMasking = HardConcrete()

    @classmethod
    def of(cls, pruning: UnitPruning, teacher: Teacher, sparsity: float, seed: int) -> "PrunedUnits":
        """As a section says."""
        steps, warmup = (6500 + rate * round(100 * sparsity) for rate in (56, 50))  # the paper's
        if pruning.steps is not None:
            steps, warmup = pruning.steps, max(1, round(pruning.steps * pruning.warmup_share))
        schedule = units.Schedule(steps, warmup, pruning.learning_rate, pruning.rate_warmup)
        same = ("batch_size", "by_length", "ablation", "discretization", "masking")
        return cls(teacher, sparsity, seed, schedule, **{name: getattr(pruning, name) for name in same})

    @property
    def version(self) -> int:
        """2 where there may be dropout: it comes before the MLP's gate now, no longer after it."""
        return 2 if self.checkpoint.network.transformer.drops_before_gates else 1

    @property
    def checkpoint(self) -> Checkpoint:
        """What is pruned."""
        return self.teacher.checkpoint

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Prune it, and judge what is left."""
        network, whole = self.checkpoint.load(lab), self.checkpoint.network
        means = self.teacher.means(lab, self.ablation)
        scores, history = units.prune(
            network, self._batches(lab), means, sparsity=self.sparsity, schedule=self.schedule,
            method=self.masking.build(self.schedule.intervals), seed=self.seed, precision=whole.autocast(lab),
            checkpoint=folder / CHECKPOINT,
            label=f"{whole.model}, step {self.checkpoint.step}: {self.sparsity:.0%}, seed {self.seed}",
        )  # fmt: skip
        about = {"sparsity": self.sparsity, "network": fingerprint(network)}
        found = {"exact": units.sparsest_of(scores, **about), "threshold": units.nearest_by_threshold(scores, **about)}
        left = found[self.discretization]
        save_tensors(folder / "scores.safetensors", scores)
        left.save(folder / "subnetwork.safetensors")
        save_table(folder / "history.parquet", history)
        with units.gated(network, left, means):
            accuracies = accuracies_of(network, whole.pairs())
        sizes = {"achieved_sparsity": 1 - left.density, "threshold_sparsity": 1 - found["threshold"].density}
        return {"accuracies": accuracies} | sizes

    @property
    def about(self) -> dict[str, Any]:
        """What a table says of it."""
        return {"step": self.checkpoint.step, "target_sparsity": self.sparsity, "seed": self.seed}

    def _batches(self, lab: Lab) -> units.Batches:
        """An endless supply of training pairs with the whole network's log-probabilities."""
        pairs, known = self.checkpoint.network.pairs().train, self.teacher.load(lab)["log_probabilities"]
        lengths = pairs.inputs["attention_mask"].sum(dim=1) if self.by_length else None

        def batches(generator: torch.Generator) -> Iterator[Batch]:
            while True:
                for rows in shuffled_batches(len(pairs), self.batch_size, generator, lengths):
                    yield pairs.batch(rows), known[rows]

        return batches


@dataclass(frozen=True)
class Judged(Step):
    """Accuracies of a checkpoint with some of its units, which `units(lab)` of a subclass gives; others are ablated."""

    records_faults = True

    teacher: Teacher
    ablation: str

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Judge it."""
        checkpoint = self.teacher.checkpoint
        with units.gated(checkpoint.load(lab), self.units(lab), self.teacher.means(lab, self.ablation)) as network:
            return {"accuracies": accuracies_of(network, checkpoint.network.pairs())}


@dataclass(frozen=True)
class WithoutHeads(Judged):
    """All units but some heads, (layer, head) each."""

    heads: tuple[tuple[int, int], ...]

    def units(self, lab: Lab) -> Subnetwork:
        """All but these heads."""
        return units.without(self.teacher.checkpoint.load(lab), self.heads)


@dataclass(frozen=True)
class RandomUnits(Judged):
    """As many random heads and MLPs as one of several pruned networks has: those that did not diverge, in turn."""

    like: tuple[PrunedUnits, ...]
    draw: int

    @property
    def about(self) -> dict[str, Any]:
        """What a table says of it."""
        return {"target_sparsity": self.like[0].sparsity, "seed": self.draw}

    def units(self, lab: Lab) -> Subnetwork:
        """The draw. Raises Fault if all of the networks diverged."""
        there = [one for one in self.like if not one.fault(lab)]
        if not there:
            raise Fault("all prunings diverged; there is no network to be like")
        return random_like(there[self.draw % len(there)].load(lab), seed=self.draw)


@dataclass(frozen=True)
class Attention(Step):
    """Where every head of a checkpoint looks (`patterns`), and maps of a few pairs (`maps`, `tokens`)."""

    checkpoint: Checkpoint

    def build(self, lab: Lab, folder: Path) -> None:
        """Watch it."""
        whole = self.checkpoint.network
        pairs, transformer, kinds = whole.pairs(), whole.transformer, whole.data.section.out_of_domain[:4]
        network = copy.deepcopy(self.checkpoint.load(lab))
        network.set_attn_implementation("eager")  # in the open, so that its weights can be seen
        with full_precision(lab.device):
            table = patterns(network, pairs.sets[IN_DOMAIN], transformer.word_numbers())
            maps = {kind: example_maps(network, pairs.sets[kind], 0) for kind in kinds}
        save_table(folder / "patterns.parquet", table)
        save_tensors(folder / "maps.safetensors", maps)
        first = {kind: pairs.sets[kind].batch(torch.tensor([0]))["input_ids"][0].tolist() for kind in kinds}
        tokens = {kind: transformer.tokenizer.convert_ids_to_tokens(ids) for kind, ids in first.items()}
        save_json(folder / "tokens.json", tokens)


@lru_cache(maxsize=4)
def network(lab: Lab) -> PairNetwork:
    """The fine-tuned network of a study. Raises ValueError if it has none."""
    section = lab.section("heuristic_core")
    transformer, data = Transformer.of(section.architecture), PairData.of(section.data)
    pretraining = section.pretraining and PairLanguageModel(transformer, section.pretraining, data, section.model)
    precision = lab.study.compute.precision if transformer.is_published else "auto"
    return PairNetwork(transformer, data, section.finetuning, pretraining, precision, section.model)


def teacher(lab: Lab, step: int | None = None) -> Teacher:
    """Of the checkpoint at a step, by default the last one."""
    own = network(lab)
    checkpoint = Checkpoint(own, own.training.steps if step is None else step)
    return Teacher(checkpoint, lab.study.heuristic_core.pruning.mean_examples)


def prunings(lab: Lab) -> list[PrunedUnits]:
    """The last network, pruned to both sparsities with many seeds."""
    pruning, own = lab.section("heuristic_core").pruning, teacher(lab)
    return [PrunedUnits.of(pruning, own, *one) for one in product(pruning.sparsities, pruning.seeds)]


def grid_prunings(lab: Lab) -> list[PrunedUnits]:
    """Every checkpoint, pruned to every sparsity of the grid."""
    pruning, steps = lab.section("heuristic_core").pruning, network(lab).training.kept
    return [PrunedUnits.of(pruning, teacher(lab, step), *one)
            for step, *one in product(steps, pruning.grid_sparsities, pruning.grid_seeds)]  # fmt: skip


def random_units(lab: Lab) -> list[RandomUnits]:
    """Random units of the sizes of the pruned ones, for each sparsity."""
    pruning, own = lab.section("heuristic_core").pruning, teacher(lab)
    alike = [tuple(one for one in prunings(lab) if one.sparsity == sparsity) for sparsity in pruning.sparsities]
    return [RandomUnits(own, pruning.ablation, like, draw) for like, draw in product(alike, range(pruning.draws))]


def every_head(lab: Lab) -> list[tuple[int, int]]:
    """(layer, head) of all heads, counted from 0. A network from the hub is made for that."""
    layers, heads = network(lab).transformer.shape or units.shape_of(teacher(lab).checkpoint.load(lab))
    return list(product(range(layers), range(heads)))


def without_heads(lab: Lab, heads: tuple[tuple[int, int], ...]) -> WithoutHeads:
    """The last network without some heads."""
    return WithoutHeads(teacher(lab), lab.section("heuristic_core").pruning.ablation, tuple(sorted(heads)))


def every_step(lab: Lab) -> Iterator[Step]:
    """All steps that can be named before anything is made. Which heads are ablated together, pruning finds."""
    own = network(lab)
    yield from (step for step in (own.pretraining, own) if step)
    yield from (teacher(lab, step) for step in own.training.kept)
    yield from (*prunings(lab), *grid_prunings(lab), *random_units(lab), Attention(teacher(lab).checkpoint))
    if own.transformer.shape:
        yield from (without_heads(lab, (head,)) for head in every_head(lab))
