"""A study on an imitated GPU: `python -m tests.gpu_study STUDY STORE REPORT` makes all of its sections, counts what
steps of training do, and writes that down. For `test_imitated_gpu`."""

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
from subnet_utils.cost.sections import MAKERS

from subnet_utils import cost
from subnet_utils.core.devices import autocast
from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import Compute
from subnet_utils.cost import comparison, timing
from subnet_utils.models import build
from subnet_utils.models.attention import attend, softmax
from subnet_utils.models.convolution import Conv3x3
from subnet_utils.models.vision import InstanceNorm, MaxPool
from tests import micro

GPU = torch.device("cuda")
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


def steps() -> dict[str, dict[str, Counter]]:
    """Steps of both kinds of networks, with masks and without, in bfloat16."""
    options = {"examples": 4, "autocast": partial(autocast, Compute(precision="bfloat16"), GPU)}
    sentences = torch.randint(1, 30, (40, 8), generator=torch.Generator().manual_seed(0))
    sentences[::2, 5:] = 0
    images = torch.zeros(20, 3, 48, 48, dtype=torch.uint8)

    def bert():
        return build(BERT, seed=0, vocabulary=30).to(GPU).eval().requires_grad_(False)

    def resnet():
        return build(RESNET, seed=0).to(GPU).eval().requires_grad_(False)

    def vit():
        return build(VIT, seed=0, resolution=48).to(GPU).eval().requires_grad_(False)

    return {
        "bert, no mask": of_a_step(timing.plain_step(bert(), sentences, **options)),
        "bert, one mask": of_a_step(timing.masked_step(bert(), sentences, "layer_1", **options)),
        "bert, eight masks": of_a_step(timing.masked_step(bert(), sentences, "layer_1", masks=8, **options)),
        "resnet, no mask": of_a_step(timing.plain_step(resnet(), images, flips=True, **options)),
        "resnet, one mask": of_a_step(timing.masked_step(resnet(), images, "stem", **options)),
        "resnet, three masks": of_a_step(timing.masked_step(resnet(), images, "stem", masks=3, **options)),
        "vit, three masks": of_a_step(timing.masked_step(vit(), images, "patches", masks=3, **options)),
    }


def raced(folder: Path) -> dict[str, Any]:
    """What notebook 11 asks of a small study, most of it in threads: the tables of its races and its predictions."""
    timing.LARGE_PRODUCT["cuda"], comparison.AT_ONCE["cuda"] = 64, (1, 2)
    lab = Lab.open(micro.study(precision="bfloat16"), folder)
    networks = cost.kinds(lab)
    steps, at_once = (race(lab, networks, cost.sample_items, steps=1) for race in (cost.compare, cost.compare_at_once))
    predicted = cost.counted(lab)
    return {
        "steps": steps.to_dict("list"), "at_once": at_once.to_dict("list"),
        "predicted": predicted["predicted_s"].to_list(), "at_best": cost.at_best(predicted, lab),
    }  # fmt: skip


def maps() -> list[str]:
    """Type and device of what instance normalization gives to the next convolution."""
    with autocast(Compute(precision="bfloat16"), GPU):
        normalized = InstanceNorm(3)(torch.rand(2, 3, 4, 4, device=GPU, dtype=torch.bfloat16))
    return [str(normalized.dtype), normalized.device.type]


def differences() -> dict[str, float]:
    """The largest difference between what layers with a path of its own for GPUs give there and on a CPU."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=draw)
    keep = torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None, None, :]
    scores, maps = torch.randn(2, 5, 5, generator=draw), torch.randn(2, 6, 8, 8, generator=draw)
    kernel = Conv3x3(torch.nn.Conv2d(6, 6, 3, stride=2, padding=1, bias=False))
    layers = {
        "attention": (attend, (query, key, value, keep)),
        "softmax": (partial(softmax, scale=0.5), (scores, keep[:, 0])),
        "normalization": (InstanceNorm(6), (maps,)),
        "pooling": (MaxPool(3, stride=2, padding=1), (maps,)),
        "convolution": (lambda x, weight: torch.func.functional_call(kernel, {"weight": weight}, (x,)),
                        (maps[:, :, :4, :4], kernel.weight.detach())),
    }  # fmt: skip
    return {
        name: float((layer(*(given.to(GPU) for given in inputs)).cpu() - layer(*inputs)).abs().max())
        for name, (layer, inputs) in layers.items()
    }


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
    for make in MAKERS.values():
        make(lab)
    about = {"device": lab.device.type, "refusals": refusals(), "steps": steps(), "maps": maps()}
    about["raced"] = raced(Path(store).with_name("raced"))
    about["differences"] = differences()
    Path(report).write_text(json.dumps(about))


if __name__ == "__main__":
    main(*sys.argv[1:])
