"""*The Heuristic Core* (Bhaskar, Friedman and Chen 2024): its published numbers, held against its claims.

The authors publish the accuracies of all their pruned networks; nothing is trained here. Out-of-domain accuracies are
those of the four HANS subcases that the paper follows, or of the PAWS questions that are not equivalent.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from subnet_utils.papers.heuristic_core import reference

SUBCASES = {
    "lexical_overlap_ln_subject-object_swap": "SO-Swap",
    "lexical_overlap_ln_preposition": "Prep",
    "constituent_cn_embedded_under_if": "Embed-If",
    "constituent_cn_embedded_under_verb": "Embed-Verb",
}
"""HANS subcases of Table 1 -> the paper's short names."""
IN_DOMAIN = {"mnli-matched": "MNLI", "validation_matched": "MNLI", "qqp": "QQP"}
OUT_OF_DOMAIN = SUBCASES | {"paws-qqp_0": "PAWS (adv.)"}
SETS = IN_DOMAIN | OUT_OF_DOMAIN
"""Evaluation sets of the main text -> their short names."""
FAITHFUL = 0.03
"""A subnetwork is faithful if its accuracy is less than this below the full network's (section 4)."""
ONSET = 0.1
"""A network that is this much better out of domain than at its worst has begun to generalize."""
HEADS, SEEDS = 144, 12
FINAL = -1
"""In place of the step of fine-tuning: the network at its end."""


def subnetworks(task: str, *, every_subcase: bool = False) -> pd.DataFrame:
    """The pruned networks of section 3, one row each and evaluation set: 12 seeds at two target sparsities.

    Columns target_sparsity, seed (42 to 53), achieved_sparsity, evaluation_set, name, accuracy, and full, the accuracy
    of the network before pruning. every_subcase: all 30 of HANS (Figure 12) instead of the main text's sets.
    """
    table = reference.load("subnetworks")
    table = table[table["task"] == task]
    full = table[table["seed"] == "full"].groupby("evaluation_set")["accuracy"].first()
    pruned = table[table["seed"] != "full"].assign(full=lambda rows: rows["evaluation_set"].map(full))
    pruned = pruned.assign(seed=pruned["seed"].astype(int), name=pruned["evaluation_set"].map(SETS))
    if every_subcase:
        return pruned.assign(name=pruned["name"].fillna(pruned["evaluation_set"]))
    return pruned.dropna(subset=["name"])


def spread(task: str) -> pd.DataFrame:
    """Full accuracy, and smallest, largest, mean and standard deviation over the 12 seeds, by sparsity and set."""
    rows = subnetworks(task).groupby(["target_sparsity", "name"], sort=False)
    table = rows["accuracy"].agg(["min", "max", "mean", "std", "count"])
    return table.assign(full=rows["full"].first()).reset_index().rename(columns={"count": "n_runs"})


def differing(*, places: Sequence[int] = (2, 5, 8)) -> pd.DataFrame:
    """The accuracies of the MNLI networks at 50% that Figure 3 shows; the paper counts its twelve seeds from 1."""
    half = subnetworks("mnli")
    half = half[(half["target_sparsity"] == 0.5) & half["name"].isin(SUBCASES.values())]
    seeds = sorted(half["seed"].unique())
    chosen = half[half["seed"].isin([seeds[place - 1] for place in places])]
    return chosen.sort_values("seed", kind="stable")


def by_sparsity(task: str) -> pd.DataFrame:
    """Accuracy of the final network pruned to every sparsity of the grid, three seeds (Figure 4)."""
    table = _grid(task, "pruned final")
    return table.groupby(["name", "sparsity"], sort=False)["accuracy"].agg(["mean", "min", "max"]).reset_index()


