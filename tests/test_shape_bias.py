"""Subtask induction with images, end to end at the smallest size; its measures against hand-made votes."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from PIL import Image
from transformers import ViTConfig, ViTModel

from subnet_utils.core.growing import save_growing
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.study import Study, StudyError
from subnet_utils.models.classifiers import WeightsError
from subnet_utils.papers.subtask_induction import image_sets, image_steps
from subnet_utils.papers.subtask_induction import images_figures as bias_figures
from subnet_utils.papers.subtask_induction import images_tables as shape_bias
from subnet_utils.papers.subtask_induction.chosen_mask import most_accurate
from subnet_utils.papers.subtask_induction.conditions import IMAGE_CONDITIONS
from subnet_utils.papers.subtask_induction.image_steps import ModelSteps
from subnet_utils.papers.subtask_induction.images_figures import NETWORKS
from subnet_utils.tasks import images as tasks
from subnet_utils.tasks.images import ImageError, ImageSet

TRAINING = {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 8, "epochs": 2}
RESNET = {"family": "resnet_classifier", "depths": [1, 1, 1, 1], "width": 4, "small_stem": True}
MASKS = {"learning_rate": 0.1, "epochs": 3, "batch_size": 8, "l0": [0.001, 0.0], "masking": {"start_value": 0.05}}
CNN = {
    "model": "cnn", "paper_model": "resnet18", "architecture": RESNET | {"norm": "group"}, "base": TRAINING,
    "transfer": TRAINING, "linear": TRAINING, "masks": MASKS | {"start": "stage_1"}, "seeds": [0, 1],
}  # fmt: skip
VIT = CNN | {
    "model": "vit", "paper_model": "vit_b", "masks": MASKS | {"start": "patches"}, "seeds": [0],
    "architecture": {"family": "vit_classifier", "layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "patch": 16},
}  # fmt: skip
BATCH = CNN | {
    "model": "batch", "architecture": RESNET | {"norm": "batch"}, "seeds": [0],
    "transfer": TRAINING | {"optimizer": "sgd"},
}  # fmt: skip
RENDERED = {
    "shapes": ["circle", "bar", "star"], "textures": ["horizontal", "dots", "grid"], "resolution": 32, "train": 24,
    "mask": 12, "validation": 9, "test": 12, "conflicts": 12,
}  # fmt: skip


def study(**changes) -> dict:
    images = {"rendered": RENDERED, "models": [CNN, VIT, BATCH]} | changes
    return {"name": "micro", "compute": {"workers": 1}, "subtask_induction": {"images": images}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(study(), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def table(lab):
    return shape_bias.induced(lab)


def steps_of(lab, model="cnn") -> ModelSteps:
    """Those of a model's first seed."""
    return next(one for one in image_steps.models(lab) if one.about["model"] == model)


def images(lab, title) -> ImageSet:
    return image_sets.image_sets(image_sets.settings_of(lab)).load(lab, title)


def test_a_network_does_not_tell_how_often_its_training_was_interrupted(lab, table):
    """No checkpoint has the number of batches that normalization has seen, and a fingerprint would."""
    weights = steps_of(lab, "batch").base.make(lab).tensors("weights")
    counted = [tensor for name, tensor in weights.items() if name.endswith("num_batches_tracked")]
    assert counted and not any(tensor.any() for tensor in counted)
    assert any(tensor.any() for name, tensor in weights.items() if name.endswith("running_mean")), "it was trained"


def test_every_network_is_measured_for_every_model_and_seed(lab, table):
    expected = {(model, seed, network) for model, seed in (("cnn", 0), ("cnn", 1), ("vit", 0), ("batch", 0))
                for network in ("base", "mask", *IMAGE_CONDITIONS)}  # fmt: skip
    assert set(map(tuple, table[["model", "seed", "network"]].to_numpy())) == expected
    assert table[["original", "pooled", "shape_accuracy", "robustness"]].stack().between(0, 1).all()


