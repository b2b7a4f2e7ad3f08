"""One piece of evidence. Static findings nominate; only a run-time counter-example convicts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.status import Verdict


class Force(StrEnum):
    """How much a finding may decide."""

    INFORMS = "informs"
    """Context for a reader; decides nothing."""
    NOMINATES = "nominates"
    """Asks for an experiment or a person; alone it can only lead to `needs_review`."""
    CONVICTS = "convicts"
    """Holds a counter-example that anyone can replay."""


class Measurement(Record):
    """One measured value with its unit; text for what is not a number."""

    name: str
    value: Annotated[float, Field(allow_inf_nan=False)] | int | bool | str
    """Finite when it is a float: JSON has no word for the others."""
    unit: str = ""


class Location(Record):
    """Where a finding points: a file of the submission, or a place in an output."""

    file: str | None = None
    line: int | None = Field(default=None, ge=1)
    output: str | None = None
    """Name of the output tensor."""
    index: tuple[int, ...] | None = None
    """Index of the first offending element, in the output's own axes."""


class Recipe(Record):
    """What `assay reproduce` runs again."""

    stage: Literal["build", "load", "case", "probe"]
    """`case`: one case by its revealed seed; alone first, then after all calls that came before it in the grade."""
    shape: str | None = None
    case: str | None = None
    seed: int = Field(default=0, ge=0)
    """Seed of the case's generator, revealed when the grade is written."""
    weights_seed: int = Field(default=0, ge=0)
    """Seed of the weights' generator; 0 where the problem has no weights."""
    probe: str | None = None
    """Stage `probe`: which one."""


class Finding(Record):
    """One piece of evidence about a submission."""

    id: str = Field(pattern=r"^f[0-9]+$")
    """Unique in its grade; `<grade id>/<id>` is what `assay reproduce` takes."""
    rule: str
    """Dotted name of the rule: `check.selection.values`, `contract.inputs_mutated`, …"""
    force: Force
    charge: Verdict | None = None
    """What it convicts of or nominates for; None when it only informs."""
    title: str
    """One line that a reader understands without the rest."""
    detail: str = ""
    expected: str | None = None
    """What a genuine, right submission gives at the location, written for a reader."""
    actual: str | None = None
    location: Location | None = None
    measured: tuple[Measurement, ...] = ()
    recipe: Recipe | None = None
    reproduce: str | None = None
    """The command that shows it again."""

    @model_validator(mode="after")
    def _conviction_needs_evidence(self) -> Self:
        if (self.charge is None) != (self.force is Force.INFORMS):
            raise ValueError("a finding that convicts or nominates says of what; one that informs charges nothing")
        if self.charge in (Verdict.CLEAN, Verdict.INFRA):
            raise ValueError("nobody is charged with being clean or with a fault of the machine")
        if self.force is Force.CONVICTS and None in (self.expected, self.actual, self.recipe, self.reproduce):
            raise ValueError("a conviction holds an expected value, an actual value and a way to reproduce it")
        return self
