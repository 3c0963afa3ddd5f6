"""What a rehearsal measures: operations of trainings, and the peak of memory."""

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from subnet_utils.cost.sample import sample_fit

SELF = Path("/proc/self")
"""Where Linux says of this process how much memory it has."""


class Operations(TorchDispatchMode):
    """Counts floating-point operations of matrix products, convolutions and attention, those of gradients too."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Call and count."""
        made = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.total += count(*args, **(kwargs or {}), out_val=made)
        return made


@dataclass
class Counted:
    """What stands in for `fit`: `sample_fit` with one batch in each of its epochs. The first one is counted.

    total: operations of all that would be trained, at the sample's batch.
    """

    total: float = 0.0

    def fit(self, parameters: Any, batches: Callable, loss: Callable, *, recipe: Any, **options: Any) -> pd.DataFrame:
        """As `training.fit`."""
        counter, passed = Operations(), []

        def one_of(epoch: int) -> Iterator[Any]:
            source = iter(batches(epoch))
            for batch in islice(source, 1):
                with nullcontext() if passed else counter:
                    yield batch
            passed.append(1 + sum(1 for _ in source))

        stop = options.get("stop_after")
        epochs = recipe.epochs if stop is None else min(stop, recipe.epochs)
        history = sample_fit(parameters, one_of, loss, recipe=recipe, **options)
        self.total += counter.total * passed[0] * epochs
        return history


def forget_peak() -> None:
    """Let the peak of memory begin anew, where the system can."""
    if (SELF / "clear_refs").exists():
        (SELF / "clear_refs").write_text("5")


def peak() -> int:
    """Bytes of memory that this process has had at most since `forget_peak`, with all that it still keeps; where the
    system does not say, since it began."""
    if (SELF / "status").exists():
        (line,) = (line for line in (SELF / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
