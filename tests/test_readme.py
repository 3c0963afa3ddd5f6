"""Pages: short enough to be read, their links lead somewhere, their numbers are those of the tables.

A comment behind a number, which a reader of the page does not see, names its csv in figures/, its column and its row:

    from scratch .17<!-- laptop/shape_table_1: ours where network == "scratch" and measure == "shape_accuracy" -->

Several columns stand for as many numbers: `.12 [.1, .3]<!-- laptop/shape_advantages: ahead, low, high where ... -->`.
A column may be an expression (`100 * in_domain`), or `sum`, `mean`, `median`, `min`, `max` or `count` of one over
several rows (`count ours > .05`; `count` alone counts rows). Rows and expressions are written as pandas reads them.
What is not measured but chosen has no mark (`CHOSEN`).
"""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from subnet_utils.core.study import ROOT
from subnet_utils.plots import schematic

PAGES = {"README.md": 800, "figures/README.md": 2000}
"""Pages of results, and how many words they may have."""
NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
"""What they found, a paragraph of the first cell, is about `laptop`, too."""
OTHERS = ["params/README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"]
OTHERS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
EXAMPLE = re.compile(r"```python\n(?P<code>(?:(?!```).)*)```\n\n```\n(?P<printed>.*?)```", re.DOTALL)
"""Code and what it prints."""
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARK = re.compile(r"<!-- (?P<table>\w+/\w+): (?P<columns>.+?)(?: where (?P<rows>.+))? -->")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d*\.?\d+%?")
RESULT = re.compile(r"(?<![\w.-])-?\d*\.?\d+%?")
NAMES = r"\[\d\d.? |otebooks? \d\d\w?(?: and \d\d\w?)?|in 04b|00_by|\d{4}\)|Figure \d"
NO_RESULT = re.compile(rf"```.*?```|`[^`]*`|\]\([^)]*\)|{NAMES}", re.DOTALL)
"""Code, where links lead, and numbers in names: notebooks, years, figures."""
CHOSEN = {"95%", "99%", ".05", "-.05", "3.11", "0", "1", "13"}
"""Levels, thresholds, a version, ends of scales, and what a task counts modulo."""
OF_MANY = {name: getattr(pd.Series, name) for name in ("sum", "mean", "median", "min", "max")}


@cache
def table(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "figures" / f"{name}.csv")


def value(rows: pd.DataFrame, column: str) -> float:
    """What a mark says of some rows."""
    word, _, expression = column.partition(" ")
    if word == "count":
        return len(rows.query(expression)) if expression else len(rows)
    if word in OF_MANY and expression:
        return OF_MANY[word](rows.eval(expression))
    (only,) = rows.eval(column)  # of exactly one row
    return only


def agrees(printed: str, value: float) -> bool:
    """Whether a printed number is the value, rounded to as many digits as it has."""
    digits = len(printed.rstrip("%").partition(".")[2])
    value *= 100 if printed.endswith("%") else 1
    return abs(float(printed.rstrip("%")) - value) <= 0.5 * 10**-digits + 1e-9


def faults(text: str) -> list[str]:
    """What is wrong with the marks of a text."""
    found = []
    for comment in COMMENT.finditer(text):
        before = COMMENT.sub("", text[: comment.start()])
        try:
            mark = MARK.fullmatch(comment[0])
            columns = mark["columns"].split(", ")
            printed = NUMBER.findall(before[-80:])[-len(columns) :]
            assert re.search(r"\d%?[\])*]*$", before), "no number before it"
            rows = table(mark["table"])
            rows = rows.query(mark["rows"]) if mark["rows"] else rows
            values = [float(value(rows, column)) for column in columns]
            right = all(agrees(*pair) for pair in zip(printed, values, strict=True))
        except Exception as error:
            found.append(f"{comment[0]} cannot be read: {error}")
            continue
        if not right:
            found.append(f"{', '.join(printed)} should be {', '.join(f'{one:.5g}' for one in values)}: {comment[0]}")
    return found


def unmarked(text: str) -> list[str]:
    """Results of a text that no mark covers."""
    rest, start = "", 0
    for comment in COMMENT.finditer(text):
        rest += text[start : comment.start()]
        columns = MARK.fullmatch(comment[0])["columns"].split(", ")
        covered = list(NUMBER.finditer(rest))[-len(columns) :]
        rest = rest[: covered[0].start()] + NUMBER.sub("", rest[covered[0].start() :])
        start = comment.end()
    found = RESULT.findall(NO_RESULT.sub("", rest + text[start:]))
    return [result for result in found if result not in CHOSEN]


