"""One decode token through [KDA, KDA, KDA, MLA], each followed by a mixture of experts; int4 weights.

The rule, with d the width of the stream and rms(x) = x / √(mean x² + 1e-6): `h = x + attn(rms(x)·attn_norm)`, then
`y = h + moe(rms(h)·moe_norm)`. A quantised matrix (in, out) is `w[i, o] = (q[i, o] - zeros[i // 128, o]) *
scales[i // 128, o]`; byte `w_q[r, o]` holds row 2r in its low nibble and row 2r + 1 in its high one. `Model.step`
changes its state in place; every other function here leaves its arguments alone and returns the final state beside the
outputs. Everything is eager torch on the device of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelassay.decks.generators import spawn

Tensors = dict[str, Tensor]
Shape = Mapping[str, int]
Round = Callable[[Tensor], Tensor]

KINDS = ("kda", "kda", "kda", "mla")
"""Attention of each block."""
GROUP = 128
"""Rows of a quantised matrix that share one scale and one zero point."""
TAPS = 4
"""Of the convolution: three stored rows and the current one, oldest first."""
EPS = 1e-6
THETA = 1e4
ROUTED = 2.446
"""What the weights of a token's routed experts sum to; the shared one has weight 1."""

RMS = 1.3
"""rms of a normalised activation times its norm weight: matrices are scaled by its inverse."""
HEAVY_EVERY, HEAVY = 64, 6
"""One channel in 64 of each norm weight is 6 times larger."""
LATENT, OUTLIER = 2.0, 32.0
"""Standard deviation of the latent cache, and how much larger its channel ⌊kv_lora/3⌋ is: what 8 bits cannot hold."""
ROPE_KEY = 3.0
"""Standard deviation of the turned keys; where nope = 2·rope both parts of a score then have about the same one."""
HONEST = 0.0147
"""What the rounding of the published implementation changes of the result at the true geometry, relative to its rms."""
POISON = 64.0
"""Rows of the caches that are not written yet hold numbers this much larger: a single one read ruins the answer."""


