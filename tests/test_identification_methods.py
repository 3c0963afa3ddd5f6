"""Methods side by side, clusters and compositions on a small network, each number against other few lines."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Fault
from subnet_utils.core.study import Study, StudyError
from subnet_utils.cost.estimate import alike
from subnet_utils.masks.mean_ablation import mean_ablated
from subnet_utils.masks.overlap import OVERALL, expected_iou, iou
from subnet_utils.masks.partitions import Partition
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import maskable
from subnet_utils.papers.identification_methods import (
    cluster_figures,
    cluster_tables,
    composition_figures,
    composition_tables,
    fine_tuning_steps,
    method_figures,
    planted_figures,
    planted_steps,
    planted_tables,
    reference,
)
from subnet_utils.papers.identification_methods import method_steps as steps
from subnet_utils.papers.identification_methods import method_tables as tables
from subnet_utils.papers.identification_methods.cluster_steps import of_pictures
from subnet_utils.papers.identification_methods.steps import every_step, require
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.operations import Operations
from subnet_utils.tasks.digit_arithmetic import OPERATIONS, items
from tests.test_figures import assert_readable

BRIEF = {"steps": 6, "interval": 3, "batch_size": 8}


def method(name: str, **settings) -> dict:
    return BRIEF | {"learning_rate": 0.1, "masking": {"method": name} | settings}


NETWORK = {
    "model": "small", "learns": {"task": "add_mul", "modulus": 5, "base": 5, "widths": [8, 6]}, "seeds": [0, 1],
    "training": {"steps": 300, "interval": 100, "batch_size": 50, "learning_rate": 0.02},
    "methods": [method("hard_concrete", l0=0.001, start_value=0.0), method("attribution"), method("random")],
    "densities": [0.1, 0.5], "searched": [0.5], "draws": 3, "reference": 0.5,
    "clusters": {"counts": [2], "shuffles": 2, "lesions": 3}, "fine_tuning": {"training": BRIEF, "densities": [0.1]},
}  # fmt: skip


def study(network=NETWORK, **more) -> dict:
    return {"name": "micro", "compute": {"workers": 1}, "identification_methods": {"networks": [network | more]}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(study(), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def found(lab):
    inspected = steps.inspected(lab)
    tables.made(lab, inspected)
    return inspected


@pytest.fixture(scope="module")
def curve(lab, found):
    return tables.along_densities(lab, found)


@pytest.mark.parametrize(("modulus", "base"), [(13, 13), (100, 10)])
def test_all_pairs_are_there_once_and_answers_are_right(modulus, base):
    rule = {"+": lambda a, b: a + b, "*": lambda a, b: a * b, "-": lambda a, b: a - b, "swapped -": lambda a, b: b - a}
    digits = 1 if modulus == base else 2
    for place, name in enumerate(OPERATIONS):
        inputs, targets = items(modulus, base, name)
        assert len(inputs) == modulus**2 and (inputs[:, -4:].argmax(dim=1) == place).all()
        read = inputs[:, :-4].unflatten(1, (2, digits, base)).argmax(dim=3)
        number = lambda parts: sum(int(part) * base**i for i, part in enumerate(parts))  # noqa: E731
        seen = {(number(a), number(b)): number(t) for (a, b), t in zip(read, targets, strict=True)}
        assert len(seen) == modulus**2
        assert all(answer == rule[name](*pair) % modulus for pair, answer in seen.items())


def test_what_is_held_out_teaches_nothing():
    problem = Operations(13, 13, (4,), held_out=0.25)
    (taught, _), (tested, _) = problem.examples("+", 0), problem.tests("+")
    taught, tested = ({tuple(row) for row in part.tolist()} for part in (taught, tested))
    assert len(tested) == round(0.25 * 169) and not taught & tested and len(taught | tested) == 169
    whole = Operations(13, 13, (4,))
    assert len(whole.tests("*")[0]) == len(whole.examples("*", 0)[0]) == 169
    assert len(whole.examples(CONTROL, 0)[0]) == 338


def test_scores_are_shares_of_right_answers_and_log_probabilities(lab, found):
    problem, network = found[0].network.problem, found[0].network.load(lab)
    inputs, targets = items(5, 5, "*")
    chances = network(inputs).double().softmax(dim=2)
    right = (chances.argmax(dim=2) == targets).all(dim=1).double().mean()
    said = chances[torch.arange(25), 0, targets[:, 0]].log().mean()
    scores = problem.scores(network)
    assert scores["accuracy on *"] == pytest.approx(float(right))
    assert scores["log-probability on *"] == pytest.approx(float(said), abs=1e-5)


def test_rankings_are_cut_at_every_density_and_masks_are_trained_to_it(lab, found, curve):
    total = found[0].identified(found[0].settings.methods[0], "+").load(lab).total
    ranked = curve[curve["method"] == "attribution"]
    assert set(ranked["asked"]) == {0.1, 0.5}
    assert np.allclose(ranked["density"], (ranked["asked"] * total).round() / total)
    trained = curve[curve["method"] == "hard_concrete"]
    assert trained["asked"].isna().all() and set(trained["target"].dropna()) == {0.5}


def test_a_mask_that_is_brought_to_a_density_costs_more(found):
    training, function = found[0].settings.methods[0], "+"
    one, other = (found[0].identified(training, function, density=density) for density in (None, 0.5))
    assert other.work == 4 * one.work and alike(one, {}) != alike(other, {})


def test_alone_and_without_are_the_subnetwork_and_its_complement(lab, found, curve):
    one = found[0]
    training = one.settings.methods[1]
    kept = one.identified(training, "*").cut(lab, 0.1)
    scores = one.identified(training, "*").scores(lab)
    flat = torch.cat([scores[name].flatten() for name in sorted(scores)])
    lowest = flat.sort(descending=True).values[kept.active - 1]
    assert all((scores[name][mask] >= lowest).all() for name, mask in kept.masks.items())
    for part, network in (
        ("alone", kept.apply(one.network.load(lab))),
        ("without", kept.ablate(one.network.load(lab))),
    ):
        expected = one.network.problem.scores(network)
        about = {"method": "attribution", "seed": 0, "function": "*", "repeat": 0, "part": part, "asked": 0.1}
        row = curve[(curve[list(about)] == pd.Series(about)).all(axis=1)].iloc[0]
        assert row["own"] == expected["accuracy on *"] and row["other"] == expected["accuracy on +"]
        assert row["own_log"] == expected["log-probability on *"]


def test_side_by_side_is_a_row_a_method_and_seed(lab, found, curve):
    table = tables.side_by_side(lab, found, curve)
    assert len(table) == 2 * 3
    row = table[table["method"].eq("attribution") & table["seed"].eq(1)].iloc[0]
    own = curve[curve["method"].eq("attribution") & curve["seed"].eq(1) & curve["asked"].eq(0.5)]
    assert row["own"] == pytest.approx(own.loc[own["part"] == "alone", "own"].mean())
    assert row["other_without"] == pytest.approx(own.loc[own["part"] == "without", "other"].mean())
    masks = tables.subnetworks(lab, found[1], found[1].settings.methods[1])
    pairs = [iou([masks["+"][i], masks["*"][1 - i]])[OVERALL] for i in range(2)]  # of other seeds
    assert row["other_iou"] == pytest.approx(np.mean(pairs))
    assert 0 <= row["beats_random"] <= 1 and row["passes"] > 0
    assert set(tables.findings(table)["verdict"]) <= {"holds", "does not hold", "cannot be told"}
    assert tables.summary(table)["n_runs"].eq(2).all()


def test_how_many_weights_matter(lab, found):
    one = found[0].compared(found[0].settings.methods[1], "+")
    kept, network = one.found.cut(lab, one.density), found[0].network.load(lab)
    problem, matter, whole = found[0].network.problem, 0, None
    whole = problem.scores(kept.apply(network))["log-probability on +"]
    for name, mask in kept.masks.items():
        for place in mask.nonzero().tolist():
            less = {other: own.clone() for other, own in kept.masks.items()}
            less[name][tuple(place)] = False
            without = problem.scores(Subnetwork(less, kept.network).apply(network))["log-probability on +"]
            matter += whole - without > steps.MATTERS
    assert kept.active < one.sampled  # all of them are tried
    assert one.result(lab)["matter"] == pytest.approx(matter / kept.active)
    assert len(one.result(lab)["random"]) == 3


def test_a_perfect_and_a_useless_ranking_have_the_areas_that_one_draws_by_hand(lab, found, curve):
    problem, network = found[0].network.problem, found[0].network.load(lab)
    every = found[0].identified(found[0].settings.methods[0], "+").load(lab)
    nothing, whole = (problem.scores(part.apply(network))["accuracy on +"] for part in (every & ~every, every | ~every))
    assert whole > nothing
    rows = [
        {"model": "small", "method": name, "seed": 0, "function": "+", "part": "alone", "density": x, "own": y,
         "own_log": 0.0} for name, y in (("perfect", whole), ("useless", nothing)) for x in (0.2, 0.6)
    ]  # fmt: skip
    areas = tables.faithfulness(lab, found[:1], pd.DataFrame(rows)).query("measure == 'accuracy'").set_index("method")
    assert areas.loc["perfect", "cpr"] == pytest.approx(0.1 + 0.8) and areas.loc["perfect", "cmd"] == pytest.approx(0.1)
    assert areas.loc["useless", "cpr"] == pytest.approx(0.2) and areas.loc["useless", "cmd"] == pytest.approx(0.8)


def test_mean_ablation_of_a_method(lab, found, curve):
    one, training = found[0], found[0].settings.methods[1]
    kept, network, problem = one.identified(training, "+").cut(lab, 0.5), one.network.load(lab), one.network.problem
    inputs = torch.cat([items(5, 5, name).inputs for name in ("+", "*")])
    by_hand = problem.scores(mean_ablated(~kept, network, inputs))["accuracy on *"]
    rows = tables.along_densities(lab, found[:1], "mean").query(
        "method == 'attribution' and repeat == 0 and asked == .5"
    )
    assert rows.query("function == '+' and part == 'without'")["other"].item() == pytest.approx(by_hand)
    swapped = tables.by_ablation(lab, found).set_index("method")
    areas = tables.faithfulness(lab, found, curve).query("measure == 'accuracy'").groupby("method")["cpr"].mean()
    assert swapped.loc["attribution", "cpr_zero"] == pytest.approx(areas["attribution"])
    assert swapped["n_runs"].eq(2).all() and np.allclose(swapped["ours"], swapped["cpr_mean"] - swapped["cpr_zero"])


def test_tests_of_methods_in_four_networks():
    about = {"model": "m", "lost": 0.2, "draws": 39, "beats_random": 1.0, "whole": 1.0, "nothing": 0.1, "other": 0.1}
    about |= {"random_difference": 0.0}
    good = {"method": "good", "own": [1, 0.99, 1, 0.98], "own_without": [0.1, 0.11, 0.1, 0.09]}
    poor = {
        "method": "poor",
        "own": [0.7, 0.68, 0.7, 0.68],
        "own_without": [0.5, 0.6, 0.7, 0.4],
        "beats_random": [1, 1, 1, 0.9],
    }
    rows = [pd.DataFrame(about | {"seed": range(4), "other_without": [0.9, 1, 1, 0.5]} | one) for one in (good, poor)]
    random = rows[1].assign(method="random")
    found = tables.tests(pd.concat([*rows, random])).set_index("method")
    assert list(found.index) == ["good", "poor"]
    assert list(found["better_than_random"]) == ["holds", "cannot be told"]
    assert found["better_p"].tolist() == [0.25, 0.25]  # 2 of 16 sign changes, twice as much by Holm
    assert found.loc["good", "better_by"] == pytest.approx(0.8925)
    assert list(found["alike"]) == ["holds", "does not hold"]
    assert found.loc["good", "alike_by"] == pytest.approx(-0.0075)
    assert found.loc["good", "complete_p"] < 0.05 and found.loc["poor", "complete_p"] > 0.9
    assert list(found["independent"]) == ["cannot be told"] * 2
    few = tables.tests(rows[0].assign(draws=19))
    assert few["better_than_random"].tolist() == ["cannot be told"]
    none = tables.tests(rows[1].assign(own=0.1))
    assert none["better_than_random"].tolist() == ["does not hold"]


def test_agreement_is_the_overlap_of_what_two_methods_find(lab, found):
    table = tables.agreement(lab, found)
    assert len(table) == 2 * 9
    one = found[0]
    masks = {t.masking.method: tables.subnetworks(lab, one, t) for t in one.settings.methods}
    expected = np.mean([iou([masks["attribution"][f][0], masks["hard_concrete"][f][0]])[OVERALL] for f in ("+", "*")])
    row = table.query("seed == 0 and method == 'attribution' and with_method == 'hard_concrete'").iloc[0]
    assert row["iou"] == pytest.approx(expected)
    chance = [
        expected_iou([masks["attribution"][f][0], masks["hard_concrete"][f][0]], draws=100)[OVERALL] for f in ("+", "*")
    ]
    assert row["chance_iou"] == pytest.approx(np.mean(chance), abs=0.02)
    twice = table.query("seed == 0 and method == 'attribution' and with_method == 'attribution'").iloc[0]
    assert twice["iou"] == pytest.approx(np.mean([iou(masks["attribution"][f])[OVERALL] for f in ("+", "*")]))


def test_compositions_are_those_of_sets(lab, found):
    table = composition_tables.compositions(lab, found)
    one, training = found[0], found[0].settings.methods[0]
    a, b = (one.identified(training, name).load(lab) for name in ("+", "*"))
    problem, network = one.network.problem, one.network.load(lab)
    own = table.query("seed == 0 and repeat == 0 and random == 0").set_index(["made_of", "part"])
    for name, made in {"A | B": a | b, "A & B": a & b, "A - B": a & ~b, "B - A": b & ~a}.items():
        alone = problem.scores(made.apply(network))
        assert own.loc[(name, "alone"), "a"] == alone["accuracy on +"]
        assert own.loc[(name, "without"), "b"] == problem.scores(made.ablate(network))["accuracy on *"]
        assert own.loc[(name, "alone"), "density"] == pytest.approx(made.density)
    random = table.query("seed == 0 and repeat == 0 and made_of == 'A - B' and within == 'A'")
    assert np.allclose(random["density"], (a & ~b).density) and set(random["random"]) == {1, 2, 3}


def test_a_random_part_of_a_subnetwork_lies_in_it(lab, found):
    step = next(found[0].composition)
    a, b = step.first.load(lab), step.second.load(lab)
    for name, within, draw, part in step._parts(a, b):
        if within and draw:
            whole = {"A": a, "B": b}[within]
            assert (part - whole).active == 0
            expected = {"A - B": a & ~b, "B - A": b & ~a, "A & B": a & b}[name]
            assert all(int(part.masks[n].sum()) == int(expected.masks[n].sum()) for n in expected.masks)


def test_effects_are_differences_of_what_is_left():
    rows = []
    for (made_of, within, random), (a, b) in {
        ("A", "", 0): (0.1, 0.2), ("A", "", 1): (9.0, 9.0), ("A - B", "", 0): (0.2, 0.9), ("A - B", "", 1): (9.0, 9.0),
        ("A - B", "A", 1): (0.3, 0.5), ("A - B", "A", 2): (0.5, 0.5), ("B", "", 0): (0.4, 0.1),
        ("B - A", "", 0): (0.8, 0.3), ("B - A", "B", 1): (0.6, 0.4),
    }.items():  # fmt: skip
        about = {"model": "m", "method": "x", "seed": 0, "repeat": 0, "part": "without", "density": 0.1}
        rows.append(about | {"made_of": made_of, "within": within, "random": random, "a": a, "b": b})
    effect = composition_tables.effects(pd.DataFrame(rows)).set_index(["target", "ablation"])["effect"]
    assert effect["a", "A"] == pytest.approx(0.1) and effect["a", "A - B"] == pytest.approx(0.7)
    assert effect["a", "random part of A"] == pytest.approx(0.1)  # mean of .2 and 0
    assert effect["b", "A"] == pytest.approx(0.3) and effect["b", "A - B"] == pytest.approx(0.5)


def test_findings_on_compositions_are_those_of_each_network(lab, found):
    """Two models of which one is a copy with other numbers: each has its own findings."""
    table = composition_tables.compositions(lab, found)
    effect = composition_tables.effects(table)
    other = (table.assign(model="other", a=1 - table["a"]), effect.assign(model="other", effect=effect["effect"] - 1.0))
    both = [pd.concat(parts) for parts in zip((table, effect), other, strict=True)]
    singly = pd.concat([composition_tables.findings(table, effect), composition_tables.findings(*other)])
    together = composition_tables.findings(*both)
    pd.testing.assert_frame_equal(together.reset_index(drop=True), singly.reset_index(drop=True))


def test_what_is_claimed_of_both_functions_is_claimed_of_the_worse_one():
    left = {
        ("A | B", "alone", 0): (1.0, 0.6), ("A | B", "alone", 1): (0.2, 0.1),
        ("A & B", "without", 0): (0.1, 0.9), ("A & B", "without", 1): (0.9, 0.9),
    }  # fmt: skip
    about = {"model": "m", "method": "x", "repeat": 0, "within": "", "density": 0.1}
    table = pd.DataFrame(
        about | {"made_of": made_of, "part": part, "random": random, "seed": seed, "a": a, "b": b}
        for (made_of, part, random), (a, b) in left.items()
        for seed in range(3)
    )
    ablations = ("A", "A - B", "random part of A")
    effect = pd.DataFrame(
        {"model": "m", "method": "x", "seed": s, "ablation": a, "effect": 0.5} for a in ablations for s in range(3)
    )
    claims = composition_tables.findings(table, effect).set_index("claim")
    assert claims.loc["A | B does both", ["ours", "verdict"]].tolist() == [0.6, "does not hold"]
    assert claims.loc["and better than random weights of its size", "ours"] == pytest.approx(0.5)
    both_fall = claims.loc["without A & B both fall, more than without random weights"]
    assert both_fall["ours"] == 0 and both_fall["verdict"] == "does not hold"


def test_nothing_is_told_of_sums_of_what_was_not_learned_alone(lab, found):
    table = composition_tables.fine_tunings(lab)
    assert composition_tables.sums(table.assign(accuracy=0.95))["n_runs"].eq(2).all()
    one = table["of"].eq(table["function"]) & table["seed"].eq(0) & table["of"].eq(found[0].network.problem.new[0])
    assert (
        composition_tables.sums(table.assign(accuracy=0.95).mask(one, table.assign(accuracy=0.8)))["n_runs"].eq(1).all()
    )


def test_random_fine_tunings_of_two_functions_change_other_weights(lab, found):
    drawn = [
        step
        for about, _, step in fine_tuning_steps.fine_tuned(lab)
        if about["support"] == "random" and about["seed"] == 0
    ]
    first, second = (step.load(lab).changed for step in drawn[:2])
    assert first.active == second.active and (first & second).active < first.active


def test_a_function_is_lost_where_the_commonest_answer_does_as_well():
    assert Operations(modulus=5, base=5, widths=(8,)).lost == pytest.approx(9 / 25 + 0.05)


def test_fine_tunings_change_what_they_may_and_add_up(lab, found):
    table = composition_tables.fine_tunings(lab)
    network = found[0].network.load(lab)
    listed = [(about, step) for about, _, step in fine_tuning_steps.fine_tuned(lab) if about["seed"] == 0]
    assert len(table) == 2 * len(listed) * 4
    total = sum(network.get_parameter(name).numel() for name in maskable(network))
    for about, step in listed:
        if isinstance(step, fine_tuning_steps.FineTuned):
            assert step.load(lab).changed.active == round(about["density"] * total)
    (first, second, summed) = (step for about, step in listed if about["support"] == "change" and about["factor"] == 1)
    own = {name: network.get_parameter(name).double() for name in maskable(network)}
    phi, psi = first.load(lab).dense(), second.load(lab).dense()
    both = (first.load(lab) + second.load(lab)).apply(network)
    for name, weight in own.items():
        assert torch.allclose(both.get_parameter(name).double(), weight + phi[name] + psi[name], atol=1e-6)
    assert summed.result(lab) == found[0].network.problem.scores(both, tuple(OPERATIONS))
    (nothing,) = (step for about, step in listed if about["of"] == "nothing")
    assert nothing.result(lab) == found[0].network.problem.scores(network, tuple(OPERATIONS))


def test_the_best_cluster_against_the_overlap_of_each():
    generator = torch.Generator().manual_seed(0)
    sizes = {"inputs": 5, "a": 7, "b": 4}
    labels = {name: torch.randint(-1, 3, (size,), generator=generator) for name, size in sizes.items()}
    masks = {n: torch.rand(shape, generator=generator) < 0.4 for n, shape in {"a": (7, 5), "b": (4, 7)}.items()}
    found = []
    for cluster in range(3):
        both = either = 0
        for before, name in (("inputs", "a"), ("a", "b")):
            for i, j in product(range(len(labels[name])), range(len(labels[before]))):
                inside = int(labels[name][i]) == int(labels[before][j]) == cluster
                both += inside and bool(masks[name][i, j])
                either += inside or bool(masks[name][i, j])
        found.append(both / either)
    assert Partition(labels, "n").best_overlap(Subnetwork(masks, "n")) == pytest.approx(max(found))


@pytest.mark.usefixtures("paper_style")
def test_tables_and_figures_on_clusters(lab, found):
    assert len(cluster_tables.cuts(lab, found)) == 2 and len(cluster_tables.lesions(lab, found)) == 4
    assert cluster_tables.compared_with_masks(lab, found)["p"].between(0, 1).all()
    assert_readable(cluster_figures.dendrogram(lab, found[0]))


@pytest.mark.usefixtures("paper_style")
def test_figures_are_readable(lab, found, curve):
    table = tables.side_by_side(lab, found, curve)
    assert_readable(method_figures.side_by_side(curve, table, "small"))
    assert_readable(method_figures.agreement(tables.agreement(lab, found), "small"))
    compositions = composition_tables.compositions(lab, found)
    assert_readable(composition_figures.ablations(composition_tables.effects(compositions), "small"))
    assert_readable(composition_figures.parts(compositions, "small"))
    assert_readable(composition_figures.fine_tunings(composition_tables.fine_tunings(lab), "small"))


def planted(average_precisions: dict, *, each: int = 1) -> pd.DataFrame:
    """Scores of methods in so many networks of each design."""
    rows = []
    for name, values in average_precisions.items():
        for seed, value in enumerate(values):
            about = {"design": f"d{seed // each}", "planted": True, "seed": seed, "method": name, "base_rate": 0.2}
            rows.append(about | dict.fromkeys(planted_tables.SCORES, 0.5) | {"average_precision": value})
            rows[-1] |= {"precision": value, "other_without": value**2, "own": 1.0, "found_overlap": value / 2}
            rows[-1]["true_overlap"] = 0.2 * (seed % 2)
    return pd.DataFrame(rows)


@pytest.mark.usefixtures("paper_style")
def test_the_leaderboard_orders_methods_and_says_how_far_they_are_apart():
    table = planted({"worse": [0.5, 0.6, 0.5, 0.6], "random": [0.2] * 4, "better": [0.7, 0.8, 0.8, 0.8]})
    table = pd.concat([table, table.assign(planted=False, average_precision=0.0)])  # compiled ones do not count
    board = planted_tables.leaderboard(table)
    assert list(board["method"]) == ["better", "worse", "random"] and board["n_runs"].eq(4).all()
    assert board.loc[0, "average_precision"] == pytest.approx(0.775)
    assert board.loc[0, "ahead"] == pytest.approx(0.225) and board.loc[0, "ahead_low"] > 0
    assert board["first_in"].tolist() == [4, 0, 0]
    t = stats.t.ppf(0.975, 3) * np.std([0.7, 0.8, 0.8, 0.8], ddof=1) / 2
    assert board.loc[0, "networks_low"] == pytest.approx(0.775 - t)
    verdicts = planted_tables.findings(table, ["better", "worse", "random"]).set_index("method")["verdict"]
    assert dict(verdicts) == {"better": "holds", "worse": "holds"}
    behavior = planted_tables.behavior(table, ["better", "worse"]).set_index("measure")
    assert behavior.loc["other_without", "correlation"] == pytest.approx(1.0) and np.isnan(behavior["more"]).all()
    assert behavior["n_runs"].to_dict() == {"own": 0, "other": 0, "own_without": 0, "other_without": 4}
    for draw in (planted_figures.behavior, planted_figures.overlaps):
        assert_readable(draw(table, ["better", "worse"]))
    assert_readable(planted_figures.leaderboard(table, list(board["method"])))


def test_many_networks_of_one_design_are_one_observation():
    """One method is ahead in all ten networks of a design, and in none of the other design."""
    table = planted({"one": [0.7, 0.71] * 5 + [0.6, 0.61] * 5, "other": [0.5, 0.51] * 5 + [0.6, 0.61] * 5}, each=10)
    board = planted_tables.leaderboard(table.assign(own=table["precision"] + table["seed"] % 2))
    assert board.loc[0, "ahead_low"] < 0 < board.loc[0, "ahead"] and board["n_runs"].eq(2).all()
    assert board["high"].max() <= 1


def test_what_tells_a_true_mask_is_asked_within_designs():
    """A mask's own accuracy is high in the design that is easy, and low for the better masks of each design."""
    table = planted({"a": [0.3, 0.4, 0.8, 0.9], "b": [0.35, 0.45, 0.85, 0.95]}, each=2)
    own = 2 * table["design"].eq("d1") - table["precision"]
    assert own.corr(table["precision"], method="spearman") > 0
    row = planted_tables.behavior(table.assign(own=own), ["a", "b"]).set_index("measure")
    assert row.loc["own", "correlation"] == pytest.approx(-1) and row.loc["other_without", "more"] == pytest.approx(2)


