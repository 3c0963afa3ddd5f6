"""What a paper gives to the zoo."""

import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import ROOT
from subnet_utils.core.step import Step
from subnet_utils.core.store import digest_of, write_whole
from subnet_utils.masks.subnetwork import Subnetwork

Tensors = Mapping[str, Tensor]
Inputs = Tensor | Tensors
Test = tuple[Inputs, Tensor]
"""Inputs [n, ...], or several by name, and targets, int64 [n, ...]."""
PARTS = ("inputs", "targets")
"""Of a test, in a file."""
XZ = ".xz"
TESTS = "tests"
"""Folder of a zoo with what `store_tests` writes."""


@dataclass(frozen=True)
class Release:
    """What a paper gives to the zoo: a network, masks in it, and how parts of it are tested.

    name: of the entry; task: what the network does and what its tests ask, for readers. Of several with one name, the
    first that `learned` is taken. network: a step, or what loads like one; fresh(): a network of the same architecture;
    masks(): by name, what loads a subnetwork; tests(): by name; logits(network, inputs): [n, ..., classes] of a whole
    test; more(lab): tensors that parts need besides; part(network, subnetwork, more): that subnetwork alone; stored:
    whether tests are in a file, because not every machine draws the same; effects(): rows of the study's committed
    tables that are about such masks.
    """

    name: str
    task: str
    network: Step
    seed: int
    chance: float
    fresh: Callable[[], nn.Module]
    masks: Callable[[], Mapping[str, Step]]
    tests: Callable[[], Mapping[str, Test]]
    logits: Callable[[nn.Module, Inputs], Tensor]
    more: Callable[[Lab], Tensors] = lambda lab: {}
    part: Callable[[nn.Module, Subnetwork, Tensors], nn.Module] = lambda network, kept, more: kept.apply(network)
    stored: bool = False
    learned: Callable[[Lab], bool] = lambda lab: True
    effects: Callable[[], pd.DataFrame] = pd.DataFrame


EFFECT = (
    "part", "of", "tested_on", "split", "subroutine", "network", "subtask", "layers", "method", "statistic", "claim",
    "accuracy", "whole_network", "subnetwork", "ablated", "random_ablated", "lost", "ours", "our_value", "ours_low",
    "low", "ours_high", "high", "p", "n", "n_runs", "n_bases", "n_seeds", "verdict",
)  # fmt: skip
"""Columns of committed tables that a card may show, in this order."""


def committed(study: str, table: str, **where: Any) -> pd.DataFrame:
    """Rows of a study's committed table, if it is there, with the columns of `EFFECT` that it has. where: what other
    columns should be; '' stands for none."""
    path = ROOT / "figures" / study / f"{table}.csv"
    if not path.is_file():
        return pd.DataFrame()
    rows = pd.read_csv(path)
    for column, value in where.items():
        rows = rows[rows[column].isna() if value == "" else rows[column].eq(value)]
    return rows[[name for name in EFFECT if name in rows and name not in where]]


def digest_of_test(test: Test) -> str:
    """Sixteen hexadecimal digits for inputs and targets."""
    inputs, targets = test
    return digest_of({**(inputs if isinstance(inputs, Mapping) else {"inputs": inputs}), "targets": targets})[:16]


def store_tests(folder: Path, tests: Mapping[str, Test]) -> str:
    """Write tests, whose inputs are a tensor each, as a packed safetensors file, and return its name: their digest.

    Entries with the same tests have one file.
    """
    both = {name: dict(zip(PARTS, test, strict=True)) for name, test in tests.items()}
    tensors = {f"{name}/{part}": one.contiguous() for name, parts in both.items() for part, one in parts.items()}
    folder.mkdir(exist_ok=True)
    path = folder / f"{digest_of(tensors)[:16]}.safetensors"
    write_whole(path, safetensors.torch.save(tensors))
    shrink(folder)
    return path.stem


def stored_tests(folder: Path, name: str) -> dict[str, Test]:
    """Tests as `store_tests` wrote them. Raises ValueError if they are not."""
    try:
        with grown(folder, name) as files:
            tensors = safetensors.torch.load((files / f"{name}.safetensors").read_bytes())
    except (OSError, lzma.LZMAError, safetensors.SafetensorError) as error:
        raise ValueError(f"{name}{XZ}: {error}") from None
    if digest_of(tensors)[:16] != name:
        raise ValueError(f"{name}{XZ} has other tests than its name says")
    names = dict.fromkeys(name.rpartition("/")[0] for name in sorted(tensors))
    return {name: tuple(tensors[f"{name}/{part}"] for part in PARTS) for name in names}


def shrink(folder: Path) -> None:
    """Put tensors in a folder into smaller files: `name.safetensors.xz` for `name.safetensors`.

    Of each four bytes the first come first, then the second ones, and so on. Those of exponents are much alike.
    """
    for path in sorted(folder.rglob("*.safetensors")):
        content = path.read_bytes()
        whole = len(content) - len(content) % 4
        columns = np.frombuffer(content[:whole], np.uint8).reshape(-1, 4).T
        write_whole(path.with_name(path.name + XZ), lzma.compress(columns.tobytes() + content[whole:], preset=9))
        path.unlink()


@contextmanager
def grown(folder: Path, name: str = "*") -> Iterator[Path]:
    """A folder with the tensors that `shrink` made smaller, as they were, for as long as the context lasts. name: of a
    file, to have no other."""
    with TemporaryDirectory() as place:
        for path in folder.rglob(f"{name}.safetensors{XZ}"):
            content = lzma.decompress(path.read_bytes())
            whole = len(content) - len(content) % 4
            rows = np.frombuffer(content[:whole], np.uint8).reshape(4, -1).T
            to = Path(place) / path.relative_to(folder).with_suffix("")
            to.parent.mkdir(exist_ok=True)
            to.write_bytes(rows.tobytes() + content[whole:])
        yield Path(place)
