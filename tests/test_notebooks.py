"""The notebooks as documents, and as programs that papermill runs from anywhere. nbval runs their cells."""

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT
from subnet_utils.report import readable
from subnet_utils.report.committed import names
from subnet_utils.report.pages import CODE_STYLE, notebook_body
from subnet_utils.report.site import TEMPLATES
from tests.browser import needs_browser
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


@by_name
def test_the_first_cell_leads_to_every_section_and_to_the_neighbors(path):
    first, *others = (cell.source for cell in cells(path, "markdown"))
    heads = [line[3:] for text in others for line in text.splitlines() if line.startswith("## ")]
    linked = re.findall(r"\[[^]]*\]\(#([^)]*)\)", first)
    assert linked == [head.replace(" ", "-") for head in dict.fromkeys(heads) if head != "What was made"]
    place = NOTEBOOKS.index(path)
    around = [*NOTEBOOKS[place - 1 : place], *NOTEBOOKS[place + 1 : place + 2]]
    assert re.findall(r"\]\((\w+\.ipynb)\)", first.rpartition("**Other notebooks.**")[2]) == [
        one.name for one in around
    ]


@by_name
def test_three_exercises_with_hidden_solutions_end_a_notebook(path):
    last = nbformat.read(path, as_version=4).cells[-1].source
    assert last.startswith("## Exercises") and len(re.findall(r"^\d\. .*\?|^\d\. .*\.", last, flags=re.M)) == 3
    assert len(re.findall("<details><summary>Solution</summary>.{2,}</details>", last)) == 3


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
    # the parameters explain themselves, as schematics do; `begin` stands apart from other imports to come before them
    explained = [cell for cell in code if "schematic.steps(" not in cell.source]
    assert len(cells(path, "markdown")) >= 0.6 * (len(explained) - 1)


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


@by_name
def test_the_method_is_drawn_and_its_words_stay_in_their_boxes(path, paper_style):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if "schematic.steps(" in cell.source]
    (source,) = cells
    exec(source, {})  # noqa: S102 - our own notebook
    figure = plt.gcf()
    boxes = [box.get_window_extent() for box in figure.axes[0].patches]
    words = [text for text in figure.axes[0].texts if text.get_text()]
    for box, *inside in zip(boxes, words[::2], words[1::2], strict=True):
        extents = [text.get_window_extent() for text in inside]
        assert all(box.x0 < one.x0 and one.x1 < box.x1 and box.y0 < one.y0 for one in extents)
        assert extents[1].y1 < extents[0].y0


@needs_browser
@by_name
def test_a_notebook_is_not_too_high(path, tmp_path, browser):
    page, about = tmp_path / "page.html", {"title": path.stem, "profile": "tiny", "code_style": CODE_STYLE}
    about |= {"pages": {}, "runs": [], "repository": None, "body": notebook_body(nbformat.read(path, as_version=4))}
    page.write_text(TEMPLATES.get_template("notebook.html").render(about), encoding="utf-8")
    browser.open(page, width=1280)
    assert browser.evaluate("document.documentElement.scrollHeight") <= 12_000


@pytest.mark.parametrize("paper", papers())
def test_captions_are_of_what_notebooks_make_and_cover_the_paper(paper):
    """Names in the notebooks, a star for what is not literal, against `captions.csv`; its labels against the list."""
    captions, made = papers()[paper].captions, set()
    for notebook in papers()[paper].notebooks:
        for cell in cells(notebook.path, "code"):
            made |= set(names(cell.source))
    unmade = [name for name in captions if not any(fnmatchcase(name, one) for one in made)]
    unsaid = [one for one in made if not any(fnmatchcase(name, one) or fnmatchcase(one, name) for name in captions)]
    assert not unmade and not unsaid
    labels = {label for _, labels in captions.values() for label in labels} | FROM_CODE
    assert papers()[paper].reproduces.keys() - papers()[paper].elsewhere.keys() <= labels


FROM_CODE = {f"Functional Modularity, Figure {number}" for number in (18, 19, 20)}
"""Which network of a profile is the paper's of which figure, only the notebook knows."""


