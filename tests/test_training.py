"""The training loop: against Adam in numpy, early stopping, bit-exact resume, damaged checkpoints, what stops a run."""

import math
import random
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from subnet_utils import checkpoints
from subnet_utils.core import devices, workers
from subnet_utils.core.devices import autocast, progress_bar, resolve_device
from subnet_utils.core.sections import Compute
from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.core.store import Store, load_tensors, save_tensors
from subnet_utils.training import Recipe, TrainingDiverged, fit

EPOCHS = 6
RECIPE = Recipe(learning_rate=0.05, epochs=EPOCHS, seed=3, patience=EPOCHS)


class Stopped(Exception):
    """Raised by a callback to interrupt a run."""


def fresh() -> dict[str, Tensor]:
    """A small regression: one weight gets a gradient from the fourth epoch on, and one never does."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"weight": (3, 2), "scale": (), "late": (2,), "never": (4,)}
    return {name: torch.randn(shape, generator=draw).requires_grad_() for name, shape in shapes.items()}


def regression(
    parameters: dict[str, Tensor], *, recipe: Recipe = RECIPE, stop: tuple[int, int] | None = None, **more
) -> pd.DataFrame:
    """Fit noisy targets; stop = (epoch, batch) raises in the middle of an epoch."""
    x, y = torch.randn(20, 3, generator=generator_for("x")), torch.randn(20, 2, generator=generator_for("y"))
    position = {"epoch": -1, "batch": 0}

    def batches(epoch):
        generator = generator_for(recipe.seed, epoch)
        return [(rows, generator) for rows in torch.randperm(20, generator=generator).split(8)]

    def loss(batch, epoch):
        rows, generator = batch
        position.update(epoch=epoch, batch=position["batch"] + 1 if position["epoch"] == epoch else 0)
        if (position["epoch"], position["batch"]) == stop:
            raise Stopped
        noise = 0.1 * torch.randn(len(rows), 3, generator=generator)
        out = (x[rows] + noise) @ parameters["weight"] * parameters["scale"]
        if epoch >= 3:
            out = out + parameters["late"]
        return (out - y[rows]).square().mean()

    @torch.no_grad()
    def validate():
        out = x @ parameters["weight"] * parameters["scale"]
        return {"validation_loss": float((out - y).square().mean())}

    return fit(parameters, batches, loss, recipe=recipe, validate=validate, **more)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def scalar(start: float = 0.0) -> dict[str, Tensor]:
    return {"w": torch.tensor(start, requires_grad=True)}


@pytest.fixture
def every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[dict[str, Tensor], pd.DataFrame]:
    parameters = fresh()
    return parameters, regression(parameters)


# -- the optimization --------------------------------------------------------------------------------------------------


def test_fit_is_adam_without_weight_decay():
    start, target, rate = np.array([2.0, -1.0, 0.5]), np.array([0.0, 3.0, 0.5]), 0.1
    parameters = {"w": torch.tensor(start, requires_grad=True)}
    history = fit(
        parameters,
        lambda epoch: [1.0, 2.0],
        lambda batch, epoch: batch * (parameters["w"] - torch.tensor(target)).pow(2).sum(),
        recipe=Recipe(learning_rate=rate, epochs=7, seed=0),
    )
    w, first, second, step, expected = start.copy(), 0.0, 0.0, 0, []
    for _ in range(7):
        losses = []
        for factor in (1.0, 2.0):
            losses.append(factor * ((w - target) ** 2).sum())
            gradient = 2 * factor * (w - target)
            step += 1
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            w = w - rate * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        expected.append(np.mean(losses))
    np.testing.assert_allclose(parameters["w"].detach(), w, rtol=1e-10)
    np.testing.assert_allclose(history["train_loss"], expected, rtol=1e-10)
    assert history["epoch"].tolist() == list(range(7))


@pytest.mark.parametrize("frozen_norm", [0.0, 3.0])
def test_gradients_are_clipped_as_torch_does_it_each_stacked_run_by_itself(frozen_norm):
    torch.manual_seed(0)
    names, shapes = ("a", "b"), ((2, 3, 4), (2, 5))
    gradients = [torch.randn(shape) * torch.tensor([3.0, 0.01]).reshape(2, *[1] * (len(shape) - 1)) for shape in shapes]
    start = {name: torch.zeros(shape) for name, shape in zip(names, shapes, strict=True)}
    recipe = Recipe(1.0, 1, seed=(0, 1), optimizer="sgd", clip=0.5, frozen_norm=frozen_norm)
    frozen = torch.nn.Parameter(torch.zeros(1))
    frozen.grad = torch.tensor([frozen_norm])

    def moved(weights, parts, recipe):
        def loss(batch, epoch):
            slopes = [weight * part for weight, part in zip(weights.values(), parts, strict=True)]
            stacked = isinstance(recipe.seed, tuple)
            return sum(slope.flatten(int(stacked)).sum(dim=-1) for slope in slopes)

        fit({name: weight.requires_grad_() for name, weight in weights.items()}, lambda epoch: [0], loss, recipe=recipe)
        return [weight.detach() for weight in weights.values()]

    together = moved({name: weight.clone() for name, weight in start.items()}, gradients, recipe)
    for run in range(2):
        parts = [gradient[run] for gradient in gradients]
        (alone,) = [moved({n: w[run].clone() for n, w in start.items()}, parts, replace(recipe, seed=run))]
        expected = [torch.nn.Parameter(torch.zeros_like(part)) for part in parts]
        for parameter, part in zip(expected, parts, strict=True):
            parameter.grad = part.clone()
        torch.nn.utils.clip_grad_norm_([*expected, frozen], 0.5)
        frozen.grad = torch.tensor([frozen_norm])
        for one, both, parameter in zip(alone, together, expected, strict=True):
            torch.testing.assert_close(one, -parameter.grad)
            torch.testing.assert_close(both[run], one)
    assert together[0][1].norm() < 0.1 < together[0][0].norm() or frozen_norm  # one is cut, the other too short to be


def scripted(losses: list[float], *, patience: int | None, epochs: int = 20) -> tuple[pd.DataFrame, float]:
    """A run whose validation losses are given; the weight rises by 1 an epoch, so it tells how many were trained."""
    parameters, remaining = scalar(), iter(losses)
    history = fit(
        parameters,
        lambda epoch: [0],
        lambda batch, epoch: -parameters["w"],
        recipe=Recipe(learning_rate=1.0, epochs=epochs, seed=0, patience=patience),
        validate=lambda: {"validation_loss": next(remaining)},
        observe=lambda epoch: {"twice": 2.0 * epoch},
    )
    return history, float(parameters["w"].detach())


@pytest.mark.parametrize(
    ("losses", "patience", "epochs_run", "best"),
    [
        ([3, 2, 2.5, 1.9, 2, 2, 1.95, 0], 3, 7, 3),  # three epochs that are not better end it
        ([3, 2, 2.5, 2.2, 1, 5, 5, 5, 5], 3, 8, 4),  # a better one resets the count
        ([1, 1, 1, 1], 1, 2, 0),  # equal is not better: the first of equals is kept
        ([4, 3, 2, 1], 9, 4, 3),  # the epochs are used up
        ([1, 2, 3, 4], 9, 4, 0),
    ],
)
def test_early_stopping_keeps_the_best(losses, patience, epochs_run, best):
    history, weight = scripted(losses, patience=patience, epochs=min(len(losses), 20))
    assert history["validation_loss"].tolist() == losses[:epochs_run]
    assert weight == pytest.approx(best + 1, rel=1e-5)


def test_without_patience_the_last_weights_are_kept():
    history, weight = scripted([1, 2, 3, 4, 5], patience=None, epochs=5)
    assert weight == pytest.approx(5, rel=1e-5)
    assert history["twice"].tolist() == [0, 2, 4, 6, 8]
    assert list(history) == ["epoch", "train_loss", "validation_loss", "twice"]


def test_patience_without_validation_is_refused():
    with pytest.raises(ValueError, match="patience needs validate"):
        fit(scalar(), lambda epoch: [0], lambda *_: None, recipe=RECIPE)


# -- randomness --------------------------------------------------------------------------------------------------------


def test_same_seed_same_bits_other_seed_other_bits(uninterrupted):
    again, other = fresh(), fresh()
    history = regression(again)
    pd.testing.assert_frame_equal(history, uninterrupted[1], check_exact=True)
    assert same(again, uninterrupted[0])
    regression(other, recipe=Recipe(0.05, EPOCHS, seed=4, patience=EPOCHS))
    assert not torch.equal(other["weight"], again["weight"])
    assert torch.equal(other["never"], fresh()["never"])


def test_global_random_states_are_left_alone_and_have_no_influence(uninterrupted):
    torch.manual_seed(123), np.random.seed(123), random.seed(123)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    parameters = fresh()
    regression(parameters)
    assert same(parameters, uninterrupted[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_generator_for_depends_on_its_parts_alone():
    def numbers(*parts):
        return tuple(torch.randint(2**40, (3,), generator=generator_for(*parts)).tolist())

    parts = [(), (0,), (1,), ("1",), (0, 1), (1, 0), ("a", 1), ("a1",), (10,), (2**70,)]
    assert len({numbers(*p) for p in parts}) == len(parts)
    assert numbers("a", 1) == numbers("a", 1)
    # This decides every stimulus and every shuffle: a change would change all results.
    assert generator_for("evaluation", 5).initial_seed() == 2426406554658449702


# -- resume ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(1, 0), (2, 2), (3, 1), (5, 2)])
def test_resume_is_bit_exact(stop, uninterrupted, every_epoch, tmp_path):
    whole, path = tmp_path / "whole", tmp_path / "checkpoint"
    regression(fresh(), checkpoint=whole)
    with pytest.raises(Stopped):
        regression(fresh(), checkpoint=path, stop=stop)
    resumed = {name: torch.full_like(tensor, 7.0).requires_grad_() for name, tensor in fresh().items()}
    history = regression(resumed, checkpoint=path)
    pd.testing.assert_frame_equal(history, uninterrupted[1], check_exact=True)
    assert same(resumed, uninterrupted[0])
    assert same(load_tensors(path)[0], load_tensors(whole)[0])  # Adam's state and the best weights too


def test_resume_counts_the_patience_on(every_epoch, tmp_path):
    """A run that is interrupted after every epoch stops where an uninterrupted one does."""
    losses = [3, 2, 2.5, 1.9, 2, 2, 2, 0, 0, 0]
    recipe, path = Recipe(1.0, 10, seed=0, patience=3), tmp_path / "checkpoint"
    history, interruptions = None, 0
    while history is None:
        parameters, done = scalar(), []

        def loss(batch, epoch, parameters=parameters, done=done):
            if done:
                raise Stopped
            done.append(epoch)
            return -parameters["w"]

        try:
            history = fit(
                parameters, lambda epoch: [0], loss, recipe=recipe, checkpoint=path,
                validate=lambda done=done: {"validation_loss": losses[done[0]]},
            )  # fmt: skip
        except Stopped:
            interruptions += 1
    assert interruptions == 6 and history["validation_loss"].tolist() == losses[:7]
    assert float(parameters["w"].detach()) == pytest.approx(4, rel=1e-5)


def test_a_pause_changes_nothing(uninterrupted, tmp_path):
    path, parameters, again = tmp_path / "checkpoint", fresh(), fresh()
    paused = regression(parameters, checkpoint=path, stop_after=2)
    assert len(paused) == 2
    history = regression(again, checkpoint=path)
    pd.testing.assert_frame_equal(history, uninterrupted[1], check_exact=True)
    assert same(again, uninterrupted[0])
    assert len(regression(fresh(), checkpoint=path, stop_after=2)) == 2  # there already: nothing is trained


def test_what_is_filed_stands_in_the_history_before_what_is_observed(tmp_path):
    filed = []

    def file(epoch):
        filed.append(epoch)
        return {"step": 10 * epoch}

    history = regression(fresh(), file=file, observe=lambda epoch: {"observed": 0.5})
    assert filed == list(range(EPOCHS)) and list(history["step"]) == [10 * i for i in range(EPOCHS)]
    assert list(history).index("step") < list(history).index("observed")


def test_an_artefact_notes_the_epochs_of_its_training(tmp_path):
    def build(folder):
        regression(fresh(), recipe=Recipe(0.05, 4, 3))

    made = Store(tmp_path).make("base", {"seed": 3}, build)
    assert made.json("provenance")["epochs"] == 4
    regression(fresh())  # outside of an artefact there is nothing to note it


def test_a_finished_run_is_not_trained_on(uninterrupted, every_epoch, tmp_path):
    regression(fresh(), checkpoint=tmp_path / "checkpoint")
    parameters = fresh()
    history = regression(parameters, checkpoint=tmp_path / "checkpoint", stop=(EPOCHS, 0))
    assert same(parameters, uninterrupted[0]) and len(history) == EPOCHS


def test_no_checkpoint_is_written_before_its_time(tmp_path):
    regression(fresh(), checkpoint=tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


LONG = Recipe(0.01, 150, seed=1, patience=150)


def train_and_report(path: Path, epochs: Connection) -> None:
    """In a process of its own: train with checkpoints after every epoch, and send the number of each."""
    checkpoints.SECONDS = 0.0

    def observe(epoch: int) -> dict[str, float]:
        epochs.send(epoch)
        time.sleep(0.002)
        return {}

    regression(fresh(), recipe=LONG, checkpoint=path, observe=observe)


def test_sigkill_at_a_random_moment(every_epoch, tmp_path):
    """Killed three times from outside, the run ends with the bits of one that was left alone."""
    path, expected = tmp_path / "checkpoint", fresh()
    history = regression(expected, recipe=LONG)
    context = workers.context()  # the package's: one server serves all tests that a process runs, whichever is first
    started_at = []
    for _ in range(3):
        receiver, sender = context.Pipe(duplex=False)
        with receiver, sender:
            run = context.Process(target=train_and_report, args=(path, sender))
            run.start()
            started_at.append(receiver.recv())
            for _ in range(random.randint(2, 40)):
                receiver.recv()
            run.kill()
            run.join()
        assert run.exitcode == -signal.SIGKILL
    assert 0 == started_at[0] < started_at[1] < started_at[2]
    resumed = fresh()
    found = regression(resumed, recipe=LONG, checkpoint=path)
    pd.testing.assert_frame_equal(found, history, check_exact=True)
    assert same(resumed, expected)


# -- checkpoints that must not be used ---------------------------------------------------------------------------------


@pytest.fixture
def half_way(every_epoch, tmp_path) -> Path:
    """The checkpoint of a run that was stopped in its fourth epoch."""
    path = tmp_path / "checkpoint"
    with pytest.raises(Stopped):
        regression(fresh(), checkpoint=path, stop=(3, 0))
    return path


def starts_over(path: Path, uninterrupted, capsys) -> None:
    parameters = fresh()
    history = regression(parameters, checkpoint=path, label="the run")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("the run: checkpoint not used, starting over: ")
    pd.testing.assert_frame_equal(history, uninterrupted[1], check_exact=True)
    assert same(parameters, uninterrupted[0])


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.99])
def test_truncated_checkpoint_starts_over(kept, half_way, uninterrupted, capsys):
    content = half_way.read_bytes()
    half_way.write_bytes(content[: int(kept * len(content))])
    starts_over(half_way, uninterrupted, capsys)


def test_flipped_bits_start_over(half_way, uninterrupted, capsys):
    """Bits all over the file, header and numbers alike. Each would load without complaint or crash the loader."""
    content = half_way.read_bytes()
    for position in range(1, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        half_way.write_bytes(damaged)
        starts_over(half_way, uninterrupted, capsys)


def test_foreign_file_starts_over(tmp_path, uninterrupted, capsys, every_epoch):
    save_tensors(tmp_path / "weights", {"w": torch.ones(3)})
    starts_over(tmp_path / "weights", uninterrupted, capsys)


def test_checkpoint_of_another_recipe_is_not_used(half_way, capsys):
    recipe = Recipe(learning_rate=0.01, epochs=EPOCHS, seed=3, patience=EPOCHS)
    expected, parameters = fresh(), fresh()
    regression(expected, recipe=recipe)
    regression(parameters, recipe=recipe, checkpoint=half_way)
    assert same(parameters, expected)
    assert "was written by another run: its recipe, parameters or subject differ" in capsys.readouterr().err


def test_checkpoint_of_other_shapes_is_not_used(half_way, capsys):
    """copy_ would broadcast a smaller tensor silently."""
    recipe = Recipe(RECIPE.learning_rate, 4, RECIPE.seed)
    parameters = {"weight": torch.zeros(5, 3, 2, requires_grad=True)}
    fit(
        parameters, lambda epoch: [0], lambda *_: parameters["weight"].square().sum(), recipe=recipe,
        checkpoint=half_way,
    )  # fmt: skip
    assert "starting over" in capsys.readouterr().err
    assert parameters["weight"].count_nonzero() == 0


# -- what stops a run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_loss_that_is_not_finite_stops_the_run(bad):
    parameters = scalar(1.0)
    with pytest.raises(TrainingDiverged) as caught:
        fit(
            parameters,
            lambda epoch: [0, 1, 2],
            lambda batch, epoch: parameters["w"] * (bad if (epoch, batch) == (2, 1) else 1.0),
            recipe=Recipe(0.25, 5, seed=0),
            label="bert_tiny anaphora seed 1",
        )
    message = str(caught.value)
    assert message == "bert_tiny anaphora seed 1: the loss in epoch 2 is not finite; lower the learning rate (0.25)"


def test_validation_loss_that_is_not_finite_stops_the_run():
    """It would otherwise be no improvement, and the untrained weights the best."""
    with pytest.raises(TrainingDiverged, match="validation loss in epoch 1 is not finite; lower the learning rate"):
        scripted([1.0, float("nan"), 0.5], patience=5)


def test_last_step_that_is_not_finite_stops_the_run():
    """sqrt(0) is finite, its gradient is not: no later loss shows it."""
    parameters = scalar(0.0)
    with pytest.raises(TrainingDiverged, match="a parameter in epoch 0 is not finite"):
        fit(parameters, lambda epoch: [0], lambda *_: parameters["w"].sqrt(), recipe=Recipe(0.1, 1, seed=0))


def of_three(bad, *, epochs: int = 4, batches: int = 2, **more) -> tuple[torch.Tensor, pd.DataFrame, dict[int, str]]:
    """Three stacked runs towards 1; bad(epoch, batch, loss [3]) is their loss."""
    weights, faults = torch.zeros(3, 2, requires_grad=True), {}
    history = fit(
        {"w": weights},
        lambda epoch: [0, 1][:batches],
        lambda batch, epoch: bad(epoch, batch, (weights - 1).square().sum(dim=1)),
        recipe=replace(RECIPE, epochs=epochs, patience=more.pop("patience", None)),
        faults=faults,
        label="three",
        **more,
    )
    return weights.detach(), history, faults


def broken(number: int, since: tuple[int, int]):
    """The loss of one run is NaN from a batch of an epoch on."""

    def loss(epoch, batch, values):
        return values * torch.where(torch.arange(3) == number, float("nan") if (epoch, batch) >= since else 1.0, 1.0)

    return loss


def test_one_of_stacked_runs_ends_alone_and_the_others_go_on(capsys):
    expected, whole, none = of_three(lambda *given: given[-1])
    assert not none and whole["train_loss"].map(len).eq(3).all()
    weights, history, faults = of_three(broken(1, (2, 1)))
    message = "three, run 2 of 3: the loss in epoch 2 is not finite; lower the learning rate (0.25)"
    assert faults == {1: message.replace("0.25", f"{RECIPE.learning_rate:g}")}
    assert capsys.readouterr().err == f"{faults[1]}. The others go on\n"
    assert torch.equal(weights[[0, 2]], expected[[0, 2]]) and weights[1].eq(0).all()
    for found, others in zip(history["train_loss"], whole["train_loss"], strict=True):
        assert (found[0], found[2]) == (others[0], others[2])
    assert [math.isnan(row[1]) for row in history["train_loss"]] == [False, False, True, True]


def test_a_run_that_ended_stays_ended_after_a_pause(tmp_path):
    """Its loss is finite again, as its weights are zero."""
    options = {"checkpoint": tmp_path / "checkpoint"}
    whole = of_three(lambda epoch, *given: broken(1, (1, 0))(min(epoch, 1), *given))
    of_three(broken(1, (1, 0)), stop_after=2, **options)
    weights, history, faults = of_three(lambda *given: given[-1], **options)
    assert faults == whole[2] and torch.equal(weights, whole[0])
    assert repr(history) == repr(whole[1]), "and NaN is equal to NaN"


def test_when_all_stacked_runs_have_ended_nothing_is_left_to_do(capsys):
    *_, history, faults = of_three(lambda epoch, batch, loss: loss * (float("nan") if epoch == 1 else 1.0))
    assert sorted(faults) == [0, 1, 2] and len(history) == 2
    assert capsys.readouterr().err == "", "no others go on"


def test_a_run_whose_validation_or_last_step_fails_ends_alone():
    judged = {"validate": lambda: {"validation_loss": [1.0, float("inf"), 1.0]}, "patience": 9}
    _, history, faults = of_three(lambda *given: given[-1], **judged)
    assert list(faults) == [1] and "the validation loss in epoch 0" in faults[1]
    assert math.isnan(history["validation_loss"][0][1])
    root = lambda epoch, batch, loss: loss + torch.cat([loss[:2], (loss - loss.detach())[2:].sqrt()])  # noqa: E731
    *_, faults = of_three(root, epochs=1, batches=1)
    assert list(faults) == [2] and "a parameter in epoch 0" in faults[2]


def test_a_single_run_has_no_others_that_could_go_on():
    with pytest.raises(TrainingDiverged, match="the loss in epoch 0"):
        nan = torch.tensor(float("nan"), requires_grad=True)
        fit(scalar(), lambda epoch: [0], lambda *_: nan, recipe=Recipe(1, 1, 0), faults={})


def test_a_run_without_data_stops():
    with pytest.raises(ValueError, match="my run: epoch 0 has no batches; give it data"):
        fit(scalar(), lambda epoch: [], lambda *_: None, recipe=Recipe(0.1, 1, seed=0), label="my run")


# -- progress, device, precision ---------------------------------------------------------------------------------------


def test_a_long_run_says_a_plain_line_every_half_minute_and_at_its_end(monkeypatch, capsys):
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(devices.time, "monotonic", lambda: float(next(clock)))
    with progress_bar(6, "base", start=1) as advance:
        for i in range(5):
            advance({"epoch": i, "train_loss": 0.123456, "validation_accuracy": 0.5, "bin_00": 1.0})
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "base: 3/6 train_loss 0.1235, validation_accuracy 0.5",
        "base: 5/6 train_loss 0.1235, validation_accuracy 0.5",
        "base: 6/6 train_loss 0.1235, validation_accuracy 0.5",
    ]


def test_a_single_part_is_no_news(monkeypatch, capsys):
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr(devices.time, "monotonic", lambda: float(next(clock)))
    with progress_bar(1, "race") as advance:
        advance({"train_loss": 1.0})
    assert capsys.readouterr() == ("", "")


def test_device_and_precision(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cpu = torch.device("cpu")
    assert resolve_device(Compute()) == resolve_device(Compute(device="cpu")) == cpu
    with pytest.raises(ValueError, match="compute.device is 'cuda' but torch sees no GPU"):
        resolve_device(Compute(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    attention = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", attention.append)
    assert resolve_device(Compute(device="cpu")) == cpu and not attention
    assert resolve_device(Compute()) == torch.device("cuda")
    assert torch.backends.cudnn.deterministic and attention == [False], "equal seeds, equal bits"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)

    def type_of_product(precision: str) -> torch.dtype:
        with autocast(Compute(precision=precision), cpu):
            return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert type_of_product("auto") == type_of_product("bfloat16") == torch.bfloat16
    assert type_of_product("float32") == torch.float32
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert type_of_product("auto") == type_of_product("bfloat16") == torch.float32


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_only_imitates_bfloat16_trains_in_float32(monkeypatch, capsys, device):
    """GPUs before Ampere, and most CPUs: torch.autocast takes them, and is slow."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: asked.append(including_emulation))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    devices._say_float32.cache_clear()
    with autocast(Compute(), torch.device(device)):
        assert not torch.is_autocast_enabled(device)
    assert capsys.readouterr().err == "" and asked == [False] * (device == "cuda")
    for _ in range(2):
        with autocast(Compute(precision="bfloat16"), torch.device(device)):
            assert not torch.is_autocast_enabled(device)
    said = f"compute.precision is 'bfloat16', which this device ({device}) would only imitate: float32\n"
    assert capsys.readouterr().err == said, "once"


