"""What a study computes, on whatever machine: additions and multiplications in products and convolutions.

As torch's FlopCounterMode counts them: a multiplication and an addition are two, elementwise arithmetic is none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from subnet_utils.cost.plan import PRETRAINING, RENDERING, Sort
from subnet_utils.cost.rehearsal import rehearsing
from subnet_utils.cost.samples import few_sentences, language_model_on, sample_items, simclr_on_noise
from subnet_utils.cost.timing import masked_step, plain_step
from subnet_utils.models.frozen import FrozenPrefix, embed_all
from subnet_utils.papers.break_it_down.base_models import untrained
from subnet_utils.training import Recipe, fit

EXAMPLES = 8
"""Of four items, in a step whose operations are counted; those of a larger batch are in proportion."""


class OneStep:
    """Stands in for `fit`: makes one step and one validation, if there is one, and counts the operations of both."""

    step = validation = 0

    def __call__(
        self,
        parameters: dict[str, Tensor],
        batches: Callable[[int], Iterable[Any]],
        loss: Callable[[Any, int], Tensor],
        *,
        recipe: Recipe,
        label: str,
        validate: Callable[[], Mapping[str, float]] | None = None,
        **_: Any,
    ) -> pd.DataFrame:
        """The history as `fit` gives it, of one epoch of one step."""

        def first(epoch: int) -> Iterator[Any]:
            with FlopCounterMode(display=False) as counter:
                yield next(iter(batches(epoch)))
            self.step = counter.get_total_flops()

        def judge() -> Mapping[str, float]:
            self.validation, found = operations_of(validate)
            return found

        judged = {"validate": judge} if validate else {}
        with rehearsing(None):
            return fit(parameters, first, loss, recipe=recipe, stop_after=1, label=label, **judged)


def operations(sort: Sort) -> dict[str, float]:
    """Operations of one step, one item and one item of the frozen prefix, by the names of a plan's `COUNTS`."""
    if sort.start == RENDERING:
        return {}
    return _of_pretraining(sort) if sort.start == PRETRAINING else _of_a_network(sort)


def _of_a_network(sort: Sort) -> dict[str, float]:
    model, items = untrained(sort.network).eval(), sample_items(sort.network)[: 4 * EXAMPLES]
    prefix, suffix = model.cut(sort.start or model.stage_names[0])
    frozen, table = operations_of(partial(FrozenPrefix, prefix, items[1:], device=items.device, limit_gb=math.inf))
    rest, _ = operations_of(partial(embed_all, suffix, {}, table))
    if sort.start:
        train = masked_step(model.requires_grad_(False), items, sort.start, examples=EXAMPLES)
    else:
        train = plain_step(model, items, examples=EXAMPLES)
    step = _one_step(partial(train, iter)).step
    # the prefix runs once more for the first item, to see how large its outputs are
    return {
        "steps": step * sort.examples / EXAMPLES,
        "items": rest / len(table.items),
        "frozen_items": frozen / len(items),
    }


def _of_pretraining(sort: Sort) -> dict[str, float]:
    network, settings = sort.network, sort.network.experiment.pretraining
    model = untrained(network)
    if settings.method == "simclr":
        few = min(settings.batch_size, 2 * EXAMPLES)
        counted, judged = _one_step(simclr_on_noise(network, model, few)), few
    else:
        sentences, held = few_sentences(network)
        few, judged = settings.batch_size, len(held)
        counted = _one_step(language_model_on(sentences, held, network, model))
    return {"steps": counted.step * settings.batch_size / few, "items": counted.validation / judged}


def _one_step(train: Callable[[], Any]) -> OneStep:
    one = OneStep()
    with rehearsing(one):
        train()
    return one


def operations_of(function: Callable[[], Any]) -> tuple[int, Any]:
    """How many operations a function makes, and its result."""
    with FlopCounterMode(display=False) as counter:
        result = function()
    return counter.get_total_flops(), result
