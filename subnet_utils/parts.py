"""A study in parts, side by side: everything that hangs on one base model is a job of its own.

`python -m subnet_utils.parts paper bert_small/sv-agreement-singular/0` makes the base, its masks and their effects in
the artefact store; the notebooks then find them there. On a machine with several GPUs every such process takes one that
no other has. The Snakefile starts them all (`parts=1`), here or through an executor such as SLURM.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from subnet_utils.study import Study, StudyError

SECONDS_BETWEEN_LOOKS = 2.0


def main(arguments: list[str]) -> int:
    """Make one part of a profile; 2 and one line on stderr for a profile or a part that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.parts", description="Make one part of a study.")
    parser.add_argument("profile", help="tiny, laptop, paper, or a YAML file")
    parser.add_argument("part", nargs="?", help="model/task/seed; without one, the parts are listed")
    chosen = parser.parse_args(arguments)
    try:
        study = Study.load(chosen.profile)
        if chosen.part is None:
            print(*study.parts(), sep="\n")
            return 0
        part = study.part(chosen.part)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 2
    with own_gpu() as gpu:
        print(f"{chosen.part}: {'no GPU' if gpu is None else f'GPU {gpu}'}", flush=True)
        make(part)
    return 0


def make(study: Study) -> None:
    """Bases, masks, effects and controls of a study, into the artefact store; the same of the networks it prunes."""
    # torch must not see the GPUs before one is chosen
    from subnet_utils.compositionality import break_it_down, dissection, random_controls
    from subnet_utils.lab import Lab

    lab = Lab.open(study)
    masks = break_it_down.find_masks(lab)
    print(break_it_down.attempted(masks), flush=True)
    break_it_down.effects(lab)
    if study.to_prune():
        break_it_down.effects(lab.pruned())
    if not study.experiments[0].is_pretrained:
        random_controls.random_effects(lab)
        random_controls.null_draws(lab)
        random_controls.ablations(lab)
        dissection.assembled(lab)


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
    from subnet_utils.store import Store

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
