"""The four findings of *The Heuristic Core*, each as a statistic of tables that `unit_pruning` makes.

Subnetworks that do alike in domain generalize differently; they share a core of heads; a network's effective size grows
as it generalizes; without heads of the core it generalizes worse than without others. The paper states them without
tests. Ours take pruning seeds, or heads, as the units of observation; all concern the one network that was pruned.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.spatial.distance import cdist

from subnet_utils.clusters import Interval
from subnet_utils.heuristic_core import HEADS
from subnet_utils.inference_sets import IN_DOMAIN
from subnet_utils.paper_cores import OTHERS
from subnet_utils.seeds import generator_for
from subnet_utils.statistics import t_interval
from subnet_utils.tasks.sentence_pairs import ENTAILED, is_entailed

DRAWS = 9999
LEVEL = 0.05
FLAT = 0.1
"""An effective size that grows by less than a tenth of all units counts as flat."""
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"


def spread(pruned: pd.DataFrame, pairs: dict[str, int]) -> pd.DataFrame:
    """Accuracies over seeds by sparsity and set: full, min, max, mean, std, and what chance in the pairs explains.

    pairs: number of pairs in each set. `sampling`: the deviation that networks of equal quality would show on as many
    pairs each; p: of a chi-squared test that there is no more. All are judged on the same pairs, so it errs towards 1.
    """
    rows = []
    for (sparsity, name, of), group in pruned.groupby(["target_sparsity", "name", "set"], sort=False):
        accuracy, mean = group["accuracy"], group["accuracy"].mean()
        sampling = math.sqrt(mean * (1 - mean) / pairs[of])
        p = math.nan
        if sampling > 0 and len(group) > 1:
            statistic = ((accuracy - mean) ** 2).sum() / sampling**2
            p = float(stats.chi2.sf(statistic, len(group) - 1))
        rows.append({"target_sparsity": sparsity, "name": name, "full": group["full"].iloc[0], "min": accuracy.min(),
                     "max": accuracy.max(), "mean": mean, "std": accuracy.std(), "sampling": sampling, "p": p,
                     "n_runs": len(group)})  # fmt: skip
    return pd.DataFrame(rows)


def differing(pruned: pd.DataFrame, count: int = 3) -> pd.DataFrame:
    """The networks of the lower sparsity that generalize most differently (Figure 3): the two farthest apart by their
    accuracies out of domain, then whichever is farthest from all chosen.

    The paper does not say how it chose its three. Fewer than `count` where there are fewer; without the rows in domain.
    """
    lower = pruned[(pruned["target_sparsity"] == pruned["target_sparsity"].min()) & (pruned["set"] != IN_DOMAIN)]
    places = lower.pivot_table(index="seed", columns="name", values="accuracy")
    far = pd.DataFrame(cdist(places, places), index=places.index, columns=places.index)
    chosen = list(dict.fromkeys(far.stack().idxmax()))
    while len(chosen) < min(count, len(far)):
        chosen.append(far.drop(index=chosen)[chosen].min(axis=1).idxmax())
    return lower[lower["seed"].isin(chosen)].sort_values("seed", kind="stable")


def beside_paper(ours: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Our `spread` with the paper's columns, the lower sparsity beside the lower one, by name of the set.

    paper: of `paper_cores.spread`. A set that the paper lacks has none.
    """
    rank = ours["target_sparsity"].rank(method="dense").astype(int) - 1
    return ours.assign(rank=rank).merge(paper, on=["rank", "name"], how="left").drop(columns="rank")


