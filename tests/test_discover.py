"""Mask discovery: finds what was planted, leaves the network alone, resumes bit by bit, refuses what does not fit."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from subnet_utils import checkpoints
from subnet_utils.core.store import load_tensors
from subnet_utils.masks import discover as discover_module
from subnet_utils.masks.discover import Discovery, MaskTask, discover, discover_many
from subnet_utils.masks.masking import ContinuousSparsification as ContinuousSparsificationSection
from subnet_utils.masks.masking import GumbelSigmoid as GumbelSigmoidSection
from subnet_utils.masks.masking import Magnitude
from subnet_utils.masks.memory import TOO_MANY, in_parts
from subnet_utils.masks.methods import ContinuousSparsification, GumbelSigmoid, MaskMethod
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import FrozenPrefix, embed_all, embed_rows, out_of_memory
from subnet_utils.models.staged import evaluating, maskable
from subnet_utils.papers.break_it_down.evaluation import score_model
from subnet_utils.tasks.odd_one_out import OddOneOut, batches, similarity_logits
from subnet_utils.training import Recipe, TrainingDiverged

CPU = torch.device("cpu")
ARCHITECTURES = {
    "bert": {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16},
    "resnet": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8},
}


class Stopped(Exception):
    """Raised by the loss to interrupt a run."""


class Matrix(nn.Module):
    """A stage that multiplies by a matrix; the last one returns a tensor, the others a state."""

    def __init__(self, weight: Tensor, *, last: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0])
        self.last = last
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor]:
        return self.linear(x) if self.last else (self.linear(x),)


class Last(nn.Module):
    """A last stage without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Double(nn.Module):
    """A first stage without weights."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (2 * x,)


def planted() -> StagedModel:
    """Column 0 of the items tells the odd one, the others are louder noise; only the diagonals pass anything on."""
    loud = torch.diag(torch.tensor([1.0, 2.0, 3.0, 3.0]))
    return StagedModel(
        {"first": Matrix(torch.eye(4), last=False), "middle": Matrix(loud, last=False), "last": Matrix(loud, last=True)}
    )


def noisy_examples(n: int = 60, seed: int = 0) -> OddOneOut:
    items = torch.randn(n, 4, 4, generator=torch.Generator().manual_seed(seed))
    items[:, :, 0] = torch.tensor([1.0, 1.0, 1.0, -1.0])
    return OddOneOut(items.flatten(0, 1), torch.arange(4 * n).view(n, 4), torch.zeros(4 * n, dtype=torch.int8))


def network(family: str, seed: int = 0) -> StagedModel:
    return build(ARCHITECTURES[family], seed=seed, vocabulary=20, resolution=64)


def examples_for(family: str, n: int = 6) -> OddOneOut:
    draw = torch.Generator().manual_seed(1)
    items = torch.randint(0, 256, (12, 3, 64, 64), dtype=torch.uint8, generator=draw)
    if family == "bert":
        items = torch.randint(1, 20, (12, 7), generator=draw)
        items[::2, 4:] = 0
    rows = torch.stack([torch.randperm(12, generator=draw)[:4] for _ in range(n)])
    return OddOneOut(items, rows, torch.zeros(12, dtype=torch.int8))


def odd_one_out(embeddings: Tensor, odd: Tensor) -> Tensor:
    return cross_entropy(similarity_logits(embeddings), odd)


def find(
    model: StagedModel, data: OddOneOut, *, start: str, epochs: int = 2, rate: float = 0.05, l0: float = 1e-8,
    seed: int = 0, items: Tensor | FrozenPrefix | None = None, loss=odd_one_out,
    method: MaskMethod | None = None, **more,
) -> Discovery:  # fmt: skip
    return discover(
        model, data.items if items is None else items,
        lambda generator: batches(data, 20, generator=generator), loss,
        method=method or ContinuousSparsification(epochs=epochs, l0=l0), start=start, recipe=Recipe(rate, epochs, seed),
        **more,
    )  # fmt: skip


def same(a: Discovery, b: Discovery) -> None:
    assert a.subnetwork == b.subnetwork
    pd.testing.assert_frame_equal(a.history, b.history, check_exact=True)
    pd.testing.assert_frame_equal(a.annealing, b.annealing, check_exact=True)
    torch.testing.assert_close(a.scores, b.scores)
    assert a.passes == b.passes


@pytest.fixture(params=ARCHITECTURES)
def family(request) -> str:
    return request.param


@pytest.fixture
def every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)


# -- what it finds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["middle", "last"])
def test_finds_the_planted_subnetwork(start):
    model, data, fresh = planted(), noisy_examples(), noisy_examples(300, seed=1)
    found = find(model, data, start=start, epochs=40, l0=1e-3).subnetwork
    path = torch.zeros(4, 4, dtype=torch.bool)
    path[0, 0] = True
    names = {"middle": ["middle", "last"], "last": ["last"]}[start]
    assert found.masks.keys() == {f"stages.{name}.linear.weight" for name in names}
    assert all(torch.equal(mask, path) for mask in found.masks.values())
    assert score_model(model, fresh).accuracy < 0.6 < 1.0 == score_model(found.apply(model), fresh).accuracy
    assert score_model(found.ablate(model), fresh).accuracy < 0.4


@pytest.mark.parametrize(("seed", "samples"), [(0, 1), (1, 1), (2, 4)])
def test_masks_that_are_drawn_find_the_planted_subnetwork_and_resume(seed, samples, every_epoch, tmp_path):
    model, data, path = planted(), noisy_examples(), torch.zeros(4, 4, dtype=torch.bool)
    path[0, 0] = True
    method = GumbelSigmoid(l0=3e-3, samples=samples)
    arguments = {"start": "middle", "epochs": 40, "rate": 0.1, "seed": seed, "method": method}
    found = find(model, data, **arguments)
    assert all(torch.equal(mask, path) for mask in found.subnetwork.masks.values())
    assert list(found.history) == ["epoch", "train_loss", "density"]
    likely = found.annealing[[f"bin_{i}" for i in range(25, 50)]].sum(axis=1)
    np.testing.assert_allclose(likely, found.history["density"])  # what is more likely kept than not
    with pytest.raises(Stopped):
        find(model, data, loss=stopping(75), checkpoint=tmp_path / "checkpoint", **arguments)
    same(find(model, data, checkpoint=tmp_path / "checkpoint", **arguments), found)


def test_every_part_of_a_batch_has_a_draw_of_its_own_and_counts_equally():
    drawn = []

    @dataclass(frozen=True)
    class InParts(ContinuousSparsification):
        samples: int = 4
        deterministic: ClassVar[bool] = False

        def soft(self, logits, epoch, generator):
            drawn.append(epoch)
            return super().soft(logits, epoch, generator)

    model, data = planted(), noisy_examples()
    whole = find(model, data, start="middle", epochs=5, l0=1e-3)
    parts = find(model, data, start="middle", epochs=5, method=InParts(epochs=5, l0=1e-3))
    assert parts.subnetwork == whole.subnetwork
    pd.testing.assert_frame_equal(parts.history, whole.history, rtol=1e-4)
    assert drawn.count(2) == 4 * 3 + 1  # three batches, and the histogram


@pytest.mark.parametrize("samples", [1, 4])
def test_what_weights_were_ranked_by_and_how_many_passes_it_took(samples):
    method = GumbelSigmoid(l0=3e-3, samples=samples)
    found = find(planted(), noisy_examples(), start="middle", epochs=5, rate=0.1, method=method)
    assert found.passes == 5 * 3 * samples
    assert found.scores.keys() == found.subnetwork.masks.keys()
    for name, mask in found.subnetwork.masks.items():
        logits = found.scores[name]
        assert torch.equal(logits > 0, mask) and not logits.requires_grad and len(logits.unique()) > 2


@pytest.mark.parametrize("kind", [ContinuousSparsification, GumbelSigmoid])
def test_whole_rows_are_found(kind):
    """Row 0 of each matrix leads to what counts; a mask keeps its weight's shape."""
    epochs = {"epochs": 40} if kind is ContinuousSparsification else {}
    method = kind(units="neurons", l0=4e-3, **epochs)
    found = find(planted(), noisy_examples(), start="middle", epochs=40, rate=0.1, method=method)
    rows = torch.tensor([True, False, False, False])[:, None].expand(4, 4)
    assert all(torch.equal(mask, rows) for mask in found.subnetwork.masks.values())
    assert found.history["density"].iloc[-1] == found.subnetwork.density == 0.25
    assert all(logits.shape == (4, 4) and (logits == logits[:, :1]).all() for logits in found.scores.values())


