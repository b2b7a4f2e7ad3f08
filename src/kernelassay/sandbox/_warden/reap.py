"""The end of a jail: kill until nobody is left, then remove what it stood on. Also used by the sweep."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from . import procs
from .cgroup import Cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SETTLE_TIMEOUT_S = 10.0
"""Longest wait for killed processes to go; only an uninterruptible wait in a driver takes longer."""


def members(root: int | None, cgroups: Cgroups, uid: int | None) -> set[int]:
    """Everything of a jail that is alive, by group, by own uid and by descent from the warden `root`."""
    found = cgroups.members()
    if uid is not None:
        found |= procs.owned(uid)
    if root is not None:
        found |= procs.descendants(root)
    found.discard(os.getpid())
    return found


def settle(root: int | None, cgroups: Cgroups, uid: int | None, reap: Callable[[], None]) -> frozenset[int]:
    """Kill every process of a jail until none is left; who withstood it for SETTLE_TIMEOUT_S is returned.

    Stopping everybody before the first kill keeps a fork bomb from outrunning the walk.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        cgroups.kill()
        reap()
        left = members(root, cgroups, uid)
        if not left or time.monotonic() > deadline:
            reap()  # whoever died during the walk; left to init, a corpse would outlive the jail
            return frozenset(left)
        procs.signal_each(left, signal.SIGSTOP)
        procs.signal_each(left, signal.SIGKILL)
        reap()
        time.sleep(0.002)


def remove_tree(folder: str) -> list[str]:
    """Remove a stage; says in words what could not be removed.

    Called when no process of the jail is left. Never follows a symlink; folders that the jail closed even to
    their owner are opened first.
    """
    import shutil  # here: not on the way to a started jail

    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        _open_up(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return [f"folder {folder}"] if os.path.lexists(folder) else []


def _open_up(folder: str) -> None:
    queue = [folder]
    while queue:
        path = queue.pop()
        with suppress(OSError):
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                queue += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
