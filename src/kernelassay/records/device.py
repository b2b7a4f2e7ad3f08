"""A hardware target, and the environment that a grade ran in."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record

ComputeMode = Literal["default", "exclusive_process", "prohibited", "unknown"]


class GpuState(Record):
    """One GPU as its driver describes it; None is unknown, never off."""

    uuid: str = Field(min_length=1)
    index: int = Field(ge=0)
    """In the driver's order, which another program may count otherwise; the UUID names the unit."""
    minor: int | None = Field(default=None, ge=0)
    """Number in the name of its device node, `/dev/nvidia0` say."""
    driver: str = Field(min_length=1)
    capability: str | None = None
    """Compute capability, `9.0` say."""
    sms: int | None = Field(default=None, ge=1)
    """Multiprocessors."""
    memory_bytes: int = Field(gt=0)
    l2_bytes: int | None = Field(default=None, gt=0)
    """By the catalogue: NVML does not tell."""
    max_sm_clock_mhz: int | None = Field(default=None, gt=0)
    power_limit_w: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    mig: bool | None = None
    """Cut into slices; also None where the card cannot be cut."""
    mps: bool | None = None
    """A process uses the device through the multi-process service, or the service is started."""
    ecc: bool | None = None
    persistence: bool | None = None
    compute_mode: ComputeMode = "unknown"


class Device(Record):
    """What a submission was run on."""

    name: str
    """Catalogue name: `cpu`, `h200`, …"""
    kind: Literal["cpu", "cuda"]
    model: str
    """What the hardware calls itself."""
    fingerprint: str
    """Hash over what identifies this unit; measured ceilings are kept under it."""
    cores: int | None = Field(default=None, ge=1)
    """CPU: cores that the device may use."""
    gpu: GpuState | None = None
    """GPU: its state when it was looked for."""

    @model_validator(mode="after")
    def _a_cpu_is_no_gpu(self) -> Self:
        if self.kind == "cpu" and self.gpu is not None:
            raise ValueError("a device of kind cpu has no GPU")
        return self


class Isolation(Record):
    """How the submission was confined."""

    level: Literal["namespaces", "landlock", "none"]
    reasons: tuple[str, ...] = ()
    """Why a stronger level was not used; empty at the strongest."""
    memory: Literal["cgroup", "watchdog"]
    """What enforced the memory limit."""
    uid_dropped: bool
    """True: ran under an unprivileged uid of its own; False: under the caller's."""


class Environment(Record):
    """What else a time or a result may depend on."""

    kernelassay: str
    python: str
    torch: str
    numpy: str
    platform: str
    """Kernel and libc."""
    cpu_model: str
    cpu_count: int = Field(ge=1)
    compiler: str | None = None
    """First line of `c++ --version`; None where there is none."""
    judge_commit: str | None = None
    """Commit of the judge's own checkout; None when installed from a package."""


class Limits(Record):
    """The documented limits of one grade."""

    build_s: float = 120.0
    load_s: float = 60.0
    """Import and construction."""
    prepare_s: float = 60.0
    call_s: float = 10.0
    """One call on one case."""
    memory_bytes: int = 8 << 30
    processes: int = 256
    file_bytes: int = 1 << 30
    """One file, and all of the scratch together."""
    output_bytes: int = 8 << 20
    """Standard output and error together."""
