"""Decode with a stack of Qwen3-shaped blocks and a growing KV cache: n tokens, one after the other, in one call.

The rule, per block with r = x: a = rms(r)·input_ln; q, k, v = projections of a; q, k = rms per head · (q_norm, k_norm),
then RoPE in half-split pairs at pos; k and v are rounded to bfloat16 into the cache at pos; attention of each query
head over rows 0…pos of KV head h // (q_heads / kv_heads) with scale D^-½; h = r + o_proj·att;
y = h + down(silu(gate·b) ⊙ up·b) with b = rms(h)·post_ln. A block's output is rounded to bfloat16, nothing else is.
Step i starts from bf16(½·noise_i + ½·h_{i-1}) at pos + i; out_i = h_i is what the last block gives.

`Model.run` writes the new rows of both caches in place; every other function here leaves its arguments alone and
returns the final caches beside the output. Everything is eager torch on the device of its arguments.
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

EPS = 1e-6
THETA = 1e4
"""Base of the RoPE frequencies."""
NORM_SPREAD, HEAD_NORM, HEAD_NORM_SPREAD = 0.3, 1.6, 0.2
"""Norm weights are e^(0.3·N), those of q and k 1.6·e^(0.2·N): scores have a standard deviation of 2.6, so that
attention stays peaky at any context."""
K_CHANNEL, K_OUTLIER = 3, 8.0
"""Channels 3 and 3 + D/2, one RoPE pair, are 8 times larger in k_norm and 8 times smaller in q_norm."""
V_OUTLIER = 12.0
"""Channel ⌊D/3⌋ of V is 12 times larger, and the column of o_proj that takes it 12 times smaller."""
GATE = 1.28
"""Standard deviation of gate_proj times √hidden: silu is far from a straight line."""
POISON_K, POISON_V = 7.0, -55.0
"""What rows from pos on hold: about half of the heads would prefer them."""
LOUD = ((1024, 16), (65536, 4), (None, 8))
"""What case `large_v` multiplies cached V by, up to which context. Over a long cache each head picks few rows, so
attention dominates sooner; over the longest one an 8-bit V would otherwise pass."""


def sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name of each weight → its size; matrices are (layers, out, in)."""
    layers, hidden, inter, dim = shape["layers"], shape["hidden"], shape["inter"], shape["head_dim"]
    q, kv = shape["q_heads"] * dim, shape["kv_heads"] * dim
    return {
        "input_ln": (layers, hidden),
        "post_ln": (layers, hidden),
        "q_norm": (layers, dim),
        "k_norm": (layers, dim),
        "q_proj": (layers, q, hidden),
        "k_proj": (layers, kv, hidden),
        "v_proj": (layers, kv, hidden),
        "o_proj": (layers, hidden, q),
        "gate_proj": (layers, inter, hidden),
        "up_proj": (layers, inter, hidden),
        "down_proj": (layers, hidden, inter),
    }


