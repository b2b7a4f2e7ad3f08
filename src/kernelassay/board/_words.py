"""The words and signs for states, the same in the terminal and on a page.

A state is never told by colour alone: each has a sign and a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernelassay.board._text import one_line
from kernelassay.records import Finding, Force, Grade, Isolation, Limits, Status, Timing, TimingState, Verdict

Tone = Literal["good", "bad", "warn", "neutral"]


@dataclass(frozen=True)
class Word:
    """How a state is shown."""

    sign: str
    text: str
    tone: Tone
    meaning: str


VERDICTS: Mapping[Verdict, Word] = {
    Verdict.CLEAN: Word("✓", "clean", "good", "Right and genuine as far as the judge looked."),
    Verdict.INCORRECT: Word("✗", "incorrect", "bad", "A fault of the submission; it pretends nothing."),
    Verdict.REWARD_HACK: Word("⚑", "reward_hack", "bad", "A counter-example shows that it only pretends."),
    Verdict.RUBRIC_LEAK: Word("⚑", "rubric_leak", "warn", "Right, but by another skill than the problem asks for."),
    Verdict.CONTAMINATED: Word("⚑", "contaminated", "bad", "Built from another run's content."),
    Verdict.NEEDS_REVIEW: Word("?", "needs_review", "warn", "A person has to look before anything is published."),
    Verdict.INFRA: Word("!", "infra", "warn", "Not the submission's fault: grade it again."),
}

STATUSES: Mapping[Status, Word] = {
    Status.CORRECT: Word("✓", "correct", "good", "Every graded case agreed with the oracle."),
    Status.WRONG: Word("✗", "wrong", "bad", "A case disagreed with the oracle."),
    Status.CONTRACT: Word("✗", "contract", "bad", "A documented rule was broken."),
    Status.BUILD_FAILED: Word("✗", "build_failed", "bad", "It did not compile, or could not be loaded."),
    Status.CRASHED: Word("✗", "crashed", "bad", "The process died or raised an exception."),
    Status.TIMEOUT: Word("✗", "timeout", "bad", "A phase did not end within its limit."),
    Status.OVER_LIMIT: Word("✗", "over_limit", "bad", "It used more than its limits allow."),
    Status.REFUSED: Word("✗", "refused", "bad", "Intake refused it before anything of it ran."),
    Status.INFRA: Word("!", "infra", "warn", "The judge or the machine failed."),
}

FORCES: Mapping[Force, Word] = {
    Force.INFORMS: Word("i", "informs", "neutral", "Context for a reader; decides nothing."),
    Force.NOMINATES: Word("?", "nominates", "warn", "Asks for an experiment or a person."),
    Force.CONVICTS: Word("✗", "convicts", "bad", "A counter-example that anyone can replay."),
}

_KIB = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Bytes for a reader: `2.5 KiB`."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} {_UNITS[-1]}"


def duration(microseconds: float) -> str:
    """A duration with three significant digits and the unit that fits."""
    value = float(f"{microseconds:.3g}")  # rounded first, so that 999.9 µs reads 1 ms and not 1e+03 µs
    for bound, divisor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if value < bound:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 1e6:.3g} s" if value < 1e9 else f"{value / 1e6:.0f} s"


def timing_words(timing: Timing) -> str:
    """`invalid (no clock yet)`, `confirmed`."""
    return timing.state.value if timing.state is TimingState.CONFIRMED else f"{timing.state.value} ({timing.reason})"


def isolation_words(isolation: Isolation | None) -> str:
    """One line on how the submission was confined."""
    if isolation is None:
        return "nothing of the submission ran"
    memory = {"cgroup": "memory limit by cgroup", "watchdog": "memory limit by watchdog"}[isolation.memory]
    uid = "a user id of its own" if isolation.uid_dropped else "the caller's user id"
    return f"{isolation.level}, {memory}, {uid}"


def limits_rows(limits: Limits) -> tuple[tuple[str, str], ...]:
    """The limits of a grade with units."""
    return (
        ("build", f"{limits.build_s:g} s"),
        ("load", f"{limits.load_s:g} s"),
        ("prepare", f"{limits.prepare_s:g} s"),
        ("one call", f"{limits.call_s:g} s"),
        ("memory", size(limits.memory_bytes)),
        ("processes", str(limits.processes)),
        ("one file, and all of the scratch", size(limits.file_bytes)),
        ("output and error text", size(limits.output_bytes)),
    )


def cases_words(grade: Grade) -> str:
    """`70 of 70 passed`, and whether the plan ended early."""
    passed = sum(case.status is Status.CORRECT for case in grade.cases)
    if grade.cases_planned == 0:
        return "none planned"
    words = f"{passed} of {grade.cases_planned} passed"
    missing = grade.cases_planned - len(grade.cases)
    return words if missing <= 0 else f"{words}, {missing} not run"


def first_failure(grade: Grade) -> Finding | None:
    """The finding that explains a verdict other than clean: the one of the first failing case where there is one."""
    if grade.verdict is Verdict.CLEAN:
        return None
    failed = next((case.case for case in grade.cases if case.status is not Status.CORRECT), None)
    for finding in grade.findings:
        recipe = finding.recipe
        if failed is not None and recipe is not None and (recipe.shape, recipe.case) == (failed.shape, failed.case):
            return finding
    shown = [finding for finding in grade.findings if finding.expected is not None]
    shown += [finding for finding in grade.findings if finding.force is not Force.INFORMS]
    return next(iter([*shown, *grade.findings]), None)


def measured_words(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Name and value of what a finding measured, for a reader; what its detail says already is left out."""
    rows = []
    for measured in finding.measured:
        value = measured.value
        words = ("yes" if value else "no") if isinstance(value, bool) else f"{value} {measured.unit}".rstrip()
        if words != finding.detail:
            rows.append((one_line(measured.name.replace("_", " ")), one_line(words)))
    return tuple(rows)
