"""Block-selected sparse attention: each query attends to the 8 best blocks of 64 keys and to a sliding window.

The rule, for query t: block i scores the mean of `q_t · k_j` over its keys j <= t (blocks that start after t are out,
the block of t is a partial mean); the 8 best are kept, ties to the higher block index. The selected keys are the causal
part of those blocks and [t - 63, t], each key once, and `o_t = Σ softmax(q_t · k_j / √D) v_j` over them. Selection is
exact, attention is rounded. Everything below is eager torch on the device of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]

BLOCK = 64
"""Keys of a block; the window is as long."""
KEPT = 8
"""Blocks that a query keeps."""
STEP = 0.25
"""q and k are multiples of this, at most BOUND: every sum over a block is exact in float32, in any order."""
BOUND = 4.0
CHUNK = 512
"""Queries that the oracle takes at a time."""
NEAR = 1e-4
"""Gap between the last block that is kept and the first that is not, below which rounding may decide where √D is no
power of two."""
ROUNDS = 100
"""Swaps of channels that a row is given to leave a near-tie."""


class Model(nn.Module):
    """Scores of all keys, a mask of what is selected, softmax and sum, in float32; 512 queries at a time."""

    def __init__(self, B: int, H: int, S: int, D: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Three (B, H, S, D) → (B, H, S, D) bfloat16."""
        return _sparse(q.float(), k.float(), v.float()).to(torch.bfloat16)


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """None: attention has no weights."""
    return {}


def _coarse(t: Tensor) -> Tensor:
    """Rounded to multiples of a quarter and clipped to ±4."""
    return (t / STEP).round_().mul_(STEP).clamp_(-BOUND, BOUND).to(torch.bfloat16)


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """v ~ N(0, 1); q and k ~ N(0, 1) rounded to multiples of a quarter and clipped to ±4."""
    size = tuple(shape[key] for key in "BHSD")
    q, k, v = (torch.randn(size, generator=generator) for _ in range(3))
    inputs = {"q": _coarse(q), "k": _coarse(k), "v": v.to(torch.bfloat16)}
    _untie(inputs, generator)
    return inputs


def importance(q: Tensor, k: Tensor, t: Tensor | None = None) -> Tensor:
    """Mean score of every block for queries at positions t (n,), all by default: (B, H, n, blocks), -inf ahead of t."""
    t = torch.arange(q.shape[2], device=q.device) if t is None else t
    sums, prefix = _block_sums(k)
    own = (q * prefix[:, :, t]).sum(-1) / (t % BLOCK + 1)
    return _with_own(q @ sums.transpose(2, 3) / BLOCK, own, t)


