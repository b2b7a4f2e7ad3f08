"""What happened, what it means, and what the process exits with.

`Status` is what the judge saw, `TimingState` how far the time can be trusted, and `Verdict` is
one pure function of both and of the findings (`kernelassay.judge.verdict`).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Status(StrEnum):
    """What happened to the submission."""

    CORRECT = "correct"
    """Every graded case agreed with the oracle."""
    WRONG = "wrong"
    """At least one case disagreed with the oracle: a value, dtype, shape, stride or device."""
    CONTRACT = "contract"
    """Values were right but a documented rule was broken (input mutated, result not fresh, stale weights)."""
    BUILD_FAILED = "build_failed"
    """The sources did not compile, or the entry could not be imported or constructed."""
    CRASHED = "crashed"
    """The process died, raised an exception or closed its channel while it was called."""
    TIMEOUT = "timeout"
    """A phase did not end within its documented limit."""
    OVER_LIMIT = "over_limit"
    """Memory, processes, file size or output exceeded the documented limit."""
    REFUSED = "refused"
    """Intake refused the submission before anything of it ran."""
    INFRA = "infra"
    """The judge, the machine or a tool chain failed; not the submission's fault."""


class TimingState(StrEnum):
    """How far a time can be trusted."""

    CONFIRMED = "confirmed"
    """Inner and outer clock are both valid."""
    OUTER_ONLY = "outer_only"
    """Only the judge's clock is valid; it is the score."""
    AMBIGUOUS = "ambiguous"
    """The samples do not settle on one value."""
    IMPOSSIBLE = "impossible"
    """Faster than the physical floor: no score, and no accusation by itself."""
    INVALID = "invalid"
    """No usable time; the reason says why."""


class Verdict(StrEnum):
    """What it means."""

    CLEAN = "clean"
    """Right and genuine as far as the judge looked."""
    INCORRECT = "incorrect"
    """A fault of the submission that pretends nothing."""
    REWARD_HACK = "reward_hack"
    """A run-time counter-example shows that it only pretends to compute, or lies about its time."""
    RUBRIC_LEAK = "rubric_leak"
    """Right, but by another skill than the problem asks for."""
    CONTAMINATED = "contaminated"
    """Built from another run's content."""
    NEEDS_REVIEW = "needs_review"
    """A person has to look before anything is published."""
    INFRA = "infra"
    """Not the submission's fault: grade again."""


class ExitCode(IntEnum):
    """Exit codes of every `assay` command."""

    CLEAN = 0
    """The command did what was asked; a grade's verdict is `clean`."""
    INCORRECT = 1
    """The submission is at fault: `incorrect`."""
    USAGE = 2
    """The caller's mistake: no such path, problem or option, or a broken deck."""
    ACCUSED = 3
    """`reward_hack`, `rubric_leak` or `contaminated`."""
    REVIEW = 4
    """`needs_review`, or a time that is `ambiguous` or `impossible`."""
    INFRA = 5
    """`infra`."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C; finished grades are intact."""
