"""The honest twin of an exploit: the same submission without its cheating lines, made by deletion alone.

A judge that convicts the twin too convicts the style of a submission and not its cheat.
"""

from __future__ import annotations

import re
from pathlib import Path

_MARK = re.compile(r"(#|//)\s*cheat\s*$")


def is_marked(line: str) -> bool:
    """Whether a line ends in the mark of a cheat."""
    return _MARK.search(line) is not None


def make_twin(submission: Path, to: Path, cheat_files: tuple[str, ...] = ()) -> Path:
    """Write the twin of `submission` to the new folder `to`; returns it.

    Raises:
        OSError: it cannot be read or written.
    """
    for source in sorted(submission.rglob("*")):
        relative = source.relative_to(submission)
        if not source.is_file() or relative.as_posix() in cheat_files or "__pycache__" in relative.parts:
            continue
        kept = [line for line in source.read_text(encoding="utf-8").splitlines(keepends=True) if not is_marked(line)]
        target = to / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(kept), encoding="utf-8")
    return to
