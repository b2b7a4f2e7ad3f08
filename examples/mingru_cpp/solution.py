"""MinGRU rollout by a C++ kernel: `prepare()` repacks the weights, `run` calls the kernel once per rollout."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn

HIDDEN = 256

_kernel = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so"))).rollout
_kernel.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
_kernel.restype = ctypes.c_int


def _pointers(*tensors: Tensor) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


class Model(nn.Module):
    """Plays `horizon` steps; agent, food and rng are updated in place."""

    def __init__(self, num_envs: int, horizon: int) -> None:
        super().__init__()
        self.w_enc = nn.Parameter(torch.empty(HIDDEN, 4))
        self.b_enc = nn.Parameter(torch.empty(HIDDEN))
        self.w_gru = nn.Parameter(torch.empty(3, 3 * HIDDEN, HIDDEN))
        self.w_a = nn.Parameter(torch.empty(4, HIDDEN))
        self.b_a = nn.Parameter(torch.empty(4))
        self.w_v = nn.Parameter(torch.empty(1, HIDDEN))
        self.b_v = nn.Parameter(torch.empty(1))

    @torch.no_grad()
    def prepare(self) -> None:
        """Fold the encoder into the first layer; in the others, rows of three gates of two units side by side.

        Packed: (layer, pair of units, input, gate, unit).
        """
        first = self.w_gru[0].double()
        folded = (first @ self.w_enc.double()).float()
        folded_bias = (first @ self.b_enc.double()).float()
        gru = self.w_gru[1:].view(2, 3, HIDDEN // 2, 2, HIDDEN).permute(0, 2, 4, 1, 3).contiguous()
        heads, heads_bias = torch.cat((self.w_a, self.w_v)), torch.cat((self.b_a, self.b_v))
        self._packed = (self.w_enc.clone(), self.b_enc.clone(), folded, folded_bias, gru, heads, heads_bias)

    def run(self, agent: Tensor, food: Tensor, rng: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = len(rng)
        outputs = (torch.empty(horizon, n, dtype=torch.uint8), torch.empty(n), torch.empty(n, 4), torch.empty(n))
        if _kernel(_pointers(*self._packed), _pointers(agent, food, rng), _pointers(*outputs), n, horizon) != 0:
            raise ValueError(f"the kernel refuses {n} environments and {horizon} steps")
        return outputs
