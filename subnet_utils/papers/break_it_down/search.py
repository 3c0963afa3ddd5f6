"""The search over mask hyperparameters, and the rule that picks a winner (appendix C)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.break_it_down.section import MaskTraining
from subnet_utils.papers.break_it_down.statistics import clamped_difference
from subnet_utils.statistics import LEARNED


@dataclass(frozen=True)
class Point:
    """One setting of the search: Adam's learning rate and the logits' first value, which only a method that trains
    logits uses, and the first masked stage."""

    learning_rate: float
    mask_init: float
    start: str


def grid(masks: MaskTraining) -> list[Point]:
    """All settings of a study's search, in the order in which ties are broken."""
    rates, inits = masks.learning_rates, masks.inits
    if not masks.masking.trains:
        rates, inits = rates[:1], inits[:1]
    return [Point(*values) for values in product(rates, inits, masks.starts)]


def score(own_task: float, ablated_target: float, ablated_other: float) -> float:
    """Degree of structural compositionality of one mask, on validation data.

    The ablated model's accuracy on Test Other minus that on Test Target, each clamped to [.25, 1]; 0 if the subnetwork
    itself is below 90% on the task it was trained on.
    """
    return clamped_difference(ablated_other, ablated_target) if own_task >= LEARNED else 0.0


def best(scores: Sequence[float]) -> int:
    """Position of the winner of one search: the highest score, the first on ties.

    A mask that fails its own task, score 0, beats one whose ablation helps the target: so it was in the authors' run,
    where appendix C has "must achieve at least 90% accuracy". One whose training diverged, score NaN, comes last.
    """
    return int(pd.Series(scores, dtype=float).fillna(-math.inf).argmax())


def selected_by_authors(
    paper_model: str, task: str, number: str, subroutine: str, base: int, *, condition: str = "trained"
) -> Point:
    """The setting that the authors' search picked for a base model (numbered from 1), 'trained' or 'pruned'.

    Raises ValueError if they have no such base model.
    """
    table = reference.load("selected_masks")
    cell = {"condition": condition, "model": paper_model, "task": task, "number": number,
              "subroutine": subroutine, "base": base}  # fmt: skip
    rows = table[(table[list(cell)] == pd.Series(cell)).all(axis=1)]
    if len(rows) != 1:
        raise ValueError(f"the authors selected no mask for {cell}; use masks.search: grid")
    row = rows.iloc[0]
    return Point(float(row["learning_rate"]), float(row["mask_init"]), str(row["mask_start"]))
