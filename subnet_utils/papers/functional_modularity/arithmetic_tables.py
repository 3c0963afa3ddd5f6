"""Tables on modules in arithmetic: accuracies of parts, shared weights, and what follows from them.

The networks of the seeds are the independent observations.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.papers.functional_modularity import reference
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected
from subnet_utils.papers.functional_modularity.modules import CONTROL, layers
from subnet_utils.papers.functional_modularity.sharing import HIDDEN, between_functions, overlaps, shared_with_others
from subnet_utils.report.comparison import FINDING, compare, verdict
from subnet_utils.statistics import t_interval

ABOUT = ["model", "task", "copied", "method", "l0"]
"""Columns that say which networks and masks a row is about; seeds are observations."""
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
"""What the paper says of masks: the claim, the part, whether on its own function, and where its accuracy should be."""


def made(lab: Lab, found: Sequence[Dissected]) -> list[str]:
    """Make the networks, masks and parts side by side, and return the keys of the parts."""
    masks = [mask for one in found for some in one.masks.values() for mask in some]
    return [artefact.key for artefact in make_all(lab, [*masks, *(one.parts for one in found)], "modules")][
        len(masks) :
    ]


def accuracies(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """What each part of each network can do: a row for each part and function that it is tested on.

    Columns `ABOUT`, seed, network of the paper, part, edges, of, tested_on, accuracy, density, base_accuracy.
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
    printed = reference.load("accuracies")
    printed = printed[printed["table"] == number]
    printed = printed.assign(accuracy_mean=printed["percent"] / 100, accuracy_sd=printed["sd"] / 100)
    edges = "fullmask" if number == 3 else ""
    rows = table[_usual(table) & table["network"].notna() & table["edges"].isin(["", edges])]
    rows = rows[(rows["part"] == CONTROL) | (rows["part"].isin(["mask", "inverse"]) & rows["edges"].eq(edges))]
    names = rows["of"].map(PAPER_NAMES).fillna("full")
    rows = rows.assign(
        mask=names.where(rows["part"] != "inverse", "not_" + names),
        tested_on=rows["tested_on"].map(PAPER_NAMES),
        base_model=rows["seed"],
    )
    by = ["network", "tested_on", "mask"]
    rows = rows.merge(printed[by], on=by)
    columns = {"by": by, "value": "accuracy", "profile": profile}
    return compare(rows, printed, **columns) if len(rows) else pd.DataFrame(columns=by)


def with_intervals(table: pd.DataFrame, by: Sequence[str], value: str = "accuracy") -> pd.DataFrame:
    """Mean over seeds with a 95% t interval, for every group of columns; NaN where no seed has a value."""
    rows = []
    for about, group in _by(table, *by):
        known = group.dropna(subset=value)
        mean, low, high = t_interval(known[value], known["seed"]) if len(known) else [np.nan] * 3
        rows.append(about | {value: mean, "low": low, "high": high, "n_runs": known["seed"].nunique()})
    return pd.DataFrame(rows)


