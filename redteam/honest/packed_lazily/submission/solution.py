"""W4A16: prepare() marks the packed weights as stale; the next call repacks them."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn

_LIB = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so")))
_P, _I = ctypes.c_void_p, ctypes.c_int64
_LIB.repack.argtypes, _LIB.repack.restype = (_P, _P, _P, _I, _I, _P), None
_LIB.multiply.argtypes, _LIB.multiply.restype = (_P, _P, _I, _I, _I, _P), None


class Model(nn.Module):
    """x (M, K) bfloat16 -> y (M, N) bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.N, self.K = N, K
        self.register_buffer("w_q", torch.zeros(K // 2, N, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(K // 128, N, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.zeros(K // 128, N, dtype=torch.bfloat16))
        self.w = torch.empty(K * N // 16 * 9, dtype=torch.uint8)
        self.stale = True

    def prepare(self) -> None:
        """Weights were loaded or changed."""
        self.stale = True

    def forward(self, x: Tensor) -> Tensor:
        if self.stale:
            _LIB.repack(
                self.w_q.data_ptr(), self.scales.data_ptr(), self.zeros.data_ptr(), self.K, self.N, self.w.data_ptr()
            )
            self.stale = False
        w = self.w
        y = torch.empty(x.shape[0], self.N, dtype=torch.bfloat16)
        _LIB.multiply(x.data_ptr(), w.data_ptr(), x.shape[0], self.N, self.K, y.data_ptr())
        return y
