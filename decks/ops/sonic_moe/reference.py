"""MoE up-projection: rows sorted by expert, each multiplied with its expert's gate and up matrix and joined by SwiGLU.

The rule: for rows i in [off_e, off_{e+1}), `out_i = silu(x_i · W_gate_e) * (x_i · W_up_e)`, silu(z) = z · sigmoid(z).
Offsets are an input: experts may be empty, hold one row or all of them. Everything below is eager torch on the device
of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelassay.decks.generators import spawn

Tensors = dict[str, Tensor]
Shape = Mapping[str, int]

STD = 1.28
"""Standard deviation of a weight times √H, heavy ones apart: gates then have 1.36, where silu is no straight line."""
HEAVY_SHARE, HEAVY = 512, 8
"""One weight in 512 is 8 times larger, which 8-bit integer grids cannot hold beside the others."""
ROW_BLOCK = 8192
"""Rows that the oracle holds in float64 at a time."""


class Model(nn.Module):
    """The layer as a user would write it: a loop over experts, everything rounded to bfloat16."""

    def __init__(self, T_total: int, H: int, I: int, E: int, K: int) -> None:
        super().__init__()
        self.W_gate = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))
        self.W_up = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))

    def forward(self, hidden_states: Tensor, expert_offsets: Tensor) -> Tensor:
        """(T·K, H) bfloat16, (E+1,) int32 → (T·K, I) bfloat16."""
        out = hidden_states.new_empty(len(hidden_states), self.W_gate.shape[2])
        for e, rows in groups(expert_offsets):
            x = hidden_states[rows]
            out[rows] = F.silu(x @ self.W_gate[e]) * (x @ self.W_up[e])
        return out


def groups(offsets: Tensor) -> Iterator[tuple[int, slice]]:
    """The experts that hold rows, with their rows."""
    bounds = offsets.tolist()
    for e, (start, stop) in enumerate(pairwise(bounds)):
        if start < stop:
            yield e, slice(start, stop)


def make_weights(shape: Shape, generator: torch.Generator) -> Tensors:
    """N(0, (1.28/√H)²) with heavy elements; one generator per expert and matrix, so experts are drawn side by side."""
    experts, h, i = shape["E"], shape["H"], shape["I"]
    weights = {name: torch.empty(experts, h, i, dtype=torch.bfloat16) for name in ("W_gate", "W_up")}
    slots = [matrix for stack in weights.values() for matrix in stack]
    fill = partial(_fill, STD / h**0.5)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(fill, slots, spawn(generator, len(slots))))
    return weights


def _fill(std: float, out: Tensor, generator: torch.Generator) -> None:
    w = torch.randn(out.numel(), generator=generator, device=out.device).mul_(std)
    heavy = torch.randint(w.numel(), (w.numel() // HEAVY_SHARE,), generator=generator, device=out.device)
    w[heavy] *= HEAVY  # a place drawn twice is read once and written twice: 8 times, not 64
    out.copy_(w.view_as(out))


def make_inputs(shape: Shape, generator: torch.Generator) -> Tensors:
    """x ~ N(0, 1), the same number of rows for every expert where they can be shared out evenly."""
    rows = shape["T_total"] * shape["K"]
    x = torch.randn(rows, shape["H"], generator=generator).to(torch.bfloat16)
    return {"hidden_states": x, "expert_offsets": balanced(rows, shape["E"])}


def balanced(rows: int, experts: int) -> Tensor:
    """(E+1,) int32: shares that differ by at most one row."""
    return (torch.arange(experts + 1) * rows // experts).to(torch.int32)


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """Everything in float64, nothing rounded; one expert and one block of rows at a time to bound memory."""
    x = inputs["hidden_states"]
    out = torch.empty(len(x), weights["W_gate"].shape[2], dtype=torch.float64, device=x.device)
    for e, rows in groups(inputs["expert_offsets"]):
        gate, up = weights["W_gate"][e].double(), weights["W_up"][e].double()
        for start in range(rows.start, rows.stop, ROW_BLOCK):
            block = slice(start, min(start + ROW_BLOCK, rows.stop))
            part = x[block].double()
            out[block] = F.silu(part @ gate).mul_(part @ up)
    return {"out": out}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------

Case = Callable[[Tensors, Tensors, Shape, torch.Generator], None]


def _randint(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))


def _nominal(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    pass


def _ragged(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """A quarter of the experts is empty, one has a single row, the others share the rest as Zipf's law 1.2 has it."""
    experts, rows = shape["E"], len(inputs["hidden_states"])
    order = torch.randperm(experts, generator=generator)
    empty = experts // 4
    share = torch.arange(1, experts - empty, dtype=torch.float64) ** -1.2
    crowd = torch.multinomial(share, rows - 1, replacement=True, generator=generator)
    counts = torch.zeros(experts, dtype=torch.int64)
    counts[order[empty]] = 1
    counts[order[empty + 1 :]] = crowd.bincount(minlength=len(share))
    inputs["expert_offsets"][1:] = counts.cumsum(0).to(torch.int32)


