"""What the jobs of a finished study took, as noted when they were made."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.store import Artefact, Store
from subnet_utils.cost.sections import MAKERS, Lacking, require, sections_of
from subnet_utils.papers.break_it_down.steps import seconds_of


class Unfinished(ValueError):
    """Something was asked of a study that has not been made."""

    def __init__(self, profile: str):
        super().__init__(f"profile '{profile}' is not finished; run: make reproduce PROFILE={profile}")


class Finished(Store):
    """A store in which nothing is built: what is asked for is noted, and what is not there raises Unfinished."""

    def __init__(self, root: Path | str, profile: str):
        super().__init__(root)
        self.profile = profile
        self.touched: dict[str, Artefact] = {}

    def make(self, kind: str, spec: Mapping[str, Any], build: Any) -> Artefact:
        """As `find`."""
        return self.find(kind, spec)

    def find(self, kind: str, spec: Mapping[str, Any]) -> Artefact:
        """The finished artefact. Raises Unfinished if there is none."""
        artefact = super().find(kind, spec)
        if artefact is None:
            raise Unfinished(self.profile)
        self.touched[_name(artefact)] = artefact
        return artefact


def measured(lab: Lab) -> pd.DataFrame:
    """What the jobs of a study took, by section and kind: jobs, measured_s, and measured_cpu_s by processor time.

    Sections that are not finished, or lack what they need, are left out. Raises Unfinished, with the remedy, if none is
    left. A job counts with the time that was noted when it was made, whatever else the machine did then, and in the
    first section that needs it; one that was interrupted, with the time of its last part. Older artefacts noted no
    processor time (NaN) and not what they used, so that what was made on the way to them, such as pretrained weights,
    is missing.
    """
    rows, before = [], set()
    for section in sections_of(lab.study):
        try:
            require(lab, section)
            found = made_for(lab, section)
        except (Lacking, Unfinished):
            continue
        rows += [{"section": section, **row} for row in times_noted(one for one in found if _name(one) not in before)]
        before |= {_name(one) for one in found}
    if not rows:
        raise Unfinished(lab.study.name)
    table = pd.DataFrame(rows).rename(columns={"seconds": "measured_s", "cpu_seconds": "measured_cpu_s"})
    return summed(table)


def made_for(lab: Lab, section: str) -> list[Artefact]:
    """All artefacts of a section, and those that they were made of. Raises Unfinished if one is not there."""
    store = Finished(lab.store.root, lab.study.name)
    # in this process, for workers would note for themselves what they are asked for
    compute = lab.study.compute.model_copy(update={"workers": 1})
    MAKERS[section](replace(lab, study=lab.study.model_copy(update={"compute": compute}), store=store))
    return list(with_uses(store.touched.values(), [lab.store]))


def with_uses(artefacts: Iterable[Artefact], stores: Iterable[Store]) -> Iterator[Artefact]:
    """Artefacts and all that they were made of, by what they noted, each once; the latter from the first store that has
    it. What is no longer there is left out."""
    waiting, seen, roots = list(artefacts), set(), [store.root for store in stores]
    while waiting:
        artefact = waiting.pop(0)
        if _name(artefact) in seen:
            continue
        seen.add(_name(artefact))
        yield artefact
        for used in artefact.json("provenance").get("uses", ()):
            kind, key = used.split("/")
            paths = [root / kind / key for root in roots if (root / kind / key).is_dir()]
            waiting += [Artefact(kind, key, paths[0])] if paths else []


def times_noted(artefacts: Iterable[Artefact]) -> Iterator[dict[str, Any]]:
    """A row for each artefact: kind, jobs (1), seconds and cpu_seconds, which is missing where it was not noted.

    Masks that were trained at once have a share of that time each, and what they were made of has none.
    """
    for artefact in artefacts:
        about = artefact.json("provenance")
        seconds, processor = about["seconds"], about.get("cpu_seconds", math.nan)
        if artefact.kind == "mask" and seconds_of(artefact) != seconds:
            seconds, processor = seconds_of(artefact), math.nan
        if artefact.kind != "masks":
            kind = "null_draws" if artefact.kind == "null" else artefact.kind  # pandas reads "null" as missing
            yield {"kind": kind, "jobs": 1, "seconds": seconds, "cpu_seconds": processor}


def summed(table: pd.DataFrame) -> pd.DataFrame:
    """Sums by section and kind; of a sum with a missing part the whole is missing."""
    numbers = table.columns.difference(["section", "kind"], sort=False).tolist()
    groups = table.groupby(["section", "kind"], sort=False)[numbers]
    return groups.agg(lambda column: column.sum(skipna=False)).reset_index()


def _name(artefact: Artefact) -> str:
    return f"{artefact.kind}/{artefact.key}"
