"""Structured pruning of a sentence-pair classifier, step by step (*The Heuristic Core*, sections 2 to 5).

A network is fine-tuned on pairs most of which a heuristic solves; some of its checkpoints are kept. Each is pruned to
attention heads and MLPs that keep its predictions, with many seeds; units are removed one by one and together. Every
step is an artefact, made once.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from subnet_utils.core.lab import CHECKPOINT, Lab
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.core.store import Artefact, save_json, save_table, save_tensors
from subnet_utils.masks import units
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import fingerprint
from subnet_utils.models.frozen import full_precision, sent
from subnet_utils.papers.break_it_down.base_models import precision_of
from subnet_utils.papers.heuristic_core.attention_patterns import example_maps, patterns
from subnet_utils.papers.heuristic_core.pair_networks import (
    SPECIAL,
    Encoded,
    body_of,
    published_network,
    published_tokenizer,
)
from subnet_utils.papers.heuristic_core.pair_pretraining import (
    on_device,
    own_of,
    pretrain_pairs,
    pretraining_spec,
    recipe_of,
    shuffled_batches,
    steps_of,
    stream,
)
from subnet_utils.papers.heuristic_core.pair_sets import (
    IN_DOMAIN,
    PairSets,
    data_spec,
    pair_sets,
    published_digest,
    settings_of,
    word_numbers,
)
from subnet_utils.papers.heuristic_core.tasks import inference
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import two_classes
from subnet_utils.training import TrainingDiverged, fit

CHUNK = 256
"""Pairs that are judged at once."""


@dataclass(frozen=True)
class PrunedUnits:
    """A checkpoint pruned to a target sparsity with a seed."""

    step: int
    sparsity: float
    seed: int

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its gates and its units depend on."""
        settings = settings_of(lab).pruning
        schedule = _schedule(lab, self.sparsity)
        own = settings.model_dump(include={"batch_size", "ablation", "mean_examples", "discretization"})
        own |= {"by_length": True} if settings.by_length else {}
        target = {"sparsity": self.sparsity, "seed": self.seed, "schedule": vars(schedule)}
        return checkpoint_spec(lab, self.step) | {"pruning": own, **target}


@dataclass(frozen=True)
class Units:
    """A checkpoint of which some heads, (layer, head) each, and MLPs are left; the others are ablated."""

    step: int
    heads: tuple[tuple[int, int], ...]
    mlps: tuple[int, ...]

    def spec(self, lab: Lab) -> dict[str, Any]:
        """What its accuracies depend on."""
        own = settings_of(lab).pruning.model_dump(include={"ablation", "mean_examples"})
        left = {"heads": [list(head) for head in sorted(self.heads)], "mlps": sorted(self.mlps)}
        return checkpoint_spec(lab, self.step) | {"units": left, "pruning": own}

    @classmethod
    def of(cls, step: int, subnetwork: Subnetwork) -> "Units":
        """The units of a unit subnetwork."""
        heads = tuple((int(i), int(j)) for i, j in subnetwork.masks["heads"].nonzero())
        return cls(step, heads, tuple(int(i) for i in subnetwork.masks["mlps"].nonzero()[:, 0]))


def network_spec(lab: Lab) -> dict[str, Any]:
    """What the fine-tuned network depends on; of files and published weights their content, not where they lie."""
    settings = settings_of(lab)
    architecture = settings.architecture.model_dump()
    if settings.architecture.family == "published":
        architecture["weights"] = published_digest(settings.architecture.weights, settings.architecture.max_length)
    pretraining = pretraining_spec(lab) if settings.pretraining else None
    own = {"architecture": architecture, "data": data_spec(lab), "pretraining": pretraining}
    own["finetuning"] = settings.finetuning.model_dump()
    if settings.architecture.family == "published":
        own["precision"] = lab.study.compute.precision
    return own


