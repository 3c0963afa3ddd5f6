"""Modular arithmetic (*Instilling Inductive Biases with Subnetworks*, section 4): a o b mod p as four tokens.

A row is [a, b, SEP, c] with a and b in [0, max), SEP = max and c = f(a, b) mod p, so there are max + 1 symbols and the
answers reuse the first p of them. f is a polynomial in a and b, written as in the paper: `a^2+ab`.

Every set is a pure function of its arguments, and smaller training sets are contained in larger ones of the same seed.
That there are as many pairs as asked for, the section has checked.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from subnet_utils.core.seeds import generator_for
from subnet_utils.tasks.polynomials import parse


class Rows(NamedTuple):
    """Rows of one computation. tokens: int64 [m, 3], the symbols a, b, SEP; targets: int64 [m, 3], what follows each.

    The answer is the last target, at the place of SEP.
    """

    tokens: Tensor
    targets: Tensor

    @property
    def answers(self) -> Tensor:
        """c = f(a, b) mod p, int64 [m]."""
        return self.targets[:, -1]


def rows_of(expression: str, pairs: Tensor, *, maximum: int, p: int) -> Rows:
    """Rows for given pairs, int64 [m, 2]. Raises WrongExpression for what cannot be read.

    >>> rows_of("a+b", torch.tensor([[2, 3]]), maximum=7, p=5)
    Rows(tokens=tensor([[2, 3, 7]]), targets=tensor([[3, 7, 0]]))
    """
    a, b = pairs.unbind(dim=1)
    separator = torch.full_like(a, maximum)
    answers = parse(expression)(a, b, p)
    return Rows(torch.stack([a, b, separator], dim=1), torch.stack([b, separator, answers], dim=1))


class Pairs(NamedTuple):
    """Training, validation and test pairs (a, b), int64 [m, 2] each; no pair is in two of them."""

    train: Tensor
    validation: Tensor
    test: Tensor


def task_pairs(maximum: int, *, train: int, validation: int, test: int, seed: int) -> Pairs:
    """Pairs to learn a computation from, all distinct.

    Every number stands at least once on the left of the training pairs, so that no symbol is new in a test.
    """
    order = _shuffled(torch.arange(maximum**2), "task", maximum, seed)
    firsts = _shuffled(torch.arange(maximum), "partners", maximum, seed) + maximum * torch.arange(maximum)
    rest = order[~torch.isin(order, firsts)]
    held, more = rest[: validation + test], rest[validation + test :]
    train_codes = torch.cat([firsts, more[: train - maximum]])
    return Pairs(*(_pairs(codes, maximum) for codes in (train_codes, held[:validation], held[validation:])))


def disambiguation_pairs(maximum: int, *, train: int, held: Tensor, seed: int) -> Tensor:
    """Distinct pairs with a != b, int64 [train, 2]: there computations differ that agree on the diagonal.

    held: pairs that are not to be among them, int64 [m, 2]. n pairs are the first n of more.
    """
    codes = torch.arange(maximum**2)
    codes = codes[(codes // maximum != codes % maximum) & ~torch.isin(codes, held[:, 0] * maximum + held[:, 1])]
    return _pairs(_shuffled(codes, "disambiguation", maximum, seed)[:train], maximum)


def diagonal_pairs(maximum: int) -> Tensor:
    """All pairs with a = b: the minimal set, on which a^2 + ab, 2 b^2 and a^2 + b^2 are the same."""
    return torch.arange(maximum)[:, None].expand(-1, 2)


def _shuffled(values: Tensor, *about: str | int) -> Tensor:
    return values[torch.randperm(len(values), generator=generator_for("arithmetic", *about))]


def _pairs(codes: Tensor, maximum: int) -> Tensor:
    return torch.stack([codes // maximum, codes % maximum], dim=1)