def test_measures_follow_from_hand_made_votes():
    shapes, textures = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 2, 0])
    images = ImageSet(torch.zeros(4, 3, 1, 1), shapes, textures)
    by_shape, by_texture = (shape_bias.conflict_scores(votes, images) for votes in (shapes, textures))
    assert by_shape == {"shape_accuracy": 1, "robustness": 1, "shape_bias": 1}
    assert by_texture == {"shape_accuracy": 0, "robustness": 0, "shape_bias": 0}
    mixed = shape_bias.conflict_scores(torch.tensor([0, 2, 0, 2]), images)
    # class 0: one of two, class 1: none, class 2: one of one; two by shape, one by texture
    assert mixed == {"shape_accuracy": pytest.approx(0.5), "robustness": 0.75, "shape_bias": pytest.approx(2 / 3)}
    neither = shape_bias.conflict_scores(torch.tensor([2, 1, 0, 1]), images)
    assert neither["robustness"] == 1 and math.isnan(neither["shape_bias"])


def test_accuracies_are_judged_over_classes_and_shown_over_images_too(lab, table):
    """The paper's dogs are half of all images, and its accuracies are means over classes."""
    votes = {name: steps_of(lab).base.make(lab).tensors("votes")[name].tolist() for name in ("test", "pooled_test")}
    own = table[(table["model"] == "cnn") & (table["seed"] == 0) & (table["network"] == "base")].iloc[0]
    for measure, title in (("original", "test"), ("pooled", "pooled_test")):
        answers = list(zip(images(lab, title).shapes.tolist(), votes[title], strict=True))
        sizes = {shape: sum(shape == one for one, _ in answers) for shape in (0, 1, 2)}
        right = {shape: sum(shape == one == vote for one, vote in answers) for shape in (0, 1, 2)}
        assert len(set(sizes.values())) > 1, "classes of one size cannot tell"
        assert own[measure] == pytest.approx(np.mean([right[shape] / sizes[shape] for shape in sizes]))
        assert own[f"{measure}_over_images"] == pytest.approx(sum(right.values()) / len(answers))
    made_up = table[table["network"] == "linear"].query("model == 'cnn'").assign(
        original=[0.953, 0.955], original_over_images=0.5)  # fmt: skip
    row = shape_bias.table_1(made_up, comparable=True).query("measure == 'original'").iloc[0]
    assert (row["paper"], row["over_images"], row["verdict"]) == (0.954, 0.5, "agrees")


def test_the_images_to_pool_are_the_first_training_images(lab):
    train, mask, flat = (images(lab, title) for title in ("train", "mask", "pooled_mask"))
    assert torch.equal(train.pixels[:12], mask.pixels) and torch.equal(mask.shapes, flat.shapes)
    assert not torch.equal(mask.pixels, flat.pixels)


@pytest.mark.parametrize(("share", "same"), [(1.0, 1.0), (0.0, 1 / 3)])
def test_the_share_of_images_with_their_classs_texture_is_the_one_asked_for(tmp_path, share, same):
    many = RENDERED | {"texture_share": share, "train": 600}
    made = images(Lab.open(study(rendered=many), tmp_path), "train")
    assert (made.shapes == made.textures).double().mean() == pytest.approx(same, abs=0.07)


def test_inherited_weights_are_the_subnetworks_and_stay_bit_identical(lab, monkeypatch, tmp_path):
    one = steps_of(lab)
    donor, kept = dict(one.base.load(lab).named_parameters()), one.mask(one.base).load(lab)
    trained = train(lab, one.conditions["subnetwork"], monkeypatch, tmp_path)
    assert 0 < kept.active < kept.total
    for name, chosen in kept.masks.items():
        assert torch.equal(trained[name][chosen], donor[name][chosen])
        assert not chosen.all() or torch.equal(trained[name], donor[name])
    assert any((trained[name] != donor[name]).any() for name in kept.masks)


