"""The notebooks as documents, and as programs that papermill runs from anywhere. nbval runs their cells."""

import ast
from pathlib import Path

import nbformat
import pytest

from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT
from tests.toy_paper import run

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
of_a_study = pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if not path.stem.startswith("00")], ids=lambda path: path.stem
)
"""Those that begin with 00 need no study. They write out what is in the package for the others."""


def cells(path: Path, kind: str) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@by_name
def test_the_first_cell_says_what_and_how(path):
    first = cells(path, "markdown")[0].source
    for part in ("**Question.**", "**Paper.**", "**Makes.**", "**Run.**", f"papermill notebooks/{path.name}"):
        assert part in first
    assert first.startswith(f"# {path.stem.partition('_')[0]} · ")
    assert "COST" not in first  # a cost that nobody measured


@of_a_study
def test_one_typed_parameter_with_the_tiny_profile(path):
    (cell,) = [cell for cell in cells(path, "code") if "parameters" in cell.metadata.get("tags", [])]
    (statement,) = ast.parse(cell.source).body
    assert isinstance(statement, ast.AnnAssign) and statement.target.id == "study"
    assert ast.literal_eval(statement.value) == "params/tiny.yaml"
    assert "#" in cell.source


@by_name
def test_cells_are_short_and_explained(path):
    code = cells(path, "code")
    assert max(len(cell.source.splitlines()) for cell in code) <= 15
    # the parameters explain themselves, and `begin` stands apart from the other imports only to come before them
    assert len(cells(path, "markdown")) >= 0.6 * (len(code) - 1)


@of_a_study
def test_what_has_a_name_is_in_the_package(path):
    for cell in cells(path, "code"):
        tree = ast.parse(cell.source)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]


@by_name
def test_outputs_are_kept_and_checked(path):
    code = cells(path, "code")
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert "nbval-check-output" in code[-1].metadata["tags"]
    assert code[-1].outputs, "nbval compares nothing where nothing is kept"
    assert "False" not in "".join(output.get("text", "") for output in code[-1].outputs)


@by_name
def test_no_output_is_a_warning(path):
    streams = [out for cell in cells(path, "code") for out in cell.outputs if out.output_type == "stream"]
    assert not [out.text for out in streams if "Warning:" in out.text]


@pytest.mark.parametrize("paper", papers())
def test_every_figure_and_table_of_a_paper_is_made_by_one_of_its_notebooks(paper):
    """Labels in the notebooks' code, those of `paper=` and those that a loop over numbers makes, against the list."""
    made = set()
    for notebook in papers()[paper].notebooks:
        for cell in cells(notebook.path, "code"):
            made |= labels(ast.parse(cell.source))
    assert papers()[paper].reproduces.keys() - papers()[paper].elsewhere.keys() <= made


@pytest.mark.parametrize("paper", papers())
def test_no_figure_or_table_of_a_paper_is_left_out_of_the_list(paper):
    """Their numbers run from 1 to the last one."""
    listed = papers()[paper].reproduces
    for kind in ("Figure", "Table"):
        numbers = sorted(int(label.rpartition(" ")[2]) for label in listed if kind in label)
        assert numbers == list(range(1, len(numbers) + 1))
    assert papers()[paper].elsewhere.keys() <= listed.keys()


def labels(tree: ast.AST) -> set[str]:
    """'Figure 4' and the like: literal ones, and those of f-strings with every number that the cell holds."""
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    numbers = {int(value) for value in constants if type(value) is int or (isinstance(value, str) and value.isdigit())}
    for node in ast.walk(tree):
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if called == "range" and all(isinstance(argument, ast.Constant) for argument in node.args):
            numbers |= set(range(*(argument.value for argument in node.args)))
    found = {value for value in constants if isinstance(value, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            found |= {f"{node.values[0].value}{number}" for number in numbers}
    return found


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("studi", "params/laptop.yaml", "StudyError: unknown parameter 'studi'; did you mean 'study'?"),
        ("study", "params/laptopp.yaml", "StudyError: no profile 'params/laptopp.yaml'; did you mean 'laptop'?"),
    ],
)
def test_a_misspelt_parameter_or_profile_is_refused(tmp_path, option, value, said):
    notebook = str(ROOT / "notebooks/02_discover_masks.ipynb")
    result = run(tmp_path, "papermill", notebook, "out.ipynb", "--no-progress-bar", "-p", option, value)
    assert result.returncode != 0 and said in result.stderr
