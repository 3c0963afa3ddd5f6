"""What *The Heuristic Core* says of its own four networks, to stand beside a network of ours.

From what the authors publish of BERT on MNLI and on QQP (accuracies, and what was counted in their heat maps), else as
printed (ablations, and RoBERTa and GPT-2 on MNLI: Tables 3 to 8). A number that the paper does not give is missing.
Networks, pairs and sparsities differ from ours: what can be compared is the direction and the size of an effect, not an
accuracy.
"""

import math
from typing import get_args

import pandas as pd

from subnet_utils.papers.heuristic_core import published as heuristic_core
from subnet_utils.papers.heuristic_core import reference
from subnet_utils.papers.heuristic_core.section import Network

OTHERS = "one other head, mean"
STRONGEST = "the three heads that cost most, at once"
BEYOND = "the same, less the sum of what each costs"
FRIENDLY = ("Rel-Clause", "Embed-Since")
"""GPT-2's subcases that are entailed."""


def place(label: str, network: Network) -> str | None:
    """Where the paper shows of a network what it shows of BERT on MNLI in `label`, such as `Heuristic Core, Table 3`;
    None if it does not."""
    if network == "bert_mnli":
        return label
    paper, own = label.split(", ")
    there = reference.load("panels").query("network == @network and bert_mnli == @own")["place"]
    return f"{paper}, {there.item()}" if len(there) else None


def spread(network: Network) -> pd.DataFrame:
    """Accuracies over the twelve seeds: rank (0 the lower sparsity), name, paper_sparsity, paper_full, paper_mean,
    paper_std."""
    if network.startswith("bert"):
        table = heuristic_core.spread(network.removeprefix("bert_"))
    else:
        rows = _printed(network).query("target_sparsity != ''").astype({"target_sparsity": float})
        table = rows.pivot_table(index=["target_sparsity", "name"], columns="row", values="accuracy").reset_index()
    rank = table["target_sparsity"].rank(method="dense").astype(int) - 1
    named = table["name"].replace(dict.fromkeys(heuristic_core.IN_DOMAIN.values(), "in domain"))
    new = {"target_sparsity": "paper_sparsity", "full": "paper_full", "mean": "paper_mean", "std": "paper_std"}
    return table.assign(rank=rank, name=named).rename(columns=new)[["rank", "name", *new.values()]]


def ablations(network: Network) -> pd.DataFrame:
    """Accuracy lost without one head of the core and without one other, means, and without the three strongest heads at
    once, where the paper has that: ablated, paper_in_domain, paper_out_of_domain (mean over the paper's sets, of GPT-2
    without the entailed ones)."""
    rows = _printed(network).query("target_sparsity == ''")
    accuracy = rows.pivot_table(index="row", columns="name", values="accuracy", sort=False)
    lost = accuracy.loc["none"] - accuracy.drop(index="none")
    inside = [name for name in lost if name in heuristic_core.IN_DOMAIN.values()]
    outside = [name for name in lost if name not in (*inside, *FRIENDLY)]
    joint = lost.index.str.contains("+", regex=False)
    parts = {"one head of the core, mean": lost[~joint & (lost.index != OTHERS)].mean(),
             OTHERS: lost.reindex([OTHERS]).iloc[0]}  # fmt: skip
    for heads in lost.index[joint]:
        parts |= {STRONGEST: lost.loc[heads], BEYOND: lost.loc[heads] - lost.loc[heads.split("+")].sum()}
    parts = pd.DataFrame(parts).T
    return pd.DataFrame({"ablated": parts.index, "paper_in_domain": parts[inside].mean(axis=1).to_numpy(),
                         "paper_out_of_domain": parts[outside].mean(axis=1).to_numpy()})  # fmt: skip


def findings(network: Network) -> dict[str, float]:
    """The statistics of `findings.findings` that the paper's numbers give, by their keys. Raises ValueError for an
    unknown network."""
    lost = ablations(network).set_index("ablated")["paper_out_of_domain"]
    found = {"lost out of domain": float(lost["one head of the core, mean"] - lost[OTHERS])}
    sparser = spread(network).query("rank == 1").set_index("name")["paper_mean"]
    outside = sparser.drop(["in domain", "mismatched", *FRIENDLY], errors="ignore")
    found["heuristic"] = float(outside.mean())  # missing where the paper has one sparsity
    if not network.startswith("bert"):
        # of 144, in all 24 networks; RoBERTa's 11 are of twelve networks of one sparsity and stand beside nothing
        return found | {"core": 12.0 if network == "gpt2_mnli" else math.nan}
    task, counted = network.removeprefix("bert_"), reference.load("claims").set_index("claim")["counted"]
    found["core"] = float(counted[f"{task.upper()}: heads in all 24 networks"])
    found["rho"] = float(counted[f"{task.upper()}: Spearman's rho of heads' frequencies"])
    rows = heuristic_core.subnetworks(task).rename(columns={"name": "set"})
    means = heuristic_core.domain_means(rows, ["target_sparsity", "seed"], heuristic_core.DOMAINS)
    deviations = means.groupby("target_sparsity").std()
    for rank, ratio in enumerate(deviations["out of domain"] / deviations["in domain"]):
        found[f"spread out of domain {rank}"] = ratio
    sizes = heuristic_core.effective_sizes(task).pivot(index="step", columns="domain")
    accuracies, sizes = sizes["accuracy"]["out of domain"], sizes["effective_size"]
    grown = sizes.iloc[-1] - sizes.loc[accuracies.idxmin()]
    from_onset = sizes.iloc[-1] - sizes.loc[heuristic_core.onset(accuracies)]
    return found | {"size out of domain": grown["out of domain"], "size in domain": grown["in domain"],
                    "size from onset": from_onset["out of domain"]}  # fmt: skip


def _printed(network: Network) -> pd.DataFrame:
    if network not in get_args(Network):
        raise ValueError(f"the paper has no network '{network}'; valid: {', '.join(get_args(Network))}")
    return reference.load("tables").query("network == @network")
