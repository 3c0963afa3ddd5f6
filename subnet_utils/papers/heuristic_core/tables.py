"""*The Heuristic Core* (Bhaskar, Friedman and Chen 2024) on a network of our own: tables of a study.

Each function returns one tidy table and makes what is not there yet. Heads and layers are counted from 0. Pruning seeds
are the independent observations; all are of one fine-tuned network, as in the paper, so that nothing here says how
another network would turn out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from subnet_utils.core.jobs import run_jobs
from subnet_utils.core.lab import Lab, make_all
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.store import Artefact
from subnet_utils.masks.controls import random_like
from subnet_utils.papers.heuristic_core import published_cores as paper_cores
from subnet_utils.papers.heuristic_core.pair_sets import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    first_pairs,
    is_friendly,
    pair_sets,
    settings_of,
)
from subnet_utils.papers.heuristic_core.published import faithful_sizes
from subnet_utils.papers.heuristic_core.steps import (
    PrunedUnits,
    Units,
    attention_of,
    fine_tune,
    judge_units,
    last_step,
    load_units,
    prune_units,
    shape,
    teacher,
)
from subnet_utils.training import TrainingDiverged

ENTAILED_SETS = "entailed"
"""The mean of the sets that agree with the heuristic."""
SHORT = {
    IN_DOMAIN: "in domain",
    "lexical_overlap_ln_subject-object_swap": "SO-Swap",
    "lexical_overlap_ln_preposition": "Prep",
    "subsequence_sn_PP_on_subject": "PP-Subj",
    "subsequence_sn_relative_clause_on_subject": "Rel-Subj",
    "constituent_cn_embedded_under_if": "Embed-If",
    "constituent_cn_after_if_clause": "After-If",
    "constituent_cn_embedded_under_verb": "Embed-Verb",
    "constituent_cn_adverb": "Adverb",
    "subsequence_se_relative_clause_on_obj": "Rel-Clause",
    "constituent_ce_embedded_under_since": "Embed-Since",
    "paws_non_equivalent": "PAWS (adv.)",
    "paws_equivalent": "PAWS (equivalent)",
}
"""Sets -> the paper's short names, and ours after their pattern."""


@dataclass(frozen=True)
class Core:
    """Heads, (layer, head) each, that every pruned network has."""

    heads: tuple[tuple[int, int], ...]

    @property
    def names(self) -> list[str]:
        """Written as in the paper."""
        return [name_of(*head) for head in self.heads]


def name_of(layer: int, head: int) -> str:
    """`L2.H5`."""
    return f"L{layer}.H{head}"


def fine_tuning(lab: Lab) -> pd.DataFrame:
    """Accuracy of the network on every set while it is fine-tuned: step, set, name, accuracy, key; `out of domain` is a
    mean."""
    network = _network(lab)
    history = network.table("history")
    history[OUT_OF_DOMAIN] = history[list(settings_of(lab).data.out_of_domain)].mean(axis=1)
    names = [name for name in history if name not in ("epoch", "train_loss", "step")]
    long = history.melt("step", names, "set", "accuracy")
    return long.assign(name=long["set"].map(lambda name: SHORT.get(name, name)), key=network.key)


def pruned(lab: Lab) -> pd.DataFrame:
    """The last network pruned with many seeds to both sparsities: a row for each and every set, as `full` beside it.

    Columns step, target_sparsity, seed, achieved_sparsity, threshold_sparsity, set, name, accuracy, full, and key, the
    artefact's. A pruning that diverged has no rows. Raises TrainingDiverged if all did.
    """
    wanted, made = _main(lab)
    return _accuracies(lab, wanted, made)


def grid(lab: Lab) -> pd.DataFrame:
    """Every checkpoint pruned to every sparsity of the grid: as `pruned`, with the step."""
    settings = settings_of(lab)
    pruning, steps = settings.pruning, (*sorted(settings.finetuning.checkpoints), last_step(lab))
    _teach(lab, steps)
    wanted = [PrunedUnits(step, sparsity, seed)
              for step in steps for sparsity in pruning.grid_sparsities for seed in pruning.grid_seeds]  # fmt: skip
    return _accuracies(lab, wanted, make_all(lab, "pruned_units", prune_units, wanted, "pruned checkpoints"))


