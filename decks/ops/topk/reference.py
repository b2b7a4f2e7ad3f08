"""The k largest of each row, in order, with their positions: `torch.topk(x, k, largest=True, sorted=True)`.

A selection: nothing is rounded, so values are exact, and only the order among equal values is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]

LANES = 32
"""Threads of a warp: element i is read by lane i mod 32 in a strided loop."""
SLICE = 256
"""Elements that one thread block takes in the capacity mutants."""
SMALLEST_NORMAL = 2.0**-126


class Model(nn.Module):
    """`forward(x: (batch, n) float32) -> (values: (batch, k) float32, indices: (batch, k) int64)`."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.topk(x, self.k, dim=-1, largest=True, sorted=True)
        return values, indices


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """None: a selection has no weights."""
    return {}


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """Row b is μ_b + σ_b·N(0,1) with μ ~ 3·N(0,1) and σ = exp(N(0,1)): no threshold fits all rows."""
    batch, n = shape["batch"], shape["n"]
    mu, sigma = _affine(batch, generator)
    return {"x": mu + sigma * torch.randn(batch, n, generator=generator)}


def oracle(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """A partial selection, exact in fp32; that a stable sort of whole rows says the same is `LEGAL["stable_sort"]`.

    Every timed call is compared, and the sort took twenty times as long.
    """
    values, indices = torch.topk(inputs["x"], shape["k"], dim=1)
    return {"values": values, "indices": indices}


# --- cases -----------------------------------------------------------------------------------------------------------


def _affine(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    mu = 3.0 * torch.randn(batch, 1, generator=generator)
    return mu, torch.randn(batch, 1, generator=generator).exp()


def _integers(low: int, high: int, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform int64 in [low, high], both included."""
    return torch.randint(low, high + 1, size, generator=generator)


def _permutations(batch: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(n, generator=generator) for _ in range(batch)])


def _lift(x: Tensor, mask: Tensor) -> None:
    """Raise what `mask` marks above everything else in its row, keeping its own order."""
    span = x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    x.copy_(torch.where(mask, x + 1.5 * span, x))


def nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """As drawn."""


def clustered(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """k+1 … k+32 spikes side by side on a flat row; those of row 0 lie within one slice of 256."""
    x, n, k = inputs["x"], shape["n"], shape["k"]
    mu, sigma = _affine(len(x), generator)
    for b in range(len(x)):
        count = min(n, int(_integers(k + 1, k + 32, (1,), generator)))
        low, high = 0, n - count
        if b == 0 and n >= SLICE and count <= SLICE:
            low = SLICE * int(_integers(0, n // SLICE - 1, (1,), generator))
            high = low + SLICE - count
        start = int(_integers(low, high, (1,), generator))
        spikes = mu[b] + sigma[b] * (4.0 + torch.randn(count, generator=generator).abs())
        x[b] = mu[b]
        x[b, start : start + count] = spikes


def strided(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """The large values of a row all lie in one residue class mod 32."""
    x = inputs["x"]
    residue = _integers(0, LANES - 1, (len(x), 1), generator)
    _lift(x, torch.arange(shape["n"]) % LANES == residue)


def equal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Each row is one constant."""
    x = inputs["x"]
    x.copy_(_affine(len(x), generator)[0].expand_as(x))


def two_values(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Two values per row, fewer than k of the larger one (one of it where k is 1)."""
    x, k = inputs["x"], shape["k"]
    mu, sigma = _affine(len(x), generator)
    for b, order in enumerate(_permutations(len(x), shape["n"], generator)):
        count = int(_integers(max(1, k // 2), max(1, k - 1), (1,), generator))
        x[b] = mu[b]
        x[b, order[:count]] = mu[b] + sigma[b]


def sorted_up(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["x"].copy_(inputs["x"].sort(dim=1).values)


def sorted_down(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["x"].copy_(inputs["x"].sort(dim=1, descending=True).values)


def all_negative(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["x"].abs_().clamp_min_(2.0**-20).neg_()


def adjacent_floats(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Each row is a permutation of n consecutive fp32 numbers, positive or negative: only low mantissa bits differ."""
    x = inputs["x"]
    exponent = _integers(100, 150, (len(x), 1), generator)
    base = (exponent << 23) + _integers(0, 2**23 - 1, (len(x), 1), generator)
    bits = base + _permutations(len(x), shape["n"], generator)
    sign = _integers(0, 1, (len(x), 1), generator)
    x.copy_((bits - (sign << 31)).to(torch.int32).view(torch.float32))


def tail(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """The k largest are the last k."""
    n = shape["n"]
    _lift(inputs["x"], torch.arange(n) >= n - shape["k"])


def inf(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """-inf at every 7th place, one +inf, one row all -inf (with one row it is that one)."""
    x, n = inputs["x"], shape["n"]
    offset = _integers(0, 6, (len(x), 1), generator)
    x.masked_fill_(torch.arange(n) % 7 == offset, -torch.inf)
    rows = torch.randperm(len(x), generator=generator)
    x[rows[-1], int(_integers(0, n - 1, (1,), generator))] = torch.inf
    x[rows[0]] = -torch.inf


def denormal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Each row holds n consecutive denormals in random order and of random sign."""
    x, n = inputs["x"], shape["n"]
    first = _integers(1, 2**22, (len(x), 1), generator)
    bits = first + _permutations(len(x), n, generator)
    sign = _integers(0, 1, (len(x), n), generator)
    x.copy_((bits - (sign << 31)).to(torch.int32).view(torch.float32))


def huge(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["x"].mul_(1e30)


def tiny(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    inputs["x"].mul_(1e-30)


CASES = {
    "nominal": nominal,
    "clustered": clustered,
    "strided": strided,
    "equal": equal,
    "two_values": two_values,
    "sorted_up": sorted_up,
    "sorted_down": sorted_down,
    "all_negative": all_negative,
    "adjacent_floats": adjacent_floats,
    "tail": tail,
    "inf": inf,
    "denormal": denormal,
    "1e30": huge,
    "1e-30": tiny,
}

# --- selection by a key ----------------------------------------------------------------------------------------------


def _pick(x: Tensor, key: Tensor, k: int) -> Tensors:
    """The k entries of each row with the largest key; among equal keys the first."""
    return _take(x, key.argsort(dim=1, descending=True, stable=True)[:, :k])


def _take(x: Tensor, indices: Tensor) -> Tensors:
    indices = indices.contiguous()
    return {"values": x.gather(1, indices), "indices": indices}


def _bits(x: Tensor) -> Tensor:
    """The 32 bits of each number as a signed int64."""
    return x.view(torch.int32).to(torch.int64)


# --- legal -----------------------------------------------------------------------------------------------------------


def stable_sort(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], inputs["x"], shape["k"])


def random_tie_order(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """A random set and a random order among equal values."""
    x = inputs["x"]
    shuffle = _permutations(len(x), shape["n"], torch.Generator(x.device).manual_seed(1))
    picked = _pick(x.gather(1, shuffle), x.gather(1, shuffle), shape["k"])
    return {"values": picked["values"], "indices": shuffle.gather(1, picked["indices"])}


LEGAL = {"stable_sort": stable_sort, "random_tie_order": random_tie_order}

# --- mutants: order --------------------------------------------------------------------------------------------------


def by_magnitude(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], inputs["x"].abs(), shape["k"])


def smallest(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], -inputs["x"], shape["k"])


def ascending(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return {name: tensor.flip(1) for name, tensor in oracle(weights, inputs, shape).items()}


def adjacent_pair_unsorted(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """The two largest in the wrong order."""
    order = torch.arange(shape["k"])
    order[:2] = order[:2].flip(0)
    return {name: tensor[:, order] for name, tensor in oracle(weights, inputs, shape).items()}


def signed_int_compare(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], _bits(inputs["x"]), shape["k"])


def unsigned_int_compare(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], _bits(inputs["x"]) & 0xFFFFFFFF, shape["k"])


def kth_is_next(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """The (k+1)-th largest in place of the k-th."""
    k = shape["k"]
    order = inputs["x"].argsort(dim=1, descending=True, stable=True)
    return _take(inputs["x"], torch.cat((order[:, : k - 1], order[:, k : k + 1]), dim=1))


# --- mutants: key width ----------------------------------------------------------------------------------------------


def _low_bits_dropped(x: Tensor, count: int, k: int) -> Tensors:
    key = (_bits(x) >> count << count).to(torch.int32).view(torch.float32)
    return _pick(x, key, k)


def low_12_bits_dropped(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _low_bits_dropped(inputs["x"], 12, shape["k"])


def low_8_bits_dropped(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _low_bits_dropped(inputs["x"], 8, shape["k"])


def low_2_bits_dropped(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _low_bits_dropped(inputs["x"], 2, shape["k"])


def bf16_keys(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _pick(inputs["x"], inputs["x"].to(torch.bfloat16).to(torch.float32), shape["k"])


def values_rounded_to_bf16(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    picked = oracle(weights, inputs, shape)
    return {**picked, "values": picked["values"].to(torch.bfloat16).to(torch.float32)}


def denormals_flushed(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """Denormals read as zero, as with `-ftz=true`."""
    x = inputs["x"]
    flushed = torch.where(x.abs() < SMALLEST_NORMAL, torch.zeros_like(x), x)
    return _pick(flushed, flushed, shape["k"])


def minus_inf_missing(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """-inf marks an empty slot of the buffer, so a real -inf is never entered and its index stays -1."""
    picked = oracle(weights, inputs, shape)
    empty = picked["values"] == -torch.inf
    return {**picked, "indices": picked["indices"].masked_fill(empty, -1)}


# --- mutants: capacity -----------------------------------------------------------------------------------------------


def tail_dropped(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """The loop over vectors of four ends one vector early."""
    whole = inputs["x"][:, : (shape["n"] - 1) // 4 * 4].contiguous()
    return _pick(whole, whole, shape["k"])


def _at_most(x: Tensor, groups: Tensor, capacity: int, k: int) -> Tensors:
    """The k largest when only the `capacity` largest of each group of positions survive."""
    order = x.argsort(dim=1, descending=True, stable=True)
    group = groups[order].contiguous()
    by_group = group.argsort(dim=1, stable=True)
    sorted_group = group.gather(1, by_group)
    rank = torch.arange(x.shape[1]) - torch.searchsorted(sorted_group, sorted_group)
    dropped = torch.empty_like(order).scatter_(1, by_group, (rank >= capacity).to(torch.int64))
    return _take(x, order.gather(1, dropped.argsort(dim=1, stable=True)[:, :k]))


def at_most_4_per_lane(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    return _at_most(inputs["x"], torch.arange(shape["n"]) % LANES, 4, shape["k"])


def at_most_quarter_per_lane(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """At most k/4 + 1 per lane."""
    return _at_most(inputs["x"], torch.arange(shape["n"]) % LANES, shape["k"] // 4 + 1, shape["k"])


def at_most_half_per_slice(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """At most k/2 per slice of 256 (one where k is 1)."""
    return _at_most(inputs["x"], torch.arange(shape["n"]) // SLICE, max(1, shape["k"] // 2), shape["k"])


def at_most_k_minus_1_per_slice(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """At most k-1 per slice of 256 (one where k is 1)."""
    return _at_most(inputs["x"], torch.arange(shape["n"]) // SLICE, max(1, shape["k"] - 1), shape["k"])


# --- mutants: indices, distribution ----------------------------------------------------------------------------------


def one_index_for_ties(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """The index is looked up by value, so equal values share the first one."""
    picked = oracle(weights, inputs, shape)
    rows = zip(inputs["x"], picked["values"], strict=True)
    first = [(row == values[:, None]).to(torch.int8).argmax(1) for row, values in rows]
    return {**picked, "indices": torch.stack(first)}


def tile_local_indices(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    picked = oracle(weights, inputs, shape)
    return {**picked, "indices": picked["indices"] % SLICE}


def int32_indices(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    picked = oracle(weights, inputs, shape)
    return {**picked, "indices": picked["indices"].to(torch.int32)}


def gaussian_threshold(weights: Tensors, inputs: Tensors, shape: Mapping[str, int]) -> Tensors:
    """Only what exceeds a threshold that N(0,1) would pass 4k times is looked at; empty slots read (-inf, -1)."""
    x, n, k = inputs["x"], shape["n"], shape["k"]
    threshold = NormalDist().inv_cdf(1.0 - min(0.5, 4.0 * k / n))
    seen = x.masked_fill(x <= threshold, -torch.inf)
    picked = _pick(seen, seen, k)
    return {**picked, "indices": picked["indices"].masked_fill(picked["values"] == -torch.inf, -1)}


MUTANTS = {
    "by_magnitude": by_magnitude,
    "smallest": smallest,
    "ascending": ascending,
    "adjacent_pair_unsorted": adjacent_pair_unsorted,
    "signed_int_compare": signed_int_compare,
    "unsigned_int_compare": unsigned_int_compare,
    "kth_is_next": kth_is_next,
    "low_12_bits_dropped": low_12_bits_dropped,
    "low_8_bits_dropped": low_8_bits_dropped,
    "low_2_bits_dropped": low_2_bits_dropped,
    "bf16_keys": bf16_keys,
    "values_rounded_to_bf16": values_rounded_to_bf16,
    "denormals_flushed": denormals_flushed,
    "minus_inf_missing": minus_inf_missing,
    "tail_dropped": tail_dropped,
    "at_most_4_per_lane": at_most_4_per_lane,
    "at_most_quarter_per_lane": at_most_quarter_per_lane,
    "at_most_half_per_slice": at_most_half_per_slice,
    "at_most_k_minus_1_per_slice": at_most_k_minus_1_per_slice,
    "one_index_for_ties": one_index_for_ties,
    "tile_local_indices": tile_local_indices,
    "int32_indices": int32_indices,
    "gaussian_threshold": gaussian_threshold,
}
