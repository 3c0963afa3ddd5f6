"""Language networks: BERT of any size, whose embedding of a sentence is the last hidden state of [CLS].

*Break It Down* (section 5, appendix B) trains BERT-small, 4 layers of width 512 with 8 heads, from scratch and from
pretrained weights. Modules and initialization are those of transformers' BertModel; the forward pass through a layer is
written out, so that a layer is a stage and the last one computes [CLS] alone.

A state is `(tokens,)` at first, integers [m, L] with 0 for padding on the right, and then `(hidden, keep)`:
floats [m, L, width], and booleans [m, L] that say which tokens are not padding.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from torch.nn.utils import skip_init
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer, BertPooler

from subnet_utils.core.messages import first_line
from subnet_utils.core.seeds import generator_for
from subnet_utils.models.layers import attend, packed, spread
from subnet_utils.models.staged import StagedModel, State, require_multiple, require_positive

PADDING = 0
DEVIATION = 0.02
"""Of the weights that transformers draws, whatever the width."""
HEAD = "prediction head"
"""What the head's weights are drawn for."""
NEEDED = "give a folder with config.json and model.safetensors, or a name on the model hub"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Embeddings(nn.Module):
    """Token ids [m, L] -> (hidden [m, L, width], keep [m, L])."""

    def __init__(self, bert: BertEmbeddings) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings = bert.word_embeddings, bert.position_embeddings
        self.token_type_embeddings, self.LayerNorm = bert.token_type_embeddings, bert.LayerNorm

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The first hidden state. Raises ValueError for sentences longer than the positions that exist."""
        length, longest = tokens.shape[1], self.position_embeddings.num_embeddings
        if length > longest:
            raise ValueError(f"sentences of {length} tokens exceed max_length {longest}; raise max_length")
        # All sentences are of token type 0.
        hidden = self.word_embeddings(tokens) + self.token_type_embeddings.weight[0]
        hidden = hidden + self.position_embeddings.weight[:length]
        return self.LayerNorm(hidden), tokens != PADDING


class Layer(nn.Module):
    """One transformer layer: (hidden, keep) -> (hidden, keep).

    first_only: compute the new hidden state of [CLS] alone, all that is needed of the last layer.
    """

    def __init__(self, layer: BertLayer, *, first_only: bool) -> None:
        super().__init__()
        self.attention, self.intermediate, self.output = layer.attention, layer.intermediate, layer.output
        self.first_only = first_only

    def forward(self, hidden: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state, [m, L, width], or [m, 1, width] with first_only."""
        if self.first_only:
            first = hidden[:, :1]
            return self._rest(self._attend(self._project(first, hidden), keep), first), keep[:, :1]
        positions = packed(keep)
        if positions is None:
            return self._rest(self._attend(self._project(hidden, hidden), keep), hidden), keep
        tokens = hidden.flatten(0, 1).index_select(0, positions)
        projected = [
            spread(part, positions, keep.numel()).unflatten(0, keep.shape) for part in self._project(tokens, tokens)
        ]
        context = self._attend(projected, keep).flatten(0, 1).index_select(0, positions)
        return spread(self._rest(context, tokens), positions, keep.numel()).view(hidden.shape), keep

    def _project(self, readers: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the tokens that read, keys and values of the tokens that they read."""
        own = self.attention.self
        return own.query(readers), own.key(hidden), own.value(hidden)

    def _attend(self, projected: Sequence[Tensor], keep: Tensor) -> Tensor:
        """What queries [m, readers, width] read of keys and values [m, L, width]."""
        heads = self.attention.self.num_attention_heads
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in projected)
        return attend(query, key, value, keep[:, None, None, :]).transpose(1, 2).flatten(2)

    def _rest(self, context: Tensor, reader: Tensor) -> Tensor:
        """All that follows attention, token by token."""
        attended = self.attention.output(context, reader)
        return self.output(self.intermediate(attended), attended)


class Pooler(nn.Module):
    """(hidden, keep) -> the hidden state of [CLS], [m, width].

    BERT's pooler is held but not used: the paper counts its weights among the masked ones (12,845,056 for BERT-small,
    Table 8), although the embedding is read off before it.
    """

    def __init__(self, pooler: BertPooler) -> None:
        super().__init__()
        self.dense = pooler.dense

    def forward(self, hidden: Tensor, keep: Tensor) -> Tensor:
        """Embeddings [m, width]."""
        return hidden[:, 0]


def bert(
    *,
    layers: int,
    width: int,
    heads: int,
    mlp_width: int,
    vocabulary: int,
    max_length: int = 512,
    pretrained: str | None = None,
    deviation: float = DEVIATION,
) -> StagedModel:
    """A BERT encoder without dropout, with stages `embeddings`, `layer_1` to `layer_n` and `pooler`.

    vocabulary: number of token ids; max_length: positions; pretrained: a folder, or a name on the model hub,
    to take the weights from; its sizes must be the ones asked for; deviation: of weights that are drawn.
    BERT-small is (4, 512, 8, 2048) with vocabulary 30522. Raises ValueError for sizes that make no network, and
    for pretrained weights that are missing or do not fit.
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "mlp_width": mlp_width}
    require_positive(**sizes, vocabulary=vocabulary, max_length=max_length)
    require_multiple(width, heads)
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=mlp_width,
        vocab_size=vocabulary, max_position_embeddings=max_length, pad_token_id=PADDING, initializer_range=deviation,
        **NO_DROPOUT,
    )  # fmt: skip
    network = BertModel(config) if pretrained is None else _load(pretrained, config)
    stages = {"embeddings": Embeddings(network.embeddings)}
    for i, layer in enumerate(network.encoder.layer):
        stages[f"layer_{i + 1}"] = Layer(layer, first_only=i == layers - 1)
    stages["pooler"] = Pooler(network.pooler)
    return StagedModel(stages, trim=trim_padding)


