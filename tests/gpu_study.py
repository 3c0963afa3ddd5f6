"""A study on an imitated GPU: `python -m tests.gpu_study STUDY STORE REPORT` makes all of its steps, counts what steps
of training do, and writes that down. For `test_imitated_gpu`."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests import imitated_gpu  # before torch

# isort: split
import torch

from subnet_utils.core.devices import autocast
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import Compute
from subnet_utils.core.step import make_all
from subnet_utils.cost import race
from subnet_utils.masks.discover import MaskTask, discover_many
from subnet_utils.masks.methods import ContinuousSparsification
from subnet_utils.models import StagedModel, build
from subnet_utils.models.layers import attend
from subnet_utils.models.vision import InstanceNorm

GPU = torch.device("cuda")
CAST = partial(autocast, Compute(precision="bfloat16"), GPU)
BERT = {"family": "bert", "layers": 3, "width": 16, "heads": 2, "mlp_width": 32}
RESNET = {"family": "resnet", "block": "bottleneck", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8}
VIT = {"family": "vit", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32, "patch": 8, "head_width": 8}


class Enough(Exception):
    """Ends a training whose steps are counted."""


def of_a_step(train: Callable) -> dict[str, Counter]:
    """What one step, the third, does: from what was counted between two batches."""
    before: list[list[Counter]] = []

    def pace(batches: Iterable[Any]) -> Iterator[Any]:
        for number, batch in zip(count(), batches, strict=False):
            before.append(imitated_gpu.counted())
            if number == 3:
                raise Enough
            yield batch

    try:
        train(pace)
    except Enough:
        counts = [late - early for early, late in zip(*before[-2:], strict=True)]
    return dict(zip(("operations", "copies", "waits"), counts, strict=True))


def masked(model: StagedModel, items: torch.Tensor, start: str, masks: int) -> Callable:
    """A training of several masks at once, whose first one sets the pace."""

    def train(pace: Callable) -> None:
        method = ContinuousSparsification(epochs=1)
        passes = [lambda _: pace(race._batches(items, 4)), *[lambda _: race._batches(items, 4)] * (masks - 1)]
        tasks = [MaskTask(items, one, method, seed) for seed, one in enumerate(passes)]
        options = {"start": start, "recipe": race.RECIPE, "autocast": CAST, "split": False}
        discover_many(model, tasks, race.similarity_loss, **options)

    return train


def steps() -> dict[str, dict[str, Counter]]:
    """Steps of all kinds of networks, with masks and without, in bfloat16."""
    sentences = torch.randint(1, 30, (40, 8), generator=torch.Generator().manual_seed(0))
    sentences[::2, 5:] = 0
    images = torch.zeros(20, 3, 48, 48, dtype=torch.uint8)

    def of(architecture: dict, items: torch.Tensor, start: str, masks: int) -> dict[str, Counter]:
        model = build(architecture, seed=0, vocabulary=30, resolution=48).to(GPU).eval().requires_grad_(not masks)
        plain = race.plain_step(model, items.to(GPU), 4, CAST)
        return of_a_step(masked(model, items, start, masks) if masks else plain)

    return {
        **{f"bert, {masks} masks": of(BERT, sentences, "layer_1", masks) for masks in (0, 1, 8)},
        **{f"resnet, {masks} masks": of(RESNET, images, "stem", masks) for masks in (0, 1, 3)},
        "vit, 3 masks": of(VIT, images, "patches", 3),
    }


def maps() -> list[str]:
    """Type and device of what instance normalization gives to the next convolution."""
    with CAST():
        normalized = InstanceNorm(3)(torch.rand(2, 3, 4, 4, device=GPU, dtype=torch.bfloat16))
    return [str(normalized.dtype), normalized.device.type]


def difference() -> float:
    """The largest difference between what attention gives on the GPU and on a CPU."""
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None, None, :]
    given = query, key, value, keep
    return float((attend(*(tensor.to(GPU) for tensor in given)).cpu() - attend(*given)).abs().max())


def refusals() -> dict[str, str]:
    """What a GPU refuses, and what this one says to it."""
    there, here = torch.ones(2, device=GPU), torch.ones(2)
    wrong = {
        "two devices": lambda: there + here,
        "another device's rows": lambda: there.index_select(0, torch.tensor([1])),
        "a CPU's generator": lambda: torch.rand(2, device=GPU, generator=torch.Generator()),
        "read as the CPU's": lambda: there.numpy(),
    }
    said = {}
    for name, attempt in wrong.items():
        try:
            attempt()
        except (RuntimeError, TypeError) as error:
            said[name] = str(error)
    return said


def main(study: str, store: str, report: str) -> None:
    torch.set_num_threads(1)
    lab = Lab.open(json.loads(Path(study).read_text()), store)
    for paper in papers().values():
        make_all(lab, paper.steps_of(lab), paper.name)
    about = {"device": lab.device.type, "refusals": refusals(), "steps": steps(), "maps": maps()}
    Path(report).write_text(json.dumps(about | {"difference": difference()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
