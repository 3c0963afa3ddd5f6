"""What the zoo may hold of subtask induction: the GPT-2s that compute, and the subnetworks that are taken of them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.papers.subtask_induction.arithmetic_steps import FOUND, Source, chosen_masks
from subnet_utils.papers.subtask_induction.chosen_mask import ChosenMask
from subnet_utils.zoo.release import Release, Test, committed


def releases(lab: Lab) -> Iterator[Release]:
    """Every source network of the arithmetic part."""
    masks: dict[Source, dict[str, ChosenMask]] = {}
    for mask in chosen_masks(lab) if lab.section("subtask_induction").arithmetic is not None else ():
        masks.setdefault(mask.first.source, {})[plain(mask.first.subtask)] = mask
    for source, own in masks.items():
        subtasks = [mask.first.subtask for mask in own.values()]
        yield Release(
            f"gpt2_{source.layers}x{source.problem.width}-{plain(source.computation)}",
            f"It computes {source.computation} modulo {source.problem.p}. A test has that, or the subtask of a mask.",
            network=source,
            seed=source.seed,
            chance=1 / source.problem.p,
            fresh=source.fresh,
            masks=partial(dict, own),
            tests=partial(_tests, source, [source.computation, *subtasks]),
            logits=logits,
            learned=partial(_learned, source=source),
            effects=partial(committed, lab.study.name, "induction_ablations", source=source.computation),
        )


def plain(computation: str) -> str:
    """A computation as part of a file's name: 'a2_plus_b2' for 'a^2+b^2'."""
    return computation.replace("^", "").replace("+", "_plus_")


@torch.no_grad()
def logits(network: nn.Module, tokens: Tensor) -> Tensor:
    """Logits [n, symbols] of the answer, from rows [n, 3]."""
    return torch.cat([network(some)[:, -1] for some in tokens.split(500)])


def _tests(source: Source, computations: list[str]) -> dict[str, Test]:
    """Test pairs of its own computation, and of each subtask."""
    pairs = source.pairs(source.training.rows).test
    rows = {one: source.rows(pairs, one) for one in computations}
    return {one: (found.tokens, found.answers) for one, found in rows.items()}


def _learned(lab: Lab, *, source: Source) -> bool:
    return source.result(lab)["validation_accuracy"] >= FOUND
