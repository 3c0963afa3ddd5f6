"""Odd-one-out sets: which kinds they hold, where the odd one goes, and the logits against numpy."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subnet_utils.tasks.odd_one_out import (
    LANGUAGE_TASKS,
    SUBROUTINES,
    VISION_TASKS,
    OddOneOut,
    batches,
    composition,
    draw,
    other_subroutine,
    sets_of,
    similarity_logits,
    subroutines_of,
)

RULE, NOT_A, NOT_B, NEITHER = range(4)
# Figures 13 to 15 of the paper: kinds of the three rule-following items and of the odd one, all equally frequent.
VISION = {
    "base": ({RULE}, {NOT_A, NOT_B, NEITHER}),
    "mask-A": ({RULE, NOT_B}, {NOT_A, NEITHER}),
    "mask-B": ({RULE, NOT_A}, {NOT_B, NEITHER}),
    "probe-A": ({RULE}, {NOT_A}),
    "probe-B": ({RULE}, {NOT_B}),
}
# Appendix F: a sentence with both words flipped is grammatical again, so there is none.
LANGUAGE = {
    "base": ({RULE}, {NOT_A, NOT_B}),
    "mask-A": ({RULE, NOT_B}, {NOT_A}),
    "mask-B": ({RULE, NOT_A}, {NOT_B}),
    "probe-A": ({RULE}, {NOT_A}),
    "probe-B": ({RULE}, {NOT_B}),
}
CASES = [(task, True, VISION) for task in VISION_TASKS] + [(task, False, LANGUAGE) for task in LANGUAGE_TASKS]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies(kinds: torch.Tensor) -> dict[int, float]:
    return {kind: count / kinds.numel() for kind, count in Counter(kinds.flatten().tolist()).items()}


def sample(n: int = 40) -> OddOneOut:
    """A set whose example i has the items 4 i to 4 i + 3."""
    return OddOneOut(torch.zeros(4 * n, 2), torch.arange(4 * n).view(n, 4), torch.zeros(4 * n, dtype=torch.int8))


@pytest.mark.parametrize("column", VISION)
@pytest.mark.parametrize(("task", "both", "table"), CASES)
def test_composition_is_the_papers(task, both, table, column):
    a, b = SUBROUTINES[task]
    name = column.replace("-A", f"-{a}").replace("-B", f"-{b}")
    n = 3000
    kinds = composition(task, name, n, both=both, generator=seeded())
    assert kinds.shape == (n, 4) and kinds.dtype == torch.int64
    for found, expected in zip((kinds[:, :3], kinds[:, 3]), table[column], strict=True):
        shares = frequencies(found)
        assert shares.keys() == expected
        assert all(abs(share - 1 / len(expected)) < 0.04 for share in shares.values())  # 4 sd are .036 at most


@pytest.mark.parametrize("both", [True, False])
def test_rule_items_of_a_mask_set_are_drawn_one_by_one(both):
    """The other subroutine is not constant within an example, nor tied to the odd one: it tells nothing."""
    kinds = composition("inside-number", "mask-number", 4000, both=both, generator=seeded())
    violates_a = kinds & 1
    patterns = Counter(map(tuple, violates_a.tolist()))
    assert len(patterns) == (16 if both else 8)
    assert max(patterns.values()) / min(patterns.values()) < 1.6


@pytest.mark.parametrize("task", SUBROUTINES)
def test_names_of_sets_and_subroutines(task):
    a, b = subroutines_of(task)
    assert sets_of(task) == ("base", f"mask-{a}", f"mask-{b}", f"probe-{a}", f"probe-{b}")
    assert (other_subroutine(task, a), other_subroutine(task, b)) == (b, a)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="unknown task 'inside-contcat'; did you mean 'inside-contact'"):
        sets_of("inside-contcat")
    with pytest.raises(ValueError, match="no subroutine 'number'; it has 'inside' and 'contact'"):
        other_subroutine("inside-contact", "number")
    with pytest.raises(ValueError, match="no set 'probe-insid'; did you mean 'probe-inside'"):
        composition("inside-contact", "probe-insid", 3, both=True, generator=seeded())


def test_draw_moves_the_odd_one_uniformly():
    examples = torch.arange(4000 * 4).view(-1, 4)
    rows, odd = draw(examples, generator=seeded())
    assert torch.equal(rows.sort(dim=1).values, examples)
    assert torch.equal(rows[torch.arange(len(rows)), odd], examples[:, 3])
    orders = Counter(map(tuple, (rows % 4).tolist()))
    assert len(orders) == 24  # every order of the four items, about 167 times
    assert all(110 < count < 225 for count in orders.values())
    assert max(abs(share - 0.25) for share in frequencies(odd).values()) < 0.03


@given(n=st.integers(1, 30), batch_size=st.integers(1, 40), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_batches_cover_every_example_once(n, batch_size, seed):
    data = sample(n)
    found = list(batches(data, batch_size, generator=seeded(seed)))
    assert [len(odd) for _, odd in found] == [len(part) for part in torch.arange(n).split(batch_size)]
    rows, odd = (torch.cat(parts) for parts in zip(*found, strict=True))
    by_example = rows[rows[:, 0].argsort()]
    assert torch.equal((rows // 4)[:, 0].sort().values, torch.arange(n))
    assert ((by_example // 4) == (by_example // 4)[:, :1]).all()  # no example is taken apart
    assert (rows[torch.arange(n), odd] % 4 == 3).all()


@given(seed=st.integers(0, 10_000), dimension=st.integers(1, 6), scale=st.sampled_from([1e-4, 1.0, 1e4]))
@settings(max_examples=60, deadline=None)
def test_similarity_logits_against_numpy(seed, dimension, scale):
    embeddings = scale * np.random.default_rng(seed).normal(size=(5, 4, dimension))
    directions = embeddings / np.linalg.norm(embeddings, axis=2, keepdims=True)
    expected = np.empty((5, 4))
    for example in range(5):
        for i in range(4):
            expected[example, i] = -sum(directions[example, i] @ directions[example, j] for j in range(4))
    np.testing.assert_allclose(similarity_logits(torch.from_numpy(embeddings)), expected, atol=1e-9)


def cross_entropy(embeddings: torch.Tensor, odd: int) -> float:
    logits = similarity_logits(embeddings[None])[0].double().numpy()
    return float(np.log(np.exp(logits).sum()) - logits[odd])


@pytest.mark.parametrize("odd", range(4))
def test_least_loss_is_that_of_three_equal_and_one_opposite(odd):
    direction = torch.tensor([3.0, -1.0, 2.0])
    embeddings = direction.repeat(4, 1)
    embeddings[odd] *= -0.5
    assert cross_entropy(embeddings, odd) == pytest.approx(math.log(1 + 3 * math.exp(-4)), abs=1e-6)
    assert cross_entropy(embeddings, odd) == pytest.approx(0.0535, abs=5e-5)


@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=4, max_size=4))
@settings(max_examples=150, deadline=None)
def test_no_geometry_has_a_smaller_loss(points):
    assert cross_entropy(torch.tensor(points, dtype=torch.float64), 3) >= math.log(1 + 3 * math.exp(-4)) - 1e-9
