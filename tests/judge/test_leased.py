"""What is timed holds its device, waits for it without being charged, and what is not timed asks for nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelassay.devices import cpu_device, lease, lease_status
from kernelassay.records import Grade
from tests.hostile.arena import ROOT

_TIMEOUT_S = 110
_WAITED_S = 1.5
_EXAMPLE = ROOT / "examples" / "topk_cpp"
_GRADE = """
import sys
from pathlib import Path
from kernelassay.decks import load
from kernelassay.judge import GradeRequest, grade
from kernelassay.records import Tier
path, home, clocks = sys.argv[1:]
shape = load("ops/topk").problem.tier(Tier.SMALL)[0].key
request = GradeRequest(
    Path(path), "ops/topk", home=Path(home), probes=frozenset(), clocks=clocks == "clocks", timed=frozenset([shape])
)
print(grade(request).grade.model_dump_json())
"""
_COMPARE = """
import json, sys
from pathlib import Path
from kernelassay.decks import load
from kernelassay.judge import VersusRequest, versus
from kernelassay.records import Tier
path, home = map(Path, sys.argv[1:])
shape = load("ops/topk").problem.tier(Tier.SMALL)[0].key
print(versus(VersusRequest(path, path, "ops/topk", shapes=(shape,), pairs=1, home=home)).result.model_dump_json())
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Leases of one test alone."""
    place = Path(tempfile.mkdtemp(prefix="kernelassay-test-"))
    monkeypatch.setenv("KERNELASSAY_LEASES", str(place))
    yield place
    shutil.rmtree(place)


def _start(source: str, *arguments: object, inherit: bool = False) -> subprocess.Popen[str]:
    """A process; it does not know of what this one holds unless it is to."""
    environment = {**os.environ, **({} if inherit else {"KERNELASSAY_LEASE": ""})}
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _end(process: subprocess.Popen[str]) -> Any:
    out, _ = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0
    return json.loads(out)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _events() -> list[tuple[str, int]]:
    return [(event.event, event.pid) for event in lease_status("cpu").events]


@pytest.mark.slow
def test_a_grade_waits_for_its_device_and_is_not_charged(tmp_path: Path) -> None:
    with lease("cpu"):
        process = _start(_GRADE, _EXAMPLE, tmp_path, "clocks")
        _until(lambda: lease_status("cpu").waiters == (process.pid,))
        time.sleep(_WAITED_S)
    grade = Grade.from_plain(_end(process))
    names = [phase.name for phase in grade.phases]
    assert names[names.index("wait") :] == ["wait", "time"]
    waited = grade.phases[names.index("wait")].seconds
    assert waited >= _WAITED_S
    assert grade.judged_s == pytest.approx(sum(phase.seconds for phase in grade.phases) - waited)
    assert grade.timing.shapes
    held = lease_status("cpu").events[-1]
    assert _events()[-2:] == [("start", process.pid), ("end", process.pid)]
    assert held.seconds is not None
    assert held.seconds >= grade.phases[names.index("time")].seconds  # all of it, the ceilings included


@pytest.mark.slow
def test_a_grade_below_a_holder_has_the_device_at_once(tmp_path: Path) -> None:
    with lease("cpu"):
        grade = Grade.from_plain(_end(_start(_GRADE, _EXAMPLE, tmp_path, "clocks", inherit=True)))
        assert [phase.seconds < 1 for phase in grade.phases if phase.name == "wait"] == [True]
        assert grade.timing.shapes
    assert _events() == [(event, os.getpid()) for event in ("wait", "start", "end")]


@pytest.mark.slow
def test_a_grade_without_clocks_asks_for_nothing(tmp_path: Path) -> None:
    with lease("cpu"):
        grade = Grade.from_plain(_end(_start(_GRADE, _EXAMPLE, tmp_path, "none")))
    assert grade.status == "correct" and "wait" not in [phase.name for phase in grade.phases]
    assert _events() == [(event, os.getpid()) for event in ("wait", "start", "end")]


@pytest.mark.slow
def test_a_lease_that_cannot_be_kept_is_nobodys_fault(tmp_path: Path, folder: Path) -> None:
    (folder / "cpu.lock").symlink_to(tmp_path / "elsewhere")
    grade = Grade.from_plain(_end(_start(_GRADE, _EXAMPLE, tmp_path, "clocks")))
    assert (grade.verdict, grade.status, grade.score) == ("infra", "infra", None)
    assert f"next: rm {folder}/cpu.lock" in grade.reasons[0]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_a_comparison_holds_the_device(tmp_path: Path) -> None:
    with lease("cpu"):
        process = _start(_COMPARE, _EXAMPLE, tmp_path)
        _until(lambda: lease_status("cpu").waiters == (process.pid,))
    _end(process)
    assert _events()[-2:] == [("start", process.pid), ("end", process.pid)]


def test_measuring_a_device_waits_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernelassay", "device", "--measure", "--json", "--home", str(tmp_path)]
    with lease("cpu"):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KERNELASSAY_LEASE": ""}
        )
        _until(lambda: lease_status("cpu").waiters == (process.pid,))
        assert not list(tmp_path.rglob("*.json"))
    assert _end(process)["device"]["fingerprint"] == cpu_device().fingerprint
    assert _events()[-2:] == [("start", process.pid), ("end", process.pid)]