def fine_tune(lab: Lab) -> Artefact:
    """The fine-tuned network: weights of its checkpoints, and accuracies on every set after every interval."""
    return lab.store.make("pair_network", network_spec(lab), partial(_build_network, lab))


def checkpoint_spec(lab: Lab, step: int) -> dict[str, Any]:
    """What depends on a checkpoint depends on: the bits of its weights, too, which another machine may round anew.

    Raises ValueError for a step without a checkpoint.
    """
    bits = fine_tune(lab).json("manifest").get(f"weights_{step}.safetensors")
    if bits is None:
        raise ValueError(f"no checkpoint at step {step}; add it to inference.finetuning.checkpoints")
    return {"network": network_spec(lab), "step": step, "bits": bits}


def teacher(lab: Lab, step: int) -> Artefact:
    """What pruning wants of a checkpoint: its log-probabilities of the training pairs, its units' mean activations."""
    spec = checkpoint_spec(lab, step) | {"mean_examples": settings_of(lab).pruning.mean_examples}
    return lab.store.make("pair_teacher", spec, partial(_build_teacher, lab, step))


def prune_units(lab: Lab, pruned: PrunedUnits) -> Artefact:
    """A pruned checkpoint: scores, units, history, accuracies; or why there is none, under `fault`."""
    return lab.store.make("pruned_units", pruned.spec(lab), partial(_build_pruned, lab, pruned))


def judge_units(lab: Lab, kept: Units) -> Artefact:
    """Accuracies of a checkpoint with some of its units."""
    return lab.store.make("judged_units", kept.spec(lab), partial(_build_judged, lab, kept))


def attention_of(lab: Lab, step: int) -> Artefact:
    """Where every head looks (`patterns`), and maps of a few pairs."""
    return lab.store.make("attention", checkpoint_spec(lab, step), partial(_build_attention, lab, step))


def load_units(artefact: Artefact) -> Subnetwork:
    """The units that are left of a pruned checkpoint. Raises TrainingDiverged if pruning ended without."""
    fault = artefact.json("result").get("fault")
    if fault:
        raise TrainingDiverged(fault)
    return Subnetwork.load(artefact.path / "subnetwork.safetensors")


def load_checkpoint(lab: Lab, step: int) -> nn.Module:
    """The network after a number of steps, frozen. One copy serves all: do not change it."""
    return _loaded(lab, step, fine_tune(lab).key)


def last_step(lab: Lab) -> int:
    """Steps of fine-tuning."""
    return settings_of(lab).finetuning.steps


def shape(lab: Lab) -> tuple[int, int]:
    """Layers, and heads in each."""
    return units.shape_of(load_checkpoint(lab, last_step(lab)))


def _fresh(lab: Lab) -> nn.Module:
    """The network before fine-tuning."""
    settings = settings_of(lab)
    seed = generator_for("pair network", settings.finetuning.seed).initial_seed() % 2**31
    classes = len(settings.data.classes)
    if settings.architecture.family == "published":
        folder = settings.architecture.weights
        return published_network(folder, classes=classes, seed=seed).to(lab.device)
    network = own_of(lab, "classifier", seed)
    if settings.pretraining is not None:
        fits = body_of(network).load_state_dict(pretrain_pairs(lab).tensors("weights"), strict=False)
        if fits.unexpected_keys or any("pooler" not in name for name in fits.missing_keys):  # pretraining has no pooler
            raise ValueError(f"pretrained weights do not fit {type(network).__name__}: {fits}")
    return network.to(lab.device)


@lru_cache(maxsize=4)
def _loaded(lab: Lab, step: int, key: str) -> nn.Module:
    network = _fresh(lab)
    network.load_state_dict(fine_tune(lab).tensors(f"weights_{step}"))
    return network.eval().requires_grad_(False)


