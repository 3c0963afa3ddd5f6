"""Many independent jobs over a few processes.

A job is a function of a module and its arguments. With one worker everything runs in this process; results do not
depend on the number of workers, because every job has its own threads and seeds.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from multiprocessing.connection import Connection
from typing import Any

import torch

from subnet_utils.core.devices import progress_bar, resolve_device
from subnet_utils.core.sections import Compute
from subnet_utils.core.workers import context, core_count, memory_bytes


def worker_count(compute: Compute) -> int:
    """Jobs at a time: as the study says; auto is CPU cores / threads, or 1 on a GPU."""
    if compute.workers != "auto":
        return compute.workers
    if resolve_device(compute).type == "cuda":
        return 1
    return max(1, core_count() // compute.threads)


def cores_a_job(compute: Compute) -> int:
    """CPU cores for each of the jobs at a time: beside a GPU, where there are few jobs, more than their threads."""
    return max(compute.threads, core_count() // worker_count(compute))


def cache_limit(compute: Compute) -> float:
    """GiB of frozen prefixes' outputs that a job may keep: as the study says, or its part of the memory.

    Of all the memory, not of what is free at the moment: a prediction and the run that it is of must count alike.
    """
    if compute.cache_limit_gb != "auto":
        return compute.cache_limit_gb
    device = resolve_device(compute)
    on_gpu = device.type == "cuda"
    part = torch.cuda.get_device_properties(device).total_memory / 2 if on_gpu else memory_bytes() / 3
    return part / worker_count(compute) / 2**30


class WorkerDied(RuntimeError):
    """A worker process was killed from outside; the message names the run and the remedy."""


def run_jobs(
    function: Callable[..., Any],
    jobs: Sequence[tuple],
    *,
    compute: Compute,
    label: str,
    after: Sequence[Collection[int]] | None = None,
) -> list[Any]:
    """Results of `function(*job)` for every job, in order.

    after: for every job the numbers of those that must have ended before it begins. Without workers jobs run in their
    order. With workers earlier ones begin first where there is a choice. The first exception (an interrupt, too) ends
    the run and is raised here; jobs still at work are killed, and go on from their checkpoints in the next run. Raises
    WorkerDied if a worker process is killed from outside.
    """
    workers = min(worker_count(compute), len(jobs))
    results: dict[int, Any] = {}
    with progress_bar(len(jobs), label) as advance:
        if workers <= 1:
            torch.set_num_threads(compute.threads)
            keep_freed_memory()
            found = ((number, function(*job)) for number, job in enumerate(jobs))
        else:
            found = _side_by_side(function, jobs, after or [()] * len(jobs), workers, compute.threads)
        try:
            for number, result in found:
                results[number] = result
                advance({})
        except BrokenProcessPool:
            raise WorkerDied(f"{label}: a worker process was killed; {_remedy(bool(results))}") from None
    return [results[number] for number in range(len(jobs))]


def _side_by_side(
    function: Callable, jobs: Sequence[tuple], after: Sequence[Collection[int]], workers: int, threads: int
) -> Iterator[tuple[int, Any]]:
    """The number and the result of each job, as they end."""
    order = TopologicalSorter(dict(enumerate(after)))
    try:
        order.prepare()
    except CycleError:
        raise ValueError("some jobs wait for each other") from None
    ready: list[int] = []
    running: dict[Future, int] = {}
    with _pool(workers, threads) as pool:
        while order.is_active():
            ready = sorted([*ready, *order.get_ready()])
            while ready and len(running) < workers:
                number = ready.pop(0)
                running[pool.submit(function, *jobs[number])] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                yield number, future.result()
                order.done(number)


def _remedy(some_ended: bool) -> str:
    if not some_ended and hasattr(sys.modules["__main__"], "__file__"):  # workers import a script: see its error
        return "if this is a script, let it work under `if __name__ == '__main__':` only; else memory may have run out"
    return "memory may have run out; set compute.workers lower and run again, finished work is kept"


@contextmanager
def _pool(workers: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Workers, which end at once when the block is left by an exception, or when this process is killed."""
    own = context()  # every worker waits for the end of a pipe that only this process holds open
    watched, held = own.Pipe(duplex=False)
    start = {"initializer": _start_worker, "initargs": (threads, watched)}
    with watched, held, ProcessPoolExecutor(workers, mp_context=own, **start) as pool:
        try:
            yield pool
        except BaseException:
            held.close()
            raise


def keep_freed_memory() -> None:
    """Let the C library keep what is freed instead of giving it back to the system (glibc; elsewhere nothing happens).

    Every step of training frees and takes the same tens of megabytes, and pages that come fresh from the system have to
    be cleared first: about a seventh of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none to be had
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # of glibc's malloc.h
    # 32 MiB is the documented limit; above it old versions refuse, and then the trim threshold must stay as it is too
    if mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25):
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 2**26)  # of threads other than the main one: as large as their heaps, so an empty one stays


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context in which torch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _start_worker(threads: int, watched: Connection) -> None:
    """Set a worker's threads, and let it end with its parent: a killed run must leave no process that writes on."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides

    def follow() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
