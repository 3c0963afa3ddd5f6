"""Vision stimuli: labels against a shapely oracle and against the pixels, determinism, shortcuts, speed, bad input.

SUBNET_FULL=1 reads 2,000 images of each of the 12 types instead of a few dozen (some minutes).
"""

import io
import os
import time
from collections import Counter
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from scipy import ndimage
from scipy.spatial.distance import cdist

from subnet_utils.tasks import contours, shapes
from subnet_utils.tasks import scenes as scenes_module
from subnet_utils.tasks.odd_one_out import VISION_TASKS, sets_of
from tests import shapes_oracle

FULL = os.environ.get("SUBNET_FULL") == "1"
ALL_SETS = [(task, name) for task in VISION_TASKS for name in sets_of(task)]
ALL_KINDS = {"inside-contact": "mask-contact", "inside-number": "mask-number", "number-contact": "mask-number"}
"""Of each task, a set that holds all four kinds and in which the three rule images of an example share their number."""


def drawn(task: str, name: str, n: int, **options) -> tuple[shapes.Stimuli, list[list[np.ndarray]]]:
    """A set, and per cell the outlines of its shapes, each a closed polygon, float [k, 2] of (x, y)."""
    cells = []

    def recorded(*arguments, **how):
        scenes = scenes_module.random_scenes(*arguments, **how)
        cells.extend([] for _ in scenes.kinds)
        for i, cell in enumerate(scenes.cell - len(scenes.kinds)):
            cells[cell].append(scenes.outlines[i].astype(float))
        return scenes

    with mock.patch.object(shapes, "random_scenes", recorded):
        return shapes.generate(task, name, n, **options), cells[: 4 * n]


