"""A masked language model (Devlin et al. 2019) on grammatical sentences of the templates.

A stand-in for the published weights that *Break It Down* starts from (section 8), not a replication.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from subnet_utils.core.seeds import generator_for
from subnet_utils.models import StagedModel
from subnet_utils.models.frozen import CHUNK, full_precision
from subnet_utils.models.language import WordPredictor, trim_padding
from subnet_utils.papers.break_it_down.pretraining.views import Precision
from subnet_utils.papers.break_it_down.section import MaskedLanguageModel
from subnet_utils.tasks import agreement, tokenization
from subnet_utils.tasks.hidden_words import Gaps, make_gaps, word_positions
from subnet_utils.training import fit

MASK_ID = tokenization.Vocabulary.mask


def grammatical(tasks: Sequence[str], split: str, *, limit: int, seed: int) -> Tensor:
    """At most `limit` distinct grammatical sentences of a split of the given tasks, as token ids [n, longest].

    They are drawn from the partition that all sets of a task share, so those of the training split occur in no
    validation or test set; unless `as_printed`, by which sets ignore the partition. Raises ValueError for an unknown
    task.
    """
    parts = pd.concat([agreement.splits(task, seed=0) for task in tasks])
    found = parts.loc[(parts["split"] == split) & (parts["kind"] == 0), "sentence"].drop_duplicates()
    order = torch.randperm(len(found), generator=generator_for("grammatical", split, seed))[:limit]
    return tokenization.tokenizer().encode(found.iloc[order.numpy()].tolist())


def masked_language_model(
    model: StagedModel,
    sentences: Tensor,
    validation: Tensor,
    settings: MaskedLanguageModel,
    precision: Precision = nullcontext,
    **about: Any,
) -> pd.DataFrame:
    """Pretrain a BERT on sentences, token ids [n, L], by predicting the words in gaps (`make_gaps`).

    Kept are the weights of the epoch with the lowest cross-entropy on the validation sentences [v, L], whose gaps are
    the same every time. The prediction head is trained along and thrown away; the pooler is not trained. Returns the
    history; validation_accuracy is the share of words that are found. about: for `fit`.
    Raises ValueError if `MASK_ID` is a token of the sentences, TrainingDiverged as `fit` does.
    """
    if (sentences == MASK_ID).any():
        raise ValueError(f"token {MASK_ID}, which stands for a hidden word, is in the sentences; leave these out")
    device, seed = next(model.parameters()).device, settings.seed
    network = WordPredictor(model, seed=seed, hidden=MASK_ID).to(device)
    cloze = partial(make_gaps, share=0.15, mask_id=MASK_ID, lexicon=sentences[word_positions(sentences)].unique())

    def one_pass(epoch: int) -> Iterator[Gaps]:
        generator = generator_for(seed, epoch)
        order = torch.randperm(len(sentences), generator=generator)
        return _gapped(sentences, order.split(settings.batch_size), cloze, generator)

    in_order = torch.arange(len(validation)).split(CHUNK)
    held_out = list(_gapped(validation, in_order, cloze, generator_for(seed, "validation")))

    def loss(gaps: Gaps, epoch: int) -> Tensor:
        gaps = gaps.to(device)
        with precision():
            logits = network.predict(gaps.inputs, gaps.where)
        return functional.cross_entropy(logits.float(), gaps.words)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        words = torch.cat([gaps.words for gaps in held_out])
        with full_precision(device):
            sent = [gaps.to(device) for gaps in held_out]
            logits = torch.cat([network.predict(gaps.inputs, gaps.where) for gaps in sent]).cpu()
        right = (logits.argmax(dim=1) == words).double().mean()
        return {"validation_loss": float(functional.cross_entropy(logits, words)), "validation_accuracy": float(right)}

    trained = dict(network.named_parameters())
    return fit(trained, one_pass, loss, recipe=settings.recipe(seed), validate=validate, **about)


def _gapped(
    tokens: Tensor, batches: Iterable[Tensor], cloze: Callable[..., Gaps], generator: torch.Generator
) -> Iterator[Gaps]:
    """Batches of sentences [n, L] with gaps, padding cut off where no sentence of a batch needs it."""
    for rows in batches:
        (batch,) = trim_padding((tokens[rows],))
        yield cloze(batch, generator=generator)
