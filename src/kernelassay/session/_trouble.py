"""What ends a worker early, as data: a status, a rule and a sentence, never a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from kernelassay.records import Status


@dataclass
class Trouble(Exception):
    """The submission did not do what was asked of it."""

    status: Status
    rule: str
    """Dotted name, as in `records.Finding.rule`."""
    title: str
    """One line: what happened, in which phase."""
    expected: str = "the call returns"
    actual: str = ""
    detail: str = ""
    """A traceback or the like."""
    forged: bool = False
    """The channel carried something that the worker never sends."""

    def __str__(self) -> str:
        return self.title


def one_line(text: str) -> str:
    """`text` as one printable line: what a terminal would obey, and what UTF-8 cannot hold, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def readable(text: str) -> str:
    """`text` with its lines kept and everything else that is not printable escaped."""
    return "\n".join(one_line(line) for line in text.replace("\t", "    ").split("\n"))
