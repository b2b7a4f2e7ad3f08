"""The limits that the kernel does not enforce by itself, looked at once per tick.

A look may cost at most a twentieth of one CPU: after an expensive one the next waits accordingly. Its own CPU time
counts, not the clock: a fork bomb that starves the warden must not make it look less often.
"""

from __future__ import annotations

import os
import signal
import time

from . import procs
from .cgroup import Cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHARE_OF_TIME = 20
"""The pause after a look is at least this many times its CPU time."""
MAX_FILES = 200_000
"""Entries in scratch; torch's and a compiler's caches stay far below."""
SLOW_TICK_S = 0.5
"""Pause between two walks over open descriptors, which show files without a name."""


class Watch:
    """Memory, processes and files of one jail."""

    def __init__(self, main: int, spec: dict[str, Any], cgroups: Cgroups, known: frozenset[tuple[int, int]]) -> None:
        self._root = os.getpid()
        self._main = main
        self._cgroups = cgroups
        self._known = known
        self._scratch = spec["scratch_host"]
        self._memory: int = spec["limits"]["memory_bytes"]
        self._processes: int = spec["limits"]["processes"]
        self._files: int = spec["limits"]["file_bytes"]
        self._next = 0.0
        self._next_slow = time.monotonic() + SLOW_TICK_S
        self._hidden = (0, 0)

    def over(self) -> str | None:
        """The limit that is exceeded now."""
        if self._cgroups.oom_kills():
            return "memory"
        if self._cgroups.refused_forks():
            return "processes"
        start, cost = time.monotonic(), time.process_time()
        if start < self._next:
            return None
        found = self._people(start) or self._storage()
        self._next = time.monotonic() + SHARE_OF_TIME * (time.process_time() - cost)
        return found

    def last_words(self, status: int | None) -> str | None:
        """What the kernel did at the end: an out-of-memory kill, a refused fork, or a file beyond its limit."""
        if self._cgroups.oom_kills():
            return "memory"
        if self._cgroups.refused_forks():
            return "processes"
        if status is not None and os.waitstatus_to_exitcode(status) in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
            return "files"
        return None

    def _people(self, now: float) -> str | None:
        slow = now >= self._next_slow
        if self._cgroups.limits_memory and self._cgroups.limits_processes and not slow:
            return None
        pids = self._cgroups.members() or procs.descendants(self._root)
        if slow:
            cost = time.process_time()
            self._hidden = procs.unlinked(pids, self._known)
            self._next_slow = now + max(SLOW_TICK_S, SHARE_OF_TIME * (time.process_time() - cost))
        if not self._cgroups.limits_processes and _tasks(pids) > self._processes:
            return "processes"
        if not self._cgroups.limits_memory:
            hidden = self._hidden[1]
            if procs.resident(pids) + hidden > self._memory and procs.proportional(pids) + hidden > self._memory:
                return "memory"
        return None

    def _storage(self) -> str | None:
        entries = 0
        used = self._hidden[0]
        if used > self._files:
            return "files"
        queue = [self._scratch]
        while queue:
            try:
                with os.scandir(queue.pop()) as folder:
                    for entry in folder:
                        entries += 1
                        facts = entry.stat(follow_symlinks=False)
                        used += facts.st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            queue.append(entry.path)
                        if used > self._files or entries > MAX_FILES:
                            return "files"
            except PermissionError:
                return "files"  # a folder closed even to its owner could hide a flood
            except OSError:
                continue  # removed or replaced while we looked
        return None


def _tasks(pids: set[int]) -> int:
    """Threads of all these processes."""
    total = 0
    for pid in pids:
        try:
            total += os.stat(f"/proc/{pid}/task").st_nlink - 2
        except OSError:
            continue
    return total