def effective_sizes(task: str) -> pd.DataFrame:
    """Accuracy and effective size of every checkpoint of fine-tuning that was pruned (Figure 6).

    Effective size: 1 - the largest sparsity at which a pruned network is faithful, 1 where none is; of each seed, then
    their mean. The grid ends at 70% (QQP: 65%), so .3 (.35) is the smallest size that can be found. Sets are `in
    domain`, `out of domain` (the mean of its subcases) and `mixed` (the mean of the two).
    Some cells of the published grid are missing: where the largest faithful sparsity is among them, the size is too
    large.
    """
    full, pruned = (_by_domain(_grid(task, name)) for name in ("full", "pruned checkpoint"))
    return mean_sizes(faithful_sizes(full, pruned))


def faithful_sizes(full: pd.DataFrame, pruned: pd.DataFrame) -> pd.DataFrame:
    """Effective size of every checkpoint, domain and seed, a row each, with the full network's accuracy.

    full: columns step, domain, accuracy; pruned: these and seed, sparsity.
    """
    own = full.groupby(["step", "domain"])["accuracy"].mean()
    rows = []
    for (step, domain), group in pruned.groupby(["step", "domain"], sort=False):
        if (step, domain) not in own.index:
            continue
        accuracy = own[step, domain]
        faithful = group[group["accuracy"] > accuracy - FAITHFUL].groupby("seed")["sparsity"].max()
        largest = faithful.reindex(group["seed"].unique()).fillna(0.0)
        for seed, sparsity in largest.items():
            rows.append({"step": int(step), "domain": domain, "seed": seed, "accuracy": accuracy,
                         "effective_size": 1 - sparsity, "smallest_possible": 1 - group["sparsity"].max()})  # fmt: skip
    return pd.DataFrame(rows)


def mean_sizes(sizes: pd.DataFrame) -> pd.DataFrame:
    """Mean, smallest and largest effective size over seeds of every checkpoint and domain.

    sizes: from `faithful_sizes`. Columns step, domain, accuracy and smallest_possible as there, effective_size (the
    mean), size_min, size_max, n_runs.
    """
    groups = sizes.groupby(["step", "domain"], sort=False)
    kept = groups[["accuracy", "smallest_possible"]].first()
    spread = groups["effective_size"].agg(effective_size="mean", size_min="min", size_max="max")
    return kept.join(spread).assign(n_runs=groups.size()).reset_index()


def onset(accuracies: pd.Series) -> int | None:
    """The first checkpoint whose accuracy is ONSET above the lowest. accuracies: out of domain, by step."""
    later = accuracies[accuracies > accuracies.min() + ONSET]
    return int(later.index.min()) if len(later) else None


def claims() -> pd.DataFrame:
    """What the paper prints, beside the same recomputed from its published numbers, and whether the two agree.

    basis: accuracies, from which all is recomputed here; or masks, which the authors publish as well but this package
    does not hold: those were counted once, and the count is a reference like the others.
    """
    printed, counted = reference.load("claims"), reference.load("mask_counts")
    printed["recomputed"] = [*_of_pruned_networks(), *_of_full_networks(), *_of_sizes(), *_of_joint_ablations()]
    printed["holds"] = printed["recomputed"].between(printed["low"], printed["high"])
    digits = counted["printed"].map(lambda value: len(f"{value:g}".partition(".")[2]))
    agree = [round(one.counted, n) == one.printed for one, n in zip(counted.itertuples(), digits, strict=True)]
    counted = counted.assign(recomputed=counted["counted"], holds=agree, printed=counted["printed"].map("{:g}".format))
    columns = ["claim", "place", "printed", "recomputed", "holds", "basis"]
    return pd.concat([printed.assign(basis="accuracies"), counted.assign(basis="masks")], ignore_index=True)[columns]


