"""*Instilling Inductive Biases with Subnetworks* (Zhang, Lepori and Pavlick 2024): tables of its arithmetic part.

Seeds are the independent observations: each has a source network, a mask, data, controls and new weights of its own.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault, Step, fault_of, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.subtask_induction import arithmetic_steps, reference
from subnet_utils.papers.subtask_induction.arithmetic_steps import FOUND, OfSubtask, settings_of
from subnet_utils.papers.subtask_induction.chosen_mask import ChosenMask
from subnet_utils.papers.subtask_induction.comparison import ahead, compared, printed, say
from subnet_utils.papers.subtask_induction.conditions import VARIANTS
from subnet_utils.report.comparison import SIZE, at_paper_size
from subnet_utils.report.findings import SHARE, groups, interval
from subnet_utils.tasks.modular_arithmetic import rows_of

MASK = ["source", "subtask", "layers"]
"""Columns that say what a mask computes, in which network."""
INDUCTION = ["source", "subtask", "target"]
ABOUT = [*INDUCTION, "layers"]
"""Columns that identify one induction at one depth."""


def sources(lab: Lab) -> pd.DataFrame:
    """The source networks: accuracy on held-out rows and epochs, a row each."""
    steps, rows = arithmetic_steps.sources(lab), []
    for step, artefact in zip(steps, make_all(lab, steps, "source networks"), strict=True):
        result = artefact.json("result")
        about = {"source": step.computation, "layers": step.layers, "seed": step.seed}
        measured = {name: result[name] for name in ("validation_accuracy", "test_accuracy", "epochs")}
        learned = result["test_accuracy"] >= 0.999  # as appendix B.1 has it
        rows.append(about | measured | {"learned": learned, "key": artefact.key})
    return pd.DataFrame(rows)


def subtasks(lab: Lab) -> pd.DataFrame:
    """Every mask that was tried: accuracy on the subtask, density, and which one is taken (Table 3).

    Raises Fault if no mask at all came to its end.
    """
    chosen = arithmetic_steps.chosen_masks(lab)
    _finished(lab, chosen, "subtask masks")
    return pd.DataFrame(
        mask.about | row | {"test_accuracy": mask.result(lab).get("test_accuracy"), "key": mask.key(lab)}
        for one in chosen
        for mask, row in one.rows(lab)
    )


def densities(found: pd.DataFrame, *, profile: str) -> pd.DataFrame:
    """Table 3: density of the chosen masks by depth, the paper's next to ours. found: from `subtasks`.

    Verdicts only at the profile `paper`, since a smaller network has larger subnetworks, and where every seed's mask
    computes the subtask.
    """
    rows = []
    for about, group in groups(found[found["chosen"]], *MASK):
        found_in = group["test_accuracy"] >= FOUND  # else it is not the size of what computes the subtask
        quantity = f"density of {about['subtask']} in {about['source']}"
        paper = printed("subtask_induction", quantity=quantity, layers=str(about["layers"]))
        judge = at_paper_size(profile) and bool(found_in.all())
        size = compared(group["density"], paper, margin=SIZE * paper, comparable=judge)
        judged = {"verdict": size.pop("verdict")}
        accuracy = {"subtask_accuracy": group["test_accuracy"].mean(), "found": f"{found_in.sum()} of {len(group)}"}
        rows.append(about | size | accuracy | judged)
    return pd.DataFrame(rows)


def ablations(lab: Lab) -> pd.DataFrame:
    """Accuracies of the source networks whole, as the subnetwork alone, and without it or a random one of its size."""
    made = _finished(lab, arithmetic_steps.ablations(lab), "ablations")
    return pd.DataFrame(
        step.first.about | {"key": artefact.key} | row for step, artefact in made for row in artefact.json("result")
    )


def ablation_tests(table: pd.DataFrame) -> pd.DataFrame:
    """What ablating a subtask's mask costs on T1, next to random masks of its size. table: from `ablations`.

    lost: by how much less is right without it than without a random one, with its interval over seeds. p: share of the
    draws, the mask itself among them, that cost as much; over seeds, of the mean of every draw.
    """
    rows = []
    for about, group in groups(table, *MASK):
        means = group.groupby(["network", "draw"])["source_accuracy"].mean()
        own = {name: float(means[name].iloc[0]) for name in ("whole network", "subnetwork", "ablated")}
        random = means["random ablated"]
        about |= {name.replace(" ", "_"): value for name, value in own.items()}
        about |= {"random_ablated": random.mean(), "random_lowest": random.min()}
        p = (1 + (random <= own["ablated"]).sum()) / (1 + len(random))
        without = group.groupby(["network", "seed"])["source_accuracy"].mean()
        rows.append(about | ahead(without["random ablated"], without["ablated"], "lost") | {"p": p})
    return pd.DataFrame(rows)


def transfers(lab: Lab) -> pd.DataFrame:
    """The table behind Figures 3 and 6 to 10: a row for each induction, depth, seed, number of rows and condition.

    A control that cannot be had, because the complement of a dense mask is too small, is left out, and a line says so;
    so are the networks that would inherit from a mask whose training diverged.
    """
    made, rows, faults = _finished(lab, arithmetic_steps.transfers(lab), "transfers"), [], []
    chances = {target: chance(lab, target) for target in {step.target for step, _ in made}}
    for step, artefact in made:
        about = step.first.about | {"target": step.target, "samples": step.samples, "chance": chances[step.target]}
        for row in artefact.json("result"):
            if "fault" in row:
                faults.append(f"{row['condition']}, {step.first.label}: {row['fault']}")
            else:
                rows.append(about | row | {"key": artefact.key})
    say(faults)
    return pd.DataFrame(rows)


def _finished(lab: Lab, steps: Sequence[ChosenMask | OfSubtask], label: str) -> list[tuple[Step, Artefact]]:
    """Make all steps. Those with a result, with it; a line names each of the others. Raises Fault if all are others."""
    made = list(zip(steps, make_all(lab, steps, label), strict=True))
    faults = [f"{step.first.label}: {fault}" for step, artefact in made if (fault := fault_of(artefact))]
    say(faults)
    if len(faults) == len(made):
        raise Fault(faults[0])
    return [(step, artefact) for step, artefact in made if not fault_of(artefact)]


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """Mean test accuracy with a 95% t interval over seeds, for each induction, depth, condition and number of rows."""
    return pd.DataFrame(
        about | interval(group["test_accuracy"], range(len(group)), "mean", SHARE)
        for about, group in groups(table, *ABOUT, "chance", "condition", "samples")
    )


def over_depths(table: pd.DataFrame) -> pd.DataFrame:
    """The table with each seed's mean over depths in place of the depths: the left of Figure 3."""
    keys = [*INDUCTION, "chance", "condition", "samples", "seed"]
    return table.groupby(keys, sort=False)["test_accuracy"].mean().reset_index().assign(layers="all")


