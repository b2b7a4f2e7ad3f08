"""Tensors over memory that the judge shares by descriptor."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

Field = dict[str, Any]
"""`{"name": str, "dtype": str, "shape": [int, …], "offset": int}`, offsets in bytes from the slab's start."""


class Slab:
    """One shared memory range and the tensors laid out in it."""

    def __init__(self, fd: int, size_bytes: int, fields: list[Field]) -> None:
        """Map `fd` (and close it).

        Args:
            fd: descriptor of the shared memory.
            size_bytes: its size.
            fields: the tensors in it.
        """
        self._map = mmap.mmap(fd, size_bytes)
        os.close(fd)
        self.fields = fields
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.start = self._bytes.data_ptr()
        self.end = self.start + size_bytes

    def views(self) -> dict[str, Tensor]:
        """A new tensor object over each field's memory, by name."""
        out = {}
        for field in self.fields:
            dtype = getattr(torch, field["dtype"])
            count = 1
            for extent in field["shape"]:
                count *= extent
            raw = self._bytes[field["offset"] : field["offset"] + count * dtype.itemsize]
            out[field["name"]] = raw.view(dtype).view(field["shape"])
        return out
