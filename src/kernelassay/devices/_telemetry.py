"""What a GPU was doing before and after a measurement, and what of it spoils the measurement.

The rule: `telemetry` reads, `quiet` decides, and both leave every setting of the device as it is. The decision is two
tables. That no other process was there is only claimed where the driver's list shows the judge's own process: a list
that cannot show ours (another PID namespace) shows no stranger either, and exclusivity is then `unknown`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from kernelassay.devices._nvml import Nvml, opened
from kernelassay.records import GpuProcess, Telemetry

CLOCK_DRIFT = 0.03
"""Clocks further apart than this share of the larger one moved. Source: the limit between the thirds of a process,
and twice the honest spread of a calibration matrix product. [estimated]"""
HOT_MARGIN_C = 3
"""So near to the device's own slowdown threshold the next measurement may be slowed. [estimated]"""


class Effect(StrEnum):
    """What a fault does to the measurement."""

    CONTENDED = "contended"
    """Invalid, since someone else used the device."""
    INVALID = "invalid"
    WARN = "warn"
    """Told beside the time, which stands."""


class Exclusivity(StrEnum):
    """Whether the device was the judge's alone, as far as its driver tells."""

    ALONE = "alone"
    CONTENDED = "contended"
    UNKNOWN = "unknown"
    """The driver's list does not show the judge: exclusivity rests on the lease."""


@dataclass(frozen=True)
class DeviceFault:
    """One thing that speaks against a measurement."""

    rule: str
    effect: Effect
    reason: str
    next_step: str


@dataclass(frozen=True)
class Quiet:
    """What the snapshots around a measurement say."""

    exclusivity: Exclusivity
    faults: tuple[DeviceFault, ...]

    @property
    def usable(self) -> bool:
        """Whether the measurement stands."""
        return all(fault.effect is Effect.WARN for fault in self.faults)


@dataclass(frozen=True)
class Reason:
    """One bit of NVML's clock event reasons."""

    word: str
    effect: Effect | None
    """None: an honest measurement may show it."""
    next_step: str = ""


_COOL = "let the device cool down, then measure again"
_SETTING = "ask the device's administrator for its default clocks, then measure again"
REASONS: Mapping[int, Reason] = {
    0x001: Reason("gpu_idle", None),
    0x002: Reason("applications_clocks_setting", Effect.INVALID, _SETTING),
    0x004: Reason("sw_power_cap", None),
    0x008: Reason("hw_slowdown", Effect.INVALID, _COOL),
    0x010: Reason("sync_boost", Effect.INVALID, _SETTING),
    0x020: Reason("sw_thermal_slowdown", Effect.INVALID, _COOL),
    0x040: Reason("hw_thermal_slowdown", Effect.INVALID, _COOL),
    0x080: Reason("hw_power_brake_slowdown", Effect.INVALID, "have the power supply looked at"),
    0x100: Reason("display_clock_setting", Effect.INVALID, _SETTING),
    0x200: Reason("board_limit", Effect.INVALID, "have the power supply looked at"),
    0x400: Reason("reliability", Effect.INVALID, _COOL),
}
"""Everything but idleness and the power cap spoils a time: a card at its power limit is below its highest clock by
nature, the others come and go. Bits: NVML API Reference, NvmlClocksEventReasons."""
_UNKNOWN_REASON = Reason("", Effect.INVALID, "look it up in NVML's reference (NvmlClocksEventReasons)")
_BY_WORD = {reason.word: reason for reason in REASONS.values()}


def reason_words(bits: int) -> tuple[str, ...]:
    """NVML's reasons as words, lowest bit first; a bit without a word gives `reason_0x…`."""
    set_bits = (1 << shift for shift in range(bits.bit_length()) if bits >> shift & 1)
    return tuple(REASONS[bit].word if bit in REASONS else f"reason_{bit:#x}" for bit in set_bits)