def test_clusters_of_networks_of_pictures(tmp_path):
    one = {"widths": [6, 5], "training": BRIEF, "retraining": BRIEF, "kept": 0.5, "seeds": [0]}
    both = [one | {"model": name, "architecture": name} for name in ("mlp", "cnn")]
    data = {"source": "drawn", "train": 60, "test": 40, "resolution": 16}
    pictures = {"data": data, "networks": both, "clusters": {"counts": [2], "shuffles": 3, "lesions": 3}}
    whole = study()
    whole["identification_methods"]["pictures"] = pictures
    lab = Lab.open(whole, tmp_path)
    cuts, lesions = cluster_tables.cuts(lab, []), cluster_tables.lesions(lab, [])
    assert list(cuts["model"]) == ["mlp", "mlp_pruned", "mlp_pruned", "cnn", "cnn_pruned", "cnn_pruned"]
    assert list(cuts["zeros"]) == ["moved", "moved", "in place"] * 2 and len(lesions) == 4
    step = next(step for _, step in of_pictures(lab))
    scores = step.network.problem.scores(step.network.load(lab))
    assert cuts.loc[0, "accuracy"] == pytest.approx(np.mean([scores[f"accuracy on {name}"] for name in "0123456789"]))
    assert (cuts.loc[[1, 2], "n_cut"].nunique(), cuts.loc[[1, 2], "shuffled"].nunique()) == (1, 2)


