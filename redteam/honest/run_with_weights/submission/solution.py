"""W4A16, destination passing: weights are repacked on each call."""

import ctypes
import threading
from pathlib import Path

import torch
from torch import Tensor

_LIB = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so")))
_P, _I = ctypes.c_void_p, ctypes.c_int64
_LIB.repack.argtypes, _LIB.repack.restype = (_P, _P, _P, _I, _I, _P), None
_LIB.multiply.argtypes, _LIB.multiply.restype = (_P, _P, _I, _I, _I, _P), None

_LOCAL = threading.local()


def arena(nbytes: int) -> Tensor:
    """This thread's scratch of at least that many bytes."""
    if getattr(_LOCAL, "arena", None) is None or _LOCAL.arena.numel() < nbytes:
        _LOCAL.arena = torch.empty(nbytes, dtype=torch.uint8)
    return _LOCAL.arena


def run(x: Tensor, w_q: Tensor, scales: Tensor, zeros: Tensor, y: Tensor) -> None:
    """Fills y (M, N)."""
    (M, K), N = x.shape, w_q.shape[1]
    w = arena(K * N // 16 * 9)
    _LIB.repack(w_q.data_ptr(), scales.data_ptr(), zeros.data_ptr(), K, N, w.data_ptr())
    _LIB.multiply(x.data_ptr(), w.data_ptr(), M, N, K, y.data_ptr())
