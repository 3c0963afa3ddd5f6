"""Classifiers of sentence pairs: transformers' own BERT, RoBERTa and GPT-2, as *The Heuristic Core* fine-tunes them.

Either from random weights over a small list of words, or from published weights with their tokenizer.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from subnet_utils.core.messages import first_line
from subnet_utils.masks.units import shape_of
from subnet_utils.models import fingerprint
from subnet_utils.papers.heuristic_core.section import OwnTransformer, PublishedTransformer
from subnet_utils.tasks import inference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PADDING, _, FIRST, SEPARATOR, MASK = range(len(SPECIAL))
NO_WORD = -1
"""Segment of special tokens and padding."""
POSITIONS = 64
"""Tokens of a generated pair at most."""
NAMES = {"bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2"}


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
    """The network of a study before it is trained, and how it reads pairs.

    Published weights in a folder count by their content, wherever they lie; on the model hub by their name, since to
    name a step asks no hub. section: as in the study, but with a digest in place of the folder; weights: where they
    are; shape: layers, and heads in each, None of what is not at hand.
    """

    section: OwnTransformer | PublishedTransformer
    weights: str = field(default="", compare=False)
    shape: tuple[int, int] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, section: OwnTransformer | PublishedTransformer) -> "Transformer":
        """The network of a section. Raises PretrainedError for a folder that lacks something."""
        if section.family != "published":
            return cls(section, shape=(section.layers, section.heads))
        if not Path(section.weights).is_dir():
            return cls(section, section.weights)
        digest, shape = published_facts(section.weights, section.max_length)
        return cls(section.model_copy(update={"weights": digest}), section.weights, shape)

    @property
    def is_published(self) -> bool:
        """Whether its weights are."""
        return self.section.family == "published"

    @property
    def drops_before_gates(self) -> bool:
        """Whether it may have dropout between an MLP's last weights and its gate, as BERT and RoBERTa do."""
        return self.is_published or (self.section.family != "gpt2" and self.section.dropout > 0)

    def classifier(self, *, classes: int, seed: int) -> nn.Module:
        """The network with a new classifier drawn by the seed. Raises PretrainedError for absent weights."""
        if not self.is_published:
            return own_network(self.section, "ForSequenceClassification", classes=classes, seed=seed)
        digest, _ = published_facts(self.weights, self.section.max_length)
        if Path(self.weights).is_dir() and digest != self.section.weights:
            raise PretrainedError(f"'{self.weights}' has changed while this ran; run again")
        return published_network(self.weights, classes=classes, seed=seed)

    @property
    def tokenizer(self) -> Any:
        """What writes pairs as it takes them."""
        return published_tokenizer(self.weights) if self.is_published else own_tokenizer(self.section.family)

    def encode(self, pairs: pd.DataFrame) -> Encoded:
        """Pairs as it takes them, published ones cut at `max_length` tokens."""
        longest = self.section.max_length if self.is_published else POSITIONS
        texts = pairs["premise"].tolist(), pairs["hypothesis"].tolist()
        found = self.tokenizer(*texts, truncation=True, max_length=longest, padding=True, padding_side="right")
        segments = [[NO_WORD if which is None else which for which in found.sequence_ids(i)] for i in range(len(pairs))]
        inputs = {name: torch.tensor(found[name]) for name in found if name != "overflow_to_sample_mapping"}
        return Encoded(inputs, torch.tensor(segments), torch.tensor(pairs["label"].tolist()))

    def word_numbers(self) -> Tensor:
        """int64 [vocabulary]: equal for tokens that write one word. The byte pairs of GPT-2 and RoBERTa differ after a
        space, which they write \u0120, and at a sentence's start by their capital."""
        tokens = pd.Series(self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer))))
        return torch.from_numpy(pd.factorize(tokens.str.removeprefix("\u0120").str.lower())[0]).long()


@cache
def own_tokenizer(family: str) -> "PreTrainedTokenizerFast":
    """`[CLS] premise [SEP] hypothesis [SEP]`, a token a word of the generated pairs; of BERT sentences are numbered."""
    from transformers import PreTrainedTokenizerFast  # seconds to import

    words = Tokenizer(WordLevel({word: i for i, word in enumerate((*SPECIAL, *inference.words()))}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(pair="[CLS] $A:0 [SEP]:0 $B:1 [SEP]:1",
                                              special_tokens=[("[CLS]", FIRST), ("[SEP]", SEPARATOR)])  # fmt: skip
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (family == "bert")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]",
                                   model_input_names=names)  # fmt: skip


