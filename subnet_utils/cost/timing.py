"""Steps of training, timed side by side.

On a machine that others use too, two timings can be compared only if they were taken in turns. Here every contender
runs in a thread of its own and waits for its turn before each step, so what is timed is the engine itself (`fit`,
`discover`) and not a copy of its loop.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from subnet_utils.core.jobs import keep_freed_memory
from subnet_utils.cost.rehearsal import both_clocks
from subnet_utils.masks.discover import Wanted, discover_many
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.models.frozen import FrozenPrefix, embed_rows, sent
from subnet_utils.models.staged import StagedModel
from subnet_utils.papers.break_it_down.base_models import flipped
from subnet_utils.papers.break_it_down.tasks.odd_one_out import similarity_logits
from subnet_utils.training import Recipe, fit

PACE = Callable[[Iterable[Any]], Iterator[Any]]
"""Hands on what it is given, one item a turn."""
PATIENCE = 600.0
"""Seconds that a step may take before a race is given up."""
LARGE_PRODUCT = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of matrices that a device multiplies as fast as it can."""


@dataclass
class _Runner:
    """One contender: a thread that makes a step when it is told to."""

    name: str
    run: Callable[[PACE], None]
    counting: bool = False
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    seconds: list[float] = field(default_factory=list)
    flops: int = 0
    fault: BaseException | None = None
    stopped: bool = False

    def pace(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self.go.acquire()
            if self.stopped:
                return
            started = now()
            if self.counting and not self.seconds:  # of the first step only, because it takes time
                with FlopCounterMode(display=False) as counter:
                    yield batch
                self.flops = counter.get_total_flops()
            else:
                yield batch
            self.seconds.append(now() - started)
            self.done.release()

    def main(self) -> None:
        try:
            self.run(self.pace)
        except BaseException as error:  # of any kind: it is raised again where the race is run
            self.fault = None if self.stopped else error  # which keeps all that the training held
        self.done.release()

    def step(self) -> None:
        self.go.release()
        if not self.done.acquire(timeout=PATIENCE):
            raise TimeoutError(f"{self.name}: a step took more than {PATIENCE:.0f} seconds")
        if self.fault is not None:
            raise self.fault


def race(
    contenders: Mapping[str, Callable[[PACE], None]], *, steps: int = 10, warm_up: int = 2, counting: bool = False
) -> pd.DataFrame:
    """Seconds of every step of every contender, one step each in turns: columns contender, step, seconds, flops.

    contenders: name -> function that trains, taking at least steps + warm_up batches through the `pace` that it is
    given. The first warm_up rounds are not counted. counting: whether the first step's work is; flops: additions and
    multiplications in its products and convolutions, as torch counts them; 0 for what another process computes. An
    exception in a contender is raised here.
    """
    keep_freed_memory()  # as in every process that trains
    runners = [_Runner(name, run, counting) for name, run in contenders.items()]
    threads = [threading.Thread(target=runner.main, daemon=True) for runner in runners]
    for thread in threads:
        thread.start()
    try:
        for _ in range(warm_up + steps):
            for runner in runners:
                runner.step()
    finally:
        for runner in runners:
            runner.stopped = True
            runner.go.release()
        for thread in threads:
            thread.join(timeout=PATIENCE)
    rows = [
        {"contender": runner.name, "step": i, "seconds": seconds, "flops": runner.flops}
        for runner in runners
        for i, seconds in enumerate(runner.seconds[warm_up : warm_up + steps])
    ]
    return pd.DataFrame(rows)


def plain_step(
    model: StagedModel, items: Tensor, *, examples: int, autocast=nullcontext, flips: bool = False
) -> Callable[[PACE], None]:
    """A contender that trains all weights of a network without masks.

    items: [m, ...]; examples: of four, a batch; flips: whether its images are mirrored, as those of base models are.
    """

    def run(pace: PACE) -> None:
        generator = torch.Generator().manual_seed(0)
        device = next(model.parameters()).device
        prefix, _ = model.cut(model.stage_names[0])
        table = FrozenPrefix(prefix, items, device=device, limit_gb=64.0)

        def loss(batch: tuple[Tensor, Tensor], epoch: int) -> Tensor:
            rows, odd = batch
            with autocast():
                if flips:
                    embeddings = model(flipped(table(rows.flatten())[0], generator)).unflatten(0, rows.shape)
                else:
                    embeddings = embed_rows(model, {}, table, rows)
            return cross_entropy(similarity_logits(embeddings.float()), sent(odd, device))

        model.requires_grad_(True)
        parameters = dict(model.named_parameters())
        fit(parameters, lambda epoch: pace(_batches(items, examples)), loss, recipe=Recipe(1e-5, 1, 0), label="plain")

    return run


def masked_step(
    model: StagedModel, items: Tensor, start: str, *, examples: int, masks: int = 1, autocast=nullcontext
) -> Callable[[PACE], None]:
    """A contender that trains masks from a stage on, `masks` of them at once: MemoryError if they do not fit."""

    def run(pace: PACE) -> None:
        method, free = ContinuousSparsification(epochs=1), partial(_unpaced, items, examples)
        wanted = [Wanted(items, free, method, i) for i in range(masks)]
        wanted[0] = Wanted(items, lambda generator: pace(free(generator)), method, 0)
        discover_many(
            model, wanted, lambda embeddings, odd: cross_entropy(similarity_logits(embeddings), odd),
            start=start, recipe=Recipe(1e-5, 1, 0), autocast=autocast, apart=False,
        )  # fmt: skip

    return run


def large_product(
    device: torch.device, *, autocast: Callable[[], AbstractContextManager] = nullcontext
) -> Callable[[PACE], None]:
    """A contender that multiplies two large matrices in every step, which is about as fast as a device gets."""

    def run(pace: PACE) -> None:
        size = LARGE_PRODUCT[device.type]
        with autocast():  # the precision of a product, in which both matrices lie ready
            dtype = (torch.ones(1, 1, device=device) @ torch.ones(1, 1, device=device)).dtype
        matrix = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        for _ in pace(repeat(None)):
            torch.mm(matrix, matrix)

    return run


def _unpaced(items: Tensor, examples: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    return _batches(items, examples)


def _batches(items: Tensor, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (rows [examples, 4], odd [examples]) without an item that occurs twice, if there are enough."""
    draw = torch.Generator().manual_seed(0)
    while True:
        rows = torch.randperm(len(items), generator=draw)
        rows = rows.repeat(-(-4 * examples // len(items)))[: 4 * examples]
        yield rows.view(examples, 4), torch.randint(4, (examples,), generator=draw)


def now() -> float:
    """A clock that has waited for the GPU."""
    return float(both_clocks()[0])
