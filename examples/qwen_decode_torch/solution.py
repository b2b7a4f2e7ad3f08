"""Decoder blocks in plain torch, token by token through library products. The baseline of cuda/qwen_decode."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm over the last axis, in float32."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()


class Model(nn.Module):
    """run(hidden (h,), noise (n, h), k_cache, v_cache (L, Hkv, pos + n, D), pos) → (n, h), all bfloat16."""

    def __init__(
        self, hidden: int, inter: int, q_heads: int, kv_heads: int, head_dim: int, layers: int, pos: int, n: int
    ) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = kv_heads, head_dim
        q, kv = q_heads * head_dim, kv_heads * head_dim
        for name, size in {
            "input_ln": (hidden,), "post_ln": (hidden,), "q_norm": (head_dim,), "k_norm": (head_dim,),
            "q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q),
            "gate_proj": (inter, hidden), "up_proj": (inter, hidden), "down_proj": (hidden, inter),
        }.items():  # fmt: skip
            self.register_parameter(name, nn.Parameter(torch.empty(layers, *size, dtype=torch.bfloat16)))

    @torch.no_grad()
    def run(self, hidden: Tensor, noise: Tensor, k_cache: Tensor, v_cache: Tensor, pos: int) -> Tensor:
        dim = self.head_dim
        frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=noise.device) / dim)
        out = torch.empty_like(noise)
        for i in range(len(noise)):
            angle = (pos + i) * frequency
            turn = angle.cos().float(), angle.sin().float()
            hidden = (0.5 * noise[i].float() + 0.5 * hidden.float()).to(torch.bfloat16)
            for layer in range(len(k_cache)):
                hidden = self._block(layer, hidden, turn, k_cache[layer], v_cache[layer], pos + i)
            out[i] = hidden
        return out

    def _product(self, name: str, layer: int, x: Tensor) -> Tensor:
        return getattr(self, name)[layer].float() @ x

    def _block(self, l: int, x: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, at: int) -> Tensor:
        x = x.float()
        a = norm(x, self.input_ln[l])
        q, k, v = (self._product(name, l, a).view(-1, self.head_dim) for name in ("q_proj", "k_proj", "v_proj"))
        keys[:, at] = self._rotated(norm(k, self.k_norm[l]), *turn)
        values[:, at] = v
        q = self._rotated(norm(q, self.q_norm[l]), *turn).unflatten(0, (self.kv_heads, -1))
        scores = q @ keys[:, : at + 1].float().mT * self.head_dim**-0.5
        attended = scores.softmax(-1) @ values[:, : at + 1].float()
        h = x + self._product("o_proj", l, attended.flatten())
        b = norm(h, self.post_ln[l])
        inner = F.silu(self._product("gate_proj", l, b)) * self._product("up_proj", l, b)
        return (h + self._product("down_proj", l, inner)).to(torch.bfloat16)

    @staticmethod
    def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
