"""Pairs of sentences from tables (tsv, parquet, arrow) or `datasets`: MNLI, HANS, QQP, PAWS and sets like them."""

import re
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from subnet_utils.core.messages import first_line, nearest
from subnet_utils.tasks.sentence_pairs import DIFFERENT, ENTAILED, NOT_ENTAILED, SAME, is_entailed

CLASSES = ("entailment", "neutral", "contradiction")
"""MNLI's three labels."""
COLUMNS = ("premise", "hypothesis", "label")
ALIASES = {"question1": "premise", "question2": "hypothesis", "sentence1": "premise", "sentence2": "hypothesis",
           "gold_label": "label", "is_duplicate": "label"}  # fmt: skip
"""What columns are called in QQP and PAWS, and in MNLI's and HANS's own files."""
NO_LABEL = "-"
"""In MNLI's own files: of a pair on which its readers did not agree."""
HANS_LABELS, NUMBERS = ("entailment", "non-entailment"), ("0", "1")
HUB = "hub:"
"""Before a name on the hub of data sets, as in `hub:nyu-mll/glue:mnli:validation_matched`."""
MAIN_SUBCASES = ("lexical_overlap_ln_subject-object_swap", "lexical_overlap_ln_preposition",
                 "constituent_cn_embedded_under_if", "constituent_cn_embedded_under_verb")  # fmt: skip
"""Those on which the paper's BERT generalizes best (Table 1)."""


class DataError(ValueError):
    """A file of pairs lacks a column or has an unknown label; the message names it and the remedy."""


def read_pairs(path: Path | str, *, labels: Sequence[str] = NUMBERS, kind: str = "") -> pd.DataFrame:
    """Pairs from a table with the columns premise, hypothesis and label, and subcase where there is one.

    path: tab-separated text (`.tsv`, `.tsv.gz`), parquet or arrow, or `hub:name[:configuration]:split`, which the
    package `datasets` fetches. labels: names of the classes in order; a label is one of them, or its number; kind: of
    all pairs, where there is no subcase. Pairs with the label `-` are left out, with one line on stderr. Raises
    DataError for a missing file or column, for a row without a text, for a label that is not among the classes, and
    if there is no pair.
    """
    table = _fetched(path, labels) if str(path).startswith(HUB) else _table(Path(path))
    table = _labelled(table, path)
    numbers = {str(i): i for i in range(len(labels))} | {name: i for i, name in enumerate(labels)}
    found = table["label"].astype(str)
    unknown = found[~found.isin(numbers)]
    if len(unknown):
        row = f"row {unknown.index[0] + 1}"
        raise DataError(f"{path}, {row}: unknown label '{unknown.iloc[0]}'; valid: {', '.join(labels)}")
    pairs = table[["premise", "hypothesis"]].astype(str).assign(label=found.map(numbers))
    return pairs.assign(kind=_subcases(table) if "subcase" in table else kind).reset_index(drop=True)


def _labelled(table: pd.DataFrame, path: Path | str) -> pd.DataFrame:
    """The rows with a label, by their numbers from 0. Raises DataError for what every table of pairs must have."""
    names = {name: ours for name, ours in ALIASES.items() if ours not in table}
    table = table.rename(columns=names).reset_index(drop=True)
    for column in COLUMNS:
        if column not in table:
            raise DataError(f"{path} has no column '{column}'; {nearest(column, tuple(table.columns))}")
    empty = table[list(COLUMNS)].isna().any(axis=1).to_numpy().nonzero()[0]
    if len(empty):
        raise DataError(f"{path}, row {empty[0] + 1}: no premise, hypothesis or label; take the row out")
    labelled = table[table["label"].astype(str) != NO_LABEL]
    if labelled.empty:
        raise DataError(f"{path} has no pair with a label; give a table that has some")
    if left_out := len(table) - len(labelled):
        print(f"{path}: {left_out:,} pairs without a gold label ({NO_LABEL}) are left out", file=sys.stderr)
    return labelled


