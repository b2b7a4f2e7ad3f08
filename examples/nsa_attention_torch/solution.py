"""Block-selected sparse attention in plain torch: all scores, masked. The baseline of cuda/nsa_attention."""

import torch
from torch import Tensor, nn

BLOCK, KEPT, CHUNK = 64, 8, 1024


class Model(nn.Module):
    """q, k, v (B, H, S, D) bfloat16 → o (B, H, S, D) bfloat16."""

    def __init__(self, B: int, H: int, S: int, D: int) -> None:
        super().__init__()
        self.blocks = -(-S // BLOCK)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([self.rows(q, k, v, start) for start in range(0, q.shape[2], CHUNK)], 2)

    def rows(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        """Up to 1024 queries; scores in float32, importance from their sums, which are exact without the scale."""
        s, kf = k.shape[2], k.float()
        scores = q[:, :, start : start + CHUNK].float() @ kf.transpose(2, 3)
        t = torch.arange(start, start + scores.shape[2], device=q.device)[:, None]
        key = torch.arange(s, device=q.device)
        causal = key <= t
        padded = nn.functional.pad(scores.where(causal, 0.0), (0, self.blocks * BLOCK - s))
        block = torch.arange(self.blocks, device=q.device)
        count = (t + 1 - block * BLOCK).clamp(1, BLOCK)
        imp = padded.unflatten(3, (-1, BLOCK)).sum(-1) / count
        imp = imp.masked_fill(block * BLOCK > t, -torch.inf)
        # Highest index first, so that a stable sort prefers it among equals.
        order = self.blocks - 1 - imp.flip(3).sort(dim=3, descending=True, stable=True).indices[..., :KEPT]
        kept = torch.zeros_like(imp, dtype=torch.bool).scatter_(3, order, True)
        mask = (kept.repeat_interleave(BLOCK, 3)[..., :s] | (key > t - BLOCK)) & causal
        p = (scores * q.shape[3] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        return (p @ v.float()).to(torch.bfloat16)
