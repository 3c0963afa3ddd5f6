"""Subtask induction end to end at the smallest size, and its tables against a few lines of numpy."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.step import Fault
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks import discover
from subnet_utils.papers.subtask_induction import arithmetic_claims, arithmetic_steps, reference
from subnet_utils.papers.subtask_induction import arithmetic_figures as induction_figures
from subnet_utils.papers.subtask_induction import arithmetic_tables as subtask_induction
from subnet_utils.papers.subtask_induction.conditions import CONDITIONS, VARIANTS
from subnet_utils.training import TrainingDiverged
from tests.test_figures import assert_readable

ARITHMETIC = {
    "max": 12, "layers": [1, 2], "width": 16, "heads": 2, "mlp_width": 32, "seeds": [0, 1], "validation": 20,
    "test": 30, "dropout": 0.0, "draws": 3,
    "base": {"rows": 60, "epochs": 3, "batch_size": 20, "learning_rate": 0.01},
    "masks": {"rows": 60, "epochs": 3, "batch_size": 20, "learning_rate": 0.1, "l0": [0.0001, 0.0]},
    "transfer": {"samples": [0, 20], "epochs": 3, "batch_size": 20, "learning_rate": 0.01, "further_samples": [20]},
    "inductions": [{}, {"target": "a^3+ab"}, {"source": "a^2+b^2", "subtask": "a^2", "target": "a^3+ab"}],
}  # fmt: skip


def study(**changes) -> dict:
    section = {"arithmetic": ARITHMETIC | changes}
    return {"name": "micro", "compute": {"workers": 1}, "subtask_induction": section}


def steps(lab: Lab, kind: type, **about) -> list:
    """Steps of a kind, those whose mask or source network is about this."""
    found = [step for step in papers()["subtask_induction"].steps_of(lab) if type(step) is kind]
    return [step for step in found if about.items() <= step.first.about.items()]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(study(), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def table(lab):
    return subtask_induction.transfers(lab)


def test_sources_are_shared_and_further_inductions_are_at_the_deepest(lab):
    made = subtask_induction.sources(lab)
    about = {(row.source, row.layers, row.seed) for row in made.itertuples()}
    assert about == {("a+ab", n, s) for n in (1, 2) for s in (0, 1)} | {("a^2+b^2", 2, s) for s in (0, 1)}
    assert made["key"].is_unique


def test_one_mask_of_each_search_is_chosen(lab):
    found = subtask_induction.subtasks(lab)
    assert len(found) == 2 * 6
    assert (found.groupby(["source", "subtask", "layers", "seed"])["chosen"].sum() == 1).all()
    sizes = subtask_induction.densities(found, profile="micro")
    assert set(sizes["verdict"]) == {"not comparable at this profile"}
    row = sizes[(sizes["source"] == "a+ab") & (sizes["layers"] == 2)].iloc[0]
    assert row["paper"] == 0.0768 and 0 <= row["ours"] <= 1 and row["n_runs"] == 2
    assert sizes[sizes["layers"] == 1]["paper"].isna().all()


def test_every_condition_is_trained_on_every_number_of_rows(lab, table):
    first = table[table["target"] == "a^2+ab"]
    asked = 2 * 2 * 2 * len(CONDITIONS)
    without = first[first["condition"] != "random_complement"]  # impossible with a dense mask, which these may be
    assert len(without) == asked / len(CONDITIONS) * (len(CONDITIONS) - 1) and len(first) <= asked
    further = table[table["target"] == "a^3+ab"]
    assert set(further["layers"]) == {2} and set(further["samples"]) == {20}
    assert set(further["condition"]) == set(arithmetic_steps.settings_of(lab).transfer.further_conditions)
    assert table["test_accuracy"].between(0, 1).all()
    again = subtask_induction.transfers(lab)
    pd.testing.assert_frame_equal(table, again)


def test_changing_a_parameter_makes_what_depends_on_it_anew(lab):
    def names(**changes):
        other = Lab.open(study(**changes), lab.store.root)
        groups = (arithmetic_steps.sources, arithmetic_steps.chosen_masks, arithmetic_steps.transfers)
        return [{step.name for step in group(other)} for group in groups]

    sources, masks, transfers = names()
    transfer, search = ARITHMETIC["transfer"], ARITHMETIC["masks"]
    changed = names(transfer=transfer | {"epochs": 2})
    assert changed[:2] == [sources, masks] and not changed[2] & transfers
    more = names(transfer=transfer | {"samples": [0, 10, 20]}, seeds=[0, 1, 2], draws=9)
    assert sources < more[0] and masks < more[1] and transfers < more[2]
    changed = names(masks=search | {"epochs": 2})
    assert changed[0] == sources and not changed[1] & masks and not changed[2] & transfers
    assert not names(p=5)[0] & sources


@pytest.mark.parametrize("method", ["gumbel_sigmoid", "magnitude", "weight_change"])
def test_masks_are_found_by_the_method_that_a_profile_names(lab, tmp_path, method):
    search = ARITHMETIC["masks"] | {"masking": {"method": method}}
    other = Lab.open(study(masks=search, seeds=[0], layers=[1], inductions=[{}]), tmp_path)
    found = subtask_induction.subtasks(other)
    assert len(found) == (2 if method == "gumbel_sigmoid" else 1) and found["chosen"].sum() == 1
    assert set(found["l0"].dropna()) == ({0.0001, 0.0} if method == "gumbel_sigmoid" else set())
    assert found["density"].between(0, 1).all() and not set(found["key"]) & set(subtask_induction.subtasks(lab)["key"])
    if method != "gumbel_sigmoid":
        assert found["density"].tolist() == pytest.approx([0.2], abs=1e-3)
    assert len(subtask_induction.ablations(other)) == 3 + 3


def test_ablations_are_tested_against_random_ones(lab):
    table = subtask_induction.ablations(lab)
    assert len(table) == 6 * (3 + 3)
    tests = subtask_induction.ablation_tests(table)
    assert set(tests["p"]) <= {0.25, 0.5, 0.75, 1.0}
    own = table[(table["source"] == "a+ab") & (table["layers"] == 1) & (table["network"] == "ablated")]
    row = tests[(tests["source"] == "a+ab") & (tests["layers"] == 1)].iloc[0]
    assert row["ablated"] == pytest.approx(own["source_accuracy"].mean())
    assert (
        row["lost"] == pytest.approx(row["random_ablated"] - row["ablated"])
        and row["low"] <= row["lost"] <= row["high"]
    )
    ax = induction_figures.ablations(plt.figure().subplots(), tests, table)
    bars = tests[["whole_network", "random_ablated", "ablated"]].to_numpy().ravel()
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(list(bars))
    plt.close("all")


def made_up() -> pd.DataFrame:
    """Two seeds, three numbers of rows; the control never gets there, the subnetwork does in one seed."""
    values = {("subnetwork", 0): (0.5, 0.99, 1.0), ("subnetwork", 1): (0.4, 0.7, 0.9),
              ("random", 0): (0.2, 0.3, 0.4), ("random", 1): (0.2, 0.2, 0.2)}  # fmt: skip
    return pd.DataFrame(
        {"source": "a+ab", "subtask": "ab", "target": "a^2+ab", "layers": 2, "condition": condition, "seed": seed,
         "samples": samples, "chance": 0.25, "test_accuracy": accuracy}
        for (condition, seed), accuracies in values.items()
        for samples, accuracy in zip((10, 100, 1000), accuracies, strict=True)
    )  # fmt: skip


def test_one_seed_is_enough_for_every_table_and_figure():
    one = made_up().query("seed == 0")
    curves = subtask_induction.curves(one)
    assert curves["low"].isna().all() and len(subtask_induction.gaps(one)) == 1
    assert len(induction_figures.panels([("one", curves)]).axes) == len(induction_figures.variants(curves).axes) == 1


def needing(rows: dict[str, list[tuple[int, ...]]], tried=(0, 100, 200, 400, 800, 1600)) -> pd.DataFrame:
    """Accuracies of conditions that reach 99% with so many rows: of each condition a tuple of depths for every seed."""
    return pd.DataFrame(
        {"condition": condition, "seed": seed, "layers": layers, "samples": n, "test_accuracy": float(n >= first)}
        for condition, seeds in rows.items()
        for seed, depths in enumerate(seeds)
        for layers, first in enumerate(depths)
        for n in tried
    )  # fmt: skip


def verdicts(table, **options) -> list[str]:
    found = arithmetic_claims.claims(table, profile="paper", **options)
    assert set(found["verdict"]) <= {"holds", "does not hold", "cannot be told"}
    return found["verdict"].tolist()


def test_how_many_times_the_rows_a_random_subnetwork_needs():
    own = [(100, 100), (200, 100), (100, 200)]
    found = arithmetic_claims.ratio(needing({"subnetwork": own, "random": [(800, 400), (800, 800), (400, 1600)]}))
    logs = [(math.log(8) + math.log(4)) / 2, (math.log(4) + math.log(8)) / 2, (math.log(4) + math.log(8)) / 2]
    assert found["n_runs"] == 3 and found["ours"] == pytest.approx(math.exp(sum(logs) / 3))
    # the interval against scipy's, on other numbers
    found = arithmetic_claims.ratio(needing({"subnetwork": [(100,)] * 3, "random": [(200,), (400,), (1600,)]}))
    expected = stats.t.interval(0.95, 2, *(f(np.log([2, 4, 16])) for f in (np.mean, stats.sem)))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.exp(expected)))


@pytest.mark.parametrize(
    ("random", "own", "expected"),
    [([(800, 400)] * 3, [(100, 100)] * 3, ["holds", "holds"]),  # 5.7 times
     ([(200, 100)] * 3, [(100, 100)] * 3, ["holds", "does not hold"]),  # 1.4
     ([(100, 100)] * 3, [(100, 200)] * 3, ["does not hold", "does not hold"]),
     ([(9999, 400)] * 3, [(400, 400)] * 3, ["holds", "cannot be told"]),  # at least twice
     ([(9999, 1600)] * 3, [(100, 100)] * 3, ["holds", "does not hold"]),  # at least 16 times
     ([(400, 400)] * 3, [(9999, 400)] * 3, ["does not hold", "does not hold"]),  # half at most
     ([(9999, 9999)] * 3, [(9999, 9999)] * 3, ["cannot be told"] * 2),
     ([(800, 400)], [(100, 100)], ["cannot be told"] * 2)],
)  # fmt: skip
def test_the_claim_of_six_times_the_data_is_judged(random, own, expected):
    assert verdicts(needing({"subnetwork": own, "random": random}))[1:3] == expected


@pytest.mark.parametrize(
    ("shift", "expected"),
    [((0.01, -0.01, 0.02), "holds"), ((0.2, 0.21, 0.22), "does not hold"), ((0.0, 0.1, 0.2), "cannot be told")],
)
def test_both_random_controls_alike_is_judged(shift, expected):
    table = needing({"random": [(400,)] * 3, "random_complement": [(400,)] * 3})
    other = table["condition"] == "random_complement"
    table.loc[other, "test_accuracy"] += table.loc[other, "seed"].map(dict(enumerate(shift)))
    row = arithmetic_claims.claims(table, profile="tiny").iloc[3]
    assert row["verdict"] == expected and row["ours"] == pytest.approx(np.mean(shift)) and row["n_runs"] == 3
    assert verdicts(table[~other])[3] == "cannot be told"


FIGURE_7 = (
    "subnetwork", "subnetwork_unfrozen", "random", "random_unfrozen", "random_as_released",
    "random_as_released_unfrozen", "full",
)  # fmt: skip


def test_what_training_a_random_subnetwork_on_is_worth_is_judged_under_both_controls():
    """Accuracies as measured at 2 layers with 200 rows: the gain is there under the released control alone."""
    values = dict(zip(FIGURE_7, (0.75, 0.76, 0.546, 0.546, 0.575, 0.77, 0.784), strict=True))
    rows = [(name, seed, value + seed / 100) for name, value in values.items() for seed in range(3)]
    table = pd.DataFrame(rows, columns=["condition", "seed", "test_accuracy"]).assign(layers=2, samples=200)
    wobble = (table["condition"] == "random_unfrozen") * table["seed"].map({0: 0.02, 1: -0.02, 2: 0.03})
    table["test_accuracy"] += wobble
    found = arithmetic_claims.frozen_or_not(table)
    assert found["ours"].tolist() == pytest.approx([0.01, 0.01, 0.01 - 0.238, 0.195, -0.014])
    assert found["verdict"].tolist() == ["holds", "cannot be told", "does not hold", "holds", "holds"]
    without = arithmetic_claims.frozen_or_not(table[table["condition"] != "random_as_released_unfrozen"])
    assert without["verdict"].tolist() == [*found["verdict"][:3], "cannot be told", "cannot be told"]


def test_a_condition_that_came_later_changes_no_key(lab):
    before = [name for name in CONDITIONS if name != "random_as_released_unfrozen"]
    other = Lab.open(study(transfer=ARITHMETIC["transfer"] | {"conditions": before}), lab.store.root)
    few = Lab.open(study(transfer=ARITHMETIC["transfer"] | {"alone_samples": [20]}), lab.store.root)
    keys, more, less = ({step.name for step in arithmetic_steps.transfers(one)} for one in (other, lab, few))
    assert keys < less < more and (len(less - keys), len(more - keys)) == (2 * 2, 2 * 2 * 2)


def test_figure_7_has_a_panel_for_each_control(table):
    curves = subtask_induction.curves(table[table["target"] == "a^2+ab"])
    axes = induction_figures.frozen_or_not([(f"{n} layers", rows) for n, rows in curves.groupby("layers")]).axes
    titles = [f"{n} layers, random {reading}" for n in (1, 2) for reading in ("as in the text", "as released")]
    assert [ax.get_title() for ax in axes] == titles
    drawn = [{line.get_label() for line in ax.lines} & {induction_figures.LINES[name].label for name in FIGURE_7}
             for ax in axes]  # fmt: skip
    assert [len(labels) for labels in drawn] == [5, 3, 5, 3]


@pytest.mark.parametrize(
    ("accuracies", "profile", "expected"),
    [((0.50, 0.51, 0.50), "paper", "holds"), ((0.50, 0.51, 0.50), "laptop", "cannot be told"),
     ((0.7, 0.71, 0.7), "paper", "does not hold"), ((0.4, 0.5, 0.6), "paper", "cannot be told")],
)  # fmt: skip
def test_the_accuracy_from_scratch_is_judged_at_the_papers_size(accuracies, profile, expected):
    table = needing({"scratch": [(9999, 9999)] * 3}, tried=(400, 1000))
    table["test_accuracy"] = table["seed"].map(dict(enumerate(accuracies))).where(table["samples"] == 1000, 0.1)
    row = arithmetic_claims.claims(table, profile=profile).iloc[0]
    assert (row["paper"], row["verdict"]) == (0.506, expected) and row["ours"] == pytest.approx(np.mean(accuracies))


def test_samples_needed_with_censored_seeds():
    needed = subtask_induction.samples_needed(made_up()).set_index("condition")
    assert needed.loc["subnetwork", ["median", "low", "high", "censored"]].tolist() == [math.inf, 100, math.inf, 1]
    assert needed.loc["random", "censored"] == 2 and needed.loc["random", "low"] == math.inf
    eased = subtask_induction.samples_needed(made_up(), level=0.7).set_index("condition")
    assert eased.loc["subnetwork", "median"] == 100


def test_gaps_are_means_of_paired_differences():
    (row,) = subtask_induction.gaps(made_up()).to_dict("records")
    by_seed = np.array([np.mean([0.3, 0.69, 0.6]), np.mean([0.2, 0.5, 0.7])])
    half = 12.7062047 * by_seed.std(ddof=1) / math.sqrt(2)
    assert row["variant"] == "text" and row["n_runs"] == 2
    assert row["advantage"] == pytest.approx(by_seed.mean())
    assert (row["low"], row["high"]) == pytest.approx((by_seed.mean() - half, by_seed.mean() + half))


def test_gaps_at_each_number_of_rows_are_means_over_seeds_of_paired_differences():
    deeper = made_up().assign(layers=4, test_accuracy=lambda frame: frame["test_accuracy"] / 2)
    other = made_up().assign(target="a^3+ab").query("not (condition == 'random' and samples == 100)")
    table = subtask_induction.gaps_by_samples(pd.concat([made_up(), deeper, other]))
    assert set(table["control"]) == {"random"} and table["n_runs"].eq(2).all()
    assert table[["target", "layers", "samples"]].values.tolist() == [
        *(["a^2+ab", layers, samples] for layers in (2, 4, "all") for samples in (10, 100, 1000)),
        ["a^3+ab", 2, 10], ["a^3+ab", 2, 1000],
    ]  # fmt: skip
    by_seed = np.array([0.99 - 0.3, 0.7 - 0.2])
    for layers, factor in ((2, 1), (4, 0.5), ("all", 0.75)):
        (row,) = table[(table["layers"] == layers) & (table["samples"] == 100)].to_dict("records")
        half = factor * 12.7062047 * by_seed.std(ddof=1) / math.sqrt(2)
        assert row["advantage"] == pytest.approx(factor * by_seed.mean())
        assert row["low"] == pytest.approx(row["advantage"] - half)
        assert row["subnetwork_mean"] - row["control_mean"] == pytest.approx(row["advantage"])


@pytest.mark.usefixtures("paper_style")
def test_no_point_of_an_advantage_hides_another():
    controls, rows = ("scratch", "embed_only", "random"), (50, 100, 200, 400, 800, 1600)
    gaps = pd.DataFrame(
        [{"subtask": subtask, "target": "a^2+ab", "layers": 2, "control": control, "samples": samples,
          "advantage": 0.1, "low": 0.0, "high": 0.2, "n_runs": 3}
         for subtask in ("ab", "a^2", "b^2", "a^3") for control in controls for samples in rows]
    )  # fmt: skip
    figure = induction_figures.advantages(gaps)
    assert_readable(figure)
    ax = figure.axes[0]
    points = [line.get_transform().transform(line.get_xydata()) for line in ax.lines if line.get_marker() == "o"]
    x = np.sort(np.concatenate(points)[:, 0]) * 72 / figure.dpi
    assert len(x) == 18 and np.diff(x).min() > 3.6, "closer than a marker is wide"
    bars = np.array([one.get_segments() for one in ax.collections])
    assert np.allclose(bars[..., 1], [0.0, 0.2])


def test_means_over_depths_keep_the_seeds_apart():
    deeper = made_up().assign(layers=4, test_accuracy=lambda frame: frame["test_accuracy"] / 2)
    table = subtask_induction.over_depths(pd.concat([made_up(), deeper]))
    curves = subtask_induction.curves(table)
    row = curves[(curves["condition"] == "subnetwork") & (curves["samples"] == 10)].iloc[0]
    assert row["mean"] == pytest.approx(0.45 * 0.75) and row["n_runs"] == 2


def test_figures_have_a_line_for_each_condition(table, lab):
    curves = subtask_induction.curves(table)
    assert not induction_figures.panels([("two seeds", curves)]).axes[0].collections
    assert induction_figures.panels([("three", curves.assign(n_runs=3))]).axes[0].collections
    main = curves[curves["target"] == "a^2+ab"]
    chance = subtask_induction.chance(lab, "a^2+ab")
    assert chance == pytest.approx(max(np.bincount([(a * a + a * b) % 7 for a in range(12) for b in range(12)])) / 144)
    assert len(induction_figures.variants(main[main["layers"] == 2]).axes) == len(VARIANTS)
    assert set(induction_figures.LINES) == set(CONDITIONS)
    shown = subtask_induction.further(curves)
    assert {number: [title for title, _ in panels] for number, panels in shown.items()} == {
        8: ["ab for a^3+ab"], 10: ["ab for a^3+ab", "a^2 for a^3+ab"],
    }  # fmt: skip
    assert subtask_induction.missing(8, shown[8]) == " Not in this profile: ab for a²+ab+b²."
    assert subtask_induction.missing(8, [*shown[8], ("ab for a^2+ab+b^2", curves)]) == ""
    assert subtask_induction.caption(shown[8]) == "ab, found in a+ab, moved to a³+ab (2 layers)."
    assert subtask_induction.caption([("", main)]) == "ab, found in a+ab, moved to a²+ab (1 and 2 layers)."


def test_figures_of_which_laptop_has_a_part_are_listed_as_that():
    done = [tuple(one.model_dump().values()) for one in Study.load("laptop").subtask_induction.arithmetic.inductions]
    for number, panels in reference.load("panels").groupby("figure"):
        has = sum(one in done for one in panels[["source", "subtask", "target"]].itertuples(index=False, name=None))
        title = papers()["subtask_induction"].reproduces[f"Subtask Induction, Figure {number}"]
        assert title.endswith(f"(laptop: {has} of {len(panels)} panels)")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"transfer": {"conditions": ["subnetwork", "scratch"]}}, "conditions: 'random' is missing; a subnetwork and its"),
     ({"p": 1}, "arithmetic.p: p = 1 is no modulus"),
     ({"test": 9}, "arithmetic.test: 9 is not valid; give at least 10"),
     ({"max": 5}, "arithmetic.max: max = 5 leaves no symbols for the answers mod 7"),
     ({"inductions": [{"source": "a+c"}]}, "arithmetic.inductions.0.source: 'a+c': unexpected 'c' at character 3"),
     ({"transfer": {"conditions": ["strct"]}}, "conditions: 'strct' is unknown; did you mean 'strict'?"),
     ({"base": {"rows": 130}}, "arithmetic.base.rows: 130 and 50 held out are more than the 144 pairs"),
     ({"base": {"rows": 7}}, "arithmetic.base.rows: 7 rows do not hold each of 12 numbers"),
     ({"transfer": {"samples": [83]}}, "arithmetic.transfer.samples: 83 and 50 held out are more than the 132 pairs"),
     ({"width": 15}, "arithmetic.width: 15 is not a multiple of heads 2")],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(change, message):
    with pytest.raises(StudyError) as error:
        Study.load(study(**change))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({}, "agrees"), ({"density": [0.010, 0.011]}, "differs"),
     ({"density": [0.070, 0.084]}, "cannot be told"),
     ({"test_accuracy": [1.0, 0.5]}, "not comparable at this profile")],
)  # fmt: skip
def test_sizes_are_judged_where_every_mask_is_found(change, verdict):
    found = pd.DataFrame({
        "source": "a+ab", "subtask": "ab", "layers": 2, "seed": [0, 1], "l0": 1e-7, "chosen": True,
        "density": [0.076, 0.078], "test_accuracy": [1.0, 0.995],
    } | change)  # fmt: skip
    assert subtask_induction.densities(found, profile="paper")["verdict"].tolist() == [verdict]


def test_beside_the_reference_stand_the_same_sizes_only(tmp_path):
    large = Lab.open(study(max=100, width=64, heads=4, base=ARITHMETIC["base"] | {"rows": 200},
                           masks=ARITHMETIC["masks"] | {"rows": 200}), tmp_path)  # fmt: skip
    ours = made_up().assign(samples=lambda frame: frame["samples"].replace({10: 200, 100: 400}))
    table = subtask_induction.with_reference(large, ours)
    assert set(zip(table["condition"], table["samples"], strict=True)) == {
        ("subnetwork", 200), ("subnetwork", 400), ("random", 200), ("random", 400),
    }  # fmt: skip
    row = table[(table["condition"] == "subnetwork") & (table["samples"] == 400)].iloc[0]
    assert (row["measured"], row["ours"]) == (0.925, pytest.approx(0.845)) and not row["within_05"]
    elsewhere = subtask_induction.with_reference(large, ours.assign(subtask="a"))
    assert elsewhere.empty


def test_few_conditions_and_other_inductions_leave_out_what_is_not_there(lab):
    few = subtask_induction.curves(made_up())  # none of those that go with the control as released
    (ax,) = induction_figures.frozen_or_not([("2 layers", few)]).axes
    assert "random as in the text" in ax.get_title()
    assert subtask_induction.with_reference(lab, made_up().assign(subtask="a")).empty


def test_a_diverged_condition_costs_no_other(lab, monkeypatch, tmp_path):
    first, *_ = steps(lab, arithmetic_steps.Transfers, layers=1, seed=0)
    wish = first.but(conditions=("subnetwork", "random", "scratch"))
    whole = {row["condition"]: row for row in wish.result(lab)}
    errors = arithmetic_steps._errors

    def broken(*arguments):
        found = errors(*arguments)
        return [found[0], float("nan"), found[2]] if len(found) == 3 else found

    monkeypatch.setattr(arithmetic_steps, "_errors", broken)
    rows = {row["condition"]: row for row in wish.result(Lab.open(study(), tmp_path))}
    assert "run 2 of 3: the validation loss in epoch 0 is not finite" in rows.pop("random")["fault"]
    assert rows == {name: whole[name] for name in ("subnetwork", "scratch")}


def test_new_networks_are_judged_by_pairs_that_their_source_never_saw(lab, monkeypatch, tmp_path):
    seen = {}

    def rows_of(computation, pairs, original=arithmetic_steps.rows_of, **options):
        seen.setdefault(computation, []).append({tuple(pair) for pair in pairs.tolist()})
        return original(computation, pairs, **options)

    monkeypatch.setattr(arithmetic_steps, "rows_of", rows_of)
    steps(lab, arithmetic_steps.Transfers, layers=1)[1].make(Lab.open(study(), tmp_path))
    source_train, mask_train = seen["a+ab"][0], seen["ab"][0]
    train, validation, test, diagonal = seen["a^2+ab"]
    assert len(train) == 32 and diagonal < train
    for held in (validation, test):
        assert held and not held & (source_train | mask_train | train)
    assert not validation & test


def test_a_seed_whose_mask_diverges_costs_no_other(tmp_path, monkeypatch, capsys):
    real = discover.discover

    def diverging(*arguments, recipe, **options):
        if recipe.seed == 1:
            raise TrainingDiverged("the loss is not finite")
        return real(*arguments, recipe=recipe, **options)

    monkeypatch.setattr(discover, "discover", diverging)
    own = Lab.open(study(layers=[1], inductions=[{}]), tmp_path)
    found = subtask_induction.subtasks(own)
    assert found[found["seed"] == 1]["test_accuracy"].isna().all() and not found[found["seed"] == 1]["chosen"].any()
    assert found[found["seed"] == 0]["chosen"].any()
    assert set(subtask_induction.ablations(own)["seed"]) == set(subtask_induction.transfers(own)["seed"]) == {0}
    assert "seed 1: no mask came to its end: the loss is not finite" in capsys.readouterr().err
    with pytest.raises(Fault, match="seed 1: no mask came to its end"):
        subtask_induction.subtasks(Lab.open(study(seeds=[1], layers=[1], inductions=[{}]), tmp_path))
