"""The HTML report of a profile: an index of every figure and table made, and a page for every executed notebook."""

import base64
import hashlib
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from nbformat import NotebookNode

from subnet_utils.core.messages import nearest
from subnet_utils.core.papers import Finding, Paper, papers
from subnet_utils.core.papers import notebooks as registered
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import write_whole
from subnet_utils.report import readable
from subnet_utils.report.committed import made_in, needs_profile, readdress, show
from subnet_utils.report.comparison import AGREES, DIFFERS, FAILS, HOLDS, NOT_COMPARABLE, OPEN, VERDICTS
from subnet_utils.report.pages import CODE_STYLE, is_done, notebook_body, table_html
from subnet_utils.report.results import provenance_rows


def site_folder(profile: str, root: Path | None = None) -> Path:
    """Where the pages of a profile are, all that a static host needs."""
    return Path(root or ROOT) / "site" / profile


class Site:
    """What there is of a profile (manifests in `figures/<profile>/`, executed notebooks in `runs/<profile>/`), and the
    pages in `site/<profile>/`, which work from the file system and request nothing from other machines. A notebook that
    was not run here gets a page with the figures and tables of its manifest (`committed`). Notebooks that papermill did
    not finish are named as unfinished."""

    def __init__(self, profile: str, *, root: Path | None = None):
        """root: the checkout, by default this one. Raises ValueError if no notebook of the profile is finished, or for
        a damaged manifest."""
        root = Path(root or ROOT)
        self.profile, self.folder = profile, root / "figures" / profile
        self.records = [one for path in sorted(self.folder.glob("*.json")) if (one := _record(path))]
        if not self.records:
            known = sorted({path.parent.name for path in (root / "figures").glob("*/*.json")})
            hint = f"; {nearest(profile, known)}" if known else ""
            first = f"make reproduce PROFILE={profile} first"
            raise ValueError(f"no finished notebook for profile '{profile}': {first}{hint}")
        self.report = site_folder(profile, root)
        self.items = [item for record in self.records for item in record["items"]]
        self.expected = len(expected())
        runs = sorted((root / "runs" / profile).glob("*.ipynb"))
        self.done = [path for path in runs if is_done(path)]
        self.unfinished = [path.stem for path in runs if path not in self.done]
        self.committed = sorted((root / "notebooks").glob("*.ipynb"))

    @cached_property
    def missing(self) -> list[str]:
        """Which of the papers' figures and tables (`expected`) no finished notebook of the profile has made."""
        made = {label for item in self.items for label in item["paper"]}
        return [label for label in expected() if label not in made]

    @cached_property
    def totals(self) -> dict[str, Any]:
        """How many figures and tables there are, and how often each verdict."""
        kinds = Counter(item["kind"] for item in self.items)
        return {"figures": kinds["figure"], "tables": kinds["table"], "verdicts": _verdicts(self.items)}

    @cached_property
    def pages(self) -> dict[str, str]:
        """Pages that others have written, by file name, and what they are: those of papers, and of pdoc."""
        known = {name: what for paper in papers().values() for name, what in paper.pages.items()} | API
        return {name: what for name, what in known.items() if (self.report / name).is_file()}

    @cached_property
    def notebooks(self) -> dict[str, NotebookNode]:
        """Those that get a page, by name: executed here, else committed ones with a manifest or without a profile."""
        recorded = {record["notebook"] for record in self.records}
        committed = {path.stem: nbformat.read(path, as_version=4) for path in self.committed}
        known = {name: one for name, one in committed.items() if name in recorded or not needs_profile(one)}
        known |= {path.stem: nbformat.read(path, as_version=4) for path in self.done}
        return dict(sorted(known.items()))

    @cached_property
    def homes(self) -> dict[str, str]:
        """Which notebook makes a figure or table, for those that one of them names in full."""
        return {made: name for name, one in self.notebooks.items() for cell in made_in(one).values() for made in cell}

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
        """Write all pages and copy what they show, in place of an earlier report. Returns the index."""
        self.report.mkdir(parents=True, exist_ok=True)
        for path in self.report.glob("*.html"):
            if path.name not in self.pages:
                path.unlink()
        shutil.rmtree(self.report / FILES, ignore_errors=True)
        (self.report / FILES).mkdir()
        notebooks, run = [self._notebook(record) for record in self.records], {path.stem for path in self.done}
        for name, notebook in self.notebooks.items():
            runs = self._filled(name, notebooks) if name not in run and needs_profile(notebook) else []
            repository = os.environ.get("GITHUB_REPOSITORY")  # OWNER/NAME, where a workflow builds the site
            address = self._address(name, repository) if needs_profile(notebook) else None
            if address:
                readdress(notebook, address)
            content = {"body": notebook_body(notebook, self.notebooks), "runs": runs, "repository": repository}
            content["address"] = address
            self._write(
                name, "notebook.html", title=readable.title(name), notebook=name, code_style=CODE_STYLE, **content
            )
        for before, notebook, after in zip([None, *notebooks], notebooks, [*notebooks[1:], None], strict=False):
            around = {"before": before, "notebook": notebook, "after": after}
            self._write(notebook["results"], "results.html", title=readable.title(notebook["name"]), **around)
        recorded = {notebook["name"] for notebook in notebooks}
        content = {"recorded": recorded, "notebooks": notebooks, "papers": _papers(self.folder, notebooks)}
        content["others"] = [name for name in self.notebooks if name not in recorded]
        return self._write("index", "index.html", title=f"Report: {self.profile}", site=self, **content)

    def _write(self, name: str, template: str, **content: Any) -> Path:
        path = self.report / f"{name.removesuffix('.html')}.html"
        text = TEMPLATES.get_template(template).render(content, profile=self.profile, pages=self.pages)
        write_whole(path, text.encode())
        return path

    def _address(self, name: str, repository: str | None) -> str | None:
        """Where a notebook with its committed outputs is: in the repository, else a copy beside the figures."""
        path = next((path for path in self.committed if path.stem == name), None)
        if path is None or repository:
            return path and f"https://github.com/{repository}/blob/main/notebooks/{path.name}"
        shutil.copyfile(path, self.report / FILES / path.name)
        return f"./{FILES}/{path.name}"  # nbconvert takes away a `files/` at the beginning

    def _notebook(self, record: dict[str, Any]) -> dict[str, Any]:
        """What the pages show of a notebook, whose files are copied; `page` is None if it has none."""
        name = record["notebook"]
        results, page = f"results_{name}.html", f"{name}.html" if record["notebook"] in self.notebooks else None
        cards = [_card(item, results, self.folder) for item in record["items"]]
        for file in (file for card in cards for file in card["there"]):
            shutil.copyfile(self.folder / file, self.report / FILES / file)
        paper = registered().get(name, (None, None))[0]
        for card in cards:
            card["labels"] = [_full(label, paper) for label in card["paper"]]
        shown = {"name": name, "results": results, "page": page, "cards": cards}
        return shown | {"paper": paper, "facts": provenance_rows(record), "verdicts": _verdicts(record["items"])}

    def _filled(self, name: str, notebooks: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        """Put figures and tables into a notebook that was not run here. Returns date and commit of the runs that made
        them: more than one where a part of a notebook has moved to another one since."""
        found = [(card, one) for one in notebooks for card in one["cards"]]
        found = [(card, one) for card, one in found if self.homes.get(card["name"], one["name"]) == name]
        found.sort(key=lambda pair: pair[1]["name"] != name)  # its own ones first, in their order
        placed = show([card for card, _ in found], self.notebooks[name], self.folder)
        for card, _ in found:
            card["place"] = f"{name}.html#{card['name']}" if card["name"] in placed else None
        facts = [one["facts"] for card, one in found if card["place"]]
        return sorted({(fact["finished"][:10], fact["commit"]) for fact in facts})


API = {"api/subnet_utils.html": "The package"}
FILES = "files"
"""Folder of a report's figures and tables."""
ELSEWHERE = "no finished notebook of this profile makes it"
"""Why a figure or table of a paper is missing, where `Paper.elsewhere` says no more."""


def expected() -> dict[str, str]:
    """What the report has to show or to name as missing: label -> a few words of its caption, paper by paper."""
    return {label: title for paper in papers().values() for label, title in paper.reproduces.items()}


def _record(path: Path) -> dict[str, Any] | None:
    """The manifest of a notebook; None for a note on something else, which names no notebook."""
    try:
        record = json.loads(path.read_text())
        if "notebook" not in record:
            return None
        provenance_rows(record)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no manifest of a notebook; delete it and run {path.stem} again") from None
    return record


def _card(item: dict[str, Any], page: str, folder: Path) -> dict[str, Any]:
    """A figure or table as the index shows it; files that are gone or changed are named instead of shown."""
    there = [file["name"] for file in item["files"] if (folder / file["name"]).is_file()]
    damages = [damage for damage in (_damage(folder, file) for file in item["files"]) if damage]
    image = next((name for name in there if name.endswith(".png")), None)
    table = next((table_html(folder / name, item["digits"]) for name in there if name.endswith(".csv")), None)
    shown = {"there": there, "damages": damages, "image": image, "table": table}
    usual = {"verdicts": {}, "summary": None, "sources": (), "place": None, "claims": {}}
    return usual | item | shown | {"href": f"{page}#{item['name']}"}


def _damage(folder: Path, file: dict[str, str]) -> str | None:
    path = folder / file["name"]
    if not path.is_file():
        return f"{path.name} is missing."
    changed = hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]
    return f"{path.name} was changed after the notebook made it." if changed else None


