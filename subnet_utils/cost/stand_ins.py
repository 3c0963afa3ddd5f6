"""What stands in for published weights and data where a study is rehearsed: as large, or as few, and at random.

A room says what stands in for what its profiles name (`Paper.stand_ins`): a name, and what makes a file or a folder.
Weights have the published sizes. Data are few, and of the published layout.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from subnet_utils.core.papers import papers
from subnet_utils.core.sections import Section, elsewhere_in

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TRAIN, TEST = 600, 200
"""Images that stand in for 60,000 and 10,000, or 50,000 and 10,000."""


def with_stand_ins(study: Section, folder: Path) -> tuple[Section, dict[str, Path]]:
    """The study with stand-ins for all that comes from elsewhere and is known to its rooms; which they are, by name."""
    makers: dict[str, Callable[[Path], Path]] = {}
    for paper in papers().values():
        makers |= paper.resolve(paper.stand_ins) if paper.stand_ins else {}
    names = [name for name in dict.fromkeys(elsewhere_in(study)) if name in makers]
    made = {name: makers[name](folder / f"{i}") for i, name in enumerate(names)}
    return _replaced(study, {name: str(path) for name, path in made.items()}), made


def _replaced(value: Any, locations: Mapping[str, str]) -> Any:
    """A section with other places in it, and in all sections that it holds."""
    if isinstance(value, Section):
        return value.model_copy(update={name: _replaced(one, locations) for name, one in value})
    if isinstance(value, tuple):
        return tuple(_replaced(one, locations) for one in value)
    return locations.get(value, value) if isinstance(value, str) else value


def bert(folder: Path, words: list[str], *, vocabulary: int, lowercase: bool, **sizes: int) -> Path:
    """A BERT with its tokenizer, at random. vocabulary: tokens; those that are no words are never read. sizes: fields
    of transformers' configuration; without any they are BERT-base's."""
    from transformers import BertConfig, BertModel, BertTokenizerFast  # seconds to import, needed by few

    tokens = [*SPECIAL, *words]
    tokens += [f"[unused{i}]" for i in range(vocabulary - len(tokens))]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(tokens))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=lowercase).save_pretrained(folder)
    return saved(BertModel, BertConfig(vocab_size=vocabulary, **sizes), folder)


def saved(network: type, config: Any, folder: Path, **options: Any) -> Path:
    """A network of transformers with random weights, in a folder. options: of the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network(config, **options).save_pretrained(folder)
    return folder


def mnist(folder: Path) -> Path:
    """Images at random, a hundredth of MNIST's, in files of its idx format."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for title, count in (("train", TRAIN), ("t10k", TEST)):
        parts = {"images-idx3": draw.integers(0, 256, (count, 28, 28)), "labels-idx1": np.arange(count) % 10}
        for name, array in parts.items():
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{title}-{name}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())
    return folder


def cifar10(folder: Path) -> Path:
    """Images at random, about a hundredth of CIFAR10's, in files of its binary version."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, count in (("data_batch_1.bin", TRAIN), ("test_batch.bin", TEST)):
        rows = draw.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        (folder / name).write_bytes(rows.tobytes())
    return folder
