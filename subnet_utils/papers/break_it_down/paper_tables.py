"""The tables of *Break It Down*, the paper's values and ours, with verdicts that a rule gives."""

import pandas as pd
import torch

from subnet_utils.models import build
from subnet_utils.papers.break_it_down import contrasts, reference, statistics
from subnet_utils.papers.break_it_down.statistics import KEYS
from subnet_utils.report import NOT_COMPARABLE, compare, verdict
from subnet_utils.report.comparison import CLAIM, OPEN, at_paper_size, direction
from subnet_utils.statistics import LEARNED, NO_TEST
from subnet_utils.tasks.odd_one_out import CHANCE

RESNET50 = {"family": "resnet", "block": "bottleneck", "depths": (3, 4, 6, 3), "width": 64}
BERT_SMALL = {"family": "bert", "layers": 4, "width": 512, "heads": 8, "mlp_width": 2048}
VISION_STARTS, LANGUAGE_STARTS = ("stem", "stage_3", "stage_4"), ("layer_1", "layer_3", "layer_4")
PAPER_NETWORKS = {
    "resnet50": (RESNET50, VISION_STARTS),
    "resnet50_simclr": (RESNET50, VISION_STARTS),
    "wide_resnet50": (RESNET50 | {"width_factor": 2}, VISION_STARTS),
    "bert_small": (BERT_SMALL, LANGUAGE_STARTS),
    "bert_small_lm": (BERT_SMALL, LANGUAGE_STARTS),
}
"""The paper's architectures and the stages at which its search starts to mask (section 5, appendix C)."""
BY_TASK = ["model", "task", "number"]


def bases(found: pd.DataFrame, profile: str, *, table: int = 2) -> pd.DataFrame:
    """Table 2 (or 3, of pretrained ones): test accuracy of the base models, one row per model and task.

    `paper_each`, `ours_each`: of every base model, in their order, which the means hide.
    """
    ours = _as_paper_model(found.rename(columns={"test_accuracy": "accuracy"}))
    printed = reference.load(f"table{table}").fillna({"number": ""})
    compared = compare(ours, printed, by=BY_TASK, value="accuracy", profile=profile)
    for name, bases in (("paper_each", printed), ("ours_each", ours)):
        each = bases["accuracy"].map("{:.3f}".format).groupby([bases[key] for key in BY_TASK]).agg(", ".join)
        compared = compared.join(each.rename(name), on=BY_TASK)
    return compared


