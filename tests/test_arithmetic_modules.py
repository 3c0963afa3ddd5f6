"""Modules in arithmetic: the task against Python's own arithmetic, masks against a few lines, tables and figures."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import functional_call

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import GumbelSigmoid
from subnet_utils.masks.overlap import OVERALL, iou
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models.feedforward import FeedForward
from subnet_utils.models.reader import Reader
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.papers.functional_modularity import arithmetic_figures as figures
from subnet_utils.papers.functional_modularity import arithmetic_steps as steps
from subnet_utils.papers.functional_modularity import arithmetic_tables as tables
from subnet_utils.papers.functional_modularity import half_masks, reference
from subnet_utils.plots import schematic
from subnet_utils.problems import sharing
from subnet_utils.problems.modules import CONTROL, Network
from subnet_utils.report.findings import with_intervals
from subnet_utils.tasks import digit_arithmetic as arithmetic
from subnet_utils.training import Recipe
from tests.test_figures import assert_readable

BRIEF = {"steps": 6, "interval": 3, "batch_size": 8}
MASKS = BRIEF | {"learning_rate": 0.1, "masking": {"l0": 0.001, "samples": 2}}
FNN = {"family": "feedforward", "widths": [12, 8, 8]}
NETWORKS = [
    {"model": "small", "paper_network": "FNN", "task": "add_mul", "architecture": FNN, "training": BRIEF,
     "masks": MASKS, "seeds": [0, 1], "l0": [0.0001, 0.01],
     "others": [MASKS | {"masking": {"method": "continuous_sparsification", "l0": 0.001}}]},
    {"model": "pairs", "paper_network": "FNN", "task": "double_addition", "architecture": FNN, "training": BRIEF,
     "masks": MASKS, "seeds": [0, 1], "copied": [0], "others": [MASKS | {"masking": "random"}]},
    {"model": "reader", "paper_network": "LSTM_forced", "task": "double_addition", "training": BRIEF, "masks": MASKS,
     "architecture": {"family": "lstm", "width": 6, "layers": 1, "reading": "forced", "steps": 2}, "seeds": [0],
     "pool": 50},
]  # fmt: skip


OTHER = "small, continuous_sparsification"


def study(networks=NETWORKS) -> dict:
    return {"name": "micro", "compute": {"workers": 1}, "functional_modularity": {"arithmetic": networks}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(study(), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def found(lab):
    dissected = steps.dissected(lab)
    tables.made(lab, dissected)
    return dissected


def number(digits) -> int:
    return int(digits[0]) + 10 * int(digits[1])


def test_all_items_of_both_operations_are_there_once_and_right():
    answers = {}
    for items in arithmetic.add_mul().values():
        asked = items.inputs[:, 40:].argmax(dim=1)
        read = items.inputs[:, :40].unflatten(1, (4, 10)).argmax(dim=2)
        for digits, operation, target in zip(read.tolist(), asked.tolist(), items.targets.tolist(), strict=True):
            answers[number(digits[:2]), number(digits[2:]), operation] = number(target)
        assert (items.inputs.sum(dim=1) == 5).all()
    assert sum(len(items.inputs) for items in arithmetic.add_mul().values()) == len(answers) == 20000
    for (a, b, operation), answer in answers.items():
        assert answer == ((a * b) if operation else (a + b)) % 100


def test_two_pairs_are_asked_one_at_a_time_or_both():
    alone = arithmetic.double_addition()
    for i, (name, items) in enumerate(alone.items()):
        own, other = slice(40 * i, 40 * i + 40), slice(40 - 40 * i, 80 - 40 * i)
        assert name == f"pair {i + 1}" and items.inputs.shape == (10000, 80) and (items.inputs.sum(dim=1) == 4).all()
        assert not items.inputs[:, other].any() and items.inputs[:, own].any(dim=1).all()
        assert (items.targets[:, 2 - 2 * i : 4 - 2 * i] == arithmetic.ABSENT).all()
        assert torch.equal(items.targets[:, 2 * i : 2 * i + 2], arithmetic.add_mul()["+"].targets)
    both = arithmetic.both_pairs(100, torch.Generator().manual_seed(0))
    read = both.inputs.unflatten(1, (4, 2, 10)).argmax(dim=3)
    for row, target in zip(read.tolist(), both.targets.tolist(), strict=True):
        a, b, c, d = map(number, row)
        assert (number(target[:2]), number(target[2:])) == ((a + b) % 100, (c + d) % 100)
    first = arithmetic.asked(both, "pair 1")
    assert (first.targets[:, 2:] == arithmetic.ABSENT).all() and torch.equal(first.targets[:, :2], both.targets[:, :2])


def test_a_network_may_learn_from_some_items_and_is_tested_on_all():
    every, some = (steps.Arithmetic("add_mul", steps.section.FeedForward(**FNN), some=n) for n in (None, 30))
    inputs, _ = some.examples("+", 1)
    assert len(inputs) == 30 and (inputs[:, 40] == 1).all() and len(some.examples(CONTROL, 1)[0]) == 60
    assert torch.equal(inputs, some.examples("+", 1)[0]) and not torch.equal(inputs, some.examples("+", 2)[0])
    known = {tuple(row) for row in every.examples("+", 1)[0].tolist()}
    assert len(known) == 10000 and {tuple(row) for row in inputs.tolist()} < known
    assert torch.equal(some.tests()["+"].inputs, arithmetic.add_mul()["+"].inputs)


def test_some_items_test_a_network_as_all_do():
    every = steps.Arithmetic("add_mul", steps.section.FeedForward(**FNN))
    some, network = replace(every, tested=500), every.network(0)
    inputs, targets = some.tests()["*"]
    known = dict(zip(map(tuple, every.items["*"].inputs.tolist()), every.items["*"].targets.tolist(), strict=True))
    assert [known[tuple(row)] for row in inputs.tolist()] == targets.tolist() and len(inputs) == 500
    answers = network(inputs).argmax(dim=-1)
    done = arithmetic.operation_of(inputs, answers)
    assert torch.equal(done["*"], (answers == targets).all(dim=1)) and inputs.mean(dim=0)[:40].min() > 0.05
    assert some.scores(network)["* for *"] == some.scores(network)["accuracy on *"]


def test_an_answer_that_both_operations_give_counts_for_both():
    expected = {(2, 2, 4): "+*", (3, 4, 7): "+", (3, 5, 15): "*", (3, 6, 99): "none"}
    answers = torch.zeros(10000, 2, dtype=int)
    for a, b, answer in expected:
        answers[100 * a + b] = torch.tensor([answer % 10, answer // 10])
    inputs = arithmetic.add_mul()["*"].inputs
    done = arithmetic.operation_of(inputs, answers)
    for (a, b, _), names in expected.items():
        assert "".join(name for name, of in done.items() if of[100 * a + b]) == names


def test_a_network_and_its_masked_weights():
    network = FeedForward([42, 12, 8, 20])
    assert maskable(network) == tuple(f"layers.{i}.weight" for i in range(3))
    assert maskable(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))) == ("1.weight",)
    assert sum(dict(network.named_parameters())[name].numel() for name in maskable(network)) == 42 * 12 + 96 + 160
    hidden = torch.relu(network.layers[1](torch.relu(network.layers[0](torch.ones(1, 42)))))
    assert torch.equal(network(torch.ones(1, 42)), network.layers[2](hidden).view(1, 2, 10))
    with pytest.raises(ValueError, match="'layers.9.weight' is no weight that can be masked; did you mean"):
        maskable(network, only=["layers.9.weight"])


@pytest.mark.parametrize("reading", ["together", "forced"])
def test_an_lstm_under_a_full_mask_is_the_plain_one_to_the_bit(reading):
    torch.manual_seed(0)
    network = Reader(80, 6, 2, 40, steps=4, reading=reading).eval()
    names = maskable(network)
    assert names == (*(f"lstm.weight_{kind}_l{layer}" for layer in (0, 1) for kind in ("ih", "hh")), "output.weight")
    weights, inputs = dict(network.named_parameters()), torch.randn(5, 80)
    whole = Subnetwork({name: torch.ones_like(weights[name], dtype=bool) for name in names}, fingerprint(network))
    assert torch.equal(whole.apply(network)(inputs), network(inputs))
    masked = {name: weights[name] * torch.ones_like(weights[name]) for name in names}
    assert torch.equal(functional_call(network, masked, (inputs,)), network(inputs))
    assert not torch.equal((~whole).apply(network)(inputs), network(inputs))


def test_a_forced_lstm_has_not_seen_the_second_pair_when_it_answers_the_first():
    network, inputs = Reader(80, 6, 1, 40, steps=4, reading="forced"), torch.randn(3, 80)
    other = torch.cat([inputs[:, :40], torch.randn(3, 40)], dim=1)
    assert torch.equal(network(inputs)[:, :2], network(other)[:, :2])
    assert not torch.equal(network(inputs)[:, 2:], network(other)[:, 2:])


def test_masks_of_lstms_are_trained_and_only_those_that_are_asked_for():
    torch.manual_seed(0)
    network, inputs = Reader(80, 6, 1, 40, steps=2), torch.randn(20, 80)
    about = {"method": GumbelSigmoid(l0=0.01, samples=2), "recipe": Recipe(0.1, 2, 0)}

    def one_pass(generator):
        return ((rows, torch.zeros(4, 4, dtype=int)) for rows in torch.arange(20).split(4))

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    for only in (None, ["lstm.weight_hh_l0"]):
        found = discover(network, inputs, one_pass, loss, only=only, **about)
        assert set(found.subnetwork.masks) == set(only or maskable(network))
        assert found.history["train_loss"].notna().all()


def test_two_masks_share_what_ten_lines_of_numpy_say():
    draw = np.random.default_rng(0)
    shapes = {"a": (30, 20), "b": (20, 10), "c": (10, 5)}
    one, other = ({name: draw.random(shape) < p for name, shape in shapes.items()} for p in (0.3, 0.6))
    pair = [Subnetwork({n: torch.tensor(m) for n, m in masks.items()}, "n") for masks in (one, other)]
    table = sharing.overlaps(*pair, "abc").set_index("layer")
    for layer, names in {"a": "a", "b": "b", "c": "c", sharing.HIDDEN: "b", OVERALL: "abc"}.items():
        x, y = (np.concatenate([masks[name].ravel() for name in names]) for masks in (one, other))
        both, sizes = (x & y).sum(), x.sum() + y.sum()
        chance = sum(one[name].sum() * other[name].mean() for name in names)
        expected = [both / (x | y).sum(), both / min(x.sum(), y.sum()), both / x.sum()]
        expected += [chance / (sizes - chance), chance / x.sum()]
        columns = ["iou", "iomin", "shared", "chance_iou", "chance_shared"]
        assert np.allclose(table.loc[layer, columns].astype(float), expected)
    assert table.loc["b", "iou"] == pytest.approx(iou(pair)["b"])
    with pytest.raises(WrongNetwork, match="two networks"):
        sharing.overlaps(pair[0], Subnetwork(dict(pair[1].masks), "another"), "abc")


def test_chance_is_what_random_masks_share():
    generator = torch.Generator().manual_seed(0)
    pair = [Subnetwork({n: torch.rand(300, 300, generator=generator) < p for n in "abc"}, "n") for p in (0.2, 0.5)]
    table = sharing.overlaps(*pair, "abc")
    assert np.allclose(table["iou"], table["chance_iou"], atol=0.01)
    assert np.allclose(table["iomin"], table["chance_iomin"], atol=0.02)
    assert np.allclose(table["shared"], table["chance_shared"], atol=0.02)
    masks = {"+": [pair[0], pair[0]], "*": [pair[1], pair[1]]}
    assert np.allclose(sharing.between_functions(masks, "abc")["scale"], 0, atol=0.02)
    same = sharing.between_functions({"+": [pair[0], pair[0]], "*": [pair[0], pair[0]]}, "abc")
    assert np.allclose(same["scale"], 1) and np.allclose(same["ceiling_iou"], 1)
    within = {"+": [pair[0] & pair[1]] * 2, "*": [pair[1]] * 2}  # + has no weight that * has not
    part = sharing.between_functions(within, "abc")
    assert np.allclose(part["scale_iomin"], 1) and (part["scale"] < 0.2).all()


def test_functions_are_compared_by_masks_of_other_seeds_if_there_are_any():
    a, b, c, d = (Subnetwork({"w": torch.tensor([i == j for j in range(4)])}, "n") for i in range(4))
    assert sharing.pairs([a, b], [c, d]) == [(a, d), (b, c)]
    assert sharing.pairs([a, b], [c]) == [(b, c)] and sharing.pairs([a], [c]) == [(a, c)]


def test_chance_in_several_layers_knows_that_they_differ():
    """For one large layer it would be 1/3, too low where one layer is full and the other nearly empty."""
    generator = torch.Generator().manual_seed(0)
    shares = {"a": 0.5, "b": 0.9, "c": 0.1, "d": 0.5}
    pair = [
        Subnetwork({name: torch.rand(200, 200, generator=generator) < p for name, p in shares.items()}, "n")
        for _ in range(2)
    ]
    table = sharing.between_functions({"+": [pair[0]], "*": [pair[1]]}, "abcd").set_index("layer")
    for measure in ("iou", "iomin", "shared"):
        assert np.allclose(table[f"chance_{measure}"], table[measure], atol=0.01)
    assert np.allclose(table["drawn_iou"], table["chance_iou"], atol=0.001)
    assert table.loc[sharing.HIDDEN, "chance_iou"] == pytest.approx((0.81 + 0.01) / (0.99 + 0.19), abs=0.01)
    thin = sharing.between_functions({"+": [pair[0]], "*": [pair[1]]}, "ab").set_index("layer")
    assert np.isnan(thin.loc[sharing.HIDDEN, "drawn_iou"])


def test_parts_leave_what_no_mask_covers_and_edges_come_from_the_control_mask(lab, found):
    one = found[0]
    network, mask, control = one.network.load(lab), one.mask("+").load(lab), one.mask(CONTROL).load(lab)
    before = dict(network.named_parameters())
    parts = steps.parts_of(control, {"+": mask}, maskable(network), seed=0)
    ends = {edges: kept for part, edges, _, kept in parts if part == "inverse"}
    for part in ends.values():
        after = dict(part.apply(network).named_parameters())
        assert all(torch.equal(after[name], before[name]) for name in before if name not in mask.masks)
    first, last, hidden = "layers.0.weight", "layers.3.weight", "layers.1.weight"
    assert torch.equal(ends["fullmask"].masks[first], control.masks[first]) and ends["ones"].masks[last].all()
    assert torch.equal(ends["fullmask"].masks[hidden], ~mask.masks[hidden])


def test_copied_networks_add_both_pairs_by_the_same_weights(lab, found):
    (copied,) = [one for one in found if isinstance(one.network, steps.Copied) and one.network.seed == 0]
    network, original = copied.network.load(lab), copied.network.original.load(lab)
    inputs = torch.zeros(1, 80)
    inputs[0, [1, 12, 23, 34]] = 1.0
    there = inputs.roll(40, dims=1)
    # not to the last bit: where a product's sums begin depends on the processor
    assert torch.allclose(network(inputs)[:, :2], original(there)[:, 2:], atol=1e-6)
    assert torch.allclose(network(inputs)[:, :2], network(there)[:, 2:], atol=1e-6)


def test_tables_hold_every_part_and_the_papers_numbers(lab, found):
    accuracies = tables.accuracies(lab, found)
    assert set(accuracies["edges"]) == {"", "fullmask", "ones"} and accuracies["accuracy"].between(0, 1).all()
    assert len(reference.load("accuracies")) == 80
    for number, networks in ((1, 2), (2, 1), (3, 2)):
        table = tables.compared_with_paper(accuracies, number, profile="micro")
        assert len(table) == 10 * networks and set(table["verdict"]) == {"not comparable at this profile"}
        row = table[(table["mask"] == "full")].iloc[0]
        usual = ~accuracies["copied"] & accuracies["method"].eq("gumbel_sigmoid")
        control = accuracies[usual & accuracies["part"].eq(CONTROL) & accuracies["network"].eq(row["network"])]
        assert row["ours"] in control.groupby(["model", "tested_on"])["accuracy"].mean().to_numpy()
    overlap = tables.sharing(lab, found)
    assert overlap[["iou", "chance_iou", "ceiling_iou"]].notna().any().all()
    lstm = overlap[overlap["model"] == "reader"]
    assert list(lstm["layer"]) == ["lstm.weight_ih_l0", "lstm.weight_hh_l0", "output.weight", sharing.HIDDEN, OVERALL]
    assert lstm["iou"].iloc[3] == lstm["iou"].iloc[1]
    done = tables.operations(lab, found)
    claims = tables.findings(accuracies.assign(base_accuracy=1.0), overlap, done)
    assert set(claims["verdict"]) <= {"holds", "does not hold", "cannot be told"}
    numbers = {"Figure": (1, 2, 8, 13), "Table": (1, 2), "Appendix": ("C.3", "C.5.1")}
    assert {*claims["place"]} == {f"{kind} {i}" for kind, own in numbers.items() for i in own}
    printed = claims[claims["claim"] == "and the other one is not"].set_index(["model", "method"])["paper"]
    gumbel = printed.xs("gumbel_sigmoid", level="method")
    assert gumbel.to_dict() == pytest.approx({"small": (0.69 + 0.2) / 2, "pairs": (0.92 + 0.94) / 2, "reader": 0.975})
    assert printed.drop("gumbel_sigmoid", level="method").isna().all(), "the paper has one method"
    copied = claims[claims["place"] == "Figure 8"]
    assert copied["claim"].str.contains("as much as two masks of one").sum() == copied["model"].nunique()
    unlearned = tables.findings(accuracies.assign(base_accuracy=0.89), overlap, done)
    of_parts = unlearned["place"].str.startswith("Table")
    assert of_parts.any() and set(unlearned.loc[of_parts, "verdict"]) == {"cannot be told"}
    scales = tables.scales(overlap, accuracies.assign(base_accuracy=1.0)).set_index("title")
    assert not len(tables.scales(overlap, accuracies.assign(base_accuracy=0.89)))
    empty = accuracies[~accuracies["part"].isin(["random"])].assign(base_accuracy=1.0)
    assert tables.scales(overlap, empty)["specialization"].isna().all(), "empty masks have no random ones beside them"
    hidden = overlap[overlap["layer"].eq(sharing.HIDDEN)].groupby("title")
    for name in ("scale", "scale_iomin"):
        assert np.allclose(scales[name], hidden[name].mean()[scales.index], equal_nan=True)


def test_every_conclusion_is_there_at_each_strength(lab, found):
    swept = steps.dissected(lab, sweep=True)
    strength, accuracies = tables.by_strength(lab, swept), tables.accuracies(lab, swept)
    assert len(strength) == 4 and np.allclose(strength["beta"], 8 * strength["l0"])
    row = strength.iloc[1]
    plain = accuracies[accuracies["edges"].eq("") & accuracies["l0"].eq(row["l0"]) & accuracies["seed"].eq(row["seed"])]
    own, other = (plain[plain["of"].eq(plain["tested_on"]).eq(same)] for same in (True, False))
    for name, rows, part in (("own", own, "mask"), ("other", other, "mask"), ("control", plain, CONTROL)):
        assert row[f"{name}_accuracy"] == pytest.approx(rows[rows["part"].eq(part)]["accuracy"].mean())
    done = tables.operations(lab, swept).query("mask == '+' and asked == '*' and done == '+'")
    assert strength["follows_mask"].tolist() == done["share"].tolist()
    for name, rows in (("own", own), ("other", other)):
        assert row[f"{name}_without"] == pytest.approx(rows[rows["part"].eq("inverse")]["accuracy"].mean())


def test_specialization_runs_from_random_masks_to_all_or_nothing():
    rows = [("mask", "+", "+", 1.0), ("mask", "+", "*", 0.0), ("mask", "*", "*", 0.9), ("mask", "*", "+", 0.1)]
    rows += [("random", of, on, 0.3 if of == on else 0.2) for of in "+*" for on in "+*"]
    about = {"task": "add_mul", "title": "t", "method": "m", "seed": 0, "edges": ""}
    table = pd.DataFrame(rows, columns=["part", "of", "tested_on", "accuracy"]).assign(**about)
    assert tables._special(table)["specialization"].tolist() == [pytest.approx((0.9 - 0.1) / (1 - 0.1))]
    as_random = table.assign(accuracy=table["accuracy"].where(table["part"] == "random", 0.3))
    as_random.loc[as_random["of"].ne(as_random["tested_on"]), "accuracy"] = 0.2
    assert tables._special(as_random)["specialization"].tolist() == [pytest.approx(0)]


def test_another_method_is_compared_seed_by_seed(lab, found):
    accuracies, overlap = tables.accuracies(lab, found).assign(base_accuracy=1.0), tables.sharing(lab, found)
    compared = tables.methods(accuracies, overlap)
    assert {*compared["method"]} == {"random", "continuous_sparsification"}
    compared = compared[compared["method"] == "continuous_sparsification"]
    row = compared[compared["claim"].str.startswith("weights kept for +")].iloc[0]
    kept = accuracies[accuracies["part"].eq("mask") & accuracies["edges"].eq("") & accuracies["of"].eq("+")]
    kept = kept[kept["model"].eq(row["model"]) & kept["tested_on"].eq("+")].groupby("title")["density"].mean()
    assert row["ours"] == pytest.approx(row["other"] - row["usual"])
    assert [row["usual"], row["other"]] == pytest.approx([kept["small"], kept["small, continuous_sparsification"]])
    only = [one for one in found if one.usual]
    alone = tables.accuracies(lab, only).assign(base_accuracy=1.0)
    assert tables.methods(alone, tables.sharing(lab, only)).empty


def test_claims_on_layers_penalty_and_size(lab, found):
    usual = [one for one in found if one.usual and isinstance(one.network, Network)]
    strength, widths = (tables.by_strength(lab, some) for some in (steps.dissected(lab, sweep=True), usual))
    sizes = tables.kept(lab, usual)
    accuracies = tables.accuracies(lab, usual).assign(base_accuracy=1.0)
    claims = tables.dependence(accuracies, sizes, tables.settled(lab, usual), strength, widths)
    sure = tables.settled(lab, usual)
    unlearned = tables.dependence(accuracies.assign(base_accuracy=0.89), sizes, sure, strength, widths)
    assert not len(unlearned)
    assert {"Figure 7", "Figure 9", "Figure 10", "Figure 12"} <= {*claims["place"]}
    (ratio,) = claims[claims["place"] == "Figure 12"].to_dict("records")
    whole = sizes[sizes["layer"].eq(OVERALL) & sizes["task"].eq("add_mul")].pivot(
        index="seed", columns="function", values="kept"
    )
    assert ratio["ours"] == pytest.approx((whole["*"] / whole["+"]).mean()) and ratio["paper"] == 3.8


def test_sizes_are_compared_where_masks_were_trained_alike(lab, found):
    usual = [one for one in found if one.usual and one.about["title"] == "small"]
    widths, known = tables.by_strength(lab, usual), tables.accuracies(lab, usual).assign(base_accuracy=1.0)
    wide = {"model": "wide", "weights": 2 * widths["weights"], "shared": widths["shared"] / 2}

    def claims(accuracy, other):
        both = pd.concat([accuracy, accuracy.assign(model="wide"), accuracy.assign(model="few")])
        empty = [table.iloc[:0] for table in (tables.kept(lab, usual), tables.settled(lab, usual), widths)]
        table = tables.dependence(both, *empty, pd.concat([widths, widths.assign(**other)]))
        return table[table["place"].isin(["Figure 11", ""])] if len(table) else table

    (row,) = claims(known, wide).to_dict("records")
    assert row["place"] == "Figure 11" and row["ours"] == pytest.approx((widths["shared"] / 2).mean())
    assert not len(claims(known, wide | {"mask_steps": 7})) and not len(claims(known, wide | {"l0": 0.5}))
    assert not len(claims(known.assign(base_accuracy=0.89), wide))
    (row,) = claims(known, {"model": "few", "examples": 30}).to_dict("records")
    assert row["claim"] == "overlap beyond chance: few less all examples" and row["ours"] == 0


def test_one_number_for_a_network_stands_for_networks_that_learned(lab, found):
    accuracy, overlap = tables.accuracies(lab, found), tables.sharing(lab, found)
    learned = accuracy.assign(base_accuracy=accuracy["model"].map({"small": 0.89}).fillna(1.0))
    assert {*tables.scales(overlap, learned)["title"]} == {*accuracy["title"]} - {"small", OTHER}
    assert "small" not in {*tables.methods(learned, overlap)["model"]}


def test_an_inverse_with_whole_edges_does_both_if_the_worse_one_is_done(lab, found):
    accuracy = tables.accuracies(lab, found).assign(base_accuracy=1.0)
    own, inverse = accuracy["of"] == accuracy["tested_on"], accuracy["part"] == "inverse"
    accuracy["accuracy"] = own.map({True: 0.65, False: 1.0}).where(inverse, 0.1)
    claims = tables.findings(accuracy, tables.sharing(lab, found), tables.operations(lab, found))
    both = claims[claims["place"].eq("Appendix C.5.1") & claims["model"].eq("pairs")]
    assert len(both) and (both["ours"] == 0.65).all() and (both["verdict"] == "does not hold").all()


def test_which_operation_is_done_sums_to_one_or_more(lab, found):
    done = tables.operations(lab, found)
    sums = done.groupby(["title", "seed", "mask", "asked"])["share"].sum()
    assert sums.ge(1 - 1e-9).all() and sums.le(2).all() and set(done["mask"]) == {"control", "+", "*"}


def test_the_ledgers_effects_are_those_of_items_that_taught_a_network_and_of_twice_the_penalty(tmp_path):
    few = Lab.open(study([NETWORKS[0] | {"seeds": [0], "l0": [0.0001, 0.0002], "examples": 30}]), tmp_path)
    found, strength = steps.dissected(few), tables.by_strength(few, steps.dissected(few, sweep=True))
    effects = tables.ledger_effects(few, found, strength, tables.by_strength(few, found)).set_index("quantity")
    assert effects.loc["density, alpha 0.0001", "as_released"] == strength["density"].iloc[1]
    network, problem = found[0].network.load(few), found[0].network.problem
    inputs, targets = problem.examples("+", 0)
    right = (network(inputs).argmax(dim=-1) == targets).all(dim=1).sum()
    alone = effects.loc["accuracy on +"]
    assert alone["as_released"] == pytest.approx(float(right) / 30)
    every = found[0].network.result(few)["accuracy on +"]
    assert 30 * alone["as_released"] + 9970 * alone["as_printed"] == pytest.approx(10000 * every)


@pytest.mark.usefixtures("paper_style")
def test_figures_are_legible(lab, found):
    accuracies, overlap = tables.accuracies(lab, found), tables.sharing(lab, found)
    titles = list(dict.fromkeys(accuracies["title"]))
    halves = accuracies[accuracies["of"] == ""]
    for figure in (
        schematic.gumbel_sigmoid(),
        figures.by_size(tables.by_strength(lab, found)),
        figures.shared_weights(overlap, titles),
        figures.kept_weights(tables.kept(lab, found), titles[:2]),
        figures.operations(tables.operations(lab, found), ["small"]),
        half_masks.figure(halves),
        figures.by_strength(tables.by_strength(lab, steps.dissected(lab, sweep=True))),
        figures.settled(tables.settled(lab, found), titles[:2]),
    ):
        assert_readable(figure)


def test_an_empty_mask_has_no_inverse_and_a_line_says_so(tmp_path, capsys):
    strong = MASKS | {"learning_rate": 2.0, "masking": {"l0": 1.0, "samples": 1}}
    lab = Lab.open(study([NETWORKS[0] | {"masks": strong, "seeds": [0], "l0": None, "others": []}]), tmp_path)
    (one,) = steps.dissected(lab)
    accuracies = tables.accuracies(lab, [one])
    assert one.mask("+").load(lab).active == 0
    assert "small, seed 0, +: the mask is empty and has no inverse; lower l0" in capsys.readouterr().err
    assert "inverse" not in set(accuracies["part"]) and "mask" in set(accuracies["part"])
    claims = tables.findings(accuracies, tables.sharing(lab, [one]), tables.operations(lab, [one]))
    assert set(claims["verdict"]) == {"cannot be told"}
    scale = with_intervals(tables.sharing(lab, [one]), ["title"], "scale")
    assert scale[["scale", "low", "high"]].isna().all(axis=None) and scale["n_runs"].tolist() == [0]
    assert np.isnan(tables.by_strength(lab, [one])["other_without"]).all()


def test_a_method_and_a_strength_have_masks_of_their_own(lab, found):
    masks = [one.mask("+") for one in [*found, *steps.dissected(lab, sweep=True)] if one.settings.model == "small"]
    assert len({mask.name for mask in masks}) == len(masks) == 2 * 2 + 2 * 2


FAULTS = [
    (0, {"task": "add_sub"}, "task: 'add_sub' is not valid; give 'add_mul' or 'double_addition'"),
    (0, {"copied": [0]}, "copied: is for feedforward networks"),
    (0, {"masks": MASKS | {"masking": "magnitude"}}, "masks.masking: 'magnitude' trains no masks, as notebook 09d"),
    (2, {"examples": 9}, "examples: an LSTM reads items with both pairs"),
    (1, {"copied": [2]}, "copied: 2 is none of the seeds"),
    (2, {"architecture": NETWORKS[2]["architecture"] | {"steps": 3}}, "steps: 3 cannot be halved"),
    (2, {"masks": MASKS | {"masking": "spectral_clusters"}}, "masking: 'spectral_clusters' needs a chain of layers"),
    (0, {"masks": MASKS | {"masking": {"samples": 3}}}, "samples: 3 samples do not divide the batch of 8"),
    (0, {"masks": MASKS | {"masking": {"l0": -1.0}}}, "l0"),
    (0, {"training": BRIEF | {"interval": 4}}, "interval: 4 does not divide steps 6"),
    (0, {"training": BRIEF | {"warmup": 2}}, "warmup: a constant learning rate has none"),
    (1, {"model": "small"}, "'small' stands twice"),
    (1, {"copied": [0, 0]}, "copied: holds 0 twice"),
    (0, {"others": [MASKS]}, "others: has a method twice, that of 'masks' counted"),
    (0, {"examples": 10000}, "examples: 10000 is not valid"),
    (2, {"paper_network": "FNN"}, "'reader' and 'pairs' stand beside the paper's 'FNN'"),
]


@pytest.mark.parametrize(("place", "change", "said"), FAULTS)
def test_bad_settings_are_one_line(place, change, said):
    networks = [one | change if i == place else one for i, one in enumerate(NETWORKS)]
    with pytest.raises(StudyError) as error:
        Study.load(study(networks))
    assert said in str(error.value) and str(error.value).count("\n") == 0


def test_a_seed_has_its_own_weights():
    problem = steps.Arithmetic("add_mul", steps.section.FeedForward(**FNN))
    prints = [fingerprint(problem.network(seed)) for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