def sharing(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Overlap of the masks of the two functions, by layer: a row for each network and layer.

    Columns `ABOUT`, seed and those of `sharing.between_functions`: beside each overlap stands what chance gives, and
    the ceiling, the overlap of two masks of one function.
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
        for name in (CONTROL, *one.network.problem.functions):
            masks = one.mask(name).load(lab).masks
            masks = {layer: masks[layer] for layer in layers(one.network.load(lab))}
            active = {layer: int(mask.sum()) for layer, mask in masks.items()}
            total = {layer: mask.numel() for layer, mask in masks.items()}
            for layer in (*active, OVERALL):
                sizes = [sum(of.values()) if layer == OVERALL else of[layer] for of in (active, total)]
                about = one.about | {"function": name, "layer": layer, "kept": sizes[0], "total": sizes[1]}
                rows.append(about | {"density": sizes[0] / sizes[1]})
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

    Columns `ABOUT`, seed, beta (alpha times the batch); accuracy under the control mask, of masks on their own function
    and on the other, without them on the other; weights of the first function's mask that the second's has, too; IoU of
    the hidden layers beside chance; density of the first mask.
    """
    rows = []
    for one in found:
        first, second = (masks[0].load(lab) for masks in one.masks.values())
        hidden = overlaps(first, second, layers(one.network.load(lab))).set_index("layer").loc[HIDDEN]
        beta = (one.about["l0"] or np.nan) * one.training.batch_size
        about = one.about | {"beta": beta} | _conclusions(one.parts.result(lab))
        about |= {"shared": shared_with_others(first, [second]), "hidden_iou": hidden["iou"]}
        rows.append(about | {"chance_iou": hidden["chance_iou"], "density": first.density})
    return pd.DataFrame(rows)


def _conclusions(parts: list[dict[str, Any]]) -> dict[str, float]:
    """Mean accuracies over both functions: under the control mask, of masks, and without them."""
    plain = [row for row in parts if not row["edges"]]

    def mean(part: str, own: bool | None) -> float:
        found = [
            accuracy
            for row in plain if row["part"] == part
            for name, accuracy in row.items()
            if name.startswith(ACCURACY) and own in (None, name.removeprefix(ACCURACY) == row["of"])
        ]  # fmt: skip
        return float(np.mean(found)) if found else np.nan

    return {
        "control_accuracy": mean(CONTROL, None),
        "own_accuracy": mean("mask", True),
        "other_accuracy": mean("mask", False),
        "other_without": mean("inverse", False),
    }


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
    for about, part in _by(accuracy[~accuracy["copied"] & accuracy["edges"].eq("")], "model", "task", "method"):
        own = part["of"] == part["tested_on"]
        for claim, kind, is_own, holds in CLAIMS:
            rows.append(_finding(about, claim, part[part["part"].eq(kind) & own.eq(is_own)], holds))
    for about, part in _by(overlap[overlap["layer"] == HIDDEN], "model", "task", "copied", "method"):
        more, less = (part.assign(accuracy=values) for values in (part["iou"] - part["chance_iou"],
                                                                  part["ceiling_iou"] - part["iou"]))  # fmt: skip
        rows += [
            _finding(about, "hidden layers share more than chance", more, (0.05, np.inf)),
            _finding(about, "and less than two masks of one function", less, (0.05, np.inf)),
        ]
    return pd.DataFrame(rows)


def _finding(about: dict, claim: str, rows: pd.DataFrame, holds: tuple[float, float]) -> dict:
    """One claim: the mean over seeds of each seed's mean, and whether its interval lies where it should."""
    rows = rows.dropna(subset="accuracy")
    if rows.empty:
        return about | {"claim": claim, "verdict": FINDING[-1]}
    mean, low, high = t_interval(rows["accuracy"], rows["seed"])
    found = {"ours": mean, "low": low, "high": high, "n_runs": rows["seed"].nunique()}
    needed = seeds_needed(rows.groupby("seed")["accuracy"].mean())
    ends = {"claimed_from": holds[0], "claimed_to": holds[1]}
    return (
        about
        | {"claim": claim}
        | ends
        | found
        | {"seeds_needed": needed, "verdict": verdict(low, high, holds, FINDING)}
    )


def seeds_needed(values: pd.Series, half: float = WIDTH) -> float:
    """How many seeds give a 95% t interval of +-half, if they spread as these do; NaN for one seed."""
    if len(values) < 2:
        return np.nan
    for n in range(2, 1000):
        if special.stdtrit(n - 1, 0.975) * values.std() / np.sqrt(n) <= half:
            return n
    return np.inf


def _by(table: pd.DataFrame, *columns: str) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The groups of a table as they first occur, each with what it is about."""
    for about, group in table.groupby(list(columns), sort=False, dropna=False):
        yield dict(zip(columns, about, strict=True)), group


def _usual(table: pd.DataFrame) -> pd.Series:
    """Rows on the usual masks of networks that were not changed."""
    first = table.groupby("model")[["method", "l0"]].transform("first")
    return ~table["copied"] & table["method"].eq(first["method"]) & (table["l0"].eq(first["l0"]) | first["l0"].isna())
