"""What the steps of a profile have cost, and what the missing ones will cost on this machine.

What is done has noted its seconds. Of missing steps that are alike, one is made in a store that is thrown away, with
every training cut short (`sample_fit`), and counts for all of them. Seconds are those of one job that runs alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.jobs import threads, worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.step import Step, described, with_parents
from subnet_utils.core.store import Artefact, key_of
from subnet_utils.cost.sample import SampleStore, made_of_samples, sample_fit

SPENT, TO_COME = ["spent_s", "spent_cpu_s"], ["to_come_s", "to_come_cpu_s"]
COUNTED = ["steps", "done", *SPENT, *TO_COME, "unknown"]


def spent(lab: Lab) -> pd.DataFrame:
    """What the finished steps of a profile have cost: kind, steps, done, spent_s, spent_cpu_s (processor time).

    A step counts with the time that was noted when it was made, whatever else the machine did then, and with what was
    made on the way to it and is no step of the profile itself. One that was interrupted counts with its last part.
    """
    return _by_kind(_steps(lab))[["kind", "steps", "done", *SPENT]]


def predict(lab: Lab, *, limit: float = 120.0) -> pd.DataFrame:
    """The same, and what the missing steps will cost: to_come_s, to_come_cpu_s, unknown (steps without a time), note.

    Where steps that are alike are done, their mean counts. limit: seconds for one sample. Trainings count with all
    their epochs, so with early stopping a profile costs at most this.
    """
    table, samples, known = _steps(lab), {}, partial(alike, known={})
    listed = {_name(artefact) for artefact in table["artefact"].dropna()}
    with TemporaryDirectory() as folder, threads(lab.study.compute.threads):
        sampling = replace(lab, store=SampleStore(folder, lab.store))
        for about, group in table.groupby("group", sort=False):
            done, missing = group[group["done"]], group.index[~group["done"]]
            if len(done):
                samples[about], each, note = done["artefact"].iloc[0], done[SPENT].mean(), ""
            else:  # the last one: the first may share what it makes with a step of another kind
                sample, note = made_of_samples(group["step"].iloc[-1], samples, sampling, known, sample_fit, limit)
                each = (math.nan, math.nan)
                if sample is not None:
                    samples[about] = sample
                    listed.add(_name(sample))
                    each = _seconds(sample, listed, [sampling.store.root, lab.store.root])
            table.loc[missing, [*TO_COME, "unknown", "note"]] = [*each, int(note != ""), note]
    return _by_kind(table)


def summary(predicted: pd.DataFrame, lab: Lab) -> str:
    """A prediction in a line, and a line for each kind of step of which something is not known."""
    hours, jobs = predicted[["spent_s", "to_come_s"]].sum() / 3600, worker_count(lab.study.compute)
    wait = f"about {60 * hours['to_come_s'] / jobs:.0f} minutes with {jobs} jobs at a time"
    both = f"{hours['spent_s']:.2f} job-hours spent, {hours['to_come_s']:.2f} to come: {wait}"
    noted = predicted[predicted["note"] != ""]
    lines = [f"without {row.unknown or 'any'} of {row.kind}: {row.note}" for row in noted.itertuples()]
    return "\n".join([f"profile {lab.study.name}: {both}", *lines])


def _steps(lab: Lab) -> pd.DataFrame:
    """A row for each step of a profile, parents first: kind, group (of those that are alike), its artefact if it is
    done, and COUNTED. A paper whose steps cannot be named is a row with a note."""
    steps, rows, known, names = [], [], {}, {}
    for name, paper in papers().items():
        try:
            steps += paper.steps_of(lab)
        except ValueError as reason:  # published weights or data are not there
            rows.append({"kind": name, "note": str(reason).splitlines()[0]})
    for step in with_parents(steps):
        about = {"kind": step.kind(), "group": alike(step, names), "step": step, "artefact": step.find(lab, known)}
        rows.append(about | {"steps": 1, "done": about["artefact"] is not None, "note": ""})
    listed = {_name(artefact) for artefact in known.values() if artefact}
    for row in rows:
        if row.get("done"):
            row |= zip(SPENT, _seconds(row["artefact"], listed, [lab.store.root]), strict=True)
    table = pd.DataFrame(rows, columns=["kind", "group", "step", "artefact", *COUNTED, "note"])
    counts = dict.fromkeys(("steps", "unknown"), int) | {"done": bool} | dict.fromkeys([*SPENT, *TO_COME], float)
    return table.fillna(dict.fromkeys(COUNTED, 0)).astype(counts)


def _by_kind(table: pd.DataFrame) -> pd.DataFrame:
    """Sums over the steps of each kind, and the first note."""
    how = dict.fromkeys(COUNTED, "sum") | {"note": lambda notes: next(filter(None, notes), "")}
    return table.groupby("kind", sort=False, as_index=False).agg(how)


def alike(step: Step, known: dict[str, str]) -> str:
    """Equal for steps that take about as long: of one class, with equal fields but for seeds and broken numbers.

    Learning rates, penalties and thresholds are broken numbers. known: by name, what was found before.
    """
    if step.name not in known:
        about = _timed(described(step, lambda parent: alike(parent, known)))
        known[step.name] = key_of(step.kind(), {"work": step.work, "about": about})
    return known[step.name]


def _timed(value: Any) -> Any:
    """What is in a description, without seeds and broken numbers."""
    if isinstance(value, Mapping):
        kept = {name: one for name, one in value.items() if not name.endswith(("seed", "seeds"))}
        return {name: _timed(one) for name, one in kept.items() if not isinstance(one, float)}
    return [_timed(one) for one in value if not isinstance(one, float)] if isinstance(value, list) else value


def _seconds(artefact: Artefact, listed: set[str], roots: Sequence) -> np.ndarray:
    """What an artefact took by both clocks, with all that it used and that is not `listed`; each counts once."""
    about = artefact.json("provenance")
    total = np.array([about["seconds"], about.get("cpu_seconds", math.nan)])
    for used in about.get("uses", ()):
        paths = [root / used for root in roots if (root / used).is_dir()]
        if used not in listed and paths:
            listed.add(used)
            total += _seconds(Artefact(*used.split("/"), paths[0]), listed, roots)
    return total


def _name(artefact: Artefact) -> str:
    return f"{artefact.kind}/{artefact.key}"
