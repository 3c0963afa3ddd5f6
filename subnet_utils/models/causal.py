"""Causal language networks: GPT-2 of any size, which predicts every next symbol of a short sequence.

*Instilling Inductive Biases with Subnetworks* (section 4, appendix B.1) trains GPT-2 of 2 to 12 layers, width 128, on
modular arithmetic. Modules and initialization are those of transformers' GPT2Model, with the output tied to the
embeddings; the forward pass is written out, so that a layer is a stage and can be vectorized over networks.

A state is `(tokens,)` at first, integers [m, L], and then `(hidden,)`, floats [m, L, width]. The last stage returns
logits [m, L, vocabulary]: those at a position are for the symbol after it.
"""

import math

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from subnet_utils.models.staged import StagedModel, require_multiple, require_positive


class Embeddings(nn.Module):
    """Token ids [m, L] -> (hidden [m, L, width],)."""

    def __init__(self, network: GPT2Model) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = network.wte, network.wpe, network.drop

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """The first hidden state."""
        return (self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]),)


class Layer(nn.Module):
    """One transformer layer: (hidden,) -> (hidden,).

    last_only: compute the new hidden state of the last position alone, for a last layer of which no other is read.
    """

    def __init__(self, block: GPT2Block, *, last_only: bool) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = block.ln_1, block.attn, block.ln_2, block.mlp
        self.last_only = last_only

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        """The next hidden state, [m, L, width], or [m, 1, width] with last_only."""
        first = hidden.shape[1] - 1 if self.last_only else 0
        attended = hidden[:, first:] + self._attend(self.ln_1(hidden), first)
        return (attended + self.mlp(self.ln_2(attended)),)

    def _attend(self, hidden: Tensor, first: int) -> Tensor:
        length, width = hidden.shape[1:]
        weight, bias = self.attn.c_attn.weight, self.attn.c_attn.bias
        query = hidden[:, first:] @ weight[:, :width] + bias[:width]
        key, value = (hidden @ weight[:, width:] + bias[width:]).chunk(2, dim=-1)
        query, key, value = (
            part.unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2) for part in (query, key, value)
        )
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        later = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)[first:]
        shares = self.attn.attn_dropout(scores.masked_fill(later, -torch.inf).softmax(dim=-1))
        return self.attn.resid_dropout(self.attn.c_proj((shares @ value).transpose(1, 2).flatten(2)))


class Unembedding(nn.Module):
    """(hidden,) -> logits [m, L, vocabulary], by the embeddings' own weight."""

    def __init__(self, network: GPT2Model) -> None:
        super().__init__()
        self.ln_f, self.weight = network.ln_f, network.wte.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of the symbols that follow."""
        return self.ln_f(hidden) @ self.weight.T


def gpt2(
    *,
    layers: int,
    width: int,
    heads: int,
    mlp_width: int,
    vocabulary: int,
    max_length: int = 8,
    dropout: float = 0.0,
    last_only: bool = False,
) -> StagedModel:
    """A GPT-2 with stages `embeddings`, `layer_1` to `layer_n` and `unembedding`.

    vocabulary: number of symbols; max_length: positions; dropout: share of hidden entries dropped in training mode;
    last_only: give the logits after the last position alone, [m, 1, vocabulary], which is all that an answer takes.
    Raises ValueError for sizes that make no network.
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "mlp_width": mlp_width}
    require_positive(**sizes, vocabulary=vocabulary, max_length=max_length)
    require_multiple(width, heads)
    drops = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
    network = GPT2Model(
        GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, n_inner=mlp_width, vocab_size=vocabulary,
            n_positions=max_length, bos_token_id=None, eos_token_id=None, use_cache=False,
            activation_function="gelu_pytorch_tanh", **drops,  # GPT-2's own, gelu_new, in one pass
        )
    )  # fmt: skip
    stages = {"embeddings": Embeddings(network)}
    stages |= {
        f"layer_{i + 1}": Layer(block, last_only=last_only and i == layers - 1) for i, block in enumerate(network.h)
    }
    return StagedModel(stages | {"unembedding": Unembedding(network)})
