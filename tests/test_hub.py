"""A store goes to the hub and comes back as it was, nothing twice, and nothing damaged comes in."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import HfApi

from subnet_utils.core import hub
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import Store, StoreError, digests, save_json
from tests import stand_in_hub

NAME = "owner/name"


@pytest.fixture
def there() -> Iterator[stand_in_hub.Hub]:
    with stand_in_hub.running() as found:
        yield found


@pytest.fixture
def api(there: stand_in_hub.Hub) -> HfApi:
    return HfApi(there.url, token=False)


def build(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(os.urandom(200))
    (folder / "00").mkdir()
    save_json(folder / "00" / "result.json", 0)


def filled(root: Path, count: int) -> Store:
    """A store of so many artefacts, of one that was not finished, and of one in quarantine."""
    store = Store(root)
    for i in range(count):
        store.make(f"kind-{i % 3}", {"number": i}, build)
    for place in ("partial/kind-0-0123456789abcdef", "quarantine/kind-0-0123456789abcdef-1"):
        (root / place).mkdir(parents=True)
        (root / place / "manifest.json").write_text("{}")
    return store


def artefacts(store: Store) -> dict[str, str]:
    """Digests of all files of finished artefacts."""
    return {name: digest for name, digest in digests(store.root).items() if name.startswith("kind")}


def test_two_hundred_artefacts_go_there_and_back(tmp_path: Path, there: stand_in_hub.Hub, api: HfApi):
    store, other = filled(tmp_path / "own", 200), Store(tmp_path / "other")
    assert hub.push(store, NAME, api) == 200
    assert set(there.files) == set(artefacts(store)) == set(there.sent)
    assert hub.push(store, NAME, api) == 0 and len(there.sent) == len(there.files)
    assert hub.pull(other, NAME, api) == 200
    assert artefacts(other) == artefacts(store)
    fetched = len(there.fetched)
    assert hub.pull(other, NAME, api) == 0 and len(there.fetched) == fetched
    assert other.find("kind-1", {"number": 1}) is not None


def test_a_push_that_was_killed_goes_on(tmp_path: Path, there: stand_in_hub.Hub):
    store, there.commits_left = filled(tmp_path, 120), 1
    environment = {"HF_ENDPOINT": there.url, "HF_TOKEN": "none", "SUBNET_ARTIFACTS": str(tmp_path)}
    command = [sys.executable, "-m", "subnet_utils.core.hub", "push", NAME]
    about = {"env": os.environ | environment, "cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    killed = subprocess.Popen(command, **about)
    assert there.stopped.wait(30)
    killed.kill()
    killed.communicate()
    assert len(hub.artefacts_in(list(there.files))) == hub.TOGETHER
    there.commits_left = 1000
    again = subprocess.run(command, check=True, **about)
    assert again.stdout.endswith("70 artefacts were lacking\n")
    assert set(Counter(there.sent).values()) == {1} and set(there.files) == set(artefacts(store))


def test_a_pull_that_was_killed_goes_on(tmp_path: Path, api: HfApi, monkeypatch: pytest.MonkeyPatch):
    store, other = filled(tmp_path / "own", 12), Store(tmp_path / "other")
    hub.push(store, NAME, api)
    monkeypatch.setattr(hub, "TOGETHER", 5)
    calls = []

    def twice(*arguments: str) -> None:
        calls.append(arguments)
        if len(calls) == 8:
            raise KeyboardInterrupt
        require(*arguments)

    require = hub.require
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "require", twice)
        hub.pull(other, NAME, api)
    assert 0 < len(artefacts(other)) < len(artefacts(store))
    assert hub.pull(other, NAME, api) == 5
    assert artefacts(other) == artefacts(store)


@pytest.fixture
def one(tmp_path: Path, there: stand_in_hub.Hub, api: HfApi) -> str:
    """The first of two artefacts in the repository."""
    store = filled(tmp_path / "own", 2)
    hub.push(store, NAME, api)
    return min(hub.artefacts_in(list(there.files)))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda files, one: files.update({f"{one}/weights.bin": files[f"{one}/weights.bin"][:100]}),
         "weights.bin does not match its checksum"),
        (lambda files, one: files.pop(f"{one}/weights.bin"), "weights.bin is missing"),
        (lambda files, one: files.update({f"{one}/more.py": b"import os"}), "it has a file that is no part of it"),
        (lambda files, one: files.update({f"{one}/manifest.json": b"{"}), "manifest.json is missing or unreadable"),
    ],
)  # fmt: skip
def test_a_truncated_or_foreign_file_is_refused(tmp_path: Path, there, api: HfApi, one: str, damage, why: str):
    other = Store(tmp_path / "other")
    whole = dict(there.files)
    damage(there.files, one)
    line = rf"^{one} is refused: {why}; push it anew to {NAME} \(1 of 2 artefacts refused\)$"
    with pytest.raises(StoreError, match=line):
        hub.pull(other, NAME, api)
    assert not (other.root / one).exists() and len(artefacts(other)) == len(whole) // 2
    there.files.clear()
    there.files.update(whole)
    assert hub.pull(other, NAME, api) == 1 and set(artefacts(other)) == set(whole)


def test_what_is_being_built_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Taken in at once, it would be in the way of the process that builds it."""
    store, other = filled(tmp_path / "own", 1), Store(tmp_path / "other")
    (one,) = store.root.glob("kind-0/*")
    coming = Thread(target=hub.take_in, args=(other, store.root, f"kind-0/{one.name}", ""))

    def begin(folder: Path) -> None:
        coming.start()
        coming.join(0.3)
        build(folder)

    built = other.make("kind-0", {"number": 0}, begin)
    coming.join(30)
    assert not coming.is_alive() and built.digest == other.find("kind-0", {"number": 0}).digest


def test_an_artefact_under_the_name_of_another_is_refused(tmp_path: Path, there, api: HfApi, one: str):
    wrong = f"{one[:-16]}{'0' * 16}"
    there.files |= {name.replace(one, wrong): content for name, content in there.files.items() if one in name}
    with pytest.raises(StoreError, match=f"^{wrong} is refused: its specification is of another artefact"):
        hub.pull(Store(tmp_path / "other"), NAME, api)


def test_what_is_no_artefact_is_left_alone(tmp_path: Path, there, api: HfApi, one: str):
    there.files |= {"README.md": b"", "../escaped/0123456789abcdef/manifest.json": b"{}", "zoo/manifest.json": b"{}"}
    other = Store(tmp_path / "other")
    assert hub.pull(other, NAME, api) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"own", "other"} and not (other.root / "zoo").exists()


def test_a_damaged_artefact_is_not_sent(tmp_path: Path, there, api: HfApi):
    store = filled(tmp_path / "own", 1)
    (path,) = store.root.glob("kind-0/*/weights.bin")
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is refused: weights.bin does not match its checksum; delete its folder$"):
        hub.push(store, NAME, api)
    assert there.sent == []


def test_the_command_says_in_one_line_what_is_wrong():
    command = [sys.executable, "-m", "subnet_utils.core.hub", "pull", "no/such/name"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and found.stderr.startswith("no/such/name: ")


def test_an_error_without_words_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["hub", "pull", NAME])
    monkeypatch.setattr(hub, "pull", lambda *_: (_ for _ in ()).throw(TimeoutError()))
    assert hub.main() == 2 and capsys.readouterr().err == f"{NAME}: TimeoutError\n"
