#!/usr/bin/env python3
"""How much the outer clock's rounds scatter on this machine, by K: with the C++ top-k, and without a submission.

.venv/bin/python bench/clock_jitter.py [--rounds N] [--flush-mib M] [--k K …] [--asleep]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path

import torch

from kernelassay.decks import draw, load
from kernelassay.devices import device_cpus
from kernelassay.judge._build import build
from kernelassay.judge._intake import take_in
from kernelassay.records import Limits, Tier
from kernelassay.sandbox import Sandbox
from kernelassay.session import Batch, Job, Rig, Session
from kernelassay.timing import Displacer, awake

ROOT = Path(__file__).resolve().parent.parent


def spread(values: list[float]) -> str:
    """Median, interquartile range, minimum and maximum in µs."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"median {middle:8.1f}  iqr {high - low:7.1f}  min {min(values):8.1f}  max {max(values):8.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--flush-mib", type=int, default=64)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 32, 64, 128, 256])
    parser.add_argument("--submission", type=Path, default=ROOT / "examples" / "topk_cpp")
    parser.add_argument("--displace-all", action="store_true", help="read a large buffer instead of evicting lines")
    parser.add_argument("--asleep", action="store_true", help="do not keep the cores awake")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded, sandbox = load("ops/topk"), Sandbox()
    displace = Displacer(options.flush_mib << 20, by_line=False if options.displace_all else None)
    judge_cpu, cpus = device_cpus()
    kept = () if options.asleep else (judge_cpu, *cpus)
    with tempfile.TemporaryDirectory() as name, awake(kept):
        taken = take_in(options.submission, Path(name) / "source")
        manifest = taken.submission.manifest
        shutil.copytree(taken.folder, Path(name) / "loaded")
        build(sandbox, taken.folder, manifest, Path(name) / "loaded", Limits())
        job = Job(loaded.problem, Path(name) / "loaded", manifest, manifest.entry, Limits(), len(cpus), cpus)
        os.sched_setaffinity(0, {judge_cpu})
        for clean in (True, False):
            with Session(sandbox, job) as session:
                session.load_nothing() if clean else session.load()
                for shape in loaded.problem.tier(Tier.SMALL)[:2]:
                    rig = Rig(session, shape)
                    batch = Batch(rig, max(options.k))
                    sets = [draw(loaded, shape, "nominal", seed, 0).inputs for seed in range(max(options.k))]
                    for k in options.k:
                        times, frozen = [], []
                        for _ in range(options.rounds):
                            rig.call(sets[0])
                            made = batch.round(sets[:k], frozen=displace)
                            times.append(made.done_us if clean else made.elapsed_us)
                            frozen.append(made.elapsed_us - made.done_us)
                        print(
                            "w" if clean else "T",
                            f"{shape.key:18} K={k:4}",
                            spread(times),
                            f"freezing {statistics.median(frozen):5.0f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
