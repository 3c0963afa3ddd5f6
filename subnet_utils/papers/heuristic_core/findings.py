"""The findings of *The Heuristic Core*, each as a statistic of tables that `tables` makes, or of the published numbers.

Subnetworks that do alike in domain generalize differently; they share a core of heads; a network's effective size grows
as it generalizes; without heads of the core it generalizes worse than without others; sparser subnetworks are the pure
heuristic. The paper states them without tests. Ours take pruning seeds, or heads, as the units of observation; all
concern the one network that was pruned.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.spatial.distance import cdist

from subnet_utils.papers.heuristic_core import published
from subnet_utils.papers.heuristic_core.pair_sets import IN_DOMAIN, MISMATCHED, OUT_OF_DOMAIN, domains_of, is_friendly
from subnet_utils.papers.heuristic_core.published import HEADS, domain_means, onset
from subnet_utils.papers.heuristic_core.published_cores import BEYOND, OTHERS, STRONGEST
from subnet_utils.papers.heuristic_core.shared_core import DRAWS, Kept, core_size, correlation, rng_of, tails
from subnet_utils.report.comparison import FAILS, FINDING, HOLDS, OPEN, POSITIVE, direction, verdict
from subnet_utils.statistics import t_interval

LEVEL = 0.05
FLAT = 0.1
"""An effective size that grows by less than a tenth of all units counts as flat."""
HEURISTIC = 0.1
"""A network that is right on less than a tenth of the pairs that defy the heuristic has nothing else (section 3)."""
NAMES = {1: "generalize differently", 2: "share a core", 3: "effective size grows", 4: "core heads matter more",
         5: "sparser networks are pure heuristic"}  # fmt: skip
LOSSES = ["in_domain", "out_of_domain", "entailed"]
BALANCED = "balanced"
"""With as much weight on entailed pairs. All pairs out of domain are not entailed, and a network that always
says so is right on every one of them; what it lost shows only on entailed ones."""


def spread(pruned: pd.DataFrame, pairs: dict[str, int]) -> pd.DataFrame:
    """Accuracies over seeds by sparsity and set: full, min, max, mean, std, and what chance in the pairs explains.

    pairs: number of pairs in each set. `sampling`: the deviation that networks of equal quality would show on as many
    pairs each; p: of a chi-squared test that there is no more. All are judged on the same pairs, so it errs towards 1.
    """
    rows = []
    for (sparsity, name, of), group in pruned.groupby(["target_sparsity", "name", "set"], sort=False):
        accuracy, mean = group["accuracy"], group["accuracy"].mean()
        sampling = math.sqrt(mean * (1 - mean) / pairs[of])
        tested = sampling > 0 and len(group) > 1
        p = stats.chi2.sf(((accuracy - mean) ** 2).sum() / sampling**2, len(group) - 1) if tested else math.nan
        rows.append({"target_sparsity": sparsity, "name": name, "full": group["full"].iloc[0], "min": accuracy.min(),
                     "max": accuracy.max(), "mean": mean, "std": accuracy.std(), "sampling": sampling, "p": p,
                     "n_runs": len(group)})  # fmt: skip
    return pd.DataFrame(rows)


def differing(pruned: pd.DataFrame) -> pd.DataFrame:
    """Three networks of the lower sparsity that generalize most differently (Figure 3): the two farthest apart by their
    accuracies out of domain, then the one farthest from both. The paper does not say how it chose its three."""
    lower = pruned[pruned["target_sparsity"] == pruned["target_sparsity"].min()]
    lower = lower[[name not in (IN_DOMAIN, MISMATCHED, "entailed") and not is_friendly(name) for name in lower["set"]]]
    positions = lower.pivot_table(index="seed", columns="name", values="accuracy")
    far = pd.DataFrame(cdist(positions, positions), index=positions.index, columns=positions.index)
    chosen = list(dict.fromkeys(far.stack().idxmax()))
    while len(chosen) < min(3, len(far)):
        chosen.append(far.drop(index=chosen)[chosen].min(axis=1).idxmax())
    return lower[lower["seed"].isin(chosen)].sort_values("seed", kind="stable")


def with_paper(ours: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Our `spread` with the columns of `published_cores.spread`, the lower sparsity beside the lower one."""
    rank = ours["target_sparsity"].rank(method="dense").astype(int) - 1
    return ours.assign(rank=rank).merge(paper, on=["rank", "name"], how="left").drop(columns="rank")


