"""How worker processes begin."""

import gc
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much of how many microseconds the processes of a container may compute."""
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where it says how many bytes they may have: the folder of all groups of processes, and which one this process is in.
A container sees its own as if it were that of all; what a queue such as SLURM allows, a group within says."""
UNKNOWN_MEMORY = 8 * 2**30


def context() -> BaseContext:
    """How worker processes begin: copies of a server that has imported the package once, or afresh where none exists.

    Importing takes seconds, and a study starts workers many times. The server has computed nothing and touched no GPU,
    so copying it is safe, unlike copying this process; except on macOS, whose system libraries do not allow it.
    """
    if sys.platform == "darwin" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    own = multiprocessing.get_context("forkserver")
    own.set_forkserver_preload(["subnet_utils.core.worker_imports"])
    return own


def core_count() -> int:
    """CPU cores that this process may use, or as many as its container has the time of."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return cores


def memory_bytes() -> int:
    """Memory of the machine, or of its container where that has less."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system says
        return UNKNOWN_MEMORY
    return min([memory, *_limits()])


def _limits() -> Iterator[int]:
    """Bytes that the groups allow in which this process is: its own, and those that it is part of."""
    try:
        (own,) = (line.removeprefix("0::/") for line in OWN_GROUP.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, ValueError):  # not Linux, or groups of the first version
        own = ""
    folder = GROUPS / own
    for group in (folder, *folder.parents):
        if group.is_relative_to(GROUPS):
            with suppress(OSError, ValueError):  # no limit there, or "max"
                yield int((group / "memory.max").read_text())


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage while much is imported, nor among it later: it stays, and looking through it takes a fifth of
    the time that importing takes, and a fifth of a second whenever a library collects (statsmodels does)."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()
