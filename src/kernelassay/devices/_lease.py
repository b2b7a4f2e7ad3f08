"""One exclusive lease per device for the whole machine.

The rule: who came first is served first, a dead process never keeps anybody waiting, and waiting is told but never
charged. The kernel releases a lease with its holder; the record beside it explains and is not obeyed. A process that
the holder started gets the lease that its ancestor has, and it ends with the outermost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelassay.devices import _journal
from kernelassay.devices._lease_files import LeaseError, LeaseFiles, command_line, wait_for_end, write_record
from kernelassay.records import LeaseEvent, LeaseOwner

PROOF = "KERNELASSAY_LEASE"
"""Tells children what their parent holds: `device=token` pairs with commas between. Worth nothing by itself."""
REPORT_S = 1.0
"""How often a waiter tells how long it has waited. [rule]"""
BEAT_S = 1.0
"""A sign of life is written at most this often. [rule]"""
_RETRY_S = 0.02
"""Between looks at a lock that no ticket explains: the holder is being torn down, or a child of it lives on."""

_kept: set[int] = set()
"""Descriptors that make a lease of this process; a fork must not keep it alive."""


@dataclass(frozen=True)
class Waiting:
    """What a waiter is told."""

    device: str
    position: int
    """Living processes before this one, the holder included."""
    owner: LeaseOwner | None
    """The record of the holder; None while there is none."""
    seconds: float

    def __str__(self) -> str:
        if self.owner is None:
            return f"{self.position} before this one"
        return f"{self.position} before this one; pid {self.owner.pid} has had {self.device} for {_age(self.owner)}"


@dataclass
class Lease:
    """A device that is held."""

    device: str
    token: int
    waited_s: float
    nested: bool
    """It is an ancestor's or this process's own, and ends with that."""
    held_s: float | None = None
    """Known when it has ended."""
    how: _journal.How = "released"
    """What the journal will say of its end; whoever ends a holder for its limit changes it."""
    keeps: tuple[int, ...] = ()
    """Descriptors that hold it; empty where nested. A process that inherits them prolongs it."""
    _owner: LeaseOwner | None = field(default=None, repr=False)

    def beat(self) -> None:
        """Write a sign of life into the record, where the last one is old enough."""
        now = time.time()
        if self._owner is not None and self.keeps and now - self._owner.heartbeat >= BEAT_S:
            self._owner = self._owner.model_copy(update={"heartbeat": now})
            with suppress(OSError):  # a full disk does not end a lease
                write_record(self.keeps[0], self._owner)


@contextmanager
def lease(
    device: str, *, limit_s: float | None = None, on_wait: Callable[[Waiting], None] | None = None
) -> Iterator[Lease]:
    """Hold `device` for the block, after everybody who asked before.

    Args:
        device: Any name; the same device must always be asked for by the same one.
        limit_s: Stands in the record, in seconds. Ending the holder is its starter's business (`run_held`).
        on_wait: Called when the wait begins and once per second; what it raises ends the wait.

    Raises:
        DeviceError: the name is no device's.
        LeaseError: the files cannot be used.
    """
    with LeaseFiles(device) as files:
        ancestor = _inherited(files)
        if ancestor is not None:
            begun = time.monotonic()
            nested = Lease(device, ancestor.token, waited_s=0.0, nested=True)
            try:
                yield nested
            finally:
                nested.held_s = time.monotonic() - begun
            return
        with _ticket(files) as (number, ticket):
            begun = time.monotonic()
            lock = _await_turn(files, number, begun, on_wait)
            _kept.add(lock)
            try:
                with _hold(files, lock, number, time.monotonic() - begun, limit_s) as held:
                    held.keeps = (lock, ticket)
                    yield held
            finally:
                _close(lock)


@contextmanager
def _ticket(files: LeaseFiles) -> Iterator[tuple[int, int]]:
    """Draw a ticket, and give it back at the end; a fork of this process does neither."""
    drawn_by = os.getpid()
    with files.queue() as handle:
        number, ticket = files.draw(handle)
        _kept.add(ticket)
        try:  # under the queue, so that the lines stand in the order of the tickets
            _journal.append(files, "wait", number)
        except BaseException:
            _kept.discard(ticket)
            files.give_back(number, ticket)
            raise
    try:
        yield number, ticket
    finally:
        if os.getpid() == drawn_by:
            _kept.discard(ticket)
            files.give_back(number, ticket)


def _await_turn(files: LeaseFiles, number: int, begun: float, on_wait: Callable[[Waiting], None] | None) -> int:
    """Wait until no earlier ticket lives, then take the lock; returns it."""
    told = None
    try:
        while True:
            ahead = _ahead(files, number)
            lock = files.try_lock() if ahead is None else None
            if lock is not None:
                return lock
            now = time.monotonic()
            if on_wait is not None and (told is None or now - told >= REPORT_S):
                told = now
                before = [n for n, _ in files.living() if n < number]
                on_wait(Waiting(files.device, max(1, len(before)), files.owner(), now - begun))
            if ahead is None:
                time.sleep(_RETRY_S)
            else:
                try:
                    wait_for_end(ahead, REPORT_S)
                finally:
                    os.close(ahead)
    except BaseException:
        _journal.append(files, "left", number, seconds=time.monotonic() - begun)
        raise


def _ahead(files: LeaseFiles, number: int) -> int | None:
    """A descriptor that hangs up with the nearest living ticket before `number`; None where all are gone."""
    for earlier, pid in reversed(files.tickets()):
        if earlier < number and (handle := files.listen(earlier, pid)) is not None:
            return handle
    return None


@contextmanager
def _hold(files: LeaseFiles, lock: int, token: int, waited_s: float, limit_s: float | None) -> Iterator[Lease]:
    """The lease from its record to the last line in the journal."""
    stale = files.owner()
    if stale is not None:
        _journal.append(files, "end", stale.token, pid=stale.pid, uid=stale.uid, how="died")
    now = time.time()
    owner = LeaseOwner(
        device=files.device,
        token=token,
        pid=os.getpid(),
        started=started(os.getpid()) or 0,
        uid=os.geteuid(),
        command=command_line(),
        since=now,
        limit_s=limit_s,
        heartbeat=now,
    )
    write_record(lock, owner)
    begun = time.monotonic()
    _journal.append(files, "start", token, seconds=waited_s)
    held = Lease(files.device, token, waited_s, nested=False, _owner=owner)
    before = os.environ.get(PROOF)
    os.environ[PROOF] = ",".join([*(before or "").split(","), f"{files.device}={token}"]).strip(",")
    try:
        yield held
    finally:
        if os.getpid() == owner.pid:
            _restore(before)
            held.held_s = time.monotonic() - begun
            held.keeps = ()
            _journal.append(files, "end", token, how=held.how, seconds=held.held_s)
            write_record(lock, None)


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(PROOF, None)
    else:
        os.environ[PROOF] = before


def _close(handle: int) -> None:
    if handle in _kept:  # not in a fork, where it is closed already
        _kept.discard(handle)
        os.close(handle)


def _forget() -> None:
    """In a fork: what keeps the parent's lease is the parent's alone."""
    for handle in _kept:
        os.close(handle)
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


# ── an ancestor's lease ──────────────────────────────────────────────────────────────────────────


def _inherited(files: LeaseFiles) -> LeaseOwner | None:
    """The owner whose lease is also this process's; None where there is none.

    The variable alone proves nothing. The record must carry its token, the lock must be held, the kernel must name the
    record's process as the one that took it (where it lists locks), and this process must descend from that one.
    """
    pairs = (part.rpartition("=") for part in os.environ.get(PROOF, "").split(","))
    tokens = {token for device, _, token in pairs if device == files.device}
    owner = files.owner() if tokens else None
    if owner is None or str(owner.token) not in tokens or not files.locked():
        return None
    takers = files.kernels_word()
    if takers is not None and owner.pid not in takers:
        return None
    return owner if _descends(owner.pid, owner.started) else None


def _descends(ancestor: int, its_start: int) -> bool:
    """Whether this process is `ancestor` or below it; a later process with the same pid does not count."""
    pid = os.getpid()
    while pid > 0:
        if pid == ancestor:
            return started(pid) == its_start
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return False


def started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None when it is gone or hidden."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat after the name, which may hold anything; None when it cannot be read, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split(b" ")
    return None if fields[0] in (b"Z", b"X") else fields


# ── for people ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LeaseStatus:
    """What can be seen of a device's lease."""

    device: str
    folder: Path
    held: bool
    owner: LeaseOwner | None
    """The record; of a dead holder where `held` is false."""
    note: str
    """What the record and the kernel say together, in words."""
    waiters: tuple[int, ...]
    """Pids in the order in which they will be served."""
    events: tuple[LeaseEvent, ...]
    """The whole journal."""
    unreadable: int
    """Lines of the journal that are none: cut by a kill, or not ours."""
    violations: tuple[str, ...]
    """What in the journal breaks exclusion or order."""


