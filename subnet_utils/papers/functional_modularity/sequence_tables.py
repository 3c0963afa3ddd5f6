"""Tables on modules in sequence tasks (*Are Neural Nets Modular?*, section 4). Seeds are the observations."""

import math

import pandas as pd
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.models.sequences import END
from subnet_utils.models.staged import maskable
from subnet_utils.papers.functional_modularity import half_masks, reference
from subnet_utils.papers.functional_modularity.sequence_steps import ACTIONS, CONTROL_MASK, DIRECT, OWN_MASK, inspected
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.sharing import between_functions
from subnet_utils.report.comparison import CLAIM, FINDING, POSITIVE
from subnet_utils.report.findings import SHARE, claimed, groups
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks import mathematics

OUTPUT = "output.weight"
SAID = range(END, len(ACTIONS))
"""Tokens that an answer may hold."""
RATIO = 2
"""How many times the other tokens' loss JUMP's has to be, if its weights are to stand out."""
LOST = (0.4, 0.5)
"""The share of JUMP's output weights that is called almost half."""


def made(lab: Lab) -> list[str]:
    """Make all networks and masks side by side; their keys."""
    steps = [step for one in inspected(lab) for step in one.steps]
    return [artefact.key for artefact in make_all(lab, steps, "sequences")]


def accuracies(lab: Lab) -> pd.DataFrame:
    """Exact match of each network and part on each split; density: of the mask, NaN without one.

    Columns model, task, seed, split, part, accuracy and own (the `columns` of the problem), density.
    """
    rows = []
    for one in inspected(lab):
        for split in one.settings.with_masks:
            for part, step in one.parts(split).items():
                found, (accuracy, own) = step.result(lab), one.network.problem.columns(split)
                about = one.about | {"split": split, "part": part, "accuracy": found[accuracy], "own": found[own]}
                rows.append(about | {"density": found["active"] / found["total"] if "active" in found else math.nan})
    return pd.DataFrame(rows)


def controls(lab: Lab) -> pd.DataFrame:
    """Does a control mask keep what the network can do? On all that it learned, a row for each mask.

    `adequate`: the network has learned, and the mask keeps 95% of its accuracy, as appendix C.3 asks for.
    """
    rows = []
    for one in inspected(lab):
        name = one.network.problem.known
        whole = one.network.result(lab)[name]
        for repeat, mask in enumerate(one.controls):
            found = mask.result(lab)
            about = one.about | {"repeat": repeat, "whole": whole, "control": found[name]}
            about |= {"density": found["active"] / found["total"]}
            rows.append(about | {"adequate": whole >= LEARNED and found[name] >= reference.ADEQUATE * whole})
    return pd.DataFrame(rows)


def output_weights(lab: Lab) -> pd.DataFrame:
    """Of the control mask's output weights of each token of SCAN, the share that another mask lacks (Figure 4b).

    Columns model, seed, family, split, token, control (weights of the last control mask), lost, and `lost_by_chance`,
    the same for the first one: how much of it is no more than another seed's; NaN where there is one alone.
    """
    rows = []
    for one in (one for one in inspected(lab) if one.settings.task == "scan"):
        *more, first = (mask.load(lab).masks[OUTPUT] for mask in one.controls)  # of another seed than the split's
        for split in one.settings.with_masks:
            own = one.mask(split).load(lab).masks[OUTPUT]
            for i in SAID:
                about = one.about | {"family": one.settings.architecture.family, "split": split}
                about |= {"token": ACTIONS[i], "control": int(first[i].sum())}
                by_chance = _lost(first[i], more[0][i]) if more else math.nan
                rows.append(about | {"lost": _lost(first[i], own[i]), "lost_by_chance": by_chance})
    return pd.DataFrame(rows)


def along_steps(lab: Lab) -> pd.DataFrame:
    """How masks come about: columns model, seed, split, part, steps, density, accuracy and own, as in `accuracies`.

    Measured on one in ten commands or questions. The control mask is tested on every split.
    """
    tables = []
    for one in inspected(lab):
        for split in one.settings.with_masks:
            for part, mask in ((CONTROL_MASK, one.controls[0]), (OWN_MASK, one.mask(split))):
                history = mask.make(lab).table("history")
                steps = (history["epoch"] + 1) * mask.training.interval
                about = one.about | {"split": split, "part": part, "steps": steps, "density": history["density"]}
                columns = zip(("accuracy", "own"), one.network.problem.columns(split), strict=True)
                known = {name: history[column] for name, column in columns if column in history}
                tables.append(pd.DataFrame(about | known))
    return pd.concat(tables, ignore_index=True)


