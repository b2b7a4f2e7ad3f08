"""The GPUs of this machine, and which of them a name of the catalogue means.

The rule: a device is of an entry only if NVML gives it that entry's name and memory. A near miss is told and refused,
never taken: a grade on the wrong card is worse than none. Where several match, the caller chooses.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelassay.devices._catalogue import CATALOGUE, CORES_PER_SM, Gpu, entry_of
from kernelassay.devices._errors import DeviceError
from kernelassay.devices._nvml import Nvml, NvmlError, opened
from kernelassay.records import ComputeMode, Device, GpuState

NEXT = "next: assay device"
MPS_FOLDER = Path("/tmp/nvidia-mps")
"""Where the multi-process service keeps its pipes unless `CUDA_MPS_PIPE_DIRECTORY` names another folder. Source:
NVIDIA Multi-Process Service documentation."""
_COMPUTE_MODES: dict[str, ComputeMode] = {
    "NVML_COMPUTEMODE_DEFAULT": "default",
    "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS": "exclusive_process",
    "NVML_COMPUTEMODE_PROHIBITED": "prohibited",
}
_FINGERPRINT_LENGTH = 16
"""Hexadecimal digits, as for a CPU."""


@dataclass(frozen=True)
class Unit:
    """One GPU of this machine."""

    model: str
    """What NVML calls it."""
    state: GpuState
    entry: Gpu | None
    """Of the catalogue; None: no entry has this name and memory."""

    @property
    def description(self) -> str:
        """For a message: what it is, and which entry."""
        named = f"{'an' if self.model.startswith('N') else 'a'} {self.model}"
        if self.entry is not None:
            return f"{named}, which is {self.entry.name}"
        return f"{named} with {self.state.memory_bytes >> 20} MiB, which is not in the catalogue"

    @property
    def device(self) -> Device:
        """The record; its fingerprint changes with the unit and with the driver."""
        identity = f"{self.state.uuid} {self.state.driver}"
        return Device(
            name="unknown" if self.entry is None else self.entry.name,
            kind="cuda",
            model=self.model,
            fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:_FINGERPRINT_LENGTH],
            gpu=self.state,
        )


def gpus(library: Any = None) -> tuple[Unit, ...]:
    """Every GPU that the driver shows, in its order.

    Args:
        library: Stands in for the module `pynvml`.

    Raises:
        NvmlError: there is no usable driver.
    """
    with opened(library) as nvml:
        driver = nvml.text("nvmlSystemGetDriverVersion") or "unknown"
        count = nvml.ask("nvmlDeviceGetCount") or 0
        found = [_unit(nvml, index, driver) for index in range(count)]
    return tuple(unit for unit in found if unit is not None)


def _unit(nvml: Nvml, index: int, driver: str) -> Unit | None:
    """The device at `index`; None where it does not say what it is (lost from the bus, or not ours to open)."""
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return None
    model, uuid = nvml.text("nvmlDeviceGetName", handle), nvml.text("nvmlDeviceGetUUID", handle)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if not model or not uuid or memory is None:
        return None
    entry = entry_of(model, int(memory.total))
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    limit = nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    state = GpuState(
        uuid=uuid,
        index=index,
        minor=nvml.ask("nvmlDeviceGetMinorNumber", handle),
        driver=driver,
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        sms=_sms(nvml.ask("nvmlDeviceGetNumGpuCores", handle), capability),
        memory_bytes=int(memory.total),
        l2_bytes=None if entry is None else entry.l2_bytes,
        max_sm_clock_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, nvml.constant("NVML_CLOCK_SM")),
        power_limit_w=None if not limit else limit / 1e3,
        mig=nvml.switch("nvmlDeviceGetMigMode", handle),
        mps=_mps(nvml, handle),
        ecc=nvml.switch("nvmlDeviceGetEccMode", handle),
        persistence=nvml.switch("nvmlDeviceGetPersistenceMode", handle),
        compute_mode=_compute_mode(nvml, handle),
    )
    return Unit(model=model, state=state, entry=entry)


def _sms(lanes: int | None, capability: tuple[int, int] | None) -> int | None:
    per_sm = CORES_PER_SM.get(tuple(capability)) if capability is not None else None  # type: ignore[arg-type]
    return lanes // per_sm if lanes and per_sm else None


def _mps(nvml: Nvml, handle: Any) -> bool | None:
    """Whether processes share the device through the multi-process service, or could since it is started."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER)
    if (folder / "control").exists():
        return True
    clients = nvml.ask("nvmlDeviceGetMPSComputeRunningProcesses", handle)
    return None if clients is None else bool(clients)


def _compute_mode(nvml: Nvml, handle: Any) -> ComputeMode:
    mode = nvml.ask("nvmlDeviceGetComputeMode", handle)
    return next((word for name, word in _COMPUTE_MODES.items() if nvml.constant(name) == mode), "unknown")


def choose(wanted: str, units: Sequence[Unit]) -> Unit:
    """The one of `units` that `wanted` means: a name of the catalogue, alone or with `:INDEX` or `:UUID` behind it.

    Raises:
        DeviceError: there is none, several match, or the one that matches is cut into slices or closed to programs.
    """
    name, _, which = wanted.partition(":")
    matching = [unit for unit in units if unit.entry is not None and unit.entry.name == name]
    if not matching:
        raise DeviceError(f"no {CATALOGUE[name].title} ({name}) here: {_present(units)}; {NEXT}")
    if which:
        matching = [unit for unit in matching if which in (str(unit.state.index), unit.state.uuid)]
        if not matching:
            raise DeviceError(f"no {name} is {which!r} here: {_present(units)}; {NEXT}")
    if len(matching) > 1:
        choices = ", ".join(f"{name}:{unit.state.index} ({unit.state.uuid})" for unit in matching)
        first = matching[0].state.index
        raise DeviceError(
            f"{len(matching)} devices are {name}: {choices}; choose one; next: assay device {name}:{first}"
        )
    (unit,) = matching
    refusal = refused(unit.state)
    if refusal is not None:
        raise DeviceError(f"{name} ({unit.state.uuid}) {refusal}; {NEXT}")
    return unit


def refused(state: GpuState) -> str | None:
    """Why a device that is here cannot be judged on; None: it can."""
    if state.mig:
        return "is cut into slices (MIG), and a slice is not the device of the catalogue; its administrator can undo it"
    if state.compute_mode == "prohibited":
        return "is closed to programs (compute mode prohibited); its administrator can open it"
    if state.compute_mode == "exclusive_process":
        return "takes one program only (compute mode exclusive), and a grade needs two; its administrator can open it"
    return None


def _present(units: Sequence[Unit]) -> str:
    if not units:
        return "the driver shows no GPU"
    return f"this machine has {'; '.join(unit.description for unit in units)}"


def gpu_device(wanted: str, library: Any = None) -> Device:
    """The record of the GPU that `wanted` means.

    Args:
        wanted: A name of the catalogue, alone or with `:INDEX` or `:UUID` behind it.
        library: Stands in for the module `pynvml`.

    Raises:
        DeviceError: no driver, no such device, several, or one that cannot be judged on.
    """
    try:
        units = gpus(library)
    except NvmlError as error:
        raise DeviceError(f"device {wanted!r} is not here: {error}; next: assay doctor") from error
    return choose(wanted, units).device