def _block_sums(k: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the keys of each block, and of those up to each key in its block: (B, H, blocks, D), (B, H, S, D)."""
    blocks = _blocked(k)
    return blocks.sum(3), blocks.cumsum(3).flatten(2, 3)[:, :, : k.shape[2]]


def _blocked(k: Tensor) -> Tensor:
    """(B, H, S, D) → (B, H, blocks, 64, D), the last block filled up with zeros."""
    short = -k.shape[2] % BLOCK
    return nn.functional.pad(k, (0, 0, 0, short)).unflatten(2, (-1, BLOCK))


def _with_own(mean: Tensor, own: Tensor, t: Tensor) -> Tensor:
    """`own` at the block of each query, -inf behind it; a zero has no sign, so that sorting knows one zero only."""
    blocks = torch.arange(mean.shape[3], device=mean.device)
    mine = (t // BLOCK)[:, None]
    mean = torch.where(blocks == mine, own[..., None], mean)
    return mean.masked_fill(blocks > mine, -torch.inf) + 0.0


def best(imp: Tensor, kept: int = KEPT) -> Tensor:
    """Mask of the `kept` best blocks, ties to the higher index; what is -inf is never kept."""
    order = imp.flip(3).argsort(dim=3, descending=True, stable=True)[..., :kept]
    mask = torch.zeros_like(imp, dtype=torch.bool).scatter_(3, imp.shape[3] - 1 - order, True)
    return mask & (imp > -torch.inf)


def _sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The whole operation in the dtype of its arguments."""
    keys = torch.arange(k.shape[2], device=k.device)
    out = torch.empty_like(q)
    for start in range(0, q.shape[2], CHUNK):
        part = q[:, :, start : start + CHUNK]
        t = keys[start : start + CHUNK]
        mask = best(importance(part, k, t)).repeat_interleave(BLOCK, 3)[..., : k.shape[2]]
        mask = (mask | (keys > t[:, None] - BLOCK)) & (keys <= t[:, None])
        scores = (part @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~mask, -torch.inf)
        out[:, :, start : start + CHUNK] = scores.softmax(-1) @ v
    return out


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """In float64; a few heads at a time, which bounds memory by 64 M scores."""
    q, k, v = (inputs[name].double() for name in "qkv")
    heads = max(1, (1 << 26) // (q.shape[0] * min(CHUNK, q.shape[2]) * q.shape[2]))
    parts = zip(q.split(heads, 1), k.split(heads, 1), v.split(heads, 1), strict=True)
    return {"o": torch.cat([_sparse(*part) for part in parts], 1)}


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _exact_scale(dim: int) -> bool:
    """Whether 1/√D is a power of two, so that scaled scores are as exact as plain ones."""
    return dim.bit_count() == 1 and dim.bit_length() % 2 == 1


def gap(q: Tensor, k: Tensor, t: Tensor | None = None) -> Tensor:
    """Importance of the last block kept less that of the first left out; inf where all are kept. (B, H, n)."""
    imp = importance(q.double(), k.double(), t)
    if imp.shape[3] <= KEPT:
        return imp.new_full(imp.shape[:3], torch.inf)
    top = imp.topk(KEPT + 1, dim=3).values
    return torch.where(top[..., KEPT] > -torch.inf, top[..., KEPT - 1] - top[..., KEPT], torch.inf)


def _untie(inputs: Tensors, generator: torch.Generator) -> None:
    """Where 1/√D is inexact, rounding would decide near-ties: rows of q swap channels until none is left."""
    dim = inputs["q"].shape[3]
    if _exact_scale(dim):
        return
    for q, k in zip(inputs["q"].flatten(0, 1), inputs["k"].flatten(0, 1), strict=True):
        t = torch.arange(len(q))
        for _ in range(ROUNDS):
            t = t[gap(q[t][None, None], k[None, None], t)[0, 0] < NEAR]
            if not len(t):
                break
            pairs = torch.stack([torch.randperm(dim, generator=generator)[:2] for _ in t])
            q[t[:, None], pairs] = q[t[:, None], pairs.flip(1)]
        else:
            raise ValueError(f"{len(t)} rows stay tied after {ROUNDS} swaps")


def _nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    pass


def _ties(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """q and k hold -1, 0 and 1 only, two thirds of them 0."""
    for name in "qk":
        die = torch.randint(0, 6, inputs[name].shape, generator=generator)
        inputs[name].copy_((die == 5).float() - (die == 0).float())
    _untie(inputs, generator)


def _all_tied(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Every block holds the same keys; where 1/√D is inexact the case is the nominal one."""
    if _exact_scale(shape["D"]):
        k = inputs["k"]
        k.copy_(k[:, :, torch.arange(k.shape[2]) % BLOCK])


def _block_signal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Block means differ by as much as keys do."""
    k = inputs["k"]
    blocks = -(-shape["S"] // BLOCK)
    means = torch.randn(*k.shape[:2], blocks, shape["D"], generator=generator)
    k.copy_(_coarse(k.float() + means.repeat_interleave(BLOCK, 2)[:, :, : shape["S"]]))
    _untie(inputs, generator)


def _negative_sums(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """q is positive and k negative nearly everywhere: all importances are far below zero."""
    for name, shift in (("q", 1.0), ("k", -1.0)):
        inputs[name].copy_((inputs[name] + shift).clamp_(-BOUND, BOUND))
    _untie(inputs, generator)


def _scaled(
    name: str,
    factor: float,
    weights: Tensors,
    inputs: Tensors,
    shape: Mapping[str, int],
    generator: torch.Generator,
) -> None:
    inputs[name].mul_(factor)


def _zero_q(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """All importances are zero, exactly for any scale; attention is uniform over the selected keys."""
    inputs["q"].zero_()


def _one_hot_block(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """In each head one block of the oldest quarter lies in the direction that all queries share."""
    q, k = inputs["q"], inputs["k"]
    old = max(1, -(-shape["S"] // BLOCK) // 4)
    signs = torch.randint(0, 2, (*q.shape[:2], shape["D"]), generator=generator) * 2 - 1
    where = torch.randint(0, old, q.shape[:2], generator=generator)
    q.copy_((q + 0.5 * signs[:, :, None]).clamp_(-BOUND, BOUND))
    for b, h in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:2])).tolist():
        block = k[b, h, int(where[b, h]) * BLOCK :][:BLOCK]
        block.copy_((block + signs[b, h]).clamp_(-BOUND, BOUND))
    _untie(inputs, generator)


CASES: dict[str, Callable[[Tensors, Tensors, Mapping[str, int], torch.Generator], None]] = {
    "nominal": _nominal,
    "ties": _ties,
    "all_tied": _all_tied,
    "block_signal": _block_signal,
    "negative_sums": _negative_sums,
    "large_q": partial(_scaled, "q", 4.0),
    "large_v": partial(_scaled, "v", 256.0),
    "zero_q": _zero_q,
    "one_hot_block": _one_hot_block,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Change = Callable[[Tensor], Tensor]


def _same(t: Tensor) -> Tensor:
    return t


def _bf16(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16).float()


def _window(t: Tensor, keys: Tensor) -> Tensor:
    return keys > t - BLOCK


def _attend(
    weights: Tensors,
    inputs: Tensors,
    *,
    imp: Callable[[Tensor, Tensor], Tensor] = importance,
    keep: Callable[[Tensor], Tensor] = best,
    window: Callable[[Tensor, Tensor], Tensor] = _window,
    twice: bool = False,
    scale: Callable[[int], float] = lambda dim: dim**-0.5,
    on_scores: Change = _same,
    on_p: Change = _same,
    on_v: Change = _same,
) -> Tensors:
    """The operation in float32 with one part exchanged; causality always holds.

    `imp(q, k)` scores blocks, `keep(importance)` chooses among them, `window(t, keys)` says which keys are near;
    with `twice`, a key that is both selected and near counts double.
    """
    q, k, v = (inputs[name].float() for name in "qkv")
    keys = torch.arange(k.shape[2], device=k.device)
    t = keys[:, None]
    far = keep(imp(q, k)).repeat_interleave(BLOCK, 3)[..., : k.shape[2]]
    near = window(t, keys).expand_as(far)
    mask = (far | near) & (keys <= t)
    scores = on_scores(q @ k.transpose(2, 3) * scale(q.shape[3])).masked_fill_(~mask, -torch.inf)
    p = (scores - scores.amax(-1, keepdim=True)).exp_()
    if twice:
        p = torch.where(far & near, 2 * p, p)
    return {"o": (on_p(p) @ on_v(v) / p.sum(-1, keepdim=True)).to(torch.bfloat16)}


def _from_scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    """Importance as the mean of scores that were scaled first, in float32."""
    t = torch.arange(q.shape[2], device=q.device)
    scores = _per_block(q, k, 0.0) * q.shape[3] ** -0.5
    own = scores[:, :, t, t // BLOCK].sum(-1) / (t % BLOCK + 1)
    return _with_own(scores.sum(-1) / BLOCK, own, t)


def _per_block(q: Tensor, k: Tensor, ahead: float) -> Tensor:
    """q · k as (B, H, S, blocks, 64), `ahead` at keys after the query."""
    keys = torch.arange(q.shape[2], device=q.device)
    scores = (q @ k.transpose(2, 3)).masked_fill_(keys > keys[:, None], ahead)
    return nn.functional.pad(scores, (0, -q.shape[2] % BLOCK), value=ahead).unflatten(3, (-1, BLOCK))


LEGAL: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "p_bf16": partial(_attend, on_p=_bf16),
    "imp_from_scaled_scores_fp32": partial(_attend, imp=_from_scaled_scores),
    "both": partial(_attend, on_p=_bf16, imp=_from_scaled_scores),
}


def _own(imp: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """The importance of each query's own block replaced by `value` of it."""
    t = torch.arange(imp.shape[2], device=imp.device)
    index = (t // BLOCK)[None, None, :, None].expand(*imp.shape[:3], 1)
    return imp.scatter(3, index, value(imp.gather(3, index)))


def _with_own_as(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: _own(importance(q, k), value)


def _own_over_64(q: Tensor, k: Tensor) -> Tensor:
    t = torch.arange(q.shape[2], device=q.device)[:, None]
    return _own(importance(q, k), lambda own: own * (t % BLOCK + 1) / BLOCK)


def _own_with_future(q: Tensor, k: Tensor) -> Tensor:
    """The own block's mean over all of its keys."""
    s = k.shape[2]
    sums = _block_sums(k)[0]
    t = torch.arange(s, device=k.device)
    size = (s - t // BLOCK * BLOCK).clamp_max(BLOCK)
    own = (q * sums[:, :, t // BLOCK]).sum(-1) / size
    return _own(importance(q, k), lambda _: own[..., None])


def _maximum(q: Tensor, k: Tensor) -> Tensor:
    return _per_block(q, k, -torch.inf).amax(-1)


def _absolute(q: Tensor, k: Tensor) -> Tensor:
    imp = importance(q, k)
    return torch.where(imp > -torch.inf, imp.abs(), imp)


def _first_key(q: Tensor, k: Tensor) -> Tensor:
    return _per_block(q, k, -torch.inf)[..., 0]


def _bf16_sums(q: Tensor, k: Tensor) -> Tensor:
    """Sums of keys, whole and partial, rounded to bfloat16."""
    sums, prefix = (_bf16(part) for part in _block_sums(k))
    t = torch.arange(q.shape[2], device=q.device)
    return _with_own(q @ sums.transpose(2, 3) / BLOCK, (q * prefix).sum(-1) / (t % BLOCK + 1), t)


def _block_0_first(q: Tensor, k: Tensor) -> Tensor:
    imp = importance(q, k)
    imp[..., 0] = torch.inf
    return imp


def _whole_blocks_only(q: Tensor, k: Tensor) -> Tensor:
    """The last block of the sequence is left out where it is not full."""
    imp = importance(q, k)
    imp[..., k.shape[2] // BLOCK :] = -torch.inf
    return imp


def _lower_first(imp: Tensor) -> Tensor:
    return best(imp.flip(3)).flip(3)


def _of_head_0(imp: Tensor) -> Tensor:
    mask = best(imp)
    return mask[:, :1].expand_as(mask)


def _of_tile(imp: Tensor) -> Tensor:
    """All queries of a tile of 64 take what its last one selects."""
    t = torch.arange(imp.shape[2], device=imp.device)
    return best(imp)[:, :, (t // BLOCK * BLOCK + BLOCK - 1).clamp_max(imp.shape[2] - 1)]


def _fp8(t: Tensor) -> Tensor:
    """e4m3, scaled to 448 per token and head."""
    step = (t.abs().amax(-1, keepdim=True) / 448).clamp_min(torch.finfo(torch.float32).tiny)
    return (t / step).to(torch.float8_e4m3fn).float() * step


def _zeros(weights: Tensors, inputs: Tensors) -> Tensors:
    return {"o": torch.zeros_like(inputs["q"])}


MUTANTS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    # how much is selected
    "dense_causal": partial(_attend, window=lambda t, keys: keys <= t),
    "window_only": partial(_attend, keep=lambda imp: torch.zeros_like(imp, dtype=torch.bool)),
    "top_7": partial(_attend, keep=partial(best, kept=7)),
    "top_9": partial(_attend, keep=partial(best, kept=9)),
    "selection_of_head_0": partial(_attend, keep=_of_head_0),
    "one_selection_per_tile": partial(_attend, keep=_of_tile),
    # window
    "no_window": partial(_attend, window=lambda t, keys: keys > t),
    "window_63": partial(_attend, window=lambda t, keys: keys > t - 63),
    "window_65": partial(_attend, window=lambda t, keys: keys > t - 65),
    "window_128": partial(_attend, window=lambda t, keys: keys > t - 128),
    "window_of_the_block": partial(_attend, window=lambda t, keys: keys >= t // BLOCK * BLOCK),
    "overlap_twice": partial(_attend, twice=True),
    # importance
    "maximum": partial(_attend, imp=_maximum),
    "absolute_mean": partial(_attend, imp=_absolute),
    "first_key": partial(_attend, imp=_first_key),
    "bf16_block_sums": partial(_attend, imp=_bf16_sums),
    "ties_to_the_lower": partial(_attend, keep=_lower_first),
    # own block, first and last one
    "own_with_future": partial(_attend, imp=_own_with_future),
    "own_over_64": partial(_attend, imp=_own_over_64),
    "own_never_ranked": partial(_attend, imp=_with_own_as(lambda own: torch.full_like(own, -torch.inf))),
    "own_always_kept": partial(_attend, imp=_with_own_as(lambda own: torch.full_like(own, torch.inf))),
    "block_0_always_kept": partial(_attend, imp=_block_0_first),
    "last_partial_block_left_out": partial(_attend, imp=_whole_blocks_only),
    # softmax
    "no_scale": partial(_attend, scale=lambda dim: 1.0),
    "scale_of_d_64": partial(_attend, scale=lambda dim: 64**-0.5),
    "uniform": partial(_attend, on_scores=torch.zeros_like),
    "zeros": _zeros,
    # precision
    "bf16_scores": partial(_attend, on_scores=_bf16),
    "fp8_v": partial(_attend, on_v=_fp8),
    "fp8_p": partial(_attend, on_p=lambda p: p.to(torch.float8_e4m3fn).float()),
}
