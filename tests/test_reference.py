"""The transcribed tables: against the paper's text, typed again here, and against each other.

The printed sizes of the subnetworks and the authors' results behind the figures come from different sources;
that they agree in every mean and standard deviation checks the transcription of both.
"""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from subnet_utils.core.study import Study
from subnet_utils.papers.break_it_down import reference
from subnet_utils.papers.subtask_induction import reference as induction

CONDITION = ["model", "task", "number", "subroutine"]
SUBROUTINES = {
    "inside-contact": {"inside", "contact"},
    "inside-number": {"inside", "number"},
    "number-contact": {"number", "contact"},
    "sv-agreement": {"subject", "verb"},
    "anaphora": {"antecedent", "pronoun"},
}
TOTALS = {
    ("resnet50", "stem"): 27_911_360,
    ("resnet50", "stage_3"): 26_476_544,
    ("resnet50", "stage_4"): 19_398_656,
    ("wide_resnet50", "stem"): 71_222_464,
    ("wide_resnet50", "stage_3"): 67_108_864,
    ("wide_resnet50", "stage_4"): 46_399_488,
    ("bert_small", "layer_1"): 12_845_056,
    ("bert_small", "layer_3"): 6_553_600,
}
ROWS = {f"table{n}": rows for n, rows in enumerate([16, 30, 21, 48, 54, 54, 54, 36, 36, 36, 36, 10, 12, 12, 12], 1)}
ROWS |= {"effects": 132, "selected_masks": 114}


def table(number: int) -> pd.DataFrame:
    return reference.load(f"table{number}")


@pytest.fixture(scope="module")
def sparsity() -> pd.DataFrame:
    frame = pd.concat([table(number) for number in range(5, 12)], ignore_index=True)
    return frame.assign(density=frame["active"] / frame["total"])


@pytest.fixture(scope="module")
def effects() -> pd.DataFrame:
    return reference.load("effects")


def test_every_table_is_there_with_all_its_rows_and_described():
    assert {name: len(reference.load(name)) for name in ROWS} == ROWS
    for room in (reference, induction):
        assert all(f"\n    {name} " in room.__doc__ for name in room.names())


def test_tables_of_subtask_induction():
    """Table 3, typed again; the measured ones are not the paper's, and their column says so."""
    printed = induction.load("subtask_induction")
    table_3 = printed[printed["place"] == "Table 3"].set_index("layers")["paper"]
    assert table_3.to_dict() == {"2": 0.0768, "4": 0.07, "6": 0.047, "8": 0.0355, "10": 0.0356, "12": 0.032}
    text = printed[printed["place"] == "section 4.3"].set_index("condition")
    assert text["paper"].to_dict() == {"scratch": 0.506, "random": 6} and text.loc["scratch", "samples"] == "1000"
    measured = induction.load("induction_measured")
    assert "paper" not in measured and measured["measured"].between(0, 1).all()


@pytest.mark.parametrize("name", ROWS)
def test_tables_are_tidy(name):
    frame = reference.load(name)
    assert not frame.isna().any().any() and not frame.duplicated().any()
    assert set(frame["task"]) <= set(SUBROUTINES)
    models = {"resnet50", "wide_resnet50", "bert_small", "resnet50_simclr", "bert_small_lm", "vit"}
    assert set(frame["model"]) <= models
    if "number" in frame:
        language = frame["task"].isin(["sv-agreement", "anaphora"])
        assert set(frame.loc[language, "number"]) <= {"singular", "plural"}
        assert set(frame.loc[~language, "number"]) <= {""}
    if "subroutine" in frame and name != "table15":
        assert all(row.subroutine in SUBROUTINES[row.task] for row in frame.itertuples())
    for accuracy in frame.filter(regex="accuracy|density|iou|^score$").columns:
        assert frame[accuracy].dtype == float and frame[accuracy].between(-0.75, 1).all()


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="^unknown reference table 'tabel1'; did you mean 'table1'"):
        reference.load("tabel1")


def test_masked_totals_are_the_eight_printed_ones(sparsity):
    architecture = sparsity["model"].str.removesuffix("_simclr").str.removesuffix("_lm")
    printed = sparsity.groupby([architecture, "mask_start"])["total"].unique()
    assert {key: list(totals) for key, totals in printed.items()} == {key: [n] for key, n in TOTALS.items()}


