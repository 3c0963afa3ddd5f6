"""Generated pairs follow HANS's schemes, and sets from files are checked before anything is trained on them."""

import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from subnet_utils.tasks import inference, pair_files, sentence_pairs
from subnet_utils.tasks.inference import ADVERSE, KINDS
from subnet_utils.tasks.pair_files import DataError
from subnet_utils.tasks.sentence_pairs import ENTAILED, NOT_ENTAILED


def knows_all_words(pairs: pd.DataFrame) -> np.ndarray:
    """Whether the heuristic "all words are known, so yes" says yes."""
    return np.array([set(row.hypothesis.split()) <= set(row.premise.split()) for row in pairs.itertuples()])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_overlap_that_its_scheme_asks_for(kind):
    pairs = inference.generate(kind, 60, seed=0, split="test")
    assert len(sentence_pairs.texts_of(pairs)) == 60
    assert set(pairs["kind"]) == {kind} and (pairs["label"] == sentence_pairs.is_entailed(kind)).all()
    for row in pairs.itertuples():
        assert set(row.hypothesis.split()) <= set(row.premise.split())
        if not kind.startswith("lexical_overlap"):
            assert row.hypothesis in row.premise
        assert set(f"{row.premise} {row.hypothesis}".split()) <= set(inference.words())


@pytest.mark.parametrize("counter", [0.0, 0.05, 0.25])
def test_a_mixture_is_balanced_and_as_adverse_as_asked_for(counter):
    splits = inference.mixture({"train": 800, "test": 200}, counter=counter, seed=3)
    for split, size in (("train", 800), ("test", 200)):
        pairs = splits[split]
        assert len(pairs) == size and (pairs["label"] == ENTAILED).sum() == size // 2
        wrong = knows_all_words(pairs) != (pairs["label"] == ENTAILED)
        assert wrong.sum() == round(size * counter) and pairs[wrong]["kind"].isin(ADVERSE).all()


def test_no_pair_is_in_two_splits_and_sets_depend_on_their_seed():
    sizes = {"train": 1500, "validation": 300, "test": 300}
    splits, again = (inference.mixture(sizes, counter=0.1, seed=0) for _ in range(2))
    assert len(frozenset.union(*map(sentence_pairs.texts_of, splits.values()))) == 2100
    pd.testing.assert_frame_equal(again["test"], splits["test"])
    assert not inference.mixture({"train": 1500}, counter=0.1, seed=1)["train"].equals(splits["train"])


def test_impossible_sets_are_refused():
    with pytest.raises(ValueError, match="there are not 8,000 distinct pairs of 'constituent_ce_adverb'"):
        inference.generate("constituent_ce_adverb", 8000, seed=0, split="train")
    with pytest.raises(ValueError, match="unknown kind 'constituent_ce_adverbs'; did you mean 'constituent_ce_adverb'"):
        inference.generate("constituent_ce_adverbs", 1, seed=0, split="train")
    with pytest.raises(ValueError, match="no subcase of HANS"):
        sentence_pairs.is_entailed("snli")


FRAME = pd.DataFrame({"premise": ["a cat sat", 'she said "no'], "hypothesis": ["a cat", "NA"], "label": [0, 1],
                      "subcase": ["constituent_ce_adverb", "constituent_cn_adverb"]})  # fmt: skip


def write(frame: pd.DataFrame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".arrow":
        frame.to_feather(path)
    else:
        text = "\n".join("\t".join(map(str, row)) for row in [frame.columns, *frame.itertuples(index=False)])
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["hans.tsv", "hans.tsv.gz", "hans.parquet", "hans.arrow"])
def test_tables_are_read_as_they_are(tmp_path, name):
    pairs = pair_files.read_hans(write(FRAME, tmp_path / name))
    assert pairs["premise"].tolist() == ["a cat sat", 'she said "no'] and pairs["hypothesis"].tolist() == [
        "a cat",
        "NA",
    ]
    assert pairs["label"].tolist() == [ENTAILED, NOT_ENTAILED] and pairs["kind"].tolist() == FRAME["subcase"].tolist()


