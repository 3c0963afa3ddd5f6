"""Which steps are raced: masks against the same network trained without them, and against NeuroSurgeon."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.devices import autocast, has_bfloat16
from subnet_utils.core.jobs import core_count
from subnet_utils.core.lab import Lab
from subnet_utils.core.messages import nearest
from subnet_utils.core.sections import Compute
from subnet_utils.cost.neurosurgeon import neurosurgeon
from subnet_utils.cost.timing import PACE, large_product, masked_step, plain_step, race
from subnet_utils.models import StagedModel, build
from subnet_utils.papers.break_it_down.base_models import Network, untrained

PLAIN = "all weights, no mask"
PRODUCT = "a large matrix product"
AT_ONCE = {"cpu": (1, 4), "cuda": (1, 4, 24)}
"""How many masks are raced at once; more than a few take seconds on a CPU."""
BERT_SMALL = {"layers": 4, "width": 512, "heads": 8, "mlp_width": 2048, "vocabulary": 30522}
TOKENS = 12
EXAMPLES = 64
LANGUAGE_STARTS = ("layer_1", "layer_3", "layer_4")
RESNETS = {
    18: {"block": "basic", "depths": (2, 2, 2, 2), "width": 64},
    50: {"block": "bottleneck", "depths": (3, 4, 6, 3), "width": 64},
}
RESOLUTION = 128
IMAGE_EXAMPLES = 8
VISION_STARTS = ("stem", "stage_4")


def compare(lab: Lab, networks: list[Network], items: Callable[[Network], Tensor], *, steps: int = 10) -> pd.DataFrame:
    """Milliseconds of a step in every network, with masks from each start and without: a row per contender.

    A step has the threads of a study's job. Times are medians over `steps` rounds; `times_plain` is the median over
    rounds of the step's time relative to the plain step of the same precision, in which all weights are trained. gflop:
    billions of additions and multiplications in the products and convolutions of a step; share: how fast they are done,
    relative to those of a large matrix product of the same precision, a step of which is made in every round. networks:
    one for each model; items(network): the table from which batches are drawn.
    """
    with _threads(lab.study.compute.threads):
        tables = [
            _against_plain(_contenders(lab, network, items(network)), steps).assign(model=network.experiment.model)
            for network in networks
        ]
    columns = ["model", "precision", "trained", "ms", "times_plain", "gflop", "share"]
    return pd.concat(tables or [pd.DataFrame()], ignore_index=True).reindex(columns=columns)


def compare_at_once(
    lab: Lab, networks: list[Network], items: Callable[[Network], Tensor], *, steps: int = 10
) -> pd.DataFrame:
    """Masks from the first start, one by one and several at once, with the threads and the precision of a study's job:
    a row for each number.

    ms: median time of a step in which every one of the masks is trained; times_faster: how many times the masks a
    second that are trained one by one. Arguments as in `compare`; networks without masks are left out, and numbers of
    masks for which memory runs out. Raises torch.OutOfMemoryError if one mask does not fit.
    """
    tables = []
    for network in networks:
        if getattr(network.experiment, "masks", None) is None:
            continue
        start, examples = network.experiment.masks.starts[0], network.experiment.masks.batch_size
        options = {"examples": examples, "autocast": partial(autocast, lab.study.compute, lab.device)}
        contenders = {
            masks: masked_step(_untrained(lab, network), items(network), start, masks=masks, **options)
            for masks in AT_ONCE[lab.device.type]
        }
        with _threads(lab.study.compute.threads):
            rounds = _of_those_that_fit(contenders, steps)
        for masks in rounds:
            row = {"model": network.experiment.model, "start": start, "masks": masks}
            faster = masks * (rounds[1] / rounds[masks]).median()
            tables.append(row | {"ms": 1e3 * rounds[masks].median(), "times_faster": faster})
    return pd.DataFrame(tables, columns=["model", "start", "masks", "ms", "times_faster"])


def _of_those_that_fit(contenders: Mapping[int, Callable[[PACE], None]], steps: int) -> pd.DataFrame:
    """Seconds of every step, a column for each number of masks, without the largest ones if memory runs out."""
    while True:
        try:
            return race(contenders, steps=steps).pivot(index="step", columns="contender", values="seconds")
        except MemoryError as error:
            if len(contenders) == 1:
                raise
            print(f"{error}; without them", file=sys.stderr, flush=True)
        contenders = {masks: train for masks, train in contenders.items() if masks < max(contenders)}
        gc.collect()  # the contenders that stopped hold the memory of their last step


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bert_small(*, python: str | Path | None = None, steps: int = 10, device: torch.device) -> pd.DataFrame:
    """The same for BERT-small, 64 examples a batch and 12 tokens a sentence, beside NeuroSurgeon if there is one.

    All cores take part. python: interpreter of an environment with NeuroSurgeon; it is raced on CPUs only. Columns as
    in `compare`, and threads, and `times_faster`: how many times the time of our step NeuroSurgeon takes for the same
    mask.
    """
    items = torch.randint(1, BERT_SMALL["vocabulary"], (1024, TOKENS), generator=torch.Generator().manual_seed(0))
    contenders = _of_model(partial(_bert_small, device), items, LANGUAGE_STARTS, EXAMPLES, device)
    setting = {"family": "bert", **BERT_SMALL, "examples": EXAMPLES, "tokens": TOKENS}
    with _threads(core_count()):
        contenders |= _rivals(python, LANGUAGE_STARTS, setting, device)
        return _against_plain(contenders, steps).assign(model="bert_small", threads=core_count())


def resnet(layers: int, *, python: str | Path | None = None, steps: int = 20, device: torch.device) -> pd.DataFrame:
    """The same for ResNet18 or ResNet50, 8 examples a batch and images of 128 x 128 pixels.

    As `bert_small`. layers: 18 or 50. Raises ValueError for another number. NeuroSurgeon's network is that of
    transformers: with batch normalization, which a CPU does faster than instance normalization, and without the MLP at
    the end.
    """
    if layers not in RESNETS:
        raise ValueError(f"no ResNet of {layers} layers; {nearest(str(layers), map(str, RESNETS))}")
    shape = (8 * IMAGE_EXAMPLES, 3, RESOLUTION, RESOLUTION)
    items = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    contenders = _of_model(partial(_resnet, layers, device), items, VISION_STARTS, IMAGE_EXAMPLES, device)
    setting = {"family": "resnet", **RESNETS[layers], "examples": IMAGE_EXAMPLES, "resolution": RESOLUTION}
    with _threads(core_count()):
        contenders |= _rivals(python, VISION_STARTS, setting, device)
        return _against_plain(contenders, steps).assign(model=f"resnet{layers}", threads=core_count())


def _rivals(
    python: str | Path | None, starts: tuple[str, ...], setting: dict, device: torch.device
) -> dict[tuple[str, str], Callable[[PACE], None]]:
    """NeuroSurgeon with masks from each start, on a CPU."""
    if python is None or device.type != "cpu":
        return {}
    setting = setting | {"threads": torch.get_num_threads()}
    return {("NeuroSurgeon, float32", start): neurosurgeon(python, start=start, **setting) for start in starts}


def _contenders(lab: Lab, network: Network, items: Tensor) -> dict[tuple[str, str], Callable[[PACE], None]]:
    masks = getattr(network.experiment, "masks", None)
    starts, examples = (masks.starts, masks.batch_size) if masks else ((), network.training.batch_size)
    return _of_model(partial(_untrained, lab, network), items, starts, examples, lab.device)


def _untrained(lab: Lab, network: Network) -> StagedModel:
    return untrained(network).to(lab.device).eval().requires_grad_(False)


def _of_model(
    make: Callable[[], StagedModel], items: Tensor, starts: tuple[str, ...], examples: int, device: torch.device
) -> dict[tuple[str, str], Callable[[PACE], None]]:
    """Contenders by (precision, what is trained), each with a network of its own; in bfloat16 where there is any."""
    contenders = {}
    for precision in ("float32", "bfloat16") if has_bfloat16(device) else ("float32",):
        options = {"examples": examples, "autocast": partial(autocast, Compute(precision=precision), device)}
        contenders[precision, PRODUCT] = large_product(device, autocast=options["autocast"])
        contenders[precision, PLAIN] = plain_step(make(), items, **options)
        for start in starts:
            contenders[precision, start] = masked_step(make().requires_grad_(False), items, start, **options)
    return contenders


def _against_plain(contenders: dict[tuple[str, str], Callable[[PACE], None]], steps: int) -> pd.DataFrame:
    named = {f"{precision}|{trained}": run for (precision, trained), run in contenders.items()}
    return relative(race(named, steps=steps, counting=True))


def relative(times: pd.DataFrame) -> pd.DataFrame:
    """Medians and median ratios of the times of a race whose contenders are called `precision|trained`."""
    rounds = times.pivot(index="step", columns="contender", values="seconds")
    flops = times.groupby("contender")["flops"].first()
    rows = []
    for contender in times["contender"].unique():
        precision, trained = contender.split("|")
        if trained == PRODUCT:
            continue
        seconds, plain = rounds[contender], rounds.get(f"{precision}|{PLAIN}", rounds[f"float32|{PLAIN}"])
        row = {"precision": precision, "trained": trained, "ms": 1e3 * seconds.median()}
        row["times_plain"] = (seconds / plain).median()
        product = f"{precision}|{PRODUCT}"
        if product in rounds and flops[contender]:
            row["gflop"] = flops[contender] / 1e9
            row["share"] = (flops[contender] / seconds / (flops[product] / rounds[product])).median()
        rival = rounds.get(f"NeuroSurgeon, float32|{trained}")
        if rival is not None:
            row["times_faster"] = (rival / seconds).median()
        rows.append(row)
    return pd.DataFrame(rows)


def _bert_small(device: torch.device) -> StagedModel:
    sizes = {name: size for name, size in BERT_SMALL.items() if name != "vocabulary"}
    return build({"family": "bert", **sizes}, seed=0, vocabulary=BERT_SMALL["vocabulary"]).to(device).eval()


def _resnet(layers: int, device: torch.device) -> StagedModel:
    return build({"family": "resnet", **RESNETS[layers]}, seed=0, resolution=RESOLUTION).to(device).eval()
