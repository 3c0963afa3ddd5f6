"""Polynomials, rows and pairs of modular arithmetic, against Python's own arithmetic on small numbers."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subnet_utils.tasks import modular_arithmetic as arithmetic
from subnet_utils.tasks.polynomials import WrongExpression, parse

COMPUTATIONS = ("ab", "a+ab", "a^2", "a^2+b^2", "a^2+ab", "a^2+ab+b^2", "a^3+ab", "a+b", "a-b", "a^2-b^2")
"""All that the paper computes (sections 4.2 and B.4)."""
GRID = torch.tensor(list(itertools.product(range(12), repeat=2)))


@pytest.mark.parametrize("expression", COMPUTATIONS)
def test_every_computation_of_the_paper(expression, p=7):
    answers = parse(expression)(*GRID.unbind(dim=1), p)
    python = expression.replace("ab", "a*b").replace("^", "**")  # our own text, from above
    assert answers.tolist() == [eval(python, {"a": a, "b": b}) % p for a, b in GRID.tolist()]


def expressions() -> st.SearchStrategy[str]:
    """Expressions in Python's own syntax, of low degree."""
    sums = lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from(["+", "-", "*"]), inner)  # noqa: E731
    leaves = st.sampled_from(["a", "b", "0", "3", "12"])
    return st.recursive(leaves, lambda inner: sums(inner) | st.builds("(-{})".format, inner), max_leaves=6)


@given(expressions(), st.integers(0, 11), st.integers(0, 11))
def test_expressions_mean_what_they_mean_in_python(expression, a, b):
    expected = eval(expression, {"__builtins__": {}}, {"a": a, "b": b}) % 7  # our own text, made above
    assert int(parse(expression)(torch.tensor([a]), torch.tensor([b]), 7)) == expected


@pytest.mark.parametrize(
    ("text", "same"),
    [("a^2 - b^2", "(a+b)(a-b)"), ("2ab", "a*b + b a"), ("-a^2", "0-a*a"), ("a^0", "1"), ("(a+1)^3", "a^3+3a^2+3a+1")],
)
def test_ways_to_write_the_same(text, same):
    assert torch.equal(*(parse(one)(*GRID.unbind(dim=1), 11) for one in (text, same)))


@pytest.mark.parametrize(
    ("text", "message"),
    [("a+c", r"'a\+c': unexpected 'c' at character 3; use a, b, whole numbers"), ("a+", r"'a\+' cannot be read"),
     ("a^b", "a power that is no whole number up to 20"), ("()", "empty brackets"), ("", "'' is no computation"),
     ("__import__('os')", "unexpected '_' at character 1"), ("a^21", "a power that is no"),
     ("a**2", "cannot be read"), ("(" * 200, "cannot be read"), ("(" * 5000, "5000 characters is too long")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(WrongExpression, match=message):
        parse(text)


def test_rows_are_four_symbols_in_a_row():
    rows = arithmetic.rows_of("a+ab", torch.tensor([[3, 5], [9, 9]]), maximum=10, p=7)
    assert rows.tokens.tolist() == [[3, 5, 10], [9, 9, 10]]
    assert rows.targets.tolist() == [[5, 10, 4], [9, 10, 6]]
    assert rows.answers.tolist() == [4, 6]


def codes(pairs: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in pairs.tolist()]


@given(st.integers(7, 20), st.integers(0, 3))
def test_pairs_of_a_task_are_distinct_and_hold_every_number(maximum, seed):
    sizes = {"train": maximum + 5, "validation": 9, "test": 11}
    pairs = arithmetic.task_pairs(maximum, **sizes, seed=seed)
    parts = {name: codes(part) for name, part in pairs._asdict().items()}
    assert {name: len(part) for name, part in parts.items()} == sizes
    everything = [pair for part in parts.values() for pair in part]
    assert len(set(everything)) == len(everything)
    assert {a for a, _ in parts["train"]} == set(range(maximum))
    again = arithmetic.task_pairs(maximum, **sizes, seed=seed)
    assert torch.equal(pairs.train, again.train)


def test_disambiguating_pairs_are_off_the_diagonal_nested_and_not_those_held():
    held = arithmetic.task_pairs(10, train=10, validation=20, test=30, seed=1)
    out = torch.cat([held.validation, held.test])
    few = arithmetic.disambiguation_pairs(10, train=5, held=out, seed=1)
    many = arithmetic.disambiguation_pairs(10, train=36, held=out, seed=1)
    assert torch.equal(few, many[:5])
    assert len(set(codes(many)) - set(codes(out))) == 36 and all(a != b for a, b in codes(many))
    assert not torch.equal(few, arithmetic.disambiguation_pairs(10, train=5, held=out, seed=2))


def test_the_diagonal_does_not_tell_computations_apart():
    pairs = arithmetic.diagonal_pairs(12)
    answers = [arithmetic.rows_of(text, pairs, maximum=12, p=7).answers for text in ("a^2+ab", "2b^2", "a^2+b^2")]
    assert len(pairs) == 12 and all(torch.equal(answers[0], other) for other in answers)