def test_every_step_can_be_named_before_anything_is_made(tmp_path):
    more = {"designs": [{"name": "groups"}], "seeds": [0], "compiled": ["plain"], "methods": NETWORK["methods"]}
    whole = study()
    whole["identification_methods"]["benchmark"] = more
    named = list(every_step(Lab.open(whole, tmp_path)))
    assert {type(step).__name__ for step in named} >= {"Scored", "Composed", "Cut", "Summed", "Compared"}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"learns": {"task": "add_mul", "modulus": 12, "base": 5}}, "the modulus 12 is no power of 5"),
        ({"learns": {"task": "add_mul", "held_out": 0.002}}, "holds out 0 of 169 items; take another share, or 0"),
        ({"methods": [method("random"), method("random")]}, "'random' stands twice"),
        (
            {"methods": [method("hard_concrete", l0=0), method("random")]},
            "searched: needs an l0 above 0 to vary; raise it",
        ),
        (
            {"methods": NETWORK["methods"][:2]},
            "methods: 'random' is missing, which the others are compared with; add it",
        ),
        ({"searched": [0.5, 0.5]}, "searched: holds 0.5 twice"),
        ({"reference": 1.5}, "reference"),
        ({"densities": [0.5]}, "densities: is one number, but areas are along several; add one"),
        ({"reference": 0.2}, "reference: 0.2 is none of the densities; add it to them"),
        ({"clusters": {"counts": [2], "shuffles": 1}}, "shuffles: 1 is not valid; give at least 2"),
        ({"clusters": {"counts": [1]}}, "counts"),
        ({"clusters": {"counts": [2, 15]}}, "counts: more than the 14 hidden units; ask for fewer"),
    ],
)
def test_what_does_not_fit_together_is_one_line(more, what):
    with pytest.raises(StudyError, match=what) as error:
        Study.load(study(**more))
    assert "\n" not in str(error.value)