def test_a_new_classifier_leaves_the_features_as_they_are(lab, monkeypatch, tmp_path):
    for model in ("cnn", "batch"):
        one = steps_of(lab, model)
        trained = train(lab, one.conditions["linear"], monkeypatch, tmp_path / model)
        for name, tensor in one.base.load(lab).state_dict().items():
            if "num_batches" not in name:
                assert torch.equal(trained[name], tensor) == (not name.startswith("stages.classifier.fc")), name


@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_a_network_with_all_weights_of_a_pretrained_one_computes_the_same(kind, tmp_path):
    """Pixels and normalizations, which are no weights, must be those of the donor, too."""
    if kind == "resnet":
        torch.manual_seed(0)
        path = tmp_path / "resnet18.pth"
        weights = torchvision.models.resnet18().state_dict()
        # as in older files, which do not count batches
        torch.save({name: tensor for name, tensor in weights.items() if "num_batches" not in name}, path)
        own = CNN | {"architecture": {"family": "resnet_classifier", "pretrained": str(path)}}
    else:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        ViTModel(ViTConfig(**sizes, image_size=32, patch_size=16), add_pooling_layer=False).save_pretrained(tmp_path)
        own = VIT | {"architecture": VIT["architecture"] | {"pretrained": str(tmp_path)}}
    lab = Lab.open(study(models=[own]), tmp_path / "store")
    network = image_steps.models(lab)[0].base.network
    donor, fresh, untrained = (
        network.fresh(*about, published=published).eval()
        for about, published in (((), True), (("target",), False), ((), False))
    )
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert not torch.allclose(donor(pixels), fresh(pixels))
        for network in (fresh, untrained):
            network.load_state_dict(donor.state_dict())
            assert torch.equal(donor(pixels), network(pixels))


def train(lab, induced, monkeypatch, folder):
    """The weights that a condition's training ends with, which no artefact keeps."""
    found = {}
    folder.mkdir(exist_ok=True)
    induced.spec(lab)  # makes what it starts from
    with monkeypatch.context() as patch:  # what is made afterwards has its votes again
        patch.setattr(image_steps, "votes", lambda lab, data, model, folder: found.update(model.state_dict()))
        induced.build(lab, folder)
    return found


def test_the_data_mixture_sees_pooled_images(lab, monkeypatch, tmp_path):
    asked, whole = [], image_sets.ImageSets.load
    monkeypatch.setattr(image_sets.ImageSets, "load", lambda *about: asked.append(about[-1]) or whole(*about))
    for condition in ("mixture", "scratch"):
        induced = steps_of(lab).conditions[condition]
        induced.spec(lab)
        asked.clear()
        train(lab, induced, monkeypatch, tmp_path / condition)
        assert ("pooled_mask" in asked) == (condition == "mixture")


def test_masks_are_chosen_by_pooled_validation_images_and_then_by_size(lab):
    rows = shape_bias.masks(lab)
    assert (rows.groupby(["model", "seed", "condition"])["chosen"].sum() == 1).all()
    found = [{"validation_accuracy": accuracy, "active": size} for accuracy, size in ((0.5, 1), (0.9, 7), (0.9, 3))]
    assert most_accurate(found) == 2 and most_accurate([{"fault": "diverged"}, *found[:2]]) == 2


@pytest.mark.parametrize("method", ["gumbel_sigmoid", "magnitude"])
def test_masks_are_found_by_the_method_that_a_profile_names(lab, tmp_path, method):
    named = CNN | {"seeds": [0], "masks": CNN["masks"] | {"masking": method}, "conditions": ["subnetwork", "random"]}
    other = Lab.open(study(models=[named]), tmp_path)
    assert {"mask", "subnetwork", "random"} <= set(shape_bias.induced(other)["network"])
    curves = shape_bias.discovery(other)
    assert (curves.groupby("condition").size() == (1 if method == "magnitude" else 3)).all()
    keys = [{key for one in image_steps.models(study) for key in [one.mask(one.base).key(study)]}
            for study in (lab, other)]  # fmt: skip
    assert not keys[0] & keys[1]


