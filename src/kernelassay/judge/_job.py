"""What a worker is started with, and where the judge draws and compares: the same for grades, replays, comparisons."""

from __future__ import annotations

from pathlib import Path

import torch

from kernelassay.decks import LoadedProblem
from kernelassay.devices import device_cpus
from kernelassay.judge._intake import UsageError
from kernelassay.records import Device, Limits, Manifest
from kernelassay.session import Job


def job_for(loaded: LoadedProblem, folder: Path, manifest: Manifest, limits: Limits, device: Device) -> Job:
    """The job of a submission on a device; the worker sees that device alone."""
    cpus = device_cpus()[1]
    return Job(
        problem=loaded.problem,
        folder=folder,
        manifest=manifest,
        kind=manifest.entry,
        limits=limits,
        threads=len(cpus),
        cpus=cpus,
        env={} if device.gpu is None else {"CUDA_VISIBLE_DEVICES": device.gpu.uuid},
        device=device.kind,
        gpu_minor=None if device.gpu is None else device.gpu.minor,
    )


def settle_beside(device: Device) -> None:
    """Let the judge draw and compare on `device`; nothing to do for a CPU.

    Raises:
        UsageError: the judge's torch does not see that GPU.
    """
    if device.gpu is None:
        return
    wanted = device.gpu.uuid.removeprefix("GPU-")
    seen = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    if wanted not in seen:
        raise UsageError(
            f"torch {torch.__version__} sees {', '.join(seen) or 'no GPU'}, not {device.name} ({device.gpu.uuid})\n"
            "next: a torch built for CUDA (`pip install torch`), and no CUDA_VISIBLE_DEVICES that hides the device"
        )
    torch.cuda.set_device(seen.index(wanted))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