def test_rankings_alone_are_a_study_but_no_notebook(tmp_path):
    lab = Lab.open(study(methods=NETWORK["methods"][1:]), tmp_path)
    with pytest.raises(ValueError, match="none trains masks; add one, such as 'hard_concrete'"):
        require(lab)


BENCHMARK = {"designs": [{"name": "groups"}], "seeds": [0], "methods": NETWORK["methods"]}


def benchmark(**more) -> dict:
    return {"name": "micro", "compute": {"workers": 1}, "identification_methods": {"benchmark": BENCHMARK | more}}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"designs": [{"name": "groups"}, {"name": "groups", "overlap": 0.5}]}, "designs: 'groups' stands twice"),
        ({"methods": NETWORK["methods"] * 2}, "methods: 'hard_concrete' stands twice; give each method once"),
        ({"methods": NETWORK["methods"][:2]}, "methods: 'random' is missing"),
        ({"methods": NETWORK["methods"][1:]}, "methods: none trains masks"),
        ({"compiled": ["plain", "plain"]}, "compiled: holds 'plain' twice"),
    ],
)
def test_a_benchmark_that_would_mix_things_up_is_refused(more, what):
    with pytest.raises(StudyError, match=what):
        Study.load(benchmark(**more))


def test_networks_of_pictures_have_enough_units_for_the_clusters():
    one = {"model": "mlp", "architecture": "mlp", "widths": [6, 5]}
    pictures = {"networks": [one], "clusters": {"counts": [4, 22]}}
    with pytest.raises(StudyError, match="clusters.counts: more than the 21 hidden units and outputs; ask for fewer"):
        Study.load({"name": "micro", "identification_methods": {"networks": [NETWORK], "pictures": pictures}})


