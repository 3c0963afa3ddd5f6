"""The HTML report of a profile: an index of every figure and table made, and a page for every executed notebook."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from subnet_utils.core.messages import nearest
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import write_whole
from subnet_utils.report.comparison import AGREES, DIFFERS, FAILS, HOLDS, NOT_COMPARABLE, OPEN, VERDICTS
from subnet_utils.report.pages import CODE_STYLE, is_done, notebook_body, table_html
from subnet_utils.report.results import provenance_rows


class Site:
    """What there is of a profile (manifests in `figures/<profile>/`, executed notebooks in `runs/<profile>/`), and the
    pages in `figures/<profile>/report/`, which work from the file system and request nothing from other machines.
    Notebooks that papermill did not finish are named as unfinished and get no page."""

    def __init__(self, profile: str, *, root: Path | None = None):
        """root: the checkout, by default this one. Raises ValueError if no notebook of the profile is finished, or for
        a damaged manifest."""
        root = Path(root or ROOT)
        self.profile, self.folder = profile, root / "figures" / profile
        self.report = self.folder / "report"
        self.records = [_record(path) for path in sorted(self.folder.glob("*.json"))]
        if not self.records:
            known = sorted({path.parent.name for path in (root / "figures").glob("*/*.json")})
            hint = f"; {nearest(profile, known)}" if known else ""
            first = f"make reproduce PROFILE={profile} first"
            raise ValueError(f"no finished notebook for profile '{profile}': {first}{hint}")
        self.items = [item for record in self.records for item in record["items"]]
        self.expected = len(expected())
        runs = sorted((root / "runs" / profile).glob("*.ipynb"))
        self.done = [path for path in runs if is_done(path)]
        self.unfinished = [path.stem for path in runs if path not in self.done]

    @cached_property
    def missing(self) -> list[str]:
        """Which of the papers' figures and tables (`expected`) no finished notebook of the profile has made."""
        made = {label for item in self.items for label in item["paper"]}
        return [label for label in expected() if label not in made]

    @cached_property
    def totals(self) -> dict[str, Any]:
        """How many figures and tables there are, and how often each verdict."""
        kinds = Counter(item["kind"] for item in self.items)
        counts = sum((Counter(item.get("verdicts", {})) for item in self.items), Counter())
        verdicts = {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
        return {"figures": kinds["figure"], "tables": kinds["table"], "verdicts": verdicts}

    def summary(self) -> str:
        """The lines that a run ends with: where all is, the verdicts, what is unfinished, and what is missing."""
        lines = {
            "figures": f"{self.folder}  ({self.totals['figures']}, each png and pdf)",
            "tables": f"{self.folder}  ({self.totals['tables']}, csv)",
            "report": str(self.report / "index.html"),
            "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in self.totals["verdicts"].items()),
            "unfinished": ", ".join(self.unfinished),
            "missing": ", ".join(self.missing),
        }
        return "\n".join(f"{name:<11}{text}" for name, text in lines.items() if text)

    def build(self) -> Path:
        """Write all pages and return the index."""
        self.report.mkdir(exist_ok=True)
        for name in self.unfinished:
            (self.report / f"{name}.html").unlink(missing_ok=True)
        for path in self.done:
            self._write(path.stem, "notebook.html", title=path.stem, code_style=CODE_STYLE, body=notebook_body(path))
        notebooks = [self._notebook(record) for record in self.records]
        recorded = {notebook["name"] for notebook in notebooks}
        others = [path.stem for path in self.done if path.stem not in recorded]
        content = {"recorded": recorded, "notebooks": notebooks, "others": others, "places": _place_rows(notebooks)}
        return self._write("index", "index.html", title=f"Report: {self.profile}", site=self, **content)

    def _write(self, name: str, template: str, **content: Any) -> Path:
        path = self.report / f"{name}.html"
        write_whole(path, TEMPLATES.get_template(template).render(content, profile=self.profile).encode())
        return path

    def _notebook(self, record: dict[str, Any]) -> dict[str, Any]:
        """What the index shows of a notebook; `page` is None if it was not run here."""
        name = record["notebook"]
        cards = [_card(item, name, self.folder) for item in record["items"]]
        page = f"{name}.html" if (self.report / f"{name}.html").is_file() else None
        return {"name": name, "page": page, "facts": provenance_rows(record), "cards": cards}


ELSEWHERE = "no finished notebook of this profile makes it"
"""Why a figure or table of a paper is missing, where `Paper.elsewhere` says no more."""


def expected() -> dict[str, str]:
    """What the report has to show or to name as missing: label -> a few words of its caption, paper by paper."""
    return {label: title for paper in papers().values() for label, title in paper.reproduces.items()}


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        provenance_rows(record)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no manifest of a notebook; delete it and run {path.stem} again") from None
    return record


def _card(item: dict[str, Any], notebook: str, folder: Path) -> dict[str, Any]:
    """A figure or table as the index shows it; files that are gone or changed are named instead of shown."""
    there = [file["name"] for file in item["files"] if (folder / file["name"]).is_file()]
    damages = [damage for damage in (_damage(folder, file) for file in item["files"]) if damage]
    image = next((name for name in there if name.endswith(".png")), None)
    table = next((table_html(folder / name, item["digits"]) for name in there if name.endswith(".csv")), None)
    shown = {"there": there, "damages": damages, "image": image, "table": table}
    return {"verdicts": {}, "summary": None, "sources": (), **item, **shown, "anchor": f"{notebook}-{item['name']}"}


def _damage(folder: Path, file: dict[str, str]) -> str | None:
    path = folder / file["name"]
    if not path.is_file():
        return f"{path.name} is missing."
    changed = hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]
    return f"{path.name} was changed after the notebook made it." if changed else None


def _place_rows(notebooks: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, list[tuple[dict, dict]]]]:
    """(label, title, why it may be missing, (card, notebook) of each item made for it) for each of `expected`, then for
    each other label."""
    made = defaultdict(list)
    for notebook in notebooks:
        for card in notebook["cards"]:
            for label in card["paper"]:
                made[label].append((card, notebook))
    known = expected()
    titles = known | {label: title for paper in papers().values() for label, title in paper.also_shows.items()}
    labels = [label for label in titles | made if label in known or label in made]
    elsewhere = {label: why for paper in papers().values() for label, why in paper.elsewhere.items()}
    return [(label, titles.get(label, ""), elsewhere.get(label, ELSEWHERE), made[label]) for label in labels]


def brief(labels: Iterable[str]) -> str:
    """Labels in a few words: "Table 5, 7, Figure 3" for Table 5, Table 7 and Figure 3."""
    split = [label.rpartition(" ") for label in labels]
    before = ["", *(kind for kind, *_ in split)]
    words = zip(split, before, strict=False)
    return ", ".join(number if kind == last else f"{kind} {number}".strip() for (kind, _, number), last in words)


def significant(value: float | None) -> str:
    """A number with three significant digits, written out; '' for none."""
    if value is None:
        return ""
    value = float(f"{value:.3g}")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


TEMPLATES = Environment(loader=PackageLoader("subnet_utils.report"), autoescape=True, undefined=StrictUndefined)
TEMPLATES.globals["styles"] = dict.fromkeys((AGREES, HOLDS), "agrees") | dict.fromkeys((DIFFERS, FAILS), "differs")
TEMPLATES.globals["styles"] |= dict.fromkeys((OPEN, NOT_COMPARABLE), "not-comparable")
TEMPLATES.filters |= {"brief": brief, "significant": significant}
