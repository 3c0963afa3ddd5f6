"""Encoder-decoders that answer a sequence with a sequence (*Are Neural Nets Modular?*, appendix C.7).

Both read one table row: the tokens of the question and of the answer side by side, integers [m, source + target], each
closed by `END` and filled up with `PADDING`. While they are tested, and while masks are found, a decoder is given the
right answer so far (teacher forcing). Its own answer would be right if and only if every token of this one is.

Embeddings and biases are not masked, and the output layer is the last weight.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pack_padded_sequence

PADDING, START, END = range(3)
"""The first tokens of every vocabulary. `START` is what a decoder reads first."""
GROUPS = 3
"""Of the answers of a batch, by length; an LSTM reads one after the other."""


class EncoderDecoder(nn.Module, ABC):
    """What both kinds share. source: tokens of a question; words, answers: sizes of the vocabularies."""

    def __init__(self, source: int, words: int, answers: int, embedding: int, dropout: float):
        super().__init__()
        self.source, self.dropout = source, nn.Dropout(dropout)
        self.words, self.answers = (nn.Embedding(count, embedding) for count in (words, answers))

    def forward(self, rows: Tensor) -> Tensor:
        """Logits [m, t, answers] of rows, t the longest answer among them."""
        questions, answers = (trimmed(part).long() for part in (rows[:, : self.source], rows[:, self.source :]))
        return self.answer(questions, answers)

    @abstractmethod
    def answer(self, questions: Tensor, answers: Tensor) -> Tensor:
        """Logits [m, t, answers] of every token of the answers [m, t], given those before it."""


class Lstm(EncoderDecoder):
    """The state in which one LSTM has read the question is the first one of another, which answers.

    own_outputs: share of the batches in training in which the decoder reads its own answer so far, not the right one.
    """

    def __init__(self, source: int, words: int, answers: int, *, width: int, layers: int, embedding: int,
                 dropout: float, own_outputs: float):  # fmt: skip
        super().__init__(source, words, answers, embedding, dropout)
        self.own_outputs = own_outputs
        between = dropout if layers > 1 else 0.0
        self.encoder, self.decoder = (
            nn.LSTM(embedding, width, layers, batch_first=True, dropout=between) for _ in range(2)
        )
        self.output = nn.Linear(width, answers)

    def answer(self, questions: Tensor, answers: Tensor) -> Tensor:
        """See the class."""
        count = lengths(questions).cpu()  # the state is that after a question's end, not after its padding
        read = pack_padded_sequence(self.dropout(self.words(questions)), count, batch_first=True, enforce_sorted=False)
        state = self.encoder(read)[1]
        if self.training and torch.rand(()) < self.own_outputs:
            return self._alone(state, answers)
        return self.output(torch.cat(list(self._teacher_forced(state, answers)))[lengths(answers).argsort().argsort()])

    def _teacher_forced(self, state: tuple[Tensor, Tensor], answers: Tensor) -> Iterator[Tensor]:
        """States [k, t, width] for the right answers, the shortest first: not all are read to the longest's end."""
        for rows in lengths(answers).argsort().chunk(GROUPS):
            some, first = trimmed(answers[rows]), tuple(part[:, rows].contiguous() for part in state)
            states, _ = self.decoder(self.dropout(self.answers(shifted(some))), first)
            yield pad(states, (0, 0, 0, answers.shape[1] - states.shape[1]))

    def _alone(self, state: tuple[Tensor, Tensor], answers: Tensor) -> Tensor:
        """Logits of an answer whose every token is read again."""
        last, logits = torch.full_like(answers[:, :1], START), []
        for _ in range(answers.shape[1]):
            states, state = self.decoder(self.dropout(self.answers(last)), state)
            logits.append(self.output(states))
            last = logits[-1].argmax(dim=-1)
        return torch.cat(logits, dim=1)


class Transformer(EncoderDecoder):
    """The encoder-decoder of Vaswani et al. (2017): norms after each sublayer, sines and cosines for places."""

    def __init__(self, source: int, words: int, answers: int, *, width: int, layers: int, heads: int, mlp_width: int,
                 dropout: float):  # fmt: skip
        super().__init__(source, words, answers, width, dropout)
        for embedding in (self.words, self.answers):  # times the root of the width this is as large as the places
            nn.init.normal_(embedding.weight, std=width**-0.5)
        sizes = {"dim_feedforward": mlp_width, "dropout": dropout, "batch_first": True}
        self.layers = nn.Transformer(width, heads, layers, layers, **sizes)
        self.layers.encoder.use_nested_tensor = False  # it warns that it is a prototype
        self.output = nn.Linear(width, answers)

    def answer(self, questions: Tensor, answers: Tensor) -> Tensor:
        """See the class. Padding at the end of an answer changes nothing before it, and is no part of the loss."""
        count = answers.shape[1]
        hidden = questions == PADDING
        later = torch.ones(count, count, dtype=torch.bool, device=answers.device).triu(1)
        states = self.layers(
            self._placed(self.words(questions)), self._placed(self.answers(shifted(answers))), tgt_mask=later,
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
        )  # fmt: skip
        return self.output(states)

    def _placed(self, embedded: Tensor) -> Tensor:
        """Embeddings [m, n, width] with sines and cosines of their places (section 3.5)."""
        count, width = embedded.shape[1:]
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        angles = torch.arange(count)[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]
        return self.dropout(embedded * math.sqrt(width) + positions.to(embedded))


KINDS = {"lstm": Lstm, "transformer": Transformer}


def trimmed(tokens: Tensor) -> Tensor:
    """Tokens [m, n] without the last columns that are padding in all rows."""
    return tokens[:, : int(lengths(tokens).max())]


def lengths(tokens: Tensor) -> Tensor:
    """Tokens [m] of each row that are no padding."""
    return (tokens != PADDING).sum(dim=1)


def shifted(answers: Tensor) -> Tensor:
    """What a decoder reads where it should say `answers` [m, t]: the start, then all but the last."""
    return pad(answers[:, :-1], (1, 0), value=START)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, nats: sum over the tokens of an answer, mean over answers. logits [m, t, v], targets [m, T >= t].

    The paper's beta is for this sum (appendix C.7).
    """
    answers = targets[:, : logits.shape[1]].long()
    return cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=PADDING, reduction="sum") / len(logits)


def right(logits: Tensor, targets: Tensor) -> Tensor:
    """Which answers are right in every token: boolean [m]."""
    answers = targets[:, : logits.shape[1]]
    return ((logits.argmax(dim=-1) == answers) | (answers == PADDING)).all(dim=1)
