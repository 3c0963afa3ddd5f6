"""The papers of this companion: what each one registers, and where they are found.

A paper is a *room*: a package in `subnet_utils/papers/`, or in a folder that the environment variable SUBNET_PAPERS
names, whose `__init__` holds `PAPER`. Study, notebooks, Snakefile, report and tests read what is registered; none of
them names a paper. A room knows the shared floors below it and no other room.
"""

import csv
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subnet_utils.core.downloads import go_offline_without_network
from subnet_utils.core.sections import ROOT, Section

if TYPE_CHECKING:
    from subnet_utils.core.lab import Lab
    from subnet_utils.core.step import Step
    from subnet_utils.zoo.release import Release

ROOMS = "subnet_utils.papers"


@dataclass(frozen=True)
class Notebook:
    """One notebook of a paper; name: its file without the ending."""

    name: str
    about: str = ""
    """The part of the paper's section without which there is nothing to do, such as 'arithmetic'; '' for all of it."""
    requires: str = ""
    """`module:function` in the room, which raises ValueError for what a lab's study names and that is not there."""
    after: tuple[str, ...] = ()
    """Notebooks of the same paper whose artefacts it uses."""
    folder: Path = ROOT / "notebooks"

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.name}.ipynb"

    def is_about(self, section: Section | None) -> bool:
        """Whether a study with this section has what the notebook is about."""
        return section is not None and (not self.about or bool(getattr(section, self.about)))


@dataclass(frozen=True)
class Finding:
    """A claim, and in how many rows of a table it holds: what the report begins with.

    claim: one sentence. table: name of a notebook's table. holds, among: which of its rows, as pandas' `query` reads
    them. figure: the name of the figure beside it.
    """

    claim: str
    table: str
    figure: str
    among: str = ""
    holds: str = "verdict == 'holds'"


@dataclass(frozen=True)
class Paper:
    """What a room registers.

    name: of its folder and of its section in a study. title, reference: of the paper, as in a bibliography. section:
    its part of a study. steps: `module:function` in the room, which gives every step that can be named before anything
    is made, as an iterable, for a lab. releases: `module:function` in the room, which gives what the `zoo` may hold, as
    `Release`s, for a lab. stand_ins: `module:table` of what stands in for published weights and data, see
    `cost.stand_ins`. reproduces: the paper's figures and tables, such as 'Figure 4', and what each
    shows; the report names those that are missing. elsewhere: of those that no notebook makes at most profiles, where
    they come from. also_shows: further labels, such as appendices, that are not missed. pages: further pages of
    the report that the paper writes by itself, by file name, and what they are.
    """

    name: str
    title: str
    reference: str
    section: type[Section]
    notebooks: tuple[Notebook, ...]
    steps: str = "steps:every_step"
    releases: str = ""
    stand_ins: str = ""
    reproduces: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    also_shows: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name, such as 'Break It Down'."""
        return self.name.replace("_", " ").title()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the room lies."""
        return tuple(import_module(f"{ROOMS}.{self.name}").__path__)

    @cached_property
    def findings(self) -> list[Finding]:
        """What the report begins with: the rows of the room's `findings.csv`."""
        return [Finding(**row) for folder in self.folders for row in _rows(Path(folder) / "findings.csv")]

    @property
    def captions(self) -> dict[str, tuple[str, list[str]]]:
        """What the room's `captions.csv` says of its figures and tables, by name or pattern: caption, labels."""
        rows = [row for folder in self.folders for row in _rows(Path(folder) / "captions.csv")]
        return {row["name"]: (row["caption"], row["paper"].split("; ") if row["paper"] else []) for row in rows}

    def section_of(self, study: Any) -> Section | None:
        """The paper's part of a study, or None."""
        return getattr(study, self.name)

    def steps_of(self, lab: "Lab") -> "list[Step]":
        """Every step that can be named before anything is made, parents first. None for a study without this paper."""
        from subnet_utils.core.step import with_parents  # imports torch

        if self.section_of(lab.study) is None or not self.steps:
            return []
        return with_parents(self.resolve(self.steps)(lab))

    def releases_of(self, lab: "Lab") -> "list[Release]":
        """What of a study the zoo may hold. None for a study without this paper."""
        if self.section_of(lab.study) is None or not self.releases:
            return []
        return list(self.resolve(self.releases)(lab))

    def require(self, notebook: Notebook, lab: "Lab") -> None:
        """Raise ValueError for what a notebook needs and what is not there."""
        go_offline_without_network()
        if notebook.requires and notebook.is_about(self.section_of(lab.study)):
            self.resolve(notebook.requires)(lab)

    def resolve(self, name: str) -> Callable:
        """A function of the room by `module:function`. Rooms are imported when they are first used."""
        return pkgutil.resolve_name(f"{ROOMS}.{self.name}.{name}")


@cache
def papers() -> dict[str, Paper]:
    """All papers by name, in the order of their first notebooks. Raises ValueError for a room that registers none."""
    rooms = import_module(ROOMS)
    found = [_registered(entry.name) for entry in pkgutil.iter_modules(rooms.__path__) if entry.ispkg]
    found.sort(key=lambda paper: (min((one.name for one in paper.notebooks), default="~"), paper.name))
    return {paper.name: paper for paper in found}


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a csv file, none without a file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


def _registered(name: str) -> Paper:
    paper = getattr(import_module(f"{ROOMS}.{name}"), "PAPER", None)
    if not isinstance(paper, Paper) or paper.name != name:
        raise ValueError(f"{ROOMS}.{name} must hold PAPER, a Paper with name '{name}'")
    return paper


def notebooks() -> dict[str, tuple[Paper, Notebook]]:
    """All notebooks of all papers by name, in order, each with its paper. Raises ValueError for a name of two."""
    found: dict[str, tuple[Paper, Notebook]] = {}
    for paper in papers().values():
        for one in paper.notebooks:
            if one.name in found:
                raise ValueError(
                    f"{found[one.name][0].name} and {paper.name} both have a notebook '{one.name}'; rename one"
                )
            found[one.name] = paper, one
    return dict(sorted(found.items()))
