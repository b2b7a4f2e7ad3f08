"""What the submission's calls must fetch from memory: input sets are put out of every cache before the clock starts.

The rule: the data of a round are cold, its code is not. Where the processor has an instruction that evicts one line
from all caches, the lines of the sets that were just written are evicted and nothing else; the interpreter, the
allocator and the submission's code stay where an ordinary call finds them. Elsewhere a large buffer is read, which
displaces everything: a round then begins with some 300 µs of cold code, and the record says so.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from pathlib import Path

import torch

_LINE_BYTES = 64
_X86_64 = bytes.fromhex(
    "0fae3f"  # again: clflush [rdi]
    "4883c740"  # add rdi, 64
    "4839f7"  # cmp rdi, rsi
    "72f4"  # jb again
    "0faef0"  # mfence
    "c3"  # ret
)
"""`evict(start, end)` as machine code: no library that we stand on has it, and not every judge has a compiler."""


class Displacer:
    """Puts a range of memory out of all caches."""

    def __init__(self, fallback_bytes: int, by_line: bool | None = None) -> None:
        """Find out how.

        Args:
            fallback_bytes: what is read where single lines cannot be evicted; a few last-level caches.
            by_line: False reads in any case; None evicts lines where that works.
        """
        self._evict = None if by_line is False else _evictor()
        words = 0 if self._evict else max(1, fallback_bytes // 8)
        self._buffer = torch.ones(words, dtype=torch.int64)

    @property
    def by_line(self) -> bool:
        """Whether only the range goes, and code and everything else stays warm."""
        return self._evict is not None

    def __call__(self, start: int, size_bytes: int) -> None:
        """Evict `size_bytes` from address `start` of this process, from the caches of every core."""
        if self._evict is None:
            self._buffer.sum()
        else:
            first = start - start % _LINE_BYTES
            self._evict(first, start + max(1, size_bytes))


def _evictor() -> Callable[[int, int], object] | None:
    """The machine code as a function; None on another processor, or where memory may not be executed."""
    if platform.machine() != "x86_64" or "clflush" not in _flags():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(_X86_64)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.addressof(ctypes.c_char.from_buffer(page))
    )

    function.page = page  # type: ignore[attr-defined]  # mapped for as long as the function lives
    return function


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
