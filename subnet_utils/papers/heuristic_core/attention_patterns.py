"""Where attention heads look: shares of attention on a repeated word, on neighbors and on separators.

*The Heuristic Core* (Figure 9) sorts heads so without a definition; ours is: the mean share of attention that words
give to (a) the same token in the other sentence, over words that have one, (b) the token before, (c) the token after,
(d) separators. A head's category is the largest of the four where that is at least one half. Only words that can look
there are asked: in a causal network none sees the token after it, nor the second sentence from the first.
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from subnet_utils.papers.heuristic_core.pair_networks import NO_WORD, Encoded
from subnet_utils.papers.heuristic_core.step_training import on_device

PATTERNS = ("repeated", "previous", "next", "separator")
CHUNK = 128


@torch.no_grad()
def patterns(network: nn.Module, data: Encoded, words: Tensor) -> pd.DataFrame:
    """A row for each head: layer, head (from 0), the four mean shares (nan where nothing can look there), the category.

    The network must give its attention weights (`attn_implementation` "eager"). words: int64 [vocabulary], a number for
    the word that each token writes, where a word has several tokens.
    """
    causal = network.config.model_type == "gpt2"
    sums: dict[str, Tensor | float] = dict.fromkeys(PATTERNS, 0.0)
    counts = dict.fromkeys(PATTERNS, 0)
    for rows in torch.arange(len(data)).split(CHUNK):
        inputs = data.batch(rows)
        tokens, real = inputs["input_ids"], inputs["attention_mask"] > 0
        segments = data.segments[rows, : tokens.shape[1]]
        attention = _attention(network, inputs)
        for name, (queries, keys) in _masks(words[tokens], segments, real, causal=causal).items():
            share = (attention * keys[None, :, None]).sum(dim=-1)
            sums[name] = sums[name] + (share * queries[None, :, None]).double().sum(dim=(1, 3))
            counts[name] += int(queries.sum())
    shares = {name: (total / (counts[name] or math.nan)).flatten().tolist() for name, total in sums.items()}
    heads = list(np.ndindex(*sums["repeated"].shape))
    table = pd.DataFrame(heads, columns=["layer", "head"]).assign(**shares)
    known = table[list(PATTERNS)].fillna(0.0)
    return table.assign(category=known.idxmax(axis=1).where(known.max(axis=1) >= 0.5, "other"))


@torch.no_grad()
def example_maps(network: nn.Module, data: Encoded, row: int) -> Tensor:
    """Attention of every head on one pair: [layers, heads, T, T], queries before keys."""
    return _attention(network, data.batch(torch.tensor([row])))[:, 0]


def _attention(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """[layers, m, heads, T, T]."""
    found = network(**on_device(inputs, network.device), output_attentions=True)
    return torch.stack(found.attentions).float().cpu()


def _masks(tokens: Tensor, segments: Tensor, real: Tensor, *, causal: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """For each pattern which tokens are asked, [m, T], and where it wants them to look, [m, T, T]."""
    words, steps = segments != NO_WORD, torch.arange(tokens.shape[1])
    others = (segments[:, :, None] != segments[:, None, :]) & words[:, :, None] & words[:, None, :]
    separator = real & ~words
    separator[:, 0] = False  # the first token is [CLS], or a word
    patterns = {"repeated": others & (tokens[:, :, None] == tokens[:, None, :]),
                "previous": (steps[:, None] - 1 == steps) & words[:, :, None],
                "next": (steps[:, None] + 1 == steps) & words[:, :, None],
                "separator": separator[:, None, :] & words[:, :, None]}  # fmt: skip
    if not causal:
        return {name: (keys.any(dim=-1) if name == "repeated" else words, keys) for name, keys in patterns.items()}
    seen = {name: keys & (steps[:, None] >= steps) for name, keys in patterns.items()}
    return {name: (keys.any(dim=-1), keys) for name, keys in seen.items()}
