"""Tensors over memory that the judge shares by descriptor."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import torch
from torch import Tensor

from .device_memory import Shared

Field = dict[str, Any]
"""`{"name": str, "dtype": str, "shape": [int, …], "offset": int}`, offsets in bytes from the set's start."""


class Slab:
    """One shared memory range, holding one or more equal sets of tensors."""

    def __init__(
        self,
        fd: int,
        size_bytes: int,
        set_bytes: int,
        table_offset: int,
        fields: list[Field],
        device: str = "cpu",
    ) -> None:
        """Map `fd` (and close it).

        Args:
            fd: descriptor of the shared memory.
            size_bytes: its size.
            set_bytes: distance between two sets.
            table_offset: where the sets end and the table begins in which `note` writes.
            fields: the tensors of one set.
            device: `cpu`, or `cuda` for memory of the GPU, which has no table.
        """
        self._set_bytes = set_bytes
        self.fields = fields
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._table: Any = None
        if device == "cpu":
            shared = mmap.mmap(fd, size_bytes)
            self._bytes = torch.frombuffer(shared, dtype=torch.uint8)
            self._table = (ctypes.c_uint64 * ((size_bytes - table_offset) // 8)).from_buffer(shared, table_offset)
        else:
            self._bytes = Shared(size_bytes, fd).tensor()
        os.close(fd)
        self.start = self._bytes.data_ptr()
        self.end = self.start + table_offset

    def views(self, number: int = 0) -> dict[str, Tensor]:
        """A new tensor object over each field's memory in one set, by name."""
        out = {}
        base = number * self._set_bytes
        for field in self.fields:
            dtype = getattr(torch, field["dtype"])
            count = 1
            for extent in field["shape"]:
                count *= extent
            start = base + field["offset"]
            raw = self._bytes[start : start + count * dtype.itemsize]
            out[field["name"]] = raw.view(dtype).view(field["shape"])
        return out

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._bytes.device

    def note(self, addresses: list[int]) -> None:
        """Write addresses of results into the table, where the judge reads them."""
        if self._table is not None:
            self._table[: len(addresses)] = addresses  # numbers become c_uint64

    def kept(self, number: int = 0) -> dict[str, Tensor]:
        """The tensor objects that the first call of this method made for the set: same objects, same addresses."""
        if number not in self._kept:
            self._kept[number] = self.views(number)
        return self._kept[number]
