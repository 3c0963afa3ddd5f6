"""Tables on modules in arithmetic: accuracies of parts, shared weights, and what follows from them.

The networks of the seeds are the independent observations.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.models.staged import maskable
from subnet_utils.papers.functional_modularity import half_masks, reference
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected
from subnet_utils.problems.modules import CONTROL, Network
from subnet_utils.problems.sharing import HIDDEN, between_functions
from subnet_utils.report.comparison import CLAIM, POSITIVE, compare
from subnet_utils.report.findings import SHARE, claimed, groups, with_intervals
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks.digit_arithmetic import ABSENT

ACCURACY = "accuracy on "
PAPER_NAMES = {"pair 1": "pair1", "pair 2": "pair2", "+": "add", "*": "mul"}
FAR = 0.3
"""Two functions share far less than one function twice: by so much of an overlap."""
TABLES = {"double_addition": "Table 1", "add_mul": "Table 2"}
FIGURES = {"double_addition": "Figure 2", "add_mul": "Figure 1"}
BY_PENALTY = {"control_accuracy": ("Figure 10", "accuracy under the control mask"),
              "shared": ("Figure 10", "shared weights"), "scale": ("", "overlap on the scale")}  # fmt: skip
PERFORMED = {"feedforward": ("the mask's operation", "+"), "lstm": ("neither operation", "none")}
"""What networks do under the mask of + where they are asked for * (Figure 13)."""
METHOD_CLAIMS = {"ceiling_iou": "overlap of two masks of one function", "scale": "shared weights, on the scale",
                 "left": "left of the other function without the mask's weights"}  # fmt: skip
METHOD_RANGES = {"overlap of two masks of one function": POSITIVE}
"""What is compared between methods. Claimed is that continuous sparsification keeps fewer weights, that two of its
masks are more alike, and that the rest does not depend on the method."""
CLAIMS = (
    ("a mask computes its own function", "mask", True, (LEARNED, np.inf)),
    ("and not the other one", "mask", False, (-np.inf, 0.05)),
    ("without it its function is lost", "inverse", True, (-np.inf, 0.05)),
    ("and the other one is not", "inverse", False, (0.6, np.inf)),
)
"""What holds of a network of separate parts: the claim, the part, whether on its own function, and where its accuracy
should be. These ranges are ours; not all of it holds of the paper's own networks."""


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
        known = one.about | {"network": one.settings.paper_network, "key": one.parts.key(lab)}
        for row, name in product(parts, one.network.problem.functions):
            about = known | {"tested_on": name, "base_accuracy": whole[ACCURACY + name]}
            about |= {column: row[column] for column in ("part", "edges", "of", "density")}
            rows.append(about | {"accuracy": row[ACCURACY + name]})
    return pd.DataFrame(rows)


def compared_with_paper(table: pd.DataFrame, number: int, *, profile: str) -> pd.DataFrame:
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


def scales(overlap: pd.DataFrame, accuracy: pd.DataFrame) -> pd.DataFrame:
    """How modular networks are that have learned, from 0 to 1: means over seeds with 95% intervals, by method.

    overlap, accuracy: from `sharing` and `accuracies`. scale: how much the hidden layers share, from 0, chance, to 1,
    two masks of one function, by IoU; scale_iomin by IoMin. specialization: by how much the accuracy of masks on their
    own function is above that on the other one, from 0, as under random masks of their sizes, to 1, all or nothing.
    """
    about, (overlap, accuracy) = ["task", "title", "method"], _learned(accuracy, overlap, accuracy)
    if not len(overlap):
        return pd.DataFrame(columns=[*about, "scale", "low", "high", "n_runs"])
    table = with_intervals(overlap[overlap["layer"] == HIDDEN], about, "scale")
    for name, frame in (("scale_iomin", overlap[overlap["layer"] == HIDDEN]), ("specialization", _special(accuracy))):
        found = with_intervals(frame, about, name).drop(columns="n_runs")
        found = found.rename(columns={end: f"{name.removeprefix('scale_')}_{end}" for end in ("low", "high")})
        table = table.merge(found, on=about)
    return table


