"""The papers, a room each; see `core.papers`.

Rooms of one's own lie in the folders that the environment variable SUBNET_PAPERS names, one package each. They are
imported here, so before any room of ours, whatever is imported first: what they bring, such as a method that finds
masks, can then be named in every section. A room of theirs with the name of one of ours is not looked at.
"""

import os
import pkgutil
from importlib import import_module
from pathlib import Path

from subnet_utils.core.sections import ROOT


def _own_folders() -> list[str]:
    """Folders that SUBNET_PAPERS names; a relative one starts at the checkout."""
    named = [ROOT / Path(name).expanduser() for name in os.environ.get("SUBNET_PAPERS", "").split(os.pathsep) if name]
    for folder in named:
        if not folder.is_dir():
            raise ValueError(f"SUBNET_PAPERS names '{folder}', which is no folder; correct it or unset it")
    return [str(folder) for folder in named]


__path__ += _own_folders()
for _room in pkgutil.iter_modules(__path__[1:]):
    import_module(f"{__name__}.{_room.name}")
