"""Samples with a known truth: what a protocol would deliver for a call that takes `true_us`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelassay.records import Ceiling, Ceilings, Floor, ShapePlan
from kernelassay.timing import ProcessSamples, ShapeSamples, plan_shape

Total = Callable[[int, float], float]
"""(K, noiseless total of the K calls) → what the calls of that round really take."""


def plan(floor_us: float = 1.0, mode: str = "development", kind: str = "cpu") -> ShapePlan:
    return plan_shape(
        "s",
        kind=kind,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        floor_us=floor_us,
        set_bytes=16_384,
        cache_bytes=32 << 20,
        memory_bytes=16 << 30,
        secret=b"secret",
    )


def floor(floor_us: float = 1.0, gate_us: float | None = 0.1, cache_resident: bool = False) -> Floor:
    return Floor(
        memory_us=floor_us,
        compute_us=0.0,
        floor_us=floor_us,
        bound="memory",
        gate_us=gate_us,
        footprint_bytes=1e6,
        cache_resident=cache_resident,
    )


@dataclass
class Machine:
    """A machine and a submission on it; every method draws from one seeded generator."""

    seed: int
    true_us: float = 100.0
    noise: float = 0.004
    """Relative, of a round and of an inner sample."""
    null_us: float = 60.0
    null_per_call_us: float = 0.2
    null_noise: float = 0.01
    process_noise: float = 0.0
    inner_factor: float = 1.0
    inner_edit: Callable[[np.ndarray], Sequence[float]] = lambda values: [float(v) for v in values]
    calls: Total = lambda k, total: total
    """Edits what the K calls of a round take."""
    rounds_edit: Callable[[list[tuple[int, float]]], list[tuple[int, float]]] = lambda rounds: rounds
    faults: tuple[str, ...] = ()
    inner_fault: str = ""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def normal(self, middle: float, relative: float) -> float:
        return middle * (1 + relative * float(self.rng.standard_normal()))

    def process(self, plan: ShapePlan, index: int) -> ProcessSamples:
        true = self.normal(self.true_us, self.process_noise)
        inner = true * self.inner_factor * (1 + self.noise * self.rng.standard_normal(plan.inner_samples))
        rounds = []
        for k in plan.orders[index]:
            null = self.normal(self.null_us + k * self.null_per_call_us, self.null_noise)
            rounds.append((k, null + self.normal(self.calls(k, k * true), self.noise)))
        return ProcessSamples(inner_us=self.inner_edit(inner), rounds=self.rounds_edit(rounds))

    def samples(self, plan: ShapePlan, times: int = 1) -> ShapeSamples:
        """Everything for one shape; `times` = 3 adds a repetition with twice the rounds."""
        processes = []
        for index in range(plan.processes):
            parts = [self.process(plan, index) for _ in range(times)]
            processes.append(
                ProcessSamples(inner_us=parts[0].inner_us, rounds=[r for part in parts for r in part.rounds])
            )
        nulls = [
            (k, self.normal(self.null_us + k * self.null_per_call_us, self.null_noise))
            for k in plan.rungs
            for _ in range(plan.null_rounds)
        ]
        return ShapeSamples(processes=processes, nulls=nulls, device_faults=self.faults, inner_fault=self.inner_fault)


def ceilings(**changes: object) -> Ceilings:
    """Those of an invented machine: 20 GB/s from memory, 200 GB/s in cache, 100 GFLOP/s, 32 MiB of cache."""

    def rate(value: float) -> dict[str, object]:
        return {"value": value, "median": value, "repetitions": 5}

    plain: dict[str, object] = {
        "fingerprint": "f",
        "model": "m",
        "threads": 1,
        "measured_at": "2026-01-01T00:00:00Z",
        "method": "c",
        "program": "p",
        "seconds": 1.0,
        "cache_bytes": 32 << 20,
        "bandwidth": {"read": rate(2e10), "copy": rate(1.5e10)},
        "in_cache": {"l1": rate(2e11), "l2": rate(1e11)},
        "rates": {"fp32": rate(1e11), "fp64": rate(5e10), "int8": rate(1.6e11)},
        "no_unit": ["bf16", "fp16"],
    }
    return Ceilings.from_plain(plain | changes)


__all__ = ["Ceiling", "Machine", "ceilings", "floor", "plan"]