def test_bookkeeping_is_less_than_a_third_of_the_code():
    """Lines of statements that have to do with captions, files or the record, among all lines of code."""
    words, kept, lines = re.compile(r"results\.|caption|\bshow\(|paper=|sources=|display\(|begin\b"), 0, 0
    for path in NOTEBOOKS:
        for cell in cells(path, "code"):
            if not cell.source.startswith("%%"):
                code = cell.source.splitlines()
                found = {i for i, line in enumerate(code) if words.search(line)}
                for node in ast.walk(ast.parse(cell.source)):
                    if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign) and node.lineno - 1 in found:
                        found |= set(range(node.lineno - 1, node.end_lineno))
                kept, lines = kept + len(found), lines + sum(bool(line.strip()) for line in code)
    assert kept <= 0.3 * lines


@by_name
def test_every_figure_and_table_has_its_caption_under_it(path):
    for cell in cells(path, "code"):
        if "schematic.steps(" in cell.source:  # its words are in it
            continue
        shown = [output.get("data", {}) for output in cell.outputs]
        for data, below in zip(shown, [*shown[1:], {}], strict=False):
            drawn = any(kind.startswith("image/") for kind in data)
            html = data.get("text/html", "")
            if drawn or "<table" in html or "<img" in html:
                assert below.get("text/html", "").startswith("<p>")


@of_a_study
def test_tables_are_for_readers(path):
    for cell in cells(path, "code"):
        for html in (output.get("data", {}).get("text/html", "") for output in cell.outputs):
            assert not re.search(r">nan<|>NaN<|0\.0+e\+00|>[0-9a-f]{16}<", html)
            assert not re.search(r"<th>[^<]*_", html)
            assert html.count("<tr") <= readable.ROWS + 2


@pytest.mark.parametrize("paper", papers())
def test_no_figure_or_table_of_a_paper_is_left_out_of_the_list(paper):
    """Their numbers run from 1 to the last one."""
    listed = papers()[paper].reproduces
    for kind in ("Figure", "Table"):
        numbers = sorted(int(label.rpartition(" ")[2]) for label in listed if kind in label)
        assert numbers == list(range(1, len(numbers) + 1))
    assert papers()[paper].elsewhere.keys() <= listed.keys()


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


NUMBER = re.compile(r"(?<![\d.,])[-−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]\d+)?%?")
UNSHOWN = {
    "00_by_hand": [8],
    "02_discover_masks": [200, 0.51, 0.99995],
    "09d_what_masks_depend_on": [0.6364, 0.3624, 0.1905],
    "10a_identification_methods": [-5],
}
"""Numbers in solutions that follow from theory, or have more digits than the output."""


def numbers(text: str) -> list[tuple[float, int]]:
    """Each number of a text, and its decimals. A percentage is a share."""
    found = []
    for one in NUMBER.findall(re.sub("<[^>]*>", " ", text)):
        digits, share = one.replace("−", "-").replace(",", "").rstrip("%"), one.endswith("%")
        found.append((float(digits) / (100 if share else 1), len(digits.partition(".")[2]) + 2 * share))
    return found


@by_name
def test_numbers_in_solutions_are_in_the_outputs(path):
    """Or in the question, or they are a sum, difference, product or ratio of two numbers of the exercise."""
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    texts += [text for out in outputs for kind, text in out.get("data", {}).items() if kind.startswith("text/")]
    known = {value for value, _ in numbers("\n".join(texts))} | set(UNSHOWN.get(path.stem, ()))
    unknown = []
    for exercise in re.split(r"^\d\. ", cells(path, "markdown")[-1].source, flags=re.M)[1:]:
        question, solution = map(numbers, exercise.split("<details>"))
        for value, digits in solution:
            others = {1.0} | {one for one, _ in question + solution if one != value}
            made = {result for a in others for b in others for result in (a + b, a - b, a * b, a / b if b else a)}
            right = known | made | {one for one, _ in question}
            if min(abs(value - one) for one in right) > 0.5 * 10**-digits + 1e-9:
                unknown.append(value)
    assert not unknown
