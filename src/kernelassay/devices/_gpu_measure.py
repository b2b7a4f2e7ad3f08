"""Program that measures one GPU and prints JSON; it runs in a process of its own, started by `_gpu_ceilings.py`.

The rule: every time is taken by a pair of events behind a long kernel, so that launches are queued before the clock
starts; a sample in which the long kernel ended before the queue was full is thrown away. Data are dense and random:
zeros and repeated values run faster (measured on an H200: bf16 at 8192³ gives 788 TFLOP/s on random data and 894 on
zeros).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

ARRAY_L2 = 4
"""An array is at least this many L2 caches, so that a pass over it displaces what the one before left."""
ARRAY_MIN_BYTES = 1 << 30
"""Half a millisecond on the fastest memory of the catalogue: far above the two events around it. [computed]"""
ARRAY_MEMORY_SHARE = 8
"""One array takes at most this part of the free memory; three exist at once."""
SIZES = (4096, 8192)
"""Edges of the square matrices."""
WARM_S = 0.5
"""Cards idle at a fifth of their clock."""
SAMPLES = 11
"""Per measurement; best and median are kept."""
MIN_SAMPLE_S = 1e-3
"""Work of one sample: far above the resolution of events, half a microsecond. [rule]"""
BLOCK_CYCLES = 20_000_000
"""About 10 ms at 2 GHz: some thousand launches fit behind it. [computed]"""
ROW = 200
"""Smallest kernels in a row; fewer than the launch queue takes, of the order of 1,000."""
FP8_CAPABILITY = (8, 9)
"""The first with fp8 matrix arithmetic."""
NO_DEVICE = 3
"""Exit code where torch sees no GPU."""

Samples = dict[str, Any]


def array_bytes(l2_bytes: int, free_bytes: int) -> int:
    """Size of one array of the bandwidths, a multiple of 4 KiB."""
    wanted = max(ARRAY_L2 * l2_bytes, ARRAY_MIN_BYTES)
    return max(min(wanted, free_bytes // ARRAY_MEMORY_SHARE), 4096) // 4096 * 4096


def behind(torch: Any, work: Callable[[], object], calls: int) -> float | None:
    """Seconds of `calls` calls of `work` on the device; None where launching was slower than the long kernel."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(BLOCK_CYCLES)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    hidden = not begin.query()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3 if hidden else None


def sample(torch: Any, work: Callable[[], object], calls: int) -> list[float]:
    """Seconds per call, sorted; samples with a visible launch are left out.

    Raises:
        RuntimeError: every sample had one.
    """
    work()
    times = [behind(torch, work, calls) for _ in range(SAMPLES)]
    kept = sorted(seconds / calls for seconds in times if seconds is not None)
    if not kept:
        raise RuntimeError("launching was slower than the long kernel in every sample")
    return kept


def rate(torch: Any, work: Callable[[], object], amount: float) -> Samples:
    """Best and median rate of `work`, which does `amount` bytes or operations a call."""
    first = sample(torch, work, 1)
    calls = max(1, min(ROW, round(MIN_SAMPLE_S / first[0])))
    kept = first if calls == 1 else sample(torch, work, calls)
    return {"value": amount / kept[0], "median": amount / kept[len(kept) // 2], "repetitions": len(kept)}


def bandwidths(torch: Any, size: int) -> dict[str, Samples]:
    """Copy (bytes count twice) and read of arrays of `size` bytes."""
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    total = torch.empty((), device="cuda")
    return {
        "copy": rate(torch, lambda: target.copy_(source), 2.0 * size),
        "read": rate(torch, lambda: torch.sum(source, dim=0, out=total), float(size)),
    }


def product(torch: Any, precision: str, size: int) -> Callable[[], object]:
    """A square matrix product of `precision` on random data."""
    left, right = (torch.randn(size, size, device="cuda") for _ in range(2))
    if precision == "fp8":
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    left, right = left.to(dtype), right.to(dtype)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def latencies(torch: Any) -> dict[str, Samples]:
    """Shortest times in seconds: events around nothing, around one smallest kernel, one more kernel in a row."""
    one = torch.zeros(1, device="cuda")

    def kernel() -> object:
        return one.add_(1)

    pair, launch, row = sample(torch, lambda: None, 1), sample(torch, kernel, 1), sample(torch, kernel, ROW)
    kept = {"events": pair, "launch": launch, "next_launch": row}
    return {name: {"least": t[0], "median": t[len(t) // 2], "repetitions": len(t)} for name, t in kept.items()}


def warm(torch: Any) -> None:
    """Half a second of matrix products, so that the clocks are those of work."""
    work = product(torch, "bf16", SIZES[0])
    end = time.monotonic() + WARM_S
    while time.monotonic() < end:
        work()
        torch.cuda.synchronize()


def measure(torch: Any) -> dict[str, Any]:
    """Everything; what a torch or a card cannot do stands under `unknown` with its reason."""
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    size = array_bytes(properties.L2_cache_size, torch.cuda.mem_get_info()[0])
    warm(torch)
    unknown: dict[str, str] = {}
    rates: dict[str, dict[str, Samples]] = {}
    for precision in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        if precision == "fp8" and capability < FP8_CAPABILITY:
            unknown[precision] = "the card has no fp8 arithmetic"
            continue
        for edge in SIZES:
            try:
                found = rate(torch, product(torch, precision, edge), 2.0 * edge**3)
                rates.setdefault(precision, {})[str(edge)] = found
            except RuntimeError as error:  # torch raises it for what a library or a card lacks
                unknown[f"{precision} {edge}"] = str(error).splitlines()[0][:300]
    return {
        "name": properties.name,
        "uuid": str(properties.uuid),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "array_bytes": size,
        "bandwidth": bandwidths(torch, size),
        "rates": rates,
        "latency": latencies(torch),
        "unknown": unknown,
    }


def main() -> int:
    """Measure the first GPU that torch sees; one JSON document on standard output."""
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("torch sees no GPU\n")
        return NO_DEVICE
    sys.stdout.write(json.dumps(measure(torch), allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
