"""The core of *The Heuristic Core*: heads that all pruned networks share, and how alike two sparsities' heads are.

kept: sparsity -> heads [layers, heads] of each pruned network, 1 where a head is left (`unit_pruning.kept_heads`).
Pruning seeds are the sample; all networks are pruned from one. Heads are taken as exchangeable, all of them or, for
`core_size`, those of a layer.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy import optimize, special, stats

from subnet_utils.seeds import generator_for

DRAWS = 9999
STARTS = ((-2.0, 0.0, 0.0), (0.0, -1.0, -1.0), (0.0, 1.5, 1.5))
"""Of the fit of `_shares`: logit of the share of heads that are always there, logs of a and b."""


def correlation(kept: dict[float, list]) -> dict[str, float]:
    """Spearman's rho of the heads' frequencies at the two sparsities, with a jackknife interval over pruning seeds.

    kept: at both sparsities the networks of the same seeds, in one order; a seed is left out at both at once. Where
    unequal numbers are left, pairs are not known, and each network is left out by itself.
    The interval is Student's on Fisher's scale; a bootstrap would lie below rho, since networks that are drawn twice
    make frequencies coarser. It is missing with fewer than two networks at a sparsity, and rho, too, where all heads
    are as frequent. p takes heads as independent and leaves out that the networks are a sample, as the paper's does.
    """
    lower, higher = (np.stack([np.asarray(one).ravel() for one in masks]) for masks in kept.values())
    rho = _rho(lower, higher)
    about = {"n_lower": len(lower), "n_higher": len(higher), "heads": lower.shape[1]}
    if math.isnan(rho) or min(len(lower), len(higher)) < 2:
        return {"rho": rho, "low": math.nan, "high": math.nan, "p": math.nan} | about
    p = float(stats.spearmanr(lower.sum(axis=0), higher.sum(axis=0)).pvalue)
    if len(lower) == len(higher):
        spread = _jackknifed(_rho(_but(i, lower), _but(i, higher)) for i in range(len(lower)))
    else:
        spread = _jackknifed(_rho(_but(i, lower), higher) for i in range(len(lower)))
        spread += _jackknifed(_rho(lower, _but(i, higher)) for i in range(len(higher)))
    reach = stats.t.ppf(0.975, min(len(lower), len(higher)) - 1) * math.sqrt(spread)
    low, high = (math.tanh(_fisher(rho) + sign * reach) for sign in (-1, 1))
    return {"rho": rho, "low": low, "high": high, "p": p} | about


def _but(i: int, masks: np.ndarray) -> np.ndarray:
    return np.delete(masks, i, axis=0)


def _jackknifed(rhos: Iterable[float]) -> float:
    """Variance of rho on Fisher's scale, from its values without one network each."""
    values = np.array([_fisher(rho) for rho in rhos])
    return (len(values) - 1) / len(values) * float(np.sum((values - values.mean()) ** 2))


def core_size(
    kept: dict[float, list], *, within_layers: bool = False, seed: int = 0, draws: int = DRAWS
) -> dict[str, float]:
    """How many heads all networks share, and how many networks with as many random heads would share.

    within_layers: as many random heads of every layer, so that a layer of which much is kept makes no core by itself.
    expected: exact mean; p, p_less: share of draws in which at least, and at most, as many are shared. low, high: 95%
    of the sizes that the core of as many other pruning seeds would have (`_shares`): a head that is in all by luck
    leaves it, another joins. with_one_left_out: heads that are in all networks but one.
    """
    masks = np.stack([np.asarray(one) > 0 for group in kept.values() for one in group])
    pools = masks if within_layers else masks.reshape(len(masks), 1, -1)
    numbers, heads = pools.sum(axis=2), pools.shape[2]
    size = int(masks.all(axis=0).sum())
    rng = _rng("core", seed)
    shared = np.ones((draws, *pools.shape[1:]), dtype=bool)
    for number in numbers:
        shared &= rng.random(shared.shape).argsort(axis=2) < number[:, None]
    chance = shared.sum(axis=(1, 2))
    low, high = np.quantile(_cores_again(kept, rng, draws), (0.025, 0.975))
    return {"core": size, "expected": float(heads * np.prod(numbers / heads, axis=0).sum()),
            "p": (1 + int((chance >= size).sum())) / (1 + draws),
            "p_less": (1 + int((chance <= size).sum())) / (1 + draws), "low": float(low), "high": float(high),
            "heads": masks[0].size, "networks": len(masks),
            "with_one_left_out": int(((~masks).sum(axis=0) <= 1).sum())}  # fmt: skip


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


def _cores_again(kept: dict[float, list], rng: np.random.Generator, draws: int) -> np.ndarray:
    """Sizes [draws] of the core in other samples of as many networks."""
    together = np.ones((draws, np.asarray(next(iter(kept.values()))[0]).size))
    for group in kept.values():
        found = np.stack([np.asarray(one).ravel() > 0 for one in group])
        together *= _shares(found.sum(axis=0), len(found), rng, draws) ** len(found)
    return (rng.random(together.shape) < together).sum(axis=1)


def _shares(there: np.ndarray, number: int, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Plausible shares [draws, heads] of all networks that have each head, which is in `there` of `number`.

    Empirical Bayes: some heads are always there, the shares of the others follow a beta distribution; both are fitted
    to all heads (maximum likelihood). A head that is in all networks is one of the first or one of the second kind.
    """
    found = min((optimize.minimize(_misfit, start, args=(there, number), method="Nelder-Mead") for start in STARTS),
                key=lambda fit: fit.fun)  # fmt: skip
    always, a, b = _parameters(found.x)
    every = there == number
    by_luck = (1 - always) * stats.betabinom.pmf(number, number, a, b)
    shares = rng.beta(there + a, number - there + b, size=(draws, len(there)))
    shares[(rng.random(shares.shape) < always / (always + by_luck)) & every] = 1.0
    return shares


def _misfit(raw: np.ndarray, there: np.ndarray, number: int) -> float:
    always, a, b = _parameters(raw)
    likelihood = (1 - always) * stats.betabinom.pmf(there, number, a, b) + always * (there == number)
    return -float(np.log(likelihood + 1e-300).sum())


def _parameters(raw: np.ndarray) -> tuple[float, float, float]:
    always, (a, b) = special.expit(raw[0]), np.exp(np.clip(raw[1:], -4, 4))
    return float(always), float(a), float(b)


def _rho(lower: np.ndarray, higher: np.ndarray) -> float:
    one, other = lower.sum(axis=0), higher.sum(axis=0)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan  # nothing to correlate
    return float(stats.spearmanr(one, other).statistic)


def _fisher(rho: float) -> float:
    return math.atanh(min(max(float(rho), -0.9999), 0.9999))


def _rng(*about: str | int) -> np.random.Generator:
    return np.random.default_rng(generator_for(*about).initial_seed())
