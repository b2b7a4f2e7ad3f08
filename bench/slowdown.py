#!/usr/bin/env python3
"""How often `assay compare` finds a slow-down of a known size: the C++ top-k against itself with every call prolonged.

.venv/bin/python bench/slowdown.py [--trials N] [--percent P] [--shape KEY] [--tier TIER] [--pairs N]

Each trial is a whole comparison with its own builds, secrets and fresh processes. Exit code 0 when at least nine of ten
trials say `slower` (with `--percent 0`: when none does).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kernelassay.judge import VersusRequest, versus
from kernelassay.judge._versus import PAIRS
from kernelassay.records import Tier
from kernelassay.timing import Relation

ROOT = Path(__file__).resolve().parent.parent
PROLONGED = """
#include <chrono>
extern "C" int prolonged(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const auto begun = std::chrono::steady_clock::now();
    const int code = topk(inputs, outputs, shape);
    const auto end = begun + (std::chrono::steady_clock::now() - begun) * (100 + PERCENT) / 100;
    while (std::chrono::steady_clock::now() < end) continue;
    return code;
}
"""


def prolonged(folder: Path, percent: int) -> Path:
    """The C++ top-k, each call of which spins for `percent` of its own time before it returns."""
    shutil.copytree(ROOT / "examples" / "topk_cpp", folder)
    kernel, manifest = folder / "kernel.cpp", folder / "submission.yaml"
    kernel.write_text(kernel.read_text() + PROLONGED.replace("PERCENT", str(percent)))
    manifest.write_text(manifest.read_text().replace("symbol: topk", "symbol: prolonged"))
    return folder


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--percent", type=int, default=10)
    parser.add_argument("--shape", default="small-8x1024x8")
    parser.add_argument("--tier", type=Tier, default=Tier.SMALL)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        # Both sides pay for reading the clock: what differs is the spin alone.
        plain, slow = prolonged(Path(name) / "plain", 0), prolonged(Path(name) / "slow", options.percent)
        for trial in range(1, options.trials + 1):
            begun = time.monotonic()
            request = VersusRequest(
                plain, slow, "ops/topk", tier=options.tier, shapes=(options.shape,), pairs=options.pairs
            )
            one = versus(request).result.shapes[0]
            found[one.relation.value] += 1
            ratio = "–" if one.ratio is None else f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]"
            print(
                f"{trial:3} {one.relation.value:10} {ratio}  {time.monotonic() - begun:.0f} s  {one.reason}", flush=True
            )
    slower = found[Relation.SLOWER.value]
    print(f"{options.percent} % slower: found in {slower} of {options.trials}; {dict(found)}")
    return 0 if (slower >= 0.9 * options.trials if options.percent else slower == 0) else 1


if __name__ == "__main__":
    sys.exit(main())
