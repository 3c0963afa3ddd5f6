"""The study: what loads, from where, and one readable line for each thing that is wrong in it."""

import copy
import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from subnet_utils.check import cannot_run, duration
from subnet_utils.check import main as check
from subnet_utils.core.notebook import begin
from subnet_utils.core.papers import notebooks
from subnet_utils.core.sections import ROOT, Compute, Section
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks import masking
from subnet_utils.models import build
from subnet_utils.papers.break_it_down import sets
from subnet_utils.papers.heuristic_core import pair_sets
from subnet_utils.papers.subtask_induction.mask_search import MaskSearch

SIZES = {
    "base": {"train": 8, "validation": 4, "test": 4}, "mask": {"train": 8, "validation": 4, "test": 4},
    "probe": {"validation": 4, "test": 4},
}  # fmt: skip
LANGUAGE = {
    "model": "bert_tiny", "paper_model": "bert_small", "tasks": ["sv-agreement-singular"], "data": SIZES,
    "architecture": {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 8},
    "base": {"learning_rate": 0.001, "batch_size": 4}, "masks": {"starts": ["layer_1", "layer_2"]},
}  # fmt: skip
VISION = LANGUAGE | {
    "model": "resnet_tiny", "paper_model": "resnet50", "tasks": ["number-contact"],
    "architecture": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "small_stem": True},
    "data": SIZES | {"resolution": 64}, "masks": {"starts": ["stem", "stage_3"]},
}  # fmt: skip
SWEEP = {
    "model": "vit_tiny", "tasks": ["inside-contact"], "data": SIZES | {"resolution": 64},
    "architecture": {"family": "vit", "layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "patch": 16},
    "base": {"learning_rate": 0.001, "batch_size": 4}, "layers": [1, 2], "learning_rates": [0.001], "batch_sizes": [4],
}  # fmt: skip
VALUES = {
    "name": "small", "compute": {"device": "cpu"},
    "break_it_down": {"experiments": [LANGUAGE, VISION], "vit_search": SWEEP},
}  # fmt: skip
FULL = Study.load(VALUES).model_dump(mode="json")
"""Every key that there is, with a value."""


def of_break_it_down(**section: Any) -> dict[str, Any]:
    return {"name": "a", "break_it_down": section}


def section_of_tiny(paper: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"][paper]


def at(values: Any, path: str) -> Any:
    """What stands at a dotted path."""
    for part in filter(None, path.split(".")):
        values = values[int(part) if part.isdigit() else part]
    return values


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full study with one value replaced or added."""
    values = copy.deepcopy(FULL)
    parent, _, last = path.rpartition(".")
    at(values, parent)[int(last) if last.isdigit() else last] = value
    return values


def without(path: str) -> dict[str, Any]:
    """The full study with one key removed."""
    values = copy.deepcopy(FULL)
    parent, _, last = path.rpartition(".")
    del at(values, parent)[last]
    return values


def shortened(key: str) -> set[str]:
    """A key with one letter missing."""
    return {key[:i] + key[i + 1 :] for i in range(len(key))}


def errors(source: Any) -> list[str]:
    """The lines of the error that a study is refused with."""
    with pytest.raises(StudyError) as caught:
        Study.load(source)
    return str(caught.value).splitlines()


def keys(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(section's path, key) of every key of a nested mapping."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        if isinstance(values, dict):
            yield prefix, key
        yield from keys(value, f"{prefix}{key}.")


E, V = "break_it_down.experiments.0", "break_it_down.experiments.1"
"""Where the settings of the language model and of the vision model stand."""


# -- what loads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem)
def test_profile_loads_under_its_own_name(path):
    study = Study.load(path)
    assert study.name == path.stem
    assert list(yaml.safe_load(path.read_text())) == ["study"]  # papermill -f needs exactly this parameter


def test_stages_are_those_of_the_network():
    section = Study.load(VALUES).break_it_down
    for experiment in (*section.experiments, section.vit_search):
        architecture = experiment.architecture
        sizes = {"vocabulary": 9} if architecture.family == "bert" else {"resolution": experiment.data.resolution}
        names = build(architecture.model_dump(exclude_none=True), seed=0, **sizes).stage_names
        assert architecture.stages == (names[1:] if architecture.family == "bert" else names)  # embeddings hold no mask


def test_every_way_of_naming_a_profile_gives_the_same_study(monkeypatch, tmp_path):
    path = ROOT / "params" / "tiny.yaml"
    values = yaml.safe_load(path.read_text())
    monkeypatch.chdir(tmp_path)  # papermill runs in the caller's directory
    ways = ["tiny", "params/tiny.yaml", path, str(path), values, values["study"]]
    studies = [Study.load(way) for way in ways]
    assert all(study == studies[0] for study in studies)
    assert Study.load(studies[0]) is studies[0]


def test_the_working_directory_goes_before_the_checkout(monkeypatch, tmp_path):
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "toy.yaml").write_text(yaml.safe_dump({"study": VALUES | {"name": "toy"}}))
    (tmp_path / "small.yml").write_text(yaml.safe_dump(VALUES))
    assert Study.load("params/tiny.yaml").name == "tiny"
    monkeypatch.chdir(tmp_path)
    assert Study.load("params/toy.yaml").name == Study.load("toy").name == "toy"
    assert Study.load("small.yml").name == "small"


def test_a_study_survives_json_and_pickling():
    study = Study.load(VALUES)
    assert Study.load(json.loads(study.model_dump_json())) == study
    assert pickle.loads(pickle.dumps(study)) == study
    assert hash(Study.load(VALUES)) == hash(study)


def test_sections_are_frozen():
    study = Study.load(VALUES)
    for section in (study, study.compute, study.break_it_down, study.break_it_down.experiments[0].masks.masking):
        for name in type(section).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))


# -- misspelt and missing keys -----------------------------------------------------------------------------------------


def test_any_key_with_a_letter_missing_is_reported_once_with_the_key_that_was_meant():
    checked = 0
    for prefix, key in sorted(set(keys(FULL))):
        siblings = set(at(FULL, prefix)) - {key}
        # 'asks' may be meant for 'tasks' or 'masks'
        typos = shortened(key) - siblings - {typo for sibling in siblings for typo in shortened(sibling)}
        for typo in typos if len(key) > 2 and key not in ("family", "method") else ():
            values = without(f"{prefix}{key}")
            at(values, prefix)[typo] = at(FULL, f"{prefix}{key}")
            (line,) = errors(values)
            assert line.startswith(f"{prefix}{typo}: unknown key; did you mean '{key}'? valid: ")
            assert key in line.partition("valid: ")[2].split(", ")
            checked += 1
    assert checked > 500


def test_a_key_of_nowhere_is_answered_with_the_keys_of_its_own_section():
    valid = "family, block, depths, width, width_factor, head_width, embedding, small_stem"
    where = f"{V}.architecture"
    assert errors(changed(f"{where}.layers", 3)) == [f"{where}.layers: unknown key; valid: {valid}"]
    assert errors({"study": VALUES, "nmae": "x"}) == [
        "nmae: unknown key beside 'study'; move it into 'study' or remove it"
    ]
    assert errors(VALUES | {3: 4})[0].startswith("3: unknown key; valid: name, compute")


@pytest.mark.parametrize("path", ["name", f"{E}.base", f"{V}.base.learning_rate", f"{E}.data.mask.test"])
def test_missing_key(path):
    assert errors(without(path)) == [f"{path}: missing; add it"]


def test_a_study_must_have_something_to_do():
    (line,) = errors({"name": "a"})
    assert line.startswith("study: no section says what to do; add one: break_it_down, ")
    assert (
        errors(without(f"{E}.architecture.family"))[0] == f"{E}.architecture.family: missing; valid: bert, resnet, vit"
    )
    assert errors(without("break_it_down.experiments")) == ["break_it_down.experiments: missing; add it"]
    assert Study.load({"name": "a", "subtask_induction": {"arithmetic": {}}}).break_it_down is None
    said = "subtask_induction: no part says what to do; add one: arithmetic, images"
    assert errors({"name": "a", "subtask_induction": {}}) == [said]


def test_a_key_that_stands_too_high_is_sent_where_it_belongs():
    """As in a profile from the time when a study had no section per paper."""
    tiny = section_of_tiny("break_it_down") | section_of_tiny("subtask_induction")
    core = section_of_tiny("heuristic_core")
    old = {"name": "a", "experiments": tiny["experiments"], "arithmetic": tiny["arithmetic"], "inference": core}
    assert errors(old) == [
        "experiments: unknown key; it belongs in 'break_it_down'; move it there",
        "arithmetic: unknown key; it belongs in 'subtask_induction' or 'functional_modularity'; move it there",
        "inference: unknown key; its keys are those of 'heuristic_core'; call it so",
    ]
    where = f"{E}.masks.beta_max"
    assert errors(changed(where, 3.0)) == [f"{where}: unknown key; it belongs in 'masking'; move it there"]


# -- wrong values ------------------------------------------------------------------------------------------------------
METHODS = f"valid: {', '.join(masking.METHODS)}"
LM = {"method": "masked_language_model"}
MASKING = f"{E}.masks.masking"
VIT, PRUNING = "break_it_down.vit_search", "break_it_down.pruning"
WRONG = [
    (f"{E}.architecture.layers", 10**12, "1000000000000 is not valid; give at most 1000"),
    (f"{E}.base.learning_rate", "fast", "'fast' is not valid; give a number"),
    (f"{E}.base.learning_rate", "1e-3", "YAML reads 1e-3 as text; write 0.001"),
    (f"{E}.masks.masking.l0", "1e-8", "YAML reads 1e-8 as text; write 0.00000001"),
    (f"{E}.masks.learning_rates.1", "1e-4", "YAML reads 1e-4 as text; write 0.0001"),
    (f"{E}.base.epochs", "1e2", "YAML reads 1e2 as text; write 100"),
    (f"{E}.base.epochs", "10", "YAML reads 10 as text; write it without quotes"),
    (f"{E}.base.learning_rate", "1e999", "'1e999' is not valid; give a number"),
    (f"{E}.base.learning_rate", "nan", "'nan' is not valid; give a number"),
    (f"{E}.base.learning_rate", float("nan"), "nan is not valid; give a finite number"),
    (f"{E}.masks.inits.0", float("inf"), "inf is not valid; give a finite number"),
    (f"{E}.base.learning_rate", True, "True is not valid; give a number"),
    (f"{E}.base.epochs", -3, "-3 is not valid; give more than 0"),
    (f"{E}.base.epochs", 4.0, "4.0 is not valid; give a whole number"),
    (f"{E}.base.epochs", None, "None is not valid; give a whole number"),
    (f"{E}.base.flips", 1, "1 is not valid; give true or false"),
    (f"{E}.architecture", "bert", "'bert' is not valid; give a mapping of keys"),
    (E, "bert_tiny", "'bert_tiny' is not valid; give a mapping of keys"),
    (VIT, [3], "[3] is not valid; give a mapping of keys"),
    (f"{E}.tasks", "anaphora-plural", "'anaphora-plural' is not valid; give a list, in square brackets"),
    ("break_it_down.experiments", {}, "{} is not valid; give a list, in square brackets"),
    (f"{E}.masks.inits", [], "is empty; give at least one"),
    ("break_it_down.experiments", [], "is empty; give at least one"),
    (f"{E}.base.seeds", [0, 1, 0], "holds 0 twice; each may stand once"),
    (f"{E}.base.seeds.1", -1, "-1 is not valid; give at least 0"),
    (f"{E}.base.seeds.1", 2**63, "9223372036854775808 is not valid; give less than 9.22337e+18"),
    (f"{E}.paper_model", "resnet50", "the paper has no language model 'resnet50'; valid: bert_small, bert_small_lm"),
    (f"{E}.paper_model", "bert_smal", "the paper has no language model 'bert_smal'; did you mean 'bert_small'?"),
    (f"{E}.data.base.train", 0, "0 is not enough; give at least one training example"),
    (f"{E}.data.mask.train", 0, "0 is not enough; give at least one training example"),
    (f"{VIT}.data.base.train", 0, "0 is not enough; give at least one training example"),
    ("compute.device", "gpu", "'gpu' is not valid; give 'auto', 'cpu' or 'cuda'"),
    ("compute.workers", 0, "0 is not valid; give 'auto' or a whole number above 0"),
    ("compute.workers", True, "True is not valid; give 'auto' or a whole number above 0"),
    (f"{E}.masks.search", "gird", "'gird' is not valid; give 'grid', 'halving' or 'selected'"),
    ("name", "My Study", "'My Study' is not valid; give lower-case letters, digits, - and _, none of the two first"),
    ("name", "_mine", "'_mine' is not valid; give lower-case letters, digits, - and _, none of the two first"),
    ("name", 3, "3 is not valid; give text"),
    (f"{V}.architecture.depths", [1, 1, 1, 1, 1], "[1, 1, 1, 1, 1] is not valid; give at most 4 entries"),
    (f"{V}.architecture.depths.2", 0, "0 is not valid; give more than 0"),
    (f"{VIT}.architecture.family", "resnet", "'resnet' is not valid; give 'vit'"),
    (f"{E}.architecture.family", "brt", "'brt' is not valid; did you mean 'bert'? valid: bert, resnet, vit"),
    # of sections that are told apart by a method
    (MASKING, "gumbel_sigmod", f".method: 'gumbel_sigmod' is not valid; did you mean 'gumbel_sigmoid'? {METHODS}"),
    (MASKING, {"method": "gumbel"}, f".method: 'gumbel' is not valid; did you mean 'gumbel_sigmoid'? {METHODS}"),
    (MASKING, {"method": "gumbel_sigmoid", "temprature": 1.0}, ".temprature: unknown key; did you mean"),
    (MASKING, {"beta_mx": 100.0}, ".beta_mx: unknown key; did you mean 'beta_max'? valid: l0, "),
    (MASKING, {"method": "magnitude", "l0": 0.1}, ".l0: unknown key; valid: density, units, method"),
    (MASKING, {"method": "magnitude", "density": 1.5}, ".density: 1.5 is not valid; give less than 1"),
    (MASKING, 3, "3 is not valid; give a mapping of keys"),
    (f"{E}.pretraining", {"method": "masked"}, ".method: 'masked' is not valid; valid: simclr, masked_language_model"),
    (f"{E}.pretraining", {}, ".method: missing; valid: simclr, masked_language_model"),
    (f"{E}.pretraining", LM | {"epoch": 3}, ".epoch: unknown key; did you mean 'epochs'? valid: "),
    (f"{V}.pretraining", {"method": "simclr", "batch_size": 127}, ".batch_size: 127 is not valid; give a multiple"),
    # what does not fit together
    (f"{E}.masks", at(FULL, f"{E}.masks") | {"masking": "spectral_clusters"},
     ".masking: 'spectral_clusters' needs a chain of layers, and a bert is none; take another method"),
    (f"{E}.masks.starts", ["stage_9"], "'stage_9' is not a stage of 'bert_tiny'; valid: layer_1, layer_2, pooler"),
    (f"{V}.masks.starts", ["stem", "stage_9"], "'stage_9' is not a stage of 'resnet_tiny'; did you mean 'stage_4'?"),
    (f"{E}.tasks", ["inside-contact"], "'inside-contact' is not a language task; valid: sv-agreement-singular"),
    (f"{E}.tasks", ["inside\ncontact"], "'inside contact' is not a language task; "),
    (f"{V}.tasks", ["anaphora-plural"], "'anaphora-plural' is not a vision task; valid: inside-contact"),
    (f"{VIT}.tasks", ["inside-numbr"], "'inside-numbr' is not a vision task; did you mean 'inside-number'?"),
    (f"{V}.data.resolution", 16, "16 is not valid; give at least 32"),
    (f"{V}.data.shape_sizes", "authors", "'authors' do not fit into 64 pixels; take 128 or 'ours'"),
    (f"{VIT}.data.resolution", 70, "70 is not a multiple of architecture.patch 16; change one of them"),
    (f"{V}.architecture.width_factor", 2, "2 needs block bottleneck; basic ones have no inner width"),
    (f"{V}.masks.control_deviation", 0.04, "is for family bert, 'resnet_tiny' is of another; remove it"),
    ("break_it_down.controls", {"draw": 9}, ".draw: unknown key; did you mean 'draws'?"),
    ("break_it_down.controls", {"seeds": [7]}, ".seeds: 7 is not a mask seed of 'bert_tiny'"),
    (PRUNING, {"models": ["resnet"], "tasks": ["number-contact"]}, ".models: no experiment 'resnet'; did you mean"),
    (PRUNING, {"models": ["resnet_tiny"], "tasks": ["inside-contact"]}, "no experiment has these models"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "what"), WRONG)
def test_wrong_value_is_one_line_that_names_the_key_and_the_remedy(path, value, what):
    (line,) = errors(changed(path, value))
    assert line.startswith(f"{path}{what}" if what.startswith(".") else f"{path}: {what}")


@pytest.mark.parametrize(
    ("path", "more", "what"),
    [
        (f"{E}.architecture", {"heads": 3}, ".width: 8 is not a multiple of heads 3; change one of them"),
        (f"{VIT}.architecture", {"heads": 3}, ".width: 8 is not a multiple of heads 3; change one of them"),
        (f"{E}.architecture", {"deviation": 0.1, "pretrained": "a"}, ".deviation: pretrained weights are not drawn"),
        (V, {"architecture": VISION["architecture"] | {"small_stem": False}, "data": SIZES | {"resolution": 32}},
         ".data.resolution: 32 is too small for this ResNet; give more than 32"),
    ],
)  # fmt: skip
def test_two_values_that_do_not_fit_together(path, more, what):
    assert errors(changed(path, at(FULL, path) | more))[0].startswith(path + what)


def test_a_masking_may_be_the_name_of_its_method():
    def chosen(value: Any) -> Section:
        return Study.load(changed(MASKING, value)).break_it_down.experiments[0].masks.masking

    assert chosen("gumbel_sigmoid") == chosen({"method": "gumbel_sigmoid"}) != chosen({"method": "magnitude"})
    assert chosen({"beta_max": 3.0}) == chosen({"method": "continuous_sparsification", "beta_max": 3.0})


def test_every_error_has_its_line():
    values = changed(f"{E}.base.epochs", -1)
    values["compute"] = {"device": "gpu", "thread": 2}
    at(values, f"{V}.masks")["inits"] = ["a", 0.1, "1e-2"]
    assert [line.partition(":")[0] for line in errors(values)] == [
        "compute.device", "compute.thread", f"{E}.base.epochs",
        f"{V}.masks.inits.0", f"{V}.masks.inits.2",
    ]  # fmt: skip


@given(mantissa=st.integers(1, 9999), exponent=st.integers(-12, 12))
def test_the_number_to_write_is_the_number_that_was_meant(mantissa, exponent):
    text = f"{mantissa}e{exponent}"
    assert yaml.safe_load(text) == text  # YAML 1.1 wants a dot in a float with an exponent
    (line,) = errors(changed(f"{E}.base.learning_rate", text))
    written = yaml.safe_load(line.partition("; write ")[2])
    study = Study.load(changed(f"{E}.base.learning_rate", written))
    assert study.break_it_down.experiments[0].base.learning_rate == float(text)


PATHS = sorted({f"{prefix}{key}" for prefix, key in keys(FULL)})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), inner),
    max_leaves=5,
)
JARGON = ("Input", "Tuple", "instance", "validation error", "pydantic", "NoneType")


@given(path=st.sampled_from(PATHS), value=ANYTHING)
def test_whatever_stands_in_a_study_it_loads_or_is_refused_in_plain_words(path, value):
    try:
        assert isinstance(Study.load(changed(path, value)), Study)
    except StudyError as error:
        for line in str(error).splitlines():
            where, _, what = line.partition(": ")
            assert where.startswith((path.partition(".")[0], "study")) and what, line
            explanation = line.replace(repr(value), "")
            assert len(line) < 400 and not any(word in explanation for word in JARGON), line


# -- what does not fit together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "paper_model"])
def test_a_model_and_task_may_stand_once(name):
    twin = LANGUAGE | {"model": "other", "paper_model": "bert_small_lm"} | {name: LANGUAGE[name]}
    (line,) = errors(of_break_it_down(experiments=[LANGUAGE, twin]))
    assert line.endswith(f"{name} '{LANGUAGE[name]}' has task 'sv-agreement-singular' twice; each pair may stand once")


# -- sources that are no study -----------------------------------------------------------------------------------------


def test_a_profile_may_be_a_link_and_have_one(tmp_path, monkeypatch):
    monkeypatch.setattr("subnet_utils.core.study.ROOT", tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "mine.yaml").write_text((ROOT / "params/check.yaml").read_text().replace("name: check", "name: mine"))
    (tmp_path / "params/mine.yaml").symlink_to(tmp_path / "mine.yaml")
    assert Study.load("mine") == Study.load(tmp_path / "mine.yaml")


def test_unknown_profile_is_answered_with_the_nearest():
    profiles = ", ".join(sorted(path.stem for path in (ROOT / "params").glob("*.yaml")))
    assert errors("tinny") == [f"no profile 'tinny'; did you mean 'tiny'? valid: {profiles}"]
    assert errors("params/tinny.yaml") == [f"no profile 'params/tinny.yaml'; did you mean 'tiny'? valid: {profiles}"]
    for source in (None, 3, ["tiny"]):
        assert errors(source) == [
            f"study: {source!r} is not valid; give the name of a profile, a YAML file or a mapping"
        ]
    assert errors("zebra") == [f"no profile 'zebra'; valid: {profiles}"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "study.yaml holds no mapping; it must have one top-level key, 'study'"),
        (b"- study", "study.yaml holds no mapping; it must have one top-level key, 'study'"),
        (b"study", "study.yaml holds no mapping; it must have one top-level key, 'study'"),
        (b"study:", "study: None is not valid; give a mapping of keys such as 'name'"),
        (b"study: tiny", "study: 'tiny' is not valid; give a mapping of keys such as 'name'"),
        (b"name: a\nstudy: [1", "study.yaml, line 2: not valid YAML, expected ',' or ']', but got '<stream end>'"),
        (b"name: a\nb: {c: 1,\n c: 1}", "study.yaml, line 3: not valid YAML, key 'c' stands twice in one section"),
        (b"a:\n\t- b", "study.yaml, line 2: not valid YAML, found character '\\t' that cannot start any token"),
        (b"name: !!python/name:os.system", "study.yaml, line 1: not valid YAML, could not determine a constructor"),
        (b"\xff\xfe\x00", "study.yaml cannot be read as YAML: 'utf-8' codec can't decode byte 0xff"),
        (b"a: \x07", "study.yaml cannot be read as YAML: unacceptable character #x0007"),
        (b"a: 2020-13-45", "study.yaml cannot be read as YAML: month must be in 1..12"),
        (b"a: !!bool foo", "study.yaml cannot be read as YAML: 'foo'"),
        (b"a: !!int ''", "study.yaml cannot be read as YAML: string index out of range"),
        (b"a: !!timestamp foo", "study.yaml cannot be read as YAML: 'NoneType' object has no attribute"),
        (b"a: " + b"[" * 3000, "study.yaml cannot be read as YAML: maximum recursion depth exceeded"),
        (b"a: " + b"1" * 5000, "study.yaml cannot be read as YAML: Exceeds the limit (4300 digits)"),
    ],
)
def test_file_that_holds_no_study(tmp_path: Path, content: bytes, what: str):
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    (line,) = errors(path)
    assert line.startswith(what)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "the authors start at 'layer_3', which this network lacks; use grid"),
        ({"architecture": LANGUAGE["architecture"] | {"layers": 4}}, None),
        ({"base": LANGUAGE["base"] | {"seeds": [0, 3]}}, "selected nothing for sv-agreement-singular, base seed 3"),
    ],
    ids=["start", "none", "seed"],
)
def test_settings_selected_by_the_authors_must_exist_before_anything_is_trained(changes, what):
    experiment = LANGUAGE | {"masks": {"search": "selected", "starts": ["layer_1"]}} | changes
    study = of_break_it_down(experiments=[experiment])
    if what is None:
        assert Study.load(study).break_it_down.experiments[0].masks.search == "selected"
    else:
        assert what in errors(study)[0]


def test_pretraining_must_suit_the_network_its_data_and_its_place():
    section = section_of_tiny("break_it_down")
    language, contrastive = (experiment["pretraining"] for experiment in section["pretrained"])
    swapped = section | {"pretrained": [section["pretrained"][0] | {"pretraining": contrastive}]}
    assert "simclr is for family resnet, 'bert_2x128_lm' is of family bert" in errors(of_break_it_down(**swapped))[0]
    misplaced = {"experiments": [section["experiments"][0] | {"pretraining": language}]}
    assert "move it to 'pretrained'" in errors(of_break_it_down(**misplaced))[0]
    plain = section["experiments"][0] | {"model": "other", "paper_model": "bert_small_lm"}
    (line,) = errors(of_break_it_down(**section | {"pretrained": [plain]}))
    assert "has neither pretraining nor architecture.pretrained" in line
    section["pretrained"][1]["data"]["base"] |= {"train": 40, "validation": 300}
    (line,) = errors(of_break_it_down(**section))
    assert line.endswith("pretraining.batch_size: 128 images are more than 40 train examples a task give; lower it")


def test_no_other_study_bears_the_name_of_a_profile(tmp_path):
    """Its figures would replace the profile's. It may lack parts, and be computed in another way."""
    values = yaml.safe_load((ROOT / "params" / "paper.yaml").read_text())["study"]
    fewer = copy.deepcopy(values) | {"compute": {"workers": 3}}
    del fewer["break_it_down"], fewer["subtask_induction"]["images"]
    assert Study.load("paper").name == Study.load(fewer).name == "paper"
    fewer["heuristic_core"]["pruning"]["batch_size"] = 10
    with pytest.raises(StudyError, match=r"^heuristic_core.pruning: is not that of params/paper.yaml, .* another name"):
        Study.load(fewer)
    assert Study.load(fewer | {"name": "mine"}).name == "mine"
    laptop = yaml.safe_load((ROOT / "params" / "laptop.yaml").read_text())["study"]
    laptop["break_it_down"]["check_halving"] = False
    with pytest.raises(StudyError, match=r"^break_it_down.check_halving: is not that of params/laptop.yaml"):
        Study.load(laptop)
    with pytest.raises(StudyError, match="^break_it_down.experiments: is not that of params/minilm.yaml, whose"):
        Study.load(VALUES | {"name": "minilm"})
    other = tmp_path / "tiny.yaml"
    other.write_text((ROOT / "params" / "tiny.yaml").read_text().replace("draws: 9", "draws: 8"))
    with pytest.raises(StudyError, match=r"^break_it_down.controls: is not that of params/tiny.yaml, whose figures"):
        Study.load(other)


def test_a_study_has_the_name_of_its_file(tmp_path, capsys):
    """Else a run of the copy would replace the figures of another profile."""
    mine = tmp_path / "mine.yaml"
    mine.write_text((ROOT / "params" / "tiny.yaml").read_text())
    said = "mine.yaml: study.name is 'tiny'; make it 'mine'"
    assert check([str(mine)]) == 2 and capsys.readouterr().err == f"{said}\n"
    with pytest.raises(StudyError, match=f"^{said}$"):
        begin(str(mine), "01_train_bases")  # as papermill -p study mine.yaml


def test_places_start_at_the_checkout_wherever_one_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    positions = {"params": str(ROOT / "params"), "google/bert": "google/bert", str(tmp_path): str(tmp_path)}
    for written, place in positions.items():
        own = LANGUAGE | {"architecture": LANGUAGE["architecture"] | {"pretrained": written}}
        study = Study.load(of_break_it_down(pretrained=[own], experiments=[VISION]))
        assert study.break_it_down.pretrained[0].architecture.pretrained == place


def profile_of_pairs(tmp_path: Path, files: dict[str, str]) -> Path:
    """A profile of notebooks 08 to 08c, on pairs from files and with weights from a folder that is not there."""
    weights = {"family": "published", "weights": str(tmp_path / "bert")}
    own = {"generated": None, "pretraining": None, "files": files, "architecture": weights}
    path, study = tmp_path / "mine.yaml", {"name": "mine", "heuristic_core": section_of_tiny("heuristic_core") | own}
    path.write_text(yaml.safe_dump({"study": study}))
    return path


def test_files_that_a_profile_names_are_looked_for_before_anything_is_run(tmp_path, capsys, monkeypatch):
    path = profile_of_pairs(tmp_path, {"train": "nowhere/mnli.tsv", "hans": "nowhere/hans.tsv"})
    check([str(path)])
    assert f"'{tmp_path / 'bert'}': tokenizer cannot be loaded" in capsys.readouterr().err
    monkeypatch.setattr(pair_sets, "published_facts", lambda *_: None)  # as if the weights were there
    assert check([str(path)]) == 0, "the paper's own numbers need no files"
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" cannot run: ")[0] for line in lines] == ["08b_our_network", "08c_core_of_heads"]
    assert all("no file" in line and "nowhere/mnli.tsv" in line for line in lines)
    with pytest.raises(ValueError, match="nowhere/mnli.tsv"):
        begin(path, "08b_our_network")
    assert not (ROOT / "figures" / "mine").exists()


