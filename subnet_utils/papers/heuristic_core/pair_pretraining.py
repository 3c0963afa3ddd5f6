"""A language model on generated pairs, before it is fine-tuned.

Predicting hidden words of two sentences, many of which occur in both, teaches a network to look for a word in the other
sentence, as BERT's pretraining does.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.models.frozen import sent
from subnet_utils.papers.heuristic_core.pair_networks import MASK, NO_WORD, Encoded, Transformer, own_network
from subnet_utils.papers.heuristic_core.pair_sets import PairData
from subnet_utils.papers.heuristic_core.section import PairPretraining
from subnet_utils.papers.heuristic_core.step_training import on_device, train
from subnet_utils.tasks import inference
from subnet_utils.tasks.hidden_words import make_gaps

Cloze = tuple[dict[str, Tensor], Tensor, Tensor]
"""Inputs, where words are to be predicted [b, T], and those words [k]."""


@dataclass(frozen=True)
class PairLanguageModel(Step):
    """A language model on the generated pairs: weights of its body, history; `accuracy` on words that it did not see.
    judged: the pairs that networks are judged on, which it must not read. `load` gives the body's weights."""

    transformer: Transformer
    training: PairPretraining
    judged: PairData
    model: str = field(default="", compare=False)

    def pairs(self) -> dict[str, pd.DataFrame]:
        """Pairs to be read without labels: train, validation. None of them is among those that are judged."""
        sizes = {"train": self.training.pairs, "validation": max(1, self.training.pairs // 20)}
        # .25: half of the pairs that are not entailed; which pairs are entailed, pretraining does not say
        return inference.mixture(sizes, counter=0.25, seed=self.training.seed, about="pretraining",
                                 besides=self.judged.judged())  # fmt: skip

    def build(self, lab: Lab, folder: Path) -> dict[str, float]:
        """Train it."""
        own = self.transformer.section
        head = "LMHeadModel" if own.family == "gpt2" else "ForMaskedLM"
        network = own_network(own, head, classes=2, seed=self.training.seed).to(lab.device)
        data, validation = map(self.transformer.encode, self.pairs().values())

        def loss(cloze: Cloze) -> Tensor:
            inputs, where, words = cloze
            logits = network(**on_device(inputs, lab.device)).logits[sent(where, lab.device)]
            return cross_entropy(logits, sent(words, lab.device))

        def observe() -> dict[str, float]:
            every = torch.arange(len(validation))
            inputs, where, words = self._cloze(validation, every, generator_for("pair validation"))
            logits = network(**on_device(inputs, lab.device)).logits.cpu()[where]
            return {"accuracy": float((logits.argmax(dim=-1) == words).double().mean())}

        history = train(
            network, len(data), lambda rows, generator: self._cloze(data, rows, generator), loss, self.training,
            about="pair pretraining", order="pair pretraining order", observe=observe,
            folder=folder, label=f"{self.model}: language model",
        )  # fmt: skip
        save_tensors(folder / "weights.safetensors", network.base_model.state_dict())
        save_table(folder / "history.parquet", history)
        return {"accuracy": float(history["accuracy"].iloc[-1])}

    def read(self, lab: Lab, artefact: Artefact) -> dict[str, Tensor]:
        """The body's weights."""
        return artefact.tensors("weights")

    def _cloze(self, data: Encoded, rows: Tensor, generator: torch.Generator) -> Cloze:
        """Hidden words of some rows; of GPT-2 the next words."""
        inputs = data.batch(rows)
        tokens = inputs["input_ids"]
        if self.transformer.section.family == "gpt2":
            where = inputs["attention_mask"].roll(-1, dims=1) > 0
            where[:, -1] = False
            return inputs, where, tokens.roll(-1, dims=1)[where]
        segments = data.segments[rows, : tokens.shape[1]]
        words = segments != NO_WORD
        lexicon = torch.arange(MASK + 1, len(inference.words()) + MASK + 1)
        gaps = make_gaps(tokens, share=self.training.share, mask_id=MASK, lexicon=lexicon, generator=generator,
                         words=words)  # fmt: skip
        return inputs | {"input_ids": gaps.inputs}, gaps.where, gaps.words
