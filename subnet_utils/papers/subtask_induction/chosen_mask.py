"""Several masks of a network are found, one with each lambda, and one of them is taken."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import Lab
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact
from subnet_utils.masks.select import sparsest
from subnet_utils.masks.subnetwork import Subnetwork, SubnetworkStep
from subnet_utils.models import StagedModel
from subnet_utils.papers.subtask_induction.mask_search import MaskSearch
from subnet_utils.papers.subtask_induction.stacks import shuffled
from subnet_utils.training import Recipe


@dataclass(frozen=True)
class Mask(SubnetworkStep):
    """A mask that is found with one setting. Its result holds `validation_accuracy`, `active` and `total`, or `fault`.

    `load` gives the subnetwork.
    """

    records_faults: ClassVar[bool] = True

    search: MaskSearch

    def discovered(
        self, lab: Lab, folder: Path, model: StagedModel, inputs: Tensor, targets: Tensor, loss: Callable, *,
        seed: int, **options: Any,
    ) -> tuple[Subnetwork, dict[str, int]]:  # fmt: skip
        """The subnetwork of a model that is found with a task's inputs and targets, and its size. It is filed.

        options: as in `Masking.find`.
        """
        found = self.search.masking.find(
            model,
            inputs,
            lambda generator: shuffled(targets, self.search.batch_size, generator),
            loss,
            recipe=Recipe(self.search.learning_rate, self.search.epochs, seed),
            limit_gb=cache_limit(lab.study.compute),
            checkpoint=folder / CHECKPOINT,
            **options,
        )
        found.save(folder)
        return found.subnetwork, {"active": found.subnetwork.active, "total": found.subnetwork.total}


@dataclass(frozen=True)
class ChosenMask(Step):
    """The mask that is taken of several. Its result says which, by number. `load` gives the subnetwork.

    learned: accuracy on validation data from which on a mask counts as found. The sparsest of these is taken, else the
    most accurate. None: the most accurate is taken, and of equals the sparsest.
    """

    records_faults: ClassVar[bool] = True

    candidates: tuple[Mask, ...]
    learned: float | None = None

    @property
    def first(self) -> Mask:
        """One of the masks: all are of one network and for one task."""
        return self.candidates[0]

    def build(self, lab: Lab, folder: Path) -> dict[str, int]:
        """Choose. Raises Fault if no mask came to its end."""
        found = [one.result(lab) for one in self.candidates]
        return {"chosen": most_accurate(found) if self.learned is None else sparsest(found, learned=self.learned)}

    def read(self, lab: Lab, artefact: Artefact) -> Subnetwork:
        """See the class."""
        return self.candidates[artefact.json("result")["chosen"]].load(lab)

    def taken(self, lab: Lab) -> Mask | None:
        """The mask that is taken, or None if none came to its end."""
        chosen = self.result(lab).get("chosen")
        return None if chosen is None else self.candidates[chosen]

    def rows(self, lab: Lab) -> Iterator[tuple[Mask, dict[str, Any]]]:
        """Each of the masks with its lambda, its density if it came to its end, and whether it is taken."""
        taken = self.taken(lab)
        for mask in self.candidates:
            found = mask.result(lab)
            size = {} if "fault" in found else {"density": found["active"] / found["total"]}
            yield mask, {"l0": getattr(mask.search.masking, "l0", math.nan), **size, "chosen": mask == taken}


def most_accurate(found: Sequence[Mapping[str, Any]]) -> int:
    """Which of several masks is the most accurate, of equals the sparsest. See `sparsest`, also for what it raises."""
    by_size = sorted(range(len(found)), key=lambda i: found[i].get("active", 0))
    return by_size[sparsest([found[i] for i in by_size], learned=math.inf)]