def test_checkpoints_do_not_tell_weights_from_the_time_before_there_were_other_units():
    about = discover_module._described(ContinuousSparsification())
    assert list(about) == ["method", "epochs", "beta_max", "start_value", "l0", "unannealed"]
    assert discover_module._described(ContinuousSparsification(units="neurons"))["units"] == "'neurons'"


@pytest.mark.parametrize(("steps", "rate", "said"), [(4, 0.1, 1), (4, 1.0, 0)])
def test_a_mask_that_keeps_everything_is_told_of(steps, rate, said, capsys):
    """A logit that begins at 2 falls by the rate in each step, or less."""
    inputs, network = torch.randn(8, 5), nn.Linear(5, 2)
    given = inputs, lambda generator: [(torch.arange(8), torch.zeros(8, dtype=int))], cross_entropy
    how = {"method": GumbelSigmoid(l0=1.0), "recipe": Recipe(rate, epochs=steps, seed=0), "label": "sum"}
    discover(network, *given, **how, stop_after=1)
    assert capsys.readouterr().err.count("keeps all") == 0, "before it has ended"
    found = discover(network, *given, **how).subnetwork
    assert (found.density == 1) == bool(said)
    line = "sum: the mask keeps all 10 weights; train longer, or raise learning_rate or l0"
    assert capsys.readouterr().err.count(line) == said


def test_density_falls_with_the_penalty():
    model, data = planted(), noisy_examples()
    densities = [find(model, data, start="middle", epochs=15, l0=l0).subnetwork.density for l0 in (0.0, 1e-3, 10.0)]
    assert densities[0] > densities[1] > densities[2] == 0.0
    # Without one, the 24 weights that are zero have no gradient at all, and stay where they began, above the threshold.
    assert 24 / 32 < densities[0] < 1


def test_history_and_annealing(every_epoch, tmp_path):
    epochs, path = 8, tmp_path / "checkpoint"
    found = find(planted(), noisy_examples(), start="middle", epochs=epochs, rate=0.003, l0=1e-3, checkpoint=path)
    assert list(found.history) == ["epoch", "train_loss", "beta", "density"]
    assert list(found.annealing) == ["epoch", *(f"bin_{i:02d}" for i in range(50))]
    np.testing.assert_allclose(found.history["beta"], 200 ** (np.arange(1, epochs + 1) / epochs))
    np.testing.assert_allclose(found.annealing.filter(like="bin_").sum(axis=1), 1)
    tensors, _ = load_tensors(path)
    s = np.concatenate([tensor.double().numpy().ravel() for name, tensor in tensors.items() if name.startswith("now/")])
    assert found.history["density"].iloc[-1] == found.subnetwork.density == np.mean(s > 0)
    assert 0 < np.mean(s > 0.05) < np.mean(s > 0) < 1  # a logit that fell, but not below 0, is in the subnetwork
    for name, mask in found.subnetwork.masks.items():
        assert torch.equal(mask, tensors[f"now/{name}"][0] > 0)
    counts, _ = np.histogram(1 / (1 + np.exp(-200 * s)), bins=50, range=(0, 1))
    np.testing.assert_allclose(found.annealing.filter(like="bin_").iloc[-1], counts / s.size)


