"""Tables of classes and permuted images (*Are Neural Nets Modular?*, sections 3.3 and 5, appendices B.1 and C.8).

Seeds are the independent observations: each has a network, masks and controls of its own. A drop is relative: what
share of a class's right answers under the control mask is lost.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks.overlap import OVERALL, expected_iou, iou
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.functional_modularity import half_masks, image_steps, permuted_steps, reference
from subnet_utils.papers.functional_modularity.permuted_steps import ALIVE, DIFFERENT, REPEATED
from subnet_utils.report.comparison import CLAIM, FINDING, POSITIVE, VALUE, at_paper_size
from subnet_utils.report.findings import SHARE, claimed, groups, interval, judged

LAST = "output.weight"
CLAIMS = {
    "other_drop": "a removed class loses more than any other",
    "sham_drop": "... than under a second control mask",
    "null_drop": "... than without as many random weights",
}
"""What the drop of a removed class is compared with, and what is claimed."""
CHANGES = {"CNN": "Figure 18", "CNN without dropout": "Figure 19", "ResNet-110": "Figure 20"}
"""Where the paper shows the answers of its networks."""
OURS = {"drop of the removed class": "target_drop", "largest drop of another class over it": "other_share"}
"""Columns of ours beside quantities that the paper's text gives."""
SIZES = {
    "in_channels": "inputs", "in_features": "inputs", "out_channels": "outputs", "out_features": "outputs",
    "output_size": "outputs", "kernel_size": "kernel", "padding": "padding",
}  # fmt: skip
"""torch's names of what Table 5 says of a layer, and the paper's."""


def made(lab: Lab) -> list[image_steps.Family]:
    """All masks on classes and what they are compared with, made if need be."""
    families = image_steps.families(lab)
    make_all(lab, [step for one in families for step in one.steps], "masks of classes")
    return families


def networks(lab: Lab) -> pd.DataFrame:
    """The networks and their control masks: accuracies on test images and densities, a row for each alpha."""
    rows = []
    for one in made(lab):
        base, control, sham = (step.result(lab) for step in (one.network, one.control, one.sham))
        about = one.about | {"accuracy": base["accuracy"], "control_accuracy": control["accuracy"]}
        about |= {"control_density": control["active"] / control["total"], "sham_accuracy": sham["accuracy"]}
        kept = control["accuracy"] >= reference.ADEQUATE * base["accuracy"]
        rows.append(about | {"control_is_good": kept, "key": one.control.key(lab)})
    return pd.DataFrame(rows)


def layers(lab: Lab) -> pd.DataFrame:
    """Table 5: the simple CNN, the paper's settings and those of our networks of this kind; NaN: no such layer."""
    simple = {one.network.model: one for one in image_steps.families(lab) if one.settings.architecture.family == "cnn"}
    tables = []
    for model, one in simple.items():
        sizes = enumerate(_sizes(one.network.problem.network(seed=0)), start=1)
        rows = [(layer, setting, size) for layer, found in sizes for setting, size in found.items()]
        ours = pd.DataFrame(rows, columns=["layer", "setting", "ours"])
        tables.append(reference.load("layers").merge(ours, "outer").assign(model=model))
    return pd.concat(tables, ignore_index=True) if tables else reference.load("layers").assign(ours=math.nan, model="")


def drops(lab: Lab) -> pd.DataFrame:
    """Figure 6: a row for each mask without a class.

    target_drop: of that class; other_drop: the largest of another class, `other`; other_share: the second over the
    first, NaN where the first is not above 0. sham_drop: of the same class under a second control mask; null_drop: the
    same without as many random weights of the control, mean over draws, null_highest the largest.
    """
    rows = []
    for one in made(lab):
        control, names = one.control.result(lab), one.network.problem.source.data.classes
        right, sham = shares(control).diagonal(), lost(control, one.sham.result(lab))
        for name, mask in one.masks.items():
            own, i = pd.Series(lost(control, mask.result(lab)), names), names.index(name)
            null = [lost(control, draw)[i] for draw in one.null(name).result(lab)]
            target, others = own[name], own.drop(name)
            about = one.about | {"class": name, "class_accuracy": right[i], "target_drop": target}
            about |= {"other_drop": others.max(), "other": others.fillna(-math.inf).idxmax()}
            about |= {"other_share": others.max() / target if target > 0 else math.nan, "sham_drop": sham[i]}
            about |= {"null_drop": np.mean(null), "null_highest": np.max(null)}
            rows.append(about | {"accuracy": mask.result(lab)["accuracy"], "key": mask.key(lab)})
    return pd.DataFrame(rows)


