"""The words of this package: a level, a jail to be started, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kernelassay.records import Limits

RESERVED_ROOMS = frozenset({"python", "site", "scratch"})
"""Names that a jail's arguments may use besides its rooms."""


class SandboxError(Exception):
    """The machine cannot confine what was asked for; says why and how to allow it. Not the submission's fault."""


class ScratchError(OSError):
    """The jailed process left something else under the wanted name than one plain file of acceptable size."""


class Level(StrEnum):
    """How a submission is confined, strongest first."""

    NAMESPACES = "namespaces"
    """bubblewrap: a root built up from a list, own user, PID, IPC, UTS, mount, network and cgroup namespaces."""
    LANDLOCK = "landlock"
    """The host's root, but Landlock opens listed files only, and seccomp refuses sockets and foreign memory."""
    NONE = "none"
    """Limits, an own session and, when started by root, an own uid; nothing else."""


@dataclass(frozen=True)
class LevelReport:
    """Whether a level works on this machine; it was tried, not guessed."""

    level: Level
    works: bool
    reasons: tuple[str, ...] = ()
    """Why it does not work, or what it cannot promise here."""
    how_to: tuple[str, ...] = ()
    """Commands or settings that would allow it."""


@dataclass(frozen=True)
class Jail:
    """What to run, what it may see, and its limits."""

    argv: tuple[str, ...]
    """`str.format`-ted with the room names, `python`, `site` and `scratch`: `{worker}/start.py`."""
    rooms: Mapping[str, Path]
    """Name → host directory; read-only in the jail (at level none only by convention)."""
    env: Mapping[str, str]
    """The whole environment, formatted like argv. HOME, TMPDIR and PATH have defaults."""
    limits: Limits
    pass_fds: tuple[int, ...] = ()
    """Inherited under the same numbers."""
    runtime: bool = True
    """The interpreter's standard library, and `{site}`: torch, numpy and what they need, nothing else of ours."""
    tools: bool = True
    """C and C++ compiler, binutils, a shell and headers are readable."""
    cpus: frozenset[int] | None = None
    """CPUs that it may use; None for the caller's."""
    gpu: bool = False
    """A GPU's device node, the driver's libraries, CUDA's tool chain, and what /sys says of devices."""
    gpu_minor: int | None = None
    """Which node; None for every GPU of the machine."""


@dataclass(frozen=True)
class Ending:
    """How a jail ended. `exit_code` or `signal` is set, not both."""

    exit_code: int | None
    signal: int | None
    """Number of the signal that ended the command; 9 when it was killed for a limit or by the judge."""
    over_limit: str | None
    """`memory`, `processes` (threads count), `output`, `files`, or None."""


@dataclass(frozen=True)
class Swept:
    """What killed judges had left behind, and is gone now."""

    stages: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    failed: tuple[str, ...] = field(default=())
    """What could not be removed, in words."""
