"""Radix select, most significant bit first, over all rows at once; among equals the highest index wins."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """x (batch, n) float32 -> values (batch, k) float32, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, (batch, n) = self.k, x.shape
        bits = x.view(torch.int32).to(torch.int64)
        key = torch.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits) + 2**31  # 0 ... 2**32 - 1, in float order
        bar = torch.zeros(batch, 1, dtype=torch.int64)
        for bit in reversed(range(32)):
            trial = bar | (1 << bit)
            enough = (key >= trial).sum(1, keepdim=True) >= k
            bar = torch.where(enough, trial, bar)
        above = key > bar
        missing = k - above.sum(1, keepdim=True)
        tie = key == bar
        from_end = tie.flip(1).cumsum(1).flip(1)  # 1 for the last tie of a row
        chosen = above | (tie & (from_end <= missing))
        slot = chosen.cumsum(1) - 1
        found = torch.zeros(batch, k + 1, dtype=torch.int64)
        found.scatter_(1, torch.where(chosen, slot, k), torch.arange(n).expand(batch, n))
        found = found[:, :k]
        own = key.gather(1, found)
        larger = own[:, None, :] > own[:, :, None]
        later = (own[:, None, :] == own[:, :, None]) & (found[:, None, :] > found[:, :, None])
        rank = (larger | later).sum(2)
        indices = torch.empty(batch, k, dtype=torch.int64).scatter_(1, rank, found)
        return x.gather(1, indices), indices