def read(page: str) -> str:
    """A page; of a notebook, what was found."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page not in NOTEBOOKS:
        return text
    (found,) = re.findall(r"^\*\*Found\.\*\* .*", "".join(json.loads(text)["cells"][0]["source"]), flags=re.MULTILINE)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_marks(page):
    assert len(COMMENT.findall(read(page))) >= 5


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS])
def test_marked_numbers_are_those_of_the_tables(page):
    assert not faults(read(page))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS])
def test_every_result_has_a_mark(page):
    assert not unmarked(read(page))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page):
    assert len(COMMENT.sub("", read(page)).split()) <= PAGES[page]


def test_a_result_without_a_mark_is_found():
    text = "At 95% it is .3 [.1, .5]{a/b: c, d, e}, in 7 of 8{a/b: c, d} cases, or .20 of 12%, in 3 of 4: [x](1.5) `.6`"
    marked = re.sub(r"\{(.*?)\}", r"<!-- \1 -->", text)
    assert not unmarked(marked.partition(", or")[0]) and unmarked(marked) == [".20", "12%", "3", "4"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (".29{shape_table_1: ours where network == 'subnetwork' and measure == 'shape_accuracy'}", "Expected|values"),
        ("{by_size_changes: change where factor == 10 and accuracy == 'target'}", "no number before it"),
        (".20{by_size_changes: change where factor == 10 and accuracy == 'target'}", "should be 0.15637"),
        ("+.19{by_size_change: change}", "No such file"),
        ("+.19{by_size_changes: changes where factor == 10 and accuracy == 'target'}", "changes"),
        ("+.19{by_size_changes: change where factor == 11}", "not enough values"),
        ("+.19{by_size_changes: change}", "too many values"),
        ("48{by_size_changes}", "cannot be read"),
    ],
)
def test_a_wrong_mark_is_found(text, fault):
    (found,) = faults(text.replace("{", "<!-- laptop/").replace("}", " -->"))
    assert re.search(fault, found)


def test_a_mark_covers_as_many_numbers_as_it_has_columns():
    assert not faults("+.16 [.10, .21]<!-- laptop/by_size_changes: max change, max low, max high -->")


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    path = page.parent / file if file else page
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_what_a_page_links_is_there(page):
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", read(page)) if not link.startswith("https://")]
    assert not [link for link in links if not leads_somewhere(ROOT / page, link)]


def test_a_link_that_leads_nowhere_is_found():
    links = ("README.md", "none.md", "docs/glossary.md#how-masks-are-found", "docs/glossary.md#none", "#none")
    assert [leads_somewhere(ROOT / "README.md", link) for link in links] == [True, False, True, False, False]


def test_notebooks_link_pages_and_sections_that_are_there():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        links = re.findall(r"\((\.\./[\w/.]+\.md(?:#[\w-]+)?)\)", path.read_text(encoding="utf-8"))
        assert not [link for link in links if not leads_somewhere(path, link)]


@pytest.mark.parametrize("page", ["README.md", "docs/package.md"])
def test_the_example_prints_what_the_page_shows(page, capsys):
    """It is for any network, so it needs no study. Processors that round differently move a number a little."""
    example = EXAMPLE.search(read(page))
    exec(compile(example["code"], page, "exec"), {})  # noqa: S102 - our own page
    found, shown = capsys.readouterr().out, example["printed"]
    assert NUMBER.sub("", found) == NUMBER.sub("", shown)
    ours, theirs = (list(map(float, NUMBER.findall(text))) for text in (found, shown))
    assert ours == pytest.approx(theirs, abs=0.05)


def test_the_code_of_the_package_page_can_be_imported():
    code = read("docs/package.md").split("```python\n")[2].split("```")[0]
    exec(compile(code, "docs/package.md", "exec"), {"__name__": "page"})  # noqa: S102 - our own page


def test_the_schematic_cuts_the_network_in_two(paper_style):
    kept, others = schematic.edges()
    drawn = Counter(line.get_color() for line in schematic.method().axes[0].lines)
    assert not set(kept) & set(others) and len(kept + others) == 4 * 6 + 6 * 6 + 6 * 3
    assert (drawn[schematic.BLUE], drawn[schematic.RED]) == (2 * len(kept), len(others))
