"""Steps: what a key depends on, what is made when, and what is left of a build that was stopped."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from subnet_utils.core.jobs import run_jobs, threads
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT, Compute, Section
from subnet_utils.core.step import CHECKPOINT, Fault, Step, described, fault_of, make_all, make_group, missing, plan
from subnet_utils.core.store import load_tensors, save_json, save_tensors
from subnet_utils.core.study import Study

CONTENT = {"text": "one"}
"""What a `Source` writes; tests change it."""


class Size(Section):
    width: int
    depth: int = 2


@dataclass(frozen=True)
class Shape:
    side: float
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Source(Step):
    number: int
    label: str = field(default="", compare=False)

    def build(self, lab, folder):
        save_json(folder / "text.json", CONTENT["text"])


@dataclass(frozen=True)
class Everything(Step):
    """A field of each kind."""

    flag: bool
    count: int
    share: float
    text: str
    maybe: int | None
    size: Size
    shape: Shape
    source: Source
    sources: tuple[Source, ...]
    table: tuple[tuple[str, float], ...] = ()
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Journal(Step):
    """Writes into a file outside, as it is built, its number and those of its parents."""

    number: int
    file: str
    before: tuple["Journal", ...] = ()
    minutes: float = field(default=1.0, compare=False)
    set_name: str | None = field(default=None, compare=False)

    def build(self, lab, folder):
        numbers = [parent.result(lab) for parent in self.before]
        with open(self.file, "a") as file:
            file.write(f"{self.number}:{','.join(map(str, numbers))}\n")
        return self.number

    @property
    def work(self):
        return self.minutes

    def group(self, lab):
        return self.set_name

    def make_together(self, lab, steps):
        with open(self.file, "a") as file:
            file.write(f"together {','.join(str(step.number) for step in steps)}\n")


@dataclass(frozen=True)
class Diverging(Step):
    records_faults: ClassVar[bool] = True
    seed: int

    def build(self, lab, folder):
        if self.seed:
            raise Fault("the loss is not finite")
        return {"loss": 0.5}


@dataclass(frozen=True)
class Failing(Step):
    seed: int

    def build(self, lab, folder):
        raise Fault("no control can be drawn")


@dataclass(frozen=True)
class Threads(Step):
    def build(self, lab, folder):
        return torch.get_num_threads()


@dataclass(frozen=True)
class Kept(Step):
    keeps: ClassVar[int] = 2
    number: int

    def build(self, lab, folder):
        return self.number

    def read(self, lab, artefact):
        return [artefact.json("result")]


@pytest.fixture
def lab(tmp_path) -> Lab:
    return lab_in(tmp_path)


def lab_in(folder: Path, workers: int = 1) -> Lab:
    study = Study.load("check").model_copy(update={"compute": Compute(workers=workers, device="cpu")})
    return Lab(study, Lab.open("check", folder / "store").store)


# -- keys --------------------------------------------------------------------------------------------------------------


def changes(value: Any) -> Iterator[Any]:
    """Values that differ from this one, in one thing each."""
    if isinstance(value, Step) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        for one in dataclasses.fields(value):
            if one.compare and one.init:
                yield from (changed(value, one.name, other) for other in changes(getattr(value, one.name)))
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            others = list(changes(getattr(value, name)))
            yield from (value.model_copy(update={name: other}) for other in others if name not in ("method", "family"))
    elif isinstance(value, dict):
        yield value | {"one more": 1}
    elif isinstance(value, tuple | list):
        yield (*value, *(value[:1] or (1,)))
        for i, inner in enumerate(value[:2]):
            yield from ((*value[:i], other, *value[i + 1 :]) for other in changes(inner))
    else:
        yield {bool: lambda: not value, int: lambda: value + 1, float: lambda: 1.5 * value + 1,
               str: lambda: value + "_x", type(None): lambda: 7}[type(value)]()  # fmt: skip


def changed(value: Any, name: str, other: Any) -> Any:
    """A dataclass with another value of one field, whatever its own checks would say."""
    copy = object.__new__(type(value))
    for one in dataclasses.fields(value):
        object.__setattr__(copy, one.name, other if one.name == name else getattr(value, one.name))
    return copy


def relabelled(step: Step) -> Step:
    """The same step with other names for people."""
    for one in dataclasses.fields(step):
        if not one.compare:
            step = changed(step, one.name, "another name")
    return step


def assert_every_field_counts(step: Step) -> None:
    others = list(changes(step))
    names = [other.name for other in others]
    assert step.name not in names and len(set(names)) == len(names), type(step)
    assert relabelled(step).name == step.name and step.name.startswith(step.kind())


EVERYTHING = Everything(True, 3, 0.5, "a", None, Size(width=4), Shape(1.0), Source(0), (Source(1), Source(2)))


def test_every_field_of_a_step_and_of_what_is_in_it_counts():
    assert_every_field_counts(EVERYTHING)
    names = {one.name for one in dataclasses.fields(Everything) if one.compare}
    distinguished = {name for other in changes(EVERYTHING) for name in names if other.name != EVERYTHING.name
                  and getattr(other, name) != getattr(EVERYTHING, name)}  # fmt: skip
    assert distinguished == names


@pytest.mark.parametrize("paper", papers())
def test_every_field_of_every_step_of_a_paper_counts(paper, tmp_path):
    """One step of each class that the profile `check` has; of other classes of the room, one of like fields."""
    found: dict[type, Step] = {}
    for step in papers()[paper].steps_of(Lab.open("check", tmp_path)):
        found.setdefault(type(step), step)
    assert found
    for kind in subclasses(Step) - found.keys():
        if f".papers.{paper}." in kind.__module__:
            found[kind] = made_up(kind, list(found.values()))
    for step in found.values():
        assert_every_field_counts(step)


def made_up(kind: type[Step], others: list[Step]) -> Step:
    """A step of a class that no study of ours has: its fields are those of others by the same name, or anything."""
    values = {one.name: getattr(step, one.name) for step in others for one in dataclasses.fields(step)}
    step = object.__new__(kind)
    for one in dataclasses.fields(kind):
        object.__setattr__(step, one.name, values.get(one.name, ("anything", 1)))
    return step


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(inner) for inner in kind.__subclasses__()))


def test_no_two_classes_of_steps_share_a_name():
    for paper in papers().values():
        if paper.steps:
            paper.resolve(paper.steps)
    kinds = [kind.kind() for kind in subclasses(Step) if kind.__module__.startswith("subnet_utils")]
    assert len(set(kinds)) == len(kinds)


@given(
    one=st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3)),
    other=st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3)),
)
def test_steps_have_one_name_if_and_only_if_their_fields_are_equal(one, other):
    first, second = (
        dataclasses.replace(EVERYTHING, count=count, share=share, text=text) for count, share, text in (one, other)
    )
    assert (first.name == second.name) == (json.dumps(one) == json.dumps(other))


def test_a_field_added_with_its_default_leaves_all_keys_as_they_were(lab):
    def area(**later: Any) -> type[Step]:
        fields = [("side", int), *((name, type(value), value) for name, value in later.items())]
        return dataclasses.make_dataclass("Area", fields, bases=(Step,), frozen=True)

    before, now = area()(3), area(depth=1, shape=Shape(1.0), size=Size(width=1))
    assert now(3).name == before.name and now(3).key(lab) == before.key(lab)
    assert len({now(3).name, now(3, depth=2).name, now(3, shape=Shape(2.0)).name, now(3, depth=True).name}) == 4

    class Wider(Section):
        width: int
        depth: int = 2
        height: float = 1.0

    Wider.__name__ = "Size"
    assert EVERYTHING.but(size=Wider(width=4)).name == EVERYTHING.name != EVERYTHING.but(size=Wider(width=5)).name


@dataclass(frozen=True)
class Loaded(Step):
    folder: str

    def build(self, lab, folder):
        save_json(folder / "folder.json", self.folder)


def test_a_folder_in_the_checkout_has_one_key_wherever_the_checkout_lies(lab, monkeypatch):
    here = Loaded(f"{ROOT}/data/weights").key(lab)
    monkeypatch.setattr("subnet_utils.core.step.ROOT", Path("/elsewhere"))
    assert Loaded("/elsewhere/data/weights").key(lab) == here != Loaded("/other/data/weights").key(lab)


def test_a_new_version_is_another_artefact(lab, monkeypatch):
    step = Kept(3)
    name, key = step.name, step.key(lab)
    monkeypatch.setattr(Kept, "version", 2)
    assert Kept(3).name != name and Kept(3).key(lab) != key


def test_a_new_version_of_a_problem_is_another_artefact(lab, monkeypatch):
    @dataclass(frozen=True)
    class Problem:
        size: int = 3

    assert described(Problem(), str) == ["Problem", {}]
    monkeypatch.setattr(Problem, "version", 2, raising=False)
    assert described(Problem(), str) == ["Problem", {"version": 2}]


def test_what_a_parent_made_is_part_of_the_key_and_how_it_was_made_is_not(lab, monkeypatch):
    source = Source(1)
    step = EVERYTHING.but(source=source, sources=())
    assert step.find(lab) is None and not source.is_done(lab)
    keys = [step.key(lab)]
    for text in ("one", "two"):
        monkeypatch.setitem(CONTENT, "text", text)
        source.make(lab).path.rename(lab.store.root / f"away-{len(keys)}")
        keys.append(step.key(lab))
    assert keys[0] == keys[1] != keys[2]
    assert step.but(source=Source(1, "a name")).key(lab) == keys[2]
    assert step.parents == (source,)


@pytest.mark.parametrize("value", [{1, 2}, torch.ones(1), Path("a"), object()])
def test_what_has_no_text_of_its_own_cannot_be_a_field(value):
    with pytest.raises(TypeError, match="a step cannot depend on"):
        _ = dataclasses.replace(EVERYTHING, text=value).name


def test_a_field_cannot_hide_what_a_step_does():
    with pytest.raises(TypeError, match="Wrong.name: every step has a 'name' already"):
        dataclasses.make_dataclass("Wrong", [("name", str)], bases=(Step,), frozen=True)
    with pytest.raises(TypeError, match=r"Everything has no build\(lab, folder\); write one"):
        EVERYTHING.build(None, None)


# -- making ------------------------------------------------------------------------------------------------------------


def test_what_is_made_is_found_and_says_how_it_was_made(lab):
    step = Diverging(0)
    assert not step.is_done(lab) and step.result(lab) == {"loss": 0.5} and step.is_done(lab)
    about = step.make(lab).json("provenance")
    assert (about["device"], about["precision"]) == ("cpu", Kept(0).make(lab).json("provenance")["precision"])
    assert step.make(lab).json("spec") == step.spec(lab) and step.fault(lab) == ""


def test_a_step_has_the_threads_of_the_study_in_any_process(lab):
    """More threads add in another order, and a notebook's process has as many as the machine gives it."""
    with threads(2):
        assert Threads().result(lab) == lab.study.compute.threads == 1 and torch.get_num_threads() == 2


