"""Records of times that contradict themselves are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kernelassay.records import Ceilings, Floor, Interval, LineFit, Score, ShapePlan, ShapeTiming, Timing, TimingState
from kernelassay.timing import reduce_grade, reduce_shape
from tests.timing.simulate import Machine, ceilings, floor, plan

GOOD = reduce_shape(plan(), Machine(1).samples(plan()), floor()).timing
OTHER = Interval(median_us=7.0, low_us=6.0, high_us=8.0)
CHECK = {"name": "c", "reason": "r", "next_step": "n"}


def changed(**changes: Any) -> dict[str, Any]:
    return GOOD.model_dump() | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": None}, "both clocks"),
        ({"checks": ({**CHECK, "effect": "inner_unusable"},)}, "both clocks"),
        ({"outer": None}, "comes from the outer clock"),
        ({"time": None}, "comes from the outer clock"),
        ({"time": OTHER.model_dump()}, "larger of its usable clocks"),
        ({"state": TimingState.IMPOSSIBLE, "reason": "r"}, "is no number"),
        ({"state": TimingState.INVALID, "reason": "r", "time": None}, "a score needs"),
        ({"state": TimingState.OUTER_ONLY}, "says why"),
        ({"state": TimingState.AMBIGUOUS, "reason": "r"}, "a score needs"),
        ({"floor": None}, "a score needs"),
        ({"score": {"value": 0.5, "low": 0.4, "high": 0.6}}, "floor over time"),
        ({"checks": ({**CHECK, "effect": "ambiguous"},)}, "check against it"),
        ({"cause": "device"}, "no one to blame"),
        ({"labels": ("a", "a")}, "named once"),
    ],
)
def test_a_shapes_time_does_not_contradict_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ShapeTiming.model_validate(changed(**changes))


def test_the_good_one_passes() -> None:
    assert ShapeTiming.model_validate(changed()) == GOOD


def test_a_grade_is_no_better_than_its_shapes() -> None:
    bad = ShapeTiming(shape="s", state=TimingState.INVALID, reason="no clock yet")
    for shapes in ((GOOD, bad), ()):
        with pytest.raises(ValidationError, match="no better"):
            Timing(state=TimingState.CONFIRMED, shapes=shapes)
    with pytest.raises(ValidationError, match="score of every shape"):
        Timing(state=TimingState.AMBIGUOUS, reason="r", shapes=(GOOD, bad), score=GOOD.score)
    assert reduce_grade([GOOD]).score is not None


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (Interval, {"median_us": 5.0, "low_us": 6.0, "high_us": 7.0}),
        (Interval, {"median_us": float("nan"), "low_us": 1.0, "high_us": 7.0}),
        (Score, {"value": 1.0, "low": 2.0, "high": 3.0}),
        (Score, {"value": 0.0, "low": 0.0, "high": 0.0}),
        (Floor, floor().model_dump() | {"floor_us": 2.0}),
        (Floor, floor().model_dump() | {"floor_us": None}),
        (LineFit, (GOOD.line.model_dump() if GOOD.line else {}) | {"rungs": ()}),
        (ShapePlan, plan().model_dump() | {"rungs": (1, 64)}),
        (ShapePlan, plan().model_dump() | {"sets": 63}),
        (ShapePlan, plan().model_dump() | {"processes": 2}),
        (Ceilings, ceilings().model_dump() | {"unknown": {"fp32": "r"}}),
        (Ceilings, ceilings().model_dump() | {"bandwidth": {}}),
        (Ceilings, ceilings().model_dump() | {"rates": {"fp32": {"value": 0.0, "median": 0.0, "repetitions": 1}}}),
    ],
)
def test_impossible_values_are_refused(record: type[Any], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        record.model_validate(values)
