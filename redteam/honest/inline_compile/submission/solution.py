"""Top-k in C++ that is compiled when the module is imported; the object is cached by the hash of its source."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

SOURCE = r"""
// Top-k of each row with a small heap: the least of the best k so far is on top.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

// Float order as signed integer order; every bit counts, so denormals and neighbours stay apart.
inline int64_t candidate(const float *x, int64_t i) {
    int32_t b;
    std::memcpy(&b, x + i, 4);
    b ^= (b >> 31) & 0x7fffffff;
    return static_cast<int64_t>(b) * (int64_t{1} << 32) + (0xffffffff - i);
}

void row(const float *x, int64_t n, int64_t k, float *values, int64_t *indices) {
    std::vector<int64_t> heap;
    heap.reserve(k + 1);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t c = candidate(x, i);
        if (static_cast<int64_t>(heap.size()) == k && c < heap.front()) continue;
        heap.push_back(c);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
        if (static_cast<int64_t>(heap.size()) > k) {
            std::pop_heap(heap.begin(), heap.end(), std::greater<>());
            heap.pop_back();
        }
    }
    std::sort(heap.begin(), heap.end(), std::greater<>());
    for (int64_t j = 0; j < k; ++j) {
        indices[j] = 0xffffffff - (heap[j] & 0xffffffff);
        values[j] = x[indices[j]];
    }
}

}  // namespace

extern "C" void select_rows(const float *x, int64_t batch, int64_t n, int64_t k, float *values, int64_t *indices) {
    for (int64_t b = 0; b < batch; ++b) row(x + b * n, n, k, values + b * k, indices + b * k);
}
"""
FLAGS = ("-O3", "-march=native", "-std=c++20", "-shared", "-fPIC")


def build() -> ctypes.CDLL:
    """Compile unless the same source was compiled with the same flags before."""
    name = hashlib.sha256("\0".join((SOURCE, *FLAGS)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("TOPK_CACHE", tempfile.gettempdir())) / "topk_cache"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"topk_{name}.so"
    if not target.exists():
        source = folder / f"topk_{name}.cpp"
        source.write_text(SOURCE)
        half = target.with_suffix(f".{os.getpid()}.tmp")
        subprocess.run(["g++", *FLAGS, "-o", str(half), str(source)], check=True, capture_output=True, text=True)
        half.replace(target)
    return ctypes.CDLL(str(target))


_LIB = build()
_LIB.select_rows.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 3, ctypes.c_void_p, ctypes.c_void_p)
_LIB.select_rows.restype = None


class ModelNew(nn.Module):
    """x (batch, n) float32 -> values (batch, k) float32, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        values = torch.empty(x.shape[0], self.k)
        indices = torch.empty(x.shape[0], self.k, dtype=torch.int64)
        _LIB.select_rows(x.data_ptr(), *x.shape, self.k, values.data_ptr(), indices.data_ptr())
        return values, indices