def _one_expert(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["expert_offsets"].zero_()[_randint(shape["E"], generator) + 1 :] = len(inputs["hidden_states"])


def _and_ragged(edit: Callable[[Tensor, torch.Generator], None]) -> Case:
    """A case that edits x and has ragged offsets."""

    def case(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
        _ragged(weights, inputs, shape, generator)
        edit(inputs["hidden_states"], generator)

    return case


def _scaled(factor: float, x: Tensor, generator: torch.Generator) -> None:
    x.mul_(factor)


def _row_ramp(x: Tensor, generator: torch.Generator) -> None:
    """Rows from e⁻² to e²: each is held to its own scale."""
    x.copy_(x.float() * torch.linspace(-2, 2, len(x)).exp()[:, None])


def _tail_cols(x: Tensor, generator: torch.Generator) -> None:
    """Only the last eighth of H counts for much."""
    x[:, : x.shape[1] * 7 // 8] *= 2.0**-7


def _onehot(x: Tensor, generator: torch.Generator) -> None:
    """Row i picks one row of each matrix, times ±√H; H-1 and 0 stand first in a random order of rows."""
    rows, h = x.shape
    hot = torch.randint(h, (rows,), generator=generator)
    hot[:2] = torch.tensor([h - 1, 0])
    sign = torch.randint(2, (rows,), generator=generator) * 2 - 1
    order = torch.randperm(rows, generator=generator)
    x.zero_()[order, hot] = (sign * h**0.5).to(torch.bfloat16)


def _outlier(x: Tensor, generator: torch.Generator) -> None:
    """One column at 20 ± 2: what 8-bit activations cannot hold."""
    x[:, _randint(x.shape[1], generator)] = (20 + 2 * torch.randn(len(x), generator=generator)).to(torch.bfloat16)


def _zero_rows(x: Tensor, generator: torch.Generator) -> None:
    """A quarter of the rows."""
    x[torch.randperm(len(x), generator=generator)[: len(x) // 4]] = 0


CASES: dict[str, Case] = {
    "nominal": _nominal,
    "ragged": _ragged,
    "one_expert": _one_expert,
    "tiny_x": _and_ragged(partial(_scaled, 2.0**-10)),
    "large_x": _and_ragged(partial(_scaled, 8.0)),
    "row_ramp": _and_ragged(_row_ramp),
    "tail_cols": _and_ragged(_tail_cols),
    "onehot": _and_ragged(_onehot),
    "outlier": _and_ragged(_outlier),
    "zero_rows": _and_ragged(_zero_rows),
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Join = Callable[[Tensor, Tensor], Tensor]
"""`(gate, up) -> out`, all float32."""
Product = Callable[[Tensor, Tensor], Tensor]
"""`(x, w) -> x · w`, all float32."""


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _multiply(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def _layer(weights: Tensors, inputs: Tensors, *, join: Join = _swiglu, product: Product = _multiply) -> Tensors:
    """bf16(join(x · Wg, x · Wu)), accumulated in float32."""
    x = inputs["hidden_states"]
    out = x.new_zeros(len(x), weights["W_gate"].shape[2])
    for e, rows in groups(inputs["expert_offsets"]):
        part = x[rows].float()
        out[rows] = join(*(product(part, weights[name][e].float()) for name in ("W_gate", "W_up"))).to(torch.bfloat16)
    return {"out": out}


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).float()


def _rounded_thrice(gate: Tensor, up: Tensor) -> Tensor:
    return _bf16(F.silu(_bf16(gate))) * _bf16(up)


def _sigmoid_fp16(gate: Tensor, up: Tensor) -> Tensor:
    """The sigmoid to 2⁻¹¹, as an approximation in hardware gives it."""
    return gate * gate.sigmoid().half().float() * up


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "fp32": _layer,
    "gate_up_silu_bf16": partial(_layer, join=_rounded_thrice),
    "sigmoid_fp16": partial(_layer, join=_sigmoid_fp16),
}


def _on_offsets(change: Callable[[Tensor], Tensor], weights: Tensors, inputs: Tensors) -> Tensors:
    return _layer(weights, {**inputs, "expert_offsets": change(inputs["expert_offsets"])})


def _first_h(kept: Callable[[int], int], weights: Tensors, inputs: Tensors) -> Tensors:
    """Only so many elements of H are summed."""
    count = kept(inputs["hidden_states"].shape[1])
    return _layer(weights, inputs, product=lambda x, w: x[:, :count] @ w[:count])


def _last_columns_zero(weights: Tensors, inputs: Tensors) -> Tensors:
    """The tile of columns that would hang over the edge is not computed."""
    answer = _layer(weights, inputs)
    answer["out"][:, -8:] = 0
    return answer


def _rows_lost(lost: Callable[[int], int], weights: Tensors, inputs: Tensors) -> Tensors:
    """Of n rows of an expert the last lost(n) stay zero."""
    answer = _layer(weights, inputs)
    for _, rows in groups(inputs["expert_offsets"]):
        answer["out"][rows.stop - lost(rows.stop - rows.start) : rows.stop] = 0
    return answer


def _next_expert(weights: Tensors, inputs: Tensors) -> Tensors:
    return _layer({name: w.roll(-1, 0) for name, w in weights.items()}, inputs)


def _empty_compacted(weights: Tensors, inputs: Tensors) -> Tensors:
    """The n-th group that holds rows takes the n-th expert's weights."""
    offsets = inputs["expert_offsets"]
    bounds = offsets.unique()  # sorted
    bounds = torch.cat((bounds, bounds[-1:].expand(len(offsets) - len(bounds))))
    return _layer(weights, {**inputs, "expert_offsets": bounds})


def _balanced_assumed(offsets: Tensor) -> Tensor:
    return balanced(int(offsets[-1]), len(offsets) - 1)


def _grid(t: Tensor, dim: int, top: float) -> Tensor:
    """The step that puts the largest magnitude along `dim` at `top`."""
    return (t.abs().amax(dim, keepdim=True) / top).clamp(min=torch.finfo(torch.float32).tiny)


def _int8(t: Tensor, dim: int) -> Tensor:
    step = _grid(t, dim, 127)
    return (t / step).round() * step


def _fp8(t: Tensor, dim: int) -> Tensor:
    step = _grid(t, dim, 448)
    return (t / step).to(torch.float8_e4m3fn).float() * step


def _bf16_accumulator(x: Tensor, w: Tensor) -> Tensor:
    """The running sum is rounded to bfloat16 after every 32 elements of H."""
    total = x.new_zeros(len(x), w.shape[1])
    for h in range(0, len(w), 32):
        total = _bf16(total + x[:, h : h + 32] @ w[h : h + 32])
    return total


def _zeros(weights: Tensors, inputs: Tensors) -> Tensors:
    x = inputs["hidden_states"]
    return {"out": x.new_zeros(len(x), weights["W_gate"].shape[2])}


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "half_of_gate": partial(_layer, join=lambda gate, up: gate / 2 * up),
    "relu": partial(_layer, join=lambda gate, up: gate.relu() * up),
    "gelu": partial(_layer, join=lambda gate, up: F.gelu(gate) * up),
    "sigmoid": partial(_layer, join=lambda gate, up: gate.sigmoid() * up),
    "hardswish": partial(_layer, join=lambda gate, up: F.hardswish(gate) * up),
    "gate_and_up_swapped": partial(_layer, join=lambda gate, up: _swiglu(up, gate)),
    "no_multiply_by_up": partial(_layer, join=lambda gate, up: F.silu(gate)),
    "last_h_dropped": partial(_first_h, lambda h: h - 1),
    "half_of_h": partial(_first_h, lambda h: h // 2),
    "last_columns_zero": _last_columns_zero,
    "zeros": _zeros,
    "rows_mod_16_dropped": partial(_rows_lost, lambda n: n % 16),
    "last_row_of_each_expert_dropped": partial(_rows_lost, lambda n: 1),
    "small_experts_skipped": partial(_rows_lost, lambda n: n if n < 4 else 0),
    "next_expert": _next_expert,
    "empty_experts_compacted": _empty_compacted,
    "balanced_offsets_assumed": partial(_on_offsets, _balanced_assumed),
    "fp8_w": partial(_layer, product=lambda x, w: x @ _fp8(w, 0)),
    "fp8_w_and_x": partial(_layer, product=lambda x, w: _fp8(x, 1) @ _fp8(w, 0)),
    "int8_w_per_column": partial(_layer, product=lambda x, w: x @ _int8(w, 0)),
    "int8_x_per_row": partial(_layer, product=lambda x, w: _int8(x, 1) @ w),
    "bf16_accumulator_32": partial(_layer, product=_bf16_accumulator),
}