def test_a_fault_is_a_result_where_a_step_says_so(lab):
    step = Diverging(1)
    assert step.result(lab) == {"fault": "the loss is not finite"} and step.is_done(lab)
    assert step.fault(lab) == fault_of(step.make(lab)) == "the loss is not finite"
    with pytest.raises(Fault, match="the loss is not finite"):
        step.load(lab)
    with pytest.raises(Fault, match="no control can be drawn"):
        Failing(0).make(lab)
    assert not Failing(0).is_done(lab)


def test_a_process_keeps_some_loaded_objects(lab):
    objects = [Kept(number).load(lab) for number in (0, 1)]
    assert [Kept(number).load(lab) is one for number, one in enumerate(objects)] == [True, True]
    assert Kept(0).load(lab) is objects[0] and Kept(2).load(lab) == [2]
    assert Kept(0).load(lab) is objects[0] and Kept(1).load(lab) is not objects[1]
    assert Diverging(0).load(lab).json("result") == {"loss": 0.5}


def journal(folder: Path, *edges: tuple[int, ...], **more: Any) -> dict[int, Journal]:
    """Steps by number; an edge is a step's number and those of its parents."""
    made: dict[int, Journal] = {}
    for number, *before in edges:
        made[number] = Journal(number, str(folder / "journal"), tuple(made[one] for one in before), **more)
    return made


