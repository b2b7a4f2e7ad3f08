"""Everything the judge learned about one submission on one device."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.device import Device, Environment, Isolation, Limits
from kernelassay.records.finding import Finding, Force, Measurement
from kernelassay.records.problem import Edition, Tier
from kernelassay.records.status import Status, TimingState, Verdict
from kernelassay.records.submission import Submission
from kernelassay.records.timing import Timing

SCHEMA_VERSION: Literal["1"] = "1"
WAIT = "wait"
"""Name of the phase in which a grade waits for its device: the machine's time, not the submission's."""
ACCUSATIONS = (Verdict.REWARD_HACK, Verdict.RUBRIC_LEAK, Verdict.CONTAMINATED)


class Case(Record):
    """One (shape, case, seed) on which outputs are compared."""

    shape: str
    case: str
    seed: int = Field(ge=0)
    """Revealed when the grade is written; drawn after the worker had settled."""
    weights_seed: int = Field(default=0, ge=0)
    """Seed of the weights' generator, shared by all cases of a shape; 0 where there are no weights."""


class CaseResult(Record):
    """What one case gave."""

    case: Case
    status: Status
    usage: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Largest share of the tolerance used; None where an exact rule broke or nothing was compared."""
    message: str = ""
    """Why it is not `correct`."""
    call_us: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What the worker's clock says this one call took: a claim, never a score."""


class ProblemRef(Record):
    """The problem as it was when the grade was made."""

    name: str
    version: int
    content_hash: str
    """SHA-256 over the problem's files."""
    edition: Edition = Edition.UNFROZEN
    tier: Tier


class ProbeResult(Record):
    """What one probe found; its findings stand with the grade's."""

    name: str
    proves: str
    """What a genuine submission shows in it."""
    state: Literal["passed", "failed", "unresolved", "not_applicable"]
    note: str = ""
    measured: tuple[Measurement, ...] = ()
    seconds: float = Field(ge=0)


class Phase(Record):
    """How long one phase of the grade took, on the judge's wall clock."""

    name: str
    seconds: float = Field(ge=0)


class Artefact(Record):
    """A file kept beside the grade."""

    path: str
    sha256: str
    what: str


class Grade(Record):
    """Everything the judge learned about one submission on one device."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    id: str = Field(pattern=r"^g-[0-9]{8}T[0-9]{6}-[0-9a-f]{8}$")
    created_at: datetime
    problem: ProblemRef
    submission: Submission
    device: Device
    environment: Environment
    isolation: Isolation | None
    """None when nothing of the submission ran."""
    limits: Limits
    status: Status
    timing: Timing
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why this verdict, most important first."""
    score: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Geomean over shapes of floor / time; None is unknown, never zero."""
    findings: tuple[Finding, ...] = ()
    cases: tuple[CaseResult, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    cases_planned: int = Field(ge=0)
    """How many the plan held; fewer results mean that the grade stopped early."""
    secret_commitment: str | None = None
    """SHA-256 of the secret that every seed derives from."""
    secret: str | None = None
    """The secret, hexadecimal, revealed with the grade."""
    phases: tuple[Phase, ...] = ()
    artefacts: tuple[Artefact, ...] = ()

    @property
    def judged_s(self) -> float:
        """Seconds that judging took, without those in which it waited for the device."""
        return sum(phase.seconds for phase in self.phases if phase.name != WAIT)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _refuse_impossible(self)
        return self


def _refuse_impossible(grade: Grade) -> None:
    convicted = [f for f in grade.findings if f.force is Force.CONVICTS]
    wrong = [c for c in grade.cases if c.status is not Status.CORRECT]
    rules: dict[str, bool] = {
        "only a correct grade with a usable time carries a score": grade.score is None
        or (
            grade.status is Status.CORRECT
            and grade.timing.state in (TimingState.CONFIRMED, TimingState.OUTER_ONLY)
            and grade.verdict in (Verdict.CLEAN, Verdict.RUBRIC_LEAK, Verdict.NEEDS_REVIEW)
        ),
        "a clean verdict needs status correct": grade.verdict is not Verdict.CLEAN or grade.status is Status.CORRECT,
        "a clean verdict stands beside no conviction": grade.verdict is not Verdict.CLEAN or not convicted,
        "an accusation needs a finding that convicts of it": grade.verdict not in ACCUSATIONS
        or any(f.charge is grade.verdict for f in convicted),
        "status correct needs every planned case": grade.status is not Status.CORRECT
        or (len(grade.cases) == grade.cases_planned > 0 and not wrong),
        "status infra and verdict infra go together": (grade.status is not Status.INFRA)
        or grade.verdict is Verdict.INFRA,
        "a verdict has a reason": bool(grade.reasons),
        "finding ids are unique": len({f.id for f in grade.findings}) == len(grade.findings),
    }
    broken = [text for text, holds in rules.items() if not holds]
    if broken:
        raise ValueError("; ".join(broken))
