"""Compare examples/topk_cpp with torch.topk on this CPU: one row per shape, warm and cold.

The rule: the two are timed call by call in turn, order alternating, in one process, on the same inputs, with the same
number of threads, and each call of either makes its own outputs. *Cold* calls walk through inputs that exceed twice the
last-level cache, so that each is read from memory; *warm* calls read one input again and again. `kernel` is the C call
alone, without the making of outputs and argument arrays, which Python does for the native entry.

    python bench/topk_cpu.py [--threads 2] [--samples 60] [--tier small|full|all] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "topk_cpp" / "kernel.cpp"
FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread")
SHAPES = {
    "small": ((1, 4096, 64), (8, 1024, 8), (4, 2048, 32), (4, 1500, 16), (16, 512, 1)),
    "full": ((1, 131072, 64), (64, 8192, 8), (32, 16384, 32), (16, 12000, 16), (128, 4096, 1)),
}
LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
LAST_LEVEL_CACHE_DEFAULT_KIB = 32 * 1024
WARM_UP_CALLS = 10
Call = Callable[[Tensor], object]


def build(folder: Path) -> Path:
    """Compile the kernel with the judge's default flags; returns the shared object."""
    target = folder / "libkernel.so"
    subprocess.run(["g++", *FLAGS, str(SOURCE), "-o", str(target)], check=True)
    return target


class Native:
    """The shared object at one shape (batch, n, k)."""

    def __init__(self, library: Path, shape: tuple[int, int, int]) -> None:
        self._function = ctypes.CDLL(str(library)).topk
        self._batch, _, self._k = shape
        self._shape = (ctypes.c_int64 * 3)(*shape)
        self.kernel_ns = 0

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`x` (batch, n) float32 → values (batch, k) float32, indices (batch, k) int64."""
        values = torch.empty(self._batch, self._k)
        indices = torch.empty(self._batch, self._k, dtype=torch.int64)
        inputs = (ctypes.c_void_p * 1)(x.data_ptr())
        outputs = (ctypes.c_void_p * 2)(values.data_ptr(), indices.data_ptr())
        start = time.perf_counter_ns()
        code = self._function(inputs, outputs, self._shape)
        self.kernel_ns = time.perf_counter_ns() - start
        if code != 0:
            raise RuntimeError(f"topk returned {code} at shape {tuple(self._shape)}")
        return values, indices


def draw(count: int, batch: int, n: int) -> Tensor:
    """`count` nominal inputs (count, batch, n): row = μ + σ·N(0, 1), μ ~ 3·N(0, 1), σ = exp(N(0, 1))."""
    generator = torch.Generator().manual_seed(1)
    centre = 3 * torch.randn(count, batch, 1, generator=generator)
    spread = torch.randn(count, batch, 1, generator=generator).exp()
    return centre + spread * torch.randn(count, batch, n, generator=generator)


def cold_copies(batch: int, n: int) -> int:
    """How many inputs exceed twice the last-level cache together."""
    kib = LAST_LEVEL_CACHE_DEFAULT_KIB
    if LAST_LEVEL_CACHE.exists():
        kib = int(LAST_LEVEL_CACHE.read_text().strip().removesuffix("K"))
    return math.ceil(2 * kib * 1024 / (4 * batch * n)) + 1


def sample(native: Native, library_call: Call, inputs: Iterator[Tensor], samples: int) -> dict[str, list[float]]:
    """Times in µs of interleaved calls, each on the next input."""
    times: dict[str, list[float]] = {"topk_cpp": [], "kernel": [], "torch": []}

    def timed(call: Call) -> float:
        x = next(inputs)
        start = time.perf_counter_ns()
        call(x)
        return (time.perf_counter_ns() - start) / 1000

    for turn in range(samples + WARM_UP_CALLS):
        order = ("topk_cpp", "torch") if turn % 2 else ("torch", "topk_cpp")
        took = {name: timed(native if name == "topk_cpp" else library_call) for name in order}
        if turn < WARM_UP_CALLS:
            continue
        for name, value in took.items():
            times[name].append(value)
        times["kernel"].append(native.kernel_ns / 1000)
    return times


def measure(library: Path, shape: tuple[int, int, int], samples: int) -> list[dict[str, Any]]:
    """Two rows, warm and cold, for one shape; times in µs."""
    batch, n, k = shape
    native = Native(library, shape)
    pool = draw(cold_copies(batch, n), batch, n)
    rows = []
    for state in ("warm", "cold"):
        count = 1 if state == "warm" else len(pool)
        # A large stride, so that no hardware prefetcher brings the next input in.
        inputs = (pool[(i * 17) % count] for i in range(10**9))
        times = sample(native, lambda x: torch.topk(x, k), inputs, samples)
        row: dict[str, Any] = {"shape": list(shape), "state": state, "samples": samples}
        for name, values in times.items():
            row[name] = {"median_us": statistics.median(values), "min_us": min(values)}
        row["ratio"] = row["torch"]["median_us"] / row["topk_cpp"]["median_us"]
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    """The table, µs."""
    lines = [f"{'batch, n, k':>18} {'state':>5} {'topk_cpp':>17} {'(kernel)':>17} {'torch.topk':>19} {'ratio':>7}"]
    for row in rows:
        cells = [f"{row[c]['median_us']:9.1f} ({row[c]['min_us']:.1f})" for c in ("topk_cpp", "kernel", "torch")]
        name = ", ".join(str(v) for v in row["shape"])
        lines.append(f"{name:>18} {row['state']:>5} {cells[0]:>17} {cells[1]:>17} {cells[2]:>19} {row['ratio']:7.1f}")
    return "\n".join([*lines, "µs, median (minimum); ratio = torch.topk / topk_cpp of the medians"])


def main() -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--tier", choices=("small", "full", "all"), default="all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    os.sched_setaffinity(0, cpus)  # before the first call: both sides count the CPUs they may use
    torch.set_num_threads(options.threads)
    tiers = ("small", "full") if options.tier == "all" else (options.tier,)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for tier in tiers:
            for shape in SHAPES[tier]:
                rows += [{"tier": tier, **row} for row in measure(library, shape, max(30, options.samples))]
    if options.json:
        report = {"threads": options.threads, "cpus": len(cpus), "torch": torch.__version__, "rows": rows}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        sys.stdout.write(show(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
