"""The artefact store: a specification names a folder, and a folder that exists is finished and intact.

`Store.make(kind, spec, build)` returns the finished artefact of a specification or builds it. The key is the hash of
the canonical specification with the kind. Building happens in a folder of its own that outlives a killed run, so
checkpoints in it are found again; finishing means checksummed, then renamed into place. A damaged artefact is set aside
and built anew. Files are safetensors, JSON and parquet; nothing is ever unpickled. Steps (`step`) are what calls it.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from torch import Tensor

from subnet_utils.core.provenance import provenance
from subnet_utils.core.sections import ROOT

_INTACT: set[Path] = set()
"""Artefacts whose checksums this process has verified: each is read once for that, not at every use."""
_USED: defaultdict[Path, set[str]] = defaultdict(set)
"""What this process has taken from each store, `kind/key`, apart from what it took to build something else."""
ABOUT = ("spec.json", "provenance.json")
"""Files of every artefact on what it depends on and how it was made; they are no part of its content."""


class StoreError(RuntimeError):
    """The store cannot be read or written; the message names the folder and the remedy."""


@dataclass(frozen=True)
class Artefact:
    """A finished artefact: a folder whose files match their checksums."""

    kind: str
    key: str
    path: Path

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the content: all files but those on how the artefact was made."""
        return _content(self.path, (self.path / "manifest.json").stat().st_mtime_ns)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of `<name>.safetensors`."""
        return safetensors.torch.load_file(self.path / f"{name}.safetensors")

    def table(self, name: str) -> pd.DataFrame:
        """The table of `<name>.parquet`."""
        return pd.read_parquet(self.path / f"{name}.parquet")

    def json(self, name: str) -> Any:
        """The content of `<name>.json`; `spec` and `provenance` exist in every artefact."""
        return json.loads((self.path / f"{name}.json").read_text())


@dataclass
class Building:
    """What is known of an artefact while it is built.

    seconds: by both `clocks`, its own, without those of the artefacts that are built inside it; uses: these and all
    others that it asked for, `kind/key`; notes: what it notes of itself.
    """

    seconds: np.ndarray = field(default_factory=lambda: np.zeros(2))
    uses: set[str] = field(default_factory=set)
    notes: dict[str, Any] = field(default_factory=dict)


_BUILDING: ContextVar[Building | None] = ContextVar("building", default=None)
"""The artefact that is being built here and now; inside another one, that one is found again when it is finished."""


def building() -> Building | None:
    """The artefact that is being built, or None."""
    return _BUILDING.get()


def note(**facts: Any) -> None:
    """Have the artefact that is being built, if there is one, note something in its provenance."""
    work = building()
    if work is not None:
        work.notes.update(facts)


def clocks() -> np.ndarray:
    """Seconds by the clock on the wall and of this process's processor time, from some beginning."""
    return np.array([time.monotonic(), time.process_time()])


