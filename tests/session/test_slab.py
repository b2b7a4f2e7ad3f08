"""Shared memory keeps its size whatever its other owner does, and what was not written cannot look right."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import pytest
import torch

from kernelassay.decks import load
from kernelassay.records import Role
from kernelassay.session import PeekError, Slab, read_memory, same_bytes, torch_dtype


@pytest.fixture
def slab() -> Slab:
    problem = load("ops/topk").problem
    return Slab(problem.role(Role.OUTPUT), problem.shape("small-8x1024x8"), "test", sets=2)


def test_the_layout(slab: Slab) -> None:
    assert [(f["name"], f["dtype"], f["shape"], f["offset"]) for f in slab.fields] == [
        ("values", "float32", [8, 8], 0),
        ("indices", "int64", [8, 8], 4096),
    ]
    assert (slab.set_bytes, slab.size_bytes) == (8192, 16384)


@pytest.mark.parametrize("size", [0, 1, 1 << 30])
def test_the_size_is_sealed(slab: Slab, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, size)


def test_the_seals_are_sealed(slab: Slab) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(slab.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_sets_are_apart_and_snapshots_private(slab: Slab) -> None:
    slab.poison()
    values = {"values": torch.ones(8, 8), "indices": torch.arange(64).view(8, 8)}
    slab.write(values, 1)
    first, second = slab.snapshot(0), slab.snapshot(1)
    assert first["values"].isnan().all()
    assert (first["indices"] == -1).all()
    assert all(same_bytes(second[name], values[name]) for name in values)
    peer = mmap.mmap(slab.fd, slab.size_bytes)
    peer[:] = b"\0" * slab.size_bytes
    assert all(same_bytes(second[name], values[name]) for name in values)
    assert (slab.snapshot(1)["values"] == 0).all()


@pytest.mark.parametrize("name", ["nonsense", "Tensor", "__name__", "nn", ""])
def test_only_dtypes_are_dtypes(name: str) -> None:
    with pytest.raises(ValueError, match="no dtype"):
        torch_dtype(name)


def test_the_same_bytes() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bytes(nan, nan.clone())
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bytes(torch.empty(0), torch.empty(0))


def test_reading_memory() -> None:
    there = ctypes.create_string_buffer(b"0123456789")
    here = ctypes.create_string_buffer(8)
    read_memory(os.getpid(), [(ctypes.addressof(there) + 2, ctypes.addressof(here), 3), (8, 8, 0)])
    assert here.raw == b"234\0\0\0\0\0"
    with pytest.raises(PeekError):
        read_memory(os.getpid(), [(8, ctypes.addressof(here), 4)])
    with pytest.raises(PeekError):
        read_memory(2**22 + 1, [(ctypes.addressof(there), ctypes.addressof(here), 4)])
