"""Steps of training side by side: masks, the same network trained without them, and NeuroSurgeon.

On a machine that others use too, two timings can be compared only if they were taken in turns. So every contender makes
a step in every round. What is timed is the engine itself (`fit`, `discover`) and not a copy of its loop.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from subnet_utils.core.devices import autocast, has_bfloat16
from subnet_utils.core.jobs import keep_freed_memory
from subnet_utils.core.sections import Compute
from subnet_utils.core.workers import core_count
from subnet_utils.cost.neurosurgeon import neurosurgeon
from subnet_utils.cost.sample import now
from subnet_utils.masks.discover import discover
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.models import StagedModel, build
from subnet_utils.models.frozen import sent
from subnet_utils.training import Recipe, fit

Pace = Callable[[Iterable[Any]], Iterator[Any]]
"""Hands on the batches that a training takes."""
PLAIN = "all weights, no mask"
RIVAL = "NeuroSurgeon, float32"
BERT = {"family": "bert", "layers": 4, "width": 512, "heads": 8, "mlp_width": 2048}
RESNET = {"family": "resnet", "block": "basic", "depths": (2, 2, 2, 2), "width": 64}
RECIPE = Recipe(1e-5, 1, 0)


def bert_small(*, python: str | Path | None = None, steps: int = 3, device: torch.device) -> pd.DataFrame:
    """Milliseconds of a step of BERT-small, 64 examples a batch and 12 tokens a sentence: a row per contender.

    All cores take part. times_plain: the median over rounds of a step's time relative to the plain step of the same
    precision, in which all weights are trained. python: interpreter of an environment with NeuroSurgeon; it is raced on
    CPUs only. times_faster: how many times the time of our step it takes for the same mask.
    """
    sizes = {"vocabulary": 30522, "tokens": 12}
    items = torch.randint(1, sizes["vocabulary"], (256, sizes["tokens"]), generator=torch.Generator().manual_seed(0))
    make = partial(build, BERT, seed=0, vocabulary=sizes["vocabulary"])
    starts = ("layer_1", "layer_3", "layer_4")
    return _raced(make, items, starts, BERT | sizes | {"examples": 64}, python, steps, device).assign(
        model="bert_small"
    )


def resnet18(*, python: str | Path | None = None, steps: int = 3, device: torch.device) -> pd.DataFrame:
    """The same for ResNet18, 8 examples a batch and images of 128 x 128 pixels.

    NeuroSurgeon's network is that of transformers: with batch normalization, which a CPU does faster than instance
    normalization, and without the MLP at the end.
    """
    sizes = {"examples": 8, "resolution": 128}
    items = torch.randint(256, (32, 3, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    make = partial(build, RESNET, seed=0, resolution=sizes["resolution"])
    return _raced(make, items, ("stem", "stage_4"), RESNET | sizes, python, steps, device).assign(model="resnet18")


def race(contenders: Mapping[Any, Callable[[], float]], *, steps: int) -> pd.DataFrame:
    """Seconds of every step, one step of each contender in turns: a column for each, a row for each round.

    contenders: name -> function that makes a step and says how long it took. One round more is made, to warm up.
    """
    keep_freed_memory()  # as in every process that trains
    rounds = [[step() for step in contenders.values()] for _ in range(steps + 1)]
    return pd.DataFrame(rounds[1:], columns=pd.Index(contenders, tupleize_cols=False))


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

    def run(pace: Pace) -> None:
        def loss(batch: tuple[Tensor, Tensor], epoch: int) -> Tensor:
            rows, odd = (sent(part, items.device) for part in batch)
            with cast():
                embeddings = model(*model.compact((items[rows.flatten()],))).unflatten(0, rows.shape)
            return _odd_one_out(embeddings.float(), odd)

        fit(dict(model.named_parameters()), lambda _: pace(_batches(items, examples)), loss, recipe=RECIPE)

    return run


def masked_step(model: StagedModel, items: Tensor, examples: int, cast: Callable, start: str) -> Callable[[Pace], None]:
    """Training a mask from a stage on."""
    method = ContinuousSparsification(epochs=1)

    def run(pace: Pace) -> None:
        batches, options = (lambda _: pace(_batches(items, examples))), {"recipe": RECIPE, "autocast": cast}
        discover(model, items, batches, _odd_one_out, method=method, start=start, **options)

    return run


def _raced(
    make: Callable[[], StagedModel], items: Tensor, starts: tuple[str, ...], setting: dict[str, Any],
    python: str | Path | None, steps: int, device: torch.device,
) -> pd.DataFrame:  # fmt: skip
    """The race of one network. setting: what `neurosurgeon_worker` wants to know."""
    contenders, items = {}, items.to(device)
    for precision in ("float32", "bfloat16") if has_bfloat16(device) else ("float32",):
        common = items, setting["examples"], partial(autocast, Compute(precision=precision), device)
        contenders[precision, PLAIN] = partial(second_step, plain_step(make().to(device).eval(), *common))
        for start in starts:
            masked = masked_step(make().to(device).requires_grad_(False), *common, start)
            contenders[precision, start] = partial(second_step, masked)
    if python is not None and device.type == "cpu":
        setting = setting | {"threads": core_count()}
        contenders |= {(RIVAL, start): partial(next, neurosurgeon(python, start=start, **setting)) for start in starts}
    with _threads(core_count()):
        return relative(race(contenders, steps=steps)).assign(threads=core_count())


def relative(rounds: pd.DataFrame) -> pd.DataFrame:
    """Medians and median ratios of a race whose contenders are called (precision, what is trained)."""
    rows = []
    for precision, trained in rounds:
        seconds = rounds[precision, trained]
        plain = rounds["float32" if precision == RIVAL else precision, PLAIN]
        row = {"precision": precision, "trained": trained, "ms": 1e3 * seconds.median()}
        row["times_plain"] = (seconds / plain).median()
        if (RIVAL, trained) in rounds:
            row["times_faster"] = (rounds[RIVAL, trained] / seconds).median()
        rows.append(row)
    return pd.DataFrame(rows)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(items: Tensor, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (rows [examples, 4], odd [examples]) without an item that occurs twice, if there are enough."""
    draw = torch.Generator().manual_seed(0)
    while True:
        rows = torch.randperm(len(items), generator=draw)
        rows = rows.repeat(-(-4 * examples // len(items)))[: 4 * examples]
        yield rows.view(examples, 4), torch.randint(4, (examples,), generator=draw)


def _odd_one_out(embeddings: Tensor, odd: Tensor) -> Tensor:
    """Cross-entropy of the item that is least like the others; embeddings: [examples, 4, d]."""
    directions = normalize(embeddings, dim=-1)
    return cross_entropy(-(directions * directions.sum(dim=-2, keepdim=True)).sum(dim=-1), odd)
