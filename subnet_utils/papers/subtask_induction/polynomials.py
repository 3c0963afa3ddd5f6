"""Polynomials in a and b, read from text as papers print them: `a^2+ab`. The text is parsed, never run as code."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HIGHEST_POWER, LONGEST = 20, 200
TOKEN = re.compile(r"\s*([0-9]+|[a-zA-Z]|\S)")
ALLOWED = "use a, b, whole numbers, + - * ^ and brackets"


class WrongExpression(ValueError):
    """A computation cannot be read; the message shows where."""


@dataclass(frozen=True)
class Polynomial:
    """A polynomial in a and b with whole coefficients: (power of a, power of b) -> coefficient.

    >>> parse("(a+b)(a-b)") == parse("a^2 - b^2")
    True
    """

    terms: Mapping[tuple[int, int], int]

    def __call__(self, a: Tensor, b: Tensor, p: int) -> Tensor:
        """f(a, b) mod p of integer tensors of one shape; numbers never exceed p^3 on the way."""
        total = torch.zeros_like(a)
        for (i, j), coefficient in self.terms.items():
            term = torch.full_like(a, coefficient % p)
            for base, power in ((a, i), (b, j)):
                for _ in range(power):
                    term = term * (base % p) % p
            total = (total + term) % p
        return total

    @property
    def degree(self) -> int:
        """The largest sum of both powers."""
        return max((i + j for i, j in self.terms), default=0)

    def __add__(self, other: "Polynomial") -> "Polynomial":
        sums = defaultdict(int, self.terms)
        for powers, coefficient in other.terms.items():
            sums[powers] += coefficient
        return Polynomial({powers: value for powers, value in sums.items() if value})

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        sums = defaultdict(int)
        for (i, j), left in self.terms.items():
            for (k, m), right in other.terms.items():
                sums[i + k, j + m] += left * right
        return Polynomial({powers: value for powers, value in sums.items() if value})


def parse(expression: str) -> Polynomial:
    """Read a polynomial such as `a^2 + ab`; a product needs no sign. The text is never run as code.

    Raises WrongExpression with the place of the first fault.
    """
    return _Reader(expression).all()


class _Reader:
    """Recursive descent: sum of products of powers of numbers, letters and brackets."""

    def __init__(self, expression: str):
        if not isinstance(expression, str) or not expression.strip():
            raise WrongExpression(f"{expression!r} is no computation; {ALLOWED}")
        if len(expression) > LONGEST:
            raise WrongExpression(f"a computation of {len(expression)} characters is too long; give at most {LONGEST}")
        self.text, self.places = expression, []
        place = 0
        while found := TOKEN.match(expression, place):
            self.places.append((found.group(1), found.start(1)))
            place = found.end()

    def all(self) -> Polynomial:
        value = self.sum()
        if self.places:
            self.fail()
        return value

    @property
    def next(self) -> str:
        return self.places[0][0] if self.places else ""

    def fail(self) -> None:
        if not self.places:
            raise WrongExpression(f"'{self.text}' ends too early; {ALLOWED}")
        symbol, place = self.places[0]
        raise WrongExpression(f"'{self.text}': unexpected '{symbol}' at character {place + 1}; {ALLOWED}")

    def take(self) -> str:
        return self.places.pop(0)[0]

    def sum(self) -> Polynomial:
        negative = self.next == "-" and bool(self.take())
        value = _signed(self.product(), negative)
        while self.next in ("+", "-"):
            negative = self.take() == "-"
            value = value + _signed(self.product(), negative)
        return value

    def product(self) -> Polynomial:
        value = self.power()
        while self.next == "*" or self.next == "(" or self.next.isalnum():
            if self.next == "*":
                self.take()
            value = self.times(value, self.power())
        return value

    def power(self) -> Polynomial:
        value = self.atom()
        if self.next != "^":
            return value
        self.take()
        if not self.next.isdecimal():
            self.fail()
        power = int(self.take())
        if power > HIGHEST_POWER:
            raise WrongExpression(f"'{self.text}' has the power {power}, above {HIGHEST_POWER}; give a smaller one")
        if self.next == "^":  # a^(b^c) or (a^b)^c: who writes it may mean either
            self.fail()
        result = Polynomial({(0, 0): 1})
        for _ in range(power):
            result = self.times(result, value)
        return result

    def times(self, left: Polynomial, right: Polynomial) -> Polynomial:
        if left.degree + right.degree > HIGHEST_POWER:
            raise WrongExpression(f"'{self.text}' is of a degree above {HIGHEST_POWER}; give a smaller one")
        return left * right

    def atom(self) -> Polynomial:
        if self.next == "(":
            self.take()
            value = self.sum()
            if self.next != ")":
                self.fail()
            self.take()
            return value
        if self.next.isdecimal():
            number = int(self.take())
            return Polynomial({(0, 0): number} if number else {})
        if self.next not in ("a", "b"):
            self.fail()
        return Polynomial({(1, 0) if self.take() == "a" else (0, 1): 1})


def _signed(value: Polynomial, negative: bool) -> Polynomial:
    return value * Polynomial({(0, 0): -1}) if negative else value


def require_numbers(maximum: int, p: int) -> None:
    """Raise ValueError unless 2 <= p <= maximum: the answers are symbols, too."""
    if p < 2:
        raise ValueError(f"p = {p} is no modulus; give at least 2")
    if maximum < p:
        raise ValueError(f"max = {maximum} leaves no symbols for the answers mod {p}; give a max of at least p")
