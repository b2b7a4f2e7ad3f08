"""What a caller asks of the judge, and what it hears while it waits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelassay.records import Grade, Limits, Tier
from kernelassay.sandbox import Level
from kernelassay.timing import Mode


def default_home() -> Path:
    """Where grades are kept: `$KERNELASSAY_HOME`, else `${XDG_DATA_HOME:-~/.local/share}/kernelassay`."""
    if home := os.environ.get("KERNELASSAY_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "kernelassay"


@dataclass(frozen=True)
class GradeRequest:
    """One grade to make."""

    submission: Path
    problem: str
    device: str = "cpu"
    tier: Tier | None = None
    """None: `small` on the CPU, `full` elsewhere."""
    level: Level | None = None
    """None: the strongest that works."""
    mode: Mode = "development"
    """How much certainty: 1, 3 (`careful`) or 8 (`regrade`) fresh processes under the clocks."""
    probes: frozenset[str] | None = None
    """Names of the probes to run; None: all. Fewer make a grade for development: it lists what ran, its probes end at
    the first conviction, and a wrong answer is not diagnosed."""
    clocks: bool = True
    """False: no times and so no score."""
    timed: frozenset[str] | None = None
    """Keys of the shapes to time; None: all. Fewer make a grade for development, without a score."""
    limits: Limits = field(default_factory=Limits)
    home: Path = field(default_factory=default_home)


class Progress(Protocol):
    """Hears what the judge does."""

    def phase(self, name: str) -> None:
        """A new phase begins."""

    def advance(self, done: int, total: int, note: str) -> None:
        """`done` of `total` steps of the phase are over."""


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int, note: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Graded:
    """A finished grade and the folder that holds its evidence."""

    grade: Grade
    folder: Path
