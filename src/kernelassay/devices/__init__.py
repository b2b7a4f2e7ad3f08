"""Which hardware a grade runs on, and what else a result may depend on.

Everything here is read from the machine when asked; nothing is configured and nothing is guessed. Devices are `cpu`
and the GPUs of the catalogue.
"""

from kernelassay.devices._catalogue import CATALOGUE, Gpu, entry_of
from kernelassay.devices._ceilings import CeilingsError, ceilings, kept_ceilings
from kernelassay.devices._cpu import MachineFacts, cpu_device, device_cpus, machine_facts
from kernelassay.devices._detect import DeviceError, detect, device_names
from kernelassay.devices._environment import environment
from kernelassay.devices._gpu_ceilings import gpu_ceilings, kept_gpu_ceilings
from kernelassay.devices._gpus import Unit, gpus, refused
from kernelassay.devices._nvml import NvmlError
from kernelassay.devices._telemetry import DeviceFault, Effect, Exclusivity, Quiet, quiet, telemetry
from kernelassay.devices._toolchain import Compiler, Toolchain, toolchain

__all__ = [
    "CATALOGUE",
    "CeilingsError",
    "Compiler",
    "DeviceError",
    "DeviceFault",
    "Effect",
    "Exclusivity",
    "Gpu",
    "MachineFacts",
    "NvmlError",
    "Quiet",
    "Toolchain",
    "Unit",
    "ceilings",
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
    "machine_facts",
    "quiet",
    "refused",
    "telemetry",
    "toolchain",
]
