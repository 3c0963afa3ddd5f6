"""Checkpoints: the full state of a run in one file, from which it goes on and ends with the same bits."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from subnet_utils.core.store import StoreError, digest_of, load_tensors, save_tensors

SECONDS = 10.0
"""A checkpoint is written at the end of an epoch if the last one is at least this old, older where saving is slow."""


class Checkpoint:
    """Where `training.fit` saves a run and finds it again: weights, the best ones so far, optimizer and progress.

    path: the file, or None to keep nothing. parameters, best: the tensors, read and written in place. about: what tells
    this run from others besides the shapes of its parameters, as JSON; two runs that differ here share no checkpoint.
    """

    def __init__(
        self,
        path: Path | None,
        parameters: Mapping[str, Tensor],
        best: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer,
        about: Mapping[str, Any],
    ):
        self.path = None if path is None else Path(path)
        self.parameters, self.best, self.optimizer = parameters, best, optimizer
        shapes = {name: list(tensor.shape) for name, tensor in parameters.items()}
        # as it will be read again: JSON has no tuples, and the seeds of several runs are one
        self.run = json.loads(json.dumps({"shapes": shapes, **about}))
        self.saved, self.pause = time.monotonic(), SECONDS

    def resume(self, label: str) -> dict[str, Any]:
        """Load what was saved and return the progress; nothing, and a line that says why, if it cannot be used."""
        if self.path is None or not self.path.exists():
            return {}
        try:
            tensors, progress = self._read()
        except StoreError as error:
            print(f"{label}: checkpoint not used, starting over: {error}", file=sys.stderr, flush=True)
            return {}
        for target, prefix in ((self.parameters, "now"), (self.best, "best")):
            for name, tensor in target.items():
                tensor.detach().copy_(tensors[f"{prefix}/{name}"])
        for name, parameter in self.parameters.items():
            found = {k.rsplit("/", 1)[1]: v for k, v in tensors.items() if k.startswith(f"adam/{name}/")}
            if found:  # a parameter that never had a gradient has no Adam state
                state = {key: value.to(parameter.device, copy=True) for key, value in found.items()}
                self.optimizer.state[parameter] = state
        return progress

    def save_if_due(self, progress: Any) -> None:
        """Save if the last time is long enough ago. progress: a dataclass of what JSON can hold."""
        before = time.monotonic()
        if self.path is None or before - self.saved < self.pause:
            return
        self.save(progress)
        # saving takes a twentieth of the time at most
        self.pause = SECONDS * max(1.0, 2 * (self.saved - before))

    def save(self, progress: Any) -> None:
        """Write the full state to one file, with a digest of all that it holds in the header."""
        if self.path is None:
            return
        tensors = {f"now/{name}": tensor for name, tensor in self.parameters.items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"adam/{name}/{key}"] = torch.as_tensor(value)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        header = json.dumps({"run": self.run, "progress": asdict(progress)}, default=float)  # numpy's numbers
        save_tensors(self.path, tensors, {"header": header, "digest": digest_of(tensors, header)})
        self.saved = time.monotonic()

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and progress. Raises StoreError if the file is damaged or belongs to another run."""
        tensors, metadata = load_tensors(self.path)
        if metadata.get("digest") != digest_of(tensors, metadata.get("header", "")):
            raise StoreError(f"{self.path} does not match its digest")
        header = json.loads(metadata["header"])
        if header["run"] != self.run:
            raise StoreError(f"{self.path} was written by another run: its recipe, parameters or subject differ")
        return tensors, header["progress"]
