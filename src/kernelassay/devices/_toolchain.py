"""Which compilers this machine has, each tried on a real file.

A compiler counts as working only when it has built a shared object from a small source: a driver without headers
or linker prints its version too.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 30.0
"""A canary takes 0.2 s; thirty seconds is a machine in trouble, not a slow one."""

_CANARY_CXX = """
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>
extern "C" int canary(const void *const *, void *const *, const std::int64_t *n) {
    std::vector<std::int64_t> v(4, n ? *n : 0);
    std::thread t([&] { std::sort(v.begin(), v.end()); });
    t.join();
    return static_cast<int>(v[0]);
}
"""
_CANARY_C = "#include <stdint.h>\nint canary(const int64_t *n) { return n ? (int)*n : 0; }\n"


@dataclass(frozen=True)
class Compiler:
    """One compiler driver."""

    command: str
    path: str | None
    """None: not found on PATH."""
    version: str | None
    """First line of `--version`."""
    works: bool
    """It built the canary."""
    problem: str = ""
    """Why it does not work, in one line."""


@dataclass(frozen=True)
class Toolchain:
    """The compilers for native submissions."""

    cxx: Compiler
    c: Compiler


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _run(argv: list[str], folder: str | None = None) -> tuple[int | None, str]:
    """Exit code (None: did not end or start) and the text it printed."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"did not end within {_TIMEOUT_S:.0f} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


@functools.cache
def compiler_version(command: str = "c++") -> str | None:
    """First line of `<command> --version`; None where there is no such compiler or it does not run."""
    path = shutil.which(command)
    if path is None:
        return None
    code, text = _run([path, "--version"])
    first = text.strip().splitlines()[:1]
    return first[0].strip() if code == 0 and first else None


def _try(command: str, suffix: str, standard: str, source: str) -> Compiler:
    path = shutil.which(command)
    if path is None:
        return Compiler(command, None, None, works=False, problem=f"{command} is not on PATH")
    version = compiler_version(command)
    with tempfile.TemporaryDirectory(prefix="kernelassay-canary-") as folder:
        file = Path(folder) / f"canary{suffix}"
        file.write_text(source, encoding="utf-8")
        argv = [path, standard, "-O1", "-shared", "-fPIC", "-pthread", "-o", "canary.so", file.name]
        code, text = _run(argv, folder)
        built = code == 0 and (Path(folder) / "canary.so").is_file()
    if built:
        return Compiler(command, path, version, works=True)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    return Compiler(command, path, version, works=False, problem=f"{command} cannot build a shared object: {first}")


@functools.cache
def toolchain() -> Toolchain:
    """Try every compiler that submissions may need, once per process."""
    return Toolchain(
        cxx=_try("c++", ".cpp", "-std=c++20", _CANARY_CXX),
        c=_try("cc", ".c", "-std=c17", _CANARY_C),
    )