def test_every_subnetwork_has_three_bases_three_masks_and_one_start(sparsity):
    assert ((sparsity["active"] > 0) & (sparsity["active"] <= sparsity["total"])).all()
    assert sparsity.groupby(CONDITION).size().eq(9).all()
    by_base = sparsity.groupby([*CONDITION, "base"])
    assert by_base["mask_start"].nunique().eq(1).all()
    assert set(by_base["mask"].agg(tuple)) == {(1, 2, 3)}


def test_sparsity_matches_the_densities_behind_the_figures(sparsity, effects):
    """All 34 trained conditions, to the four printed digits, means and standard deviations (n - 1)."""
    subnetworks = effects[(effects["condition"] == "trained") & (effects["network"] == "subnetwork")]
    ours = sparsity.groupby(CONDITION)["density"].agg(["mean", "std"]).reset_index()
    both = ours.merge(subnetworks, on=CONDITION, how="outer", indicator=True)
    assert len(both) == 34 and (both["_merge"] == "both").all()
    assert (both["mean"] - both["density_mean"]).abs().max() <= 0.5e-4 + 1e-12
    assert (both["std"] - both["density_sd"]).abs().max() <= 0.5e-4 + 1e-12


def test_ablated_density_is_the_complement(effects):
    wide = effects.pivot(index=["condition", *CONDITION], columns="network", values=["density_mean", "density_sd"])
    np.testing.assert_allclose(wide["density_mean"].sum(axis=1), 1, atol=1.01e-4)
    np.testing.assert_allclose(wide["density_sd"]["ablated"], wide["density_sd"]["subnetwork"], atol=1.01e-4)


def test_selected_masks_start_where_the_tables_say_under_another_numbering(sparsity):
    """In every model, task and number one permutation of the bases fits both subroutines, not always 123."""
    selected = reference.load("selected_masks").query("condition == 'trained'")
    identity = []
    for key, printed in sparsity.groupby(CONDITION[:3]):
        theirs = selected[(selected[CONDITION[:3]] == list(key)).all(axis=1)]
        starts = theirs.set_index(["subroutine", "base"])["mask_start"]
        pairs = printed.drop_duplicates(["subroutine", "base"])
        fits = [
            order
            for order in permutations((1, 2, 3))
            if all(starts[row.subroutine, order[row.base - 1]] == row.mask_start for row in pairs.itertuples())
        ]
        assert fits, key
        identity.append((1, 2, 3) in fits)
    assert len(identity) == 17 and not all(identity)


@pytest.mark.parametrize(
    ("number", "column", "where", "value"),
    [
        (1, "intercept_z", {"model": "resnet50", "task": "inside-contact", "subroutine": "inside"}, 50.13),
        (1, "ablated_chi2", {"model": "wide_resnet50", "task": "number-contact", "subroutine": "contact"}, 296.96),
        (2, "accuracy", {"model": "resnet50", "base": 3, "task": "inside-contact"}, 0.759),
        (4, "accuracy", {"layers": 12, "batch_size": 32, "learning_rate": 1e-5, "task": "number-contact"}, 0.86),
        (5, "active", {"task": "number-contact", "subroutine": "contact", "base": 1, "mask": 1}, 8_059_720),
        (6, "active", {"task": "inside-number", "subroutine": "number", "base": 1, "mask": 3}, 14_919_954),
        (7, "active", {"task": "inside-contact", "subroutine": "contact", "base": 2, "mask": 2}, 6_213_208),
        (8, "active", {"number": "plural", "subroutine": "verb", "base": 2, "mask": 3}, 56_134),
        (9, "active", {"number": "plural", "subroutine": "antecedent", "base": 3, "mask": 2}, 5_134_758),
        (10, "active", {"number": "singular", "subroutine": "subject", "base": 3, "mask": 1}, 8_514),
        (11, "active", {"number": "singular", "subroutine": "pronoun", "base": 3, "mask": 2}, 1_458_843),
        (12, "random_z", {"model": "resnet50", "task": "inside-contact", "subroutine": "inside"}, -1.36),
        (13, "iou", {"layer": "mlp.model.0"}, 0.994),
        (14, "iou", {"layer": "backbone.layer4.0.downsample.0"}, 0.257),
        (15, "iou", {"layer": "backbone.layer4.2.conv2"}, 0.027),
    ],
)
def test_values_typed_again(number, column, where, value):
    (found,) = table(number).loc[(table(number)[list(where)] == list(where.values())).all(axis=1), column]
    assert found == value


