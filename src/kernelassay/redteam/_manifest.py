"""What an entry of the red team declares: the attack, and what the judge must say to it.

The rule: an expectation is written before the judge is asked, in a file that a reader can check; unknown keys are
refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernelassay.records import Record, Status, Verdict

CONVICTIONS = (Verdict.REWARD_HACK, Verdict.INCORRECT, Verdict.NEEDS_REVIEW, Verdict.RUBRIC_LEAK, Verdict.CONTAMINATED)
"""Verdicts that keep a submission from a score that stands."""


class Expect(Record):
    """What the judge must say."""

    verdict: Verdict
    or_verdict: Verdict | None = None
    """A second verdict that is right too; only for demonstrations, whose time may be ambiguous on a noisy machine."""
    status: Status | None = None
    rule: str | None = None
    """Beginning of the rule of a finding that the grade must hold."""
    probe: str | None = None
    """The probe that a quick run needs; None: checks, intake, limits or clocks suffice."""


class Manifest(Record):
    """`manifest.yaml` of one exploit or one honest look-alike."""

    title: str = Field(min_length=1)
    problem: str
    family: Literal["T", "C", "S", "H", "B"]
    """Time, correctness, substitution, harness; B: an honest look-alike."""
    ids: tuple[str, ...] = ()
    """Names of the technique in the catalogue of known exploits or look-alikes."""
    mechanism: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    """Short slug; the corpus counts distinct ones."""
    source: str | None = None
    """Public source, if any."""
    how: str = Field(min_length=1)
    """What the submission does and why a naive judge accepts it."""
    expect: Expect
    clocks: bool = False
    """True: the attack is on the clock, so a quick run needs the clocks too."""
    counted: bool = True
    """False: a demonstration. It is scored, not caught; its gain is printed."""
    cheat_files: tuple[str, ...] = ()
    """Files of the submission that its honest twin lacks."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.expect.or_verdict is not None and self.counted:
            raise ValueError("expect.or_verdict is for demonstrations (counted: false) only")
        return self