def correlation(kept: dict[float, list]) -> dict[str, float]:
    """Spearman's rho of the heads' frequencies at the two sparsities, with a jackknife interval over pruning seeds.

    kept: sparsity -> heads [layers, heads] of each network. The interval is Student's on Fisher's scale; a bootstrap
    would lie below rho, since networks that are drawn twice make frequencies coarser. The paper gives a p-value that
    takes heads as independent, and leaves out that the networks are a sample; p is that one.
    """
    lower, higher = (np.stack([np.asarray(one).ravel() for one in masks]) for masks in kept.values())
    rho, spread = _rho(lower, higher), 0.0
    p = float(stats.spearmanr(lower.sum(axis=0), higher.sum(axis=0)).pvalue) if rho else math.nan
    for group, other in ((lower, higher), (higher, lower)):
        number = len(group)
        without = [_fisher(_rho(np.delete(group, i, axis=0), other)) for i in range(number)]
        spread += (number - 1) / number * float(np.sum((np.array(without) - np.mean(without)) ** 2))
    reach = stats.t.ppf(0.975, max(1, min(len(lower), len(higher)) - 1)) * math.sqrt(spread)
    low, high = (math.tanh(_fisher(rho) + sign * reach) for sign in (-1, 1))
    return {"rho": rho, "low": low, "high": high, "p": p,
            "n_lower": len(lower), "n_higher": len(higher), "heads": lower.shape[1]}  # fmt: skip


def core_size(kept: dict[float, list], *, seed: int = 0, draws: int = DRAWS) -> dict[str, float]:
    """How many heads all networks share, and how many networks with as many random heads would share.

    expected: exact mean; p: share of draws in which at least as many are shared. low, high: 95% of the sizes that the
    core of as many other pruning seeds would have, were each head's share of networks at a sparsity what this sample
    makes plausible (Jeffreys' prior) and heads independent: heads that are in all by luck leave it, others join.
    """
    masks = np.stack([np.asarray(one).ravel() > 0 for group in kept.values() for one in group])
    numbers, heads = masks.sum(axis=1), masks.shape[1]
    size = int(masks.all(axis=0).sum())
    rng = _rng("core", seed)
    least = 0
    for _ in range(draws):
        shared = np.ones(heads, dtype=bool)
        for number in numbers:
            row = np.zeros(heads, dtype=bool)
            row[rng.permutation(heads)[:number]] = True
            shared &= row
            if shared.sum() < size:
                break
        least += shared.sum() >= size
    absent = (~masks).sum(axis=0)
    low, high = np.quantile(_cores_again(kept, rng, draws), (0.025, 0.975))
    return {"core": size, "expected": float(heads * np.prod(numbers / heads)), "p": (1 + least) / (1 + draws),
            "low": float(low), "high": float(high), "heads": heads, "networks": len(masks),
            "with_one_left_out": int((absent <= 1).sum()), "with_two_left_out": int((absent <= 2).sum())}  # fmt: skip


def _cores_again(kept: dict[float, list], rng: np.random.Generator, draws: int) -> np.ndarray:
    """Sizes [draws] of the core in other samples of networks, by the posterior of each head's share of networks."""
    together = np.ones((draws, np.asarray(next(iter(kept.values()))[0]).size))
    for group in kept.values():
        found = np.stack([np.asarray(one).ravel() > 0 for one in group])
        there = found.sum(axis=0)
        share = rng.beta(there + 0.5, len(found) - there + 0.5, size=together.shape)
        together *= share ** len(found)
    return (rng.random(together.shape) < together).sum(axis=1)


def core_by_number(kept: dict[float, list], *, seed: int = 0, draws: int = 200) -> pd.DataFrame:
    """Size of the core of the first k networks in random orders: mean, min and max; expected: of random heads."""
    masks = np.stack([np.asarray(one).ravel() > 0 for group in kept.values() for one in group])
    rng, heads = _rng("orders", seed), masks.shape[1]
    sizes, chance = [], []
    for _ in range(draws):
        order = rng.permutation(len(masks))
        sizes.append(np.logical_and.accumulate(masks[order]).sum(axis=1))
        chance.append(heads * np.cumprod(masks[order].mean(axis=1)))
    sizes = np.array(sizes)
    return pd.DataFrame({"networks": range(1, len(masks) + 1), "mean": sizes.mean(axis=0), "min": sizes.min(axis=0),
                         "max": sizes.max(axis=0), "expected": np.mean(chance, axis=0)})  # fmt: skip