def test_tables_keep_the_papers_numbers_apart(lab, table):
    first = shape_bias.table_1(table, comparable=False)
    own = first[(first["model"] == "cnn") & (first["network"] == "subnetwork") & (first["measure"] == "pooled")].iloc[0]
    values = table[(table["model"] == "cnn") & (table["network"] == "subnetwork")]["pooled"]
    assert own["paper"] == 0.556 and own["ours"] == pytest.approx(values.mean()) and own["n_runs"] == 2
    assert set(first["verdict"]) == {"not comparable at this profile"}
    assert {"agrees", "differs", "cannot be told"} & set(shape_bias.table_1(table, comparable=True)["verdict"])
    second = shape_bias.table_2(shape_bias.masks(lab), shape_bias.bases(lab), comparable=False)
    assert second[second["model"] == "vit"]["paper"].tolist() == [0.146, 0.573, 0.761]


@pytest.mark.parametrize(("alone", "judged"), [((0.3, 0.5, 0.4), False), ((0.7, 0.5, 0.7), True)])
def test_of_a_subnetwork_that_found_no_shape_nothing_is_told(alone, judged):
    """Its networks are far ahead all the same."""
    values = {"base": (0.2,) * 3, "mask": alone, "subnetwork": (0.55, 0.552, 0.554), "scratch": (0.25, 0.26, 0.24)}
    rows = [{"model": "cnn", "paper_model": "resnet18", "network": network, "seed": seed, "key": "", **dict.fromkeys(
        (*shape_bias.MEASURES, *shape_bias.OVER_IMAGES.values()), value)}
        for network, own in values.items() for seed, value in enumerate(own)]  # fmt: skip
    table = pd.DataFrame(rows)
    first = shape_bias.table_1(table, comparable=True).query("measure == 'pooled'").set_index("network")
    assert first.loc["subnetwork", "verdict"] == ("agrees" if judged else "cannot be told")
    assert first.loc["scratch", "verdict"] == "agrees" and first.loc["scratch", "reason"] == ""
    reason = "" if judged else "no shape to inherit: the subnetwork alone has 40% of pooled images right, not 60%"
    assert first.loc["subnetwork", "reason"] == reason
    ahead = shape_bias.advantages(table)
    assert set(ahead["verdict"]) == {"holds" if judged else "cannot be told"} and set(ahead["reason"]) == {reason}
    found = table[table["network"] == "mask"].assign(density=0.149, chosen=True, condition="trained")
    untrained = found.assign(pooled=0.0, condition="random")
    second = shape_bias.table_2(pd.concat([found, untrained]), table[table["network"] == "base"], comparable=True)
    assert second["reason"].tolist() == [reason, "", ""]
    assert second["verdict"].tolist()[0] == ("agrees" if judged else "cannot be told")


def test_a_shape_bias_that_no_run_has_is_missing_and_no_error(table):
    """No answer was right by either cue."""
    table = table[table["model"] == "cnn"].copy()
    table.loc[table["network"] == "scratch", "shape_bias"] = math.nan
    table.loc[(table["network"] == "random") & (table["seed"] == 0), "shape_bias"] = math.nan
    rows = shape_bias.table_1(table, comparable=False).set_index(["network", "measure"])
    none, one = rows.loc[("scratch", "shape_bias")], rows.loc[("random", "shape_bias")]
    assert math.isnan(none["ours"]) and none["n_runs"] == 0 and one["n_runs"] == 1
    ahead = shape_bias.advantages(table).set_index(["baseline", "measure"])
    assert ahead.loc[("scratch", "shape_bias"), "n_runs"] == 0
    everywhere = shape_bias.advantages(table.assign(shape_bias=math.nan)).query("measure == 'shape_bias'")
    assert everywhere["ahead"].isna().all() and len(everywhere) > 0


def levels(ax) -> list[float]:
    return [line.get_ydata()[0] for line in ax.lines if line.get_label() == "chance"]


