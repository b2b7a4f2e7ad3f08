"""MoE up-projection by a C++ kernel, which reads weights and offsets as they are: nothing is kept between calls."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn

_kernel = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so"))).sonic_moe
_kernel.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4
_kernel.restype = ctypes.c_int


class Model(nn.Module):
    """Rows (T_total·K, H) bfloat16 sorted by expert, offsets (E+1,) int32 → (T_total·K, I) bfloat16."""

    def __init__(self, T_total: int, H: int, I: int, E: int, K: int) -> None:
        super().__init__()
        self.W_gate = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))
        self.W_up = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))

    def forward(self, hidden_states: Tensor, expert_offsets: Tensor) -> Tensor:
        experts, h, i = self.W_gate.shape
        rows = len(hidden_states)
        out = torch.empty(rows, i, dtype=torch.bfloat16)
        tensors = (hidden_states.contiguous(), expert_offsets.contiguous(), self.W_gate, self.W_up, out)
        code = _kernel(*(t.data_ptr() for t in tensors), rows, h, i, experts)
        if code != 0:
            raise ValueError(f"the kernel refuses {rows} rows, H, I, E = {h}, {i}, {experts} or the offsets: {code}")
        return out
