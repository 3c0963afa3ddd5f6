"""Networks with known truth: what is planted where, its proof, compiled networks, and scores against a few lines."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subnet_utils.core import jobs
from subnet_utils.core.store import StoreError
from subnet_utils.masks.overlap import OVERALL, iou
from subnet_utils.masks.recovery import mask_scores, ranking_scores
from subnet_utils.masks.subnetwork import Subnetwork, WrongNetwork
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.papers.identification_methods import compiled as by_hand
from subnet_utils.papers.identification_methods import known_truth, planted_networks, scoring
from subnet_utils.papers.identification_methods.compiled import Compiled, compiled
from subnet_utils.papers.identification_methods.known_truth import holds, load, save
from subnet_utils.papers.identification_methods.planted import Design, plant
from subnet_utils.tasks import modular_tasks


@pytest.fixture(scope="module")
def groups():
    return plant(Design(), seed=0)


@pytest.fixture(scope="module")
def sharing():
    return plant(Design(overlap=0.5), seed=0)


def right(weights, task) -> float:
    """Accuracy of a feedforward network without biases, in numpy."""
    values = task.inputs.numpy()
    for i, weight in enumerate(weights):
        values = values @ weight.T
        values = values if i == len(weights) - 1 else np.maximum(values, 0)
    return float((values.argmax(axis=1) == task.targets.numpy()).mean())


def weights_of(planted, kept: Subnetwork | None = None) -> list[np.ndarray]:
    names = maskable(planted.model)
    masks = kept.masks if kept else {name: torch.tensor(True) for name in names}
    return [(planted.model.get_parameter(name) * masks[name]).numpy() for name in names]


def like(accuracy: float):
    """Up to three of 169 items: where all answers are equally likely, rounding decides."""
    return pytest.approx(accuracy, abs=0.018)


# -- the subtasks ------------------------------------------------------------------------------------------------------


def test_all_items_of_both_operations_are_there_once_and_right():
    seen = set()
    for i, (name, task) in enumerate(modular_tasks.modular_tasks().items()):
        assert name == ("add", "mul")[i] and task.inputs.shape == (169, 28) and task.inputs.dtype == torch.float32
        for row, answer in zip(task.inputs.tolist(), task.targets.tolist(), strict=True):
            (a, b, operation) = (at for at, value in enumerate(row) if value == 1)
            a, b = a, b - 13
            assert sum(row) == 3 and operation == 26 + i and answer == ((a * b) if i else (a + b)) % 13
            seen.add((a, b, operation))
    assert len(seen) == 2 * 13 * 13


def test_chance_is_the_commonest_answer():
    """0 times anything: 25 of 169 products are 0."""
    tasks = modular_tasks.modular_tasks()
    assert modular_tasks.chance(tasks["add"]) == 13 / 169 and modular_tasks.chance(tasks["mul"]) == 25 / 169


# -- planting ----------------------------------------------------------------------------------------------------------


def test_what_is_planted_does_its_subtask_alone_and_nothing_else_does(groups):
    """Against numpy: the proof's numbers, and their limits."""
    add, mul = (groups.truth[name] for name in ("add", "mul"))
    assert not (add & mul).active and holds(groups.proof)
    for name, own, other in (("add", add, mul), ("mul", mul, add)):
        task, row = groups.tasks[name], groups.proof[name]
        assert row["alone"] == pytest.approx(right(weights_of(groups, own), task)) and row["alone"] >= 0.98
        assert row["without"] == like(right(weights_of(groups, ~own), task)) and row["without"] <= 0.25
        assert row["others"] == like(right(weights_of(groups, other), task)) and row["others"] <= 0.25
        assert row["without others"] == pytest.approx(right(weights_of(groups, ~other), task)) and holds({name: row})
        assert row["whole"] == pytest.approx(right(weights_of(groups), task)) and row["with noise"] >= 0.98


def test_other_weights_stay_as_they_were_and_planted_ones_do_not(groups):
    start = groups.design.network(0).state_dict()
    assert start.keys() == groups.model.state_dict().keys() and len(groups.noise.masks) == 3
    for name, weight in groups.model.state_dict().items():
        noise = groups.noise.masks.get(name, torch.ones_like(weight, dtype=torch.bool))
        assert torch.equal(weight[noise], start[name][noise])
        assert noise.all() or (weight != start[name])[~noise].double().mean() > 0.9
    assert groups.noise.active == groups.noise.total - sum(truth.active for truth in groups.truth.values())


