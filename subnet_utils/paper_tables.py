"""The tables of *Break It Down*, the paper's values beside ours, with verdicts that a rule gives."""

import pandas as pd
import torch

from subnet_utils import reference, statistics
from subnet_utils.models import build
from subnet_utils.report import AGREES, DIFFERS, NOT_COMPARABLE, compare
from subnet_utils.report.comparison import BASE_THRESHOLD

RESNET50 = {"family": "resnet", "block": "bottleneck", "depths": (3, 4, 6, 3), "width": 64}
PAPER_NETWORKS = {
    "resnet50": (RESNET50, ("stem", "stage_3", "stage_4")),
    "wide_resnet50": (RESNET50 | {"width_factor": 2}, ("stem", "stage_3", "stage_4")),
    "bert_small": (
        {"family": "bert", "layers": 4, "width": 512, "heads": 8, "mlp_width": 2048},
        ("layer_1", "layer_3", "layer_4"),
    ),
}
"""The paper's architectures and the stages at which its search starts to mask (section 5, appendix C)."""
SIZE_TABLES = {"resnet50": (5,), "wide_resnet50": (7,), "bert_small": (8, 9)}
"""Which tables of appendix H list the subnetworks of each model."""
SIGNIFICANT = 0.05
BY_TASK = ["model", "task", "number"]


def bases(found: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Table 2: test accuracy of the base models, one row per model and task."""
    ours = _as_paper_model(found).rename(columns={"test_accuracy": "accuracy"})
    return compare(ours, reference.load("break_it_down_table2"), by=BY_TASK, value="accuracy", profile=profile)


def vit(found: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Table 4: best validation accuracy of each vision transformer, beside the paper's same setting and its best one.

    A setting agrees if it misses 90% in both or in neither. Only the profile `paper` has the paper's networks and
    images; elsewhere the two are not comparable. Without a sweep of ours, the paper's settings alone.
    """
    keys = ["task", "layers", "batch_size", "learning_rate"]
    printed = reference.load("break_it_down_table4").rename(columns={"accuracy": "paper"})[[*keys, "paper"]]
    best = printed.groupby("task")["paper"].max().rename("paper_best").reset_index()
    if found.empty:
        return printed.merge(best, on="task").assign(ours=float("nan"), n_runs=0, verdict=NOT_COMPARABLE)
    ours = found.rename(columns={"validation_accuracy": "ours"})[[*keys, "ours", "epochs"]]
    table = ours.merge(printed, on=keys, how="left").merge(best, on="task", how="left")
    table = table[[*keys, "paper", "paper_best", "ours", "epochs"]].assign(n_runs=1)
    same = table["paper"].lt(BASE_THRESHOLD) == table["ours"].lt(BASE_THRESHOLD)
    table["verdict"] = same.map({True: AGREES, False: DIFFERS}) if profile == "paper" else NOT_COMPARABLE
    return table


def masked_totals() -> pd.DataFrame:
    """Masked weights of the paper's networks by first masked stage: printed in Tables 5 to 9, and counted in ours.

    The search also starts at BERT's layer 4, but no selected mask did, so that total is not printed.
    """
    rows = []
    for model, (architecture, starts) in PAPER_NETWORKS.items():
        printed = _printed_sizes(model).groupby("mask_start")["total"].first()
        with torch.device("meta"):  # shapes without memory
            network = build(architecture, seed=0, vocabulary=30522 if architecture["family"] == "bert" else None)
        shapes = {name: parameter.numel() for name, parameter in network.named_parameters()}
        for start in starts:
            ours = sum(shapes[name] for name in network.maskable(start))
            rows.append({"model": model, "start": start, "paper": printed.get(start), "ours": ours})
    return pd.DataFrame(rows).astype({"paper": "Int64"})


def sizes(masks: pd.DataFrame, profile: str) -> pd.DataFrame:
    """Tables 5 and 7 to 9: the share of the masked weights that subnetworks keep, per model, task and subroutine."""
    printed = pd.concat([_printed_sizes(model) for model in SIZE_TABLES], ignore_index=True)
    printed["density"] = printed["active"] / printed["total"]
    by = [*BY_TASK, "subroutine"]
    found = masks.dropna(subset=["density"])  # a mask whose training diverged has none
    return compare(_as_paper_model(found), printed, by=by, value="density", profile=profile)


def effects(found: pd.DataFrame, profile: str) -> pd.DataFrame:
    """The values behind Figures 4 and 6: the difference per model, task, subroutine and network."""
    by = [*BY_TASK, "subroutine", "network"]
    return compare(_as_paper_model(found), _trained(), by=by, value="difference", profile=profile)


def table_1(found: pd.DataFrame) -> pd.DataFrame:
    """Table 1: the paper's z and chi-square beside ours, and what tests for few base models say.

    Bases below 90% are left out, singular and plural are collapsed (appendix A.1). The verdict compares significance at
    .05 by the paper's own test; two bases are the least for which there is one.
    """
    learned = _as_paper_model(found[found["base_accuracy"] >= BASE_THRESHOLD])
    keys = ["model", "task", "subroutine"]
    ours = statistics.compositionality_table(learned)
    printed = reference.load("break_it_down_table1").set_index(keys).add_prefix("paper_")
    table = ours.merge(printed, left_on=keys, right_index=True, how="left")
    for test in ("intercept", "ablated"):
        table[f"{test}_verdict"] = [
            _significance_verdict(row[f"paper_{test}_stars"], row[f"{test}_p"]) for _, row in table.iterrows()
        ]
    chosen = [
        *(f"{prefix}intercept_{column}" for prefix, column in _TEST_COLUMNS["z"]), "intercept_verdict",
        *(f"{prefix}ablated_{column}" for prefix, column in _TEST_COLUMNS["chi2"]), "ablated_verdict",
    ]  # fmt: skip
    return table[[*keys, "n_bases", "n_runs", *chosen]]


_TEST_COLUMNS = {
    statistic: [("paper_", statistic), ("", statistic), ("paper_", "stars"), ("", "stars"), ("", "p"), ("", "t_p"),
                ("", "wild_p")]
    for statistic in ("z", "chi2")
}  # fmt: skip


def stars(table: pd.DataFrame) -> pd.DataFrame:
    """The stars of `table_1` in long form: model, task, subroutine, network, stars."""
    keys = ["model", "task", "subroutine"]
    parts = [
        table[keys].assign(network=network, stars=table[f"{test}_stars"])
        for network, test in (("subnetwork", "intercept"), ("ablated", "ablated"))
    ]
    return pd.concat(parts, ignore_index=True)


def _significance_verdict(paper_stars: str, p: float) -> str:
    if not isinstance(paper_stars, str) or pd.isna(p):
        return NOT_COMPARABLE
    return AGREES if ("*" in paper_stars) == (p < SIGNIFICANT) else DIFFERS


def _trained() -> pd.DataFrame:
    return reference.load("break_it_down_effects").query("condition == 'trained'")


def _printed_sizes(model: str) -> pd.DataFrame:
    return pd.concat([reference.load(f"break_it_down_table{number}") for number in SIZE_TABLES[model]])


def _as_paper_model(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows under the name of the paper's model that each of ours stands for."""
    return frame.assign(model=frame["paper_model"])
