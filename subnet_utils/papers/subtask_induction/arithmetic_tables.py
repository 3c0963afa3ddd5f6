"""*Instilling Inductive Biases with Subnetworks* (Zhang, Lepori and Pavlick 2024): tables of its arithmetic part.

Each function returns one tidy table of a study and makes what is not there yet: source networks, masks, transfers.
Seeds are the independent observations: each has a source network, a mask, data, controls and new weights of its own.
"""

import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault, Step, fault_of, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.subtask_induction import arithmetic_steps, reference
from subnet_utils.papers.subtask_induction.arithmetic_steps import FOUND, OfSubtask, settings_of
from subnet_utils.papers.subtask_induction.arithmetic_task import rows_of
from subnet_utils.papers.subtask_induction.chosen_mask import ChosenMask
from subnet_utils.papers.subtask_induction.comparison import compared, interval
from subnet_utils.papers.subtask_induction.conditions import VARIANTS

LEARNED = 0.999
"""Accuracy from which on a source network has learned its computation (appendix B.1)."""
ABOUT = ["source", "subtask", "target", "layers"]
"""Columns that identify one induction at one depth."""
PANELS = {
    8: (("a+ab", "ab", "a^2+ab+b^2"), ("a+ab", "ab", "a^3+ab")),
    9: (("a^2+b^2", "a^2", "a^2+ab+b^2"), ("a^2+b^2", "a^2", "a^2+ab")),
    10: (
        ("a^2+ab", "a+b", "a^2-b^2"),
        ("a^2+b^2", "a^2", "a^2-b^2"),
        ("a+ab", "ab", "a^3+ab"),
        ("a^2+b^2", "a^2", "a^3+ab"),
    ),
}
"""Source, subtask and target of each panel."""


def sources(lab: Lab) -> pd.DataFrame:
    """The source networks: accuracy on held-out rows and epochs, a row each."""
    steps, rows = arithmetic_steps.sources(lab), []
    for step, artefact in zip(steps, make_all(lab, steps, "source networks"), strict=True):
        result = artefact.json("result")
        measured = {name: result[name] for name in ("validation_accuracy", "test_accuracy", "epochs")}
        about = {"source": step.computation, "layers": step.layers, "seed": step.seed}
        rows.append(about | measured | {"learned": result["test_accuracy"] >= LEARNED, "key": artefact.key})
    return pd.DataFrame(rows)


def subtasks(lab: Lab) -> pd.DataFrame:
    """Every mask that was tried: accuracy on the subtask, density, and which one is taken (Table 3).

    Raises Fault if no mask at all came to its end.
    """
    chosen, rows = arithmetic_steps.chosen_masks(lab), []
    _finished(lab, chosen, "subtask masks")
    for one in chosen:
        taken = one.taken(lab)
        for mask in one.candidates:
            found = mask.result(lab)
            size = {} if "fault" in found else {"density": found["active"] / found["total"], "active": found["active"]}
            own = {"l0": mask.l0, "test_accuracy": found.get("test_accuracy"), **size}
            rows.append(mask.about | own | {"chosen": mask == taken, "key": mask.key(lab)})
    return pd.DataFrame(rows)


def densities(found: pd.DataFrame, *, profile: str) -> pd.DataFrame:
    """Table 3: density of the chosen masks by depth, the paper's next to ours. found: from `subtasks`.

    Verdicts only at the profile `paper`, since a smaller network has larger subnetworks, and where every seed's mask
    computes the subtask.
    """
    chosen = found[found["chosen"]]
    printed = reference.load("subtask_induction")
    rows = []
    for (source, subtask, layers), group in chosen.groupby(["source", "subtask", "layers"], sort=False):
        named = printed["quantity"] == f"density of {subtask} in {source}"
        at = printed[named & (printed["layers"] == str(layers))]["paper"]
        found_in = group["test_accuracy"] >= FOUND  # else it is not the size of what computes the subtask
        paper, comparable = float(at.iloc[0]) if len(at) else math.nan, profile == "paper" and bool(found_in.all())
        size = compared(group["density"], paper, comparable=comparable)
        verdict = size.pop("verdict")
        rows.append({
            "source": source, "subtask": subtask, "layers": layers, **size,
            "subtask_accuracy": group["test_accuracy"].mean(), "found": f"{found_in.sum()} of {len(group)}",
            "verdict": verdict,
        })  # fmt: skip
    return pd.DataFrame(rows)


def ablations(lab: Lab) -> pd.DataFrame:
    """Accuracies of the source networks whole, as the subnetwork alone, and without it or a random one of its size."""
    made = _finished(lab, arithmetic_steps.ablations(lab), "ablations")
    return pd.DataFrame(
        step.first.about | {"key": artefact.key} | row for step, artefact in made for row in artefact.json("result")
    )


