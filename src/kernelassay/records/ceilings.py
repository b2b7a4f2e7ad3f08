"""What a machine can reach at most, measured on the spot. Unknown is absent, never zero."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record


class Ceiling(Record):
    """The best of several repetitions of one measurement, in bytes or operations per second."""

    value: float = Field(gt=0, allow_inf_nan=False)
    """The best repetition."""
    median: float = Field(gt=0, allow_inf_nan=False)
    """The median repetition: far below `value`, the machine was not quiet."""
    repetitions: int = Field(ge=1)

    @model_validator(mode="after")
    def _best_is_best(self) -> Self:
        if self.median > self.value:
            raise ValueError("the best repetition is at least the median one")
        return self


class Ceilings(Record):
    """Measured ceilings of one device, kept under its fingerprint."""

    schema_version: Literal["1"] = "1"
    fingerprint: str
    """`Device.fingerprint` of the unit that was measured."""
    model: str
    threads: int = Field(ge=1)
    """All rates are those of this many threads together."""
    cpus: tuple[int, ...] = ()
    """Logical CPUs that they ran on; empty where the caller named none."""
    measured_at: datetime
    method: Literal["c", "numpy"]
    """`numpy`: there was no compiler; the rates are lower and several are unknown."""
    compiler: str | None = None
    """First line of `cc --version`."""
    program: str
    """SHA-256 of the program that measured; another program means another measurement."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """What measuring cost, compilation included."""
    cache_bytes: int | None = Field(default=None, gt=0)
    """Last-level cache of the device's cores, all instances together."""
    bandwidth: dict[Literal["read", "copy", "triad"], Ceiling] = Field(min_length=1)
    """Bytes per second from and to memory; array bytes count once each way."""
    in_cache: dict[Literal["l1", "l2"], Ceiling] = {}
    """Bytes per second read where the footprint fits each core's private cache."""
    rates: dict[str, Ceiling] = {}
    """Operations per second by precision (`fp32`, `fp64`, `int8`, `bf16`); a fused multiply-add counts two."""
    no_unit: tuple[str, ...] = ()
    """Precisions for which the instruction set has no vector arithmetic."""
    unknown: dict[str, str] = {}
    """What was not measured, with the reason."""

    @model_validator(mode="after")
    def _known_or_not(self) -> Self:
        measured = set(self.rates) | set(self.in_cache) | set(self.bandwidth)
        absent = set(self.unknown) | set(self.no_unit)
        both = sorted((absent & measured) | (set(self.unknown) & set(self.no_unit)))
        if both:
            raise ValueError(f"both known and unknown: {', '.join(both)}")
        return self

    @property
    def memory_bytes_s(self) -> float:
        """The largest memory bandwidth, bytes per second: the one that a floor divides by."""
        return max(ceiling.value for ceiling in self.bandwidth.values())

    @property
    def cache_bytes_s(self) -> float | None:
        """The largest in-cache read bandwidth, bytes per second; None where unknown."""
        return max((ceiling.value for ceiling in self.in_cache.values()), default=None)
