"""The training behind an entry: its artefacts, so that the notebooks of a study do not train it again.

`steps.tar.xz` has the artefacts of an entry's network and masks, and of all that they were made of. Weights and masks
that the entry has as files are not in it twice. `unpack` puts the artefacts into a store. It is a command of its own,
because a study that shall be reproduced must train its networks.
"""

import io
import json
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from subnet_utils.core.hub import artefacts_in, take_in
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import with_parents
from subnet_utils.core.store import Store, digests
from subnet_utils.zoo import ZOO, checked, restored, stocked
from subnet_utils.zoo.release import Release, grown

STEPS = "steps.tar.xz"
WORTH = 9_000
"""Bytes that a second of processor time is worth. An artefact that would add more, such as drawn images, is left out. A
machine that makes it with the same bytes finds all that depends on it."""


def pack(lab: Lab, release: Release, place: Path) -> None:
    """Write an entry's `steps.tar.xz`, beside its network and masks."""
    own = set(digests(place).values())
    made = [step.make(lab) for step in with_parents([release.network, *release.masks().values()])]
    names = {f"{one.kind}/{one.key}" for one in made} | {name for one in made for name in _about(one.path)["uses"]}
    with tarfile.open(place / STEPS, "w:xz", preset=9) as file:
        for folder in sorted(lab.store.root / name for name in names):
            more = [folder / name for name, digest in digests(folder).items() if digest not in own]
            if more and sum(path.stat().st_size for path in more) <= WORTH * _about(folder)["cpu_seconds"]:
                for path in more:
                    about = tarfile.TarInfo(path.relative_to(lab.store.root).as_posix())  # without the time
                    about.size = path.stat().st_size
                    file.addfile(about, io.BytesIO(path.read_bytes()))


def _about(artefact: Path) -> dict[str, Any]:
    return json.loads((artefact / "provenance.json").read_text())


def unpack(store: Store, folder: Path = ZOO) -> int:
    """Put the artefacts of all entries into a store, and return how many it lacked.

    Raises ZooError for a damaged entry, StoreError for an artefact that is not what its name stands for.
    """
    return sum(_unpack(store, place) for place in stocked(Path(folder)).values())


def _unpack(store: Store, place: Path) -> int:
    checked(place)
    partial = store.root / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    with tarfile.open(place / STEPS) as file, TemporaryDirectory(dir=partial) as temporary, grown(place) as files:
        own = {digest: files / name for name, digest in digests(files).items()}
        file.extractall(temporary, filter="data")
        missing = [name for name in artefacts_in(file.getnames()) if not (store.root / name).is_dir()]
        for name in missing:
            folder = Path(temporary) / name
            for one, digest in json.loads((folder / "manifest.json").read_text()).items():
                if digest in own:
                    shutil.copy(own[digest], folder / one)
            take_in(store, Path(temporary), name, restored(place))
    return len(missing)
