"""Many independent jobs over a few processes.

A job is a function of a module and its arguments. With one worker everything runs in this process; results do not
depend on the number of workers, because every job has its own threads and seeds.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from typing import Any

import torch

from subnet_utils.core.devices import progress_bar, resolve_device
from subnet_utils.core.sections import Compute
from subnet_utils.core.workers import context, core_count, memory_bytes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Names of glibc's malloc.h."""


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
    shared: Callable[..., Any] | None = None,
    after: Sequence[Collection[int]] | None = None,
) -> list[Any]:
    """Results of `function(*job)` for every job, in order.

    shared(*job): what a job has in common with others that its process keeps in memory, such as a network and the
    outputs of its frozen stages; such jobs go to the same worker, as long as no other one is idle. after: for every job
    the numbers of those that must have ended before it begins. Without workers jobs run in their order. With workers
    earlier ones begin first where there is a choice.
    The first exception (an interrupt, too) ends the run and is raised here; jobs still at work are killed, and go on
    from their checkpoints in the next run. Raises WorkerDied if a worker process is killed from outside.
    """
    workers = min(worker_count(compute), len(jobs))
    if workers <= 1:
        torch.set_num_threads(compute.threads)
        keep_freed_memory()
        with progress_bar(len(jobs), label) as advance:
            return [_and_advance(function(*job), advance) for job in jobs]
    order = _Order([shared(*job) if shared else None for job in jobs], after or [()] * len(jobs))
    with progress_bar(len(jobs), label) as advance, _pools(workers, compute.threads) as pools:
        results: dict[int, Any] = {}
        try:
            for number, result in _results(function, jobs, order, pools):
                results[number] = result
                advance({})
        except BrokenProcessPool:
            raise WorkerDied(f"{label}: a worker process was killed; {_remedy(bool(results))}") from None
        return [results[number] for number in range(len(jobs))]


def _results(
    function: Callable, jobs: Sequence[tuple], order: "_Order", pools: Sequence[ProcessPoolExecutor]
) -> Iterator[tuple[int, Any]]:
    """The number and the result of each job, as they end."""
    running: dict[Future, tuple[int, int]] = {}
    idle, left = list(range(len(pools))), len(jobs)
    while left:
        for worker in list(idle):
            number = order.next_for(worker)
            if number is not None:
                idle.remove(worker)
                running[pools[worker].submit(function, *jobs[number])] = worker, number
        if not running:
            raise ValueError("the jobs that are left wait for each other")
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            worker, number = running.pop(future)
            idle.append(worker)
            left -= 1
            yield number, future.result()
            order.ended(number)


def _remedy(some_ended: bool) -> str:
    if not some_ended and hasattr(sys.modules["__main__"], "__file__"):  # workers import a script: see its error
        return "if this is a script, let it work under `if __name__ == '__main__':` only; else memory may have run out"
    return "memory may have run out; set compute.workers lower and run again, finished work is kept"


class _Order:
    """Which of the waiting jobs a worker takes: of those that share something with its last one the first, else of what
    no other worker is at, else of what most jobs are left of. A job waits until those before it have ended."""

    def __init__(self, shared: Sequence[Any], after: Sequence[Collection[int]]) -> None:
        # what shares nothing is on its own
        self._shared = [number if one is None else (one,) for number, one in enumerate(shared)]
        self._waits_for = [set(numbers) for numbers in after]
        self._before: dict[int, list[int]] = {}
        for number, earlier in enumerate(self._waits_for):
            for one in earlier:
                self._before.setdefault(one, []).append(number)
        self._ready: dict[Any, list[int]] = {}
        self._at: dict[int, Any] = {}
        self._let_in(range(len(shared)))

    def next_for(self, worker: int) -> int | None:
        """The number of the job, None if none can begin now."""
        if not self._ready:
            return None
        if self._at.get(worker, self) not in self._ready:
            free = self._ready.keys() - self._at.values()
            most = max(self._ready, key=lambda key: len(self._ready[key]))
            self._at[worker] = min(free, key=lambda key: self._ready[key][0]) if free else most
        key = self._at[worker]
        number = heappop(self._ready[key])
        if not self._ready[key]:
            del self._ready[key]
        return number

    def ended(self, number: int) -> None:
        """Let in what has waited for this job alone."""
        later = self._before.get(number, [])
        for other in later:
            self._waits_for[other].discard(number)
        self._let_in(later)

    def _let_in(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not self._waits_for[number]:
                heappush(self._ready.setdefault(self._shared[number], []), number)


def _and_advance(result: Any, advance: Callable) -> Any:
    advance({})
    return result


@contextmanager
def _pools(workers: int, threads: int) -> Iterator[list[ProcessPoolExecutor]]:
    """Pools of one worker each, which end at once when the block is left by an exception, or when this process is
    killed.

    Every worker waits for the end of a pipe that only this process holds open.
    """
    own = context()
    watched, held = own.Pipe(duplex=False)
    start = {"initializer": _start_worker, "initargs": (threads, watched)}
    with watched, held, ExitStack() as stack:
        try:
            yield [stack.enter_context(ProcessPoolExecutor(1, mp_context=own, **start)) for _ in range(workers)]
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
    # 32 MiB is the documented limit; above it old versions refuse, and then the trim threshold must stay as it is too
    if mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_TOP_PAD, 2**26)  # of threads other than the main one: as large as their heaps, so an empty one stays


def _start_worker(threads: int, watched: Connection) -> None:
    """Set a worker's threads, and let it end with its parent: a killed run must leave no process that writes on."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides

    def follow() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
