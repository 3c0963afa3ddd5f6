"""Classes of a network and permuted images: pictures, networks, masks with a given output layer, tables and figures."""

import gzip
import math

import numpy as np
import pandas as pd
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks.controls import random_within
from subnet_utils.models import small_images
from subnet_utils.models.staged import maskable
from subnet_utils.papers.functional_modularity import half_masks, image_figures, image_steps, image_tables, section
from subnet_utils.papers.functional_modularity import permuted_steps as permuted
from subnet_utils.problems.tasks import DIGITS, Files
from subnet_utils.tasks import pictures
from tests.test_figures import assert_readable

BRIEF = {"steps": 8, "interval": 4, "batch_size": 16}
MASKS = BRIEF | {"learning_rate": 0.3, "masking": {"samples": 2, "l0": 0.0001}}
LEARNS = {"steps": 100, "interval": 50, "batch_size": 32, "learning_rate": 0.02}
CNN = {"family": "cnn", "widths": [3, 4, 4, 6]}
IMAGES = {
    "data": {"source": "drawn", "train": 120, "test": 80, "resolution": 16},
    "networks": [
        {"model": "cnn", "paper_network": "CNN", "architecture": CNN, "training": LEARNS, "masks": MASKS,
         "seeds": [0, 1], "removed": ["0", "7"], "l0": [0.001], "pairs": 1, "draws": 2},
        {"model": "plain", "paper_network": "CNN without dropout", "architecture": CNN | {"dropout": [0.0, 0.0]},
         "training": BRIEF, "masks": MASKS, "seeds": [0, 1], "removed": ["0", "7"], "draws": 2},
    ],
    "permuted": {"widths": [12, 8], "tasks": 3,
                 "training": BRIEF | {"learning_rate": 0.05, "masking": {"l0": 0.00001, "samples": 2}},
                 "start_values": [2.0, 0.0], "seeds": [0]},
}  # fmt: skip


