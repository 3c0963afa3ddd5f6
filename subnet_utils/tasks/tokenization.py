"""Sentences of the agreement tasks as token ids: a word-level vocabulary, or the WordPiece of a pretrained BERT."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from subnet_utils.core.messages import first_line
from subnet_utils.tasks.agreement import grammar_words

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class Vocabulary:
    """Word-level tokenizer, the same for all tasks: [PAD] = 0, [UNK], [CLS], [SEP], then `grammar_words`.

    mask: the token in the place of a hidden word. It is [UNK]: there is no [MASK], and no sentence has a word that the
    vocabulary lacks. A token more would change the shape and the random weights of every BERT.
    """

    mask = SPECIAL_TOKENS.index("[UNK]")

    def __init__(self) -> None:
        self.tokens = (*SPECIAL_TOKENS, *grammar_words())
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self.size = len(self.tokens)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Token ids int64 [m, longest]; a word that is not in the vocabulary becomes [UNK]."""
        pad, unknown, first, last = range(4)
        rows = [[first, *(self.ids.get(word, unknown) for word in s.split()), last] for s in sentences]
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


class WordPiece:
    """The BERT WordPiece of a pretrained folder (vocab.txt or tokenizer.json), or of a name on the model hub.

    mask: the token in the place of a hidden word, [MASK].
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ValueError if there is no such folder or name, or no BERT vocabulary with [PAD] as number 0 in it."""
        self._tokenizer = _word_pieces(folder)
        # transformers adds special tokens that a vocabulary lacks, with numbers beyond the model's embeddings
        own = self._tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
        missing = [token for token in SPECIAL_TOKENS if token not in own]
        if missing or own["[PAD]"] != 0:
            wrong = f"lacks {', '.join(missing)}" if missing else f"has [PAD] = {own['[PAD]']}, not 0"
            raise ValueError(f"the vocabulary of '{folder}' {wrong}; use the one of a BERT checkpoint")
        if own.keys() <= {*SPECIAL_TOKENS, "[MASK]"}:  # what transformers makes up where it finds no file
            remedy = "give the folder of a BERT with its vocab.txt or tokenizer.json, or a hub name that can be reached"
            raise ValueError(f"the vocabulary of '{folder}' has no words; {remedy}")
        self.size, self.mask = len(own), self._tokenizer.mask_token_id

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Token ids int64 [m, longest], padded to the longest; the authors pad to 50, but 5 to 14 occur."""
        return self._tokenizer(list(sentences), padding=True, return_tensors="pt")["input_ids"]


def _word_pieces(folder: str | Path):
    """A transformers tokenizer. What looks like a path is taken for a path: no hub is asked for it."""
    path = Path(folder)
    remedy = "give the folder of a pretrained BERT, or none for the word-level vocabulary"
    on_hub = not path.is_dir() and not path.is_absolute() and not str(folder).startswith(".") and len(path.parts) <= 2
    if not on_hub and not any((path / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        raise ValueError(f"'{folder}' is not a folder with a vocab.txt or tokenizer.json; {remedy}")
    from transformers import BertTokenizerFast  # seconds to import, needed by few

    try:
        return BertTokenizerFast.from_pretrained(str(folder), local_files_only=not on_hub)
    except Exception as error:  # transformers, its hub client and tokenizers raise many unrelated types
        raise ValueError(f"the vocabulary of '{folder}' cannot be loaded: {first_line(error)}; {remedy}") from error


def tokenizer(folder: str | Path | None = None) -> Vocabulary | WordPiece:
    """The WordPiece of a BERT's folder or hub name (ValueError if it has none), or the word-level vocabulary."""
    return Vocabulary() if folder is None else WordPiece(folder)
