"""Classifiers of sentence pairs: transformers' own BERT, RoBERTa and GPT-2, as *The Heuristic Core* fine-tunes them.

Either from random weights over a small list of words, or from published weights with their tokenizer.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from subnet_utils.masks.units import shape_of
from subnet_utils.models import fingerprint
from subnet_utils.papers.heuristic_core.section import OwnTransformer, PublishedTransformer
from subnet_utils.papers.heuristic_core.tasks import inference
from subnet_utils.papers.heuristic_core.tasks.sentence_pairs import Pairs

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PADDING, UNKNOWN, FIRST, SEPARATOR, MASK = range(len(SPECIAL))
NO_WORD = -1
"""Segment of special tokens and padding."""
MORE_POSITIONS = 2
"""RoBERTa counts positions from the padding token's id + 1."""
POSITIONS = 64
"""Tokens of a generated pair at most."""
NAMES = {"bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2"}
SIZES = (
    {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
     "mlp_width": "intermediate_size"},
    {"width": "n_embd", "layers": "n_layer", "heads": "n_head", "mlp_width": "n_inner"},
)  # fmt: skip
"""What BERT and RoBERTa, and what GPT-2, call our sizes in transformers."""
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob"), ("resid_pdrop", "embd_pdrop", "attn_pdrop")
AFTER_SPACE = "\u0120"
"""How byte pairs write a space before a word."""


class PretrainedError(ValueError):
    """Published weights or their tokenizer cannot be had; the message names the place and what it must hold."""


@dataclass(frozen=True)
class Encoded:
    """Sentence pairs as a network takes them.

    inputs: `input_ids`, `attention_mask` and, for BERT, `token_type_ids`, each int64 [n, T], padded on the right.
    segments: int64 [n, T], 0 and 1 for the words of the two sentences, -1 elsewhere. labels: int64 [n].
    """

    inputs: Mapping[str, Tensor]
    segments: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """Inputs of some rows, without the columns that none of them needs."""
        length = int(self.inputs["attention_mask"][rows].sum(dim=1).max())
        return {name: tensor[rows, :length] for name, tensor in self.inputs.items()}


