"""Polynomials in a and b, read from text as papers print them: `a^2+ab`. The text is never run as code."""

import ast
import operator
import re
from collections.abc import Callable
from functools import reduce

from torch import Tensor

HIGHEST_POWER, LONGEST = 20, 200
ALLOWED = "use a, b, whole numbers, + - * ^ and brackets"
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class WrongExpression(ValueError):
    """A computation cannot be read; the message shows where."""


def parse(expression: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    """Read a polynomial such as `a^2 + ab`; a product needs no sign.

    Returns f: f(a, b, p) is its value mod p, for integer tensors a and b of one shape. Raises WrongExpression.

    >>> from torch import tensor
    >>> parse("(a+b)(a-b)")(tensor(5), tensor(3), 7)
    tensor(2)
    """
    if not isinstance(expression, str) or not expression.strip():
        raise WrongExpression(f"{expression!r} is no computation; {ALLOWED}")
    if len(expression) > LONGEST:
        raise WrongExpression(f"a computation of {len(expression)} characters is too long; give at most {LONGEST}")
    if strange := re.search(r"[^ab0-9+*^()\s-]", expression):
        where = f"unexpected '{strange[0]}' at character {strange.start() + 1}"
        raise WrongExpression(f"'{expression}': {where}; {ALLOWED}")
    text = re.sub(r"(?<=[ab)])\s*(?=[ab(0-9])|(?<=[0-9])\s*(?=[ab(])", "*", expression.strip())
    try:
        tree = ast.parse(text.replace("**", "!").replace("^", "**"), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise WrongExpression(f"'{expression}' cannot be read; {ALLOWED}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple):
            raise WrongExpression(f"'{expression}' has empty brackets; {ALLOWED}")
        power = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else ast.Constant(1)
        if not isinstance(power, ast.Constant) or power.value > HIGHEST_POWER:
            raise WrongExpression(f"'{expression}' has a power that is no whole number up to {HIGHEST_POWER}")
    return lambda a, b, p: _value(tree, {"a": a, "b": b}, p)


def _value(node: ast.expr, numbers: dict[str, Tensor], p: int) -> Tensor:
    """The value of a part, at least 0 and below p, so that no product overflows."""
    if isinstance(node, ast.Name):
        return numbers[node.id] % p
    if isinstance(node, ast.Constant):
        return numbers["a"] * 0 + node.value % p
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, numbers, p)
        return (-value if isinstance(node.op, ast.USub) else value) % p
    if isinstance(node.op, ast.Pow):
        factors = [_value(node.left, numbers, p)] * node.right.value
        return reduce(lambda product, factor: product * factor % p, factors, numbers["a"] * 0 + 1 % p)
    return OPERATORS[type(node.op)](_value(node.left, numbers, p), _value(node.right, numbers, p)) % p
