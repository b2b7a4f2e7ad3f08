"""Times, with how far each can be trusted and everything that it was reduced from.

Times are microseconds, finite and unrounded; what is unknown is absent. The validators refuse a record that
contradicts itself: a score without a usable time, a time that is not the larger of its two clocks.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.finding import Measurement
from kernelassay.records.status import TimingState

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Cause = Literal["device", "judge", "submission"]
"""Who made a time unusable: the machine, the judge's own measurement, or what was measured."""

USABLE = (TimingState.CONFIRMED, TimingState.OUTER_ONLY)
"""The states that may carry a score."""


class Interval(Record):
    """A value with the interval that covers it; both in microseconds."""

    median_us: NotNegative
    low_us: NotNegative
    high_us: NotNegative
    basis: Literal["samples", "rounds", "processes"] | None = None
    """What the interval is made of; values inside one process are not independent, so only `processes` covers
    the next process too."""
    count: int | None = Field(default=None, ge=1)
    """How many values of that basis."""
    coverage: float | None = Field(default=None, ge=0, le=1)
    """Probability that the interval covers the median of its basis."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low_us <= self.median_us <= self.high_us:
            raise ValueError("an interval holds its median")
        return self


class Score(Record):
    """Floor over time, with the interval that the time's interval gives."""

    value: Positive
    low: Positive
    high: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("a score lies in its interval")
        return self


class Floor(Record):
    """The least time that the hardware allows for the work of one call."""

    memory_us: NotNegative | None
    """Bytes over memory bandwidth; None where the bandwidth is unknown."""
    compute_us: NotNegative | None
    """Operations over the peak of the precision; None where the peak is unknown."""
    floor_us: Positive | None
    """The larger of both; None where one is unknown: a floor of unknown parts would be a guess."""
    bound: Literal["memory", "compute"] | None
    gate_us: Positive | None
    """The most generous physics: a time wholly below it is impossible. None where nothing generous is known."""
    footprint_bytes: NotNegative
    cache_resident: bool = False
    """The footprint fits the last-level cache: memory bandwidth bounds a cold call only."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _largest(self) -> Self:
        if self.floor_us is None:
            if self.bound is not None or not self.notes:
                raise ValueError("a floor that is unknown has no bound and says why")
        elif self.bound is None or self.floor_us != max(self.memory_us or 0.0, self.compute_us or 0.0):
            raise ValueError("a floor is the larger of its two parts and says which")
        return self


class Check(Record):
    """One doubt about the samples, with what to do next. Only checks that found something are kept."""

    name: str
    effect: Literal["informs", "inner_unusable", "ambiguous", "invalid", "impossible"]
    reason: str = Field(min_length=1)
    next_step: str = Field(min_length=1)
    finding: bool = False
    """True: a reader of the grade should see it as a finding, not only here."""
    cause: Cause | None = None
    measured: tuple[Measurement, ...] = ()


class Discard(Record):
    """A sample that does not count."""

    index: int = Field(ge=0)
    """Position among the samples as they were delivered."""
    reason: str = Field(min_length=1)
    value_us: Finite | None = None
    """None where it was not even a finite number."""


class Round(Record):
    """One round of the outer clock: K calls (or, for the clean worker, none) between the judge's two stamps."""

    k: int = Field(ge=1)
    total_us: Positive


class Calibration(Record):
    """The calibration operation before and after a process."""

    before_us: Positive
    after_us: Positive


class ProcessTiming(Record):
    """The raw samples of one fresh process."""

    process: int = Field(ge=0)
    inner_us: tuple[Positive, ...] = ()
    """Accepted samples of the inner clock, in order."""
    clock_mhz: tuple[Positive, ...] = ()
    """The device's clock of each accepted sample; empty where it is not read."""
    rounds: tuple[Round, ...] = ()
    """T(K) in the order in which they ran."""
    discards: tuple[Discard, ...] = ()
    """Of the inner clock."""
    rounds_discarded: tuple[Discard, ...] = ()
    """Of the outer clock."""
    calibration: Calibration | None = None
    void: str = ""
    """Why the whole process does not count; empty when it does."""

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if self.clock_mhz and len(self.clock_mhz) != len(self.inner_us):
            raise ValueError("one clock reading per accepted sample")
        return self


class Rung(Record):
    """T(K) − w(K) at one K, and how far it lies from the line."""

    k: int = Field(ge=1)
    value_us: Finite
    noise_us: NotNegative
    """Half of the interval of the value."""
    residual_us: Finite
    allowed_us: NotNegative


class LineFit(Record):
    """T(K) − w(K) = a + b·K over the rungs, weighted by their noise."""

    intercept_us: Finite
    intercept_noise_us: NotNegative
    intercept_limit_us: Positive
    """A_MAX of this shape."""
    slope_us: Finite
    rungs: tuple[Rung, ...] = Field(min_length=2)
    straight: bool
    """Offset and residuals are within limit and noise."""