class Store:
    """A folder of artefacts, by default `artifacts/` in the checkout or the folder named by SUBNET_ARTIFACTS.

    A relative name there starts at the checkout: notebooks run in folders of their own.
    """

    def __init__(self, root: Path | str | None = None):
        self.root = Path(root or ROOT / Path(os.environ.get("SUBNET_ARTIFACTS") or "artifacts").expanduser()).absolute()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    @property
    def used(self) -> set[str]:
        """`kind/key` of every artefact that this process has taken from the store so far."""
        return _USED[self.root]

    def make(self, kind: str, spec: Mapping[str, Any], build: Callable[[Path], None]) -> Artefact:
        """The artefact of `spec`, built by `build(folder)` if it is not there.

        `build` writes its files into the folder it is given; what an interrupted call left there is still in it. Files
        whose name starts with `checkpoint` are dropped when the artefact is finished. Two processes that ask for the
        same artefact build it once. Raises StoreError if the folder cannot be written or the disk is full.
        """
        if (found := self.find(kind, spec)) is not None:
            return found
        artefact = self._artefact(kind, spec)
        with _explained(self.root), _counted(-1), self.lock(artefact):
            if not artefact.path.is_dir():  # another process may have built it meanwhile
                self._build(artefact, spec, build)
        _note_use(artefact)
        return artefact

    def find(self, kind: str, spec: Mapping[str, Any]) -> Artefact | None:
        """The finished artefact of `spec`, or None. A damaged one is moved to `quarantine/` with one line on why."""
        artefact = self._artefact(kind, spec)
        with _explained(self.root):
            if not artefact.path.is_dir():
                return None
            if artefact.path not in _INTACT and damage_of(artefact.path):
                with self.lock(artefact):
                    _set_aside(artefact, self.root / "quarantine")
                return None
        _INTACT.add(artefact.path)
        _note_use(artefact)
        return artefact

    def _artefact(self, kind: str, spec: Mapping[str, Any]) -> Artefact:
        key = key_of(kind, spec)
        return Artefact(kind, key, self.root / kind / key)

    def _build(self, artefact: Artefact, spec: Mapping[str, Any], build: Callable[[Path], None]) -> None:
        folder = self.root / "partial" / f"{artefact.kind}-{artefact.key}"
        folder.mkdir(parents=True, exist_ok=True)
        work = Building()
        token = _BUILDING.set(work)
        try:
            with _counted(+1):
                build(folder)
        finally:
            _BUILDING.reset(token)
        # besides checkpoints, what calls left that were killed while they wrote a file or before the last rename
        for pattern in ("checkpoint*", ".*", "manifest.json"):
            for left_over in folder.glob(pattern):
                shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        save_json(folder / "spec.json", spec)
        times = dict(zip(("seconds", "cpu_seconds"), work.seconds.round(2).tolist(), strict=True))
        save_json(folder / "provenance.json", provenance(**times, uses=sorted(work.uses), **work.notes))
        save_json(folder / "manifest.json", digests(folder))
        artefact.path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder, artefact.path)
        _sync(artefact.path.parent)
        _INTACT.add(artefact.path)

    @contextmanager
    def lock(self, artefact: Artefact) -> Iterator[None]:
        """While an artefact is built or moved; of other processes, one waits for the other."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{artefact.kind}-{artefact.key}.lock")
        try:
            held = lock.acquire(timeout=1)
        except Timeout:
            message = f"{artefact.kind} {artefact.key}: another process is building it; waiting"
            print(message, file=sys.stderr, flush=True)
            held = lock.acquire()
        with held:
            yield


@contextmanager
def _counted(sign: int) -> Iterator[None]:
    """Add the time of the block to what is being built, or take it away: a wait, or another artefact inside it."""
    work, begun = building(), clocks()
    try:
        yield
    finally:
        if work is not None:
            work.seconds += sign * (clocks() - begun)


def _note_use(artefact: Artefact) -> None:
    work = building()
    uses = _USED[artefact.path.parents[1]] if work is None else work.uses
    uses.add(f"{artefact.kind}/{artefact.key}")


def key_of(kind: str, spec: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that name a specification: the hash of its canonical JSON with its kind."""
    text = json.dumps([kind, spec], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file: whole or not at all, equal content as equal bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = memoryview(safetensors.torch.save(tensors, dict(metadata or {})))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:end]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # which the library has in random order
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(end - 8)
    write_whole(path, content[:8], text, content[end:])


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. Raises StoreError if it is truncated or no such file."""
    if not Path(path).is_file():
        raise StoreError(f"there is no file {path}; give one that was saved")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise StoreError(f"{path} cannot be read as safetensors ({error}); delete it and run again") from None


def digest_of(tensors: Mapping[str, Tensor], *header: str) -> str:
    """SHA-256 of a file's header and of its tensors' bytes: one flipped bit would otherwise load as another tensor."""
    digest = hashlib.sha256("\n".join(header).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_json(path: Path, content: Any) -> None:
    """Write a JSON file: whole or not at all."""
    write_whole(path, (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def save_table(path: Path, table: pd.DataFrame) -> None:
    """Write a parquet file: whole or not at all."""
    write_whole(path, table.to_parquet(index=False))


def write_whole(path: Path, *content: bytes | memoryview) -> None:
    """Write a file whole or not at all: beside the target, flushed to disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _set_aside(artefact: Artefact, quarantine: Path) -> None:
    """Move a damaged artefact to the quarantine, unless the process that held the lock before has rebuilt it."""
    damage = damage_of(artefact.path) if artefact.path.is_dir() else None
    if damage is None:
        return
    aside = quarantine / f"{artefact.kind}-{artefact.key}-{time.time_ns()}"
    quarantine.mkdir(exist_ok=True)
    os.replace(artefact.path, aside)
    message = f"{artefact.kind} {artefact.key} is damaged ({damage}); moved to {aside}, to be built again"
    print(message, file=sys.stderr, flush=True)


def damage_of(path: Path) -> str | None:
    """What is wrong with an artefact's files, or None."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if not set(ABOUT) <= manifest.keys():
            raise ValueError
    except (OSError, AttributeError, ValueError):
        return "manifest.json is missing or unreadable"
    for name, digest in manifest.items():
        try:
            found = _sha256(path / name)
        except (FileNotFoundError, IsADirectoryError):  # or another process is moving the artefact away
            return f"{name} is missing"
        if found != digest:
            return f"{name} does not match its checksum"
    return None


@lru_cache(maxsize=4096)
def _content(path: Path, written: int) -> str:
    """written: when its manifest was; a damaged artefact is replaced by one with other bits."""
    files = json.loads((path / "manifest.json").read_text())
    own = sorted((name, digest) for name, digest in files.items() if name not in ABOUT)
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]


def digests(folder: Path) -> dict[str, str]:
    """Checksums of all files, in folders within it too."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    """Turn the operating system's refusals into one line that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        within = error.filename is None or Path(str(error.filename)).is_relative_to(root)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "the disk is full; free some space and run again"
        elif within and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            remedy = "it cannot be written; make it writable or set SUBNET_ARTIFACTS to another folder"
        else:
            raise
        raise StoreError(f"artefact folder {root}: {remedy}. Finished artefacts are kept") from error
