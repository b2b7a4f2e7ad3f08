"""The nouns of the house, as data. No torch, and nothing of ours below this package."""

from kernelassay.records._base import Record
from kernelassay.records.device import Device, Environment, Isolation, Limits
from kernelassay.records.finding import Finding, Force, Location, Measurement, Recipe
from kernelassay.records.formula import Formula, evaluate
from kernelassay.records.grade import (
    SCHEMA_VERSION,
    Artefact,
    Case,
    CaseResult,
    Grade,
    Phase,
    ProblemRef,
)
from kernelassay.records.problem import (
    CaseSpec,
    Comparator,
    Cost,
    Entry,
    MutantSpec,
    Problem,
    Role,
    Rules,
    Shape,
    TensorSpec,
    Tier,
    Tolerance,
    extent,
)
from kernelassay.records.status import ExitCode, Status, TimingState, Verdict
from kernelassay.records.submission import Build, EntryKind, FileEntry, Manifest, Submission
from kernelassay.records.timing import Interval, ShapeTiming, Timing

__all__ = [
    "SCHEMA_VERSION",
    "Artefact",
    "Build",
    "Case",
    "CaseResult",
    "CaseSpec",
    "Comparator",
    "Cost",
    "Device",
    "Entry",
    "EntryKind",
    "Environment",
    "ExitCode",
    "FileEntry",
    "Finding",
    "Force",
    "Formula",
    "Grade",
    "Interval",
    "Isolation",
    "Limits",
    "Location",
    "Manifest",
    "Measurement",
    "MutantSpec",
    "Phase",
    "Problem",
    "ProblemRef",
    "Recipe",
    "Record",
    "Role",
    "Rules",
    "Shape",
    "ShapeTiming",
    "Status",
    "Submission",
    "TensorSpec",
    "Tier",
    "Timing",
    "TimingState",
    "Tolerance",
    "Verdict",
    "evaluate",
    "extent",
]
