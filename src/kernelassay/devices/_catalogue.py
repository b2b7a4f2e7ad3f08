"""GPUs by their catalogue names: what their vendor publishes, and where.

The rule: a figure stands here only with its source; what was not published is None or absent, never zero. Peaks are
dense, per second, with accumulation in fp32 on matrix units where the card has them. Data sheets that print figures
with structured sparsity are halved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEMORY_SHARE = (0.90, 1.02)
"""A driver shows between these parts of the published memory, counted in GiB: error correction of an L40S keeps a
sixteenth (46,068 of 49,152 MiB shown), an H200 shows 143,771 of 144,384 MiB, and nothing shows more. [read]"""
CORES_PER_SM = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}
"""fp32 lanes of one multiprocessor by compute capability: NVML counts lanes, not multiprocessors. Source: CUDA C++
Programming Guide, table of arithmetic throughput."""
FULL_CLOCK = ("fp64", "fp32")
"""Precisions whose peaks Hopper's white paper quotes at the highest clock; the others at the lower matrix clock."""
_MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One catalogue entry. Every figure's source stands in `sources` under the figure's name."""

    name: str
    title: str
    """What the vendor calls it."""
    nvml_names: tuple[str, ...]
    """What `nvmlDeviceGetName` answers on it, exactly."""
    capability: tuple[int, int]
    """Compute capability: it decides which instructions exist."""
    memory_gb: int
    """Published memory in the vendor's GB, which a driver shows as GiB; see `MEMORY_SHARE`."""
    bandwidth: float
    """Memory, bytes per second."""
    flops: Mapping[str, float]
    """Precision → operations per second; absent: no such arithmetic, or not published."""
    sources: Mapping[str, str]
    sms: int | None = None
    """Multiprocessors."""
    l2_bytes: int | None = None
    clock_hz: float | None = None
    """Highest published clock of the multiprocessors; the peaks of `FULL_CLOCK` are at it."""
    matrix_clock_hz: float | None = None
    """Clock at which the other peaks are quoted; None: unknown."""
    narrow_flops: Mapping[str, float] = field(default_factory=dict)
    """Faster rates with accumulation in fp16, where a card has them: what bounds any honest kernel."""
    note: str = ""
    """What a reader of the figures should know."""

    def holds(self, nvml_name: str, memory_bytes: int) -> bool:
        """Whether a device with this name and memory is of this entry."""
        low, high = (share * self.memory_gb * 2**30 for share in MEMORY_SHARE)
        return nvml_name in self.nvml_names and low <= memory_bytes <= high

    def peak_at(self, precision: str, clock_hz: float) -> float | None:
        """The most that multiprocessors at `clock_hz` can do, operations per second; None where a figure is unknown.

        Peaks scale with the clock; a card may run above the one that its peaks are quoted at (measured on an H200:
        1,980 MHz, against 1,830 MHz of the white paper's matrix peaks).
        """
        peak = self.narrow_flops.get(precision, self.flops.get(precision))
        quoted = self.clock_hz if precision in FULL_CLOCK else self.matrix_clock_hz
        return None if peak is None or quoted is None else peak * clock_hz / quoted


_PUBLIC_NAME = "nvidia-smi listings in public reports"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture (white paper)"
_H100_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, halved figures with sparsity; fp64 on matrix units"
_ADA_PAPER = "NVIDIA Ada GPU Architecture (white paper)"
_PRO_PAPER = "NVIDIA RTX PRO Blackwell GPU Architecture (white paper)"
_A100_PAPER = "NVIDIA A100 Tensor Core GPU Architecture (white paper)"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, 80GB SXM; fp64 on matrix units"
_GUIDE = "CUDA GPUs, compute capability (developer.nvidia.com)"
_HOPPER_SXM = {"fp64": 67e12, "fp32": 67e12, "tf32": 494.7e12, "bf16": 989.5e12, "fp16": 989.5e12, "fp8": 1979e12}


