"""What stands in for MNIST and CIFAR10 where a study is rehearsed: a thousandth of their images, at random."""

from pathlib import Path

import numpy as np

TRAIN, TEST = 600, 200
"""Images."""


def mnist(folder: Path) -> Path:
    """Files in MNIST's idx format."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for title, count in (("train", TRAIN), ("t10k", TEST)):
        parts = {"images-idx3": draw.integers(0, 256, (count, 28, 28)), "labels-idx1": np.arange(count) % 10}
        for name, array in parts.items():
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{title}-{name}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())
    return folder


def cifar10(folder: Path) -> Path:
    """Files of CIFAR10's binary version."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, count in (("data_batch_1.bin", TRAIN), ("test_batch.bin", TEST)):
        rows = draw.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        (folder / name).write_bytes(rows.tobytes())
    return folder


MAKERS = {"data/cifar10": cifar10, "data/mnist": mnist}
