#!/usr/bin/env python3
"""Both clocks on honest kernels: do they agree, and how far do the medians of repeated grades lie apart?

.venv/bin/python bench/honest_clocks.py [--grades N] [--only NAME] [--out FILE]

Each row is one shape of one submission: the median over the grades of the inner and the outer value, whether they
agree within 5 % + 2 µs, how often the time was confirmed, and the spread of the score times, (max − min) / median.
Every grade is a real one without probes; its record stays in the home.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from kernelassay.judge import GradeRequest, grade
from kernelassay.records import Tier

ROOT = Path(__file__).resolve().parent.parent
KERNELS = (
    ("topk_cpp", "ops/topk", Tier.SMALL),
    ("topk_cpp", "ops/topk", Tier.FULL),
    ("topk_torch", "ops/topk", Tier.SMALL),
    ("topk_torch", "ops/topk", Tier.FULL),
    ("w4a16_cpp", "ops/w4a16_gemm", Tier.SMALL),
    ("w4a16_torch", "ops/w4a16_gemm", Tier.SMALL),
    ("mingru_cpp", "cuda/mingru_rollout", Tier.SMALL),
    ("mingru_torch", "cuda/mingru_rollout", Tier.SMALL),
)
"""Submission below examples/, problem, tier."""
ABS_US, REL = 2.0, 0.05
"""The clocks of an honest kernel differ by at most the sum of these."""


def row(name: str, shape: str, timings: list[Any]) -> dict[str, Any]:
    """What the grades of one submission say of one shape."""
    both = [t for t in timings if t.inner is not None and t.outer is not None]
    times = [t.time.median_us for t in timings if t.time is not None]
    inner = statistics.median(t.inner.median_us for t in both) if both else None
    outer = statistics.median(t.outer.median_us for t in both) if both else None
    agree = inner is not None and outer is not None and abs(inner - outer) <= ABS_US + REL * max(inner, outer)
    return {
        "kernel": name,
        "shape": shape,
        "inner_us": inner,
        "outer_us": outer,
        "agree": agree,
        "confirmed": sum(t.state.value == "confirmed" for t in timings),
        "grades": len(timings),
        "spread": (max(times) - min(times)) / statistics.median(times) if len(times) > 1 else None,
        "states": [t.state.value for t in timings],
        "checks": sorted({check.name for t in timings for check in t.checks}),
        "labels": sorted({label for t in timings for label in t.labels}),
        "times_us": times,
    }


def told(found: dict[str, Any]) -> str:
    """One line of the table."""
    spread = "" if found["spread"] is None else f"{100 * found['spread']:6.1f} %"
    values = [found["inner_us"], found["outer_us"]]
    clocks = " ".join(f"{value:10.2f}" if value is not None else f"{'–':>10}" for value in values)
    return (
        f"{found['kernel']:13} {found['shape']:22} {clocks}  {'agree' if found['agree'] else 'differ':7}"
        f"{found['confirmed']}/{found['grades']} confirmed {spread}"
    )


def main() -> int:
    """Print the table; exit code 0 when both clocks agree on every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grades", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="NAME or NAME:TIER")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'kernel':13} {'shape':22} {'inner µs':>10} {'outer µs':>10}", flush=True)
    for name, problem, tier in KERNELS:
        if options.only and not {name, f"{name}:{tier.value}"} & set(options.only):
            continue
        graded = [
            grade(GradeRequest(ROOT / "examples" / name, problem, tier=tier, probes=frozenset())).grade
            for _ in range(options.grades)
        ]
        by_shape: dict[str, list[Any]] = {}
        for one in graded:
            if not one.timing.shapes:
                print(f"{name:13} {tier.value}: {one.verdict.value}, not timed: {'; '.join(one.reasons)[:300]}")
            for timing in one.timing.shapes:
                by_shape.setdefault(timing.shape, []).append(timing)
        for shape, timings in by_shape.items():
            rows.append(row(name, shape, timings))
            print(told(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows and all(found["agree"] for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