def ablation_tests(table: pd.DataFrame) -> pd.DataFrame:
    """What ablating a subtask's mask costs on T1, next to random masks of its size. table: from `ablations`.

    p: share of the draws, the mask itself among them, that cost as much; over seeds, of the mean of every draw.
    """
    rows = []
    for about, group in table.groupby(["source", "subtask", "layers"], sort=False):
        means = group.groupby(["network", "draw"])["source_accuracy"].mean()
        random = means["random ablated"]
        own = {name: float(means[name].iloc[0]) for name in ("whole network", "subnetwork", "ablated")}
        p = (1 + (random <= own["ablated"]).sum()) / (1 + len(random))
        own = {name.replace(" ", "_"): value for name, value in own.items()}
        own |= {"random_ablated": random.mean(), "random_lowest": random.min(), "p": p}
        key = dict(zip(["source", "subtask", "layers"], about, strict=True))
        rows.append(key | own | {"n_seeds": group["seed"].nunique()})
    return pd.DataFrame(rows)


def transfers(lab: Lab) -> pd.DataFrame:
    """The table behind Figures 3 and 6 to 10: a row for each induction, depth, seed, number of rows and condition.

    A control that cannot be had, because the complement of a dense mask is too small, is left out, and a line says so;
    so are the networks that would inherit from a mask whose training diverged.
    """
    made = _finished(lab, arithmetic_steps.transfers(lab), "transfers")
    rows, faults = [], dict[str, None]()
    chances = {target: chance(lab, target) for target in dict.fromkeys(step.target for step, _ in made)}
    for step, artefact in made:
        about = step.first.about | {"target": step.target, "samples": step.samples, "chance": chances[step.target]}
        for row in artefact.json("result"):
            if "fault" in row:
                faults[f"{row['condition']}, {step.first.label}: {row['fault']}"] = None
            else:
                rows.append(about | row | {"key": artefact.key})
    print("".join(f"{line}\n" for line in faults), end="", file=sys.stderr)
    return pd.DataFrame(rows)


def _finished(lab: Lab, steps: Sequence[ChosenMask | OfSubtask], label: str) -> list[tuple[Step, Artefact]]:
    """Make all steps. Those with a result, each with its artefact; a line names each of the others.

    Raises Fault if there are no others than these.
    """
    faults: dict[str, None] = {}
    finished = []
    for step, artefact in zip(steps, make_all(lab, steps, label), strict=True):
        if fault := fault_of(artefact):
            faults[f"{step.first.label}: {fault}"] = None
        else:
            finished.append((step, artefact))
    print("".join(f"{line}\n" for line in faults), end="", file=sys.stderr)
    if not finished:
        raise Fault(next(iter(faults)))
    return finished


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """Mean test accuracy with a 95% t interval over seeds, for each induction, depth, condition and number of rows."""
    keys = [*ABOUT, "chance", "condition", "samples"]
    rows = []
    for about, group in table.groupby(keys, sort=False):
        rows.append((*about, *interval(group["test_accuracy"]), len(group)))
    return pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", "n_runs"])


def over_depths(table: pd.DataFrame) -> pd.DataFrame:
    """The table with each seed's mean over depths in place of the depths: the left of Figure 3."""
    keys = ["source", "subtask", "target", "chance", "condition", "samples", "seed"]
    return table.groupby(keys, sort=False)["test_accuracy"].mean().reset_index().assign(layers="all")


def samples_needed(table: pd.DataFrame, *, level: float = 0.99) -> pd.DataFrame:
    """Disambiguating rows to a test accuracy, for each induction, depth and condition.

    Of every seed the first number of rows at which the accuracy is reached; a seed that never reaches it is censored at
    the largest number tried. `median` is that over seeds, infinite if half of them are censored; `low` and `high` are
    the smallest and largest, infinite where censored.
    """
    rows = []
    for about, group in table.groupby([*ABOUT, "condition"], sort=False):
        reached = group[group["test_accuracy"] >= level].groupby("seed")["samples"].min()
        first = reached.reindex(group["seed"].unique()).fillna(math.inf).to_numpy()
        ends = {"median": np.median(first), "low": first.min(), "high": first.max()}
        counts = {"censored": int(np.isinf(first).sum()), "n_runs": len(first), "most_tried": group["samples"].max()}
        rows.append(dict(zip([*ABOUT, "condition"], about, strict=True)) | ends | counts)
    return pd.DataFrame(rows)