def study(**changes) -> dict:
    return {"name": "micro", "compute": {"workers": 1}, "functional_modularity": {"images": IMAGES | changes}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.open(study(), tmp_path_factory.mktemp("store"))
    image_tables.made(lab)
    return lab


def test_layers_of_the_simple_cnn_are_those_of_table_5_and_ours(lab):
    def sizes(images: dict) -> pd.DataFrame:
        return image_tables.layers(Lab.open(study(**images), lab.store.root)).set_index(["model", "layer", "setting"])

    paper = {"model": "printed", "architecture": {"family": "cnn"}, "seeds": [0]}
    same = sizes({"networks": [paper]})
    gray = same["paper"] != same["ours"]
    assert len(same) == 37 and same[gray].index.tolist() == [("printed", 1, "inputs")], "our images have one channel"
    ours = sizes({})["ours"]
    assert ours[:, 7, "outputs"].tolist() == [6, 6] and ours[:, 7, "dropout"].tolist() == [0.5, 0.0]


def test_digits_are_drawn_by_seed_and_each_class_looks_alike():
    about = {"resolution": 20, "noise": 0.0, "turn": 0.0, "seed": 0}
    one, same, other = (pictures.drawn(200, about=name, **about) for name in ("train", "train", "test"))
    assert torch.equal(one.pixels, same.pixels) and not torch.equal(one.labels, other.labels)
    assert one.pixels.shape == (200, 1, 20, 20) and set(one.labels.tolist()) == set(range(10))
    flat = one.pixels.flatten(1).float()
    means = torch.stack([flat[one.labels == i].mean(dim=0) for i in range(10)])
    nearest = torch.cdist(other.pixels.flatten(1).float(), means).argmin(dim=1)
    assert (nearest == other.labels).float().mean() > 0.6  # by chance .1


def test_digits_in_color_are_bright_on_dark_in_two_colors_each():
    about = {"resolution": 20, "noise": 0.0, "turn": 0.0, "seed": 0, "about": "train"}
    gray, colored = pictures.drawn(100, **about), pictures.drawn(100, color=True, **about)
    assert torch.equal(gray.labels, colored.labels) and colored.pixels.shape == (100, 3, 20, 20)
    paper, ink = (colored.pixels.float().flatten(2).quantile(end, dim=2) for end in (0.0, 1.0))  # [100, 3]
    assert paper.max() < 128 and (ink > paper).all()
    share = gray.pixels.float() / 255  # of ink in every pixel
    found = colored.pixels.float() / 255
    dark = found.flatten(2).min(dim=2).values[:, :, None, None]
    bright = ((found - dark) * share).sum(dim=(2, 3)) / (share**2).sum(dim=(2, 3))  # least squares
    assert torch.allclose(dark + bright[:, :, None, None] * share, found, atol=0.01)
    assert len(dark.flatten(1).round(decimals=2).unique(dim=0)) > 90


def test_files_of_mnist_and_cifar10_are_read_and_damaged_ones_named(tmp_path):
    draw = np.random.default_rng(0)
    pixels, labels = draw.integers(0, 256, (5, 28, 28), dtype=np.uint8), draw.integers(0, 10, 5, dtype=np.uint8)
    for title in ("train", "t10k"):
        for name, array in ((f"{title}-images-idx3-ubyte.gz", pixels), (f"{title}-labels-idx1-ubyte", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = head + array.tobytes()
            (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = pictures.from_folder(tmp_path)
    assert np.array_equal(found["test"].pixels[:, 0], pixels) and found["train"].labels.tolist() == labels.tolist()
    with pytest.raises(pictures.PictureError, match="'train' has no image of class '.'; each class needs some in"):
        image_steps.Source.of(Files(source="files", folder=str(tmp_path))).require_classes()
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(pictures.PictureError, match="train-labels-idx1-ubyte is no idx file of bytes, or not whole"):
        pictures.from_folder(tmp_path)
    cifar = tmp_path / "cifar"
    cifar.mkdir()
    rows = draw.integers(0, 10, (4, 3073), dtype=np.uint8)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (cifar / name).write_bytes(rows.tobytes())
    test = pictures.from_folder(cifar)["test"]
    assert np.array_equal(test.pixels.flatten(1), rows[:, 1:]) and test.labels.tolist() == rows[:, 0].tolist()


def write_idx(folder, count: int) -> None:
    folder.mkdir()
    for title in ("train", "t10k"):
        for name, sizes in (("images-idx3", (count, 4, 4)), ("labels-idx1", (count,))):
            head = bytes([0, 0, 8, len(sizes)]) + b"".join(size.to_bytes(4, "big") for size in sizes)
            (folder / f"{title}-{name}-ubyte").write_bytes(head + bytes(math.prod(sizes)))


def test_kaggles_folders_are_passed_by_and_empty_or_damaged_sets_named(tmp_path):
    write_idx(tmp_path / "none", 0)
    with pytest.raises(pictures.PictureError, match="pictures .* do not match"):
        pictures.from_folder(tmp_path / "none")
    folder, name = tmp_path / "kaggle", "train-images-idx3-ubyte"
    write_idx(folder, 3)
    (folder / name).rename(folder / "train-images.idx3-ubyte")
    (folder / name).mkdir()
    assert len(pictures.from_folder(folder)["train"].pixels) == 3 and pictures.digest_of(folder)
    damaged = bytearray(gzip.compress((folder / "train-images.idx3-ubyte").read_bytes()))
    damaged[10] = 7  # the kind of a block
    (folder / f"{name}.gz").write_bytes(damaged)
    with pytest.raises(pictures.PictureError, match="ubyte.gz cannot be read"):
        pictures.from_folder(folder)
    for path in folder.glob("train-images*"):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / name).symlink_to("nothing")
    with pytest.raises(pictures.PictureError, match="no file train-images"):
        pictures.digest_of(folder)


def test_every_file_of_cifar10_holds_whole_pictures(tmp_path):
    for name, size in (("data_batch_1", 3074), ("data_batch_2", 3072), ("test_batch", 3073)):
        (tmp_path / f"{name}.bin").write_bytes(bytes(size))
    with pytest.raises(pictures.PictureError, match="lacks pictures of CIFAR10's binary version"):
        pictures.from_folder(tmp_path)


def test_a_folder_without_pictures_is_refused_before_anything_is_trained(tmp_path):
    lab = Lab.open(study(data={"source": "files", "folder": str(tmp_path)}), tmp_path / "store")
    with pytest.raises(pictures.PictureError, match="no file train-images-idx.* MNIST's or Fashion-MNIST's idx files"):
        image_steps.require_images(lab)
    assert not (tmp_path / "store").exists()


def test_a_class_without_images_is_refused_before_anything_is_trained(tmp_path):
    lab = Lab.open(study(data=IMAGES["data"] | {"test": 10}), tmp_path / "store")
    with pytest.raises(pictures.PictureError, match="drawn digits: 'test' has no image of class '.'; each class needs"):
        image_steps.require_images(lab)
    assert not (tmp_path / "store").exists()


def test_networks_are_the_papers():
    cnn = small_images.build(channels=3, classes=10, **section.Convolutional(family="cnn").model_dump())
    weights = {name: tuple(weight.shape) for name, weight in cnn.named_parameters() if weight.ndim > 1}
    assert list(weights.values()) == [
        (32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (10, 256)]  # fmt: skip
    assert [module.p for module in cnn if isinstance(module, torch.nn.Dropout)] == [0.25, 0.5]
    resnet = small_images.build(channels=3, classes=10, **section.Residual(family="resnet").model_dump())
    main = [n for n, m in resnet.named_modules() if isinstance(m, torch.nn.Conv2d) and "downsample" not in n]
    assert len(main) + 1 == 110
    for network, count in ((cnn, 9 * (3 * 32 + 32 * 64 + 64 * 128 + 128 * 256) + 2560), (resnet, _of_resnet_110())):
        known = dict(network.named_parameters())
        assert sum(known[name].numel() for name in maskable(network)) == count


def _of_resnet_110() -> int:
    """Weights of convolutions and of the last layer: 18 blocks of two convolutions at each of three sizes."""
    blocks = 9 * (36 * (16**2 + 32**2 + 64**2) - 32 * 16 - 64 * 32)  # the first of a size sees half as many channels
    return 9 * 3 * 16 + blocks + 16 * 32 + 32 * 64 + 64 * 10


def test_statistics_of_a_norm_depend_on_weights_and_images_alone():
    images = pictures.drawn(64, resolution=16, noise=0.1, turn=0.1, seed=0, about="test").pixels
    torch.manual_seed(0)
    network = small_images.build("resnet", 1, 10, depth=8, width=4)
    again = small_images.build("resnet", 1, 10, depth=8, width=4)
    again.load_state_dict(network.state_dict())
    again.train()(images)  # other running statistics
    for one in (network, again):
        small_images.settle(one, [images])
    state, other = network.state_dict(), again.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    first = network.conv(network.pixels(images))
    assert torch.allclose(network.norm.running_mean, first.mean(dim=(0, 2, 3)), atol=1e-5)


def test_masks_without_a_class_have_the_controls_output_and_never_saw_it(lab):
    family = image_steps.families(lab)[0]
    control, mask = family.control.load(lab), family.masks["0"].load(lab)
    assert torch.equal(control.masks["output.weight"], mask.masks["output.weight"])
    assert any(not torch.equal(control.masks[name], mask.masks[name]) for name in control.masks)
    _, labels = family.network.problem.examples(image_steps.WITHOUT.format("0"), 0)
    assert set(labels.tolist()) == set(range(10)) - {0}
    lost, drawn = control & ~mask, random_within(control & ~mask, control.masks, "thinned", 0)
    assert (drawn & ~control).active == 0
    assert all(int(drawn.masks[name].sum()) == int(lost.masks[name].sum()) for name in control.masks)


def test_drops_are_relative_and_confusions_sum_to_one(lab):
    drops = image_tables.drops(lab)
    family = image_steps.families(lab)[0]
    before, after = (np.array(step.result(lab)["confusion"]) for step in (family.control, family.masks["0"]))
    right, left = (table.diagonal() / table.sum(axis=1) for table in (before, after))
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = ((right - left) / right)[0]
    row = drops[(drops["model"] == "cnn") & (drops["seed"] == 0) & (drops["class"] == "0") & drops["usual_l0"]].iloc[0]
    assert row["target_drop"] == pytest.approx(expected, nan_ok=True)
    moved = image_tables.confusions(lab).groupby(["model", "seed", "removed", "class"])["change"].sum()
    assert np.allclose(moved, 0)
    confusions, half = image_tables.confusions(lab), half_masks.accuracies(lab, image_steps.families(lab)[:1])
    claims = image_tables.findings(lab, drops, confusions, half)
    assert half.groupby(["model", "seed"])["part"].nunique().eq(6).all()
    won = confusions[(confusions["model"] == "cnn") & (confusions["removed"] == "0") & (confusions["class"] == "0")]
    gains = won[won["answer"] != "0"].groupby("seed")["change"].apply(lambda some: sorted(some.clip(lower=0)))
    two = [sum(some[-2:]) / sum(some) for some in gains if sum(some)]
    only = image_tables.findings(lab, drops, won, half)
    (row,) = only[only["place"] == "Figure 18"].to_dict("records") if two else ({"ours": np.nan},)
    assert row["ours"] == pytest.approx(np.mean(two) if two else np.nan, nan_ok=True)
    assert set(claims["verdict"]) <= {"holds", "does not hold", "cannot be told"}


def test_a_permuted_task_leaves_what_earlier_ones_use_and_draws_the_rest_anew(lab):
    first, second, *_ = permuted.tasks(lab)
    assert second.previous == first and (first.permutation, second.permutation) == (0, 1)
    before, after = first.load(lab), second.load(lab)
    for name, used in before.used.items():
        if not name.startswith("1."):
            assert torch.equal(after.weights[name][used], before.weights[name][used])
    assert not torch.equal(after.weights["1.weight"], before.weights["1.weight"])
    (pixels, labels), (moved, same) = first.data("test"), second.data("test")
    assert torch.equal(labels, same) and torch.equal(pixels.sort(dim=1).values, moved.sort(dim=1).values)
    layer = second.result(lab)["layers"][1]
    mask, used = after.mask["2.weight"], before.used["2.weight"]
    assert layer["kept"] == int(mask.sum()) and layer["used"] == pytest.approx(float(used.float().mean()))
    assert layer["shared"] == pytest.approx(float((mask & used).sum() / mask.sum()))


@pytest.mark.usefixtures("paper_style")
def test_figures_are_legible(lab):
    drops, confusions, sharing = image_tables.drops(lab), image_tables.confusions(lab), image_tables.sharing(lab)
    test = image_steps.Source.of(image_steps.settings_of(lab).data).load("test")
    for figure in (
        image_figures.pictures(test, DIGITS),
        image_figures.drops(drops[drops["usual_l0"]]),
        image_figures.others(drops[drops["usual_l0"]], room=0.1),
        image_figures.confusion(confusions),
        image_figures.changes(confusions[confusions["model"] == "cnn"]),
        image_figures.by_l0(image_tables.by_l0(drops)),
        image_figures.sharing(sharing),
    ):
        assert_readable(figure)


def test_stability_stands_beside_the_paper_for_the_network_that_it_is_of(lab):
    drops, stable = image_tables.drops(lab), image_tables.stability(lab)
    without = Lab.open(study(networks=[IMAGES["networks"][0] | {"pairs": 0}]), lab.store.root)
    assert stable["model"].eq("cnn").all(), "the paper's number is of the network without dropout"
    ours, of_cnn, none = (
        set(image_tables.compared_with_paper(lab, drops, table)["quantity"])
        for table in (stable.assign(model="plain"), stable, image_tables.stability(without))
    )
    assert ours - of_cnn == {"overlap of two masks of one function"} and none == of_cnn


def test_a_drop_below_zero_is_seen_in_any_panel():
    rows = [{"model": model, "class": "3", **dict.fromkeys(image_figures.DROPS, 0.1)} for model in ("cnn", "resnet")]
    rows[1]["sham_drop"] = -0.2
    figure = image_figures.drops(pd.DataFrame(rows))
    assert all(ax.get_ylim()[0] < -0.2 for ax in figure.axes)


def test_nothing_is_told_of_classes_whose_control_mask_is_no_good(lab, monkeypatch):
    known, half = image_tables.networks(lab), half_masks.accuracies(lab, image_steps.families(lab)[:1])
    about = image_tables.drops(lab), image_tables.confusions(lab), half
    for good in (True, False):
        monkeypatch.setattr(image_tables, "networks", lambda lab, good=good: known.assign(control_is_good=good))
        verdicts = image_tables.findings(lab, *about)["verdict"]
        assert verdicts.ne("cannot be told").any() == good


def test_the_usual_alpha_may_stand_among_the_others(lab):
    usual = MASKS["masking"]["l0"]
    again = Lab.open(study(networks=[IMAGES["networks"][0] | {"l0": [0.001, usual]}]), lab.store.root)
    assert [one.usual for one in image_steps.families(again)] == [True, False] * 2


FIRST, JOINT = IMAGES["networks"][0], IMAGES["permuted"]
FAULTS = [
    ({"networks": [FIRST | {"removed": ["11"]}]}, "'11', which 'cnn' removes, is no class"),
    ({"networks": [FIRST, FIRST]}, "'cnn' stands twice"),
    ({"networks": [FIRST | {"architecture": {"family": "resnet", "depth": 18}}]}, "depth: 18 is not valid"),
    ({"networks": [FIRST | {"training": BRIEF | {"drops": [3]}}]}, "3 is no multiple of interval 4"),
    ({"networks": [FIRST | {"training": BRIEF | {"drops": [4, 4]}}]}, "drops: holds 4 twice"),
    ({"data": IMAGES["data"] | {"test": 9}}, "data.test: 9 is not valid; give at least 10"),
    ({"permuted": JOINT | {"training": BRIEF | {"masking": {"samples": 3}}}}, "3 samples do not divide the batch"),
    ({"permuted": JOINT | {"training": BRIEF | {"masking": {"units": "neurons"}}}}, "each weight is new or old here"),
    ({"permuted": JOINT | {"training": BRIEF | {"masking": "magnitude"}}}, "'magnitude' trains no masks"),
    (
        {"networks": [FIRST | {"masks": BRIEF | {"masking": "magnitude"}}]},
        "'magnitude' trains no masks, so it has no penalty",
    ),
    ({"networks": [FIRST, FIRST | {"model": "other"}]}, "'other' and 'cnn' stand beside the paper's 'CNN'"),
]


@pytest.mark.parametrize(("change", "said"), FAULTS)
def test_bad_settings_are_one_line(change, said):
    with pytest.raises(StudyError) as error:
        Study.load(study(**change))
    assert said in str(error.value) and "\n" not in str(error.value)