def shares(result: dict[str, Any]) -> np.ndarray:
    """Of the images of each class, the share that gets each answer, [classes, answers]; result: scores of a network."""
    confusion = np.array(result["confusion"], dtype=float)
    return confusion / confusion.sum(axis=1, keepdims=True)


def lost(before: dict[str, Any], after: dict[str, Any]) -> np.ndarray:
    """Relative drop of each class; NaN where there was nothing to lose."""
    first, second = (shares(result).diagonal() for result in (before, after))
    return (first - second) / np.where(first > 0, first, np.nan)


def confusions(lab: Lab) -> pd.DataFrame:
    """Figures 17 to 20: share of a class's test images that get an answer, a row each, under the control mask (removed
    is '') and under the masks without a class; `change`: from the one to the other."""
    tables = []
    for one in (one for one in made(lab) if one.usual):
        names, control = one.network.problem.source.data.classes, shares(one.control.result(lab))
        pairs = pd.MultiIndex.from_product([names, names], names=["class", "answer"])
        for removed, mask in {"": one.control, **one.masks}.items():
            found = shares(mask.result(lab))
            values = {"removed": removed, "share": found.ravel(), "change": (found - control).ravel()}
            tables.append(pd.DataFrame(one.about | values, pairs).reset_index())
    return pd.concat(tables, ignore_index=True)


