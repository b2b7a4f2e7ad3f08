"""From a grade to what its page shows: plain data, already safe for a reader, nothing decided in the template."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from kernelassay.board._text import block, one_line, quoted
from kernelassay.board._words import STATUSES, Word, duration, size
from kernelassay.records import CaseResult, FileEntry, Finding, Grade, Interval, Status

_SHOWN_BYTES = 256 << 10
"""Of one source file: a page stays small enough for a phone."""
_FOLD_LINES = 60
"""Longer sources are folded; about one screen."""
_LOG_BYTES = 16 << 10
"""The end of the log, where the error stands."""
_DASH = "–"
_NOT_RUN = Word("·", "not run", "neutral", "The grade ended before this case.")


@dataclass(frozen=True)
class Cell:
    """One case at one shape."""

    word: Word
    usage: str
    """Share of the tolerance used; empty where nothing was measured or the comparison is exact."""
    bar: float | None
    """Length of the bar from 0 to 100; None for no bar."""
    title: str
    anchor: str
    """Id of the row that tells more; empty for none."""


@dataclass(frozen=True)
class Grid:
    """Cases by shapes."""

    shapes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    bars: bool
    """Some case used part of its tolerance, so bars say something."""


@dataclass(frozen=True)
class CaseRow:
    """One case result in full."""

    anchor: str
    shape: str
    case: str
    word: Word
    usage: str
    call: str
    seed: str
    message: str


@dataclass(frozen=True)
class TimeBar:
    """Claimed time of the calls of one shape, with bar positions from 0 to 100 on an axis that starts at zero."""

    shape: str
    text: str
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class ClockRow:
    """The clocks of one shape, in words; a dash where nothing is known."""

    shape: str
    state: str
    time: str
    inner: str
    outer: str
    floor: str
    score: str
    why: str
    """Reason and labels."""


@dataclass(frozen=True)
class Source:
    """One file of the submission."""

    anchor: str
    name: str
    href: str
    sha256: str
    size: str
    lines: tuple[str, ...]
    folded: bool
    note: str
    """Why the text is missing, cut or not what was graded; empty for a whole text."""


@dataclass(frozen=True)
class Secret:
    """The commitment, and whether the revealed secret keeps it."""

    commitment: str
    secret: str | None
    kept: bool | None
    """None: the secret is not revealed."""
    command: str


def grid(grade: Grade) -> Grid:
    """The case grid: shapes as the problem declares them, `nominal` first and then by name.

    Cases run in a secret order, so the order of the record would be a different one in each grade.
    """
    declared = [shape.shape for shape in grade.timing.shapes]
    shapes = tuple(dict.fromkeys([*declared, *(result.case.shape for result in grade.cases)]))
    names = sorted({result.case.case for result in grade.cases}, key=lambda name: (name != "nominal", name))
    found = {(result.case.case, result.case.shape): (at, result) for at, result in enumerate(grade.cases)}
    bars = any(result.usage for result in grade.cases)
    rows = []
    for name in names:
        cells = tuple(
            _cell(*found[name, shape], bars=bars) if (name, shape) in found else _absent() for shape in shapes
        )
        rows.append((one_line(name), cells))
    return Grid(tuple(one_line(shape) for shape in shapes), tuple(rows), bars)


def _absent() -> Cell:
    return Cell(_NOT_RUN, "", None, _NOT_RUN.meaning, "")


def _cell(at: int, result: CaseResult, *, bars: bool) -> Cell:
    word = STATUSES[result.status]
    usage = "" if result.usage is None or not bars else f"{result.usage:.2g}"
    bar = min(result.usage, 1.0) * 100 if bars and result.usage is not None else None
    title = one_line(result.message) or word.meaning
    return Cell(word, usage, bar, title, f"case-{at}")


def case_rows(grade: Grade, *, passing: bool) -> tuple[CaseRow, ...]:
    """The cases that passed, or those that did not, in the order in which they ran."""
    return tuple(
        _case_row(at, result) for at, result in enumerate(grade.cases) if (result.status is Status.CORRECT) is passing
    )


def _case_row(at: int, result: CaseResult) -> CaseRow:
    return CaseRow(
        anchor=f"case-{at}",
        shape=one_line(result.case.shape),
        case=one_line(result.case.case),
        word=STATUSES[result.status],
        usage="–" if result.usage is None else f"{result.usage:.3g}",
        call="–" if result.call_us is None else duration(result.call_us),
        seed=str(result.case.seed) + (f", weights {result.case.weights_seed}" if result.case.weights_seed else ""),
        message=one_line(result.message, 2000),
    )


def times(grade: Grade) -> tuple[TimeBar, ...]:
    """Per shape the spread of what the worker's clock says of the checked calls: a claim, shown and never scored."""
    calls: dict[str, list[float]] = {shape.shape: [] for shape in grade.timing.shapes}
    for result in grade.cases:
        if result.call_us is not None:
            calls.setdefault(result.case.shape, []).append(result.call_us)
    found = [(shape, min(all_), statistics.median(all_), max(all_)) for shape, all_ in calls.items() if all_]
    longest = max((high for *_, high in found), default=0.0) or 1.0
    return tuple(
        TimeBar(
            shape=one_line(shape),
            text=f"{duration(median)} ({duration(low)} – {duration(high)})",
            low=low / longest * 100,
            median=median / longest * 100,
            high=high / longest * 100,
        )
        for shape, low, median, high in found
    )


