"""Which hardware a grade runs on, and what else a result may depend on.

Everything here is read from the machine when asked; nothing is configured and nothing is guessed. This release
knows one device, `cpu`. A lease keeps a device, of whatever name, for one holder at a time.
"""

from kernelassay.devices._ceilings import CeilingsError, ceilings, kept_ceilings
from kernelassay.devices._cpu import MachineFacts, cpu_device, device_cpus, machine_facts
from kernelassay.devices._detect import DeviceError, detect, device_names
from kernelassay.devices._environment import environment
from kernelassay.devices._held import LIMIT_S, HeldRun, run_held, valid_limit
from kernelassay.devices._journal import violations
from kernelassay.devices._lease import Lease, LeaseStatus, Waiting, lease, lease_status
from kernelassay.devices._lease_files import LeaseError
from kernelassay.devices._peaks import PUBLISHED, PublishedPeaks
from kernelassay.devices._toolchain import Compiler, Toolchain, toolchain

__all__ = [
    "LIMIT_S",
    "PUBLISHED",
    "CeilingsError",
    "Compiler",
    "DeviceError",
    "HeldRun",
    "Lease",
    "LeaseError",
    "LeaseStatus",
    "MachineFacts",
    "PublishedPeaks",
    "Toolchain",
    "Waiting",
    "ceilings",
    "cpu_device",
    "detect",
    "device_cpus",
    "device_names",
    "environment",
    "kept_ceilings",
    "lease",
    "lease_status",
    "machine_facts",
    "run_held",
    "toolchain",
    "valid_limit",
    "violations",
]
