"""Paged attention in plain torch: gather the pages, two products and a softmax. Baseline of ops/paged_attention."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """query (B, H, D), kv_cache (NB, P, Hkv, 2D), block_table (B, pages), seq_lens (B,) → (B, H, D) bfloat16."""

    def __init__(
        self, batch: int, num_heads: int, num_kv_heads: int, head_dim: int, seq_len: int, page_size: int
    ) -> None:
        super().__init__()
        self.groups = num_kv_heads

    def forward(self, query: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor) -> Tensor:
        dim = query.shape[2]
        cache = kv_cache[block_table.long()].flatten(1, 2).transpose(1, 2).float()  # (B, Hkv, T, 2D)
        k, v = cache.split(dim, -1)
        q = query.float().unflatten(1, (self.groups, -1)) * dim**-0.5
        past = torch.arange(k.shape[2], device=query.device) >= seq_lens[:, None]
        scores = (q @ k.transpose(2, 3)).masked_fill(past[:, None, None], -torch.inf)
        return (scores.softmax(-1) @ v).flatten(1, 2).to(torch.bfloat16)
