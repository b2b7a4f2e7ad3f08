"""Raw samples as they were delivered, and their cleaning: what is no duration is set aside, and nothing else is.

The worker's samples may hold anything; each one that does not count stays in the record with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelassay.records import Calibration, Discard, ProcessTiming, Round
from kernelassay.timing._statistics import median

THROTTLE_RATIO = 0.90
"""Of the process's own median clock; not of the default one, which a power-limited card never reaches. [estimated]"""
CAL_DRIFT = 0.05
"""Calibration before against after: a process with more is void. Honest spread 2.3 %. [measured]"""
SAMPLE_MIN_US = 1e-3
"""One nanosecond, the resolution of every clock used: less is no duration. [computed]"""
SAMPLE_MAX_US = 1e12
"""Eleven days: more is no duration either, and sums stay finite. [computed]"""


@dataclass(frozen=True)
class ProcessSamples:
    """What one fresh process gave, as delivered: any float at all is accepted here."""

    inner_us: Sequence[float] = ()
    """The worker's claim per call, in order."""
    rounds: Sequence[tuple[int, float]] = ()
    """(K, T(K) in µs) in the order in which they ran."""
    clock_mhz: Sequence[float] = ()
    """The device's clock of each inner sample; empty where it is not read."""
    calibration_us: tuple[float, float] | None = None
    """The calibration operation before and after the process."""


@dataclass(frozen=True)
class ShapeSamples:
    """Everything measured for one shape."""

    processes: Sequence[ProcessSamples]
    nulls: Sequence[tuple[int, float]]
    """(K, w(K) in µs): rounds of the clean worker."""
    device_faults: Sequence[str] = ()
    """What the judge saw that voids any time: a throttle reason, another process on the device."""
    inner_fault: str = ""
    """Why there is no inner clock (the call synchronises inside, …); empty where there is one."""
    pair_floor_us: float | None = None
    """What the inner clock reads around nothing on this device."""
    displaced_by_reading: bool = False
    """The judge could not evict single lines, so code was displaced with the data."""
    copied_outputs: bool = False
    """The worker had to copy an output inside the outer clock."""


def _no_duration(value: float) -> str:
    if not math.isfinite(value):
        return "not a finite number"
    if value <= 0:
        return "not above zero"
    return "" if SAMPLE_MIN_US <= value <= SAMPLE_MAX_US else "no plausible duration"


def _discard(index: int, reason: str, value: float) -> Discard:
    return Discard(index=index, reason=reason, value_us=value if math.isfinite(value) else None)


def clean_rounds(rounds: Sequence[tuple[int, float]]) -> tuple[tuple[Round, ...], tuple[Discard, ...]]:
    """The rounds that are durations, and the others with their reason."""
    kept, dropped = [], []
    for index, (k, total) in enumerate(rounds):
        reason = "K below one" if k < 1 else _no_duration(float(total))
        if reason:
            dropped.append(_discard(index, reason, float(total)))
        else:
            kept.append(Round(k=k, total_us=float(total)))
    return tuple(kept), tuple(dropped)


def clean(index: int, process: ProcessSamples) -> ProcessTiming:
    """The record of one process: durations kept in order, everything else discarded with its reason."""
    clocks = list(process.clock_mhz) if len(process.clock_mhz) == len(process.inner_us) else []
    readable = [clock for clock in clocks if math.isfinite(clock) and clock > 0]
    slowest = THROTTLE_RATIO * median(readable) if readable else 0.0
    kept: list[float] = []
    kept_clocks: list[float] = []
    dropped = []
    for position, raw in enumerate(process.inner_us):
        value, clock = float(raw), float(clocks[position]) if clocks else None
        reason = _no_duration(value)
        if not reason and clock is not None and not (math.isfinite(clock) and clock > 0):
            reason = "no clock reading"
        elif not reason and clock is not None and clock < slowest:
            reason = f"throttled: {clock:.0f} MHz, below {slowest:.0f}"
        if reason:
            dropped.append(_discard(position, reason, value))
            continue
        kept.append(value)
        if clock is not None:
            kept_clocks.append(clock)
    rounds, rounds_discarded = clean_rounds(process.rounds)
    calibration, void = _calibration(process.calibration_us)
    return ProcessTiming(
        process=index,
        inner_us=tuple(kept),
        clock_mhz=tuple(kept_clocks),
        rounds=rounds,
        discards=tuple(dropped),
        rounds_discarded=rounds_discarded,
        calibration=calibration,
        void=void,
    )


def _calibration(pair: tuple[float, float] | None) -> tuple[Calibration | None, str]:
    if pair is None:
        return None, ""
    before, after = (float(value) for value in pair)
    if _no_duration(before) or _no_duration(after):
        return None, "the calibration gave no duration"
    change = max(before, after) / min(before, after) - 1
    moved = f"the calibration moved by {100 * change:.1f} % (limit {100 * CAL_DRIFT:.0f} %)"
    void = moved if change > CAL_DRIFT else ""
    return Calibration(before_us=before, after_us=after), void