def number_of(task: str, example: list[list[np.ndarray]]) -> int:
    """N of an example, from its three rule images."""
    counts = {len(cell) // (2 if task == "inside-number" else 1) for cell in example[:3]}
    assert len(counts) == 1
    return counts.pop()


@pytest.mark.parametrize(
    ("resolution", "quota", "sizes"),
    [(128, 2000 if FULL else 50, "ours"), (128, 2000 if FULL else 30, "authors"), (64, 30, "ours"), (32, 15, "ours")],
)
@pytest.mark.parametrize("task", VISION_TASKS)
def test_the_oracle_reads_every_label_from_the_polygons(task, resolution, quota, sizes):
    n = 2 * quota + quota // 5 + 10
    made, cells = drawn(task, ALL_KINDS[task], n, seed=7, split="train", resolution=resolution, sizes=sizes)
    read: Counter = Counter()
    for start in range(0, len(cells), 4):
        n = number_of(task, cells[start : start + 4])
        for cell, label in zip(cells[start : start + 4], made.kinds[start : start + 4], strict=True):
            if read[label] < quota:
                read[label] += 1
                assert shapes_oracle.kind(task, shapes_oracle.read(cell), n) == label
    assert read == dict.fromkeys(range(4), quota)


def test_number_contact_shows_copies_of_one_outline():
    _, cells = drawn("number-contact", "base", 10, seed=0, split="test", resolution=64)
    for start in range(0, 40, 4):
        copies = [polygon - polygon.min(axis=0) for cell in cells[start : start + 4] for polygon in cell]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("task", VISION_TASKS)
@pytest.mark.parametrize("resolution", [128, 64, 32])
def test_the_pixels_say_the_same(task, resolution):
    """Contact, gaps, nesting and the frame, measured on the drawn image alone."""
    n = 30 if task == "number-contact" else 10
    made, polygons = drawn(task, ALL_KINDS[task], n, seed=2, split="test", resolution=resolution)
    gap = 3 if resolution >= 64 else 2
    for index, cell in zip(made.index, polygons, strict=True):
        reading = shapes_oracle.read(cell)
        inked = index > 0
        assert not (inked[0].any() or inked[-1].any() or inked[:, 0].any() or inked[:, -1].any())
        assert index.max() == len(cell)
        masks = [index == k + 1 for k in range(len(cell))]
        for i, mask in enumerate(masks):
            filled = ~flood(~mask)
            for j, other in enumerate(masks):
                if i == j:
                    continue
                touching = (ndimage.binary_dilation(mask, np.ones((3, 3))) & other).any()
                assert touching == ((min(i, j), max(i, j)) in reading.touching)
                nearby = ndimage.binary_dilation(mask, np.ones((3, 3)), iterations=gap - 1) & other
                assert touching or not nearby.any()
                assert filled[other].all() == ((i, j) in reading.nested)
                assert filled[other].all() == filled[other].any()


def flood(background: np.ndarray) -> np.ndarray:
    """Background that can be reached from the corner by steps to side neighbors."""
    labels, _ = ndimage.label(background)
    return labels == labels[0, 0]


def test_nested_shapes_that_do_not_touch_keep_a_tenth_of_the_outer_size():
    made, cells = drawn("inside-contact", "mask-inside", 60, seed=4, split="train")
    for large, small in (cell for cell, kind in zip(cells, made.kinds, strict=True) if kind == 2):
        assert cdist(large, small, "chebyshev").min() >= 0.1 * np.ptp(large, axis=0).max()


def test_sizes_of_inside_contact_are_the_authors():
    _, cells = drawn("inside-contact", "base", 150, seed=4, split="train")
    outer = np.array([np.ptp(large, axis=0) + 1 for large, _ in cells]) / 128
    inner = np.array([np.ptp(small, axis=0) + 1 for _, small in cells]) / 128
    assert np.abs(outer[:, 0] - outer[:, 1]).max() == 0  # contours fill a square box
    assert (outer.min(), outer.max()) == pytest.approx((0.25, 0.5), abs=0.01)
    assert outer.mean() == pytest.approx(0.375, abs=0.01)
    assert ((inner / outer).min(), (inner / outer).max()) == pytest.approx((0.25, 0.4), abs=0.03)


def test_sizes_under_the_number_rules_can_be_the_authors():
    made, cells = drawn("inside-number", "base", 150, seed=4, split="train", sizes="authors")
    pairs = [cell for cell, kind in zip(cells, made.kinds, strict=True) if kind == 0]
    outer = np.array([np.ptp(shape, axis=0)[0] + 1 for cell in pairs for shape in cell[::2]]) / 128
    assert (outer.min(), outer.max()) == pytest.approx((0.12, 0.46), abs=0.01)
    assert np.median(outer) == pytest.approx(0.22, abs=0.01)
    _, cells = drawn("number-contact", "mask-number", 150, seed=4, split="train", sizes="authors")
    examples = [cells[i : i + 4] for i in range(0, len(cells), 4)]
    for number, (low, high) in scenes_module.AUTHORS_COPY_SIZES.items():
        own = [one[0][0] for one in examples if number_of("number-contact", one) == number]
        sizes = np.array([np.ptp(shape, axis=0)[0] + 1 for shape in own]) / 128
        assert (sizes.min(), sizes.max()) == pytest.approx((low, high), abs=0.015)


@pytest.mark.parametrize("task", VISION_TASKS)
def test_drawing_matches_pillow(task):
    made, cells = drawn(task, "base", 10, seed=0, split="train", resolution=96)
    for drawing, cell in zip(made.index, cells, strict=True):
        reference = Image.new("L", (96, 96))
        for k, polygon in enumerate(cell):
            corners = [tuple(point) for point in polygon.astype(int).tolist()]
            ImageDraw.Draw(reference).line([*corners, corners[0]], fill=k + 1)
        assert np.array_equal(np.asarray(reference), drawing)


def test_parts_of_a_set_are_the_set():
    draw = partial(shapes.generate, "inside-contact", "base", seed=5, split="train", resolution=32)
    whole, parts = draw(151), [draw(100), draw(51, first=100)]
    for name in ("index", "palette", "kinds"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts]))


