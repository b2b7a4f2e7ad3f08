"""Values and indices of the k largest entries of each row, by the framework's own operation: the baseline of ops/topk."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """x (batch, n) float32 → values (batch, k) float32 descending, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.topk(x, self.k, dim=-1, largest=True, sorted=True)
        return values, indices
