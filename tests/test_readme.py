"""Numbers on the two pages of results are those of the tables.

A comment behind a number, which a reader of the page does not see, names its csv in figures/, its column and its row:

    from scratch .17<!-- laptop/shape_table_1: ours where network == "scratch" and measure == "shape_accuracy" -->

Several columns stand for as many numbers: `.12 [.1, .3]<!-- laptop/shape_advantages: ahead, low, high where ... -->`.
A column may be an expression (`100 * in_domain`), or `sum`, `mean`, `median`, `min`, `max` or `count` of one over
several rows (`count ours > .05`; `count` alone counts rows). Rows and expressions are written as pandas reads them.
"""

import re
from functools import cache

import pandas as pd
import pytest
import torch

from subnet_utils.core.study import ROOT

PAGES = ["README.md", "figures/README.md"]
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARK = re.compile(r"<!-- (?P<table>\w+/\w+): (?P<columns>.+?)(?: where (?P<rows>.+))? -->")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d*\.?\d+%?")
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


@pytest.mark.parametrize("page", PAGES)
def test_marked_numbers_are_those_of_the_tables(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(COMMENT.findall(text)) > 20
    assert not faults(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (".29{shape_table_1: ours where network == 'subnetwork' and measure == 'shape_accuracy'}", "Expected|values"),
        ("{by_size_changes: change where factor == 10 and accuracy == 'target'}", "no number before it"),
        (".20{by_size_changes: change where factor == 10 and accuracy == 'target'}", "should be 0.19108"),
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
    assert not faults("+.19 [.12, .27]<!-- laptop/by_size_changes: max change, max low, max high -->")


@pytest.mark.parametrize("page", [*PAGES, "params/README.md"])
def test_what_a_page_links_is_there(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) > 5 and not [link for link in local if not (path.parent / link).exists()]


def test_notebooks_link_sections_that_are_there():
    text = (ROOT / "figures" / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        linked = re.findall(r"\(\.\./figures/README\.md#([\w-]+)\)", path.read_text(encoding="utf-8"))
        assert set(linked) <= anchors


def test_the_first_lines_of_code_run(capsys):
    """They are for any network, so they need no study."""
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.count("tensor(") == 3