def taken_over(table: pd.DataFrame, *, most: int = 2) -> pd.DataFrame:
    """To which classes the images of a removed class go: the largest gains, means over seeds. table: `confusions`."""
    own = table[(table["removed"] == table["class"]) & (table["answer"] != table["class"])]
    means = own.groupby(["model", "removed", "answer"], sort=False)["change"].mean().reset_index()
    return means.sort_values("change", ascending=False).groupby(["model", "removed"], sort=False).head(most)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds and classes of `drops` for each network and alpha, over the classes removed at each alpha."""
    rows = []
    for about, group in groups(table, "model", "l0", "usual_l0"):
        about |= {"n_classes": group["class"].nunique()}
        for column in ("target_drop", *CLAIMS):
            found = interval(group[column], group["seed"], column, (-np.inf, 1))  # no class loses more than all
            about |= found | {f"{column}_{end}": found[end] for end in ("low", "high")}
        rows.append(about)
    return pd.DataFrame(rows).drop(columns=["low", "high"])


def by_l0(table: pd.DataFrame) -> pd.DataFrame:
    """`summary` of the networks with several alphas, over the classes that were removed at all of them."""
    every, own = (table.groupby(by)["l0"].transform("nunique") for by in ("model", ["model", "class"]))
    some = table[(every > 1) & (own == every)]
    return summary(some) if len(some) else some


def findings(lab: Lab, table: pd.DataFrame, change: pd.DataFrame, half: pd.DataFrame) -> pd.DataFrame:
    """The paper's claims on classes, with 95% intervals over seeds and verdicts. table, change, half: from `drops`,
    `confusions` and `half_masks`.

    Figure 6: differences of drops. Figures 18 to 20: of the answers of a removed class that change, the share of the
    two classes that win most. Nothing can be told of a network whose control masks do not keep enough.
    """
    rows, known = [], networks(lab)
    good = known[known["usual_l0"]].groupby("model")["control_is_good"].all()
    for about, group in groups(table[table["usual_l0"]], "model"):
        for column, claim in CLAIMS.items():
            values = group["target_drop"] - group[column]
            rows.append(about | claimed("Figure 6", claim, values, group["seed"], POSITIVE))
    figures = {_model_of(lab, kind): figure for kind, figure in CHANGES.items()}
    won = change[(change["removed"] == change["class"]) & (change["answer"] != change["class"])]
    for about, group in groups(won[won["model"].isin(figures)], "model"):
        gains = group.assign(won=group["change"].clip(lower=0)).groupby(["seed", "removed"])["won"]
        two = (gains.apply(lambda some: some.nlargest(2).sum()) / gains.sum()).dropna()
        claim, seeds = "most images of a removed class go to two others", two.index.get_level_values("seed")
        rows.append(about | claimed(figures[about["model"]], claim, two, seeds, (0.5, math.inf), possible=SHARE))
    table = pd.DataFrame([*rows, *half_masks.claims(half)])
    return table.assign(verdict=table["verdict"].where(table["model"].map(good), FINDING[-1]))


def dropout(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """Whether a removed class loses more in the network with dropout: pairs of equal seed and class. Empty without
    both networks."""
    pair = [_model_of(lab, name) for name in ("CNN", "CNN without dropout")]
    usual = table[table["usual_l0"]].pivot_table(index=["seed", "class"], columns="model", values="target_drop")
    if not set(pair) <= set(usual):
        return pd.DataFrame()
    both = usual[pair].dropna().set_axis(["with_dropout", "without"], axis=1)
    difference, seeds = both["with_dropout"] - both["without"], both.index.get_level_values("seed")
    about = {"claim": "a removed class loses more with dropout"} | {name: both[name].mean() for name in both}
    return pd.DataFrame([about | judged(difference, seeds, POSITIVE)])


def _model_of(lab: Lab, paper_network: str) -> str | None:
    return {one.paper_network: one.model for one in reversed(image_steps.settings_of(lab).networks)}.get(paper_network)


def stability(lab: Lab) -> pd.DataFrame:
    """Appendix B.1: overlap of two masks of one pair of classes. as_released: both with one output layer."""
    rows = []
    for first, pair in ((family.pairs[0][0], pair) for family in made(lab) for pair in family.pairs):
        masks, last = [one.load(lab) for one in pair], {LAST: first.load(lab).masks[LAST]}
        released = [Subnetwork(mask.masks | last, mask.network) for mask in masks]
        about = {"model": first.network.model, "seed": first.network.seed, "function": pair[0].function}
        about |= {"iou": iou(masks)[OVERALL], "as_released": iou(released)[OVERALL]}
        about |= {"chance": expected_iou(masks, draws=100)[OVERALL], "density": sum(one.density for one in masks) / 2}
        rows.append(about | {"key": pair[0].key(lab)})
    return pd.DataFrame(rows, columns=["model", "seed", "function", "iou", "as_released", "chance", "density", "key"])


def compared_with_paper(lab: Lab, table: pd.DataFrame, stable: pd.DataFrame) -> pd.DataFrame:
    """The numbers that the paper's text gives, a range each, beside ours. table, stable: `drops`, `stability`.

    Verdicts only at the profile `paper`: drops depend on data, size of the network and alpha.
    """
    found, rows = pd.concat(_measured(lab, table, stable)), []
    for one in reference.load("images").itertuples():
        own = found[found["quantity"].eq(one.quantity) & found["network"].eq(one.network)]
        if len(own):
            about = {"place": one.place, "quantity": one.quantity, "network": one.network}
            about |= {"paper": one.low if one.low == one.high else math.nan}
            about |= {"paper_low": one.low, "paper_high": one.high}
            comparable = at_paper_size(lab.study.name)
            rows.append(about | judged(own["value"], own["seed"], (one.low, one.high), VALUE, comparable=comparable))
    return pd.DataFrame(rows)


def _measured(lab: Lab, table: pd.DataFrame, stable: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Our values of what the paper gives: columns quantity, network, seed, value."""
    kinds = {one.model: one.paper_network for one in image_steps.settings_of(lab).networks}
    usual, known = (one[one["usual_l0"]].assign(network=one["model"].map(kinds)) for one in (table, networks(lab)))
    tables = [(name, usual, column) for name, column in OURS.items()] + [("accuracy of the network", known, "accuracy")]
    own = stable.assign(network=stable["model"].map(kinds))
    tables.append(("overlap of two masks of one function", own, "iou"))
    for name, one, column in tables:
        yield one[["network", "seed"]].assign(quantity=name, value=one[column])
    drop, accuracy = (
        one.pivot_table(index="seed", columns="network", values=column).reindex(columns=["CNN", "CNN without dropout"])
        for one, column in ((usual, "target_drop"), (known, "accuracy"))
    )
    both = {"drop with dropout over drop without": drop["CNN"] / drop["CNN without dropout"],
            "accuracy lost without dropout": accuracy["CNN"] - accuracy["CNN without dropout"]}  # fmt: skip
    for name, values in both.items():
        columns = {"quantity": name, "network": "CNN", "seed": values.index, "value": values.to_numpy()}
        yield pd.DataFrame(columns).dropna()


