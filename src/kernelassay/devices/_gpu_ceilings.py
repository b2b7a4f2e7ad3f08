"""Ceilings of a GPU, measured on the spot in a process of its own and kept under the unit's fingerprint.

The rule is that of a CPU's ceilings: what was measured stands beside what is published and replaces nothing; a kept
file that is damaged, of another unit, driver or program counts as none. Nothing is measured unasked: it takes the
device for some seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelassay.devices._ceilings import CeilingsError, kept_path, write_record
from kernelassay.records import Ceiling, Device, GpuCeilings, Latency

PROGRAM = Path(__file__).with_name("_gpu_measure.py")
TIMEOUT_S = 180.0
"""Importing torch and starting CUDA take up to 20 s on a busy host, measuring some seconds. [estimated]"""


def gpu_ceilings(device: Device, home: Path, python: str = sys.executable) -> GpuCeilings:
    """Measure the GPU `device` now and keep the result.

    Args:
        device: Kind `cuda`, with its state.
        home: Folder of kept data; `devices/<fingerprint>.json` is written in it.
        python: Interpreter that has torch.

    Raises:
        ValueError: `device` is no GPU.
        CeilingsError: the program did not run or end well, or printed no measurement.
        OSError: the file cannot be written.
    """
    if device.gpu is None:
        raise ValueError(f"only a GPU is measured here, not {device.name!r}")
    begin = time.monotonic()
    text = _run(python, device.gpu.uuid, device.name)
    record = parse(text, device, time.monotonic() - begin)
    write_record(kept_path(device, home), record)
    return record


def kept_gpu_ceilings(device: Device, home: Path) -> GpuCeilings | None:
    """What was measured before on this unit with this driver by this program; None where there is nothing."""
    try:
        record = GpuCeilings.model_validate_json(kept_path(device, home).read_bytes())
    except (OSError, ValidationError):
        return None
    same = (record.fingerprint, record.program) == (device.fingerprint, _program_hash())
    return record if same else None


def _program_hash() -> str:
    return hashlib.sha256(PROGRAM.read_bytes()).hexdigest()


def _run(python: str, uuid: str, name: str) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "PYTHONSAFEPATH": "1"}
    again = f"next: assay device {name} --measure"
    with tempfile.TemporaryDirectory(prefix="kernelassay-gpu-") as folder:
        try:
            done = subprocess.run(
                [python, str(PROGRAM)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CeilingsError(f"the measuring program did not run: {error}; {again}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CeilingsError(f"the measuring program ended with {done.returncode}: {said}; next: assay doctor")
    return done.stdout


def parse(text: str, device: Device, seconds: float) -> GpuCeilings:
    """Read what the program printed.

    Raises:
        CeilingsError: it is no measurement, or of another device.
    """
    again = f"next: assay device {device.name} --measure"
    try:
        found = json.loads(text)
        if device.gpu is not None and not _same_unit(found["uuid"], device.gpu.uuid):
            raise CeilingsError(f"the program measured {found['uuid']}, not {device.gpu.uuid}; {again}")
        return GpuCeilings(
            fingerprint=device.fingerprint,
            model=device.model,
            measured_at=datetime.now(UTC),
            program=_program_hash(),
            torch=found["torch"],
            cuda=found["cuda"],
            seconds=seconds,
            sms=found["sms"],
            l2_bytes=found["l2_bytes"],
            array_bytes=found["array_bytes"],
            bandwidth={name: Ceiling(**row) for name, row in found["bandwidth"].items()},
            rates={name: {edge: Ceiling(**row) for edge, row in rows.items()} for name, rows in found["rates"].items()},
            latency={name: _latency(row) for name, row in found["latency"].items()},
            unknown=found["unknown"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # pydantic's error is a ValueError
        raise CeilingsError(f"the program printed no measurement: {type(error).__name__}: {error}; {again}") from error


def _same_unit(measured: str, wanted: str) -> bool:
    """Torch prints a UUID without the `GPU-` in front."""
    return measured.removeprefix("GPU-") == wanted.removeprefix("GPU-")


def _latency(row: Mapping[str, Any]) -> Latency:
    return Latency(least_us=1e6 * row["least"], median_us=1e6 * row["median"], repetitions=row["repetitions"])
