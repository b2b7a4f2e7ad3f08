"""What this machine can and cannot judge: one row per thing that a grade needs, each really tried."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from kernelassay.sandbox import LevelReport

_PYTHONS = ((3, 11), (3, 12))
_PUBLISHABLE = "namespaces"
_GIB = 1 << 30
_ENOUGH_MEMORY = 4 * _GIB
"""The judge stays below 1.5 GB and a worker with torch starts at 0.3 GB; the rest is the submission's."""
_ENOUGH_SCRATCH = 2 * _GIB
"""A submission may write 1 GiB, and a build needs room beside it."""

State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True)
class Row:
    """One thing that a grade needs."""

    name: str
    state: State
    detail: str
    fix: str = ""
    """The command or step that makes it `ok`; empty where nothing is to be done."""
    needed: bool = False
    """Without it no grade on the CPU is possible."""


def python() -> Row:
    """The interpreter, and whether its version is one that is tested."""
    version = sys.version_info
    text = f"{version.major}.{version.minor}.{version.micro} at {sys.executable}"
    if (version.major, version.minor) in _PYTHONS:
        return Row("python", "ok", text)
    return Row("python", "limited", f"{text}: only 3.11 and 3.12 are tested", "install Python 3.11 or 3.12")


def module(name: str, fix: str) -> Row:
    """A package that the worker needs, imported for real: an installed torch may still lack a system library."""
    try:
        version = str(importlib.import_module(name).__version__)
    except (ImportError, OSError) as error:
        return Row(name, "missing", f"cannot be imported: {error}", fix, needed=True)
    return Row(name, "ok", version, needed=True)


def compiler() -> Row:
    """The C++ compiler, tried on a small shared object."""
    from kernelassay.devices import toolchain

    cxx = toolchain().cxx
    if cxx.works:
        return Row("C++ compiler", "ok", f"{cxx.version} at {cxx.path}")
    detail = f"{cxx.problem}; submissions with native sources cannot be judged"
    return Row("C++ compiler", "missing", detail, "apt-get install g++")


def levels(reports: Iterable[LevelReport]) -> list[Row]:
    """One row on the level that grades use, then one per level, strongest first."""
    rows = []
    strongest = None
    for report in reports:
        reasons = "; ".join(report.reasons)
        if report.works:
            strongest = strongest or report.level
            rows.append(Row(f"  level {report.level}", "ok", reasons or "tried: works"))
        else:
            rows.append(
                Row(f"  level {report.level}", "missing", reasons or "tried: does not work", "; ".join(report.how_to))
            )
    if strongest is None:
        first = Row("isolation", "missing", "no level works", "see the levels below", needed=True)
    elif strongest == _PUBLISHABLE:
        first = Row("isolation", "ok", f"grades use level {strongest}", needed=True)
    else:
        detail = f"grades use level {strongest}; below {_PUBLISHABLE} a grade says so and cannot be published"
        first = Row("isolation", "limited", detail, f"see level {_PUBLISHABLE} below", needed=True)
    return [first, *rows]


def confinement() -> Row:
    """What enforces memory and which user id a submission gets, at the strongest level that works."""
    from kernelassay import sandbox

    try:
        isolation = sandbox.Sandbox().isolation
    except sandbox.SandboxError as error:
        return Row("limits", "missing", str(error), "see the isolation rows")
    uid = "a user id of its own" if isolation.uid_dropped else "the caller's user id"
    if isolation.memory == "cgroup":
        return Row("limits", "ok", f"memory and processes by cgroup, {uid}")
    detail = f"memory by a watchdog that samples (no writable cgroup), {uid}"
    return Row("limits", "limited", detail, "run as root, or in a session with a delegated cgroup: systemd-run --user")


def cores() -> Row:
    """Cores that the CPU device may use: one is the judge's, the rest run the submission."""
    from kernelassay.devices import machine_facts

    facts = machine_facts()
    text = f"{facts.usable} of {facts.online} usable, {facts.model}"
    if facts.usable >= 2:
        return Row("cores", "ok", text)
    return Row("cores", "limited", f"{text}; judge and submission share one core", "use a machine with two cores")