def test_planting_depends_on_design_and_seed_alone(sharing):
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        again = plant(Design(overlap=0.5), seed=0)
        with jobs.threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert fingerprint(again.model) == fingerprint(sharing.model) and again.truth == sharing.truth
    assert torch.equal(torch.get_rng_state(), before)


def test_shared_weights_are_as_many_as_wanted_and_both_subtasks_need_them(sharing):
    """Of n units a layer, n / 2 are shared: 28 n + n n + 13 n weights in a part."""
    add, mul = (sharing.truth[name] for name in ("add", "mul"))
    n = sum(bool(column.any()) for column in add.masks["4.weight"].T)
    size, shared = 28 * n + n * n + 13 * n, 41 * round(n / 2) + round(n / 2) ** 2
    assert add.active == mul.active == size and (add & mul).active == shared
    assert iou([add, mul])[OVERALL] == pytest.approx(shared / (2 * size - shared))
    assert abs(size / add.total - 0.22) < 0.01
    assert holds(sharing.proof)
    for name, row in sharing.proof.items():
        assert row["without shared"] == like(right(weights_of(sharing, ~(add & mul)), sharing.tasks[name]))
        assert row["without shared"] <= 0.25


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_scattered_parts_have_the_wanted_size_and_overlap_in_every_layer(overlap):
    (add,), (mul,) = Design(kind="scattered", density=0.25, overlap=overlap).masks(seed=3).values()
    for name, mask in add.items():
        assert mask.sum() == mul[name].sum() == round(0.25 * mask.numel())
        assert (mask & mul[name]).sum() == round(overlap * int(mask.sum()))
        rows = mask.flatten(1).double().mean(dim=1)
        assert rows.min() > 0 and rows.max() < 1  # no row is whole
    other = Design(kind="scattered", density=0.25, overlap=overlap).masks(seed=4)["add"][0]
    assert not torch.equal(other["0.weight"], add["0.weight"])


def test_further_parts_are_of_their_own():
    (one, two), (mul,) = Design(density=0.1, redundancy=1).masks(seed=0).values()
    for name, mask in one.items():
        assert mask.sum() == two[name].sum() == mul[name].sum() > 0
        assert not (mask & two[name]).any() and not (two[name] & mul[name]).any() and not (mask & mul[name]).any()


@pytest.mark.parametrize("architecture", ["mlp", "cnn"])
def test_groups_do_not_reach_into_each_other(architecture):
    """What two parts do together is the sum of what each does alone. Parts of a transformer read what others write."""
    design = Design(architecture=architecture, density=0.2)
    model, (own,), (other,) = design.network(0), *design.masks(seed=0).values()
    inputs = design.tasks()["add"].inputs[::20]

    def outputs(kept) -> torch.Tensor:
        weights = {name: model.get_parameter(name) * kept[name] for name in kept}
        return torch.func.functional_call(model, weights, inputs)

    silent = {name: torch.zeros_like(mask) for name, mask in own.items()}
    both = outputs({name: own[name] | other[name] for name in own}) - outputs(silent)
    added = outputs(own) + outputs(other) - 2 * outputs(silent)
    assert both.shape == (9, 13) and outputs(own).std() > 0
    torch.testing.assert_close(both, added)


def test_cnn_sees_the_pair_as_lines_in_the_channel_of_the_operation():
    inputs = modular_tasks.modular_tasks()["mul"].inputs[3 * 13 + 5][None]
    picture = planted_networks.Picture()(inputs)[0].numpy()
    expected = np.zeros((2, 13, 13))
    expected[1, 3, :] += 1
    expected[1, :, 5] += 1
    np.testing.assert_array_equal(picture, expected)


