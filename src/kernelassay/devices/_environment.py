"""The environment block of a grade: versions and machine facts that a time or a result may depend on."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import kernelassay
from kernelassay.devices._cpu import machine_facts
from kernelassay.devices._toolchain import compiler_version
from kernelassay.records import Environment

_GIT_TIMEOUT_S = 10.0


def _version(distribution: str) -> str:
    """Installed version, read without importing the package: torch alone would cost seconds."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def judge_commit(package: Path) -> str | None:
    """Commit of the checkout that holds `package`, with `-dirty` after it when tracked files differ.

    None where the package is not the `src/kernelassay` of a git checkout, or git cannot tell.
    """
    root = package.parent.parent
    if not (root / ".git").exists() or package != root / "src" / "kernelassay":
        return None
    argv = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


@functools.cache
def environment() -> Environment:
    """The environment of this process, read once."""
    libc = " ".join(part for part in platform.libc_ver() if part) or "unknown libc"
    return Environment(
        kernelassay=kernelassay.__version__,
        python=platform.python_version(),
        torch=_version("torch"),
        numpy=_version("numpy"),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}, {libc}",
        cpu_model=machine_facts().model,
        cpu_count=os.cpu_count() or 1,
        compiler=compiler_version(),
        judge_commit=judge_commit(Path(kernelassay.__file__).resolve().parent),
    )
