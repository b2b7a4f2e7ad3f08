"""Top-k by a full bitonic sort, in place, of a padded private copy."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """x (batch, n) float32 -> values (batch, k) float32, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k, self.size = k, 1 << (n - 1).bit_length()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, n = x.shape
        bits = x.clone().view(torch.int32)
        bits ^= (bits >> 31) & 0x7FFFFFFF
        # Key above, complemented index below: one compare orders both, and padding loses to everything real.
        own = torch.full((batch, self.size), -(2**63), dtype=torch.int64)
        own[:, :n] = (bits.to(torch.int64) << 32) + (0xFFFFFFFF - torch.arange(n))
        lane = torch.arange(self.size)
        width = 2
        while width <= self.size:
            step = width // 2
            while step:
                pairs = own.view(batch, -1, 2, step)
                down = ((lane & width) == 0).view(-1, 2, step)[:, 0]
                low, high = pairs[:, :, 0].clone(), pairs[:, :, 1].clone()
                swap = torch.where(down, low < high, low > high)
                pairs[:, :, 0] = torch.where(swap, high, low)
                pairs[:, :, 1] = torch.where(swap, low, high)
                step //= 2
            width *= 2
        indices = 0xFFFFFFFF - (own[:, : self.k] & 0xFFFFFFFF)
        return x.gather(1, indices), indices.contiguous()