def test_the_pooler_gets_the_gradient_of_the_penalty_alone(every_epoch, tmp_path):
    """It is masked and counted without being used; lambda beta sigma' is then of the size of Adam's eps."""
    epochs, l0, rate, name = 4, 1e-8, 0.01, "stages.pooler.dense.weight"
    data = examples_for("bert")
    find(network("bert"), data, start="layer_2", epochs=epochs, rate=rate, l0=l0, checkpoint=tmp_path / "c")
    found = load_tensors(tmp_path / "c")[0][f"now/{name}"].double().numpy()
    s, first, second = 0.05, 0.0, 0.0
    for epoch in range(epochs):  # one batch an epoch
        beta = 200 ** ((epoch + 1) / epochs)
        sigma = 1 / (1 + np.exp(-beta * s))
        gradient = l0 * beta * sigma * (1 - sigma)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = first / (1 - 0.9 ** (epoch + 1)), second / (1 - 0.999 ** (epoch + 1))
        s -= rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    assert 0.005 < 0.05 - s < 0.04 - 0.005  # less than the full steps, because of eps
    np.testing.assert_allclose(found, s, atol=1e-6)
    find(network("bert"), data, start="layer_2", epochs=epochs, rate=rate, l0=0.0, checkpoint=tmp_path / "d")
    assert (load_tensors(tmp_path / "d")[0][f"now/{name}"] == torch.tensor(0.05)).all()


# -- what it leaves alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [1, -2])
def test_two_epochs_end_to_end(family, where):
    model, data = network(family), examples_for(family)
    start, before = model.stage_names[where], {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = find(model, data, start=start, rate=0.1, l0=0.0).subnetwork
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()) and after.keys() == before.keys()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert found.network == fingerprint(model)
    assert found.masks.keys() == set(model.maskable(start))
    kept, ablated = (dict(part.named_parameters()) for part in (found.apply(model), found.ablate(model)))
    for name, mask in found.masks.items():
        assert torch.equal(kept[name], mask * before[name]) and torch.equal(ablated[name], ~mask * before[name])
    assert 0 < found.active < found.total == sum(before[name].numel() for name in model.maskable(start))
    assert (found & ~found).active == 0 and (found | ~found).active == found.total


def test_global_random_state_is_left_alone_and_has_no_influence():
    first = find(network("bert"), examples_for("bert"), start="layer_2")
    torch.manual_seed(99)
    state = torch.get_rng_state()
    same(find(network("bert"), examples_for("bert"), start="layer_2"), first)
    assert torch.equal(torch.get_rng_state(), state)


