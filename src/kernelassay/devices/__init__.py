"""Which hardware a grade runs on, and what else a result may depend on.

Everything here is read from the machine when asked; nothing is configured and nothing is guessed. This release
knows one device, `cpu`.
"""

from kernelassay.devices._ceilings import CeilingsError, ceilings, kept_ceilings
from kernelassay.devices._cpu import MachineFacts, cpu_device, device_cpus, machine_facts
from kernelassay.devices._detect import DeviceError, detect, device_names
from kernelassay.devices._environment import environment
from kernelassay.devices._peaks import PUBLISHED, PublishedPeaks
from kernelassay.devices._toolchain import Compiler, Toolchain, toolchain

__all__ = [
    "PUBLISHED",
    "CeilingsError",
    "Compiler",
    "DeviceError",
    "MachineFacts",
    "PublishedPeaks",
    "Toolchain",
    "ceilings",
    "cpu_device",
    "detect",
    "device_cpus",
    "device_names",
    "environment",
    "kept_ceilings",
    "machine_facts",
    "toolchain",
]
