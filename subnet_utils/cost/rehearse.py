"""Every step of a profile, made small before a GPU is rented: `python -m subnet_utils.cost.rehearse paper`.

Of steps that are the same code on the same shapes one is made, at its full architecture, with two training batches
(`sample`), few examples (`reduction`) and stand-ins for what comes from elsewhere (`stand_ins`). A table says what each
took, and what all of them would cost on a GPU: the operations of their training, forward and backward, over a rate.
One that fails stops no other. Networks are trained one by one here, each on all cores: not stacked, as on a GPU.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from subnet_utils.core.jobs import threads
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.provenance import processor, provenance
from subnet_utils.core.sections import ROOT
from subnet_utils.core.step import Step, with_parents
from subnet_utils.core.store import Artefact, Store, clocks, key_of, save_json, write_whole
from subnet_utils.core.study import Study
from subnet_utils.core.workers import core_count
from subnet_utils.cost.measures import Counted, forget_peak, peak
from subnet_utils.cost.reduction import batch, effort, few_per_class, group, is_large, scale, shapes, smaller, words
from subnet_utils.cost.sample import SampleStore, made_of_samples
from subnet_utils.cost.stand_ins import with_stand_ins

RATE = 100.0
"""TFLOP/s that training is assumed to reach on a GPU: an H100 at a tenth of what it does at best in bfloat16. To be
measured, not believed."""
LIMIT = 1200.0
"""Seconds for one step. With other work beside it, one takes twice as long as alone."""
COLUMNS = ["kind", "about", "steps", "batch", "batch_made", "times", "seconds", "peak_gib", "tflop", "gpu_hours",
           "failed"]  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Steps that are alike. whole: the last of the longest; small: the same with few examples, which is made; steps:
    how many; work: how many times the longest all take together."""

    whole: Step
    small: Step
    steps: int
    work: float

    @property
    def about(self) -> dict[str, Any]:
        """As columns of the table."""
        said = {"kind": self.small.kind(), "about": words(self.whole), "steps": self.steps}
        said |= {"batch": batch(self.whole), "batch_made": batch(self.small)}
        return said | {"times": round(scale(self.whole), 1)}


class Stage(SampleStore):
    """A store in which stand-ins come first: a mask must meet the network that it was found in, whichever were made."""

    def find(self, kind: str, spec: Mapping[str, Any]) -> Artefact | None:
        """As `Store.find`, in all of them."""
        return self.stand_ins.get(key_of(kind, spec)) or super().find(kind, spec)


def groups(lab: Lab) -> list[Group]:
    """Every step of a study in groups, parents first; those of large networks last, so that other faults show early.
    Raises ValueError for what cannot be named."""
    steps = with_parents(step for paper in papers().values() for step in paper.steps_of(lab))
    made, known, sizes, found = {}, {}, {}, {}
    for step in steps:
        small = smaller(step, made)
        found.setdefault(group(small, known), []).append((step, small))
    return sorted((_group(alike, sizes) for alike in found.values()), key=lambda one: is_large(one.whole))


def _group(alike: list[tuple[Step, Step]], known: dict[str, int]) -> Group:
    efforts = [effort(step, known) for step, _ in alike]
    # the last of the longest: the first may share what it makes with a step of another kind
    last = len(alike) - 1 - efforts[::-1].index(max(efforts))
    return Group(*alike[last], len(alike), sum(efforts) / efforts[last])


def rehearse(
    lab: Lab, *, rate: float = RATE, limit: float = LIMIT, before: pd.DataFrame | None = None
) -> Iterator[dict[str, Any]]:
    """Make one step of each group of a lab in a store that is thrown away; a row for each as soon as it is done.

    before: an earlier table. Then groups are made again that failed in it, and what they are made of; other rows stay.
    Raises ValueError if its groups are not those of the lab.
    """
    samples, about = {}, partial(shapes, known={})
    with TemporaryDirectory() as folder, threads(lab.study.compute.threads):
        lab = replace(lab, store=Stage(folder, Store(folder)))
        for one, row in _with_rows(groups(lab), before, about):
            if row is not None:
                yield row
                continue
            work, begun = Counted(), clocks()
            forget_peak()
            artefact, failed = made_of_samples(one.small, samples, lab, about, work.fit, limit)
            if artefact is not None:
                samples.setdefault(about(one.small), artefact)
            tflop = work.total * one.about["times"] / 1e12
            cost = {"tflop": tflop, "gpu_hours": tflop * one.work / rate / 3600}
            took = {"seconds": round(float((clocks() - begun)[0]), 1), "peak_gib": round(peak() / 2**30, 2)}
            yield one.about | took | {name: float(f"{value:.3g}") for name, value in cost.items()} | {"failed": failed}
            gc.collect()


