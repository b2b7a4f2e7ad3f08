"""Scaled FP8 product: y[m, n] = s[n] · Σ_k x[m, k] · W[n, k], e4m3 operands, one scale per output channel, bf16 result.

A product of two e4m3 numbers is exact in float32, so all that an honest kernel rounds is the sum and the result.
Everything below is eager torch on the device of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

E4M3_MAX = 448.0
"""Largest finite e4m3 number."""
E4M3_NORMAL = 2.0**-6
"""Smallest normal e4m3 number; below it only multiples of 2^-9 remain."""
TILE_K = 128
"""Columns of K that a kernel's main loop takes at a time."""

Tensors = dict[str, Tensor]
Case = Callable[[Tensors, Tensors, Mapping[str, int], torch.Generator], None]


class Model(nn.Module):
    """The layer as a user would write it: one product in bfloat16, which holds e4m3 exactly, then the scales."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(N, K, dtype=torch.float8_e4m3fn))
        self.register_buffer("weight_scale", torch.empty(N, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) float8_e4m3fn → (M, N) bfloat16."""
        product = x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16).t()
        return (product.float() * self.weight_scale).to(torch.bfloat16)


def _e4m3(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn)


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """Rows N(0, τ²), τ log-uniform in [0.005, 0.08], each scaled so that its largest magnitude is 448.

    The scales so differ by a factor of 16 from channel to channel. Depends on N and K only.
    """
    n, k = shape["N"], shape["K"]
    tau = 0.005 * (0.08 / 0.005) ** torch.rand(n, 1, generator=generator)
    w = torch.randn(n, k, generator=generator).mul_(tau)
    scale = w.abs().amax(1) / E4M3_MAX
    return {"weight": _e4m3(w.div_(scale[:, None])), "weight_scale": scale}


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """x uniform in [-4, 4), rounded to e4m3."""
    return {"x": _e4m3(torch.rand(shape["M"], shape["K"], generator=generator).mul_(8).sub_(4))}


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """Sum and scale in float64, a slice of channels at a time to bound memory."""
    x = inputs["x"].double()
    width = max(1, (1 << 23) // x.shape[1])  # 64 MB of weights at a time
    parts = zip(weights["weight"].split(width), weights["weight_scale"].split(width), strict=True)
    return {"y": torch.cat([x @ w.double().t() * s.double() for w, s in parts], dim=1)}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    pass


def _onehot(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Row m picks one column of W: a lost, doubled or shifted column is an error of 100 % in its row.

    The hot element is any e4m3 number from 0.5 to 4, so that a coarser format of x shows too.
    """
    m, k = shape["M"], shape["K"]
    edges = torch.tensor([k - 1, 0, k - 2, k // 2])
    hot = torch.cat((edges, torch.randint(k, (m,), generator=generator)))[:m]
    size = 0.5 + 3.5 * torch.rand(m, generator=generator)
    sign = torch.randint(2, (m,), generator=generator) * 2 - 1
    x = torch.zeros(m, k)
    x[torch.arange(m), hot] = sign * size
    inputs["x"].copy_(x)


def _tail_width(k: int) -> int:
    """Columns of the last, mostly partial, tile of K."""
    return k % TILE_K or TILE_K


def _tail(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """All but the last tile of K is small: what is lost there cannot hide behind the rest."""
    x = inputs["x"].float()
    x[:, : shape["K"] - _tail_width(shape["K"])] *= 2.0**-6
    inputs["x"].copy_(x)


def _x_scaled(
    factor: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    inputs["x"].copy_(inputs["x"].float() * factor)


def _small_w(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Most of W becomes subnormal; the scales stay as they are."""
    weights["weight"].copy_(weights["weight"].float() * 2.0**-13)


def _outlier(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """One column of x far above the rest: what one integer grid per row cannot hold."""
    x = inputs["x"].float()
    sign = torch.randint(2, (shape["M"],), generator=generator) * 2 - 1
    x[:, int(torch.randint(shape["K"], (), generator=generator))] = 384.0 * sign
    inputs["x"].copy_(x)


def _scale_flip(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    weights["weight_scale"].copy_(weights["weight_scale"].flip(0) * 37)


def _positive(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """The sum only grows, so an accumulator that truncates loses always in one direction. Informs; never graded."""
    inputs["x"].copy_(inputs["x"].float().abs())
    weights["weight"].copy_(weights["weight"].float().abs())


CASES: dict[str, Case] = {
    "nominal": _nominal,
    "onehot": _onehot,
    "tail": _tail,
    "subnormal": partial(_x_scaled, 2.0**-9),
    "small_w": _small_w,
    "large": partial(_x_scaled, 64.0),
    "outlier": _outlier,
    "scale_flip": _scale_flip,
    "positive": _positive,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------


def _scaled(total: Tensor, scale: Tensor) -> Tensors:
    return {"y": (total * scale).to(torch.bfloat16)}


def _product(x: Tensor, w: Tensor, scale: Tensor) -> Tensors:
    """(M, K) · (N, K)ᵀ in float32, scaled, rounded once."""
    return _scaled(x.float() @ w.float().t(), scale)


def _fp32_acc(weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(inputs["x"], weights["weight"], weights["weight_scale"])


def _round_before_scale(weights: Tensors, inputs: Tensors) -> Tensors:
    """A bf16 rounding between product and scale."""
    total = (inputs["x"].float() @ weights["weight"].float().t()).to(torch.bfloat16)
    return _scaled(total.float(), weights["weight_scale"])


def hopper_sum(x: Tensor, w: Tensor, bits: int = 13, promote: int = 0) -> Tensor:
    """(M, K) · (N, K)ᵀ as Hopper's fp8 tensor cores add: (M, N) float32.

    Each step of 32 columns aligns its products and the running sum to the largest exponent among them and truncates
    all of them to `bits` fraction bits there; what is left is added exactly.

    Args:
        x: left operand, e4m3 values.
        w: right operand, e4m3 values.
        bits: fraction bits that survive the alignment.
        promote: columns after which the running sum is moved to a float32 one; 0 for never.
    """
    x, w = x.float(), w.float()
    total = torch.zeros(len(x), len(w), device=x.device)
    running = torch.zeros_like(total)
    for k in range(0, x.shape[1], 32):
        terms = x[:, None, k : k + 32] * w[None, :, k : k + 32]
        terms = torch.cat((terms, running[..., None]), dim=2)
        _, exponent = torch.frexp(terms.abs().amax(2, keepdim=True))
        quantum = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent - 1 - bits)
        running = ((terms / quantum).trunc_().sum(2, keepdim=True) * quantum)[..., 0]
        if promote and (k + 32) % promote == 0:
            total += running
            running.zero_()
    return total + running


def _hopper_acc13(weights: Tensors, inputs: Tensors) -> Tensors:
    return _scaled(hopper_sum(inputs["x"], weights["weight"]), weights["weight_scale"])


def _split_k(weights: Tensors, inputs: Tensors) -> Tensors:
    """Four slices of K, each accumulated alone, summed in float32."""
    pairs = zip(inputs["x"].float().chunk(4, 1), weights["weight"].float().chunk(4, 1), strict=True)
    parts = [a @ b.t() for a, b in pairs]
    return _scaled(sum(parts[1:], parts[0]), weights["weight_scale"])


def _scale_in_weights(weights: Tensors, inputs: Tensors) -> Tensors:
    """Scales folded into bf16 weights."""
    w = (weights["weight"].float() * weights["weight_scale"][:, None]).to(torch.bfloat16)
    return {"y": (inputs["x"].float() @ w.float().t()).to(torch.bfloat16)}


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "fp32_acc": _fp32_acc,
    "round_before_scale": _round_before_scale,
    "hopper_acc13": _hopper_acc13,
    "splitk4": _split_k,
    "scale_in_bf16_weights": _scale_in_weights,
}


def _scale_mapped(change: Callable[[Tensor], Tensor], weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(inputs["x"], weights["weight"], change(weights["weight_scale"]))


def _scale_by_row(weights: Tensors, inputs: Tensors) -> Tensors:
    """The scale is looked up by m; past the end of the table it starts over."""
    scale = weights["weight_scale"]
    row = torch.arange(len(inputs["x"]), device=scale.device) % len(scale)
    return _product(inputs["x"], weights["weight"], scale[row][:, None])


def _first_columns(kept: Callable[[int], int], weights: Tensors, inputs: Tensors) -> Tensors:
    k = kept(inputs["x"].shape[1])
    return _product(inputs["x"][:, :k], weights["weight"][:, :k], weights["weight_scale"])


def _last_column_twice(weights: Tensors, inputs: Tensors) -> Tensors:
    x, w = inputs["x"].float(), weights["weight"].float()
    return _scaled(x @ w.t() + x[:, -1:] @ w[:, -1:].t(), weights["weight_scale"])


def _x_shifted(weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(inputs["x"].float().roll(1, 1), weights["weight"], weights["weight_scale"])


def _last_row_tile_zero(weights: Tensors, inputs: Tensors) -> Tensors:
    """The last 16 rows, a quarter of them where there are fewer than 64."""
    y = _fp32_acc(weights, inputs)["y"]
    y[len(y) - max(1, min(16, len(y) // 4)) :] = 0
    return {"y": y}


def _operands(
    x: Callable[[Tensor], Tensor], w: Callable[[Tensor], Tensor], weights: Tensors, inputs: Tensors
) -> Tensors:
    """The exact pipeline on changed operands."""
    return _product(x(inputs["x"].float()), w(weights["weight"].float()), weights["weight_scale"])


def _same(t: Tensor) -> Tensor:
    return t


def _flushed(t: Tensor) -> Tensor:
    return torch.where(t.abs() < E4M3_NORMAL, torch.zeros_like(t), t)


def _e5m2(t: Tensor) -> Tensor:
    return t.to(torch.float8_e5m2).float()


def _int8(t: Tensor) -> Tensor:
    """Symmetric 8-bit grid per row."""
    step = (t.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (t / step).round() * step


def _accumulator(dtype: torch.dtype, every: int, weights: Tensors, inputs: Tensors) -> Tensors:
    """The running sum is rounded to `dtype` after each `every` columns of K."""
    x, w = inputs["x"].float(), weights["weight"].float()
    total = torch.zeros(len(x), len(w), device=x.device)
    for k in range(0, x.shape[1], every):
        total = (total + x[:, k : k + every] @ w[:, k : k + every].t()).to(dtype).float()
    return _scaled(total, weights["weight_scale"])


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "scale_dropped": partial(_scale_mapped, torch.ones_like),
    "scale_mean": partial(_scale_mapped, lambda s: s.mean().expand_as(s)),
    "scale_of_next_column": partial(_scale_mapped, lambda s: s.roll(-1)),
    "scale_per_8_columns": partial(_scale_mapped, lambda s: s[::8].repeat_interleave(8)[: len(s)]),
    "scale_by_row": _scale_by_row,
    "last_column_dropped": partial(_first_columns, lambda k: k - 1),
    "tail_of_32_dropped": partial(_first_columns, lambda k: k - k % 32),
    "tail_of_128_dropped": partial(_first_columns, lambda k: k - k % TILE_K),
    "last_column_twice": _last_column_twice,
    "x_shifted": _x_shifted,
    "last_row_tile_zero": _last_row_tile_zero,
    "subnormal_x_flushed": partial(_operands, _flushed, _same),
    "subnormal_w_flushed": partial(_operands, _same, _flushed),
    "x_e5m2": partial(_operands, _e5m2, _same),
    "w_e5m2": partial(_operands, _same, _e5m2),
    "int8_per_row": partial(_operands, _int8, _int8),
    "fp16_accumulator": partial(_accumulator, torch.float16, 32),
    "bf16_accumulator_64": partial(_accumulator, torch.bfloat16, 64),
}
