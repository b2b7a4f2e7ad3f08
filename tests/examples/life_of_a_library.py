"""Run by test_topk_cpp in a process of its own: `life_of_a_library.py LIBRARY SCENE` prints "right" or dies."""

from __future__ import annotations

import _ctypes
import ctypes
import mmap
import os
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np

LARGE = (4, 100_000, 16)
"""Enough floats for the pool to start."""
SETTLE_S, WATCH_S, IDLE_CPU_S = 0.05, 0.3, 0.03
"""After a call: time to fall asleep, time watched, CPU time allowed in it (a spinning thread would use all of it)."""


def right(library: ctypes.CDLL, shape: tuple[int, int, int] = LARGE, x: np.ndarray | None = None) -> bool:
    """One call on fresh numbers, compared with numpy's sort."""
    batch, n, k = shape
    if x is None:
        x = np.random.default_rng(time.time_ns()).standard_normal((batch, n), dtype=np.float32)
    values, indices = np.zeros((batch, k), np.float32), np.zeros((batch, k), np.int64)
    inputs = (ctypes.c_void_p * 1)(x.ctypes.data)
    outputs = (ctypes.c_void_p * 2)(values.ctypes.data, indices.ctypes.data)
    code = library.topk(inputs, outputs, (ctypes.c_int64 * 3)(*shape))
    expected = -np.sort(-x, axis=1)[:, :k]
    return code == 0 and bool((values == expected).all() and (np.take_along_axis(x, indices, 1) == values).all())


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def quiet(library: ctypes.CDLL) -> bool:
    """No thread works once the call has returned."""
    ok = right(library)
    time.sleep(SETTLE_S)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(WATCH_S)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return ok and after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < IDLE_CPU_S


def one_cpu(library: ctypes.CDLL) -> bool:
    """On one CPU no thread is started."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = _threads()
    return right(library) and _threads() == before


def fork(library: ctypes.CDLL) -> bool:
    """A child of a process whose pool has started works, also when the fork falls into a call."""
    ok = right(library)
    stop = threading.Event()

    def keep_calling() -> None:
        while not stop.is_set():
            right(library, (2, 70_000, 4))

    caller = threading.Thread(target=keep_calling)
    caller.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if right(library) and right(library) else 1)
        ok = ok and os.waitpid(child, 0)[1] == 0
    stop.set()
    caller.join()
    return ok


def close(library: ctypes.CDLL) -> bool:
    """Closing the library never leaves a thread without its code.

    The C library keeps the code mapped while a thread that has called it lives, since its workspace is thread-local;
    where it does unmap, the pool's threads must have ended.
    """
    before = _threads()
    ok = right(library)
    _ctypes.dlclose(library._handle)
    mapped = library._name in Path("/proc/self/maps").read_text()
    return ok and (mapped or _threads() == before)


def page_end(library: ctypes.CDLL) -> bool:
    """Nothing is read past the end of x: the page that follows may not be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = mmap.mmap(-1, 32 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    last = 31 * mmap.PAGESIZE
    if libc.mprotect(ctypes.c_void_p(start + last), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    ok = True
    for n in (1, 5, 31, 100, 1000, 1001, 30_001):
        x = np.frombuffer(pages, np.float32, n, last - 4 * n).reshape(1, n)
        x[:] = np.random.default_rng(n).standard_normal((1, n), dtype=np.float32)
        ok = ok and all(right(library, (1, n, k), x) for k in (1, min(n, 9), n))
    sys.stdout.write("right\n" if ok else "wrong\n")
    sys.stdout.flush()
    os._exit(0)  # the mapping has a view and cannot be closed


SCENES = {scene.__name__: scene for scene in (quiet, one_cpu, fork, close, page_end)}

if __name__ == "__main__":
    sys.stdout.write("right\n" if SCENES[sys.argv[2]](ctypes.CDLL(sys.argv[1])) else "wrong\n")
