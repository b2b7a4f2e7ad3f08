"""The cases of ops/topk, drawn independently of the deck. Each gives x (batch, n) float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Shape = tuple[int, int, int]

SMALL: tuple[Shape, ...] = ((1, 4096, 64), (8, 1024, 8), (4, 2048, 32), (4, 1500, 16), (16, 512, 1))
FULL: tuple[Shape, ...] = ((1, 131072, 64), (64, 8192, 8), (32, 16384, 32), (16, 12000, 16), (128, 4096, 1))
FULL_PLUS: tuple[Shape, ...] = ((3, 1001, 7),)
ODD: tuple[Shape, ...] = (
    (1, 1, 1),
    (2, 7, 7),
    (3, 33, 1),
    (5, 100, 100),
    (2, 1000, 999),
    (2, 5000, 200),
    (1, 70_001, 3),
    (1, 70_001, 2000),
    (3, 66_000, 17),
    (70, 1003, 5),
)


def nominal(shape: Shape, g: Generator) -> Tensor:
    """Each row with its own centre and spread."""
    batch, n, _ = shape
    centre = 3 * torch.randn(batch, 1, generator=g)
    return centre + torch.randn(batch, 1, generator=g).exp() * torch.randn(batch, n, generator=g)


def clustered(shape: Shape, g: Generator) -> Tensor:
    """k + 1 … k + 32 spikes side by side, the rest flat."""
    batch, n, k = shape
    x = torch.full((batch, n), 0.25)
    for row in x:
        width = min(n, k + int(torch.randint(1, 33, (), generator=g)))
        start = int(torch.randint(0, n - width + 1, (), generator=g))
        row[start : start + width] = 1 + torch.rand(width, generator=g)
    return x


def strided(shape: Shape, g: Generator) -> Tensor:
    """The large values all in one residue class modulo 32."""
    batch, n, _ = shape
    x = torch.randn(batch, n, generator=g)
    for row in x:
        row[int(torch.randint(0, min(32, n), (), generator=g)) :: 32] += 100
    return x


def equal(shape: Shape, g: Generator) -> Tensor:
    """One value everywhere."""
    return torch.full(shape[:2], float(torch.randn((), generator=g)))


def two_values(shape: Shape, g: Generator) -> Tensor:
    """Fewer than k of the top value."""
    batch, n, k = shape
    x = torch.full((batch, n), -1.5)
    for row in x:
        row[torch.randperm(n, generator=g)[: k // 2]] = 2.5
    return x


def sorted_up(shape: Shape, g: Generator) -> Tensor:
    """Ascending rows."""
    return nominal(shape, g).sort(dim=-1).values


def sorted_down(shape: Shape, g: Generator) -> Tensor:
    """Descending rows."""
    return nominal(shape, g).sort(dim=-1, descending=True).values


def sorted_pieces(shape: Shape, g: Generator) -> Tensor:
    """Ascending rows cut into pieces of 61 and shuffled: many winners in few, scattered places."""
    x = sorted_up(shape, g)
    pieces = torch.split(x, 61, dim=-1)
    return torch.cat([pieces[int(i)] for i in torch.randperm(len(pieces), generator=g)], dim=-1).contiguous()


def all_negative(shape: Shape, g: Generator) -> Tensor:
    """No entry with a clear sign bit."""
    return -1e-3 - nominal(shape, g).abs()


def adjacent_floats(shape: Shape, g: Generator) -> Tensor:
    """A permutation of consecutive floats: only low mantissa bits differ."""
    batch, n, _ = shape
    first = int(torch.tensor(1.0).view(torch.int32))
    rows = [torch.randperm(n, generator=g).to(torch.int32) + first for _ in range(batch)]
    return torch.stack(rows).view(torch.float32)


def adjacent_negative(shape: Shape, g: Generator) -> Tensor:
    """The same below zero."""
    return -adjacent_floats(shape, g)


def tail(shape: Shape, g: Generator) -> Tensor:
    """The k largest are the last k."""
    x = nominal(shape, g)
    x[:, -shape[2] :] += 2 * x.abs().max() + 1
    return x


def inf(shape: Shape, g: Generator) -> Tensor:
    """−inf at every 7th place, one +inf, and one row all −inf."""
    x = nominal(shape, g)
    x[:, ::7] = -torch.inf
    x[:, int(torch.randint(0, shape[1], (), generator=g))] = torch.inf
    x[-1] = -torch.inf
    return x


def denormal(shape: Shape, g: Generator) -> Tensor:
    """Only denormals, of both signs."""
    bits = torch.randint(1, 1 << 23, shape[:2], generator=g, dtype=torch.int32)
    sign = torch.randint(0, 2, shape[:2], generator=g, dtype=torch.int32) * -(1 << 31)
    return (bits | sign).view(torch.float32)


def zeros(shape: Shape, g: Generator) -> Tensor:
    """−0 and +0, and a few negative entries."""
    x = torch.where(torch.rand(shape[:2], generator=g) < 0.5, -0.0, 0.0)
    return torch.where(torch.rand(shape[:2], generator=g) < 0.1, -1.0, x)


def huge(shape: Shape, g: Generator) -> Tensor:
    """Scaled by 1e30."""
    return nominal(shape, g) * 1e30


def tiny(shape: Shape, g: Generator) -> Tensor:
    """Scaled by 1e-30."""
    return nominal(shape, g) * 1e-30


CASES: dict[str, Callable[[Shape, Generator], Tensor]] = {
    case.__name__: case
    for case in (
        nominal, clustered, strided, equal, two_values, sorted_up, sorted_down, sorted_pieces, all_negative,
        adjacent_floats, adjacent_negative, tail, inf, denormal, zeros, huge, tiny,
    )
}  # fmt: skip


def draw(case: str, shape: Shape, seed: int = 0) -> Tensor:
    """x (batch, n) of a case, contiguous."""
    return CASES[case](shape, torch.Generator().manual_seed(seed)).contiguous()
