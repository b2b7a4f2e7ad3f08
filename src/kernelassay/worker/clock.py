"""The part of both clocks that runs beside the submission. Its numbers are claims; its results are read by the judge.

Checks, probes and both clocks make their calls through the one loop in `go`, so a submission that looks at its
callers finds the same ones in each phase. Nothing measured here is subtracted from anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .adapters import Bound


def address(result: Any) -> int:
    """Where a plain tensor's memory lies; 0 for everything else (a sparse or nested one has no such place)."""
    plain = type(result) in (Tensor, Parameter) and result.layout is torch.strided and not result.is_nested
    return result.data_ptr() if plain else 0


def addresses(held: list[tuple[Any, ...]], row: int) -> list[int]:
    """`row` addresses for each call, 0 where there is none to tell.

    It runs once per call inside the outer clock, so the common case asks each result one question only.
    """
    flat: list[int] = []
    for results in held:
        try:
            there = [result.data_ptr() if type(result) is Tensor else 0 for result in results]
        except Exception:  # sparse
            there = [address(result) for result in results]
        flat += there if len(there) == row else [0] * row
    return flat


class Clock:
    """Makes prepared calls and remembers where their results lie."""

    def __init__(self) -> None:
        self._armed: list[Bound] = []
        self.held: list[tuple[Any, ...]] = []
        """Results of the last calls; kept alive until the next ones are armed, for the judge to read."""
        self.stamps: list[int] = []
        """Nanoseconds that each of them took, by the clock here."""
        self._flush = torch.empty(0, dtype=torch.int64)
        self._flush_now = False
        self._now = time.perf_counter_ns
        self._synchronize = torch.cuda.synchronize
        self._wait: Callable[[], None] | None = None

    def arm(self, calls: list[Bound], flush_bytes: int, device: str = "cpu") -> None:
        """Keep `calls` for `go`, let the last results go, and have that many bytes ready to displace the cache.

        On a GPU each call is waited for before it is stamped, and nothing is displaced.
        """
        self._wait = self._synchronize if device == "cuda" else None
        self.held, self.stamps = [], []
        self._armed = calls
        words = flush_bytes // 8 if device == "cpu" else 0
        self._flush_now = words > 0
        if self._flush_now and self._flush.numel() != words:
            self._flush = torch.ones(words, dtype=torch.int64)

    def go(self) -> None:
        """Make the armed calls in order."""
        if self._flush_now:
            self._flush.sum()
        now, held, stamps, wait = self._now, self.held, self.stamps, self._wait
        for call in self._armed:
            start = now()
            held.append(call())
            if wait:
                wait()
            stamps.append(now() - start)
        self._armed = []