def vit(found: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Table 4: best validation accuracy of each vision transformer, the paper's of that setting, and its best one.

    alike: whether both miss 90% or neither does; one whose training diverged misses it. Neither has more than one run
    of a setting, so nothing can be told. Without a sweep of ours, the paper's settings alone.
    """
    keys = ["task", "layers", "batch_size", "learning_rate"]
    printed = reference.load("table4").rename(columns={"accuracy": "paper"})[[*keys, "paper"]]
    best = printed.groupby("task")["paper"].max().rename("paper_best")
    if found.empty:
        return printed.join(best, on="task").assign(ours=float("nan"), n_runs=0, verdict=NOT_COMPARABLE)
    ours = found.rename(columns={"validation_accuracy": "ours"})[[*keys, "ours", "epochs"]]
    table = ours.merge(printed, on=keys, how="left").join(best, on="task")
    alike = (table["ours"].fillna(0.0) < LEARNED) == (table["paper"] < LEARNED)
    state = OPEN if at_paper_size(profile) else NOT_COMPARABLE
    verdicts = table["paper"].isna().map({True: NOT_COMPARABLE, False: state})
    table = table.assign(alike=alike.where(table["paper"].notna()), n_runs=1, verdict=verdicts)
    return table[[*keys, "paper", "paper_best", "ours", "alike", "epochs", "n_runs", "verdict"]]


def masked_totals() -> pd.DataFrame:
    """Masked weights of the paper's networks by first masked stage: printed in Tables 5 to 11, and counted in ours.

    The search also starts at BERT's layer 4, but no selected mask did, so that total is not printed.
    """
    rows, printed = [], _printed_sizes().groupby(["model", "mask_start"])["total"].first()
    for model, (architecture, starts) in PAPER_NETWORKS.items():
        with torch.device("meta"):  # shapes without memory
            network = build(architecture, seed=0, vocabulary=30522 if architecture["family"] == "bert" else None)
        shapes = {name: parameter.numel() for name, parameter in network.named_parameters()}
        for start in starts:
            ours = sum(shapes[name] for name in network.maskable(start))
            rows.append({"model": model, "start": start, "paper": printed.get((model, start)), "ours": ours})
    return pd.DataFrame(rows).astype({"paper": "Int64"})


def sizes(masks: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Tables 5 to 11: the share of the masked weights that subnetworks keep, per model, task and subroutine."""
    printed = _printed_sizes()
    printed["density"] = printed["active"] / printed["total"]
    found = _as_paper_model(masks.dropna(subset=["density"]))  # a mask whose training diverged has none
    return compare(found, printed, by=[*BY_TASK, "subroutine"], value="density", profile=profile)


def effects(found: pd.DataFrame, profile: str, *, condition: str = "trained") -> pd.DataFrame:
    """The values behind Figures 4 to 7: the difference per model, task, subroutine and network.

    condition: 'random' for those behind Figures 16 and 17, 'pruned' for Figure 18. `failed`: how many of `n_runs` are
    of masks that fail their own task (below 90%, appendix C), which the authors' runs have as well;
    `ours_without_failed`, `verdict_without_failed`: what comes out without them.
    """
    by, printed, ours = [*BY_TASK, "subroutine", "network"], printed_effects(condition), _as_paper_model(found)
    learned = ours["base_accuracy"] >= LEARNED
    ours = ours[learned | ~learned.groupby([ours[name] for name in by]).transform("any")]  # all where none did
    failed = ours["key"].isin(
        ours.loc[(ours["network"] == "subnetwork") & (ours["own_task_accuracy"] < LEARNED), "key"]
    )
    table = compare(ours, printed, by=by, value="difference", profile=profile)
    table = table.join(failed.groupby([ours[name] for name in by]).sum().rename("failed"), on=by)
    if failed.all():
        return table.assign(ours_without_failed=float("nan"), verdict_without_failed=NOT_COMPARABLE)
    others = compare(ours[~failed], printed, by=by, value="difference", profile=profile).set_index(by)
    table = table.join(others[["ours", "verdict"]].add_suffix("_without_failed"), on=by)
    return table.fillna({"verdict_without_failed": NOT_COMPARABLE})


def by_start(scratch: pd.DataFrame, pretrained: pd.DataFrame) -> pd.DataFrame:
    """Mean differences by what the networks started from, the paper's and ours, where ours has both (section 8).

    One row per task, number, subroutine and network; our bases below 90% are left out (the paper's means have them).
    """
    ours = pd.concat([scratch, pretrained]).query("base_accuracy >= @LEARNED")
    paper = printed_effects().rename(columns={"difference_mean": "difference"})
    table = _means_by_start(paper, "paper").join(_means_by_start(_as_paper_model(ours), "ours"), how="right")
    return table.dropna(subset=["ours_scratch", "ours_pretrained"]).reset_index()


def _means_by_start(frame: pd.DataFrame, whose: str) -> pd.DataFrame:
    """By family, the paper's model trained from scratch; other models are left out."""
    family = frame["model"].replace(STARTS)
    start = frame["model"].isin(STARTS).map({True: "pretrained", False: "scratch"})
    frame = frame.assign(family=family, start=start)[family.isin(STARTS.values())]
    keys = ["family", "task", "number", "subroutine", "network"]
    means = frame.pivot_table(index=keys, columns="start", values="difference", aggfunc="mean")
    return means.reindex(columns=["scratch", "pretrained"]).add_prefix(f"{whose}_")


STARTS = {"resnet50_simclr": "resnet50", "bert_small_lm": "bert_small"}
"""The paper's pretrained models -> the same trained from scratch."""


def starts_of(family: str, scratch: pd.DataFrame, pretrained: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Effects by what the networks of a family, the paper's model trained from scratch, started from: `from scratch`
    and `pretrained`, those that there are; from scratch only tasks that both have."""
    own = pretrained[pretrained["paper_model"].map(STARTS) == family]
    tasks = own[["task", "number"]].drop_duplicates()
    twins = scratch[scratch["paper_model"] == family].merge(tasks, on=["task", "number"])
    return {name: rows for name, rows in (("from scratch", twins), ("pretrained", own)) if len(rows)}


def power(effects: pd.DataFrame) -> pd.DataFrame:
    """How many base models the paper's effects would need, by the spread of ours: see `contrasts.power_table`.

    `n_trained`: base models with masks; `n_bases` are those of them that learned their task.
    """
    ours, by = _as_paper_model(effects), [*KEYS, "network"]
    table = contrasts.power_table(ours[ours["base_accuracy"] >= LEARNED], printed_effects())
    trained = ours.groupby(by)["base_model"].nunique().rename("n_trained")
    return table.join(trained, on=by)[[*by, "n_trained", *table.columns.drop(by)]]


def table_12(effects: pd.DataFrame) -> pd.DataFrame:
    """Table 12: the two-factor model's statistics for trained against untrained networks, the paper's and ours.

    effects: rows of both conditions. Bases below 90% are left out, with the untrained networks that belong to them.
    `random_own_task`, `random_density`: mean accuracy of the control's masks on the task they were trained on, and the
    share of weights that they keep. Verdicts as in `table_1`; none where masks are no better than a guess there (within
    `CLAIM` of chance, or empty): such a control shows that mask training failed, and nothing about the network.
    """
    learned = _as_paper_model(effects[effects["base_accuracy"] >= LEARNED])
    table = statistics.random_control_table(learned)
    table = table.join(reference.load("table12").set_index(KEYS).add_prefix("paper_"), on=KEYS)
    table = table.join(_paper_means("random") - _paper_means("trained"), on=KEYS)
    table = table.join(_found_by_control(learned), on=KEYS)
    columns = ["paper_random_stars", "random_coefficient_p", "random_coefficient", "paper_subnetwork"]
    table["coefficient_verdict"] = _significance_verdicts(table[columns])
    columns = ["paper_ablated_stars", "random_p", "random_ablated_difference", "paper_ablated"]
    table["chi2_verdict"] = _significance_verdicts(table[columns])
    guessing = table["random_own_task"] <= CHANCE + CLAIM
    table.loc[guessing, ["coefficient_verdict", "chi2_verdict"]] = NOT_COMPARABLE
    return table[[
        *KEYS, "n_bases_trained", "n_bases_random", "random_own_task", "paper_random_own_task", "random_density",
        "paper_random_density", "random_coefficient",
        "paper_random_z", "random_coefficient_z", "paper_random_stars", "random_coefficient_stars",
        "random_coefficient_p", "random_coefficient_t_p", "random_coefficient_permutation_p", "coefficient_verdict",
        "random_ablated_difference", "paper_ablated_chi2", "random_chi2", "paper_ablated_stars", "random_stars",
        "random_p", "random_t_p", "random_permutation_p", "chi2_verdict",
    ]]  # fmt: skip


def _found_by_control(learned: pd.DataFrame) -> pd.DataFrame:
    """What the masks over untrained networks are, ours and the paper's: accuracy on their own task, and density."""
    values = ["own_task", "density"]
    ours = learned.query("condition == 'random' and network == 'subnetwork'")
    ours = ours.rename(columns={"own_task_accuracy": "own_task"}).groupby(KEYS)[values].mean()
    printed = printed_effects("random").query("network == 'subnetwork'")
    printed = printed.rename(columns={"own_task_accuracy_mean": "own_task", "density_mean": "density"})
    return ours.add_prefix("random_").join(printed.groupby(KEYS)[values].mean().add_prefix("paper_random_"))


def table_1(found: pd.DataFrame) -> pd.DataFrame:
    """Table 1: the paper's z and chi-square, and ours, and what tests for few base models say.

    Bases below 90% are left out, singular and plural are collapsed (appendix A.1). The verdict compares significance at
    .05 by the paper's own test, and the direction of what is significant in both; two bases are the least for which
    there is a test.
    """
    table = statistics.compositionality_table(_as_paper_model(found[found["base_accuracy"] >= LEARNED]))
    table = table.join(reference.load("table1").set_index(KEYS).add_prefix("paper_"), on=KEYS)
    table, shown = table.join(_paper_means("trained"), on=KEYS), []
    for test, network, statistic in (("intercept", "subnetwork", "z"), ("ablated", "ablated", "chi2")):
        columns = [f"paper_{test}_stars", f"{test}_p", f"{network}_difference", f"paper_{network}"]
        table[f"{test}_verdict"] = _significance_verdicts(table[columns])
        of_both = [f"{whose}{test}_{name}" for name in (statistic, "stars") for whose in ("paper_", "")]
        shown += [*of_both, *(f"{test}_{name}" for name in ("p", "t_p", "wild_p", "verdict"))]
    return table[[*KEYS, "n_bases", "n_runs", *shown]]


def stars(table: pd.DataFrame) -> pd.DataFrame:
    """The stars of `table_1` in long form: model, task, subroutine, network, stars, or `NO_TEST`."""
    parts = [
        table[KEYS].assign(network=network, stars=table[f"{test}_stars"].where(table[f"{test}_p"].notna(), NO_TEST))
        for network, test in (("subnetwork", "intercept"), ("ablated", "ablated"))
    ]
    return pd.concat(parts, ignore_index=True)


def _significance_verdicts(rows: pd.DataFrame) -> list[str]:
    """Whether both are significant and point the same way: its stars, our p, our difference, its.

    What is not significant tells nothing, neither the paper's nor ours: there may be too few networks.
    """
    verdicts = []
    for paper_stars, p, ours, paper in rows.itertuples(index=False):
        found, printed = direction(ours, p), direction(paper, 0.0 if "*" in str(paper_stars) else 1.0)
        known = isinstance(paper_stars, str)
        judged = verdict(found, found, (printed, printed), comparable=known)
        verdicts.append(OPEN if known and 0 in (found, printed) else judged)
    return verdicts


def _paper_means(condition: str) -> pd.DataFrame:
    """The paper's mean differences, columns paper_subnetwork and paper_ablated, singular and plural as one."""
    means = printed_effects(condition).pivot_table(index=KEYS, columns="network", values="difference_mean")
    return means.add_prefix("paper_")


def printed_effects(condition: str = "trained") -> pd.DataFrame:
    """The authors' effects of one condition: trained, random or pruned."""
    table = reference.load("effects")
    return table[table["condition"] == condition]


def _printed_sizes() -> pd.DataFrame:
    return pd.concat([reference.load(f"table{number}") for number in range(5, 12)], ignore_index=True)


def _as_paper_model(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows under the name of the paper's model that each of ours stands for."""
    return frame.assign(model=frame["paper_model"])
