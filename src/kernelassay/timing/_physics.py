"""Floors and the physics gate. Speed above the hardware's own limit carries no score and accuses nobody.

Two limits, never mixed: the *floor* divides the work by what the machine showed and is the score's numerator; the
*gate* divides it by the most generous physics, and a time wholly below it is impossible. On a CPU the gate knows the
in-cache rate only, until the footprint is three last-level caches: below that an honest call may find all its data
there. An unknown ceiling gives no floor: a part left out would count as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kernelassay.records import Ceilings, Cost, Floor, Interval, Shape, evaluate

GATE_SLACK = 1.25
"""Over ceilings that were measured on the spot: five measurements on a busy machine spread by up to 20 %, and the
best of them may still miss the machine's best moment. [measured]"""
CACHE_FOOTPRINTS = 3
"""Below this many last-level caches a CPU's memory bandwidth bounds nothing. [rule]"""
WITHOUT_UNIT = {"bf16": "fp32", "fp16": "fp32", "int8": "fp32", "fp8": "bf16", "fp4": "bf16", "int4": "int8"}
"""Where a CPU has no arithmetic of a precision, it computes in another one; in this order. [computed]"""


@dataclass(frozen=True)
class Work:
    """The true work of one call: operations, bytes (each needed byte once), and the precision of the operations."""

    flops: float
    bytes: float
    precision: str


@dataclass(frozen=True)
class Peaks:
    """What floors and gates divide by. Bytes and operations per second; None or absent is unknown."""

    bandwidth: float | None
    flops: Mapping[str, float]
    gate_bandwidth: float | None
    """From memory, where the footprint is `gate_footprint` or more."""
    gate_cache: float | None
    """Whatever the footprint; None: no bound."""
    gate_flops: float | None
    """Of the fastest precision; None: no bound."""
    cache_bytes: int | None
    gate_footprint: float
    notes: Mapping[str, str] = field(default_factory=dict)
    """Precision → why its peak is unknown, or which one stands in for it."""


class Gate(StrEnum):
    """What the physics gate says to an interval."""

    POSSIBLE = "possible"
    REPEAT = "repeat"
    """Only the lower end lies below: measure again with twice the rounds."""
    AMBIGUOUS = "ambiguous"
    """Still only the lower end, after the repetition."""
    IMPOSSIBLE = "impossible"
    """The whole interval lies below."""


def work(cost: Cost, shape: Shape) -> Work:
    """The work of `shape` by the problem's cost model.

    Raises:
        ValueError: a formula gives a negative value, or names what the shape does not have.
    """
    flops, size = (float(evaluate(formula, shape.values)) for formula in (cost.flops, cost.bytes))
    if flops < 0 or size < 0:
        raise ValueError(f"the cost of shape {shape.key!r} is negative; next: `assay deck lint`")
    return Work(flops=flops, bytes=size, precision=cost.precision)


def cpu_peaks(measured: Ceilings) -> Peaks:
    """Peaks of a CPU from its measured ceilings."""
    rates = {name: ceiling.value for name, ceiling in measured.rates.items()}
    notes = dict(measured.unknown)
    for name, other in WITHOUT_UNIT.items():
        if name not in rates and name not in measured.unknown and other in rates:
            rates[name] = rates[other]
            notes[name] = f"no {name} arithmetic on this machine: the {other} rate stands in"
    # A unit that was not measured may be faster than everything that was: then nothing bounds the operations.
    complete = bool(measured.rates) and not set(measured.unknown) & set(WITHOUT_UNIT)
    cache = measured.cache_bytes_s
    return Peaks(
        bandwidth=measured.memory_bytes_s,
        flops=rates,
        gate_bandwidth=GATE_SLACK * measured.memory_bytes_s if measured.cache_bytes else None,
        gate_cache=GATE_SLACK * cache if cache is not None else None,
        gate_flops=GATE_SLACK * max(rates.values()) if complete else None,
        cache_bytes=measured.cache_bytes,
        gate_footprint=float(CACHE_FOOTPRINTS * (measured.cache_bytes or 0)),
        notes=notes,
    )


def floor(work: Work, peaks: Peaks) -> Floor:
    """The floor of `work`: max(operations / peak, bytes / bandwidth), and the gate below it."""
    notes = []
    memory = _microseconds(work.bytes, peaks.bandwidth)
    compute = 0.0 if work.flops == 0 or work.precision == "none" else None
    if compute is None:
        compute = _microseconds(work.flops, peaks.flops.get(work.precision))
        if work.precision in peaks.notes:
            notes.append(peaks.notes[work.precision])
        elif compute is None:
            notes.append(f"the peak of {work.precision!r} is unknown")
    if memory is None:
        notes.append("the memory bandwidth is unknown")
    known = memory is not None and compute is not None and max(memory, compute) > 0
    if not known and not notes:
        notes.append("the cost model gives no work")
    largest = max(memory or 0.0, compute or 0.0)
    return Floor(
        memory_us=memory,
        compute_us=compute,
        floor_us=largest if known else None,
        bound=None if not known else ("memory" if largest == memory else "compute"),
        gate_us=_gate_floor(work, peaks),
        footprint_bytes=work.bytes,
        cache_resident=peaks.cache_bytes is not None and work.bytes <= peaks.cache_bytes,
        notes=tuple(notes),
    )


def _microseconds(amount: float, per_second: float | None) -> float | None:
    return None if per_second is None or per_second <= 0 else 1e6 * amount / per_second


def _gate_floor(work: Work, peaks: Peaks) -> float | None:
    """The largest of what even the most generous physics asks for; None where it asks for nothing."""
    bounds = [
        _microseconds(work.bytes, peaks.gate_cache),
        _microseconds(work.flops if work.precision != "none" else 0.0, peaks.gate_flops),
    ]
    if peaks.gate_bandwidth is not None and work.bytes >= peaks.gate_footprint:
        # What fits the cache may still lie there when the call returns.
        bounds.append(_microseconds(work.bytes - (peaks.cache_bytes or 0), peaks.gate_bandwidth))
    largest = max((bound for bound in bounds if bound is not None), default=0.0)
    return largest if largest > 0 else None


def gate(interval: Interval, floor: Floor | None, *, repeated: bool) -> Gate:
    """What physics says to `interval`.

    Args:
        interval: A time per call.
        floor: Its floor; None, or one without a gate, bounds nothing.
        repeated: The shape was already measured again with twice the rounds.
    """
    if floor is None or floor.gate_us is None or interval.low_us >= floor.gate_us:
        return Gate.POSSIBLE
    if interval.high_us < floor.gate_us:
        return Gate.IMPOSSIBLE
    return Gate.AMBIGUOUS if repeated else Gate.REPEAT
