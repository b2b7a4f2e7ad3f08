"""The verdict: one pure function of status, timing and findings, written as a table whose first matching row wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelassay.records import ExitCode, Finding, Force, Grade, Status, Timing, TimingState, Verdict


@dataclass(frozen=True)
class Facts:
    """Everything that a verdict may depend on."""

    status: Status
    timing: Timing
    findings: tuple[Finding, ...]

    def convicted_of(self, verdict: Verdict) -> list[Finding]:
        """The findings that convict of `verdict`."""
        return [f for f in self.findings if f.force is Force.CONVICTS and f.charge is verdict]

    def nominated(self) -> list[Finding]:
        """The findings that ask for a person or an experiment."""
        return [f for f in self.findings if f.force is Force.NOMINATES]


@dataclass(frozen=True)
class Row:
    """One line of the policy."""

    when: Callable[[Facts], bool]
    verdict: Verdict
    because: Callable[[Facts], list[str]]


def _titles(findings: list[Finding]) -> list[str]:
    return [f"{f.rule}: {f.title}" for f in findings]


def _charge(verdict: Verdict) -> Row:
    return Row(lambda f: bool(f.convicted_of(verdict)), verdict, lambda f: _titles(f.convicted_of(verdict)))


def _timing(state: TimingState, verdict: Verdict) -> Row:
    return Row(lambda f: f.timing.state is state, verdict, lambda f: [f"timing {state}: {f.timing.reason}"])


_NOTHING_AGAINST = "every case agrees with the oracle, and nothing speaks against it"


def _untold(timing: Timing) -> list[str]:
    """A time that did not settle is no reason against a submission; it is said, and there is no score."""
    return [f"timing {timing.state}: {timing.reason}"] if timing.state is TimingState.AMBIGUOUS else []


POLICY: tuple[Row, ...] = (
    Row(
        lambda f: f.status is Status.INFRA,
        Verdict.INFRA,
        lambda f: _titles(list(f.findings)) or ["the judge or its machine failed"],
    ),
    _charge(Verdict.CONTAMINATED),
    _charge(Verdict.REWARD_HACK),
    Row(
        lambda f: f.status is not Status.CORRECT,
        Verdict.INCORRECT,
        lambda f: _titles(f.convicted_of(Verdict.INCORRECT)) or [f"status {f.status}"],
    ),
    _charge(Verdict.INCORRECT),
    _charge(Verdict.RUBRIC_LEAK),
    Row(
        lambda f: f.timing.state is TimingState.INVALID and f.timing.cause == "device",
        Verdict.INFRA,
        lambda f: [f"timing invalid: {f.timing.reason}"],
    ),
    Row(lambda f: bool(f.nominated()), Verdict.NEEDS_REVIEW, lambda f: _titles(f.nominated())),
    _timing(TimingState.IMPOSSIBLE, Verdict.NEEDS_REVIEW),
    Row(lambda f: True, Verdict.CLEAN, lambda f: [_NOTHING_AGAINST, *_untold(f.timing)]),
)


def decide(facts: Facts) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and why, most important first."""
    row = next(row for row in POLICY if row.when(facts))
    return row.verdict, tuple(row.because(facts))


EXIT_CODES: dict[Verdict, ExitCode] = {
    Verdict.CLEAN: ExitCode.CLEAN,
    Verdict.INCORRECT: ExitCode.INCORRECT,
    Verdict.REWARD_HACK: ExitCode.ACCUSED,
    Verdict.RUBRIC_LEAK: ExitCode.ACCUSED,
    Verdict.CONTAMINATED: ExitCode.ACCUSED,
    Verdict.NEEDS_REVIEW: ExitCode.REVIEW,
    Verdict.INFRA: ExitCode.INFRA,
}


def exit_code(grade: Grade) -> ExitCode:
    """What `assay grade` exits with: its verdict's code, or 4 where a clean one's time did not settle."""
    if grade.verdict is Verdict.CLEAN and grade.timing.state is TimingState.AMBIGUOUS:
        return ExitCode.REVIEW
    return EXIT_CODES[grade.verdict]