@pytest.mark.usefixtures("paper_style")
def test_what_diverged_is_left_out_of_the_scores_and_named(tmp_path, capsys):
    methods = [method("hard_concrete", l0=0.001) | {"learning_rate": 1e39}, *NETWORK["methods"][1:]]
    lab = Lab.open(benchmark(compiled=["plain"], methods=methods), tmp_path)
    compiled = planted_steps.benchmarked(lab)[1:]
    scores = planted_tables.scores(lab, compiled)
    assert list(scores["method"]) == ["attribution", "random"]
    assert capsys.readouterr().err.startswith("hard_concrete: ")
    assert planted_tables.behavior(scores, []).empty
    assert_readable(planted_figures.overlaps(scores.iloc[:0], []))


def test_without_a_proven_network_a_benchmark_ends_with_a_line(monkeypatch, tmp_path):
    monkeypatch.setattr(planted_steps, "holds", lambda proof: False)
    monkeypatch.setattr(planted_steps, "plant", lambda *_: planted_steps.compiled(planted_steps.Compiled("plain"), 0))
    lab = Lab.open(benchmark(), tmp_path)
    with pytest.raises(Fault, match="^no planted network can be used; groups, seed 0: its truth is not proven"):
        planted_tables.proofs(lab, planted_steps.benchmarked(lab))