def test_hans_is_read_in_the_layout_of_its_own_files(tmp_path):
    """Two columns for a subcase, a slash in one of them, labels by name, and other names for the sentences."""
    frame = pd.DataFrame({"gold_label": ["non-entailment", "entailment"], "sentence1": ["a sees b", "a slept"],
                          "sentence2": ["b sees a", "a slept"], "heuristic": ["lexical_overlap", "constituent"],
                          "subcase": ["ln_subject/object_swap", "ce_adverb"], "template": ["t1", "t2"]})  # fmt: skip
    pairs = pair_files.read_hans(write(frame, tmp_path / "heuristics_evaluation_set.tsv"))
    assert pairs["kind"].tolist() == ["lexical_overlap_ln_subject-object_swap", "constituent_ce_adverb"]
    assert pairs["label"].tolist() == [NOT_ENTAILED, ENTAILED] and pairs["premise"][0] == "a sees b"
    assert pairs["kind"][0] in pair_files.MAIN_SUBCASES
    numbers = frame.rename(columns={"gold_label": "label"}).assign(label=[1, 0])
    assert pair_files.read_hans(write(numbers, tmp_path / "hub.parquet"))["kind"].equals(pairs["kind"])
    with pytest.raises(DataError, match="odd.tsv: 'constituent_adverb' is no subcase"):
        pair_files.read_hans(write(frame.assign(subcase=["ln_x", "adverb"]), tmp_path / "odd.tsv"))


def test_labels_may_be_names_or_their_numbers(tmp_path):
    for label in (["neutral", "entailment"], [1, 0]):
        path = write(FRAME.assign(label=label).drop(columns="subcase"), tmp_path / "mnli.parquet")
        pairs = pair_files.read_pairs(path, labels=pair_files.CLASSES, kind="mnli")
        assert pairs["label"].tolist() == [1, 0] and set(pairs["kind"]) == {"mnli"}


def test_faults_of_a_table_are_named(tmp_path):
    cases = (
        (FRAME.rename(columns={"hypothesis": "hypothsis"}), "has no column 'hypothesis'; did you mean 'hypothsis'"),
        (FRAME.assign(label=[0, 7]), "row 2: unknown label '7'; valid: entailment, non-entailment"),
        (FRAME.assign(label=[1, 1]), "a pair of 'constituent_ce_adverb' has label 1"),
        (FRAME.drop(columns="subcase"), "has no column 'subcase'"),
    )
    for i, (frame, message) in enumerate(cases):
        with pytest.raises(DataError, match=message):
            pair_files.read_hans(write(frame, tmp_path / f"{i}.tsv"))
    cases = {"a\tb\t0\t5": "more fields than its header", "": "no pair", "\tb\t0": "row 1: no premise",
             "a\tb\t0\n \tb\t0": "row 2: no premise"}  # fmt: skip
    for rows, message in cases.items():
        (tmp_path / "pairs.tsv").write_text(f"premise\thypothesis\tlabel\n{rows}\n")
        with pytest.raises(DataError, match=message):
            pair_files.read_pairs(tmp_path / "pairs.tsv")
    named = FRAME.assign(label=[0, 7]).set_index(pd.Index(["r1", "r2"]))
    with pytest.raises(DataError, match="row 2: unknown label '7'"):
        pair_files.read_pairs(write(named, tmp_path / "named.parquet"))
    with pytest.raises(DataError, match="no file"):
        pair_files.read_hans(tmp_path / "nothing.tsv")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="damaged.parquet cannot be read as a table"):
        pair_files.read_hans(tmp_path / "damaged.parquet")


def test_pairs_without_a_gold_label_are_left_out_with_a_line(tmp_path, capsys):
    frame = pd.DataFrame({"gold_label": ["-", "neutral"], "sentence1": ["a", "b"], "sentence2": ["c", "d"]})
    pairs = pair_files.read_pairs(write(frame, tmp_path / "mnli.tsv"), labels=pair_files.CLASSES)
    assert pairs.to_dict("records") == [{"premise": "b", "hypothesis": "d", "label": 1, "kind": ""}]
    assert capsys.readouterr().err.endswith("mnli.tsv: 1 pairs without a gold label (-) are left out\n")
    with pytest.raises(DataError, match="row 2: unknown label 'neutrl'"):
        pair_files.read_pairs(write(frame.assign(gold_label=["-", "neutrl"]), tmp_path / "x.tsv"), labels=["neutral"])


