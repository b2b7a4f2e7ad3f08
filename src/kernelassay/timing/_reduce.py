"""From raw samples to one time per shape, with how far it can be trusted.

The rule: the judge's clock decides, and the worker's samples, a claim, may only raise the time. Every number is finite
or absent, and whatever the samples hold, a record comes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from kernelassay.records import Cause, Check, Floor, Interval, Score, ShapePlan, ShapeTiming, Timing, TimingState
from kernelassay.timing._clocks import Draft
from kernelassay.timing._samples import ShapeSamples, clean, clean_rounds

SEVERITY = (
    TimingState.IMPOSSIBLE,
    TimingState.INVALID,
    TimingState.AMBIGUOUS,
    TimingState.OUTER_ONLY,
    TimingState.CONFIRMED,
)
"""Worst first: a grade is as good as its worst shape."""


class Decision(StrEnum):
    """What the protocol does next."""

    DONE = "done"
    REPEAT = "repeat"
    """Run `repeat_plan` and reduce all samples together with `final=True`."""


class Reduction(NamedTuple):
    """A shape's time, and whether repeating it could settle it."""

    timing: ShapeTiming
    decision: Decision


def reduce_shape(
    plan: ShapePlan,
    samples: ShapeSamples,
    floor: Floor | None,
    *,
    final: bool = False,
    wall: Interval | None = None,
) -> Reduction:
    """Reduce all samples of one shape.

    Args:
        plan: What was planned; after a repetition still the first plan.
        samples: What was measured, in any quality.
        floor: The shape's floor and gate; None: no score and no gate.
        final: There will be no repetition (or these samples include it).
        wall: Passed on into the record.
    """
    processes = tuple(clean(index, process) for index, process in enumerate(samples.processes))
    nulls, nulls_discarded = clean_rounds(samples.nulls)
    valid = [process for process in processes if not process.void]
    draft = Draft(plan, samples, floor, valid, nulls, final)
    draft.run()
    blocking = [c for c in draft.checks if c.effect in ("invalid", "impossible", "ambiguous")]
    settles = bool(blocking) and all(check in draft.repeatable for check in blocking)
    decision = Decision.REPEAT if settles and not final else Decision.DONE
    state, reason, cause = _state(draft, blocking)
    usable = state in (TimingState.CONFIRMED, TimingState.OUTER_ONLY)
    time = None if state in (TimingState.INVALID, TimingState.IMPOSSIBLE) else draft.time
    timing = ShapeTiming(
        shape=plan.shape,
        state=state,
        reason=reason,
        cause=cause,
        wall=wall,
        time=time,
        inner=draft.inner,
        outer=draft.outer,
        single=draft.single,
        merged_gain=draft.merged_gain,
        floor=floor,
        score=_score(floor, time) if usable and time is not None else None,
        labels=tuple(dict.fromkeys(draft.labels)),
        checks=tuple(draft.checks),
        line=draft.line,
        plan=plan,
        processes=processes,
        nulls=nulls,
        nulls_discarded=nulls_discarded,
    )
    return Reduction(timing, decision)


def _state(draft: Draft, blocking: Sequence[Check]) -> tuple[TimingState, str, Cause | None]:
    for effect, state in (
        ("impossible", TimingState.IMPOSSIBLE),
        ("invalid", TimingState.INVALID),
        ("ambiguous", TimingState.AMBIGUOUS),
    ):
        found = [check for check in blocking if check.effect == effect]
        if found:
            return state, "; ".join(check.reason for check in found), found[0].cause
    if draft.inner is None or draft.inner_doubt:
        return TimingState.OUTER_ONLY, draft.inner_doubt or "the inner clock gave no value", None
    return TimingState.CONFIRMED, "", None


def geomean_score(scores: Sequence[Score]) -> Score:
    """Geometric mean of value and of both ends.

    Raises:
        ValueError: there are no scores.
    """
    if not scores:
        raise ValueError("no scores")

    def mean(values: Iterable[float]) -> float:
        return math.exp(math.fsum(math.log(value) for value in values) / len(scores))

    low, value, high = (mean(getattr(s, part) for s in scores) for part in ("low", "value", "high"))
    return Score(value=value, low=min(low, value), high=max(high, value))


def reduce_grade(shapes: Sequence[ShapeTiming]) -> Timing:
    """The times of a grade: the worst state of its shapes, and the geomean score where every shape has one."""
    if not shapes:
        return Timing(state=TimingState.INVALID, reason="no shape was timed", cause="judge")
    state = min((shape.state for shape in shapes), key=SEVERITY.index)
    worst = [shape for shape in shapes if shape.state is state]
    reason = "" if state is TimingState.CONFIRMED else "; ".join(f"{s.shape}: {s.reason}" for s in worst)
    scores = [shape.score for shape in shapes if shape.score is not None]
    usable = state in (TimingState.CONFIRMED, TimingState.OUTER_ONLY)
    return Timing(
        state=state,
        reason=reason,
        cause=None if usable else next((shape.cause for shape in worst if shape.cause), None),
        shapes=tuple(shapes),
        score=geomean_score(scores) if usable and len(scores) == len(shapes) else None,
    )


def _score(floor: Floor | None, time: Interval) -> Score | None:
    if floor is None or floor.floor_us is None or time.low_us <= 0:
        return None
    parts = [floor.floor_us / us for us in (time.high_us, time.median_us, time.low_us)]
    if not all(math.isfinite(part) and part > 0 for part in parts):
        return None
    return Score(low=parts[0], value=parts[1], high=parts[2])