def sharing(lab: Lab) -> pd.DataFrame:
    """Figures 3 and 14: from the second task on, a row for each layer but the first: which share of its weights earlier
    tasks use (`shared`), and which share of all the layer's weights they use (`used`), which is chance."""
    tasks, rows = permuted_steps.tasks(lab), []
    make_all(lab, tasks, "permuted images")
    for task in tasks:
        result, sequence = task.result(lab), DIFFERENT if task.permutation else REPEATED
        about = {"start": task.start_value, "sequence": sequence, "seed": task.seed, "task": task.number}
        about |= {"accuracy": result["accuracy"], "key": task.key(lab)}
        rows += [about | layer for layer in result["layers"] if task.number > 1 and layer["layer"] > 1]
    table = pd.DataFrame(rows).astype({"shared": float})
    return table.assign(density=table["kept"] / table["total"])


def sharing_findings(table: pd.DataFrame) -> pd.DataFrame:
    """What the shares say, for each start of new logits: 95% intervals over seeds, and verdicts, none where a
    network is not `ALIVE`. table: `sharing`."""
    (room,) = reference.load("images").query("quantity == 'shared weights while there is room'")["high"]
    wide = table.pivot(index=["seed", "task", "layer"], columns=["start", "sequence"], values=["shared", "used"])
    wide = wide.sort_index(axis=1)
    seeds, tasks, layers = (wide.index.get_level_values(name) for name in wide.index.names)
    early, first, rows = (tasks == 2) & (layers < layers.max()), table["start"].iloc[0], []
    for start, lowest in table.groupby("start", sort=False)["accuracy"].min().items():
        shared, chance = wide["shared", start], wide["used", start, DIFFERENT]
        different, repeated = shared[DIFFERENT], shared[REPEATED]
        claims = {
            f"the second task shares less than {room:g} in inner layers": (different.where(early), (-math.inf, room)),
            "more is shared than by chance": (different - chance, POSITIVE),
            "permutations share no more than one repeated": (different - repeated, (-math.inf, CLAIM)),
        }
        if start != first:
            claim = f"more is shared than with first logits {first:g}"
            claims[claim] = (different - wide["shared", first, DIFFERENT], POSITIVE)
        for claim, (values, within) in claims.items():
            found = judged(values, seeds, within, comparable=lowest >= ALIVE)
            about = {"place": "Figure 3" if start == first else "Figure 14", "start": start, "lowest_accuracy": lowest}
            rows.append(about | {"claim": claim, "claimed_from": within[0], "claimed_to": within[1]} | found)
    return pd.DataFrame(rows)


def _sizes(network: nn.Sequential) -> list[dict[str, float]]:
    """What Table 5 says of each layer, by its names. Dropout belongs to the layer before it."""
    layers = []
    for module in network:
        found = {name: getattr(module, own) for own, name in SIZES.items() if hasattr(module, own)}
        if isinstance(module, nn.Dropout):
            layers[-1]["dropout"] = module.p
        elif found:
            found = {name: size[0] if isinstance(size, tuple) else size for name, size in found.items()}
            if "inputs" not in found:  # of pooling, which leaves the channels as they are
                found |= dict.fromkeys(("inputs", "outputs"), layers[-1]["outputs"])
            layers.append(found | ({"dropout": 0.0} if hasattr(module, "weight") else {}))
    return layers
