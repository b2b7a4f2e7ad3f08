"""Memory of a GPU that two processes share by descriptor: the driver's virtual-memory calls, through ctypes.

An allocation is made by one process, exported as a file descriptor, and mapped by the other; neither needs the other's
context, uid or namespaces, as `cudaIpc…` handles do. The judge makes what it shares, and keeps private copies: an
importer may set its own access and write anywhere in it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PINNED = 1
_DEVICE = 1
_POSIX_FD = 1
_READ_WRITE = 3


class DeviceMemoryError(RuntimeError):
    """A call of the driver failed; says which and why."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_u64, _size, _pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuMemGetAllocationGranularity": (_pointer, _pointer, ctypes.c_int),
    "cuMemCreate": (_pointer, _size, _pointer, _u64),
    "cuMemExportToShareableHandle": (_pointer, _u64, ctypes.c_int, _u64),
    "cuMemImportFromShareableHandle": (_pointer, _pointer, ctypes.c_int),
    "cuMemAddressReserve": (_pointer, _size, _size, _u64, _u64),
    "cuMemMap": (_u64, _size, _size, _u64, _u64),
    "cuMemSetAccess": (_u64, _size, _pointer, _size),
    "cuMemUnmap": (_u64, _size),
    "cuMemAddressFree": (_u64, _size),
    "cuMemRelease": (_u64,),
}


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    for name, arguments in _SIGNATURES.items():
        getattr(driver, name).argtypes = arguments
    return driver


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise DeviceMemoryError(f"{name}: {(text.value or b'').decode() or code}")


class Shared:
    """One range of the current device's memory, mapped in this process; unmapped when nothing refers to it."""

    def __init__(self, size_bytes: int, fd: int | None = None) -> None:
        """Make a range that can be exported, or map the one behind `fd`.

        Raises:
            DeviceMemoryError: out of memory, or a descriptor of something else.
        """
        torch.cuda.init()
        device = torch.cuda.current_device()
        torch.cuda.synchronize()  # makes the context that the calls below need
        properties = _Properties(_PINNED, _POSIX_FD, _Location(_DEVICE, device))
        step = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), 0)
        self.size_bytes = -(-max(size_bytes, 1) // step.value) * step.value
        handle, start = ctypes.c_uint64(), ctypes.c_uint64()
        if fd is None:
            request = (ctypes.byref(handle), self.size_bytes, ctypes.byref(properties), 0)
            try:
                _call("cuMemCreate", *request)
            except DeviceMemoryError:
                torch.cuda.empty_cache()  # the driver cannot use what torch keeps for later
                _call("cuMemCreate", *request)
        else:
            _call("cuMemImportFromShareableHandle", ctypes.byref(handle), fd, _POSIX_FD)
        try:
            self.fd = fd if fd is not None else self._export(handle)
            _call("cuMemAddressReserve", ctypes.byref(start), self.size_bytes, 0, 0, 0)
            _call("cuMemMap", start, self.size_bytes, 0, handle, 0)
            self.start = start.value
        finally:
            _call("cuMemRelease", handle)  # the mapping and the descriptor keep it
        access = _Access(_Location(_DEVICE, device), _READ_WRITE)
        _call("cuMemSetAccess", start, self.size_bytes, ctypes.byref(access), 1)

    @staticmethod
    def _export(handle: ctypes.c_uint64) -> int:
        fd = ctypes.c_int(-1)
        _call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _POSIX_FD, 0)
        os.set_inheritable(fd.value, False)
        return fd.value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What `torch.as_tensor` reads: the range as bytes."""
        return {"shape": (self.size_bytes,), "typestr": "|u1", "data": (self.start, False), "version": 3}

    def tensor(self) -> Tensor:
        """The range as uint8 on its device; the memory lives as long as a view of it."""
        return torch.as_tensor(self, device="cuda")

    def __del__(self) -> None:
        start = getattr(self, "start", 0)
        if start:
            torch.cuda.synchronize()
            _call("cuMemUnmap", start, self.size_bytes)
            _call("cuMemAddressFree", start, self.size_bytes)
