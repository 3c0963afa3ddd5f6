"""The device and the precision of a study, and how far its jobs are."""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Literal

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from subnet_utils.core.sections import Compute


def resolve_device(compute: Compute) -> torch.device:
    """The device of a study. Raises ValueError if a GPU is asked for and there is none."""
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("compute.device is 'cuda' but torch sees no GPU; set it to 'auto' or 'cpu'")
    if compute.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # that equal seeds give equal bits: of cuDNN's convolutions only such algorithms, and none of its attention, which
    # also plans anew for every length of sentence; torch's own keeps to it up to 64 tokens (`models.layers.attend`)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


@contextmanager
def autocast(compute: Compute, device: torch.device) -> Iterator[None]:
    """Context in which matrix products run at the study's precision, see `precision_name`.

    Where bfloat16 was asked for and is not to be had, a line says so. On a GPU, float32 leaves torch's own default,
    TF32, to the convolutions.
    """
    if precision_name(compute, device) == "bfloat16":
        with torch.autocast(device.type, dtype=torch.bfloat16), _attention_as_products(device):
            yield
        return
    if compute.precision == "bfloat16":
        _say_float32(device.type)
    yield


def _attention_as_products(device: torch.device) -> AbstractContextManager:
    """On a CPU the gradient of torch's fused attention takes six times as long in bfloat16 as in float32."""
    return nullcontext() if device.type == "cuda" else sdpa_kernel(SDPBackend.MATH)


def precision_name(compute: Compute, device: torch.device) -> Literal["float32", "bfloat16"]:
    """What `compute.precision` comes to on a device: bfloat16 only where the hardware multiplies it."""
    return "float32" if compute.precision == "float32" or not has_bfloat16(device) else "bfloat16"


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16: a GPU since Ampere (older ones only imitate it), or a CPU with
    AVX512-BF16, where a product takes half the time."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported()


@cache
def _say_float32(device: str) -> None:
    """Once in a process."""
    said = f"compute.precision is 'bfloat16', which this device ({device}) would only imitate: float32"
    print(said, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(total: int, label: str, *, start: int = 0) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A tqdm bar on a terminal; elsewhere a plain line every half minute, so that logs stay readable.

    Silent about a single part, and in a worker process: its parent counts the jobs.
    """
    worker = multiprocessing.parent_process() is not None
    bar = tqdm(total=total, initial=start, desc=label, disable=worker or not sys.stderr.isatty(), leave=False)
    last = time.monotonic()
    done, reported = start, False

    def advance(row: Mapping[str, float]) -> None:
        nonlocal last, done, reported
        done += 1
        bar.update()
        late = time.monotonic() - last > 30
        of_many = total > 1 and not worker and bar.disable
        if of_many and (late or reported and done == total):  # after a line on a part comes one on the end
            last, reported = time.monotonic(), True
            shown = ("train_loss", "validation_loss", "validation_accuracy", "density")
            numbers = ", ".join(f"{name} {pd.Series(row[name]).mean():.4g}" for name in shown if name in row)
            print(f"{label}: {done}/{total} {numbers}".rstrip(), file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        bar.close()
