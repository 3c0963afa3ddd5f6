"""Images with shape and texture, mean pooling against plain numpy, and image sets from folders."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy import ndimage

from subnet_utils.papers.subtask_induction.images_section import Folders
from subnet_utils.tasks.images import (
    ImageError,
    classical_segments,
    conflict_files,
    mean_pool,
    pooled,
    read,
    segment_anything,
    split_folder,
)
from subnet_utils.tasks.textures import SHAPES, TEXTURES, render

CLASSES = ("bear", "cat", "dog")


def drawn(shapes, textures, **changes):
    return render(shapes, textures, **{"resolution": 32, "contrast": 0.12, "seed": 0, "about": "test"} | changes)


def save(path, color=(10, 20, 30), size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(CLASSES):
        for k in range(6):
            save(tmp_path / "train" / name / f"{k}.png", (40 * i, 10 * k, 0))
        for other in CLASSES:
            save(tmp_path / "conflicts" / name / f"{name}1-{other}2.png")
    return tmp_path


def test_a_set_is_a_pure_function_of_its_arguments_and_contains_the_smaller_ones():
    names = [*SHAPES] * 20
    one, two = drawn(names, ["dots"] * 160), drawn(names[:140], ["dots"] * 140)
    assert all((large[:140] == small).all() for large, small in zip(one, two, strict=True))
    for change in ({"seed": 1}, {"about": "other"}):
        assert not (one[0][:8] == drawn(names[:8], ["dots"] * 8, **change)[0]).all()


def test_the_texture_changes_the_filling_and_nothing_else():
    (plain, objects), (waves, same) = (drawn(["star"] * 4, [name] * 4) for name in ("dots", "zigzag"))
    assert (objects == same).all()
    for a, b, out in zip(plain, waves, ~objects, strict=True):
        away = ndimage.binary_erosion(out, np.ones((3, 3)), border_value=1)  # at the outline a pixel is partly object
        assert (a[:, away] == b[:, away]).all()
    assert (plain != waves).any()


@settings(max_examples=50, deadline=None)
@given(image=arrays(np.uint8, (7, 6, 3)), segments=arrays(bool, st.tuples(st.integers(1, 4), st.just(7), st.just(6))))
def test_mean_pooling_paints_the_smallest_segment_over_a_pixel(image, segments):
    sizes = segments.sum(axis=(1, 2))
    rest = ~segments.any(axis=0)
    found = mean_pool(image, segments)
    for y in range(7):
        for x in range(6):
            own = [k for k in range(len(segments)) if segments[k, y, x]]
            # of equal sizes the later one is painted last
            where = segments[min(own, key=lambda k: (sizes[k], -k))] if own else rest
            expected = image[where].astype(float).mean(axis=0).round()
            assert (found[y, x] == expected).all()


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "ring"])  # whose hole is often filled
def test_classical_segments_are_a_partition_that_finds_the_object(shape):
    images, objects = drawn([shape] * 16, list(TEXTURES) * 2, resolution=48)
    overlaps = []
    for image, thing in zip(images.transpose(0, 2, 3, 1), objects, strict=True):
        segments = classical_segments(image, scale=2000)
        assert (segments.sum(axis=0) == 1).all()
        overlaps.append(max((one & thing).sum() / (one | thing).sum() for one in segments))
    assert np.mean(overlaps) > 0.75


def test_pooled_images_lose_their_texture():
    images, objects = drawn(["square"] * 6, ["grid"] * 6, resolution=48)
    flat = pooled(torch.from_numpy(images), lambda image: classical_segments(image, scale=2000))
    assert flat.shape == (6, 3, 48, 48) and flat.dtype == torch.uint8
    inside = [flat[i].float().mean(dim=0)[torch.from_numpy(objects[i])].std() for i in range(6)]
    before = [images[i].mean(axis=0)[objects[i]].std() for i in range(6)]
    assert np.median(inside) < 0.5 * np.median(before)


def test_folders_are_split_without_overlap(folder):
    split = split_folder(folder / "train", CLASSES, mask=2, validation=1)
    train, mask, held = ({path for path, *_ in split[title]} for title in ("train", "mask", "validation"))
    assert len(train) == 15 and len(mask) == 6 and len(held) == 3
    assert mask <= train and not train & held
    assert all(path.parent.name == CLASSES[label] for path, label, _ in split["train"] + split["validation"])


def test_classes_of_16_class_imagenet_give_as_many_images_as_in_the_paper(tmp_path):
    """At most 1,000 of a class, a tenth of them for evaluation: 13,929 and 1,549 in all (section 5.2)."""
    there = {"knife": 586, "oven": 892} | {f"class{i}": 1100 for i in range(14)}
    save(one := tmp_path / "one.png")
    for name, count in there.items():
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "train" / name / f"{i}.png").hardlink_to(one)
    about = Folders(train="", test="", conflicts="", classes=list(there))
    sizes = {"mask": about.mask_per_class, "validation": about.validation_per_class}
    split = split_folder(tmp_path / "train", about.classes, **sizes)
    pooled, kept = (Counter(path.parent.name for path, *_ in split[title]) for title in ("mask", "validation"))
    assert (pooled["knife"], kept["knife"], pooled["oven"], kept["oven"]) == (527, 59, 802, 90)
    assert (pooled.total(), kept.total()) == (13_929, 1_549)
    assert len(split["train"]) == sum(there.values()) - 1_549
    assert len({path for path, *_ in split["mask"] + split["validation"]}) == 13_929 + 1_549


def test_images_are_resized_and_cut_to_their_middle(tmp_path):
    wide = np.zeros((30, 90, 3), dtype=np.uint8)
    wide[:, :30, 0], wide[:, 30:60, 1], wide[:, 60:, 2] = 255, 255, 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    made = read([tmp_path / "wide.png"], resized=37, side=32)
    assert made.shape == (1, 3, 32, 32)
    middle = made[0, :, 16, 3:-3]
    assert (middle[1] > 200).all() and (middle[0] < 60).all() and (middle[2] < 60).all()


@pytest.mark.parametrize(
    ("where", "classes", "sizes", "message"),
    [("train", ("bears", "cat"), (1, 1), "no folder for class 'bears'; did you mean 'bear'"),
     ("nowhere", CLASSES, (1, 1), "no folder .*/nowhere; give the folder"),
     ("train/cat", CLASSES, (1, 1), "no folder for class 'bear'; there are no folders in it"),
     ("train", ("cat", "emu"), (1, 1), "emu holds no images"),
     ("train", CLASSES, (1, 9), "bear holds 6 images, too few to pool some and to validate with others")],
)  # fmt: skip
def test_folders_that_lack_something_are_named(folder, where, classes, sizes, message):
    (folder / "train" / "emu").mkdir()
    (folder / "train" / "emu" / "notes.txt").touch()
    with pytest.raises(ImageError, match=message):
        split_folder(folder / where, classes, mask=sizes[0], validation=sizes[1])


@pytest.mark.parametrize("damage", [b"", b"not an image", None])
def test_a_corrupt_image_is_named(folder, damage):
    path = folder / "train" / "cat" / "3.png"
    path.write_bytes(path.read_bytes()[:60] if damage is None else damage)
    with pytest.raises(ImageError, match=r"3\.png cannot be read as an image .* remove it or fetch it again"):
        read([path], resized=37, side=32)


def test_a_conflict_has_the_shape_of_its_folder_and_a_texture_of_the_classes(folder):
    found = conflict_files(folder / "conflicts", CLASSES[:2])
    assert [(path.name, *labels) for path, *labels in found] == [("bear1-cat2.png", 0, 1), ("cat1-bear2.png", 1, 0)]
    with pytest.raises(ImageError, match="no image in .* has the shape of one class and the texture of another"):
        conflict_files(folder / "conflicts", CLASSES[:1])


def test_names_of_classes_may_have_capitals_and_underlines(tmp_path):
    save(tmp_path / "Sea_lion" / "Sea_lion3-Polar_bear1.png")
    save(tmp_path / "Polar_bear" / "Polar_bear-Sea_lion.png")
    found = conflict_files(tmp_path, ("Sea_lion", "Polar_bear"))
    assert [labels for _, *labels in found] == [[0, 1], [1, 0]]


def test_a_link_to_nothing_is_named(folder):
    (folder / "train" / "cat" / "9.png").symlink_to("nothing")
    with pytest.raises(ImageError, match=r"9\.png is a folder, or a link to nothing; remove it or fetch it again"):
        split_folder(folder / "train", CLASSES)


@pytest.mark.parametrize("name", ["stray", "bear3-bear2"])
def test_a_file_whose_name_does_not_tell_its_shape_and_texture_is_named(folder, name):
    save(folder / "conflicts" / "cat" / f"{name}.png")
    with pytest.raises(ImageError, match=f"{name}.png does not tell its shape and texture; name it as in 'cat3-"):
        conflict_files(folder / "conflicts", CLASSES)


def test_images_of_sixteen_bits_are_named(tmp_path):
    Image.fromarray(np.full((9, 9), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ImageError, match="deep.png has more than eight bits a channel"):
        read([tmp_path / "deep.png"], resized=37, side=32)


def test_what_segment_anything_lacks_is_named(monkeypatch, tmp_path):
    with pytest.raises(ImageError, match="no Segment Anything model in .*; give a folder or hub name, or leave"):
        segment_anything(str(tmp_path), torch.device("cpu"))

    def pipeline(task, *, trust_remote_code, model_kwargs, **_):
        raise RuntimeError(f"{trust_remote_code}, {model_kwargs}\nand more")

    with (
        monkeypatch.context() as patch,
        pytest.raises(ImageError, match=r"elsewhere: False, \{'use_safetensors': True\}; "),
    ):
        patch.setattr("transformers.pipeline", pipeline)
        segment_anything("elsewhere", torch.device("cpu"))

    def generate(image, points_per_crop):
        raise RuntimeError("Couldn't load custom C++ ops.")  # a CPU-only torch beside torchvision's wheel

    monkeypatch.setattr("subnet_utils.tasks.images._mask_generation", lambda *_: generate)
    with pytest.raises(ImageError, match="needs torchvision's compiled operators"):
        segment_anything("folder", torch.device("cpu"))(np.zeros((9, 9, 3), dtype=np.uint8))


def test_quarters_are_put_in_their_places_without_what_their_borders_cut(monkeypatch):
    asked = []

    def generate(image, points_per_crop):
        asked.append((image.size, points_per_crop))
        height, width = image.size[::-1]
        masks = np.zeros((3, height, width), dtype=bool)
        masks[0, 2:14, 2:14] = True  # well inside
        masks[1, :, :] = True  # cut by the border, in a quarter
        masks[2, 3:5, 3:5] = True  # too small
        return {"masks": list(masks)}

    monkeypatch.setattr("subnet_utils.tasks.images._mask_generation", lambda *_: generate)
    found = segment_anything("folder", torch.device("cpu"))(np.zeros((40, 48, 3), dtype=np.uint8))
    assert asked == [((48, 40), 16)] + [((24, 20), 8)] * 4
    corners = [tuple(np.argwhere(one)[0]) for one in found]
    assert corners == [(2, 2), (0, 0), (2, 2), (2, 26), (22, 2), (22, 26)]
    assert found.sum(axis=(1, 2)).tolist() == [144, 40 * 48, 144, 144, 144, 144]
