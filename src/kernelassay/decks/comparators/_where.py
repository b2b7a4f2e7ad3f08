"""Say where an output is wrong, in words that a kernel's author recognises: rows, columns, strides, whole tiles."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

MAX_RANGES = 4
"""Ranges that are written out; a reader stops counting after a handful."""
TILE_SIZES = (256, 128, 64, 32, 16)
"""Edges of the tiles that kernels use, largest first, so that the coarsest explanation wins."""
WHOLE_TILE = 0.9
"""Share of a tile's elements from which it counts as wholly wrong: some wrong numbers are near the right by chance."""
MIN_STRIDED = 4
"""Fewest equidistant positions that are called a stride."""


def describe(wrong: Tensor) -> str:
    """Summarise a boolean mask over an output's axes; empty where nothing is wrong.

    The last axis is called columns, the one before it rows; axes before those are called by their number.
    """
    if not bool(wrong.any()):
        return ""
    if wrong.ndim == 0:
        return "the only element"
    names = [*(f"axis {axis}" for axis in range(wrong.ndim - 2)), "rows", "columns"][-wrong.ndim :]
    parts = []
    for axis, name in enumerate(names):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        hit = wrong.any(dim=others) if others else wrong
        parts.append(_axis(name, hit.nonzero().flatten().tolist(), wrong.shape[axis]))
    text = ", ".join(parts)
    tiles = _tiles(wrong) if wrong.ndim == 2 else ""
    return f"{text}; {tiles}" if tiles else text


def _axis(name: str, hit: list[int], size: int) -> str:
    if len(hit) == size == 1 and name in ("rows", "columns"):
        return f"the only {name.removesuffix('s')}"
    if len(hit) == size:
        return f"all {size} {name}" if name in ("rows", "columns") else f"{name}: all {size}"
    plural = name in ("rows", "columns")
    one = name.removesuffix("s") if plural and len(hit) == 1 else name
    label = one if plural else f"{name}:"
    return f"{label} {_ranges(hit)} of {size}"


def _ranges(hit: list[int]) -> str:
    gaps = {b - a for a, b in pairwise(hit)}
    if len(hit) >= MIN_STRIDED and len(gaps) == 1 and (stride := gaps.pop()) > 1:
        return f"{hit[0]}, {hit[1]}, … {hit[-1]} (in steps of {stride})"
    ranges: list[tuple[int, int]] = []
    for index in hit:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    words = [str(a) if a == b else f"{a}–{b}" for a, b in ranges[:MAX_RANGES]]
    if len(ranges) > MAX_RANGES:
        return f"{', '.join(words)}, … ({len(hit)} in all)"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _tiles(wrong: Tensor) -> str:
    """Name the tiles when the wrong elements are whole aligned tiles and not everything."""
    if bool(wrong.all()):
        return ""
    rows, columns = wrong.shape
    total = int(wrong.sum())
    for edge in TILE_SIZES:
        if edge > rows or edge > columns:
            continue
        row_tile = torch.arange(rows) // edge
        column_tile = torch.arange(columns) // edge
        across = torch.zeros(rows, int(column_tile[-1]) + 1, dtype=torch.int64)
        across.index_add_(1, column_tile, wrong.to(torch.int64))
        counts = torch.zeros(int(row_tile[-1]) + 1, across.shape[1], dtype=torch.int64).index_add_(0, row_tile, across)
        area = row_tile.bincount()[:, None] * column_tile.bincount()[None, :]
        full = counts >= WHOLE_TILE * area
        if int(counts[full].sum()) == total:
            hit = [tuple(index) for index in full.nonzero().tolist()]
            shown = ", ".join(str(index) for index in hit[:MAX_RANGES])
            more = f", … ({len(hit)} in all)" if len(hit) > MAX_RANGES else ""
            return f"whole {edge}×{edge} tiles: {shown}{more}"
    return ""
