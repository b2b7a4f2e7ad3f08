"""What was read from a GPU and measured on it. None is unknown, never zero."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.ceilings import Ceiling


class GpuProcess(Record):
    """One process that holds a context on the device, as the driver lists it."""

    pid: int = Field(ge=1)
    """In the driver's own numbering: a container may show another number, or nothing."""
    used_bytes: int | None = Field(default=None, ge=0)


class Telemetry(Record):
    """The state of one device at one moment."""

    uuid: str = Field(min_length=1)
    at: datetime
    sm_clock_mhz: int | None = Field(default=None, ge=0)
    memory_clock_mhz: int | None = Field(default=None, ge=0)
    reasons: tuple[str, ...] | None = None
    """Why the clocks are what they are, `gpu_idle` or `sw_power_cap` say; empty: nothing holds them back."""
    power_w: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    power_limit_w: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    temperature_c: int | None = None
    slowdown_c: int | None = None
    """At this temperature the device slows itself."""
    utilisation: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Part of the driver's last sampling period in which a kernel ran."""
    processes: tuple[GpuProcess, ...] | None = None


class Latency(Record):
    """A shortest time, in microseconds."""

    least_us: float = Field(gt=0, allow_inf_nan=False)
    median_us: float = Field(gt=0, allow_inf_nan=False)
    repetitions: int = Field(ge=1)

    @model_validator(mode="after")
    def _least_is_least(self) -> Self:
        if self.least_us > self.median_us:
            raise ValueError("the least repetition is at most the median one")
        return self


class GpuCeilings(Record):
    """Measured ceilings of one GPU, kept under its fingerprint."""

    schema_version: Literal["1"] = "1"
    fingerprint: str
    """`Device.fingerprint` of the unit that was measured."""
    model: str
    measured_at: datetime
    program: str
    """SHA-256 of the program that measured; another program means another measurement."""
    torch: str
    cuda: str | None = None
    """Version of CUDA that torch was built for."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    sms: int | None = Field(default=None, ge=1)
    l2_bytes: int | None = Field(default=None, gt=0)
    """As the CUDA driver tells them."""
    array_bytes: int = Field(gt=0)
    """One array of the bandwidths."""
    bandwidth: dict[Literal["read", "copy"], Ceiling] = Field(min_length=1)
    """Bytes per second from and to memory; array bytes count once each way."""
    rates: dict[str, dict[str, Ceiling]] = {}
    """Precision → edge of the square matrices → operations per second; a fused multiply-add counts two."""
    latency: dict[Literal["events", "launch", "next_launch"], Latency] = {}
    """A pair of events around nothing; around one smallest kernel; one more smallest kernel in a row of them."""
    unknown: dict[str, str] = {}
    """What was not measured, with the reason."""

    def rate(self, precision: str) -> Ceiling | None:
        """The best matrix rate of a precision over the measured sizes; None where it was not measured."""
        return max(self.rates.get(precision, {}).values(), key=lambda ceiling: ceiling.value, default=None)