@dataclass(frozen=True)
class Transformer:
    """The network of a study before it is trained, and how it reads pairs. Published weights count by their content.

    section: as in the study, but of published weights with a digest; weights: where these are; shape: layers, and heads
    in each, (0, 0) if published weights are not there.
    """

    section: OwnTransformer | PublishedTransformer
    weights: str = field(default="", compare=False)
    shape: tuple[int, int] = field(default=(0, 0), compare=False)

    @classmethod
    def of(cls, section: OwnTransformer | PublishedTransformer) -> "Transformer":
        """The network of a section. Published weights that are not there stand for themselves; to load them fails."""
        if section.family != "published":
            return cls(section, shape=(section.layers, section.heads))
        try:
            digest, shape = published_facts(section.weights, section.max_length)
        except PretrainedError:
            digest, shape = section.weights, (0, 0)
        return cls(section.model_copy(update={"weights": digest}), section.weights, shape)

    @property
    def is_published(self) -> bool:
        """Whether its weights are."""
        return self.section.family == "published"

    def classifier(self, *, classes: int, seed: int) -> nn.Module:
        """The network with a new classifier drawn by the seed. Raises PretrainedError for absent weights."""
        if not self.is_published:
            return self._own("classifier", classes, seed)
        if published_facts(self.weights, self.section.max_length)[0] != self.section.weights:
            raise PretrainedError(f"'{self.weights}' has changed while this ran; run again")
        return published_network(self.weights, classes=classes, seed=seed)

    def language_model(self, *, seed: int) -> nn.Module:
        """Its body with an output for every word, from random weights."""
        return self._own("language model", 2, seed)

    def _own(self, kind: str, classes: int, seed: int) -> nn.Module:
        vocabulary = len(inference.words()) + len(SPECIAL)
        return own_network(self.section, kind=kind, vocabulary=vocabulary, classes=classes, seed=seed)

    def encode(self, pairs: Pairs) -> Encoded:
        """Pairs as it takes them."""
        texts = pairs.premises, pairs.hypotheses, pairs.labels
        if not self.is_published:
            return encode_words(*texts, words=inference.words(), types=self.section.family == "bert")
        tokenizer = published_tokenizer(self.weights)
        return encode_published(*texts, tokenizer=tokenizer, max_length=self.section.max_length)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens as text."""
        if self.is_published:
            return published_tokenizer(self.weights).convert_ids_to_tokens(ids)
        return [(*SPECIAL, *inference.words())[number] for number in ids]

    def word_numbers(self) -> Tensor | None:
        """int64 [vocabulary]: equal for tokens that write one word; None if there are no such tokens.

        The byte pairs of GPT-2 and RoBERTa differ after a space, and at a sentence's start by their capital.
        """
        if not self.is_published:
            return None
        tokens = pd.Series(self.tokens(range(len(published_tokenizer(self.weights)))))
        return torch.from_numpy(pd.factorize(tokens.str.removeprefix(AFTER_SPACE).str.lower())[0]).long()


def encode_words(
    premises: Sequence[str], hypotheses: Sequence[str], labels: Tensor, *, words: Sequence[str], types: bool
) -> Encoded:
    """`[CLS] premise [SEP] hypothesis [SEP]`, one token a word. words: all that there are; types: whether to number the
    sentences as BERT does.

    Raises ValueError for a word that is not among them.
    """
    numbers = {word: i for i, word in enumerate((*SPECIAL, *words))}
    tokens, segments = [], []
    for pair in zip(premises, hypotheses, strict=True):
        row, of = [FIRST], [NO_WORD]
        for sentence, text in enumerate(pair):
            missing = [word for word in text.split() if word not in numbers]
            if missing:
                raise ValueError(f"'{missing[0]}' is not among the {len(words)} words of this network; add it")
            row += [numbers[word] for word in text.split()] + [SEPARATOR]
            of += [sentence] * len(text.split()) + [NO_WORD]
        tokens.append(row)
        segments.append(of)
    input_ids, segment = _padded(tokens, PADDING), _padded(segments, NO_WORD)
    inputs = {"input_ids": input_ids, "attention_mask": (input_ids != PADDING).long()}
    if types:
        after_first = (input_ids == SEPARATOR).cumsum(dim=1).roll(1, dims=1)
        after_first[:, 0] = 0
        inputs["token_type_ids"] = ((after_first == 1) & (input_ids != PADDING)).long()
    return Encoded(inputs, segment, labels)


def encode_published(
    premises: Sequence[str], hypotheses: Sequence[str], labels: Tensor, *, tokenizer: Any, max_length: int
) -> Encoded:
    """Pairs as a published tokenizer writes them, cut at `max_length` tokens."""
    found = tokenizer(
        list(premises), list(hypotheses), truncation=True, max_length=max_length, padding=True, padding_side="right"
    )
    sentences = [[NO_WORD if which is None else which for which in found.sequence_ids(i)] for i in range(len(premises))]
    inputs = {name: torch.tensor(found[name]) for name in found if name != "overflow_to_sample_mapping"}
    return Encoded(inputs, torch.tensor(sentences), labels)


def own_network(architecture: OwnTransformer, *, kind: str, vocabulary: int, classes: int, seed: int) -> nn.Module:
    """A network from random weights.

    kind: "classifier", or "language model" for the same body with an output for every word.
    """
    own = {"vocab_size": vocabulary, "num_labels": classes, "pad_token_id": PADDING, "bos_token_id": FIRST,
           "eos_token_id": SEPARATOR, "initializer_range": architecture.deviation}  # fmt: skip
    own |= {name: getattr(architecture, ours) for ours, name in SIZES[architecture.family == "gpt2"].items()}
    own |= dict.fromkeys(DROPOUTS[architecture.family == "gpt2"], architecture.dropout)
    positions = "n_positions" if architecture.family == "gpt2" else "max_position_embeddings"
    own[positions] = POSITIONS if architecture.family == "gpt2" else POSITIONS + MORE_POSITIONS
    language = "LMHeadModel" if architecture.family == "gpt2" else "ForMaskedLM"
    name = NAMES[architecture.family]
    config = getattr(transformers, f"{name}Config")(**own)
    config.use_cache = False  # of keys and values, for generating word after word
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = {"classifier": "ForSequenceClassification", "language model": language}[kind]
        return getattr(transformers, name + head)(config)


def published_network(source: str, *, classes: int, seed: int) -> nn.Module:
    """Published weights with a new classifier drawn by the seed. Raises PretrainedError if they cannot be had."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with _quiet():
                network, report = AutoModelForSequenceClassification.from_pretrained(
                    source, num_labels=classes, dtype=torch.float32, use_safetensors=True,
                    local_files_only=_local(source), output_loading_info=True,
                )  # fmt: skip
        except Exception as error:  # transformers, its hub client and safetensors raise many unrelated types
            raise PretrainedError(_unloadable(source, "weights", error)) from None
    body = network.base_model_prefix + "."
    lacking = [name for name in sorted(report["missing_keys"]) if name.startswith(body) and ".pooler." not in name]
    if lacking:  # transformers draws them at random, as it does the new classifier
        needed = "fetch its model.safetensors again"
        raise PretrainedError(f"'{source}' lacks {len(lacking)} weights, such as '{lacking[0]}'; {needed}")
    network.config.use_cache = False
    if network.config.pad_token_id is None:  # GPT-2 has none: its tokenizer's end of text serves
        network.config.pad_token_id = network.config.eos_token_id
    return network


