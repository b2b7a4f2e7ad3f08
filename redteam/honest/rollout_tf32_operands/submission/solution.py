"""MinGRU rollout with TF32-like operands; weights are parameters of an ordinary module."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn

_LIB = ctypes.CDLL(str(Path(__file__).with_name("libkernel.so")))
SIZES = {"w_enc": (256, 4), "b_enc": (256,), "w_gru": (3, 768, 256), "w_a": (4, 256), "b_a": (4,), "w_v": (1, 256),
         "b_v": (1,)}


def rounded(t: Tensor) -> Tensor:
    """A copy with an 11-bit significand, to nearest even."""
    bits = t.detach().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class Model(nn.Module):
    """agent, food (N, 2) int32, rng (N,) int64, all updated in place -> actions, rewards, logits, value."""

    def __init__(self, num_envs: int, horizon: int) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))
        self.ready = []

    def prepare(self) -> None:
        """Round the operands of products once; biases stay as they are."""
        self.ready = [rounded(t) if name.startswith("w_") else t for name, t in self.named_parameters()]

    def run(self, agent: Tensor, food: Tensor, rng: Tensor, horizon: int) -> tuple[Tensor, ...]:
        n = agent.shape[0]
        out = (torch.empty(horizon, n, dtype=torch.uint8), torch.empty(n), torch.empty(n, 4), torch.empty(n))
        inputs = (ctypes.c_void_p * 10)(*(t.data_ptr() for t in (agent, food, rng, *self.ready)))
        outputs = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in out))
        if _LIB.rollout_entry(inputs, outputs, (ctypes.c_int64 * 2)(n, horizon)):
            raise RuntimeError("rollout failed")
        return out