def test_a_valid_profile_comes_with_how_long_it_takes(capsys):
    minutes = []
    for jobs in (1, 2):
        study = Study.load("tiny").model_copy(update={"compute": Compute(device="cpu", workers=jobs)})
        said = rf"about (\d+) minutes here, {jobs} jobs at a time \(by a run in .+\)"
        minutes.append(int(re.fullmatch(said, duration(study, "tiny"))[1]))
    assert minutes[0] == pytest.approx(2 * minutes[1], abs=1) and minutes[1] > 1
    assert check(["tiny"]) == 0 and "tiny: valid, " in capsys.readouterr().out
    assert duration(Study.load(VALUES), "my.yaml") == "`make cost PROFILE=my.yaml` says how long it takes here"
    assert re.fullmatch(r"about [\d.]+ hours of a GPU at .* by its rehearsal", duration(Study.load("paper_qqp"), ""))


def test_notebooks_that_wait_for_one_that_cannot_run_cannot_run_either(monkeypatch):
    def nothing_there(lab):
        raise ValueError("no\nsentences")

    monkeypatch.setattr(sets, "require_sentences", nothing_there)
    found = cannot_run(Study.load("tiny"))
    assert list(found) == [name for name in notebooks() if re.match("0[1-6]", name)]
    assert set(found.values()) == {"no sentences"}
    del (values := Study.load("tiny").model_dump(mode="json"))["break_it_down"]["pretrained"]
    assert "05_pretraining" not in cannot_run(Study.load(values))


