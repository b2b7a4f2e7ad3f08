"""Top-k with knobs: TOPK_ROWS sets how many rows one native call takes."""

import ctypes
import os
from pathlib import Path

import torch
from torch import Tensor, nn

try:
    import numba
except ImportError:
    numba = None
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOPK_ROWS", "4")
ROWS = max(1, int(os.environ["TOPK_ROWS"]))
torch.set_num_threads(1)  # this kernel is one thread; torch's own would only compete with it

try:
    _LIB = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so")))
    _LIB.select_rows.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 3, ctypes.c_void_p, ctypes.c_void_p)
    _LIB.select_rows.restype = None
except OSError:  # built without a compiler
    _LIB = None


def slow_rows(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Without the library: a sort by Python."""
    rows = [sorted(range(len(row)), key=lambda i: -row[i])[:k] for row in x.tolist()]
    indices = torch.tensor(rows, dtype=torch.int64)
    return x.gather(1, indices), indices


class Model(nn.Module):
    """x (batch, n) float32 -> values (batch, k) float32, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (batch, n), k = x.shape, self.k
        if _LIB is None:
            return slow_rows(x, k)
        values, indices = torch.empty(batch, k), torch.empty(batch, k, dtype=torch.int64)
        for b in range(0, batch, ROWS):
            _LIB.select_rows(
                x.data_ptr() + 4 * n * b, min(ROWS, batch - b), n, k,
                values.data_ptr() + 4 * k * b, indices.data_ptr() + 8 * k * b,
            )
        return values, indices
