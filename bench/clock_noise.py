#!/usr/bin/env python3
"""How far a machine's own noise lets any clock settle: rounds of the C++ top-k for minutes, reduced in windows.

For each shape and window length: how far the median, the lower quartile, the lowest tenth and the minimum of a window's
rounds differ from window to window. No estimator over a window can be more repeatable than the best of these.

.venv/bin/python bench/clock_noise.py [--seconds S]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
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
K = 64
WINDOWS_S = (1.0, 4.0, 10.0, 20.0)


def at(share: float) -> Callable[[list[float]], float]:
    """The order statistic at that share."""
    return lambda values: sorted(values)[int(share * (len(values) - 1))]


ESTIMATORS: dict[str, Callable[[list[float]], float]] = {
    "median": statistics.median,
    "quartile": at(0.25),
    "tenth": at(0.1),
    "minimum": min,
}


def rounds(seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Shape → (when, µs of a round of K calls), all shapes in turn."""
    loaded, sandbox, displace = load("ops/topk"), Sandbox(), Displacer(64 << 20)
    judge_cpu, cpus = device_cpus()
    out: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, awake((judge_cpu, *cpus)):
        taken = take_in(ROOT / "examples" / "topk_cpp", Path(name) / "source")
        manifest = taken.submission.manifest
        shutil.copytree(taken.folder, Path(name) / "loaded")
        build(sandbox, taken.folder, manifest, Path(name) / "loaded", Limits())
        job = Job(loaded.problem, Path(name) / "loaded", manifest, manifest.entry, Limits(), len(cpus), cpus)
        os.sched_setaffinity(0, {judge_cpu})
        with Session(sandbox, job) as session:
            session.load()
            prepared = []
            for shape in loaded.problem.tier(Tier.SMALL):
                rig = Rig(session, shape)
                sets = [draw(loaded, shape, "nominal", seed, 0).inputs for seed in range(K)]
                prepared.append((shape.key, rig, Batch(rig, K), sets))
            start = time.monotonic()
            while time.monotonic() - start < seconds:
                for key, rig, batch, sets in prepared:
                    rig.call(sets[0])
                    made = batch.round(sets, frozen=displace)
                    out[key].append((time.monotonic() - start, made.elapsed_us))
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for key, samples in rounds(options.seconds).items():
        print(f"{key}: {len(samples)} rounds, median {statistics.median(us for _, us in samples):.0f} µs")
        for window in WINDOWS_S:
            groups: dict[int, list[float]] = defaultdict(list)
            for when, us in samples:
                groups[int(when / window)].append(us)
            full = list(groups.values())[:-1]
            if len(full) < 4:
                continue
            told = []
            for name, estimate in ESTIMATORS.items():
                values = [estimate(values) for values in full]
                told.append(f"{name} {100 * (max(values) / min(values) - 1):5.1f} %")
            print(f"  {len(full):4} windows of {window:4g} s, largest over least: {', '.join(told)}")


if __name__ == "__main__":
    main()
