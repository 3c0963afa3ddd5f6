"""*The Heuristic Core* (Bhaskar, Friedman and Chen 2024): its published numbers, held against its claims.

The authors publish the accuracies of all their pruned networks, and figures that count heads; they publish no masks and
no checkpoints. Nothing is trained here. Out-of-domain accuracies are
those of the four HANS subcases that the paper follows, or of the PAWS questions that are not equivalent.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
from scipy import stats

from subnet_utils.papers.heuristic_core import reference
from subnet_utils.tasks.pair_files import MAIN_SUBCASES

SUBCASES = dict(zip(MAIN_SUBCASES, ("SO-Swap", "Prep", "Embed-If", "Embed-Verb"), strict=True))
"""HANS subcases of Table 1 -> the paper's short names."""
IN_DOMAIN = {"mnli-matched": "MNLI", "validation_matched": "MNLI", "qqp": "QQP"}
OUT_OF_DOMAIN = SUBCASES | {"paws-qqp_0": "PAWS (adv.)"}
DOMAINS = {"in domain": IN_DOMAIN.values(), "out of domain": OUT_OF_DOMAIN.values()}
SETS = IN_DOMAIN | OUT_OF_DOMAIN
"""Evaluation sets of the main text -> their short names."""
FAITHFUL = 0.03
"""A subnetwork is faithful if its accuracy is less than this below the full network's (section 4)."""
ONSET = 0.1
"""A network that is this much better out of domain than at its worst has begun to generalize."""
HEADS = 144


def subnetworks(task: str, *, every_subcase: bool = False) -> pd.DataFrame:
    """The pruned networks of section 3, one row each and evaluation set: 12 seeds at two target sparsities.

    Columns target_sparsity, seed (42 to 53), achieved_sparsity, evaluation_set, name, accuracy, and full, the accuracy
    of the network before pruning. every_subcase: all 30 of HANS (Figure 12) instead of the main text's sets.
    """
    table = reference.load("subnetworks").query("task == @task")
    full = table[table["seed"] == "full"].groupby("evaluation_set")["accuracy"].first()
    pruned = table[table["seed"] != "full"].astype({"seed": int})
    sets = pruned["evaluation_set"]
    names = sets.map(SETS).fillna(sets) if every_subcase else sets.map(SETS)
    return pruned.assign(full=sets.map(full), name=names).dropna(subset=["name"])


def subnetworks_by_domain(task: str) -> pd.DataFrame:
    """Accuracy of each of `subnetworks` by domain: target_sparsity, seed, domain, accuracy."""
    rows = subnetworks(task).rename(columns={"name": "set"})
    return by_domain(rows, ["target_sparsity", "seed"], DOMAINS)


def spread(task: str) -> pd.DataFrame:
    """Full accuracy, and smallest, largest, mean and standard deviation over the 12 seeds, by sparsity and set."""
    rows = subnetworks(task).groupby(["target_sparsity", "name"], sort=False)
    table = rows["accuracy"].agg(["min", "max", "mean", "std", "count"])
    return table.assign(full=rows["full"].first()).reset_index().rename(columns={"count": "n_runs"})


def differing() -> pd.DataFrame:
    """The accuracies of the MNLI networks at 50% that Figure 3 shows: the second, fifth and eighth of twelve seeds."""
    half = _at("mnli", 0.5)
    chosen = half[half["seed"].isin((43, 46, 49)) & half["name"].isin(SUBCASES.values())]
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
    return mean_sizes(checkpoint_sizes(task))


def checkpoint_sizes(task: str) -> pd.DataFrame:
    """The effective sizes of every seed of which `effective_sizes` are the means."""
    return faithful_sizes(*(_grid_by_domain(task, name) for name in ("full", "pruned checkpoint")))


def faithful_sizes(full: pd.DataFrame, pruned: pd.DataFrame) -> pd.DataFrame:
    """Effective size of every checkpoint, domain and seed, a row each, with the full network's accuracy. full: columns
    step, domain, accuracy; pruned: these and seed, sparsity."""
    own = full.groupby(["step", "domain"])["accuracy"].mean().rename("whole")
    table = pruned.join(own, on=["step", "domain"], how="inner")
    table["faithful"] = table["sparsity"].where(table["accuracy"] > table["whole"] - FAITHFUL, 0.0)
    table["sparsest"] = table.groupby(["step", "domain"])["sparsity"].transform("max")
    seeds = table.groupby(["step", "domain", "seed"], sort=False)
    found = seeds.agg(accuracy=("whole", "first"), size=("faithful", "max"), least=("sparsest", "first")).reset_index()
    return found.assign(effective_size=1 - found.pop("size"), smallest_possible=1 - found.pop("least"))


