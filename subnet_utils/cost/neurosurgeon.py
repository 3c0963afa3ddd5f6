"""NeuroSurgeon as a contender. It wants another version of transformers, so it runs in an environment of its own."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from subnet_utils.core.sections import ROOT

WORKER = Path(__file__).with_name("neurosurgeon_worker.py")
INSTALL = "python -m venv .neurosurgeon && .neurosurgeon/bin/pip install neurosurgeon==0.1.0 transformers==4.46.3"
NOT_INHERITED = ("PYTHONPATH", "MPLBACKEND")
"""Of a notebook's environment: they point to modules of this one."""


def installed() -> Path | None:
    """The interpreter that `INSTALL`, run in the checkout, makes; None if it was not."""
    python = ROOT / ".neurosurgeon" / "bin" / "python"
    return python if python.exists() else None


class NeuroSurgeonMissing(RuntimeError):
    """The Python that was named has no NeuroSurgeon, or does not exist; the message says how to install it."""


def neurosurgeon(python: str | Path, **setting: Any) -> Iterator[float]:
    """The seconds of steps of mask training in NeuroSurgeon. Each step is made when it is asked for.

    python: interpreter of an environment that has it; setting: what `neurosurgeon_worker` wants to know, with a stage
    as `start` (`stem`, `layer_1`, `stage_4`). Raises NeuroSurgeonMissing if it does not start or ends in the middle.
    """
    number = setting["start"].rpartition("_")[2]
    arguments = [str(python), str(WORKER), json.dumps(setting | {"start": int(number) if number.isdigit() else 0})]
    with tempfile.TemporaryFile("w+") as said, _started(arguments, said) as process:
        if process.stdout.readline().strip() != "ready":
            reason = f"did not start in {python}: {_last_line(process, said)}; install it: {INSTALL}"
            raise NeuroSurgeonMissing(f"NeuroSurgeon {reason}")
        try:
            while seconds := _stepped(process):
                yield float(seconds)
            raise NeuroSurgeonMissing(f"NeuroSurgeon ended in the middle: {_last_line(process, said)}")
        finally:
            with suppress(BrokenPipeError):  # lines that it did not read
                process.stdin.close()


def _started(arguments: list[str], said: TextIO) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said, "text": True}
    try:
        return subprocess.Popen(arguments, env=environment | {"OMP_WAIT_POLICY": "PASSIVE"}, **pipes)
    except OSError as error:
        reason = f"{arguments[0]} cannot be run ({error.strerror}); install it: {INSTALL}"
        raise NeuroSurgeonMissing(reason) from None


def _stepped(process: subprocess.Popen) -> str:
    """Let the other process make a step, and wait for it; its seconds, or '' if it has ended."""
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline()


def _last_line(process: subprocess.Popen, said: TextIO) -> str:
    """What a process that has ended said last."""
    process.kill()  # if it has not
    process.wait()
    with suppress(BrokenPipeError):  # lines that it did not read
        process.stdin.close()
    said.seek(0)
    return (said.read().strip().splitlines() or ["it said nothing"])[-1]
