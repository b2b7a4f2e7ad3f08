"""W4A16 GEMM: y = x @ w with w stored as 4-bit integers, one scale and one zero point per 128 rows of K.

The rule: `w[k, n] = (q[k, n] - zeros[k // 128, n]) * scales[k // 128, n]`, where byte `w_q[r, n]` holds K-row 2r in its
low nibble and K-row 2r + 1 in its high nibble. Zero points are bfloat16 numbers in [0, 15], integers or not.
Everything below is eager torch on the device of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

GROUP = 128
"""Rows of K that share one scale and one zero point."""

Tensors = dict[str, Tensor]


class Model(nn.Module):
    """The layer as a user would write it: dequantise, then one product in bfloat16."""

    def __init__(self, M: int, N: int, K: int) -> None:
        super().__init__()
        if K % GROUP:
            raise ValueError(f"K = {K} is no multiple of {GROUP}")
        self.register_buffer("w_q", torch.empty(K // 2, N, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(K // GROUP, N, dtype=torch.bfloat16))
        self.register_buffer("zeros", torch.empty(K // GROUP, N, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) bfloat16 → (M, N) bfloat16."""
        return x @ dequantise(dict(self.named_buffers()), torch.float32).to(torch.bfloat16)


def unpack(w_q: Tensor) -> Tensor:
    """(K/2, N) bytes → (K, N) numbers 0…15, K-row 2r from the low nibble of row r."""
    return torch.stack((w_q & 15, w_q >> 4), dim=1).flatten(0, 1)


def per_row(groups: Tensor) -> Tensor:
    """(K/128, N) → (K, N): the value of each row's group."""
    return groups.repeat_interleave(GROUP, dim=0)