def overlaps(lab: Lab) -> pd.DataFrame:
    """Weights that each split's mask shares with the control mask, by layer. The ceiling is of two control masks."""
    tables = []
    for one in inspected(lab):
        names, controls = maskable(one.network.load(lab)), [mask.load(lab) for mask in one.controls[:2]]
        for split in one.settings.with_masks:
            found = between_functions({CONTROL: controls, split: [one.mask(split).load(lab)]}, names)
            tables.append(found.assign(**one.about, split=split))
    return pd.concat(tables, ignore_index=True)


def examples() -> pd.DataFrame:
    """A question of each task of mathematics and level, as we draw them (Figure 16)."""
    return pd.DataFrame(
        {"task": task, "level": level, "question": found.test[0].text, "answer": found.test[0].answer}
        for task in mathematics.TASKS
        for level, found in mathematics.levels(task, 1, 1).items()
    )


def settings(lab: Lab) -> pd.DataFrame:
    """Table 4: settings for each task of mathematics, the paper's and the profile's, NaN without the task."""
    rows = []
    for one in lab.section("functional_modularity").sequences:
        training, masks = one.training, one.masks
        rows.append({
            "task": one.task, "batch, network": training.batch_size, "batch, mask": masks.batch_size,
            "beta": getattr(masks.masking, "l0", math.nan) * masks.batch_size, "steps, network": training.steps,
            "steps, mask": masks.steps, "learning rate, mask": masks.learning_rate, "warm-up steps": training.warmup,
        })  # fmt: skip
    ours = pd.DataFrame(rows).melt("task", var_name="setting", value_name="ours")
    return reference.load("mathematics").merge(ours, "left", on=["task", "setting"])


def findings(accuracy: pd.DataFrame, weights: pd.DataFrame, control: pd.DataFrame, half: pd.DataFrame) -> pd.DataFrame:
    """What the paper says of sequences, each claim with our number over seeds, its interval and a verdict.

    accuracy, weights, control: from `accuracies`, `output_weights` and `controls`; half: from `half_masks`. Nothing can
    be told of a model whose control masks are not adequate, or of a single seed.
    """
    rows, adequate = [], control.groupby("model")["adequate"].all()
    for about, part in groups(accuracy, "model", "split"):
        wide = part.pivot(index="seed", columns="part", values="accuracy")
        place = "Figure 5" if about["split"] == "easy" else "Figure 4"
        gap, claim = wide[CONTROL_MASK] - wide[OWN_MASK], "its mask is worse than the control mask"
        rows.append(about | claimed(place, claim, gap, gap.index, (CLAIM, math.inf)))
        if DIRECT in wide:
            gain, claim = wide[OWN_MASK] - wide[DIRECT], "its mask is better than learning it directly"
            rows.append(about | claimed("Figure 15", claim, gain, gain.index, (CLAIM, math.inf)))
    for about, part in groups(weights[weights["split"] == "jump"], "model", "split", "family"):
        wide = part.pivot(index="seed", columns="token", values="lost")
        claim = "share of JUMP's output weights that are removed"
        options = {"paper": 0.5 if about.pop("family") == "lstm" else math.nan, "possible": SHARE}
        rows.append(about | claimed("Figure 4", claim, wide["JUMP"], wide.index, LOST, **options))
        more = wide["JUMP"] - RATIO * wide.drop(columns="JUMP").mean(axis=1)
        claim = f"the same, less {RATIO} times that of other actions"
        rows.append(about | claimed("Figure 4", claim, more, wide.index, POSITIVE))
    table = pd.DataFrame([*rows, *half_masks.claims(half)])
    return table.assign(verdict=table["verdict"].where(table["model"].map(adequate), FINDING[-1]))


def _lost(control: Tensor, other: Tensor) -> float:
    """Of a token's weights in one mask, the share that the other lacks."""
    return float((control & ~other).sum() / control.sum())
