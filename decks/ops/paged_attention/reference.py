"""Paged attention, decode: one query token per sequence, keys and values in pages that a block table points at.

The rule: `o[b, h] = Σ_{t < L_b} softmax_t(q[b, h] · k[t, h // G] / √D) v[t, h // G]` with G = H / Hkv, where token t of
sequence b lies in page `block_table[b, t // P]`, slot `t % P`, and a packed row of the cache holds K in its first D
numbers and V in its last D. Everything below is eager torch on the device of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]

BAIT = 4.0
"""Keys of slots that must not be read are this multiple of the sum of their group's queries."""
BAIT_VALUE = 1000.0
"""Values of slots past the end of a sequence."""
UNUSED_VALUE = -777.0
"""Values of pages that belong to no sequence."""
DRAW_PAGES = 512
"""Pages drawn at a time, to bound memory: float32 is twice the cache."""
SPLIT = 64
"""Tokens of one partial result in the pipeline that stores partials."""


class Model(nn.Module):
    """Gather every page of the table, mask what lies past the end, softmax and sum in float32."""

    def __init__(
        self, batch: int, num_heads: int, num_kv_heads: int, head_dim: int, seq_len: int, page_size: int
    ) -> None:
        super().__init__()
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} heads do not divide into {num_kv_heads} groups")

    def forward(self, query: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor) -> Tensor:
        """(B, H, D), (NB, P, Hkv, 2D), (B, pages), (B,) → (B, H, D) bfloat16."""
        batch, heads, dim = query.shape
        cache = kv_cache[block_table].flatten(1, 2).float()  # (B, T, Hkv, 2D)
        q = query.float().view(batch, cache.shape[2], -1, dim)
        scores = torch.einsum("bhgd,bthd->bhgt", q, cache[..., :dim]) / math.sqrt(dim)
        tokens = torch.arange(cache.shape[1], device=query.device)
        scores = scores.masked_fill((tokens >= seq_lens[:, None])[:, None, None], -torch.inf)
        out = torch.einsum("bhgt,bthd->bhgd", scores.softmax(-1), cache[..., dim:])
        return out.reshape(batch, heads, dim).to(torch.bfloat16)


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """None: attention has no weights."""
    return {}


