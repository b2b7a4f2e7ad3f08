"""Who is alive in a jail, by walking /proc: the only view that needs no permission at all."""

from __future__ import annotations

import os
import signal
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def _stat(pid: int) -> tuple[int, str] | None:
    """(parent, state) of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    state, parent = text[text.rindex(b")") + 2 :].split(b" ", 2)[:2]  # the name may hold anything, even ")"
    return int(parent), state.decode()


def everyone() -> list[int]:
    """Every pid of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> set[int]:
    """Everything below `root` that is alive (zombies left out), however deep; `root` itself is not in it."""
    below: dict[int, list[int]] = {}
    dead = set()
    for pid in everyone():
        facts = _stat(pid)
        if facts is not None:
            below.setdefault(facts[0], []).append(pid)
            if facts[1] in "ZX":
                dead.add(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        for child in below.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found - dead


def owned(uid: int) -> set[int]:
    """Everything alive whose real, effective or saved uid is `uid`.

    The owner of the /proc folder would not do: it is root for a process that made itself non-dumpable.
    """
    found = set()
    for pid in everyone():
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:
            continue
        fields = {line.split(b":", 1)[0]: line.split()[1:] for line in lines if line.startswith((b"Uid:", b"State:"))}
        if str(uid).encode() in fields.get(b"Uid", []) and fields.get(b"State", [b"X"])[0] not in (b"Z", b"X"):
            found.add(pid)
    return found


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    facts = _stat(pid)
    return facts is not None and facts[1] not in "ZX"


def start_time(pid: int) -> int | None:
    """Start of the process in clock ticks since boot, which tells it from a later one with the same pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return int(text[text.rindex(b")") + 2 :].split(b" ")[19])


def children(pid: int) -> list[int]:
    """Direct children that are alive."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split() if alive(int(word))]
    except OSError:
        pass  # gone, or a kernel without this file
    return [other for other in everyone() if (facts := _stat(other)) and facts[0] == pid and facts[1] not in "ZX"]


def signal_each(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to each; whoever is gone already is no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def resident(pids: Iterable[int]) -> int:
    """Memory of these processes in bytes, shared pages counted once per process: an upper bound, and cheap."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * page
        except (OSError, IndexError):
            continue
    return total


def proportional(pids: Iterable[int]) -> int:
    """Memory of these processes in bytes, shared pages divided among those that map them (Pss).

    A process whose Pss may not be read (it made itself non-dumpable) counts with all its resident pages.
    """
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                fields = dict(line.split(b":", 1) for line in file.read().splitlines()[1:] if b":" in line)
            total += int(fields[b"Pss"].split()[0]) << 10
        except (OSError, KeyError, ValueError):
            total += resident([pid])
    return total


def unlinked(pids: Iterable[int], known: frozenset[tuple[int, int]]) -> tuple[int, int]:
    """Bytes behind descriptors to files that have no name any more: (on disk, in memory).

    Neither a walk of the scratch folder nor a resident set shows them. `known` are (device, inode) that the
    judge handed in.
    """
    seen: set[tuple[int, int]] = set(known)
    disk = memory = 0
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                facts = os.stat(f"{folder}/{name}")
                if facts.st_nlink or not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) in seen:
                    continue
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            if target.startswith(("/memfd:", "/dev/shm/", "/dev/zero")):
                memory += facts.st_blocks * 512
            else:
                disk += facts.st_blocks * 512
    return disk, memory
