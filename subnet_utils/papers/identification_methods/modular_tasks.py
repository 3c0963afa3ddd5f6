"""Two subtasks of a network with known truth: addition and multiplication modulo 13.

An item is a pair of numbers and the operation that is asked for. Both operations have the same numbers and the same
answers; two more inputs name the operation. There are few items, so a network sees all of them in every step.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

BASE = 13
"""Numbers are 0 to 12, and answers are modulo 13."""
OPERATIONS = ("add", "mul")
WIDTH = 2 * BASE + len(OPERATIONS)
"""Inputs of an item."""
ABSENT = -100
"""Target of an output that is not asked for; what torch's cross-entropy leaves out."""


class Subtask(NamedTuple):
    """Items of a subtask: inputs [m, ...] and int64 targets [m, ...], with classes in the last dimension of outputs."""

    inputs: Tensor
    targets: Tensor


@cache
def modular_tasks() -> Mapping[str, Subtask]:
    """All 169 items of each operation: inputs [169, 28] of zeros and ones, targets [169].

    Inputs 0 to 12 are the first number, 13 to 25 the second, 26 and 27 the operation.
    """
    numbers = torch.cartesian_prod(torch.arange(BASE), torch.arange(BASE))
    answers = {"add": numbers.sum(dim=1) % BASE, "mul": numbers.prod(dim=1) % BASE}
    pairs, asked = one_hot(numbers, BASE).flatten(1).float(), torch.eye(len(OPERATIONS))
    return MappingProxyType(
        {
            name: Subtask(torch.cat([pairs, asked[i].expand(len(pairs), -1)], dim=1), answers[name])
            for i, name in enumerate(OPERATIONS)
        }
    )


@torch.no_grad()
def accuracy(network: nn.Module, task: Subtask) -> float:
    """Share of items of which all outputs that are asked for are right."""
    answers = network(task.inputs).argmax(dim=-1)
    right = (answers == task.targets) | (task.targets == ABSENT)
    return float(right.view(len(right), -1).all(dim=1).double().mean())


def chance(task: Subtask) -> float:
    """Accuracy of whoever always gives the commonest answer."""
    asked = task.targets[task.targets != ABSENT]
    return int(asked.bincount().max()) / len(asked)
