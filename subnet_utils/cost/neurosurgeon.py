"""NeuroSurgeon as a contender: it wants another version of transformers, so it runs in an environment of its own."""

import itertools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subnet_utils.cost.timing import PACE
from subnet_utils.study import ROOT

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


def neurosurgeon(python: str | Path, **setting: Any) -> Callable[[PACE], None]:
    """A contender that trains a mask in NeuroSurgeon.

    python: interpreter of an environment that has it; setting: what `neurosurgeon_worker` wants to know, with a stage
    as `start` (`stem`, `layer_1`, `stage_4`). Raises NeuroSurgeonMissing when it is run and does not start.
    """
    number = setting["start"].rpartition("_")[2]
    arguments = [str(python), str(WORKER), json.dumps(setting | {"start": int(number) if number.isdigit() else 0})]

    def run(pace: PACE) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        try:
            process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment | {"OMP_WAIT_POLICY": "PASSIVE"},
            )  # fmt: skip
        except OSError as error:
            raise NeuroSurgeonMissing(f"{python} cannot be run ({error.strerror}); install it: {INSTALL}") from None
        with process:
            for _ in pace(itertools.count()):
                process.stdin.write("\n" if _ready(process) else "")
                process.stdin.flush()
                if not process.stdout.readline():
                    raise NeuroSurgeonMissing(f"NeuroSurgeon ended in the middle: {_last_line(process)}")
            process.stdin.close()

    def _ready(process: subprocess.Popen) -> bool:
        if not hasattr(process, "ready"):
            process.ready = process.stdout.readline().strip() == "ready"
        if not process.ready:
            raise NeuroSurgeonMissing(
                f"NeuroSurgeon did not start in {python}: {_last_line(process)}; install it: {INSTALL}"
            )
        return True

    return run


def _last_line(process: subprocess.Popen) -> str:
    return (process.stderr.read().strip().splitlines() or ["it said nothing"])[-1]