def test_figures_are_drawn(lab, table):
    cnn = table[table["model"] == "cnn"]
    titles = {"pooled": "pooled", "shape_bias": "shape bias"}
    drawn = [
        bias_figures.pairs(shape_bias.examples(lab)),
        bias_figures.pairs(shape_bias.photographs()),
        bias_figures.dots(cnn, titles, chance=1 / 3),
        bias_figures.dynamics(shape_bias.dynamics(lab), chance=1 / 3),
        bias_figures.discovery(shape_bias.discovery(lab), chance=1 / 3),
        bias_figures.by_class(shape_bias.by_class(lab)),
        bias_figures.answers(shape_bias.answers(lab, "cnn", 0), cnn, seed=0),
    ]
    for figure in drawn:
        figure.canvas.draw()
    labels = [line.label for line in NETWORKS.values()]
    assert [tick.get_text() for tick in drawn[2].axes[0].get_yticklabels()] == labels
    assert len(drawn[-1].axes) == 24
    # shape bias is no accuracy
    assert [len(levels(ax)) for ax in drawn[2].axes] == [1, 0]
    assert all(levels(ax) == [1 / 3] for figure in drawn[3:6] for ax in figure.axes)
    assert all([text.get_text() for text in one.legends[0].get_texts()][-1] == "chance" for one in drawn[2:6])


def test_answers_tell_the_cue(lab):
    conflicts, votes = images(lab, "conflicts"), steps_of(lab).base.make(lab).tensors("votes")["conflicts"]
    shown = shape_bias.answers(lab, "cnn", 0)
    assert set(shown[0]["cues"]) == set(NETWORKS)  # the subnetwork alone, too
    found = [one["cues"]["base"] for one in shown]
    assert found.count("shape") == (votes == conflicts.shapes).sum() and len(found) == 12
    assert found.count("texture") == (votes == conflicts.textures).sum()


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for name in ("cat", "dog"):
            for i in range(count):
                save(tmp_path / part / name / f"{i}.png", rng)
    for name, other in (("cat", "dog"), ("dog", "cat")):
        for i in range(3):
            save(tmp_path / "conflicts" / name / f"{name}{i}-{other}1.png", rng)
        save(tmp_path / "conflicts" / name / f"{name}1-{name}2.png", rng)
    return tmp_path


def save(path, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)).save(path)


def from_folders(folder, store, models=None, **changes) -> Lab:
    parts = {name: str(folder / name) for name in ("train", "test", "conflicts")}
    about = {"classes": ["cat", "dog"], "resolution": 32, "mask_per_class": 3, "validation_per_class": 2} | changes
    models = models or [CNN | {"seeds": [0], "masks": CNN["masks"] | {"l0": [0.0]}}]
    return Lab.open(study(rendered=None, folders=parts | about, models=models), store)


def test_photographs_from_folders_take_the_same_way(folders, tmp_path):
    lab = from_folders(folders, tmp_path / "store")
    image_steps.require_images(lab)
    assert set(shape_bias.induced(lab)["network"]) == {"base", "mask", *IMAGE_CONDITIONS}
    assert len(images(lab, "conflicts").shapes) == 6  # without the two whose cues agree
    assert len(images(lab, "train").shapes) == 12


