"""A command that runs while this process holds a lease.

The rule: the lease does not end before the command and everything that it started have. A guard between the two sees
to that: whichever of holder, guard and command is killed, the others end, and the device is free.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from kernelassay.devices import _guard
from kernelassay.devices._lease import Lease
from kernelassay.devices._lease_files import LeaseError

GUARD = Path(_guard.__file__)
LIMIT_S = 3600.0
"""Hold limit of a command where the caller names none: an hour is longer than any measurement and shorter than a
night that others wait. [estimated]"""
_BEAT_EVERY_S = 5.0


@dataclass(frozen=True)
class HeldRun:
    """How a command under a lease ended."""

    ended: Literal["exit", "signal", "limit"]
    code: int
    """Exit code (`exit`) or signal number (`signal`); of the command's own end where the limit ended it."""
    stuck: tuple[int, ...]
    """Processes of it that would not end; they are another user's."""


def run_held(held: Lease, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdout: int | None = None) -> HeldRun:
    """Run `argv` under the lease; signals that ask this process to stop go to it instead. Call it from the main thread.

    At a terminal the command's input is empty: it is not the foreground process group. A pipe or file goes through.

    Args:
        held: The lease; its journal will say `limit` if that ended the command.
        argv: The command and its arguments, found on PATH.
        limit_s: Seconds; then SIGTERM, and after `GRACE_S` SIGKILL, to everything that it started.
        stdout: Descriptor for the command's output; None: this process's.

    Raises:
        LeaseError: the guard was killed; everything of the command has been ended.
    """
    _guard.subreaper()  # a killed guard leaves its orphans to us
    others = frozenset(_guard.descendants(os.getpid()))
    control_end, control = os.pipe()
    report, report_end = os.pipe()
    with _handing_on() as receiver:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(control_end), str(report_end), repr(limit_s), *argv],
            stdin=subprocess.DEVNULL if os.isatty(0) else None,
            stdout=stdout,
            pass_fds=(control_end, report_end, *held.keeps),
            process_group=0,
        )
        os.close(control_end)
        os.close(report_end)
        said: dict[str, Any] = {}
        try:
            for line in _lines(report, held):
                said |= json.loads(line)
                receiver.begin(guard)
            guard.wait()
        finally:
            os.close(control)  # on any way out: the guard ends everything, and then itself
            os.close(report)
            guard.wait()
            if "limit" not in said:
                _guard.end_all(os.getpid(), 0.0, others)
    if "limit" not in said:
        raise LeaseError("the guard of the command was killed, so the command was ended; next: run the command again")
    if said["limit"]:
        held.how = "limit"
    code = said["code"] if said["code"] is not None else -signal.SIGKILL
    ended: Literal["exit", "signal", "limit"] = "limit" if said["limit"] else "signal" if code < 0 else "exit"
    return HeldRun(ended, abs(code), tuple(said["stuck"]))


def _lines(report: int, held: Lease) -> Iterator[bytes]:
    """The guard's lines until it closes; signs of life meanwhile."""
    poll = select.poll()
    poll.register(report, select.POLLIN)
    rest = b""
    while True:
        if poll.poll(1000 * _BEAT_EVERY_S):
            part = os.read(report, 4096)
            if not part:
                return
            *whole, rest = (rest + part).split(b"\n")
            yield from whole
        held.beat()


class _Receiver:
    """Gives signals to the guard once the command runs; earlier ones wait."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def begin(self, guard: subprocess.Popen[bytes]) -> None:
        self._guard = guard
        while self._early:
            self.hear(self._early.pop(0), None)

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self._guard is None:
            self._early.append(number)
        else:
            with suppress(ProcessLookupError):
                self._guard.send_signal(number)


@contextmanager
def _handing_on() -> Iterator[_Receiver]:
    """Signals go to the guard for a while; ignored ones stay ignored, by the command too."""
    receiver = _Receiver()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _guard.FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, receiver.hear)
    try:
        yield receiver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def valid_limit(seconds: float) -> bool:
    """Whether a hold limit can be meant: a positive finite number of seconds."""
    return math.isfinite(seconds) and seconds > 0
