"""Ceilings of a GPU: what a measuring program prints becomes a record, or is refused. No GPU is needed here."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelassay.devices import CeilingsError, detect, gpu_ceilings, kept_gpu_ceilings
from kernelassay.devices._gpu_ceilings import parse
from kernelassay.devices._gpu_measure import ARRAY_L2, ARRAY_MIN_BYTES, array_bytes
from kernelassay.records import Device
from tests.devices.fake_nvml import FakeDevice, FakeNvml

DEVICE = detect("h200", FakeNvml(FakeDevice()))


def row(value: float) -> dict[str, Any]:
    return {"value": value, "median": 0.9 * value, "repetitions": 11}


def printed(**changes: Any) -> str:
    latency = {"least": 1.25e-6, "median": 1.3e-6, "repetitions": 11}
    document = {
        "name": "NVIDIA H200",
        "uuid": FakeDevice().uuid.removeprefix("GPU-"),
        "torch": "2.11.0",
        "cuda": "13.0",
        "sms": 132,
        "l2_bytes": 60 << 20,
        "array_bytes": 1 << 30,
        "bandwidth": {"copy": row(4.26e12), "read": row(4.3e12)},
        "rates": {"bf16": {"4096": row(770e12), "8192": row(790e12)}},
        "latency": {"events": latency, "launch": latency, "next_launch": latency},
        "unknown": {"fp8 4096": "no such kernel"},
    }
    return json.dumps(document | changes)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that prints what stands in `answer` beside it, and keeps what it was started with."""
    path = tmp_path / "python"
    path.write_text(
        f"#!{sys.executable}\nimport os, sys, pathlib\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'started').write_text(os.environ['CUDA_VISIBLE_DEVICES'] + ' ' + sys.argv[1])\n"
        "print((here / 'answer').read_text())\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "answer").write_text(printed())
    return path


def test_a_measurement_is_kept_and_read_again(tmp_path: Path, python: Path) -> None:
    home = tmp_path / "home"
    assert kept_gpu_ceilings(DEVICE, home) is None
    measured = gpu_ceilings(DEVICE, home, str(python))
    assert (tmp_path / "started").read_text().split()[0] == FakeDevice().uuid, "no other card is seen"
    assert measured.bandwidth["copy"].value == 4.26e12 and measured.l2_bytes == 60 << 20
    best = measured.rate("bf16")
    assert best is not None and best.value == 790e12 and measured.rate("fp8") is None
    assert measured.latency["events"].least_us == pytest.approx(1.25)
    assert kept_gpu_ceilings(DEVICE, home) == measured
    assert [path.name for path in (home / "devices").iterdir()] == [f"{DEVICE.fingerprint}.json"]


@pytest.mark.parametrize("changes", [{"fingerprint": "beef"}, {"program": "old"}, {"schema_version": "9"}])
def test_a_stale_file_counts_as_none(tmp_path: Path, python: Path, changes: dict[str, object]) -> None:
    gpu_ceilings(DEVICE, tmp_path, str(python))
    path = tmp_path / "devices" / f"{DEVICE.fingerprint}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert kept_gpu_ceilings(DEVICE, tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        printed(uuid="99999999"),
        printed(bandwidth={}),
        printed(bandwidth={"copy": row(float("nan"))}),
        printed(rates={"bf16": {"4096": row(0.0)}}),
        printed(latency={"launch": {"least": 2.0, "median": 1.0, "repetitions": 3}}),
    ],
)
def test_output_that_is_no_measurement_of_this_device_is_refused(text: str) -> None:
    with pytest.raises(CeilingsError, match="next: assay device h200 --measure"):
        parse(text, DEVICE, 1.0)


def test_a_program_that_sees_no_gpu_says_so(tmp_path: Path) -> None:
    """The real program: the named card does not exist on any machine."""
    with pytest.raises(CeilingsError, match="ended with 3: torch sees no GPU; next: assay doctor"):
        gpu_ceilings(DEVICE, tmp_path)
    assert not (tmp_path / "devices").exists()


def test_an_interpreter_that_is_not_there_and_a_device_that_is_no_gpu(tmp_path: Path) -> None:
    with pytest.raises(CeilingsError, match="did not run"):
        gpu_ceilings(DEVICE, tmp_path, str(tmp_path / "none"))
    with pytest.raises(ValueError, match="only a GPU"):
        gpu_ceilings(Device(name="cpu", kind="cpu", model="m", fingerprint="f00d"), tmp_path)


@pytest.mark.parametrize(
    ("l2", "free", "expected"),
    [
        (60 << 20, 140 << 30, ARRAY_MIN_BYTES),
        (512 << 20, 140 << 30, ARRAY_L2 * (512 << 20)),
        (60 << 20, 4 << 30, (4 << 30) // 8),
        (60 << 20, 0, 4096),
    ],
)
def test_arrays_outgrow_the_cache_and_fit_the_memory(l2: int, free: int, expected: int) -> None:
    assert array_bytes(l2, free) == expected
