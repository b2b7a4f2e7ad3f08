"""The measuring program with torch's CPU in the place of a GPU: its flow, its sums, and what it throws away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelassay.devices import _gpu_measure, detect
from kernelassay.devices._gpu_ceilings import parse
from tests.devices.fake_nvml import FakeDevice, FakeNvml


class Event:
    """A stamp of the host's clock: work on a CPU is done when its call returns."""

    hidden = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return not self.hidden

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


class CpuTorch:
    """torch, with every tensor on the CPU and a device of the caller's making."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.slept = 0
        properties = SimpleNamespace(
            name="NVIDIA H200",
            uuid=FakeDevice().uuid.removeprefix("GPU-"),
            major=capability[0],
            minor=capability[1],
            multi_processor_count=132,
            L2_cache_size=1 << 12,
        )
        self.cuda = SimpleNamespace(
            Event=Event,
            synchronize=lambda: None,
            _sleep=self._sleep,
            get_device_properties=lambda _index: properties,
            mem_get_info=lambda: (1 << 20, 1 << 20),
        )

    def _sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.slept += 1

    def __getattr__(self, name: str) -> Any:
        real = getattr(torch, name)
        if name not in ("randn", "zeros", "ones", "empty"):
            return real
        return lambda *size, device: self._made(real, size, device)

    def _made(self, real: Callable[..., Any], size: Any, device: str) -> Any:
        assert device == "cuda"
        return real(*size)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_measure, "SIZES", (32, 64))
    monkeypatch.setattr(_gpu_measure, "WARM_S", 0.0)
    monkeypatch.setattr(_gpu_measure, "SAMPLES", 3)
    monkeypatch.setattr(_gpu_measure, "MIN_SAMPLE_S", 1e-5)
    monkeypatch.setattr(Event, "hidden", True)


def test_everything_is_measured_and_becomes_a_record() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        found = _gpu_measure.measure(CpuTorch())
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(found["bandwidth"]) == {"copy", "read"} and set(found["latency"]) == {"events", "launch", "next_launch"}
    assert {*found["rates"], *(name.split()[0] for name in found["unknown"])} == {"bf16", "fp16", "fp8", "tf32", "fp32"}
    assert {"bf16", "tf32", "fp32"} <= set(found["rates"]) and set(found["rates"]["fp32"]) == {"32", "64"}
    assert found["array_bytes"] == (1 << 20) // 8
    record = parse(json.dumps(found), detect("h200", FakeNvml(FakeDevice())), 1.0)
    assert record.sms == 132 and record.latency["launch"].least_us > 0


def test_a_card_without_fp8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_measure, "SIZES", (16,))
    found = _gpu_measure.measure(CpuTorch((8, 0)))
    assert found["unknown"]["fp8"] == "the card has no fp8 arithmetic" and "fp8" not in found["rates"]


def test_the_rate_is_amount_over_time_of_one_call() -> None:
    stand_in = CpuTorch()
    measured = _gpu_measure.rate(stand_in, lambda: time.sleep(2e-3), 1e6)
    assert 1e6 / 4e-3 < measured["median"] <= measured["value"] <= 1e6 / 2e-3
    assert measured["repetitions"] == 3 == stand_in.slept


def test_short_work_is_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_measure, "MIN_SAMPLE_S", 4e-3)
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        time.sleep(1e-3)

    measured = _gpu_measure.rate(CpuTorch(), work, 1.0)
    assert calls > 2 * (3 + 1) and 300 < measured["value"] <= 1000


def test_a_sample_whose_launch_was_seen_is_thrown_away() -> None:
    Event.hidden = False
    stand_in = CpuTorch()
    assert _gpu_measure.behind(stand_in, lambda: None, 1) is None
    with pytest.raises(RuntimeError, match="slower than the long kernel"):
        _gpu_measure.rate(stand_in, lambda: None, 1.0)
