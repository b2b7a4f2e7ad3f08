#!/usr/bin/env python3
"""The full tier on a GPU: the oracle's time and peak memory, and how much of the tolerance honest kernels use there.

Per problem, shape and case: the oracle's answer, then the plain torch submission and, on the nominal case and those
named by --legal-cases, every legal pipeline, compared by the problem's own comparator. Cases are drawn on the device.
A row is appended to --out when it is done, and rows that are there already are not measured again.

bench/device/full_tier.py PROBLEM … [--out ROWS.jsonl] [--seconds S] [--table docs/full-tier.md]
bench/device/full_tier.py --table docs/full-tier.md --out ROWS.jsonl    (writes the page from the rows, needs no GPU)
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from kernelassay.decks import LoadedProblem, compare, draw, expect, load, problem_names, run_model
from kernelassay.records import Shape, Tier

ROOT = Path(__file__).resolve().parent.parent.parent
SHORT = {"w4a16_gemm": "w4a16", "mingru_rollout": "mingru"}
SEED = 20261130
"""Of the weights; of a case, with its number from 1 added. Never the same two: on a GPU equal seeds give x and weights
that are one stream, and their products are no sums of independent terms."""
GIB = 1 << 30
Row = dict[str, Any]


def submission(problem: str) -> type[torch.nn.Module]:
    """Class `Model` of the problem's plain torch submission."""
    name = problem.rpartition("/")[2]
    path = ROOT / "examples" / f"{SHORT.get(name, name)}_torch" / "solution.py"
    spec = importlib.util.spec_from_file_location(f"submission_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: type[torch.nn.Module] = module.Model
    return model


def timed(device: str, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, seconds, and GiB that the work held at most beyond what was held before."""
    before = peak = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    return result, time.perf_counter() - start, max(0, peak - before) / GIB


def measure(loaded: LoadedProblem, shape: Shape, case: str, device: str, legal: bool) -> Row:
    """One row."""
    number = [c.name for c in loaded.problem.cases].index(case)
    tensors, draw_s, _ = timed(device, lambda: draw(loaded, shape, case, SEED + 1 + number, SEED, device=device))
    held = sum(t.numel() * t.element_size() for t in (*tensors.weights.values(), *tensors.inputs.values())) / GIB
    answer, oracle_s, oracle_gib = timed(device, lambda: expect(loaded, tensors))
    model = submission(loaded.problem.name)
    result, call_s, call_gib = timed(device, lambda: run_model(loaded, tensors, answer, model))
    verdict, compare_s, compare_gib = timed(device, lambda: compare(loaded, tensors, answer, result))
    row: Row = {
        "problem": loaded.problem.name,
        "content": loaded.content_hash[:12],
        "shape": shape.key,
        "tier": shape.tier.value,
        "case": case,
        "draw_s": draw_s,
        "tensors_gib": held,
        "oracle_s": oracle_s,
        "oracle_gib": oracle_gib,
        "submission_s": call_s,
        "submission_gib": call_gib,
        "compare_s": compare_s,
        "compare_gib": compare_gib,
        "usage": verdict.usage,
        "passed": verdict.passed,
        "why": "; ".join(m.message for m in verdict.mismatches)[:200],
    }
    if legal:
        row["legal"] = {}
        for name, pipeline in loaded.reference.legal.items():
            try:
                got = pipeline(tensors.weights, tensors.inputs, shape)
                row["legal"][name] = compare(loaded, tensors, answer, got).usage
            except torch.OutOfMemoryError:
                row["legal"][name] = None
    return row


def key(row: Row) -> tuple[str, str, str, str]:
    """What makes a row the same measurement."""
    return row["problem"], row["content"], row["shape"], row["case"]


def read(path: Path) -> list[Row]:
    """The rows that are there; a line that a killed run left half-written is none."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def measure_all(names: Iterable[str], out: Path, tiers: set[Tier], seconds: float, device: str, every: bool) -> None:
    """Measure what is missing, until `seconds` have passed."""
    started, have = time.monotonic(), {key(row) for row in read(out)}
    about = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    problems = {name: load(name) for name in names}
    todo = [
        (name, shape, case.name)
        for name, loaded in problems.items()
        for shape in loaded.problem.shapes
        for case in loaded.problem.cases
        if shape.tier in tiers and case.graded
    ]
    for name, shape, case in sorted(todo, key=lambda one: one[2] != "nominal"):  # stable: every nominal case first
        loaded = problems[name]
        if (name, loaded.content_hash[:12], shape.key, case) not in have:
            if time.monotonic() - started > seconds:
                print("out of time; run the same command again to go on")
                return
            try:
                row = measure(loaded, shape, case, device, every or case == "nominal")
            except Exception as error:  # one broken row must not cost the others
                print(name, shape.key, case, f"{type(error).__name__}: {str(error)[:300]}", flush=True)
                traceback.print_exc(limit=-3)
                continue
            worst = max((u for u in row.get("legal", {}).values() if u is not None), default=None)
            print(
                f"{name} {shape.key} {case}: draw {row['draw_s']:.2f} s, oracle {row['oracle_s']:.3f} s "
                f"+{row['oracle_gib']:.2f} GiB, usage {row['usage']:.3f} {'ok' if row['passed'] else row['why']}"
                + (f", legal {worst:.3f}" if worst is not None else ""),
                flush=True,
            )
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a") as file:
                file.write(json.dumps(row | about) + "\n")
            if device == "cuda":
                torch.cuda.empty_cache()


COLUMNS = {
    "tensors GiB": "tensors_gib",
    "oracle s": "oracle_s",
    "oracle GiB": "oracle_gib",
    "compare s": "compare_s",
    "compare GiB": "compare_gib",
    "call GiB": "submission_gib",
}
"""Heading → field; a cell is the maximum over the shape's cases."""


def line(shape: str, rows: list[Row]) -> list[str]:
    """The cells of one shape."""
    worst = max(rows, key=lambda row: row["usage"])
    legal = [
        (use, f"{name} in {row['case']}")
        for row in rows
        for name, use in row.get("legal", {}).items()
        if use is not None
    ]
    use, where = max(legal, default=(None, ""))
    return [
        shape,
        f"{sum(row['passed'] for row in rows)} of {len(rows)}",
        *(f"{max(row[field] for row in rows):.3g}" for field in COLUMNS.values()),
        f"{worst['usage']:.2f} ({worst['case']})",
        "" if use is None else f"{use:.2f} ({where})",
    ]


def table(rows: list[Row]) -> str:
    """The page: per problem and shape the worst over its cases; it says where all rows are of an earlier version."""
    current = {name: load(name).content_hash[:12] for name in {row["problem"] for row in rows}}
    fresh = {row["problem"] for row in rows if row["content"] == current[row["problem"]]}
    rows = [row for row in rows if row["problem"] not in fresh or row["content"] == current[row["problem"]]]
    about = sorted({(row["device"], row["torch"], row["date"]) for row in rows})
    lines = [
        "# The full tier on a GPU",
        "",
        "The oracle beside the plain torch submission of every problem (`examples/`), judged on every graded case of",
        "tiers full and full+, drawn on the device. Usage is the share of the tolerance that was used; above 1 is a",
        "rejection. GiB: what the step held at most beyond the case's own tensors.",
        "",
        f"Measured with {'; '.join(f'{d}, torch {t}, {day}' for d, t, day in about)}. Printed by",
        "`bench/device/full_tier.py --table docs/full-tier.md --out bench/data/full-tier.jsonl`; the rows are those of",
        "`bench/device/full_tier.py all --legal-everywhere` on the device.",
        "",
    ]
    head = ["shape", "cases passed", *COLUMNS, "worst usage", "worst legal pipeline"]
    for problem in sorted({row["problem"] for row in rows}):
        mine = [row for row in rows if row["problem"] == problem]
        stale = "" if problem in fresh else " (measured with an earlier version of its files)"
        lines += [f"## {problem}{stale}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for shape in dict.fromkeys(row["shape"] for row in mine):
            cells = line(shape, [row for row in mine if row["shape"] == shape])
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="names; `all` is every problem")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "data" / "full-tier.jsonl")
    parser.add_argument("--seconds", type=float, default=450, help="start no row after this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tier", nargs="+", default=["full", "full+"])
    parser.add_argument("--legal-everywhere", action="store_true", help="legal pipelines on every case")
    parser.add_argument("--table", type=Path, help="write this page from the rows")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    names = problem_names() if options.problems == ["all"] else options.problems
    tiers = {Tier(tier) for tier in options.tier}
    if names:
        measure_all(names, options.out, tiers, options.seconds, options.device, options.legal_everywhere)
    if options.table:
        options.table.write_text(table(read(options.out)))


if __name__ == "__main__":
    main()
