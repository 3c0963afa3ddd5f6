"""Tables on modules in arithmetic: accuracies of parts, shared weights, and what follows from them.

The networks of the seeds are the independent observations.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.models.staged import maskable
from subnet_utils.papers.functional_modularity import reference
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.sharing import HIDDEN, between_functions, overlaps
from subnet_utils.report.comparison import CLAIM, compare
from subnet_utils.report.findings import groups, judged, with_intervals
from subnet_utils.statistics import LEARNED, runs_needed

ACCURACY = "accuracy on "
PAPER_NAMES = {"pair 1": "pair1", "pair 2": "pair2", "+": "add", "*": "mul"}
WIDTH = 0.05
"""Half of an interval that would settle a question about an accuracy or an overlap."""
CLAIMS = (
    ("a mask computes its own function", "mask", True, (0.9, np.inf)),
    ("and not the other one", "mask", False, (-np.inf, 0.05)),
    ("without it its function is lost", "inverse", True, (-np.inf, 0.05)),
    ("and the other one is not", "inverse", False, (0.6, np.inf)),
)
"""What holds of a network of separate parts: the claim, the part, whether on its own function, and where its accuracy
should be. Not all of it holds of the paper's own networks."""


def made(lab: Lab, found: Sequence[Dissected]) -> list[str]:
    """Make the networks, masks and parts side by side, and return the keys of the parts."""
    make_all(lab, [step for one in found for step in one.steps], "modules")
    return [one.parts.key(lab) for one in found]


