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
from subnet_utils.papers.functional_modularity import reference
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected
from subnet_utils.problems.modules import CONTROL, layers
from subnet_utils.problems.sharing import HIDDEN, between_functions, overlaps
from subnet_utils.report.comparison import compare
from subnet_utils.report.findings import groups, judged
from subnet_utils.statistics import runs_needed

ACCURACY = "accuracy on "
PAPER_NAMES = {"pair 1": "pair1", "pair 2": "pair2", "+": "add", "*": "mul"}
WIDTH = 0.05
"""Half of an interval that would settle a question about an accuracy or an overlap."""
CLEARLY = (0.05, np.inf)
"""Where a difference of overlaps should be."""
CLAIMS = (
    ("a mask computes its own function", "mask", True, (0.9, np.inf)),
    ("and not the other one", "mask", False, (-np.inf, 0.05)),
    ("without it its function is lost", "inverse", True, (-np.inf, 0.05)),
    ("and the other one is not", "inverse", False, (0.6, np.inf)),
)
"""What the paper says of masks: the claim, the part, whether on its own function, and where its accuracy should be."""


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
        parts = one.parts.result(lab)
        whole = parts[[row["part"] for row in parts].index("whole")]
        for row, name in product(parts, one.network.problem.functions):
            about = one.about | {"network": one.settings.paper_network, "tested_on": name}
            about |= {column: row[column] for column in ("part", "edges", "of", "density")}
            accuracy = {"accuracy": row[ACCURACY + name], "base_accuracy": whole[ACCURACY + name]}
            rows.append(about | accuracy | {"key": one.parts.key(lab)})
    return pd.DataFrame(rows)


def beside_the_paper(table: pd.DataFrame, number: int, *, profile: str) -> pd.DataFrame:
    """Table 1, 2 or 3: the paper's accuracies beside ours with a 95% interval over seeds, and the verdict.

    table: from `accuracies`. Verdicts at the profile `paper` alone, where networks and data are the paper's.
    """
    printed = reference.load("accuracies").query("table == @number")
    printed = printed.assign(accuracy_mean=printed["percent"] / 100, accuracy_sd=printed["sd"] / 100)
    edges = table["edges"].eq("fullmask" if number == 3 else "")
    shown = table["part"].eq(CONTROL) | (table["part"].isin(["mask", "inverse"]) & edges)
    rows = table[_usual(table) & shown]
    names = rows["of"].map(PAPER_NAMES).fillna("full")
    rows = rows.assign(
        mask=names.where(rows["part"] != "inverse", "not_" + names),
        tested_on=rows["tested_on"].map(PAPER_NAMES),
        base_model=rows["seed"],
    )
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
        table = between_functions(masks, layers(one.network.load(lab)))
        tables.append(table.assign(**one.about))
    return pd.concat(tables, ignore_index=True)


