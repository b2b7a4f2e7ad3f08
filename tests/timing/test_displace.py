"""Inputs are cold when the clock starts: evicted line by line where the processor can, else displaced."""

from __future__ import annotations

import time

import pytest
import torch

from kernelassay.timing import Displacer

SIZE = 256 << 10
"""Bytes: within the second-level cache of any server core."""


def seconds(tensor: torch.Tensor, before: object = None) -> float:
    """The least time of some readings, with what `before` does to the memory first."""
    best = float("inf")
    for _ in range(25):
        if isinstance(before, Displacer):
            before(tensor.data_ptr(), SIZE)
        begun = time.perf_counter()
        tensor.sum()
        best = min(best, time.perf_counter() - begun)
    return best


@pytest.mark.parametrize("by_line", [None, False])
def test_displaced_memory_is_read_slowly(by_line: bool | None) -> None:
    tensor = torch.ones(SIZE // 8, dtype=torch.int64)
    displace = Displacer(64 << 20, by_line)
    assert seconds(tensor, displace) > 1.2 * seconds(tensor)
    assert int(tensor.sum()) == SIZE // 8


def test_lines_are_evicted_and_neighbours_left() -> None:
    """Where there is no such instruction, reading displaces everything, and says so."""
    near, far = torch.ones(SIZE // 8, dtype=torch.int64), torch.ones(SIZE // 8, dtype=torch.int64)
    displace = Displacer(64 << 20)
    warm = seconds(near)
    best = float("inf")
    for _ in range(25):
        near.sum()
        displace(far.data_ptr(), SIZE)
        begun = time.perf_counter()
        near.sum()
        best = min(best, time.perf_counter() - begun)
    assert (best < 1.5 * warm) is displace.by_line


def test_an_odd_range_is_no_fault() -> None:
    bytes_ = torch.ones(1000, dtype=torch.uint8)
    displace = Displacer(1 << 20)
    for start in range(0, 70, 7):
        for size in (0, 1, 63, 64, 65, 900):
            displace(bytes_.data_ptr() + start, size)
    assert int(bytes_.sum()) == 1000