def drops(ablations: pd.DataFrame, out_of_domain: tuple[str, ...]) -> pd.DataFrame:
    """What each ablation costs: columns ablated, draw, in_core, layer, head, and the accuracy lost in_domain,
    out_of_domain (mean over its sets), entailed (mean over HANS's entailed subcases), balanced (mean of these two).

    All pairs out of domain are not entailed: a network that always says so is right on every one of them, and what it
    lost shows only on entailed ones.
    """
    lost = ablations.assign(lost=ablations["full"] - ablations["accuracy"])
    keys = ["ablated", "draw", "in_core", "layer", "head"]
    rows = []
    for about, group in lost.groupby(keys, dropna=False, sort=False):
        inside = group[group["set"] == IN_DOMAIN]["lost"].mean()
        outside = group[group["set"].isin(out_of_domain)]["lost"].mean()
        friendly = group[group["set"].map(_entailed)]["lost"].mean()
        losses = {"in_domain": inside, "out_of_domain": outside, "entailed": friendly}
        rows.append(dict(zip(keys, about, strict=True)) | losses | {"balanced": (outside + friendly) / 2})
    return pd.DataFrame(rows)


def ablation_table(lost: pd.DataFrame) -> pd.DataFrame:
    """Table 3: accuracy lost without each head of the core (and mean), without another head (mean), without the core,
    without as many others (mean)."""
    single = _single(lost)
    losses = ["in_domain", "out_of_domain", "entailed"]
    rows = [{"ablated": row["ablated"], **row[losses], "networks": 1}
            for _, row in single[single["in_core"]].iterrows()]  # fmt: skip
    joint = lost[lost["layer"].isna()]
    groups = [("one head of the core, mean", single[single["in_core"]]), (OTHERS, single[~single["in_core"]])]
    groups += [("all heads of the core", joint[joint["ablated"] == "core"]),
               ("as many others at once, mean", joint[joint["ablated"] == "others"])]  # fmt: skip
    for name, group in groups:
        if len(group):
            means = group[losses].mean()
            rows.append({"ablated": name, **means, "networks": len(group)})
    return pd.DataFrame(rows)


def categories(attention: pd.DataFrame) -> pd.DataFrame:
    """How many heads of each category are in the core, and how many are not."""
    table = pd.crosstab(attention["category"], attention["in_core"]).reindex(columns=[True, False], fill_value=0)
    return table.rename(columns={True: "in the core", False: "others"}).rename_axis(columns=None).reset_index()


