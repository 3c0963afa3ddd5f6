"""A masked language model (Devlin et al. 2019) on grammatical sentences of the templates.

A stand-in for the published weights that *Break It Down* starts from (section 8), not a replication.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from subnet_utils.core.seeds import generator_for
from subnet_utils.models import StagedModel
from subnet_utils.models.frozen import CHUNK, full_precision
from subnet_utils.models.language import Layer, trim_padding
from subnet_utils.papers.break_it_down.pretraining.views import Precision
from subnet_utils.papers.break_it_down.tasks import agreement, tokenization
from subnet_utils.tasks.hidden_words import Gaps, make_gaps, word_places
from subnet_utils.training import Recipe, fit

MASK_ID = tokenization.SPECIAL_TOKENS.index("[UNK]")
"""Stands in the place of a hidden word. The word-level vocabulary has no [MASK], and no sentence has a word that it
lacks, so the number of [UNK] is free; a token more would change the shape and the random weights of every BERT."""
EPS = 1e-12
"""Of BERT's layer normalization."""


def grammatical(tasks: Sequence[str], split: str, *, limit: int, seed: int, tokenizer: agreement.Tokenizer) -> Tensor:
    """At most `limit` distinct grammatical sentences of a split of the given tasks, as token ids [n, longest].

    They are drawn from the partition that all sets of a task share, so those of the training split occur in no
    validation or test set; unless `as_printed`, by which sets ignore the partition.
    Raises ValueError for an unknown task or split.
    """
    if split not in agreement.SPLITS:
        raise ValueError(f"unknown split '{split}'; choose one of {', '.join(agreement.SPLITS)}")
    parts = pd.concat([agreement.splits(task, seed=0) for task in tasks])
    found = parts.loc[(parts["split"] == split) & (parts["kind"] == 0), "sentence"].drop_duplicates()
    order = torch.randperm(len(found), generator=generator_for("grammatical", split, seed))[:limit]
    return tokenizer.encode(found.iloc[order.numpy()].tolist())


def every_token(model: StagedModel) -> StagedModel:
    """A BERT up to its pooler, with the same weights, that returns the last hidden state of all tokens, not of [CLS].

    A state (tokens [m, L],) becomes (hidden [m, L, width], keep [m, L]).
    """
    prefix, _ = model.cut("pooler")
    stages = {
        name: Layer(stage, first_only=False) if isinstance(stage, Layer) else stage
        for name, stage in prefix.stages.items()
    }
    return StagedModel(stages, trim=trim_padding)


def prediction_head(width: int, vocabulary: int, *, seed: int) -> dict[str, Tensor]:
    """Weights of BERT's prediction head but for the word embeddings, with which it shares its output layer.

    Initialized as BERT: normal with deviation .02, biases 0.
    """
    dense = 0.02 * torch.randn(width, width, generator=generator_for("prediction head", seed))
    head = {"dense.weight": dense, "dense.bias": torch.zeros(width), "output.bias": torch.zeros(vocabulary)}
    return head | {"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width)}


def predict_words(encoder: StagedModel, head: Mapping[str, Tensor], gaps: Gaps) -> Tensor:
    """Logits [k, vocabulary] of the words in the gaps; `encoder` is made by `every_token`."""
    hidden = encoder(gaps.inputs)[0][gaps.where]
    hidden = functional.gelu(functional.linear(hidden, head["dense.weight"], head["dense.bias"]))
    hidden = functional.layer_norm(hidden, hidden.shape[-1:], head["norm.weight"], head["norm.bias"], EPS)
    embeddings = encoder.stages["embeddings"].word_embeddings.weight
    return functional.linear(hidden, embeddings, head["output.bias"])


def masked_language_model(
    model: StagedModel,
    sentences: Tensor,
    validation: Tensor,
    *,
    recipe: Recipe,
    batch_size: int,
    share: float = 0.15,
    mask_id: int = MASK_ID,
    precision: Precision = nullcontext,
    checkpoint: Path | None = None,
    label: str = "masked language model",
) -> pd.DataFrame:
    """Pretrain a BERT on sentences, token ids [n, L], by predicting the words in gaps (`make_gaps`).

    Kept are the weights of the epoch with the lowest cross-entropy on the validation sentences [v, L], whose gaps are
    the same every time. The prediction head is trained along and thrown away; the pooler is not trained. Returns the
    history; validation_accuracy is the share of words that are found.
    Raises ValueError if `mask_id` is a token of the sentences, TrainingDiverged as `fit` does.
    """
    if (sentences == mask_id).any():
        raise ValueError(f"mask_id {mask_id} is a token of the sentences; give a number that none has")
    encoder, device = every_token(model), next(model.parameters()).device
    table = encoder.stages["embeddings"].word_embeddings.weight
    head = {
        n: t.to(device).requires_grad_()
        for n, t in prediction_head(table.shape[1], len(table), seed=recipe.seed).items()
    }
    cloze = partial(make_gaps, share=share, mask_id=mask_id, lexicon=sentences[word_places(sentences)].unique())
    held_out = list(_cloze_batches(validation, CHUNK, cloze, generator_for(recipe.seed, "validation"), shuffled=False))

    def one_pass(epoch: int) -> Iterator[Gaps]:
        return _cloze_batches(sentences, batch_size, cloze, generator_for(recipe.seed, epoch), shuffled=True)

    def loss(gaps: Gaps, epoch: int) -> Tensor:
        gaps = gaps.to(device)
        with precision():
            logits = predict_words(encoder, head, gaps)
        return functional.cross_entropy(logits.float(), gaps.words)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        words = torch.cat([gaps.words for gaps in held_out])
        with full_precision(device):
            logits = torch.cat([predict_words(encoder, head, gaps.to(device)) for gaps in held_out]).cpu()
        right = (logits.argmax(dim=1) == words).double().mean()
        return {"validation_loss": float(functional.cross_entropy(logits, words)), "validation_accuracy": float(right)}

    return fit(
        dict(encoder.named_parameters()) | {f"head.{name}": tensor for name, tensor in head.items()},
        one_pass,
        loss,
        recipe=recipe,
        validate=validate,
        checkpoint=checkpoint,
        label=label,
    )


def _cloze_batches(
    tokens: Tensor, size: int, cloze: Callable[..., Gaps], generator: torch.Generator, *, shuffled: bool
) -> Iterator[Gaps]:
    """One pass over sentences [n, L], padding cut off where no sentence of a batch needs it."""
    order = torch.randperm(len(tokens), generator=generator) if shuffled else torch.arange(len(tokens))
    for rows in order.split(size):
        (batch,) = trim_padding((tokens[rows],))
        yield cloze(batch, generator=generator)
