"""A small NVML: the functions that the judge asks, over a list of made devices, with the real library's constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class FakeNVMLError(Exception):
    """What the real binding raises."""


@dataclass
class FakeDevice:
    """One device; a figure that is None is not supported by it."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    memory_mib: int = 143771
    capability: tuple[int, int] | None = (9, 0)
    lanes: int | None = 16896
    mig: tuple[int, int] | None = (0, 0)
    ecc: tuple[int, int] | None = (1, 1)
    persistence: int | None = 1
    compute_mode: int | None = 0
    max_clock: int | None = 1980
    minor: int | None = 0
    power_limit_mw: int | None = 700_000
    power_mw: int | None = 120_500
    clocks: dict[int, int] = field(default_factory=lambda: {1: 1980, 2: 3201})
    reasons: int | None = 0
    temperature: int | None = 41
    slowdown: int | None = 89
    use: int | None = 7
    compute: list[tuple[int, int | None]] | None = field(default_factory=list)
    graphics: list[tuple[int, int | None]] | None = None
    mps: list[tuple[int, int | None]] | None = field(default_factory=list)


class FakeNvml:
    """Stands in for the module `pynvml`."""

    NVMLError = FakeNVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def __init__(self, *devices: FakeDevice, driver: str = "580.159.04", starts: bool = True) -> None:
        self.devices = devices
        self.driver = driver
        self.starts = starts
        self.open = 0
        """Starts without an end."""

    def nvmlInit(self) -> None:
        if not self.starts:
            raise FakeNVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        """Everything else; a function that is not here is one that an old driver lacks."""
        if name == "nvmlSystemGetDriverVersion":
            return lambda: self.driver
        if name == "nvmlDeviceGetCount":
            return lambda: len(self.devices)
        if name == "nvmlDeviceGetHandleByIndex":
            return self._at
        if name == "nvmlDeviceGetHandleByUUID":
            return self._by_uuid
        if name not in ANSWERS:
            raise AttributeError(name)
        return lambda device, *arguments: self._answer(name, device, *arguments)

    def _at(self, index: int) -> FakeDevice:
        return self.devices[index]

    def _by_uuid(self, uuid: str) -> FakeDevice:
        for device in self.devices:
            if device.uuid == uuid:
                return device
        raise FakeNVMLError("Not Found")

    def _answer(self, name: str, device: FakeDevice, *arguments: Any) -> Any:
        assert self.open == 1, "asked while NVML is closed"
        answer = ANSWERS[name](device, *arguments)
        if answer is None:
            raise FakeNVMLError("Not Supported")
        return answer


def _listed(rows: list[tuple[int, int | None]] | None) -> list[SimpleNamespace] | None:
    return None if rows is None else [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in rows]


ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetName": lambda d: d.name,
    "nvmlDeviceGetUUID": lambda d: d.uuid,
    "nvmlDeviceGetMinorNumber": lambda d: d.minor,
    "nvmlDeviceGetMemoryInfo": lambda d: SimpleNamespace(total=d.memory_mib << 20),
    "nvmlDeviceGetCudaComputeCapability": lambda d: d.capability,
    "nvmlDeviceGetNumGpuCores": lambda d: d.lanes,
    "nvmlDeviceGetMaxClockInfo": lambda d, _which: d.max_clock,
    "nvmlDeviceGetEnforcedPowerLimit": lambda d: d.power_limit_mw,
    "nvmlDeviceGetMigMode": lambda d: d.mig,
    "nvmlDeviceGetEccMode": lambda d: d.ecc,
    "nvmlDeviceGetPersistenceMode": lambda d: d.persistence,
    "nvmlDeviceGetComputeMode": lambda d: d.compute_mode,
    "nvmlDeviceGetClockInfo": lambda d, which: d.clocks.get(which),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda d: d.reasons,
    "nvmlDeviceGetPowerUsage": lambda d: d.power_mw,
    "nvmlDeviceGetTemperature": lambda d, _which: d.temperature,
    "nvmlDeviceGetTemperatureThreshold": lambda d, _which: d.slowdown,
    "nvmlDeviceGetUtilizationRates": lambda d: None if d.use is None else SimpleNamespace(gpu=d.use),
    "nvmlDeviceGetComputeRunningProcesses": lambda d: _listed(d.compute),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda d: _listed(d.graphics),
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda d: _listed(d.mps),
}