def _special(accuracy: pd.DataFrame) -> pd.DataFrame:
    """`specialization` of each network (`scales`)."""
    some = accuracy[accuracy["part"].isin(["mask", "random"]) & accuracy["edges"].eq("")]
    some = some.assign(signed=some["accuracy"].where(some["of"] == some["tested_on"], -some["accuracy"]))
    by = ["task", "title", "method", "seed"]
    # an own accuracy for each other one: twice the mean is the difference
    found = 2 * some.pivot_table(index=by, columns="part", values="signed", sort=False)
    found = found.reindex(columns=["mask", "random"])  # an empty mask has no random ones beside it
    return ((found["mask"] - found["random"]) / (1 - found["random"])).rename("specialization").reset_index()


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
                    about = one.about | {"family": one.settings.architecture.family, "mask": row["of"] or CONTROL}
                    about |= {"asked": asked, "done": done}
                    rows.append(about | {"share": row[f"{done} for {asked}"]})
    return pd.DataFrame(rows)


def by_strength(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """What changes with alpha: a row for each network and alpha (Figure 10, and beyond it every conclusion).

    Columns of `Dissected.about`; beta (alpha times the batch); accuracy under the control mask, of masks on their own
    function and on the other, and without them on both; share of the items of * that are added under the mask of +
    (Figure 13), NaN for double addition; weights of the first function's mask that the second's has, too, and IoU of
    the hidden layers, both beside chance and ceiling; that IoU on the scale between them, IoU of all layers; density
    of the first mask; the paper's network, the family, the weights, the examples of each function that it learned from,
    NaN for all, and the steps of the masks.
    """
    rows = []
    for one in found:
        first, overlap = one.mask(one.network.problem.functions[0]).load(lab), sharing(lab, [one]).set_index("layer")
        hidden, every = overlap.loc[HIDDEN], overlap.loc[OVERALL]
        plain = accuracies(lab, [one]).query("edges == ''")
        own = plain["of"] == plain["tested_on"]
        means = plain.groupby(["part", own])["accuracy"].mean()
        about = one.about | {"beta": (one.about["l0"] or np.nan) * one.training.batch_size}
        about |= {"network": one.settings.paper_network, "family": one.settings.architecture.family}
        about |= {"weights": first.total, "examples": one.settings.examples, "mask_steps": one.training.steps}
        about |= {"control_accuracy": means[CONTROL, False], "own_accuracy": means["mask", True]}
        about |= {"other_accuracy": means["mask", False], "own_without": means.get(("inverse", True), np.nan)}
        about |= {"other_without": means.get(("inverse", False), np.nan), "density": first.density}
        done = [row["share"] for row in operations(lab, [one]).to_dict("records")
                if (row["mask"], row["asked"], row["done"]) == ("+", "*", "+")]  # fmt: skip
        about |= {"follows_mask": done[0] if done else np.nan, "iou": every["iou"], "hidden_iou": hidden["iou"]}
        about |= {name: every[name] for name in ("shared", "chance_shared", "ceiling_shared")}
        rows.append(about | {name: hidden[name] for name in ("chance_iou", "ceiling_iou", "scale")})
    return pd.DataFrame(rows)


def ledger_effects(lab: Lab, found: Sequence[Dissected], strength: pd.DataFrame, widths: pd.DataFrame) -> pd.DataFrame:
    """What points of the ledger do to our numbers: as text and as released code have it, means over seeds.

    strength, widths: from `by_strength`, of the sweep and of the usual masks. The penalty: each alpha beside twice as
    much. Validation: items that taught a network beside all others, where not all did. Figure 2b: LSTMs that read both
    pairs together, and all. Table 1: a mask where the other pair is zero, and where it is there. Commits: the mask of +
    on +, and that of *. Figures 1, 2 and 8: the share of one mask's weights that the other has, and IoU. Columns where,
    model, quantity, as_printed, as_released, n_runs.
    """
    rows = []
    for about, part in groups(strength, "model", "seed") if len(strength) else ():
        by_l0 = part.sort_values("l0").set_index("l0")[["control_accuracy", "density", "shared"]]
        for l0, name in product(by_l0.index, by_l0):
            for double in by_l0.index[np.isclose(by_l0.index, 2 * l0)]:
                numbers = by_l0.loc[l0, name], by_l0.loc[double, name]
                rows.append(("Appendix C.2 (penalty)", *about.values(), f"{name}, alpha {l0:g}", *numbers))
    usual = [one for one in found if one.usual and isinstance(one.network, Network)]
    masks = accuracies(lab, usual).query("part == 'mask' and edges == ''")
    masks = masks.set_index(["model", "seed", "of", "tested_on"])["accuracy"]
    for one in usual:
        network, problem, seed = one.network.load(lab), one.network.problem, one.network.seed
        about = one.settings.model, seed
        if one.settings.task == "add_mul":
            numbers = [masks[(*about, name, "+")] for name in problem.functions]
            rows.append(("Commits of 2020-10 to 2021-02", *about, "accuracy on + under its mask", *numbers))
        for name in problem.functions if one.settings.examples else ():
            inputs, targets = problem.examples(name, seed)
            every, taught = (_right(lab, network, *items) for items in (problem.items[name], (inputs, targets)))
            others = (every.sum() - taught.sum()) / (len(every) - len(taught))
            numbers = float(others), float(taught.mean())
            rows.append(("Section 3.1", *about, f"accuracy on {name}", *numbers))
        for name in problem.functions if problem.reads_both else ():
            kept, absent = one.mask(name).load(lab).apply(network), problem.examples(name, seed)
            numbers = float(_right(lab, kept, *absent).mean()), masks[(*about, name, name)]
            rows.append(("Table 1 (LSTM)", *about, f"accuracy of the mask of {name}", *numbers))
    for one in widths.itertuples():
        rows.append(("Figures 1, 2 and 8", one.model, one.seed, "shared weights, all layers", one.shared, one.iou))
    lstms = widths[widths["network"].isin(["LSTM", "LSTM_forced"]) & widths["task"].eq("double_addition")]
    if lstms["network"].nunique() == 2:
        together = lstms[lstms["network"] == "LSTM"]
        for seed, value in zip(together["seed"], together["hidden_iou"], strict=True):
            rows.append(("Figure 2b", together["model"].iloc[0], seed, "hidden_iou", value, lstms["hidden_iou"].mean()))
    table = pd.DataFrame(rows, columns=["where", "model", "seed", "quantity", "as_printed", "as_released"])
    means = {name: (name, "mean") for name in ("as_printed", "as_released")}
    by = table.groupby(["where", "model", "quantity"], sort=False)
    return by.agg(**means, n_runs=("seed", "nunique")).reset_index()


@torch.no_grad()
def _right(lab: Lab, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Which items have all digits right that are asked for: float [m]."""
    answers = network(inputs.to(lab.device)).argmax(dim=-1).cpu()
    return ((answers == targets) | (targets == ABSENT)).all(dim=1).double()


def settled(lab: Lab, found: Sequence[Dissected]) -> pd.DataFrame:
    """Histogram of the probabilities to be kept at the end of training, control masks (Figure 9): 50 equal bins."""
    return pd.DataFrame(
        one.about | {"bin": (j + 0.5) / 50, "share": share}
        for one in found
        for j, share in enumerate(one.mask(CONTROL).make(lab).table("annealing").iloc[-1].filter(like="bin_"))
    )


def findings(accuracy: pd.DataFrame, overlap: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """What holds of modules? Each claim with our number over networks that have learned, its interval and a verdict.

    accuracy, overlap, done: from `accuracies`, `sharing` and `operations`. Claims are ranges (`findings.claimed`).
    """
    rows, (overlap, done) = [], _learned(accuracy, overlap, done)
    for about, every in groups(accuracy[~accuracy["copied"]], "model", "task", "method"):
        part = every[every.groupby("seed")["base_accuracy"].transform("min") >= LEARNED]
        own, plain, table = part["of"] == part["tested_on"], part["edges"].eq(""), TABLES[about["task"]]
        for claim, kind, is_own, within in CLAIMS:
            some = part[part["part"].eq(kind) & plain & own.eq(is_own)]
            options = {"paper": _printed(every, table, kind, is_own), "possible": SHARE}
            rows.append(about | claimed(table, claim, some["accuracy"], some["seed"], within, **options))
        control = part[part["part"] == CONTROL].groupby("seed")[["accuracy", "base_accuracy"]].mean()
        kept, within = control["accuracy"] / control["base_accuracy"], (reference.ADEQUATE, np.inf)
        claim = "the control mask keeps 95% of the accuracy"
        rows.append(about | claimed("Appendix C.3", claim, kept, kept.index, within))
        left = part[plain & ~own].pivot_table(index=["seed", "of"], columns="part", values="accuracy")
        left = left.reindex(columns=["inverse", "random inverse"])
        more = left["inverse"] - left["random inverse"]
        claim = "more of the other one is left than without random weights"
        rows.append(about | claimed(table, claim, more, left.index.get_level_values("seed"), POSITIVE))
        some = part[part["part"].eq("inverse") & part["edges"].eq("ones")]
        if about["task"] == "double_addition":
            both = some.groupby(["seed", "of"])["accuracy"].min()  # pairs, by an inverse mask
            claim, seeds = "the inverse in whole first and last layers does both", both.index.get_level_values("seed")
            rows.append(about | claimed("Appendix C.5.1", claim, both, seeds, (0.8, np.inf), paper=0.9, possible=SHARE))
    for about, part in groups(overlap, "model", "task", "copied", "method"):
        place = "Figure 8" if about["copied"] else FIGURES[about["task"]]
        rows += [about | claimed(place, *claim) for claim in _of_sharing(part, about)]
    usual = done[done["title"].eq(done["model"]) & done["mask"].eq("+") & done["asked"].eq("*")] if len(done) else done
    for about, part in groups(usual, "model", "task", "method", "family") if len(usual) else ():
        what, name = PERFORMED[about.pop("family")]
        some = part[part["done"] == name]
        claim = f"under the mask of +, asked for *, it performs {what}"
        rows.append(about | claimed("Figure 13", claim, some["share"], some["seed"], (0.5, np.inf), possible=SHARE))
    return pd.DataFrame(rows).drop(columns=["task", "copied"], errors="ignore")  # the place says it


def _printed(ours: pd.DataFrame, table: str, kind: str, is_own: bool) -> float:
    """Mean of what Table 1 or 2 prints for masks or inverses in the same network, on their own function or the other
    one; NaN where the method is not the paper's. ours: rows of `accuracies`."""
    printed, (one, *_) = reference.load("accuracies"), ours.itertuples()
    of, inverse = printed["mask"].str.removeprefix("not_"), printed["mask"].str.startswith("not_")
    same = printed["table"].eq(int(table[-1])) & printed["network"].eq(one.network) & of.ne("full")
    same &= inverse.eq(kind == "inverse") & of.eq(printed["tested_on"]).eq(is_own)
    return printed.loc[same, "percent"].mean() / 100 if one.method == "gumbel_sigmoid" else np.nan


def _learned(accuracy: pd.DataFrame, *tables: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of some tables that are about networks that have learned both functions."""
    least = accuracy.groupby(["model", "seed"])["base_accuracy"].min()
    learned = least[least >= LEARNED].index
    return [one[one.set_index(["model", "seed"]).index.isin(learned)] if len(one) else one for one in tables]


def _of_sharing(overlap: pd.DataFrame, about: dict[str, Any]) -> Iterator[tuple]:
    """Claims on what two functions' masks share, with our numbers: what `claimed` wants after the place."""
    first, *_, last, _, _ = dict.fromkeys(overlap["layer"])
    wide = overlap.pivot(index="seed", columns="layer", values=["iou", "drawn_iou", "ceiling_iou"])
    iou, ceiling, seeds = wide["iou"], wide["ceiling_iou"], wide.index
    above, ends = iou - wide["drawn_iou"], [first, last]
    yield "hidden layers share more than chance", above[HIDDEN], seeds, (CLAIM, np.inf)
    if about["copied"]:
        yield "and as much as two masks of one function", (iou - ceiling)[HIDDEN], seeds, (-CLAIM, np.inf)
    else:
        yield "and far less than two masks of one function", (ceiling - iou)[HIDDEN], seeds, (FAR, np.inf)
    if about["task"] == "add_mul":
        more = above[ends].mean(axis=1) - above[HIDDEN]
        yield "first and last layer share more, each beyond chance", more, seeds, POSITIVE
    else:
        yield "first and last layer share nothing", iou[ends].max(axis=1), seeds, (0.0, 0.0)


def methods(accuracy: pd.DataFrame, overlap: pd.DataFrame) -> pd.DataFrame:
    """Whether conclusions depend on the method: another one less the usual one in networks that have learned, by seed.

    accuracy, overlap: from `accuracies` and `sharing`. Columns of both, difference with its interval, and a verdict.
    """
    overlap, accuracy = _learned(accuracy, overlap, accuracy)
    by, hidden = ["model", "title", "seed"], overlap[overlap["layer"].eq(HIDDEN) & ~overlap["copied"]]
    masks = accuracy[accuracy["part"].isin(["mask", "inverse"]) & accuracy["edges"].eq("") & ~accuracy["copied"]]
    own = masks["of"] == masks["tested_on"]
    kept = masks[own & masks["part"].eq("mask")].assign(kind=lambda table: "weights kept for " + table["of"])
    left = masks[~own & masks["part"].eq("inverse")].groupby(by)["accuracy"].mean()
    values = kept.pivot_table(index=by, columns="kind", values="density").assign(left=left)
    values = values.join(hidden.set_index(by)[["ceiling_iou", "scale"]]).rename(columns=METHOD_CLAIMS)
    rows = []
    for model, part in values.groupby(level="model", sort=False):
        for title in part.index.unique("title").drop(model):
            usual, other = (part.xs((model, name)) for name in (model, title))
            for name in part.columns[part.notna().any()]:
                within = (-np.inf, 0.0) if name.startswith("weights") else METHOD_RANGES.get(name, (-CLAIM, CLAIM))
                change = (other - usual)[name].dropna()
                about = {"model": model, "method": title.rpartition(", ")[2], "usual": usual[name].mean()}
                about |= {"other": other[name].mean()}
                rows.append(about | claimed("", name, change, change.index, within))
    return pd.DataFrame(rows).drop(columns=["place", "paper"], errors="ignore")


def dependence(
    accuracy: pd.DataFrame, sizes: pd.DataFrame, sure: pd.DataFrame, strength: pd.DataFrame, widths: pd.DataFrame
) -> pd.DataFrame:
    """What the paper says of masks by layer, penalty and size (Figures 7 and 9 to 12): our numbers and verdicts.

    accuracy, sizes, sure: from `accuracies`, `kept` and `settled`, of the usual masks; strength, widths: from
    `by_strength`, of the sweep and of the usual masks.
    """
    partly = widths["examples"].notna()  # they are not meant to learn all items
    whole, strength = _learned(accuracy, widths[~partly], strength)
    widths = pd.concat([whole, widths[partly]])
    accuracy, sizes, sure = _learned(accuracy, accuracy, sizes, sure)
    rows = list(half_masks.claims(accuracy))
    for about, part in groups(sure[sure["bin"].between(0.05, 0.95)], "model"):
        open_ = part.groupby("seed")["share"].sum()
        claim = "share of probabilities from .04 to .96"
        rows.append(about | claimed("Figure 9", claim, open_, open_.index, (-np.inf, CLAIM), possible=SHARE))
    for about, part in groups(strength, "model") if len(strength) else ():
        by_seed = part.sort_values("l0").groupby("seed")
        weakest, strongest = (by_seed.nth(i).set_index("seed") for i in (0, -1))
        for name, (place, what) in BY_PENALTY.items():
            fall = (weakest[name] - strongest[name]).dropna()
            claim, own = f"{what}: weakest less strongest penalty", part["task"].eq("add_mul").all()
            rows.append(about | claimed(place if own else "", claim, fall, fall.index, POSITIVE))
    for small, large in _pairs(widths):
        about = {"model": f"{small['model'].iloc[0]} and {large['model'].iloc[0]}"}
        fall = (small["shared"] - large["shared"]).dropna()
        if small["examples"].isna().all():
            place = "Figure 11" if large["task"].eq("add_mul").all() else ""
            rows.append(about | claimed(place, "shared weights: small less large", fall, fall.index, POSITIVE))
        else:
            beyond = [one["hidden_iou"] - one["chance_iou"] for one in (small, large)]
            change, claim = (beyond[0] - beyond[1]).dropna(), "overlap beyond chance: few less all examples"
            rows.append(about | claimed("", claim, change, change.index, (-CLAIM, CLAIM)))
    for about, part in groups(sizes[sizes["layer"].eq(OVERALL) & sizes["task"].eq("add_mul")], "model"):
        wide = part.pivot(index="seed", columns="function", values="kept")
        claim = "weights for *, times those for +"
        rows.append(about | claimed("Figure 12", claim, wide["*"] / wide["+"], wide.index, (1.0, np.inf), paper=3.8))
    return pd.DataFrame(rows, columns=None if rows else ["model", "place", "claim", "ours", "n_runs", "verdict"])


def _pairs(widths: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Networks, by seed, that differ in size, or in how many examples they learned from, and whose masks were trained
    alike: a longer or stronger pruning shares less, too."""
    for _, part in groups(widths, "task", "family", "l0", "mask_steps"):
        models = sorted((one for _, one in part.groupby("model", sort=False)), key=lambda one: one["weights"].iloc[0])
        models = [one.set_index("seed") for one in models]
        every, few = ([one for one in models if one["examples"].isna().all() == whole] for whole in (True, False))
        yield from ((one, two) for one, two in pairwise(every) if one["weights"].iloc[0] < two["weights"].iloc[0])
        yield from ((one, two) for one, two in product(few, every) if one["weights"].iloc[0] == two["weights"].iloc[0])
