"""Random controls: the tables of notebooks 04 and 04b.

*Break It Down* (appendix I) trains masks over untrained networks, to see whether its results belong to what a network
has learned or to mask training itself. Beside that stand controls that the paper lacks: random subnetworks of the same
size, which give every ablation effect a permutation p-value, and ablations by other things than zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.papers.break_it_down import tables
from subnet_utils.papers.break_it_down.masks import AnyMask, FinalMask
from subnet_utils.papers.break_it_down.measurements import DifferenceAblation, NullEffects, OtherAblations
from subnet_utils.papers.break_it_down.networks import with_settings
from subnet_utils.report.findings import judged
from subnet_utils.statistics import LEARNED

RUN = ["model", "paper_model", "task", "number", "base_model", "subroutine", "mask_seed"]
"""Columns that identify one discovered mask."""
GROUP = ["model", "paper_model", "task", "subroutine"]
"""Columns of a row of the paper's Table 12, in which singular and plural are one."""


def with_controls(lab: Lab, masks: Sequence[AnyMask]) -> list[AnyMask]:
    """The masks for which the study wants controls."""
    seeds = lab.study.break_it_down.controls.seeds
    return [mask for mask in masks if seeds is None or mask.seed in seeds]


def random_masks(lab: Lab) -> list[FinalMask]:
    """The masks that count, to be found in untrained networks with the same settings (appendix I).

    Only lambda and the deviation of the weights may be others: `control_l0` and `control_deviation` of `MaskTraining`.
    """
    as_printed, found = lab.study.break_it_down.controls.as_printed, []
    for mask in with_controls(lab, tables.final_masks(lab)):
        training, settings = mask.base.experiment.masks, mask.settings
        seed = mask.seed if as_printed else None
        if training.control_l0 is not None:
            settings = replace(settings, masking=with_settings(settings.masking, l0=training.control_l0))
        base = mask.base.untrained(mask_seed=seed, deviation=training.control_deviation)
        found.append(mask.but(base=base, settings=settings))
    return found


def find_masks(lab: Lab) -> pd.DataFrame:
    """Find the masks over untrained networks, as `tables.find_masks` finds the others."""
    return tables.mask_table(lab, random_masks(lab), "masks over untrained networks")


def random_effects(lab: Lab) -> pd.DataFrame:
    """Effects of masks over untrained networks, as `tables.effects` (Figures 16 and 17).

    `base_accuracy` is that of the trained network that each is a control to: where it did not learn its task, the
    control has nothing to be compared with. Raises ValueError if no mask could be trained.
    """
    return tables.effects_of(lab, tables.used(lab, random_masks(lab), "masks over untrained networks"))


def null_effects(lab: Lab, masks: Sequence[AnyMask]) -> list[NullEffects]:
    """The effects of random subnetworks beside some masks."""
    return [NullEffects.of(mask, draws=lab.study.break_it_down.controls.draws) for mask in masks]


def other_ablations(masks: Sequence[AnyMask]) -> list[OtherAblations]:
    """The other ablations of some masks."""
    return [OtherAblations.of(mask, donor=mask.base.untrained()) for mask in masks]


def difference_ablations(masks: Sequence[AnyMask]) -> list[DifferenceAblation]:
    """Of each mask that has one, beside the mask of the other subroutine with the same base and seed."""
    pairs = [
        (one, other)
        for one in masks
        for other in masks
        if one.base == other.base and one.seed == other.seed and one.subroutine != other.subroutine
    ]
    return [DifferenceAblation.of(one, other=other) for one, other in pairs]


def null_draws(lab: Lab) -> pd.DataFrame:
    """Ablation effects of random subnetworks, a row for each discovered mask, kind and draw.

    kind: 'random', with as many weights in every layer as the mask; 'complement', the same outside of the mask.
    """
    masks = with_controls(lab, tables.used_masks(lab))
    return tables.measured(lab, null_effects(lab, masks), "random subnetworks", "draws")


def ablations(lab: Lab) -> pd.DataFrame:
    """Effects of every mask under each of the `OtherAblations`, a row each."""
    masks = with_controls(lab, tables.used_masks(lab))
    return tables.measured(lab, other_ablations(masks), "other ablations")


