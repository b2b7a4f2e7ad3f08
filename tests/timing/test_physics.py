"""Floors from ceilings, and the gate from the most generous physics."""

from __future__ import annotations

import pytest

from kernelassay.records import Cost, Interval, Shape, Tier
from kernelassay.timing import Gate, Work, cpu_peaks, floor, gate, work
from tests.timing.simulate import ceilings
from tests.timing.simulate import floor as made_floor

PEAKS = cpu_peaks(ceilings())
MIB = 1 << 20


def test_work_follows_the_cost_model() -> None:
    cost = Cost(flops="2*n", bytes="4*n", precision="fp32")
    assert work(cost, Shape(key="s", tier=Tier.SMALL, values={"n": 10})) == Work(20, 40, "fp32")
    negative = Cost(flops="0-n", bytes="1", precision="none")
    with pytest.raises(ValueError, match="deck lint"):
        work(negative, Shape(key="s", tier=Tier.SMALL, values={"n": 10}))


def test_a_floor_is_the_larger_part() -> None:
    memory = floor(Work(1e6, 2e6, "fp32"), PEAKS)
    assert (memory.memory_us, memory.compute_us, memory.floor_us, memory.bound) == (100.0, 10.0, 100.0, "memory")
    compute = floor(Work(1e9, 2e6, "fp32"), PEAKS)
    assert (compute.floor_us, compute.bound) == (1e4, "compute")


def test_an_unknown_peak_gives_no_floor() -> None:
    result = floor(Work(1.0, 1.0, "posit"), PEAKS)
    assert result.floor_us is None and "posit" in result.notes[0]
    assert floor(Work(1.0, 1.0, "none"), PEAKS).floor_us is not None
    assert floor(Work(0.0, 0.0, "none"), PEAKS).floor_us is None


def test_a_precision_without_a_unit_computes_in_another() -> None:
    result = floor(Work(1e9, 1.0, "bf16"), PEAKS)
    assert result.floor_us == 1e4 and "fp32" in result.notes[0]
    assert floor(Work(1.6e9, 1.0, "int8"), PEAKS).floor_us == pytest.approx(1e4)
    unmeasured = cpu_peaks(ceilings(no_unit=["fp16"], unknown={"bf16": "matrix tiles are not measured"}))
    assert floor(Work(1e9, 1.0, "bf16"), unmeasured).floor_us is None
    assert unmeasured.gate_flops is None  # nothing bounds what was not measured


def test_a_cpus_gate_knows_the_cache_only_until_three_of_them() -> None:
    small = floor(Work(0, 10 * MIB, "none"), PEAKS)
    assert small.gate_us == pytest.approx(1e6 * 10 * MIB / (1.25 * 2e11))
    assert small.cache_resident and small.floor_us == pytest.approx(1e6 * 10 * MIB / 2e10)
    below = floor(Work(0, 96 * MIB - 1, "none"), PEAKS)
    above = floor(Work(0, 96 * MIB, "none"), PEAKS)
    assert not below.cache_resident
    assert above.gate_us == pytest.approx(1e6 * 64 * MIB / (1.25 * 2e10))
    assert below.gate_us == pytest.approx(1e6 * 96 * MIB / (1.25 * 2e11))


def test_the_gate_takes_the_fastest_precision() -> None:
    assert floor(Work(1e9, 1.0, "fp64"), PEAKS).gate_us == pytest.approx(1e6 * 1e9 / (1.25 * 1.6e11))


def test_without_ceilings_nothing_is_impossible() -> None:
    bare = cpu_peaks(ceilings(in_cache={}, rates={}, cache_bytes=None, method="numpy"))
    assert floor(Work(1e9, 1e6, "fp32"), bare).gate_us is None
    assert floor(Work(1e9, 1e6, "fp32"), bare).floor_us is None


@pytest.mark.parametrize(
    ("low", "high", "repeated", "verdict"),
    [
        (2.0, 3.0, False, Gate.POSSIBLE),
        (1.0, 3.0, False, Gate.POSSIBLE),
        (0.5, 3.0, False, Gate.REPEAT),
        (0.5, 3.0, True, Gate.AMBIGUOUS),
        (0.5, 1.0, True, Gate.AMBIGUOUS),
        (0.5, 0.9, False, Gate.IMPOSSIBLE),
        (0.5, 0.9, True, Gate.IMPOSSIBLE),
    ],
)
def test_the_gate_judges_the_interval(low: float, high: float, repeated: bool, verdict: Gate) -> None:
    interval = Interval(median_us=(low + high) / 2, low_us=low, high_us=high)
    assert gate(interval, made_floor(10, 1.0), repeated=repeated) is verdict
    assert (
        gate(interval, None, repeated=repeated) is gate(interval, made_floor(10, None), repeated=True) is Gate.POSSIBLE
    )
