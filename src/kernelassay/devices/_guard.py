"""Runs one command below a process that holds a lease, and ends everything of it. Runs by path, standard library only.

It inherits the descriptors that make the lease and closes them by ending, so a lease outlives its holder for exactly
as long as anything of the command does. It adopts orphans of the command (it is their subreaper), so a double fork
escapes neither the limit nor the end. The command dies with it (PDEATHSIG: it is forked from the only thread).

    python -I -S _guard.py CONTROL REPORT LIMIT COMMAND…

CONTROL hangs up when the holder has gone; REPORT takes one JSON line when the command runs and one when it has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from types import FrameType

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: enough to close files and to free a device. [rule]"""
GIVE_UP_S = 10.0
"""What SIGKILL has not ended by then is not ours to end (another user's process). [estimated]"""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What the holder hands on to the command."""
NOT_FOUND, NOT_RUNNABLE = 127, 126
"""As every shell says it."""
_PAUSE_S = 0.02
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def subreaper() -> None:
    """Let orphans below this process become its children, rather than init's."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> set[int]:
    """Everything alive below `root`, zombies and `root` itself left out."""
    below: dict[int, list[int]] = {}
    dead = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    text = file.read()
            except OSError:
                continue
            state, parent = text[text.rindex(b")") + 2 :].split(b" ", 2)[:2]
            below.setdefault(int(parent), []).append(int(name))
            if state in (b"Z", b"X"):
                dead.add(int(name))
    found: set[int] = set()
    queue = [root]
    while queue:
        fresh = [pid for pid in below.get(queue.pop(), ()) if pid not in found]
        found.update(fresh)
        queue += fresh
    return found - dead


def end_all(root: int, grace_s: float, spare: frozenset[int] = frozenset()) -> set[int]:
    """SIGTERM, then after `grace_s` seconds SIGKILL, to everything below `root` but `spare`; returns what stayed."""
    begun = time.monotonic()
    warned: set[int] = set()
    while left := descendants(root) - spare:
        passed = time.monotonic() - begun
        if passed > grace_s + GIVE_UP_S:
            break
        for pid in left if passed >= grace_s else left - warned:
            try:
                os.kill(pid, signal.SIGKILL if passed >= grace_s else signal.SIGTERM)
                if passed < grace_s:
                    os.kill(pid, signal.SIGCONT)  # a stopped one could not hear it
            except (ProcessLookupError, PermissionError):
                continue
        warned |= left
        time.sleep(_PAUSE_S)
    return left


class _Command:
    """The command and how it ended."""

    def __init__(self, argv: list[str]) -> None:
        self.code: int | None = None
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard:
                    os._exit(NOT_RUNNABLE)
                for number in FORWARDED:
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvp(argv[0], argv)
            except OSError as error:
                os.write(2, f"assay gpu: {argv[0]}: {error.strerror}\n".encode(errors="backslashreplace"))
                os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE)

    def reap(self) -> bool:
        """Take the ended children; whether the command is among them, now or before."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        """Give a signal to the command's process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has just ended


def main(control: int, report: int, limit_s: float, argv: list[str]) -> int:
    """Run the command; 0 when its end was reported."""
    subreaper()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
            os.set_inheritable(int(name), False)  # the lease is this process's, not the command's
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    begun = time.monotonic()
    command = _Command(argv)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, command.hand_on)
    os.write(report, json.dumps({"pid": command.pid}).encode() + b"\n")
    poll = select.poll()
    poll.register(control, 0)
    poll.register(wake, select.POLLIN)
    limit = orphaned = False
    while not command.reap() and not limit and not orphaned:
        left_s = begun + limit_s - time.monotonic()
        ready = dict(poll.poll(None if left_s == float("inf") else max(0.0, 1000 * left_s)))
        orphaned = control in ready
        limit = not ready and time.monotonic() >= begun + limit_s
        if wake in ready:
            os.read(wake, 4096)
    stuck = end_all(os.getpid(), 0.0 if orphaned else GRACE_S)
    command.reap()
    if orphaned:
        return 1
    ended = {"code": command.code, "limit": limit, "stuck": sorted(stuck)}
    os.write(report, json.dumps(ended).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
