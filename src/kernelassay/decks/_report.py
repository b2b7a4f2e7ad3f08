"""What lint found, as data; `LintReport.model_dump(mode="json")` is what `assay deck lint --json` prints.

A usage of None means that an exact rule was broken (an infinite usage has no form in JSON).
"""

from __future__ import annotations

from pydantic import Field, computed_field

from kernelassay.records import Record


class Survivor(Record):
    """A null or mutant that no case rejected: the tolerance or the cases are broken."""

    name: str
    case: str
    """The case that came nearest to rejecting it."""
    shape: str
    usage: float | None


class NullCount(Record):
    """Submissions that compute nothing of the operation."""

    rejected: int = 0
    total: int = 0
    survivors: tuple[Survivor, ...] = ()
    not_applicable: tuple[str, ...] = ()
    """Nulls that have no meaning for this problem; they are not in `total`."""


class MutantResult(Record):
    """One mutant against the cases that were run."""

    name: str
    case: str | None = None
    """The case that rejected it first; None: none did."""
    shape: str | None = None
    rule: str | None = None
    """The rule that it broke there."""
    usage: float | None = None
    """Largest usage over the cases that were run."""
    usage_case: str | None = None
    rejecting: int = 0
    """How many cases rejected it; with `full` over all of them, else 0 or 1."""
    cases: int = 0
    """How many were run."""
    expect: float | None = None
    """What `problem.yaml` gives for it."""
    thin: bool = False
    """With `full`: rejected, but by less than 3 times the tolerance."""


class MutantCount(Record):
    """The reference with one semantic part dropped or changed."""

    rejected: int = 0
    total: int = 0
    survivors: tuple[Survivor, ...] = ()
    results: tuple[MutantResult, ...] = ()


class LegalResult(Record):
    """One honest pipeline over every case."""

    name: str
    passed: bool
    usage: float | None
    """Worst usage."""
    case: str
    shape: str
    message: str = ""


class LegalCount(Record):
    """Honest low-precision pipelines."""

    passed: int = 0
    total: int = 0
    results: tuple[LegalResult, ...] = ()


class LintReport(Record):
    """One problem: may it be published?"""

    name: str
    content_hash: str
    nulls: NullCount
    mutants: MutantCount
    legal: LegalCount
    errors: tuple[str, ...] = ()
    """Breaches of what a deck promises (reproducible draws, untouched inputs, an eager reference that passes, …)."""
    full: bool = False
    seconds: float = Field(default=0.0, ge=0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Every null and mutant is rejected, every legal pipeline passes, nothing else is wrong."""
        return (
            self.nulls.rejected == self.nulls.total > 0
            and self.mutants.rejected == self.mutants.total > 0
            and self.legal.passed == self.legal.total > 0
            and not self.errors
        )
