"""Cores that do not fall asleep while a clock runs.

A core without work halts, and waking it costs 100 to 300 µs on a virtual machine, more than the calls of a short round:
rounds of 64 calls scattered by 300 µs without and by 25 µs with this (`bench/clock_jitter.py` on 16 quiet cores of a
virtual machine, [measured]). So one process per core spins at the kernel's idle priority: anything else that wants
the core gets it at once, and the core is awake when it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_SPIN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
if os.getppid() != int(sys.argv[2]):
    sys.exit()
while True:
    pass
"""
"""Argument 1 is the core, 2 the judge; prctl 1 asks the kernel for SIGKILL when the thread that started it ends."""


@contextmanager
def awake(cpus: Iterable[int]) -> Iterator[None]:
    """Keep these cores awake for a while; call it from the main thread."""
    base = getattr(sys, "_base_executable", sys.executable)
    spinners = [
        subprocess.Popen([base, "-I", "-S", "-c", _SPIN, str(cpu), str(os.getpid())], stdin=subprocess.DEVNULL)
        for cpu in cpus
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
