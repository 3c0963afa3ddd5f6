"""*The Heuristic Core* (Bhaskar, Friedman and Chen 2024) on a network of our own: tables of a study.

Each function returns one tidy table and makes what is not there yet. Heads and layers are counted from 0. Pruning seeds
are the independent observations; all are of one fine-tuned network, as in the paper, so that nothing here says how
another network would turn out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Step, make_all
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.heuristic_core import published, steps
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN, MISMATCHED, OUT_OF_DOMAIN, domains_of, is_friendly
from subnet_utils.papers.heuristic_core.published import SUBCASES, faithful_sizes
from subnet_utils.papers.heuristic_core.published_cores import FRIENDLY
from subnet_utils.tasks.sentence_pairs import ENTAILED
from subnet_utils.training import TrainingDiverged

ENTAILED_SETS = "entailed"
"""The mean of the sets that agree with the heuristic."""
OF_GPT2 = "OOD-E"
"""The mean of the two of them that the paper has for GPT-2 (appendix E, Figure 16)."""
SHORT = SUBCASES | {
    "subsequence_sn_PP_on_subject": "PP-Subj", "subsequence_sn_relative_clause_on_subject": "Rel-Subj",
    "constituent_cn_after_if_clause": "After-If", "constituent_cn_adverb": "Adverb",
    "subsequence_se_relative_clause_on_obj": "Rel-Clause", "constituent_ce_embedded_under_since": "Embed-Since",
    "paws_non_equivalent": "PAWS (adv.)", "paws_equivalent": "PAWS (equivalent)",
}  # fmt: skip
"""Sets -> the paper's short names, and ours after their pattern."""


def name_of(layer: int, head: int) -> str:
    """`L2.H5`, as the paper writes it."""
    return f"L{layer}.H{head}"


def fine_tuning(lab: Lab) -> pd.DataFrame:
    """Accuracy of the network on every set while it is fine-tuned: step, set, name, accuracy, key; `out of domain` is a
    mean."""
    history, key = _history(lab)
    history[OUT_OF_DOMAIN] = history[list(_section(lab).data.out_of_domain)].mean(axis=1)
    long = history.reset_index().melt("step", list(history), "set", "accuracy")
    return long.assign(name=long["set"].replace(SHORT), key=key)


def pruned(lab: Lab) -> pd.DataFrame:
    """The last network pruned with many seeds to both sparsities: a row for each and every set, as `full` beside it.

    Columns step, target_sparsity, seed, achieved_sparsity, threshold_sparsity, set, name, accuracy, full, and key, the
    artefact's. A pruning that diverged has no rows. Raises TrainingDiverged if all did.
    """
    return _accuracies(lab, steps.prunings(lab), "pruned networks")


def grid(lab: Lab) -> pd.DataFrame:
    """Every checkpoint pruned to every sparsity of the grid: as `pruned`, with the step."""
    return _accuracies(lab, steps.grid_prunings(lab), "pruned checkpoints")


