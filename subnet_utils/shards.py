"""A study in shards, side by side: `python -m subnet_utils.shards paper` lists them, or makes those that are named.

A shard is a step of any paper that is not done yet: a base network, a mask, what is measured with it. Notebooks then
find it in the artefact store. On a machine with several GPUs every such process takes one that no other has. The
Snakefile starts them all (`shards=1`), here or through an executor such as SLURM.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from subnet_utils.core.messages import nearest
from subnet_utils.core.papers import papers
from subnet_utils.core.study import Study

if TYPE_CHECKING:
    from subnet_utils.core.lab import Lab
    from subnet_utils.core.step import Step

SECONDS_BETWEEN_LOOKS = 2.0


def main(arguments: list[str]) -> int:
    """List the shards of a profile, or make some; 2 and one line on stderr for what does not exist."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.shards", description=__doc__.split(":")[0])
    parser.add_argument("profile", help="tiny, laptop, paper, or a YAML file")
    parser.add_argument("shard", nargs="*", help="names; without one, the shards are listed; 'all' makes all of them")
    chosen = parser.parse_args(arguments)
    try:
        study = Study.load(chosen.profile)
        if not chosen.shard:
            print(*missing(study), sep="\n")
            return 0
        with own_gpu() as gpu:
            print(f"{' '.join(chosen.shard)}: {'no GPU' if gpu is None else f'GPU {gpu}'}", flush=True)
            make(study, chosen.shard)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def missing(study: Study) -> "dict[str, Step]":
    """The steps of a study that are not done, by name, parents first."""
    lab, known = _open(study)
    return {name: step for name, step in known.items() if not step.is_done(lab)}


def make(study: Study, names: list[str]) -> None:
    """Make some steps, and whatever they need, into the artefact store. Raises ValueError for an unknown name."""
    from subnet_utils.core.step import make_all

    lab, known = _open(study)
    for name in names:
        if name not in known and name != "all":
            raise ValueError(f"no shard '{name}' of profile '{study.name}'; {nearest(name, known)}")
    make_all(lab, list(known.values()) if "all" in names else [known[name] for name in names], "shards")


def _open(study: Study) -> "tuple[Lab, dict[str, Step]]":
    # torch must not see the GPUs before one is chosen
    from subnet_utils.core.lab import Lab

    lab = Lab.open(study)
    return lab, {step.name: step for paper in papers().values() for step in paper.steps_of(lab)}


@contextmanager
def own_gpu() -> Iterator[str | None]:
    """Make one GPU of this machine the only visible one until the block is left; None if there is no GPU.

    Waits for one to become free. Which are taken is known from file locks, which end with their process. Where a batch
    system such as SLURM has given the job a single one, its choice stays.
    """
    gpus = _gpus()
    if not gpus or "SLURM_JOB_ID" in os.environ and len(gpus) == 1:
        yield gpus[0] if gpus else None
        return
    lock, gpu = _first_free(gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        yield gpu
    finally:
        lock.release()


def _gpus() -> list[str]:
    """GPUs that this process may use: those that the environment names (a batch system's), or all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu for gpu in named.split(",") if gpu and not gpu.startswith("-")]  # -1 stands for none
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]  # counts without touching them


def _first_free(gpus: list[str]) -> tuple[FileLock, str]:
    from subnet_utils.core.store import Store

    folder = Store().root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        for gpu in gpus:
            # SLURM may number the GPUs of every job anew
            job = "-".join(filter(None, [os.uname().nodename, os.environ.get("SLURM_JOB_ID")]))
            lock = FileLock(folder / f"gpu-{job}-{gpu}.lock")
            try:
                lock.acquire(timeout=0)
                return lock, gpu
            except Timeout:
                continue
        time.sleep(SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