def clock_rows(grade: Grade) -> tuple[ClockRow, ...]:
    """What the two clocks say per shape; empty where no shape was timed."""
    if not any(shape.inner or shape.outer for shape in grade.timing.shapes):
        return ()
    return tuple(
        ClockRow(
            shape=one_line(shape.shape),
            state=shape.state.value,
            time=_interval(shape.time),
            inner=_interval(shape.inner),
            outer=_interval(shape.outer),
            floor=_DASH if shape.floor is None or shape.floor.floor_us is None else duration(shape.floor.floor_us),
            score=_DASH if shape.score is None else f"{shape.score.value:.3g}",
            why=one_line("; ".join(part for part in (shape.reason, ", ".join(shape.labels)) if part)),
        )
        for shape in grade.timing.shapes
    )


def _interval(value: Interval | None) -> str:
    if value is None:
        return _DASH
    return f"{duration(value.median_us)} ({duration(value.low_us)} – {duration(value.high_us)})"


def _inside(folder: Path, name: str) -> Path | None:
    """`folder/name` if that is a regular file which really lies in `folder`."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\0" in name:
        return None
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()) or path.is_symlink() or not path.is_file():
        return None
    return path


def _bytes(folder: Path, name: str) -> bytes | None:
    try:
        path = _inside(folder, name)
        return None if path is None else path.read_bytes()
    except OSError:
        return None


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def sources(grade: Grade, folder: Path) -> tuple[Source, ...]:
    """The submission's files with their text, as kept in `folder/submission`."""
    return tuple(_source(at, entry, folder / "submission") for at, entry in enumerate(grade.submission.files))


def _source(at: int, entry: FileEntry, folder: Path) -> Source:
    lines: tuple[str, ...] = ()
    data = _bytes(folder, entry.path)
    text = None if data is None else _text(data[:_SHOWN_BYTES])
    if data is None:
        note = "the file is not kept beside the grade"
    elif text is None:
        note = "not shown: no UTF-8 text"
    else:
        lines = tuple(block(text).rstrip("\n").split("\n")) if text else ()
        note = f"cut after {size(_SHOWN_BYTES)}" if len(data) > _SHOWN_BYTES else ""
    if data is not None and hashlib.sha256(data).hexdigest() != entry.sha256:
        note = "✗ this is not the file that was graded: its hash differs" + (f"; {note}" if note else "")
    return Source(
        anchor=f"source-{at}",
        name=quoted(entry.path),
        href=quote(f"submission/{entry.path}", errors="surrogatepass"),
        sha256=entry.sha256,
        size=size(entry.size_bytes),
        lines=lines,
        folded=len(lines) > _FOLD_LINES,
        note=note,
    )


def source_link(finding: Finding, files: Sequence[FileEntry]) -> str:
    """Fragment of the line that a finding points to; empty where it points to none."""
    place = finding.location
    if place is None or place.file is None:
        return ""
    for at, entry in enumerate(files):
        if entry.path == place.file:
            return f"#source-{at}" if place.line is None else f"#source-{at}-{place.line}"
    return ""


def place_words(finding: Finding) -> str:
    """`indices[3, 17]`, `kernel.cpp:40`; empty where a finding points nowhere."""
    place = finding.location
    if place is None:
        return ""
    words = []
    if place.output is not None:
        index = "" if place.index is None else f"[{', '.join(map(str, place.index))}]"
        words.append(one_line(f"{place.output}{index}"))
    if place.file is not None:
        words.append(quoted(place.file) + ("" if place.line is None else f":{place.line}"))
    return ", ".join(words)


def log_tail(folder: Path, name: str = "log.txt") -> tuple[str, bool] | None:
    """The end of the log and whether more of it came before; None where no log is kept."""
    data = _bytes(folder, name)
    if data is None:
        return None
    tail = data[-_LOG_BYTES:].decode("utf-8", "replace")
    return block(tail).strip("\n"), len(data) > _LOG_BYTES


def secret(grade: Grade) -> Secret | None:
    """The commitment and how a reader checks it."""
    if grade.secret_commitment is None:
        return None
    if grade.secret is None:
        return Secret(grade.secret_commitment, None, None, "")
    try:
        raw = bytes.fromhex(grade.secret)
    except ValueError:
        return Secret(grade.secret_commitment, one_line(grade.secret), False, "")
    kept = hashlib.sha256(raw).hexdigest() == grade.secret_commitment
    program = f"import hashlib; print(hashlib.sha256(bytes.fromhex('{grade.secret}')).hexdigest())"
    return Secret(grade.secret_commitment, grade.secret, kept, f'python3 -c "{program}"')
