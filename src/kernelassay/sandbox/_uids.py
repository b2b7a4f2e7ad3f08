"""One unprivileged uid per live jail when started by root; a lock that the kernel releases tells which are free."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from kernelassay.sandbox._model import SandboxError
from kernelassay.sandbox._warden import procs

COUNT = 512
"""Jails that may live at once on one machine."""
_PREFERRED = 1_264_640_000
"""Far above what distributions, containers (65536 per block from 100000) and directories hand out."""
_NARROW = 64_512
"""Where only 65536 uids are mapped (a container): above systemd's dynamic users, below nobody."""


@dataclass(frozen=True)
class Lease:
    """An unprivileged uid that nobody else uses while `lock` is open."""

    uid: int
    lock: int

    def release(self) -> None:
        """Give it back."""
        os.close(self.lock)


def lease() -> Lease:
    """Take a uid that no live jail and no process uses.

    Raises:
        SandboxError: all are taken, or no folder for the locks.
    """
    folder = _folder()
    first = _first()
    for uid in range(first, first + COUNT) if first is not None else ():
        lock = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        if procs.owned(uid):  # left by a killed judge and warden: the sweep's business, not ours
            os.close(lock)
            continue
        return Lease(uid, lock)
    raise SandboxError(f"sandbox: all {COUNT} uids for jails are in use; end some grades, then run `assay doctor`")


def abandoned(uid: int) -> Lease | None:
    """A lease on `uid` if nobody holds it, for a sweep that kills its processes; None where somebody does.

    Held until the sweep is done with them: in between, a new jail under that uid would be killed too.
    """
    try:
        lock = os.open(_folder() / str(uid), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return Lease(uid, lock)


def _folder() -> Path:
    folder = Path("/run/kernelassay-uids")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise SandboxError(
            f"sandbox: cannot keep uid locks in {folder}: {error.strerror}; make /run writable, then run `assay doctor`"
        ) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022 or folder.is_symlink():
        raise SandboxError(f"sandbox: {folder} is not root's own; remove it, then run `assay doctor`")
    return folder


def possible() -> bool:
    """Whether this user namespace maps enough uids."""
    return _first() is not None


def _first() -> int | None:
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for first in (_PREFERRED, _NARROW):
        if any(inside <= first and first + COUNT <= inside + length for inside, _, length in mapped):
            return first
    return None