def test_parts_that_do_not_fit_into_a_network_are_refused_before_anything_is_trained(tmp_path):
    whole = study()
    design = {"name": "too_many", "redundancy": 9}
    whole["identification_methods"]["benchmark"] = {"designs": [design], "methods": NETWORK["methods"]}
    with pytest.raises(ValueError, match="lower density or redundancy"):
        planted_steps.benchmarked(Lab.open(whole, tmp_path))


def test_exact_on_a_network_that_is_too_large_is_refused_before_anything_is_trained(tmp_path):
    methods = [*NETWORK["methods"], method("exact")]
    require(Lab.open(study(methods=methods), tmp_path))
    wide = study(methods=methods, learns=NETWORK["learns"] | {"widths": [300, 200]})
    with pytest.raises(ValueError, match="'exact' leaves out every weight in turn, of 65,200; take 'attribution'"):
        require(Lab.open(wide, tmp_path))


def test_no_method_sees_what_was_planted():
    """The weights that moved are those that were planted."""
    whole = study()
    whole["identification_methods"]["benchmark"] = {
        "designs": [{"name": "groups"}],
        "methods": [*NETWORK["methods"], method("weight_change")],
    }
    with pytest.raises(StudyError, match="tells what was planted; leave it out"):
        Study.load(whole)


def test_reference_tables_are_whole():
    assert len(reference.load("ledger")) == 8 and set(reference.load("vocabulary")["term"]) >= {"module", "circuit"}
    assert len(reference.load("clusterability")) == 5
