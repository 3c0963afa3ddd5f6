"""The lab: a study and the store in which its artefacts are, each made once and loaded from there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from subnet_utils.jobs import run_jobs
from subnet_utils.masks.discover import Discovery
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.store import Artefact, Store, save_json, save_table
from subnet_utils.study import Study
from subnet_utils.training import TrainingDiverged, resolve_device

CHECKPOINT = "checkpoint.safetensors"
Condition = Literal["trained", "random", "pruned"]
"""The authors' names for what a network is; a pretrained one is trained, too."""


@dataclass(frozen=True)
class Lab:
    """A study and the store in which its artefacts are: all that a step needs."""

    study: Study
    store: Store
    condition: "Condition" = "trained"
    """Of the networks that its tables are about: 'trained' or 'pruned'."""

    @classmethod
    def open(cls, study: Any, store: Path | str | None = None) -> "Lab":
        """A lab for anything that `Study.load` takes. Raises StudyError if the study is not valid."""
        lab = cls(Study.load(study), Store(store))
        resolve_device(lab.study.compute)
        return lab

    @property
    def device(self) -> torch.device:
        """Where the networks are trained and run."""
        return resolve_device(self.study.compute)

    def pretrained(self) -> "Lab":
        """The same lab for the study's pretrained experiments. Raises ValueError if it has none."""
        if not self.study.pretrained:
            raise ValueError(f"profile '{self.study.name}' has no 'pretrained' experiments; add one")
        update = {"experiments": self.study.pretrained, "pretrained": (), "vit_search": None, "pruning": None}
        return replace(self, study=self.study.model_copy(update=update))

    def pruned(self) -> "Lab":
        """The same lab for the networks that the study prunes. Raises ValueError if it prunes none."""
        if self.study.pruning is None:
            raise ValueError(f"profile '{self.study.name}' has no 'pruning'; add it")
        update = {"experiments": self.study.to_prune(), "pretrained": (), "vit_search": None}
        return replace(self, study=self.study.model_copy(update=update), condition="pruned")


def make_all(
    lab: Lab,
    kind: str,
    step: Callable,
    wanted: Sequence[Any],
    label: str,
    *,
    work: Callable[[Any], float] | None = None,
    shared: Callable[[Any], Any] | None = None,
    spec: Callable[[Lab, Any], Mapping[str, Any]] | None = None,
) -> list[Artefact]:
    """Take a step for everything wanted. Workers are started for what is not there yet, and only then.

    spec: what the step's artefact depends on, by default the `spec(lab)` of what is wanted; work: how long it takes, in
    any unit: longer ones begin first, lest one worker be busy with the last of them while the others are idle; shared:
    what several have in common that a worker keeps in memory, see `run_jobs`.
    """
    spec = spec or (lambda lab, one: one.spec(lab))
    missing = [one for one in wanted if lab.store.find(kind, spec(lab, one)) is None]
    if work is not None:
        missing.sort(key=work, reverse=True)
    common = None if shared is None else lambda lab, one: shared(one)
    run_jobs(step, [(lab, one) for one in missing], compute=lab.study.compute, label=label, shared=common)
    return [step(lab, one) for one in wanted]


def subnetwork_in(artefact: Artefact) -> Subnetwork:
    """The subnetwork that an artefact of a mask holds. Raises TrainingDiverged if its training ended without one."""
    fault = artefact.json("result").get("fault")
    if fault:
        raise TrainingDiverged(fault)
    return Subnetwork.load(artefact.path / "subnetwork.safetensors")


def file_subnetwork(folder: Path, find: Callable[[], Discovery]) -> Subnetwork | None:
    """File a subnetwork and its history in an artefact's folder; if its training diverged, None, and why as `fault`."""
    try:
        found = find()
    except TrainingDiverged as error:
        save_json(folder / "result.json", {"fault": str(error)})
        return None
    found.subnetwork.save(folder / "subnetwork.safetensors")
    save_table(folder / "history.parquet", found.history)
    return found.subnetwork
