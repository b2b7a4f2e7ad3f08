"""Read another process's memory: results come as raw bytes from where they lie, whatever their owner says of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_IOV_MAX = 512
"""Pieces per system call; Linux allows 1024."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_LIBC.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


class PeekError(OSError):
    """The memory could not be read, or only a part of it."""


def read_memory(pid: int, pieces: Sequence[tuple[int, int, int]]) -> None:
    """Copy `pieces` of `(address there, address here, bytes)` out of process `pid`, in the given order.

    Raises:
        PeekError: an address is not mapped there, the process is gone, or the kernel does not permit it.
    """
    usable = [p for p in pieces if p[2]]
    for start in range(0, len(usable), _IOV_MAX):
        part = usable[start : start + _IOV_MAX]
        theirs = (_Iovec * len(part))(*(_Iovec(there, size) for there, _, size in part))
        ours = (_Iovec * len(part))(*(_Iovec(here, size) for _, here, size in part))
        wanted = sum(size for _, _, size in part)
        got = _LIBC.process_vm_readv(pid, ours, len(part), theirs, len(part), 0)
        if got != wanted:
            code = ctypes.get_errno() if got < 0 else 0
            raise PeekError(code, os.strerror(code) if code else f"{got} of {wanted} bytes")