def first(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the study's first induction, which is done at all depths and under all conditions."""
    about = settings_of(lab).inductions[0].model_dump()
    return table[(table[list(about)] == pd.Series(about)).all(axis=1)]


def gaps(table: pd.DataFrame) -> pd.DataFrame:
    """What the conclusion is worth under each reading of the method: the subnetwork's advantage over its control.

    Of each seed and depth the difference in test accuracy at the same number of rows, averaged over the numbers tried;
    then the mean over seeds (each the mean of its depths) with a 95% t interval. Readings that lack a condition in the
    table are left out. table: of one induction.
    """
    rows = []
    for name, pair in VARIANTS.items():
        if set(pair) <= set(table["condition"]):
            found = _advantage(table, *pair)
            about = {"variant": name, **dict(zip(("condition", "control"), pair, strict=True))}
            rows.append(about | {"condition_mean": found.pop("mean"), "control_mean": found.pop("of_control")} | found)
    return pd.DataFrame(rows)


def gaps_by_samples(table: pd.DataFrame) -> pd.DataFrame:
    """The subnetwork's advantage over every other condition, at each number of rows and each depth ('all': the mean
    of the depths): columns of the induction, layers, control, samples, both means, advantage, low, high, n_runs.

    Unlike `gaps` for any inductions. Intervals are over seeds, and single ones: where one of many excludes 0 by little,
    it may do so by chance.
    """
    rows = []
    for about, group in _by_depth(table):
        for control in [name for name in group["condition"].unique() if name != "subnetwork"]:
            for samples, part in group.groupby("samples"):
                found = _advantage(part, "subnetwork", control)
                key = dict(zip(ABOUT, about, strict=True)) | {"control": control, "samples": samples}
                means = {"subnetwork_mean": found.pop("mean"), "control_mean": found.pop("of_control")}
                rows += [key | means | found] if found["n_runs"] else []
    return pd.DataFrame(rows)


def _by_depth(table: pd.DataFrame) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """Every induction with each of its depths, and with all of them where it has several."""
    for about, group in table.groupby(["source", "subtask", "target"], sort=False):
        depths = list(group.groupby("layers", sort=True))
        yield from (((*about, layers), part) for layers, part in depths)
        if len(depths) > 1:
            yield (*about, "all"), group


def _advantage(table: pd.DataFrame, condition: str, control: str) -> dict[str, float]:
    """By how much one condition is ahead of another with the same seed, depth and number of rows.

    The mean over seeds, each the mean of its rows, with its 95% t interval; and the means of both.
    """
    wide = table.pivot_table(index=["seed", "layers", "samples"], columns="condition", values="test_accuracy")
    wide = wide.reindex(columns=[condition, control]).dropna()
    difference = (wide[condition] - wide[control]).groupby("seed").mean()
    mean, low, high = interval(difference)
    means = {"mean": wide[condition].mean(), "of_control": wide[control].mean()}
    return means | {"advantage": mean, "low": low, "high": high, "n_runs": len(difference)}


def with_reference(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """Our mean accuracies next to those of an independent implementation at the same sizes; empty if there are none.

    `within_05`: whether the two differ by no more than .05, about what three seeds allow.
    """
    settings, measured = settings_of(lab), reference.load("induction_measured")
    measured = measured[(measured["max"] == settings.max) & (measured["width"] == settings.width)]
    ours = curves(table[(table[["source", "subtask", "target"]] == ["a+ab", "ab", "a^2+ab"]).all(axis=1)])
    joined = measured.merge(ours, on=["layers", "samples", "condition"])
    shown = joined[["layers", "samples", "condition", "measured", "seeds", "mean", "low", "high", "n_runs"]]
    close = (shown["measured"] - shown["mean"]).abs() <= 0.05
    return shown.rename(columns={"mean": "ours", "low": "ours_low", "high": "ours_high"}).assign(within_05=close)


def further(curves: pd.DataFrame) -> dict[int, list[tuple[str, pd.DataFrame]]]:
    """Panels of Figures 8 to 10, (title, curves) each; a figure of which the study has no panel is left out."""
    found = {}
    for number, inductions in PANELS.items():
        shown = []
        for about in inductions:
            rows = curves[(curves[["source", "subtask", "target"]] == list(about)).all(axis=1)]
            rows = rows[rows["layers"] == rows["layers"].max()]
            if len(rows):
                shown.append((f"{about[1]} for {about[2]}", rows))
        if shown:
            found[number] = shown
    return found


def caption(panels: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """What a figure's panels show: the subnetworks, where they were found, their new tasks, and the depths."""
    moves = dict.fromkeys((one.subtask, one.source, one.target) for _, rows in panels for one in rows.itertuples())
    text = "; ".join(f"{subtask}, found in {source}, moved to {target}" for subtask, source, target in moves)
    depths = sorted({int(layers) for _, rows in panels for layers in rows["layers"]})
    text += f" ({' and '.join(map(str, depths))} layers)."
    return text.replace("^2", "²").replace("^3", "³")


def chance(lab: Lab, computation: str) -> float:
    """Share of the most common answer among all pairs."""
    settings = settings_of(lab)
    numbers = torch.arange(settings.max)
    answers = rows_of(computation, torch.cartesian_prod(numbers, numbers), maximum=settings.max, p=settings.p).answers
    return float(answers.bincount().max() / len(answers))