def main_sets(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """The rows about the in-domain set, then those that count as out of domain, set by set, then the entailed ones that
    the paper shows for its network, and then `entailed`: the mean of all sets that are entailed, on which a network
    that always says no fails."""
    settings, friendly = settings_of(lab), table[table["set"].map(is_friendly)]
    shown = [name for name in friendly["set"].unique() if SHORT.get(name) in paper_cores.entailed_sets(settings.beside)]
    order = (IN_DOMAIN, *settings.data.out_of_domain, *shown, ENTAILED_SETS)
    about = [name for name in table if name not in ("set", "name", "accuracy", "full")]
    means = friendly.groupby(about, dropna=False, sort=False)[["accuracy", "full"]].mean().reset_index()
    every = pd.concat([table, means.assign(set=ENTAILED_SETS, name=ENTAILED_SETS)])
    own = every[every["set"].isin(order)]
    return own.sort_values("set", key=lambda sets: sets.map(order.index), kind="stable")


def set_sizes(lab: Lab) -> dict[str, int]:
    """Number of pairs in every set, and of all entailed ones."""
    sizes = {name: len(data) for name, data in pair_sets(lab).sets.items()}
    return sizes | {ENTAILED_SETS: sum(number for name, number in sizes.items() if is_friendly(name))}


def examples(lab: Lab) -> pd.DataFrame:
    """The first pair of every set: name, premise, hypothesis, whether it follows, whether the set is out of domain."""
    table = first_pairs(lab)
    outside = table["set"].isin(settings_of(lab).data.out_of_domain)
    named = table["set"].map(lambda name: SHORT.get(name, name))
    return table.drop(columns="set").assign(out_of_domain=outside).set_index(named.rename("set")).reset_index()


def unit_counts(lab: Lab) -> tuple[int, int]:
    """Number of heads and of MLPs."""
    layers, heads = shape(lab)
    return layers * heads, layers


def by_sparsity(lab: Lab) -> pd.DataFrame:
    """Accuracy of the last network pruned to every sparsity of the grid, 0 for the whole one: mean, min, max."""
    table = main_sets(lab, grid(lab))
    table = table[table["step"] == last_step(lab)]
    whole = table.drop_duplicates("name").assign(target_sparsity=0.0, accuracy=lambda rows: rows["full"])
    groups = pd.concat([whole, table]).groupby(["name", "target_sparsity"], sort=False)["accuracy"]
    return groups.agg(["mean", "min", "max"]).reset_index().rename(columns={"target_sparsity": "sparsity"})


def sizes(lab: Lab) -> pd.DataFrame:
    """Effective size of every checkpoint, domain and seed (`heuristic_core.faithful_sizes`)."""
    full = by_domain(lab, fine_tuning(lab), ["step"])
    found = by_domain(lab, grid(lab), ["step", "seed", "target_sparsity"])
    return faithful_sizes(full, found.rename(columns={"target_sparsity": "sparsity"}))


def frequencies(lab: Lab) -> pd.DataFrame:
    """In how many pruned networks of each sparsity every head is: layer, head, head_name, lower, higher, n_lower,
    n_higher, and in_core, whether in all of them."""
    low, high = settings_of(lab).pruning.sparsities
    kept = kept_heads(lab)
    counts = {sparsity: sum(kept[sparsity].values()) for sparsity in (low, high)}
    layers, heads = shape(lab)
    rows = []
    for layer in range(layers):
        for head in range(heads):
            lower, higher = (int(counts[sparsity][layer, head]) for sparsity in (low, high))
            everywhere = lower + higher == len(kept[low]) + len(kept[high])
            rows.append({"layer": layer, "head": head, "head_name": name_of(layer, head), "lower": lower,
                         "higher": higher, "n_lower": len(kept[low]), "n_higher": len(kept[high]),
                         "in_core": everywhere})  # fmt: skip
    return pd.DataFrame(rows)


def kept_heads(lab: Lab) -> dict[float, dict[int, torch.Tensor]]:
    """Sparsity -> seed -> heads [layers, heads] of the pruned network.

    Raises TrainingDiverged if none is left at a sparsity.
    """
    found: dict[float, dict[int, torch.Tensor]] = {sparsity: {} for sparsity in settings_of(lab).pruning.sparsities}
    for wanted, artefact in zip(*_main(lab), strict=True):
        if "fault" not in artefact.json("result"):
            found[wanted.sparsity][wanted.seed] = load_units(artefact).masks["heads"].int()
    for sparsity, masks in found.items():
        if not masks:
            raise TrainingDiverged(f"every pruning to {sparsity:.0%} diverged; lower pruning.learning_rate")
    return found


def core_of(table: pd.DataFrame) -> Core:
    """The heads that are in all pruned networks. table: from `frequencies`."""
    rows = table[table["in_core"]]
    return Core(tuple(zip(rows["layer"].tolist(), rows["head"].tolist(), strict=True)))


def kept_mlps(lab: Lab) -> pd.DataFrame:
    """How many MLPs are pruned: the paper's claim is none. A row for each sparsity."""
    rows = []
    for sparsity in settings_of(lab).pruning.sparsities:
        masks = [load_units(artefact).masks["mlps"] for wanted, artefact in zip(*_main(lab), strict=True)
                 if wanted.sparsity == sparsity and "fault" not in artefact.json("result")]  # fmt: skip
        gone = [int((~mask).sum()) for mask in masks]
        rows.append({"target_sparsity": sparsity, "networks": len(gone), "mlps": sum(mask.numel() for mask in masks),
                     "mlps_pruned": sum(gone), "networks_with_all": sum(number == 0 for number in gone)})  # fmt: skip
    return pd.DataFrame(rows)


def random_units(lab: Lab) -> pd.DataFrame:
    """Random unit subnetworks with as many heads and MLPs as the pruned ones have: as `pruned`, with `draw` as seed."""
    step, draws = last_step(lab), settings_of(lab).pruning.draws
    wanted, about = [], []
    for sparsity in settings_of(lab).pruning.sparsities:
        own = [load_units(artefact) for one, artefact in zip(*_main(lab), strict=True)
               if one.sparsity == sparsity and "fault" not in artefact.json("result")]  # fmt: skip
        for draw in range(draws if own else 0):
            wanted.append(Units.of(step, random_like(own[draw % len(own)], seed=draw)))
            about.append({"target_sparsity": sparsity, "seed": draw})
    return _judged(lab, wanted, about)


def ablations(lab: Lab, core: Core) -> pd.DataFrame:
    """The whole network without one head, without all heads of the core, and without as many others.

    Columns ablated (a head's name, `core` or `others`), draw, in_core, layer, head, set, name, accuracy, full, key.
    """
    step, draws = last_step(lab), settings_of(lab).pruning.draws
    layers, heads = shape(lab)
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    groups = [((head,), {"ablated": name_of(*head), "draw": 0, "in_core": head in core.heads,
                         "layer": head[0], "head": head[1]}) for head in every]  # fmt: skip
    others = [head for head in every if head not in core.heads]
    if core.heads:
        groups.append((core.heads, {"ablated": "core", "draw": 0, "in_core": True}))
    if 0 < len(core.heads) <= len(others):
        for draw in range(draws):
            order = torch.randperm(len(others), generator=generator_for("other heads", draw))[: len(core.heads)]
            gone = tuple(others[i] for i in order.tolist())
            groups.append((gone, {"ablated": "others", "draw": draw, "in_core": False}))
    wanted = [Units(step, tuple(head for head in every if head not in gone), tuple(range(layers)))
              for gone, _ in groups]  # fmt: skip
    return _judged(lab, wanted, [about for _, about in groups])


def attention(lab: Lab, core: Core) -> pd.DataFrame:
    """Where every head of the last network looks, and whether it is in the core (Figure 9)."""
    artefact = attention_of(lab, last_step(lab))
    table = artefact.table("patterns")
    places = list(zip(table["layer"], table["head"], strict=True))
    return table.assign(in_core=[place in core.heads for place in places],
                        head_name=[name_of(*place) for place in places], key=artefact.key)  # fmt: skip


def attention_map(lab: Lab, layer: int, head: int) -> tuple[torch.Tensor, list[str]]:
    """Attention [T, T] of one head on a pair that defies the heuristic, and the pair's tokens (Figure 7)."""
    artefact = attention_of(lab, last_step(lab))
    kind = settings_of(lab).data.out_of_domain[0]
    return artefact.tensors("maps")[kind][layer, head], artefact.json("tokens")[kind]


def checkpoint_heads(lab: Lab, core: Core) -> pd.DataFrame:
    """How many of the core's heads are in pruned networks of every checkpoint, beside the other heads.

    Of the sparsest networks of the grid, a row each: step, sparsity, seed, core, others (shares of these heads).
    """
    settings = settings_of(lab)
    sparsity = max(settings.pruning.grid_sparsities)
    grid(lab)
    rows = []
    for step in (*sorted(settings.finetuning.checkpoints), last_step(lab)):
        for seed in settings.pruning.grid_seeds:
            artefact = prune_units(lab, PrunedUnits(step, sparsity, seed))
            if "fault" in artefact.json("result"):
                continue
            kept = load_units(artefact).masks["heads"].double()
            inside = torch.zeros_like(kept, dtype=torch.bool)
            for layer, head in core.heads:
                inside[layer, head] = True
            found = float(kept[inside].mean()) if core.heads else math.nan
            rows.append({"step": step, "sparsity": sparsity, "seed": seed, "core": found,
                         "others": float(kept[~inside].mean())})  # fmt: skip
    return pd.DataFrame(rows)


def by_domain(lab: Lab, table: pd.DataFrame, about: Sequence[str]) -> pd.DataFrame:
    """Accuracy in domain, out of domain (mean of its sets), mixed (mean of these two), and balanced: the mean of out of
    domain and of the sets that are entailed. For each of `about`; table: with all sets."""
    inside = table[table["set"] == IN_DOMAIN].groupby(list(about))["accuracy"].mean()
    outside = table[table["set"].isin(settings_of(lab).data.out_of_domain)].groupby(list(about))["accuracy"].mean()
    wide = pd.DataFrame({"in domain": inside, OUT_OF_DOMAIN: outside})
    wide["mixed"] = wide.mean(axis=1)
    friendly = table[table["set"].map(is_friendly)].groupby(list(about))["accuracy"].mean()
    wide["balanced"] = (wide[OUT_OF_DOMAIN] + friendly) / 2
    return wide.rename_axis(columns="domain").stack().rename("accuracy").reset_index()


def full_accuracies(lab: Lab, step: int) -> dict[str, float]:
    """The whole network's, on every set."""
    table = fine_tune(lab).table("history")
    row = table[table["step"] == step].iloc[0]
    return {name: float(row[name]) for name in table if name not in ("epoch", "train_loss", "step")}


def _main(lab: Lab) -> tuple[list[PrunedUnits], list]:
    pruning, step = settings_of(lab).pruning, last_step(lab)
    _teach(lab, [step])
    wanted = [PrunedUnits(step, sparsity, seed) for sparsity in pruning.sparsities for seed in pruning.seeds]
    return wanted, make_all(lab, "pruned_units", prune_units, wanted, "pruned networks")


def _network(lab: Lab) -> Artefact:
    """The fine-tuned network, trained with the threads of any other job: a small one is slower with more."""
    return run_jobs(fine_tune, [(lab,)], compute=lab.study.compute, label="fine-tuned network")[0]


def _teach(lab: Lab, steps: Sequence[int]) -> None:
    """Make what all prunings of a checkpoint want, before workers would wait for each other."""
    _network(lab)
    for step in steps:
        teacher(lab, step)


def _accuracies(lab: Lab, wanted: Sequence[PrunedUnits], made: Sequence) -> pd.DataFrame:
    full = {step: full_accuracies(lab, step) for step in {one.step for one in wanted}}
    rows = []
    for one, artefact in zip(wanted, made, strict=True):
        result = artefact.json("result")
        about = {"step": one.step, "target_sparsity": one.sparsity, "seed": one.seed, "key": artefact.key}
        sizes = {name: result.get(name) for name in ("achieved_sparsity", "threshold_sparsity")}
        for name, accuracy in result.get("accuracies", {}).items():
            short = SHORT.get(name, name)
            rows.append(
                about | sizes | {"set": name, "name": short, "accuracy": accuracy, "full": full[one.step][name]}
            )
    if wanted and not rows:
        raise TrainingDiverged(f"all {len(wanted)} prunings diverged; lower pruning.learning_rate")
    return pd.DataFrame(rows)


def _judged(lab: Lab, wanted: Sequence[Units], about: Sequence[dict]) -> pd.DataFrame:
    full = full_accuracies(lab, last_step(lab))
    made = make_all(lab, "judged_units", judge_units, wanted, "judged networks")
    rows = []
    for one, artefact in zip(about, made, strict=True):
        for name, accuracy in artefact.json("result")["accuracies"].items():
            found = {"set": name, "name": SHORT.get(name, name), "accuracy": accuracy, "full": full[name]}
            rows.append(one | found | {"key": artefact.key})
    return pd.DataFrame(rows)
