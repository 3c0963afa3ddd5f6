"""Where a result comes from: versions, commit and machine."""

import platform
import re
import subprocess
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from subnet_utils.core.sections import ROOT


def provenance(**more: Any) -> dict[str, Any]:
    """Who made an artefact: versions, commit, machine."""
    packages = ("torch", "torchvision", "transformers", "numpy", "statsmodels")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "commit": _commit(),
        "machine": platform.machine(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **more,
    }


def checkout_state(root: Path) -> dict[str, Any] | None:
    """Commit of a checkout and whether anything but figures/, which runs replace, differs from it; None outside git.

    A folder without a repository of its own does not have the state of one that it happens to lie in. Where git cannot
    tell, files count as different.
    """
    commit, top = _git_says(root, "rev-parse", "--verify", "HEAD"), _git_says(root, "rev-parse", "--show-toplevel")
    if commit is None or top is None or Path(top).resolve() != root.resolve():  # unpacked inside another repository
        return None
    made = [":(exclude)figures", ":(exclude)zoo"]  # by the code, no part of it
    return {"commit": commit, "dirty": _git_says(root, "status", "--porcelain", "--", ".", *made) != ""}


@cache
def _commit() -> str:
    """This checkout's commit, with `+changes` if it differs from it, or `unknown` outside git."""
    state = checkout_state(ROOT)
    if state is None:
        return "unknown"
    return state["commit"][:12] + ("+changes" if state["dirty"] else "")


def _git_says(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def processor() -> str:
    """The processor's name, as far as the system says."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else None
    return found[1].strip() if found else platform.machine()
