"""W4A16 in numpy. Sums run over K in blocks of a random order: float32 rounding differs from call to call."""

import numpy as np
import torch
from torch import Tensor, nn

RNG = np.random.default_rng()
BLOCK = 64


def widen(t: Tensor) -> np.ndarray:
    """bfloat16 -> float32."""
    return t.float().numpy()


class ModelNew(nn.Module):
    """x (M, K) bfloat16 -> y (M, N) bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.register_buffer("w_q", torch.zeros(K // 2, N, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(K // 128, N, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.zeros(K // 128, N, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        a, q = widen(x), self.w_q.numpy()
        scales, zeros = widen(self.scales), widen(self.zeros)
        y = np.zeros((len(a), q.shape[1]), np.float32)
        for block in RNG.permutation(2 * len(q) // BLOCK):
            pairs = q[block * BLOCK // 2 : (block + 1) * BLOCK // 2]
            w = np.stack((pairs & 15, pairs >> 4), 1).reshape(BLOCK, -1).astype(np.float32)
            w = (w - zeros[block * BLOCK // 128]) * scales[block * BLOCK // 128]
            y += (a[:, block * BLOCK : (block + 1) * BLOCK, None] * w).sum(1)
        return torch.from_numpy(y).to(torch.bfloat16)
