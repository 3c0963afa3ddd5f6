"""A network taken apart: parts are scored as effects are, answers are the network's, algebra is that of the masks."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.papers.break_it_down import dissection, tables
from subnet_utils.papers.break_it_down.figures import dissection as dissection_figures
from subnet_utils.papers.break_it_down.figures import panels, weight_map
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.search import Point
from subnet_utils.tasks import agreement
from tests import micro
from tests.test_figures import assert_readable

pytestmark = pytest.mark.usefixtures("paper_style")


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    return Lab.open(micro.study(precision="float32"), tmp_path_factory.mktemp("dissection"))


@pytest.fixture(scope="module")
def pairs(lab) -> list[dissection.Parts]:
    """The language network's, then the vision network's."""
    return dissection.examined(lab)


def subnetwork(*weights: bool, name: str = "w", network: str = "n") -> Subnetwork:
    return Subnetwork({name: torch.tensor(weights)}, network)


def test_one_network_of_each_modality_is_examined(lab, pairs):
    assert [pair.base.modality for pair in pairs] == ["language", "vision"]
    assert [[mask.subroutine for mask in pair.masks] for pair in pairs] == [["subject", "verb"], ["number", "contact"]]
    assert all(mask.seed == 0 for pair in pairs for mask in pair.masks) and len(dissection.mask_pairs(lab)) == 4


def test_a_network_that_has_learned_is_examined_first(lab, monkeypatch):
    last = {pair.base.modality: pair for pair in dissection.mask_pairs(lab)}
    monkeypatch.setattr(type(pair := next(iter(last.values())).base), "result",
                        lambda network, lab: {"test_accuracy": float(network.seed == 1)})  # fmt: skip
    assert pair.seed == 1 and dissection.examined(lab) == list(last.values())


def test_a_base_model_needs_a_mask_of_each_subroutine(lab, monkeypatch):
    used = tables.used_masks(lab)
    monkeypatch.setattr(dissection, "used_masks", lambda lab: [mask for mask in used if mask.subroutine != "verb"])
    assert {pair.base.modality for pair in dissection.mask_pairs(lab)} == {"vision"}
    monkeypatch.setattr(dissection, "used_masks", lambda lab: [mask for mask in used if mask.subroutine == "verb"])
    with pytest.raises(ValueError, match="no base model has a subnetwork of each subroutine; lower masks"):
        dissection.mask_pairs(lab)


def test_parts_are_each_alone_and_what_is_left_without_it():
    found = {"subject": subnetwork(True, True, False, False), "verb": subnetwork(False, True, True, False)}
    made = dissection.parts(found) | dissection.combined(found)
    kept = {name: one.masks["w"].int().tolist() for name, one in made.items()}
    assert kept == {
        "subject alone": [1, 1, 0, 0], "without subject": [0, 0, 1, 1],
        "verb alone": [0, 1, 1, 0], "without verb": [1, 0, 0, 1],
        "both together": [1, 1, 1, 0], "what both share": [0, 1, 0, 0], "without either": [0, 0, 0, 1],
    }  # fmt: skip


def test_masks_of_different_starts_are_not_put_together():
    assert dissection.combined({"a": subnetwork(True), "b": subnetwork(True, name="v")}) == {}
    assert dissection.combined({"a": subnetwork(True)}) == {}


@pytest.mark.parametrize("modality", [0, 1], ids=["language", "vision"])
def test_parts_are_scored_as_effects_are(lab, pairs, modality):
    pair = pairs[modality]
    table = dissection.accuracies(lab, pair, dissection.parts(dissection.subnetworks(lab, pair)))
    (first, second), tests = (mask.subroutine for mask in pair.masks), {}
    for mask in pair.masks:
        other = second if mask.subroutine == first else first
        for row in Effect.of(mask).result(lab):
            part = f"{mask.subroutine} alone" if row["network"] == "subnetwork" else f"without {mask.subroutine}"
            tests[part] = {
                f"Test {mask.subroutine}": row["target_accuracy"], f"Test {other}": row["other_accuracy"],
                "whole task": row["compositional_accuracy"], "weights kept": row["density"],
            }  # fmt: skip
    expected = pd.DataFrame(tests).T.loc[table.index[1:], table.columns]
    np.testing.assert_allclose(table.iloc[1:].to_numpy(), expected.to_numpy())
    whole = tables.train_bases(lab).set_index(["task", "base_seed"])["test_accuracy"]
    task = tables.identity(pair.base)["task"]
    assert table.loc[dissection.WHOLE, "whole task"] == whole[task, 0]
    assert table.loc[dissection.WHOLE, "weights kept"] == 1


@pytest.mark.parametrize("modality", [0, 1], ids=["language", "vision"])
def test_answers_are_those_of_the_networks(lab, pairs, modality):
    pair = pairs[modality]
    found = dissection.subnetworks(lab, pair)
    shown = dissection.dissect(lab, pair, dissection.parts(found), example=3)
    assert (shown.answers.groupby(["part", "subroutine"])["probability"].sum() - 1).abs().max() < 1e-6
    second = pair.masks[1].subroutine
    data = pair.base.data(f"probe-{second}", "test").load(lab)
    with torch.no_grad():
        embeddings = (~found[second]).apply(pair.base.load(lab))(data.items[data.examples[3]])
    cosines = torch.nn.functional.cosine_similarity(embeddings[:, None], embeddings[None], dim=-1)
    own = shown.answers[shown.answers["part"].eq(f"without {second}") & shown.answers["subroutine"].eq(second)]
    np.testing.assert_allclose(own["probability"], (-cosines.sum(dim=1)).softmax(dim=0), atol=1e-5)


def test_items_are_shown_as_they_are_read(lab, pairs):
    language, vision = (dissection.dissect(lab, pair, {}) for pair in pairs)
    kinds = agreement.sentences("sv-agreement-singular").groupby("sentence")["kind"].first()
    assert [kinds[sentence] for sentence in language.items["verb"]] == [0, 0, 0, 2]
    assert [kinds[sentence] for sentence in language.items["subject"]] == [0, 0, 0, 1]
    assert vision.items["number"].shape == (4, 3, 48, 48) and vision.items["number"].dtype == torch.uint8
    assert list(language.accuracies.index) == ["whole network"]


def test_a_pair_of_masks_says_what_it_is(lab, pairs):
    assert [pair.title for pair in pairs] == [
        "bert_micro sv-agreement singular base 0",
        "resnet_micro number-contact base 0",
    ]
    assert [pair.heads for pair in pairs] == [2, None]
    text = weight_map.described(lab, pairs[0])
    assert text.startswith("bert_micro sv-agreement singular base 0: every weight that both masks cover, by")
    assert "part attention heads" in text and "part attention heads" not in weight_map.described(lab, pairs[1])
    early, late = (mask.mask(lab) for mask in pairs[1].masks)
    early, late = early.but(point=Point(0.01, 0.05, "stage_2")), late.but(point=Point(0.01, 0.05, "stage_3"))
    for masks in ((early, late), (late, early)):
        text = weight_map.described(lab, pairs[1].but(masks=masks))
        assert "cover, from stage 3 on (one of them starts before), by" in text


def test_an_example_that_is_not_there_and_a_part_of_another_network_are_refused(lab, pairs):
    with pytest.raises(IndexError, match="Test subject has no example 16; give a number from 0 to 15"):
        dissection.dissect(lab, pairs[0], {}, example=16)
    with pytest.raises(WrongNetwork):
        dissection.accuracies(lab, pairs[0], dissection.parts(dissection.subnetworks(lab, pairs[1])))


def test_parts_of_every_base_model_in_one_table(lab):
    table = dissection.assembled(lab)
    bases = table.groupby(["model", "base_model"])
    assert bases.ngroups == 4 and set(table["part"]) <= set(dissection.PARTS)
    assert all(list(rows["part"])[0] == dissection.WHOLE and rows["part"].is_unique for _, rows in bases)
    pair = dissection.mask_pairs(lab)[0]
    drawn = [dissection.random_like(dissection.subnetworks(lab, pair)["verb"], seed=draw) for draw in range(3)]
    each = dissection.accuracies(lab, pair, dict(enumerate(drawn))).loc[[0, 1, 2]].mean()
    row = table[table["base_model"] == "singular-0"].set_index("part").loc["random like B"]
    assert [row["test_a"], row["test_b"], row["whole_task"], row["density"]] == pytest.approx(each.tolist())
    knowing = table.set_index(["model", "part"])["knows_one"].dropna().groupby(level=[0, 1]).first()
    assert set(knowing.index.get_level_values("part")) == {"A alone", "B alone"}
    data = pair.base.test.load(lab)
    subject_wrong = int((data.kinds[data.examples[:, 3]] == 1).sum()) / len(data)
    assert knowing["bert_micro", "A alone"] == pytest.approx(subject_wrong + 0.25 * (1 - subject_wrong))
    # in language each odd one violates A or B; in vision a third of them both
    language, vision = (knowing[model] for model in ("bert_micro", "resnet_micro"))
    assert language.sum() == pytest.approx(1.25) and vision.sum() > 1.25 and knowing.between(0.25, 1).all()


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_dissection_frames_the_odd_one_and_writes_the_answer_bold(lab, pairs):
    for pair in pairs:
        shown = dissection.dissect(lab, pair, dissection.parts(dissection.subnetworks(lab, pair)))
        figure = dissection_figures.one_example(shown)
        maps = [ax for ax in figure.axes if ax.collections]
        for ax, (_, answers) in zip(maps, shown.answers.groupby("subroutine", sort=False), strict=True):
            table = answers.pivot(index="part", columns="item", values="probability").loc[shown.accuracies.index]
            numbers = [text for text in ax.texts if text.get_text() != "accuracy"]
            bold = [text.get_position() for text in numbers if text.get_weight() == "bold"]
            assert bold == [(int(row.argmax()) + 0.5, place + 0.5) for place, row in enumerate(table.to_numpy())]
            (frame,) = ax.patches
            assert (frame.get_x(), frame.get_width(), frame.get_height()) == (3, 1, 5)
        if pair.base.modality == "language":
            words = " ".join(text.get_text().replace("\n", " ") for ax in figure.axes for text in ax.texts)
            assert all(sentence in words for items in shown.items.values() for sentence in items)
        plt.close(figure)


def test_parts_that_cannot_be_had_are_said_so():
    rows = [{"part": part, "whole_task": 0.5, "knows_one": 0.625 if part == "A alone" else np.nan}
            for part in dissection.PARTS if part != dissection.SHARED]  # fmt: skip
    figure, ax = plt.subplots(figsize=(2.5, 2.6))
    dissection_figures.assembled(ax, pd.DataFrame(rows), {"A": "antecedent", "B": "pronoun"})
    (text,) = ax.texts
    figure.draw_without_rendering()
    assert text.get_text() == "different starts"
    assert text.get_window_extent().x1 < ax.get_window_extent().x1, "it leaves the axis"
    (expected,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert expected.get_xydata().tolist() == [[0.625, 1.0]]


def test_the_legend_of_parts_names_every_mark_and_color(lab):
    figure = panels.assembled(dissection.assembled(lab))
    (legend,) = figure.legends
    handles = {text.get_text(): handle for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    colors = {handle.get_color() for label, handle in handles.items() if handle.get_marker() == "o"}
    (ax, *_) = [ax for ax in figure.axes if ax.get_title()]
    assert colors == {line.get_color() for line in ax.lines if line.get_marker() == "o"} and len(colors) == 4
    assert_readable(figure)


def test_networks_that_did_not_learn_are_left_out_of_the_parts(lab):
    table = dissection.assembled(lab)
    assert all("(below 90%)" in ax.get_title() for ax in panels.assembled(table).axes if ax.get_title())
    half = table.assign(base_accuracy=table["model"].map({"bert_micro": 1.0, "resnet_micro": 0.5}))
    (ax,) = [ax for ax in panels.assembled(half).axes if ax.get_title()]
    assert ax.get_title() == "bert_micro\nsv-agreement singular"
    assert [label.get_text() for label in ax.get_yticklabels()][1:3] == ["subject alone", "verb alone"]


def test_means_are_over_the_base_models_that_learned(lab):
    table = dissection.assembled(lab)
    assert (dissection.mean_parts(table)["n_bases"] == 2).all()  # none has learned
    one = table.assign(base_accuracy=(table["base_seed"] == 1).astype(float))
    means = dissection.mean_parts(one)
    own = one[one["base_seed"] == 1]
    assert (means["n_bases"] == 1).all() and (means["least"] == means["most"]).all()
    np.testing.assert_allclose(means["whole_task"], own["whole_task"])
    np.testing.assert_allclose(means["density"], own["density"])