def telemetry(uuid: str, library: Any = None) -> Telemetry:
    """Read the device `uuid` once, some milliseconds.

    Args:
        uuid: `Device.gpu.uuid`.
        library: Stands in for the module `pynvml`.

    Raises:
        NvmlError: there is no usable driver.
    """
    with opened(library) as nvml:
        handle = nvml.ask("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return Telemetry(uuid=uuid, at=datetime.now(UTC))
        return _read(nvml, handle, uuid)


def _read(nvml: Nvml, handle: Any, uuid: str) -> Telemetry:
    bits = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # its name before driver 535
        bits = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    power = nvml.ask("nvmlDeviceGetPowerUsage", handle)
    limit = nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    use = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    slowdown = nvml.constant("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN")
    return Telemetry(
        uuid=uuid,
        at=datetime.now(UTC),
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, nvml.constant("NVML_CLOCK_SM")),
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, nvml.constant("NVML_CLOCK_MEM")),
        reasons=None if bits is None else reason_words(int(bits)),
        power_w=None if power is None else power / 1e3,
        power_limit_w=None if not limit else limit / 1e3,
        temperature_c=nvml.ask("nvmlDeviceGetTemperature", handle, nvml.constant("NVML_TEMPERATURE_GPU")),
        slowdown_c=nvml.ask("nvmlDeviceGetTemperatureThreshold", handle, slowdown),
        utilisation=None if use is None else use.gpu / 100,
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Nvml, handle: Any) -> tuple[GpuProcess, ...] | None:
    """Everyone with a context, by pid; None where the driver lists no programs at all."""
    compute = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if compute is None:
        return None
    others = ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
    listed = [*compute, *(process for function in others for process in nvml.ask(function, handle) or ())]
    used = {int(process.pid): process.usedGpuMemory for process in listed}
    return tuple(GpuProcess(pid=pid, used_bytes=size) for pid, size in sorted(used.items()))


def quiet(
    before: Telemetry,
    after: Telemetry,
    own_pids: Collection[int] = (),
    between: Sequence[Telemetry] = (),
) -> Quiet:
    """What the snapshots around a measurement say against it.

    Args:
        before: The device when the measurement began, warm: an idle device says nothing about clocks.
        after: The same when it ended.
        own_pids: Processes of the judge and of its worker, in the driver's numbering; default: this process.
        between: Polls in the meantime.

    Raises:
        ValueError: the snapshots are of different devices.
    """
    shots = (before, *between, after)
    if len({shot.uuid for shot in shots}) > 1:
        raise ValueError(f"snapshots of different devices: {', '.join(sorted({shot.uuid for shot in shots}))}")
    exclusivity, faults = _company(shots, frozenset(own_pids or (os.getpid(),)))
    return Quiet(exclusivity, (*faults, *_held_back(shots), *_heat(shots), *_moved(shots)))


def _company(shots: Sequence[Telemetry], own: frozenset[int]) -> tuple[Exclusivity, list[DeviceFault]]:
    listed = {process.pid for shot in shots for process in shot.processes or ()}
    if any(shot.processes is None for shot in shots) or not listed & own:
        return Exclusivity.UNKNOWN, []
    strangers = sorted(listed - own)
    if not strangers:
        return Exclusivity.ALONE, []
    who = ", ".join(str(pid) for pid in strangers)
    reason = f"contended: other processes on the device: {who}"
    return Exclusivity.CONTENDED, [
        DeviceFault("company", Effect.CONTENDED, reason, "wait until they have ended, then measure again")
    ]


def _held_back(shots: Sequence[Telemetry]) -> Iterator[DeviceFault]:
    if any(shot.reasons is None for shot in shots):
        yield DeviceFault(
            "reasons",
            Effect.WARN,
            "the driver does not say why the clocks are what they are",
            "compare the clocks of the record by hand",
        )
    for word in sorted({word for shot in shots for word in shot.reasons or ()}):
        reason = _BY_WORD.get(word, _UNKNOWN_REASON)
        if reason.effect is not None:
            yield DeviceFault("reasons", reason.effect, f"the clocks were held back: {word}", reason.next_step)


def _heat(shots: Sequence[Telemetry]) -> Iterator[DeviceFault]:
    read = [(s.temperature_c, s.slowdown_c) for s in shots if s.temperature_c is not None and s.slowdown_c is not None]
    hottest, limit = max(read, key=lambda pair: pair[0] - pair[1], default=(0, 0))
    if read and hottest >= limit - HOT_MARGIN_C:
        effect = Effect.INVALID if hottest >= limit else Effect.WARN
        yield DeviceFault("heat", effect, f"{hottest} °C, and the device slows itself at {limit} °C", _COOL)


def _moved(shots: Sequence[Telemetry]) -> Iterator[DeviceFault]:
    """Clocks of working moments that differ; an idle device lowers its clocks, which is no drift."""
    busy = [shot for shot in shots if "gpu_idle" not in (shot.reasons or ())]
    clocks = {
        "multiprocessor": [shot.sm_clock_mhz for shot in busy if shot.sm_clock_mhz],
        "memory": [shot.memory_clock_mhz for shot in busy if shot.memory_clock_mhz],
    }
    for what, read in clocks.items():
        if len(read) > 1 and max(read) - min(read) > CLOCK_DRIFT * max(read):
            yield DeviceFault(
                "clocks",
                Effect.WARN,
                f"the {what} clock moved between {min(read)} and {max(read)} MHz",
                "warm the device up longer, or compare cycles instead of times",
            )