def accuracies(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """What each part of each network can do: a row for each part and function that it is tested on.

    Columns of `Dissected.about`, network of the paper, part, edges, of, tested_on, accuracy, density, base_accuracy.
    """
    rows = []
    for one in found:
        whole, *_ = parts = one.parts.result(lab)
        for row, name in product(parts, one.network.problem.functions):
            about = one.about | {"network": one.settings.paper_network, "tested_on": name}
            about |= {column: row[column] for column in ("part", "edges", "of", "density")}
            about |= {"accuracy": row[ACCURACY + name], "base_accuracy": whole[ACCURACY + name]}
            rows.append(about | {"key": one.parts.key(lab)})
    return pd.DataFrame(rows)


def beside_the_paper(table: pd.DataFrame, number: int, *, profile: str) -> pd.DataFrame:
    """Table 1, 2 or 3: the paper's accuracies beside ours with a 95% interval over seeds, and the verdict.

    table: from `accuracies`. The usual masks of networks that were not changed. Verdicts at the paper's
    size alone (`comparison.at_paper_size`).
    """
    printed = reference.load("accuracies").query("table == @number")
    printed = printed.assign(accuracy_mean=printed["percent"] / 100, accuracy_sd=printed["sd"] / 100)
    usual, edges = table["title"].eq(table["model"]), table["edges"].eq("fullmask" if number == 3 else "")
    rows = table[usual & (table["part"].eq(CONTROL) | (table["part"].isin(["mask", "inverse"]) & edges))]
    masks = rows["of"].map(PAPER_NAMES).fillna("full")
    masks = masks.where(rows["part"] != "inverse", "not_" + masks)
    rows = rows.assign(mask=masks, tested_on=rows["tested_on"].map(PAPER_NAMES), base_model=rows["seed"])
    by = ["network", "tested_on", "mask"]
    rows = rows.merge(printed[by], on=by)
    return compare(rows, printed, by=by, value="accuracy", profile=profile) if len(rows) else pd.DataFrame(columns=by)


def sharing(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Overlap of the masks of the two functions, by layer: a row for each network and layer.

    Columns of `Dissected.about` and `sharing.between_functions`: beside each overlap stands what chance gives, and the
    ceiling, the overlap of two masks of one function.
    """
    tables = []
    for one in found:
        masks = {name: [mask.load(lab) for mask in some] for name, some in one.masks.items()}
        tables.append(between_functions(masks, maskable(one.network.load(lab))).assign(**one.about))
    return pd.concat(tables, ignore_index=True)


def scales(overlap: pd.DataFrame) -> pd.DataFrame:
    """How much the hidden layers share, from 0, chance, to 1, two masks of one function: by IoU (scale) and by IoMin.

    overlap: from `sharing`. Means over seeds with 95% intervals, a row for each network and method.
    """
    hidden, about = overlap[overlap["layer"] == HIDDEN], ["task", "title", "method"]
    by_iou, by_iomin = (with_intervals(hidden, about, name) for name in ("scale", "scale_iomin"))
    by_iomin = by_iomin.rename(columns={"low": "iomin_low", "high": "iomin_high"})
    return by_iou.join(by_iomin[["scale_iomin", "iomin_low", "iomin_high"]])


def kept(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Weights that the masks of each function keep, by layer and in all (Figure 12)."""
    rows = []
    for one in found:
        names = maskable(one.network.load(lab))
        for function in (CONTROL, *one.network.problem.functions):
            mask = one.mask(function).load(lab)
            sizes = {name: (int(mask.masks[name].sum()), mask.masks[name].numel()) for name in names}
            for layer, (active, total) in (sizes | {OVERALL: (mask.active, mask.total)}).items():
                rows.append(one.about | {"function": function, "layer": layer, "kept": active, "total": total})
    return pd.DataFrame(rows).assign(density=lambda table: table["kept"] / table["total"])


def operations(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Which operation a network performs under each mask: a row for each mask, asked and done operation (Figure 13)."""
    rows = []
    for one in found:
        names = one.network.problem.functions
        for row in one.parts.result(lab) if one.settings.task == "add_mul" else ():
            if row["part"] in ("mask", CONTROL) and not row["edges"]:
                for asked, done in product(names, (*names, "none")):
                    about = one.about | {"mask": row["of"] or CONTROL, "asked": asked, "done": done}
                    rows.append(about | {"share": row[f"{done} for {asked}"]})
    return pd.DataFrame(rows)


def by_strength(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """What changes with alpha: a row for each network and alpha (Figure 10, and beyond it every conclusion).

    Columns of `Dissected.about`; beta (alpha times the batch); accuracy under the control mask, of masks on their own
    function and on the other, without them on the other; weights of the first function's mask that the second's has,
    too; IoU of the hidden layers beside chance; density of the first mask.
    """
    rows = []
    for one in found:
        first, second = (masks[0].load(lab) for masks in one.masks.values())
        hidden = overlaps(first, second, maskable(one.network.load(lab))).set_index("layer").loc[HIDDEN]
        plain = accuracies(lab, [one]).query("edges == ''")
        own = plain["of"] == plain["tested_on"]
        means = plain.groupby(["part", own])["accuracy"].mean()
        about = one.about | {"beta": (one.about["l0"] or np.nan) * one.training.batch_size}
        about |= {"control_accuracy": means[CONTROL, False], "own_accuracy": means["mask", True]}
        about |= {"other_accuracy": means["mask", False], "other_without": means.get(("inverse", False), np.nan)}
        about |= {"shared": (first & second).active / first.active if first.active else np.nan}
        about |= {"hidden_iou": hidden["iou"], "chance_iou": hidden["chance_iou"], "density": first.density}
        rows.append(about)
    return pd.DataFrame(rows)


def ledger_effects(lab: Lab, found: Sequence[Dissected], strength: pd.DataFrame) -> pd.DataFrame:
    """What points of the ledger do to our numbers: as text and as released code have it, means over seeds.

    strength: from `by_strength`. The penalty: each alpha beside twice as much. Validation: items that taught a network
    beside all others, where not all did. Columns where, model, quantity, as_printed, as_released, n_runs.
    """
    rows = []
    for about, part in groups(strength, "model", "seed") if len(strength) else ():
        by_l0 = part.sort_values("l0").set_index("l0")[["control_accuracy", "density", "shared"]]
        for l0, name in product(by_l0.index, by_l0):
            for double in by_l0.index[np.isclose(by_l0.index, 2 * l0)]:
                numbers = by_l0.loc[l0, name], by_l0.loc[double, name]
                rows.append(("Section 2 (penalty)", *about.values(), f"{name}, alpha {l0:g}", *numbers))
    for one in (one for one in found if one.usual and one.settings.examples):
        about = "Section 3.1", one.settings.model, one.network.seed
        rows += [(*about, f"accuracy on {name}", *_right(lab, one, name)) for name in one.network.problem.functions]
    table = pd.DataFrame(rows, columns=["where", "model", "seed", "quantity", "as_printed", "as_released"])
    means = {name: (name, "mean") for name in ("as_printed", "as_released")}
    by = table.groupby(["where", "model", "quantity"], sort=False)
    return by.agg(**means, n_runs=("seed", "nunique")).reset_index()


def _right(lab: Lab, one: Dissected, function: str) -> tuple[float, float]:
    """Accuracy on the items of a function that did not teach a network, and on those that did."""
    network, problem = one.network.load(lab), one.network.problem
    inputs, targets = problem.examples(function, one.network.seed)
    taught = float((network(inputs.to(lab.device)).argmax(dim=-1).cpu() == targets).all(dim=1).double().sum())
    count = len(problem.tests()[function].inputs)
    right = one.network.result(lab)[ACCURACY + function] * count
    return (right - taught) / (count - len(inputs)), taught / len(inputs)


def settled(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Histogram of the probabilities to be kept at the end of training, control masks (Figure 9): 50 equal bins."""
    return pd.DataFrame(
        one.about | {"bin": (j + 0.5) / 50, "share": share}
        for one in found
        for j, share in enumerate(one.mask(CONTROL).make(lab).table("annealing").iloc[-1].filter(like="bin_"))
    )


def findings(accuracy: pd.DataFrame, overlap: pd.DataFrame) -> pd.DataFrame:
    """What holds of modules? Each claim with our number over networks that have learned, its interval and a verdict.

    accuracy, overlap: from `accuracies` and `sharing`. Claims are ranges; `seeds_needed` are as many networks as an
    interval of +-.05 would take with our spread.
    """
    rows = []
    for about, part in groups(accuracy[~accuracy["copied"] & accuracy["edges"].eq("")], "model", "task", "method"):
        part = part[part.groupby("seed")["base_accuracy"].transform("min") >= LEARNED]
        own = part["of"] == part["tested_on"]
        for claim, kind, is_own, holds in CLAIMS:
            some = part[part["part"].eq(kind) & own.eq(is_own)]
            rows.append(about | _finding(claim, some["accuracy"], some["seed"], holds))
    for about, part in groups(overlap[overlap["layer"] == HIDDEN], "model", "task", "copied", "method"):
        above, below = part["iou"] - part["chance_iou"], part["ceiling_iou"] - part["iou"]
        rows.append(about | _finding("hidden layers share more than chance", above, part["seed"], (CLAIM, np.inf)))
        rows.append(about | _finding("and less than two masks of one function", below, part["seed"], (CLAIM, np.inf)))
    return pd.DataFrame(rows)


def _finding(claim: str, values: pd.Series, seeds: pd.Series, holds: tuple[float, float]) -> dict:
    """One claim, in which range its number should lie, and what was found."""
    needed = {"seeds_needed": runs_needed(values.dropna().groupby(seeds).mean(), half=WIDTH)}
    return {"claim": claim, "claimed_from": holds[0], "claimed_to": holds[1]} | needed | judged(values, seeds, holds)
