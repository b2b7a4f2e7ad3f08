"""From the name a caller gives to the device that is really there."""

from __future__ import annotations

import difflib
from typing import Any

from kernelassay.devices._catalogue import CATALOGUE
from kernelassay.devices._cpu import cpu_device
from kernelassay.devices._errors import DeviceError
from kernelassay.devices._gpus import gpu_device
from kernelassay.records import Device

__all__ = ["DeviceError", "detect", "device_names", "lease_name"]


def device_names() -> tuple[str, ...]:
    """Names that `detect` knows: the CPU, then the catalogue."""
    return ("cpu", *CATALOGUE)


def detect(name: str, library: Any = None) -> Device:
    """The device called `name`, as found on this machine.

    Args:
        name: `cpu`, or a name of the catalogue; `h200:1` or `h200:GPU-…` chooses among several of one kind.
        library: Stands in for the module `pynvml`.

    Raises:
        DeviceError: the name is not in the catalogue, or its device is not here or cannot be judged on; says what is
            and what to do next.
    """
    if name == "cpu":
        return cpu_device()
    kind = name.partition(":")[0]
    if kind in CATALOGUE:
        return gpu_device(name, library)
    close = difflib.get_close_matches(kind.lower(), device_names(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise DeviceError(f"no device {name!r}; known are: {', '.join(device_names())}{hint}; next: assay device")


def lease_name(device: Device) -> str:
    """Under which name a device is held: a GPU by its unit, however it was asked for."""
    return device.name if device.gpu is None else device.gpu.uuid