def test_photographs_lose_a_frame_and_conflicts_do_not(folders, tmp_path):
    """As in the authors' code: Resize(256) and CenterCrop(224), and Resize(224) and CenterCrop(224)."""
    made = from_folders(folders, tmp_path / "store")
    steps = {one.title: one for one in image_sets.image_sets(image_sets.settings_of(made)).sets}
    for title, shorter in (("test", 37), ("conflicts", 32)):
        path = image_sets._files(made.study.subtask_induction.images.folders)[title][0][0]
        with Image.open(path) as image:
            scaled = image.resize((round(40 * shorter / 36), shorter), Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled).transpose(2, 0, 1)
        top, left = ((side - 32) // 2 for side in pixels.shape[1:])
        assert (images(made, title).pixels[0].numpy() == pixels[:, top : top + 32, left : left + 32]).all()
        assert steps[title].load(made).pixels.shape[1:] == (3, 32, 32)


def test_training_images_are_cut_out_at_random_places_where_a_profile_says_so(folders, tmp_path):
    augmented = TRAINING | {"crops": True}
    models = [CNN | {"seeds": [0], "transfer": augmented, "conditions": ["subnetwork", "random", "mixture"]}]
    made = from_folders(folders, tmp_path / "store", models=models)
    plain = from_folders(folders, tmp_path / "store")
    train, middle = (images(lab, "train").pixels for lab in (made, plain))
    assert train.shape[-1] == 37 and torch.equal(train[:, :, 2:34, 2:34], middle)
    one, other = steps_of(made), steps_of(plain)
    windows = train.unfold(2, 32, 1).unfold(3, 32, 1)  # [n, 3, 6, 6, 32, 32]
    labels = torch.arange(len(train))  # which image it is
    seen, positions = one.conditions["subnetwork"], set()
    for epoch in range(4):
        for (pixels,), (rows,) in image_steps._batches(seen, train, labels, epoch):
            for image, row in zip(pixels, rows.tolist(), strict=True):
                found = (windows[row] == image[:, None, None]).all(dim=(0, 3, 4)).nonzero().tolist()
                assert len(found) == 1
                positions.add(tuple(found[0]))
    assert len(positions) > 20 and {place for pair in positions for place in pair} == set(range(6))
    # the base network is not trained so, and has the same images as without a frame
    batches = [list(image_steps._batches(step, pixels, labels, 0))
               for step, pixels in ((one.base, train), (other.base, middle))]  # fmt: skip
    assert all(torch.equal(a, b) for pair in zip(*batches, strict=True) for a, b in zip(*pair, strict=True))
    assert set(shape_bias.induced(made)["network"]) == {"base", "mask", "subnetwork", "random", "mixture"}


def test_a_set_that_was_killed_goes_on_with_the_images_that_it_lacks(folders, tmp_path, monkeypatch):
    made = from_folders(folders, tmp_path / "store")
    whole = images(made, "test").pixels, images(made, "pooled_test").pixels
    other, seen, real = from_folders(folders, tmp_path / "other"), [], tasks.read
    monkeypatch.setattr(image_sets, "save_growing", partial(save_growing, part=2))

    def killed(paths, **sizes):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.extend(paths)
        return real(paths, **sizes)

    monkeypatch.setattr(tasks, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        images(other, "test")
    monkeypatch.setattr(tasks, "read", lambda paths, **sizes: seen.extend(paths) or real(paths, **sizes))
    assert torch.equal(images(other, "test").pixels, whole[0]) and len(seen) == len(set(seen)) == 6
    assert torch.equal(images(other, "pooled_test").pixels, whole[1])


def test_folders_are_known_by_what_they_hold(folders, tmp_path):
    def keys(lab):
        image_sets.listing.cache_clear(), image_sets._files.cache_clear()
        return [step.key(lab) for step in image_sets.image_sets(image_sets.settings_of(lab)).sets]

    before = keys(from_folders(folders, tmp_path / "store"))
    moved = tmp_path / "elsewhere"
    folders.joinpath("train").rename(moved)
    again = from_folders(folders, tmp_path / "store", train=str(moved))
    assert keys(again) == before
    stale = image_sets.image_sets(image_sets.settings_of(again)).sets[0]
    (moved / "cat" / "7.png").unlink()
    assert not set(keys(again)) & set(before)
    with pytest.raises(ImageError, match="have changed; start again"):
        stale.build(again, tmp_path)


def test_what_is_missing_comes_up_before_any_training(folders, tmp_path):
    faults = {"no folder for class 'truck'": {"classes": ["cat", "truck"]},
              "no folder .*nowhere": {"conflicts": str(folders / "nowhere")}}  # fmt: skip
    for message, changes in faults.items():
        lab = from_folders(folders, tmp_path / "store", **changes)
        with pytest.raises(ImageError, match=message):
            image_steps.require_images(lab)
        assert len(papers()["subtask_induction"].steps_of(lab)) == 21  # they have names all the same
        with pytest.raises(ImageError, match=message):
            shape_bias.prepare(lab)
    weights = CNN | {"architecture": {"family": "resnet_classifier", "pretrained": str(tmp_path / "none.pth")}}
    with pytest.raises(WeightsError, match="no file .*none.pth"):
        image_steps.require_images(Lab.open(study(models=[weights]), tmp_path / "store"))


@pytest.mark.parametrize(
    ("images", "message"),
    [({"rendered": RENDERED | {"shapes": ["circle", "bra", "star"]}}, "'bra' is unknown; did you mean 'bar'?"),
     ({"rendered": RENDERED | {"textures": ["dots", "grid"]}}, "2 for 3 shapes; every class needs one of each"),
     ({"rendered": RENDERED | {"mask": 25}}, "25 of 24 training images cannot be pooled"),
     ({"rendered": RENDERED | {"texture_share": 1.5}}, "1.5 is not valid; give at most 1"),
     ({"rendered": None}, "give either 'rendered' or 'folders'"),
     ({"models": [CNN | {"transfer": TRAINING | {"crops": True}}]}, "'crops' is for photographs from 'folders'"),
     ({"models": [CNN | {"masks": MASKS | {"start": "stage_9"}}]}, "'stage_9' is not a stage; did you mean"),
     ({"models": [CNN | {"conditions": ["subnetwork", "random", "scrach"]}]}, "'scrach' is unknown; did you"),
     ({"models": [CNN | {"conditions": ["subnetwork", "scratch"]}]}, "'random' is missing"),
     ({"models": [CNN, CNN]}, "'cnn' stands twice"),
     ({"models": [VIT | {"architecture": VIT["architecture"] | {"patch": 5}}]}, "32 is not a multiple of patch 5"),
     ({"models": []}, "models: is empty; give at least one"),
     ({"models": [CNN | {"paper_model": "resnet50"}]}, "'resnet50' is not valid; give 'resnet18' or 'vit_b'")],
)  # fmt: skip
def test_impossible_sections_are_refused_with_one_line(images, message):
    with pytest.raises(StudyError) as error:
        Study.load(study(**images))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_base_without_any_mask_is_named_and_has_its_other_networks(tmp_path, capsys):
    wild = CNN | {"masks": CNN["masks"] | {"learning_rate": 1e38, "masking": {"start_value": 1e38}}, "seeds": [0]}
    lab = Lab.open(study(models=[wild]), tmp_path)
    found = shape_bias.induced(lab)
    assert set(found["network"]) == {"base", "mixture", "linear", "scratch"}
    assert "not finite" in capsys.readouterr().err
    assert shape_bias.masks(lab)["fault"].notna().all()


def test_a_diverging_run_is_named_and_the_others_go_on(tmp_path, capsys):
    wild = CNN | {"transfer": TRAINING | {"learning_rate": 1e30, "optimizer": "sgd"}, "seeds": [0]}
    found = shape_bias.induced(Lab.open(study(models=[wild]), tmp_path))
    assert set(found["network"]) == {"base", "mask", "linear"}
    assert "not finite" in capsys.readouterr().err
    assert isinstance(shape_bias.table_1(found, comparable=False), pd.DataFrame)


def test_what_inherits_nothing_depends_on_no_mask(lab):
    others = Lab.open(study(models=[CNN | {"masks": CNN["masks"] | {"l0": [1e-5]}}]), lab.store.root)
    scratch, strict = ([steps_of(one).conditions[name] for one in (lab, others)] for name in ("scratch", "strict"))
    assert scratch[0] == scratch[1] and strict[0] != strict[1]
    assert {type(parent) for parent in scratch[0].parents} == {image_sets.SetOfImages}