def mean_sizes(sizes: pd.DataFrame) -> pd.DataFrame:
    """Mean, smallest and largest effective size over seeds of every checkpoint and domain.

    sizes: from `faithful_sizes`. Columns step, domain, accuracy and smallest_possible as there, effective_size (the
    mean), size_min, size_max, n_runs.
    """
    return sizes.groupby(["step", "domain"], sort=False).agg(
        accuracy=("accuracy", "first"), smallest_possible=("smallest_possible", "first"),
        effective_size=("effective_size", "mean"), size_min=("effective_size", "min"),
        size_max=("effective_size", "max"), n_runs=("seed", "size"),
    ).reset_index()  # fmt: skip


def onset(accuracies: pd.Series) -> int | None:
    """The first checkpoint after the lowest accuracy that is ONSET above it. accuracies: out of domain, by step."""
    later = accuracies.sort_index().loc[accuracies.idxmin() :]
    later = later[later > accuracies.min() + ONSET]
    return int(later.index.min()) if len(later) else None


def domain_means(
    table: pd.DataFrame, about: Sequence[str], domains: Mapping[str, Iterable[str]], value: str = "accuracy"
) -> pd.DataFrame:
    """Mean of a column over the sets of each domain, a row for each of `about`. domains: names of the sets of each."""
    groups = {domain: table[table["set"].isin(list(sets))].groupby(list(about), dropna=False, sort=False)[value]
              for domain, sets in domains.items()}  # fmt: skip
    return pd.DataFrame({domain: group.mean() for domain, group in groups.items()})


def by_domain(table: pd.DataFrame, about: Sequence[str], domains: Mapping[str, Iterable[str]]) -> pd.DataFrame:
    """Accuracy in domain, out of domain (mean of its sets), `mixed` (mean of these two) and, where there is a domain
    `entailed`, its own and `balanced`, the mean of it and out of domain. A row for each domain and each of `about`."""
    wide = domain_means(table, about, domains).sort_index()
    wide["mixed"] = wide[["in domain", "out of domain"]].mean(axis=1, skipna=False)
    if "entailed" in wide:
        wide["balanced"] = (wide["out of domain"] + wide["entailed"]) / 2
    return wide.rename_axis(columns="domain").stack().rename("accuracy").reset_index()


def claims() -> pd.DataFrame:
    """What the paper prints, beside the same recomputed from its published numbers, and whether the two agree.

    basis: accuracies, from which all is recomputed here; or heat maps, those of the authors' figures: they were counted
    once, and the count is a reference like the others.
    """
    table = reference.load("claims")
    counted = pd.to_numeric(table["counted"])
    table["recomputed"] = [*_of_networks(), *_of_sizes(), *_of_joint_ablations(), *counted.dropna()]
    table["as_printed"] = table["recomputed"].between(table["low"], table["high"])
    table["basis"] = counted.notna().map({True: "heat maps", False: "accuracies"})
    return table[["claim", "place", "printed", "recomputed", "as_printed", "basis"]]


def shared_heads() -> pd.DataFrame:
    """What the heat maps of Figures 5 (MNLI) and 11 (QQP) say in numbers; the counts of their cells are not text.

    Columns with `_printed` are the paper's own. in_all: heads in all 24 networks, and by_chance: of 144, if each of 24
    independent networks kept as large a share of heads as of units; rho: of heads' frequencies at the two sparsities,
    and rho_p: its two-sided p against 0 over 144 heads, as the paper tests; mlps_pruned: in the twelve networks of the
    lower and of the higher sparsity, '' where they were not counted.
    """
    counted, rows = reference.load("claims").set_index("claim"), []
    for task, place in (("MNLI", "Figure 5"), ("QQP", "Figure 11")):
        lower, higher = sorted(subnetworks(task.lower())["target_sparsity"].unique())
        row = {"task": task, "place": place, "lower": lower, "higher": higher}
        for name, claim in (("in_all", "heads in all 24 networks"), ("rho", "Spearman's rho of heads' frequencies")):
            row |= {f"{name}_printed": float(counted["printed"][f"{task}: {claim}"]),
                    name: float(counted["counted"][f"{task}: {claim}"])}  # fmt: skip
        t = row["rho"] * math.sqrt((HEADS - 2) / (1 - row["rho"] ** 2))
        pruned = reference.load("claims").query("claim.str.startswith(@task + ' at') and claim.str.contains('MLPs')")
        rows.append(row | {"by_chance": HEADS * ((1 - lower) * (1 - higher)) ** 12,
                           "rho_p": 2 * float(stats.t.sf(t, HEADS - 2)),
                           "mlps_pruned": " and ".join(str(int(one)) for one in pruned["counted"])})  # fmt: skip
    return pd.DataFrame(rows)


