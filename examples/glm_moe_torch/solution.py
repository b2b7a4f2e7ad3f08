"""MoE feed-forward layer in plain torch: expert after expert through library products. The baseline of cuda/glm_moe."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    """x (T, H) bfloat16, ids (T, k) int64, weights (T, k) bfloat16 → (T, H) bfloat16."""

    def __init__(self, T: int, E: int, top_k: int, n_shared: int, H: int, I: int) -> None:
        super().__init__()
        for kind, experts in (("routed", E), ("shared", n_shared)):
            for name, size in (("w1", (2 * I, H)), ("w2", (H, I))):
                weight = nn.Parameter(torch.empty(experts, *size, dtype=torch.bfloat16))
                self.register_parameter(f"{name}_{kind}", weight)

    @torch.no_grad()
    def forward(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for w1, w2 in zip(self.w1_shared, self.w2_shared, strict=True):
            out += self._expert(x, w1, w2)
        order = expert_ids.flatten().argsort()
        sizes = expert_ids.flatten().bincount(minlength=len(self.w1_routed)).tolist()
        for e, places in enumerate(order.split(sizes)):
            if len(places):
                tokens = places // expert_ids.shape[1]
                y = self._expert(x[tokens], self.w1_routed[e], self.w2_routed[e])
                out.index_add_(0, tokens, y * expert_weights.flatten()[places, None].float())
        return out.to(torch.bfloat16)

    @staticmethod
    def _expert(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        gate, up = torch.mm(x, w1.t()).chunk(2, dim=1)
        return torch.mm(F.silu(gate) * up, w2.t())
