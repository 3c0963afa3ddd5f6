"""The recipes for containers and rented GPUs: their syntax, that they take the lock, and that nothing made is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from subnet_utils.core.sections import ROOT

RECIPES = ROOT / "params/cloud"
SKY = yaml.safe_load((RECIPES / "sky.yaml").read_text())
SNAKEMAKE = """#!/bin/sh
cat artifacts/step/of_before.txt && echo new >artifacts/step/new.txt && mkdir figures && echo "$*" >figures/asked.txt
exit 3
"""


def lines(name: str) -> list[str]:
    return [line for line in (RECIPES / name).read_text().splitlines() if line and not line.lstrip().startswith("#")]


def checked_shell(code: str) -> str:
    subprocess.run(["bash", "-n"], input=code, text=True, check=True)
    return code


def test_docker_and_apptainer_make_the_same_environment_of_the_lock():
    docker = [line.split(maxsplit=1) for line in lines("Dockerfile")]
    assert {word for word, _ in docker} <= {"FROM", "RUN", "COPY", "WORKDIR", "ENV"} and docker[0][0] == "FROM"
    sections = re.split(r"^%(\w+)$", "\n".join(lines("apptainer.def")), flags=re.MULTILINE)
    header, parts = (
        dict(re.findall(r"(\w+): (\S+)", sections[0])),
        dict(zip(sections[1::2], sections[2::2], strict=True)),
    )
    assert header == {"Bootstrap": "docker", "From": docker[0][1]} and set(parts) == {"files", "post", "environment"}
    runs = [line for word, line in docker if word == "RUN"]
    assert [
        line.strip().replace("/requirements.lock", "requirements.lock") for line in parts["post"].split("\n") if line
    ] == runs
    assert "requirements.lock" in parts["files"] and any("-r requirements.lock" in line for line in runs)
    (environment,) = [line for word, line in docker if word == "ENV"]
    assert parts["environment"].split() == ["export", *environment.split()]
    checked_shell("\n".join(runs))


def test_rented_gpus_have_a_task_of_known_fields():
    known = {"name", "workdir", "resources", "envs", "file_mounts", "setup", "run"}  # SkyPilot's, those that we use
    assert set(SKY) == known and set(SKY["resources"]) == {"accelerators", "use_spot", "disk_size"}
    assert all(int(count) >= 1 for count in SKY["resources"]["accelerators"].values())
    target = checked_shell(SKY["setup"]).removeprefix("make ")
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("bucket_is_new", [False, True])
def test_a_rented_machine_begins_with_what_was_saved_and_saves_what_it_makes(tmp_path: Path, bucket_is_new: bool):
    bucket, checkout = tmp_path / "bucket", tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/snakemake").write_text(SNAKEMAKE)
    (checkout / ".venv/bin/snakemake").chmod(0o755)
    before = (checkout if bucket_is_new else bucket) / "artifacts/step/of_before.txt"
    before.parent.mkdir(parents=True)
    before.write_text("before")
    bucket.mkdir(exist_ok=True)
    code = checked_shell(SKY["run"]).replace("/bucket", str(bucket))
    done = subprocess.run(
        ["bash", "-c", code], cwd=checkout, env=os.environ | SKY["envs"], capture_output=True, text=True
    )
    assert done.returncode == 3 and "before" in done.stdout, done.stderr  # a failed run is told, and saved all the same
    assert (bucket / "artifacts/step/new.txt").read_text() == "new\n"
    assert "--config profile=paper shards=1" in (bucket / "figures/asked.txt").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="the scripts are for Linux: run it there")
@pytest.mark.parametrize("script", [".ci/run", "tests/slurm/cluster.sh"])
def test_scripts_are_valid_shell(script: str):
    checked_shell((ROOT / script).read_text())