def dequantise(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The (K, N) matrix in `dtype`; exact in float64."""
    q, z, s = (t.to(dtype) for t in (unpack(weights["w_q"]), weights["zeros"], weights["scales"]))
    return (q - per_row(z)) * per_row(s)


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """A buffer set whose scales and zero points differ widely from column to column and from group to group.

    Per (group, column): values with a log-uniform standard deviation in [0.007, 0.056] and a mean of U(-1.5, 1.5) of
    them, range clamped to contain 0, quantised to 0…15. Depends on N and K only.
    """
    n, k = shape["N"], shape["K"]
    spread, shift = torch.rand(2, k // GROUP, 1, n, generator=generator).unbind()
    std = 0.007 * (0.056 / 0.007) ** spread
    w = torch.randn(k // GROUP, GROUP, n, generator=generator).mul_(std).add_(std * (3 * shift - 1.5))
    low, high = w.amin(1, keepdim=True).clamp_(max=0), w.amax(1, keepdim=True).clamp_(min=0)
    scale = (high - low) / 15
    zero = (-low / scale).round_().clamp_(1, 15)
    q = w.div_(scale).add_(zero).round_().clamp_(0, 15).to(torch.uint8).view(k, n)
    return {
        "w_q": q[0::2] | q[1::2] << 4,
        "scales": scale[:, 0].to(torch.bfloat16),
        "zeros": zero[:, 0].to(torch.bfloat16),
    }


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """x ~ N(0, 1)."""
    return {"x": torch.randn(shape["M"], shape["K"], generator=generator).to(torch.bfloat16)}


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """The product in float64 with nothing rounded, a slice of columns at a time to bound memory."""
    x = inputs["x"].double()
    width = max(1, (1 << 23) // x.shape[1])  # 64 MB of dequantised weights at a time
    slices = (
        dict(zip(weights, parts, strict=True))
        for parts in zip(*(t.split(width, 1) for t in weights.values()), strict=True)
    )
    return {"y": torch.cat([x @ dequantise(part, torch.float64) for part in slices], dim=1)}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _randint(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))


def _nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    pass


def _outlier(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Two channels far above the rest: what 8-bit activations cannot hold."""
    up, down = torch.randperm(shape["K"], generator=generator)[:2].tolist()
    noise = torch.randn(2, shape["M"], generator=generator)
    inputs["x"][:, up] = (16 + 1.6 * noise[0]).to(torch.bfloat16)
    inputs["x"][:, down] = (noise[1] - 10).to(torch.bfloat16)


def _constant_x(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """The row sum is 100 times the noise, so zero points and scales must be exact."""
    inputs["x"].copy_(1 + 0.01 * torch.randn(inputs["x"].shape, generator=generator))


def _onehot(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Row m picks one row of w: the edges of K and of a group first, then random ones."""
    k = shape["K"]
    edges = torch.tensor([k - 1, 0, k - 2, 1, GROUP - 1, min(GROUP, k - 1)])
    hot = torch.cat((edges, torch.randint(k, (shape["M"],), generator=generator)))[: shape["M"]]
    inputs["x"].zero_()[torch.arange(shape["M"]), hot] = 1


def _keep_group(x: Tensor, group: int) -> None:
    x[:, : group * GROUP] = 0
    x[:, (group + 1) * GROUP :] = 0


def _last_group(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    _keep_group(inputs["x"], shape["K"] // GROUP - 1)


def _one_group(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    _keep_group(inputs["x"], _randint(shape["K"] // GROUP, generator))


def _extreme_nibbles(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    bits = torch.randint(4, weights["w_q"].shape, generator=generator)
    weights["w_q"].copy_((bits & 1) * 15 + (bits >> 1) * 240)


def _fractional_zeros(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Zero points as they are before rounding: anywhere within half a step."""
    zeros = weights["zeros"]
    zeros.copy_((zeros.float() + torch.rand(zeros.shape, generator=generator) - 0.5).clamp_(0, 15))


def _scaled(
    factor: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    inputs["x"].mul_(factor)


def _zero_row(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """One row of x is zero; with a single row its first half is, since no oracle may vanish altogether."""
    if shape["M"] > 1:
        inputs["x"][_randint(shape["M"], generator)] = 0
    else:
        inputs["x"][:, : shape["K"] // 2] = 0


CASES: dict[str, Callable[[Tensors, Tensors, Mapping[str, int], torch.Generator], None]] = {
    "nominal": _nominal,
    "outlier": _outlier,
    "constant_x": _constant_x,
    "onehot": _onehot,
    "last_group": _last_group,
    "one_group": _one_group,
    "extreme_nibbles": _extreme_nibbles,
    "fractional_zeros": _fractional_zeros,
    "large_x": partial(_scaled, 2.0**16),  # overflows float16
    "small_x": partial(_scaled, 2.0**-20),  # vanishes in float16
    "zero_row": _zero_row,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------


def _product(x: Tensor, w: Tensor) -> Tensors:
    """bf16(x · w), accumulated in float32."""
    return {"y": (x.float() @ w.float()).to(torch.bfloat16)}


def _rounded_w(dtype: torch.dtype, weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(inputs["x"], dequantise(weights, torch.float32).to(dtype))


def _folded(offset: int, weights: Tensors, inputs: Tensors) -> Tensors:
    """Σ_g s_g · (x_g · (q + offset) - (z_g + offset) · Σ x_g): scale and zero point once per group."""
    x = inputs["x"].float().unflatten(1, (-1, GROUP))
    q = (unpack(weights["w_q"]).float() + offset).unflatten(0, (-1, GROUP))
    part = torch.einsum("mgk,gkn->gmn", x, q)
    part -= x.sum(2).t()[:, :, None] * (weights["zeros"].float() + offset)[:, None]
    return {"y": (part * weights["scales"].float()[:, None]).sum(0).to(torch.bfloat16)}


def _split_k(weights: Tensors, inputs: Tensors) -> Tensors:
    """Four slices of K, each accumulated alone, summed in float32."""
    w = dequantise(weights, torch.float32).to(torch.bfloat16).float()
    x = inputs["x"].float()
    parts = [a @ b for a, b in zip(x.chunk(4, 1), w.chunk(4, 0), strict=True)]
    return {"y": sum(parts[1:], parts[0]).to(torch.bfloat16)}


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "w_fp32": partial(_rounded_w, torch.float32),
    "w_bf16": partial(_rounded_w, torch.bfloat16),
    "w_fp16": partial(_rounded_w, torch.float16),
    "folded": partial(_folded, 0),
    "folded_plus_128": partial(_folded, 128),
    "splitk4_w_bf16": _split_k,
}


def _with(edit: Callable[[Tensors], Tensors], weights: Tensors, inputs: Tensors) -> Tensors:
    """The exact pipeline on edited weights."""
    return _product(inputs["x"], dequantise({**weights, **edit(weights)}, torch.float32))


def _zeros_mapped(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Tensors], Tensors]:
    return partial(_with, lambda weights: {"zeros": change(weights["zeros"].float())})


def _scales_mapped(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Tensors], Tensors]:
    return partial(_with, lambda weights: {"scales": change(weights["scales"])})


def _swapped_nibbles(weights: Tensors) -> Tensors:
    return {"w_q": weights["w_q"] >> 4 | weights["w_q"] << 4}


def _nibble_halves(weights: Tensors, inputs: Tensors) -> Tensors:
    """Low nibbles as the first half of K, high nibbles as the second."""
    q = torch.cat((weights["w_q"] & 15, weights["w_q"] >> 4)).float()
    w = (q - per_row(weights["zeros"].float())) * per_row(weights["scales"].float())
    return _product(inputs["x"], w)


def _first_rows(dropped: int, weights: Tensors, inputs: Tensors) -> Tensors:
    w = dequantise(weights, torch.float32)
    return _product(inputs["x"][:, : len(w) - dropped], w[: len(w) - dropped])


def _groups_of_64(weights: Tensors, inputs: Tensors) -> Tensors:
    """Scale and zero point looked up at k // 64; past the end of the table, its last row."""
    groups = len(weights["scales"])
    index = (torch.arange(groups * GROUP, device=inputs["x"].device) // 64).clamp_(max=groups - 1)
    q = unpack(weights["w_q"]).float()
    return _product(inputs["x"], (q - weights["zeros"].float()[index]) * weights["scales"].float()[index])


def _four_bits(t: Tensor) -> Tensor:
    """Significand rounded to 4 bits."""
    mantissa, exponent = torch.frexp(t.float())
    return torch.ldexp((mantissa * 16).round() / 16, exponent)


def _int8(x: Tensor) -> Tensor:
    """Symmetric 8-bit grid along the last axis."""
    step = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / step).round() * step


def _fp8(t: Tensor, dim: int) -> Tensor:
    """e4m3 with the largest magnitude along `dim` at 448."""
    step = (t.abs().amax(dim, keepdim=True) / 448).clamp(min=torch.finfo(torch.float32).tiny)
    return (t / step).to(torch.float8_e4m3fn).float() * step


def _rounded_x(change: Callable[[Tensor], Tensor], weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(change(inputs["x"].float()), dequantise(weights, torch.float32))


def _fp8_w(weights: Tensors, inputs: Tensors) -> Tensors:
    return _product(inputs["x"], _fp8(dequantise(weights, torch.float32), 0))


def _bf16_accumulator(every: int, weights: Tensors, inputs: Tensors) -> Tensors:
    """The running sum is rounded to bfloat16 after each `every` rows of K."""
    x, w = inputs["x"].float(), dequantise(weights, torch.float32)
    total = torch.zeros(len(x), w.shape[1], device=x.device)
    for k in range(0, len(w), every):
        total = (total + x[:, k : k + every] @ w[k : k + every]).to(torch.bfloat16).float()
    return {"y": total.to(torch.bfloat16)}


def _zeros(weights: Tensors, inputs: Tensors) -> Tensors:
    x = inputs["x"]
    return {"y": x.new_zeros(len(x), weights["scales"].shape[1])}


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "zero_point_8": _zeros_mapped(lambda z: torch.full_like(z, 8)),
    "no_zero_point": _zeros_mapped(torch.zeros_like),
    "integer_zero_point": _zeros_mapped(torch.round),
    "zero_point_plus_1": _zeros_mapped(lambda z: z + 1),
    "nibbles_swapped": partial(_with, _swapped_nibbles),
    "nibble_halves": _nibble_halves,
    "last_group_dropped": partial(_first_rows, GROUP),
    "last_pair_dropped": partial(_first_rows, 2),
    "last_row_dropped": partial(_first_rows, 1),
    "groups_of_64": _groups_of_64,
    "every_second_scale": _scales_mapped(lambda s: s[0::2].repeat_interleave(2, 0)[: len(s)]),
    "scales_of_next_column": _scales_mapped(lambda s: s.roll(-1, 1)),
    "scale_of_group_0": _scales_mapped(lambda s: s[:1].expand_as(s)),
    "scales_4_bits": _scales_mapped(_four_bits),
    "int8_x_per_row": partial(_rounded_x, _int8),
    "int8_x_per_group": partial(_rounded_x, lambda x: _int8(x.unflatten(1, (-1, GROUP))).flatten(1)),
    "fp8_x": partial(_rounded_x, lambda x: _fp8(x, 1)),
    "fp8_w": _fp8_w,
    "fp16_x": partial(_rounded_x, lambda x: x.half().float()),
    "bf16_accumulator_16": partial(_bf16_accumulator, 16),
    "bf16_accumulator_128": partial(_bf16_accumulator, GROUP),
    "zeros": _zeros,
}
