"""The CPU as a device: what it calls itself, which cores may be used, and a name for this unit.

The fingerprint changes when a measured ceiling would: another model, another microcode, another number of cores,
other caches, another size of memory. It does not change with load, with affinity or with a reboot.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from kernelassay.records import Device

_UNKNOWN = "unknown"
_FINGERPRINT_LENGTH = 16
"""Hexadecimal digits kept: 64 bits, far more than the number of machines one ledger will see."""
_GIB = 1 << 30


@dataclass(frozen=True)
class MachineFacts:
    """What identifies this machine as a CPU device."""

    model: str
    """`model name` of /proc/cpuinfo, or the architecture where the kernel gives no name."""
    microcode: str
    online: int
    """Logical cores of the machine, whether or not this process may use them."""
    usable: int
    """Logical cores that this process may run on, by its affinity."""
    caches: tuple[str, ...]
    """`L1 Data 32K`, … of the first core, in the kernel's order; empty where the kernel does not say."""
    memory_bytes: int
    """Physical memory; 0 where the kernel does not say."""

    @property
    def fingerprint(self) -> str:
        """Name of this unit; memory counts in whole GiB since what a kernel reserves differs between boots."""
        identity = [
            self.model,
            self.microcode,
            self.online,
            list(self.caches),
            round(self.memory_bytes / _GIB),
        ]
        text = json.dumps(identity, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_LENGTH]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str | None:
    """First value of `name : value` in the style of /proc/cpuinfo and /proc/meminfo."""
    found = re.search(rf"^{re.escape(name)}\s*:\s*(\S.*)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else None


def _caches(system: Path) -> tuple[str, ...]:
    folders = sorted((system / "cpu" / "cpu0" / "cache").glob("index*"))
    rows = []
    for folder in folders:
        level, kind, size = (_read(folder / name).strip() for name in ("level", "type", "size"))
        if level and size:
            rows.append(f"L{level} {kind or _UNKNOWN} {size}")
    return tuple(rows)


def _memory_bytes(meminfo: str) -> int:
    total = _field(meminfo, "MemTotal")
    return int(total.split()[0]) * 1024 if total else 0


def machine_facts(proc: Path = Path("/proc"), system: Path = Path("/sys/devices/system")) -> MachineFacts:
    """Read the facts from the kernel's files; the two roots can be replaced by a test."""
    cpuinfo = _read(proc / "cpuinfo")
    model = _field(cpuinfo, "model name") or _field(cpuinfo, "Model") or platform.machine() or _UNKNOWN
    return MachineFacts(
        model=model,
        microcode=_field(cpuinfo, "microcode") or _UNKNOWN,
        online=os.cpu_count() or 1,
        usable=len(os.sched_getaffinity(0)),
        caches=_caches(system),
        memory_bytes=_memory_bytes(_read(proc / "meminfo")),
    )


def device_cpus() -> tuple[int, frozenset[int]]:
    """The judge's own core, and the cores that are the device: all others, or the same one where there is no other."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[0], frozenset(cpus[1:] or cpus)


def cpu_device() -> Device:
    """The CPU of this machine as a record."""
    facts = machine_facts()
    return Device(name="cpu", kind="cpu", model=facts.model, fingerprint=facts.fingerprint, cores=len(device_cpus()[1]))
