"""Where grades lie: one folder each, that appears whole or not at all.

A grade is written into a hidden folder and renamed when everything is on disk, so a judge that is killed at any
moment leaves the finished ones as they were and at most one hidden folder, which the next command removes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from kernelassay.judge._intake import UsageError
from kernelassay.judge._request import Graded
from kernelassay.records import Grade

GRADE_FILE = "grade.json"
SUBMISSION_FOLDER = "submission"
LOG_FILE = "log.txt"
_PARTIAL = ".partial-"


def new_grade_id(now: datetime) -> str:
    """A fresh id: `g-<UTC time>-<8 random hex digits>`."""
    return f"g-{now.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def grades_folder(home: Path) -> Path:
    """The folder of all grades, made if need be.

    Raises:
        UsageError: it cannot be made or written.
    """
    folder = home / "grades"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"cannot write grades to {str(folder)!r}: {error.strerror}\nnext: assay … --home DIR"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write grades to {str(folder)!r}: permission denied\nnext: assay … --home DIR")
    return folder


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks, which tells it from a later one with its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def open_partial(home: Path, grade_id: str) -> Path:
    """A hidden folder for a grade in the making, named after its owner."""
    pid = os.getpid()
    folder = grades_folder(home) / f"{_PARTIAL}{grade_id}-{pid}-{_started(pid)}"
    folder.mkdir(mode=0o700)
    return folder


def sweep_partials(home: Path) -> int:
    """Remove what killed judges left; returns how many folders went."""
    swept = 0
    for folder in grades_folder(home).glob(f"{_PARTIAL}*"):
        pid, _, started = folder.name.removeprefix(_PARTIAL)[len("g-00000000T000000-00000000-") :].partition("-")
        if not pid.isdigit() or _started(int(pid)) != started:
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def commit(partial: Path, grade: Grade) -> Graded:
    """Write `grade.json` and make the folder visible under the grade's id."""
    write_atomic(partial / GRADE_FILE, grade.model_dump_json(indent=2) + "\n")
    folder = partial.parent / grade.id
    partial.rename(folder)
    _sync(folder.parent)
    return Graded(grade, folder)


def write_atomic(path: Path, text: str) -> None:
    """Write a file that is either the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_grade(reference: str, home: Path) -> Graded:
    """The grade called by an id, a unique beginning of one, or a path to its folder or `grade.json`.

    Raises:
        UsageError: none or several match, or the record does not validate.
    """
    folder = _find(reference, home)
    path = folder / GRADE_FILE
    try:
        return Graded(Grade.model_validate_json(path.read_bytes()), folder)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise UsageError(f"{str(path)!r} is no valid grade: {where}: {first['msg']}") from error
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _holds_grade(folder: Path) -> bool:
    try:
        return (folder / GRADE_FILE).is_file()
    except OSError:  # a name that is too long for a path is an id that nothing has
        return False


def _find(reference: str, home: Path) -> Path:
    path = Path(reference)
    for folder in (path.parent, path) if path.name == GRADE_FILE else (path,):
        if _holds_grade(folder):
            return folder
    found = sorted(f for f in grades_folder(home).glob("g-*") if f.name.startswith(reference))
    if reference and len(found) == 1:
        return found[0]
    what = "no grade" if not found or not reference else f"{len(found)} grades"
    raise UsageError(f"{what} called {reference!r} in {str(home)!r}\nnext: ls {grades_folder(home)}")
