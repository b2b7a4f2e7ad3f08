"""What a reader sees of a grade: a page of its own, and the words and escapes that the terminal shares with it.

A page is one file: no script, no external resource, and nothing in it that a submission could turn into markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelassay.board._text import block, one_line, quoted
from kernelassay.board._words import (
    FORCES,
    STATUSES,
    VERDICTS,
    Tone,
    Word,
    cases_words,
    duration,
    first_failure,
    isolation_words,
    limits_rows,
    measured_words,
    size,
    timing_words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelassay.records import Grade

__all__ = [
    "FORCES",
    "STATUSES",
    "VERDICTS",
    "Tone",
    "Word",
    "block",
    "cases_words",
    "duration",
    "first_failure",
    "isolation_words",
    "limits_rows",
    "log_tail",
    "measured_words",
    "one_line",
    "quoted",
    "render_report",
    "size",
    "timing_words",
    "write_index",
    "write_report",
]


def log_tail(folder: Path) -> tuple[str, bool] | None:
    """The end of a grade's log, safe for a reader, and whether more of it came before; None where none is kept."""
    from kernelassay.board._view import log_tail as tail

    return tail(folder)


def render_report(grade: Grade, folder: Path) -> str:
    """The page of `grade` as HTML; sources and log are read from `folder`, where the grade is kept."""
    from kernelassay.board._report import render_report as render

    return render(grade, folder)


def write_report(grade: Grade, folder: Path) -> Path:
    """Write the page beside the record, atomically, and return its path."""
    from kernelassay.board._report import write_report as write

    return write(grade, folder)


def write_index(path: Path, title: str, rows: Sequence[tuple[Grade, Path]]) -> Path:
    """Write a page that lists grades with links to their own pages, and return its path."""
    from kernelassay.board._report import write_index as write

    return write(path, title, rows)
