"""The lab: a study and the store in which its artefacts are. It is all that a step needs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from subnet_utils.core.devices import autocast, resolve_device
from subnet_utils.core.store import Store
from subnet_utils.core.study import Study


@dataclass(frozen=True)
class Lab:
    """A study and the store in which its artefacts are."""

    study: Study
    store: Store

    @classmethod
    def open(cls, study: Any, store: Path | str | None = None) -> "Lab":
        """A lab for anything that `Study.load` takes. Raises StudyError if the study is not valid.

        >>> Lab.open("tiny").study.name
        'tiny'
        """
        lab = cls(Study.load(study), Store(store))
        resolve_device(lab.study.compute)
        return lab

    @property
    def device(self) -> torch.device:
        """Where the networks are trained and run."""
        return resolve_device(self.study.compute)

    def autocast(self) -> AbstractContextManager:
        """Context in which forward passes of training run, at the study's precision."""
        return autocast(self.study.compute, self.device)

    def section(self, paper: str) -> Any:
        """A paper's part of the study. Raises ValueError if the profile has none."""
        section = getattr(self.study, paper)
        if section is None:
            raise ValueError(f"profile '{self.study.name}' has no '{paper}' section; add one")
        return section
