"""W4A16 GEMM in plain torch: dequantise, then the library's product. The baseline of ops/w4a16_gemm."""

import torch
from torch import Tensor, nn

GROUP = 128


class Model(nn.Module):
    """x (M, K) bfloat16 → y (M, N) bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.register_buffer("w_q", torch.empty(K // 2, N, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(K // GROUP, N, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.empty(K // GROUP, N, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        q = torch.stack((self.w_q & 15, self.w_q >> 4), dim=1).view(-1, GROUP, self.w_q.shape[1]).float()
        w = (q - self.zeros.float()[:, None]) * self.scales.float()[:, None]
        return (x.float() @ w.flatten(0, 1)).to(torch.bfloat16)
