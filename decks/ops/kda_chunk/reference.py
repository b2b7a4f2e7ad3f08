"""Kimi Delta Attention, forward: linear attention with a delta rule and one decay per channel.

Per batch element and head, with S (K, V) zero at the start and scale = K^-1/2, for each token t:

    Ŝ = Diag(exp(g_t)) · S;    S = Ŝ + β_t · k_t · (v_t - Ŝᵀ·k_t)ᵀ;    o_t = scale · Sᵀ·q_t

g is the raw log-decay of the token, not summed over anything. Everything below is eager torch on the device of its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64
"""Tokens of a chunk in the chunk form; T is a multiple of it."""
BLOCK = 16
"""Rows that share an anchor: 15 steps of the strongest decay are e^75, which float32 and bfloat16 still hold."""
MIN_G = -5.0
"""Strongest log-decay of one token."""

Tensors = dict[str, Tensor]
Round = Callable[[Tensor], Tensor]
Case = Callable[[Tensors, Tensors, Mapping[str, int], torch.Generator], None]


class Model(nn.Module):
    """The recurrence, token by token in float32."""

    def __init__(self, B: int, T: int, H: int, K: int, V: int) -> None:
        super().__init__()
        if T % CHUNK:
            raise ValueError(f"T = {T} is no multiple of {CHUNK}")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """q, k, g (B, T, H, K), v (B, T, H, V), beta (B, T, H) → o (B, T, H, V) bfloat16."""
        q, k, v, beta = (t.float() for t in (q, k, v, beta))
        state = v.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        o = torch.empty_like(v)
        for t in range(q.shape[1]):
            state = state * g[:, t].exp()[..., None]
            predicted = (state * k[:, t, :, :, None]).sum(2)
            written = beta[:, t, :, None] * (v[:, t] - predicted)
            state = state + k[:, t, :, :, None] * written[:, :, None, :]
            o[:, t] = (state * q[:, t, :, :, None]).sum(2) * q.shape[3] ** -0.5
        return o.to(torch.bfloat16)


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """None: the operation has no weights."""
    return {}


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """q, k of length 1, v ~ N(0, 1), β = sigmoid(N(0, 1)), g = -λ·softplus(N(0, 1))/ln 2.

    λ is log-uniform in [1/512, 1/2] per head and channel: some channels forget in 2 tokens, some remember 500.
    """
    rows = (shape["B"], shape["T"], shape["H"])
    k, v = shape["K"], shape["V"]
    q, key = (_unit(torch.randn(*rows, k, generator=generator)) for _ in range(2))
    value = torch.randn(*rows, v, generator=generator)
    rate = 2.0 ** (-1 - 8 * torch.rand(shape["H"], k, generator=generator))
    softplus = F.softplus(torch.randn(*rows, k, generator=generator))
    return {
        "q": q.to(torch.bfloat16),
        "k": key.to(torch.bfloat16),
        "v": value.to(torch.bfloat16),
        "g": (softplus.mul_(-rate / torch.log(torch.tensor(2.0)))).clamp_(min=MIN_G),
        "beta": torch.randn(rows, generator=generator).sigmoid().to(torch.bfloat16),
    }


def _unit(t: Tensor) -> Tensor:
    return F.normalize(t, dim=-1)


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """The recurrence in float64."""
    return {"o": recurrence(inputs, torch.float64)}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    pass


def _strong_decay(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Every 4th channel at -5, 30 % of the other elements anywhere down to it."""
    g = inputs["g"]
    strong = torch.rand(g.shape, generator=generator) < 0.3
    g.copy_(torch.where(strong, MIN_G * torch.rand(g.shape, generator=generator), g))
    g[..., ::4] = MIN_G