def side_by_side(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Mean and deviation of several kinds of networks in one row for each sparsity and set. Each: of `spread`."""
    together = pd.concat(tables)
    index = ["target_sparsity", "name"]
    wide = together.pivot_table(index=index, columns="networks", values=["mean", "std"], sort=False)
    wide.columns = [f"{kind}: {what}" for what, kind in wide.columns]
    full = together.groupby(index)["full"].first()
    return wide.join(full).reset_index()


def two_cores(lost: pd.DataFrame, frequencies: pd.DataFrame) -> pd.DataFrame:
    """Whether the heads that pruning finds are those whose ablation costs most out of domain.

    shared: of as many heads with the largest costs as the core has, how many are in the core; p: of at least as many by
    chance (hypergeometric); rho: Spearman's, of cost and frequency over all heads.
    """
    single = _single(lost).merge(frequencies, on=["layer", "head"], suffixes=("", "_again"))
    size, heads = int(single["in_core"].sum()), len(single)
    top = single.nlargest(size, "out_of_domain", keep="first")
    shared = int(top["in_core"].sum())
    found = stats.spearmanr(single["out_of_domain"], single["lower"] + single["higher"])
    p = float(stats.hypergeom.sf(shared - 1, heads, size, size))
    return pd.DataFrame([{"core": size, "shared": shared, "expected": size * size / heads, "p": p,
                          "rho": float(found.statistic), "rho_p": float(found.pvalue)}])  # fmt: skip


def findings(
    domains: pd.DataFrame,
    kept: dict[float, list],
    sizes: pd.DataFrame,
    lost: pd.DataFrame,
    *,
    paper: Mapping[str, float],
) -> pd.DataFrame:
    """The paper's findings, one row each or several: statistic, the paper's value, ours, its interval or p, and whether
    the finding holds here.

    domains: accuracies of the pruned networks by domain, columns target_sparsity, seed, domain, accuracy; kept: of
    `unit_pruning.kept_heads`; sizes: of `heuristic_core.faithful_sizes`; lost: of `drops`; paper: of
    `paper_cores.findings`.
    """
    rows = pd.DataFrame([*_differently(domains), _shared(kept), _alike(kept), *_grows(sizes), *_harms(lost)])
    rows.insert(2, "paper_value", rows.pop("key").map(paper))
    return rows


def _differently(domains: pd.DataFrame) -> list[dict[str, Any]]:
    """1. Spread out of domain against spread in domain: ratio of deviations, Brown and Forsythe's test."""
    rows = []
    for rank, (sparsity, group) in enumerate(domains.groupby("target_sparsity")):
        inside, outside = (group[group["domain"] == name]["accuracy"].to_numpy() for name in
                           ("in domain", "out of domain"))  # fmt: skip
        few = len(inside) < 3
        ratio = outside.std(ddof=1) / inside.std(ddof=1) if not few and inside.std() > 0 else math.nan
        p = float(stats.levene(inside, outside, center="median").pvalue) if not few else math.nan
        about = f"{sparsity:.0%} sparsity: spread over seeds, out of domain / in domain"
        rows.append(_row("1 generalize differently", about, ratio, key=f"spread {rank}", p=p, holds=ratio > 1,
                         n=len(inside), one_sided=False))  # fmt: skip
    return rows


def _shared(kept: dict[float, list]) -> dict[str, Any]:
    """2. Heads in all networks, against networks with random heads."""
    found = core_size(kept)
    chance = f"by chance {found['expected']:.2g}; the paper: of {HEADS}"
    about = f"heads in all {found['networks']} networks, of {found['heads']} ({chance})"
    more = found["core"] > found["expected"]
    row = _row("2 share a core", about, found["core"], key="core", p=found["p"], holds=more, n=found["networks"])
    return row | {"low": found["low"], "high": found["high"]}  # of the size; whether it is chance, p says


def _alike(kept: dict[float, list]) -> dict[str, Any]:
    found = correlation(kept)
    about, interval = "Spearman's rho of heads' frequencies at the two sparsities", (found["low"], found["high"])
    return _row("2 share a core", about, found["rho"], key="rho", interval=interval, holds=found["rho"] > 0,
                n=found["n_lower"] + found["n_higher"])  # fmt: skip


def _grows(sizes: pd.DataFrame) -> list[dict[str, Any]]:
    """3. Effective size of the last checkpoint minus that of the one that generalizes least; seeds are paired."""
    rows = []
    outside = sizes[sizes["domain"] == "out of domain"]
    if outside.empty:
        return rows
    first = int(outside.loc[outside["accuracy"].idxmin(), "step"])
    for domain, grows, says in (("out of domain", True, "paper: increases"), ("in domain", False, "paper: flat")):
        own = sizes[sizes["domain"] == domain].pivot_table(index="seed", columns="step", values="effective_size")
        last = int(own.columns.max())
        change = (own[last] - own[first]).dropna()
        low, high = _interval(change)
        about = f"{domain}: change of effective size from step {first:,} to step {last:,} ({says})"
        if grows:
            state = HOLDS if low > 0 else FAILS if high < 0 else OPEN
        elif (own[[first, last]] == 1).all(axis=None):  # at the ceiling: no subnetwork of the grid is faithful
            state = OPEN
        else:  # flat: not only that no growth is seen, but that there can be little
            state = FAILS if low > 0 else HOLDS if high < FLAT else OPEN
        rows.append(_row("3 effective size grows", about, change.mean(), key=f"size {domain}", interval=(low, high),
                         state=state, n=len(change)))  # fmt: skip
    return rows


def _harms(lost: pd.DataFrame) -> list[dict[str, Any]]:
    """4. Accuracy lost without a head of the core, less without another; and without all of them at once.

    Out of domain, as the paper looks at it, and balanced: an ablated network may always say "not entailed", which is
    right out of domain.
    """
    single, rows = _single(lost), []
    for column, where in (("out_of_domain", "out of domain"), ("balanced", "out of domain and on entailed pairs")):
        inside, others = (single[single["in_core"] == which][column].to_numpy() for which in (True, False))
        if not len(inside) or not len(others):
            return []
        difference, rng = inside.mean() - others.mean(), _rng("core against others", 0)
        every = np.concatenate([inside, others])
        shuffled = np.array([rng.permutation(every) for _ in range(DRAWS)])
        drawn = shuffled[:, : len(inside)].mean(axis=1) - shuffled[:, len(inside) :].mean(axis=1)
        p = (1 + int((drawn >= difference - 1e-12).sum())) / (1 + DRAWS)
        about = f"accuracy lost {where} without one head: core less others"
        rows.append(_row("4 core heads matter more", about, difference, key=f"lost {where}", p=p, holds=difference > 0,
                         n=len(every)))  # fmt: skip
        core = lost[lost["ablated"] == "core"][column].to_numpy()
        groups = lost[lost["ablated"] == "others"][column].to_numpy()
        if len(core) and len(groups):
            p = (1 + int((groups >= core[0]).sum())) / (1 + len(groups))
            about = f"accuracy lost {where} without all of the core, less without {len(inside)} others"
            gap = core[0] - groups.mean()
            # with few draws no p can be small; what is asked is whether any group of others costs as much
            rows.append(_row("4 core heads matter more", about, gap, key=f"core lost {where}", p=p, holds=gap > 0,
                             n=len(groups), smallest_p=1 / (1 + len(groups))))  # fmt: skip
    return rows


def _row(
    finding: str,
    about: str,
    value: float,
    *,
    key: str,
    n: int,
    interval: tuple[float, float] | None = None,
    p: float = math.nan,
    holds: bool = False,
    state: str | None = None,
    smallest_p: float = 0.0,
    one_sided: bool = True,
) -> dict[str, Any]:
    """key: of the paper's value. holds: whether the direction is the paper's; it counts where p is small, or large in a
    one-sided test, or the interval leaves out 0."""
    low, high = interval or (math.nan, math.nan)
    if state is None:
        against = one_sided and p > 1 - LEVEL
        clear = low > 0 or high < 0 if interval else against or p < max(LEVEL, smallest_p + 1e-12)
        state = (HOLDS if holds else FAILS) if clear else OPEN
    return {"finding": finding, "statistic": about, "key": key, "our_value": float(value), "low": low, "high": high,
            "p": p, "n": n, "verdict": state}  # fmt: skip


def _interval(values: pd.Series) -> Interval | tuple[float, float]:
    """95% t interval over seeds; one without width where all are equal, none for a single one."""
    if len(values) < 2:
        return math.nan, math.nan
    _, low, high = t_interval(values.to_numpy(), np.arange(len(values)))
    return low, high


def _entailed(name: str) -> bool:
    """Whether a set is a subcase of HANS that is entailed, or the equivalent questions of PAWS."""
    return name != IN_DOMAIN and is_entailed(name) == ENTAILED


def _single(lost: pd.DataFrame) -> pd.DataFrame:
    return lost.dropna(subset=["layer"])


def _rho(lower: np.ndarray, higher: np.ndarray) -> float:
    one, other = lower.sum(axis=0), higher.sum(axis=0)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0  # nothing to correlate
    return float(stats.spearmanr(one, other).statistic)


def _fisher(rho: float) -> float:
    return math.atanh(min(max(float(rho), -0.9999), 0.9999))


def _rng(*about: str | int) -> np.random.Generator:
    return np.random.default_rng(generator_for(*about).initial_seed())
