"""The core of *The Heuristic Core*: heads that all pruned networks share, and how alike two sparsities' heads are.

kept: sparsity -> pruning seed -> heads [layers, heads], 1 where a head is left (`tables.kept_heads`).
The sample are seeds, not networks: a seed has the same first gates and batches at both sparsities, so its two networks
may keep much the same heads, whichever these are. Chance therefore shuffles the heads once a seed, in both of its
networks alike. All networks are pruned from one.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import optimize, special, stats
from torch import Tensor

from subnet_utils.core.seeds import generator_for

DRAWS = 9999

Kept = Mapping[float, Mapping[int, Tensor]]


def correlation(kept: Kept, *, draws: int = DRAWS) -> dict[str, float]:
    """Spearman's rho of the heads' frequencies at two sparsities, beside what it is by chance.

    expected: its mean by chance, above 0 where a seed's two networks are alike; p, p_less: share of draws with at
    least, and at most, as much. (The paper tests against 0, as if the networks were independent.) low, high: 95%
    interval by a jackknife over seeds, Student's on Fisher's scale; a bootstrap would lie below rho, since networks
    that are drawn twice make frequencies coarser. It is missing with one seed; all is missing where all heads are as
    frequent. A seed without a network at one sparsity counts at the other one.
    """
    networks = np.nan_to_num(_networks(kept)).reshape(len(_networks(kept)), 2, -1)
    found = {"rho": _rhos(networks.sum(axis=0)).item(), "seeds": len(networks)}
    if math.isnan(found["rho"]):
        return found | dict.fromkeys(("expected", "p", "p_less", "low", "high"), math.nan)
    rng, shuffled = rng_of("correlation", 0), 0
    for own in networks:
        order = rng.random((draws, own.shape[-1])).argsort(axis=1)
        shuffled = shuffled + own[:, order]
    chance, (low, high) = _rhos(shuffled), _jackknifed(networks, found["rho"])
    chance = chance[~np.isnan(chance)]  # where all heads are as frequent there is no rho
    return found | {"expected": float(chance.mean()), **tails(chance, found["rho"]), "low": low, "high": high}


def _jackknifed(networks: np.ndarray, rho: float) -> tuple[float, float]:
    """95% interval of rho from what it is without one seed each."""
    seeds = len(networks)
    if seeds < 2:
        return math.nan, math.nan
    rhos = _rhos(np.stack([np.delete(networks, i, axis=0).sum(axis=0) for i in range(seeds)], axis=1))
    center, *without = np.arctanh(np.clip([rho, *rhos], -0.9999, 0.9999))
    variance = (seeds - 1) / seeds * float(np.sum((without - np.mean(without)) ** 2))
    reach = stats.t.ppf(0.975, seeds - 1) * math.sqrt(variance)
    return float(np.tanh(center - reach)), float(np.tanh(center + reach))


def core_size(kept: Kept, *, within_layers: bool = False, draws: int = DRAWS) -> dict[str, float]:
    """How many heads all networks share, and how many they would share if every seed kept as many others.

    within_layers: others of the same layer, so that a layer of which much is kept makes no core by itself. expected:
    exact mean; p, p_less: share of draws in which at least, and at most, as many are shared. low, high: 95% of the
    sizes that the core of as many other pruning seeds would have (`_shares`): a head that is in all by luck leaves it,
    another joins. with_one_left_out: heads that are in all networks but one.
    """
    networks = _networks(kept)
    every = networks[~np.isnan(networks).any(axis=(2, 3))]
    of_seeds = _in_all_of_a_seed(kept)
    pools = of_seeds if within_layers else of_seeds.reshape(len(of_seeds), 1, -1)
    numbers, heads = pools.sum(axis=2), pools.shape[2]
    size, there = int(of_seeds.all(axis=0).sum()), of_seeds.sum(axis=0).ravel()
    rng, shared = rng_of("core", 0), np.ones((draws, *pools.shape[1:]), dtype=bool)
    for number in numbers:
        shared &= rng.random(shared.shape).argsort(axis=2) < number[:, None]
    shares = _shares(there, len(of_seeds), rng, draws)
    again = (rng.random(shares.shape) < shares ** len(of_seeds)).sum(axis=1)
    low, high = np.quantile(again, (0.025, 0.975))
    return {"core": size, "expected": float(heads * np.prod(numbers / heads, axis=0).sum()),
            **tails(shared.sum(axis=(1, 2)), size), "low": float(low), "high": float(high), "heads": there.size,
            "networks": len(every), "seeds": len(of_seeds),
            "with_one_left_out": int(((every == 0).sum(axis=0) <= 1).sum())}  # fmt: skip


def core_by_number(kept: Kept) -> pd.DataFrame:
    """Size of the core of the networks of the first k seeds in 200 random orders: mean, min and max; expected: if every
    seed kept as many heads, but random ones."""
    of_seeds = _in_all_of_a_seed(kept)
    of_seeds = of_seeds.reshape(len(of_seeds), -1)
    rng, heads = rng_of("orders", 0), of_seeds.shape[1]
    orders = [of_seeds[rng.permutation(len(of_seeds))] for _ in range(200)]
    sizes = np.array([np.logical_and.accumulate(order).sum(axis=1) for order in orders])
    chance = [heads * np.cumprod(order.mean(axis=1)) for order in orders]
    return pd.DataFrame({"seeds": range(1, len(of_seeds) + 1), "mean": sizes.mean(axis=0), "min": sizes.min(axis=0),
                         "max": sizes.max(axis=0), "expected": np.mean(chance, axis=0)})  # fmt: skip


def _networks(kept: Kept) -> np.ndarray:
    """Heads [seeds, sparsities, layers, heads], 0 or 1; NaN where a seed has no network."""
    seeds = dict.fromkeys(seed for group in kept.values() for seed in group)
    none = np.full(next(one.shape for group in kept.values() for one in group.values()), math.nan)
    return np.stack([[np.asarray(group.get(seed, none)) for group in kept.values()] for seed in seeds]).astype(float)


def _in_all_of_a_seed(kept: Kept) -> np.ndarray:
    """Heads [seeds, layers, heads] that all networks of a seed have."""
    return np.nanmin(_networks(kept), axis=1) > 0


def _shares(there: np.ndarray, number: int, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Plausible shares [draws, heads] of networks that have each head, which is in `there` of `number`: empirical Bayes
    with some heads that are always there, and a beta distribution of the others' shares."""

    def parameters(raw: np.ndarray) -> tuple[float, float, float]:
        return special.expit(raw[0]), *np.exp(np.clip(raw[1:], -4, 4))

    def misfit(raw: np.ndarray) -> float:
        always, a, b = parameters(raw)
        likelihood = (1 - always) * stats.betabinom.pmf(there, number, a, b) + always * (there == number)
        return -float(np.log(likelihood + 1e-300).sum())

    starts = ((-2.0, 0.0, 0.0), (0.0, -1.0, -1.0), (0.0, 1.5, 1.5))  # logit of the share always there, logs of a and b
    fits = [optimize.minimize(misfit, start, method="Nelder-Mead") for start in starts]
    always, a, b = parameters(min(fits, key=lambda fit: fit.fun).x)
    by_luck = (1 - always) * stats.betabinom.pmf(number, number, a, b)
    shares = rng.beta(there + a, number - there + b, size=(draws, len(there)))
    shares[(rng.random(shares.shape) < always / (always + by_luck)) & (there == number)] = 1.0
    return shares


def _rhos(frequencies: np.ndarray) -> np.ndarray:
    """Spearman's rho [...] of frequencies [2, ..., heads]; NaN where those of one sparsity are all alike."""
    ranks = stats.rankdata(frequencies, axis=-1)
    one, other = ranks - ranks.mean(axis=-1, keepdims=True)
    size = np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        return (one * other).sum(axis=-1) / size


def tails(drawn: np.ndarray, found: float) -> dict[str, float]:
    """p of at least as much, and of at most as much, among draws. With few draws neither can be small."""
    more, less = ((1 + int(side.sum())) / (1 + len(drawn)) for side in (drawn >= found - 1e-12, drawn <= found + 1e-12))
    return {"p": more, "p_less": less}


def rng_of(*about: str | int) -> np.random.Generator:
    """Random numbers that depend on nothing but what they are about."""
    return np.random.default_rng(generator_for(*about).initial_seed())
