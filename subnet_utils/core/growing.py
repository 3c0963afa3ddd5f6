"""Files of tensors that are too large for memory: written part by part, read by memory map.

The file is the one that `store.save_tensors` writes, to the last byte: its header and its small tensors come first, and
one tensor of bytes follows, which grows. A call that was killed leaves what it wrote, and the next call goes on there.
`mapped` reads only what is looked at. (safetensors maps files too, but so that the system must have memory for it all.)
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

PART = 256
"""Items that are written, and lost by a kill, at once."""


def save_growing(
    path: Path, small: Mapping[str, Tensor], name: str, shape: Sequence[int], make: Callable[[int, int], Tensor], *,
    part: int = PART,
) -> None:  # fmt: skip
    """Write a safetensors file with some int64 tensors and a large uint8 one.

    name, shape: of the large one, [n, ...]; make(start, stop): its items from start to before stop, uint8. Each of them
    is asked for once, also over several calls of which one after the other is killed; a kill costs `part` items at
    most. A file that has begun with other small tensors or another shape is begun anew.
    """
    head = _head(small, name, shape)
    size = int(torch.Size(shape[1:]).numel())
    growing = path.with_name(f"checkpoint-{path.name}")  # which the store drops from a finished artefact
    growing.touch()
    with growing.open("r+b") as file:
        for start in range(_begun(file, head, size), shape[0], part):
            file.write(make(start, min(start + part, shape[0])).contiguous().numpy())
            file.flush()
            os.fsync(file.fileno())
    os.replace(growing, path)


def mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of such a file. That of bytes lies on disk: read it, and do not change it."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        about = json.loads(file.read(start - 8))
    content, found = np.memmap(path, np.uint8, "r", offset=start), {}
    for name, one in about.items():
        if name != "__metadata__":
            part = content[slice(*one["data_offsets"])].reshape(-1)
            values = _unwritable(part) if one["dtype"] == "U8" else torch.from_numpy(part.view(np.int64).copy())
            found[name] = values.reshape(one["shape"])
    return found


def _unwritable(values: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)


def _begun(file: BinaryIO, head: bytes, size: int) -> int:
    """How many items of so many bytes the file holds, all of them whole; it is ready for the next one."""
    there = file.seek(0, os.SEEK_END)
    file.seek(0)
    items = (there - len(head)) // size if file.read(len(head)) == head else 0
    if not items:
        file.seek(0)
        file.write(head)
    file.truncate(len(head) + items * size)
    file.seek(len(head) + items * size)
    return items


def _head(small: Mapping[str, Tensor], name: str, shape: Sequence[int]) -> bytes:
    """Header and small tensors as safetensors orders them: larger numbers first, then by name."""
    about, data, end = {"__metadata__": {}}, b"", 0
    for key in sorted(small):
        data += small[key].long().numpy().tobytes()
        about[key] = {"dtype": "I64", "shape": list(small[key].shape), "data_offsets": [end, len(data)]}
        end = len(data)
    about[name] = {"dtype": "U8", "shape": list(shape), "data_offsets": [end, end + int(torch.Size(shape).numel())]}
    text = json.dumps(about, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + data