class WordPredictor(nn.Module):
    """A BERT with its prediction head (Devlin et al. 2019): token ids [m, L] -> logits of the words that are hidden.

    model: the BERT; both share their weights, the pooler is left out. seed: of the head's weights. The head's last
    layer is the table of word embeddings. hidden: the token that stands in the place of a hidden word.
    """

    def __init__(self, model: StagedModel, *, seed: int, hidden: int) -> None:
        super().__init__()
        self.encoder, self.hidden = every_token(model), hidden
        vocabulary, width = self.table.shape
        self.dense, self.norm = skip_init(nn.Linear, width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        with torch.no_grad():
            self.dense.weight.copy_(DEVIATION * torch.randn(width, width, generator=generator_for(HEAD, seed)))
            self.dense.bias.zero_()

    @property
    def table(self) -> nn.Parameter:
        """The word embeddings [vocabulary, width]."""
        return self.encoder.stages["embeddings"].word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [m, words, vocabulary] where words are hidden: as many in each sentence."""
        return self.predict(tokens, tokens == self.hidden).unflatten(0, (len(tokens), -1))

    def predict(self, tokens: Tensor, where: Tensor) -> Tensor:
        """Logits [k, vocabulary] at k positions; where: booleans [m, L]."""
        found = self.norm(gelu(self.dense(self.encoder(tokens)[0][where])))
        return linear(found, self.table, self.bias)


def every_token(model: StagedModel) -> StagedModel:
    """A BERT up to its pooler, with the same weights, that returns the last hidden state of all tokens, not of [CLS].

    A state (tokens [m, L],) becomes (hidden [m, L, width], keep [m, L]).
    """
    prefix, _ = model.cut("pooler")
    stages = prefix.stages.items()
    whole = {name: Layer(stage, first_only=False) if isinstance(stage, Layer) else stage for name, stage in stages}
    return StagedModel(whole, trim=trim_padding)


def trim_padding(state: State) -> State:
    """The state without the columns after its longest sentence, so that short sentences cost less."""
    keep = state[0] != PADDING if len(state) == 1 else state[1]
    length = max(1, int(keep.any(dim=0).sum()))  # padding is on the right; a GPU is waited for once
    return tuple(tensor[:, :length] for tensor in state)


def _load(pretrained: str, expected: BertConfig) -> BertModel:
    """A pretrained network. Raises ValueError if it cannot be read, lacks more than the pooler or is another one."""
    folder = Path(pretrained).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or pretrained.startswith(".") or len(folder.parts) > 2):
        raise ValueError(f"pretrained '{pretrained}' is not a folder; {NEEDED}")
    source = str(folder) if folder.is_dir() else pretrained
    options = {"dtype": torch.float32, "local_files_only": folder.is_dir(), **NO_DROPOUT}
    options["use_safetensors"] = folder.is_dir() or None  # BERT-small's own on the hub are of another format
    try:
        network, report = BertModel.from_pretrained(source, output_loading_info=True, **options)
    except Exception as error:  # transformers, its hub client and safetensors raise many unrelated types
        raise ValueError(f"pretrained '{pretrained}' cannot be loaded: {first_line(error)}; {NEEDED}") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise ValueError(f"pretrained '{pretrained}' lacks {len(missing)} weights, such as '{missing[0]}'")
    larger = ("vocab_size", "max_position_embeddings")
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", *larger):
        found, asked = getattr(network.config, name), getattr(expected, name)
        if found < asked or found > asked and name not in larger:
            raise ValueError(f"pretrained '{pretrained}' has {name} {found}, the architecture asks for {asked}")
    return network
