"""Ceilings: measured for real once, and kept only as long as they are true."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelassay.devices import _ceilings
from kernelassay.devices._ceilings import CeilingsError, cache_sizes, ceilings
from kernelassay.records import Ceilings, Device

DEVICE = Device(name="cpu", kind="cpu", model="m", fingerprint="f00d", cores=1)


def line(name: str, value: float = 2e10) -> str:
    return f"{name} {value} {value} 5"


GOOD = "\n".join(line(name) for name in ("read", "copy", "triad", "l1", "l2", "fp32", "fp64", "int8"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...]]]:
    """Replace the program by its output; returns what it was run with."""
    calls: list[tuple[int, tuple[int, ...]]] = []

    def run(threads: int, cpus: tuple[int, ...], _sizes: object) -> str:
        calls.append((threads, cpus))
        return GOOD

    monkeypatch.setattr(_ceilings, "_run_program", run)
    return calls


def test_this_machine_is_measured(tmp_path: Path) -> None:
    measured = ceilings(DEVICE, tmp_path)
    assert measured.method == "c" and measured.compiler
    assert set(measured.bandwidth) == {"read", "copy", "triad"} and set(measured.in_cache) == {"l1", "l2"}
    assert 5e8 < measured.memory_bytes_s < 1e13
    assert measured.cache_bytes_s is not None and measured.cache_bytes_s > measured.bandwidth["read"].value
    assert measured.rates["fp32"].value > 1.2 * measured.rates["fp64"].value > 1e8
    assert {"int8", "bf16", "fp16"} <= {*measured.rates, *measured.unknown, *measured.no_unit}
    path = tmp_path / "devices" / "f00d.json"
    assert Ceilings.model_validate_json(path.read_text()) == measured
    assert ceilings(DEVICE, tmp_path) == measured
    assert [entry.name for entry in path.parent.iterdir()] == ["f00d.json"]


def test_a_good_file_is_used_and_measure_overrides(tmp_path: Path, runs: list[object]) -> None:
    first = ceilings(DEVICE, tmp_path)
    assert ceilings(DEVICE, tmp_path) == first and len(runs) == 1
    ceilings(DEVICE, tmp_path, measure=True)
    assert len(runs) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"schema_version": "9"}', "\x00\xff"])
def test_a_damaged_file_is_measured_again(tmp_path: Path, runs: list[object], content: str) -> None:
    path = tmp_path / "devices" / "f00d.json"
    path.parent.mkdir()
    path.write_bytes(content.encode("latin-1"))
    assert ceilings(DEVICE, tmp_path).fingerprint == "f00d"
    assert len(runs) == 1 and json.loads(path.read_text())["fingerprint"] == "f00d"


@pytest.mark.parametrize("changes", [{"fingerprint": "beef"}, {"threads": 7}, {"program": "old"}, {"cpus": [3]}])
def test_a_stale_file_is_measured_again(tmp_path: Path, runs: list[object], changes: dict[str, object]) -> None:
    ceilings(DEVICE, tmp_path)
    path = tmp_path / "devices" / "f00d.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    again = ceilings(DEVICE, tmp_path)
    assert len(runs) == 2 and (again.fingerprint, again.threads, again.cpus) == ("f00d", 1, ())


def test_a_unreadable_place_is_told_and_leaves_nothing(tmp_path: Path, runs: list[object]) -> None:
    (tmp_path / "devices").write_text("a file where a folder belongs")
    with pytest.raises(OSError, match="devices"):
        ceilings(DEVICE, tmp_path)


def test_threads_follow_the_device_then_the_cpus(tmp_path: Path, runs: list[tuple[int, tuple[int, ...]]]) -> None:
    free = DEVICE.model_copy(update={"cores": None})
    ceilings(free, tmp_path, cpus={1, 0, 2})
    ceilings(free, tmp_path, measure=True)
    ceilings(DEVICE, tmp_path, measure=True, cpus={0, 1})
    assert runs == [(3, (0, 1, 2)), (len(os.sched_getaffinity(0)), ()), (1, (0, 1))]


def test_without_a_compiler_numpy_measures_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_ceilings, "BUDGET_MS", 1)
    monkeypatch.setattr(_ceilings, "ARRAY_MAX_BYTES", 1 << 20)
    measured = ceilings(DEVICE, tmp_path)
    assert (measured.method, measured.compiler) == ("numpy", None)
    assert set(measured.bandwidth) == {"read", "copy"} and set(measured.rates) == {"fp32", "fp64"}
    assert measured.cache_bytes_s is None and "install a C compiler" in measured.unknown["l1"]


@pytest.mark.parametrize(
    "text", ["", "read x y 5", "read 1e10", "fp32 1 1 5", "read nan nan 5", "read 0 0 5", "read inf inf 5"]
)
def test_output_that_is_no_measurement_is_refused(text: str) -> None:
    with pytest.raises(CeilingsError, match="next: "):
        _ceilings._parse(text)


def test_the_larger_of_two_visits_counts_and_unknown_is_unknown() -> None:
    measured, unknown = _ceilings._parse(
        "\n".join([line("read", 1e9), line("read", 3e9), line("read", 2e9), "int8 - tiles"])
    )
    assert measured["read"].value == 3e9
    assert unknown == {"int8": "tiles"}


def test_only_a_cpu_with_a_plain_fingerprint(tmp_path: Path) -> None:
    for changes in ({"kind": "cuda"}, {"fingerprint": "../up"}, {"fingerprint": ""}):
        with pytest.raises(ValueError, match=r"CPU|fingerprint"):
            ceilings(DEVICE.model_copy(update=changes), tmp_path)


def test_cache_sizes_count_each_instance_once(tmp_path: Path) -> None:
    def make(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")

    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        make(cpu, 0, 1, "Data", "32K", str(cpu))
        make(cpu, 1, 1, "Instruction", "64K", str(cpu))
        make(cpu, 2, 2, "Unified", "1M", str(cpu))
        make(cpu, 3, 3, "Unified", "16384K", shared)
    assert cache_sizes([0, 1, 2], tmp_path) == (32 << 10, 1 << 20, 32 << 20)
    assert cache_sizes([0], tmp_path) == (32 << 10, 1 << 20, 16 << 20)
    assert cache_sizes([9], tmp_path) == (None, None, None)