_ENTRIES = (
    Gpu(
        name="h200",
        title="NVIDIA H200, SXM",
        nvml_names=("NVIDIA H200",),
        capability=(9, 0),
        memory_gb=141,
        bandwidth=4.8e12,
        flops=_HOPPER_SXM,
        sms=132,
        l2_bytes=60 * _MIB,
        clock_hz=1980e6,
        matrix_clock_hz=1830e6,
        sources={
            "bandwidth": "NVIDIA H200 Tensor Core GPU data sheet, SXM",
            "flops": "NVIDIA H200 Tensor Core GPU data sheet, SXM, halved figures with sparsity; fp64 on matrix units",
            "memory": "NVIDIA H200 Tensor Core GPU data sheet, SXM",
            "sms": "not published; read from the CUDA driver of an H200",
            "l2": "not published; read from the CUDA driver of an H200",
            "clock": "not published; highest clock that NVML showed on an H200",
            "matrix_clock": f"{_H100_PAPER}: the same peaks on the same processor",
            "capability": _GUIDE,
            "name": "NVML of an H200",
        },
    ),
    Gpu(
        name="h100-sxm",
        title="NVIDIA H100, SXM5, 80 GB",
        nvml_names=("NVIDIA H100 80GB HBM3",),
        capability=(9, 0),
        memory_gb=80,
        bandwidth=3.35e12,
        flops=_HOPPER_SXM,
        sms=132,
        l2_bytes=50 * _MIB,
        clock_hz=1980e6,
        matrix_clock_hz=1830e6,
        sources={
            "bandwidth": "NVIDIA H100 Tensor Core GPU data sheet, SXM5",
            "flops": f"{_H100_SHEET}, SXM5",
            "memory": "NVIDIA H100 Tensor Core GPU data sheet, SXM5",
            "sms": _H100_PAPER,
            "l2": _H100_PAPER,
            "clock": _H100_PAPER,
            "matrix_clock": _H100_PAPER,
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
    ),
    Gpu(
        name="h100-pcie",
        title="NVIDIA H100, PCIe, 80 GB",
        nvml_names=("NVIDIA H100 PCIe",),
        capability=(9, 0),
        memory_gb=80,
        bandwidth=2.039e12,
        flops={"fp64": 51e12, "fp32": 51e12, "tf32": 378e12, "bf16": 756.5e12, "fp16": 756.5e12, "fp8": 1513e12},
        sms=114,
        l2_bytes=50 * _MIB,
        clock_hz=1755e6,
        matrix_clock_hz=1620e6,
        sources={
            "bandwidth": f"{_H100_PAPER}; the data sheet rounds to 2 TB/s",
            "flops": f"{_H100_SHEET}, PCIe",
            "memory": "NVIDIA H100 Tensor Core GPU data sheet, PCIe",
            "sms": _H100_PAPER,
            "l2": _H100_PAPER,
            "clock": "NVIDIA H100 PCIe GPU product brief",
            "matrix_clock": "computed: the dense bf16 peak over 114 multiprocessors at 4,096 operations per clock",
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
    ),
    Gpu(
        name="rtx-pro-6000",
        title="NVIDIA RTX PRO 6000 Blackwell, Workstation Edition",
        nvml_names=("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        capability=(12, 0),
        memory_gb=96,
        bandwidth=1.792e12,
        flops={
            "fp32": 125.95e12,
            "tf32": 251.9e12,
            "bf16": 503.8e12,
            "fp16": 503.8e12,
            "fp8": 1007.6e12,
            "fp4": 2015.2e12,
        },
        sms=188,
        l2_bytes=128 * _MIB,
        clock_hz=2617e6,
        matrix_clock_hz=2617e6,
        sources={
            "bandwidth": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet",
            "flops": _PRO_PAPER,
            "memory": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet",
            "sms": _PRO_PAPER,
            "l2": _PRO_PAPER,
            "clock": _PRO_PAPER,
            "matrix_clock": _PRO_PAPER,
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
        note="Max-Q and Server Edition have other clocks or another memory and are not this entry.",
    ),
    Gpu(
        name="b200",
        title="NVIDIA B200, HGX, 180 GB",
        nvml_names=("NVIDIA B200",),
        capability=(10, 0),
        memory_gb=180,
        bandwidth=7.7e12,
        flops={
            "fp64": 37e12,
            "fp32": 75e12,
            "tf32": 1.1e15,
            "bf16": 2.25e15,
            "fp16": 2.25e15,
            "fp8": 4.5e15,
            "fp4": 9e15,
        },
        sms=148,
        l2_bytes=126 * _MIB,
        sources={
            "bandwidth": "NVIDIA Blackwell data sheet, one GPU of HGX B200",
            "flops": "NVIDIA Blackwell data sheet, one GPU of HGX B200, halved figures with sparsity",
            "memory": "NVIDIA Blackwell data sheet, one GPU of HGX B200",
            "sms": "not published; read from the CUDA driver of a B200 in github.com/pytorch/ao pull request 4002",
            "l2": "NVIDIA Blackwell Tuning Guide",
            "capability": _GUIDE,
            "name": "the CUDA driver of a B200 in github.com/pytorch/ao pull request 4002",
        },
        note="Earlier texts of the vendor give 8 TB/s, 80 and 40 TFLOP/s for fp32 and fp64. Clocks are not published.",
    ),
    Gpu(
        name="a100",
        title="NVIDIA A100, SXM4, 80 GB",
        nvml_names=("NVIDIA A100-SXM4-80GB",),
        capability=(8, 0),
        memory_gb=80,
        bandwidth=2.039e12,
        flops={"fp64": 19.5e12, "fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
        sms=108,
        l2_bytes=40 * _MIB,
        clock_hz=1410e6,
        matrix_clock_hz=1410e6,
        sources={
            "bandwidth": _A100_SHEET,
            "flops": _A100_SHEET,
            "memory": _A100_SHEET,
            "sms": _A100_PAPER,
            "l2": _A100_PAPER,
            "clock": _A100_PAPER,
            "matrix_clock": _A100_PAPER,
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
        note="The 40 GB and the PCIe cards have other memory and are not this entry.",
    ),
    Gpu(
        name="l40s",
        title="NVIDIA L40S",
        nvml_names=("NVIDIA L40S",),
        capability=(8, 9),
        memory_gb=48,
        bandwidth=864e9,
        flops={"fp32": 91.6e12, "tf32": 183e12, "bf16": 366.5e12, "fp16": 366.5e12, "fp8": 733e12},
        sms=142,
        clock_hz=2520e6,
        matrix_clock_hz=2520e6,
        sources={
            "bandwidth": "NVIDIA L40S data sheet",
            "flops": "NVIDIA L40S data sheet, halved figures with sparsity",
            "memory": "NVIDIA L40S data sheet",
            "sms": "NVIDIA L40S data sheet: 18,176 CUDA cores, 128 to a multiprocessor",
            "clock": "NVIDIA L40S GPU product brief",
            "matrix_clock": "computed: the dense bf16 peak over 142 multiprocessors at 1,024 operations per clock",
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
        note="The sheet's dense bf16, 362.05, is not half of its figure with sparsity, 733. fp64 is not published.",
    ),
    Gpu(
        name="rtx-4090",
        title="NVIDIA GeForce RTX 4090",
        nvml_names=("NVIDIA GeForce RTX 4090",),
        capability=(8, 9),
        memory_gb=24,
        bandwidth=1.008e12,
        flops={"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12, "fp8": 330.3e12},
        narrow_flops={"fp16": 330.3e12, "fp8": 660.6e12},
        sms=128,
        l2_bytes=72 * _MIB,
        clock_hz=2520e6,
        matrix_clock_hz=2520e6,
        sources={
            "bandwidth": _ADA_PAPER,
            "flops": _ADA_PAPER,
            "narrow_flops": _ADA_PAPER,
            "memory": _ADA_PAPER,
            "sms": _ADA_PAPER,
            "l2": _ADA_PAPER,
            "clock": _ADA_PAPER,
            "matrix_clock": _ADA_PAPER,
            "capability": _GUIDE,
            "name": _PUBLIC_NAME,
        },
        note="Cards of many makers exceed the published clock; fp64 is not published.",
    ),
)

CATALOGUE: Mapping[str, Gpu] = {entry.name: entry for entry in _ENTRIES}
"""Catalogue name → entry, in the order of the documentation."""


def entry_of(nvml_name: str, memory_bytes: int) -> Gpu | None:
    """The entry of a device with this name and memory; None: the catalogue has none, and nothing is guessed."""
    return next((entry for entry in CATALOGUE.values() if entry.holds(nvml_name, memory_bytes)), None)
