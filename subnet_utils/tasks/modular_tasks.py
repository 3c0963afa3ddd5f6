"""Two subtasks of a network with known truth: addition and multiplication modulo 13.

An item is a pair of numbers and the operation that is asked for. Both operations have the same numbers and the same
answers; two more inputs name the operation. There are few items, so a network sees all of them in every step.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch
from torch import nn

from subnet_utils.tasks.digit_arithmetic import ABSENT, TAUGHT, Items, items

BASE = 13
"""Numbers are 0 to 12, and answers are modulo 13."""
OPERATIONS = ("add", "mul")
WIDTH = 2 * BASE + len(OPERATIONS)
"""Inputs of an item."""


@cache
def modular_tasks() -> Mapping[str, Items]:
    """All 169 items of each operation: inputs [169, 28] of zeros and ones, targets [169].

    Inputs 0 to 12 are the first number, 13 to 25 the second, 26 and 27 the operation.
    """
    every = {name: items(BASE, BASE, sign) for name, sign in zip(OPERATIONS, TAUGHT, strict=True)}
    tasks = {name: Items(inputs[:, :WIDTH].contiguous(), targets[:, 0]) for name, (inputs, targets) in every.items()}
    return MappingProxyType(tasks)


@torch.no_grad()
def accuracy(network: nn.Module, task: Items) -> float:
    """Share of items of which all outputs that are asked for are right."""
    answers = network(task.inputs).argmax(dim=-1)
    right = (answers == task.targets) | (task.targets == ABSENT)
    return float(right.view(len(right), -1).all(dim=1).double().mean())


def chance(task: Items) -> float:
    """Accuracy of whoever always gives the commonest answer."""
    asked = task.targets[task.targets != ABSENT]
    return int(asked.bincount().max()) / len(asked)