def drops(ablations: pd.DataFrame, out_of_domain: tuple[str, ...]) -> pd.DataFrame:
    """What each ablation costs: columns ablated, draw, in_core, layer, head, and the accuracy lost in_domain,
    out_of_domain (mean over its sets), entailed (mean over HANS's entailed subcases), balanced (mean of these two).
    """
    lost = ablations.assign(lost=ablations["full"] - ablations["accuracy"])
    keys, domains = ["ablated", "draw", "in_core", "layer", "head"], domains_of(lost["set"], out_of_domain)
    table = domain_means(lost, keys, domains, "lost").rename(columns=lambda name: name.replace(" ", "_")).reset_index()
    return table.assign(balanced=(table["out_of_domain"] + table["entailed"]) / 2)


def ablation_table(lost: pd.DataFrame, strongest: pd.DataFrame) -> pd.DataFrame:
    """Table 3: accuracy lost without each head of the core (and mean), without another head (mean), without the core,
    without as many others (mean), without the strongest heads at once, and this less what each of them costs by itself:
    above 0 they are super-additive. strongest: `drops` of `tables.strongest`."""
    every, core, others = _single(lost)
    each = every[every["ablated"].isin(strongest["ablated"].iloc[0].split("+"))][LOSSES].sum()
    groups = [*((row["ablated"], core.loc[[at]]) for at, row in core.iterrows()), ("one head of the core, mean", core),
              (OTHERS, others), ("all heads of the core", lost[lost["ablated"] == "core"]),
              ("as many others at once, mean", lost[lost["ablated"] == "others"]),
              (STRONGEST, strongest), (BEYOND, strongest[LOSSES] - each)]  # fmt: skip
    return pd.DataFrame(
        {"ablated": name, **group[LOSSES].mean(), "networks": len(group)} for name, group in groups if len(group)
    )


def categories(attention: pd.DataFrame) -> pd.DataFrame:
    """How many heads of each category are in the core, and how many are not."""
    table = pd.crosstab(attention["category"], attention["in_core"]).reindex(columns=[True, False], fill_value=0)
    return table.set_axis(["in the core", "others"], axis=1).reset_index()


