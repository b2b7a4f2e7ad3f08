"""A grade on the terminal: verdict, reasons, failing cases, diagnosis, where the rest lies, what to run next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelassay.cli._out import styled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from kernelassay.records import CaseResult, Finding, Grade

_ROWS = 12
"""Failing cases shown; the report has all of them."""
_LOG_LINES = 10
"""Lines of the log shown where a submission ended early."""
_DETAIL_LINES = 8
"""Lines of a diagnosis shown; the report has all of them."""

STYLES = {"good": "bold green", "bad": "bold red", "warn": "bold yellow", "neutral": "bold"}


def headline(grade: Grade) -> Text:
    """`✓ CLEAN  topk_cpp on ops/topk, tier small, device cpu`."""
    from kernelassay.board import VERDICTS, quoted

    word = VERDICTS[grade.verdict]
    line = styled(f"{word.sign} {word.text.upper()}", STYLES[word.tone])
    where = f"on {grade.problem.name}, tier {grade.problem.tier}, device {grade.device.name}"
    line.append(f"  {quoted(grade.submission.name)}", style="bold").append(f" {where}", style="not bold")
    return line


def _indented(text: str, style: str = "") -> Text:
    return styled("\n".join(f"  {line}" for line in text.splitlines()), style)


def _failures(grade: Grade) -> Iterable[RenderableType]:
    from kernelassay.board import STATUSES, one_line
    from kernelassay.records import Status

    failed = [case for case in grade.cases if case.status is not Status.CORRECT]
    if not failed:
        return
    usages = any(case.usage for case in failed)
    table = _table("shape", "case", "status", *(("tolerance used",) if usages else ()), "what", heading="failing cases")
    for result in failed[:_ROWS]:
        word = STATUSES[result.status]
        table.add_row(
            one_line(result.case.shape),
            one_line(result.case.case),
            styled(f"{word.sign} {word.text}", STYLES[word.tone]),
            *((_usage(result),) if usages else ()),
            styled(one_line(result.message, 240)),
        )
    yield styled("")
    yield table
    if len(failed) > _ROWS:
        yield _indented(f"and {len(failed) - _ROWS} more failing cases: see the report", "dim")


def _usage(result: CaseResult) -> str:
    return "–" if result.usage is None else f"{result.usage:.3g}"


def _table(*columns: str, heading: str | None = None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=heading, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _diagnosis(finding: Finding) -> Iterable[RenderableType]:
    from kernelassay.board import FORCES, block, measured_words, one_line

    word = FORCES[finding.force]
    charge = "" if finding.charge is None else f" of {finding.charge}"
    yield styled(f"\n{one_line(finding.title)}", "bold")
    yield _indented(f"{finding.id} · {one_line(finding.rule)} · {word.text}{charge}", "dim")
    place = finding.location
    if place is not None and place.output is not None:
        index = "" if place.index is None else f"[{', '.join(map(str, place.index))}]"
        yield _indented(f"where     {one_line(place.output)}{index}")
    if place is not None and place.file is not None:
        line = "" if place.line is None else f":{place.line}"
        yield _indented(f"where     {one_line(place.file)}{line}")
    for label, value in (("expected", finding.expected), ("actual", finding.actual)):
        if value is not None:
            yield _indented(f"{label:<10}{one_line(value)}")
    for name, words in measured_words(finding):
        yield _indented(f"{name} {words}", "dim")
    if finding.detail:
        lines = block(finding.detail).splitlines()
        yield _indented("\n".join(lines[:_DETAIL_LINES]))
        if len(lines) > _DETAIL_LINES:
            yield _indented(f"… {len(lines) - _DETAIL_LINES} more lines in the report", "dim")


def _log(grade: Grade, folder: Path) -> Iterable[RenderableType]:
    """The end of the log where the submission ended early: its compiler or its traceback says more than we can."""
    from kernelassay.board import log_tail, one_line
    from kernelassay.records import Status

    if grade.status in (Status.CORRECT, Status.WRONG, Status.CONTRACT, Status.REFUSED):
        return
    tail = log_tail(folder)
    lines = tail[0].splitlines() if tail else []
    if not lines:
        return
    shown = lines[-_LOG_LINES:]
    yield styled(f"\nend of the log ({len(shown)} lines)", "bold")
    for line in shown:
        yield _indented(one_line(line, 200), "dim")


def _facts(grade: Grade, folder: Path, report: Path | None) -> Text:
    from kernelassay.board import cases_words, isolation_words, one_line, timing_words
    from kernelassay.records import WAIT

    score = "no score" if grade.score is None else f"score {grade.score:.3g}"
    rows = [
        ("cases", cases_words(grade)),
        ("time", f"{one_line(timing_words(grade.timing), 120)}; {score}"),
        ("isolation", isolation_words(grade.isolation)),
    ]
    if grade.isolation is not None:
        rows.extend(("", one_line(reason)) for reason in grade.isolation.reasons)
    waited = sum(phase.seconds for phase in grade.phases if phase.name == WAIT)
    if grade.phases:
        slowest = max(grade.phases, key=lambda phase: phase.seconds * (phase.name != WAIT))
        judged = f"{grade.judged_s:.1f} s, most of it {one_line(slowest.name)} ({slowest.seconds:.1f} s)"
        rows.append(("judged in", judged + (f"; waited {waited:.1f} s for {grade.device.name}" if waited >= 1 else "")))
    if report is not None:
        rows.append(("report", one_line(str(report))))
    rows.append(("record", one_line(str(folder / "grade.json"))))
    text = styled("")
    for label, value in rows:
        text.append(f"  {label:<10}", style="dim").append(f"{value}\n")
    return text


def next_command(grade: Grade, option: str) -> str:
    """What to run next, from what the grade says."""
    from kernelassay.records import Verdict

    with_recipe = next((finding for finding in grade.findings if finding.recipe is not None), None)
    if with_recipe is not None:
        return f"assay reproduce {grade.id}/{with_recipe.id}{option}"
    if grade.verdict is Verdict.INFRA:
        return "assay doctor"
    return f"assay report {grade.id}{option}"


def summary(grade: Grade, folder: Path, report: Path | None, option: str) -> Iterable[RenderableType]:
    """Everything a reader of the terminal needs, most important first."""
    from kernelassay.board import first_failure, one_line

    yield headline(grade)
    for reason in grade.reasons:
        yield _indented(one_line(reason))
    yield from _failures(grade)
    diagnosed = first_failure(grade)
    if diagnosed is not None:
        yield from _diagnosis(diagnosed)
    yield from _log(grade, folder)
    yield styled("")
    yield _facts(grade, folder, report)
    yield styled(f"next: {next_command(grade, option)}")
