"""The papers' figures and tables, and what a profile made for each: nothing that is missing goes unmentioned."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from subnet_utils.core.papers import papers


def places() -> dict[str, str]:
    """What the report has to show or to name as missing: label -> a few words of its caption, paper by paper."""
    return {label: title for paper in papers().values() for label, title in paper.places.items()}


def missing(records: Sequence[dict[str, Any]]) -> list[str]:
    """Which of `places` none of these manifests has a figure or table for."""
    made = {label for record in records for item in record["items"] for label in item["paper"]}
    return [label for label in places() if label not in made]


def place_rows(notebooks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each of `places` and then for each other label, with the items made for it: none if it is missing.

    notebooks: as the index shows them, each with its `cards`.
    """
    made = defaultdict(list)
    for notebook in notebooks:
        for card in notebook["cards"]:
            for label in card["paper"]:
                made[label].append(_entry(card, label, notebook))
    known = places()
    others = sorted(made.keys() - known.keys(), key=_order)
    titles = known | {label: title for paper in papers().values() for label, title in paper.other_places.items()}
    return [{"label": label, "title": titles.get(label, ""), "items": made[label]} for label in [*known, *others]]


def _entry(card: dict[str, Any], label: str, notebook: dict[str, Any]) -> dict[str, Any]:
    """One item of a row. Items are never pooled: those of Table 5 are numbers of weights and shares of them."""
    entry = {"name": card["name"], "anchor": card["anchor"], "notebook": notebook["name"], "page": notebook["page"]}
    summary = card.get("summary") or {}  # none in figures, in tables of other columns, and in older manifests
    counted = summary or card["verdicts"]
    return entry | {
        "paper": significant(summary.get("paper")),
        "ours": significant(summary.get("ours")),
        "rows": f"{summary['rows']:,}" if summary else "",
        "runs": f"{summary['runs']:,}" if summary.get("runs") is not None else "",
        "verdicts": card["verdicts"],
        # what was counted over several of the paper's tables at once says so
        "also": brief([other for other in card["paper"] if other != label]) if counted else "",
    }


def brief(labels: Sequence[str]) -> str:
    """Labels in a few words: "Table 5, 7, Figure 3" for Table 5, Table 7 and Figure 3."""
    words, before = [], ""
    for label in labels:
        kind, _, number = label.rpartition(" ")
        words.append(number if kind == before else label)
        before = kind
    return ", ".join(words)


def significant(value: float | None) -> str:
    """A number with three significant digits, written out; '' for none."""
    if value is None:
        return ""
    value = float(f"{value:.3g}")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _order(label: str) -> list[str | int]:
    """Text and numbers in turn, so that Appendix 4 comes before Appendix 13."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)]