def test_seeds_splits_and_chunks_differ():
    def index(seed=0, split="train"):
        return shapes.generate("number-contact", "base", 60, seed=seed, split=split, resolution=32).index

    first = index()
    assert not any(np.array_equal(first, other) for other in (index(seed=1), index(split="validation")))
    assert not np.array_equal(first[:40], first[200:])


def test_items_are_white_with_one_color_per_shape():
    made = shapes.generate("inside-number", "base", 10, seed=0, split="train", resolution=64)
    data = made.odd_one_out()
    assert (data.items.shape, data.items.dtype, data.kinds.dtype) == ((40, 3, 64, 64), torch.uint8, torch.int8)
    assert torch.equal(data.examples, torch.arange(40).reshape(10, 4))
    for m, item in enumerate(data.items.permute(0, 2, 3, 1).numpy()):
        for k in range(made.index[m].max() + 1):
            assert (item[made.index[m] == k] == made.palette[m, k]).all()
        assert (made.palette[m, 0] == 255).all()
        value, smallest = made.palette[m, 1 : made.index[m].max() + 1].max(axis=1), made.palette[m].min(axis=1)[1:]
        assert (smallest[: len(value)] <= value / 2 + 1).all()  # a saturation of at least one half


SHORTCUT_FREE = [*((t, s) for t, s in ALL_SETS if t == "inside-contact")]
SHORTCUT_FREE += [
    ("inside-number", "probe-inside"),
    ("number-contact", "mask-contact"),
    ("number-contact", "probe-contact"),
]


@pytest.mark.parametrize(("task", "name"), SHORTCUT_FREE)
def test_color_ink_and_file_size_do_not_find_the_odd_one(task, name):
    """A logistic regression stays below 35% wherever the rule does not itself ask for another number of shapes."""
    made = shapes.generate(task, name, 360, seed=9, split="train", resolution=64)
    assert guessed(statistics_of(made)) < 0.35


def test_the_shortcut_test_can_find_a_shortcut():
    made = shapes.generate("number-contact", "probe-number", 200, seed=9, split="train", resolution=64)
    assert guessed(statistics_of(made)) > 0.9


def statistics_of(made: shapes.Stimuli) -> np.ndarray:
    """[n, 4, 12]: ink, size of the PNG file, mean color and number of colors, each relative to the other three."""
    rows = []
    for item in shapes.rgb(made.index, made.palette).transpose(0, 2, 3, 1):
        file = io.BytesIO()
        Image.fromarray(item).save(file, "PNG")
        colors = len(np.unique(item.reshape(-1, 3) @ np.array([1, 256, 65536])))
        rows.append([(item < 255).any(axis=2).sum(), file.tell(), colors, *item.mean(axis=(0, 1))])
    values = np.array(rows, dtype=float).reshape(-1, 4, 6)
    relative = values - (values.sum(axis=1, keepdims=True) - values) / 3
    features = np.concatenate([relative, np.abs(relative)], axis=2)
    return features / (features.std(axis=(0, 1)) + 1e-6)


def guessed(features: np.ndarray) -> float:
    """Accuracy on the second half of the examples of a logistic regression over the four cells fitted to the first."""
    train, test = torch.from_numpy(features).chunk(2)
    weights = torch.zeros(features.shape[2], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -(train @ weights).log_softmax(dim=1)[:, 3].mean() + 0.001 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return float(((test @ weights.detach()).argmax(dim=1) == 3).double().mean())


@pytest.mark.parametrize("task", VISION_TASKS)
def test_one_core_makes_60_examples_a_second(task):
    shapes.generate(task, "base", 1, seed=0, split="train")
    start = time.process_time()
    shapes.generate(task, "base", 100, seed=1, split="train")
    assert 100 / (time.process_time() - start) >= 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "inside-contcat"}, "did you mean 'inside-contact'"),
        ({"task": "sv-agreement-plural"}, "unknown vision task"),
        ({"set_name": "probe-insid"}, "did you mean 'probe-inside'"),
        ({"set_name": "probe-number"}, "has no set"),
        ({"split": "tset"}, "did you mean 'test'"),
        ({"resolution": 31}, "resolution is 31; it must be a whole number of at least 32"),
        ({"resolution": 64.0}, "resolution is 64.0"),
        ({"n": 0}, "n is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"first": -50}, "first is -50"),
        ({"first": 25}, "first is 25; it must be a multiple of 50"),
    ],
)
def test_bad_input_is_named_in_one_line(change, message):
    arguments = {"task": "inside-contact", "set_name": "base", "n": 4, "seed": 0, "split": "train"} | change
    with pytest.raises(ValueError, match=message) as error:
        shapes.generate(**arguments)
    assert "\n" not in str(error.value)


