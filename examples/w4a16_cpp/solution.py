"""W4A16 GEMM by a C++ kernel: `prepare()` repacks the weights, `forward` calls the kernel."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

GROUP = 128
TILE = 16
"""Columns that the kernel does at once."""

_kernel = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so"))).w4a16
_kernel.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
_kernel.restype = ctypes.c_int


class Model(nn.Module):
    """x (M, K) bfloat16 → y (M, N) bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.register_buffer("w_q", torch.empty(K // 2, N, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(K // GROUP, N, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.empty(K // GROUP, N, dtype=torch.bfloat16))

    def prepare(self) -> None:
        """Tiles of 16 columns side by side: packed (tiles, K/2, 16) bytes, factors (tiles, K/128, 2, 16) float32."""

        def tiled(t: Tensor) -> Tensor:
            return pad(t, (0, -t.shape[1] % TILE)).unflatten(1, (-1, TILE)).transpose(0, 1)

        self._packed = tiled(self.w_q).contiguous()
        self._factors = torch.stack((tiled(self.scales.float()), tiled(self.zeros.float())), dim=2)

    def forward(self, x: Tensor) -> Tensor:
        m, k = x.shape
        n = self.w_q.shape[1]
        x = x.contiguous()
        y = torch.empty(m, n, dtype=torch.bfloat16)
        pointers = (t.data_ptr() for t in (x, self._packed, self._factors, y))
        if _kernel(*pointers, m, n, k) != 0:
            raise ValueError(f"the kernel refuses M, N, K = {m}, {n}, {k}")
        return y