def test_gpus_that_nothing_uses_are_not_started(monkeypatch):
    """To ask for their random state fails where the driver is too old, on a machine that computes on its CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: 1 / 0)
    before = torch.get_rng_state()
    with separate_randomness():
        torch.manual_seed(7)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_linear_schedule_rises_and_then_falls_to_zero():
    recipe = Recipe(0.6, 6, 0, linear=True, warmup=2)
    assert [recipe.rate(epoch) for epoch in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.45, 0.3, 0.15])


def test_gradient_descent_is_torchs_with_momentum():
    start = torch.tensor([1.0, -2.0])
    ours, plain = start.clone().requires_grad_(), start.clone().requires_grad_()
    recipe = Recipe(0.1, 3, 0, weight_decay=0.01, optimizer="sgd")
    fit({"w": ours}, lambda epoch: [1.0, 2.0], lambda batch, _: batch * (ours**3).sum(), recipe=recipe)
    optimizer = torch.optim.SGD([plain], lr=0.1, momentum=0.9, weight_decay=0.01)
    for batch in [1.0, 2.0] * 3:
        optimizer.zero_grad()
        (batch * (plain**3).sum()).backward()
        optimizer.step()
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be a positive number, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number, got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"patience": 0}, "patience must be None or at least 1, got 0"),
        ({"optimizer": "SGD"}, "optimizer must be 'adam' or 'sgd', got 'SGD'"),
    ],
)
def test_an_impossible_recipe_is_refused(setting, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        Recipe(**{"learning_rate": 0.1, "epochs": 6, "seed": 0} | setting)


def test_what_runs_are_judged_by_must_be_there_and_not_below_zero():
    recipe = Recipe(0.1, 3, 0, patience=3, judged_by="validation_eror")
    arguments = {"batches": lambda epoch: [0], "loss": lambda *_: parameters["w"].square()}
    parameters = scalar(1.0)
    with pytest.raises(ValueError, match="no 'validation_eror' to judge by; did you mean 'validation_error'"):
        fit(parameters, **arguments, recipe=recipe, validate=lambda: {"validation_error": 0.5})
    with pytest.raises(ValueError, match="'validation_eror', which runs are judged by, fell to -0.5"):
        fit(parameters, **arguments, recipe=recipe, validate=lambda: {"validation_eror": -0.5})


def test_checkpoints_take_numbers_of_numpy_and_a_name(every_epoch, tmp_path):
    recipe, path = Recipe(0.05, 4, 3, patience=4), str(tmp_path / "checkpoint")
    arguments = {"batches": lambda epoch: [0], "validate": lambda: {"validation_loss": np.float32(0.5)}}
    whole, paused = scalar(1.0), scalar(1.0)
    fit(whole, **arguments, loss=lambda *_: whole["w"].square(), recipe=recipe)
    options = {"loss": lambda *_: paused["w"].square(), "recipe": recipe, "checkpoint": path}
    fit(paused, **arguments, **options, stop_after=2)
    assert Path(path).exists()
    fit(paused, **arguments, **options)
    assert torch.equal(whole["w"], paused["w"])