def main_sets(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """The rows about the in-domain set, then those that count as out of domain, set by set, then the entailed ones that
    the paper shows for its network, and then `entailed`: the mean of all sets that are entailed, on which a network
    that always says no fails."""
    section, friendly = _section(lab), table[table["set"].map(is_friendly)]
    of_paper = FRIENDLY if section.paper_network == "gpt2_mnli" else ()
    shown = [name for name in friendly["set"].unique() if SHORT.get(name) in of_paper]
    order = (IN_DOMAIN, MISMATCHED, *section.data.out_of_domain, *shown, ENTAILED_SETS)
    about = [name for name in table if name not in ("set", "name", "accuracy", "full")]
    means = friendly.groupby(about, dropna=False, sort=False)[["accuracy", "full"]].mean().reset_index()
    every = pd.concat([table, means.assign(set=ENTAILED_SETS, name=ENTAILED_SETS)])
    own = every[every["set"].isin(order)]
    return own.sort_values("set", key=lambda sets: sets.map(order.index), kind="stable")


def set_sizes(lab: Lab) -> dict[str, int]:
    """Number of pairs in every set, and of all entailed ones."""
    sizes = {name: len(data) for name, data in steps.network(lab).pairs().sets.items()}
    return sizes | {ENTAILED_SETS: sum(number for name, number in sizes.items() if is_friendly(name))}


def examples(lab: Lab) -> pd.DataFrame:
    """The first pair of every set: set, premise, hypothesis, whether it follows, whether the set is out of domain."""
    data = steps.network(lab).data
    table = pd.concat([pairs.head(1).assign(set=name) for name, pairs in data.texts()[1].items()], ignore_index=True)
    sets = table["set"]
    yes = sets.map(lambda name: data.section.entailed_class if name in (IN_DOMAIN, MISMATCHED) else ENTAILED)
    found = {"set": sets.replace(SHORT), "follows": (table["label"] == yes).map({True: "yes", False: "no"}),
             "out_of_domain": sets.isin(data.section.out_of_domain)}  # fmt: skip
    return table.assign(**found)[["set", "premise", "hypothesis", "follows", "out_of_domain"]]


def unit_counts(lab: Lab) -> tuple[int, int]:
    """Number of heads and of MLPs."""
    return len(_heads(lab)), _heads(lab)["layer"].nunique()


def by_sparsity(lab: Lab) -> pd.DataFrame:
    """Accuracy of the last network pruned to every sparsity of the grid, 0 for the whole one: mean, min, max."""
    table = main_sets(lab, grid(lab))
    table = table[table["step"] == table["step"].max()]
    whole = table.drop_duplicates("name").assign(target_sparsity=0.0, accuracy=lambda rows: rows["full"])
    groups = pd.concat([whole, table]).groupby(["name", "target_sparsity"], sort=False)["accuracy"]
    return groups.agg(["mean", "min", "max"]).reset_index().rename(columns={"target_sparsity": "sparsity"})


def sizes(lab: Lab) -> pd.DataFrame:
    """Effective size of every checkpoint, domain and seed (`published.faithful_sizes`)."""
    full = by_domain(lab, fine_tuning(lab), ["step"])
    found = by_domain(lab, grid(lab), ["step", "seed", "target_sparsity"])
    return faithful_sizes(full, found.rename(columns={"target_sparsity": "sparsity"}))


def frequencies(lab: Lab) -> pd.DataFrame:
    """In how many pruned networks of each sparsity every head is: layer, head, head_name, lower, higher, n_lower,
    n_higher, and in_core, whether in all of them."""
    table, kept = _heads(lab), dict(zip(("lower", "higher"), kept_heads(lab).values(), strict=True))
    counts = {name: sum(networks.values()).flatten().tolist() for name, networks in kept.items()}
    table = table.assign(**counts, **{f"n_{name}": len(networks) for name, networks in kept.items()})
    return table.assign(in_core=table["lower"] + table["higher"] == table["n_lower"] + table["n_higher"])


def kept_heads(lab: Lab) -> dict[float, dict[int, torch.Tensor]]:
    """Sparsity -> seed -> heads [layers, heads] of the pruned network. Raises TrainingDiverged if none is left at a
    sparsity."""
    return {sparsity: {seed: left.masks["heads"].int() for seed, left in networks.items()}
            for sparsity, networks in _left(lab).items()}  # fmt: skip


def core_of(table: pd.DataFrame) -> tuple[tuple[int, int], ...]:
    """The core: heads that are in all pruned networks. table: from `frequencies`."""
    return tuple(table[table["in_core"]][["layer", "head"]].itertuples(index=False, name=None))


def kept_mlps(lab: Lab) -> pd.DataFrame:
    """How many MLPs are pruned: the paper's claim is none. A row for each sparsity."""
    rows = []
    for sparsity, networks in _left(lab).items():
        gone = torch.stack([~left.masks["mlps"] for left in networks.values()])
        rows.append({"target_sparsity": sparsity, "networks": len(gone), "mlps": gone.numel(),
                     "mlps_pruned": int(gone.sum()), "networks_with_all": int((~gone.any(dim=1)).sum())})  # fmt: skip
    return pd.DataFrame(rows)


def random_units(lab: Lab) -> pd.DataFrame:
    """Random unit subnetworks with as many heads and MLPs as the pruned ones have: as `pruned`, with `draw` as seed."""
    return _accuracies(lab, steps.random_units(lab), "random units")


def ablations(lab: Lab, core: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """The whole network without one head, without all heads of the core, and without as many others. Columns ablated (a
    head's name, `core` or `others`), draw, in_core, layer, head, set, name, accuracy, full, key."""
    heads = steps.every_head(lab)
    groups = [((head,), {"ablated": name_of(*head), "draw": 0, "in_core": head in core, "layer": head[0],
                         "head": head[1]}) for head in heads]  # fmt: skip
    if core:
        groups.append((tuple(core), {"ablated": "core", "draw": 0, "in_core": True}))
    others = [head for head in heads if head not in core]
    for draw, gone in enumerate(_other_groups(others, len(core), _section(lab).pruning.draws)):
        groups.append((gone, {"ablated": "others", "draw": draw, "in_core": False}))
    gone, about = zip(*groups, strict=True)
    return _accuracies(lab, [steps.without_heads(lab, one) for one in gone], "ablated heads", about)


def _other_groups(heads: Sequence[tuple[int, int]], size: int, draws: int) -> list[tuple[tuple[int, int], ...]]:
    """Different groups of so many heads: all of them, or so many at random where there are more. None of size 0."""
    if not size or math.comb(len(heads), size) <= draws:
        return list(combinations(heads, size)) if size else []
    found, draw = {}, 0
    while len(found) < draws:
        order = torch.randperm(len(heads), generator=generator_for("other heads", draw))[:size].tolist()
        found[tuple(heads[i] for i in sorted(order))] = draw = draw + 1
    return list(found)


def strongest(lab: Lab, lost: pd.DataFrame, *, heads: int = 3) -> pd.DataFrame:
    """The whole network without the heads whose ablation costs most out of domain, all at once: as `ablations`.

    lost: `findings.drops` of `ablations`. The paper takes three as well (Table 3).
    """
    most = lost.dropna(subset=["layer"]).nlargest(heads, "out_of_domain")[["layer", "head"]].astype(int)
    gone = tuple(most.itertuples(index=False, name=None))
    about = {"ablated": "+".join(name_of(*head) for head in gone), "draw": 0, "in_core": False}
    about |= {"layer": math.nan, "head": math.nan}
    return _accuracies(lab, [steps.without_heads(lab, gone)], "strongest heads", [about])


def attention(lab: Lab, core: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Where every head of the last network looks, and whether it is in the core (Figure 9)."""
    artefact = steps.Attention(steps.teacher(lab).checkpoint).make(lab)
    inside = [head in core for head in steps.every_head(lab)]
    return artefact.table("patterns").assign(in_core=inside, head_name=_heads(lab)["head_name"], key=artefact.key)


def attention_map(lab: Lab, layer: int, head: int) -> tuple[torch.Tensor, list[str]]:
    """Attention [T, T] of one head on a pair that defies the heuristic, and the pair's tokens (Figure 7)."""
    artefact = steps.Attention(steps.teacher(lab).checkpoint).make(lab)
    kind = _section(lab).data.out_of_domain[0]
    return artefact.tensors("maps")[kind][layer, head], artefact.json("tokens")[kind]


def checkpoint_heads(lab: Lab, core: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """How many of the core's heads are in pruned networks of every checkpoint, beside the other heads: of the sparsest
    networks of the grid, a row each: step, sparsity, seed, core, others (shares of these heads)."""
    every, rows = steps.grid_prunings(lab), []
    make_all(lab, every, "pruned checkpoints")
    sparsest, inside = max(one.sparsity for one in every), [head in core for head in steps.every_head(lab)]
    for one in every:
        if one.sparsity == sparsest and not one.fault(lab):
            kept = pd.Series(one.load(lab).masks["heads"].flatten().tolist(), dtype=float).groupby(inside).mean()
            rows.append({"step": one.checkpoint.step, "sparsity": sparsest, "seed": one.seed,
                         "core": kept.get(True, math.nan), "others": kept.get(False, math.nan)})  # fmt: skip
    return pd.DataFrame(rows)


def by_domain(lab: Lab, table: pd.DataFrame, about: Sequence[str]) -> pd.DataFrame:
    """Accuracy by domain (`published.by_domain`) for each of `about`. table: with all sets."""
    domains = domains_of(table["set"], _section(lab).data.out_of_domain)
    if _section(lab).paper_network == "gpt2_mnli":
        domains[OF_GPT2] = [name for name in table["set"].unique() if SHORT.get(name) in FRIENDLY]
    return published.by_domain(table, about, domains)


def _section(lab: Lab) -> Any:
    return lab.section("heuristic_core")


def _history(lab: Lab) -> tuple[pd.DataFrame, str]:
    """Accuracy of the whole network on every set by step, and the key of the artefact."""
    (artefact,) = make_all(lab, [steps.network(lab)], "fine-tuned network")
    return artefact.table("history").set_index("step").drop(columns=["epoch", "train_loss"]), artefact.key


def _heads(lab: Lab) -> pd.DataFrame:
    """layer, head and head_name of every head."""
    table = pd.DataFrame(steps.every_head(lab), columns=["layer", "head"])
    return table.assign(head_name=[name_of(*head) for head in steps.every_head(lab)])


def _left(lab: Lab) -> dict[float, dict[int, Subnetwork]]:
    """Sparsity -> seed -> units of the pruned network, without prunings that diverged."""
    found: dict[float, dict[int, Subnetwork]] = {sparsity: {} for sparsity in _section(lab).pruning.sparsities}
    make_all(lab, steps.prunings(lab), "pruned networks")
    for one in steps.prunings(lab):
        if not one.fault(lab):
            found[one.sparsity][one.seed] = one.load(lab)
    for sparsity, networks in found.items():
        if not networks:
            raise TrainingDiverged(f"every pruning to {sparsity:.0%} diverged; lower pruning.learning_rate")
    return found


def _accuracies(
    lab: Lab, judged: Sequence[Step], label: str, about: Iterable[Mapping[str, Any]] = ()
) -> pd.DataFrame:  # fmt: skip
    """Accuracy of networks on every set, beside that of the whole network. about: what is known of each."""
    artefacts, about = make_all(lab, judged, label), about or [one.about for one in judged]
    history, last = _history(lab)[0], steps.network(lab).training.steps
    rows = []
    for own, artefact in zip(about, artefacts, strict=True):
        result, full = artefact.json("result"), history.loc[own.get("step", last)]
        sizes = {name: value for name, value in result.items() if name.endswith("_sparsity")}
        rows += [{**own, "key": artefact.key, **sizes, "set": name, "name": SHORT.get(name, name), "accuracy": accuracy,
                  "full": float(full[name])} for name, accuracy in result.get("accuracies", {}).items()]  # fmt: skip
    if not rows:
        raise TrainingDiverged(f"all {len(judged)} {label} diverged; lower pruning.learning_rate")
    return pd.DataFrame(rows)
