"""A formula is arithmetic over shape keys and can be nothing else, nor take long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kernelassay.records import Formula, evaluate

FORMULA: TypeAdapter[str] = TypeAdapter(Formula)
VALUES = {"batch": 3, "n": 100, "k": 7}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4*batch*n + 12*batch*k", 1452),
        ("n // k", 14),
        ("n % k", 2),
        ("-(n - k)", -93),
        ("n / 8", 12.5),
        ("2**k", 128),
        ("0", 0),
        ("n*(batch+1)", 400),
        ("max(batch*k + 8, 64)", 64),
        ("max(n, 64)", 100),
        ("min(n, 64)*k", 448),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert evaluate(FORMULA.validate_python(text), VALUES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "abs(n)",
        "max(n)",
        "max(n, k, 1)",
        "max(*n, k)",
        "max(n, k, key=n)",
        "max(n, 1)(k, 2)",
        "batch.bit_length()",
        "n if k else 1",
        "[n][0]",
        "lambda: 1",
        "n and k",
        "n << 40",
        "n @ k",
        "~n",
        "'a' * 9",
        "True + 1",
        "1j",
        "(n := 3)",
        "f'{n}'",
        "n; k",
        "",
        "n +",
        "\n",
    ],
)
def test_nothing_else_is_a_formula(text: str) -> None:
    with pytest.raises(ValidationError):
        FORMULA.validate_python(text)


@pytest.mark.parametrize(
    "text",
    ["9**9**9**9", "9" * 5000, "(" * 5000 + "1" + ")" * 5000, "-" * 5000 + "1", "2**99999999", "1 + " * 400 + "1"],
)
def test_a_formula_cannot_take_long(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValidationError):
        FORMULA.validate_python(text)
    assert time.monotonic() - start < 2


def test_names_are_shape_keys() -> None:
    with pytest.raises(ValueError, match="names 'm', which is no shape key"):
        evaluate("m + 1", VALUES)


@given(st.text(alphabet="nk0123456789+-*/%() .,e_'[]", max_size=24))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        formula = FORMULA.validate_python(text)
    except ValidationError:
        return
    try:
        value = evaluate(formula, {"n": 3, "k": 2})
    except (ValueError, ZeroDivisionError, OverflowError):
        return
    assert isinstance(value, (int, float))
