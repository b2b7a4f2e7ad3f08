#!/usr/bin/env python3
"""Run the test suites, each against a time budget.

The rule: every folder of tests belongs to exactly one row of `SUITES`; a folder without a row, a row without a
folder, a suite without a test, a skipped test and a suite at six times its budget all fail the run, and so does a run
that takes longer than all budgets may add up to; one suite over its own budget is told. `fast` is the half
that `make test` runs (tests not marked `slow`), `all` is everything. The last line is pytest's own form, added up.

    .venv/bin/python scripts/suites.py fast|all [SUITE …] [--list]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
NO_TESTS_COLLECTED = 5  # pytest's exit code
KILL_AFTER = 6  # a suite that takes this many times its budget is ended

# Seconds of one machine with 2 cores and no GPU, both halves together at most:
FAST_TOTAL_S = 15 * 60
ALL_TOTAL_S = 70 * 60  # `.ci/run` promises 75 minutes, of which the set-up of a bare machine takes up to 5


@dataclass(frozen=True)
class Suite:
    """One row: what runs, and how long it may take."""

    name: str
    paths: tuple[str, ...]
    """Below tests/."""
    fast_s: int
    """Budget in `make test`; 0: not part of it."""
    all_s: int
    """Budget in `make test-all`."""


SUITES = (
    Suite("style", ("project/test_style.py",), fast_s=60, all_s=75),
    Suite("project", ("project",), fast_s=40, all_s=500),
    Suite("records", ("records",), fast_s=15, all_s=20),
    Suite("decks", ("decks",), fast_s=110, all_s=420),
    Suite("devices", ("devices",), fast_s=45, all_s=60),
    Suite("sandbox", ("sandbox",), fast_s=90, all_s=250),
    Suite("worker", ("worker",), fast_s=20, all_s=30),
    Suite("session", ("session",), fast_s=30, all_s=50),
    Suite("timing", ("timing",), fast_s=30, all_s=80),
    Suite("probes", ("probes",), fast_s=40, all_s=130),
    Suite("judge", ("judge",), fast_s=70, all_s=325),
    Suite("board", ("board",), fast_s=10, all_s=20),
    Suite("cli", ("cli",), fast_s=65, all_s=330),
    Suite("examples", ("examples",), fast_s=110, all_s=550),
    Suite("hostile", ("hostile",), fast_s=100, all_s=450),
    Suite("redteam", ("redteam",), fast_s=65, all_s=900),
)


@dataclass(frozen=True)
class Outcome:
    """What one suite did."""

    suite: Suite
    seconds: float
    budget_s: int
    tests: int
    failed: int
    skipped: int
    problem: str
    """Why it does not count as passed; empty when it does."""


def unowned() -> list[str]:
    """What is wrong with the table: folders without a row or with two, rows without a folder, budgets too large."""
    listed = [path for suite in SUITES for path in suite.paths]
    owned = {path.split("/")[0] for path in listed}
    there = {file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")}
    wrong = [f"tests/{name} has tests and no row" for name in sorted(there - owned)]
    wrong += [f"row {path!r} names nothing below tests/" for path in listed if not (TESTS / path).exists()]
    wrong += [f"{what!r} stands twice" for what in sorted({path for path in listed if listed.count(path) > 1})]
    fast, everything = sum(s.fast_s for s in SUITES), sum(s.all_s for s in SUITES)
    if fast > FAST_TOTAL_S or everything > ALL_TOTAL_S:
        wrong.append(f"budgets add up to {fast} s and {everything} s; at most {FAST_TOTAL_S} and {ALL_TOTAL_S}")
    return wrong


def arguments(suite: Suite) -> list[str]:
    """The suite's paths, less what rows with a more exact path run themselves."""
    others = [path for other in SUITES if other is not suite for path in other.paths]
    inner = [path for path in others if any(path.startswith(f"{own}/") for own in suite.paths)]
    return [f"tests/{path}" for path in suite.paths] + [f"--ignore=tests/{path}" for path in inner]


