"""Scaled FP8 product in plain torch: widen, then the library's product. The baseline of ops/fp8_gemm."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """x (M, K) float8_e4m3fn → y (M, N) bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(N, K, dtype=torch.float8_e4m3fn))
        self.register_buffer("weight_scale", torch.empty(N, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.float() @ self.weight.float().t()) * self.weight_scale).to(torch.bfloat16)
