"""Times, with how far each can be trusted and everything that it was reduced from."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.status import TimingState


class Interval(Record):
    """A value with the interval that covers it; both in microseconds."""

    median_us: float = Field(ge=0, allow_inf_nan=False)
    low_us: float = Field(ge=0, allow_inf_nan=False)
    high_us: float = Field(ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low_us <= self.median_us <= self.high_us:
            raise ValueError("an interval holds its median")
        return self


class ShapeTiming(Record):
    """The time of one shape."""

    shape: str
    state: TimingState
    reason: str = ""
    """Empty only for `confirmed`."""
    wall: Interval | None = None
    """The judge's wall clock around single calls, messages included: an upper bound, never a score."""


class Timing(Record):
    """The times of a grade."""

    state: TimingState
    reason: str = ""
    shapes: tuple[ShapeTiming, ...] = ()

    @model_validator(mode="after")
    def _says_why(self) -> Self:
        if self.state is not TimingState.CONFIRMED and not self.reason:
            raise ValueError("a time that is not confirmed says why")
        return self
