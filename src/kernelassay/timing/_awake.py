"""Cores that do not fall asleep while a clock runs.

A core without work halts, and waking it costs 100 to 300 µs on a virtual machine, more than the calls of a short round:
rounds of 64 calls scattered by 300 µs without and by 25 µs with this (`bench/clock_jitter.py` on 16 quiet cores of a
virtual machine, [measured]). So one process per core spins at the kernel's idle priority: anything else that wants
the core gets it at once, and the core is awake when it does.

Idle priority holds among equals only. Where the kernel groups processes by session (autogroup), a spinner of another
session would get half of the core in slices of milliseconds; there it must stand in a control group that is idle as a
whole, and where none can be made nobody spins.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SPIN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if sys.argv[3]:
    open(sys.argv[3], "w").write(str(os.getpid()))
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
if os.getppid() != int(sys.argv[2]):
    sys.exit()
while True:
    pass
"""
"""Argument 1 is the core, 2 the judge, 3 the group's list of processes; prctl 1 asks for SIGKILL with the parent."""
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))
_NAME = "kernelassay-awake-"


@contextmanager
def awake(cpus: Iterable[int]) -> Iterator[bool]:
    """Keep these cores awake for a while; says whether it can. Call it from the main thread."""
    group = _idle_group()
    spinners = [_spinner(cpu, group) for cpu in cpus] if group is not None or not _grouped() else []
    try:
        yield bool(spinners)
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
        if group is not None:
            with suppress(OSError):
                group.rmdir()


def _spinner(cpu: int, group: Path | None) -> subprocess.Popen[bytes]:
    base = getattr(sys, "_base_executable", sys.executable)
    members = "" if group is None else str(group / "cgroup.procs")
    command = [base, "-I", "-S", "-c", _SPIN, str(cpu), str(os.getpid()), members]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _grouped() -> bool:
    """Whether the scheduler weighs sessions against each other."""
    try:
        return _AUTOGROUP.read_text().strip() != "0"
    except OSError:
        return False


def _idle_group() -> Path | None:
    """A new control group whose members run only when nobody else wants the core; None where none can be made."""
    for root in _ROOTS:
        for left in root.glob(f"{_NAME}*"):  # of a killed judge; one that is in use cannot be removed
            with suppress(OSError):
                left.rmdir()
        group = root / f"{_NAME}{os.getpid()}"
        try:
            group.mkdir()
            if (group / "cpu.idle").exists():
                (group / "cpu.idle").write_text("1")
                return group
            group.rmdir()
        except OSError:
            with suppress(OSError):
                group.rmdir()
    return None