def kept(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Weights that the masks of each function keep, by layer and in all (Figure 12)."""
    rows = []
    for one in found:
        names = layers(one.network.load(lab))
        for function in (CONTROL, *one.network.problem.functions):
            mask = one.mask(function).load(lab)
            sizes = {name: (int(mask.masks[name].sum()), mask.masks[name].numel()) for name in names}
            for layer, (active, total) in (sizes | {OVERALL: (mask.active, mask.total)}).items():
                about = one.about | {"function": function, "layer": layer}
                rows.append(about | {"kept": active, "total": total, "density": active / total})
    return pd.DataFrame(rows)


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
        hidden = overlaps(first, second, layers(one.network.load(lab))).set_index("layer").loc[HIDDEN]
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
    for about, part in groups(strength, "model") if len(strength) else ():
        means = part.groupby("l0")[["control_accuracy", "density", "shared"]].mean()
        for l0, name in product(means.index, means):
            for double in means.index[np.isclose(means.index, 2 * l0)]:
                value = {"quantity": f"{name}, alpha {l0:g}", "as_printed": means.loc[l0, name]}
                rows.append(about | value | {"as_released": means.loc[double, name], "seed": part["seed"].unique()})
    for one in found:
        for name in one.network.problem.functions if one.usual and one.settings.examples else ():
            taught, others = _right(lab, one, name)
            about = {"model": one.settings.model, "quantity": f"accuracy on {name}", "seed": [one.network.seed]}
            rows.append(about | {"as_printed": others, "as_released": taught})
    table = pd.DataFrame(rows, columns=["model", "quantity", "as_printed", "as_released", "seed"])
    table["where"] = np.where(table["quantity"].str.startswith("accuracy"), "Section 3.1", "Section 2 (penalty)")
    by = table.explode("seed").groupby(["where", "model", "quantity"], sort=False)
    return by.agg(
        as_printed=("as_printed", "mean"), as_released=("as_released", "mean"), n_runs=("seed", "nunique")
    ).reset_index()


def _right(lab: Lab, one: Dissected, function: str) -> tuple[float, float]:
    """Accuracy on the items of a function that taught a network, and on all others."""
    network, problem = one.network.load(lab), one.network.problem
    inputs, targets = problem.examples(function, one.network.seed)
    taught = (network(inputs.to(lab.device)).argmax(dim=-1).cpu() == targets).all(dim=1).double().sum()
    count = len(problem.tests()[function].inputs)
    right = one.network.result(lab)[ACCURACY + function] * count
    return float(taught) / len(inputs), float(right - taught) / (count - len(inputs))


def settled(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Histogram of the probabilities to be kept at the end of training, control masks (Figure 9): 50 equal bins."""
    rows = []
    for one in found:
        bins = one.mask(CONTROL).make(lab).table("annealing").iloc[-1]
        for j, share in enumerate(bins.filter(like="bin_")):
            rows.append(one.about | {"bin": (j + 0.5) / 50, "share": share})
    return pd.DataFrame(rows)


def findings(accuracy: pd.DataFrame, overlap: pd.DataFrame) -> pd.DataFrame:
    """What the paper says of modules, each claim with our number over seeds, its interval and a verdict.

    accuracy, overlap: from `accuracies` and `sharing`. Claims are ranges; `seeds_needed` are as many networks as an
    interval of +-.05 would take with our spread.
    """
    rows = []
    for about, part in groups(accuracy[~accuracy["copied"] & accuracy["edges"].eq("")], "model", "task", "method"):
        own = part["of"] == part["tested_on"]
        for claim, kind, is_own, holds in CLAIMS:
            some = part[part["part"].eq(kind) & own.eq(is_own)]
            rows.append(about | _finding(claim, some["accuracy"], some["seed"], holds))
    for about, part in groups(overlap[overlap["layer"] == HIDDEN], "model", "task", "copied", "method"):
        above, below = part["iou"] - part["chance_iou"], part["ceiling_iou"] - part["iou"]
        rows.append(about | _finding("hidden layers share more than chance", above, part["seed"], CLEARLY))
        rows.append(about | _finding("and less than two masks of one function", below, part["seed"], CLEARLY))
    return pd.DataFrame(rows)


def _finding(claim: str, values: pd.Series, seeds: pd.Series, holds: tuple[float, float]) -> dict:
    """One claim, in which range its number should lie, and what was found."""
    needed = {"seeds_needed": runs_needed(values.dropna().groupby(seeds).mean(), half=WIDTH)}
    return {"claim": claim, "claimed_from": holds[0], "claimed_to": holds[1]} | needed | judged(values, seeds, holds)


def _usual(table: pd.DataFrame) -> pd.Series:
    """Rows on the usual masks of networks that were not changed."""
    first = table.groupby("model")[["method", "l0"]].transform("first")
    return ~table["copied"] & table["method"].eq(first["method"]) & (table["l0"].eq(first["l0"]) | first["l0"].isna())