def side_by_side(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Mean and deviation of several kinds of networks in one row for each sparsity and set. Each: of `spread`."""
    together, index = pd.concat(tables), ["target_sparsity", "name"]
    wide = together.pivot_table(index=index, columns="networks", values=["mean", "std"], sort=False)
    wide.columns = [f"{kind}: {what}" for what, kind in wide.columns]
    return wide.join(together.groupby(index)["full"].first()).reset_index()


def two_cores(lost: pd.DataFrame, frequencies: pd.DataFrame) -> pd.DataFrame:
    """Whether the heads that pruning finds are those whose ablation costs most out of domain.

    shared: of as many heads with the largest costs as the core has, how many are in the core; p: of a number as far
    from chance (hypergeometric, two-sided); rho: Spearman's, of cost and frequency over all heads, NaN where all of
    them are alike.
    """
    single = lost.dropna(subset=["layer"]).merge(frequencies, on=["layer", "head"], suffixes=("", "_again"))
    size, heads = int(single["in_core"].sum()), len(single)
    shared = int(single.nlargest(size, "out_of_domain", keep="first")["in_core"].sum())
    ranked = single["out_of_domain"], single["lower"] + single["higher"]
    ranks = all(values.nunique() > 1 for values in ranked)  # of equal values there are no ranks
    rho, rho_p = stats.spearmanr(*ranked) if ranks else (math.nan, math.nan)
    chance = stats.hypergeom(heads, size, size)
    p = min(2 * float(min(chance.sf(shared - 1), chance.cdf(shared))), 1.0)
    return pd.DataFrame({"core": [size], "shared": shared, "expected": size * size / heads, "p": p, "rho": rho,
                         "rho_p": rho_p})  # fmt: skip


def findings(
    domains: pd.DataFrame, kept: Kept, sizes: pd.DataFrame, lost: pd.DataFrame, early: pd.DataFrame, *,
    paper: Mapping[str, float],
) -> pd.DataFrame:  # fmt: skip
    """The paper's findings, one row each or several: statistic, the paper's value, ours, its interval or p, whether the
    finding holds here, and how far a ratio of the first depends on one seed (`least`, `most`). rank_p: of a test of
    ranks; least_p: the smallest p that so many seeds or draws allow.

    domains: of `tables.by_domain`, the pruned networks; kept: of `tables.kept_heads`; sizes: of `tables.sizes`; lost:
    of `drops`; early: of `tables.checkpoint_heads`; paper: of `published_cores.findings`.
    """
    own = _differently(domains), _shared(kept), _there_early(early), _grows(sizes), _harms(lost), _heuristic(domains)
    rows = pd.DataFrame(chain(*own))
    rows.insert(2, "paper_value", rows.pop("key").map(paper))
    return _ordered(rows)


def of_published() -> pd.DataFrame:
    """The findings that accuracies tell, tested on the authors' own published ones of BERT: as `findings`, with `task`,
    `recomputed` for `our_value`, without the paper's values."""
    tables = []
    for task in ("mnli", "qqp"):
        domains = published.subnetworks_by_domain(task)
        own = _differently(domains), _grows(published.checkpoint_sizes(task)), _heuristic(domains)
        rows = pd.DataFrame(chain(*own)).drop(columns="key").rename(columns={"our_value": "recomputed"})
        tables.append(_ordered(rows.assign(task=task.upper())))
    return pd.concat(tables, ignore_index=True)


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """By finding, with the ratios that leave out one seed as last columns."""
    rows = rows.sort_values("finding", kind="stable", ignore_index=True)
    return rows.reindex(columns=[*rows.columns.drop(["least", "most"], errors="ignore"), "least", "most"])


def _heuristic(domains: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """5. Accuracy out of domain of the sparser networks, mean over seeds."""
    sparsity = domains["target_sparsity"].max()
    own = domains[(domains["domain"] == OUT_OF_DOMAIN) & (domains["target_sparsity"] == sparsity)]
    found = t_interval(own["accuracy"], own["seed"])
    about = f"{sparsity:.0%} sparsity: accuracy {OUT_OF_DOMAIN} (paper: below {HEURISTIC:.0%})"
    state = verdict(found.low, found.high, (-math.inf, HEURISTIC), FINDING)
    yield _row(5, about, found.mean, key="heuristic", interval=found[1:], n=len(own), state=state)


def _differently(domains: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """1. Spread over seeds out of domain, alone as in the paper and balanced, over that in domain.

    The paper claims that sparser networks have no such spread (5). A spread refutes that. Its absence cannot be shown.
    """
    by_sparsity = enumerate(domains.groupby("target_sparsity"))
    for where, (rank, (sparsity, group)) in product((OUT_OF_DOMAIN, BALANCED), by_sparsity):
        wide = group.pivot_table(index="seed", columns="domain", values="accuracy")
        if where in wide:
            outside, inside = (wide[name].to_numpy() for name in (where, "in domain"))
            ratio, p = _paired_spread(outside, inside)
            rank_p, further = _paired_ranks(outside, inside)
            about = f"{sparsity:.0%} sparsity: spread over seeds, {where} / in domain"
            states = {_tested(ratio - 1, p), _tested(further, rank_p)}
            state = states.pop() if len(states) == 1 else OPEN
            if rank:
                state = FAILS if state == HOLDS else OPEN
            row = _row(5 if rank else 1, about, ratio, key=f"spread {where} {rank}", p=p, rank_p=rank_p, n=len(inside),
                       least_p=_least(len(inside)), state=state)  # fmt: skip
            yield row | _without_one(outside, inside)


def _without_one(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """The smallest and the largest ratio of two deviations that leaving out one value of both gives."""
    if len(one) < 3:
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.delete(one, i).std() / np.delete(other, i).std() for i in range(len(one))]
    return {"least": float(np.min(ratios)), "most": float(np.max(ratios))}


def _paired_spread(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Ratio of two deviations (infinite if the second is 0); p: swaps within seeds with variances as unequal."""
    if len(one) < 3 or max(np.ptp(one), np.ptp(other)) == 0:
        return math.nan, math.nan
    both = np.stack([one - one.mean(), other - other.mean()])
    drawn = np.where(_swaps(len(one))[:, None], both[::-1], both)
    with np.errstate(divide="ignore"):
        unequal, found = (np.abs(np.diff(np.log(own.var(axis=-1))))[..., 0] for own in (drawn, both))
        ratio = np.divide(one.std(), other.std())
    return float(ratio), float(np.mean(unequal >= found - 1e-9))


def _swaps(n: int) -> np.ndarray:
    """Which of n seeds are swapped: all ways [ways, n], or DRAWS random ones and none."""
    if 2**n <= DRAWS:
        return np.array(list(product((False, True), repeat=n)))
    return np.vstack([np.zeros((1, n), dtype=bool), rng_of("paired spread", 0).random((DRAWS, n)) < 0.5])


def _paired_ranks(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """p of an exact Wilcoxon signed-rank test of the distances from the medians, which one seed far off hardly moves,
    and by how much those of the first are larger (median)."""
    if len(one) < 3:
        return math.nan, math.nan
    further = abs(one - np.median(one)) - abs(other - np.median(other))
    p = stats.wilcoxon(further, method="exact").pvalue if further.any() else math.nan
    return float(p), float(np.median(further))


def _least(n: int) -> float:
    """The smallest two-sided p of n seeds' signs; of more than DRAWS ways to draw these, one in DRAWS."""
    return max(2.0 ** (1 - n), 1 / (1 + DRAWS))


def _shared(kept: Kept) -> Iterator[dict[str, Any]]:
    """2. Heads in all networks, against random ones, also within layers; how alike two sparsities' frequencies are."""
    for within in (False, True):
        found = core_size(kept, within_layers=within)
        chance = f"by chance {found['expected']:.2g}" + (" with as many in every layer" if within else "")
        about = f"heads in all {found['networks']} networks, of {found['heads']} ({chance}; the paper: of {HEADS})"
        yield _against_chance(about, found, key="core")
    found = correlation(kept)
    about = f"Spearman's rho of heads' frequencies at the two sparsities (by chance {found['expected']:.2f})"
    yield _against_chance(about, found, key="rho")


def _against_chance(about: str, found: Mapping[str, float], *, key: str) -> dict[str, Any]:
    """A row for what `shared_core` finds."""
    return _row(2, about, found[key], key=key, interval=(found["low"], found["high"]), n=found["seeds"],
                **_two_sided(found["p"], found["p_less"], 1 / (1 + DRAWS)))  # fmt: skip


def _there_early(early: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """2. Whether the first checkpoint's prunings keep the core's heads rather than others already, as in the paper."""
    first = early[early["step"] == early["step"].min()].dropna(subset=["core", "others"])
    if len(first):  # else no head is in all networks, or every head
        difference = first["core"] - first["others"]
        about = f"share of the core's heads kept at step {first['step'].iloc[0]:,}, less that of other heads"
        interval = _interval(difference)
        state = verdict(*interval, POSITIVE, FINDING)
        yield _row(2, about, difference.mean(), key="early", interval=interval, state=state, n=len(first))


def _grows(sizes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """3. Effective size of the last checkpoint minus that of the first one (in domain), the one that generalizes least,
    or, since that one has nothing to lose, the first one that does generalize (`onset`)."""
    accuracies = sizes[sizes["domain"] == OUT_OF_DOMAIN].groupby("step")["accuracy"].first()
    if accuracies.empty:
        return
    least, earliest, last = accuracies.idxmin(), accuracies.index[0], accuracies.index[-1]
    if least == last:
        about = f"{OUT_OF_DOMAIN}: change of effective size (no checkpoint is worse there than the last one)"
        yield _row(3, about, math.nan, key="size out of domain", state=OPEN, n=0)
    changes = [(OUT_OF_DOMAIN, least, "size out of domain"), (OUT_OF_DOMAIN, onset(accuracies), "size from onset"),
               (BALANCED, least, "size balanced"), ("in domain", earliest, "size in domain")]  # fmt: skip
    for domain, start, key in changes:
        own = sizes[sizes["domain"] == domain].pivot_table(index="seed", columns="step", values="effective_size")
        if not own.empty and start not in (None, last):
            yield _change(own[[start, last]], domain, key)


def _change(own: pd.DataFrame, domain: str, key: str) -> dict[str, Any]:
    """The row for one change of sizes, by seed and step. In domain the paper says that there is none."""
    start, last = own.columns
    change, flat = (own[last] - own[start]).dropna(), domain == "in domain"
    interval = _interval(change)
    if flat:
        at_ceiling = (own == 1).all(axis=None)  # no subnetwork of the grid is faithful
        found = {"state": OPEN if at_ceiling else verdict(*interval, (-FLAT, FLAT), FINDING)}
    else:
        sides = (_flipped_signs(change.to_numpy(), side) for side in ("greater", "less"))
        found = _two_sided(*sides, _least(np.count_nonzero(change)) / 2)
    says = "paper: flat" if flat else "paper: increases"
    about = f"{domain}: change of effective size from step {start:,} to step {last:,} ({says})"
    return _row(3, about, change.mean(), key=key, interval=interval, n=len(change), **found)


def _flipped_signs(changes: np.ndarray, side: str) -> float:
    """p that a mean change is above 0 ("greater") or below ("less") by chance; of five seeds .03 at least."""
    if len(changes) < 2:  # no permutation test of one value
        return 1.0
    found = stats.permutation_test((changes,), np.mean, permutation_type="samples", n_resamples=DRAWS, alternative=side,
                                   rng=rng_of("signs", 0))  # fmt: skip
    return float(found.pvalue)


def _harms(lost: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """4. Accuracy lost without one head of the core, or all, less without others; p exchanges heads at random."""
    single, core, others = _single(lost)
    for column, where in (("out_of_domain", OUT_OF_DOMAIN), ("balanced", BALANCED)):
        row = partial(_row, 4, key=f"lost {where}", n=len(single))
        about = f"accuracy lost {where} without one head: core less others"
        if core.empty or others.empty:
            why = f"{'no' if core.empty else 'every'} head is in all networks"
            yield row(f"{about} ({why})", math.nan, state=OPEN)
            continue
        difference = core[column].to_numpy().mean() - others[column].to_numpy().mean()
        for within, how in ((False, ""), (True, ", by chance within layers")):
            drawn = _differences(single, column, within_layers=within)
            found = _two_sided(**tails(drawn, difference), least=1 / (1 + len(drawn)))
            yield row(f"{about}{how}", difference, **found)
        whole, groups = (lost.loc[lost["ablated"] == kind, column].to_numpy() for kind in ("core", "others"))
        if len(whole) and len(groups):
            about = f"accuracy lost {where} without all of the core, less without {len(core)} others"
            found = _two_sided(**tails(groups, whole[0]), least=1 / (1 + len(groups)))
            yield row(about, whole[0] - groups.mean(), key=f"core lost {where}", n=len(groups), **found)


def _differences(single: pd.DataFrame, column: str, *, within_layers: bool) -> np.ndarray:
    """Mean loss of as many other heads as the core has (within layers: in every layer) less that of the rest [ways].

    All other ways to choose them, or DRAWS random ones where there are more.
    """
    losses, inside = single[column].to_numpy(), single["in_core"].to_numpy(dtype=bool)
    layers = single["layer"].to_numpy() if within_layers else np.zeros(len(single))
    groups = [np.flatnonzero(layers == layer) for layer in np.unique(layers)]
    sizes = [int(inside[here].sum()) for here in groups]
    if math.prod(math.comb(len(here), size) for here, size in zip(groups, sizes, strict=True)) <= DRAWS + 1:
        ways = product(*(combinations(here, size) for here, size in zip(groups, sizes, strict=True)))
        chosen = np.array([np.isin(np.arange(len(losses)), list(chain(*way))) for way in ways])
        chosen = chosen[(chosen != inside).any(axis=1)]
    else:
        rng, chosen = rng_of("core against others", 0), np.tile(inside, (DRAWS, 1))
        for here in groups:
            chosen[:, here] = rng.permuted(chosen[:, here], axis=1)
    return (chosen @ losses) / inside.sum() - (~chosen @ losses) / (~inside).sum()


def _row(
    finding: int, about: str, value: float, *, key: str, n: int, state: str,
    interval: tuple[float, float] = (math.nan, math.nan), p: float = math.nan, rank_p: float = math.nan,
    least_p: float = math.nan,
) -> dict[str, Any]:  # fmt: skip
    """key: of the paper's value."""
    return {"finding": f"{finding} {NAMES[finding]}", "statistic": about, "key": key, "our_value": float(value),
            "low": interval[0], "high": interval[1], "p": p, "rank_p": rank_p, "least_p": least_p, "n": n,
            "verdict": state}  # fmt: skip


def _tested(effect: float, p: float) -> str:
    """Whether a test finds the effect that the paper claims, one above 0."""
    found = direction(effect, p, LEVEL)
    return verdict(found, found, POSITIVE, FINDING)


def _two_sided(p: float, p_less: float, least: float) -> dict[str, Any]:
    """p of either direction, twice the smaller one, and what it says of the direction that the paper claims. least:
    what the smaller one can be."""
    both = min(2 * min(p, p_less), 1.0)  # NaN where there is neither
    return {"p": both, "least_p": min(2 * least, 1.0), "state": _tested(p_less - p, both)}


def _interval(values: pd.Series) -> tuple[float, float]:
    """95% t interval over seeds; none where all are equal: on a grid of sizes they may still have an error."""
    if len(values) < 2 or np.ptp(values) < 1e-12:
        return math.nan, math.nan
    return t_interval(values.to_numpy(), np.arange(len(values)))[1:]


def _single(lost: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Single heads: all, those of the core, and the others."""
    single = lost.dropna(subset=["layer"])
    return single, *(single[single["in_core"] == which] for which in (True, False))