def test_names_on_the_hub_are_looked_for_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if not installed
    monkeypatch.setattr(pair_sets, "published_facts", lambda *_: None)
    files = {"train": "hub:nyu-mll/multi_nli:train", "hans": "hub:jhu-cogsci/hans:validation"}
    check([str(profile_of_pairs(tmp_path, files))])
    assert "'hub:nyu-mll/multi_nli:train' needs the package datasets" in capsys.readouterr().err


def test_a_notebook_about_something_else_than_its_profile_says_so():
    values = {"name": "far", "subtask_induction": {"arithmetic": {}}}
    for notebook, about in (("01_train_bases", "break_it_down"), ("07b_shape_bias", "subtask_induction.images")):
        with pytest.raises(StudyError, match=f"profile 'far' has no '{about}', which {notebook} is about; add it"):
            begin(values, notebook)


def images(**architecture: Any) -> dict[str, Any]:
    section = section_of_tiny("subtask_induction")["images"]
    section["models"][0]["architecture"] |= {"family": "resnet_classifier", "norm": "group"} | architecture
    return {"name": "a", "subtask_induction": {"images": section}}


def test_classifiers_of_images():
    where = "subtask_induction.images.models.0.architecture"
    (line,) = errors(images(pretrained="torchvision"))
    assert line.startswith(f"{where}.norm: published weights are of a network with batch")
    (line,) = errors(images(width=6))
    assert line == f"{where}.width: 6 channels do not make groups of four; give a multiple of 4"
    assert Study.load(images(width=3))


def test_a_masking_section_keeps_what_it_does_not_name():
    """Settings of the usual method that a profile leaves out stay as they are in that section."""
    for written in ({"l0": 0.5}, {"l0": 0.5, "method": "continuous_sparsification"}):
        found = MaskSearch.model_validate({"masking": written}).masking
        assert (found.l0, found.start_value, found.beta_max) == (0.5, -0.1, 100.0)
    assert MaskSearch.model_validate({"masking": "continuous_sparsification"}) == MaskSearch()
    assert MaskSearch.model_validate({"masking": "gumbel_sigmoid"}).masking.start_value == 2.0
