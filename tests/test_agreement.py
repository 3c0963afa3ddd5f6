"""Language stimuli of *Break It Down*: grammar, splits, sampling, tokenizers (section 6, appendix F)."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subnet_utils.tasks import agreement, tokenization
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, OddOneOut, sets_of, subroutines_of

SPLITS = ("train", "validation", "test")
SUBJECT_VERB_COUNTS = {
    "object relative, animate": 5600, "object relative, inanimate": 5040,
    "object relative without that, animate": 5600, "object relative without that, inanimate": 5040,
    "prepositional, animate": 8400, "prepositional, inanimate": 2520, "subject relative": 5600, "simple": 70,
}  # fmt: skip
REFLEXIVE_COUNTS = {"reflexive object relative": 11200, "simple reflexive": 140}
DISTINCT = {"anaphora-singular": [11_340, 11_340, 5_670], "anaphora-plural": [5_670, 5_670, 11_340]}

PRINTED = pd.read_csv(Path(__file__).with_name("appendix_f.csv"))
"""Appendix F, all of its examples: of each task and set four sentences, the odd one last, with their kinds (0
grammatical, 1: A flipped, 2: B flipped) as read off by hand."""


# ---- an independent reader of number features

EMBEDDED = re.compile(r"(?:like|admire|hate|love)(s?)")
FINITE = re.compile(r"(is|are|laughs?|swims?|smiles?|brings?|interests?)")


def features(sentence: str) -> tuple[bool, bool]:
    """(A plural, B plural) of a sentence from the endings of its words; checks all other agreement."""
    words = sentence.replace("taxi driver", "taxidriver").split()
    assert words[0] == "the"
    a_plural = words[1].endswith("s")
    reflexive = words[-1] in ("himself", "herself", "themselves")
    body, last = (words[2:-2], words[-1]) if reflexive else (words[2:], "")
    for place, word in enumerate(body):
        if embedded := EMBEDDED.fullmatch(word):
            before = body[place - 1]
            noun_plural = a_plural if before == "that" else before.endswith("s")
            assert noun_plural == (embedded[1] == ""), sentence
    if reflexive:
        return a_plural, last == "themselves"
    (verb,) = [word for word in body if FINITE.fullmatch(word)]
    return a_plural, verb == "are" or not verb.endswith("s")


def kind_by_features(sentence: str, task: str) -> int:
    """0, 1 or 2 as in the package; 3 for a sentence with both numbers wrong."""
    a_plural, b_plural = features(sentence)
    plural = task.endswith("plural")
    return (a_plural != plural) + 2 * (b_plural != plural)


def token_strings(data: agreement.AgreementSet) -> list[list[str]]:
    return [[data.sentences[item] for item in row] for row in data.examples.tolist()]


def small_set(task: str, set_name: str, split: str, seed: int, **options) -> agreement.AgreementSet:
    return agreement.generate(task, set_name, 60, split=split, seed=seed, **options)


# ---- grammar


@pytest.mark.parametrize("task", LANGUAGE_TASKS)
def test_counts_per_template_and_kind(task):
    expected = SUBJECT_VERB_COUNTS if task.startswith("sv") else REFLEXIVE_COUNTS
    table, whole = agreement.counts(task), agreement.sentences(task)
    for kind, distinct in enumerate(DISTINCT.get(task, [37_870] * 3)):
        rows = table[table["kind"] == kind]
        assert dict(zip(rows["template"], rows["sentences"], strict=True)) == expected
        assert rows["distinct"].sum() == distinct
        assert whole.loc[whole["kind"] == kind, "sentence"].nunique() == distinct, "a sentence has one template"


@pytest.mark.parametrize("task", LANGUAGE_TASKS)
def test_kinds_match_the_number_features_of_every_sentence(task):
    table = agreement.sentences(task).drop_duplicates()
    assert [kind_by_features(s, task) for s in table["sentence"]] == table["kind"].tolist()


@pytest.mark.parametrize("pair", ["sv-agreement", "anaphora"])
def test_a_flip_in_one_number_is_a_b_flip_in_the_other(pair):
    singular, plural = (agreement.sentences(f"{pair}-{number}") for number in ("singular", "plural"))
    for one, other in ((1, 2), (2, 1)):
        flipped = singular.loc[singular["kind"] == one, "sentence"]
        assert Counter(flipped) == Counter(plural.loc[plural["kind"] == other, "sentence"])


@pytest.mark.parametrize("task", LANGUAGE_TASKS)
def test_printed_examples_are_generated_with_the_right_kind(task):
    table, printed = agreement.sentences(task), PRINTED[PRINTED["task"] == task]
    assert printed["set"].value_counts().to_dict() == dict.fromkeys(sets_of(task), 4)
    for row in printed.itertuples():
        assert set(table.loc[table["sentence"] == row.sentence, "kind"]) == {row.kind}, row.sentence


def test_example_of_section_6():
    table = agreement.sentences("sv-agreement-singular")
    assert table.query("sentence == 'the picture by the ministers interest people'")["kind"].tolist() == [2]


# ---- splits and sampling


@settings(max_examples=6, deadline=None)
@given(task=st.sampled_from(LANGUAGE_TASKS), seed=st.integers(0, 2**40))
def test_splits_partition_each_kind(task, seed):
    parts = agreement.splits(task, seed=seed)
    assert parts["sentence"].is_unique
    assert set(parts["sentence"]) == set(agreement.sentences(task)["sentence"])
    sizes = parts.groupby(["kind", "split"]).size().unstack()
    totals = sizes.sum(axis=1)
    for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert ((sizes[split] - share * totals).abs() <= 1).all()
    assert not parts.equals(agreement.splits(task, seed=seed + 1))


@pytest.mark.parametrize("task", LANGUAGE_TASKS)
def test_sets_of_the_papers_sizes_fit_and_stay_in_their_split(task):
    """Appendix F; probe sets have no train split."""
    parts = agreement.splits(task, seed=0).set_index("sentence")["split"]
    full = {"train": 9500, "validation": 500, "test": 1000, "probe": 300}
    full = full if task.startswith("sv") else {"train": 2500, "validation": 200, "test": 200, "probe": 200}
    for seed, name in enumerate(sets_of(task)):
        for split in SPLITS[1:] if name.startswith("probe") else SPLITS:
            n = full["probe" if name.startswith("probe") else split]
            data = agreement.generate(task, name, n, split=split, seed=seed)
            assert data.examples.shape == (n, 4)
            assert set(parts[list(data.sentences)]) == {split}


@settings(max_examples=10, deadline=None)
@given(task=st.sampled_from(LANGUAGE_TASKS), seed=st.integers(0, 2**40), as_printed=st.booleans())
def test_composition_of_every_set(task, seed, as_printed):
    a, b = subroutines_of(task)
    allowed = {  # kinds of the rule-following sentences and of the odd one
        "base": ({0}, {1, 2}),
        f"mask-{a}": ({0, 2}, {1}),
        f"mask-{b}": ({0, 1}, {2}),
        f"probe-{a}": ({0}, {1}),
        f"probe-{b}": ({0}, {2}),
    }
    for name, (rule, odd) in allowed.items():
        data = small_set(task, name, "train", seed, as_printed=as_printed)
        kinds = [[kind_by_features(s, task) for s in row] for row in token_strings(data)]
        assert {kind for row in kinds for kind in row[:3]} == rule
        assert {row[3] for row in kinds} == odd
        assert data.kinds.dtype == torch.int8 and data.kinds[data.examples].tolist() == kinds


@settings(max_examples=8, deadline=None)
@given(task=st.sampled_from(LANGUAGE_TASKS), seed=st.integers(0, 2**40), as_printed=st.booleans())
def test_sentences_of_a_quadruple_are_distinct_and_none_is_overused(task, seed, as_printed):
    rows = Counter(agreement.sentences(task)["sentence"])
    for name in ("base", f"mask-{subroutines_of(task)[0]}"):
        data = agreement.generate(task, name, 1000, split="train", seed=seed, as_printed=as_printed)
        assert len(set(data.sentences)) == len(data.sentences)
        assert all(type(sentence) is str for sentence in data.sentences)
        quadruples = token_strings(data)
        assert all(len(set(row)) == 4 for row in quadruples)
        used = Counter(sentence for row in quadruples for sentence in row)
        assert set(used) == set(data.sentences)
        assert all(times <= rows[sentence] for sentence, times in used.items())


def test_repeated_sentences_never_meet_even_in_a_crowded_pool(monkeypatch):
    """A split of six distinct plural reflexives, each with two rows: four examples use up all of them."""
    monkeypatch.setattr(agreement, "ENDS", (0.5, 0.5 + 6 / 5670))
    for seed in range(20):
        data = agreement.generate("anaphora-plural", "probe-pronoun", 4, split="validation", seed=seed)
        rule = [row[:3] for row in token_strings(data)]
        assert all(len(set(row)) == 3 for row in rule)
        assert set(Counter(sentence for row in rule for sentence in row).values()) == {2}
    monkeypatch.setattr(agreement, "ENDS", (0.5, 0.5 + 2 / 5670))
    with pytest.raises(ValueError, match=re.escape("the split has 4 (2 distinct); ask for fewer")):
        agreement.generate("anaphora-plural", "probe-pronoun", 1, split="validation", seed=0)


def test_templates_occur_in_proportion_to_their_sentences():
    """Chi-square against sentence counts: uniform templates would give 'simple' an eighth of the cells."""
    data = agreement.generate("sv-agreement-plural", "probe-verb", 2000, split="train", seed=1)
    template_of = agreement.sentences("sv-agreement-plural").set_index("sentence")["template"]
    drawn = Counter(template_of[list(data.sentences)])
    expected = {name: 8000 * count / 37_870 for name, count in SUBJECT_VERB_COUNTS.items()}
    chi2 = sum((drawn[name] - expected[name]) ** 2 / expected[name] for name in expected)
    assert chi2 < 24.3  # 0.1% point of 7 degrees of freedom


def test_generate_is_deterministic_and_every_argument_matters():
    arguments = {"task": "anaphora-singular", "set_name": "base", "n": 40, "split": "test", "seed": 5}
    torch.manual_seed(0)
    first = agreement.generate(**arguments)
    torch.manual_seed(1)
    again = agreement.generate(**arguments)
    assert first.sentences == again.sentences and torch.equal(first.examples, again.examples)
    changes = [{"seed": 6}, {"split": "train"}, {"set_name": "probe-pronoun"}, {"task": "anaphora-plural"}]
    for change in [*changes, {"as_printed": True}]:
        assert agreement.generate(**arguments | change).sentences != first.sentences


def test_as_printed_mask_sets_overlap_base_and_probe_sets():
    task = "sv-agreement-singular"
    trained = set(agreement.generate(task, "mask-verb", 3000, split="train", seed=0, as_printed=True).sentences)
    for name in ("base", "probe-verb", "probe-subject"):
        tested = agreement.generate(task, name, 300, split="test", seed=0, as_printed=True).sentences
        share = len(trained.intersection(tested)) / len(tested)
        assert 0.03 < share < 0.3
    for task, shared in (("sv-agreement-singular", False), ("anaphora-plural", True)):
        train, test = (
            agreement.generate(task, "base", n, split=split, seed=0, as_printed=True).sentences
            for split, n in (("train", 2500), ("test", 200))
        )
        assert (not set(train).isdisjoint(test)) == shared  # only merged reflexives leak inside one set


# ---- bad input


def test_bad_input_is_one_clear_line():
    good = {"task": "anaphora-plural", "set_name": "base", "n": 10, "split": "train", "seed": 0}
    cases = [
        ({"task": "anaphora-plurals"}, "did you mean 'anaphora-plural'"),
        ({"task": "inside-contact"}, "unknown language task 'inside-contact'"),
        ({"set_name": "mask-pronuon"}, "did you mean 'mask-pronoun'"),
        ({"set_name": "mask-verb"}, "no set 'mask-verb'"),
        ({"split": "validate"}, "did you mean 'validation'"),
        ({"n": 0}, "at least 1"),
        ({"n": 3100}, "needs 9300 sentences of kind 0 (3 distinct), the split has 9072 (4536 distinct)"),
    ]
    for change, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            agreement.generate(**good | change)
        assert "\n" not in str(error.value)
    for function in (agreement.sentences, agreement.counts, agreement.gallery, agreement.splits):
        options = {"seed": 0} if function in (agreement.gallery, agreement.splits) else {}
        with pytest.raises(ValueError, match="unknown"):
            function("agreement", **options)


# ---- gallery and tokenizers


@pytest.mark.parametrize("task", LANGUAGE_TASKS)
def test_gallery_shows_one_example_of_each_set(task):
    table = agreement.gallery(task, seed=0)
    assert table["set"].tolist() == list(sets_of(task)) and table.columns[-1] == "odd one out"
    for sentence in table[["1", "2", "3", "odd one out"]].to_numpy().flatten():
        assert sentence.startswith("*") == (kind_by_features(sentence.removeprefix("*"), task) != 0)
    assert table["odd one out"].str.startswith("*").all()


@pytest.fixture
def wordpiece_folder(tmp_path):
    pieces = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the author ##s is laugh that guard love old "
    (tmp_path / "vocab.txt").write_text(pieces.replace(" ", "\n"))
    return tmp_path


def test_word_vocabulary_covers_the_grammar():
    vocabulary = tokenization.tokenizer()
    words = {w for task in LANGUAGE_TASKS for s in agreement.sentences(task)["sentence"] for w in s.split()}
    assert vocabulary.tokens == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(words))
    assert vocabulary.size == len(words) + 4 and {"taxi", "driver", "drivers"} <= words
    tokens = vocabulary.encode(["the pilot laughs", "the pilot behind the taxi driver is old", "the xyzzy"])
    assert tokens.dtype == torch.int64 and tokens.shape == (3, 10)
    texts = [[vocabulary.tokens[i] for i in row] for row in tokens.tolist()]
    assert texts[0] == ["[CLS]", "the", "pilot", "laughs", "[SEP]", *["[PAD]"] * 5]
    assert " ".join(texts[1]) == "[CLS] the pilot behind the taxi driver is old [SEP]"
    assert texts[2][:4] == ["[CLS]", "the", "[UNK]", "[SEP]"]


def test_wordpiece_of_a_folder(wordpiece_folder):
    pieces = tokenization.tokenizer(str(wordpiece_folder))
    assert pieces.size == 15
    tokens = pieces.encode(("the authors that love the guard laugh", "the author is old"))
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[3, 6, 7, 8, 11, 13, 6, 12, 10, 4], [3, 6, 7, 9, 14, 4, 0, 0, 0, 0]]


def test_wordpiece_refuses_a_folder_that_is_not_of_a_bert(tmp_path, wordpiece_folder):
    with pytest.raises(ValueError, match=r"nowhere' is not a folder with a vocab\.txt"):
        tokenization.tokenizer(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' is not a folder with a vocab\.txt"):
        tokenization.tokenizer(tmp_path / "empty")
    vocabulary = (wordpiece_folder / "vocab.txt").read_text()
    (wordpiece_folder / "vocab.txt").write_text("the\n" + vocabulary)
    with pytest.raises(ValueError, match=re.escape("has [PAD] = 1, not 0")):
        tokenization.tokenizer(wordpiece_folder)
    (wordpiece_folder / "vocab.txt").write_text(vocabulary.replace("[CLS]\n", "").replace("[SEP]\n", ""))
    with pytest.raises(ValueError, match=re.escape("lacks [CLS], [SEP]")):
        tokenization.tokenizer(wordpiece_folder)


@pytest.mark.parametrize("folder", [False, True])
def test_encoded_set_is_an_odd_one_out_set(folder, wordpiece_folder):
    data = small_set("sv-agreement-singular", "base", "test", 0)
    tokenizer = tokenization.tokenizer(wordpiece_folder if folder else None)
    encoded = data.encode(tokenizer)
    assert isinstance(encoded, OddOneOut) and len(encoded) == 60
    assert len(encoded.items) == len(data.sentences) == len(encoded.kinds)
    assert encoded.items.max() < tokenizer.size
    assert torch.equal(encoded.examples, data.examples)


def test_a_hub_name_is_asked_of_the_hub_and_its_failure_told(monkeypatch):
    from transformers import BertTokenizerFast

    def unreachable(source, *, local_files_only):
        assert (source, local_files_only) == ("prajjwal1/bert-small", False)
        raise OSError("we could not connect\nmore lines")

    monkeypatch.setattr(BertTokenizerFast, "from_pretrained", unreachable)
    with pytest.raises(ValueError, match="of 'prajjwal1/bert-small' cannot be loaded: we could not connect; give"):
        tokenization.tokenizer("prajjwal1/bert-small")


def test_a_vocabulary_that_transformers_makes_up_is_refused(monkeypatch):
    """It raises nothing where it finds no file, and has special tokens alone: every word would be unknown."""
    from transformers import BertTokenizerFast

    monkeypatch.setattr(BertTokenizerFast, "from_pretrained", lambda *_, **__: BertTokenizerFast())
    with pytest.raises(ValueError, match="the vocabulary of 'some/bert' has no words; give the folder of a BERT"):
        tokenization.tokenizer("some/bert")