def memory(meminfo: Path = Path("/proc/meminfo")) -> Row:
    """Memory that is available now."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError) as error:
        return Row("memory", "limited", f"cannot be read: {error}")
    text = f"{free / _GIB:.1f} GiB available of {total / _GIB:.1f} GiB"
    if free >= _ENOUGH_MEMORY:
        return Row("memory", "ok", text)
    return Row("memory", "limited", f"{text}; large shapes may end over_limit", "free some memory")


def folder(name: str, path: Path, fix: str) -> Row:
    """A folder that must take files: written to for real, and its free space."""
    existing = next(candidate for candidate in (path, *path.parents) if candidate.exists())
    try:
        if existing == path:
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(b"x")
        elif not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Row(name, "missing", f"{path} takes no file: {error.strerror or error}", fix, needed=True)
    text = f"{path}, {free / _GIB:.1f} GiB free"
    if free >= _ENOUGH_SCRATCH:
        return Row(name, "ok", text, needed=True)
    return Row(name, "limited", f"{text}; a submission may write 1 GiB", fix, needed=True)


def gpu(devices: Path = Path("/dev"), library: Any = None) -> Row:
    """Which GPUs are here and whether the catalogue knows them; what is known can be graded on, without times.

    `library` stands in for the module `pynvml`.
    """
    from kernelassay.devices import NvmlError, gpus, refused

    nodes = sorted(node.name for node in devices.glob("nvidia[0-9]*"))
    try:
        units = gpus(library)
    except NvmlError as error:
        if nodes:
            fix = "install the driver's NVML library (libnvidia-ml.so.1), or let this user open /dev/nvidia*"
            return Row("GPU", "limited", f"{', '.join(nodes)} found, but {error}", fix)
        return Row("GPU", "missing", "none here: problems are judged on device cpu, tier small")
    if not units:
        return Row("GPU", "missing", "the driver shows none: problems are judged on device cpu, tier small")
    told, usable = [], False
    for unit in units:
        name = "not in the catalogue" if unit.entry is None else unit.entry.name
        refusal = refused(unit.state)
        usable = usable or (unit.entry is not None and refusal is None)
        told.append(f"{unit.model} ({name}{'' if refusal is None else f'; {refusal}'}), driver {unit.state.driver}")
    state: Literal["ok", "limited"] = "ok" if usable else "limited"
    return Row("GPU", state, f"{'; '.join(told)}; this release grades on it without times (--no-time)")


def problems() -> Row:
    """The decks that can be found."""
    from kernelassay import decks

    try:
        names = decks.problem_names()
    except decks.DeckError as error:
        return Row("decks", "missing", str(error), "assay deck list", needed=True)
    if not names:
        return Row("decks", "missing", "no problem found", "unset KERNELASSAY_DECKS", needed=True)
    return Row("decks", "ok", f"{len(names)} problem{'s' if len(names) > 1 else ''}: {', '.join(names)}", needed=True)


def all_rows(home: Path, phase: Callable[[str], None]) -> list[Row]:
    """Every row, in the order in which a reader fixes them; `phase` hears what is being tried."""
    from kernelassay import sandbox

    rows = [python()]
    for name in ("torch", "numpy"):
        phase(f"importing {name}")
        rows.append(module(name, f"{sys.executable} -m pip install {name}"))
    phase("compiling a canary")
    rows.append(compiler())
    phase("trying the isolation levels")
    rows.extend(levels(sandbox.available()))
    rows.append(confinement())
    phase("looking at the machine")
    scratch = Path(tempfile.gettempdir())
    rows.extend((cores(), memory()))
    rows.append(folder("temporary files", scratch, "set TMPDIR to a folder with room"))
    rows.append(folder("grades", home, "choose another place: export KERNELASSAY_HOME=FOLDER"))
    rows.extend((problems(), gpu()))
    return rows


def can_judge(rows: Iterable[Row]) -> bool:
    """Whether a grade on the CPU is possible at some level."""
    return all(row.state != "missing" for row in rows if row.needed)
