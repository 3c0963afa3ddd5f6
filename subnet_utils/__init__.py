"""Subnetworks of neural networks: the helper package behind the notebooks of this companion.

Read the modules in the order of docs/package.md; each one starts with the idea and its source. No library is imported
here: a notebook's first act is to start the server that its workers are copied from, before it imports torch itself.

`from subnet_utils import Task, identify` finds the subnetwork of a task in any network. Begin with
`subnet_utils.masks.identify`, `subnet_utils.masks.subnetwork` and `subnet_utils.zoo`. A study is read with
`subnet_utils.core.lab`.
"""

import warnings
from importlib import import_module
from typing import Any

# transformers' progress bars would like notebook widgets; ours are plain
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.9.0"


EXPORTS = {"Task": "identify", "identify": "identify", "discover": "discover", "Subnetwork": "subnetwork",
           "ContinuousSparsification": "methods", "random_like": "controls"}  # fmt: skip
"""Modules of `masks` that hold what the package itself gives, too."""
__all__ = [*EXPORTS, "zoo"]


def __getattr__(name: str) -> Any:
    """One of `__all__`, when it is asked for."""
    if name == "zoo":
        return import_module(f"{__name__}.zoo")
    if name not in EXPORTS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.masks.{EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    """What is there, and what comes when it is asked for."""
    return sorted({*globals(), *__all__})
