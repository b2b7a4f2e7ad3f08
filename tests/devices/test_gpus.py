"""Which GPU a name means: found by NVML's name and memory, or refused with what is here instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelassay.devices import DeviceError, NvmlError, _gpus, detect, gpus
from kernelassay.records import Device
from tests.devices.fake_nvml import ANSWERS, FakeDevice, FakeNvml

H200 = FakeDevice()
OTHER_H200 = FakeDevice(uuid="GPU-99999999-2222-3333-4444-555555555555")
H100 = FakeDevice(name="NVIDIA H100 80GB HBM3", memory_mib=81559)
STRANGER = FakeDevice(name="Tesla T4", memory_mib=15360, capability=(7, 5), lanes=2560)


@pytest.fixture(autouse=True)
def no_mps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "mps"
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    return folder


def test_the_device_becomes_a_record() -> None:
    library = FakeNvml(H200)
    device = detect("h200", library)
    assert library.open == 0
    assert (device.name, device.kind, device.model, device.cores) == ("h200", "cuda", "NVIDIA H200", None)
    state = device.gpu
    assert state is not None and state.uuid == H200.uuid and state.driver == "580.159.04"
    assert (state.index, state.capability, state.sms, state.memory_bytes) == (0, "9.0", 132, 143771 << 20)
    assert (state.l2_bytes, state.max_sm_clock_mhz, state.power_limit_w) == (60 << 20, 1980, 700.0)
    assert (state.mig, state.mps, state.ecc, state.persistence) == (False, False, True, True)
    assert state.compute_mode == "default"
    assert Device.model_validate_json(device.model_dump_json()) == device


def test_the_fingerprint_is_of_unit_and_driver() -> None:
    first = detect("h200", FakeNvml(H200)).fingerprint
    assert first == detect("h200", FakeNvml(H100, H200)).fingerprint, "not of its place"
    assert first != detect("h200", FakeNvml(OTHER_H200)).fingerprint
    assert first != detect("h200", FakeNvml(H200, driver="590.1")).fingerprint
    assert len(first) == 16 and int(first, 16) >= 0


def test_what_a_device_does_not_tell_is_unknown() -> None:
    silent = FakeDevice(
        capability=None,
        lanes=None,
        mig=None,
        ecc=None,
        persistence=None,
        compute_mode=None,
        max_clock=None,
        power_limit_mw=None,
        mps=None,
    )
    state = detect("h200", FakeNvml(silent)).gpu
    assert state is not None
    unknown = (state.capability, state.sms, state.max_sm_clock_mhz, state.power_limit_w, state.mig, state.mps)
    assert unknown == (None,) * 6 and (state.ecc, state.persistence, state.compute_mode) == (None, None, "unknown")


def test_multi_process_service_is_seen(no_mps: Path) -> None:
    clients = FakeDevice(mps=[(77, 1 << 20)])
    assert gpus(FakeNvml(clients))[0].state.mps is True
    no_mps.mkdir()
    (no_mps / "control").touch()
    assert gpus(FakeNvml(H200))[0].state.mps is True


@pytest.mark.parametrize(
    ("name", "devices", "said"),
    [
        ("h200", (H100,), "this machine has an NVIDIA H100 80GB HBM3, which is h100-sxm"),
        ("h200", (STRANGER,), "this machine has a Tesla T4 with 15360 MiB, which is not in the catalogue"),
        ("h200", (), "the driver shows no GPU"),
        ("a100", (FakeDevice(name="NVIDIA A100-SXM4-80GB", memory_mib=40960),), "with 40960 MiB, which is not in"),
        ("h200", (H200, H100, OTHER_H200), f"2 devices are h200: h200:0 ({H200.uuid}), h200:2 ({OTHER_H200.uuid})"),
        ("h200:1", (H200, H100), "no h200 is '1' here"),
        ("h200:GPU-1", (H200,), "no h200 is 'GPU-1' here"),
        ("h200", (FakeDevice(mig=(1, 1)),), "is cut into slices (MIG)"),
        ("h200", (FakeDevice(compute_mode=2),), "is closed to programs"),
        ("h200", (FakeDevice(compute_mode=3),), "takes one program only"),
    ],
)
def test_refusals_say_what_is_here_and_what_is_next(name: str, devices: tuple[FakeDevice, ...], said: str) -> None:
    with pytest.raises(DeviceError) as caught:
        detect(name, FakeNvml(*devices))
    message = str(caught.value)
    assert said in message and "; next: assay device" in message and "\n" not in message


def test_several_are_chosen_by_index_or_uuid() -> None:
    library = FakeNvml(H200, H100, OTHER_H200)
    for name, uuid in (("h200:0", H200.uuid), ("h200:2", OTHER_H200.uuid), (f"h200:{H200.uuid}", H200.uuid)):
        device = detect(name, library)
        assert device.gpu is not None and (device.name, device.gpu.uuid) == ("h200", uuid)
    with pytest.raises(DeviceError, match=r"next: assay device h200:0$"):
        detect("h200", library)


def test_a_device_that_only_wants_slicing_later_is_whole_now() -> None:
    assert detect("h200", FakeNvml(FakeDevice(mig=(0, 1)))).name == "h200"


def test_a_lost_device_hides_no_other() -> None:
    lost = FakeDevice(name="")
    assert [unit.model for unit in gpus(FakeNvml(lost, H200))] == ["NVIDIA H200"]


def test_a_driver_that_does_not_answer_is_told() -> None:
    with pytest.raises(DeviceError, match="device 'h200' is not here: NVML does not start: Driver Not Loaded"):
        detect("h200", FakeNvml(H200, starts=False))


def test_without_a_driver_everything_says_so(tmp_path: Path) -> None:
    """The real binding, in a process that cannot find the driver's library."""
    program = (
        "import ctypes, json\n"
        "real = ctypes.CDLL\n"
        "def missing(name, *rest, **more):\n"
        "    if 'nvidia-ml' in str(name): raise OSError(name)\n"
        "    return real(name, *rest, **more)\n"
        "ctypes.CDLL = missing\n"
        "from kernelassay.devices import DeviceError, NvmlError, detect, gpus\n"
        "said = []\n"
        "for call in (gpus, lambda: detect('h200')):\n"
        "    try: call()\n"
        "    except (NvmlError, DeviceError) as error: said.append(f'{type(error).__name__}: {error}')\n"
        "print(json.dumps(said))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout)
    assert first.startswith("NvmlError: NVML does not start: NVML Shared Library Not Found"), first
    assert second.startswith("DeviceError: device 'h200' is not here: NVML does not start") and "next: assay" in second


def test_without_the_binding_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="nvidia-ml-py"):
        gpus()


def test_lanes_of_an_unlisted_capability_are_no_multiprocessors() -> None:
    assert gpus(FakeNvml(STRANGER))[0].state.sms is None
    assert _gpus._sms(6912, (8, 0)) == 108


def test_the_stand_in_is_the_real_library_in_miniature() -> None:
    """Every function and constant that the judge asks exists in the real binding, with the stand-in's value."""
    import pynvml

    assert issubclass(pynvml.NVMLError, Exception)
    for name in (*ANSWERS, "nvmlInit", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"):
        assert callable(getattr(pynvml, name)), name
    constants = [name for name in vars(FakeNvml) if name.startswith("NVML_")]
    assert len(constants) == 7
    for name in constants:
        assert getattr(pynvml, name) == getattr(FakeNvml, name), name
