"""Arithmetic over shape keys, as a deck writes it: `4*batch*n + 12*batch*k`.

Only numbers, names, parentheses, the operators + - * / // % ** and `min(a, b)`, `max(a, b)` are formulas; anything
else is refused when the record is read, so a deck cannot smuggle code through a formula.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import AfterValidator

Number = int | float
MAX_CHARACTERS = 300
"""The longest formula of a deck has about a hundred; the parser recurses into nested ones."""
MAX_EXPONENT, MAX_BASE = 64, 1 << 32
"""`2**k` and squares are arithmetic; a tower of powers would take longer than any grade."""


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT or abs(base) > MAX_BASE:
        raise ValueError(f"formula raises {base} to the power of {exponent}; at most {MAX_BASE} to {MAX_EXPONENT}")
    value: Number = base**exponent
    if isinstance(value, complex):
        raise ValueError(f"formula raises {base} to the power of {exponent}, which is no real number")
    return value


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[[Number, Number], Number]] = {"min": min, "max": max}


def _walk(node: ast.expr, values: Mapping[str, Number] | None) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if values is None:
                return 1
            if name not in values:
                raise ValueError(f"formula names {name!r}, which is no shape key ({', '.join(sorted(values))})")
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_walk(left, values), _walk(right, values))
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_walk(left, values), _walk(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand, values)
        case _:
            raise ValueError(f"not part of a formula: {ast.unparse(node)!r}")


@functools.lru_cache(maxsize=512)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a formula of {len(text)} characters; at most {MAX_CHARACTERS}")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a formula: {text!r}") from error


def _check(text: str) -> str:
    try:
        _walk(_parse(text), None)
    except ZeroDivisionError:  # all names are 1 here, so `k/(n-1)` is fine
        pass
    except OverflowError as error:
        raise ValueError(f"formula is too large: {text!r}") from error
    return text


Formula = Annotated[str, AfterValidator(_check)]
"""A formula's text, checked when the record is read."""


def evaluate(formula: str, values: Mapping[str, Number]) -> Number:
    """Value of `formula` with the shape keys of `values`.

    Raises:
        ValueError: the formula names an unknown key or holds something else than arithmetic.
    """
    return _walk(_parse(formula), values)
