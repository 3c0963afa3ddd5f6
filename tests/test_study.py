"""The study: what loads, from where, and one readable line for each thing that is wrong in it."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from subnet_utils.check import main as check
from subnet_utils.core.sections import Section
from subnet_utils.core.study import ROOT, Study, StudyError
from subnet_utils.models import build
from tests import micro

SIZES = {
    "base": {"train": 8, "validation": 4, "test": 4},
    "mask": {"train": 8, "validation": 4, "test": 4},
    "probe": {"validation": 4, "test": 4},
}
LANGUAGE = {
    "model": "bert_tiny",
    "paper_model": "bert_small",
    "architecture": {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 8},
    "tasks": ["sv-agreement-singular"],
    "data": SIZES,
    "base": {"learning_rate": 0.001, "batch_size": 4},
    "masks": {"starts": ["layer_1", "layer_2"]},
}
VISION = LANGUAGE | {
    "model": "resnet_tiny",
    "paper_model": "resnet50",
    "architecture": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "small_stem": True},
    "tasks": ["number-contact"],
    "data": SIZES | {"resolution": 64},
    "masks": {"starts": ["stem", "stage_3"]},
}
SWEEP = {
    "model": "vit_tiny",
    "architecture": {"family": "vit", "layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "patch": 16},
    "tasks": ["inside-contact"],
    "data": SIZES | {"resolution": 64},
    "base": {"learning_rate": 0.001, "batch_size": 4},
    "layers": [1, 2],
    "learning_rates": [0.001],
    "batch_sizes": [4],
}
VALUES = {"name": "small", "compute": {"device": "cpu"}, "experiments": [LANGUAGE, VISION], "vit_search": SWEEP}
FULL = Study.load(VALUES).model_dump(mode="json")
"""Every key that there is, with a value."""


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


def faults(source: Any) -> list[str]:
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


# -- what loads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem)
def test_profile_loads_under_its_own_name(path):
    study = Study.load(path)
    assert study.name == path.stem
    assert list(yaml.safe_load(path.read_text())) == ["study"]  # papermill -f needs exactly this parameter


def test_stages_are_those_of_the_network():
    study = Study.load(VALUES)
    for experiment in (*study.experiments, study.vit_search):
        architecture = experiment.architecture
        sizes = {"vocabulary": 9} if architecture.family == "bert" else {"resolution": experiment.data.resolution}
        names = build(architecture.model_dump(), seed=0, **sizes).stage_names
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
    (tmp_path / "params" / "tiny.yaml").write_text(yaml.safe_dump({"study": VALUES}))
    (tmp_path / "own.yml").write_text(yaml.safe_dump(VALUES))
    assert Study.load("params/tiny.yaml").name == "tiny"
    monkeypatch.chdir(tmp_path)
    assert Study.load("params/tiny.yaml").name == Study.load("tiny").name == Study.load("own.yml").name == "small"


def test_a_study_survives_json_and_pickling():
    study = Study.load(VALUES)
    assert Study.load(json.loads(study.model_dump_json())) == study
    assert pickle.loads(pickle.dumps(study)) == study
    assert hash(Study.load(VALUES)) == hash(study)


def test_pairs_are_experiments_by_tasks_in_order():
    both = LANGUAGE | {"tasks": ["anaphora-plural", "sv-agreement-singular"]}
    study = Study.load({"name": "a", "experiments": [both, VISION]})
    found = [(experiment.model, task) for experiment, task in study.pairs()]
    assert found == [
        ("bert_tiny", "anaphora-plural"), ("bert_tiny", "sv-agreement-singular"), ("resnet_tiny", "number-contact"),
    ]  # fmt: skip


def test_every_section_is_frozen():
    def sections(value: Any) -> Iterator[Section]:
        for entry in value if isinstance(value, tuple) else (value,):
            if isinstance(entry, Section):
                yield entry
                for name in type(entry).model_fields:
                    yield from sections(getattr(entry, name))

    found = list(sections(Study.load(VALUES)))
    assert len({type(section) for section in found}) == 12
    for section in found:
        for name in type(section).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))
    assert all(not isinstance(value, list | dict | set) for section in found for _, value in section)


# -- misspelt and missing keys -----------------------------------------------------------------------------------------


def test_any_key_with_a_letter_missing_is_reported_once_with_the_key_that_was_meant():
    checked = 0
    for prefix, key in sorted(set(keys(FULL))):
        siblings = set(at(FULL, prefix)) - {key}
        # 'asks' may be meant for 'tasks' or 'masks'
        typos = shortened(key) - siblings - {typo for sibling in siblings for typo in shortened(sibling)}
        for typo in typos if len(key) > 2 and key != "family" else ():
            values = without(f"{prefix}{key}")
            at(values, prefix)[typo] = at(FULL, f"{prefix}{key}")
            (line,) = faults(values)
            assert line.startswith(f"{prefix}{typo}: unknown key; did you mean '{key}'? valid: ")
            assert key in line.partition("valid: ")[2].split(", ")
            checked += 1
    assert checked > 500


def test_a_key_of_nowhere_is_answered_with_the_keys_of_its_own_section():
    valid = "family, block, depths, width, width_factor, head_width, embedding, small_stem"
    where = "experiments.1.architecture"
    assert faults(changed(f"{where}.layers", 3)) == [f"{where}.layers: unknown key; valid: {valid}"]
    assert faults({"study": VALUES, "nmae": "x"}) == [
        "nmae: unknown key beside 'study'; move it into 'study' or remove it"
    ]
    assert faults(VALUES | {3: 4})[0].startswith("3: unknown key; valid: name, compute")


@pytest.mark.parametrize(
    "path",
    ["name", "experiments.0.base", "experiments.1.base.learning_rate", "experiments.0.data.mask.test"],
)
def test_missing_key(path):
    assert faults(without(path)) == [f"{path}: missing; add it"]


def test_a_study_must_have_something_to_do():
    assert faults(without("experiments")) == ["experiments: missing; add it, or 'arithmetic', 'images' or 'inference'"]
    arithmetic = {"name": "a", "arithmetic": {}}
    assert Study.load(arithmetic).experiments == ()


# -- wrong values ------------------------------------------------------------------------------------------------------

E = "experiments.0"
WRONG = [
    (f"{E}.base.learning_rate", "fast", "'fast' is not valid; give a number"),
    (f"{E}.base.learning_rate", "1e-3", "YAML reads 1e-3 as text; write 0.001"),
    (f"{E}.base.learning_rate", "2.5e-4", "YAML reads 2.5e-4 as text; write 0.00025"),
    (f"{E}.masks.l0", "1e-8", "YAML reads 1e-8 as text; write 0.00000001"),
    (f"{E}.masks.learning_rates.1", "1e-4", "YAML reads 1e-4 as text; write 0.0001"),
    (f"{E}.base.epochs", "1e2", "YAML reads 1e2 as text; write 100"),
    (f"{E}.base.epochs", "10", "YAML reads 10 as text; write it without quotes"),
    (f"{E}.base.learning_rate", "1e999", "'1e999' is not valid; give a number"),
    (f"{E}.base.learning_rate", "nan", "'nan' is not valid; give a number"),
    (f"{E}.base.learning_rate", float("nan"), "nan is not valid; give a finite number"),
    (f"{E}.masks.inits.0", float("inf"), "inf is not valid; give a finite number"),
    (f"{E}.base.learning_rate", 0, "0 is not valid; give more than 0"),
    (f"{E}.base.learning_rate", True, "True is not valid; give a number"),
    (f"{E}.base.epochs", -3, "-3 is not valid; give more than 0"),
    (f"{E}.masks.epochs", 0, "0 is not valid; give more than 0"),
    (f"{E}.base.epochs", 4.0, "4.0 is not valid; give a whole number"),
    (f"{E}.base.epochs", True, "True is not valid; give a whole number"),
    (f"{E}.base.epochs", [3], "[3] is not valid; give a whole number"),
    (f"{E}.base.epochs", None, "None is not valid; give a whole number"),
    (f"{E}.base.flips", "yes", "'yes' is not valid; give true or false"),
    (f"{E}.base.flips", 1, "1 is not valid; give true or false"),
    (f"{E}.base", [1], "[1] is not valid; give a mapping of keys"),
    (f"{E}.architecture", "bert", "'bert' is not valid; give a mapping of keys"),
    (E, "bert_tiny", "'bert_tiny' is not valid; give a mapping of keys"),
    ("vit_search", [3], "[3] is not valid; give a mapping of keys"),
    (f"{E}.tasks", "anaphora-plural", "'anaphora-plural' is not valid; give a list, in square brackets"),
    (f"{E}.base.seeds", 3, "3 is not valid; give a list, in square brackets"),
    ("experiments", {}, "{} is not valid; give a list, in square brackets"),
    (f"{E}.base.seeds", [], "is empty; give at least one"),
    (f"{E}.tasks", [], "is empty; give at least one"),
    (f"{E}.masks.starts", [], "is empty; give at least one"),
    (f"{E}.masks.inits", [], "is empty; give at least one"),
    ("vit_search.layers", [], "is empty; give at least one"),
    ("experiments", [], "is empty; give at least one"),
    (f"{E}.base.seeds", [0, 1, 0], "holds 0 twice; each may stand once"),
    (f"{E}.tasks", ["anaphora-plural"] * 2, "holds 'anaphora-plural' twice; each may stand once"),
    (f"{E}.masks.learning_rates", [0.1, 0.1], "holds 0.1 twice; each may stand once"),
    (f"{E}.base.seeds.1", -1, "-1 is not valid; give at least 0"),
    (f"{E}.data.seed", -1, "-1 is not valid; give at least 0"),
    (f"{E}.masks.search_seed", -1, "-1 is not valid; give at least 0"),
    (f"{E}.base.seeds.1", 2**63, "9223372036854775808 is not valid; give less than 9.22337e+18"),
    (f"{E}.paper_model", "resnet50", "'resnet50' is not a language model; valid: bert_small, bert_small_lm"),
    (f"{E}.data.base.train", 0, "0 is not enough; give at least one training example"),
    (f"{E}.data.mask.train", 0, "0 is not enough; give at least one training example"),
    ("vit_search.data.base.train", 0, "0 is not enough; give at least one training example"),
    (f"{E}.masks.beta_max", 0.5, "0.5 is not valid; give at least 1"),
    ("compute.device", "gpu", "'gpu' is not valid; give 'auto', 'cpu' or 'cuda'"),
    ("compute.workers", "many", "'many' is not valid; give 'auto' or a whole number above 0"),
    ("compute.workers", 0, "0 is not valid; give 'auto' or a whole number above 0"),
    ("compute.workers", True, "True is not valid; give 'auto' or a whole number above 0"),
    ("compute.threads", 0, "0 is not valid; give more than 0"),
    (f"{E}.masks.search", "gird", "'gird' is not valid; give 'grid', 'halving' or 'selected'"),
    ("name", "My Study", "'My Study' is not valid; give lower-case letters, digits, - and _"),
    ("name", 3, "3 is not valid; give text"),
    ("experiments.1.architecture.depths", [1, 1, 1, 1, 1], None),
    ("experiments.1.architecture.depths.2", 0, "0 is not valid; give more than 0"),
    ("experiments.1.architecture.block", "botleneck", "'botleneck' is not valid; give 'basic' or 'bottleneck'"),
    ("vit_search.architecture.family", "resnet", "'resnet' is not valid; give 'vit'"),
]


@pytest.mark.parametrize(("path", "value", "what"), WRONG)
def test_wrong_value_is_one_line_that_names_the_key_and_the_remedy(path, value, what):
    (line,) = faults(changed(path, value))
    what = what or "[1, 1, 1, 1, 1] is not valid; give at most 4 entries"
    assert line == f"{path}: {what}"


def test_weights_are_drawn_or_taken_and_what_is_not_given_changes_no_key():
    where = "experiments.0.architecture"
    wide = changed(f"{where}.deviation", 0.04)
    architecture = Study.load(wide).experiments[0].architecture
    assert architecture.model_dump()["deviation"] == 0.04
    assert "deviation" not in Study.load(VALUES).experiments[0].architecture.model_dump()
    wide["experiments"][0]["architecture"]["pretrained"] = "somewhere"
    (line,) = faults(wide)
    assert line == f"{where}.deviation: pretrained weights are not drawn; remove deviation or pretrained"
    assert faults(changed(f"{where}.deviation", 0.0)) == [f"{where}.deviation: 0.0 is not valid; give more than 0"]


def test_only_weights_of_a_bert_are_drawn_as_wide_as_is_said():
    study = micro.study()
    for experiment in study["experiments"]:
        experiment["masks"] = experiment["masks"] | {"control_deviation": 0.04}
    (line,) = faults(study)
    assert line == (
        "experiments.1.masks.control_deviation: is for family bert, 'resnet_micro' is of another; remove it"
    )


def test_unknown_family():
    where = "experiments.0.architecture.family"
    valid = "valid: bert, resnet, vit"
    assert faults(changed(where, "brt")) == [f"{where}: 'brt' is not valid; did you mean 'bert'? {valid}"]
    assert faults(without(where)) == [f"{where}: missing; {valid}"]


def test_faults_of_a_pretraining_name_the_key_that_is_there():
    where, lm = "experiments.0.pretraining", {"method": "masked_language_model"}
    assert faults(changed(where, {"method": "masked_languag_model"})) == [
        f"{where}.method: 'masked_languag_model' is not valid; did you mean 'masked_language_model'? "
        "valid: simclr, masked_language_model"
    ]
    assert faults(changed(where, {})) == [f"{where}.method: missing; valid: simclr, masked_language_model"]
    (line,) = faults(changed(where, lm | {"epoch": 3}))
    assert line.startswith(f"{where}.epoch: unknown key; did you mean 'epochs'? valid: method, ")
    assert "temperature" not in line and "sentences" in line
    (line,) = faults(changed("experiments.1.pretraining", {"method": "simclr", "batch_size": 127}))
    assert line == "experiments.1.pretraining.batch_size: 127 is not valid; give a multiple of 2"


def test_every_fault_has_its_line():
    values = changed("experiments.0.base.epochs", -1)
    values["compute"] = {"device": "gpu", "thread": 2}
    values["experiments"][1]["masks"]["inits"] = ["a", 0.1, "1e-2"]
    assert [line.partition(":")[0] for line in faults(values)] == [
        "compute.device", "compute.thread", "experiments.0.base.epochs",
        "experiments.1.masks.inits.0", "experiments.1.masks.inits.2",
    ]  # fmt: skip


def test_a_fault_is_one_line_even_where_the_value_is_not():
    (line,) = faults(changed("experiments.0.tasks", ["inside\ncontact"]))
    assert line.startswith("experiments.0.tasks: 'inside contact' is not a language task; ")


@given(mantissa=st.integers(1, 9999), exponent=st.integers(-12, 12))
def test_the_number_to_write_is_the_number_that_was_meant(mantissa, exponent):
    text = f"{mantissa}e{exponent}"
    assert yaml.safe_load(text) == text  # YAML 1.1 wants a dot in a float with an exponent
    (line,) = faults(changed("experiments.0.base.learning_rate", text))
    written = yaml.safe_load(line.partition("; write ")[2])
    study = Study.load(changed("experiments.0.base.learning_rate", written))
    assert study.experiments[0].base.learning_rate == float(text)


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
            assert where.startswith(path.partition(".")[0]) and what, line
            explanation = line.replace(repr(value), "")
            assert len(line) < 400 and not any(word in explanation for word in JARGON), line


# -- what does not fit together ----------------------------------------------------------------------------------------


def test_unknown_stage():
    assert faults(changed("experiments.0.masks.starts", ["stage_9"])) == [
        "experiments.0.masks.starts: 'stage_9' is not a stage of 'bert_tiny'; valid: layer_1, layer_2, pooler"
    ]
    (line,) = faults(changed("experiments.1.masks.starts", ["stem", "stage_9"]))
    assert "'stage_9' is not a stage of 'resnet_tiny'; did you mean 'stage_4'? valid: stem, stage_1" in line


@pytest.mark.parametrize(
    ("where", "task", "what"),
    [
        ("experiments.0", "inside-contact", "language task; valid: sv-agreement-singular"),
        ("experiments.0", "anafora-plural", "language task; did you mean 'anaphora-plural'?"),
        ("experiments.1", "anaphora-plural", "vision task; valid: inside-contact"),
        ("vit_search", "inside-numbr", "vision task; did you mean 'inside-number'?"),
    ],
)
def test_task_of_another_modality_or_none(where, task, what):
    (line,) = faults(changed(f"{where}.tasks", [task]))
    assert line.startswith(f"{where}.tasks: '{task}' is not a {what}")


@pytest.mark.parametrize("name", ["model", "paper_model"])
def test_a_model_and_task_may_stand_once(name):
    twin = LANGUAGE | {"model": "other", "paper_model": "bert_small_lm"} | {name: LANGUAGE[name]}
    assert faults({"name": "a", "experiments": [LANGUAGE, twin]}) == [
        f"experiments: {name} '{LANGUAGE[name]}' has task 'sv-agreement-singular' twice; each pair may stand once"
    ]


@pytest.mark.parametrize(("small_stem", "least"), [(True, 33), (True, 32), (False, 33)])
def test_resnet_at_the_smallest_resolution_loads_and_is_built(small_stem, least):
    values = changed("experiments.1.architecture.small_stem", small_stem)
    values["experiments"][1]["data"]["resolution"] = least
    architecture = Study.load(values).experiments[1].architecture
    assert build(architecture.model_dump(), seed=0, resolution=least).stage_names == architecture.stages


def test_images_too_small_or_not_cut_by_the_patches():
    values = changed("experiments.1.architecture.small_stem", False)
    values["experiments"][1]["data"]["resolution"] = 32
    where = "experiments.1.data.resolution"
    assert faults(values) == [f"{where}: 32 is too small for this ResNet; give more than 32"]
    assert faults(changed(where, 16)) == [f"{where}: 16 is not valid; give at least 32"]
    assert faults(changed("vit_search.data.resolution", 70)) == [
        "vit_search.data.resolution: 70 is not a multiple of architecture.patch 16; change one of them"
    ]


def test_heads_that_do_not_divide_the_width():
    for where in ("experiments.0", "vit_search"):
        line = f"{where}.architecture.width: 8 is not a multiple of heads 3; change one of them"
        assert faults(changed(f"{where}.architecture.heads", 3)) == [line]


def test_wide_basic_blocks_do_not_exist():
    where = "experiments.1.architecture.width_factor"
    assert faults(changed(where, 2)) == [f"{where}: 2 needs block bottleneck; basic blocks have no inner width"]


# -- sources that are no study -----------------------------------------------------------------------------------------


def test_unknown_profile_is_answered_with_the_nearest():
    profiles = ", ".join(sorted(path.stem for path in (ROOT / "params").glob("*.yaml")))
    assert faults("tinny") == [f"no profile 'tinny'; did you mean 'tiny'? valid: {profiles}"]
    assert faults("params/tinny.yaml") == [f"no profile 'params/tinny.yaml'; did you mean 'tiny'? valid: {profiles}"]
    assert faults("zebra") == [f"no profile 'zebra'; valid: {profiles}"]


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
    ],
)
def test_file_that_holds_no_study(tmp_path: Path, content: bytes, what: str):
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    (line,) = faults(path)
    assert line.startswith(what)


def test_what_is_merged_may_be_said_once_more(tmp_path):
    merged = "{<<: {epochs: 3, batch_size: 9}, batch_size: 4, learning_rate: 0.001}"
    experiment = json.dumps(LANGUAGE | {"base": "BASE"}).replace('"BASE"', merged)  # what is JSON is YAML
    (tmp_path / "study.yaml").write_text(f"name: small\nexperiments: [{experiment}]")
    base = Study.load(tmp_path / "study.yaml").experiments[0].base
    assert (base.epochs, base.batch_size) == (3, 4)


@pytest.mark.parametrize("source", [None, 3, ["tiny"]])
def test_source_of_another_type(source):
    assert faults(source) == [f"study: {source!r} is not valid; give the name of a profile, a YAML file or a mapping"]


def test_a_model_that_the_paper_does_not_have():
    (line,) = faults(changed("experiments.0.paper_model", "bert_smal"))
    assert line.startswith("experiments.0.paper_model: the paper has no model 'bert_smal'; did you mean 'bert_small'?")


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
    study = {"name": "small", "experiments": [experiment]}
    if what is None:
        assert Study.load(study).experiments[0].masks.search == "selected"
    else:
        assert what in faults(study)[0]


def test_settings_selected_by_the_authors_must_exist_for_pruned_networks_too():
    """They pruned ResNet50s of two tasks."""
    tiny = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]
    resnet = tiny["experiments"][1] | {"tasks": ["number-contact", "inside-number"]}
    resnet["masks"] = resnet["masks"] | {"search": "selected", "starts": ["stage_3"]}
    resnet["base"] = resnet["base"] | {"seeds": [0]}
    pruning = tiny["pruning"] | {"tasks": ["number-contact"]}
    study = {"name": "a", "experiments": [resnet], "pruning": pruning}
    assert Study.load(study).to_prune()
    (line,) = faults(study | {"pruning": pruning | {"tasks": ["inside-number"]}})
    assert "the authors selected nothing for pruned inside-number, base seed 0; use grid" in line


def test_contrastive_batches_must_fit_into_the_training_data_as_well():
    study = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]
    simclr = study["pretrained"][1]
    simclr["data"]["base"] |= {"train": 40, "validation": 300}
    (line,) = faults(study)
    assert line.endswith("pretraining.batch_size: 128 images are more than 40 train examples a task give; lower it")


def test_places_start_at_the_checkout_wherever_one_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bert = LANGUAGE["architecture"]
    places = {"params": str(ROOT / "params"), "google/bert": "google/bert", str(tmp_path): str(tmp_path)}
    for written, place in places.items():
        own = LANGUAGE | {"architecture": bert | {"pretrained": written}}
        study = Study.load(
            {"name": "a", "pretrained": [own], "experiments": [LANGUAGE | {"tasks": ["anaphora-plural"]}]}
        )
        assert study.pretrained[0].architecture.pretrained == place


def profile_of_pairs(tmp_path: Path, files: dict[str, str]) -> Path:
    """A profile of notebook 08 alone, on pairs from files and with weights from a folder that is not there."""
    weights = {"family": "published", "weights": str(tmp_path / "bert")}
    tiny = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]["inference"]
    inference = tiny | {"generated": None, "pretraining": None, "files": files, "architecture": weights}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"study": {"name": "mine", "inference": inference}}))
    return path


def test_files_that_a_profile_names_are_looked_for_before_anything_is_run(tmp_path, capsys):
    tiny = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]
    assert not Study.load(tiny).names_files
    path = profile_of_pairs(tmp_path, {"train": "nowhere/mnli.tsv", "hans": "nowhere/hans.tsv"})
    assert check([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no file" in line and "nowhere/mnli.tsv" in line
    # as make reproduce runs it
    command = [sys.executable, "-m", "subnet_utils.check", str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.strip()) == (2, line)
    path.write_text(yaml.safe_dump({"study": tiny}))
    assert check([str(path)]) == 0


def test_names_on_the_hub_are_looked_for_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if not installed
    files = {"train": "hub:nyu-mll/multi_nli:train", "hans": "hub:jhu-cogsci/hans:validation"}
    assert check([str(profile_of_pairs(tmp_path, files))]) == 2
    assert "'hub:nyu-mll/multi_nli:train' needs the package datasets" in capsys.readouterr().err


def test_published_weights_of_a_resnet_want_its_normalization():
    images = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]["images"]
    images["models"][0]["architecture"] |= {"family": "resnet_classifier", "norm": "group", "pretrained": "torchvision"}
    (line,) = faults({"name": "a", "images": images})
    assert line.startswith("images.models.0.architecture.norm: published weights are of a network with batch")


def test_widths_that_make_no_groups():
    images = yaml.safe_load((ROOT / "params" / "tiny.yaml").read_text())["study"]["images"]
    images["models"][0]["architecture"] |= {"family": "resnet_classifier", "norm": "group", "width": 6}
    (line,) = faults({"name": "a", "images": images})
    assert line == "images.models.0.architecture.width: 6 channels do not make groups of four; give a multiple of 4"
    images["models"][0]["architecture"]["width"] = 3
    assert Study.load({"name": "a", "images": images})
