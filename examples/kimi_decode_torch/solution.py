"""Hybrid decode step in plain torch, one small operation after another: the baseline of mega/kimi_decode."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 128


class Int4(nn.Module):
    """Matrices (…, in, out) with a scale and a zero point per 128 rows."""

    def __init__(self, *size: int) -> None:
        super().__init__()
        *lead, rows, columns = size
        self.register_buffer("w_q", torch.empty(*lead, rows // 2, columns, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(*lead, rows // GROUP, columns, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.empty(*lead, rows // GROUP, columns, dtype=torch.bfloat16))

    def weight(self, index: int | None = None) -> Tensor:
        w_q, scales, zeros = (t if index is None else t[index] for t in (self.w_q, self.scales, self.zeros))
        q = torch.stack((w_q & 15, w_q >> 4), dim=1).view(-1, GROUP, w_q.shape[1]).float()
        return ((q - zeros.float()[:, None]) * scales.float()[:, None]).flatten(0, 1)

    def forward(self, x: Tensor, index: int | None = None) -> Tensor:
        return x @ self.weight(index)


def bf16(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*size, dtype=torch.bfloat16), requires_grad=False)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean() + 1e-6).rsqrt() * weight.float()


def turn(x: Tensor, pos: int) -> Tensor:
    """RoPE, neighbours together."""
    n = x.shape[-1]
    angle = pos * 1e4 ** (-torch.arange(0, n, 2, dtype=torch.float64, device=x.device) / n)
    c, s = angle.cos().float(), angle.sin().float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)


class Kda(nn.Module):
    def __init__(self, d: int, heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.dim, width = heads, dim, heads * dim
        self.q, self.k, self.v, self.g = (Int4(d, width) for _ in range(4))
        self.o = Int4(width, d)
        self.beta = bf16(heads, d)
        self.conv = bf16(3, width, 4)

    def forward(self, a: Tensor, S: Tensor, window: Tensor) -> Tensor:
        rows = torch.cat((window.float(), torch.stack((self.q(a), self.k(a), self.v(a)))[:, None]), dim=1)
        window.copy_(rows[:, 1:])
        mixed = F.silu(torch.einsum("crn,cnr->cn", rows, self.conv.float()))
        q, k, v = mixed.view(3, self.heads, self.dim)
        S *= torch.exp(-F.softplus(self.g(a))).view(self.heads, self.dim, 1)
        beta = torch.sigmoid(self.beta.float() @ a)
        S += (beta[:, None] * k)[:, :, None] * (v - torch.einsum("hkv,hk->hv", S, k))[:, None]
        return self.o(torch.einsum("hkv,hk->hv", S, q).flatten() * self.dim**-0.5)


class Mla(nn.Module):
    def __init__(self, d: int, heads: int, lora: int, nope: int, rope: int, v_dim: int) -> None:
        super().__init__()
        self.heads, self.lora, self.nope = heads, lora, nope
        self.q = Int4(d, heads * (nope + rope))
        self.kv_a = Int4(d, lora + rope)
        self.kv_b = Int4(lora, heads * (nope + v_dim))
        self.o = Int4(heads * v_dim, d)

    def forward(self, a: Tensor, c_kv: Tensor, k_rope: Tensor, pos: int) -> Tensor:
        q, kv = self.q(a).view(self.heads, -1), self.kv_a(a)
        c_kv[pos], k_rope[pos] = kv[: self.lora], turn(kv[self.lora :], pos)
        latent, keys = c_kv[: pos + 1].float(), k_rope[: pos + 1].float()
        up = self.kv_b.weight().view(self.lora, self.heads, -1)
        absorbed = torch.einsum("hn,lhn->hl", q[:, : self.nope], up[:, :, : self.nope])
        scores = absorbed @ latent.t() + turn(q[:, self.nope :], pos) @ keys.t()
        mean = (scores * q.shape[1] ** -0.5).softmax(-1) @ latent
        return self.o(torch.einsum("hl,lhv->hv", mean, up[:, :, self.nope :]).flatten())


class Moe(nn.Module):
    def __init__(self, d: int, experts: int, top_k: int, inter: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate, self.up = Int4(experts + 1, d, inter), Int4(experts + 1, d, inter)
        self.down = Int4(experts + 1, inter, d)
        self.router = bf16(experts, d)

    def expert(self, b: Tensor, e: int) -> Tensor:
        return self.down(F.silu(self.gate(b, e)) * self.up(b, e), e)

    def forward(self, b: Tensor) -> tuple[Tensor, Tensor]:
        p, ids = (self.router.float() @ b).softmax(0).topk(self.top_k)
        out = self.expert(b, len(self.router))
        for weight, e in zip(p / (p.sum() + 1e-9) * 2.446, ids.tolist(), strict=True):
            out = out + weight * self.expert(b, e)
        return out, ids.to(torch.int32)


class Block(nn.Module):
    def __init__(self, d: int, attn: nn.Module, moe: Moe) -> None:
        super().__init__()
        self.attn, self.moe = attn, moe
        self.attn_norm, self.moe_norm = bf16(d), bf16(d)


class Model(nn.Module):
    """One token; S, conv, c_kv and k_rope are updated in place."""

    def __init__(
        self, d: int, kda_heads: int, kda_dim: int, mla_heads: int, kv_lora: int, nope: int, rope: int, v_dim: int,
        experts: int, top_k: int, inter: int, pos: int,
    ) -> None:
        super().__init__()
        attention = [Kda(d, kda_heads, kda_dim) for _ in range(3)]
        attention.append(Mla(d, mla_heads, kv_lora, nope, rope, v_dim))
        self.blocks = nn.ModuleList(Block(d, attn, Moe(d, experts, top_k, inter)) for attn in attention)

    @torch.no_grad()
    def step(
        self, hidden: Tensor, S: Tensor, conv: Tensor, c_kv: Tensor, k_rope: Tensor, pos: int
    ) -> tuple[Tensor, Tensor]:
        x, chosen = hidden.float(), []
        for l, block in enumerate(self.blocks):
            state = (S[l], conv[l]) if l < 3 else (c_kv, k_rope, pos)
            h = x + block.attn(rms_norm(x, block.attn_norm), *state)
            y, ids = block.moe(rms_norm(h, block.moe_norm))
            x = h + y
            chosen.append(ids)
        return x.to(torch.bfloat16), torch.stack(chosen)