def test_bases_below_90_percent_are_those_that_the_paper_names():
    assert (table(2)["accuracy"] < 0.9).sum() == 1
    poor = table(3)[table(3)["accuracy"] < 0.9]
    assert list(zip(poor["task"], poor["number"], poor["base"], poor["accuracy"], strict=True)) == [
        ("anaphora", "singular", 2, 0.655),
        ("anaphora", "singular", 3, 0.635),
    ]
    assert table(4)["accuracy"].max() == 0.86 and table(4)["accuracy"].min() == 0.22


def test_difference_is_target_minus_other_where_nothing_was_clamped(effects):
    """Mean difference = mean target - mean other, but for clamping, which means far above chance rule out."""
    certain = (effects["target_accuracy_mean"] - 4 * effects["target_accuracy_sd"] > 0.25) & (
        effects["other_accuracy_mean"] - 4 * effects["other_accuracy_sd"] > 0.25
    )
    assert certain.sum() >= 5
    plain = effects["target_accuracy_mean"] - effects["other_accuracy_mean"]
    np.testing.assert_allclose(effects["difference_mean"][certain], plain[certain], atol=1.51e-4)


def test_the_ledger_of_break_it_down_says_what_its_profiles_do():
    ledger = reference.load("ledger").set_index("topic")["ours"]
    flipped = {name: {one.base.flips for one in Study.load(name).break_it_down.experiments if one.modality == "vision"}
               for name in ("paper", "laptop", "tiny")}  # fmt: skip
    assert flipped == {"paper": {False}, "laptop": {True}, "tiny": {True}}
    assert ledger["mirrored images"].startswith("none at the profile paper; training images are mirrored")
    clipped = {(one.model, task): one.base.clip for one in Study.load("paper").break_it_down.experiments
               for task in one.tasks if one.base.clip}  # fmt: skip
    assert clipped == {("bert_small", f"anaphora-{number}"): 1.0 for number in ("singular", "plural")}
    assert ledger["gradients"].startswith("BERT-small on anaphora, at the profile paper: clipped to a norm of 1")


def test_the_ledger_of_subtask_induction_says_what_its_profile_does():
    ledger = induction.load("ledger").set_index("where")
    assert list(ledger) == ["printed", "released", "ours"] and (ledger != "").all(axis=None)
    assert ledger.index.is_unique and ledger.index.str.startswith(("Arithmetic, ", "Images, ")).all()
    ours, released = (dict(zip(ledger.index.str.extract(r"\((.*)\)")[0], ledger[name], strict=True))
                      for name in ("ours", "released"))  # fmt: skip
    section = Study.load("paper").subtask_induction
    vit = section.images.models[1]
    assert vit.architecture.pretrained in ours["weights of ViT"] and "patch16-224," in released["weights of ViT"]
    base = f"{vit.base.optimizer.upper()}, {vit.base.learning_rate:.0e}".replace("e-0", "e-")
    assert ours["classifier of ViT's base"].startswith(f"{base}, {vit.base.epochs} epochs")
    assert released["classifier of ViT's base"] == "AdamW, 2e-3, 5 epochs, on the 13.9k images"
    assert vit.transfer.crops and vit.transfer.flips and "`crops` and `flips`" in ours["augmentation"]
    tried = ledger["printed"]["Arithmetic, appendix B.1 (lambda)"]
    assert section.arithmetic.masks.l0 == tuple(float(word.strip(",")) for word in tried.split() if "e-" in word)
    assert "1e-7 at all six depths" in released["lambda"] and "AdamW, 1e-3" in released["data mixture"]
    assert "original image" in released["where pixels are pooled"]