class Rows(nn.Sequential):
    """Modules as a stage of a state of one tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (super().forward(x),)


def test_a_network_in_training_mode_is_evaluated_meanwhile():
    """Dropout in the prefix would freeze one draw; running statistics would change, and the mask belong to no network
    that still exists."""
    middle = Rows(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model = StagedModel({"first": Matrix(torch.eye(4), last=False), "middle": middle, "last": Last()})
    modes = [middle[1].eval(), *model.modules()]
    before, network = [module.training for module in modes], fingerprint(model)
    found = find(model, noisy_examples(), start="first", epochs=4, l0=1e-3)
    assert [module.training for module in modes] == before and any(before) and not all(before)
    assert fingerprint(model) == network == found.subnetwork.network
    same(find(model.eval(), noisy_examples(), start="first", epochs=4, l0=1e-3), found)


def test_a_network_that_writes_to_itself_is_refused():
    class Counting(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            self.running_mean.add_(1)
            return super().forward(x)

    model = StagedModel({"first": Matrix(torch.eye(4), last=False), "norm": Counting(4)})
    with pytest.raises(ValueError, match="the model changed while its mask was trained"):
        find(model, noisy_examples(), start="first")


def test_weights_that_are_not_their_own_are_refused():
    first, last = Matrix(torch.eye(4), last=False), Matrix(torch.eye(4), last=True)
    last.linear.weight = first.linear.weight
    tied = StagedModel({"first": first, "last": last})
    for start in ("first", "last"):  # also if the other one lies in the prefix
        with pytest.raises(ValueError, match="'stages.last.linear.weight' is one tensor with an earlier weight"):
            find(tied, noisy_examples(), start=start)
    last = Matrix(torch.eye(4), last=True)
    nn.utils.parametrizations.weight_norm(last.linear)
    with pytest.raises(ValueError, match="'stages.last.linear.weight' is computed from other parameters"):
        find(StagedModel({"last": last}), noisy_examples(), start="last")


def test_a_loss_is_one_number():
    def unreduced(embeddings: Tensor, odd: Tensor) -> Tensor:
        return cross_entropy(similarity_logits(embeddings), odd, reduction="none")

    with pytest.raises(ValueError, match=r"the loss of a mask must be one number, not \(20,\)"):
        find(planted(), noisy_examples(), start="middle", loss=unreduced)


def test_a_method_of_ones_own_may_be_any_class(every_epoch, tmp_path):
    class TopK:
        deterministic, start_value = True, 0.5

        def __init__(self, k: int, l0: float) -> None:
            self.k, self.l0 = k, l0

        def init(self, weight: Tensor, generator: torch.Generator) -> Tensor:
            return torch.linspace(0, 1, weight.numel()).view(weight.shape)

        def soft(self, logits, epoch, generator):
            return {name: torch.sigmoid(s) for name, s in logits.items()}

        def penalty(self, soft, logits):
            return self.l0 * sum(s.square().sum() for s in logits.values())

        def hard(self, logits: Tensor) -> Tensor:
            return logits >= logits.flatten().topk(self.k).values[-1]

    model, data, path = planted(), noisy_examples(), tmp_path / "checkpoint"
    found = find(model, data, start="middle", method=TopK(3, 0.0), checkpoint=path)
    assert found.history["density"].iloc[-1] == found.subnetwork.density == 6 / 32
    passes = partial(batches, data, 20)
    masks = [MaskTask(data.items, lambda generator: passes(generator=generator), TopK(3, i), i) for i in (0, 1)]
    options = {"start": "middle", "recipe": Recipe(0.05, 2, 0)}
    with pytest.raises(ValueError, match="may differ only in seed, data and start_value"):
        discover_many(model, masks, odd_one_out, **options)
    many = discover_many(model, [replace(one, method=TopK(3, 0)) for one in masks], odd_one_out, **options)
    assert [one.history["density"].iloc[-1] for one in many] == [one.subnetwork.density for one in many]
    # another value of a setting is another run
    other = find(model, data, start="middle", method=TopK(3, 9.0), checkpoint=path)
    same(find(model, data, start="middle", method=TopK(3, 9.0)), other)


def test_a_checkpoint_is_of_its_items(every_epoch, tmp_path, capsys):
    path = tmp_path / "checkpoint"
    find(planted(), noisy_examples(), start="middle", checkpoint=path)
    other = noisy_examples(seed=5)
    same(find(planted(), other, start="middle", checkpoint=path), find(planted(), other, start="middle"))
    assert "was written by another run" in capsys.readouterr().err


def test_items_may_require_a_gradient():
    data = noisy_examples()
    plain = find(planted(), data, start="middle")
    same(find(planted(), replace(data, items=data.items.clone().requires_grad_()), start="middle"), plain)


def test_items_of_two_shapes_are_not_padded_unless_the_network_takes_padding():
    """A network that reads the last position would read the padding."""
    sequences = [torch.randn(240, length, 4, generator=torch.Generator().manual_seed(length)) for length in (3, 5)]

    class LastPosition(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x[:, -1],)

    model = StagedModel({"read": LastPosition(), "last": Matrix(torch.eye(4), last=True)})
    data, method = noisy_examples(), ContinuousSparsification(epochs=2)
    masks = [MaskTask(items, partial(_passes, data), method, 0) for items in sequences]
    options = {"start": "read", "recipe": Recipe(0.01, 2, 0)}
    with pytest.raises(ValueError, match="items of masks trained at once differ in shape; train them one by one"):
        discover_many(model, masks, odd_one_out, **options)
    assert len(discover_many(model, masks[:1] * 2, odd_one_out, **options)) == 2


# -- the same again ----------------------------------------------------------------------------------------------------


def test_same_seed_same_mask_other_seed_other_order(every_epoch, tmp_path):
    model, data = planted(), noisy_examples()
    first, again, other = (
        find(model, data, start="middle", epochs=3, seed=seed, checkpoint=tmp_path / f"{i}")
        for i, seed in enumerate((0, 0, 1))
    )
    same(first, again)
    logits = [load_tensors(tmp_path / f"{i}")[0]["now/stages.middle.linear.weight"] for i in range(3)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


def stopping(after: int):
    """The usual loss, which raises at its `after`-th call."""
    calls = iter(range(after))

    def loss(embeddings: Tensor, odd: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise Stopped
        return odd_one_out(embeddings, odd)

    return loss


@pytest.mark.parametrize("after", [1, 4, 8])
def test_resume_is_bit_exact(after, every_epoch, tmp_path, monkeypatch):
    """Three batches an epoch: stopped in the first, second and third epoch of four, and once more after that."""
    model, data, path = planted(), noisy_examples(), tmp_path / "checkpoint"
    arguments = {"start": "middle", "epochs": 4, "l0": 1e-3}
    for calls in (after, 2):
        with pytest.raises(Stopped):
            find(model, data, loss=stopping(calls), checkpoint=path, **arguments)
    expected, steps = find(model, data, **arguments), counted_steps(monkeypatch)
    same(find(model, data, checkpoint=path, **arguments), expected)
    assert len(steps) == 12 - 3 * (after // 3), "it goes on, and does not begin again"


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> list:
    """A list that grows with every step that is made from now on."""
    steps = []
    monkeypatch.setattr(torch.Tensor, "backward", lambda value, _=torch.Tensor.backward: steps.append(1) or _(value))
    return steps


@pytest.mark.parametrize("other", ["penalty", "network"])
def test_a_checkpoint_of_another_mask_is_not_used(other, every_epoch, tmp_path, capsys):
    """Not even where the recipe and all shapes are the same."""
    path, arguments = tmp_path / "checkpoint", {"start": "middle", "epochs": 4, "l0": 1e-3}
    with pytest.raises(Stopped):
        find(planted(), noisy_examples(), loss=stopping(7), checkpoint=path, **arguments)
    model = planted()
    if other == "network":
        with torch.no_grad():
            next(model.parameters()).mul_(2)
    find(model, noisy_examples(), checkpoint=path, **arguments | {"l0": 2e-3 if other == "penalty" else 1e-3})
    assert "checkpoint not used, starting over" in capsys.readouterr().err


# -- the frozen prefix -------------------------------------------------------------------------------------------------


def frozen(model: StagedModel, data: OddOneOut, start: str, *, limit_gb: float = 4.0) -> FrozenPrefix:
    return FrozenPrefix(model.cut(start)[0], data.items, device=CPU, limit_gb=limit_gb)


def test_prefix_outputs_are_those_of_the_prefix(family):
    model, data, rows = network(family), examples_for(family), torch.tensor([3, 3, 0, 11])
    start = model.stage_names[2]
    expected = model.cut(start)[0](data.items[rows])
    outputs = frozen(model, data, start)(rows)
    assert len(outputs) == len(expected)
    for found, tensor in zip(outputs, expected, strict=True):
        assert not found.requires_grad
        torch.testing.assert_close(found, tensor.detach())
    (items,) = frozen(model, data, model.stage_names[0])(rows)
    assert torch.equal(items, data.items[rows])


def test_embeddings_are_those_of_the_whole_network(family):
    model, data = network(family), examples_for(family)
    start = model.stage_names[2]
    suffix, cached, expected = model.cut(start)[1], frozen(model, data, start), model(data.items).detach()
    torch.testing.assert_close(embed_all(suffix, cached), expected, atol=1e-5, rtol=1e-5)
    rows = torch.tensor([[1, 5, 1], [0, 1, 11]])
    torch.testing.assert_close(embed_rows(suffix, cached, rows).detach(), expected[rows], atol=1e-5, rtol=1e-5)


def test_outputs_for_which_memory_runs_out_are_recomputed(monkeypatch, capsys):
    model, data = network("bert"), examples_for("bert")
    expected, without = frozen(model, data, "layer_2"), torch.Tensor.new_empty

    def scarce(tensor: Tensor, *shape: int) -> Tensor:
        if shape[0] == len(data.items):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return without(tensor, *shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", scarce)
    outputs = frozen(model, data, "layer_2")
    assert outputs.gb == 0 and "out of memory for prefix outputs" in capsys.readouterr().err
    for found, tensor in zip(outputs(torch.arange(12)), expected(torch.arange(12)), strict=True):
        torch.testing.assert_close(found, tensor)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *_: (_ for _ in ()).throw(RuntimeError("another fault")))
    with pytest.raises(RuntimeError, match="another fault"):
        frozen(model, data, "layer_2")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_recomputed_prefix_gives_what_the_cached_one_gives(family, precision, capsys):
    """In bfloat16 too: the prefix runs in float32 whatever surrounds it."""
    model, data = network(family), examples_for(family)
    start = model.stage_names[2]
    cached = frozen(model, data, start)
    assert capsys.readouterr() == ("", "")
    recomputed = frozen(model, data, start, limit_gb=1e-9)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "GiB, cache_limit_gb leaves 1e-09: recomputing them" in err
    autocast = partial(torch.autocast, "cpu", dtype=precision, enabled=precision != torch.float32)
    with autocast():
        for one, other in zip(recomputed(torch.arange(12)), cached(torch.arange(12)), strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    first, second, third = (
        find(model, data, start=start, items=items, autocast=autocast) for items in (cached, recomputed, data.items)
    )
    assert first.subnetwork == second.subnetwork == third.subnetwork
    np.testing.assert_allclose(first.history, second.history, atol=1e-3)


def test_bfloat16_reaches_the_suffix():
    seen = []
    data = noisy_examples()

    def loss(embeddings: Tensor, odd: Tensor) -> Tensor:
        seen.append((embeddings.dtype, torch.equal(embeddings, embeddings.bfloat16().float())))
        return odd_one_out(embeddings, odd)

    find(planted(), data, start="last", loss=loss, autocast=partial(torch.autocast, "cpu", dtype=torch.bfloat16))
    find(planted(), data, start="last", loss=loss)
    assert seen == [(torch.float32, True)] * 6 + [(torch.float32, False)] * 6


@pytest.mark.parametrize("wrong", ["start", "network"])
def test_outputs_of_another_prefix_are_refused(wrong):
    """Hidden states have one width in all layers: the wrong ones would run, and give wrong numbers."""
    model, data = network("bert"), examples_for("bert")
    outputs = frozen(model, data, "layer_1") if wrong == "start" else frozen(network("bert", 1), data, "layer_2")
    with pytest.raises(ValueError, match="prefix outputs are of another network or start .*make them with"):
        find(model, data, start="layer_2", items=outputs)


def test_outputs_of_another_prefix_without_weights_are_refused():
    """Two starts whose prefixes hold the same weights, none, are told apart by their stages."""
    model = StagedModel({"twice": Double(), "last": Matrix(torch.eye(4), last=True)})
    data = noisy_examples()
    with pytest.raises(ValueError, match="another network or start .no stage; needed: twice."):
        find(model, data, start="last", items=frozen(model, data, "twice"))


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_unknown_and_empty_starts_are_refused():
    data = noisy_examples()
    with pytest.raises(ValueError, match="unknown stage 'midle'; did you mean 'middle'"):
        find(planted(), data, start="midle")
    model = StagedModel({"first": Matrix(torch.eye(4), last=False), "end": Last()})
    with pytest.raises(ValueError, match="no weight to mask from stage 'end' on; start earlier"):
        find(model, data, start="end")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "a network is a torch.nn.Module, not a NoneType; give the network itself"),
        (torch.relu, "a network is a torch.nn.Module, not a builtin_function_or_method; give the network itself"),
        (nn.Linear(4, 4, device="meta"), r"'weight' has no values \(device 'meta'\); load the network's weights first"),
    ],
)
def test_what_is_no_network_is_refused(model, said):
    found = find(planted(), noisy_examples(), start="last", epochs=1)
    for use in (lambda: find(model, noisy_examples(), start="last"), lambda: found.subnetwork.apply(model)):
        with pytest.raises(ValueError, match=f"^{said}$"):
            use()


def test_only_floating_point_weights_are_masked_and_a_method_is_an_object():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network.table = nn.Parameter(torch.ones(3, 3, dtype=torch.int8), requires_grad=False)
    assert maskable(network) == ("0.weight", "1.weight") and maskable(network, only="1.weight") == ("1.weight",)
    assert maskable(nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 2))) == ("1.weight",)
    for method in ("gumbel_sigmoid", ContinuousSparsificationSection()):
        tasks = [MaskTask(noisy_examples().items, lambda generator: [], method, seed=0)] * 2
        with pytest.raises(ValueError, match="^method .* is not valid; give an object of masks.methods, such as"):
            discover_many(planted(), tasks, odd_one_out, start="last", recipe=Recipe(0.1, 5, seed=0))


@pytest.mark.parametrize("count", [2, 8, 10])
def test_items_count_alike_in_parts_of_any_size(count):
    """Logits so large that every draw is the whole network."""
    network, inputs, targets = nn.Linear(4, 3), torch.randn(count, 4), torch.arange(count) % 3
    method = GumbelSigmoid(l0=0.0, start_value=60.0, samples=4)
    batches = lambda generator: [(torch.arange(count), targets)]  # noqa: E731
    options = {"method": method, "recipe": Recipe(0.1, epochs=1, seed=0)}
    found = discover(network, inputs, batches, cross_entropy, **options)
    assert found.history["train_loss"][0] == pytest.approx(cross_entropy(network(inputs), targets).item())
    assert found.passes == min(4, count)


def test_schedule_of_another_length_is_refused():
    """The mask would never harden, or be hard from the start."""
    with pytest.raises(ValueError, match="anneals over 90 epochs, the recipe trains 5"):
        discover(
            planted(), noisy_examples().items, lambda generator: [], odd_one_out,
            method=ContinuousSparsification(), start="last", recipe=Recipe(0.1, 5, seed=0),
        )  # fmt: skip


def test_loss_that_is_not_finite_stops_the_search():
    with pytest.raises(TrainingDiverged, match="mask of inside: the loss in epoch 0 is not finite; lower the learning"):
        find(
            planted(), noisy_examples(), start="last", label="mask of inside",
            loss=lambda embeddings, odd: embeddings.sum() * torch.nan,
        )  # fmt: skip


def test_checkpoint_of_another_start_is_not_used(every_epoch, tmp_path: Path, capsys):
    model, data, path = planted(), noisy_examples(), tmp_path / "checkpoint"
    find(model, data, start="middle", checkpoint=path)
    same(find(model, data, start="last", checkpoint=path), find(model, data, start="last"))
    assert capsys.readouterr().err.count("checkpoint not used, starting over") == 1


# -- many at once ------------------------------------------------------------------------------------------------------


def mask_tasks(family: str, count: int = 4, *, epochs: int = 3) -> list[MaskTask]:
    """Masks with two first values and data of their own, as for two subroutines, and seeds that all differ."""
    sets = [examples_for(family), examples_for(family)]
    longer = sets[1].items if family == "resnet" else torch.nn.functional.pad(sets[1].items, (0, 2))
    sets[1] = replace(sets[1], items=longer, examples=sets[1].examples.flip(0, 1))
    return [
        MaskTask(
            sets[i % 2].items, partial(_passes, sets[i % 2]),
            ContinuousSparsification(epochs=epochs, start_value=(0.05, -0.01)[i // 2 % 2]), seed=i,
        )
        for i in range(count)
    ]  # fmt: skip


def _passes(data: OddOneOut, generator: torch.Generator):
    return batches(data, 4, generator=generator)


def find_many(family: str, masks: list[MaskTask], *, epochs: int = 3, **more) -> list[Discovery | TrainingDiverged]:
    start = {"bert": "layer_1", "resnet": "stage_2"}[family]
    model = network(family).double()  # the two ways round differently, in float64 too little to flip a mask
    masks = [replace(one, items=one.items if family == "bert" else one.items.double() / 255) for one in masks]
    return discover_many(model, masks, odd_one_out, start=start, recipe=Recipe(0.01, epochs, seed=99), **more)


def test_many_at_once_are_those_found_one_by_one(family):
    masks = mask_tasks(family)
    together, alone = find_many(family, masks), [find_many(family, [one])[0] for one in masks]
    densities = {found.subnetwork.density for found in together}
    assert len(densities) > 2 and not densities & {0.0, 1.0}
    for found, expected in zip(together, alone, strict=True):
        assert found.subnetwork == expected.subnetwork
        pd.testing.assert_frame_equal(found.history, expected.history, rtol=1e-5)
        pd.testing.assert_frame_equal(found.annealing, expected.annealing, atol=1e-3)


def test_one_of_many_is_what_discover_finds():
    (one,) = mask_tasks("bert", 1)
    (among,) = find_many("bert", [one])
    model = network("bert").double()
    recipe = Recipe(0.01, 3, seed=one.seed)
    same(among, discover(model, one.items, one.batches, odd_one_out, method=one.method, start="layer_1", recipe=recipe))


def test_many_resume_with_the_same_bits(every_epoch, tmp_path, monkeypatch, capsys):
    expected, calls = find_many("bert", mask_tasks("bert")), []

    def stop_late(embeddings, odd):
        calls.append(1)
        if len(calls) > 3:
            raise Stopped
        return odd_one_out(embeddings, odd)

    model, masks, options = (
        network("bert").double(),
        mask_tasks("bert"),
        {"start": "layer_1", "recipe": Recipe(0.01, 3, 0)},
    )
    with pytest.raises(Stopped):
        discover_many(model, masks, stop_late, checkpoint=tmp_path / "checkpoint", **options)
    found = discover_many(model, masks, odd_one_out, checkpoint=tmp_path / "checkpoint", **options)
    discover_many(model, masks, odd_one_out, checkpoint=tmp_path / "paused", stop_after=2, **options)
    steps, whole = counted_steps(monkeypatch), discover_many(model, masks, odd_one_out, **options)
    in_three_epochs = len(steps)
    again = discover_many(model, masks, odd_one_out, checkpoint=tmp_path / "paused", **options)
    assert len(steps) - in_three_epochs == in_three_epochs / 3, "it goes on with the last epoch"
    for ours, resumed, unpaused, theirs in zip(found, again, whole, expected, strict=True):
        same(ours, theirs)
        same(resumed, theirs)
        same(unpaused, theirs)
    assert "not used" not in capsys.readouterr().err


def test_masks_with_other_seeds_do_not_go_on_from_a_checkpoint(tmp_path, capsys):
    options = {"checkpoint": tmp_path / "checkpoint"}
    find_many("bert", [replace(one, seed=7) for one in mask_tasks("bert")], stop_after=2, **options)
    found = find_many("bert", mask_tasks("bert"), **options)
    assert "not used, starting over" in capsys.readouterr().err
    for ours, theirs in zip(found, find_many("bert", mask_tasks("bert")), strict=True):
        same(ours, theirs)


def test_a_mask_that_diverges_is_dropped_and_the_others_go_on():
    model, data = planted(), noisy_examples(20)
    broken = replace(data, items=data.items.clone().index_fill_(0, torch.tensor([7]), float("nan")))
    masks = [
        MaskTask(one.items, partial(_passes, one), ContinuousSparsification(epochs=3), seed)
        for seed, one in enumerate([data, broken, data])
    ]
    options = {"start": "middle", "recipe": Recipe(0.01, 3, 0), "label": "contact"}
    first, dropped, last = discover_many(model, masks, odd_one_out, **options)
    assert isinstance(dropped, TrainingDiverged)
    assert str(dropped) == "contact, run 2 of 3: the loss in epoch 0 is not finite; lower the learning rate (0.01)"
    without = discover_many(model, [masks[0], masks[2]], odd_one_out, **options)
    same(first, without[0])
    same(last, without[1])
    assert discover_many(model, [], odd_one_out, **options) == []


def test_parameters_of_two_names():
    data, options, tied = noisy_examples(20), {"start": "middle", "epochs": 1}, planted()
    tied.stages["last"].linear.bias = tied.stages["middle"].linear.bias
    find(tied, data, **options)
    tied.stages["last"].linear.weight = tied.stages["middle"].linear.weight
    with pytest.raises(ValueError, match="'stages.last.linear.weight' is one tensor with an earlier weight"):
        find(tied, data, **options)


def test_masks_need_equally_many_batches():
    first, second = mask_tasks("bert", 2)
    shorter = replace(second, batches=lambda generator: list(second.batches(generator))[:-1])
    with pytest.raises(
        ValueError, match="bert: masks trained at once need equally many batches; train them one by one"
    ):
        find_many("bert", [first, shorter], label="bert")


def test_when_memory_runs_out_the_masks_are_trained_in_halves(every_epoch, monkeypatch, capsys, tmp_path):
    masks = [replace(one, seed=7) for one in mask_tasks("bert")]  # as in a search: nothing else tells the halves apart
    expected, train, sizes = find_many("bert", masks), discover_module._Together._train, []

    def scarce(self, masks, checkpoint):
        sizes.append((len(masks), checkpoint.name))
        if len(masks) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train(self, masks, checkpoint)

    monkeypatch.setattr(discover_module._Together, "_train", scarce)
    found = find_many("bert", masks, label="bert", checkpoint=tmp_path / "checkpoint.safetensors")
    names = ["checkpoint.safetensors", "checkpoint-0-1.safetensors", "checkpoint-2-3.safetensors"]
    assert sizes == list(zip([4, 2, 2], names, strict=True))
    assert "bert: out of memory with 4 masks at once; trying 2" in capsys.readouterr().err
    assert [a.subnetwork for a in found] == [b.subnetwork for b in expected]

    sizes.clear()
    (tmp_path / "later").mkdir()
    (tmp_path / "few").mkdir()
    again = find_many("bert", masks, label="bert", checkpoint=tmp_path / "later" / "checkpoint.safetensors")
    find_many("bert", masks[:2], checkpoint=tmp_path / "few" / "checkpoint.safetensors")
    assert sizes == list(zip([2, 2, 2], [*names[1:], names[0]], strict=True)), "four are not tried again"
    assert capsys.readouterr().err == "", "nor is it said again"
    assert [a.subnetwork for a in again] == [b.subnetwork for b in expected]
    with pytest.raises(MemoryError, match="^4 masks at once do not fit into memory$"):
        find_many("bert", masks, split=False, checkpoint=tmp_path / "together.safetensors")

    def scarcer(self, masks, checkpoint):
        sizes.append((len(masks), checkpoint.name))
        if len(masks) > 1:
            raise RuntimeError("could not create a primitive")
        return train(self, masks, checkpoint)

    sizes.clear()
    monkeypatch.setattr(discover_module._Together, "_train", scarcer)
    found = find_many("bert", masks, checkpoint=tmp_path / "alone.safetensors")
    alone = [name for size, name in sizes if size == 1]
    assert alone == [f"alone-{place}.safetensors" for place in range(4)]  # halves of halves have files of their own
    for a, b in zip(found, expected, strict=True):
        same(a, b)
    monkeypatch.setattr(discover_module._Together, "_train", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError, match="bert: out of memory with one mask; lower compute.workers, "):
        find_many("bert", mask_tasks("bert", 1), label="bert")


def test_parts_are_the_same_whether_it_is_known_that_all_are_too_many():
    """So that a killed run finds the checkpoints of its parts when it has to find out anew."""

    def parts_of(count: int) -> list[tuple[int, ...]]:
        tried = []

        def train(masks: range, positions: tuple[int, ...]) -> list[int]:
            if len(masks) > 2:
                raise MemoryError("out of memory")
            tried.append(positions)
            return list(masks)

        assert in_parts(train, range(count), of=("network",), label="") == list(range(count))
        return tried

    first = parts_of(9)
    assert first == [(0, 1), (2,), (3, 4), (5, 6), (7, 8)] and TOO_MANY == {("network",): 3}
    assert parts_of(9) == first and parts_of(2) == [()]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.net = kind(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.net(x)[0][:, -1],)


def recurrent(kind: type[nn.RNNBase]) -> tuple[StagedModel, list[MaskTask]]:
    """A recurrent classifier, and three masks to be found in it."""
    generator = torch.Generator().manual_seed(0)
    items, targets = torch.randn(24, 5, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)

    def one_pass(generator: torch.Generator):
        return [(rows, targets[rows]) for rows in torch.randperm(24, generator=generator).split(8)]

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = StagedModel({"net": Recurrent(kind), "head": nn.Linear(6, 3)}).eval().requires_grad_(False)
    method = ContinuousSparsification(epochs=2, beta_max=200.0, start_value=0.05, l0=1e-3)
    return model, [MaskTask(items, one_pass, method, seed) for seed in (0, 1, 2)]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_networks_that_cannot_be_vectorized_are_masked_one_by_one(kind, every_epoch, capsys, tmp_path):
    (model, masks), options = recurrent(kind), {"start": "net", "recipe": Recipe(0.3, epochs=2, seed=0)}
    found = discover_many(
        model, masks, cross_entropy, **options, label="rnn", checkpoint=tmp_path / "checkpoint.safetensors"
    )
    message = capsys.readouterr().err
    assert "rnn: 3 masks cannot be trained at once (Batching rule not implemented for aten::" in message
    assert message.strip().endswith("; one by one") and message.count("cannot be trained at once") == 1
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"checkpoint-{place}.safetensors" for place in range(3)]
    alone = [
        discover(model, one.items, one.batches, cross_entropy, method=one.method, start="net",
                 recipe=Recipe(0.3, epochs=2, seed=one.seed))
        for one in masks
    ]  # fmt: skip
    for a, b in zip(found, alone, strict=True):
        same(a, b)
    assert 0 < found[0].subnetwork.density < 1 and found[0].subnetwork != found[1].subnetwork
    assert capsys.readouterr().err == ""


def test_masks_of_torchs_own_attention_are_trained_at_once():
    """Its fast path has no gradient, and takes what is within torch.vmap for tensors that need none."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    items, targets = torch.randn(20, 3, 8), torch.randn(20, 3, 8)
    method, recipe = ContinuousSparsification(epochs=2), Recipe(0.05, epochs=2, seed=0)

    def batches(generator):
        return [(rows, targets[rows]) for rows in torch.randperm(20, generator=generator).split(10)]

    tasks = [MaskTask(items, batches, method, seed) for seed in (0, 1)]
    found = discover_many(model, tasks, nn.functional.mse_loss, recipe=recipe)
    alone = discover(model, items, batches, nn.functional.mse_loss, method=method, recipe=recipe)
    pd.testing.assert_frame_equal(found[0].history, alone.history, rtol=1e-4)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_are_evaluated_without_dropout_and_with_gradients(kind):
    """In training mode, as cuDNN wants it, and to the bit what they are in evaluation mode."""
    model = nn.Sequential(kind(4, 6, 2, dropout=0.5, batch_first=True), nn.Identity()).eval()
    items = torch.randn(5, 3, 4)
    expected = model[0](items)[0]
    with evaluating(model.train()):
        assert model[0].training and not model.training and not model[1].training
        assert torch.equal(model[0](items)[0], expected)
    assert model[0].training and model[1].training and model[0].dropout == 0.5


