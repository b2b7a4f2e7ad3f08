"""A record read back is the record that was written, and nothing else can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import kernelassay.records as records
from kernelassay.records import Case, CaseResult, Grade, Interval, Limits, Manifest, Measurement, Record, Status
from tests.board import grades as made

GRADES = {
    "clean": made.grade(),
    "wrong": made.wrong_grade(),
    "refused": made.refused_grade(),
    "hostile": made.hostile_grade(),
}
MODELS = [
    value
    for value in vars(records).values()
    if isinstance(value, type) and issubclass(value, Record) and value is not Record
]


@pytest.mark.parametrize("name", GRADES)
def test_round_trip(name: str) -> None:
    grade = GRADES[name]
    text = grade.model_dump_json(indent=2)
    assert Grade.model_validate_json(text) == grade
    assert Grade.from_plain(json.loads(text)) == grade
    assert Grade.model_validate_json(text).model_dump_json(indent=2) == text


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_record_exports_a_closed_schema(model: type[Record]) -> None:
    schema = model.model_json_schema()
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema
    assert model.__doc__


def test_the_schema_of_a_grade_says_what_its_words_mean() -> None:
    schema = Grade.model_json_schema()
    assert schema["properties"]["schema_version"]["const"] == "1"
    assert schema["properties"]["reasons"]["description"] == "Why this verdict, most important first."
    assert set(schema["$defs"]["Status"]["enum"]) == {s.value for s in Status}
    assert "score" not in schema["required"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "2"},
        {"id": "g-1"},
        {"unknown": 1},
        {"score": "0.5"},
        {"cases_planned": -1},
        {"cases_planned": 45.5},
        {"cases_planned": "45"},
        {"created_at": "yesterday"},
        {"status": "CORRECT"},
        {"verdict": "ok"},
        {"reasons": "because"},
        {"reasons": [1]},
        {"device": None},
    ],
    ids=str,
)
def test_what_cannot_be_read(change: dict[str, Any]) -> None:
    plain = json.loads(GRADES["clean"].model_dump_json())
    assert Grade.from_plain(plain) == GRADES["clean"]
    with pytest.raises(ValidationError):
        Grade.from_plain(plain | change)


@pytest.mark.parametrize("field", [name for name, info in Grade.model_fields.items() if info.is_required()])
def test_nothing_that_is_needed_may_lack(field: str) -> None:
    plain = json.loads(GRADES["clean"].model_dump_json())
    del plain[field]
    with pytest.raises(ValidationError, match=field):
        Grade.from_plain(plain)


def test_a_record_does_not_change() -> None:
    with pytest.raises(ValidationError):
        GRADES["clean"].score = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite(value: float) -> None:
    """JSON has no word for them: a record that held one could not be read back."""
    with pytest.raises(ValidationError):
        Measurement(name="x", value=value)
    with pytest.raises(ValidationError):
        CaseResult(case=Case(shape="s", case="c", seed=1), status=Status.WRONG, usage=value)
    with pytest.raises(ValidationError):
        Interval(median_us=value, low_us=0.0, high_us=value)


@given(
    st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False), st.text())
)
def test_a_measurement_keeps_its_type(value: float | bool | str) -> None:
    """1, 1.0 and true stay apart."""
    measured = Measurement(name="x", value=value)
    again = Measurement.model_validate_json(measured.model_dump_json())
    assert (type(again.value), again.value) == (type(value), value)


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes"])
def test_plain_data_only(value: object) -> None:
    with pytest.raises(TypeError):
        Manifest.from_plain({"description": value})


def test_limits_have_documented_defaults() -> None:
    assert Limits().model_dump(include={"build_s", "load_s", "prepare_s", "call_s"}) == {
        "build_s": 120.0,
        "load_s": 60.0,
        "prepare_s": 60.0,
        "call_s": 10.0,
    }
