"""Words of sentences to be predicted: the task of a masked language model (Devlin et al. 2019, section 3.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from subnet_utils.models.frozen import sent

PADDING = 0
"""Token id of padding."""


@dataclass(frozen=True)
class Gaps:
    """Sentences with words to be filled in: inputs [b, L], the booleans [b, L] that say where, the words [k] there."""

    inputs: Tensor
    where: Tensor
    words: Tensor

    def to(self, device: torch.device) -> "Gaps":
        """The same on a device."""
        return Gaps(sent(self.inputs, device), sent(self.where, device), sent(self.words, device))


def make_gaps(
    tokens: Tensor,
    *,
    share: float,
    mask_id: int,
    lexicon: Tensor,
    generator: torch.Generator,
    words: Tensor | None = None,
) -> Gaps:
    """Choose words of sentences [b, L] to be predicted, as BERT does (Devlin et al. 2019, section 3.1).

    Of each sentence a share of the words is chosen, rounded, at least one. Of these 80% are replaced by `mask_id`, 10%
    by a word of the lexicon, and 10% stay. words: booleans [b, L], which tokens may be chosen; None: all but [CLS],
    [SEP] and padding of single sentences (`word_places`).
    """
    words = word_positions(tokens) if words is None else words
    number = (share * words.sum(dim=1)).round().clamp(min=1)
    order = torch.rand(tokens.shape, generator=generator).masked_fill(~words, 2.0).argsort(dim=1).argsort(dim=1)
    where = words & (order < number[:, None])
    fate = torch.rand(tokens.shape, generator=generator)
    random = lexicon[torch.randint(len(lexicon), tokens.shape, generator=generator)]
    inputs = torch.where(where & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(where & (fate >= 0.9), random, inputs)
    return Gaps(inputs, where, tokens[where])


def word_positions(tokens: Tensor) -> Tensor:
    """Booleans [b, L]: which tokens are words, neither the first, [CLS], nor the last, [SEP], nor padding after it."""
    positions = (tokens != PADDING).roll(-1, dims=1)  # a word is followed by a token, [SEP] is not
    positions[:, [0, -1]] = False
    return positions
