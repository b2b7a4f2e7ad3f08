"""Where a jail's control groups may lie: below (v1) or beside (v2) our own, so that limits above us still hold."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelassay.records import Limits
from kernelassay.sandbox._warden.cgroup import Cgroups
from kernelassay.sandbox._warden.child import OVERHEAD_TASKS

_V1 = ("memory", "pids", "freezer")


@dataclass(frozen=True)
class Hierarchies:
    """Folders in which groups may be made; None where that is not possible."""

    v1: tuple[tuple[str, str], ...]
    """(controller, folder)."""
    v2: str | None
    v2_controllers: frozenset[str]


def plan(name: str, limits: Limits) -> Cgroups:
    """The groups of a jail called `name` on this machine; empty where none may be made."""
    return _plan(hierarchies(), name, limits)


def _plan(where: Hierarchies, name: str, limits: Limits) -> Cgroups:
    v1 = {controller: f"{folder}/{name}" for controller, folder in where.v1}
    v2 = f"{where.v2}/{name}" if where.v2 else None
    tasks = str(limits.processes + OVERHEAD_TASKS)
    memory = str(limits.memory_bytes)
    settings: list[tuple[str, str]] = []
    wishes: list[tuple[str, str]] = []
    oom = None
    if "memory" in v1:
        settings.append((f"{v1['memory']}/memory.limit_in_bytes", memory))
        wishes += [(f"{v1['memory']}/memory.memsw.limit_in_bytes", memory), (f"{v1['memory']}/memory.swappiness", "0")]
        oom = f"{v1['memory']}/memory.oom_control"
    elif v2 and "memory" in where.v2_controllers:
        settings.append((f"{v2}/memory.max", memory))
        wishes += [(f"{v2}/memory.swap.max", "0"), (f"{v2}/memory.oom.group", "1")]
        oom = f"{v2}/memory.events"
    pids = v1.get("pids") or (v2 if "pids" in where.v2_controllers else None)
    if pids:
        settings.append((f"{pids}/pids.max", tasks))
    if v2:
        v1.pop("freezer", None)
    return Cgroups(
        folders=(*([v2] if v2 else []), *dict.fromkeys(v1.values())),
        settings=tuple(settings),
        wishes=tuple(wishes),
        oom=oom,
        freezer=v2 or v1.get("freezer"),
        limits_memory=oom is not None,
        forks=f"{pids}/pids.events" if pids else None,
        limits_processes=pids is not None,
    )


@cache
def hierarchies() -> Hierarchies:
    """What works here; each folder was tried with a group that a process joined."""
    own = _own()
    v1: dict[str, str] = {}
    v2: list[str] = []
    for kind, mount, root, options in _mounts():
        if kind == "cgroup":
            for controller in set(_V1) & options & own.keys():
                v1[controller] = _below(mount, root, own[controller])
        elif "" in own:
            folder = _below(mount, root, own[""])
            # Beside us: a v2 group with processes can hand no controllers down, so a delegated parent must.
            v2 = [folder] if folder == mount else [folder, os.path.dirname(folder)]
    usable_v1 = tuple((controller, folder) for controller, folder in sorted(v1.items()) if _usable(folder))
    usable_v2 = [folder for folder in v2 if _usable(folder)]
    for folder in usable_v2:
        if {"memory", "pids"} <= _delegated(folder):
            return Hierarchies(usable_v1, folder, _delegated(folder))
    return Hierarchies(usable_v1, next(iter(usable_v2), None), frozenset())


def _own() -> dict[str, str]:
    """Controller (empty for v2) → path of our own group."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        for kind in kinds.split(","):
            found[kind] = path
    return found


def _mounts() -> list[tuple[str, str, str, set[str]]]:
    """(type, mount point, root, controllers) of every mounted hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, kind, options = left.split(), right.split()[0], right.split()[-1]
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, fields[4], fields[3], set(options.split(","))))
    return found


def _below(mount: str, root: str, own: str) -> str:
    """Folder of our own group; a container may show only a part of the hierarchy."""
    inner = own[len(root) :] if root != "/" and own.startswith(root) else own
    return os.path.normpath(f"{mount}/{inner}") if ".." not in inner else mount


def _delegated(folder: str) -> frozenset[str]:
    try:
        return frozenset(Path(folder, "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()


def _usable(folder: str) -> bool:
    """Whether a process of ours may enter a new group below `folder`."""
    group = f"{folder}/kernelassay-try-{secrets.token_hex(4)}"
    try:
        os.mkdir(group)
    except OSError:
        return False
    try:
        join = ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"', group]
        return subprocess.run(join, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False).returncode == 0
    finally:
        Cgroups(folders=(group,)).remove()
