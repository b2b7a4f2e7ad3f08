"""What a caller sees of a failure: one line on what and where, one on the next command, and an exit code.

Failures that the other packages announce are named in one table. Everything else is a fault of the judge: it shows
its traceback and says what to attach to a report.
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from dataclasses import dataclass

_MACHINE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE})
"""What the machine refuses; anything else from the system is a fault of ours."""

_RUN = re.compile(
    r"(?P<what>.*?)[;,.\s]+(then |to see why, |see what there is )?(run|with):? `?(?P<next>assay [^`]+?)`?$",
    flags=re.DOTALL | re.IGNORECASE,
)
_CUT = 2000
"""Characters of a message that are shown; a compiler's whole log belongs into the grade's log."""


@dataclass(frozen=True)
class Failure:
    """A failure that a caller can act on."""

    what: str
    next: str
    code: int


class CommandError(Exception):
    """A caller's mistake found by the command line itself."""

    def __init__(self, what: str, next: str, code: int = 2) -> None:
        super().__init__(what)
        self.failure = Failure(what, next, code)


_ANNOUNCED: tuple[tuple[str, str, int, str], ...] = (
    ("kernelassay.decks", "DeckError", 2, "assay deck list"),
    ("kernelassay.devices", "DeviceError", 2, "assay doctor"),
    ("kernelassay.devices", "LeaseError", 5, "assay gpu status"),
    ("kernelassay.judge", "UsageError", 2, "assay --help"),
    ("kernelassay.redteam", "CorpusError", 2, "assay redteam list"),
    ("kernelassay.sandbox", "SandboxError", 5, "assay doctor"),
)
"""(package, exception, exit code, next command where the message names none)."""


def classify(error: BaseException) -> Failure | None:
    """The failure behind `error`, or None when nobody announced it."""
    if isinstance(error, CommandError):
        return error.failure
    for package, name, code, otherwise in _ANNOUNCED:
        module = sys.modules.get(package)
        announced = getattr(module, name, None) if module is not None else None
        if announced is not None and isinstance(error, announced):
            what, following = split_next(str(error))
            return Failure(what, following or otherwise, code)
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS:
        where = f": {error.filename}" if error.filename else ""
        return Failure(f"the machine refused a file operation{where}: {error.strerror}", "assay doctor", 5)
    return None


def split_next(message: str) -> tuple[str, str | None]:
    """What happened, and the next command where the message ends with one.

    Understood are `…; next: command` with any command, and `…, then run: assay …` or ``…; run `assay …` ``.
    """
    head, mark, tail = message.rpartition("next:")
    if mark and tail.strip():
        return head.strip().rstrip(";,").strip(), tail.strip()
    found = _RUN.match(message.strip())
    return (found["what"], found["next"]) if found else (message.strip(), None)


def failure_lines(failure: Failure) -> tuple[str, str]:
    """The two lines of a failure, safe for a terminal."""
    from kernelassay.board import one_line

    return f"error: {one_line(failure.what, _CUT)}", f"next: {one_line(failure.next, _CUT)}"


def fault_text(error: BaseException) -> str:
    """Traceback of a fault of the judge, safe for a terminal, and what to attach to a report."""
    from kernelassay.board import block, one_line

    trace = "".join(traceback.format_exception(error))
    first = one_line(f"{type(error).__name__}: {error}", _CUT)
    return (
        f"{block(trace)}"
        f"error: this is a fault of the judge, not of the submission: {first}\n"
        "next: report it with the traceback above, the output of `assay doctor --json` and the submission"
    )
