"""What the steps of a profile have cost, and what the missing ones will cost on this machine.

What is done has noted its seconds. Of what is missing, steps that are alike make a group. One of each is made in a
store that is thrown away, with every training cut short (`sample_fit`), and counts for all of its group. Seconds are
those of one job that runs alone, with the threads of the study's jobs.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from subnet_utils.core.jobs import worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.step import Step, described, fault_of, with_parents
from subnet_utils.core.store import Artefact
from subnet_utils.cost.sample import SampleStore, sample_fit, standing_in, time_limit

COLUMNS = ["kind", "steps", "done", "spent_s", "spent_cpu_s", "to_come_s", "to_come_cpu_s", "unknown", "note"]


def spent(lab: Lab) -> pd.DataFrame:
    """What the finished steps of a profile have cost: kind, steps, done, spent_s, spent_cpu_s (processor time).

    A step counts with the time that was noted when it was made, whatever else the machine did then, and with what was
    made on the way to it and is no step of the profile itself. One that was interrupted counts with its last part.
    """
    return _by_kind(_groups(lab))[COLUMNS[:5]]


def predict(lab: Lab, *, limit: float = 120.0) -> pd.DataFrame:
    """The same, and what the missing steps will cost: to_come_s, to_come_cpu_s, unknown (steps without a time), note.

    A group of which some steps are done counts with their mean. limit: seconds for one sample. Trainings count with all
    their epochs, so with early stopping a profile costs at most this.
    """
    groups, before = _groups(lab), torch.get_num_threads()
    torch.set_num_threads(lab.study.compute.threads)
    try:
        with TemporaryDirectory() as folder:
            _sample(replace(lab, store=SampleStore(folder, lab.store)), groups, limit)
    finally:
        torch.set_num_threads(before)
    return _by_kind(groups)


def summary(predicted: pd.DataFrame, lab: Lab) -> str:
    """A prediction in a line, and a line for each kind of step of which something is not known."""
    hours = predicted[["spent_s", "to_come_s"]].sum() / 3600
    jobs = worker_count(lab.study.compute)
    wait = f"about {60 * hours['to_come_s'] / jobs:.0f} minutes with {jobs} jobs at a time"
    both = f"{hours['spent_s']:.2f} job-hours spent, {hours['to_come_s']:.2f} to come: {wait}"
    noted = predicted[predicted["note"] != ""]
    lines = [f"without {row.unknown or 'any'} of {row.kind}: {row.note}" for row in noted.itertuples()]
    return "\n".join([f"profile {lab.study.name}: {both}", *lines])


@dataclass
class _Group:
    """Steps that are alike; the artefacts of those that are done; and the seconds of one step, by both clocks."""

    kind: str
    steps: list[Step] = field(default_factory=list)
    done: list[Artefact] = field(default_factory=list)
    spent: np.ndarray = field(default_factory=lambda: np.zeros(2))
    each: np.ndarray = field(default_factory=lambda: np.full(2, math.nan))
    note: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """The row of a table, see COLUMNS."""
        missing, known = len(self.steps) - len(self.done), not np.isnan(self.each[0])
        to_come = self.each * missing if known and missing else np.zeros(2)
        numbers = [len(self.steps), len(self.done), *self.spent, *to_come, 0 if known else missing]
        return dict(zip(COLUMNS, [self.kind, *numbers, self.note], strict=True))


def _groups(lab: Lab) -> dict[str, _Group]:
    """All steps of a profile in groups, parents first. A paper whose steps cannot be named is a group with a note."""
    steps, groups = [], {}
    for name, paper in papers().items():
        try:
            steps += paper.steps_of(lab)
        except ValueError as reason:  # published weights or data are not there
            groups[name] = _Group(name, note=str(reason).splitlines()[0])
    known: dict[str, Artefact | None] = {}
    names: dict[str, str] = {}
    for step in with_parents(steps):
        group = groups.setdefault(alike(step, names), _Group(step.kind()))
        group.steps.append(step)
        group.done += [artefact] if (artefact := step.find(lab, known)) else []
    listed = {_name(artefact) for artefact in known.values() if artefact}
    for group in (group for group in groups.values() if group.done):
        group.spent = sum(_seconds(artefact, listed, [lab.store.root]) for artefact in group.done)
        group.each = group.spent / len(group.done)
    return groups


def alike(step: Step, known: dict[str, str]) -> str:
    """Equal for steps that take about as long: of one class, with equal fields but for seeds and broken numbers.

    Learning rates, penalties and thresholds are broken numbers. known: by name, what was found before.
    """
    if step.name not in known:
        about = _timed(described(step, lambda parent: alike(parent, known)))
        known[step.name] = hashlib.sha256(json.dumps([step.kind(), about]).encode()).hexdigest()
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


def _sample(lab: Lab, groups: Mapping[str, _Group], limit: float) -> None:
    """Give every group of which nothing is done the seconds of one of its steps, or a note on why it has none."""
    names, stand_ins, listed = {}, {}, {_name(artefact) for group in groups.values() for artefact in group.done}
    for about, group in groups.items():
        if group.done:
            stand_ins[about] = next(step for step in group.steps if step.is_done(lab))
        elif group.steps and {alike(parent, names) for parent in group.steps[-1].parents} <= stand_ins.keys():
            # the last one: the first may share what it makes with a step of another kind
            step = with_steps(group.steps[-1], lambda parent: stand_ins[alike(parent, names)])
            artefact, group.note = _made(step, lab, limit)
            if artefact is not None:
                stand_ins[about] = step
                listed.add(_name(artefact))
                group.each = _seconds(artefact, listed, [lab.store.root, lab.store.real.root])
        elif group.steps:
            group.note = "it needs what could not be sampled"


def _made(step: Step, lab: Lab, limit: float) -> tuple[Artefact | None, str]:
    """The sample of a step; or None, and why there is none."""
    try:
        with standing_in(sample_fit), time_limit(limit):
            artefact = step.make(lab)
    except Exception as error:  # of any kind: the other groups go on
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    fault = fault_of(artefact)
    return (None, f"its sample ended early: {fault}") if fault else (artefact, "")


def with_steps(value: Any, stand_in: Callable[[Step], Step], *, top: bool = True) -> Any:
    """A step, or what is in its fields, with other steps in place of those that it is made of."""
    if isinstance(value, Step) and not top:
        return stand_in(value)
    if is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        changed = {name: with_steps(one, stand_in, top=False) for name, one in own.items()}
        return replace(value, **changed) if any(changed[name] is not own[name] for name in own) else value
    if isinstance(value, Mapping):
        return {name: with_steps(one, stand_in, top=False) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_steps(one, stand_in, top=False) for one in value)
    return value


def _by_kind(groups: Mapping[str, _Group]) -> pd.DataFrame:
    sums = dict.fromkeys(COLUMNS[1:-1], "sum") | {"note": lambda notes: next(filter(None, notes), "")}
    table = pd.DataFrame([group.row for group in groups.values()], columns=COLUMNS)
    return table.groupby("kind", sort=False, as_index=False).agg(sums)


def _name(artefact: Artefact) -> str:
    return f"{artefact.kind}/{artefact.key}"
