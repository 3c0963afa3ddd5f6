"""Many independent jobs over a few processes.

A job is a function of a module and its arguments. With one worker everything runs in this process; results do not
depend on the number of workers, because every job has its own threads and seeds.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from typing import Any

import torch

from subnet_utils.study import Compute
from subnet_utils.training import progress_bar, resolve_device


def worker_count(compute: Compute) -> int:
    """Jobs at a time: as the study says; auto is CPU cores / threads, or 1 on a GPU."""
    if compute.workers != "auto":
        return compute.workers
    if resolve_device(compute).type == "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // compute.threads)


def run_jobs(function: Callable[..., Any], jobs: Sequence[tuple], *, compute: Compute, label: str) -> list[Any]:
    """Results of `function(*job)` for every job, in order. The first exception ends the run and is raised here."""
    workers = min(worker_count(compute), len(jobs))
    if workers <= 1:
        torch.set_num_threads(compute.threads)
        with progress_bar(len(jobs), label) as advance:
            return [_and_advance(function(*job), advance) for job in jobs]
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(compute.threads,)) as pool,
        progress_bar(len(jobs), label) as advance,
    ):
        futures = [pool.submit(function, *job) for job in jobs]
        for future in futures:
            future.add_done_callback(lambda _: advance({}))
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _and_advance(result: Any, advance: Callable) -> Any:
    advance({})
    return result


def _start_worker(threads: int) -> None:
    """Set a worker's threads, and let it end with its parent: a killed run must leave no process that writes on."""
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