def hub(monkeypatch, table: pd.DataFrame, names: list[str] | None = None, *, script: bool = False) -> list:
    """In place of the package `datasets`, which is not installed here; what it was asked for."""
    features = {} if names is None else {"premise": None, "label": SimpleNamespace(names=names)}
    asked = []

    def load_dataset(*about, split, revision=None):
        asked.append((*about, split, revision))
        if script and revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found hans.py")
        return SimpleNamespace(to_pandas=table.copy, features=features)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_a_name_on_the_hub_is_fetched_through_datasets(monkeypatch):
    asked = hub(monkeypatch, pd.DataFrame({"question1": ["a b"], "question2": ["a"], "label": [1]}))
    pairs = pair_files.read_pairs("hub:nyu-mll/glue:qqp:validation", labels=["different", "same"])
    assert asked == [("nyu-mll/glue", "qqp", "validation", None)]
    assert sentence_pairs.texts_of(pairs) == {("a b", "a")} and pairs["label"].tolist() == [1]
    asked = hub(monkeypatch, FRAME, script=True)  # a set that a script makes, as the hub has converted it
    assert pair_files.read_hans("hub:jhu-cogsci/hans:validation")["kind"].tolist() == FRAME["subcase"].tolist()
    assert [revision for *_, revision in asked] == [None, "refs/convert/parquet"]


def test_names_of_classes_on_the_hub_come_before_their_numbers(monkeypatch):
    """Sets number their classes differently; -1 stands for no label."""
    table, names = (
        pd.DataFrame({"premise": ["a"] * 3, "hypothesis": ["b"] * 3}),
        ["contradiction", "entailment", "neutral"],
    )
    hub(monkeypatch, table.assign(label=[0, 1, 2]), names)
    pairs = pair_files.read_pairs("hub:a:b", labels=pair_files.CLASSES)
    assert [pair_files.CLASSES[label] for label in pairs["label"]] == names
    hub(monkeypatch, table.assign(label=[0, 1, -1]), names)
    with pytest.raises(DataError, match="row 3: unknown label '-1'; valid: entailment, neutral, contradiction"):
        pair_files.read_pairs("hub:a:b", labels=pair_files.CLASSES)
    hub(monkeypatch, table.assign(label=[1, 0, 1]), ["different", "same"])
    assert pair_files.read_paws("hub:a:b")["label"].tolist() == [ENTAILED, NOT_ENTAILED, ENTAILED]


def test_arrow_may_be_the_stream_that_datasets_writes(tmp_path):
    table = pa.Table.from_pandas(FRAME)
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert pair_files.read_hans(tmp_path / "data.arrow")["premise"].equals(FRAME["premise"])
    (tmp_path / "damaged.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(DataError, match="damaged.arrow cannot be read as a table"):
        pair_files.read_hans(tmp_path / "damaged.arrow")


def test_rows_without_a_text_and_texts_written_as_bytes_are_refused(tmp_path):
    gap = write(FRAME.assign(hypothesis=["a", None]), tmp_path / "gap.parquet")
    with pytest.raises(DataError, match="gap.parquet, row 2: no premise, hypothesis or label; take the row out"):
        pair_files.read_hans(gap)
    frame = pd.DataFrame({"sentence1": ["b'Is it?'", 'b"Who\'s it?"'], "sentence2": ["b'It is?'"] * 2, "label": [0, 1]})
    with pytest.raises(DataError, match=r"has texts such as b'Is it\?'; make it without \.encode"):
        pair_files.read_paws(write(frame, tmp_path / "paws.tsv"))
    assert len(pair_files.read_paws(write(frame.assign(sentence2=["it", "b'Is'"]), tmp_path / "quoted.tsv"))) == 2


def test_paws_says_one_for_questions_that_mean_the_same(tmp_path):
    frame = pd.DataFrame({"sentence1": ["a b", "a b", "c"], "sentence2": ["b a", "a b", "c"], "label": [0, 1, 1]})
    pairs = pair_files.read_paws(write(frame, tmp_path / "paws.tsv"))
    assert pairs["label"].tolist() == [NOT_ENTAILED, ENTAILED, ENTAILED]
    assert pairs["kind"].tolist() == [sentence_pairs.DIFFERENT, sentence_pairs.SAME, sentence_pairs.SAME]
    assert [sentence_pairs.is_entailed(kind) for kind in pairs["kind"]] == pairs["label"].tolist()
    with pytest.raises(DataError, match="unknown label '2'; valid: 0, 1"):
        pair_files.read_paws(write(frame.assign(label=[0, 1, 2]), tmp_path / "wrong.tsv"))
    with pytest.raises(DataError, match="has no column 'label'"):
        pair_files.read_paws(write(frame.drop(columns="label"), tmp_path / "less.tsv"))


def test_a_name_on_the_hub_that_cannot_be_had_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if not installed
    for place in ("hub:name", "hub:a:b:c:d"):
        with pytest.raises(DataError, match="write hub:name:split"):
            pair_files.read_pairs(place)
    with pytest.raises(DataError, match="pip install datasets"):
        pair_files.read_pairs("hub:a:b")
