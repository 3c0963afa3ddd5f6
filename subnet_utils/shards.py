"""A study in shards, side by side: `python -m subnet_utils.shards paper` lists them, or makes those that are named.

A shard is a step of any paper that is not done yet, or several that are made together: a base network, masks, what is
measured with them. Notebooks then find it in the artefact store. On a machine with several GPUs every such process
takes one that no other has. The Snakefile starts them all (`shards=1`), here or through an executor such as SLURM.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from subnet_utils.check import require
from subnet_utils.core.papers import Paper, papers
from subnet_utils.core.sections import without
from subnet_utils.core.study import Study

if TYPE_CHECKING:
    from subnet_utils.core.lab import Lab
    from subnet_utils.core.step import Step


SHOWN = 20
"""Steps that are named when they start; of more, their number."""


@dataclass(frozen=True)
class Shard:
    """What one process makes: names of steps, of the shards that it waits for, and of the papers that need it."""

    steps: tuple[str, ...]
    after: tuple[str, ...]
    papers: tuple[str, ...]


def main(arguments: list[str]) -> int:
    """List the shards of a profile, or make some; 2 and one line on stderr for what does not exist."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.shards", description=__doc__.split(":")[0])
    parser.add_argument("profile", help="tiny, laptop, paper, or a YAML file")
    parser.add_argument("step", nargs="*", help="names; without one, the shards are listed; 'all' makes all of them")
    chosen = parser.parse_args(arguments)
    try:
        study = Study.load(chosen.profile)
        if not chosen.step:
            print(*missing(study), sep="\n")
            return 0
        with own_gpu() if study.compute.device != "cpu" else nullcontext() as gpu:
            named = " ".join(chosen.step) if len(chosen.step) <= SHOWN else f"{len(chosen.step)} steps"
            print(f"{study.name}, {named}: {'no GPU' if gpu is None else f'GPU {gpu}'}", flush=True)
            make(study, chosen.step)
    except (ValueError, *_named_faults()) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _named_faults() -> tuple[type[Exception], ...]:
    """Errors whose message is for the reader. Called when there is one: these modules import torch."""
    from torch import OutOfMemoryError

    from subnet_utils.core.jobs import WorkerDied
    from subnet_utils.core.step import Fault
    from subnet_utils.core.store import StoreError

    return WorkerDied, Fault, StoreError, OutOfMemoryError


def missing(study: Study) -> dict[str, Shard]:
    """What is not done of a study, by the name of the first step, what waits for nothing before what waits for it.

    What needs data or published weights that are not there is left out, with one line on stderr that says so.
    """
    from subnet_utils.core.step import plan

    lab, owners = _open(study), {}
    steps = {paper.name: paper.steps_of(_with_what_is_there(lab, paper)) for paper in papers().values()}
    for paper, own in steps.items():
        for step in own:
            owners.setdefault(step.name, set()).add(paper)
    jobs = plan(lab, [step for own in steps.values() for step in own])
    names = [job.steps[0].name for job in jobs]
    return {
        name: Shard(
            tuple(step.name for step in job.steps),
            tuple(sorted(names[i] for i in job.after)),
            tuple(sorted(set().union(*(owners[step.name] for step in job.steps)))),
        )
        for name, job in zip(names, jobs, strict=True)
    }


def batched(shards: dict[str, Shard], size: int) -> dict[str, Shard]:
    """The same steps in fewer shards: up to `size` of one kind in one, where none waits for another.

    A batch has the name of its first shard. Shards are given as by `missing`.
    """
    depth: dict[str, int] = {}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, shard in shards.items():
        depth[name] = 1 + max((depth[before] for before in shard.after), default=0)
        alike.setdefault((depth[name], name.rpartition("-")[0], shard.papers), []).append(name)
    batches = [names[i : i + size] for names in alike.values() for i in range(0, len(names), size)]
    batch_of = {name: names[0] for names in batches for name in names}
    return {
        names[0]: Shard(
            tuple(step for name in names for step in shards[name].steps),
            tuple(sorted({batch_of[before] for name in names for before in shards[name].after})),
            shards[names[0]].papers,
        )
        for names in batches
    }


def make(study: Study, names: list[str]) -> None:
    """Make some steps, and whatever they need, into the artefact store: those of these names, or 'all'.

    Of all, what needs data or published weights that are not there is left out, with one line on stderr that says so.
    Raises ValueError for an unknown name, and if no notebook of the study can run.
    """
    from subnet_utils.core.step import make_all

    lab = _open(study)
    if "all" in names:
        require(study)
        steps = [step for paper in papers().values() for step in paper.steps_of(_with_what_is_there(lab, paper))]
    else:
        steps = _named(lab, names)
    make_all(lab, steps, "steps of all notebooks" if "all" in names else "shard")


def _named(lab: "Lab", names: list[str]) -> "list[Step]":
    known: dict[str, Step] = {}
    for paper in papers().values():
        try:
            steps = paper.steps_of(lab)
        except ValueError:  # not before: to look for all data takes longer than many a step
            steps = paper.steps_of(_with_what_is_there(lab, paper))
        known |= {step.name: step for step in steps}
    for name in names:
        if name not in known:
            remedy = f"`python -m subnet_utils.shards {lab.study.name}` lists them"
            raise ValueError(f"no step '{name}' in profile '{lab.study.name}'; {remedy}")
    return [known[name] for name in names]


def _open(study: Study) -> "Lab":
    from subnet_utils.core.lab import Lab  # torch must not see the GPUs before one is chosen

    return Lab.open(study)


def _with_what_is_there(lab: "Lab", paper: Paper) -> "Lab":
    """The lab without those parts of a paper's section whose data or published weights are not there."""
    section = paper.section_of(lab.study)
    for notebook in paper.notebooks:
        try:
            paper.require(notebook, lab)
        except ValueError as error:
            print(f"{notebook.name}: no shards, because {' '.join(str(error).split())}", file=sys.stderr)
            field = type(section).model_fields.get(notebook.about) if section is not None else None
            section = None if field is None or field.is_required() else without(section, notebook.about)
    left = section if any(notebook.is_about(section) for notebook in paper.notebooks) else None
    return dataclasses.replace(lab, study=lab.study.model_copy(update={paper.name: left}))


@contextmanager
def own_gpu() -> Iterator[str | None]:
    """Make one GPU of this machine the only visible one until the block is left; None if there is no GPU.

    Waits for one to become free. Which are taken is known from file locks, which end with their process. Where a batch
    system such as SLURM has given the job a single one, its choice stays.
    """
    gpus = visible_gpus()
    if not gpus or "SLURM_JOB_ID" in os.environ and len(gpus) == 1:
        yield gpus[0] if gpus else None
        return
    lock, gpu = _first_free(gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        yield gpu
    finally:
        lock.release()


def visible_gpus() -> list[str]:
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
    # SLURM may number the GPUs of every job anew
    job = "-".join(filter(None, [os.uname().nodename, os.environ.get("SLURM_JOB_ID")]))
    for tried in count():
        if tried == 1:
            print(f"GPU {', '.join(gpus)}: taken by other shards; waiting for one", file=sys.stderr, flush=True)
        for gpu in gpus:
            lock = FileLock(folder / f"gpu-{job}-{gpu}.lock")
            with suppress(Timeout):
                lock.acquire(timeout=0)
                return lock, gpu
        time.sleep(2.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
