"""A hardware target, and the environment that a grade ran in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelassay.records._base import Record


class Device(Record):
    """What a submission was run on."""

    name: str
    """Catalogue name: `cpu`, `h200`, …"""
    kind: Literal["cpu", "cuda"]
    model: str
    """What the hardware calls itself."""
    fingerprint: str
    """Hash over what identifies this unit; measured ceilings are kept under it."""
    cores: int | None = Field(default=None, ge=1)
    """CPU: cores that the device may use."""


class Isolation(Record):
    """How the submission was confined."""

    level: Literal["namespaces", "landlock", "none"]
    reasons: tuple[str, ...] = ()
    """Why a stronger level was not used; empty at the strongest."""
    memory: Literal["cgroup", "watchdog"]
    """What enforced the memory limit."""
    uid_dropped: bool
    """True: ran under an unprivileged uid of its own; False: under the caller's."""


class Environment(Record):
    """What else a time or a result may depend on."""

    kernelassay: str
    python: str
    torch: str
    numpy: str
    platform: str
    """Kernel and libc."""
    cpu_model: str
    cpu_count: int = Field(ge=1)
    compiler: str | None = None
    """First line of `c++ --version`; None where there is none."""
    judge_commit: str | None = None
    """Commit of the judge's own checkout; None when installed from a package."""


class Limits(Record):
    """The documented limits of one grade."""

    build_s: float = 120.0
    load_s: float = 60.0
    """Import and construction."""
    prepare_s: float = 60.0
    call_s: float = 10.0
    """One call on one case."""
    memory_bytes: int = 8 << 30
    processes: int = 256
    file_bytes: int = 1 << 30
    """One file, and all of the scratch together."""
    output_bytes: int = 8 << 20
    """Standard output and error together."""