def _verdicts(items: Iterable[dict[str, Any]]) -> dict[str, int]:
    counts = sum((Counter(item.get("verdicts", {})) for item in items), Counter())
    return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def _papers(folder: Path, notebooks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the index shows of each paper of which there is something, and last of notebooks of no paper."""
    found = []
    for paper in [*papers().values(), None]:
        own = [notebook for notebook in notebooks if notebook["paper"] == paper]
        shown = {"paper": paper, "name": paper.label if paper else "Other notebooks", "notebooks": own}
        shown["findings"] = [one for one in map(partial(_finding, folder, own), paper.findings if paper else ()) if one]
        shown["rows"] = _place_rows(paper, own, notebooks)
        found += [shown] if shown["rows"] or own else []
    return found


def _finding(folder: Path, notebooks: Sequence[dict[str, Any]], finding: Finding) -> dict[str, Any] | None:
    """In how many rows a claim holds, and what is shown with it; None if the profile has no such rows."""
    cards = {card["name"]: card for notebook in notebooks for card in notebook["cards"]}
    path = folder / f"{finding.table}.csv"
    if finding.table not in cards or not path.is_file() or not path.read_text().strip():
        return None
    rows = pd.read_csv(path)
    rows = rows.query(finding.among) if finding.among else rows
    shown = {"claim": finding.claim, "card": cards[finding.table], "image": cards.get(finding.figure, {}).get("image")}
    return shown | {"holds": len(rows.query(finding.holds)), "of": len(rows)} if len(rows) else None


def _place_rows(
    paper: Paper | None, own: Sequence[dict[str, Any]], notebooks: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The figures and tables of a paper, those that are missing too, then other labels of its own notebooks: label,
    title, why it may be missing, and the (card, notebook) of each item made for it, or with rows that are about it."""
    made = defaultdict(list)
    for notebook in notebooks:
        for card in notebook["cards"]:
            for label in card["paper"]:
                made[label].append((card, notebook))
    whose, elsewhere = (f"{paper.label}, ", paper.elsewhere) if paper else ("", {})
    for notebook in own:
        for card in notebook["cards"]:
            for place, counted in card["claims"].items():
                made[whose + place].append((card | counted, notebook))
    known = dict(paper.reproduces) if paper else {}
    titles = known | (dict(paper.also_shows) if paper else {})
    taken = {label for one in papers().values() for label in (*one.reproduces, *one.also_shows)}
    others = (label for notebook in own for card in notebook["cards"] for label in card["paper"] if label not in taken)
    labels = [label for label in dict.fromkeys([*titles, *others]) if label in known or label in made]
    beyond = [
        {"label": "", "name": f"{whose}beyond it", "title": card["caption"], "items": [(card, notebook)]}
        for notebook in own
        for card in notebook["cards"]
        if card["verdicts"] and not card["paper"] and not card["claims"]
    ]
    return beyond + [
        {
            "label": label,
            "name": _full(label, paper),
            "title": titles.get(label, ""),
            "why": elsewhere.get(label, ELSEWHERE),
            "items": made[label],
        }
        for label in labels
    ]


def _full(label: str, paper: Paper | None) -> str:
    """A label with the name of its paper, which is `paper` if none lists it."""
    whose = next((one for one in papers().values() if label in {**one.reproduces, **one.also_shows}), paper)
    return label if whose is None or label.startswith(whose.label) else f"{whose.label}, {label}"


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


def digest(script: str) -> str:
    """What a page's content security policy calls a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


TEMPLATES = Environment(loader=PackageLoader("subnet_utils.report"), autoescape=True, undefined=StrictUndefined)
TEMPLATES.globals["styles"] = dict.fromkeys((AGREES, HOLDS), "agrees") | dict.fromkeys((DIFFERS, FAILS), "differs")
TEMPLATES.globals["styles"] |= dict.fromkeys((OPEN, NOT_COMPARABLE), "not-comparable")
TEMPLATES.globals["pages"] = {}
TEMPLATES.filters |= {"brief": brief, "significant": significant, "digest": digest, "named": readable.title}
TEMPLATES.filters["differing"] = lambda card: "1" if {DIFFERS, FAILS} & card["verdicts"].keys() else ""
