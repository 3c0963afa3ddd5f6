"""A whole artefact store to and from a repository on the model hub.

`python -m subnet_utils.core.hub push OWNER/NAME`, or `pull`. HF_ENDPOINT and HF_TOKEN are those of `huggingface_hub`.

A finished artefact never changes, and its name is made from all that it depends on. So what is there is not sent again,
and a transfer that was killed goes on where it stopped. What comes in is checked like any artefact before it is moved
into the store: against its checksums, and against the specification that its name stands for.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from subnet_utils.core.messages import first_line, of_companion
from subnet_utils.core.store import Artefact, Store, StoreError, damage_of, digests, key_of

with of_companion():
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import disable_progress_bars

TOGETHER = 50
"""Artefacts that are sent in one commit, or fetched before they are moved into the store."""
FILE = re.compile(r"(?P<artefact>[\w-]+/[0-9a-f]{16})/\w[\w-]*(\.\w+)?(/\w[\w-]*(\.\w+)?)*")
"""Of an artefact; whatever else a repository holds is left alone."""
KIND = "dataset"
"""Of repository."""


def push(store: Store, repository: str, api: HfApi) -> int:
    """Send all artefacts that the repository lacks, and return how many. Raises StoreError for a damaged one."""
    api.create_repo(repository, repo_type=KIND, exist_ok=True)
    there = artefacts_in(api.list_repo_files(repository, repo_type=KIND))
    own = (path.parent.relative_to(store.root).as_posix() for path in sorted(store.root.glob("*/*/manifest.json")))
    missing = [name for name in own if FILE.fullmatch(f"{name}/manifest.json") and name not in there]
    for names in _together(missing, "sent"):
        for name in names:
            require(store.root, name, "delete its folder")
        files = [f"{name}/{file}" for name in names for file in digests(store.root / name)]
        operations = [CommitOperationAdd(file, store.root / file) for file in files]
        message = f"{len(names)} artefacts"
        api.create_commit(repository, operations, commit_message=message, repo_type=KIND)
    return len(missing)


def pull(store: Store, repository: str, api: HfApi) -> int:
    """Fetch all artefacts that the store lacks, and return how many.

    Raises StoreError for those that are truncated or foreign, when all others are there.
    """
    revision = api.repo_info(repository, repo_type=KIND).sha
    there = artefacts_in(api.list_repo_files(repository, repo_type=KIND, revision=revision))
    missing = [name for name in sorted(there) if not (store.root / name).is_dir()]
    folder, refused = store.root / "partial" / "pulled", []
    for names in _together(missing, "fetched"):
        patterns = [f"{name}/*" for name in names]
        api.snapshot_download(repository, repo_type=KIND, revision=revision, local_dir=folder, allow_patterns=patterns)
        for name in names:
            try:
                take_in(store, folder, name, f"push it anew to {repository}")
            except StoreError as error:
                refused.append(error)
                shutil.rmtree(folder / name, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    if refused:
        raise StoreError(f"{refused[0]} ({len(refused)} of {len(missing)} artefacts refused)")
    return len(missing)


def artefacts_in(files: Sequence[str]) -> set[str]:
    """`kind/key` of every artefact with its manifest among some files."""
    return {found["artefact"] for file in files if (found := FILE.fullmatch(file)) and file.endswith("/manifest.json")}


def take_in(store: Store, folder: Path, name: str, remedy: str) -> None:
    """Move an artefact, `kind/key` in a folder, into a store. Raises StoreError as `require` does.

    If another process is building it, that is waited for, and what it has built stays.
    """
    require(folder, name, remedy)
    place = store.root / name
    with store.lock(Artefact(*name.split("/"), place)):
        if not place.is_dir():
            place.parent.mkdir(exist_ok=True)
            os.replace(folder / name, place)


def require(root: Path, name: str, remedy: str) -> None:
    """Raise StoreError, in one line, for an artefact that is damaged, or not what its name stands for."""
    kind, key = name.split("/")
    artefact = Artefact(kind, key, root / name)
    why = damage_of(artefact.path)
    if why is None and digests(artefact.path).keys() != artefact.json("manifest").keys() | {"manifest.json"}:
        why = "it has a file that is no part of it"
    if why is None and key_of(kind, artefact.json("spec")) != key:
        why = "its specification is of another artefact"
    if why:
        raise StoreError(f"{name} is refused: {why}; {remedy}")


def _together(names: Sequence[str], done: str) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), TOGETHER):
        yield names[first : first + TOGETHER]
        print(f"{min(first + TOGETHER, len(names))} of {len(names)} artefacts {done}", flush=True)


def main() -> int:
    """Push or pull; 2 and a line on stderr for what cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.core.hub", description="Artefacts on the hub.")
    parser.add_argument("direction", choices=("push", "pull"))
    parser.add_argument("repository", help="OWNER/NAME, a dataset")
    arguments = parser.parse_args()
    disable_progress_bars()
    store = Store()
    try:
        count = {"push": push, "pull": pull}[arguments.direction](store, arguments.repository, HfApi())
    except Exception as error:  # the hub client raises many unrelated types
        print(f"{arguments.repository}: {first_line(error)}", file=sys.stderr)
        return 2
    print(f"{store.root}: {count} artefacts were lacking" if count else f"{store.root}: nothing is lacking")
    return 0


if __name__ == "__main__":
    sys.exit(main())