def test_transformer_against_loops():
    model, _ = planted_networks.network("transformer", (2, 8), seed=0)
    weight = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    inputs = modular_tasks.modular_tasks()["add"].inputs[40]
    tokens = np.zeros((3, 64))
    for i, (first, last) in enumerate(((0, 13), (13, 26), (26, 28))):
        tokens[i, first:last] = inputs[first:last]
    read, mixed = tokens[2], []
    for head in (slice(0, 32), slice(32, 64)):
        query = weight["query.weight"][head] @ read
        scores = np.array([query @ (weight["key.weight"][head] @ token) / 32**0.5 for token in tokens])
        shares = np.exp(scores) / np.exp(scores).sum()
        values = [weight["value.weight"][head] @ token for token in tokens]
        mixed.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    read = read + weight["output.weight"] @ np.concatenate(mixed)
    read = read + weight["out.weight"] @ np.maximum(weight["into.weight"] @ read, 0)
    np.testing.assert_allclose(model(inputs[None])[0].numpy(), read[-13:], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "group"}, "unknown kind 'group'; did you mean 'groups'?"),
        ({"noise": "clamp"}, "unknown noise 'clamp'; did you mean 'clamped'?"),
        ({"architecture": "cn"}, "unknown architecture 'cn'; did you mean 'cnn'?"),
        ({"density": 0.0}, "density must be above 0 and below 1"),
        ({"density": 1.0}, "density must be above 0 and below 1"),
        ({"overlap": 1.0}, "overlap must be 0 or more and below 1"),
        ({"overlap": -0.1}, "overlap must be 0 or more and below 1"),
        ({"redundancy": -1}, "redundancy must be 0 or more"),
        ({"density": 0.6}, "'hidden layer 1' has 100 units, the parts need .*; lower density or redundancy"),
        ({"redundancy": 3}, "'hidden layer 1' has 100 units, the parts need .*; lower density or redundancy"),
        ({"kind": "scattered", "density": 0.6}, "'0.weight' has 2800 weights, the parts need 3360; lower"),
        ({"hidden": (100, 0)}, r"hidden\[1\] must be a whole number of at least 1"),
        ({"architecture": "transformer", "hidden": (4,)}, "heads and neurons, got 1 numbers; give two"),
    ],
)
def test_impossible_designs_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        Design(**settings)
    assert "\n" not in str(error.value)


def test_a_network_that_was_not_trained_proves_nothing():
    """Nor does one whose parts are exchanged."""
    design = Design(density=0.1)
    model = design.network(0)
    parts = {name: tuple(Subnetwork(part, fingerprint(model)) for part in own) for name, own in design.masks(0).items()}
    assert not holds(known_truth.Planted(model, parts, design, 0).proof)


def test_exchanged_parts_prove_nothing(groups):
    swapped = dict(zip(groups.parts, reversed(groups.parts.values()), strict=True))
    exchanged = known_truth.Planted(groups.model, swapped, groups.design, 0).proof
    assert not holds(exchanged) and exchanged["add"]["alone"] == groups.proof["add"]["others"]
    for name, row in exchanged.items():
        assert row["without others"] == groups.proof[name]["without"] and row["without"] >= 0.98


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_gives_back_the_network(groups, tmp_path):
    save(groups, tmp_path)
    again = load(tmp_path, Design, Compiled)
    assert fingerprint(again.model) == fingerprint(groups.model) and again.parts == groups.parts
    assert (again.design, again.seed, again.proof) == (groups.design, 0, groups.proof)
    save(compiled(Compiled("redundant"), 7), tmp_path)
    assert (
        load(tmp_path, Design, Compiled).design == Compiled("redundant")
        and len(load(tmp_path, Design, Compiled).parts["first"]) == 2
    )


def test_a_damaged_file_is_refused(tmp_path):
    save(compiled(Compiled(), 0), tmp_path)
    path = tmp_path / known_truth.FILE
    content = bytearray(path.read_bytes())
    for change in (-1, -2000):
        damaged = content.copy()
        damaged[change] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is damaged: it does not match its digest; delete it and run again") as at:
            load(tmp_path, Design, Compiled)
        assert "\n" not in str(at.value)
    path.write_bytes(content[:-10])
    with pytest.raises(StoreError, match="cannot be read as safetensors"):
        load(tmp_path, Design, Compiled)
    Subnetwork({"w": torch.tensor([True])}, "n").save(path)
    with pytest.raises(StoreError, match="holds no planted network"):
        load(tmp_path, Design, Compiled)


