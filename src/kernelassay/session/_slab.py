"""Shared memory of the judge: sealed memfds that a hostile peer can neither shrink nor grow.

Without the seals an `ftruncate` by the worker would kill the judge with SIGBUS. The worker may write into a slab,
inputs included; the judge therefore keeps private copies and compares with them after each call.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from kernelassay.records import Shape, TensorSpec, extent
from kernelassay.worker.device_memory import DeviceMemoryError, Shared

__all__ = ["DeviceKind", "DeviceMemoryError", "Slab", "finish", "same_bytes", "torch_dtype"]

DeviceKind = Literal["cpu", "cuda"]

ALIGN_BYTES = 4096
"""Each tensor starts on a page, so that alignment never depends on its neighbours' sizes."""
POISON = 0xFF
"""NaN in every float format and −1 in every signed integer: an output that was not written cannot look right."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype called `name`.

    Raises:
        ValueError: there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


class Slab:
    """One sealed memfd with one or more equal sets of tensors laid out in it, seen from the judge."""

    def __init__(
        self,
        tensors: Sequence[TensorSpec],
        shape: Shape,
        label: str,
        sets: int = 1,
        results: int = 0,
        device: DeviceKind = "cpu",
    ) -> None:
        """Lay out `sets` sets of `tensors` at `shape`; `label` is shown in `/proc`, for people.

        Behind the sets comes a table of int64 (sets, `results`), in which the worker notes where results lie; in memory
        of a GPU, whose results are copied, it is never written.
        """
        self.fields: list[dict[str, Any]] = []
        offset = 0
        for tensor in tensors:
            sizes = extent(tensor, shape)
            self.fields.append({"name": tensor.name, "dtype": tensor.dtype, "shape": list(sizes), "offset": offset})
            count = 1
            for size in sizes:
                count *= size
            payload = count * torch_dtype(tensor.dtype).itemsize
            offset += -(-max(payload, 1) // ALIGN_BYTES) * ALIGN_BYTES
        self.set_bytes = max(offset, ALIGN_BYTES)
        self.table_offset = self.set_bytes * sets
        self.size_bytes = self.table_offset + 8 * sets * results
        self.fd, self._raw = _sealed(label, self.size_bytes) if device == "cpu" else _on_gpu(self.size_bytes)
        self._views = [
            {f["name"]: self._view(f, number * self.set_bytes) for f in self.fields} for number in range(sets)
        ]
        table = self._raw[self.table_offset : self.size_bytes].view(torch.int64).view(sets, results)
        self.table = table if device == "cpu" else torch.zeros(sets, results, dtype=torch.int64)
        """Addresses in the worker: its claim."""

    def _view(self, field: dict[str, Any], base: int) -> Tensor:
        dtype = torch_dtype(field["dtype"])
        count = 1
        for size in field["shape"]:
            count *= size
        start = base + field["offset"]
        raw = self._raw[start : start + count * dtype.itemsize]
        return raw.view(dtype).view(field["shape"])

    @property
    def address(self) -> int:
        """Where the first set lies in this process."""
        return self._raw.data_ptr()

    def write(self, values: dict[str, Tensor], number: int = 0) -> None:
        """Copy `values` into one set of the shared memory; names, dtypes and shapes are the layout's."""
        for name, value in values.items():
            self._views[number][name].copy_(value)
        finish(self._raw)

    def poison(self) -> None:
        """Fill the whole slab with `POISON`."""
        self._raw.fill_(POISON)
        finish(self._raw)

    def snapshot(self, number: int = 0) -> dict[str, Tensor]:
        """Private copies of all tensors of one set as they are now."""
        out = {name: view.clone() for name, view in self._views[number].items()}
        finish(self._raw)
        return out

    def close(self) -> None:
        """Let the descriptor go; the memory goes with the last view."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sealed(label: str, size_bytes: int) -> tuple[int, Tensor]:
    """A sealed memfd and its bytes."""
    fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd, torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.uint8)


def _on_gpu(size_bytes: int) -> tuple[int, Tensor]:
    """Memory of the GPU that can be exported, and its bytes."""
    shared = Shared(size_bytes)
    return shared.fd, shared.tensor()


def finish(tensor: Tensor) -> None:
    """Wait for what was asked of the tensor's device: another process sees its memory next."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors of one dtype and shape hold the same bytes (NaNs included)."""
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) if a.numel() else True