def lease_status(device: str) -> LeaseStatus:
    """Look; tickets of the dead are cleared away on the way.

    Raises:
        DeviceError: the name is no device's.
        LeaseError: the files cannot be used.
    """
    with LeaseFiles(device) as files:
        held, owner = files.locked(), files.owner()
        living = files.living()
        events, unreadable = _journal.read(files)
    waiters = tuple(pid for number, pid in living if owner is None or not held or number != owner.token)
    wrong = tuple(_journal.violations(events))
    return LeaseStatus(device, files.path, held, owner, _note(held, owner), waiters, tuple(events), unreadable, wrong)


def _note(held: bool, owner: LeaseOwner | None) -> str:
    if owner is None:
        return "held, by a process that has not said who it is" if held else "free"
    who = f"pid {owner.pid} (uid {owner.uid}, token {owner.token})"
    if not held:
        return f"free: the record of {who} is stale, since the kernel released its lock; the next holder replaces it"
    if started(owner.pid) != owner.started:
        return f"held: {who} is gone or hidden, and what it started still holds the lock or is being ended"
    return f"held by {who} for {_age(owner)}"


def _age(owner: LeaseOwner) -> str:
    return f"{max(0.0, time.time() - owner.since):.0f} s"


__all__ = ["Lease", "LeaseError", "LeaseStatus", "Waiting", "lease", "lease_status", "started"]