# -- compiled networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", by_hand.KINDS)
def test_compiled_truth_is_exact(kind):
    """The part alone is always right; without it the answer is always 0; no weight of it can be spared."""
    network = compiled(Compiled(kind), seed=1)
    assert holds(network.proof)
    for i, (name, task) in enumerate(network.tasks.items()):
        bits = {"first": range(4), "second": range(2, 6) if kind == "shared" else range(4, 8)}[name]
        parity = np.array([sum(int(row[bit]) for bit in bits) % 2 for row in task.inputs])
        assert len(parity) == 256 and (task.targets[:, i].numpy() == parity).all()
        for part in network.parts[name]:
            assert (part.apply(network.model)(task.inputs)[:, i].argmax(dim=1).numpy() == parity).all()
        without = network.truth[name].ablate(network.model)(task.inputs)[:, i].argmax(dim=1)
        assert not without.any() and network.proof[name]["without"] == 0.5
    for name, parts in network.parts.items():
        for part in parts:
            assert part.active == 18 and all(lame(network, part, name))


def lame(network, part: Subnetwork, name: str):
    """For each weight of a part, whether the part alone makes a mistake without it."""
    for layer, mask in part.masks.items():
        for at in mask.nonzero().tolist():
            fewer = {other: kept.clone() for other, kept in part.masks.items()}
            fewer[layer][tuple(at)] = False
            kept = Subnetwork(fewer, part.network).apply(network.model)
            yield modular_tasks.accuracy(kept, network.tasks[name]) < 1


def test_every_weight_of_a_compiled_part_has_a_gradient_and_no_other():
    network = compiled(Compiled(), seed=0)
    for name, task in network.tasks.items():
        weights = {at: network.model.get_parameter(at).clone().requires_grad_() for at in maskable(network.model)}
        outputs = torch.func.functional_call(network.model, weights, task.inputs)
        torch.nn.functional.cross_entropy(outputs.flatten(0, 1), task.targets.flatten()).backward()
        for at, mask in network.truth[name].masks.items():
            assert torch.equal((weights[at] * weights[at].grad).abs() > 1e-6, mask)


def test_compiled_kinds_differ_in_what_they_say():
    plain, noise, shared, redundant = (compiled(Compiled(kind), seed=1) for kind in by_hand.KINDS)
    used = [sum(int((n.model.get_parameter(w) != 0).sum()) for w in maskable(n.model)) for n in (plain, noise)]
    assert used[0] == 36 == (plain.truth["first"] | plain.truth["second"]).active and used[1] > 120
    assert (shared.truth["first"] & shared.truth["second"]).active == 4
    assert not (plain.truth["first"] & plain.truth["second"]).active
    one, two = redundant.parts["first"]
    assert not (one & two).active and redundant.truth["first"].active == 36
    inputs = noise.tasks["first"].inputs
    silent = noise.noise.ablate(noise.model)(inputs)
    assert torch.equal(noise.model(inputs), silent)  # bit for bit
    half = Subnetwork({n: m.cumsum(dim=0) % 2 == 1 for n, m in noise.noise.masks.items()}, noise.noise.network)
    assert not torch.equal((~(half & noise.noise)).apply(noise.model)(inputs), silent)  # the noise is alive


def test_unknown_compiled_kinds_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'plane'; did you mean 'plain'?"):
        Compiled("plane")
    with pytest.raises(ValueError, match="width 10 is too small for all units; give 18 or more"):
        Compiled(width=10)


# -- scores ------------------------------------------------------------------------------------------------------------


def truth_of(bits) -> Subnetwork:
    return Subnetwork({"w": torch.tensor(bits, dtype=torch.bool)}, "n")


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_rankings_with_ties_against_pairs_and_thresholds(entries):
    values, bits = (np.array(column) for column in zip(*entries, strict=True))
    if bits.all() or not bits.any():
        return
    found = ranking_scores({"w": torch.tensor(values)}, truth_of(bits))
    pairs = [(a > b) + 0.5 * (a == b) for a in values[bits] for b in values[~bits]]
    assert found["auroc"] == pytest.approx(np.mean(pairs))
    precision, recalls = 0.0, [0.0]
    for threshold in sorted(set(values.tolist()), reverse=True):
        kept = values >= threshold
        recalls.append(bits[kept].sum() / bits.sum())
        precision += (recalls[-1] - recalls[-2]) * bits[kept].mean()
    assert found["average_precision"] == pytest.approx(precision)
    k, draws = int(bits.sum()), []
    above, level = values > np.sort(values)[-k], values == np.sort(values)[-k]
    draws = (bits[above].sum() + (k - above.sum()) * bits[level].mean()) / k  # expected over orders of the ties
    assert found["precision_at_size"] == pytest.approx(draws) and found["base_rate"] == bits.mean()


