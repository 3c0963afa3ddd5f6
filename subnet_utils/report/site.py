"""The HTML report of a profile: an index of every figure and table made, and a page for every executed notebook.

It reads what is there - the manifests in `figures/<profile>/` and the executed notebooks in `runs/<profile>/` - and
writes `figures/<profile>/report/`. The pages work from the file system and request nothing from other machines.
"""

import hashlib
import json
from collections import Counter
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from subnet_utils.core.messages import nearest
from subnet_utils.core.sections import ROOT
from subnet_utils.report.book import provenance_rows, write_whole
from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS
from subnet_utils.report.pages import LONG, code_styles, is_done, notebook_body
from subnet_utils.report.places import PLACES, missing, place_rows
from subnet_utils.report.templates import NOTEBOOK_STYLE, PAGES, STYLE

VERDICT_STYLES = {AGREES: "agrees", DIFFERS: "differs", NOT_COMPARABLE: "not-comparable"}


class Runs(NamedTuple):
    """The executed notebooks of a profile, by whether papermill finished them."""

    done: list[Path]
    unfinished: list[Path]


class Cell(NamedTuple):
    """A table cell: its text and its style class."""

    text: str
    style: str


def build_site(profile: str, *, root: Path | None = None) -> Path:
    """Write the report of a profile and return its index page. `root`: the checkout, by default this one.

    Executed notebooks that papermill did not finish are named as unfinished and get no page.
    Raises ValueError if the profile has no finished notebook, or for a damaged manifest.
    """
    root = Path(root or ROOT)
    records, runs = _records(root, profile), _runs(root, profile)
    report = root / "figures" / profile / "report"
    report.mkdir(exist_ok=True)
    for path in runs.unfinished:
        (report / f"{path.stem}.html").unlink(missing_ok=True)
    for path in runs.done:
        page = {"profile": profile, "title": path.stem, "body": notebook_body(path)}
        _write_page(report / f"{path.stem}.html", "notebook", page, STYLE + code_styles() + NOTEBOOK_STYLE)
    index = report / "index.html"
    _write_page(index, "index", _index(profile, records, runs, report), STYLE)
    return index


def summary(profile: str, *, root: Path | None = None) -> str:
    """The lines that a run ends with: where figures, tables and report are, the verdicts, and what is unfinished."""
    root = Path(root or ROOT)
    folder, totals = root / "figures" / profile, _totals(_records(root, profile))
    lines = {
        "figures": f"{folder}  ({totals['figures']}, each png and pdf)",
        "tables": f"{folder}  ({totals['tables']}, csv)",
        "report": str(folder / "report" / "index.html"),
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in totals["verdicts"].items()),
        "unfinished": ", ".join(path.stem for path in _runs(root, profile).unfinished),
    }
    return "\n".join(f"{name:<11}{text}" for name, text in lines.items() if text)


def missing_places(profile: str, *, root: Path | None = None) -> list[str]:
    """Which of the paper's figures and tables (`places.PLACES`) no finished notebook of the profile has made.

    Raises ValueError if the profile has no finished notebook, or for a damaged manifest.
    """
    return missing(_records(Path(root or ROOT), profile))


def _records(root: Path, profile: str) -> list[dict[str, Any]]:
    """The manifests of a profile, in the order of the notebooks."""
    paths = sorted((root / "figures" / profile).glob("*.json"))
    if not paths:
        known = sorted({path.parent.name for path in (root / "figures").glob("*/*.json")})
        hint = f"; {nearest(profile, known)}" if known else ""
        raise ValueError(f"no finished notebook for profile '{profile}': make reproduce PROFILE={profile} first{hint}")
    return [_record(path) for path in paths]


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        provenance_rows(record)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no manifest of a notebook; delete it and run {path.stem} again") from None
    return record


def _runs(root: Path, profile: str) -> Runs:
    paths = sorted((root / "runs" / profile).glob("*.ipynb"))
    done = [path for path in paths if is_done(path)]
    return Runs(done, [path for path in paths if path not in done])


