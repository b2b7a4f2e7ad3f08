"""Telemetry: what is read, and the tables that turn two snapshots into faults."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pytest

from kernelassay.devices import Effect, Exclusivity, NvmlError, quiet, telemetry
from kernelassay.devices._telemetry import CLOCK_DRIFT, HOT_MARGIN_C, REASONS, reason_words
from kernelassay.records import GpuProcess, Telemetry
from tests.devices.fake_nvml import FakeDevice, FakeNvml

UUID = FakeDevice().uuid
OWN = 4242
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def shot(*pids: int, **changes: Any) -> Telemetry:
    facts: dict[str, Any] = {
        "uuid": UUID,
        "at": NOW,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "reasons": (),
        "temperature_c": 50,
        "slowdown_c": 89,
        "processes": tuple(GpuProcess(pid=pid) for pid in (pids or (OWN,))),
    }
    return Telemetry(**(facts | changes))


def test_a_snapshot_is_what_the_driver_says() -> None:
    device = FakeDevice(reasons=0x5, compute=[(9, 5 << 20), (8, None)], graphics=[(9, 5 << 20), (3, 1)])
    library = FakeNvml(device)
    read = telemetry(UUID, library)
    assert library.open == 0
    assert (read.sm_clock_mhz, read.memory_clock_mhz, read.reasons) == (1980, 3201, ("gpu_idle", "sw_power_cap"))
    assert (read.power_w, read.power_limit_w, read.temperature_c, read.slowdown_c) == (120.5, 700.0, 41, 89)
    assert read.utilisation == 0.07
    assert read.processes is not None
    assert [(p.pid, p.used_bytes) for p in read.processes] == [(3, 1), (8, None), (9, 5 << 20)]
    assert Telemetry.model_validate_json(read.model_dump_json()) == read


def test_what_the_driver_does_not_say_is_unknown_not_zero() -> None:
    silent = FakeDevice(
        clocks={},
        reasons=None,
        power_mw=None,
        power_limit_mw=None,
        temperature=None,
        slowdown=None,
        use=None,
        compute=None,
    )
    read = telemetry(UUID, FakeNvml(silent))
    assert set(read.model_dump(exclude={"uuid", "at"}).values()) == {None}
    assert telemetry("GPU-none", FakeNvml(FakeDevice())).processes is None
    assert telemetry(UUID, FakeNvml(FakeDevice(compute=[]))).processes == ()
    with pytest.raises(NvmlError):
        telemetry(UUID, FakeNvml(starts=False))


def test_reasons_are_words_and_an_unknown_bit_keeps_its_number() -> None:
    assert reason_words(0) == () and reason_words(0x48) == ("hw_slowdown", "hw_thermal_slowdown")
    assert reason_words(0x8001) == ("gpu_idle", "reason_0x8000")
    assert len({reason.word for reason in REASONS.values()}) == len(REASONS)


def test_the_words_are_those_of_the_real_library() -> None:
    import pynvml

    prefix = "nvmlClocksThrottleReason"
    names = {f"{prefix}{''.join(part.capitalize() for part in r.word.split('_'))}": bit for bit, r in REASONS.items()}
    known = {name: getattr(pynvml, name) for name in names if hasattr(pynvml, name)}
    assert len(known) >= 9, "older bindings lack the last two"
    assert known == {name: names[name] for name in known}


def test_a_quiet_device_alone() -> None:
    found = quiet(shot(), shot(), {OWN})
    assert found.exclusivity is Exclusivity.ALONE and found.faults == () and found.usable


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_stranger_at_any_poll_contends(where: str) -> None:
    shots = {name: shot(OWN, 666) if name == where else shot() for name in ("before", "between", "after")}
    found = quiet(shots["before"], shots["after"], {OWN, 4243}, [shots["between"]])
    assert found.exclusivity is Exclusivity.CONTENDED and not found.usable
    (fault,) = found.faults
    assert fault.effect is Effect.CONTENDED and "666" in fault.reason and str(OWN) not in fault.reason
    assert fault.next_step


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (shot(666), shot(666), Exclusivity.UNKNOWN),  # another numbering: the stranger may be the judge
        (shot(processes=()), shot(processes=()), Exclusivity.UNKNOWN),
        (shot(processes=None), shot(), Exclusivity.UNKNOWN),
        (shot(processes=()), shot(), Exclusivity.ALONE),  # the judge's context came later
    ],
)
def test_who_cannot_see_itself_claims_nothing(before: Telemetry, after: Telemetry, expected: Exclusivity) -> None:
    found = quiet(before, after, {OWN})
    assert found.exclusivity is expected and found.faults == ()


def test_unless_told_the_own_process_is_this_one() -> None:
    assert quiet(shot(os.getpid()), shot(os.getpid())).exclusivity is Exclusivity.ALONE


@pytest.mark.parametrize("bit", REASONS)
def test_only_idleness_and_the_power_cap_are_harmless(bit: int) -> None:
    (word,) = reason_words(bit)
    found = quiet(shot(reasons=(word,)), shot(), {OWN})
    if word in ("gpu_idle", "sw_power_cap"):
        assert found.faults == ()
    else:
        (fault,) = found.faults
        assert (fault.rule, fault.effect) == ("reasons", Effect.INVALID)
        assert word in fault.reason and fault.next_step and not found.usable


def test_a_reason_without_a_word_is_not_harmless_and_silence_is_told() -> None:
    assert not quiet(shot(), shot(reasons=("reason_0x8000",)), {OWN}).usable
    silent = quiet(shot(reasons=None), shot(), {OWN})
    assert silent.usable and [fault.effect for fault in silent.faults] == [Effect.WARN]


@pytest.mark.parametrize(
    ("temperature", "effect"),
    [(89 - HOT_MARGIN_C - 1, None), (89 - HOT_MARGIN_C, Effect.WARN), (89, Effect.INVALID), (95, Effect.INVALID)],
)
def test_heat(temperature: int, effect: Effect | None) -> None:
    warm = shot(temperature_c=89 - HOT_MARGIN_C)
    found = quiet(shot() if effect is None else warm, shot(temperature_c=temperature), {OWN})
    assert [fault.effect for fault in found.faults] == ([] if effect is None else [effect])
    assert quiet(shot(slowdown_c=None), shot(temperature_c=None), {OWN}).faults == ()


@pytest.mark.parametrize("clock", ["sm_clock_mhz", "memory_clock_mhz"])
def test_clocks_that_moved_are_told_unless_idle(clock: str) -> None:
    low = int(getattr(shot(), clock) * (1 - CLOCK_DRIFT)) - 1
    moved = quiet(shot(), shot(**{clock: low}), {OWN})
    assert [(fault.rule, fault.effect) for fault in moved.faults] == [("clocks", Effect.WARN)] and moved.usable
    assert str(low) in moved.faults[0].reason
    assert quiet(shot(), shot(**{clock: low + 2}), {OWN}).faults == ()
    assert quiet(shot(), shot(**{clock: 345, "reasons": ("gpu_idle",)}), {OWN}).faults == ()


def test_two_devices_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="different devices"):
        quiet(shot(), shot(uuid="GPU-other"), {OWN})