def own_network(architecture: OwnTransformer, head: str, *, classes: int, seed: int) -> nn.Module:
    """A network over the words of the generated pairs, from random weights. head: as in the names of transformers."""
    import transformers  # seconds to import

    gpt2, name = architecture.family == "gpt2", NAMES[architecture.family]
    dropouts = "resid_pdrop embd_pdrop attn_pdrop" if gpt2 else "hidden_dropout_prob attention_probs_dropout_prob"
    more = 0 if gpt2 else 2  # RoBERTa counts positions from the padding token's id + 1
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(own_tokenizer(architecture.family)), num_labels=classes, pad_token_id=PADDING,
        bos_token_id=FIRST, eos_token_id=SEPARATOR, hidden_size=architecture.width,
        num_hidden_layers=architecture.layers, num_attention_heads=architecture.heads,
        max_position_embeddings=POSITIONS + more, initializer_range=architecture.deviation,
        **{"n_inner" if gpt2 else "intermediate_size": architecture.mlp_width},
        **dict.fromkeys(dropouts.split(), architecture.dropout),
    )  # fmt: skip
    config.use_cache = False  # of keys and values, for generating word after word
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, name + head)(config)


def published_network(source: str, *, classes: int, seed: int) -> nn.Module:
    """Published weights with a new classifier drawn by the seed, also where they have one for any number of classes.
    Raises PretrainedError if they cannot be had."""
    import transformers  # seconds to import

    transformers.logging.set_verbosity_error()  # it reports that the classifier is new, which reads like a fault
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, report = _loaded(source, "weights", "AutoModelForSequenceClassification", num_labels=classes,
                                  dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True,
                                  output_loading_info=True)  # fmt: skip
        body = network.base_model_prefix + "."
        absent = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        old = [name for name in network.state_dict() if not name.startswith(body) and name not in absent]
        if old:
            drawn = type(network)(network.config).state_dict()
            network.load_state_dict({name: drawn[name] for name in old}, strict=False)
    missing = [name for name in sorted(absent) if name.startswith(body) and ".pooler." not in name]
    if missing:  # transformers draws them at random, as it does the new classifier
        needed = "fetch its model.safetensors again"
        raise PretrainedError(f"'{source}' lacks {len(missing)} weights, such as '{missing[0]}'; {needed}")
    network.config.use_cache = False
    if network.config.pad_token_id is None:  # GPT-2 has none: its tokenizer's end of text serves
        network.config.pad_token_id = network.config.eos_token_id
    return network


@lru_cache(maxsize=4)
def published_facts(weights: str, max_length: int) -> tuple[str, tuple[int, int]]:
    """Digest of published weights and of their tokenizer; their layers, and heads in each. Raises PretrainedError if
    they cannot be had, or have fewer positions than `max_length`."""
    words = published_tokenizer(weights).backend_tokenizer.to_str()
    network = published_network(weights, classes=2, seed=0)
    taken = network.config.pad_token_id + 1 if network.base_model_prefix == "roberta" else 0  # padding's
    positions = network.config.max_position_embeddings - taken
    if max_length > positions:
        needed = f"set heuristic_core.architecture.max_length to {positions} or less"
        raise PretrainedError(f"'{weights}' has {positions} positions, fewer than max_length {max_length}; {needed}")
    digest = hashlib.sha256(words.encode()).hexdigest()[:16]
    return f"{fingerprint(network.base_model)}-{digest}", shape_of(network)


def published_tokenizer(source: str) -> Any:
    """The tokenizer that belongs to published weights. Raises PretrainedError if it cannot be had."""
    tokenizer = _loaded(source, "tokenizer", "AutoTokenizer")
    words, why = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens), ""
    normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    if not words:  # what transformers makes up without a file
        why = "has no words; put its tokenizer.json beside the weights"
    elif getattr(normalizer, "lowercase", False) and any(word != word.lower() for word in words):
        cased = "makes all letters small, which its vocabulary does not"  # transformers' default without the file
        why = f"{cased}; put its tokenizer_config.json beside the weights"
    elif not tokenizer.is_fast:
        why = "has no tokenizer.json; give a folder that has one"
    if why:
        raise PretrainedError(f"the tokenizer of '{source}' {why}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _loaded(source: str, what: str, kind: str, **options: Any) -> Any:
    """What a class of transformers makes of a folder or a name on the model hub."""
    import transformers  # seconds to import

    try:
        options |= {"local_files_only": Path(source).is_dir(), "trust_remote_code": False}
        return getattr(transformers, kind).from_pretrained(source, **options)
    except Exception as error:  # transformers, its hub client and safetensors raise many unrelated types
        reason = first_line(error)
    folder = "a folder with config.json, model.safetensors and the tokenizer's files"
    raise PretrainedError(f"'{source}': {what} cannot be loaded ({reason}); give {folder}, or a name on the model hub")
