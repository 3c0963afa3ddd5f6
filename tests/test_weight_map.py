"""The map of a network's weights: every entry in the color of those that keep it, in its place, all names legible."""

import io

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

matplotlib.use("agg")

from matplotlib.colors import to_rgb

from subnet_utils.masks import heads
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models import build
from subnet_utils.papers.break_it_down.figures.overlap import COMPARISONS
from subnet_utils.papers.break_it_down.figures.weight_map import weight_map
from subnet_utils.plots import weight_map as module
from subnet_utils.report import results
from tests.test_figures import assert_readable

pytestmark = pytest.mark.usefixtures("paper_style")
FAMILIES = {
    "resnet": {"block": "basic", "depths": [1, 1, 1, 1], "width": 16, "head_width": 128, "embedding": 128},
    "bert": {"layers": 2, "width": 128, "heads": 4, "mlp_width": 512},
    "small bert": {"family": "bert", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32},
    "large bert": {"family": "bert", "layers": 4, "width": 512, "heads": 8, "mlp_width": 2048},
    "vit": {"layers": 2, "width": 64, "heads": 4, "mlp_width": 128, "patch": 8},
}


def pair_in(family: str, start: int = 1, *, seed: int = 0) -> dict[str, Subnetwork]:
    model = build({"family": family} | FAMILIES[family], seed=0, vocabulary=20, resolution=64)
    weights, generator = dict(model.named_parameters()), torch.Generator().manual_seed(seed)
    names = model.maskable(model.stage_names[start])
    return {
        subroutine: Subnetwork({n: torch.rand(weights[n].shape, generator=generator) < share for n in names}, "n")
        for subroutine, share in (("inside", 0.3), ("number", 0.1))
    }


def pictures(figure) -> dict[str, np.ndarray]:
    return {ax.get_title(loc="left"): np.asarray(ax.images[0].get_array()) for ax in figure.axes}


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_all_kinds_of_networks_are_legible_and_of_whole_dots(family):
    found = pair_in(family)
    figure = weight_map(found)
    assert_readable(figure)
    assert len(figure.axes) == len(found["inside"].masks)
    assert 6.9 < figure.get_figwidth() < 9 and figure.get_figheight() < 9
    size, scales = module.DOTS * figure.get_size_inches(), set()
    for i, ax in enumerate(figure.axes):
        box = ax.get_position()
        assert not any(box.overlaps(other.get_position()) for other in figure.axes[:i])
        corners = (box.get_points() * size).ravel()
        assert np.allclose(corners, corners.round(), atol=1e-6)
        assert min(corners) > -1e-6 and (corners[2:] < size + 1e-6).all()
        cells = ax.images[0].get_array().shape[1]
        dots = (corners[2] - corners[0]) / cells
        assert dots == pytest.approx(round(dots)) and round(dots) >= 1
        scales.add((round(dots), np.ceil(ax.get_xlim()[1] / cells)))
    assert len(scales) == 1, "one scale for all weights"
    drawn = sum(ax.get_xlim()[1] * ax.get_ylim()[0] for ax in figure.axes)
    assert drawn == sum(mask.numel() for mask in found["inside"].masks.values())


def test_every_entry_has_the_color_of_those_that_keep_it():
    found = pair_in("bert")
    shown = pictures(weight_map(found))
    inside, number = (found[name].masks["stages.layer_2.output.dense.weight"].numpy() for name in found)
    first, second, both = (to_rgb(COMPARISONS[name].color) for name in ("first", "second", "between"))
    picture = shown["2 mlp out"]
    assert picture.shape == (128, 512, 3)
    for chosen, color in ((inside & ~number, first), (number & ~inside, second), (inside & number, both)):
        assert chosen.any() and np.allclose(picture[chosen], color)
    assert np.allclose(picture[~(inside | number)], to_rgb(module.NEITHER))
    tall = found["inside"].masks["stages.layer_2.intermediate.dense.weight"].numpy()
    assert tall.shape == (512, 128)
    drawn = np.isclose(shown["2 mlp in"], first).all(axis=2) | np.isclose(shown["2 mlp in"], both).all(axis=2)
    assert np.array_equal(drawn, tall.T), "on its side"


def test_what_is_saved_is_not_blurred_and_not_laid_out_anew():
    found = pair_in("bert")
    png, _ = results._drawn(weight_map(found))  # a warning of a layout would be an error
    seen = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    alone = sum(int((one & ~found["inside"].masks[name]).sum()) for name, one in found["number"].masks.items())
    dots = (seen == np.round(255 * np.array(to_rgb(COMPARISONS["second"].color)))).all(axis=2).sum()
    assert alone <= dots < alone + 1000, "a dot for each entry, and those of the legend"


def test_the_legend_has_the_share_of_each_color():
    figure = weight_map(pair_in("bert"))
    said = dict(text.get_text().split(": ") for text in figure.legends[0].get_texts())
    assert list(said) == ["only inside", "only number", "both", "neither"]
    assert [float(share.rstrip("%")) for share in said.values()] == pytest.approx([27, 7, 3, 63], abs=1)


def test_lines_part_the_heads():
    def lines(family: str, count: int) -> dict[str, list]:
        figure = weight_map(pair_in(family), heads=count)
        return {
            ax.get_title(loc="left"): [s.tolist() for c in ax.collections for s in c.get_segments()]
            for ax in figure.axes
        }

    bert, vit = lines("bert", 4), lines("vit", 4)
    across = [[[0, at], [128, at]] for at in (32, 64, 96)]
    assert bert["1 query"] == bert["2 key"] == bert["2 value"] == across
    assert bert["1 attention out"] == [[[at, 0], [at, 128]] for at in (32, 64, 96)]
    assert bert["1 mlp in"] == bert["pooler"] == []
    assert vit["2 query, key, value"] == [[[at, 0], [at, 64]] for at in range(16, 192, 16)]


def test_what_cannot_be_on_one_map_is_refused():
    found = pair_in("resnet")
    with pytest.raises(ValueError, match="expected 2, got 1"):
        weight_map({"inside": found["inside"]})
    other = Subnetwork(found["number"].masks, "m")
    with pytest.raises(WrongNetwork, match="different networks, n and m"):
        weight_map(found | {"number": other})
    parts = {
        name: Subnetwork({key: mask for key, mask in one.masks.items() if (".head." in key) == (name == "number")}, "n")
        for name, one in found.items()
    }
    with pytest.raises(ValueError, match="no weight is masked in both"):
        weight_map(parts)


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_densities_of_heads_are_those_of_their_rows_and_columns(family):
    one = pair_in(family)["inside"]
    kept = heads.densities(one, 4)
    assert list(kept) == ["layer_1", "layer_2"]
    masks = {name: mask.numpy() for name, mask in one.masks.items() if name.startswith("stages.layer_2.")}
    (out,) = (m for name, m in masks.items() if "attention.output" in name or "out_proj" in name)
    width = len(out) // 4
    for head in range(4):
        own = slice(head * width, (head + 1) * width)
        if family == "vit":
            (three,) = (mask for name, mask in masks.items() if "in_proj" in name)
            rows = [part[own] for part in np.split(three, 3)]
        else:
            rows = [masks[f"stages.layer_2.attention.self.{name}.weight"][own] for name in ("query", "key", "value")]
        entries = np.concatenate([*(part.ravel() for part in rows), out[:, own].ravel()])
        assert kept["layer_2"][head] == pytest.approx(entries.mean())


def test_a_network_without_attention_has_no_heads():
    assert heads.densities(pair_in("resnet")["inside"], 4) == {}