def written(folder: Path) -> list[str]:
    return (folder / "journal").read_text().split("\n")[:-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_all_are_made_with_their_parents_once_and_in_order(tmp_path, workers):
    lab = lab_in(tmp_path, workers)
    steps = journal(tmp_path, (0,), (1,), (2, 0), (3, 0, 1), (4, 3, 2))
    steps[1].make(lab)
    made = make_all(lab, [steps[4], steps[2]], "steps")
    assert [artefact.json("result") for artefact in made] == [4, 2]
    assert sorted(written(tmp_path)) == ["0:", "1:", "2:0", "3:0,1", "4:3,2"]
    assert make_all(lab, list(steps.values()), "steps") and len(written(tmp_path)) == 5


def test_what_much_work_waits_for_begins_first(tmp_path):
    lab = lab_in(tmp_path)
    short, long = journal(tmp_path, (0,), (1,), minutes=2), journal(tmp_path, (2,), (3, 2), minutes=1.5)
    jobs = plan(lab, [short[0], short[1], long[3], Journal(9, str(tmp_path / "journal"), minutes=2.5)])
    assert [job.steps[0].number for job in jobs] == [2, 9, 0, 1, 3]
    assert [set(job.after) for job in jobs] == [set(), set(), set(), set(), {0}]


def test_a_group_is_one_job_and_no_two_groups_wait_for_each_other(tmp_path):
    lab = lab_in(tmp_path)
    steps = journal(tmp_path, (0,), (1,), (2, 0), (3, 1), set_name="all")
    other = Journal(4, str(tmp_path / "journal"), (steps[2],), set_name="others")
    jobs = plan(lab, [*steps.values(), other])
    assert [[step.number for step in job.steps] for job in jobs] == [[0, 1], [2, 3], [4]]
    make_all(lab, [*steps.values(), other], "steps")
    assert written(tmp_path) == ["together 0,1", "0:", "1:", "together 2,3", "2:0", "3:1", "4:2"]
    assert missing(lab, steps.values()) == []


def test_two_processes_make_a_step_once(tmp_path):
    lab, step = lab_in(tmp_path, 2), journal(tmp_path, (0,))[0]
    jobs = [((step,), lab)] * 2
    run_jobs(make_group, jobs, compute=lab.study.compute, label="the same")
    assert written(tmp_path) == ["0:"]


RESUMING = """
    import sys, time
    from tests.test_step import Resumed, lab_in
    from pathlib import Path
    print(Resumed(5).result(lab_in(Path(sys.argv[1]))))
"""


@dataclass(frozen=True)
class Resumed(Step):
    """Counts to a number, with a checkpoint after each step, and stops at 3 for as long as a file lies beside."""

    number: int

    def build(self, lab, folder):
        path = folder / CHECKPOINT
        done = int(load_tensors(path)[0]["done"]) if path.exists() else 0
        first = done
        while done < self.number:
            done += 1
            save_tensors(path, {"done": torch.tensor(done)})
            if done == 3 and (lab.store.root / "hold").exists():
                print("busy", flush=True)
                signal.pause()
        return [first, done]


def test_a_killed_build_goes_on_from_its_checkpoint(tmp_path):
    lab = lab_in(tmp_path)
    lab.store.root.mkdir(exist_ok=True)
    (lab.store.root / "hold").touch()
    command = [sys.executable, "-c", textwrap.dedent(RESUMING), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "busy\n"
        process.kill()
    assert not Resumed(5).is_done(lab)
    artefact = Resumed(5).make(lab)
    assert artefact.json("result") == [3, 5] and not artefact.has(CHECKPOINT)
