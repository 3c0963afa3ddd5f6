"""A study on a real SLURM, through a crash, a time limit and a preemption: `pytest tests/slurm/survives.py`.

The study has a training that is slow because it sleeps, and steps and a notebook of a real paper. It runs with the
project's own Snakemake profile (params/slurm), and once more without SLURM. The tables of both must be equal.

With SUBNET_FULL=1, all notebooks do so with all settings of the profile `check` (half an hour).
"""

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

import pandas as pd
import pytest
import yaml

from subnet_utils.core.sections import ROOT
from tests import toy_paper

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
FOUND = [shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") for name in PROGRAMS]
pytestmark = [
    pytest.mark.skipif(None in FOUND, reason="no SLURM: `apt-get install slurm-wlm munge`, then this test runs"),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root, who starts SLURM's daemons"),
]
EPOCHS = 130
"""Of a second each, until a time limit is met: more than fit into a minute that may become a minute and a half."""
STEPS = '''
"""A training that sleeps, and says in a file which process is at which epoch."""

import os
import time
from dataclasses import dataclass

import torch

from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.training import Recipe, fit


@dataclass(frozen=True)
class Slow(Step):
    """Weights that follow random numbers."""

    epochs: int

    def build(self, lab, folder):
        weights = torch.zeros(4, requires_grad=True)

        def batches(epoch):
            with open(os.environ["TEST_EPOCHS"], "a") as file:
                print(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), epoch, file=file)
            time.sleep(os.path.exists(os.environ["TEST_SLOW"]))
            yield torch.randn(4, generator=generator_for("slow", epoch))

        def loss(batch, epoch):
            return ((weights - batch) ** 2).mean()

        recipe = Recipe(0.1, epochs=self.epochs, seed=0)
        fit({"weights": weights}, batches, loss, recipe=recipe, checkpoint=folder / CHECKPOINT)
        return weights.tolist()


def slow(lab):
    """The one step of a study."""
    return Slow(lab.section("toy").numbers[0])


def every_step(lab):
    """All that is made."""
    yield slow(lab)


def require_numbers(lab):
    """Nothing."""
'''
CELLS = (
    """
import pandas as pd
from subnet_utils.core.notebook import begin
from subnet_utils.papers.toy.steps import slow
""",
    'study: str | dict = "params/tiny.yaml"  # a profile',
    """
lab, results = begin(study, "20_toy")
results.table(pd.DataFrame({"weight": slow(lab).result(lab)}), "weights", caption="Weights.")
results.close()
""",
)
ARITHMETIC = """
- model: add_mul_20x2
  task: add_mul
  architecture: {family: feedforward, widths: [20, 20]}
  training: {steps: 200, interval: 100}
  masks: {steps: 40, interval: 20, masking: {l0: 0.0001}}
  seeds: [0]
  repeats: 1
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A folder with a running SLURM; its logs are shown where the test fails."""
    folder = tmp_path / "slurm"
    control("start", folder)
    yield folder
    for log in sorted(folder.glob("slurm*.log")):
        print(log.name, log.read_text()[-6000:], sep="\n")
    control("stop", folder)


def control(verb: str, folder: Path) -> None:
    subprocess.run([ROOT / "tests/slurm/cluster.sh", verb, folder], check=True, timeout=60)


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    folder = toy_paper.write_room(tmp_path / "rooms")
    (folder / "toy/steps.py").write_text(STEPS.lstrip())
    toy_paper.write_notebook(folder / "toy/20_toy.ipynb", *CELLS)
    return folder


@pytest.fixture
def profiles(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """One study by two names, so that each has figures of its own."""
    sections = {"toy": {"numbers": [EPOCHS]}, "functional_modularity": {"arithmetic": yaml.safe_load(ARITHMETIC)}}
    names = ("slurm-from-a-test", "local-from-a-test")
    yield {name: toy_paper.write_profile(tmp_path / f"{name}.yaml", **sections) for name in names}
    for name in names:
        shutil.rmtree(ROOT / "figures" / name, ignore_errors=True)


@pytest.fixture
def checks(tmp_path: Path) -> Iterator[list[Path]]:
    """The profile `check` by two names, so that each has figures of its own."""
    text, names = (ROOT / "params/check.yaml").read_text(), ("slurm-check-from-a-test", "local-check-from-a-test")
    files = [tmp_path / f"{name}.yaml" for name in names]
    for file in files:
        file.write_text(text.replace("name: check\n", f"name: {file.stem}\n", 1))
    yield files
    for name in names:
        shutil.rmtree(ROOT / "figures" / name, ignore_errors=True)


def snakemake(folder: Path, rooms: Path | None, profile: Path, *options: str, **more: str) -> subprocess.Popen:
    """A run of a profile in a folder, with artefacts, epochs and output there; slow while a file `slow` is there."""
    folder.mkdir()
    own = {"PYTHONPATH": ROOT, "SUBNET_ARTIFACTS": folder / "artifacts", **({"SUBNET_PAPERS": rooms} if rooms else {})}
    own |= {"TEST_EPOCHS": folder / "epochs.txt", "TEST_SLOW": folder / "slow", "OMP_NUM_THREADS": 1, **more}
    command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--nolock", *options]
    command += ["--config", f"profile={profile}", *(["shards=1", "batch=20"] if more else [])]
    environment = os.environ | {name: str(value) for name, value in own.items()}
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(
            [str(word) for word in command], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def on_cluster(cluster: Path, folder: Path, rooms: Path | None, profile: Path, *options: str) -> subprocess.Popen:
    """A run through SLURM, with what a test needs otherwise than a user: no database to ask, and no patience."""
    options += ("--workflow-profile", ROOT / "params/slurm", "--slurm-status-command", "squeue")
    options += ("--slurm-init-seconds-before-status-checks", "1")
    path = f"{cluster}/bin:{os.environ['PATH']}"
    return snakemake(folder, rooms, profile, *options, SLURM_CONF=cluster / "slurm.conf", PATH=path)


def wait_for(what: str, there, run: subprocess.Popen, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert run.poll() is None and time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.2)


def epochs_of_processes(file: Path) -> list[list[int]]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return [[int(epoch) for *_, epoch in own] for _, own in groupby(lines, key=lambda line: line[0])]


def gpus(file: Path) -> set[str]:
    return {line.split()[1] for line in file.read_text().splitlines()}


def jobs(cluster: Path, name: str) -> list[list[str]]:
    """Of all jobs of a rule or shard, also those that have ended: state, time limit and memory."""
    command = ["squeue", "--states=all", "--noheader", "--sort=i", "--format=%k %T %l %m"]
    environment = os.environ | {"SLURM_CONF": str(cluster / "slurm.conf")}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [about for comment, *about in map(str.split, said.splitlines()) if name in comment]


def tables(profile: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (ROOT / "figures" / profile.stem).glob("*.csv")}


def timeless(made: dict[str, bytes]) -> dict[str, str]:
    """Tables without the column that says how long something took, and without those that are empty."""
    frames = {name: pd.read_csv(io.BytesIO(table), dtype=str) for name, table in made.items() if table.strip()}
    return {name: frame.drop(columns="seconds", errors="ignore").to_csv() for name, frame in frames.items()}


def contents(artifacts: Path) -> dict[str, dict[str, str]]:
    """Files of all artefacts with their checksums, without what says how and when they were made."""
    manifests = {path.parent: yaml.safe_load(path.read_text()) for path in artifacts.glob("*/*/manifest.json")}
    return {
        str(path.relative_to(artifacts)): {name: digest for name, digest in files.items() if name != "provenance.json"}
        for path, files in manifests.items()
    }


def test_a_study_survives_a_crash_of_its_node_a_time_limit_and_a_preemption(tmp_path, cluster, rooms, profiles):
    here, there = tmp_path / "local", tmp_path / "slurm run"
    limit = "shard:runtime=1 if attempt < 2 and 'toy' in wildcards.shard else 60"
    on_slurm, local = profiles.values()
    run = on_cluster(cluster, there, rooms, on_slurm, "--set-resources", limit)
    (there / "slow").touch()
    try:
        checkpoint = there / "artifacts/partial"
        wait_for("checkpoint", lambda: list(checkpoint.glob("toy-slow-*/checkpoint*")), run, 240)
        control("crash", cluster)
        control("node", cluster)
        alone = snakemake(here, rooms, local, "--cores", "1")
        assert alone.wait(timeout=300) == 0, (here / "output.txt").read_text()
        processes = partial(epochs_of_processes, there / "epochs.txt")
        wait_for("third process", lambda: len(processes()) > 2 and len(processes()[2]) > 1, run, 300)
        control("preempt", cluster)
        wait_for("fourth process", lambda: len(processes()) > 3, run, 120)
        (there / "slow").unlink()
        run.wait(timeout=500)
    finally:
        run.kill()
        output = (there / "output.txt").read_text()
        print(output)
    assert run.returncode == 0

    epochs = epochs_of_processes(there / "epochs.txt")
    assert len(epochs) == 4, epochs  # the crash, the time limit and the preemption ended three
    assert epochs[0][0] == 0 and epochs[-1][-1] == EPOCHS - 1
    assert gpus(there / "epochs.txt") <= {"0", "1"}  # the one that SLURM chose each time
    for before, after in zip(epochs, epochs[1:], strict=False):
        assert 0 < after[0] <= before[-1] + 1  # it went on, from its last checkpoint
        assert before[-1] - after[0] <= 25  # which was not long ago
    attempts = [["TIMEOUT", "1:00", "16000M"], ["COMPLETED", "1:00:00", "32000M"]]
    assert jobs(cluster, "toy-slow") == attempts  # SLURM itself began the first one again after the crash
    assert jobs(cluster, "20_toy") == [["COMPLETED", "4:00:00", "8000M"]]
    assert epochs_of_processes(here / "epochs.txt") == [list(range(EPOCHS))]

    made = tables(local)
    assert len(made) >= 4 and tables(on_slurm) == made
    assert len(contents(here / "artifacts")) == 6 and contents(there / "artifacts") == contents(here / "artifacts")


@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("SUBNET_FULL") != "1", reason="half an hour; set SUBNET_FULL=1 to run it")
def test_all_notebooks_come_out_the_same_through_a_crash_of_the_node_and_a_preemption(tmp_path, cluster, checks):
    here, there = tmp_path / "local", tmp_path / "slurm run"
    on_slurm, local = checks
    run = on_cluster(cluster, there, None, on_slurm)

    def made(count: int) -> bool:
        return len(list(there.glob("runs/*/shards/*.done"))) >= count

    try:
        wait_for("10 batches of steps", partial(made, 10), run, 900)
        control("crash", cluster)
        control("node", cluster)
        wait_for("40 batches of steps", partial(made, 40), run, 1200)
        control("preempt", cluster)
        run.wait(timeout=2400)
    finally:
        run.kill()
        print((there / "output.txt").read_text())
    assert run.returncode == 0
    alone = snakemake(here, None, local, "--cores", "2")
    assert alone.wait(timeout=1800) == 0, (here / "output.txt").read_text()
    assert contents(there / "artifacts") == contents(here / "artifacts")
    assert timeless(tables(on_slurm)) == timeless(tables(local)) and len(tables(local)) > 100
