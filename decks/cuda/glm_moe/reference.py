"""A mixture-of-experts feed-forward layer, given its routing: shared experts, top-k routed ones, weighted sum.

The rule: `f(x; w1, w2) = (silu(x · gateᵀ) * (x · upᵀ)) · w2ᵀ` with gate = w1[:I] and up = w1[I:], and
`out_t = Σ_s f(x_t; shared_s) + Σ_j expert_weights[t, j] · f(x_t; routed_{expert_ids[t, j]})`. The ids of a token are
distinct; its weights are at least 0 and need not sum to 1. Everything below is eager torch on the device of its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelassay.decks.generators import spawn

Tensors = dict[str, Tensor]
Shape = Mapping[str, int]

STD = 1.28
"""Standard deviation of a weight times √(elements summed), heavy ones apart: gates have 1.36, where silu bends."""
HEAVY_SHARE, HEAVY = 512, 8
"""One weight in 512 is 8 times larger, which 8-bit integer grids cannot hold beside the others."""
SLOPE, SKEW = 0.3, 8.0
"""How far the logits of the most and the least popular expert lie apart, nominally and in case `skewed`."""


class Model(nn.Module):
    """The layer as a user would write it: expert after expert in bfloat16, the sum in float32."""

    def __init__(self, T: int, E: int, top_k: int, n_shared: int, H: int, I: int) -> None:
        super().__init__()
        self.w1_routed = nn.Parameter(torch.empty(E, 2 * I, H, dtype=torch.bfloat16))
        self.w2_routed = nn.Parameter(torch.empty(E, H, I, dtype=torch.bfloat16))
        self.w1_shared = nn.Parameter(torch.empty(n_shared, 2 * I, H, dtype=torch.bfloat16))
        self.w2_shared = nn.Parameter(torch.empty(n_shared, H, I, dtype=torch.bfloat16))

    def forward(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        """(T, H) bfloat16, (T, k) int64, (T, k) bfloat16 → (T, H) bfloat16."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for w1, w2 in zip(self.w1_shared, self.w2_shared, strict=True):
            out += _expert(x, w1, w2)
        for e, tokens, slots in routes(expert_ids):
            y = _expert(x[tokens], self.w1_routed[e], self.w2_routed[e])
            out.index_add_(0, tokens, expert_weights[tokens, slots, None].float() * y)
        return out.to(torch.bfloat16)


