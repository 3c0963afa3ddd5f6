"""Tables that put methods side by side. The networks of the seeds are the independent observations."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.identification_methods.method_steps import ABLATIONS, Inspected, Measured, applied
from subnet_utils.problems.sharing import overlaps, pairs
from subnet_utils.problems.subtasks import VARIES
from subnet_utils.problems.trainings import MaskTraining
from subnet_utils.report.comparison import FAILS, HOLDS, OPEN
from subnet_utils.report.findings import SHARE, groups, interval, judged
from subnet_utils.report.significance import RANDOM_DRAWS, adjusted, equivalence, paired
from subnet_utils.statistics import LEARNED

OWN, OTHER, VARIED = "own", "other", "own_varied"
SHARED = ["iou", "chance_iou"]
MEASURES = {"accuracy": "", "log-probability": "_log"}
"""What is measured, and what the names of its columns end in."""
CLAIMS = (
    ("it computes its own function", OWN, True),
    ("also where the other one varies", VARIED, True),
    ("and not the other one", OTHER, False),
    ("without it its function is lost", f"{OWN}_without", False),
    ("and the other one is not", f"{OTHER}_without", True),
)
"""What one expects of a subnetwork: the claim, the accuracy, and whether it is at least .9 or as good as lost."""

WITHIN = 0.05
"""A difference of accuracies, or of CPR, up to which two are the same."""
EQUAL = {"alike": (OWN, "whole"), "complete": ("own_without", "nothing"), "independent": ("other_without", "whole")}
"""What should be the same: its own function with it as with all weights, and without it as with none; the other one
without it as with all. An accuracy, and the level that it should be at."""


def made(lab: Lab, found: Sequence[Inspected]) -> None:
    """Make all that is measured, side by side."""
    make_all(lab, [step for one in found for step in one.steps], "methods")


def along_densities(lab: Lab, found: Sequence[Inspected], ablation: str = "zero") -> pd.DataFrame:
    """What subnetworks of every size do: a row for each, and one for the network without it.

    ablation: of `method_steps.ABLATIONS`; networks that do not have it are left out.

    Columns model, method, trained, seed, function, repeat, target (density that was asked of a mask), part, asked (at
    which a ranking was cut), density, own, other (accuracy on both functions), own_log, other_log (log-probability of
    the right answer, nats), own_varied (accuracy on its function where the other one varies, NaN where it never does).
    """
    return pd.DataFrame(
        row
        for one in found
        if ablation in one.ablations
        for training in one.settings.methods
        for function in one.network.problem.functions
        for measured in one.measured(training, function, ablation)
        for row in _rows(lab, one, training, measured)
    )


def _rows(lab: Lab, one: Inspected, training: MaskTraining, measured: Measured) -> Iterator[dict[str, Any]]:
    found = measured.found
    about = _about(one, training) | {"function": found.function, "target": found.density, "repeat": found.repeat}
    for row in measured.result(lab):
        positions = {name: row[name] for name in ("part", "asked", "density")}
        yield about | positions | _own_and_other(row, found.function, one.network.problem.functions)


def _about(one: Inspected, training: MaskTraining) -> dict[str, Any]:
    masking = training.masking
    return {"model": one.settings.model, "method": masking.method, "trained": masking.trains, "seed": one.network.seed}


def _own_and_other(scores: dict[str, float], function: str, functions: Sequence[str]) -> dict[str, float]:
    """Accuracy and log-probability on a function, and on the other one."""
    (other,) = (name for name in functions if name != function)
    return {
        f"{which}{end}": scores[f"{measure} on {name}"]
        for which, name in ((OWN, function), (OTHER, other))
        for measure, end in MEASURES.items()
    } | {VARIED: scores.get(f"accuracy on {function}{VARIES}", np.nan)}


def at_reference(curve: pd.DataFrame, reference: float) -> pd.DataFrame:
    """The rows at which methods stand beside each other: trained masks as they come out, rankings at the reference."""
    return curve[curve["target"].isna() & (curve["trained"] | np.isclose(curve["asked"].astype(float), reference))]


def side_by_side(lab: Lab, found: Sequence[Inspected], curve: pd.DataFrame) -> pd.DataFrame:
    """One row a method and seed, means over functions and repeats.

    Columns model, method, seed; density; own, own_varied, other; own_without, other_without; lost (accuracy up to which
    a function is lost); whole, nothing (accuracy of the network on its functions, with all weights and with none of
    them); random_difference (difference of own and other in random subnetworks, mean over so many draws); beats_random
    (share of them with a smaller difference); matter (share of its weights that matter); same_iou (of two subnetworks
    for one function; NaN where there is one), other_iou (for both functions) and chance_iou; passes, seconds (of the
    processor).
    """
    rows = []
    for one in found:
        near = at_reference(curve[curve["model"].eq(one.settings.model)], one.settings.reference)
        functions = [f"accuracy on {name}" for name in one.network.problem.functions]
        levels = {name: float(pd.Series(scores)[functions].mean()) for name, scores in _levels(lab, one).items()}
        for training in one.settings.methods:
            about = _about(one, training)
            own = near[near["method"].eq(about["method"]) & near["seed"].eq(about["seed"])]
            alone, without = (own[own["part"] == part] for part in ("alone", "without"))
            row = about | {"lost": one.network.problem.lost} | levels
            row |= {name: alone[name].mean() for name in ("density", OWN, VARIED, OTHER)}
            row |= {f"{name}_without": without[name].mean() for name in (OWN, OTHER)}
            rows.append(row | _against_random(lab, one, training, alone) | _shared(lab, one, training))
            rows[-1] |= _cost(lab, one, training)
    return pd.DataFrame(rows)


def _against_random(lab: Lab, one: Inspected, training: MaskTraining, alone: pd.DataFrame) -> dict[str, float]:
    functions, random_differences, beaten, matter = one.network.problem.functions, [], [], []
    for function in functions:
        result = one.compared(training, function).result(lab)
        first = alone[alone["function"].eq(function) & alone["repeat"].eq(0)].iloc[0]
        drawn = [_own_and_other(scores, function, functions) for scores in result["random"]]
        random_differences += (random := [row[OWN] - row[OTHER] for row in drawn])
        beaten += [first[OWN] - first[OTHER] > one for one in random]
        matter.append(result["matter"])
    means = {"random_difference": random_differences, "beats_random": beaten, "matter": matter}
    return {"draws": len(drawn)} | {name: float(np.mean(values)) for name, values in means.items()}


def _levels(lab: Lab, one: Inspected, ablation: str = "zero") -> dict[str, dict[str, float]]:
    """Scores of the network without any of its masked weights, and of the whole."""
    every = one.identified(one.settings.methods[0], one.network.problem.functions[0]).load(lab)
    parts = {"nothing": every & ~every, "whole": every | ~every}
    scores = one.network.problem.scores
    return {name: scores(applied(lab, one.network, part, ablation)) for name, part in parts.items()}


def subnetworks(lab: Lab, one: Inspected, training: MaskTraining) -> dict[str, list[Subnetwork]]:
    """What a method finds, by function, at the density at which methods stand side by side."""
    at = one.density_of(training)
    return {
        name: [found.cut(lab, at) for found in one.repeats(training, name)] for name in one.network.problem.functions
    }


def _shared(lab: Lab, one: Inspected, training: MaskTraining) -> dict[str, float]:
    masks = subnetworks(lab, one, training)
    same = [_overall(a, b) for some in masks.values() for a, b in combinations(some, 2)]
    other = [_overall(a, b) for a, b in pairs(*masks.values())]
    same, other, chance = (pd.DataFrame(rows, columns=SHARED).mean() for rows in (same, other, same or other))
    return {"same_iou": same["iou"], "other_iou": other["iou"], "chance_iou": chance["chance_iou"]}


def _overall(a: Subnetwork, b: Subnetwork) -> pd.Series:
    return overlaps(a, b, list(a.masks)).set_index("layer").loc[OVERALL, SHARED]


def _cost(lab: Lab, one: Inspected, training: MaskTraining) -> dict[str, float]:
    found = [each for name in one.network.problem.functions for each in one.repeats(training, name)]
    spent = [each.make(lab).json("provenance").get("cpu_seconds", np.nan) for each in found]
    return {"passes": float(np.mean([each.result(lab)["passes"] for each in found])), "seconds": float(np.mean(spent))}


def agreement(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """How much two methods agree: IoU of what they find for one function, beside chance, mean over functions.

    A method beside itself is two seeds of it, if there are. Columns model, seed, method, with_method, iou, chance_iou.
    """
    rows = []
    for one in found:
        masks = {training.masking.method: subnetworks(lab, one, training) for training in one.settings.methods}
        for first, second in ((a, b) for a in masks for b in masks if a != b or one.settings.repeats > 1):
            pairs = [
                _overall(masks[first][function][0], masks[second][function][first == second])
                for function in one.network.problem.functions
            ]
            about = {"model": one.settings.model, "seed": one.network.seed, "method": first, "with_method": second}
            rows.append(about | pd.DataFrame(pairs).mean().to_dict())
    return pd.DataFrame(rows)


def faithfulness(lab: Lab, found: Sequence[Inspected], curve: pd.DataFrame, ablation: str = "zero") -> pd.DataFrame:
    """Faithfulness along densities as one number (MIB: Mueller et al. 2025), by accuracy and by log-probability.

    f = (m(subnetwork) - m(nothing)) / (m(network) - m(nothing)), where nothing is the network without its masked
    weights. Columns model, method, seed, measure; cpr, the area under f over densities from 0 to 1 (1 is best); cmd,
    the area of |1 - f| (0 is best); densities, how many there were between. Methods with less than two are left out.
    curve, ablation: from and of `along_densities`.
    """
    rows = []
    for one in found:
        levels = _levels(lab, one, ablation)
        own = curve[curve["model"].eq(one.settings.model) & curve["seed"].eq(one.network.seed)]
        for about, some in groups(own[own["part"] == "alone"], "model", "method", "seed", "function"):
            for measure, end in MEASURES.items():
                nothing, whole = (levels[name][f"{measure} on {about['function']}"] for name in ("nothing", "whole"))
                gap = whole - nothing or np.nan  # a network that knows no more than nothing has no faithful parts
                f = (some.groupby("density")[f"{OWN}{end}"].mean() - nothing) / gap
                if len(f) > 1:
                    x, y = np.array([0, *f.index, 1]), np.array([0, *f, 1])
                    areas = {"cpr": np.trapezoid(y, x), "cmd": np.trapezoid(np.abs(1 - y), x)}
                    rows.append(about | {"measure": measure} | areas | {"densities": len(f)})
    seeds = pd.DataFrame(rows).groupby(["model", "method", "seed", "measure"], sort=False)
    return seeds[["cpr", "cmd", "densities"]].mean().reset_index()


def by_ablation(lab: Lab, found: Sequence[Inspected]) -> pd.DataFrame:
    """Does it matter what becomes of the weights that are taken out? A row a method, means over seeds.

    Columns model, method; own, other_without and CPR by accuracy, each where those weights are 0 (_zero) and where they
    leave their mean behind (_mean); ours, how much larger the CPR then is, and whether it is the same within .05.
    """
    rows, made, by = [], [], ["model", "method", "seed"]
    some = [one for one in found if one.ablations == ABLATIONS]
    for ablation in ABLATIONS:
        curve = along_densities(lab, some, ablation)
        areas = faithfulness(lab, some, curve, ablation).query("measure == 'accuracy'").set_index(by)[["cpr"]]
        left = side_by_side(lab, some, curve).set_index(by)[[OWN, f"{OTHER}_without"]]
        made.append(areas.join(left).add_suffix(f"_{ablation}"))
    for about, both in groups(made[0].join(made[1]).reset_index(), "model", "method"):
        found = judged(both["cpr_mean"] - both["cpr_zero"], both["seed"], (-WITHIN, WITHIN))
        rows.append(about | both.drop(columns=by).mean().sort_index(ascending=False).to_dict() | found)
    return pd.DataFrame(rows)


def tests(table: pd.DataFrame) -> pd.DataFrame:
    """Is it better than random, and is it equal to what it should be? A row a method; every p is adjusted over methods.

    table: from `side_by_side`. Verdicts: better_than_random, whether own and other are further apart than in every one
    of 39 draws or more (does not hold: by less than .05, surely); alike, complete, independent (see `EQUAL`), whether
    the interval is within .05. Then the numbers: better_by, how much further, with its p of a permutation, and draws;
    of each equality the difference (_by), with the p of two one-sided tests of being .05 apart.
    """
    rows = []
    for about, some in groups(table[table["method"] != "random"], "model", "method"):
        gap, draws = (some[OWN] - some[OTHER] - some["random_difference"]).round(12), some["draws"].min()
        beats, surely = some["beats_random"].min() == 1, judged(gap, some["seed"], (WITHIN, np.inf))["verdict"]
        better = HOLDS if beats and draws >= RANDOM_DRAWS else FAILS if surely == FAILS else OPEN
        row, numbers = about | {"n_runs": len(some), "better_than_random": better}, {"draws": draws}
        numbers |= {"better_by": gap.mean(), "better_p": paired(gap)}
        for name, (ours, level) in EQUAL.items():
            found = judged(difference := some[ours] - some[level], some["seed"], (-WITHIN, WITHIN))
            row[name] = found["verdict"]
            numbers |= {f"{name}_by": found["ours"], f"{name}_p": equivalence(difference, WITHIN)}
        rows.append(row | numbers)
    found = pd.DataFrame(rows)
    p = [name for name in found if name.endswith("_p")]
    return found.assign(**found.groupby("model")[p].transform(adjusted))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of `side_by_side`, each accuracy with its 95% interval."""
    rows = []
    for about, some in groups(table, "model", "method"):
        row = about | {"n_runs": some["seed"].nunique()}
        for _, name, _ in CLAIMS:
            found = interval(some[name], some["seed"], name, SHARE)
            row |= {name: found[name], f"{name}_low": found["low"], f"{name}_high": found["high"]}
        rest = ["density", "beats_random", "matter", "same_iou", "other_iou", "chance_iou", "passes", "seconds"]
        rows.append(row | some[rest].mean().to_dict())
    return pd.DataFrame(rows)


def findings(table: pd.DataFrame) -> pd.DataFrame:
    """What one expects of a subnetwork, method by method, each with our number over seeds and a verdict."""
    rows = []
    for about, some in groups(table, "model", "method"):
        for claim, name, able in CLAIMS:
            limits = (LEARNED, np.inf) if able else (-np.inf, some["lost"].iloc[0])
            rows.append(about | {"claim": claim} | judged(some[name], some["seed"], limits, possible=SHARE))
    return pd.DataFrame(rows).query("n_runs > 0")  # of an accuracy that there is not, nothing is said