def test_known_values():
    """scikit-learn's documentation: scores .1, .4, .35, .8 of classes 0, 0, 1, 1 have AUROC .75, precision .83."""
    scores, truth = torch.tensor([0.1, 0.4, 0.35, 0.8]), truth_of([0, 0, 1, 1])
    found = ranking_scores({"w": scores}, truth)
    assert found["auroc"] == 0.75 and found["average_precision"] == pytest.approx(0.8333, abs=1e-4)
    assert found["precision_at_size"] == 0.5
    same = ranking_scores({"w": torch.ones(4)}, truth)
    assert list(same.values()) == [0.5, 0.5, 0.5, 0.5]
    best = ranking_scores({"w": truth.masks["w"].float()}, truth)
    assert list(best.values()) == [1.0, 1.0, 1.0, 0.5]


def test_a_random_ranking_knows_nothing(groups):
    draw = torch.Generator().manual_seed(0)
    truth = groups.truth["add"]
    scores = {name: torch.rand(mask.shape, generator=draw) for name, mask in truth.masks.items()}
    found = ranking_scores(scores, truth)
    assert abs(found["auroc"] - 0.5) < 0.05 and abs(found["average_precision"] - truth.density) < 0.02
    assert found["base_rate"] == pytest.approx(truth.density)


def test_masks_are_counted():
    found = mask_scores(truth_of([1, 1, 1, 0, 0]), truth_of([0, 1, 1, 1, 1]))
    assert found == {"precision": 2 / 3, "recall": 0.5, "iou": 0.4}
    assert np.isnan(mask_scores(truth_of([0, 0]), truth_of([0, 1]))["precision"])
    with pytest.raises(ValueError, match="the truth has none of the weights; there is nothing to find"):
        mask_scores(truth_of([0, 1]), truth_of([0, 0]))


def test_rows_of_a_method(groups):
    """The truth itself is the best method; a part of it has precision 1; a mask may come without a ranking."""
    add, mul = groups.truth["add"], groups.truth["mul"]
    exact = SimpleNamespace(subnetwork=add, scores={name: mask.float() for name, mask in add.masks.items()})
    both = SimpleNamespace(subnetwork=add | mul, scores=None)
    first, second = scoring.score_method(groups, {"add": exact, "mul": both})
    assert first["subtask"] == "add" and first["density"] == first["base_rate"] == add.density
    assert first["own"] == right(weights_of(groups, add), groups.tasks["add"]) >= 0.98
    assert first["other"] == like(right(weights_of(groups, add), groups.tasks["mul"])) and first["other"] < 0.3
    assert first["own_without"] == like(right(weights_of(groups, ~add), groups.tasks["add"]))
    assert first["other_without"] == right(weights_of(groups, ~add), groups.tasks["mul"]) >= 0.98
    assert [first[name] for name in ("precision", "recall", "iou", "auroc", "average_precision")] == [1] * 5
    assert second["precision"] == pytest.approx(0.5) and second["recall"] == 1.0 and "auroc" not in second
    assert second["own"] >= 0.98 and second["other"] >= 0.98 and second["other_without"] < 0.3


def test_faults_of_a_method_are_told_in_one_line(groups):
    truth, ones = truth_of([0, 1]), torch.ones(2)
    for scores, message in (
        ({"v": ones}, "scores and truth do not both have 'v'; score all maskable weights and no others"),
        ({"w": torch.ones(3)}, r"scores of 'w' have shape \(3,\), its weights \(2,\); give one for each"),
        ({"w": ones * torch.nan}, "a score is not a number; look at the method"),
    ):
        with pytest.raises(ValueError, match=message):
            ranking_scores(scores, truth)
    with pytest.raises(ValueError, match="the truth has none or all of the weights"):
        ranking_scores({"w": ones}, truth_of([1, 1]))
    with pytest.raises(ValueError, match="no subtask 'ad' is planted; did you mean 'add'?"):
        scoring.score_method(groups, {"ad": None})
    with pytest.raises(WrongNetwork):
        scoring.score_method(groups, {"add": SimpleNamespace(subnetwork=truth, scores=None)})