def run(suite: Suite, *, fast: bool, extra: list[str]) -> Outcome:
    """Run one suite in a process of its own and account for it."""
    budget = suite.fast_s if fast else suite.all_s
    with tempfile.TemporaryDirectory(prefix="assay-suite-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--durations=3", *arguments(suite)]
        command += [f"--junitxml={report}", f"--basetemp={folder}/tmp"]
        command += [*(["-m", "not slow"] if fast else []), *extra]
        started = time.monotonic()
        problem = ""
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=KILL_AFTER * budget, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code, problem = 1, f"ended after {KILL_AFTER} times its budget"
        seconds = time.monotonic() - started
        tests, failed, skipped = counts(report)
    if not problem:
        if code == NO_TESTS_COLLECTED or tests == 0:
            problem = "ran no test"
        elif code != 0:
            problem = f"pytest ended with {code}"
        elif skipped:
            problem = f"{skipped} skipped: a test runs or does not exist"
    return Outcome(suite, seconds, budget, tests, failed, skipped, problem)


def counts(report: Path) -> tuple[int, int, int]:
    """Tests, failures with errors, and skips of a JUnit report; zeros where there is none."""
    if not report.exists():
        return 0, 0, 0
    rows = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total = {key: sum(int(row.get(key, "0")) for row in rows) for key in ("tests", "failures", "errors", "skipped")}
    return total["tests"], total["failures"] + total["errors"], total["skipped"]


def summary(outcomes: list[Outcome]) -> str:
    """The table of suites and the closing line."""
    lines = [f"{'suite':<12}{'tests':>7}{'failed':>8}{'seconds':>9}{'budget':>8}"]
    for o in outcomes:
        lines.append(
            f"{o.suite.name:<12}{o.tests:>7}{o.failed:>8}{o.seconds:>9.1f}{o.budget_s:>8}  "
            f"{o.problem or ('ok' if o.seconds <= o.budget_s else 'ok, over its budget')}"
        )
    tests, failed = sum(o.tests for o in outcomes), sum(o.failed for o in outcomes)
    skipped, seconds = sum(o.skipped for o in outcomes), sum(o.seconds for o in outcomes)
    lines.append(f"{'total':<12}{tests:>7}{failed:>8}{seconds:>9.1f}{sum(o.budget_s for o in outcomes):>8}")
    parts = [f"{failed} failed"] if failed else []
    parts += [f"{tests - failed - skipped} passed", *([f"{skipped} skipped"] if skipped else [])]
    lines.append(f"{' ' + ', '.join(parts) + f' in {seconds:.2f}s ':=^80}")
    return "\n".join(lines)


def main() -> int:
    """Run the suites of one half, or those named; exit code 1 when any did not pass, 2 for a wrong table or name."""
    parser = argparse.ArgumentParser(description="Run the test suites, each against a time budget.")
    parser.add_argument("half", choices=("fast", "all"))
    parser.add_argument("suites", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="print the table and end")
    parser.add_argument("--pytest", default="", help="more arguments for pytest; budgets are then only reported")
    options = parser.parse_args()
    fast = options.half == "fast"
    wrong = unowned()
    unknown = sorted(set(options.suites) - {suite.name for suite in SUITES})
    if unknown:
        wrong.append(f"no suite {', '.join(unknown)}; there are {', '.join(s.name for s in SUITES)}")
    if wrong:
        print("scripts/suites.py:", *wrong, sep="\n  ", file=sys.stderr)
        print("Next: correct the table SUITES in scripts/suites.py", file=sys.stderr)
        return 2
    chosen = [s for s in SUITES if (s.name in options.suites or not options.suites) and (s.fast_s or not fast)]
    if options.list:
        for suite in chosen:
            print(f"{suite.name:<12}{suite.fast_s:>6}{suite.all_s:>6}  {' '.join(arguments(suite))}")
        return 0
    outcomes = []
    for suite in chosen:
        print(f"── {suite.name} ──", flush=True)
        outcomes.append(run(suite, fast=fast, extra=options.pytest.split()))
    print("\n" + summary(outcomes), flush=True)
    limit = FAST_TOTAL_S if fast else ALL_TOTAL_S
    total = sum(o.seconds for o in outcomes)
    if total > limit:
        print(f"scripts/suites.py: {total:.0f} s in all; at most {limit} s. Next: mark slow tests, or speed them up")
    return 1 if total > limit or any(o.problem for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
