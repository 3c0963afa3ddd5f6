"""A language model on the pairs of a study, before it is fine-tuned; and training counted in steps.

Predicting hidden words of two sentences, many of which occur in both, teaches a network to look for a word in the other
sentence, as BERT's pretraining does.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from subnet_utils.core.lab import CHECKPOINT, Lab
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.core.store import Artefact, save_json, save_table, save_tensors
from subnet_utils.models.frozen import sent
from subnet_utils.papers.heuristic_core.pair_networks import MASK, NO_WORD, Encoded, body_of, own_network
from subnet_utils.papers.heuristic_core.pair_sets import encoder_of, judged_pairs, settings_of
from subnet_utils.papers.heuristic_core.section import FineTuning, PairPretraining
from subnet_utils.papers.heuristic_core.tasks import inference
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import Pairs
from subnet_utils.tasks.hidden_words import make_gaps
from subnet_utils.training import Recipe, fit

Cloze = tuple[dict[str, Tensor], Tensor, Tensor]
"""Inputs, where words are to be predicted [b, T], and those words [k]."""
PRETRAINING_DECAY = 0.01
BUCKET = 16
"""Batches whose rows are sorted by length together."""
COUNTER_IN_PRETRAINING = 0.25
"""Half of the pairs that are not entailed; which pairs are entailed, pretraining does not say."""


def pretrain_pairs(lab: Lab) -> Artefact:
    """A language model on the generated pairs: weights of its body, history; `accuracy` on words that it did not see.

    Raises ValueError for a study whose network is not pretrained here.
    """
    settings = settings_of(lab)
    if settings.pretraining is None:
        raise ValueError(f"'{settings.model}' is not pretrained here; add 'pretraining'")
    return lab.store.make("pair_pretraining", pretraining_spec(lab), partial(_build_pretraining, lab))


def pretraining_spec(lab: Lab) -> dict[str, Any]:
    """What the language model depends on: also the pairs that networks are judged on, which it must not read."""
    settings = settings_of(lab)
    return {"architecture": settings.architecture.model_dump(), "pretraining": settings.pretraining.model_dump(),
            "judged": settings.data.model_dump()}  # fmt: skip


def pretraining_pairs(lab: Lab) -> dict[str, Pairs]:
    """Pairs to be read without labels: train, validation. None of them is among those that networks are judged on."""
    training = settings_of(lab).pretraining
    sizes = {"train": training.pairs, "validation": max(1, training.pairs // 20)}
    return inference.mixture(sizes, counter=COUNTER_IN_PRETRAINING, seed=training.seed, about="pretraining",
                             besides=judged_pairs(lab))  # fmt: skip


def own_of(lab: Lab, kind: str, seed: int) -> nn.Module:
    """The study's own network, classifier or language model, from random weights."""
    settings = settings_of(lab)
    vocabulary, classes = len(inference.words()) + MASK + 1, len(settings.data.classes)
    architecture = settings.architecture.model_dump()
    return own_network(architecture, kind=kind, vocabulary=vocabulary, classes=classes, seed=seed)


