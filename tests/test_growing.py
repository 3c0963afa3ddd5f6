"""Files that grow part by part: their bytes, what a kill costs, and how much memory they take."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from subnet_utils.core.growing import mapped, save_growing
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import save_tensors

PIXELS = torch.randint(0, 256, (23, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = {"shapes": torch.arange(23), "textures": torch.arange(23) % 7}


def grown(path: Path, *, part: int = 4, fails_at: int | None = None, labels=LABELS) -> list[tuple[int, int]]:
    """The parts that were asked for."""
    asked = []

    def make(start: int, stop: int) -> torch.Tensor:
        if start == fails_at:
            raise KeyboardInterrupt
        asked.append((start, stop))
        return PIXELS[start:stop]

    try:
        save_growing(path, labels, "pixels", PIXELS.shape, make, part=part)
    except KeyboardInterrupt:
        assert not path.exists()
    return asked


@pytest.mark.parametrize("part", [1, 4, 23, 100])
def test_the_file_is_the_one_that_is_written_at_once(tmp_path, part):
    """So that artefacts, and all that is named by their content, stay what they are."""
    grown(tmp_path / "parts.safetensors", part=part)
    save_tensors(tmp_path / "whole.safetensors", LABELS | {"pixels": PIXELS})
    assert (tmp_path / "parts.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["parts.safetensors", "whole.safetensors"]


def test_a_mapped_file_holds_what_was_written(tmp_path):
    grown(tmp_path / "a.safetensors")
    found, expected = mapped(tmp_path / "a.safetensors"), LABELS | {"pixels": PIXELS}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("torn", [0, 7])
def test_what_was_written_is_not_made_again(tmp_path, torn):
    path, begun = tmp_path / "images.safetensors", tmp_path / "checkpoint-images.safetensors"
    assert grown(path, fails_at=12) == [(0, 4), (4, 8), (8, 12)]
    with begun.open("ab") as file:  # killed within an item
        file.write(b"7" * torn)
    assert grown(path) == [(12, 16), (16, 20), (20, 23)]
    assert torch.equal(safetensors.torch.load_file(path)["pixels"], PIXELS)


def test_a_file_that_has_begun_otherwise_is_begun_anew(tmp_path):
    path = tmp_path / "images.safetensors"
    grown(path, fails_at=12, labels=LABELS | {"shapes": LABELS["textures"]})
    assert grown(path)[0] == (0, 4)
    assert torch.equal(safetensors.torch.load_file(path)["shapes"], LABELS["shapes"])


LARGE = """
import os, resource, signal, sys
from pathlib import Path
import torch
from subnet_utils.core.growing import mapped, save_growing

def anonymous():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1024

folder, kill = Path(sys.argv[1]), int(sys.argv[2])
before, peak, asked = anonymous(), 0.0, []
def make(start, stop):
    global peak
    if start == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    asked.append(start)
    pixels = torch.full((stop - start, 3, 128, 128), start // 256 % 256, dtype=torch.uint8)
    peak = max(peak, anonymous() - before)
    return pixels

save_growing(folder / "i.safetensors", {"shapes": torch.arange(8192)}, "pixels", (8192, 3, 128, 128), make)
size = (folder / "i.safetensors").stat().st_size
resource.setrlimit(resource.RLIMIT_DATA, (size // 2, size // 2))  # private memory, which the system has to promise
pixels = mapped(folder / "i.safetensors")["pixels"]
assert [int(pixels[i].max()) for i in (0, 5000, 8191)] == [0, 19, 31]
print(asked[0], len(asked), max(peak, anonymous() - before))
"""


def test_a_killed_process_loses_a_part_and_memory_holds_few(tmp_path):
    """400 MB of images: parts of 12 MB."""
    command = [sys.executable, "-c", LARGE, str(tmp_path)]
    run = {"capture_output": True, "text": True, "cwd": ROOT}
    assert subprocess.run([*command, "5120"], **run).returncode == -signal.SIGKILL
    done = subprocess.run([*command, "-1"], **run)
    assert done.returncode == 0, done.stderr
    first, count, megabytes = map(float, done.stdout.split())
    assert (first, count) == (5120, 12)
    assert megabytes < 150  # the allocator keeps about eight parts
