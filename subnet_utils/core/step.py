"""A step makes one artefact, once: a trained network, a mask, a table of scores.

A step is a frozen dataclass. Its fields say all that the artefact depends on, and nothing else does. The key of the
artefact is made from them, so nobody writes a key by hand:

- the class with its `version`,
- the fields that are not at their default, so that a new setting with a default leaves all old artefacts valid,
- of a field that is itself a step, a *parent*, the key and the digest of what it made.

A field with `compare=False` is a name for people. It is no part of the key, as it is no part of equality.
"""

import dataclasses
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel

from subnet_utils.core.devices import precision_name
from subnet_utils.core.jobs import run_jobs, threads
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import Artefact, key_of, note, save_json

if TYPE_CHECKING:
    from subnet_utils.core.lab import Lab

CHECKPOINT = "checkpoint.safetensors"
"""Where a step keeps the state of a training while it is built. The store drops it when the artefact is finished."""


class Fault(RuntimeError):
    """Why a step ended without what it was to make: its training diverged, or a control cannot be drawn."""


@dataclass(frozen=True)
class Step:
    """One artefact of a study. Subclasses add fields and `build`, often also `read`.

    >>> @dataclass(frozen=True)
    ... class Square(Step):
    ...     side: float
    ...
    ...     def build(self, lab, folder):
    ...         return {"area": self.side**2}
    >>> Square(2.0) == Square(2.0), Square.kind()
    (True, 'step-square')
    """

    version: ClassVar[int] = 1
    """To be raised when `build` makes something else of the same fields. Older artefacts are then not found."""
    records_faults: ClassVar[bool] = False
    """Whether a `Fault` is a result: it is filed as `fault`, and the study goes on. Otherwise it ends the run."""
    keeps: ClassVar[int] = 0
    """How many loaded objects of this class a process keeps. They serve all callers: do not change them."""

    def __init_subclass__(cls) -> None:
        """Refuse fields that would hide what a step can do. Raises TypeError."""
        for name in cls.__dict__.get("__annotations__", {}):
            if hasattr(Step, name) and name not in Step.__annotations__:
                raise TypeError(f"{cls.__name__}.{name}: every step has a '{name}' already; call the field otherwise")

    def build(self, lab: "Lab", folder: Path) -> Any:
        """Make the artefact's files in `folder`. What is returned is filed as `result.json`.

        The folder still holds what an interrupted call left there.
        """
        raise TypeError(f"{type(self).__name__} has no build(lab, folder); write one")

    def read(self, lab: "Lab", artefact: Artefact) -> Any:
        """The object that `load` returns, from the finished artefact. By default this is the artefact itself."""
        return artefact

    @classmethod
    def kind(cls) -> str:
        """Name of the class in the store: its paper, or else its module, and its own name."""
        path = cls.__module__.split(".")
        room = path[path.index("papers") + 1] if "papers" in path else path[-1]
        return f"{room}-{re.sub('(?<=[a-z0-9])(?=[A-Z])', '_', cls.__name__).lower()}"

    @cached_property
    def name(self) -> str:
        """A name that is known before anything is made: kind and a digest of all fields, those of parents included."""
        about = [self.version, described(self, lambda parent: parent.name)]
        text = json.dumps(about, sort_keys=True, allow_nan=False)
        return f"{self.kind()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @cached_property
    def parents(self) -> tuple["Step", ...]:
        """The steps among the fields, also those in tuples and in other dataclasses; each once."""
        found = _steps_in([value for value, _ in _fields_of(self).values()])
        return tuple({step.name: step for step in found}.values())

    @property
    def work(self) -> float:
        """Roughly how long the step takes, above 0, in any unit: what many long ones wait for begins first."""
        return 1.0

    def group(self, lab: "Lab") -> Any:
        """Steps of one class for which this is the same are made at once, by `make_together`. None: alone."""
        return None

    def make_together(self, lab: "Lab", steps: Sequence["Step"]) -> None:
        """Make several steps of one group, this one among them. What is left out is made alone afterwards."""

    def spec(self, lab: "Lab") -> dict[str, Any]:
        """All that names the artefact, as JSON. Parents are made if need be."""
        return self._spec(lambda parent: parent.make(lab))

    def key(self, lab: "Lab") -> str:
        """The key of the artefact in the store. Parents are made if need be."""
        return key_of(self.kind(), self.spec(lab))

    def find(self, lab: "Lab", known: dict[str, Artefact | None] | None = None) -> Artefact | None:
        """The finished artefact, or None if this step or one of its parents is not done. Nothing is made.

        known: by name, what was found before; more is added to it.
        """
        known = {} if known is None else known
        if self.name not in known:
            done = all(parent.find(lab, known) for parent in self.parents)
            spec = self._spec(lambda parent: known[parent.name]) if done else {}
            known[self.name] = lab.store.find(self.kind(), spec) if done else None
        return known[self.name]

    def is_done(self, lab: "Lab") -> bool:
        """Whether the artefact is there."""
        return self.find(lab) is not None

    def make(self, lab: "Lab") -> Artefact:
        """The finished artefact, made if it is not there, with its parents."""
        return lab.store.make(self.kind(), self.spec(lab), lambda folder: self._build(lab, folder))

    def result(self, lab: "Lab") -> Any:
        """What `build` returned, made if need be; `{"fault": why}` where a fault was recorded."""
        return self.make(lab).json("result")

    def fault(self, lab: "Lab") -> str:
        """Why the step ended without its result, or ''."""
        return fault_of(self.make(lab))

    def load(self, lab: "Lab") -> Any:
        """The object that was made (`read`), made if need be. Raises Fault where a fault was recorded."""
        artefact = self.make(lab)
        if fault := fault_of(artefact):
            raise Fault(fault)
        kept, key = _KEPT.setdefault(type(self), OrderedDict()), (artefact.path, artefact.digest, str(lab.device))
        loaded = kept[key] = kept.pop(key) if key in kept else self.read(lab, artefact)
        while len(kept) > self.keeps:
            kept.popitem(last=False)
        return loaded

    def but(self, **changes: Any) -> Self:
        """The same step with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def _build(self, lab: "Lab", folder: Path) -> None:
        note(device=lab.device.type, precision=precision_name(lab.study.compute, lab.device))
        try:
            with threads(lab.study.compute.threads):  # more threads would add in another order
                result = self.build(lab, folder)
        except Fault as fault:
            if not self.records_faults:
                raise
            result = {"fault": str(fault)}
        if result is not None:
            save_json(folder / "result.json", result)

    def _spec(self, take: Callable[["Step"], Artefact]) -> dict[str, Any]:
        def parent(step: Step) -> dict[str, str]:
            artefact = take(step)
            return {"key": artefact.key, "content": artefact.digest}

        return {"version": self.version, "fields": described(self, parent)[1]}


_KEPT: dict[type[Step], OrderedDict[tuple, Any]] = {}
"""Loaded objects of this process by class, the one that was not used for longest first."""


def fault_of(artefact: Artefact) -> str:
    """Why an artefact holds no result, or ''."""
    result = artefact.json("result") if artefact.has("result.json") else {}
    return result.get("fault", "") if isinstance(result, dict) else ""


@dataclass(frozen=True)
class Job:
    """Steps that one process makes together, and the numbers of the jobs that must have ended before."""

    steps: tuple[Step, ...]
    after: frozenset[int]


def make_all(lab: "Lab", steps: Sequence[Step], label: str) -> list[Artefact]:
    """The artefacts of several steps, made side by side with all parents that are missing, each as soon as it can be.

    Workers are started only for what is missing. Steps of one group are one job; see `Step.group`.
    """
    jobs = plan(lab, steps)
    work, after = [(job.steps, lab) for job in jobs], [job.after for job in jobs]
    run_jobs(make_group, work, compute=lab.study.compute, label=label, after=after)
    return [step.make(lab) for step in steps]


def make_group(steps: Sequence[Step], lab: "Lab") -> None:
    """Make the steps of one job; what a worker runs."""
    if len(steps) > 1:
        steps[0].make_together(lab, steps)
    for step in steps:
        step.make(lab)


def plan(lab: "Lab", steps: Iterable[Step]) -> list[Job]:
    """What is missing of some steps and their parents, as jobs: each after those that it waits for, and before others
    if more work waits for it."""
    groups = _groups(lab, missing(lab, steps))
    number = {step.name: i for i, group in enumerate(groups) for step in group}
    after = [{number[p.name] for step in group for p in step.parents if p.name in number} for group in groups]
    ahead = _work_ahead(groups, after)
    order = sorted(range(len(groups)), key=lambda i: ahead[i], reverse=True)
    place = {old: new for new, old in enumerate(order)}
    return [Job(tuple(groups[i]), frozenset(place[before] for before in after[i])) for i in order]


def with_parents(steps: Iterable[Step]) -> list[Step]:
    """Some steps and all that they are made of, each once, parents first."""
    found: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.name not in found:
            for parent in step.parents:
                visit(parent)
            found[step.name] = step

    for step in steps:
        visit(step)
    return list(found.values())


def missing(lab: "Lab", steps: Iterable[Step]) -> list[Step]:
    """What is not done of some steps and their parents, parents first."""
    known = {}
    return [step for step in with_parents(steps) if step.find(lab, known) is None]


def _groups(lab: "Lab", steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that are made together: of as many generations of missing parents, so no two groups wait for each other."""
    depth: dict[str, int] = {}
    groups: dict[Any, list[Step]] = {}
    for step in steps:
        depth[step.name] = 1 + max((depth.get(parent.name, 0) for parent in step.parents), default=0)
        about = step.group(lab)
        own = (depth[step.name], *((step.name,) if about is None else (type(step), about)))
        groups.setdefault(own, []).append(step)
    return sorted(groups.values(), key=lambda group: depth[group[0].name])


