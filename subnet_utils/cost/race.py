"""Steps of training side by side: masks, the same network trained without them, and NeuroSurgeon.

On a machine that others use too, timings can be compared only if they were taken in turns: every contender makes a step
in every round. NeuroSurgeon wants another version of transformers, so it runs in an environment of its own.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.devices import autocast, has_bfloat16
from subnet_utils.core.jobs import keep_freed_memory, threads
from subnet_utils.core.sections import ROOT, Compute
from subnet_utils.core.workers import core_count
from subnet_utils.cost.sample import now
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.models import StagedModel, build
from subnet_utils.models.frozen import sent
from subnet_utils.tasks.odd_one_out import similarity_loss
from subnet_utils.training import Recipe, fit

Pace = Callable[[Iterable[Any]], Iterator[Any]]
"""Hands on the batches that a training takes."""
PLAIN = "all weights, no mask"
RIVAL = "NeuroSurgeon, float32"
BERT = {"family": "bert", "layers": 4, "width": 512, "heads": 8, "mlp_width": 2048}
RESNET = {"family": "resnet", "block": "basic", "depths": (2, 2, 2, 2), "width": 64}
NETWORKS = {
    "bert_small": (partial(build, BERT, seed=0, vocabulary=30522), partial(torch.randint, 1, 30522, (256, 12))),
    "resnet18": (partial(build, RESNET, seed=0, resolution=128),
                 partial(torch.randint, 256, (32, 3, 128, 128), dtype=torch.uint8)),
}  # fmt: skip
"""What makes a network and its items, as in `neurosurgeon_worker`."""
STARTS = {"bert_small": ("layer_1", "layer_3", "layer_4"), "resnet18": ("stem", "stage_4")}
"""First masked stages."""
RECIPE = Recipe(1e-5, 1, 0)
INSTALL = "python -m venv .neurosurgeon && .neurosurgeon/bin/pip install neurosurgeon==0.1.0 transformers==4.46.3"


class NeuroSurgeonMissing(RuntimeError):
    """The Python that was named has no NeuroSurgeon, or does not exist; the message says how to install it."""


def installed() -> Path | None:
    """The interpreter that `INSTALL`, run in the checkout, makes; None if it was not."""
    python = ROOT / ".neurosurgeon" / "bin" / "python"
    return python if python.exists() else None


def step_times(
    network: str, examples: int, *, steps: int, device: torch.device, python: str | Path | None = None
) -> pd.DataFrame:
    """Milliseconds of a step of 'bert_small' (sentences of 12 tokens) or 'resnet18' (images of 128 x 128 pixels).

    A row per contender, medians over so many rounds on all cores. examples: of four items, a batch. times_plain: the
    time relative to the plain step of the same precision, in which all weights are trained. python: interpreter of an
    environment with NeuroSurgeon, which is raced on CPUs only. times_faster: how many times the time of our step it
    takes for the same mask. Its ResNet is that of transformers: with batch normalization, which a CPU does faster than
    instance normalization, and without the MLP at the end.
    """
    make, draw = NETWORKS[network]
    items, contenders = draw(generator=torch.Generator().manual_seed(0)).to(device), {}
    for precision in ("float32", "bfloat16") if has_bfloat16(device) else ("float32",):
        common = items, examples, partial(autocast, Compute(precision=precision), device)
        contenders[precision, PLAIN] = partial(second_step, plain_step(make().to(device).eval(), *common))
        for start in STARTS[network]:
            masked = masked_step(make().to(device).requires_grad_(False), *common, start)
            contenders[precision, start] = partial(second_step, masked)
    if python is not None and device.type == "cpu":
        for start in STARTS[network]:
            contenders[RIVAL, start] = partial(neurosurgeon, python, network, start, examples)
    keep_freed_memory()  # as in every process that trains
    with threads(core_count()):
        rounds = [{name: step() for name, step in contenders.items()} for _ in range(steps)]
    return relative(rounds).assign(threads=core_count(), model=network)


def second_step(train: Callable[[Pace], None]) -> float:
    """Seconds of the second step of a training. In the first one its memory is taken."""
    times = []

    def pace(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in islice(batches, 2):
            times.append(now()[0])
            yield batch
        times.append(now()[0])

    train(pace)
    return times[2] - times[1]


def plain_step(model: StagedModel, items: Tensor, examples: int, cast: Callable) -> Callable[[Pace], None]:
    """Training all weights of a network without masks. items: [m, ...]; examples: of four, a batch."""

    def loss(batch: tuple[Tensor, Tensor], epoch: int) -> Tensor:
        rows, odd = (sent(part, items.device) for part in batch)
        with cast():
            embeddings = model(*model.compact((items[rows.flatten()],))).unflatten(0, rows.shape)
        return similarity_loss(embeddings.float(), odd)

    weights = dict(model.named_parameters())
    return lambda pace: fit(weights, lambda _: pace(_batches(items, examples)), loss, recipe=RECIPE)


def masked_step(model: StagedModel, items: Tensor, examples: int, cast: Callable, start: str) -> Callable[[Pace], None]:
    """Training a mask from a stage on."""
    options = {"method": ContinuousSparsification(epochs=1), "start": start, "recipe": RECIPE, "autocast": cast}
    return lambda pace: discover(model, items, lambda _: pace(_batches(items, examples)), similarity_loss, **options)


def relative(rounds: list[dict[tuple[str, str], float]]) -> pd.DataFrame:
    """Medians and median ratios of a race: in every round the seconds of each (precision, what is trained)."""
    table, rows = pd.DataFrame(rounds), []
    for (precision, trained), seconds in table.items():
        plain = table["float32" if precision == RIVAL else precision, PLAIN]
        row = {"precision": precision, "trained": trained, "ms": 1e3 * seconds.median()}
        row["times_plain"] = (seconds / plain).median()
        if (RIVAL, trained) in table:
            row["times_faster"] = (table[RIVAL, trained] / seconds).median()
        rows.append(row)
    return pd.DataFrame(rows)


def neurosurgeon(python: str | Path, network: str, start: str, examples: int) -> float:
    """Seconds of the second step of mask training in NeuroSurgeon, in a process of its own.

    python: interpreter of an environment that has it. Raises NeuroSurgeonMissing if it does not run there.
    """
    about = network, start.rpartition("_")[2].replace("stem", "0"), examples, core_count()
    arguments = map(str, [python, Path(__file__).with_name("neurosurgeon_worker.py"), *about])
    # without variables of a notebook that point to modules of this environment
    environment = {name: os.environ[name] for name in os.environ.keys() - {"PYTHONPATH", "MPLBACKEND"}}
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        done = subprocess.run([*arguments], env=environment, capture_output=True, text=True, check=True)
    except OSError as error:
        raise NeuroSurgeonMissing(f"{python} cannot be run ({error.strerror}); install it: {INSTALL}") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NeuroSurgeonMissing(f"NeuroSurgeon does not run in {python}: {last}; install it: {INSTALL}") from None
    return float(done.stdout.split()[-1])


def _batches(items: Tensor, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (rows [examples, 4], odd [examples]) without an item that occurs twice, if there are enough."""
    draw = torch.Generator().manual_seed(0)
    while True:
        rows = torch.randperm(len(items), generator=draw)
        rows = rows.repeat(-(-4 * examples // len(items)))[: 4 * examples]
        yield rows.view(examples, 4), torch.randint(4, (examples,), generator=draw)
