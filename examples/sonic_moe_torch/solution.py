"""MoE up-projection in plain torch: expert after expert through library products. The baseline of ops/sonic_moe."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    """Rows (T_total·K, H) bfloat16 sorted by expert, offsets (E+1,) int32 → (T_total·K, I) bfloat16."""

    def __init__(self, T_total: int, H: int, I: int, E: int, K: int) -> None:
        super().__init__()
        self.W_gate = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))
        self.W_up = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))

    @torch.no_grad()
    def forward(self, hidden_states: Tensor, expert_offsets: Tensor) -> Tensor:
        sizes = expert_offsets.diff().tolist()
        parts = [
            F.silu(torch.mm(x, gate)) * torch.mm(x, up)
            for x, gate, up in zip(hidden_states.split(sizes), self.W_gate, self.W_up, strict=True)
        ]
        return torch.cat(parts)