@lru_cache(maxsize=4)
def published_facts(weights: str, max_length: int) -> tuple[str, tuple[int, int]]:
    """Digest of published weights and of their tokenizer; their layers, and heads in each.

    Raises PretrainedError if they cannot be had, or have fewer positions than `max_length`.
    """
    words = published_tokenizer(weights).backend_tokenizer.to_str()
    network = published_network(weights, classes=2, seed=0)
    body = body_of(network)
    if max_length > (positions := positions_of(body)):
        needed = f"set heuristic_core.architecture.max_length to {positions} or less"
        raise PretrainedError(f"'{weights}' has {positions} positions, fewer than max_length {max_length}; {needed}")
    digest = hashlib.sha256(words.encode()).hexdigest()[:16]
    return f"{fingerprint(body)}-{digest}", shape_of(network)


def published_tokenizer(source: str) -> Any:
    """The tokenizer that belongs to published weights. Raises PretrainedError if it cannot be had."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=_local(source))
    except Exception as error:  # as above
        raise PretrainedError(_unloadable(source, "tokenizer", error)) from None
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # what transformers makes up without a file
        raise PretrainedError(f"the tokenizer of '{source}' has no words; put its tokenizer.json beside the weights")
    normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    words = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    if getattr(normalizer, "lowercase", False) and any(word != word.lower() for word in words):
        cased = "makes all letters small, which its vocabulary does not"  # transformers' default without the file
        raise PretrainedError(f"the tokenizer of '{source}' {cased}; put its tokenizer_config.json beside the weights")
    if not tokenizer.is_fast:
        raise PretrainedError(f"the tokenizer of '{source}' has no tokenizer.json; give a folder that has one")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report that the classifier is new, which reads like a fault."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def body_of(network: nn.Module) -> nn.Module:
    """A network without its head: what a language model and a classifier have in common."""
    return getattr(network, network.base_model_prefix)


def positions_of(body: nn.Module) -> int:
    """Tokens of a pair that a body has positions for: of RoBERTa's the first ones are padding's."""
    taken = body.config.pad_token_id + 1 if body.base_model_prefix == "roberta" else 0
    return body.config.max_position_embeddings - taken


def _local(source: str) -> bool:
    return Path(source).is_dir()


def _unloadable(source: str, what: str, error: Exception) -> str:
    lines = str(error).strip().splitlines()
    needed = "give a folder with config.json, model.safetensors and the tokenizer's files, or a name on the model hub"
    return f"'{source}': {what} cannot be loaded ({lines[0] if lines else type(error).__name__}); {needed}"


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