def _build_pretraining(lab: Lab, folder: Path) -> None:
    settings = settings_of(lab)
    training, causal = settings.pretraining, settings.architecture.family == "gpt2"
    network = own_of(lab, "language model", training.seed).to(lab.device)
    train, validation = map(encoder_of(lab), pretraining_pairs(lab).values())
    clozes = partial(_next_words if causal else _hidden_words, training)

    def one_interval(interval: int) -> Iterator[Cloze]:
        generator = generator_for("pair pretraining", training.seed, interval)
        torch.manual_seed(generator_for("dropout", training.seed, interval).initial_seed())
        about = ("pair pretraining order", training.seed)
        for rows in stream(len(train), training.batch_size, about, steps_of(training, interval)):
            yield clozes(train, rows, generator)

    def loss(cloze: Cloze, interval: int) -> Tensor:
        inputs, where, words = cloze
        logits = network(**on_device(inputs, lab.device)).logits[sent(where, lab.device)]
        return cross_entropy(logits, sent(words, lab.device))

    @torch.no_grad()
    def observe(interval: int) -> dict[str, float]:
        inputs, where, words = clozes(validation, torch.arange(len(validation)), generator_for("pair validation"))
        logits = network.eval()(**on_device(inputs, lab.device)).logits.cpu()[where]
        network.train()
        right = (logits.argmax(dim=-1) == words).double().mean()
        return {"step": steps_of(training, interval).stop, "accuracy": float(right)}

    recipe = recipe_of(training, weight_decay=PRETRAINING_DECAY)
    with separate_randomness():
        history = fit(
            dict(network.train().named_parameters()), one_interval, loss, recipe=recipe, observe=observe,
            checkpoint=folder / CHECKPOINT, label=f"{settings.model}: {'next' if causal else 'hidden'} words",
        )  # fmt: skip
    save_tensors(folder / "weights.safetensors", body_of(network).state_dict())
    save_table(folder / "history.parquet", history)
    save_json(folder / "result.json", {"accuracy": float(history["accuracy"].iloc[-1])})


def _hidden_words(training: PairPretraining, data: Encoded, rows: Tensor, generator: torch.Generator) -> Cloze:
    inputs = data.batch(rows)
    tokens, segments = inputs["input_ids"], data.segments[rows, : inputs["input_ids"].shape[1]]
    lexicon = torch.arange(MASK + 1, len(inference.words()) + MASK + 1)
    words = segments == 1 if training.second_only else segments != NO_WORD
    gaps = make_gaps(tokens, share=training.share, mask_id=MASK, lexicon=lexicon, generator=generator, words=words)
    return inputs | {"input_ids": gaps.inputs}, gaps.where, gaps.words


def _next_words(training: PairPretraining, data: Encoded, rows: Tensor, generator: torch.Generator) -> Cloze:
    inputs = data.batch(rows)
    where = inputs["attention_mask"].roll(-1, dims=1) > 0
    where[:, -1] = False
    return inputs, where, inputs["input_ids"].roll(-1, dims=1)[where]


def recipe_of(training: FineTuning | PairPretraining, *, weight_decay: float) -> Recipe:
    """An interval of steps counts as an epoch: the learning rate changes from one to the next."""
    intervals, warmup = (-(-steps // training.interval) for steps in (training.steps, training.warmup))
    return Recipe(training.learning_rate, intervals, training.seed, weight_decay=weight_decay, linear=True,
                  warmup=min(warmup, intervals - 1))  # fmt: skip


def steps_of(training: FineTuning | PairPretraining, interval: int) -> range:
    """Numbers of an interval's steps; the last one may be shorter."""
    first = interval * training.interval
    return range(first, min(first + training.interval, training.steps))


def stream(count: int, size: int, about: tuple, steps: range) -> Iterator[Tensor]:
    """Rows of some batches of an endless supply of `count` rows, in which every pass has an order of its own."""
    in_pass = -(-count // size)
    order, now = [], -1
    for step in steps:
        if step // in_pass != now:
            now = step // in_pass
            order = torch.randperm(count, generator=generator_for(*about, now)).split(size)
        yield order[step % in_pass]


def shuffled_batches(
    count: int, size: int, generator: torch.Generator, lengths: Tensor | None = None
) -> Sequence[Tensor]:
    """All rows once, in random batches; of rows of like length where lengths [count] are given.

    Then rows are sorted by length within random groups of BUCKET batches, and the batches shuffled: no batch is much
    longer than most of its rows, and which rows meet still changes with every pass.
    """
    order = torch.randperm(count, generator=generator)
    if lengths is None:
        return order.split(size)
    groups = [group[lengths[group].argsort(stable=True)] for group in order.split(size * BUCKET)]
    batches = [batch for group in groups for batch in group.split(size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def on_device(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same on a device."""
    return {name: sent(tensor, device) for name, tensor in inputs.items()}