def _pages(length: int, page: int) -> int:
    return -(-length // page)


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """q, K, V ~ N(0, 1); pages in a random order; every sequence seq_len long."""
    batch, page, dim = shape["batch"], shape["page_size"], shape["head_dim"]
    columns = _pages(shape["seq_len"], page)
    blocks = max(batch * columns + 8, 64)
    query = torch.randn(batch, shape["num_heads"], dim, generator=generator).to(torch.bfloat16)
    cache = torch.empty(blocks, page, shape["num_kv_heads"], 2 * dim, dtype=torch.bfloat16)
    for part in cache.split(DRAW_PAGES):
        part.copy_(torch.randn(part.shape, generator=generator))
    table = torch.randperm(blocks, generator=generator)[: batch * columns].view(batch, columns)
    inputs = {
        "query": query,
        "kv_cache": cache,
        "block_table": table.to(torch.int32),
        "seq_lens": torch.full((batch,), shape["seq_len"], dtype=torch.int32),
    }
    _poison(inputs, shape)
    return inputs


def _poison(inputs: Tensors, shape: Mapping[str, int]) -> None:
    """Make every slot that must not be read finite and ruinous; each case calls this last.

    Slots past the end of a sequence, in its last page and in the pages that its table names beyond that, hold keys that
    all heads of the group prefer, and values of 1000. Pages of no sequence hold values of -777.
    """
    cache, table, dim, page = inputs["kv_cache"], inputs["block_table"].long(), shape["head_dim"], shape["page_size"]
    bait = BAIT * inputs["query"].float().unflatten(1, (shape["num_kv_heads"], -1)).sum(2)  # (B, Hkv, D)
    past = [
        (b, cache[table[b, row], max(0, length - row * page) :])
        for b, length in enumerate(inputs["seq_lens"].tolist())
        for row in range(length // page, table.shape[1])
    ]
    for _, slots in past:
        slots[..., :dim] = 0
        slots[..., dim:] = BAIT_VALUE
    for b, slots in past:
        slots[..., :dim] += bait[b].to(cache.dtype)  # where two sequences share a page, it lures both
    unused = torch.ones(len(cache), dtype=torch.bool)
    unused[table.flatten()] = False
    cache[unused, :, :, dim:] = UNUSED_VALUE


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """Attention in float64, one sequence and its own tokens at a time: what is not to be read is not there."""
    query, cache = inputs["query"], inputs["kv_cache"]
    dim = query.shape[2]
    out = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    for b, length in enumerate(inputs["seq_lens"].tolist()):
        pages = inputs["block_table"][b, : _pages(length, cache.shape[1])].long()
        tokens = cache[pages].flatten(0, 1)[:length].double()  # (L_b, Hkv, 2D)
        q = query[b].double().unflatten(0, (cache.shape[2], -1))
        scores = torch.einsum("hgd,thd->hgt", q, tokens[..., :dim]) / math.sqrt(dim)
        out[b] = torch.einsum("hgt,thd->hgd", scores.softmax(-1), tokens[..., dim:]).flatten(0, 1)
    return {"out": out}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _randint(low: int, high: int, generator: torch.Generator) -> int:
    """Uniform in [low, high], both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def _nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    pass


def _draw_lengths(inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Random lengths, and at random places the full one, one just past a page, one of whole pages, one of 1."""
    batch, longest, page = shape["batch"], shape["seq_len"], shape["page_size"]
    lengths = torch.randint(1, longest + 1, (batch,), generator=generator)
    edges = torch.tensor(
        [
            longest,
            _randint(1, (longest - 1) // page, generator) * page + 1,
            _randint(1, longest // page, generator) * page,
            1,
        ]
    )
    places = torch.randperm(batch, generator=generator)[: len(edges)]
    lengths[places] = edges[: len(places)]
    inputs["seq_lens"].copy_(lengths)


def _ragged(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    _draw_lengths(inputs, shape, generator)
    _poison(inputs, shape)


def _ones(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """One token each, save a single sequence that fills one page."""
    inputs["seq_lens"].fill_(1)
    inputs["seq_lens"][_randint(0, shape["batch"] - 1, generator)] = shape["page_size"]
    _poison(inputs, shape)


def _place(where: str, length: int, page: int, generator: torch.Generator) -> int:
    if where == "first":
        return 0
    if where == "page":
        return _randint(0, (length - 1) // page, generator) * page
    if where == "page_end" and length >= page:
        return _randint(1, length // page, generator) * page - 1
    if where == "mid":
        return length // 2
    return length - 1


def _needle(
    where: str, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    """One token per sequence and KV head takes about half of the mass, with a value twice as large.

    Its key is the shortest that gives all heads of the group the score log Σ exp of the others, to be expected of
    N(0, 1) scores.
    """
    _draw_lengths(inputs, shape, generator)
    dim, page, heads = shape["head_dim"], shape["page_size"], shape["num_kv_heads"]
    queries = inputs["query"].double().unflatten(1, (heads, -1))
    keys = torch.linalg.pinv(queries).sum(-1) * math.sqrt(dim)  # (B, Hkv, D), a score of 1 for all heads
    values = 2 * torch.randn(shape["batch"], heads, dim, generator=generator)
    for b, length in enumerate(inputs["seq_lens"].tolist()):
        t = _place(where, length, page, generator)
        score = math.log(max(1, length - 1)) + 0.5
        row = torch.cat((score * keys[b], values[b].double()), -1).to(torch.bfloat16)
        inputs["kv_cache"][int(inputs["block_table"][b, t // page]), t % page] = row
    _poison(inputs, shape)


def _shared_pages(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Two sequences own the same pages."""
    one, other = torch.randperm(shape["batch"], generator=generator)[:2].tolist()
    inputs["block_table"][one] = inputs["block_table"][other]
    _poison(inputs, shape)


def _scaled_query(
    factor: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    inputs["query"].mul_(factor)
    _poison(inputs, shape)


def _scaled_values(
    factor: float, weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator
) -> None:
    inputs["kv_cache"][..., shape["head_dim"] :].mul_(factor)
    _poison(inputs, shape)


def _outlier(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """One channel of V at 32 ± 3, one of K at 8 ± 2: what 8-bit caches cannot hold."""
    cache, dim = inputs["kv_cache"], shape["head_dim"]
    for first, mean, spread in ((dim, 32, 3), (0, 8, 2)):
        channel = first + _randint(0, dim - 1, generator)
        cache[..., channel] = (mean + spread * torch.randn(cache.shape[:-1], generator=generator)).to(cache.dtype)
    _poison(inputs, shape)


CASES: dict[str, Callable[[Tensors, Tensors, Mapping[str, int], torch.Generator], None]] = {
    "nominal": _nominal,
    "ragged": _ragged,
    "ones": _ones,
    "needle_first": partial(_needle, "first"),
    "needle_last": partial(_needle, "last"),
    "needle_page": partial(_needle, "page"),
    "needle_page_end": partial(_needle, "page_end"),
    "needle_mid": partial(_needle, "mid"),
    "shared_pages": _shared_pages,
    "large_q": partial(_scaled_query, 8.0),
    "huge_q": partial(_scaled_query, 32.0),
    "zero_q": partial(_scaled_query, 0.0),
    "outlier": _outlier,
    "small_v": partial(_scaled_values, 2.0**-10),
    "large_v": partial(_scaled_values, 2.0**10),
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Change = Callable[[Tensor], Tensor]


def _same(t: Tensor) -> Tensor:
    return t


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).float()


def _gather(inputs: Tensors, table: Tensor, extra: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, H, D), K and V (B, T, Hkv, D) in float32, T whole pages; `extra` repeats the last page of each row."""
    query, cache = inputs["query"].float(), inputs["kv_cache"]
    rows = torch.cat((table, table[:, -1:].expand(-1, extra)), 1).long()
    k, v = cache[rows].flatten(1, 2).float().split(query.shape[2], -1)
    return query, k, v


def _attend(
    weights: Tensors,
    inputs: Tensors,
    *,
    table: Change = _same,
    lengths: Callable[[Tensor, int], Tensor] = lambda lens, page: lens,
    seen: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    heads: Callable[[int, int], list[int]] = lambda h, kv: [i // (h // kv) for i in range(h)],
    swapped: bool = False,
    scale: Callable[[int], float] = lambda dim: dim**-0.5,
    on_q: Change = _same,
    on_k: Change = _same,
    on_v: Change = _same,
    on_scores: Change = _same,
    on_p: Change = _same,
    shifted: bool = True,
    gain: float = 1.0,
    extra: int = 0,
) -> Tensors:
    """Attention in float32 with one part exchanged; a row that sees nothing gives zero.

    `lengths(lens, page)` is what the kernel takes for seq_lens; `seen(tokens, lens, page)` thins out what lies before
    them; `heads(H, Hkv)` names the KV head of each head.
    """
    page = inputs["kv_cache"].shape[1]
    q, k, v = _gather(inputs, table(inputs["block_table"]), extra)
    if swapped:
        k, v = v, k
    pick = torch.tensor(heads(q.shape[1], k.shape[2]), device=q.device)
    k, v = on_k(k)[:, :, pick], on_v(v)[:, :, pick]
    lens = inputs["seq_lens"].long()[:, None]
    tokens = torch.arange(k.shape[1], device=q.device)
    mask = tokens < lengths(lens, page)
    if seen is not None:
        mask = mask & seen(tokens, lens, page)
    scores = torch.einsum("bhd,bthd->bht", on_q(q * scale(q.shape[2])), k)
    scores = on_scores(scores).masked_fill(~mask[:, None], -torch.inf)
    top = scores.amax(-1, keepdim=True) if shifted else torch.zeros(())
    p = (scores - top).exp()
    out = torch.einsum("bht,bthd->bhd", on_p(p), v) / p.sum(-1, keepdim=True)
    out = out.where(mask.any(1)[:, None, None], torch.zeros(()))
    return {"out": (gain * out).to(torch.bfloat16)}


def _partials(weights: Tensors, inputs: Tensors) -> Tensors:
    """Partial results over 64 tokens, P and the partials themselves in bfloat16, merged in float32."""
    q, k, v = _gather(inputs, inputs["block_table"])
    group = q.shape[1] // k.shape[2]
    mask = torch.arange(k.shape[1], device=q.device) < inputs["seq_lens"][:, None]
    parts, tops, sums = [], [], []
    for ks, vs, seen in zip(k.split(SPLIT, 1), v.split(SPLIT, 1), mask.split(SPLIT, 1), strict=True):
        ks, vs = ks.repeat_interleave(group, 2), vs.repeat_interleave(group, 2)
        scores = torch.einsum("bhd,bthd->bht", q * q.shape[2] ** -0.5, ks).masked_fill(~seen[:, None], -torch.inf)
        top = scores.amax(-1, keepdim=True)
        p = (scores - top.clamp_min(torch.finfo(torch.float32).min)).exp()
        total = p.sum(-1, keepdim=True)
        parts.append(_bf16(torch.einsum("bht,bthd->bhd", _bf16(p), vs) / total.clamp_min(1e-30)))
        tops.append(top)
        sums.append(total)
    share = (torch.stack(tops) - torch.stack(tops).amax(0)).exp() * torch.stack(sums)
    return {"out": ((torch.stack(parts) * share).sum(0) / share.sum(0)).to(torch.bfloat16)}


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "fp32": _attend,
    "p_bf16": partial(_attend, on_p=_bf16),
    "p_bf16_partials_bf16": _partials,
}


def _grid(t: Tensor, limit: float) -> Tensor:
    """Step that maps the largest magnitude of each last axis to `limit`."""
    return (t.abs().amax(-1, keepdim=True) / limit).clamp_min(torch.finfo(torch.float32).tiny)


def _int8(t: Tensor) -> Tensor:
    step = _grid(t, 127)
    return (t / step).round() * step


def _fp8(t: Tensor) -> Tensor:
    """e4m3, scaled to 448 per token and head."""
    step = _grid(t, 448)
    return (t / step).to(torch.float8_e4m3fn).float() * step


def _contiguous(table: Tensor) -> Tensor:
    return torch.arange(table.numel(), device=table.device).view_as(table)


def _zeros(weights: Tensors, inputs: Tensors) -> Tensors:
    return {"out": torch.zeros_like(inputs["query"])}


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    # scores
    "uniform_attention": partial(_attend, on_scores=torch.zeros_like),
    "no_scale": partial(_attend, scale=lambda dim: 1.0),
    "scale_1_over_d": partial(_attend, scale=lambda dim: 1.0 / dim),
    "scale_of_d_128": partial(_attend, scale=lambda dim: 128**-0.5),
    "no_max_subtraction": partial(_attend, shifted=False),
    "gain_2_percent": partial(_attend, gain=1.02),
    "zeros": _zeros,
    # heads
    "halves_swapped": partial(_attend, swapped=True),
    "kv_head_modulo": partial(_attend, heads=lambda h, kv: [i % kv for i in range(h)]),
    "kv_head_0": partial(_attend, heads=lambda h, kv: [0] * h),
    # length
    "last_token_dropped": partial(_attend, lengths=lambda lens, page: lens - 1),
    "one_token_too_many": partial(_attend, lengths=lambda lens, page: lens + 1, extra=1),
    "rounded_up_to_page": partial(_attend, lengths=lambda lens, page: (lens + page - 1) // page * page),
    "partial_page_ignored": partial(_attend, lengths=lambda lens, page: lens // page * page),
    "first_token_dropped": partial(_attend, seen=lambda tokens, lens, page: tokens >= 1),
    "first_half_only": partial(_attend, lengths=lambda lens, page: (lens + 1) // 2),
    "last_256_only": partial(_attend, seen=lambda tokens, lens, page: tokens >= lens - 256),
    "last_slot_of_page_skipped": partial(_attend, seen=lambda tokens, lens, page: tokens % page != page - 1),
    "maximum_length": partial(_attend, lengths=lambda lens, page: lens.amax().expand_as(lens)),
    # table
    "contiguous_pages": partial(_attend, table=_contiguous),
    "table_row_0": partial(_attend, table=lambda table: table[:1].expand_as(table)),
    # precision
    "fp8_v": partial(_attend, on_v=_fp8),
    "fp8_k": partial(_attend, on_k=_fp8),
    "int8_k_per_token": partial(_attend, on_k=_int8),
    "int8_v_per_token": partial(_attend, on_v=_int8),
    "fp8_p": partial(_attend, on_p=lambda p: p.to(torch.float8_e4m3fn).float()),
    "bf16_scores": partial(_attend, on_scores=_bf16),
    "bf16_scaled_q": partial(_attend, on_q=_bf16),
}