def _with_rows(
    found: list[Group], before: pd.DataFrame | None, about: Callable[[Step], str]
) -> Iterator[tuple[Group, dict[str, Any] | None]]:
    """Each group with its row of an earlier table if that can stay, else with None."""
    if before is None:
        return zip(found, repeat(None), strict=False)
    rows = before.to_dict("records")
    if [(row["kind"], row["about"], row["steps"]) for row in rows] != [
        (one.about["kind"], one.about["about"], one.steps) for one in found
    ]:
        raise ValueError("the last table has other groups than this study; rehearse it without --again")
    failed = [one.small for one, row in zip(found, rows, strict=True) if row["failed"]]
    needed = {about(step) for step in with_parents(failed)}
    return ((one, None if about(one.small) in needed else row) for one, row in zip(found, rows, strict=True))


def main(arguments: list[str]) -> int:
    """Rehearse a profile: a line for each group, the table in figures/rehearsals/. Exit status 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.cost.rehearse", description=__doc__.splitlines()[0])
    parser.add_argument("profile", help="a name, such as paper, or a YAML file")
    parser.add_argument("--rate", type=float, default=RATE, help=f"TFLOP/s of the GPU in training ({RATE:g})")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds for one step at most ({LIMIT:g})")
    parser.add_argument(
        "--again", action="store_true", help="only what failed in the last table, and what it is made of"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "figures" / "rehearsals", help="of the table")
    chosen = parser.parse_args(arguments)
    try:
        return _rehearsed(Study.load(chosen.profile), chosen)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def _rehearsed(whole: Study, chosen: argparse.Namespace) -> int:
    """Rehearse a study as the command line has it. The exit status."""
    path, before = chosen.folder / f"{whole.name}.csv", None
    about = {"rate_tflop_s": chosen.rate, "limit_s": chosen.limit}
    if chosen.again:
        if not path.is_file():
            raise ValueError(f"{path} is not there; rehearse without --again first")
        before, last = pd.read_csv(path, keep_default_na=False), json.loads(path.with_suffix(".json").read_text())
        about["other_rows"] = {name: last[name] for name in ("commit", "created")}
    with TemporaryDirectory() as folder:
        study, made = with_stand_ins(few_per_class(whole), Path(folder))
        on_cpu = study.compute.model_copy(update={"device": "cpu", "workers": 1, "threads": core_count()})
        lab = Lab.open(study.model_copy(update={"compute": on_cpu}), Path(folder) / "store")
        print(f"stand-ins for {', '.join(made) or 'nothing'}; a GPU at {chosen.rate:g} TFLOP/s", flush=True)
        return _written(rehearse(lab, rate=chosen.rate, limit=chosen.limit, before=before), path, about, before)


def _written(
    rows: Iterable[dict[str, Any]], path: Path, about: dict[str, Any], before: pd.DataFrame | None = None
) -> int:
    """Print the rows and write the table after each, so that a rehearsal that is killed leaves one, with the rows of an
    earlier one that are still to come. The exit status."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    for row in rows:
        done.append(row)
        cut = "" if row["batch_made"] == row["batch"] else f", made with {row['batch_made']}"
        said = f"{row['seconds']:7.1f} s {row['peak_gib']:6.2f} GiB {row['gpu_hours']:9.3g} GPU hours"
        print(f"{said}  {row['steps']:5d} x {row['kind']}: "
              f"{row['failed'] or row['about']}; batch {row['batch'] or 'none'}{cut}", flush=True)  # fmt: skip
        so_far = pd.concat(
            [pd.DataFrame(done, columns=COLUMNS), *([] if before is None else [before.iloc[len(done) :]])]
        )
        write_whole(path, so_far.to_csv(index=False).encode())
    table = pd.DataFrame(done, columns=COLUMNS)
    failed, hours = int((table["failed"] != "").sum()), table["gpu_hours"].sum()
    facts = about | {"cpu": processor(), "groups": len(table), "steps": int(table["steps"].sum()), "failed": failed}
    facts |= {"hours": round(table["seconds"].sum() / 3600, 2), "peak_gib": float(table["peak_gib"].max())}
    facts |= {"gpu_hours": float(f"{hours:.3g}")}
    save_json(path.with_suffix(".json"), provenance(**facts))
    print(f"{failed} of {len(table)} groups failed ({facts['steps']} steps); {facts['hours']} hours, at most "
          f"{facts['peak_gib']} GiB; {facts['gpu_hours']:g} GPU hours", flush=True)  # fmt: skip
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
