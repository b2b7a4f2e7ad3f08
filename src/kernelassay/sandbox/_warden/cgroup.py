"""The control groups of one jail: made, joined, read, frozen, killed and removed. Works on v1, v2 and mixtures."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from . import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FREEZE_TIMEOUT_S = 2.0
"""A process in an uninterruptible wait delays the freezer; past this the caller is told."""
SPIN_S = 500e-6
"""A sleep overshoots by 50 µs, more than most freezes take."""
REMOVE_TIMEOUT_S = 2.0
"""A group stays busy for some milliseconds after its last process was reaped."""


class Cgroups:
    """Folders and files of one jail's groups; empty where none may be written.

    A plain class: importing `dataclasses` would cost the warden a third of its start.
    """

    def __init__(
        self,
        folders: Sequence[str] = (),
        settings: Sequence[tuple[str, str]] = (),
        wishes: Sequence[tuple[str, str]] = (),
        oom: str | None = None,
        forks: str | None = None,
        freezer: str | None = None,
        limits_memory: bool = False,
        limits_processes: bool = False,
    ) -> None:
        self.folders = tuple(folders)
        """Made, joined and removed."""
        self.settings = tuple((file, value) for file, value in settings)
        """(file, value), written in this order."""
        self.wishes = tuple((file, value) for file, value in wishes)
        """The same, but a kernel without the file is fine."""
        self.oom = oom
        """File with a line `oom_kill N`."""
        self.forks = forks
        """File with a line `max N`: forks that the limit refused."""
        self.freezer = freezer
        """Folder whose `cgroup.freeze` (v2) or `freezer.state` (v1) stops the jail."""
        self.limits_memory = limits_memory
        self.limits_processes = limits_processes

    def to_plain(self) -> dict[str, Any]:
        """As JSON-like data: `Cgroups(**plain)` is the same again."""
        return dict(vars(self))

    def make(self) -> None:
        """Create the groups and write their limits.

        Raises:
            OSError: naming the file that could not be made or written.
        """
        for folder in self.folders:
            with suppress(FileExistsError):
                os.mkdir(folder)
        for file, value in self.settings:
            write(file, value)
        for file, value in self.wishes:
            with suppress(OSError):
                write(file, value)

    def join(self) -> None:
        """Move the calling process into every group.

        Raises:
            OSError: naming the group that refused.
        """
        for folder in self.folders:
            write(f"{folder}/cgroup.procs", "0")

    def members(self) -> set[int]:
        """Pids of everything alive in any of the groups, as seen from here."""
        found: set[int] = set()
        for folder in self.folders:
            try:
                with open(f"{folder}/cgroup.procs", "rb") as file:
                    found.update(int(line) for line in file.read().split())
            except OSError:
                continue
        found.discard(0)  # a process of a PID namespace that is not below ours
        return {pid for pid in found if procs.alive(pid)}

    def oom_kills(self) -> int:
        """How many processes the kernel killed here for want of memory."""
        return _count(self.oom, "oom_kill")

    def refused_forks(self) -> int:
        """How often a process or thread was refused for the limit on their number."""
        return _count(self.forks, "max")

    def freeze(self) -> bool:
        """Stop everything; True once the kernel says that it stands still, False without a freezer or in time."""
        if self.freezer is None:
            return False
        try:
            if os.path.exists(f"{self.freezer}/cgroup.freeze"):
                write(f"{self.freezer}/cgroup.freeze", "1")
                return _until(f"{self.freezer}/cgroup.events", "frozen 1")
            write(f"{self.freezer}/freezer.state", "FROZEN")
            return _until(f"{self.freezer}/freezer.state", "FROZEN")
        except OSError:
            return False

    def thaw(self) -> None:
        """Let everything go on; no error when nothing was frozen."""
        if self.freezer is None:
            return
        with suppress(OSError):
            if os.path.exists(f"{self.freezer}/cgroup.freeze"):
                write(f"{self.freezer}/cgroup.freeze", "0")
            else:
                write(f"{self.freezer}/freezer.state", "THAWED")

    def kill(self) -> None:
        """SIGKILL to every member, those included that are being forked."""
        for folder in self.folders:
            with suppress(OSError):
                write(f"{folder}/cgroup.kill", "1")
                return  # v2: the kernel does it in one step, and every group has the same members
        frozen = self.freeze()  # v1: nobody forks away while the list is walked
        procs.signal_each(self.members())
        if frozen or self.freezer:
            self.thaw()  # a v1-frozen process dies only when thawed

    def remove(self) -> list[str]:
        """Remove the empty groups; what could not be removed is returned."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        left = [folder for folder in self.folders if os.path.isdir(folder)]
        while left:
            for folder in left:
                with suppress(OSError):
                    os.rmdir(folder)
            left = [folder for folder in left if os.path.isdir(folder)]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return left


def _count(file: str | None, name: str) -> int:
    if file is None:
        return 0
    try:
        with open(file) as stream:
            fields = [line.split() for line in stream]
    except OSError:
        return 0
    return sum(int(field[1]) for field in fields if len(field) == 2 and field[0] == name)


def write(file: str, value: str) -> None:
    """Write a control file in one write, without creating it.

    Raises:
        OSError: with the file's name.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from error


def _until(file: str, line: str) -> bool:
    """Wait for a line of a control file. A clock runs meanwhile, and freezing takes some 30 µs: at first it spins."""
    wanted = line.encode()
    begun = time.monotonic()
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while wanted not in os.pread(descriptor, 4096, 0).splitlines():
            waited = time.monotonic() - begun
            if waited > FREEZE_TIMEOUT_S:
                return False
            if waited > SPIN_S:
                time.sleep(waited / 8)
        return True
    finally:
        os.close(descriptor)