def _build_network(lab: Lab, folder: Path) -> None:
    settings = settings_of(lab)
    training, data, precision = settings.finetuning, pair_sets(lab), _precision(lab)
    network = _fresh(lab).train()
    kept = {*training.checkpoints, training.steps}

    def one_interval(interval: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        torch.manual_seed(generator_for("dropout", training.seed, interval).initial_seed())
        about = ("fine-tuning", training.seed)
        for rows in stream(len(data.train), training.batch_size, about, steps_of(training, interval)):
            yield data.train.batch(rows), data.train.labels[rows]

    def loss(batch: tuple[dict[str, Tensor], Tensor], interval: int) -> Tensor:
        inputs, labels = batch
        with precision():
            logits = network(**on_device(inputs, lab.device)).logits
        return cross_entropy(logits.float(), sent(labels, lab.device))

    def file(interval: int) -> dict[str, float]:
        step = steps_of(training, interval).stop
        if step in kept:
            save_tensors(folder / f"weights_{step}.safetensors", network.state_dict())
        return {"step": step}

    def observe(interval: int) -> dict[str, float]:
        network.eval()
        found = _accuracies(network, data)
        network.train()
        return found

    recipe = recipe_of(training, weight_decay=training.weight_decay)
    with separate_randomness():
        history = fit(
            dict(network.named_parameters()), one_interval, loss, recipe=recipe, observe=observe, file=file,
            checkpoint=folder / CHECKPOINT, label=f"{settings.model}: fine-tuning",
        )  # fmt: skip
    save_table(folder / "history.parquet", history)
    last = {name: float(history[name].iloc[-1]) for name in data.sets}
    save_json(folder / "result.json", {"accuracies": last, "network": fingerprint(network)})


def _build_teacher(lab: Lab, step: int, folder: Path) -> None:
    network, data = load_checkpoint(lab, step), pair_sets(lab)
    logits = _logits(network, data.train)
    first = torch.arange(min(len(data.train), settings_of(lab).pruning.mean_examples))
    means = units.mean_activations(network, (data.train.batch(rows) for rows in first.split(CHUNK)))
    save_tensors(folder / "teacher.safetensors", {"log_probabilities": log_softmax(logits, dim=-1), **means})


def _build_pruned(lab: Lab, pruned: PrunedUnits, folder: Path) -> None:
    settings, data = settings_of(lab), pair_sets(lab)
    pruning, network = settings.pruning, load_checkpoint(lab, pruned.step)
    known = teacher(lab, pruned.step).tensors("teacher")

    def batches(generator: torch.Generator) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        lengths = data.train.inputs["attention_mask"].sum(dim=1) if pruning.by_length else None
        while True:
            for rows in shuffled_batches(len(data.train), pruning.batch_size, generator, lengths):
                yield data.train.batch(rows), known["log_probabilities"][rows]

    means = _means(lab, pruned.step)
    try:
        found = units.prune(
            network, batches, means, sparsity=pruned.sparsity, schedule=_schedule(lab, pruned.sparsity),
            seed=pruned.seed, precision=_precision(lab), checkpoint=folder / CHECKPOINT,
            label=f"{settings.model}, step {pruned.step}: {pruned.sparsity:.0%}, seed {pruned.seed}",
        )  # fmt: skip
    except TrainingDiverged as error:
        save_json(folder / "result.json", {"fault": str(error)})
        return
    of = {"sparsity": pruned.sparsity, "network": fingerprint(network)}
    exact, threshold = units.sparsest_of(found.scores, **of), units.nearest_by_threshold(found.scores, **of)
    left = exact if pruning.discretization == "exact" else threshold
    save_tensors(folder / "scores.safetensors", found.scores)
    left.save(folder / "subnetwork.safetensors")
    save_table(folder / "history.parquet", found.history)
    with units.gated(network, left, means):
        accuracies = _accuracies(network, data)
    sizes = {"achieved_sparsity": 1 - left.density, "threshold_sparsity": 1 - threshold.density}
    save_json(folder / "result.json", {"accuracies": accuracies} | sizes)


def _build_judged(lab: Lab, kept: Units, folder: Path) -> None:
    network = load_checkpoint(lab, kept.step)
    layers, heads = units.shape_of(network)
    gates = {"heads": torch.zeros(layers, heads, dtype=torch.bool), "mlps": torch.zeros(layers, dtype=torch.bool)}
    for layer, head in kept.heads:
        gates["heads"][layer, head] = True
    gates["mlps"][list(kept.mlps)] = True
    with units.gated(network, gates, _means(lab, kept.step)):
        accuracies = _accuracies(network, pair_sets(lab))
    save_json(folder / "result.json", {"accuracies": accuracies})


def _build_attention(lab: Lab, step: int, folder: Path) -> None:
    network, data = load_checkpoint(lab, step), pair_sets(lab)
    examples = settings_of(lab).data.out_of_domain[:4]
    with _attending(network), full_precision(lab.device):
        save_table(folder / "patterns.parquet", patterns(network, data.sets[IN_DOMAIN], word_numbers(lab)))
        maps = {kind: example_maps(network, data.sets[kind], 0) for kind in examples}
    save_tensors(folder / "maps.safetensors", maps)
    save_json(folder / "tokens.json", {kind: _tokens(lab, kind) for kind in examples})


def _tokens(lab: Lab, kind: str) -> list[str]:
    """Tokens of a set's first pair, as text."""
    data, architecture = pair_sets(lab), settings_of(lab).architecture
    ids = data.sets[kind].batch(torch.tensor([0]))["input_ids"][0].tolist()
    if architecture.family == "published":
        return published_tokenizer(architecture.weights).convert_ids_to_tokens(ids)
    return [(*SPECIAL, *inference.words())[number] for number in ids]


@contextmanager
def _attending(network: nn.Module) -> Iterator[None]:
    """The network with attention computed in the open, so that its weights can be seen."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def _means(lab: Lab, step: int) -> dict[str, Tensor] | None:
    if settings_of(lab).pruning.ablation == "zero":
        return None
    known = teacher(lab, step).tensors("teacher")
    return {name: known[name].to(lab.device) for name in ("heads", "mlps")}


def _schedule(lab: Lab, sparsity: float) -> units.Schedule:
    pruning = settings_of(lab).pruning
    own = {"learning_rate": pruning.learning_rate, "rate_warmup": pruning.rate_warmup, "start": pruning.start}
    length = vars(units.Schedule.of_paper(sparsity))
    if pruning.steps is not None:
        length = {"steps": pruning.steps, "warmup": max(1, round(pruning.steps * pruning.warmup_share))}
    return units.Schedule(steps=length["steps"], warmup=length["warmup"], **own)


def _precision(lab: Lab) -> Callable[[], AbstractContextManager]:
    """Of training: bfloat16 does not pay in small networks, where casts cost more than products save."""
    return precision_of(lab) if settings_of(lab).architecture.family == "published" else nullcontext


@torch.no_grad()
def _logits(network: nn.Module, data: Encoded) -> Tensor:
    """Logits [n, classes] of all pairs; those of one length go together."""
    order = data.inputs["attention_mask"].sum(dim=1).argsort(stable=True)
    device = next(network.parameters()).device
    with full_precision(device):
        found = [network(**on_device(data.batch(rows), device)).logits.float().cpu() for rows in order.split(CHUNK)]
    return torch.cat(found)[order.argsort()]


def _accuracies(network: nn.Module, pairs: PairSets) -> dict[str, float]:
    """Accuracy on every set; of all but the first in HANS's two classes."""
    found = {}
    for name, data in pairs.sets.items():
        predicted = _logits(network, data).argmax(dim=-1)
        if name != IN_DOMAIN:
            predicted = two_classes(predicted, entailment=pairs.entailed_class)
        found[name] = float((predicted == data.labels).double().mean())
    return found