def test_an_impossible_contour_is_refused():
    with pytest.raises(RuntimeError, match="found only 0 of 1 contours of inner radius 0.49"):
        contours.random_contours(1, inner_radius=0.49, gap=0.01, rng=np.random.default_rng(0))


@given(seed=st.integers(0, 2**32), inner_radius=st.sampled_from([0.05, 0.2]), gap=st.floats(0.02, 0.2))
@settings(max_examples=25)
def test_contours_fill_the_unit_box_and_their_chains_are_closed(seed, inner_radius, gap):
    rng = np.random.default_rng(seed)
    many = contours.random_contours(5, inner_radius=inner_radius, gap=gap, rng=rng)
    sizes = rng.integers(3, 60, 5)
    chains = contours.on_grid(many, sizes)
    for i in range(5):
        assert np.allclose([many[i].min(axis=0), many[i].max(axis=0)], [[0, 0], [1, 1]])
        assert (chains[i].min(axis=0) == 0).all() and (chains[i].max(axis=0) == sizes[i] - 1).all()
        assert (np.abs(chains[i] - np.roll(chains[i], -1, axis=0)).max(axis=1) == 1).all()
    assert np.array_equal(chains.extents, np.stack([sizes, sizes], axis=1))


@pytest.mark.parametrize(("inner_radius", "gap", "least", "most"), [(0.2, 0.07, 35, 56), (0.2, 0.08, 30, 52)])
def test_contours_have_as_many_vertices_as_the_authors(inner_radius, gap, least, most):
    many = contours.random_contours(400, inner_radius=inner_radius, gap=gap, rng=np.random.default_rng(0))
    vertices = np.diff(many.starts)
    assert least <= np.quantile(vertices, 0.01) and np.quantile(vertices, 0.99) <= most


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_placements_match_brute_force(seed):
    """At random offsets: shared pixels, 8-neighbors and gaps from all pairwise distances; inside from shapely."""
    rng = np.random.default_rng(seed)
    first = contours.on_grid(contours.random_contours(2, inner_radius=0.2, gap=0.07, rng=rng), np.full(2, 24.0))
    second = contours.on_grid(contours.random_contours(2, inner_radius=0.05, gap=0.1, rng=rng), np.array([6.0, 30.0]))
    for i, place in enumerate(contours.placements(first, second, np.array([3, 4]))):
        tables = place.touching_inside, place.touching_outside, place.clear_inside
        ways = [set(map(tuple, place.offsets(table))) for table in tables]
        for offset in [*rng.integers(-8, 26, (40, 2)), *(way[len(way) // 2] for way in map(sorted, ways) if way)]:
            distance = cdist(first[i], second[i] + offset, "chebyshev").min()
            reading = shapes_oracle.read([first[i].astype(float), (second[i] + offset).astype(float)])
            touching_inside, touching_outside, clear_inside = (tuple(offset) in way for way in ways)
            assert clear_inside == (distance >= 3 + i and (0, 1) in reading.nested)
            if touching_inside or touching_outside:
                assert distance == 1 and not reading.crossing and touching_inside == ((0, 1) in reading.nested)
            crosses = reading.crossing or distance == 0
            assert place.forbidden(np.array(offset)) >= (crosses or 1 < distance < 3 + i)
            if distance >= 3 + i:
                assert not place.forbidden(np.array(offset))
            if distance == 1 and not place.forbidden(np.array(offset)) and (0, 1) in reading.nested:
                assert touching_inside