def samples_needed(table: pd.DataFrame, *, level: float = 0.99) -> pd.DataFrame:
    """Disambiguating rows to a test accuracy, for each induction, depth and condition.

    Of every seed the first number of rows at which it is reached; infinite, or censored, if it never is. Over seeds
    `median`, and `low` and `high`, the smallest and largest.
    """
    rows = []
    for about, group in groups(table, *ABOUT, "condition"):
        reached = group[group["test_accuracy"] >= level].groupby("seed")["samples"].min()
        first = reached.reindex(group["seed"].unique()).fillna(math.inf).to_numpy()
        about |= {"median": np.median(first), "low": first.min(), "high": first.max()}
        counts = {"censored": int(np.isinf(first).sum()), "n_runs": len(first), "most_tried": group["samples"].max()}
        rows.append(about | counts)
    return pd.DataFrame(rows)


def first(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the study's first induction, which is done at all depths and under all conditions."""
    return _of(table, settings_of(lab).inductions[0].model_dump().values())


def _of(table: pd.DataFrame, induction: Iterable[str]) -> pd.DataFrame:
    return table[(table[INDUCTION] == list(induction)).all(axis=1)]


def gaps(table: pd.DataFrame) -> pd.DataFrame:
    """What the conclusion is worth under each reading of the method: the subnetwork's advantage over its control.

    Differences in test accuracy of one seed, depth and number of rows; their mean of each seed; of these the mean with
    a 95% t interval. Readings that lack a condition in the table are left out. table: of one induction.
    """
    return pd.DataFrame(
        {"variant": name, "condition": condition, "control": control} | _advantage(table, condition, control)
        for name, (condition, control) in VARIANTS.items()
        if {condition, control} <= set(table["condition"])
    )


def gaps_by_samples(table: pd.DataFrame) -> pd.DataFrame:
    """The subnetwork's advantage over every other condition, at each number of rows and each depth ('all': the mean
    of the depths): columns of the induction, layers, control, samples, both means, advantage, low, high, n_runs.

    Intervals are single ones: where one of many excludes 0 by little, it may do so by chance.
    """
    rows = []
    for about, whole in groups(table, *INDUCTION):
        depths = list(whole.groupby("layers"))
        for layers, group in [*depths, ("all", whole)] if len(depths) > 1 else depths:
            controls = [name for name in group["condition"].unique() if name != "subnetwork"]
            for control, (samples, part) in product(controls, group.groupby("samples")):
                found = _advantage(part, "subnetwork", control)
                if found["n_runs"]:
                    rows.append(about | {"layers": layers, "control": control, "samples": samples} | found)
    return pd.DataFrame(rows).rename(columns={"condition_mean": "subnetwork_mean"})


def _advantage(table: pd.DataFrame, condition: str, control: str) -> dict[str, float]:
    """By how much one condition is ahead of another with the same seed, depth and number of rows, and both means."""
    wide = table.pivot_table(index=["seed", "layers", "samples"], columns="condition", values="test_accuracy")
    wide = wide.reindex(columns=[condition, control]).dropna()
    means = {"condition_mean": wide[condition].mean(), "control_mean": wide[control].mean()}
    return means | ahead(wide[condition], wide[control], "advantage")


def with_reference(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """Our mean accuracies next to those of an independent implementation at the same sizes; empty if there are none.

    `within_05`: whether the two differ by no more than .05, about what three seeds allow.
    """
    settings, measured = settings_of(lab), reference.load("induction_measured")
    measured = measured[(measured["max"] == settings.max) & (measured["width"] == settings.width)]
    keys, theirs = ["layers", "samples", "condition"], ["measured", "seeds"]
    ours = curves(_of(table, ("a+ab", "ab", "a^2+ab"))).reindex(columns=[*keys, "mean", "low", "high", "n_runs"])
    ours = ours.astype({"condition": object})  # where there are none, too
    joined = measured[[*keys, *theirs]].merge(ours, on=keys)
    close = (joined["measured"] - joined["mean"]).abs() <= 0.05
    return joined.rename(columns={"mean": "ours", "low": "ours_low", "high": "ours_high"}).assign(within_05=close)


def further(curves: pd.DataFrame) -> dict[int, list[tuple[str, pd.DataFrame]]]:
    """Panels of Figures 8 to 10, (title, curves) each; a figure of which the study has no panel is left out."""
    found: dict[int, list[tuple[str, pd.DataFrame]]] = {}
    for one in reference.load("panels").itertuples():
        rows = _of(curves, (one.source, one.subtask, one.target))
        if len(rows):
            deepest = rows[rows["layers"] == rows["layers"].max()]
            found.setdefault(one.figure, []).append((f"{one.subtask} for {one.target}", deepest))
    return found


def missing(number: int, panels: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """For a caption: the panels of the paper's figure that the study does not have, or nothing."""
    rows = reference.load("panels").query("figure == @number")
    titles = (f"{one.subtask} for {one.target}" for one in rows.itertuples())
    others = [title for title in titles if title not in dict(panels)]
    return f" Not in this profile: {' and '.join(others)}.".replace("^2", "²").replace("^3", "³") if others else ""


def caption(panels: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """What a figure's panels show: the subnetworks, where they were found, their new tasks, and the depths."""
    moves = dict.fromkeys((one.subtask, one.source, one.target) for _, rows in panels for one in rows.itertuples())
    text = "; ".join(f"{subtask}, found in {source}, moved to {target}" for subtask, source, target in moves)
    depths = sorted({int(layers) for _, rows in panels for layers in rows["layers"]})
    return f"{text} ({' and '.join(map(str, depths))} layers).".replace("^2", "²").replace("^3", "³")


def chance(lab: Lab, computation: str) -> float:
    """Share of the most common answer among all pairs."""
    settings = settings_of(lab)
    numbers = torch.arange(settings.max)
    answers = rows_of(computation, torch.cartesian_prod(numbers, numbers), maximum=settings.max, p=settings.p).answers
    return float(answers.bincount().max() / len(answers))
