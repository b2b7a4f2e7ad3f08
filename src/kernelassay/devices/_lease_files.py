"""The files behind a device's lease: a folder that all users share, a lock, a queue of tickets, a record.

The rule: whether somebody lives is asked of the kernel, never of a file's content. A lock is `flock`, which ends with
its holder. A ticket is a FIFO that its waiter holds open for writing: a reader hears the end of it, by whatever cause,
without looking again and again. Files stand in a sticky folder, are never reached through a link and never made over
somebody else's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from kernelassay.devices._detect import DeviceError
from kernelassay.records import LeaseOwner

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "KERNELASSAY_LEASES"
"""Names the folder of the leases; whoever sets it shares devices only with those who set the same."""
PLACES = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))
"""Where the folder may lie: the first that every user may write to, so that all users choose the same one. [rule]"""
FOLDER = "kernelassay-leases"
SETTLE_S = 1.0
"""Another user's file gets its final permissions this soon after it appears: microseconds, unless its maker was killed
in between. [estimated]"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_MOST_RECORD = 1 << 16
_PAUSE_S = 0.01
_COMMAND_CHARACTERS = 2000


class LeaseError(Exception):
    """The lease's files cannot be used; says where and what to do next."""


def folder_path() -> Path:
    """The folder of this machine's leases, whether it exists or not."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    for place in PLACES:
        with suppress(OSError):
            mode = place.stat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IWOTH and mode & stat.S_ISVTX:
                return place / FOLDER
    return PLACES[-1] / FOLDER


class LeaseFiles:
    """The files of one device. Close it, or use it as a context manager."""

    def __init__(self, device: str) -> None:
        """Open the folder, and make it where there is none.

        Raises:
            DeviceError: the name is no device's.
            LeaseError: the folder cannot be made, or is not safe.
        """
        if not _NAME.fullmatch(device):
            raise DeviceError(f"no device can be called {device!r}: letters, digits, . _ : - only; next: assay doctor")
        self.device = device
        self.path = folder_path()
        self._folder = _open_folder(self.path)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, kind: str) -> int:
        """Descriptor of the file `<device>.<kind>`, which all users may write to.

        Raises:
            LeaseError: it cannot be opened or made, or something else lies in its place.
        """
        name = f"{self.device}.{kind}"
        flags = os.O_RDWR | os.O_APPEND * (kind == "journal") | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        until = time.monotonic() + SETTLE_S
        while True:
            try:  # without O_CREAT first: a hardened kernel refuses it for another user's file in a sticky folder
                handle = os.open(name, flags, dir_fd=self._folder)
            except FileNotFoundError:
                with suppress(FileExistsError), self._refusals(name):
                    os.close(os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder))
            except PermissionError as error:
                if time.monotonic() > until:
                    raise self._refused(name, error) from error
                time.sleep(_PAUSE_S)
            except OSError as error:
                raise self._refused(name, error) from error
            else:
                return self._checked(handle, name)

    def _checked(self, handle: int, name: str) -> int:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            os.close(handle)
            raise LeaseError(f"{self.path / name} is no plain file of ours; next: rm {self.path / name}")
        if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) != 0o666:
            os.fchmod(handle, 0o666)  # also repairs what a kill between the two calls left
        return handle

    def _refused(self, name: str, error: OSError) -> LeaseError:
        said = f"{self.path / name if name else self.path}: {error.strerror}"
        if error.errno == errno.ELOOP:
            return LeaseError(f"a link lies in the place of a lease's file: {said}; next: rm {self.path / name}")
        return LeaseError(f"the lease cannot be kept in {said}; next: {_other_place()}")

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise self._refused(name, error) from error

    # ── the lock ─────────────────────────────────────────────────────────────────────────────────

    def try_lock(self) -> int | None:
        """The device's lock, or None while somebody has it."""
        handle = self.open("lock")
        if _flock(handle, fcntl.LOCK_EX) and self._is_current(handle):
            return handle
        os.close(handle)
        return None

    def _is_current(self, handle: int) -> bool:
        try:
            there = os.stat(f"{self.device}.lock", dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(handle), there)

    def locked(self) -> bool:
        """Whether anybody has the device's lock now."""
        handle = self.open("lock")
        try:
            return not _flock(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)

    def kernels_word(self) -> set[int] | None:
        """Processes that took the lock, as the kernel lists them; None where it does not say."""
        handle = self.open("lock")
        try:
            inode = os.fstat(handle).st_ino
        finally:
            os.close(handle)
        try:
            rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
        except OSError:
            return None
        # the device number differs from stat's on some file systems, so the inode has to do
        return {int(r[4]) for r in rows if r[1] == "FLOCK" and r[5].rpartition(":")[2] == str(inode)} or None

    # ── the record, which stands in the lock's own file ──────────────────────────────────────────

    def owner(self) -> LeaseOwner | None:
        """The record; None where none stands or what stands there is none."""
        handle = self.open("lock")
        try:
            return LeaseOwner.model_validate_json(os.pread(handle, _MOST_RECORD, 0))
        except ValidationError:
            return None
        finally:
            os.close(handle)

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def queue(self) -> Iterator[int]:
        """Hold the queue for the moment in which a ticket is drawn; yields the file with the last number."""
        handle = self.open("queue")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def draw(self, handle: int) -> tuple[int, int]:
        """A new ticket: its number and the descriptor that keeps it alive. Hold the queue.

        A ticket appears under its name only when it is alive: one without a writer is dead for good.
        """
        owner = self.owner()
        number = 1 + max(_number(os.pread(handle, 64, 0)), owner.token if owner else 0, *self._numbers(), 0)
        fresh = f".{self.device}.new"
        with self._refusals(fresh):
            os.pwrite(handle, b"%020d\n" % number, 0)
            for left in self._names(f"{fresh}."):  # of waiters that were killed right here
                self._unlink(left)
            fresh = f"{fresh}.{os.getpid()}.{number}"
            os.mkfifo(fresh, 0o600, dir_fd=self._folder)
            ticket = os.open(fresh, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
            os.fchmod(ticket, 0o644)  # others may listen to it, not keep it alive
            name = self._ticket(number, os.getpid())
            os.rename(fresh, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        return number, ticket

    def tickets(self) -> list[tuple[int, int]]:
        """(number, pid) of every ticket in the order drawn, the dead included."""
        rows = (name.rsplit(".", 2) for name in self._names(f"{self.device}.ticket."))
        return sorted((int(number), int(pid)) for _, number, pid in rows if number.isdigit() and pid.isdigit())

    def listen(self, number: int, pid: int) -> int | None:
        """Descriptor that hangs up when the ticket's holder has gone; None where it has gone already."""
        name = self._ticket(number, pid)
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(name, error) from error
        try:
            os.read(handle, 1)  # without a writer it ends at once
        except BlockingIOError:
            return handle
        os.close(handle)
        self._unlink(name)
        return None

    def give_back(self, number: int, ticket: int) -> None:
        """End an own ticket."""
        self._unlink(self._ticket(number, os.getpid()))
        os.close(ticket)

    def living(self) -> list[tuple[int, int]]:
        """(number, pid) of the tickets whose holders live, in the order drawn."""
        found = []
        for number, pid in self.tickets():
            if (handle := self.listen(number, pid)) is not None:
                os.close(handle)
                found.append((number, pid))
        return found

    def _ticket(self, number: int, pid: int) -> str:
        return f"{self.device}.ticket.{number:020d}.{pid}"

    def _numbers(self) -> list[int]:
        return [number for number, _ in self.tickets()]

    def _names(self, prefix: str) -> list[str]:
        return [name for name in os.listdir(self._folder) if name.startswith(prefix)]

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError, PermissionError):  # another user's: dead, and passed over
            os.unlink(name, dir_fd=self._folder)


def write_record(lock: int, owner: LeaseOwner | None) -> None:
    """Put the record into the lock's file, or take it away; only the holder of `lock` may."""
    text = owner.model_dump_json().encode() if owner is not None else b""
    # spaces instead of a cut: a reader in between never sees half of a record
    os.pwrite(lock, text.ljust(os.fstat(lock).st_size), 0)
    os.ftruncate(lock, len(text))


def command_line() -> tuple[str, ...]:
    """What this process was started as, cut to what a person reads."""
    with suppress(OSError):
        text = Path("/proc/self/cmdline").read_bytes().decode(errors="replace")
        return tuple(text[:_COMMAND_CHARACTERS].rstrip("\0").split("\0"))
    return ()


def wait_for_end(handle: int, timeout_s: float) -> bool:
    """Whether the ticket behind `handle` ended within the time."""
    poll = select.poll()
    poll.register(handle, 0)  # hang-ups are always told
    return bool(poll.poll(1000 * timeout_s))


def _number(text: bytes) -> int:
    """The last number drawn; 0 where the file is new or damaged, and then tickets and record must do."""
    return int(text) if text.strip().isdigit() else 0


def _flock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_folder(path: Path) -> int:
    """Descriptor of the folder, made for all users where it is missing."""
    ours = path.name == FOLDER
    try:
        with suppress(FileExistsError):
            path.mkdir(0o1777)
            ours = True
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise LeaseError(f"{path} is a link or no folder: leases are not kept there; next: rm {path}") from error
        raise LeaseError(f"the leases' folder {path}: {error.strerror}; next: {_other_place()}") from error
    facts = os.fstat(handle)
    mode = stat.S_IMODE(facts.st_mode)
    if ours and facts.st_uid == os.geteuid():
        os.fchmod(handle, 0o1777)  # what the umask took, also that of a maker who was killed right here
    elif mode & 0o022 and not mode & 0o1000:
        os.close(handle)
        raise LeaseError(f"{path} is not sticky: anybody could remove a lease; next: chmod 1777 {path}")
    return handle


def _other_place() -> str:
    return f"{VARIABLE}=/a/folder/that/you/may/write/to assay doctor"