class Model(nn.Module):
    """Readable eager decode in float32; `pos` and `n` size nothing but the call."""

    def __init__(
        self, hidden: int, inter: int, q_heads: int, kv_heads: int, head_dim: int, layers: int, pos: int, n: int
    ) -> None:
        super().__init__()
        if q_heads % kv_heads or head_dim % 2:
            raise ValueError(f"{q_heads} heads over {kv_heads} KV heads, {head_dim} channels each: neither divides")
        shape = {"hidden": hidden, "inter": inter, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        for name, size in sizes({**shape, "layers": layers}).items():
            self.register_parameter(name, nn.Parameter(torch.empty(*size, dtype=torch.bfloat16)))

    def run(self, hidden: Tensor, noise: Tensor, k_cache: Tensor, v_cache: Tensor, pos: int) -> Tensor:
        """Decode len(noise) tokens from position `pos` on; returns out.

        hidden (hidden,), noise (n, hidden), caches (layers, kv_heads, pos + n, head_dim), out (n, hidden), all of them
        bfloat16; rows pos…pos+n-1 of the caches are written.
        """
        return _steps(Variant(), dict(self.named_parameters()), hidden, noise, k_cache, v_cache, pos)


# --- one block ----------------------------------------------------------------------------------------------------

Map = Callable[[Tensor], Tensor]


def _same(t: Tensor) -> Tensor:
    return t


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).to(t.dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Over the last axis."""
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def angles(positions: Tensor, dim: int, theta: float = THETA, dtype: torch.dtype = torch.float64) -> Tensor:
    """(m,) positions → (m, dim/2) radians: pos · θ^(-2j/D), j = 0…D/2-1."""
    exponent = torch.arange(dim // 2, dtype=dtype, device=positions.device) / (dim // 2)
    return positions.to(dtype)[:, None] * theta**-exponent


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """(m, heads, D) by (m, D/2): channel j turns with channel j + D/2."""
    cos, sin = (t.to(x.dtype)[:, None] for t in (angle.cos(), angle.sin()))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _rotate_interleaved(x: Tensor, angle: Tensor) -> Tensor:
    pairs = rotate(torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1), angle)
    return torch.stack(pairs.chunk(2, dim=-1), dim=-1).flatten(-2)


def _up_to_own(t: Tensor, p: Tensor) -> Tensor:
    return t <= p


def _consecutive(heads: Tensor, kv: int) -> Tensor:
    return heads.view(kv, -1)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _fed_back(noise: Tensor, before: Tensor, start: Tensor) -> Tensor:
    return _bf16(noise / 2 + before / 2)


class Variant(NamedTuple):
    """The parts that an honest pipeline may round and that a mutant gets wrong."""

    dtype: torch.dtype = torch.float32
    edit: Callable[[Tensors], Tensors] = dict
    """Weights → weights."""
    feed: Callable[[Tensor, Tensor, Tensor], Tensor] = _fed_back
    """(noise_i, h_{i-1}, hidden) → x."""
    vector: Map = _same
    """What every product with a matrix takes."""
    norm_q: Callable[[Tensor, Tensor], Tensor] = rms_norm
    norm_k: Callable[[Tensor, Tensor], Tensor] = rms_norm
    angle: Callable[[Tensor, int], Tensor] = angles
    turn_q: Callable[[Tensor, Tensor], Tensor] = rotate
    turn_k: Callable[[Tensor, Tensor], Tensor] = rotate
    query: Map = _same
    read_k: Map = _same
    """Cache rows of one KV head, (T, D), as attention takes them."""
    read_v: Map = _same
    score: Callable[[Tensor, int], Tensor] = lambda dots, dim: dots * dim**-0.5
    seen: Callable[[Tensor, Tensor], Tensor] = _up_to_own
    """(rows (T,), positions (m, 1)) → which rows are attended."""
    groups: Callable[[Tensor, int], Tensor] = _consecutive
    """(query heads, number of KV heads) → (kv_heads, group): who reads which."""
    probability: Map = _same
    attended: Map = _same
    """The sum over the cache."""
    first_residual: float = 1.0
    join: Callable[[Tensor, Tensor], Tensor] = _swiglu
    second: float = 1.0
    """Weight of the feed-forward part."""
    between: Map = _bf16
    """From block to block; the last one's output is an output."""
    depth: Callable[[int], int] = lambda layers: layers
    fill: Callable[[Tensors, Shape], Tensors] | None = None
    """Caches to attend in place of those given, of which only the new rows are written."""
    append: bool = True


Rows = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""New k and v, (m, kv_heads, D) → both caches of this layer, (kv_heads, capacity, D)."""


def _block(
    variant: Variant, w: Tensors, x: Tensor, positions: Tensor, rows: Rows, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(m, hidden) at (m,) positions → the unrounded output, and k and v, (m, kv_heads, D), as due in the cache."""

    def heads(name: str, a: Tensor) -> Tensor:
        return (a @ w[name].t()).unflatten(-1, (-1, dim))

    a = variant.vector(rms_norm(x, w["input_ln"]))
    angle = variant.angle(positions, dim)
    q = variant.query(variant.turn_q(variant.norm_q(heads("q_proj", a), w["q_norm"]), angle))
    k = variant.turn_k(variant.norm_k(heads("k_proj", a), w["k_norm"]), angle)
    v = heads("v_proj", a)
    attended = variant.attended(_attention(variant, q, positions, *rows(k, v)))
    h = variant.first_residual * x + variant.vector(attended.flatten(1)) @ w["o_proj"].t()
    b = variant.vector(rms_norm(h, w["post_ln"]))
    inner = variant.vector(variant.join(b @ w["gate_proj"].t(), b @ w["up_proj"].t()))
    return h + variant.second * (inner @ w["down_proj"].t()), k, v


def _attention(variant: Variant, q: Tensor, positions: Tensor, k_rows: Tensor, v_rows: Tensor) -> Tensor:
    """(m, heads, D) → (m, heads, D); one KV head at a time to bound memory."""
    # One row past the last position stays in reach: a mutant reads it.
    k_rows, v_rows = (rows[:, : int(positions[-1]) + 2] for rows in (k_rows, v_rows))
    t = torch.arange(k_rows.shape[1], device=q.device)
    hidden = ~variant.seen(t, positions[:, None])[:, None]  # (m, 1, T)
    out = torch.empty_like(q)
    for group, k, v in zip(variant.groups(torch.arange(q.shape[1]), len(k_rows)), k_rows, v_rows, strict=True):
        k, v = variant.read_k(k.to(q.dtype)), variant.read_v(v.to(q.dtype))
        scores = variant.score(q[:, group] @ k.t(), q.shape[2]).masked_fill(hidden, -torch.inf)
        # Without a row to attend, which only mutants meet, the sum is empty.
        out[:, group] = variant.probability(scores.softmax(-1).nan_to_num()) @ v
    return out


# --- the whole stack ----------------------------------------------------------------------------------------------


def _prepared(variant: Variant, weights: Tensors) -> list[Tensors]:
    """The weights of each block, in the pipeline's dtype."""
    w = {name: t.detach().to(variant.dtype) for name, t in variant.edit(weights).items()}
    layers = len(w["input_ln"])
    return [{name: t[layer] for name, t in w.items()} for layer in range(variant.depth(layers))]


def _steps(
    variant: Variant, weights: Tensors, hidden: Tensor, noise: Tensor, k_cache: Tensor, v_cache: Tensor, pos: int
) -> Tensor:
    """All tokens of one call; caches are written in place."""
    blocks = _prepared(variant, weights)
    start, h, noise = hidden.to(variant.dtype), hidden.to(variant.dtype), noise.to(variant.dtype)
    out = []

    def appended(layer: int, at: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k_cache[layer, :, at], v_cache[layer, :, at] = k[0], v[0]  # rounds
        return k_cache[layer], v_cache[layer]

    for i, part in enumerate(noise):
        x = variant.feed(part, h, start)[None]
        positions = torch.tensor([pos + i], device=x.device)
        for layer, w in enumerate(blocks):
            y, _, _ = _block(variant, w, x, positions, partial(appended, layer, pos + i), k_cache.shape[-1])
            x = variant.between(y)
        h = _bf16(x[0])
        out.append(h.to(torch.bfloat16))
    return torch.stack(out)


def _pipeline(variant: Variant, weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """Output and final caches of one call."""
    given = {name: inputs[name] for name in ("k_cache", "v_cache")}
    caches = {name: t.clone() for name, t in given.items()}
    own = caches if variant.fill is None else variant.fill(inputs, shape)
    out = _steps(variant, weights, inputs["hidden"], inputs["noise"], **own, pos=shape["pos"])
    if variant.append and own is not caches:
        for name, t in caches.items():
            t[:, :, shape["pos"] :] = own[name][:, :, shape["pos"] :]
    return {"out": out, **(caches if variant.append else given)}


# --- weights, inputs, oracle --------------------------------------------------------------------------------------


def make_weights(shape: Shape, generator: torch.Generator) -> Tensors:
    """Normal matrices of unit gain and log-normal norm weights with outliers; one generator per block and weight.

    Depends on all keys but `pos` and `n`. Blocks are drawn side by side.
    """
    weights = {name: torch.empty(*size, dtype=torch.bfloat16) for name, size in sizes(shape).items()}
    slots = [(name, part) for name, stack in weights.items() for part in stack]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(partial(_fill_weight, shape["head_dim"]), slots, spawn(generator, len(slots))))
    return weights


def _fill_weight(dim: int, slot: tuple[str, Tensor], generator: torch.Generator) -> None:
    name, out = slot
    w = torch.randn(out.shape, generator=generator, device=out.device)
    loud = slice(dim // 3, None, dim)
    if name.endswith("_ln"):
        w.mul_(NORM_SPREAD).exp_()
    elif name.endswith("_norm"):
        w = _head_norm(w, K_OUTLIER if name == "k_norm" else 1 / K_OUTLIER)
    else:
        w.mul_((GATE if name == "gate_proj" else 1.0) / out.shape[1] ** 0.5)
    if name == "v_proj":
        w[loud] *= V_OUTLIER
    if name == "o_proj":
        w[:, loud] /= V_OUTLIER
    out.copy_(w)


def _head_norm(normal: Tensor, outlier: float) -> Tensor:
    """N(0, 1), (D,) → a norm weight of q or k."""
    w = HEAD_NORM * (HEAD_NORM_SPREAD * normal).exp()
    w[[K_CHANNEL, K_CHANNEL + len(w) // 2]] *= outlier
    return w


def make_inputs(shape: Shape, generator: torch.Generator) -> Tensors:
    """hidden ~ 1.5·N, noise ~ N; caches as a decoder of this kind would have left them, and poison from pos on.

    Keys have unit rms times a norm weight drawn like k_norm, one per layer (the weights are not at hand), rotated at
    their own positions. Layers and KV heads are drawn side by side.
    """
    layers, kv, dim, pos, n = (shape[key] for key in ("layers", "kv_heads", "head_dim", "pos", "n"))
    hidden = 1.5 * torch.randn(shape["hidden"], generator=generator)
    noise = torch.randn(n, shape["hidden"], generator=generator)
    norms = [_head_norm(part, K_OUTLIER) for part in torch.randn(layers, dim, generator=generator)]
    angle = angles(torch.arange(pos), dim)
    k_cache = torch.full((layers, kv, pos + n, dim), POISON_K, dtype=torch.bfloat16)
    v_cache = torch.full((layers, kv, pos + n, dim), POISON_V, dtype=torch.bfloat16)

    def fill(where: tuple[int, int], child: torch.Generator) -> None:
        layer, head = where
        k, v = torch.randn(2, pos, dim, generator=child, device=hidden.device).unbind()
        k_cache[layer, head, :pos] = rotate(rms_norm(k, norms[layer])[:, None], angle)[:, 0]
        v[:, dim // 3] *= V_OUTLIER
        v_cache[layer, head, :pos] = v

    places = [(layer, head) for layer in range(layers) for head in range(kv)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(fill, places, spawn(generator, len(places))))
    return {
        "hidden": hidden.to(torch.bfloat16),
        "noise": noise.to(torch.bfloat16),
        "k_cache": k_cache,
        "v_cache": v_cache,
    }


def oracle(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """Float64 along its own trajectory, for show: rounding makes it one of many right ones."""
    return _pipeline(Variant(dtype=torch.float64), weights, inputs, shape=shape)


def along_trace(weights: Tensors, inputs: Tensors, actual: Tensors, *, shape: Shape) -> dict[str, dict[str, Tensors]]:
    """Facts about a submission's decode, every step taken by itself from its own hidden state and its own cache rows.

    Nothing is then sequential: all steps go through a block at once, each seeing the rows up to its own. New rows are
    laid out channel first, so that each channel is held to its own scale.
    """
    exact = Variant(dtype=torch.float64)
    pos, n, dim = shape["pos"], shape["n"], shape["head_dim"]
    before = torch.cat((inputs["hidden"][None], actual["out"][:-1])).double()
    x = exact.feed(inputs["noise"].double(), before, before)
    y, positions = x, torch.arange(pos, pos + n, device=x.device)
    new: list[tuple[Tensor, Tensor]] = []
    for layer, w in enumerate(_prepared(exact, weights)):
        caches = actual["k_cache"][layer], actual["v_cache"][layer]
        y, k, v = _block(exact, w, x, positions, lambda k, v, caches=caches: caches, dim)
        x = exact.between(y)
        new.append((k, v))
    numbers: dict[str, Tensors] = {"out": {"expected": y}}
    for name, parts in zip(("k", "v"), zip(*new, strict=True), strict=True):
        rows = actual[f"{name}_cache"][:, :, pos:].permute(3, 0, 2, 1)  # (D, layers, n, kv_heads)
        numbers[f"{name}_rows"] = {"expected": torch.stack(parts).permute(3, 0, 1, 2), "actual": rows, "rows": 1}
    old = {
        name: {"expected": inputs[name][:, :, :pos], "actual": actual[name][:, :, :pos]}
        for name in ("k_cache", "v_cache")
    }
    return {"exact": old, "numbers": numbers}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _nominal(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    pass


def _needles(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Keys at the edges of tiles, in the middle, at the end and at 4 random places are 2.5 times larger."""
    pos = shape["pos"]
    if pos == 0:
        return
    edges = {edge for power in (1, 16, 32, 64, 128, 256) for edge in (power - 1, power)}
    places = edges | {pos // 2, pos - 2, pos - 1} | set(torch.randint(pos, (4,), generator=generator).tolist())
    for place in places & set(range(pos)):
        inputs["k_cache"][:, :, place] *= 2.5


def _large_v(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Attention dominates; poison is not scaled."""
    pos = shape["pos"]
    inputs["v_cache"][:, :, :pos] *= next(factor for longest, factor in LOUD if longest is None or pos <= longest)


def _large_hidden(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["hidden"] *= 64


def _zero_noise(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["noise"].zero_()


CASES: dict[str, Callable[[Tensors, Tensors, Shape, torch.Generator], None]] = {
    "nominal": _nominal,
    "needles": _needles,
    "large_v": _large_v,
    "large_hidden": _large_hidden,
    "zero_noise": _zero_noise,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Pipeline = Callable[..., Tensors]


def _of(**parts: object) -> Pipeline:
    return partial(_pipeline, Variant(**parts))  # type: ignore[arg-type]


_OPERANDS = {"vector": _bf16, "query": _bf16, "probability": _bf16}
"""What enters a product is bfloat16; sums, norms, scores and softmax are float32."""
_FP32_ANGLE = {"angle": partial(angles, dtype=torch.float32)}
_FP32_BETWEEN = {"between": _same}

LEGAL: dict[str, Pipeline] = {
    "fp32": _of(),
    "bf16_operands": _of(**_OPERANDS),
    "fp32_angle": _of(**_FP32_ANGLE),
    "fp32_between_blocks": _of(**_FP32_BETWEEN),
    "fp32_angle_bf16_operands": _of(**_FP32_ANGLE, **_OPERANDS),
    "fp32_between_blocks_bf16_operands": _of(**_FP32_BETWEEN, **_OPERANDS),
}


def _without(*names: str) -> Pipeline:
    """Norms whose weights are taken for 1."""
    return _of(edit=lambda w: {**w, **{name: torch.ones_like(w[name]) for name in names}})


def _block_0_for_all(w: Tensors) -> Tensors:
    return {name: t[:1].expand_as(t) for name, t in w.items()}


def _unchanged(x: Tensor, angle: Tensor) -> Tensor:
    return x


def _modulo(heads: Tensor, kv: int) -> Tensor:
    """KV head h mod kv_heads."""
    return heads.view(-1, kv).t()


def _earlier_call(inputs: Tensors, shape: Shape) -> Tensors:
    """Private caches, filled with other content and never read again from the arguments."""
    earlier = make_inputs(shape, torch.Generator(inputs["hidden"].device).manual_seed(1))
    return {name: earlier[name].to(inputs[name].device) for name in ("k_cache", "v_cache")}


def _copies(inputs: Tensors, shape: Shape) -> Tensors:
    return {name: inputs[name].clone() for name in ("k_cache", "v_cache")}


def _cache_zeroed(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """True results over cleared old rows."""
    result = LEGAL["fp32"](weights, inputs, shape=shape)
    for name in ("k_cache", "v_cache"):
        result[name][:, :, : shape["pos"]] = 0
    return result


def _grid(t: Tensor, top: float) -> Tensor:
    """The step that puts the largest magnitude along the last axis at `top`."""
    return (t.abs().amax(-1, keepdim=True) / top).clamp(min=torch.finfo(torch.float32).tiny)


def _int8(t: Tensor) -> Tensor:
    step = _grid(t, 127)
    return (t / step).round() * step


def _fp8(t: Tensor) -> Tensor:
    step = _grid(t, 448)
    return (t / step).to(torch.float8_e4m3fn).to(t.dtype) * step


MUTANTS: dict[str, Pipeline] = {
    # attention
    "no_attention": _of(attended=torch.zeros_like),
    "uniform_attention": _of(score=lambda dots, dim: torch.zeros_like(dots)),
    "window_64": _of(seen=lambda t, p: (t <= p) & (t > p - 64)),
    "half_of_cache": _of(seen=lambda t, p: (t <= p) & (2 * t >= p)),
    "first_token_dropped": _of(seen=lambda t, p: (t <= p) & ((t > 0) | (p == 0))),
    "own_token_not_attended": _of(seen=lambda t, p: t < p),
    "one_row_past_the_end": _of(seen=lambda t, p: t <= p + 1),
    "no_scale": _of(score=lambda dots, dim: dots),
    "kv_head_modulo": _of(groups=_modulo),
    "no_attention_residual": _of(first_residual=0.0),
    # rope
    "no_rope": _of(turn_q=_unchanged, turn_k=_unchanged),
    "interleaved_rope": _of(turn_q=_rotate_interleaved, turn_k=_rotate_interleaved),
    "theta_1e6": _of(angle=partial(angles, theta=1e6)),
    "next_position": _of(angle=lambda positions, dim: angles(positions + 1, dim)),
    "rope_on_q_only": _of(turn_k=_unchanged),
    "rope_on_k_only": _of(turn_q=_unchanged),
    # norms
    "no_q_norm": _of(norm_q=_unchanged),
    "no_k_norm": _of(norm_k=_unchanged),
    "q_norm_weight_ignored": _without("q_norm"),
    "k_norm_weight_ignored": _without("k_norm"),
    "input_norm_weight_ignored": _without("input_ln"),
    "post_norm_weight_ignored": _without("post_ln"),
    # feed-forward part and depth
    "relu": _of(join=lambda gate, up: gate.relu() * up),
    "half_of_gate": _of(join=lambda gate, up: gate / 2 * up),
    "gelu": _of(join=lambda gate, up: F.gelu(gate) * up),
    "gate_and_up_swapped": _of(join=lambda gate, up: _swiglu(up, gate)),
    "no_mlp": _of(second=0.0),
    "last_block_skipped": _of(depth=lambda layers: layers - 1),
    "block_0_for_all": _of(edit=_block_0_for_all),
    "no_feedback": _of(feed=lambda noise, before, start: _fed_back(noise, start, start)),
    # state
    "row_not_appended": _of(fill=_copies, append=False),
    "stale_cache": _of(fill=_earlier_call),
    "cache_zeroed": _cache_zeroed,
    # precision
    "int8_k": _of(read_k=_int8),
    "int8_v": _of(read_v=_int8),
    "fp8_k": _of(read_k=_fp8),
    "fp8_v": _of(read_v=_fp8),
    "int8_activations": _of(vector=_int8),
    "fp8_activations": _of(vector=_fp8),
}
