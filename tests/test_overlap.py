"""Overlap: equal to a few lines of numpy, within its bounds, and its expectation that of real random masks."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations, product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from subnet_utils.masks.overlap import OVERALL, as_printed, common, corrected, expected_iou, iou
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 2, 3, 3)}
LAYERS = [*SHAPES, OVERALL]


def random_subnetwork(seed: int, p: float = 0.5, names: Sequence[str] = tuple(SHAPES)) -> Subnetwork:
    draw = torch.Generator().manual_seed(seed)
    masks = {name: torch.rand(shape, generator=draw) < p for name, shape in SHAPES.items()}
    return Subnetwork({name: masks[name] for name in names}, "n")


def of_sizes(total: int, *sizes: int) -> list[Subnetwork]:
    """Subnetworks of one layer, with so many weights each."""
    return [Subnetwork({"w": torch.arange(total) < size}, "n") for size in sizes]


def in_numpy(subnetwork: Subnetwork) -> dict[str, np.ndarray]:
    """The masks as flat arrays, and all of them end to end."""
    flat = {name: mask.numpy().ravel() for name, mask in subnetwork.masks.items()}
    return flat | {OVERALL: np.concatenate(list(flat.values()))}


def jaccard(masks: Sequence[np.ndarray]) -> float:
    union = np.any(masks, axis=0).sum()
    return np.all(masks, axis=0).sum() / union if union else math.nan


@st.composite
def subnetworks(draw) -> Subnetwork:
    return random_subnetwork(draw(st.integers(0, 10**6)), draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))


several = st.lists(subnetworks(), min_size=2, max_size=4)


# -- what is found -----------------------------------------------------------------------------------------------------


@given(several)
@settings(max_examples=60)
def test_overlap_against_numpy(found):
    arrays = [in_numpy(subnetwork) for subnetwork in found]
    ours, printed = iou(found), as_printed(found)
    assert list(ours) == list(printed) == LAYERS
    for name in LAYERS:
        masks = [array[name] for array in arrays]
        last = masks[-1].sum()
        assert ours[name] == pytest.approx(jaccard(masks), nan_ok=True)
        assert printed[name] == pytest.approx(np.all(masks, axis=0).sum() / last if last else math.nan, nan_ok=True)


@given(several)
@settings(max_examples=60)
def test_bounds_and_symmetry(found):
    ours = iou(found)
    for order in permutations(found):
        assert iou(order) == pytest.approx(ours, nan_ok=True)
        for name, printed in as_printed(order).items():
            assert math.isnan(ours[name]) or 0 <= ours[name] <= 1
            assert math.isnan(printed) or ours[name] <= printed <= 1


@pytest.mark.parametrize("copies", [2, 3])
def test_overlap_of_extremes(copies):
    some, nothing = random_subnetwork(0), random_subnetwork(0, p=0.0)
    alike, disjoint = dict.fromkeys(LAYERS, 1.0), dict.fromkeys(LAYERS, 0.0)
    assert iou([some] * copies) == as_printed([some] * copies) == alike
    assert iou([some, ~some] * copies) == as_printed([some, ~some] * copies) == disjoint
    assert iou([some] * copies + [nothing]) == disjoint  # a union, but no intersection
    assert all(math.isnan(value) for value in iou([nothing] * copies).values())
    assert all(math.isnan(value) for value in as_printed([some] * copies + [nothing]).values())


def test_the_printed_overlap_is_of_the_last_subnetwork():
    """Nested masks: the order decides what the printed number says, and the union what is meant."""
    small, middle, large = of_sizes(10, 2, 4, 8)
    assert iou([small, middle, large])["w"] == 2 / 8
    assert as_printed([small, middle, large])["w"] == 2 / 8
    assert as_printed([large, middle, small])["w"] == 2 / 2


def test_all_layers_as_one_is_no_mean_of_layers():
    keep = {"a": torch.tensor([True, True]), "b": torch.ones(8, dtype=torch.bool)}
    one = Subnetwork(keep, "n")
    other = Subnetwork(keep | {"a": torch.tensor([True, False])}, "n")
    assert iou([one, other]) == {"a": 1 / 2, "b": 1.0, OVERALL: 9 / 10}


def test_different_starts_are_compared_on_the_weights_that_all_mask():
    early, late = random_subnetwork(0), random_subnetwork(1, names=["b", "c"])
    expected = iou([random_subnetwork(0, names=["b", "c"]), late])
    assert iou([early, late]) == expected and list(expected) == ["b", "c", OVERALL]
    assert as_printed([late, early]).keys() == expected_iou([early, late]).keys() == expected.keys()
    assert common([early, late]).masks.keys() == {"b", "c"}


@pytest.mark.parametrize("operation", [iou, as_printed, common, expected_iou])
def test_subnetworks_that_cannot_be_compared(operation):
    one = random_subnetwork(0, names=["a"])
    with pytest.raises(WrongNetwork, match="subnetworks of different networks, m and n, have no weights in common"):
        operation([one, Subnetwork(one.masks, "m")])
    with pytest.raises(ValueError, match="no weight is masked in all of these subnetworks; compare others"):
        operation([one, random_subnetwork(0), random_subnetwork(1, names=["b", "c"])])


@pytest.mark.parametrize("operation", [iou, as_printed, expected_iou])
def test_one_alone_has_no_overlap(operation):
    for few in ([], [random_subnetwork(0)]):
        with pytest.raises(ValueError, match=f"that of 2 or more, got {len(few)}; find masks with more seeds"):
            operation(few)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        common([])


# -- what chance would give --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "sizes"), [(30, (10, 14)), (12, (1, 11)), (7, (7, 3)), (40, (2, 3))])
def test_expectation_of_two_masks_is_the_hypergeometric_one(total, sizes):
    shared = np.arange(min(sizes) + 1)
    chances, overlap = hypergeom.pmf(shared, total, *sizes), shared / (sum(sizes) - shared)
    mean = (chances * overlap).sum()
    error = math.sqrt((chances * (overlap - mean) ** 2).sum() / 50_000)
    found = expected_iou(of_sizes(total, *sizes), draws=50_000)
    assert found["w"] == found[OVERALL] == pytest.approx(mean, abs=4 * error + 1e-12)


def every_mask(total: int, size: int) -> list[np.ndarray]:
    return [np.isin(np.arange(total), kept) for kept in combinations(range(total), size)]


@pytest.mark.parametrize("sizes", [(2, 3, 2), (4, 4, 1), (3, 2, 4, 1)])
def test_expectation_of_more_masks_is_the_mean_over_all_there_are(sizes):
    values = np.array([jaccard(masks) for masks in product(*(every_mask(5, size) for size in sizes))])
    found = expected_iou(of_sizes(5, *sizes), draws=50_000)["w"]
    assert found == pytest.approx(values.mean(), abs=4 * values.std() / math.sqrt(50_000))


def test_two_subroutines_that_have_nothing_to_do_with_each_other_overlap_by_chance():
    """However well the masks of each agree among themselves (appendix K compares their intersections)."""
    generator, total = torch.Generator().manual_seed(0), 100_000
    cores = [torch.rand(total, generator=generator) < 0.2 for _ in range(2)]
    found = [
        [Subnetwork({"w": core ^ (torch.rand(total, generator=generator) < 0.02)}, "n") for _ in range(3)]
        for core in cores
    ]
    shared = [common(several) for several in found]
    assert iou(shared)["w"] == pytest.approx(expected_iou(shared)["w"], rel=0.05)
    assert corrected(iou(shared)["w"], expected_iou(shared)["w"]) == pytest.approx(0, abs=0.01)
    assert corrected(iou(found[0])["w"], expected_iou(found[0])["w"]) > 0.7


def test_overlap_corrected_for_chance():
    assert corrected(0.6, 0.2) == pytest.approx(0.5)
    found = corrected(pd.Series([0.2, 1.0, 0.1, 1.0, np.nan]), pd.Series([0.2, 0.3, 0.4, 1.0, 0.2]))
    assert found.to_list() == pytest.approx([0, 1, -0.5, np.nan, np.nan], nan_ok=True)


def test_expectation_is_the_mean_of_real_random_masks():
    """Three layers at once, so that all layers as one are checked too."""
    found = [random_subnetwork(seed, p) for seed, p in enumerate((0.6, 0.4, 0.8))]
    generator, rows = np.random.default_rng(0), []
    for _ in range(3000):
        drawn = [{n: generator.permutation(mask) for n, mask in in_numpy(s).items() if n in SHAPES} for s in found]
        layers = {name: [one[name] for one in drawn] for name in SHAPES}
        layers[OVERALL] = [np.concatenate([one[name] for name in SHAPES]) for one in drawn]
        rows.append([jaccard(layers[name]) for name in LAYERS])
    expected = expected_iou(found, draws=20_000)
    errors = np.std(rows, axis=0) * math.sqrt(1 / 3000 + 1 / 20_000)
    assert (np.abs(np.mean(rows, axis=0) - [expected[name] for name in LAYERS]) < 4 * errors).all()


def test_expectation_of_extremes():
    everything, nothing = random_subnetwork(0, p=1.1), random_subnetwork(0, p=0.0)
    assert expected_iou([everything, everything]) == dict.fromkeys(LAYERS, 1.0)
    assert expected_iou([everything, nothing]) == dict.fromkeys(LAYERS, 0.0)
    assert all(math.isnan(value) for value in expected_iou([nothing, nothing]).values())


def test_expectation_is_a_function_of_sizes_and_seed():
    a, b = random_subnetwork(0), random_subnetwork(1)
    turned = [Subnetwork({name: mask.flip(0) for name, mask in s.masks.items()}, "n") for s in (a, b)]
    assert turned != [a, b] and expected_iou(turned) == expected_iou([a, b])
    assert expected_iou([a, b]) == expected_iou([a, b], seed=0, draws=1000) != expected_iou([a, b], seed=1)


def test_the_global_random_state_is_untouched():
    before, numpys = torch.get_rng_state(), np.random.get_state()
    expected_iou([random_subnetwork(seed) for seed in range(3)])
    after = np.random.get_state()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(after[1], numpys[1]) and after[2:] == numpys[2:]
