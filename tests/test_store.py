"""The store: finished means whole, checksummed and built once, whatever is killed, damaged, full or read-only."""

import errno
import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from subnet_utils.core import store as store_module
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import (
    Artefact,
    Store,
    StoreError,
    key_of,
    load_tensors,
    save_json,
    save_table,
    save_tensors,
)

SPEC = {"task": "inside-contact", "seed": 0, "rates": [0.1, 0.2]}
WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "mask": torch.tensor([True, False])}
TABLE = pd.DataFrame({"epoch": [0, 1], "loss": [0.5, 0.25]})


def build(folder: Path) -> None:
    """Write one file of each kind."""
    save_tensors(folder / "weights.safetensors", WEIGHTS, {"network": "a"})
    save_table(folder / "history.parquet", TABLE)
    save_json(folder / "result.json", {"accuracy": 0.9})


class Builder:
    """`build`, counted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        build(folder)


def never(folder: Path) -> None:
    raise AssertionError("nothing is to be built")


def matches_its_checksums(path: Path) -> bool:
    """An artefact's files against its manifest, by our own reading of it."""
    manifest = json.loads((path / "manifest.json").read_text())
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    found.pop("manifest.json")
    return found == manifest


@contextmanager
def run_script(code: str, *arguments: object) -> Iterator[subprocess.Popen]:
    """Another Python process with `Store` and the functions of this module's `build` at hand."""
    head = "import sys, time\nfrom pathlib import Path\nfrom subnet_utils.core.store import *\n"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store with one artefact, to be copied: each copy is unread by this process."""
    root = tmp_path_factory.mktemp("made")
    Store(root).make("base", SPEC, build)
    return root


@pytest.fixture
def copied(made, tmp_path) -> Store:
    return Store(shutil.copytree(made, tmp_path / "copy"))


def artefact_in(store: Store) -> Path:
    return store.root / "base" / key_of("base", SPEC)


# -- building once -----------------------------------------------------------------------------------------------------


def test_make_builds_once_and_gives_back_what_was_built(tmp_path):
    builder = Builder()
    first = Store(tmp_path).make("base", SPEC, builder)
    second = Store(tmp_path).make("base", dict(reversed(SPEC.items())), builder)
    assert builder.calls == 1
    assert first == second == Store(tmp_path).find("base", SPEC)
    assert first.path == tmp_path / "base" / first.key
    assert {name: tensor.tolist() for name, tensor in first.tensors("weights").items()} == {
        name: tensor.tolist() for name, tensor in WEIGHTS.items()
    }
    pd.testing.assert_frame_equal(first.table("history"), TABLE)
    assert first.json("result") == {"accuracy": 0.9}
    assert first.json("spec") == SPEC
    assert matches_its_checksums(first.path)


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBNET_ARTIFACTS", str(tmp_path / "elsewhere"))
    assert Store().root == tmp_path / "elsewhere"
    assert Store(tmp_path).root == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, folder in (("own/store", ROOT / "own/store"), ("~/store", tmp_path / "store")):
        monkeypatch.setenv("SUBNET_ARTIFACTS", name)
        assert Store().root == folder
    monkeypatch.delenv("SUBNET_ARTIFACTS")
    assert Store().root == ROOT / "artifacts"
    monkeypatch.chdir(tmp_path)
    relative = Store("here")
    assert relative.root == tmp_path / "here"
    assert pickle.loads(pickle.dumps(relative)) == relative != Store()
    assert hash(relative) == hash(Store(tmp_path / "here"))


def test_provenance_says_who_made_it(tmp_path):
    record = Store(tmp_path).make("base", SPEC, lambda folder: time.sleep(0.05)).json("provenance")
    assert record["versions"]["torch"] == importlib.metadata.version("torch")
    assert record["machine"] == platform.machine() and 0.05 <= record["seconds"] < 10
    assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(record["created"]) < timedelta(minutes=1)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = record["commit"].removesuffix("+changes")
    assert commit == (head.stdout[:12] if head.returncode == 0 else "unknown")


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_depends_on_kind_and_content_and_not_on_the_order_of_keys():
    assert key_of("base", dict(reversed(SPEC.items()))) == key_of("base", SPEC) != key_of("mask", SPEC)
    alike = [{"a": [1, 2]}, {"a": [2, 1]}, {"a": [[1], 2]}, {"a": "[1, 2]"}, {"b": [1, 2]}, {"a": [True, 2]}]
    assert len({key_of("base", spec) for spec in alike}) == len(alike)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_specifications_and_json_hold_numbers_only(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        key_of("base", {"rate": value})
    save_json(tmp_path / "result.json", {"accuracy": 0.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_json(tmp_path / "result.json", {"accuracy": [value]})
    assert json.loads((tmp_path / "result.json").read_text()) == {"accuracy": 0.5}


# -- interrupted builds ------------------------------------------------------------------------------------------------


def test_an_interrupted_build_leaves_nothing_finished_and_is_continued(tmp_path):
    def stopped(folder: Path) -> None:
        save_tensors(folder / "checkpoint.safetensors", {"epoch": torch.tensor(7)})
        save_json(folder / "part.json", [1])
        (folder / ".weights.safetensors.99999").write_bytes(b"half of it")
        raise FloatingPointError("the loss is not finite")

    def resume(folder: Path) -> None:
        tensors, _ = load_tensors(folder / "checkpoint.safetensors")
        assert json.loads((folder / "part.json").read_text()) == [1]
        save_json(folder / "result.json", int(tensors["epoch"]))

    store = Store(tmp_path)
    with pytest.raises(FloatingPointError, match="the loss is not finite"):
        store.make("base", SPEC, stopped)
    assert store.find("base", SPEC) is None and not (tmp_path / "base").exists()
    assert store_module._BUILDING.get() is None
    artefact = store.make("base", SPEC, resume)
    assert artefact.json("result") == 7
    assert {path.name for path in artefact.path.iterdir()} == {
        "manifest.json", "part.json", "provenance.json", "result.json", "spec.json",
    }  # fmt: skip
    assert not list((tmp_path / "partial").iterdir())


def test_a_killed_process_leaves_no_lock_and_one_that_waits_says_so(tmp_path, capsys):
    code = """
        def build(folder):
            print("busy", flush=True)
            time.sleep(60)
        Store(sys.argv[1]).make("base", {"seed": 1}, build)
    """
    with run_script(code, tmp_path) as first:
        assert first.stdout.readline() == "busy\n"
        with run_script(code, tmp_path) as second:
            waiting = f"base {key_of('base', {'seed': 1})}: another process is building it; waiting\n"
            assert second.stderr.readline() == waiting
            first.send_signal(signal.SIGKILL)
            assert second.stdout.readline() == "busy\n"
    Store(tmp_path).make("base", {"seed": 1}, build)
    assert not capsys.readouterr().err


def test_a_digest_stands_for_the_content_and_for_nothing_else(tmp_path):
    def made(seed: int, text: str) -> Artefact:
        return Store(tmp_path).make("base", {"seed": seed}, lambda folder: save_json(folder / "result.json", text))

    one, same, other = made(0, "a"), made(1, "a"), made(2, "b")
    assert one.key != same.key and one.digest == same.digest != other.digest
    shutil.rmtree(one.path)
    store_module._INTACT.clear()
    assert made(0, "b").digest == other.digest  # the same artefact, with other bits


class Killed(BaseException):
    """Stands for the moment at which a process is killed."""


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_stopped_before_or_after_any_write_an_artefact_is_whole_or_absent(monkeypatch, tmp_path, late):
    left = 0

    def stopping(function: Callable) -> Callable:
        def call(*arguments):
            nonlocal left
            left -= 1
            if left == 0 and not late:
                raise Killed
            result = function(*arguments)
            if left == 0:
                raise Killed
            return result

        return call

    monkeypatch.setattr(os, "replace", stopping(os.replace))
    monkeypatch.setattr(os, "fsync", stopping(os.fsync))
    absent = 0
    for moment in range(1, 100):
        root = tmp_path / str(moment)
        left = moment
        try:
            Store(root).make("base", SPEC, build)
            break
        except Killed:
            pass
        left = 0
        whole = artefact_in(Store(root)).exists()
        absent += not whole
        assert not whole or matches_its_checksums(artefact_in(Store(root)))
        assert matches_its_checksums(Store(root).make("base", SPEC, never if whole else build).path)
    assert absent >= 10 and moment > absent


# -- several processes -------------------------------------------------------------------------------------------------


def test_many_that_find_the_same_damage_rebuild_once(tmp_path):
    large = {"w": torch.zeros(1 << 21)}
    calls = []

    def build_large(folder: Path) -> None:
        calls.append(threading.get_ident())
        save_tensors(folder / "weights.safetensors", large)

    original = Store(tmp_path / "original").make("base", SPEC, build_large)
    with (original.path / "weights.safetensors").open("r+b") as file:
        file.truncate(1000)
    store = Store(shutil.copytree(tmp_path / "original", tmp_path / "copy"))
    gate = threading.Barrier(4)
    results = []

    def ask() -> None:
        gate.wait()
        results.append(store.make("base", SPEC, build_large).tensors("weights")["w"].shape)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 2 and len(results) == 4
    assert len(list((store.root / "quarantine").iterdir())) == 1


# -- damage ------------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path, bit: int = 1001) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES = {
    "cut": ("weights.safetensors", cut, "weights.safetensors does not match its checksum"),
    "flipped": ("weights.safetensors", flip, "weights.safetensors does not match its checksum"),
    "other spec": ("spec.json", lambda path: path.write_text("{}"), "spec.json does not match its checksum"),
    "missing": ("result.json", Path.unlink, "result.json is missing"),
    "no manifest": ("manifest.json", Path.unlink, "manifest.json is missing or unreadable"),
    "vacuous manifest": ("manifest.json", lambda path: path.write_text("{}"), "manifest.json is missing or unreadable"),
    "manifest of another kind": ("manifest.json", lambda path: path.write_text("[1]"), "manifest.json is missing or"),
}


@pytest.mark.parametrize(("name", "harm", "what"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_artefact_is_set_aside_with_one_line_and_rebuilt(copied, capsys, name, harm, what):
    path = artefact_in(copied)
    sound = safetensors.torch.load_file(path / "weights.safetensors")
    harm(path / name)
    harmed = {file.name: file.read_bytes() for file in path.iterdir()}
    builder = Builder()
    rebuilt = copied.make("base", SPEC, builder)
    assert builder.calls == 1 and rebuilt.path == path and matches_its_checksums(path)
    assert all(torch.equal(tensor, sound[name]) for name, tensor in rebuilt.tensors("weights").items())
    (aside,) = (copied.root / "quarantine").iterdir()
    assert {file.name: file.read_bytes() for file in aside.iterdir()} == harmed
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"base {rebuilt.key} is damaged ({what}")
    assert line.endswith(f"moved to {aside}, to be built again")
    copied.make("base", SPEC, never)


@given(data=st.data())
def test_any_flipped_bit_or_missing_end_is_noticed(made, tmp_path_factory, data):
    store = Store(shutil.copytree(made, tmp_path_factory.mktemp("flip") / "copy"))
    path = data.draw(st.sampled_from(sorted(artefact_in(store).iterdir())))
    original = path.read_bytes()
    if data.draw(st.booleans(), label="cut"):
        os.truncate(path, data.draw(st.integers(0, len(original) - 1)))
    else:
        flip(path, data.draw(st.integers(0, 8 * len(original) - 1)))
    try:  # white space of the manifest is the one thing that says nothing
        same = path.name == "manifest.json" and json.loads(path.read_bytes()) == json.loads(original)
    except ValueError:
        same = False
    assert (store.find("base", SPEC) is not None) == same


# -- refusals of the operating system ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_read_only_folder_is_one_line_with_the_remedy(copied, monkeypatch, code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code), str(copied.root / "locks"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError) as caught:
        copied.make("base", {"seed": 9}, never)
    assert str(caught.value) == (
        f"artefact folder {copied.root}: it cannot be written; make it writable or set SUBNET_ARTIFACTS to another "
        "folder. Finished artefacts are kept"
    )
    assert copied.make("base", SPEC, never).json("result") == {"accuracy": 0.9}


def test_refusal_of_another_folder_is_not_blamed_on_the_store(tmp_path):
    def read_elsewhere(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere/else/vocab.txt")

    with pytest.raises(PermissionError, match="/somewhere/else/vocab.txt"):
        Store(tmp_path / "artifacts").make("base", SPEC, read_elsewhere)


FULL = "the disk is full; free some space and run again. Finished artefacts are kept"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_one_line_and_keeps_what_is_finished(monkeypatch, copied, code):
    def full(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError) as caught:
            copied.make("mask", SPEC, build)
    assert str(caught.value) == f"artefact folder {copied.root}: {FULL}"
    assert copied.find("mask", SPEC) is None
    assert not [path for path in copied.root.rglob(".*") if path.is_file()]  # nothing half-written takes up space
    assert copied.make("base", SPEC, never).json("result") == {"accuracy": 0.9}
    assert matches_its_checksums(copied.make("mask", SPEC, build).path)


# -- what an artefact notes of itself ----------------------------------------------------------------------------------


def about(artefact) -> dict:
    return artefact.json("provenance")


def test_seconds_are_an_artefacts_own_and_what_it_used_is_noted(tmp_path):
    store = Store(tmp_path)
    found = store.make("base", {"found": 1}, build)

    def inner(folder: Path) -> None:
        time.sleep(0.3)
        build(folder)

    def outer(folder: Path) -> None:
        time.sleep(0.1)
        assert store.find("base", {"found": 1}) and store.find("base", {"missing": 1}) is None
        store.make("mask", {"inner": 1}, inner)
        build(folder)

    made = store.make("mask", {"outer": 1}, outer)
    within = store.find("mask", {"inner": 1})
    assert 0.3 <= about(within)["seconds"] < 0.4 and 0.1 <= about(made)["seconds"] < 0.25
    assert about(made)["cpu_seconds"] < 0.1, "sleep takes no processor time"
    assert about(made)["uses"] == sorted([f"base/{found.key}", f"mask/{within.key}"])
    assert about(within)["uses"] == []
    outside = {f"base/{found.key}", f"mask/{made.key}", f"mask/{within.key}"}
    assert store.used == outside and store.make("base", {"found": 1}, build) and store.used == outside
    assert Store(tmp_path / "other").used == set()


def test_waiting_for_another_process_is_not_counted(tmp_path):
    store, begun = Store(tmp_path), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        time.sleep(0.5)
        build(folder)

    other = threading.Thread(target=store.make, args=("base", {"inner": 1}, slow))

    def outer(folder: Path) -> None:
        other.start()
        begun.wait()
        Store(tmp_path).make("base", {"inner": 1}, never)
        build(folder)

    made = store.make("mask", {"outer": 1}, outer)
    other.join()
    assert about(made)["seconds"] < 0.3 and len(about(made)["uses"]) == 1


# -- files -------------------------------------------------------------------------------------------------------------


def test_unreadable_tensors_are_one_line(tmp_path):
    path = tmp_path / "w.safetensors"
    save_tensors(path, WEIGHTS)
    for harm in (cut, lambda path: path.write_bytes(b""), lambda path: path.write_text("not tensors")):
        harm(path)
        with pytest.raises(StoreError) as caught:
            load_tensors(path)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{path} cannot be read as safetensors (") and line.endswith("delete it and run again")
    path.unlink()
    with pytest.raises(StoreError, match=f"^there is no file {path}; give one that was saved$"):
        load_tensors(path)


def test_nothing_is_unpickled_that_ruff_does_not_know_of():
    """ruff forbids pickle, marshal, eval, exec and unsafe YAML (S rules in pyproject.toml)."""
    unsafe = re.compile(
        r"(?<!safetensors\.)torch\.(save\(|load\((?!.*weights_only=True))|trust_remote_code=True|allow_pickle=True"
    )
    sources = {path: path.read_text() for path in (ROOT / "subnet_utils").rglob("*.py")}
    assert len(sources) > 20 and not [path for path, text in sources.items() if unsafe.search(text)]


def test_folders_in_an_artefact_are_checked_too(tmp_path, capsys):
    def folders(folder: Path) -> None:
        for name in ("model", "checkpoint-500", ".ipynb_checkpoints"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "weights").write_text("three")

    made = Store(tmp_path).make("base", SPEC, folders)
    assert sorted(path.name for path in made.path.iterdir()) == [
        "manifest.json",
        "model",
        "provenance.json",
        "spec.json",
    ]
    (made.path / "model" / "weights").write_text("four")
    store_module._INTACT.clear()
    assert Store(tmp_path).find("base", SPEC) is None and "is damaged" in capsys.readouterr().err


def test_tensors_are_written_as_the_library_does_and_equal_ones_to_equal_files(tmp_path):
    drawn = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    tensors = {
        "turned": drawn.t(), "one": torch.tensor(1.5), "flags": torch.tensor([True, False]), "narrow": drawn.bfloat16(),
        "none": torch.ones(0, 4), "bytes": torch.arange(5, dtype=torch.uint8), "long": torch.arange(6).view(2, 3),
    }  # fmt: skip
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    for metadata in ({}, {"one": "1"}, {"b": "1", "a": "2"}):  # of several the library's order is random
        save_tensors(tmp_path / "ours", tensors, metadata)
        save_tensors(tmp_path / "again", tensors, dict(reversed(metadata.items())))
        written, theirs = (tmp_path / "ours").read_bytes(), safetensors.torch.save(whole, metadata)
        assert written == (tmp_path / "again").read_bytes()
        assert written[-300:] == theirs[-300:] and len(written) <= len(theirs) + 24
        found, about = load_tensors(tmp_path / "ours")
        assert about == metadata and found.keys() == tensors.keys()
        assert all(torch.equal(found[name], whole[name]) and found[name].dtype == whole[name].dtype for name in found)