def without_difference(lab: Lab, effects: pd.DataFrame) -> pd.DataFrame:
    """Effects of taking out A, A - B and a random part of A of that size: a row for each base model and ablation.

    effects: from `tables.effects`, which has those of A. A is the mask of a subroutine, B that of the other one. Means
    over masks and draws. Columns model, task, number, base_model, subroutine, base_accuracy, ablation, removed (share
    of the masked weights), target_accuracy, other_accuracy, difference (the effect: below 0 as claimed).
    """
    found = tables.measured(lab, difference_ablations(tables.used_masks(lab)), "differences of masks")
    whole = effects[effects["network"] == "ablated"].assign(ablation="A")
    whole["removed"] = 1 - whole["density"]  # the density is that of what is left
    names = {"difference": "A - B", "random part": "random part of A"}
    table = pd.concat([whole, found.replace({"ablation": names})])
    of = ["model", "task", "number", "base_model", "subroutine", "ablation"]
    values = ["base_accuracy", "removed", "target_accuracy", "other_accuracy", "difference"]
    return table.groupby(of, sort=False, dropna=False)[values].mean().reset_index()


def sharper(table: pd.DataFrame) -> pd.DataFrame:
    """Does taking out A - B tell subroutines apart better? A row a model and comparison, over base models that learned.

    table: from `without_difference`. ours: mean change of the effect, with its 95% interval; the claim is that it is
    below -.05.
    """
    rows, learned = [], table[table["base_accuracy"] >= LEARNED]
    for model, some in learned.groupby("model", sort=False):
        network = some["task"] + " " + some["base_model"]
        effect = some.assign(network=network).groupby(["network", "ablation"])["difference"].mean().unstack()
        for than in ("A", "random part of A"):
            change = effect["A - B"] - effect[than]
            about = {"model": model, "claim": f"the effect without A - B is stronger than without {than}"}
            rows.append(about | judged(change, effect.index, (-math.inf, -0.05)))
    return pd.DataFrame(rows)


def mean_ablations(table: pd.DataFrame) -> pd.DataFrame:
    """Means of `ablations` over the base models that learned their task, of each its masks' mean: a row per ablation.

    A task that no base model learned has no row.
    """
    of = [*GROUP[:3], "number", GROUP[3], "ablation"]
    values = ["target_accuracy", "other_accuracy", "difference"]
    learned = table[table["base_accuracy"] >= LEARNED]
    bases = learned.groupby([*of, "base_model"], sort=False, dropna=False)[values].mean()
    groups = bases.groupby(level=of, sort=False, dropna=False)
    means = groups.mean()
    means.insert(0, "n_bases", groups.size())
    return means.reset_index()


def permutation_tests(effects: pd.DataFrame, draws: pd.DataFrame) -> pd.DataFrame:
    """How unusual each ablation is among those of random subnetworks of its size: a row per mask and kind.

    effects: from `tables.effects`; draws: from `null_draws`. Columns: observed difference of the ablated model,
    mean and sd of the draws, n_draws, and p, the share of draws (the observed one among them) with a difference as low
    or lower: one-sided, since the claim is that ablation hurts the target more than the other subroutine.
    """
    return _tests(effects, draws, RUN).drop(columns="n_masks")


def grouped_tests(effects: pd.DataFrame, draws: pd.DataFrame) -> pd.DataFrame:
    """The same for the mean over all masks of a model, task and subroutine, with the mean of their draws of one number.

    Masks of bases below 90% are left out, and masks without a control of the kind. Draws of one number fill all masks
    in the same random order, so those of masks of one shape are nested. Their mean varies more than that of independent
    draws would, and p is cautious.
    """
    return _tests(effects[effects["base_accuracy"] >= LEARNED], draws, GROUP)


def _tests(effects: pd.DataFrame, draws: pd.DataFrame, of: list[str]) -> pd.DataFrame:
    """The permutation tests of the mean over the masks of each group and kind."""
    ablated, rows = effects[effects["network"] == "ablated"], []
    own = ablated[[*RUN, "difference"]].rename(columns={"difference": "observed"})
    for key, group in draws.merge(own, on=RUN).groupby([*of, "kind"], sort=False):
        null, masks = group.groupby("draw")["difference"].mean(), group.drop_duplicates(RUN)
        observed = masks["observed"].mean()
        low = (null <= observed + 1e-12).sum()  # ties count, whatever the rounding of a mean
        rows.append([*key, len(masks), observed, null.mean(), null.std(), len(null), (1 + low) / (1 + len(null))])
    return pd.DataFrame(rows, columns=[*of, "kind", "n_masks", "observed", "null_mean", "null_sd", "n_draws", "p"])