def _no_decay(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["g"].zero_()


def _reset(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Three tokens in a row, in the middle of some chunk of each batch element, wipe the state."""
    for g in inputs["g"]:
        chunk = int(torch.randint(shape["T"] // CHUNK, (), generator=generator))
        start = chunk * CHUNK + int(torch.randint(CHUNK // 4, 3 * CHUNK // 4, (), generator=generator))
        g[start : start + 3] = MIN_G


def _long_memory(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """What the first chunk wrote is all there is to read, and it hardly fades."""
    g = inputs["g"]
    g.mul_((1.9 / g.sum(1, keepdim=True).abs()).clamp_(max=1.0))
    inputs["v"][:, CHUNK:] = 0
    inputs["beta"][:, CHUNK:] *= 0.1


def _beta_zero_tail(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["beta"][:, shape["T"] // 2 :] = 0


def _beta_one(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["beta"].fill_(1)


def _alike(
    cosine: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    """Keys of a head share a direction, so that any two of them have this cosine on average."""
    k = inputs["k"]
    shared = _unit(torch.randn(shape["B"], 1, shape["H"], shape["K"], generator=generator))
    k.copy_(_unit(cosine**0.5 * shared + (1 - cosine) ** 0.5 * k.float()))


def _mixed_rows(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Tokens differ in scale: v times e^0.7n, q times e^n, one n ~ N(0, 1) per token, kept within ±2.

    Without the bound one token may outweigh all others, and a column is then a single rounding. The first 8 tokens keep
    their scale: their outputs have so few terms that some nearly cancel, and a row like that must not be enlarged.
    """
    for name, spread in (("v", 0.7), ("q", 1.0)):
        t = inputs[name][:, 8:]
        n = torch.randn(*t.shape[:2], 1, 1, generator=generator).clamp_(-2, 2)
        t.copy_(t.float() * (spread * n).exp())


def _scaled(
    v: float, q: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    inputs["v"].mul_(v)
    inputs["q"].mul_(q)


CASES: dict[str, Case] = {
    "nominal": _nominal,
    "strong_decay": _strong_decay,
    "no_decay": _no_decay,
    "reset": _reset,
    "long_memory": _long_memory,
    "beta_zero_tail": _beta_zero_tail,
    "beta_one": _beta_one,
    "correlated": partial(_alike, 0.3),
    "repeated": partial(_alike, 0.8),
    "mixed_rows": _mixed_rows,
    "scale_up": partial(_scaled, 256.0, 8.0),
    "scale_down": partial(_scaled, 2.0**-12, 1.0),
}


# --- two forms of the operation -----------------------------------------------------------------------------------


def _same(t: Tensor) -> Tensor:
    return t


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).to(t.dtype)


def _tf32(t: Tensor) -> Tensor:
    """Rounded to 10 fraction bits, ties away from zero."""
    return ((t.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def _heads(inputs: Tensors, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q, k, v, g as (B, H, T, ·) and beta as (B, H, T, 1)."""
    q, k, v, g = (inputs[name].to(dtype).transpose(1, 2).contiguous() for name in ("q", "k", "v", "g"))
    return q, k, v, g, inputs["beta"].to(dtype).transpose(1, 2)[..., None]


def recurrence(
    inputs: Tensors,
    dtype: torch.dtype,
    *,
    delta: bool = True,
    predict_decayed: bool = True,
    decay_first: bool = True,
    write_first: bool = True,
    forget_every: int = 0,
    state_as: Round = _same,
) -> Tensor:
    """o (B, T, H, V) in `dtype`, token by token.

    Args:
        inputs: q, k, v, g, beta.
        dtype: of everything that is computed.
        delta: the prediction is taken from what is written.
        predict_decayed: it is made from the decayed state, not from the one before.
        decay_first: the state decays before the write, not after it.
        write_first: the output is read after the write.
        forget_every: tokens after which the state is set to zero; 0 for never.
        state_as: how the state is rounded after each token.
    """
    q, k, v, g, beta = _heads(inputs, dtype)
    decay, scale = g.exp()[..., None], q.shape[-1] ** -0.5
    state = v.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    o = torch.empty_like(v)
    for t in range(q.shape[2]):
        if forget_every and t % forget_every == 0:
            state = torch.zeros_like(state)
        key, query = k[:, :, t, None], q[:, :, t, None]
        decayed = state * decay[:, :, t] if decay_first else state
        written = v[:, :, t, None]
        if delta:
            written = written - key @ (decayed if predict_decayed else state)
        after = decayed + key.transpose(2, 3) * (beta[:, :, t, None] * written)
        if not decay_first:
            after = after * decay[:, :, t]
        state = state_as(after)
        o[:, :, t, None] = query @ (state if write_first else decayed) * scale
    return o.transpose(1, 2).contiguous()


def _substitution(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of a strictly lower triangular matrix, row by row."""
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(eye + lower, eye.expand_as(lower), upper=False, unitriangular=True)


def _doubling(steps: int, rounded: Round, lower: Tensor) -> Tensor:
    """The first 2^steps terms of (I + lower)^-1 = Σ (-lower)^i; all of them where that is the matrix's width."""
    power = rounded(-lower)
    total = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device) + power
    for _ in range(steps - 1):
        power = rounded(power @ power)
        total = rounded(total + total @ power)
    return total


def _pairs(left: Tensor, right: Tensor, g: Tensor, operand: Round, anchored: bool) -> Tensor:
    """Σ_c left[t, c] · right[s, c] · exp(g[t, c] - g[s, c]) for s ≤ t, zero above; g is summed over the chunk.

    Anchored, rows go in blocks of 16 and both exponents are taken relative to the block's first row, which bounds them.
    """
    if not anchored:
        return (operand(left * g.exp()) @ operand(right * (-g).exp()).transpose(-1, -2)).tril()
    size = left.shape[-2]
    out = left.new_zeros(*left.shape[:-1], size)
    for start in range(0, size, BLOCK):
        stop = start + BLOCK
        anchor = g[..., start, None, :]
        rows = operand(left[..., start:stop, :] * (g[..., start:stop, :] - anchor).exp())
        columns = operand(right[..., :stop, :] * (anchor - g[..., :stop, :]).exp())
        out[..., start:stop, :stop] = rows @ columns.transpose(-1, -2)
    return out.tril()


def _chunks(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(t.split(size, 2) for t in tensors), strict=True)


def chunked(
    inputs: Tensors,
    *,
    size: int = CHUNK,
    operand: Round = _same,
    state_as: Round = _same,
    inverse: Callable[[Tensor], Tensor] = _substitution,
    anchored: bool = True,
    carry: bool = True,
) -> Tensor:
    """o (B, T, H, V) in float32, a chunk at a time.

    Inside a chunk what each token writes solves (I + A)·U = β·(V - K̄·S), A[t, s] = β_t · Σ_c k_t·k_s·e^(G_t - G_s).

    Args:
        inputs: q, k, v, g, beta.
        size: tokens of a chunk.
        operand: how the operands of each product are rounded.
        state_as: how the carried state is rounded after each chunk.
        inverse: (I + A)^-1 from A.
        anchored: exponents are kept in range.
        carry: the state passes from chunk to chunk.
    """
    q, k, v, g, beta = _heads(inputs, torch.float32)
    scale = q.shape[-1] ** -0.5
    state = v.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    parts = []
    for q_, k_, v_, g_, beta_ in _chunks(size, q, k, v, g, beta):
        total = g_.cumsum(2)
        solve = operand(inverse(beta_ * _pairs(k_, k_, total, operand, anchored).tril(-1)))
        seen = operand(solve @ operand(beta_ * k_ * total.exp()))
        written = operand(solve @ operand(beta_ * v_) - seen @ operand(state))
        within = operand(_pairs(q_, k_, total, operand, anchored))
        parts.append(scale * (operand(q_ * total.exp()) @ operand(state) + within @ written))
        last = total[:, :, -1:]
        state = last.exp().transpose(2, 3) * state + operand(k_ * (last - total).exp()).transpose(2, 3) @ written
        state = state_as(state) if carry else torch.zeros_like(state)
    return torch.cat(parts, 2).transpose(1, 2).contiguous()


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Pipeline = Callable[[Tensors, Tensors], Tensors]


def _by_token(**options: Any) -> Pipeline:
    def pipeline(weights: Tensors, inputs: Tensors) -> Tensors:
        return {"o": recurrence(inputs, torch.float32, **options).to(torch.bfloat16)}

    return pipeline


def _by_chunk(**options: Any) -> Pipeline:
    def pipeline(weights: Tensors, inputs: Tensors) -> Tensors:
        return {"o": chunked(inputs, **options).to(torch.bfloat16)}

    return pipeline


LEGAL: dict[str, Pipeline] = {
    "recurrence_fp32": _by_token(),
    "chunk64_fp32": _by_chunk(),
    "chunk64_bf16": _by_chunk(operand=_bf16),
    "chunk16_bf16": _by_chunk(operand=_bf16, size=16),
    "chunk64_tf32": _by_chunk(operand=_tf32),
    "chunk64_bf16_state": _by_chunk(operand=_bf16, state_as=_bf16),
}


def _edited(edit: Callable[[Tensors], Tensors]) -> Pipeline:
    """The exact pipeline on edited inputs."""

    def pipeline(weights: Tensors, inputs: Tensors) -> Tensors:
        return {"o": chunked({**inputs, **edit(inputs)}).to(torch.bfloat16)}

    return pipeline


def _finished(edit: Callable[[Tensor], Tensor]) -> Pipeline:
    """The exact pipeline with its output edited."""

    def pipeline(weights: Tensors, inputs: Tensors) -> Tensors:
        return {"o": edit(chunked(inputs)).to(torch.bfloat16)}

    return pipeline


def _scale_of_64(weights: Tensors, inputs: Tensors) -> Tensors:
    return {"o": (chunked(inputs) * (inputs["q"].shape[-1] / 64) ** 0.5).to(torch.bfloat16)}


def _no_scale(weights: Tensors, inputs: Tensors) -> Tensors:
    return {"o": (chunked(inputs) * inputs["q"].shape[-1] ** 0.5).to(torch.bfloat16)}


def _shifted(g: Tensor) -> Tensor:
    """Each token takes the decay of the one before, the first none."""
    return torch.cat((torch.zeros_like(g[:, :1]), g[:, :-1]), 1)


def _last_token_zero(o: Tensor) -> Tensor:
    return torch.cat((o[:, :-1], torch.zeros_like(o[:, -1:])), 1)


def _fp8(t: Tensor) -> Tensor:
    """e4m3 as it is, without a scale."""
    return t.float().clamp(-448, 448).to(torch.float8_e4m3fn).float()


MUTANTS: dict[str, Pipeline] = {
    "no_scale": _no_scale,
    "scale_of_64": _scale_of_64,
    "beta_1": _edited(lambda i: {"beta": torch.ones_like(i["beta"])}),
    "beta_squared": _edited(lambda i: {"beta": i["beta"].float().square()}),
    "beta_sigmoid": _edited(lambda i: {"beta": i["beta"].float().sigmoid()}),
    "decay_dropped": _edited(lambda i: {"g": torch.zeros_like(i["g"])}),
    "decay_averaged": _edited(lambda i: {"g": i["g"].mean(-1, keepdim=True).expand_as(i["g"])}),
    "decay_clamped": _edited(lambda i: {"g": i["g"].clamp(min=-1.0)}),
    "decay_shifted": _edited(lambda i: {"g": _shifted(i["g"])}),
    "decay_after_write": _by_token(decay_first=False),
    "prediction_before_decay": _by_token(predict_decayed=False),
    "unanchored": _by_chunk(anchored=False),
    "no_delta": _by_token(delta=False),
    "read_before_write": _by_token(write_first=False),
    "no_state_across_chunks": _by_chunk(carry=False),
    "state_reset_256": _by_token(forget_every=256),
    "last_token_zero": _finished(_last_token_zero),
    "heads_rotated": _finished(lambda o: o.roll(1, 2)),
    "batch_0_for_all": _finished(lambda o: o[:1].expand_as(o)),
    "zeros": _finished(torch.zeros_like),
    "inverse_2_doublings": _by_chunk(inverse=partial(_doubling, 2, _same)),
    "inverse_3_doublings": _by_chunk(inverse=partial(_doubling, 3, _same)),
    "inverse_4_doublings": _by_chunk(inverse=partial(_doubling, 4, _same)),
    "doubling_64_bf16": _by_chunk(inverse=partial(_doubling, 6, _bf16)),
    "doubling_64_fp32": _by_chunk(inverse=partial(_doubling, 6, _same)),
    "state_bf16_per_token": _by_token(state_as=_bf16),
    "fp8_qk": _edited(lambda i: {"q": _fp8(i["q"]), "k": _fp8(i["k"])}),
    "fp8_v": _edited(lambda i: {"v": _fp8(i["v"])}),
}