def _of_networks() -> Iterator[float]:
    """What section 3 says of pruned networks and Tables 3 and 4 of full ones, in the order of `claims`."""
    half, sparse, questions = _at("mnli", 0.5), _at("mnli", 0.7), _at("qqp", 0.3)
    for rows, name in ((half, "MNLI"), (questions, "QQP")):
        own = rows[rows["name"] == name]
        yield (own["full"] - own["accuracy"]).max()
    for rows, name in ((half, "Embed-If"), (sparse, "MNLI")):
        yield from rows[rows["name"] == name]["accuracy"].agg(["min", "max"])
    by_seed = half.pivot_table(index="seed", columns="name", values="accuracy")
    for seed in (49, 46):  # the eighth and the fifth network
        yield from by_seed.loc[seed, ["SO-Swap", "Prep"]]
    yield (sparse[sparse["name"].isin(SUBCASES.values())]["accuracy"] < 0.1).mean()
    for rows, names in ((half, ["MNLI", *SUBCASES.values()]), (questions, ["QQP", "PAWS (adv.)"])):
        yield from rows.groupby("name")["full"].first()[names]


def _of_sizes() -> Iterator[float]:
    """How sparse a network may be and still generalize, what is shared by chance, and how effective sizes change."""
    for task in ("mnli", "qqp"):
        means = _grid_by_domain(task, "pruned final").groupby(["domain", "sparsity"])["accuracy"].mean()
        own = means["out of domain"]
        yield own[own > own[0.0] - FAITHFUL].index.max()
    yield HEADS * 0.3**12
    for task in ("mnli", "qqp"):
        sizes = effective_sizes(task).set_index(["domain", "step"])["effective_size"]
        for domain in ("in domain", "out of domain"):
            yield sizes[domain].iloc[-1] - sizes[domain].iloc[0]
    sizes = effective_sizes("mnli").query("domain == 'out of domain' and accuracy > 0.1")["effective_size"]
    yield sizes.iloc[-1] - sizes.iloc[0]


def _of_joint_ablations() -> Iterator[float]:
    """Section 5: what three heads ablated at once cost, less the sum of what each costs by itself."""
    table = reference.load("tables").query("place == 'Table 3' and name != 'MNLI'")
    accuracy = table.pivot_table(index="row", columns="name", values="accuracy", sort=False)
    lost = accuracy.loc["none"] - accuracy
    (joint,) = [row for row in lost.index if "+" in row]
    yield from lost.loc[joint] - lost.loc[joint.split("+")].sum()


def _at(task: str, sparsity: float) -> pd.DataFrame:
    return subnetworks(task).query("target_sparsity == @sparsity")


def _grid(task: str, network: str) -> pd.DataFrame:
    """Part of the published grid: step, seed, sparsity, name and accuracy."""
    table = reference.load("sparsity_grid").query("task == @task and network == @network")
    table = table[table["evaluation_set"].isin(SETS) & (table["accuracy"] >= 0)]  # -1 stands for a run that is missing
    return pd.DataFrame({
        "step": pd.to_numeric(table["finetuning_step"], errors="coerce").fillna(-1).astype(int),  # -1: at the end
        "seed": pd.to_numeric(table["seed"], errors="coerce").fillna(0).astype(int),
        "sparsity": table["sparsity_percent"] / 100,
        "name": table["evaluation_set"].map(SETS),
        "accuracy": table["accuracy"],
    })  # fmt: skip


def _grid_by_domain(task: str, network: str) -> pd.DataFrame:
    table = _grid(task, network).rename(columns={"name": "set"})
    return by_domain(table, ["step", "seed", "sparsity"], DOMAINS)
