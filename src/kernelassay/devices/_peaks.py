"""Published peaks of GPUs, dense, per second; each with its source. Floors are quoted at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedPeaks:
    """What a data sheet promises."""

    bandwidth: float
    """Bytes per second."""
    flops: Mapping[str, float]
    """Precision → operations per second on dense data."""
    source: str


_HOPPER_SXM = {"fp64": 67e12, "fp32": 67e12, "tf32": 494.7e12, "bf16": 989.5e12, "fp16": 989.5e12, "fp8": 1979e12}
"""Half of the data sheet's figures with sparsity; fp64 on tensor cores."""

PUBLISHED: Mapping[str, PublishedPeaks] = {
    "h200": PublishedPeaks(4.8e12, _HOPPER_SXM, "NVIDIA H200 data sheet, SXM"),
    "h100-sxm": PublishedPeaks(3.35e12, _HOPPER_SXM, "NVIDIA H100 data sheet, SXM5"),
}
"""Catalogue name → its peaks."""
