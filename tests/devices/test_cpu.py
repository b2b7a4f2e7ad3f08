"""The CPU as a device: facts from the kernel's files, a fingerprint that moves only with the hardware."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kernelassay.devices import DeviceError, MachineFacts, detect, device_names, machine_facts

FACTS = MachineFacts(
    model="A Processor",
    microcode="0x1",
    online=8,
    usable=4,
    caches=("L1 Data 32K", "L2 Unified 512K"),
    memory_bytes=32 << 30,
)


def _machine(root: Path, cpuinfo: str, meminfo: str = "MemTotal:       16777216 kB\n") -> tuple[Path, Path]:
    proc, system = root / "proc", root / "system"
    proc.mkdir()
    (proc / "cpuinfo").write_text(cpuinfo)
    (proc / "meminfo").write_text(meminfo)
    for index, (level, kind, size) in enumerate((("1", "Data", "32K"), ("2", "Unified", "1024K"))):
        folder = system / "cpu" / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    return proc, system


def test_facts_are_read(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: A  Processor @ 2 GHz\nmicrocode\t: 0xabc\n\nprocessor\t: 1\n"
    facts = machine_facts(*_machine(tmp_path, cpuinfo))
    assert facts.model == "A  Processor @ 2 GHz"
    assert facts.microcode == "0xabc"
    assert facts.caches == ("L1 Data 32K", "L2 Unified 1024K")
    assert facts.memory_bytes == 16 << 30


def test_unknown_is_said_and_never_invented(tmp_path: Path) -> None:
    facts = machine_facts(tmp_path / "none", tmp_path / "none")
    assert facts.model == os.uname().machine
    assert (facts.microcode, facts.caches, facts.memory_bytes) == ("unknown", (), 0)


def test_arm_has_no_model_name(tmp_path: Path) -> None:
    facts = machine_facts(*_machine(tmp_path, "processor\t: 0\nBogoMIPS\t: 50.0\nModel\t\t: A Board Rev 1\n"))
    assert facts.model == "A Board Rev 1"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "Another"},
        {"microcode": "0x2"},
        {"online": 16},
        {"caches": ("L1 Data 48K",)},
        {"memory_bytes": 64 << 30},
    ],
)
def test_fingerprint_moves_with_the_hardware(change: dict[str, object]) -> None:
    assert replace(FACTS, **change).fingerprint != FACTS.fingerprint  # type: ignore[arg-type]


def test_fingerprint_stays_under_affinity_and_what_a_kernel_reserves() -> None:
    assert replace(FACTS, usable=1).fingerprint == FACTS.fingerprint
    assert replace(FACTS, memory_bytes=(32 << 30) - (100 << 20)).fingerprint == FACTS.fingerprint
    assert len(FACTS.fingerprint) == 16


def test_cores_are_those_of_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        device = detect("cpu")
    finally:
        os.sched_setaffinity(0, before)
    assert device.cores == 1
    assert device.fingerprint == detect("cpu").fingerprint
    assert (device.name, device.kind) == ("cpu", "cpu")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("CPU", "did you mean 'cpu'?"), ("h20", "did you mean 'h200'?"), ("a\nb", r"a\nb"), ("h2000:1", "'h200'?")],
)
def test_unknown_device(name: str, hint: str) -> None:
    with pytest.raises(DeviceError) as caught:
        detect(name)
    assert hint in str(caught.value)
    assert str(caught.value).endswith("next: assay device")
    assert "\n" not in str(caught.value)
    assert device_names()[0] == "cpu" and "h200" in str(caught.value)