def _of_pruned_networks() -> Iterator[float]:
    """What section 3 says of the pruned networks, in the order of `claims`."""
    mnli = subnetworks("mnli")
    half, sparse = (mnli[mnli["target_sparsity"] == sparsity] for sparsity in (0.5, 0.7))
    for rows, name in ((half, "MNLI"), (_at("qqp", 0.3), "QQP")):
        own = rows[rows["name"] == name]
        yield (own["full"] - own["accuracy"]).max()
    for rows, name in ((half, "Embed-If"), (sparse, "MNLI")):
        yield from rows[rows["name"] == name]["accuracy"].agg(["min", "max"])
    by_seed = half.pivot_table(index="seed", columns="name", values="accuracy")
    for embedded in (0.180, 0.502):  # by which the eighth and the fifth network are known
        yield from by_seed[by_seed["Embed-If"] == embedded][["SO-Swap", "Prep"]].iloc[0]
    yield (sparse[sparse["name"].isin(SUBCASES.values())]["accuracy"] < 0.1).mean()


def _of_full_networks() -> Iterator[float]:
    """The first rows of Tables 3 and 4."""
    yield from _at("mnli", 0.5).groupby("name")["full"].first()[["MNLI", *SUBCASES.values()]]
    yield from _at("qqp", 0.3).groupby("name")["full"].first()[["QQP", "PAWS (adv.)"]]


def _of_sizes() -> Iterator[float]:
    """How sparse a network may be and still generalize, what is shared by chance, and how effective sizes change."""
    yield from (_sparsest_generalizing(task) for task in ("mnli", "qqp"))
    yield HEADS * 0.3**SEEDS
    for task in ("mnli", "qqp"):
        sizes = effective_sizes(task).set_index(["domain", "step"])["effective_size"]
        for domain in ("in domain", "out of domain"):
            yield sizes[domain].iloc[-1] - sizes[domain].iloc[0]
    sizes = effective_sizes("mnli")
    outside = sizes[(sizes["domain"] == "out of domain") & (sizes["accuracy"] > 0.1)]["effective_size"]
    yield outside.iloc[-1] - outside.iloc[0]


def _of_joint_ablations() -> Iterator[float]:
    """Section 5: what three heads ablated at once cost, less the sum of what each costs by itself."""
    table = reference.load("tables")
    table = table[(table["place"] == "Table 3") & (table["name"] != "MNLI")]
    accuracy = table.pivot_table(index="row", columns="name", values="accuracy", sort=False)
    lost = accuracy.loc["none"] - accuracy
    (joint,) = [row for row in lost.index if "+" in row]
    yield from lost.loc[joint] - lost.loc[joint.split("+")].sum()


def _at(task: str, sparsity: float) -> pd.DataFrame:
    table = subnetworks(task)
    return table[table["target_sparsity"] == sparsity]


def _sparsest_generalizing(task: str) -> float:
    """The largest sparsity of the grid at which the mean out-of-domain accuracy is faithful."""
    means = _by_domain(_grid(task, "pruned final")).groupby(["domain", "sparsity"])["accuracy"].mean()
    own = means["out of domain"]
    return float(own[own > own[0.0] - FAITHFUL].index.max())


def _grid(task: str, network: str) -> pd.DataFrame:
    """Part of the published grid: step, seed, sparsity, name and accuracy."""
    table = reference.load("sparsity_grid")
    table = table[(table["task"] == task) & (table["network"] == network) & table["evaluation_set"].isin(SETS)]
    table = table[table["accuracy"] >= 0]  # -1 stands for a run that is missing
    return pd.DataFrame({
        "step": pd.to_numeric(table["finetuning_step"], errors="coerce").fillna(FINAL).astype(int),
        "seed": pd.to_numeric(table["seed"], errors="coerce").fillna(0).astype(int),
        "sparsity": table["sparsity_percent"] / 100,
        "name": table["evaluation_set"].map(SETS),
        "accuracy": table["accuracy"],
    })  # fmt: skip


def _by_domain(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy in domain, out of domain (mean of its sets) and their mean, of every step, seed and sparsity."""
    outside = table["name"].isin(OUT_OF_DOMAIN.values())
    named = table.assign(domain=outside.map({True: "out of domain", False: "in domain"}))
    wide = named.pivot_table(index=["step", "seed", "sparsity"], columns="domain", values="accuracy")
    wide["mixed"] = wide[["in domain", "out of domain"]].mean(axis=1, skipna=False)
    return wide.stack().rename("accuracy").reset_index()
