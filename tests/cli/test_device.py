"""`assay device` and the doctor's row on GPUs: what is listed, what is shown, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelassay.cli import _checks, _device
from kernelassay.devices import CATALOGUE, DeviceError, detect
from kernelassay.devices._ceilings import kept_path, write_record
from kernelassay.devices._gpu_ceilings import parse
from tests.devices.fake_nvml import FakeDevice, FakeNvml
from tests.devices.test_gpu_ceilings import printed

H200 = FakeDevice()
STRANGER = FakeDevice(name="Tesla T4", memory_mib=15360, capability=(7, 5), lanes=2560)
SLICED = FakeDevice(mig=(1, 1), uuid="GPU-5")
NO_DRIVER = FakeNvml(starts=False)


def test_all_names_are_listed(assay: Callable[..., Any]) -> None:
    ran = assay("device", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert [row["name"] for row in document["devices"]] == ["cpu", *CATALOGUE]
    cpu, h200 = document["devices"][:2]
    assert cpu["here"][0]["device"]["kind"] == "cpu" and cpu["published"] is None
    assert h200["published"]["bandwidth"] == 4.8e12 and h200["published"]["sources"]["bandwidth"]
    shown = assay("device").out
    assert all(name in shown for name in CATALOGUE)


def test_what_is_here_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    library = FakeNvml(H200, STRANGER, SLICED)
    assert _device._list(json=True, library=library) == 0
    document = json.loads(capsys.readouterr().out)
    here = next(row["here"] for row in document["devices"] if row["name"] == "h200")
    assert [place["device"]["gpu"]["index"] for place in here] == [0, 2]
    assert here[0]["refused"] is None and "MIG" in here[1]["refused"]
    assert [other["model"] for other in document["others"]] == ["Tesla T4"] and document["no_gpu_because"] is None
    assert _device._list(json=False, library=library) == 0
    text = capsys.readouterr().out
    assert "yes, 0, 2: is cut into slices" in " ".join(text.split())
    assert "also here: a Tesla T4 with 15360 MiB" in text


def test_a_machine_without_a_driver_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert _device._list(json=False, library=NO_DRIVER) == 0
    assert "no GPU: NVML does not start: Driver Not Loaded" in capsys.readouterr().out


def test_published_figures_need_no_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _device._gpu("b200", tmp_path, measure=False, json=False, library=NO_DRIVER) == 0
    text = capsys.readouterr().out
    for part in ("7700", "rate fp4", "9000", "clock unknown", "Blackwell data sheet", "device 'b200' is not here"):
        assert part in text
    assert _device._gpu("b200", tmp_path, measure=False, json=True, library=NO_DRIVER) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"] is document["ceilings"] is document["telemetry"] is None
    assert document["not_here_because"] and document["published"]["flops"]["fp4"] == 9e15


def test_measured_stands_beside_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = FakeNvml(H200)
    found = detect("h200", library)
    assert _device._gpu("h200", tmp_path, measure=False, json=False, library=library) == 0
    assert "not measured; next: assay device h200 --measure" in capsys.readouterr().out
    write_record(kept_path(found, tmp_path), parse(printed(), found, 12.0))
    assert _device._gpu("h200", tmp_path, measure=False, json=False, library=library) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "memory copy 4800 4260.0 3834.0 88.8 % GB/s",
        "rate bf16, 8192³ 989.5 790.0 711.0 79.8 % Tflop/s",
        "rate fp64 67 – – – Tflop/s",
        "events: 1.25 µs",
        "unknown: fp8 4096: no such kernel",
        "now: 1980 MHz, 41 °C, held back by: none",
    ):
        assert part in text, part
    assert _device._gpu("h200", tmp_path, measure=False, json=True, library=library) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ceilings"]["bandwidth"]["copy"]["value"] == 4.26e12
    assert document["device"]["gpu"]["uuid"] == document["telemetry"]["uuid"] == H200.uuid


def test_nothing_is_measured_where_it_is_not(tmp_path: Path, assay: Callable[..., Any]) -> None:
    with pytest.raises(DeviceError, match="next: assay doctor"):
        _device._gpu("h200", tmp_path, measure=True, json=True, library=NO_DRIVER)
    ran = assay("device", "h300", "--json")
    assert ran.code == 2
    error = json.loads(ran.out)["error"]
    assert "did you mean 'h200'" in error["what"] and error["next"] == "assay device"


def test_the_doctor_says_which_are_known(tmp_path: Path) -> None:
    row = _checks.gpu(tmp_path, FakeNvml(H200, STRANGER, FakeDevice(mig=(1, 1))))
    assert row.state == "ok"
    for part in ("NVIDIA H200 (h200), driver 580", "Tesla T4 (not in the catalogue)", "(h200; is cut into slices"):
        assert part in row.detail, row.detail
    assert _checks.gpu(tmp_path, FakeNvml()).state == "missing"
    assert _checks.gpu(tmp_path, FakeNvml(starts=False)).state == "missing"
    (tmp_path / "nvidia0").touch()
    blocked = _checks.gpu(tmp_path, FakeNvml(starts=False))
    assert blocked.state == "limited" and "Driver Not Loaded" in blocked.detail and blocked.fix
