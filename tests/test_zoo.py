"""The zoo: what is loaded is what was made, and nothing damaged is loaded."""

import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from subnet_utils import zoo
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.step import missing
from subnet_utils.core.store import Store, digests, save_json
from subnet_utils.masks.subnetwork import WrongNetwork
from subnet_utils.papers.break_it_down import networks, releases, tables
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.zoo import cards, steps
from subnet_utils.zoo.release import digest_of_test, shrink, store_tests, stored_tests
from tests import micro

NAME = "sv-agreement-singular"
ENTRIES = [path.parent.name for path in sorted(zoo.ZOO.glob("*/card.json"))]


@pytest.fixture(scope="module")
def lab(artifacts: Path) -> Lab:
    return Lab.open(micro.language(seeds=(0, 1)))


@pytest.fixture(scope="module")
def made(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A zoo of one entry; its network counts as learned, though it is too small to learn anything."""
    folder = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releases, "LEARNED", 0.0)
        patch.setattr(steps, "WORTH", 1e9)
        cards.make(lab, [NAME], folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(made, tmp_path / "zoo")


def test_an_entry_is_the_network_and_the_masks_of_the_study(lab: Lab, made: Path):
    entry = zoo.load(NAME, made)
    base = networks.bases(lab)[0]
    masks = {mask.subroutine: mask for mask in tables.final_masks(lab, [base]) if mask.seed == 0}
    assert {name: entry.masks[name] for name in masks} == {name: mask.load(lab) for name, mask in masks.items()}
    assert set(entry.masks) == {"subject", "subject-1", "verb", "verb-1"}
    assert all(
        torch.equal(weight, base.load(lab).state_dict()[name]) for name, weight in entry.network.state_dict().items()
    )
    assert entry.card["made"]["commit"] and entry.card["seed"] == 0


def test_a_card_says_what_every_part_answers(lab: Lab, made: Path):
    entry = zoo.load(NAME, made)
    assert [
        cards.answered(entry, name, part, test) for name, part in entry.parts for test in entry.tests
    ] == entry.card["answers"]
    whole = {row["test"]: row["accuracy"] for row in entry.card["answers"] if row["part"] == zoo.WHOLE}
    assert whole["whole task"] == pytest.approx(networks.bases(lab)[0].result(lab)["test_accuracy"], abs=0.02)
    text = (made / NAME / "card.md").read_text()
    assert f"| whole network |  | {whole['subject']:.3f} |" in text and entry.card["made"]["commit"] in text


def test_the_list_has_a_row_for_each_entry(made: Path):
    (row,) = zoo.list(made).to_dict(orient="records")
    assert (row["name"], row["paper"], row["masks"]) == (NAME, "break_it_down", 4)


def test_a_part_is_a_mask_by_name_or_as_it_is(made: Path):
    entry = zoo.load(NAME, made)
    ablated, kept = entry.part(~entry.masks["verb"]), entry.masks["verb"]
    assert all(not (ablated.get_parameter(name)[mask] != 0).any() for name, mask in kept.masks.items())
    assert entry.accuracy(entry.part("verb"), "verb") == entry.accuracy(kept, "verb") == entry.accuracy("verb", "verb")
    with pytest.raises(zoo.ZooError, match=f"'{NAME}' has no mask 'subjekt'; did you mean 'subject'"):
        entry.part("subjekt")
    with pytest.raises(zoo.ZooError, match="has no test 'whole tasks'; did you mean 'whole task'"):
        entry.accuracy(entry.network, "whole tasks")


def test_a_network_that_has_not_learned_is_left_out(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture):
    cards.make(lab, folder=tmp_path)
    assert capsys.readouterr().out == f"{NAME}: no network has learned it\n" and not any(tmp_path.iterdir())


def made_from(lab: Lab) -> list:
    base = networks.bases(lab)[0]
    return [base, *tables.final_masks(lab, [base])]


def test_a_study_finds_the_networks_and_masks_of_an_entry(lab: Lab, made: Path, tmp_path: Path):
    other, parts = Lab(lab.study, Store(tmp_path)), made_from(lab)
    assert len(missing(other, parts)) > 0 < steps.unpack(other.store, made)
    trained = set(tmp_path.glob("break_it_down-trained/*")) | set(tmp_path.glob("break_it_down-mask/*"))
    for step in parts:  # what is chosen from them costs nothing and is not in the entry
        assert (step.make(other).key, step.make(other).digest) == (step.make(lab).key, step.make(lab).digest)
    assert trained == set(tmp_path.glob("break_it_down-trained/*")) | set(tmp_path.glob("break_it_down-mask/*"))
    assert steps.unpack(other.store, made) == 0 and not any((tmp_path / "partial").iterdir())


def test_what_costs_less_to_make_than_to_keep_is_left_out(lab: Lab, made: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(steps, "WORTH", 0)
    (release,) = (one for one in releases.releases(lab) if one.seed == 0)
    steps.pack(lab, release, shutil.copytree(made, tmp_path / "zoo") / NAME)
    with tarfile.open(tmp_path / "zoo" / NAME / steps.STEPS) as file:
        assert file.getnames() == []


def test_nothing_of_a_damaged_entry_comes_into_the_store(folder: Path, tmp_path: Path):
    flip(folder / NAME / "masks" / "verb.safetensors.xz")
    with pytest.raises(zoo.ZooError, match="masks/verb.safetensors.xz is not the file of its card; restore it"):
        steps.unpack(Store(tmp_path / "store"), folder)
    assert not (tmp_path / "store").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "file", ["network.safetensors.xz", "masks/verb.safetensors.xz", "steps.tar.xz", "study.json.xz", "card.md"]
)
def test_a_flipped_bit_and_a_truncated_file_are_refused_in_one_line(folder: Path, file: str):
    path = folder / NAME / file
    line = f"zoo entry '{NAME}': {file} is not the file of its card; restore it: git checkout -- zoo/{NAME}"
    whole = path.read_bytes()
    flip(path)
    with pytest.raises(zoo.ZooError, match=f"^{line}$"):
        zoo.load(NAME, folder)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(zoo.ZooError, match=f"^{line}$"):
        zoo.load(NAME, folder)
    path.unlink()
    with pytest.raises(zoo.ZooError, match=f"^{line}$"):
        zoo.load(NAME, folder)


def test_no_bit_of_a_card_can_be_flipped(folder: Path):
    path = folder / NAME / "card.json"
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(300):
        content = bytearray(whole)
        content[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        if json_of(content) != json_of(whole):  # else a blank became another one
            with pytest.raises(zoo.ZooError, match="card.json is (no JSON|not as it was made); restore it"):
                zoo.load(NAME, folder)
    path.write_text(whole.decode().replace('"accuracy": ', '"accuracy": 1', 1))
    with pytest.raises(zoo.ZooError, match="card.json is not as it was made"):
        zoo.list(folder)


def json_of(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_a_file_that_the_card_does_not_know_is_refused(folder: Path):
    (folder / NAME / "masks" / "mine.safetensors.xz").write_bytes(b"nothing")
    with pytest.raises(zoo.ZooError, match="its card knows no masks/mine.safetensors.xz; delete that file"):
        zoo.load(NAME, folder)


@pytest.mark.parametrize("name", [None, "", 3, "../x"])
def test_what_is_no_name_is_refused(made: Path, name: object):
    with pytest.raises(zoo.ZooError, match=f"no zoo entry .*valid: {NAME}"):
        zoo.load(name, made)


def test_without_a_zoo_that_is_said(tmp_path: Path):
    for call in (lambda: zoo.list(tmp_path), lambda: zoo.load(NAME, tmp_path), lambda: steps.unpack(Store(), tmp_path)):
        with pytest.raises(zoo.ZooError, match="no zoo in .*; it is in the checkout"):
            call()


def with_new_digests(place: Path) -> None:
    """The card, as if its files had been these."""
    shrink(place)
    card = json.loads((place / "card.json").read_text())
    files = digests(place)
    sealed(place, card | {"files": {name: files[name] for name in card["files"]}})


def sealed(place: Path, card: dict) -> None:
    """A card, as if it had been made so."""
    save_json(place / "card.json", card | {"seal": zoo.seal(card)})


def test_a_mask_of_another_network_is_refused_even_under_its_digest(lab: Lab, folder: Path):
    other = next(mask for mask in tables.final_masks(lab) if mask.base.seed == 1).load(lab)
    other.save(folder / NAME / "masks" / "verb.safetensors")
    with_new_digests(folder / NAME)
    with pytest.raises(zoo.ZooError, match=r"^zoo entry .* mask 'verb' is of another network than its card; restore"):
        zoo.load(NAME, folder)


def test_a_mask_of_another_network_makes_no_part(lab: Lab, made: Path):
    other = next(mask for mask in tables.final_masks(lab) if mask.base.seed == 1).load(lab)
    with pytest.raises(WrongNetwork, match="belongs to network"):
        zoo.load(NAME, made).part(other)


def test_another_network_is_refused_even_under_its_digest(lab: Lab, folder: Path):
    other = networks.bases(lab)[1]
    shutil.copy(other.make(lab).path / "weights.safetensors", folder / NAME / "network.safetensors")
    with_new_digests(folder / NAME)
    with pytest.raises(zoo.ZooError, match="its network is of another network than its card"):
        zoo.load(NAME, folder)


def with_another_study(folder: Path, part: str, key: str, value: int) -> None:
    """Change one number of an entry's study, and its digest in the card."""
    path = folder / NAME / "study.json.xz"
    study = json.loads(lzma.decompress(path.read_bytes()))
    study["break_it_down"]["experiments"][0][part][key] = value
    path.write_bytes(lzma.compress(json.dumps(study).encode()))
    with_new_digests(folder / NAME)


def test_a_test_that_is_drawn_otherwise_is_refused(folder: Path):
    with_another_study(folder, "data", "seed", 7)
    with pytest.raises(zoo.ZooError, match="test 'subject' is drawn otherwise now; check out "):
        zoo.load(NAME, folder)


def test_weights_that_do_not_fit_any_more_are_refused_in_one_line(folder: Path):
    with_another_study(folder, "architecture", "width", 8)
    with pytest.raises(zoo.ZooError, match="its weights do not fit the network any more; check out .*$"):
        zoo.load(NAME, folder)


def test_a_study_that_is_not_valid_any_more_is_refused_in_one_line(folder: Path):
    path = folder / NAME / "study.json.xz"
    study = json.loads(lzma.decompress(path.read_bytes()))
    study["break_it_down"]["gone"] = 1
    path.write_bytes(lzma.compress(json.dumps(study).encode()))
    with_new_digests(folder / NAME)
    with pytest.raises(zoo.ZooError, match="its study is not valid any more; check out .*$"):
        zoo.load(NAME, folder)


def test_unknown_names_get_the_nearest(lab: Lab, made: Path):
    with pytest.raises(
        zoo.ZooError, match="^no zoo entry 'sv-agreement-singula'; did you mean 'sv-agreement-singular'"
    ):
        zoo.load("sv-agreement-singula", made)
    for name in ("", "../zoo", f"./{NAME}", f"{NAME}\n"):
        with pytest.raises(zoo.ZooError, match=r"^no zoo entry '[^\n]*'; [^\n]*$"):
            zoo.load(name, made)
    with pytest.raises(zoo.ZooError, match="^profile 'micro' has no 'sv-agreement' for the zoo; did you mean"):
        cards.make(lab, ["sv-agreement"], made)


def test_a_copy_and_a_folder_in_place_of_a_card_are_refused(folder: Path):
    shutil.copytree(folder / NAME, folder / "other")
    with pytest.raises(zoo.ZooError, match=f"^zoo entry 'other' is a copy of '{NAME}'; delete it$"):
        zoo.load("other", folder)
    (folder / NAME / "card.json").unlink()
    (folder / NAME / "card.json").mkdir()
    with pytest.raises(zoo.ZooError, match="card.json is no JSON; restore it"):
        zoo.load(NAME, folder)


def test_without_transformers_a_line_says_how_to_get_it(made: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "subnet_utils.models.language")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"^transformers is not in the core installation; .* pip install"):
        zoo.load(NAME, made)


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(lab: Lab, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Network, "result", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=re.escape(f"{tmp_path / 'file'}")):
        cards.make(lab, [NAME], tmp_path / "file")