class Quantised(nn.Module):
    """A stack of int4 matrices (in, out); `lead` is () or (count,)."""

    def __init__(self, lead: tuple[int, ...], rows: int, columns: int) -> None:
        super().__init__()
        if rows % GROUP:
            raise ValueError(f"{rows} rows are no multiple of {GROUP}")
        self.register_buffer("w_q", torch.empty(*lead, rows // 2, columns, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(*lead, rows // GROUP, columns, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.empty(*lead, rows // GROUP, columns, dtype=torch.bfloat16))


class Model(nn.Module):
    """Readable eager step; `pos` sizes the caches and nothing here."""

    def __init__(
        self,
        d: int = 2304,
        kda_heads: int = 32,
        kda_dim: int = 128,
        mla_heads: int = 32,
        kv_lora: int = 512,
        nope: int = 128,
        rope: int = 64,
        v_dim: int = 128,
        experts: int = 64,
        top_k: int = 8,
        inter: int = 1024,
        pos: int = 0,
    ) -> None:
        super().__init__()
        self.shape = {
            "d": d, "kda_heads": kda_heads, "kda_dim": kda_dim, "mla_heads": mla_heads, "kv_lora": kv_lora,
            "nope": nope, "rope": rope, "v_dim": v_dim, "experts": experts, "top_k": top_k, "inter": inter,
        }  # fmt: skip
        self.blocks = nn.ModuleList(nn.Module() for _ in KINDS)
        for name, size in plain_sizes(self.shape).items():
            parent, leaf = self._parent(name)
            parent.register_parameter(leaf, nn.Parameter(torch.empty(size, dtype=torch.bfloat16)))
        for name, size in quantised_sizes(self.shape).items():
            parent, leaf = self._parent(name)
            parent.add_module(leaf, Quantised(size[:-2], *size[-2:]))

    def _parent(self, name: str) -> tuple[nn.Module, str]:
        """The module that holds `name`, made where it does not exist."""
        *path, leaf = name.split(".")
        module: nn.Module = self
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        return module, leaf

    def step(
        self, hidden: Tensor, S: Tensor, conv: Tensor, c_kv: Tensor, k_rope: Tensor, pos: int
    ) -> tuple[Tensor, Tensor]:
        """One token; returns (out, experts).

        hidden: (d,) bfloat16. S: (3, heads, dim, dim) float32; conv: (3, 3, 3, heads·dim), c_kv: (cap, kv_lora),
        k_rope: (cap, rope) bfloat16, all four updated in place. out: (d,) bfloat16; experts: (4, top_k) int32.
        """
        state = {"S": S, "conv": conv, "c_kv": c_kv, "k_rope": k_rope}
        weights = {name: t.detach() for name, t in self.state_dict().items()}
        result = _pipeline(Variant(), weights, {"hidden": hidden, **state}, shape={**self.shape, "pos": pos})
        for name, tensor in state.items():
            tensor.copy_(result[name])
        return result["out"], result["experts"]


def plain_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name → size of every weight that is not quantised."""
    d, width, sizes = shape["d"], shape["kda_heads"] * shape["kda_dim"], {}
    for l, kind in enumerate(KINDS):
        block = f"blocks.{l}"
        sizes |= {f"{block}.attn_norm": (d,), f"{block}.moe_norm": (d,), f"{block}.moe.router": (shape["experts"], d)}
        if kind == "kda":
            sizes |= {f"{block}.attn.beta": (shape["kda_heads"], d), f"{block}.attn.conv": (3, width, TAPS)}
    return sizes


def quantised_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name → (…, in, out) of every quantised matrix; experts have a leading axis, the shared one comes last."""
    d, width, heads = shape["d"], shape["kda_heads"] * shape["kda_dim"], shape["mla_heads"]
    attention = {
        "kda": {**dict.fromkeys("qkvg", (d, width)), "o": (width, d)},
        "mla": {
            "q": (d, heads * (shape["nope"] + shape["rope"])),
            "kv_a": (d, shape["kv_lora"] + shape["rope"]),
            "kv_b": (shape["kv_lora"], heads * (shape["nope"] + shape["v_dim"])),
            "o": (heads * shape["v_dim"], d),
        },
    }
    e, inter = shape["experts"] + 1, shape["inter"]
    sizes: dict[str, tuple[int, ...]] = {}
    for l, kind in enumerate(KINDS):
        sizes |= {f"blocks.{l}.attn.{name}": size for name, size in attention[kind].items()}
        sizes |= {f"blocks.{l}.moe.gate": (e, d, inter), f"blocks.{l}.moe.up": (e, d, inter)}
        sizes[f"blocks.{l}.moe.down"] = (e, inter, d)
    return sizes


# --- the mathematics ----------------------------------------------------------------------------------------------


def dequantise(w_q: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> Tensor:
    """The (…, in, out) matrix in `dtype`: exact, since q - zero and scale take fewer than 24 bits together."""
    *lead, half, columns = w_q.shape
    w = torch.empty(*lead, half, 2, columns, dtype=torch.float32, device=w_q.device)
    w[..., 0, :] = w_q & 15
    w[..., 1, :] = w_q >> 4
    groups = w.view(*lead, -1, GROUP, columns)
    groups.sub_(zeros.float().unsqueeze(-2)).mul_(scales.float().unsqueeze(-2))
    return w.view(*lead, 2 * half, columns).to(dtype)


def normalise(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm of a vector."""
    return x * (x.square().mean() + EPS).rsqrt() * weight.to(x.dtype)


def convolve(rows: Tensor, taps: Tensor) -> Tensor:
    """(3, 4, n) rows, oldest first, and (3, n, 4) taps → (3, n)."""
    return (rows * taps.transpose(1, 2)).sum(1)


def shift(rows: Tensor) -> Tensor:
    """(3, 4, n) → the (3, 3, n) rows that the next token sees."""
    return rows[:, 1:]


def decay_of(g: Tensor) -> Tensor:
    """e^{-softplus(g)}."""
    return torch.sigmoid(-g)


def recur(S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule of one token for all heads.

    S: (heads, dim, dim) as (key, value); q, k, v, decay: (heads, dim); beta: (heads,). Returns (o, S).
    """
    S = decay[:, :, None] * S
    S = S + write(S, k, v, beta)
    return read(S, q), S


def read(S: Tensor, q: Tensor) -> Tensor:
    """Sᵀq."""
    return (q[:, None] @ S).squeeze(1)


def write(S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """β k (v - Sᵀk)ᵀ."""
    return beta[:, None, None] * k[:, :, None] * (v - read(S, k))[:, None]


def rotate(x: Tensor, pos: int, half_split: bool = False) -> Tensor:
    """RoPE on the last axis: neighbours turn together, pair i by pos·θ^(-2i/n)."""
    n = x.shape[-1]
    angle = pos * THETA ** (-torch.arange(0, n, 2, dtype=torch.float64, device=x.device) / n)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if half_split:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * c - b * s, a * s + b * c), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)


def attend(nope: Tensor, rope: Tensor, size: int, nope_size: int) -> Tensor:
    """Attention weights (heads, rows) from the two parts of the scores; `size` = nope + rope elements per head."""
    return ((nope + rope) * size**-0.5).softmax(-1)


def best(logits: Tensor, k: int) -> Tensor:
    """Ids of the k largest."""
    return logits.topk(k).indices


def share(p: Tensor, ids: Tensor) -> Tensor:
    """Weights of the chosen experts from all probabilities."""
    return p[ids] / (p[ids].sum() + 1e-9) * ROUTED


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _same(t: Tensor) -> Tensor:
    return t


class Variant(NamedTuple):
    """The parts that an honest pipeline may round and that a mutant gets wrong."""

    dtype: torch.dtype = torch.float32
    x: Round = _same
    """Operands of products, the vector."""
    w: Round = _same
    """Operands of products, the dequantised matrix."""
    y: Round = _same
    """Results of products."""
    stream: Round = _same
    """The residual stream after each addition."""
    p: Round = _same
    """Attention weights."""
    cache: Round = _same
    """The latent rows as attention reads them."""
    edit: Callable[[Tensors], Tensors] = dict
    dequantise: Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor] = dequantise
    convolve: Callable[[Tensor, Tensor], Tensor] = convolve
    activate: Round = F.silu
    shift: Callable[[Tensor], Tensor] = shift
    decay: Callable[[Tensor], Tensor] = decay_of
    beta: Callable[[Tensor], Tensor] = torch.sigmoid
    recur: Callable[..., tuple[Tensor, Tensor]] = recur
    rotate_q: Callable[[Tensor, int], Tensor] = rotate
    rotate_k: Callable[[Tensor, int], Tensor] = rotate
    visible: Callable[[int], slice] = lambda pos: slice(0, pos + 1)
    attend: Callable[[Tensor, Tensor, int, int], Tensor] = attend
    pick: Callable[[Tensor, int], Tensor] = best
    share: Callable[[Tensor, Tensor], Tensor] = share
    act: Callable[[Tensor, Tensor], Tensor] = swiglu
    shared: float = 1.0
    drop: frozenset[str] = frozenset()
    """Of `kda`, `mla`, `moe`, `attention_residual`, `last_block`."""
    keep: frozenset[str] = frozenset()
    """State that stays as it was."""
    store: Round = _same
    """S as it is stored."""


class Trace(NamedTuple):
    """What a step computed, in the variant's dtype and unrounded."""

    out: Tensor
    S: Tensor
    conv: Tensor
    latent: Tensor
    """The new row of `c_kv`, (kv_lora,)."""
    key: Tensor
    """The new row of `k_rope`, (rope,)."""
    experts: Tensor
    logits: Tensor
    """Of the routers, (4, experts)."""
    idle: Tensor
    """(3, heads): heads whose state is exactly halved, since k and g are 0."""


class _Step:
    """One token under a variant; `forced` (4, top_k) replaces its choice of experts."""

    def __init__(
        self, variant: Variant, weights: Tensors, inputs: Tensors, shape: Shape, forced: Tensor | None = None
    ) -> None:
        self.v, self.w, self.inputs, self.shape, self.forced = variant, variant.edit(weights), inputs, shape, forced

    def run(self) -> Trace:
        v, shape = self.v, self.shape
        x = self.inputs["hidden"].to(v.dtype)
        S, conv, chosen, routers, idle = [], [], [], [], []
        for l, kind in enumerate(KINDS):
            block = f"blocks.{l}."
            a = normalise(x, self.w[block + "attn_norm"])
            if kind == "kda":
                attention, state, rows, still = self.kda(block + "attn.", a, l)
                S.append(state)
                conv.append(rows)
                idle.append(still)
            else:
                attention, latent, key = self.mla(block + "attn.", a)
            before = x
            residual = torch.zeros_like(x) if "attention_residual" in v.drop else x
            h = residual if kind in v.drop else v.stream(residual + attention)
            b = normalise(h, self.w[block + "moe_norm"])
            logits = self.dense(block + "moe.router", b)
            ids = v.pick(logits, shape["top_k"]) if self.forced is None else self.forced[l]
            x = h if "moe" in v.drop else v.stream(h + self.moe(block + "moe.", b, logits, ids))
            if "last_block" in v.drop and l == len(KINDS) - 1:
                x = before
            chosen.append(ids)
            routers.append(logits)
        return Trace(
            x, torch.stack(S), torch.stack(conv), latent, key, torch.stack(chosen), torch.stack(routers),
            torch.stack(idle),
        )  # fmt: skip

    def matrix(self, name: str, index: Tensor | None = None) -> Tensor:
        parts = [self.w[f"{name}.{part}"] for part in ("w_q", "scales", "zeros")]
        w_q, scales, zeros = parts if index is None else [part[index] for part in parts]
        return self.v.w(self.v.dequantise(w_q, scales, zeros, self.v.dtype))

    def linear(self, name: str, x: Tensor, index: Tensor | None = None) -> Tensor:
        return self.v.y(self.v.x(x) @ self.matrix(name, index))

    def dense(self, name: str, x: Tensor) -> Tensor:
        return self.w[name].to(x.dtype) @ self.v.x(x)

    def kda(self, at: str, a: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Output (d,), new S of the layer, its new stored rows, and which heads are exactly halved."""
        v, heads = self.v, (self.shape["kda_heads"], self.shape["kda_dim"])
        projected = torch.stack([self.linear(at + name, a) for name in "qkv"])
        g = self.linear(at + "g", a).view(heads)
        rows = torch.cat((self.inputs["conv"][layer].to(v.dtype), projected[:, None]), dim=1)
        q, k, value = v.activate(v.convolve(rows, self.w[at + "conv"].to(v.dtype))).view(3, *heads)
        beta = v.beta(self.dense(at + "beta", a))
        S = self.inputs["S"][layer].to(v.dtype)
        o, S = v.recur(S, q * heads[1] ** -0.5, k, value, v.decay(g), beta)
        idle = (k == 0).all(1) & (g == 0).all(1)
        return self.linear(at + "o", o.flatten()), S, v.shift(rows), idle

    def mla(self, at: str, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output (d,) and the new cache rows; kv_b is applied to the query and to the mean latent, not to the cache."""
        v, s, pos = self.v, self.shape, self.shape["pos"]
        q = self.linear(at + "q", a).view(s["mla_heads"], -1)
        latent, key = self.linear(at + "kv_a", a).split((s["kv_lora"], s["rope"]))
        q_nope, q_rope = q.split((s["nope"], s["rope"]), dim=1)
        q_rope, key = v.rotate_q(q_rope, pos), v.rotate_k(key, pos)
        rows = v.cache(self.cached("c_kv", latent)[v.visible(pos)])
        keys = self.cached("k_rope", key)[v.visible(pos)]
        up = self.matrix(at + "kv_b").view(s["kv_lora"], s["mla_heads"], -1)
        to_key, to_value = up.split((s["nope"], s["v_dim"]), dim=2)
        absorbed = torch.einsum("hn,lhn->hl", v.x(q_nope), to_key)
        p = v.attend(v.x(absorbed) @ rows.t(), v.x(q_rope) @ keys.t(), s["nope"] + s["rope"], s["nope"])
        mean = v.p(p) @ rows
        o = torch.einsum("hl,lhv->hv", v.x(mean), to_value)
        return self.linear(at + "o", o.flatten()), latent, key

    def cached(self, name: str, new: Tensor) -> Tensor:
        """Rows 0…pos as attention sees them, and the row after them."""
        pos = self.shape["pos"]
        rows = self.inputs[name]
        return torch.cat((rows[:pos], new[None].to(rows.dtype), rows[pos + 1 : pos + 2])).to(self.v.dtype)

    def moe(self, at: str, b: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
        v = self.v
        every = torch.cat((ids, ids.new_tensor([self.shape["experts"]])))
        amounts = torch.cat((v.share(logits.softmax(0), ids), logits.new_tensor([v.shared])))
        hidden = v.act(self.linear(at + "gate", b, every), self.linear(at + "up", b, every))
        return amounts @ self.linear(at + "down", hidden[:, None], every).squeeze(1)


# --- weights, inputs, oracle --------------------------------------------------------------------------------------


def make_weights(shape: Shape, generator: torch.Generator) -> Tensors:
    """int4 matrices and bfloat16 vectors at which every part of a block counts; one generator per matrix.

    Depends on every shape key except pos. Matrices are drawn side by side.
    """
    weights = {}
    for name, size in plain_sizes(shape).items():
        weights[name] = _plain(name, size, shape, generator)
    slots = []
    for name, size in quantised_sizes(shape).items():
        *lead, rows, columns = size
        weights[f"{name}.w_q"] = torch.empty(*lead, rows // 2, columns, dtype=torch.uint8)
        weights[f"{name}.scales"] = torch.empty(*lead, rows // GROUP, columns, dtype=torch.bfloat16)
        weights[f"{name}.zeros"] = torch.empty_like(weights[f"{name}.scales"])
        parts = [weights[f"{name}.{part}"].view(-1, *weights[f"{name}.{part}"].shape[-2:]) for part in PARTS]
        slots += [(name, *matrix) for matrix in zip(*parts, strict=True)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(partial(_fill, shape), slots, spawn(generator, len(slots))))
    return weights


PARTS = ("w_q", "scales", "zeros")


def _plain(name: str, size: tuple[int, ...], shape: Shape, generator: torch.Generator) -> Tensor:
    t = torch.randn(size, generator=generator)
    if name.endswith("_norm"):
        t = (0.3 * t).exp()
        t[torch.randperm(len(t), generator=generator)[: len(t) // HEAVY_EVERY]] *= HEAVY
    elif name.endswith(".conv"):
        t *= torch.tensor([0.7, 0.16 * (128 / shape["kda_dim"]) ** 0.5, 0.7])[:, None, None]
    else:
        t *= 1.5 / (RMS * shape["d"] ** 0.5)
    return t.to(torch.bfloat16)


def _fill(shape: Shape, slot: tuple[str, Tensor, Tensor, Tensor], generator: torch.Generator) -> None:
    """Draw one matrix and quantise it: range widened to contain 0, 16 levels, the zero point a level from 1 to 15."""
    name, w_q, scales, zeros = slot
    rows, columns = 2 * w_q.shape[0], w_q.shape[1]
    w = _scaled(name, torch.randn(rows, columns, generator=generator, device=w_q.device), shape).view(
        -1, GROUP, columns
    )
    low, high = w.amin(1, keepdim=True).clamp_(max=0), w.amax(1, keepdim=True).clamp_(min=0)
    scale = (high - low) / 15
    zero = (-low / scale).round_().clamp_(1, 15)
    q = w.div_(scale).add_(zero).round_().clamp_(0, 15).to(torch.uint8).view(rows, columns)
    torch.bitwise_or(q[0::2], q[1::2] << 4, out=w_q)
    scales.copy_(scale[:, 0])
    zeros.copy_(zero[:, 0])


def _scaled(name: str, w: Tensor, shape: Shape) -> Tensor:
    """N(0, 1) (in, out) at the standard deviation of this matrix."""
    *_, part, leaf = name.split(".")
    kda = KINDS[int(name.split(".")[1])] == "kda"
    std = len(w) ** -0.5  # of down and kv_b, whose inputs are as large as they come
    if leaf == "o":
        std *= 1.3 if kda else 1.6
    elif leaf not in ("down", "kv_b"):
        gate = {"attn": 1.5, "moe": 1.28}[part]
        std *= (gate if leaf in ("g", "gate") else 1.0) / RMS
    w *= std
    channel = shape["kv_lora"] // 3
    if leaf == "kv_a":
        w[:, : shape["kv_lora"]] *= LATENT
        w[:, channel] *= OUTLIER
        w[:, shape["kv_lora"] :] *= ROPE_KEY
    elif leaf == "kv_b":
        w[channel] /= OUTLIER
    return w


def make_inputs(shape: Shape, generator: torch.Generator) -> Tensors:
    """A token, and a state at which both kinds of attention count; cache rows from pos on are poison."""

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    heads, dim, pos = shape["kda_heads"], shape["kda_dim"], shape["pos"]
    c_kv = LATENT * normal(pos + 16, shape["kv_lora"])
    c_kv[:, shape["kv_lora"] // 3] *= OUTLIER
    k_rope = ROPE_KEY * normal(pos + 16, shape["rope"])
    for cache in (c_kv, k_rope):
        cache[pos:] *= POISON
    return {
        "hidden": normal(shape["d"]).to(torch.bfloat16),
        "S": 0.5 * normal(3, heads, dim, dim),
        "conv": normal(3, 3, 3, heads * dim).to(torch.bfloat16),
        "c_kv": c_kv.to(torch.bfloat16),
        "k_rope": k_rope.to(torch.bfloat16),
    }


def _answer(variant: Variant, trace: Trace, inputs: Tensors, shape: Shape) -> Tensors:
    """Outputs and final state."""
    pos = shape["pos"]
    c_kv, k_rope = inputs["c_kv"].clone(), inputs["k_rope"].clone()
    c_kv[pos], k_rope[pos] = trace.latent, trace.key
    state = {"S": variant.store(trace.S), "conv": trace.conv, "c_kv": c_kv, "k_rope": k_rope}
    return {
        "out": trace.out,
        "experts": trace.experts.to(torch.int32),
        **{name: inputs[name].clone() if name in variant.keep else t for name, t in state.items()},
    }


def oracle(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """Float64 step along its own routing, for show: near-ties make it one of several right answers."""
    exact = Variant(dtype=torch.float64)
    return _answer(exact, _Step(exact, weights, inputs, shape).run(), inputs, shape)


def along_trace(weights: Tensors, inputs: Tensors, actual: Tensors, *, shape: Shape) -> dict[str, dict[str, Tensors]]:
    """Facts about a submission's step along its own routing; nothing is rounded but the new row that attention reads.

    A choice falls short by what its logit lacks of the k-th largest, in units of the standard deviation of the block's
    logits. The outlier channel of the new latent row is divided by 32, or it alone would make the row's scale. Heads
    with k = 0 and g = 0 are halved exactly, whatever a kernel rounds, unless it rounds the state. What three blocks and
    more have amplified is measured in units of its rms or, where honest rounding changes more than `HONEST` of that, of
    what it changes over `HONEST`: with few heads and experts some draws amplify rounding five times as much as others.
    """
    pos, experts = shape["pos"], actual["experts"].long()
    twice = (experts[:, :, None] == experts[:, None]).long().tril(-1).any(2)
    legal = (experts >= 0) & (experts < shape["experts"]) & ~twice
    path = experts.clamp(0, shape["experts"] - 1)
    trace = _Step(Variant(dtype=torch.float64), weights, inputs, shape, forced=path).run()
    right, found = _ends(trace, shape), _ends(trace._replace(**_rows(actual, pos)), shape)
    scales: Tensors = {}
    if any(_rms(found[name] - r) > HONEST * _rms(r) for name, r in right.items()):  # else the rms is far from its bound
        rounded = [_ends(_Step(v, weights, inputs, shape, forced=path).run(), shape) for v in ROUNDED]
        for name, r in right.items():
            scales[name] = torch.stack([_rms(ends[name] - r) for ends in rounded]).max() / HONEST
    kth = trace.logits.topk(shape["top_k"]).values[:, -1:]
    old = torch.arange(pos + 16, device=experts.device)[:, None] != pos
    numbers: dict[str, dict[str, object]] = {"S": {"expected": trace.S}, "conv": {"expected": trace.conv}}
    for name, r in right.items():
        scale = {"scale": scales[name]} if name in scales else {}
        numbers[name] = {"expected": r, "actual": found[name], "rows": 0, **scale}
    if bool(trace.idle.any()):
        numbers["S_halved"] = {"expected": trace.S[trace.idle], "actual": actual["S"][trace.idle], "rows": 1}
    return {
        "exact": {name: {"expected": inputs[name], "where": old} for name in ("c_kv", "k_rope")},
        "decisions": {
            "experts": {
                "legal": legal,
                "shortfall": (kth - trace.logits.gather(1, path)).clamp(min=0),
                "unit": trace.logits.std(1, correction=0, keepdim=True),
            }
        },
        "numbers": numbers,  # type: ignore[dict-item]
    }


def _rms(t: Tensor) -> Tensor:
    return t.square().mean().sqrt()


def _rows(actual: Tensors, pos: int) -> Tensors:
    """What a submission returned under the names of a trace."""
    return {"out": actual["out"], "latent": actual["c_kv"][pos], "key": actual["k_rope"][pos]}


def _ends(trace: Trace, shape: Shape) -> Tensors:
    """The numbers that have gone through three blocks and more, in float64."""
    even = torch.ones_like(trace.latent, dtype=torch.float64)
    even[shape["kv_lora"] // 3] = 1 / OUTLIER
    return {"out": trace.out.double(), "c_kv": trace.latent.double() * even, "k_rope": trace.key.double()}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _nominal(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    pass


def _needles(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Rows at the edges of tiles and splits stand out, so heads pick among them."""
    pos = shape["pos"]
    rows = sorted({row for row in (0, 1, 15, 16, 63, 64, pos // 2, pos - 1) if 0 <= row < pos})
    inputs["c_kv"][rows] *= 3
    inputs["k_rope"][rows] *= 2


def _scaled_input(
    name: str, factor: float, weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator
) -> None:
    inputs[name].mul_(factor)


def _outlier_token(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """One channel of the token far above the rest."""
    inputs["hidden"][int(torch.randint(shape["d"], (), generator=generator))] = 20


def _halving(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """g = 0, since every nibble equals its zero point, and k = 0: S is halved, exactly unless it is rounded."""
    for l, kind in enumerate(KINDS):
        if kind == "kda":
            at = f"blocks.{l}.attn."
            zero = weights[at + "g.zeros"].to(torch.uint8).repeat_interleave(GROUP // 2, dim=0)
            weights[at + "g.w_q"].copy_(zero | zero << 4)
            weights[at + "conv"][1] = 0


CASES: dict[str, Callable[[Tensors, Tensors, Shape, torch.Generator], None]] = {
    "nominal": _nominal,
    "needles": _needles,
    "zero_S": partial(_scaled_input, "S", 0),
    "large_S": partial(_scaled_input, "S", 8),
    "zero_window": partial(_scaled_input, "conv", 0),
    "token_x64": partial(_scaled_input, "hidden", 64),
    "outlier_token": _outlier_token,
    "halving": _halving,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Pipeline = Callable[..., Tensors]


def _pipeline(variant: Variant, weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    answer = _answer(variant, _Step(variant, weights, inputs, shape).run(), inputs, shape)
    for name in ("out", "conv"):
        answer[name] = answer[name].to(torch.bfloat16)
    return answer


def _of(**parts: object) -> Pipeline:
    return partial(_pipeline, Variant(**parts))  # type: ignore[arg-type]


def _bf16(t: Tensor) -> Tensor:
    return t.bfloat16().to(t.dtype)


PUBLISHED = Variant(x=_bf16, w=_bf16, y=_bf16, stream=_bf16)
OPERANDS = Variant(x=_bf16, w=_bf16, p=_bf16)
ROUNDED = (PUBLISHED, OPERANDS)
"""Two samples of honest rounding."""

LEGAL: dict[str, Pipeline] = {
    "fp32": _of(),
    "published_rounding": partial(_pipeline, PUBLISHED),
    "bf16_inputs": _of(x=_bf16),
    "bf16_inputs_weights_p": partial(_pipeline, OPERANDS),
}


def _edited(suffix: str, change: Callable[[Tensor], Tensor]) -> Pipeline:
    """The exact pipeline on weights whose names end in `suffix`, changed."""
    return _of(edit=lambda w: {name: change(t) if name.endswith(suffix) else t for name, t in w.items()})


def _recurring(change: Callable[..., tuple[Tensor, Tensor]]) -> Pipeline:
    return _of(recur=change)


def _unscaled(S: Tensor, q: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    return recur(S, q * q.shape[1] ** 0.5, *rest)


def _predicted_before_decay(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    S = decay[:, :, None] * S + write(S, k, v, beta)
    return read(S, q), S


def _no_delta(S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    S = decay[:, :, None] * S + write(torch.zeros_like(S), k, v, beta)
    return read(S, q), S


def _only_decay(S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    S = decay[:, :, None] * S
    return read(S, q), S


def _read_first(S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    return read(decay[:, :, None] * S, q), recur(S, q, k, v, decay, beta)[1]


def _taps_from(first: int, rows: Tensor, taps: Tensor) -> Tensor:
    """Stored rows before `first` do not count."""
    return convolve(rows[:, first:], taps[:, :, first:])


def _uniform(nope: Tensor, rope: Tensor, size: int, nope_size: int) -> Tensor:
    return torch.full_like(nope, 1 / nope.shape[1])


def _second_next(logits: Tensor, k: int) -> Tensor:
    """The (k + 2)-th expert for the k-th."""
    ids = best(logits, k + 2)
    return torch.cat((ids[: k - 1], ids[k + 1 :]))


def _one_less(p: Tensor, ids: Tensor) -> Tensor:
    """The last of the chosen experts is named and left out."""
    return torch.cat((share(p, ids[:-1]), p.new_zeros(1)))


def _int8(t: Tensor) -> Tensor:
    """Symmetric 8-bit grid along the last axis."""
    step = (t.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (t / step).round() * step


def _fp8(t: Tensor, dim: int = -1) -> Tensor:
    """e4m3 with the largest magnitude along `dim` at 448."""
    step = (t.abs().amax(dim, keepdim=True) / 448).clamp(min=torch.finfo(torch.float32).tiny)
    return (t / step).to(torch.float8_e4m3fn).to(t.dtype) * step


STATE = ("S", "conv", "c_kv", "k_rope")

MUTANTS: dict[str, Pipeline] = {
    # KDA
    "no_kda": _of(drop=frozenset({"kda"})),
    "no_kda_scale": _recurring(_unscaled),
    "decay_of_sigmoid": _of(decay=lambda g: torch.exp(-torch.sigmoid(g))),
    "no_decay": _of(decay=torch.ones_like),
    "decay_averaged": _of(decay=lambda g: decay_of(g).mean(1, keepdim=True).expand_as(g)),
    "beta_without_sigmoid": _of(beta=_same),
    "beta_1": _of(beta=torch.ones_like),
    "prediction_before_decay": _recurring(_predicted_before_decay),
    "no_delta": _recurring(_no_delta),
    "only_decay": _recurring(_only_decay),
    "read_before_write": _recurring(_read_first),
    # convolution
    "no_history": _of(convolve=partial(_taps_from, TAPS - 1)),
    "taps_reversed": _edited("attn.conv", lambda t: t.flip(2)),
    "oldest_tap_dropped": _of(convolve=partial(_taps_from, 1)),
    "no_convolution": _of(convolve=lambda rows, taps: rows[:, -1]),
    "no_silu_after_convolution": _of(activate=_same),
    "half_after_convolution": _of(activate=lambda t: t / 2),
    "window_not_shifted": _of(shift=lambda rows: torch.cat((rows[:, :2], rows[:, 3:]), dim=1)),
    # MLA
    "no_mla": _of(drop=frozenset({"mla"})),
    "uniform_attention": _of(attend=_uniform),
    "window_64": _of(visible=lambda pos: slice(max(0, pos - 63), pos + 1)),
    "half_of_the_cache": _of(visible=lambda pos: slice(pos // 2, pos + 1)),
    "own_token_not_attended": _of(visible=lambda pos: slice(0, max(pos, 1))),
    "row_past_the_end": _of(visible=lambda pos: slice(0, pos + 2)),
    "no_rope_score": _of(attend=lambda nope, rope, size, part: attend(nope, torch.zeros_like(rope), size, part)),
    "no_nope_score": _of(attend=lambda nope, rope, size, part: attend(torch.zeros_like(nope), rope, size, part)),
    "scale_of_nope_only": _of(attend=lambda nope, rope, size, part: attend(nope, rope, part, part)),
    "rope_pos_minus_1": _of(rotate_q=lambda x, pos: rotate(x, pos - 1), rotate_k=lambda x, pos: rotate(x, pos - 1)),
    "rope_half_split": _of(rotate_q=partial(rotate, half_split=True), rotate_k=partial(rotate, half_split=True)),
    "no_rope": _of(rotate_q=lambda x, pos: x, rotate_k=lambda x, pos: x),
    "k_not_rotated": _of(rotate_k=lambda x, pos: x),
    # MoE
    "no_moe": _of(drop=frozenset({"moe"})),
    "no_shared_expert": _of(shared=0.0),
    "top_k_minus_1": _of(share=_one_less),
    "second_next_expert": _of(pick=_second_next),
    "first_k_experts": _of(pick=lambda logits, k: torch.arange(k, device=logits.device)),
    "not_renormalised": _of(share=lambda p, ids: p[ids] * ROUTED),
    "without_2_446": _of(share=lambda p, ids: share(p, ids) / ROUTED),
    "uniform_weights": _of(share=lambda p, ids: torch.full_like(p[ids], ROUTED / len(ids))),
    "half_of_gate": _of(act=lambda gate, up: gate / 2 * up),
    "relu": _of(act=lambda gate, up: gate.relu() * up),
    "gate_and_up_swapped": _of(act=lambda gate, up: swiglu(up, gate)),
    # frame
    "no_attn_norm_weight": _edited("attn_norm", torch.ones_like),
    "no_moe_norm_weight": _edited("moe_norm", torch.ones_like),
    "no_attention_residual": _of(drop=frozenset({"attention_residual"})),
    "last_block_skipped": _of(drop=frozenset({"last_block"})),
    # state
    "state_not_updated": _of(keep=frozenset(STATE)),
    "stale_S": _of(keep=frozenset({"S"})),
    "stale_cache": _of(keep=frozenset({"c_kv", "k_rope"})),
    "bf16_S": _of(store=_bf16),
    # quantisation and precision
    "zero_point_8": _edited("zeros", lambda t: torch.full_like(t, 8)),
    "nibbles_swapped": _edited("w_q", lambda t: t >> 4 | t << 4),
    "scale_of_group_0": _edited("scales", lambda t: t[..., :1, :].expand_as(t)),
    "int8_activations": _of(x=_int8),
    "fp8_activations": _of(x=_fp8),
    "fp8_weights": _of(w=partial(_fp8, dim=-2)),
    "int8_cache": _of(cache=_int8),
    "fp8_cache": _of(cache=_fp8),
}
