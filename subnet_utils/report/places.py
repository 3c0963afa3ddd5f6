"""The papers' figures and tables, and what a profile made for each: nothing that is missing goes unmentioned."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

PLACES = {
    "Figure 1": "Odd-one-out tasks",
    "Figure 2": "The experiment, on one network",
    "Figure 3": "Three inside-contact stimuli",
    "Figure 4": "Differences, ResNet50 and BERT-small",
    "Figure 5": "Differences, pretrained against from scratch",
    "Figure 6": "Differences, Wide ResNet50",
    "Figure 7": "Differences, vision, pretrained against from scratch",
    "Figure 8": "Accuracies, ResNet50",
    "Figure 9": "Accuracies, Wide ResNet50",
    "Figure 10": "Accuracies, ResNet50 + SimCLR",
    "Figure 11": "Accuracies, BERT-small",
    "Figure 12": "Accuracies, BERT-small + LM",
    "Figure 13": "Stimuli, inside-contact",
    "Figure 14": "Stimuli, inside-number",
    "Figure 15": "Stimuli, number-contact",
    "Figure 16": "Masks over a random ResNet50",
    "Figure 17": "Masks over a random BERT-small",
    "Figure 18": "Differences, pruned ResNet50",
    "Figure 19": "Overlap of subnetworks",
    "Table 1": "Tests of the differences",
    "Table 2": "Accuracies of base models",
    "Table 3": "Accuracies of pretrained base models",
    "Table 4": "ViT hyperparameter search",
    "Table 5": "Subnetwork sizes, ResNet50",
    "Table 6": "Subnetwork sizes, ResNet50 + SimCLR",
    "Table 7": "Subnetwork sizes, Wide ResNet50",
    "Table 8": "Subnetwork sizes, BERT, agreement",
    "Table 9": "Subnetwork sizes, BERT, anaphora",
    "Table 10": "Subnetwork sizes, BERT + LM, agreement",
    "Table 11": "Subnetwork sizes, BERT + LM, anaphora",
    "Table 12": "Trained against random networks",
    "Table 13": "Overlap of subnetworks for inside",
    "Table 14": "Overlap of subnetworks for number",
    "Table 15": "Overlap between inside and number",
    # *Instilling Inductive Biases with Subnetworks*; its Figures 1 and 2 are drawings
    "Subtask Induction, Figure 3": "Test accuracy by disambiguating samples",
    "Subtask Induction, Figure 4": "Mean-pooled images",
    "Subtask Induction, Figure 5": "Training dynamics with images",
    "Subtask Induction, Figure 6": "Figure 3, depth by depth",
    "Subtask Induction, Figure 7": "Frozen and trained subnetworks",
    "Subtask Induction, Figure 8": "ab for other computations",
    "Subtask Induction, Figure 9": "a^2 for two computations",
    "Subtask Induction, Figure 10": "Two subnetworks for one computation",
    "Subtask Induction, Figure 11": "Discovery of shape subnetworks",
    "Subtask Induction, Table 1": "Accuracies and cue conflict",
    "Subtask Induction, Table 2": "Shape subnetworks on pooled images",
    "Subtask Induction, Table 3": "Sizes of subnetworks by depth",
    # *The Heuristic Core*, from its published numbers and with a network of our own
    "Heuristic Core, Figure 2": "Accuracies of pruned networks",
    "Heuristic Core, Figure 3": "Three that generalize differently",
    "Heuristic Core, Figure 4": "Accuracy by sparsity",
    "Heuristic Core, Figure 5": "Heads that subnetworks share",
    "Heuristic Core, Figure 6": "Effective size while fine-tuning",
    "Heuristic Core, Figure 7": "Attention of heads of the core",
    "Heuristic Core, Figure 9": "Where heads of the core look",
    "Heuristic Core, Figure 10": "Learning of heuristics and of more",
    "Heuristic Core, Figure 12": "All subcases of HANS",
    "Heuristic Core, Figure 13": "Frequencies of heads",
    "Heuristic Core, Table 3": "Ablation of heads of the core",
}
"""What the report has to show or to name as missing, in the papers' order, each with a few words of its caption. Those
of *Break It Down* have plain numbers, those of other papers the paper's name before them."""

OTHERS = {
    "Appendix B": "Annealing of the mask",
    "Appendix C": "Hyperparameter search of masks",
    "Appendix F": "Examples of the language tasks",
    "Discrepancies": "Where print, released code and ours differ",
    "Subtask Induction, Appendix C.3": "Accuracies by class",
}
"""What the report shows besides: it has no number of its own in the papers, and is not missed."""


def missing(records: Sequence[dict[str, Any]]) -> list[str]:
    """Which of PLACES none of these manifests has a figure or table for."""
    made = {label for record in records for item in record["items"] for label in item["paper"]}
    return [label for label in PLACES if label not in made]


def place_rows(notebooks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each of PLACES and then for each other label, with the items made for it: none if it is missing.

    notebooks: as the index shows them, each with its `cards`.
    """
    made = defaultdict(list)
    for notebook in notebooks:
        for card in notebook["cards"]:
            for label in card["paper"]:
                made[label].append(_entry(card, label, notebook))
    others, titles = sorted(made.keys() - PLACES.keys(), key=_order), PLACES | OTHERS
    return [{"label": label, "title": titles.get(label, ""), "items": made[label]} for label in [*PLACES, *others]]


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
