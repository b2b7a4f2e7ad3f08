"""Which hardware a grade runs on, and what else a result may depend on.

Everything here is read from the machine when asked; nothing is configured and nothing is guessed. Devices are `cpu`
and the GPUs of the catalogue. A lease keeps a device, of whatever name, for one holder at a time.
"""

from kernelassay.devices._catalogue import CATALOGUE, Gpu, entry_of
from kernelassay.devices._ceilings import CeilingsError, ceilings, kept_ceilings
from kernelassay.devices._cpu import MachineFacts, cpu_device, device_cpus, machine_facts
from kernelassay.devices._detect import DeviceError, detect, device_names, lease_name
from kernelassay.devices._environment import environment
from kernelassay.devices._gpu_ceilings import gpu_ceilings, kept_gpu_ceilings
from kernelassay.devices._gpus import Unit, gpus, refused
from kernelassay.devices._held import LIMIT_S, HeldRun, run_held, valid_limit
from kernelassay.devices._journal import violations
from kernelassay.devices._lease import Lease, LeaseStatus, Waiting, lease, lease_status
from kernelassay.devices._lease_files import LeaseError
from kernelassay.devices._nvml import NvmlError
from kernelassay.devices._telemetry import DeviceFault, Effect, Exclusivity, Quiet, quiet, telemetry
from kernelassay.devices._toolchain import Compiler, Toolchain, compiler_version, toolchain

__all__ = [
    "CATALOGUE",
    "LIMIT_S",
    "CeilingsError",
    "Compiler",
    "DeviceError",
    "DeviceFault",
    "Effect",
    "Exclusivity",
    "Gpu",
    "HeldRun",
    "Lease",
    "LeaseError",
    "LeaseStatus",
    "MachineFacts",
    "NvmlError",
    "Quiet",
    "Toolchain",
    "Unit",
    "Waiting",
    "ceilings",
    "compiler_version",
    "cpu_device",
    "detect",
    "device_cpus",
    "device_names",
    "entry_of",
    "environment",
    "gpu_ceilings",
    "gpus",
    "kept_ceilings",
    "kept_gpu_ceilings",
    "lease",
    "lease_name",
    "lease_status",
    "machine_facts",
    "quiet",
    "refused",
    "run_held",
    "telemetry",
    "toolchain",
    "valid_limit",
    "violations",
]
