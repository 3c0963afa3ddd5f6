"""A paper that a test writes into a folder of its own: a section, two steps, a figure and a notebook."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import yaml

from subnet_utils.core.sections import ROOT

INIT = '''
"""*Sums of Squares*: is the total of the squares what theory says?"""

from pathlib import Path

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.toy.section import Toy

PAPER = Paper(
    name="toy",
    title="Sums of Squares",
    reference="Nobody 2024",
    section=Toy,
    notebooks=(Notebook("20_toy", requires="steps:require_numbers", folder=Path(__file__).parent),),
    steps="steps:every_step",
    reproduces={"Figure 1 of Toy": "Squares"},
)
'''
SECTION = '''
"""What is squared."""

from subnet_utils.core.sections import PositiveFloat, Section, Seeds


class Toy(Section):
    """Numbers and a factor."""

    numbers: Seeds = (1, 2, 3)
    factor: PositiveFloat = 1.0
'''
STEPS = '''
"""Squares, and their total."""

from dataclasses import dataclass

from subnet_utils.core.step import Step
from subnet_utils.papers.toy.section import Toy


@dataclass(frozen=True)
class Square(Step):
    """The square of a number."""

    number: int

    def build(self, lab, folder):
        """The area."""
        return self.number**2


@dataclass(frozen=True)
class Total(Step):
    """The squares together, times a factor."""

    squares: tuple[Square, ...]
    section: Toy

    def build(self, lab, folder):
        """The sum."""
        return self.section.factor * sum(square.result(lab) for square in self.squares)


def total(lab):
    """The total of a study."""
    section = lab.section("toy")
    return Total(tuple(Square(number) for number in section.numbers), section)


def every_step(lab):
    """All that is made."""
    yield total(lab)


def require_numbers(lab):
    """As if 13 had to be there as a file."""
    if 13 in lab.section("toy").numbers:
        raise ValueError("no file '13.csv'; put it there")
'''
FIGURES = '''
"""The picture."""

import matplotlib.pyplot as plt


def draw(squares, total):
    """A bar for each square."""
    figure, axes = plt.subplots()
    axes.bar(range(len(squares)), squares)
    axes.set_title(f"{total}")
    return figure
'''
CAPTIONS = """
name,paper,caption
squares,Figure 1 of Toy,Squares of {total} together.
"""
CELLS = (
    """
from subnet_utils.core.notebook import begin
from subnet_utils.papers.toy.figures import draw
from subnet_utils.papers.toy.steps import total
""",
    'study: str | dict = "params/tiny.yaml"  # a profile',
    """
lab, results = begin(study, "20_toy")
step = total(lab)
figure = draw([square.result(lab) for square in step.squares], step.result(lab))
results.figure(figure, "squares", total=step.result(lab))
results.close()
""",
)


def write_room(folder: Path) -> Path:
    """Write the room into a folder and return the folder, for SUBNET_PAPERS."""
    room = folder / "toy"
    room.mkdir(parents=True)
    for name, text in (("__init__", INIT), ("section", SECTION), ("steps", STEPS), ("figures", FIGURES)):
        (room / f"{name}.py").write_text(text.lstrip())
    (room / "captions.csv").write_text(CAPTIONS.lstrip())
    write_notebook(room / "20_toy.ipynb", *CELLS)
    return folder


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook of code cells, the second of which holds the parameters."""
    made = [nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
    made[1].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=made)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def write_profile(path: Path, **sections: dict) -> Path:
    """A profile of this name with some sections."""
    path.write_text(yaml.safe_dump({"study": {"name": path.stem, "compute": {"workers": 1}, **sections}}))
    return path


def run(folder: Path, *arguments: str, rooms: Path | None = None) -> subprocess.CompletedProcess:
    """`python -m ...` in a folder, with artefacts of its own there and rooms from elsewhere."""
    own = {"PYTHONPATH": str(ROOT), "SUBNET_ARTIFACTS": str(folder / "artifacts"), "HF_HUB_OFFLINE": "1"}
    own |= {"SUBNET_PAPERS": str(rooms)} if rooms else {}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=600)