def _work_ahead(groups: Sequence[Sequence[Step]], after: Sequence[Iterable[int]]) -> list[float]:
    """The work from the beginning of each group to the end of the longest chain that waits for it."""
    own = [sum(step.work for step in group) for group in groups]
    ahead = list(own)
    for i in reversed(range(len(groups))):
        for before in after[i]:
            ahead[before] = max(ahead[before], own[before] + ahead[i])
    return ahead


def described(value: Any, parent: Callable[[Step], Any], *, top: bool = True) -> Any:
    """A value as JSON that tells it from all others: of dataclasses and sections the class and what is not a default.

    parent: what stands for a step within the value. Raises TypeError for what has no such form.
    """
    if isinstance(value, str):
        return value.removeprefix(f"{ROOT}/")  # what lies in the checkout is the same in another one
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Step) and not top:
        return parent(value)
    if (own := _fields_of(value)) is not None:
        changed = {
            name: one for name, (one, default) in own.items() if type(one) is not type(default) or one != default
        }
        said = {name: described(one, parent, top=False) for name, one in changed.items()}
        if not isinstance(value, Step) and (version := getattr(type(value), "version", 1)) != 1:
            said["version"] = version  # of a step it stands beside its fields
        return [type(value).__name__, said]
    if isinstance(value, Mapping):
        return {str(name): described(one, parent, top=False) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [described(one, parent, top=False) for one in value]
    raise TypeError(f"a step cannot depend on {value!r}; give numbers, text, tuples, sections, dataclasses or steps")


def _fields_of(value: Any) -> dict[str, tuple[Any, Any]] | None:
    """Value and default (MISSING without one) of each field that counts; None for what is no dataclass or section."""
    defaults = None if isinstance(value, type) else _defaults_of(type(value))
    if defaults is None:
        return None
    return {name: (getattr(value, name), default) for name, default in defaults.items()}


@cache
def _defaults_of(kind: type) -> dict[str, Any] | None:
    """Defaults by field: to be compared with, not to be given away."""
    if issubclass(kind, BaseModel):
        return {
            name: MISSING if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
    if is_dataclass(kind):
        return {
            field.name: field.default if field.default_factory is MISSING else field.default_factory()
            for field in fields(kind)
            if field.compare
        }
    return None


def _steps_in(value: Any) -> Iterator[Step]:
    """The steps within a value that is no section, those within other steps not among them."""
    if isinstance(value, Step):
        yield value
    elif isinstance(value, Mapping):
        yield from _steps_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _steps_in(one)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _steps_in([one for one, _ in _fields_of(value).values()])
