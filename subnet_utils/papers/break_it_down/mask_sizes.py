"""Subnetworks of other sizes: whether what an ablation shows depends on how many weights are taken out.

*Break It Down* trains every mask with one lambda, the weight of the penalty on a mask's size (appendix B, equation 2),
and so measures an ablation of one size. Another lambda gives subnetworks of the same subroutine that are larger or
smaller. The paper has no such control.
"""

from dataclasses import replace

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.papers.break_it_down import random_controls, tables
from subnet_utils.papers.break_it_down.masks import FinalMask
from subnet_utils.papers.break_it_down.networks import with_settings
from subnet_utils.statistics import LEARNED, t_interval

OF_A_PANEL = ["model", "paper_model", "task", "number", "subroutine"]
OF_A_MASK = [*OF_A_PANEL, "base_model", "mask_seed"]


def factors(lab: Lab) -> list[float]:
    """What lambda is multiplied by: first by 1, as for all other results."""
    return [1.0, *(float(factor) for factor in lab.study.break_it_down.controls.l0_factors or () if factor != 1)]


def masks(lab: Lab) -> list[tuple[float, FinalMask]]:
    """The masks with controls, and their twins with lambda multiplied by each factor."""
    own = random_controls.with_controls(lab, tables.used_masks(lab))
    return [(factor, with_factor(mask, factor)) for factor in factors(lab) for mask in own]


def with_factor(mask: FinalMask, factor: float) -> FinalMask:
    """The same mask with lambda multiplied; a method without lambda stays as it is."""
    masking = with_settings(mask.settings.masking, l0=_l0(mask) * factor)
    return mask.but(settings=replace(mask.settings, masking=masking))


def find_masks(lab: Lab) -> pd.DataFrame:
    """Find the masks with controls and their twins, as `tables.find_masks` finds the others, with `factor`."""
    chosen = masks(lab)
    found = tables.mask_table(lab, [mask for _, mask in chosen], "masks of other sizes")
    return found.assign(factor=[factor for factor, _ in chosen])


def effects_by_size(lab: Lab) -> pd.DataFrame:
    """Effects of the masks with controls and of masks that differ from them in lambda alone: a row each.

    Columns: those that identify a mask; `factor`, by which its lambda is multiplied, and `l0`, that lambda; `density`;
    accuracies of the subnetwork on its own task (`own_task`) and of the ablated model on both probe sets (`target`,
    `other`). A mask whose training diverged has no row. Without `controls.l0_factors` there is the factor 1 alone.
    """
    faults = find_masks(lab)["fault"]
    used = [one for one, fault in zip(masks(lab), faults, strict=True) if not fault]
    effects = tables.effects_of(lab, [mask for _, mask in used])
    subnetwork, ablated = (effects[effects["network"] == name].reset_index() for name in ("subnetwork", "ablated"))
    found = subnetwork[[*OF_A_MASK, "base_accuracy", "key", "density"]]
    found = found.assign(factor=[factor for factor, _ in used], l0=[_l0(mask) for _, mask in used])
    accuracies = {"target": ablated["target_accuracy"], "other": ablated["other_accuracy"]}
    return found.assign(own_task=subnetwork["own_task_accuracy"], **accuracies)


def by_size(table: pd.DataFrame) -> pd.DataFrame:
    """Means of `effects_by_size` over the base models that learned their task: a row per subroutine and factor.

    Beside the means stands in how many of the base models the subnetwork solves its own task (`solved`), and in how
    many of these the ablated model solves it, too (`spared`): the subroutine is not computed there, or not only there.
    """
    learned = table[table["base_accuracy"] >= LEARNED]
    solved = learned["own_task"] >= LEARNED
    counts = {"solved": solved, "spared": solved & (learned["target"] >= LEARNED)}
    groups = learned.assign(**counts).groupby([*OF_A_PANEL, "factor"], sort=False)
    means = groups[["density", "own_task", "target", "other"]].mean()
    return means.assign(**groups[list(counts)].sum(), n_bases=groups["base_model"].nunique()).reset_index()


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """What another lambda changes: a row per factor and accuracy, over the base models of all tasks that learned.

    Columns: `change`, the mean difference from lambda itself, `low` and `high`, its 95% t interval over base models,
    each of which counts with the mean over its masks; n_bases, n_masks. Masks that lambda itself has no twin of are
    left out.
    """
    learned, rows = table[table["base_accuracy"] >= LEARNED], []
    both = learned.merge(learned[learned["factor"] == 1], on=OF_A_MASK, suffixes=("", "_usual"))
    for factor, runs in both[both["factor"] != 1].groupby("factor"):
        bases = runs[["model", "task", "base_model"]].agg(" ".join, axis=1)
        for accuracy in ("own_task", "target", "other"):
            interval = t_interval(runs[accuracy] - runs[f"{accuracy}_usual"], bases)
            rows.append([factor, accuracy, *interval, bases.nunique(), len(runs)])
    return pd.DataFrame(rows, columns=["factor", "accuracy", "change", "low", "high", "n_bases", "n_masks"])


def _l0(mask: FinalMask) -> float:
    return getattr(mask.settings.masking, "l0", float("nan"))
