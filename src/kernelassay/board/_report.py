"""The page of one grade, and a page that lists a few of them.

One file per page: style inline under a hash in the content security policy, no script, nothing fetched. Autoescape is
on for every template, and each text of a submission has been through `_text` before.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from kernelassay.board import _view as view
from kernelassay.board._text import block, one_line, quoted
from kernelassay.board._words import (
    FORCES,
    STATUSES,
    VERDICTS,
    cases_words,
    first_failure,
    isolation_words,
    limits_rows,
    measured_words,
    timing_words,
)
from kernelassay.records import Grade

_FILE = "report.html"


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kernelassay.board"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(one_line=one_line, block=block, quoted=quoted, measured=measured_words)
    return environment


@functools.cache
def _style() -> tuple[str, str]:
    """The style sheet and its hash for the content security policy."""
    loader = _templates().loader
    assert loader is not None
    text, _, _ = loader.get_source(_templates(), "style.css")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return text, f"sha256-{digest}"


def _page(template: str, **data: Any) -> str:
    style, style_hash = _style()
    # Newlines inside the style element are part of what is hashed, so nothing may be added around the text.
    return _templates().get_template(template).render(style=style, style_hash=style_hash, **data)


def _environment_rows(grade: Grade) -> tuple[tuple[str, str], ...]:
    found = grade.environment
    device = grade.device
    cores = "" if device.cores is None else f", {device.cores} for the submission"
    return (
        ("device", f"{device.name}: {device.model}{cores}"),
        ("device fingerprint", device.fingerprint),
        ("processor", f"{found.cpu_model}, {found.cpu_count} logical cores"),
        ("platform", found.platform),
        ("compiler", found.compiler or "none"),
        ("python", found.python),
        ("torch", found.torch),
        ("numpy", found.numpy),
        ("kernelassay", found.kernelassay),
        ("problem's content", grade.problem.content_hash),
        ("judge's commit", found.judge_commit or "installed from a package"),
    )


def _commands(grade: Grade) -> tuple[tuple[str, str], ...]:
    rows = [
        (f"finding {finding.id}", f"assay reproduce {grade.id}/{finding.id}")
        for finding in grade.findings
        if finding.recipe is not None
    ]
    options = f"--problem {grade.problem.name} --device {grade.device.name} --tier {grade.problem.tier}"
    rows.append(("the whole grade, on a new secret", f"assay grade submission {options}"))
    return tuple(rows)


def render_report(grade: Grade, folder: Path) -> str:
    """The page of `grade` as HTML; sources and log are read from `folder`, where the grade is kept."""
    files = grade.submission.files
    return _page(
        "report.html",
        grade=grade,
        verdict=VERDICTS[grade.verdict],
        status=STATUSES[grade.status],
        created=grade.created_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
        name=quoted(grade.submission.name),
        cases_words=cases_words(grade),
        timing_words=one_line(timing_words(grade.timing)),
        isolation_words=isolation_words(grade.isolation),
        judged_s=grade.judged_s,
        diagnosed=first_failure(grade),
        grid=view.grid(grade),
        failing=view.case_rows(grade, passing=False),
        passing=view.case_rows(grade, passing=True),
        clocks=view.clock_rows(grade),
        times=view.times(grade),
        findings=[(f, FORCES[f.force], view.place_words(f), view.source_link(f, files)) for f in grade.findings],
        sources=view.sources(grade, folder),
        limits=limits_rows(grade.limits),
        environment=_environment_rows(grade),
        secret=view.secret(grade),
        commands=_commands(grade),
        log=view.log_tail(folder),
    )


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def write_report(grade: Grade, folder: Path) -> Path:
    """Write the page beside the record, atomically, and return its path.

    Raises:
        OSError: the folder takes no file.
    """
    return _write(folder / _FILE, render_report(grade, folder))


def write_index(path: Path, title: str, rows: Sequence[tuple[Grade, Path]]) -> Path:
    """Write a page that lists grades with links to their own pages, and return its path.

    Raises:
        OSError: the folder takes no file.
    """
    listed = []
    for grade, page in rows:
        href = quote(os.path.relpath(page, path.parent))
        listed.append((grade, VERDICTS[grade.verdict], quoted(grade.submission.name), cases_words(grade), href))
    return _write(path, _page("index.html", title=title, rows=listed))
