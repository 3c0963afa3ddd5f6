"""Jobs over processes: the same results for any number of workers, and no process that outlives its use."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from subnet_utils import models
from subnet_utils.core.jobs import WorkerDied, cache_limit, run_jobs, worker_count
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT, Compute
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.workers import UNKNOWN_MEMORY, context, core_count, importing, memory_bytes

PATIENCE = 60.0
"""Seconds that a busy machine may take to start a process."""


class BadStimulus(ValueError):
    """An error of a job's own."""


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- jobs: functions of the module, because they travel to other processes by name -------------------------------------


def descend(seed: int, seconds: float) -> tuple[int, list[float], int]:
    """A little training whose bits depend on seed and number of threads alone; later jobs end first."""
    generator = generator_for("jobs", seed)
    x, w = torch.randn(64, 200, generator=generator), torch.randn(200, 3, generator=generator)
    for _ in range(20):
        w = w - 0.01 * x.t() @ torch.tanh(x @ w)
    time.sleep(seconds)
    return seed, w.flatten()[:50].tolist(), torch.get_num_threads()


def what_is_imported(_: int) -> tuple[bool, bool, bool]:
    needed = {f"subnet_utils.models.{name}" for name in models.FAMILIES.values()}
    needed |= {f"subnet_utils.papers.{name}.{paper.steps.partition(':')[0]}" for name, paper in papers().items()}
    return needed <= set(sys.modules), gc.get_freeze_count() > 0, gc.isenabled()


def beat(folder: Path, name: str) -> None:
    """Write on until somebody ends the process."""
    while True:
        (folder / name).write_text(str(time.monotonic_ns()))
        time.sleep(0.02)


def beat_or_fail(folder: Path, name: str) -> None:
    if name == "fail":
        await_beats(folder, 1)
        raise BadStimulus("no place for shape 3 in image 'x'")
    beat(folder, name)