def _expert(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """(n, H) → (n, H), in the dtype of its arguments."""
    gate, up = (x @ w1.t()).chunk(2, dim=1)
    return (F.silu(gate) * up) @ w2.t()


def routes(ids: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The experts that are used, each with its tokens in ascending order and the slots where they name it."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    experts, counts = flat.unique(return_counts=True)  # sorted
    for e, places in zip(experts.tolist(), order.split(counts.tolist()), strict=True):
        yield e, places // ids.shape[1], places % ids.shape[1]


def make_weights(shape: Shape, generator: torch.Generator) -> Tensors:
    """N(0, (1.28/√H)²) for w1, N(0, (1.28/√I)²) for w2, with heavy elements; one generator per expert and matrix.

    Depends on E, n_shared, H and I only. Experts are drawn side by side.
    """
    h, i = shape["H"], shape["I"]
    weights = {
        f"{matrix}_{kind}": torch.empty(experts, *size, dtype=torch.bfloat16)
        for kind, experts in (("routed", shape["E"]), ("shared", shape["n_shared"]))
        for matrix, size in (("w1", (2 * i, h)), ("w2", (h, i)))
    }
    slots = [matrix for stack in weights.values() for matrix in stack]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(_fill, slots, spawn(generator, len(slots))))
    return weights


def _fill(out: Tensor, generator: torch.Generator) -> None:
    w = torch.randn(out.numel(), generator=generator, device=out.device).mul_(STD / out.shape[1] ** 0.5)
    heavy = torch.randint(w.numel(), (w.numel() // HEAVY_SHARE,), generator=generator, device=out.device)
    w[heavy] *= HEAVY  # a place drawn twice is read once and written twice: 8 times, not 64
    out.copy_(w.view_as(out))


def make_inputs(shape: Shape, generator: torch.Generator) -> Tensors:
    """x ~ N(0, 1); logits ~ N(0, 1) with a slight slope over experts."""
    t, e = shape["T"], shape["E"]
    x = torch.randn(t, shape["H"], generator=generator).to(torch.bfloat16)
    logits = torch.randn(t, e, generator=generator) + torch.linspace(SLOPE, 0, e)
    ids, weights = _routing(logits, shape["top_k"], generator)
    return {"x": x, "expert_ids": ids, "expert_weights": weights}


def _routing(logits: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The k best experts of each token in random slot order, and the softmax over them."""
    best, ids = logits.topk(k)
    order = _slot_orders(len(logits), k, generator)
    return ids.gather(1, order), best.softmax(1).gather(1, order).to(torch.bfloat16)


def _slot_orders(t: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.rand(t, k, generator=generator).argsort(1)


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """Everything in float64, nothing rounded; one expert at a time to bound memory."""
    x, wts = inputs["x"].double(), inputs["expert_weights"].double()
    out = torch.zeros_like(x)
    for w1, w2 in zip(weights["w1_shared"], weights["w2_shared"], strict=True):
        out += _expert(x, w1.double(), w2.double())
    for e, tokens, slots in routes(inputs["expert_ids"]):
        y = _expert(x[tokens], weights["w1_routed"][e].double(), weights["w2_routed"][e].double())
        out.index_add_(0, tokens, wts[tokens, slots, None] * y)
    return {"out": out}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _randint(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))


def _nominal(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    pass


def _skewed(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """A slope of 8 over shuffled experts: some crowded, one surely empty and one with a single token."""
    t, e = shape["T"], shape["E"]
    order = torch.randperm(e, generator=generator)
    logits = torch.empty(t, e)
    logits[:, order] = torch.randn(t, e, generator=generator) + torch.linspace(SKEW, 0, e)
    lonely, empty = order[-2:].tolist()
    token = _randint(t, generator)
    logits[:, [lonely, empty]] = -torch.inf
    logits[token, lonely] = logits[token].max()
    ids, wts = _routing(logits, shape["top_k"], generator)
    inputs["expert_ids"].copy_(ids)
    inputs["expert_weights"].copy_(wts)


def _same_experts(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """All tokens to the same k experts, in any order of slots."""
    t, k = shape["T"], shape["top_k"]
    chosen = torch.randperm(shape["E"], generator=generator)[:k]
    inputs["expert_ids"].copy_(chosen[_slot_orders(t, k, generator)])


def _peaked_weights(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """The softmax of 8 times the logits: mostly one expert counts."""
    inputs["expert_weights"].copy_((8 * inputs["expert_weights"].float().log()).softmax(1))


def _unnormalised_weights(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Each token's weights sum to another number."""
    factor = (0.7 * torch.randn(shape["T"], 1, generator=generator)).exp()
    inputs["expert_weights"].copy_(inputs["expert_weights"].float() * factor)


def _zero_weight(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["expert_weights"][:, 0] = 0


def _scaled(factor: float, weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["x"].mul_(factor)


def _outlier(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """One column at 12 ± 1.2: what 8-bit activations cannot hold."""
    column = 12 + 1.2 * torch.randn(shape["T"], generator=generator)
    inputs["x"][:, _randint(shape["H"], generator)] = column.to(torch.bfloat16)


def _row_ramp(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Rows from e^-1.5 to e^1.5: each is held to its own scale."""
    inputs["x"].copy_(inputs["x"].float() * torch.linspace(-1.5, 1.5, shape["T"]).exp()[:, None])


def _onehot(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Token t picks one column of each w1, times ±√H; H-1 and 0 are among them, H-1 first."""
    t, h = shape["T"], shape["H"]
    hot = torch.cat((torch.tensor([h - 1, 0]), torch.randint(h, (t,), generator=generator)))[:t]
    sign = torch.randint(2, (t,), generator=generator) * 2 - 1
    inputs["x"].zero_()[torch.randperm(t, generator=generator), hot] = (sign * h**0.5).to(torch.bfloat16)


def _duplicate_tokens(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Every fourth token is the first one, routing included.

    Were it every second, half of each column's error would be one rounding error repeated, and an honest kernel would
    fail a bound that is meant for columns of many.
    """
    for tensor in inputs.values():
        tensor[::4] = tensor[0].clone()


CASES: dict[str, Callable[[Tensors, Tensors, Shape, torch.Generator], None]] = {
    "nominal": _nominal,
    "skewed": _skewed,
    "same_experts": _same_experts,
    "peaked_weights": _peaked_weights,
    "unnormalised_weights": _unnormalised_weights,
    "zero_weight": _zero_weight,
    "tiny_x": partial(_scaled, 2.0**-9),
    "large_x": partial(_scaled, 8.0),
    "outlier": _outlier,
    "row_ramp": _row_ramp,
    "onehot": _onehot,
    "duplicate_tokens": _duplicate_tokens,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Map = Callable[[Tensor], Tensor]
Pair = Callable[[Tensor, Tensor], Tensor]


def _same(t: Tensor) -> Tensor:
    return t


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).float()


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _multiply(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


@dataclass(frozen=True)
class Variant:
    """One way to compute the layer in float32; the defaults round nothing but the result."""

    first: Pair = _multiply
    """(x, w1) → x · w1ᵀ."""
    gate_up: Map = _same
    join: Pair = _swiglu
    """(gate, up) → h."""
    h: Map = _same
    second: Pair = _multiply
    """(h, w2) → h · w2ᵀ."""
    y: Map = _same
    total: Map = _same
    """Applied to the sum after every expert; the shared ones, which weigh most, come last."""
    shared: float = 1.0
    """Weight of the shared experts."""
    early: bool = False
    """Routing weights multiply x before the first product."""

    def expert(self, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        gate, up = self.gate_up(self.first(x, w1.float())).chunk(2, dim=1)
        return self.y(self.second(self.h(self.join(gate, up)), w2.float()))

    def __call__(self, weights: Tensors, inputs: Tensors) -> Tensors:
        x, ids, wts = inputs["x"].float(), inputs["expert_ids"], inputs["expert_weights"].float()
        y = x.new_zeros(*ids.shape, x.shape[1])
        for e, tokens, slots in routes(ids):
            weight = wts[tokens, slots, None]
            part = self.expert(
                x[tokens] * weight if self.early else x[tokens], weights["w1_routed"][e], weights["w2_routed"][e]
            )
            y[tokens, slots] = part if self.early else weight * part
        total = torch.zeros_like(x)
        for slot in range(ids.shape[1]):
            total = self.total(total + y[:, slot])
        for w1, w2 in zip(weights["w1_shared"], weights["w2_shared"], strict=True):
            total = self.total(total + self.shared * self.expert(x, w1, w2))
        return {"out": total.to(torch.bfloat16)}


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "fp32": Variant(),
    "h_bf16": Variant(h=_bf16),
    "h_y_bf16": Variant(h=_bf16, y=_bf16),
    "gate_up_h_y_bf16": Variant(gate_up=_bf16, h=_bf16, y=_bf16),
    "combine_bf16": Variant(h=_bf16, total=_bf16),
}

Routing = Callable[[Tensor, Tensor], Tensor]
"""(weights (T, k) float32, ids (T, k)) → other weights of the same size."""


def _weighted(change: Routing, weights: Tensors, inputs: Tensors) -> Tensors:
    """The exact pipeline with other routing weights; 0 drops a token from an expert."""
    wts = change(inputs["expert_weights"].float(), inputs["expert_ids"])
    return Variant()(weights, {**inputs, "expert_weights": wts})


def _without_slot(slot: int, wts: Tensor, ids: Tensor) -> Tensor:
    wts = wts.clone()
    wts[:, slot] = 0
    return wts


def _keep_first(kept: Callable[[int], int], wts: Tensor, ids: Tensor) -> Tensor:
    """Of n tokens of an expert only the first kept(n) are computed."""
    wts = wts.clone()
    for _, tokens, slots in routes(ids):
        rest = slice(kept(len(tokens)), None)
        wts[tokens[rest], slots[rest]] = 0
    return wts


def _capacity(weights: Tensors, inputs: Tensors) -> Tensors:
    """No expert takes more than 1.25 times the mean number of tokens, rounded up."""
    most = -(-5 * inputs["expert_ids"].numel() // (4 * len(weights["w1_routed"])))
    return _weighted(partial(_keep_first, lambda n: min(n, most)), weights, inputs)


def _next_expert(weights: Tensors, inputs: Tensors) -> Tensors:
    ids = (inputs["expert_ids"] + 1) % len(weights["w1_routed"])
    return Variant()(weights, {**inputs, "expert_ids": ids})


def _token_0(weights: Tensors, inputs: Tensors) -> Tensors:
    """Every token's routing, but the first one's x."""
    return Variant()(weights, {**inputs, "x": inputs["x"][:1].expand_as(inputs["x"])})


def _grid(t: Tensor, top: float) -> Tensor:
    """The step that puts the largest magnitude of each row at `top`."""
    return (t.abs().amax(-1, keepdim=True) / top).clamp(min=torch.finfo(torch.float32).tiny)


def _integers(top: int, t: Tensor) -> Tensor:
    step = _grid(t, top)
    return (t / step).round() * step


_int8 = partial(_integers, 127)


def _int4_in_groups(t: Tensor) -> Tensor:
    """Symmetric 4-bit grid for every 32 elements of a row."""
    return _integers(7, t.unflatten(1, (-1, 32))).flatten(1)


def _fp8(t: Tensor) -> Tensor:
    step = _grid(t, 448)
    return (t / step).to(torch.float8_e4m3fn).float() * step


def _stored(weight: Map, other: Map = _same) -> Variant:
    """Weights on one grid, x and h on another; grids are per row, along the axis that is summed."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        return other(x) @ weight(w).t()

    return Variant(first=product, second=product)


def _last_dropped(x: Tensor, w: Tensor) -> Tensor:
    return x[:, :-1] @ w[:, :-1].t()


def _zeros(weights: Tensors, inputs: Tensors) -> Tensors:
    return {"out": torch.zeros_like(inputs["x"])}


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "no_shared": Variant(shared=0.0),
    "shared_weighted": lambda weights, inputs: Variant(shared=1 / (inputs["expert_ids"].shape[1] + 1))(weights, inputs),
    "last_slot_dropped": partial(_weighted, partial(_without_slot, -1)),
    "first_slot_dropped": partial(_weighted, partial(_without_slot, 0)),
    "next_expert": _next_expert,
    "capacity": _capacity,
    "single_token_experts_skipped": partial(_weighted, partial(_keep_first, lambda n: 0 if n == 1 else n)),
    "rows_mod_8_dropped": partial(_weighted, partial(_keep_first, lambda n: n - n % 8)),
    "uniform_weights": partial(_weighted, lambda wts, ids: torch.full_like(wts, 1 / wts.shape[1])),
    "renormalised_weights": partial(_weighted, lambda wts, ids: wts / wts.sum(1, keepdim=True)),
    "softmax_again": partial(_weighted, lambda wts, ids: wts.softmax(1)),
    "weights_sorted": partial(_weighted, lambda wts, ids: wts.sort(1, descending=True).values),
    "weights_before_first_product": Variant(early=True),
    "weights_squared": partial(_weighted, lambda wts, ids: wts.square()),
    "half_of_gate": Variant(join=lambda gate, up: gate / 2 * up),
    "relu": Variant(join=lambda gate, up: gate.relu() * up),
    "gelu": Variant(join=lambda gate, up: F.gelu(gate) * up),
    "gate_and_up_swapped": Variant(join=lambda gate, up: _swiglu(up, gate)),
    "last_h_dropped": Variant(first=_last_dropped),
    "last_i_dropped": Variant(second=_last_dropped),
    "token_0_for_all": _token_0,
    "zeros": _zeros,
    "fp8_w": _stored(_fp8),
    "fp8_w_x_h": _stored(_fp8, _fp8),
    "int8_w_per_row": _stored(_int8),
    "int8_x_h_per_row": _stored(_same, _int8),
    "int4_w_groups_of_32": _stored(_int4_in_groups),
}
