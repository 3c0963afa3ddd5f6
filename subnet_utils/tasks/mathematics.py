"""Questions of mathematics in words, three levels of each task (Saxton et al. 2019; *Are Neural Nets Modular?*,
appendix C.7.2).

A question has an *entropy*: about how many decimal digits its numbers have in all. A task has a range of it, and a
level is a third of the range. The rules are those of the Mathematics Dataset; wordings and numbers are our own draws,
and all numbers are integers, where the original has decimals and fractions, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from random import Random
from string import ascii_lowercase
from typing import NamedTuple

from subnet_utils.core.seeds import generator_for
from subnet_utils.tasks.scan import Split

LEVELS = ("easy", "medium", "hard")
ENTROPY = {"add_or_sub": (4.0, 16.0), "linear_1d": (3.0, 10.0), "differentiate": (3.0, 10.0), "sort": (3.0, 10.0),
           "collect": (3.0, 10.0)}  # fmt: skip
"""Least and largest entropy of each task."""
LONGEST = (160, 30)
"""Characters of a question and of an answer."""
ADD = ("What is {0} + {1}?", "What is {0} plus {1}?", "Add {0} and {1}.", "Work out {0} + {1}.",
       "Total of {0} and {1}.")  # fmt: skip
SUBTRACT = ("What is {0} - {1}?", "What is {0} minus {1}?", "Subtract {1} from {0}.", "Work out {0} - {1}.",
            "What is {0} take away {1}?")  # fmt: skip
ORDERS = ("ascending", "increasing", "descending", "decreasing")
SORT = ("Sort {0} in {1} order.", "Put {0} in {1} order.")
DERIVE = ("What is the {1} derivative of {0} wrt {2}?", "Find the {1} derivative of {0} with respect to {2}.")
TRIES = 100
"""Draws for each question that is wanted."""
Powers = tuple[int, ...]


class Question(NamedTuple):
    """A question and its answer."""

    text: str
    answer: str


@cache
def levels(task: str, train: int, test: int, entropy: tuple[float, float] | None = None) -> dict[str, Split]:
    """The levels of a task, by name: the same questions whenever they are asked for, and none of them in two places.

    entropy: another range. Raises KeyError for an unknown task, ValueError if a level has too few different questions.

    >>> levels("sort", 1, 1)["easy"].train[0]
    Question(text='Put 7, 4, -6, -1 in increasing order.', answer='-6, -1, 4, 7')
    """
    (low, high), count, seen, found = entropy or ENTROPY[task], train + test, set(), {}
    for i, name in enumerate(LEVELS):
        ends = [low + (high - low) * third / 3 for third in (i, i + 1)]
        draw = Random(generator_for("mathematics", task, name).initial_seed())
        drawn = (TASKS[task](draw.uniform(*ends), draw) for _ in range(TRIES * count))
        questions = tuple(islice(_new(drawn, seen), count))
        if len(questions) < count:
            what = f"{task} has only {len(questions):,} different questions at level {name}"
            raise ValueError(f"{what}; ask for fewer than {count:,}, or for more entropy")
        found[name] = Split(questions[test:], questions[:test])
    return found


def _new(questions: Iterable[Question], seen: set[str]) -> Iterator[Question]:
    """The questions that are not too long and were not seen before; now they are."""
    for question in questions:
        if question.text not in seen and all(len(text) <= most for text, most in zip(question, LONGEST, strict=True)):
            seen.add(question.text)
            yield question


def add_or_sub(entropy: float, draw: Random) -> Question:
    """The sum or the difference of two numbers."""
    first = draw.uniform(0, entropy)
    a, b = (_integer(max(1.0, part), draw) for part in (first, entropy - first))
    wordings, answer = (ADD, a + b) if draw.random() < 0.5 else (SUBTRACT, a - b)
    return Question(draw.choice(wordings).format(a, b), str(answer))


def sort(entropy: float, draw: Random) -> Question:
    """Three or more different numbers in order."""
    count, numbers = draw.randint(3, 3 + int(entropy / 2)), set()
    while len(numbers) < 3:  # equal ones stand once
        numbers = {_integer(max(1.0, part), draw) for part in _parts(entropy, count, draw)}
    mixed, order = draw.sample(sorted(numbers), len(numbers)), draw.choice(ORDERS)
    given, answer = (", ".join(map(str, some)) for some in (mixed, sorted(mixed, reverse=order.startswith("de"))))
    return Question(draw.choice(SORT).format(given, order), answer)


def linear_1d(entropy: float, draw: Random) -> Question:
    """The solution of an equation in one unknown. Its terms stand on either side."""
    unknown = draw.choice(ascii_lowercase)
    solution = max(1.0, entropy / 4)
    of_coefficient = max(1.0, draw.uniform(1 / 3, 2 / 3) * (entropy - solution))
    filler = max(1.0, entropy - solution - of_coefficient)
    x, coefficient = _integer(solution, draw), _integer(of_coefficient, draw, zero=False)
    more = draw.randint(0, int(1 + entropy / 2) - 1)
    terms = _spread({(1,): coefficient, (0,): -coefficient * x}, more, filler, draw)
    left = [draw.random() < 0.5 for _ in terms]
    sides = ([(powers, number if side else -number) for (powers, number), on in zip(terms, left, strict=True)
              if on is side] for side in (True, False))  # fmt: skip
    one, other = (_sum(side, [unknown]) for side in sides)
    return Question(f"Solve {one} = {other} for {unknown}.", str(x))


def differentiate(entropy: float, draw: Random) -> Question:
    """A derivative of first to third order of a polynomial in one to four variables."""
    variables = draw.sample(ascii_lowercase, draw.randint(1, 4))
    order, by = draw.randint(1, 3), draw.choice(variables)
    polynomial: dict[Powers, int] = {}
    for part in _parts(entropy, draw.randint(1, 4), draw):
        least = order if not polynomial else 0  # of one term at least something is left
        powers = tuple(draw.randint(least, order + 2) if name == by else draw.randint(0, 2) for name in variables)
        polynomial[powers] = _integer(max(1.0, part), draw, zero=False)
    at = variables.index(by)
    derived = {(*powers[:at], powers[at] - order, *powers[at + 1 :]): number * math.perm(powers[at], order)
               for powers, number in polynomial.items() if powers[at] >= order}  # fmt: skip
    given, answer = (_sum(sorted(of.items(), reverse=True), variables) for of in (polynomial, derived))
    return Question(draw.choice(DERIVE).format(given, ("first", "second", "third")[order - 1], by), answer)


def collect(entropy: float, draw: Random) -> Question:
    """A polynomial in one variable whose terms of one power are added up."""
    name, degree = draw.choice(ascii_lowercase), draw.randint(1, 3)
    share = draw.betavariate(2, 3)  # the first part of a Dirichlet draw with 2 and 3
    powers = sorted(draw.sample(range(degree + 1), draw.randint(1, degree + 1)), reverse=True)
    values = _parts(share * entropy, len(powers), draw)
    result = {(power,): _integer(part, draw) for power, part in zip(powers, values, strict=True)}
    terms = _spread(result, draw.randint(2, 2 + math.ceil(entropy) // 2), (1 - share) * entropy, draw)
    return Question(f"Collect the terms in {_sum(terms, [name])}.", _sum(result.items(), [name]))


TASKS: dict[str, Callable[[float, Random], Question]] = {
    one.__name__: one for one in (add_or_sub, linear_1d, differentiate, sort, collect)
}
"""A function of entropy and random numbers for each."""


def _integer(entropy: float, draw: Random, *, zero: bool = True) -> int:
    """A number from -10^entropy / 2 to 10^entropy / 2, both rounded up."""
    largest = math.ceil(10**entropy / 2)
    return draw.randint(-largest, largest) if zero else draw.choice((-1, 1)) * draw.randint(1, largest)


def _parts(whole: float, count: int, draw: Random) -> list[float]:
    """So many parts of a whole, uniform among all that sum to it (Dirichlet)."""
    sizes = [draw.expovariate(1) for _ in range(count)]
    return [whole * size / sum(sizes) for size in sizes]


def _spread(numbers: dict[Powers, int], more: int, entropy: float, draw: Random) -> list[tuple[Powers, int]]:
    """Numbers by powers as terms (powers, number) in any order: as many `more`, whose sums are the numbers."""
    terms, left = [], Counter(numbers)
    for part in _parts(entropy, more, draw):
        powers, number = draw.choice(sorted(numbers)), _integer(part, draw, zero=False)
        terms.append((powers, number))
        left[powers] -= number
    terms += [(powers, number) for powers, number in left.items() if number]
    draw.shuffle(terms)
    return terms


def _sum(terms: Iterable[tuple[Powers, int]], variables: Sequence[str]) -> str:
    """Terms (powers of the variables, number) one after the other, with their signs between them."""
    texts = [_term(number, powers, variables) for powers, number in terms if number]
    return " + ".join(texts).replace("+ -", "- ") or "0"


def _term(number: int, powers: Powers, variables: Sequence[str]) -> str:
    """A product, such as -3*x**2*y."""
    named = zip(variables, powers, strict=True)
    factors = [name if power == 1 else f"{name}**{power}" for name, power in named if power]
    if not factors or abs(number) != 1:
        return "*".join([str(number), *factors])
    return ("-" if number < 0 else "") + "*".join(factors)