def test_a_making_that_fails_leaves_the_older_entry(lab: Lab, folder: Path, monkeypatch):
    monkeypatch.setattr(releases, "LEARNED", 0.0)
    monkeypatch.setattr(cards, "page", lambda card: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cards.make(lab, [NAME], folder)
    assert set(zoo.load(NAME, folder).masks) == {"subject", "subject-1", "verb", "verb-1"}
    assert {path.name for path in folder.iterdir()} == {NAME, "README.md"}


def test_a_damaged_card_is_refused(folder: Path):
    (folder / NAME / "card.json").write_text("{")
    with pytest.raises(zoo.ZooError, match="card.json is no JSON; restore it"):
        zoo.load(NAME, folder)


def test_the_command_says_in_one_line_what_is_wrong():
    command = [sys.executable, "-m", "subnet_utils.zoo", "make", "laptop", "sv-agreement-singula"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=zoo.ROOT)
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "did you mean" in found.stderr


@pytest.mark.parametrize("profile", ["tiny", "laptop"])
def test_names_of_entries_and_masks_are_names_of_files(profile: str):
    lab = Lab.open(profile)
    given = [(paper.name, one) for paper in papers().values() for one in paper.releases_of(lab)]
    assert {paper for paper, _ in given} == set(papers())
    assert all(re.fullmatch(r"[\w-]+", name) for _, one in given for name in (one.name, *one.masks()))
    names = {(paper, one.name) for paper, one in given}
    assert len({name for _, name in names}) == len(names), "two papers have an entry of one name"


def test_tests_that_are_stored_come_back(tmp_path: Path):
    tests = {
        "a/b": (torch.arange(6).byte().reshape(2, 3), torch.tensor([0, 1])),
        "odd": (torch.zeros(3).bool(), torch.ones(1)),
        "c": (torch.rand(1), torch.ones(1)),
    }
    name = store_tests(tmp_path / "tests", tests)
    (path,) = (tmp_path / "tests").iterdir()
    assert path.name == f"{name}.safetensors.xz" and name == store_tests(tmp_path / "tests", tests)
    found = stored_tests(tmp_path / "tests", name)
    assert found.keys() == tests.keys()
    assert [digest_of_test(found[name]) for name in tests] == [digest_of_test(test) for test in tests.values()]


def test_stored_tests_that_are_damaged_are_refused_in_one_line(tmp_path: Path):
    place = shutil.copytree(zoo.ZOO / "cnn", tmp_path / "cnn")
    name = json.loads((place / "card.json").read_text())["stored"]
    whole = (zoo.ZOO / "tests" / f"{name}.safetensors.xz").read_bytes()
    other = store_tests(tmp_path / "others", {"a": (torch.ones(3), torch.ones(3))})
    foreign = (tmp_path / "others" / f"{other}.safetensors.xz").read_bytes()
    (tmp_path / "tests").mkdir()
    for content in (None, whole[:-20], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], foreign):
        if content is not None:
            (tmp_path / "tests" / f"{name}.safetensors.xz").write_bytes(content)
        with pytest.raises(
            zoo.ZooError, match=r"^zoo entry 'cnn': its tests are damaged \(.*; restore them: git checkout"
        ):
            zoo.load("cnn", tmp_path)
    (tmp_path / "tests" / f"{name}.safetensors.xz").write_bytes(whole)
    assert len(zoo.load("cnn", tmp_path).tests) == 10


# The zoo of the repository


def test_the_page_of_the_zoo_is_that_of_its_cards():
    assert (zoo.ZOO / "README.md").read_text() == cards.contents()
    for name in ENTRIES:
        card = json.loads((zoo.ZOO / name / "card.json").read_text())
        assert (zoo.ZOO / name / "card.md").read_text() == cards.page(card)


def test_the_zoo_is_small():
    assert sum(path.stat().st_size for path in zoo.ZOO.rglob("*") if path.is_file()) < 25e6


@pytest.mark.parametrize("name", ENTRIES)
def test_parts_answer_as_the_card_says(name: str):
    """The first subnetwork of each entry, which has the network's weights; all parts where SUBNET_FULL is 1."""
    entry = zoo.load(name)
    parts = entry.parts if os.environ.get("SUBNET_FULL") == "1" else list(islice(entry.parts, 2))[-1:]
    for part, network in parts:
        for test in entry.tests:
            assert cards.answered(entry, part, network, test) in entry.card["answers"]
    assert entry.card["made"]["commit"] and "+" not in entry.card["made"]["commit"]
