"""Subnetworks of neural networks: the helper package behind the notebooks of this companion.

Read the modules in the order of the README; each one starts with the idea and its source. No library is imported here:
a notebook's first act is to start the server that its workers are copied from, before it imports torch itself.

`from subnet_utils import Task, identify` finds the subnetwork of a task in any network: see `masks.identify`.
"""

import warnings
from typing import Any

# transformers' progress bars would like notebook widgets; ours are plain
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`identify` and `Task`, when they are asked for."""
    if name not in ("Task", "identify"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from subnet_utils.masks import identify

    return getattr(identify, name)