class ShapePlan(Record):
    """How one shape is timed; fixed before the submission is imported and independent of its speed."""

    shape: str
    kind: Literal["cpu", "cuda"]
    mode: Literal["development", "careful", "regrade"]
    timing_class: Literal["below_1ms", "from_1ms"]
    """Of the shape's floor."""
    floor_us: Positive | None
    inner_samples: int = Field(ge=1)
    inner_accepted: int = Field(ge=1)
    """Fewer accepted samples leave the inner clock without a value."""
    flush_bytes: int = Field(ge=0)
    """Displaced before each inner sample; on a CPU also before each outer round."""
    k_max: int = Field(ge=1)
    rungs: tuple[int, ...] = Field(min_length=1)
    """Ascending, from 1 to `k_max`."""
    rounds: int = Field(ge=1)
    """Per rung and process."""
    orders: tuple[tuple[int, ...], ...] = Field(min_length=1)
    """Per process, K of each round in the order in which they run."""
    null_rounds: int = Field(ge=1)
    """Rounds per rung of the clean worker."""
    sets: int = Field(ge=1)
    """Distinct sets of inputs and state; a round of K calls draws K of them."""
    processes: int = Field(ge=1)
    budget_s: Positive
    """Past it the outer clock ends coarse."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rules = {
            "rungs ascend from 1 to k_max": list(self.rungs) == sorted(set(self.rungs))
            and self.rungs[0] == 1
            and self.rungs[-1] == self.k_max,
            "one order per process": len(self.orders) == self.processes,
            "every order runs every rung as often as planned": all(
                sorted(order) == sorted(self.rungs * self.rounds) for order in self.orders
            ),
            "a round draws distinct sets": self.sets >= self.k_max,
            "accepted samples are among the samples": self.inner_accepted <= self.inner_samples,
        }
        broken = [text for text, holds in rules.items() if not holds]
        if broken:
            raise ValueError("; ".join(broken))
        return self


class ShapeTiming(Record):
    """The time of one shape."""

    shape: str
    state: TimingState
    reason: str = ""
    """Empty only for `confirmed`."""
    cause: Cause | None = None
    """Who made it unusable; None where it is usable or nothing was timed."""
    wall: Interval | None = None
    """The judge's wall clock around single calls, messages included: an upper bound, never a score."""
    time: Interval | None = None
    """What counts: the larger of inner and outer. Under `ambiguous` it is shown and never scored."""
    inner: Interval | None = None
    """The worker's claim, per call."""
    outer: Interval | None = None
    """The judge's clock, per call."""
    single: Interval | None = None
    """The outer clock of one call alone (K = 1): merged calls cannot shorten it."""
    merged_gain: float | None = Field(default=None, ge=0, le=1)
    """The largest share of a call that merging could have hidden: 1 − outer / single, at least 0."""
    floor: Floor | None = None
    score: Score | None = None
    labels: tuple[str, ...] = ()
    """`host-bound`, `warm outer`, `overlapping calls`, `coarse`, `cache-resident`, …"""
    checks: tuple[Check, ...] = ()
    line: LineFit | None = None
    plan: ShapePlan | None = None
    processes: tuple[ProcessTiming, ...] = ()
    nulls: tuple[Round, ...] = ()
    """w(K): whole rounds of the clean worker without calls."""
    nulls_discarded: tuple[Discard, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse_impossible(self)
        return self


def refuse_impossible(timing: ShapeTiming) -> None:
    """Raise ValueError when the parts of a shape's time contradict each other."""
    state, time = timing.state, timing.time
    effects = {check.effect for check in timing.checks}
    inner = None if "inner_unusable" in effects else timing.inner
    clocks = [clock.median_us for clock in (inner, timing.outer) if clock is not None]
    floor_us = timing.floor.floor_us if timing.floor is not None else None
    rules = {
        "a time that is not confirmed says why": state is TimingState.CONFIRMED or bool(timing.reason),
        "a confirmed time has both clocks, usable": state is not TimingState.CONFIRMED or len(clocks) == 2,
        "a usable time comes from the outer clock": state not in USABLE or None not in (timing.outer, time),
        "an impossible or invalid time is no number": state not in (TimingState.IMPOSSIBLE, TimingState.INVALID)
        or time is None,
        "a time is the larger of its usable clocks": time is None
        or (bool(clocks) and math.isclose(time.median_us, max(clocks), rel_tol=1e-12)),
        "a score needs a usable time and a floor": timing.score is None
        or (state in USABLE and floor_us is not None and time is not None and time.low_us > 0),
        "a score is floor over time": timing.score is None
        or time is None
        or floor_us is None
        or math.isclose(timing.score.value * time.median_us, floor_us, rel_tol=1e-9),
        "a usable time has no check against it": state not in USABLE
        or not effects & {"ambiguous", "invalid", "impossible"},
        "a usable time has no one to blame": state not in USABLE or timing.cause is None,
        "labels are named once": len(set(timing.labels)) == len(timing.labels),
    }
    broken = [text for text, holds in rules.items() if not holds]
    if broken:
        raise ValueError("; ".join(broken))


class Timing(Record):
    """The times of a grade."""

    state: TimingState
    reason: str = ""
    cause: Cause | None = None
    shapes: tuple[ShapeTiming, ...] = ()
    score: Score | None = None
    """Geomean over the shapes of floor / time; None as soon as one shape has none."""

    @model_validator(mode="after")
    def _says_why(self) -> Self:
        if self.state is not TimingState.CONFIRMED and not self.reason:
            raise ValueError("a time that is not confirmed says why")
        allowed = {TimingState.CONFIRMED: USABLE[:1], TimingState.OUTER_ONLY: USABLE}.get(self.state)
        if allowed is not None and not (self.shapes and all(shape.state in allowed for shape in self.shapes)):
            raise ValueError("the times of a grade are no better than those of its shapes")
        if self.score is not None and (self.state not in USABLE or any(shape.score is None for shape in self.shapes)):
            raise ValueError("a score needs a usable time and a score of every shape")
        return self
