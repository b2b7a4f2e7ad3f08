"""Kimi Delta Attention in plain torch: the chunk form in float32. A baseline of ops/kda_chunk."""

import torch
from torch import Tensor, nn

CHUNK = 64


class Model(nn.Module):
    """q, k, g (B, T, H, K), v (B, T, H, V), beta (B, T, H) → o (B, T, H, V) bfloat16."""

    def __init__(self, B: int, T: int, H: int, K: int, V: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        q, k, v, g = (t.float().transpose(1, 2) for t in (q, k, v, g))
        beta = beta.float().transpose(1, 2)[..., None]
        state = v.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
        eye = torch.eye(CHUNK, device=q.device)
        parts = []
        for q_, k_, v_, g_, beta_ in zip(*(t.split(CHUNK, 2) for t in (q, k, v, g, beta)), strict=True):
            total = g_.cumsum(2)
            # Only pairs s ≤ t are used: their exponents are never positive.
            decay = (total[:, :, :, None] - total[:, :, None]).clamp(max=0).exp()
            keys = torch.einsum("bhtc,bhsc,bhtsc->bhts", k_, k_, decay).tril(-1)
            wanted = beta_ * (v_ - (k_ * total.exp()) @ state)
            written = torch.linalg.solve_triangular(eye + beta_ * keys, wanted, upper=False, unitriangular=True)
            within = torch.einsum("bhtc,bhsc,bhtsc->bhts", q_, k_, decay).tril()
            parts.append((q_ * total.exp()) @ state + within @ written)
            last = total[:, :, -1:]
            state = last.exp().transpose(2, 3) * state + (k_ * (last - total).exp()).transpose(2, 3) @ written
        return (torch.cat(parts, 2) * q.shape[3] ** -0.5).transpose(1, 2).to(torch.bfloat16).contiguous()
