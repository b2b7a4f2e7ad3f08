"""Builds the native examples as the judge does and calls them through the C ABI."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
JUDGE_FLAGS = ("-O3", "-march=native")
"""The default flags of `records.Build`."""
PORTABLE_FLAGS = ("-O2",)
"""No `-march`: the plainest machine of the family, so the code that every other machine runs."""
ALWAYS = ("-std=c++20", "-shared", "-fPIC", "-pthread", "-Wno-psabi")
"""What the judge adds, and silence on the ABI of wide vectors (nothing passes one between objects)."""
GUARD = 16
"""Elements before and after each output that must stay as they were."""


class NativeTopK:
    """`topk(x, k)` of one shared object; checks the return code and the guards around its outputs."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._function = ctypes.CDLL(str(library)).topk
        self._function.restype = ctypes.c_int

    def code(self, batch: int, n: int, k: int) -> int:
        """The return code for a shape, with no tensors at all."""
        return int(self._function(None, None, (ctypes.c_int64 * 3)(batch, n, k)))

    def __call__(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        batch, n = x.shape
        values = torch.full((batch * k + 2 * GUARD,), 7.0)
        indices = torch.full((batch * k + 2 * GUARD,), -7, dtype=torch.int64)
        inputs = (ctypes.c_void_p * 1)(x.data_ptr())
        outputs = (ctypes.c_void_p * 2)(values[GUARD:].data_ptr(), indices[GUARD:].data_ptr())
        assert self._function(inputs, outputs, (ctypes.c_int64 * 3)(batch, n, k)) == 0
        for buffer, guard in ((values, 7.0), (indices, -7)):
            assert (buffer[:GUARD] == guard).all() and (buffer[-GUARD:] == guard).all(), "wrote outside an output"
        return values[GUARD:-GUARD].view(batch, k), indices[GUARD:-GUARD].view(batch, k)


def compile_example(example: str, flags: tuple[str, ...], target: Path) -> NativeTopK:
    """Compile `examples/<example>/kernel.cpp` to `target`."""
    source = ROOT / "examples" / example / "kernel.cpp"
    subprocess.run(["g++", *ALWAYS, *flags, str(source), "-o", str(target)], check=True, timeout=100)
    return NativeTopK(target)


def why_wrong(x: Tensor, k: int, values: Tensor, indices: Tensor) -> str | None:
    """None where (values, indices) is a right answer for x (batch, n); else the rule that it breaks.

    Written apart from the judge's comparator on purpose: two independent readings of the same contract.
    """
    expected = torch.sort(x, dim=-1, descending=True).values[:, :k]
    if not torch.equal(values, expected):  # as floats: −0 equals +0
        return "values differ from the sorted row"
    if int(indices.min()) < 0 or int(indices.max()) >= x.shape[1]:
        return "index out of range"
    if not torch.equal(x.gather(1, indices).view(torch.int32), values.contiguous().view(torch.int32)):
        return "x at the index is not the value, bit for bit"
    ordered = indices.sort(dim=-1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        return "an index occurs twice in a row"
    return None