def test_another_fault_of_masks_at_once_is_raised(monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(discover_module._Together, "_train", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find_many("bert", mask_tasks("bert", 2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("many", [1, 2])
def test_a_network_of_bfloat16_keeps_its_precision(many):
    model, masks = recurrent(nn.LSTM)
    model = StagedModel({"head": model.stages["head"]}).bfloat16()
    masks = [replace(one, items=one.items.mean(1).repeat(1, 2)[:, :6].bfloat16()) for one in masks[:many]]
    found = discover_many(model, masks, cross_entropy, start="head", recipe=Recipe(0.3, epochs=2, seed=0))
    assert all(0 < one.subnetwork.density < 1 for one in found)
    assert {tensor.dtype for tensor in found[0].subnetwork.apply(model).parameters()} == {torch.bfloat16}


def test_masks_of_the_same_items_look_them_up_together(monkeypatch):
    masks, looked = mask_tasks("bert", 3), []
    look_up = FrozenPrefix.__call__
    monkeypatch.setattr(FrozenPrefix, "__call__", lambda self, rows: looked.append(len(rows)) or look_up(self, rows))
    alone = find_many("bert", [replace(one, items=one.items.clone()) for one in masks])
    counts = [len(looked)]
    together = find_many("bert", [replace(one, items=masks[0].items) for one in masks])
    counts.append(len(looked) - counts[0])
    assert counts[0] == 3 * counts[1] > 0
    for one, other in zip(alone, together, strict=True):
        same(one, other)


@pytest.mark.parametrize(
    "said",
    [
        "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory",
        "could not create a primitive",
        "std::bad_alloc",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_memory_runs_out_in_many_words(said):
    assert out_of_memory(RuntimeError(said))
    assert not out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


def test_masks_that_cannot_be_trained_together_are_refused():
    first, second = mask_tasks("bert", 2)
    with pytest.raises(ValueError, match="may differ only in seed, data and start_value"):
        find_many("bert", [first, replace(second, method=ContinuousSparsification(epochs=3, l0=0.1))])

    with pytest.raises(ValueError, match="draws random numbers trains one mask at a time"):
        find_many("bert", [replace(one, method=GumbelSigmoid()) for one in (first, second)])


# Networks without stages.


def perceptron() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.tensor([1.0, 2.0, 3.0, 3.0])))
    return model


@pytest.mark.parametrize("masking", [ContinuousSparsificationSection(), GumbelSigmoidSection(), Magnitude()])
def test_any_module_can_be_masked(masking):
    model, data = perceptron(), noisy_examples()
    before = fingerprint(model)
    found = masking.find(
        model, data.items, lambda generator: batches(data, 20, generator=generator), odd_one_out,
        recipe=Recipe(0.05, 2, 0),
    ).subnetwork  # fmt: skip
    assert set(found.masks) == {"0.weight", "2.weight"} and fingerprint(model) == before
    assert found.network == before
    halved = found.apply(model)
    assert torch.equal(halved[0].weight, model[0].weight * found.masks["0.weight"])


def test_a_module_without_stages_is_masked_as_the_same_network_with_one_stage():
    model, data = perceptron(), noisy_examples()
    options = {"method": ContinuousSparsification(epochs=2), "recipe": Recipe(0.05, 2, 0)}
    one, other = (
        discover(either, data.items, lambda generator: batches(data, 20, generator=generator), odd_one_out, **options)
        for either in (model, StagedModel({"only": model}))
    )
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    staged = {name.removeprefix("stages.only."): mask for name, mask in other.subnetwork.masks.items()}
    assert all(torch.equal(mask, staged[name]) for name, mask in one.subnetwork.masks.items())


def test_a_module_without_stages_cannot_start_at_one():
    with pytest.raises(ValueError, match="a Sequential has no stages, so no 'head' to start at; use start=None"):
        find(perceptron(), noisy_examples(), start="head")


def test_first_logits_may_depend_on_the_weight_and_be_drawn():
    """Without training they are the mask: here all large weights, and a draw of its seed among the others."""

    class Sized(ContinuousSparsification):
        def init(self, weight: Tensor, generator: torch.Generator) -> Tensor:
            return torch.where(weight.abs() >= 1, 1.0, 0.5 - torch.rand(weight.shape, generator=generator))

    model, options = planted(), {"start": "middle", "rate": 1e-12, "method": Sized(epochs=2)}
    one, again, other = (find(model, noisy_examples(), seed=seed, **options).subnetwork for seed in (0, 0, 1))
    assert one == again != other
    assert all(mask[model.get_parameter(name).abs() >= 1].all() for name, mask in other.masks.items())
