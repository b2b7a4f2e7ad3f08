"""The catalogue: figures that can be true, each with its source, and names that fit one entry only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelassay.devices import CATALOGUE, Gpu, device_names, entry_of
from kernelassay.devices._catalogue import CORES_PER_SM

PAGE = Path(__file__).resolve().parents[2] / "docs" / "devices.md"
NAMES = ("h200", "h100-sxm", "h100-pcie", "rtx-pro-6000", "b200", "a100", "l40s", "rtx-4090")
SHOWN_MIB = {
    "h200": ("NVIDIA H200", 143771),
    "h100-sxm": ("NVIDIA H100 80GB HBM3", 81559),
    "h100-pcie": ("NVIDIA H100 PCIe", 81559),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887),
    "b200": ("NVIDIA B200", 183359),
    "a100": ("NVIDIA A100-SXM4-80GB", 81920),
    "l40s": ("NVIDIA L40S", 46068),
    "rtx-4090": ("NVIDIA GeForce RTX 4090", 24564),
}
"""Name and memory in MiB as nvidia-smi shows them in public reports (the H200's was read from one)."""
FIGURES = {
    "bandwidth": "bandwidth",
    "flops": "flops",
    "narrow_flops": "narrow_flops",
    "memory_gb": "memory",
    "sms": "sms",
    "l2_bytes": "l2",
    "clock_hz": "clock",
    "matrix_clock_hz": "matrix_clock",
    "capability": "capability",
    "nvml_names": "name",
}


def test_every_name_is_there() -> None:
    assert tuple(CATALOGUE) == NAMES and device_names() == ("cpu", *NAMES)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=NAMES)
def test_every_figure_has_a_source_and_no_source_is_without_a_figure(entry: Gpu) -> None:
    known = {word for figure, word in FIGURES.items() if getattr(entry, figure)}
    assert set(entry.sources) == known
    assert all(len(source) > 8 for source in entry.sources.values())


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=NAMES)
def test_the_figures_can_be_true(entry: Gpu) -> None:
    peaks = entry.flops
    assert 5e11 < entry.bandwidth < 1e13 and all(peak > 1e12 for peak in peaks.values())
    assert peaks["fp32"] <= peaks["tf32"] <= peaks["bf16"] == peaks["fp16"]
    for narrow, wide in (("fp8", "bf16"), ("fp4", "fp8"), ("bf16", "tf32")):
        if narrow in peaks:
            assert peaks[narrow] == pytest.approx(2 * peaks[wide], rel=0.03), narrow
    assert ("fp8" in peaks) == (entry.capability >= (8, 9)) and ("fp4" in peaks) == (entry.capability >= (10, 0))
    assert set(entry.narrow_flops) <= set(peaks)
    assert all(rate == pytest.approx(2 * peaks[name], rel=0.01) for name, rate in entry.narrow_flops.items())


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=NAMES)
def test_fp32_is_two_operations_per_lane_and_clock(entry: Gpu) -> None:
    """Four figures of different pages agree: lanes, multiprocessors, clock, peak."""
    if entry.clock_hz is None or entry.sms is None:
        assert entry.name == "b200"
        return
    lanes = entry.sms * CORES_PER_SM[entry.capability]
    assert entry.flops["fp32"] == pytest.approx(2 * lanes * entry.clock_hz, rel=0.01)
    assert entry.peak_at("fp32", entry.clock_hz) == entry.flops["fp32"]


def test_peaks_follow_the_clock_and_the_narrower_accumulation() -> None:
    h200, b200, rtx = (CATALOGUE[name] for name in ("h200", "b200", "rtx-4090"))
    assert h200.peak_at("bf16", 1980e6) == pytest.approx(1070.6e12, rel=1e-3)  # 132 × 4,096 × 1.98 GHz
    assert h200.peak_at("fp32", 1980e6) == 67e12 and h200.peak_at("fp4", 1980e6) is None
    assert b200.peak_at("bf16", 2e9) is None, "its clock is unknown"
    assert rtx.peak_at("fp16", 2520e6) == 330.3e12 and rtx.peak_at("bf16", 2520e6) == 165.2e12


@pytest.mark.parametrize("name", NAMES)
def test_a_shown_device_is_of_its_entry_only(name: str) -> None:
    shown, mib = SHOWN_MIB[name]
    assert entry_of(shown, mib << 20) is CATALOGUE[name]
    assert [other for other in NAMES if CATALOGUE[other].holds(shown, mib << 20)] == [name]
    assert entry_of(shown, mib << 19) is None, "half the memory is another card"
    assert entry_of(f"{shown} NVL", mib << 20) is None and entry_of(shown.lower(), mib << 20) is None


def _row(entry: Gpu) -> str:
    tera = {name: f"{peak / 1e12:g}" for name, peak in entry.flops.items()}
    peaks = [tera.get(name, "–") for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")]
    l2 = "unknown" if entry.l2_bytes is None else str(entry.l2_bytes >> 20)
    clock = "unknown" if entry.clock_hz is None else f"{entry.clock_hz / 1e6:g}"
    capability = ".".join(map(str, entry.capability))
    figures = [f"{entry.bandwidth / 1e9:g}", *peaks, str(entry.memory_gb), l2, str(entry.sms), clock, capability]
    return f"| `{entry.name}` | {' | '.join(figures)} |"


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=NAMES)
def test_the_page_shows_the_catalogue(entry: Gpu) -> None:
    text = PAGE.read_text()
    assert _row(entry) in text.splitlines()
    titles = {re.split("[,;:]", source)[0] for source in entry.sources.values()}
    for title in titles:
        if title.startswith("NVIDIA "):
            assert re.search(rf"^- {re.escape(title)}: .*`{entry.name}`", text, re.MULTILINE), title