def read_hans(path: Path | str) -> pd.DataFrame:
    """HANS, all subcases, with the labels 0 and 1 or their names. Raises DataError for a subcase whose name is unknown
    or disagrees with the label, or without a subcase."""
    pairs = read_pairs(path, labels=HANS_LABELS)
    if not pairs["kind"].all():
        raise DataError(f"{path} has no column 'subcase'; take HANS's own files")
    try:
        wrong = pairs[pairs["label"] != pairs["kind"].map(is_entailed)]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if len(wrong):
        kind, label = wrong[["kind", "label"]].iloc[0]
        raise DataError(f"{path}: a pair of '{kind}' has label {label}; take HANS's own files")
    return pairs


def read_paws(path: Path | str) -> pd.DataFrame:
    """PAWS: label 1 if two questions mean the same; kinds SAME and DIFFERENT. Raises DataError as `read_pairs` does,
    and for texts such as b'Is it?': the authors' script is for Python 2, and writes them so in Python 3."""
    pairs = read_pairs(path)
    written = pairs[["premise", "hypothesis"]].stack().str.fullmatch(r"""b(['"]).*\1""", flags=re.DOTALL)
    if written.all():
        raise DataError(f"{path} has texts such as {pairs['premise'].iloc[0]}; make it without .encode and .decode")
    return pairs.assign(label=pairs["label"].map({1: ENTAILED, 0: NOT_ENTAILED}),
                        kind=pairs["label"].map({1: SAME, 0: DIFFERENT}))  # fmt: skip


def _subcases(table: pd.DataFrame) -> pd.Series:
    """HANS's subcases after their heuristic: its own files have the two in two columns, and write / for -."""
    own = table["subcase"].astype(str).str.replace("/", "-")
    heuristics = table["heuristic"].astype(str) if "heuristic" in table else [""] * len(table)
    both = zip(heuristics, own, strict=True)
    return pd.Series([case if case.startswith(name) else f"{name}_{case}" for name, case in both], table.index)


def _fetched(place: str, labels: Sequence[str]) -> pd.DataFrame:
    """A split of a data set on the hub. Numbers of named classes become their names: sets number them differently."""
    name, *configuration, split = place.removeprefix(HUB).split(":") if place.count(":") > 1 else ("", "")
    if not name or not split or len(configuration) > 1:
        raise DataError(f"'{place}' is no data set; write hub:name:split or hub:name:configuration:split")
    try:
        import datasets
    except ImportError:
        raise DataError(f"'{place}' needs the package datasets; pip install datasets, or give a local file") from None
    load = partial(datasets.load_dataset, name, *configuration, split=split)
    try:
        try:
            data = load()
        except RuntimeError as error:  # `datasets` no longer runs scripts that make a set; the hub has converted it
            if "scripts are no longer supported" not in str(error):
                raise
            data = load(revision="refs/convert/parquet")
        table = data.to_pandas()
    except Exception as error:  # datasets and its hub client raise many unrelated types
        raise DataError(f"'{place}' cannot be fetched: {first_line(error)}; give a local file instead") from None
    for column, feature in getattr(data, "features", {}).items():
        names = getattr(feature, "names", None)
        if names and ALIASES.get(column, column) == "label" and labels is not NUMBERS:
            table[column] = table[column].astype(object).replace(dict(enumerate(names)))
    return table


def _table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"no file {path}; give a table of premise, hypothesis and label")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix not in (".arrow", ".feather"):
            with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # of rows that are too long
                return pd.read_csv(
                    path, sep="\t", quoting=3, keep_default_na=False, na_values=["", " "], index_col=False)  # fmt: skip
        try:
            return pd.read_feather(path)
        except ValueError:  # of pyarrow, for a stream, which is what `datasets` writes
            import pyarrow

            return pyarrow.ipc.open_stream(path.read_bytes()).read_pandas()
    except pd.errors.ParserWarning:
        raise DataError(f"{path} has rows with more fields than its header; give every column a name") from None
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise DataError(f"{path} cannot be read as a table: {first_line(error)}; fetch it again") from None