def await_beats(folder: Path, number: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < number:
        assert time.monotonic() < end, "the jobs did not start"
        time.sleep(0.02)


def still_beating(folder: Path, *, within: float) -> bool:
    """Whether anything is still written after at most `within` seconds (nothing for one second: it is not)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        before = {path: path.read_text() for path in folder.iterdir()}
        time.sleep(1)
        if {path: path.read_text() for path in folder.iterdir()} == before:
            return False
    return True


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_are_in_order_and_the_same_for_any_number_of_workers():
    jobs = [(seed, 0.2 - 0.05 * seed) for seed in range(5)]
    alone, two, three = (run_jobs(descend, jobs, compute=Compute(workers=n), label="jobs") for n in (1, 2, 3))
    assert [seed for seed, _, _ in alone] == [0, 1, 2, 3, 4]
    assert alone == two == three
    assert {threads for _, _, threads in two} == {1}


def process_id(_: int) -> int:
    return os.getpid()


def test_one_worker_or_one_job_needs_no_other_process():
    here = os.getpid()
    assert run_jobs(process_id, [(0,), (1,)], compute=Compute(workers=1, threads=2), label="jobs") == [here, here]
    assert torch.get_num_threads() == 2
    assert run_jobs(process_id, [(0,)], compute=Compute(workers=4), label="jobs") == [here]
    assert run_jobs(process_id, [], compute=Compute(workers=4), label="jobs") == []


@pytest.mark.parametrize(
    ("said", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("max 100000", 3), (None, 3)]
)
def test_a_containers_share_of_time_limits_the_cores(said, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr("subnet_utils.core.workers.QUOTA", tmp_path / "cpu.max")
    if said:
        (tmp_path / "cpu.max").write_text(f"{said}\n")
    assert core_count() == cores


@pytest.fixture
def groups(monkeypatch, tmp_path) -> Path:
    """The folder of Linux' groups of processes, of which there is one yet, on a machine of 12 GiB."""
    monkeypatch.setattr("subnet_utils.core.workers.GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("subnet_utils.core.workers.OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 12 * 2**18, "SC_PAGE_SIZE": 4096}.get)
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def test_what_a_job_keeps_is_its_part_of_the_memory(monkeypatch, groups):
    on_cpu = partial(Compute, device="cpu", workers=2)
    assert cache_limit(on_cpu()) == 2.0
    (groups / "memory.max").write_text("max\n")
    assert cache_limit(on_cpu()) == 2.0
    (groups / "memory.max").write_text(f"{6 * 2**30}\n")
    assert cache_limit(on_cpu()) == 1.0 and cache_limit(on_cpu(cache_limit_gb=5)) == 5
    monkeypatch.delattr(os, "sysconf")  # not every system says how much it has
    assert cache_limit(on_cpu()) == pytest.approx(UNKNOWN_MEMORY / 3 / 2 / 2**30)
    monkeypatch.setattr("subnet_utils.core.jobs.resolve_device", lambda compute: torch.device("cuda"))
    properties = type("Properties", (), {"total_memory": 80 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert cache_limit(Compute()) == 40.0 and cache_limit(Compute(workers=2)) == 20.0


@pytest.mark.parametrize(
    "said", ["0::/system.slice/job_7/step_0\n", "4:memory:/other\n0::/system.slice/job_7/step_0\n"]
)
def test_memory_is_what_every_group_allows_that_a_process_is_in(groups, said):
    """As of a job of SLURM: its step says nothing, the job has a limit, and what it is part of a larger one."""
    job = groups / "system.slice" / "job_7"
    (job / "step_0").mkdir(parents=True)
    (groups.parent / "own").write_text(said)
    (groups.parent / "memory.max").write_text("1\n")  # no group
    assert memory_bytes() == 12 * 2**30
    for group, limit in ((job / "step_0", "max"), (job, 3 * 2**30), (job.parent, 9 * 2**30)):
        (group / "memory.max").write_text(f"{limit}\n")
    assert memory_bytes() == 3 * 2**30
    (job.parent / "memory.max").write_text(f"{2 * 2**30}\n")
    assert memory_bytes() == 2 * 2**30
    (groups / "memory.max").write_text("4096\n")
    assert memory_bytes() == 4096
    (groups.parent / "own").write_text("4:memory:/other\n")  # the first version: nothing is known of the process
    assert memory_bytes() == 4096


def test_worker_count(monkeypatch):
    cores = {0, 1, 2, 3, 4}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    counts = {threads: worker_count(Compute(device="cpu", threads=threads)) for threads in (1, 2, 5, 8)}
    assert counts == {1: 5, 2: 2, 5: 1, 8: 1}
    assert worker_count(Compute(workers=7, threads=8)) == 7
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)  # not every system can say which cores a process may use
    assert worker_count(Compute(device="cpu", threads=2)) == 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert worker_count(Compute()) == 1
    assert worker_count(Compute(device="cpu")) == 6
    assert worker_count(Compute(workers=3)) == 3


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_exception_of_a_job_is_raised_here_and_ends_the_others(tmp_path, workers):
    jobs = [(tmp_path, "fail"), (tmp_path, "beat")]
    if workers == 1:
        (tmp_path / "beat").touch()
    with pytest.raises(BadStimulus, match=r"^no place for shape 3 in image 'x'$"):
        run_jobs(beat_or_fail, jobs, compute=Compute(workers=workers), label="jobs")
    before = (tmp_path / "beat").read_text()
    time.sleep(0.5)
    assert (tmp_path / "beat").read_text() == before


def test_interrupt_ends_the_jobs(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background may ignore interrupts

    def interrupt() -> None:
        await_beats(tmp_path, 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    user = threading.Thread(target=interrupt)
    user.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(beat, [(tmp_path, "a"), (tmp_path, "b")], compute=Compute(workers=2), label="jobs")
        user.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not still_beating(tmp_path, within=1)


def test_killed_worker_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    jobs = [(signal.SIGKILL,)] * 2
    with pytest.raises(WorkerDied) as caught:
        run_jobs(signal.raise_signal, jobs, compute=Compute(workers=2), label="mask search")
    assert str(caught.value) == (
        "mask search: a worker process was killed; memory may have run out; set compute.workers lower and run again, "
        "finished work is kept"
    )


SCRIPT = """
import sys
from pathlib import Path
from subnet_utils.core.jobs import run_jobs
from subnet_utils.core.sections import Compute
from test_jobs import beat
if __name__ == "__main__":
    run_jobs(beat, [(Path(sys.argv[1]), "a"), (Path(sys.argv[1]), "b")], compute=Compute(workers=2), label="jobs")
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beats").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    command = [sys.executable, tmp_path / "script.py", tmp_path / "beats"]
    with subprocess.Popen(command, env=environment) as parent:
        try:
            await_beats(tmp_path / "beats", 2)
        finally:
            parent.kill()
    assert not still_beating(tmp_path / "beats", within=5)


# -- what waits --------------------------------------------------------------------------------------------------------


def leave_a_mark(folder: Path, number: int) -> list[str]:
    (folder / str(number)).touch()
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
def test_what_waits_sees_what_it_waited_for(tmp_path, workers):
    jobs, after = [(tmp_path, number) for number in range(4)], [(), {0}, {0}, {1, 2}]
    marks = run_jobs(leave_a_mark, jobs, compute=Compute(workers=workers), label="jobs", after=after)
    assert marks[3] == ["0", "1", "2", "3"] and "0" in marks[1] and "0" in marks[2]


def test_jobs_that_wait_for_each_other_are_an_error():
    with pytest.raises(ValueError, match="some jobs wait for each other"):
        run_jobs(process_id, [(0,), (1,)], compute=Compute(workers=2), label="jobs", after=[{1}, {0}])


def test_workers_begin_with_all_that_they_need():
    if context().get_start_method() != "forkserver":
        pytest.skip("no server to copy workers from on this system")
    found = run_jobs(what_is_imported, [(1,), (2,)], compute=Compute(workers=2), label="jobs")
    assert found == [(True, True, True)] * 2


def test_a_notebook_leaves_what_it_imports_out_of_collections():
    code = """if True:
        import gc
        from subnet_utils.core import notebook
        try: notebook.begin("tyni", "01_train_bases")
        except ValueError: pass
        import torch
        seen = {id(one) for one in gc.get_objects()}
        print(sum(id(one) in seen for one in list(vars(torch.nn).values())))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


def test_imports_collect_no_garbage_even_if_one_fails():
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