def _index(profile: str, records: list[dict[str, Any]], runs: Runs, report: Path) -> dict[str, Any]:
    """Everything that the index page shows."""
    notebooks = [_notebook(record, report) for record in records]
    recorded = {record["notebook"] for record in records}
    others = [path.stem for path in runs.done if path.stem not in recorded]
    return {
        "profile": profile,
        "title": f"Report: {profile}",
        "styles": VERDICT_STYLES,
        "totals": _totals(records),
        "warnings": [_unfinished(path.stem, recorded) for path in runs.unfinished],
        "places": place_rows(notebooks),
        "missing": f"{len(missing(records))} of {len(PLACES)}",
        "notebooks": notebooks,
        "others": [{"name": name, "page": _page_of(name, report)} for name in others],
    }


def _unfinished(name: str, recorded: set[str]) -> str:
    earlier = "; what is shown below is from an earlier run" if name in recorded else ""
    return f"Unfinished: {name}{earlier}."


def _notebook(record: dict[str, Any], report: Path) -> dict[str, Any]:
    name = record["notebook"]
    cards = [_card(item, name, report.parent) for item in record["items"]]
    return {"name": name, "page": _page_of(name, report), "facts": provenance_rows(record), "cards": cards}


def _card(item: dict[str, Any], notebook: str, folder: Path) -> dict[str, Any]:
    """A figure or table as the index shows it; files that are gone or changed are named instead of shown."""
    damages = [damage for damage in (_damage(folder, file) for file in item["files"]) if damage]
    missing = [file for file in item["files"] if not (folder / file["name"]).is_file()]
    names = [file["name"] for file in item["files"] if file not in missing]
    image = next((f"../{name}" for name in names if name.endswith(".png")), None)
    table = next((folder / name for name in names if name.endswith(".csv")), None)
    columns, rows = _table(table, item["digits"]) if table else ([], [])
    links = [{"name": name, "href": f"../{name}"} for name in names]
    shown = {"image": image, "columns": columns, "rows": rows, "links": links, "damages": damages}
    return {"verdicts": {}, **item, **shown, "anchor": _anchor(notebook, item)}


def _damage(folder: Path, file: dict[str, str]) -> str | None:
    path = folder / file["name"]
    if not path.is_file():
        return f"{path.name} is missing."
    if hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
        return f"{path.name} was changed after the notebook made it."
    return None


def _table(path: Path, digits: int) -> tuple[list[Cell], list[list[Cell]]]:
    """The header and the rows of a csv file; a header stands where its column's numbers do."""
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype_backend="numpy_nullable")
    rows = [[_cell(value, digits) for value in row] for row in frame.itertuples(index=False, name=None)]
    numeric = {i for row in rows for i, cell in enumerate(row) if cell.style == "number"}
    return [Cell(name, "number" if i in numeric else "") for i, name in enumerate(frame)], rows


def _cell(value: Any, digits: int) -> Cell:
    """Floats with `digits` decimals, or two significant digits if they are smaller; thousands set apart."""
    if pd.isna(value):
        return Cell("", "")
    if isinstance(value, bool | np.bool_):
        return Cell(str(value), "")
    if isinstance(value, Integral):
        return Cell(f"{value:,}", "number")
    if isinstance(value, Real):
        small = 0 < abs(value) < 10.0**-digits
        return Cell(f"{value:.1e}" if small else f"{value:,.{digits}f}", "number")
    return Cell(str(value), VERDICT_STYLES.get(str(value), "long" if len(str(value)) > LONG else ""))


def _totals(records: list[dict[str, Any]]) -> dict[str, Any]:
    items = [item for record in records for item in record["items"]]
    kinds = Counter(item["kind"] for item in items)
    counts = Counter()
    for item in items:
        counts.update(item.get("verdicts", {}))
    verdicts = {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
    return {"figures": kinds["figure"], "tables": kinds["table"], "verdicts": verdicts}


def _page_of(notebook: str, report: Path) -> str | None:
    return quote(f"{notebook}.html") if (report / f"{notebook}.html").is_file() else None


def _anchor(notebook: str, item: dict[str, Any]) -> str:
    return f"{notebook}-{item['name']}"


def _write_page(path: Path, template: str, content: dict[str, Any], style: str) -> None:
    write_whole(path, PAGES.get_template(template).render(content, style=style).encode())
