"""What stands in for published weights and sentence pairs where a study is rehearsed.

Pairs are generated ones. Those for training are as long as a network takes: a large batch of real pairs has such ones.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from subnet_utils.cost.stand_ins import bert, saved
from subnet_utils.tasks import inference
from subnet_utils.tasks.pair_files import CLASSES
from subnet_utils.tasks.sentence_pairs import ENTAILED

REPEATED = 30
"""How often a pair for training says its premise; what is too long is cut."""


def pairs(folder: Path, *, labels: Sequence[str], count: int, seed: int = 0) -> Path:
    """Pairs with names of labels, the first of which is entailment. Those of seed 0 are for training."""
    made = inference.mixture({"train": count}, counter=0.2, seed=seed)["train"]
    if seed == 0:
        made["premise"] = [" ".join([text] * REPEATED) for text in made["premise"]]
    others = [label for label in labels if label != labels[0]]
    names = [labels[0] if label == ENTAILED else others[i % len(others)] for i, label in enumerate(made["label"])]
    return _table(made.assign(label=names).drop(columns="kind"), folder)


def hans(folder: Path) -> Path:
    """A few pairs of every subcase of which there is a scheme."""
    parts = [inference.generate(kind, 1, seed=0, split="rehearsal") for kind in inference.KINDS]
    return _table(pd.concat(parts).rename(columns={"kind": "subcase"}), folder)


def paws(folder: Path) -> Path:
    """Pairs as in PAWS's table: id, sentence1, sentence2, and 1 for those that mean the same."""
    made = inference.mixture({"train": 12}, counter=0.2, seed=1)["train"].reset_index(names="id")
    made["label"] = (made["label"] == ENTAILED).astype(int)
    return _table(made.drop(columns="kind").rename(columns={"premise": "sentence1", "hypothesis": "sentence2"}), folder)


def _table(table: pd.DataFrame, folder: Path) -> Path:
    folder.mkdir(parents=True)
    table.to_csv(folder / "pairs.tsv", sep="\t", index=False)
    return folder / "pairs.tsv"


def byte_pairs(folder: Path, *, family: str) -> Path:
    """A RoBERTa-base or GPT-2 with a tokenizer of byte pairs, at random."""
    import transformers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if family == "Roberta" else ["<|endoftext|>"]
    empty = getattr(transformers, f"{family}TokenizerFast")(vocab={one: i for i, one in enumerate(special)}, merges=[])
    words = [form for word in inference.words() for form in (word, word.capitalize())]
    empty.train_new_from_iterator([" ".join(words)], vocab_size=1000).save_pretrained(folder)
    own = {"Roberta": {"vocab_size": 50265, "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1},
           "GPT2": {"bos_token_id": 0, "eos_token_id": 0}}[family]  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**own)
    return saved(getattr(transformers, f"{family}Model"), config, folder)


MNLI, QQP = "hub:nyu-mll/multi_nli", "hub:nyu-mll/glue:qqp"
QUESTIONS = ("duplicate", "not_duplicate")
MAKERS = {
    "google-bert/bert-base-cased": partial(bert, words=list(inference.words()), vocabulary=28996, lowercase=False),
    "FacebookAI/roberta-base": partial(byte_pairs, family="Roberta"),
    "openai-community/gpt2": partial(byte_pairs, family="GPT2"),
    f"{MNLI}:train": partial(pairs, labels=CLASSES, count=24),
    f"{MNLI}:validation_matched": partial(pairs, labels=CLASSES, count=12, seed=1),
    f"{MNLI}:validation_mismatched": partial(pairs, labels=CLASSES, count=12, seed=2),
    "hub:jhu-cogsci/hans:validation": hans,
    f"{QQP}:train": partial(pairs, labels=QUESTIONS, count=24),
    f"{QQP}:validation": partial(pairs, labels=QUESTIONS, count=12, seed=1),
    "data/paws_qqp.tsv": paws,
}
