"""One piece of evidence. Static findings nominate; only a run-time counter-example convicts."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record


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
    value: float | int | bool | str
    """Finite when it is a float."""
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
    """What `assay reproduce` runs again: one case, by its revealed seed, or one probe."""

    shape: str
    case: str
    seed: int = Field(ge=0)
    """Seed of the case's generator, revealed when the grade is written."""
    weights_seed: int = Field(default=0, ge=0)
    """Seed of the weights' generator; 0 where the problem has no weights."""
    probe: str | None = None
    """Name of the probe that drew the conclusion; None for a plain check."""


class Finding(Record):
    """One piece of evidence about a submission."""

    id: str
    """Unique in its grade, `f1`, `f2`, …; `<grade id>/<id>` is what `assay reproduce` takes."""
    rule: str
    """Dotted name of the rule, `check.selection.values`, `contract.inputs_mutated`, …"""
    force: Force
    title: str
    """One line that a reader understands without the rest."""
    detail: str = ""
    expected: str | None = None
    """The oracle's value at the location, written for a reader."""
    actual: str | None = None
    location: Location | None = None
    measured: tuple[Measurement, ...] = ()
    recipe: Recipe | None = None
    reproduce: str | None = None
    """The command that shows it again."""

    @model_validator(mode="after")
    def _conviction_needs_evidence(self) -> Self:
        if self.force is Force.CONVICTS and (
            self.expected is None or self.actual is None or self.reproduce is None
        ):
            raise ValueError("a conviction holds an expected value, an actual value and a reproduce command")
        return self
